/* Attention of heads: softmax(scale · q kᵀ + bias + mask) v, without the matrix of scores in memory.
 *
 * reads   q, k, v; bias and mask [batch · windows][heads][queries][keys] or NULL, each with strides for the first three
 * writes  y, like q with heads · width channels
 * p       as in the manifest
 *
 * Tokens are the pixels of blocked tensors [batch][channels / block][windows · tokens][block], or rows of channels
 * [batch · windows][tokens][channels]. Head h has the channels from h · depth on in q, and the group of `heads / groups` heads
 * that it belongs to has those from group · depth on in k and group · width on in v.
 *
 * Keys and values of a head are packed into private memory, keys with the channels as rows. A register tile of queries is
 * multiplied by a tile of keys; a running maximum and sum per query (FlashAttention, arXiv:2205.14135, algorithm 1) lets
 * many keys pass in several tiles. Scores of minus infinity count as 2^-126 times the largest of the row;
 * a row of nothing else is not a number, as ONNX Runtime has it. */
#include <float.h>

#include "../rows_product.h"
#include "../transpose.h"

NNS_DEFINE_READS(attention);

enum {
    MOST_QUERIES = NNS_MOST(attention, 1),
    PACKED = 32768,    /* floats of packed keys, and of packed values, that fit a second-level cache with all else */
    MOST_KEYS = ROWS_MOST, /* per tile, so that a tile's scores fit a first-level cache */
    CHUNK_TILES = 4,   /* tiles of queries per unit, if all keys are packed at once */
    CHUNK_TILES_FAR = 8
};
/* Scores are multiplied by log2(e) where they are made, so that weights are powers of two. */
#define LOG2_E 1.44269504f

/* Where the tokens of one window lie in a tensor, in floats. */
typedef struct {
    int64_t first;
    int64_t block, token; /* between blocks of channels, and between tokens */
} attention_tokens;

/* What all units of a step share. */
typedef struct {
    const attention_parameters *p;
    float scale;
    int64_t wide_depth, wide_width; /* depth and width as whole blocks */
    int64_t tile_keys, tiles;       /* keys per tile, a multiple of the panel; tiles */
    int64_t chunk, chunks;          /* queries per unit at most; units per head */
    int64_t keys, values, stage, scores, queries, sums, running; /* offsets in private memory, in floats */
    int64_t floats;                                              /* of private memory */
} attention_plan;

static int64_t rounded(int64_t value, int64_t step) { return nns_ceil_div(value, step) * step; }

static attention_plan plan_of(const attention_parameters *p, int64_t most_queries, int64_t vectors) {
    const int64_t panel = vectors * NNS_BLOCK;
    attention_plan plan = {.p = p, .scale = nns_float_of_bits(p->scale) * LOG2_E};
    plan.wide_depth = rounded(p->depth, NNS_BLOCK);
    plan.wide_width = rounded(p->width, panel);
    const int64_t fit = PACKED / nns_max_int(plan.wide_depth, plan.wide_width) / panel * panel;
    plan.tile_keys = nns_max_int(panel, nns_min_int(fit, nns_min_int(MOST_KEYS, rounded(p->keys, panel))));
    plan.tiles = nns_ceil_div(p->keys, plan.tile_keys);
    plan.chunk = most_queries * (plan.tiles == 1 ? CHUNK_TILES : CHUNK_TILES_FAR);
    plan.chunks = nns_ceil_div(p->queries, plan.chunk);
    plan.keys = NNS_BLOCK;
    plan.values = plan.keys + plan.tile_keys * plan.wide_depth + NNS_BLOCK;
    plan.stage = plan.values + plan.tile_keys * (plan.wide_width + NNS_BLOCK) + NNS_BLOCK;
    plan.scores = plan.stage + NNS_BLOCK * (plan.wide_depth + NNS_BLOCK);
    plan.queries = plan.scores + most_queries * ROWS_STEP + NNS_BLOCK;
    plan.sums = plan.queries + most_queries * ROWS_STEP;
    plan.running = plan.sums + plan.chunk * plan.wide_width;
    plan.floats = plan.running + rounded(2 * plan.chunk, NNS_BLOCK);
    return plan;
}

/* Bytes of a tensor of tokens. */
static int64_t token_bytes(const attention_parameters *p, int64_t tokens, int64_t channels) {
    return p->rows ? NNS_FLOAT_BYTES(p->batch, p->windows, tokens, channels)
                   : NNS_FLOAT_BYTES(p->batch, nns_ceil_div(channels, NNS_BLOCK), p->windows, tokens, NNS_BLOCK);
}

