/* Attention without scores in memory: keys are read in groups, and sums of earlier groups are scaled down when a larger score
 * appears.
 *
 * Macros: QUERIES, of a work item of `attention`; DEPTH and WIDTH, keys and values of a head; KEYS, of a group of
 * `attention_of_queries`; ADJACENT, 1 if tokens of keys and values are neighbours; NORMALISED, 1 if every query and key of a head is
 * divided by its Euclidean norm, or by epsilon where that is more.
 *
 * An image is a window of a batch image. A tensor's place of (batch image, window, channel, token) is
 * batch image * image + window * window + channel * channel + token * token, by its strides.
 */
#include "common.cl"
#include "lanes.cl"

typedef struct {
    int image, window, channel, token;
} place_strides;

typedef struct {
    int image, head, query;
} score_strides;

typedef struct {
    int q_offset, k_offset, v_offset, bias_offset, mask_offset, factor_offset, y_offset;
    int windows, groups, queries, keys, depth, scale, epsilon, has_bias, has_mask, has_factor;
    place_strides q, k, v, y;
    score_strides bias, mask;
    int factor_image, factor_head;
} attention_arguments;

static inline const global float *place_of(const global float *tensor, const place_strides step, int image, int window,
                                           int channel)
{
    return tensor + (long)image * step.image + (long)window * step.window + (long)channel * step.channel;
}

static inline const global float *scores_of(const global float *tensor, const score_strides step, int image, int head,
                                            int query)
{
    return tensor + (long)image * step.image + (long)head * step.head + (long)query * step.query;
}

/* The factor of the scores of a head. */
static inline float scale_of(const global float *factor, int image, int head, const attention_arguments given)
{
    const float scale = as_float(given.scale);
    if (!given.has_factor)
        return scale;
    return scale * factor[given.factor_offset + (long)image * given.factor_image + (long)head * given.factor_head];
}