/* Bytes of a bias up to its last element. */
static int64_t bias_bytes(const attention_parameters *p, int64_t of_image, int64_t of_head, int64_t of_query) {
    const int64_t images = NNS_PRODUCT(p->batch, p->windows) - 1;
    const int64_t parts[] = {NNS_PRODUCT(images, of_image), NNS_PRODUCT(p->heads - 1, of_head),
                             NNS_PRODUCT(p->queries - 1, of_query)};
    int64_t last = p->keys;
    for (int i = 0; i < 3; i++)
        if (parts[i] < 0 || __builtin_add_overflow(last, parts[i], &last)) return -1;
    return NNS_FLOAT_BYTES(last);
}

static const char *attention_check(const nns_args *args, nns_work *work, int64_t most_queries, int64_t vectors) {
    const attention_parameters *p = (const void *)args->p;
    if (p->heads % p->groups) return "the heads are not divisible among the groups";
    const int64_t keys = token_bytes(p, p->keys, p->groups * p->depth);
    const char *wrong = NNS_CHECK_SIZES(attention, args, token_bytes(p, p->queries, p->heads * p->width),
                                        token_bytes(p, p->queries, p->heads * p->depth), keys,
                                        token_bytes(p, p->keys, p->groups * p->width),
                                        bias_bytes(p, p->bias_image, p->bias_head, p->bias_query),
                                        bias_bytes(p, p->mask_image, p->mask_head, p->mask_query));
    if (wrong) return wrong;
    const attention_plan plan = plan_of(p, most_queries, vectors);
    *work = (nns_work){.units = p->batch * p->windows * p->heads * plan.chunks,
                       .scratch = plan.floats * (int64_t)sizeof(float)};
    return NULL;
}

/* Window `image` (of batch · windows) of a tensor of `tokens` × `channels`. */
static attention_tokens tokens_of(const attention_parameters *p, int64_t image, int64_t tokens, int64_t channels) {
    if (p->rows) return (attention_tokens){image * tokens * channels, NNS_BLOCK, channels};
    const int64_t plane = p->windows * tokens * NNS_BLOCK;
    const int64_t batch = image / p->windows, window = image % p->windows;
    const int64_t first = batch * nns_ceil_div(channels, NNS_BLOCK) * plane + window * tokens * NNS_BLOCK;
    return (attention_tokens){first, plane, NNS_BLOCK};
}

/* Copies `n` channels from `channel` on of `count` tokens, times `factor`, to rows `step` floats apart. Of a blocked tensor whole
 * blocks are copied: up to NNS_BLOCK - 1 floats before and behind a row change, too, so rows are written in order. */
NNS_INLINE void read_tokens(float *to, int64_t step, const float *from, const attention_tokens *where, int64_t token,
                            int64_t count, int64_t channel, int64_t n, float factor) {
    const float *row = from + where->first + token * where->token;
    if (where->block == NNS_BLOCK) { /* rows, or a single block */
        for (row += channel; count > 0; count--, row += where->token, to += step) {
            int64_t i = 0;
            for (; i + NNS_BLOCK <= n; i += NNS_BLOCK) nns_store(to + i, nns_load(row + i) * factor);
            for (; i < n; i++) to[i] = row[i] * factor;
        }
        return;
    }
    const int64_t lane = channel & (NNS_BLOCK - 1), blocks = (lane + n + NNS_BLOCK - 1) / NNS_BLOCK;
    row += channel / NNS_BLOCK * where->block;
    to -= lane;
    for (; count > 0; count--, row += NNS_BLOCK, to += step) {
        const float *block = row;
        for (int64_t i = 0; i < blocks; i++, block += where->block)
            nns_store(to + i * NNS_BLOCK, nns_load(block) * factor);
    }
}

/* Writes `n` channels of a token. */
NNS_INLINE void write_channels(float *to, const attention_tokens *where, const float *from, int64_t token,
                               int64_t channel, int64_t n) {
    enum { PIECE = 4 };
    float *row = to + where->first + token * where->token;
    while (n > 0) {
        const int64_t lane = channel & (NNS_BLOCK - 1), some = nns_min_int(n, NNS_BLOCK - lane);
        float *part = row + channel / NNS_BLOCK * where->block + lane;
        if (some == NNS_BLOCK) {
            nns_store(part, nns_load(from));
        } else {
            int64_t i = 0;
            for (; i + PIECE <= some; i += PIECE) memcpy(part + i, from + i, PIECE * sizeof(float));
            for (; i < some; i++) part[i] = from[i];
        }
        from += some, channel += some, n -= some;
    }
}

/* Packs `n` keys from `first` on: per panel of `vectors` blocks of keys a row per channel. What stands for keys beyond `n` is
 * arbitrary. */
static void pack_keys(const attention_plan *plan, float *memory, const float *k, const attention_tokens *where,
                      int64_t channel, int64_t first, int64_t n, int64_t vectors) {
    const int64_t depth = plan->p->depth, wide = plan->wide_depth + NNS_BLOCK;
    float *stage = memory + plan->stage;
    for (int64_t block = 0; block * NNS_BLOCK < n; block++) {
        const int64_t some = nns_min_int(NNS_BLOCK, n - block * NNS_BLOCK);
        read_tokens(stage, wide, k, where, first + block * NNS_BLOCK, some, channel, depth, 1.0f);
        float *panel = memory + plan->keys + block / vectors * vectors * NNS_BLOCK * depth + block % vectors * NNS_BLOCK;
        for (int64_t c = 0; c < depth; c += NNS_BLOCK) {
            nns_vec v[NNS_BLOCK];
            COMPUTE_FOR(i, NNS_BLOCK) v[i] = nns_load(stage + i * wide + c);
            transpose_block(v);
            const int64_t rows = nns_min_int(NNS_BLOCK, depth - c);
            float *to = panel + c * vectors * NNS_BLOCK;
            if (rows == NNS_BLOCK) {
                COMPUTE_FOR(i, NNS_BLOCK) nns_store(to + i * vectors * NNS_BLOCK, v[i]);
            } else {
                for (int64_t i = 0; i < rows; i++) nns_store(to + i * vectors * NNS_BLOCK, v[i]);
            }
        }
    }
}

/* Packs `n` values from `first` on: a row per key. What stands beyond the width is arbitrary. */
static void pack_values(const attention_plan *plan, float *memory, const float *v, const attention_tokens *where,
                        int64_t channel, int64_t first, int64_t n) {
    read_tokens(memory + plan->values, plan->wide_width + NNS_BLOCK, v, where, first, n, channel, plan->p->width, 1.0f);
}

/* 2^x for x up to 0; at least 2^-126. NaN stays. */
NNS_INLINE nns_vec weight_of(nns_vec x) { return nns_power_of_two(nns_max(nns_broadcast(-126.0f), x)); }

/* Adds a bias to scores. Finite biases stay finite when they are scaled: masks often are the lowest float. */
NNS_INLINE nns_vec scaled_bias(nns_vec bias) {
    const nns_vec most = nns_broadcast(FLT_MAX), least = nns_broadcast(-FLT_MAX), scaled = bias * LOG2_E;
    const nns_ivec finite = (bias >= least) & (bias <= most);
    return nns_select(finite, nns_max(least, nns_min(most, scaled)), scaled);
}

NNS_INLINE void add_row(float *row, const float *bias, int64_t n) {
    int64_t i = 0;
    for (; i + NNS_BLOCK <= n; i += NNS_BLOCK) nns_store(row + i, nns_load(row + i) + scaled_bias(nns_load(bias + i)));
    for (; i < n; i++) row[i] += scaled_bias(nns_broadcast(bias[i]))[0];
}

/* The sum and the largest of all lanes. */
#define ROTATED(lane, step) ((lane) + (step)) % NNS_BLOCK
#define ROTATE(v, step) __builtin_shufflevector(v, v, TRANSPOSE_INDICES(ROTATED, step))

NNS_INLINE float lanes_sum(nns_vec v) {
#if NNS_BLOCK > 8
    v += ROTATE(v, 8);
#endif
#if NNS_BLOCK > 4
    v += ROTATE(v, 4);
#endif
    v += ROTATE(v, 2);
    v += ROTATE(v, 1);
    return v[0];
}

NNS_INLINE float lanes_max(nns_vec v) {
#if NNS_BLOCK > 8
    v = nns_max(v, ROTATE(v, 8));
#endif
#if NNS_BLOCK > 4
    v = nns_max(v, ROTATE(v, 4));
#endif
    v = nns_max(v, ROTATE(v, 2));
    v = nns_max(v, ROTATE(v, 1));
    return v[0];
}

/* Makes weights of the scores of one query and `n` keys. `top` and `sum` are the query's running maximum and sum; returns the
 * factor for what was summed before. `inside` masks the lanes of the last vector that are keys. */