/* Vectors of B keys. Work items: (group of queries, head, image). */
kernel void attention(const global float *q_buffer, const global float *k_buffer, const global float *v_buffer,
                      const global float *bias_buffer, const global float *mask_buffer,
                      const global float *factor_buffer, global float *y_buffer, const attention_arguments given)
{
    const int first = (int)get_global_id(0) * QUERIES, head = get_global_id(1), image = get_global_id(2);
    const int batch = image / given.windows, window = image % given.windows, group = given.groups == 1 ? 0 : head;
    const int depth = given.depth, keys = given.keys;
    const float epsilon = as_float(given.epsilon);
    const global float *k = place_of(k_buffer + given.k_offset, given.k, batch, window, group * depth);
    const global float *v = place_of(v_buffer + given.v_offset, given.v, batch, window, group * WIDTH);
    const global float *q[QUERIES], *bias[QUERIES], *mask[QUERIES];
    float largest[QUERIES], total[QUERIES], scale[QUERIES];
    floatb sum[QUERIES][WIDTH];
    UNROLL for (int i = 0; i < QUERIES; i++) {
        const int query = min(first + i, given.queries - 1);
        q[i] = place_of(q_buffer + given.q_offset, given.q, batch, window, head * depth) + (long)query * given.q.token;
        bias[i] = scores_of(bias_buffer + given.bias_offset, given.bias, image, head, query);
        mask[i] = scores_of(mask_buffer + given.mask_offset, given.mask, image, head, query);
        largest[i] = -INFINITY;
        total[i] = 0.0f;
        scale[i] = scale_of(factor_buffer, image, head, given);
#if NORMALISED
        float squares = 0.0f;
        for (int d = 0; d < depth; d++)
            squares += q[i][(long)d * given.q.channel] * q[i][(long)d * given.q.channel];
        scale[i] /= fmax(sqrt(squares), epsilon);
#endif
        for (int e = 0; e < WIDTH; e++)
            sum[i][e] = (floatb)(0.0f);
    }
    for (int key = 0; key < keys; key += B) {
        const int count = keys - key;
        floatb score[QUERIES];
        UNROLL for (int i = 0; i < QUERIES; i++)
            score[i] = (floatb)(0.0f);
        floatb squares = 0.0f;
        for (int d = 0; d < depth; d++) {
            const floatb values = load_some(k + (long)d * given.k.channel + (long)key * given.k.token, given.k.token, count, 0.0f);
            if (NORMALISED)
                squares = fma(values, values, squares);
            UNROLL for (int i = 0; i < QUERIES; i++)
                score[i] = fma(values, (floatb)(q[i][(long)d * given.q.channel]), score[i]);
        }
        UNROLL for (int i = 0; i < QUERIES; i++) {
            floatb all = score[i] * scale[i];
            if (NORMALISED)
                all /= fmax(sqrt(squares), (floatb)(epsilon));
            if (given.has_bias)
                all += load_some(bias[i] + key, 1, count, 0.0f);
            if (given.has_mask)
                all += load_some(mask[i] + key, 1, count, 0.0f);
            lanes known;
            known.vector = all;
            for (int j = max(count, 0); j < B; j++)
                known.lane[j] = -INFINITY;
            const float now = max(largest[i], largest_lane(known.vector));
            const float shift = now == -INFINITY ? 0.0f : now; /* all keys so far are masked */
            const float less = exp(largest[i] - shift);
            score[i] = exp(known.vector - shift);
            largest[i] = now;
            total[i] = total[i] * less + sum_of_lanes(score[i]);
            for (int e = 0; e < WIDTH; e++)
                sum[i][e] *= less;
        }
        for (int e = 0; e < WIDTH; e++) {
            const floatb values = load_some(v + (long)e * given.v.channel + (long)key * given.v.token, given.v.token, count, 0.0f);
            UNROLL for (int i = 0; i < QUERIES; i++)
                sum[i][e] = fma(values, score[i], sum[i][e]);
        }
    }
    global float *y = y_buffer + given.y_offset + (long)batch * given.y.image + (long)window * given.y.window +
                      (long)head * WIDTH * given.y.channel;
    for (int i = 0; i < min(QUERIES, given.queries - first); i++) {
        for (int e = 0; e < WIDTH; e++)
            y[(long)e * given.y.channel + (long)(first + i) * given.y.token] = sum_of_lanes(sum[i][e]) / total[i];
    }
}

#if ADJACENT
#define STEP(tensor) 1
#else
#define STEP(tensor) (tensor).token
#endif

/* Adds `count` keys, at most KEYS, to the sums of B queries; `count` is a constant where the caller knows that it is KEYS. */
INLINE void add_keys(const floatb q[DEPTH], floatb sum[WIDTH], floatb *largest, floatb *total, const global float *k,
                     const global float *v, const global float *bias, const global float *mask, int queries, int count,
                     const attention_arguments given)
{
    floatb score[KEYS];
    float squares[KEYS];
    UNROLL for (int j = 0; j < KEYS; j++) {
        score[j] = (floatb)(0.0f);
        squares[j] = 0.0f;
    }
    for (int d = 0; d < DEPTH; d++) {
        const global float *at = k + (long)d * given.k.channel;
        UNROLL for (int j = 0; j < KEYS; j++) {
            const float element = at[(long)min(j, count - 1) * STEP(given.k)];
            score[j] = fma((floatb)(element), q[d], score[j]);
            if (NORMALISED)
                squares[j] = fma(element, element, squares[j]);
        }
    }
    floatb now = *largest;
    UNROLL for (int j = 0; j < KEYS; j++) {
        if (NORMALISED)
            score[j] /= fmax(sqrt(squares[j]), as_float(given.epsilon));
        if (given.has_bias)
            score[j] += load_some(bias + min(j, count - 1), given.bias.query, queries, 0.0f);
        if (given.has_mask)
            score[j] += load_some(mask + min(j, count - 1), given.mask.query, queries, 0.0f);
        if (j >= count)
            score[j] = (floatb)(-INFINITY);
        now = max(now, score[j]);
    }
    const floatb shift = max(now, (floatb)(-FLT_MAX)); /* finite where all keys so far are masked */
    const floatb less = exp(*largest - shift);
    floatb added = 0.0f;
    UNROLL for (int j = 0; j < KEYS; j++) {
        score[j] = exp(score[j] - shift);
        added += score[j];
    }
    *largest = now;
    *total = fma(*total, less, added);
    for (int e = 0; e < WIDTH; e++) {
        const global float *at = v + (long)e * given.v.channel;
        floatb weighed = sum[e] * less;
        UNROLL for (int j = 0; j < KEYS; j++)
            weighed = fma((floatb)(at[(long)min(j, count - 1) * STEP(given.v)]), score[j], weighed);
        sum[e] = weighed;
    }
}