NNS_INLINE float weigh_row(float *row, int64_t n, nns_ivec inside, float *top, float *sum) {
    const int64_t last = (n - 1) / NNS_BLOCK * NNS_BLOCK;
    nns_vec tops = nns_broadcast(*top);
    for (int64_t i = 0; i < last; i += NNS_BLOCK) tops = nns_max(tops, nns_load(row + i));
    tops = nns_max(tops, nns_select(inside, nns_load(row + last), nns_broadcast(-INFINITY)));
    const float highest = lanes_max(tops), largest = highest == -INFINITY ? 0.0f : highest;
    const float kept = *sum == 0 ? 0.0f : weight_of(nns_broadcast(*top - largest))[0];
    nns_vec sums = nns_zero();
    COMPUTE_UNROLL_TWICE
    for (int64_t i = 0; i < last; i += NNS_BLOCK) {
        const nns_vec e = weight_of(nns_load(row + i) - largest);
        nns_store(row + i, e);
        sums += e;
    }
    const nns_vec e = weight_of(nns_load(row + last) - largest);
    nns_store(row + last, e);
    sums += nns_select(inside, e, nns_zero());
    *sum = *sum * kept + lanes_sum(sums);
    *top = highest;
    return kept;
}

/* A unit in progress: some queries of a head. */
typedef struct {
    const attention_plan *plan;
    float *memory;
    const float *bias, *mask; /* of the head's first query, or NULL */
    int64_t image, head, first, count;
} attention_unit;

/* Computes the scores of the queries [row, row + count) of a unit with `n` packed keys. */
static void score_rows(const attention_unit *unit, const float *q, int64_t row, int64_t count, int64_t n, int64_t vectors,
                       rows_tile tile) {
    const attention_plan *plan = unit->plan;
    const attention_parameters *p = plan->p;
    const int64_t panel = vectors * NNS_BLOCK;
    const attention_tokens where = tokens_of(p, unit->image, p->queries, p->heads * p->depth);
    for (int64_t channel = 0; channel < p->depth; channel += MOST_KEYS) {
        float *queries = unit->memory + plan->queries;
        const int64_t some = nns_min_int(MOST_KEYS, p->depth - channel);
        read_tokens(queries, ROWS_STEP, q, &where, unit->first + row, count, unit->head * p->depth + channel, some,
                    plan->scale);
        rows_product product = {.a = queries,
                                     .b = unit->memory + plan->keys + channel * panel,
                                     .c = unit->memory + plan->scores,
                                     .kept = channel ? rows_ones : NULL,
                                     .of_b = panel,
                                     .of_c = ROWS_STEP,
                                     .k = some};
        for (int64_t key = 0; key < n; key += panel, product.b += panel * p->depth, product.c += panel)
            tile(count, nns_min_int(vectors, nns_ceil_div(n - key, NNS_BLOCK)), &product);
    }
}

/* Lets `n` packed keys from `first_key` on pass the queries [row, row + count) of a unit. */
static void pass_keys(const attention_unit *unit, const float *q, int64_t row, int64_t count, int64_t first_key, int64_t n,
                      int64_t vectors, rows_tile tile) {
    const attention_plan *plan = unit->plan;
    const attention_parameters *p = plan->p;
    float *memory = unit->memory, *scores = memory + plan->scores, *running = memory + plan->running;
    score_rows(unit, q, row, count, n, vectors, tile);
    float kept[MOST_QUERIES];
    nns_ivec inside;
    for (int i = 0; i < NNS_BLOCK; i++) inside[i] = i <= (n - 1) % NNS_BLOCK ? -1 : 0;
    for (int64_t r = 0; r < count; r++) {
        float *line = scores + r * ROWS_STEP;
        const int64_t query = unit->first + row + r;
        if (unit->bias) add_row(line, unit->bias + query * p->bias_query + first_key, n);
        if (unit->mask) add_row(line, unit->mask + query * p->mask_query + first_key, n);
        kept[r] = weigh_row(line, n, inside, running + row + r, running + plan->chunk + row + r);
    }
    const int64_t panel = vectors * NNS_BLOCK, blocks = nns_ceil_div(p->width, NNS_BLOCK);
    rows_product product = {.a = scores,
                                 .b = memory + plan->values,
                                 .c = memory + plan->sums + row * plan->wide_width,
                                 .kept = first_key ? kept : NULL,
                                 .of_b = plan->wide_width + NNS_BLOCK,
                                 .of_c = plan->wide_width,
                                 .k = n};
    for (int64_t block = 0; block < blocks; block += vectors, product.b += panel, product.c += panel)
        tile(count, nns_min_int(vectors, blocks - block), &product);
}

/* Writes what the queries of a unit sum up to, and zeros in the lanes beyond the last channel. */
static void write_unit(const attention_unit *unit, float *y) {
    const attention_plan *plan = unit->plan;
    const attention_parameters *p = plan->p;
    const float *tops = unit->memory + plan->running;
    float *sums = unit->memory + plan->running + plan->chunk;
    for (int64_t i = 0; i < unit->count; i++)
        if (tops[i] == -INFINITY) sums[i] = NAN;
    const int64_t channels = p->heads * p->width;
    const attention_tokens where = tokens_of(p, unit->image, p->queries, channels);
    const int64_t padding = !p->rows && unit->head == p->heads - 1 ? rounded(channels, NNS_BLOCK) - channels : 0;
    const float zeros[NNS_BLOCK] = {0};
    const int64_t channel = unit->head * p->width;
    if (!p->rows && p->width % NNS_BLOCK == 0) { /* whole blocks */
        float *block = y + where.first + channel / NNS_BLOCK * where.block + unit->first * NNS_BLOCK;
        for (int64_t c = 0; c < p->width; c += NNS_BLOCK, block += where.block)
            for (int64_t i = 0; i < unit->count; i++)
                nns_store(block + i * NNS_BLOCK,
                          nns_load(unit->memory + plan->sums + i * plan->wide_width + c) * (1.0f / sums[i]));
        return;
    }
    for (int64_t i = 0; i < unit->count; i++) {
        float *row = unit->memory + plan->sums + i * plan->wide_width;
        const float share = 1.0f / sums[i];
        for (int64_t c = 0; c < p->width; c += NNS_BLOCK) nns_store(row + c, nns_load(row + c) * share);
        write_channels(y, &where, row, unit->first + i, channel, p->width);
        write_channels(y, &where, zeros, unit->first + i, channels, padding);
    }
}

/* Lets all keys pass the queries of a unit. `packed` is the number of the head, from 1 on, whose keys are packed. */
static void compute_unit(const attention_unit *unit, const nns_args *args, int64_t *packed, int64_t most_queries,
                         int64_t vectors, rows_tile tile) {
    const attention_plan *plan = unit->plan;
    const attention_parameters *p = plan->p;
    const int64_t group = unit->head / (p->heads / p->groups), number = unit->image * p->groups + group + 1;
    const int64_t parts = nns_ceil_div(unit->count, most_queries);
    float *running = unit->memory + plan->running;
    for (int64_t r = 0; r < unit->count; r++) running[r] = -INFINITY, running[plan->chunk + r] = 0;
    for (int64_t key = 0; key < p->keys; key += plan->tile_keys) {
        const int64_t n = nns_min_int(plan->tile_keys, p->keys - key);
        if (plan->tiles > 1 || *packed != number) {
            const attention_tokens k = tokens_of(p, unit->image, p->keys, p->groups * p->depth);
            const attention_tokens v = tokens_of(p, unit->image, p->keys, p->groups * p->width);
            pack_keys(plan, unit->memory, args->in[READ_K], &k, group * p->depth, key, n, vectors);
            pack_values(plan, unit->memory, args->in[READ_V], &v, group * p->width, key, n);
            *packed = number;
        }
        for (int64_t part = 0; part < parts; part++) {
            const int64_t row = unit->count * part / parts;
            pass_keys(unit, args->in[READ_Q], row, unit->count * (part + 1) / parts - row, key, n, vectors, tile);
        }
    }
}

static void attention_run(const nns_args *args, int64_t begin, int64_t end, void *scratch, int64_t most_queries,
                          int64_t vectors, rows_tile tile) {
    const attention_parameters *p = (const void *)args->p;
    const attention_plan plan = plan_of(p, most_queries, vectors);
    attention_unit unit = {.plan = &plan, .memory = scratch};
    for (int64_t i = begin; i < end; i++) {
        const int64_t chunk = i % plan.chunks;
        unit.head = i / plan.chunks % p->heads;
        unit.image = i / plan.chunks / p->heads;
        unit.first = p->queries * chunk / plan.chunks;
        unit.count = p->queries * (chunk + 1) / plan.chunks - unit.first;
        unit.bias = args->in[READ_BIAS], unit.mask = args->in[READ_MASK];
        if (unit.bias) unit.bias += unit.image * p->bias_image + unit.head * p->bias_head;
        if (unit.mask) unit.mask += unit.image * p->mask_image + unit.head * p->mask_head;
        compute_unit(&unit, args, scratch, most_queries, vectors, tile);
        write_unit(&unit, args->out[0]);
    }
}

#define KERNEL(stem, name, where, queries, vectors)                                              \
    WHERE_##where(ROWS_DEFINE_TILE(stem, queries, vectors)                                       \
                      NNS_DEFINE_KERNEL(stem, attention_check(args, work, queries, vectors),     \
                                        attention_run(args, begin, end, scratch, queries, vectors, stem##_tile)))
KERNELS_attention(KERNEL)

NNS_DEFINE_FAMILY(attention);