/* Vectors of B queries, which need no operation between lanes. Work items: (group of queries, head, image). */
kernel void attention_of_queries(const global float *q_buffer, const global float *k_buffer, const global float *v_buffer,
                                 const global float *bias_buffer, const global float *mask_buffer,
                                 const global float *factor_buffer, global float *y_buffer, const attention_arguments given)
{
    const int first = (int)get_global_id(0) * B, head = get_global_id(1), image = get_global_id(2);
    const int batch = image / given.windows, window = image % given.windows, group = given.groups == 1 ? 0 : head;
    const int queries = min(B, given.queries - first), keys = given.keys;
    const global float *from = place_of(q_buffer + given.q_offset, given.q, batch, window, head * DEPTH);
    const global float *k = place_of(k_buffer + given.k_offset, given.k, batch, window, group * DEPTH);
    const global float *v = place_of(v_buffer + given.v_offset, given.v, batch, window, group * WIDTH);
    const global float *bias = scores_of(bias_buffer + given.bias_offset, given.bias, image, head, first);
    const global float *mask = scores_of(mask_buffer + given.mask_offset, given.mask, image, head, first);
    floatb q[DEPTH], sum[WIDTH], largest = -INFINITY, total = 0.0f, squares = 0.0f;
    for (int d = 0; d < DEPTH; d++) {
        const global float *at = from + (long)d * given.q.channel + (long)first * given.q.token;
        q[d] = load_some(at, given.q.token, queries, 0.0f);
        squares = fma(q[d], q[d], squares);
    }
    floatb scale = scale_of(factor_buffer, image, head, given);
    if (NORMALISED)
        scale /= fmax(sqrt(squares), (floatb)(as_float(given.epsilon)));
    for (int d = 0; d < DEPTH; d++)
        q[d] *= scale;
    for (int e = 0; e < WIDTH; e++)
        sum[e] = (floatb)(0.0f);
    int key = 0;
    for (; key + KEYS <= keys; key += KEYS) {
        add_keys(q, sum, &largest, &total, k + (long)key * STEP(given.k), v + (long)key * STEP(given.v), bias + key, mask + key,
                 queries, KEYS, given);
    }
    if (key < keys) {
        add_keys(q, sum, &largest, &total, k + (long)key * STEP(given.k), v + (long)key * STEP(given.v), bias + key, mask + key,
                 queries, keys - key, given);
    }
    global float *y = y_buffer + given.y_offset + (long)batch * given.y.image + (long)window * given.y.window +
                      (long)head * WIDTH * given.y.channel + (long)first * given.y.token;
    const floatb share = 1.0f / total;
    for (int e = 0; e < WIDTH; e++) {
        lanes found;
        found.vector = sum[e] * share;
        if (given.y.token == 1) {
            store_some(found.vector, y + (long)e * given.y.channel, queries);
            continue;
        }
        for (int i = 0; i < queries; i++)
            y[(long)e * given.y.channel + (long)i * given.y.token] = found.lane[i];
    }
}
