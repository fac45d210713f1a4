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
 * many keys pass in several tiles. Scores of minus infinity count as e^-87 times the largest of the row;
 * a row of nothing else is not a number, as ONNX Runtime has it. */
#include "../rows_product.h"
#include "../transpose.h"

NNS_DEFINE_READS(attention);

enum {
    MOST_QUERIES = NNS_MOST(attention, 1),
    PACKED = 32768,    /* floats of packed keys, and of packed values, that fit a second-level cache with all else */
    MOST_KEYS = ROWS_MOST, /* per tile, so that a tile's scores fit a first-level cache */
    CHUNK_TILES = 4,   /* tiles of queries per unit, if all keys are packed at once */
    CHUNK_TILES_FAR = 8,
    RUNNING = 2 * NNS_BLOCK /* floats for as many queries: their tops, and their sums */
};

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
    int64_t chunk, chunks;            /* queries per unit at most; units per head */
    int64_t of_part;                  /* floats for the tops and sums of a tile of queries */
    int64_t keys, values, stage, scores, queries, sums, running, shares; /* offsets in private memory, in floats */
    int64_t floats;                                                      /* of private memory */
} attention_plan;

static int64_t rounded(int64_t value, int64_t step) { return nns_ceil_div(value, step) * step; }

static attention_plan plan_of(const attention_parameters *p, int64_t most_queries, int64_t vectors) {
    const int64_t panel = vectors * NNS_BLOCK;
    attention_plan plan = {.p = p, .scale = nns_float_of_bits(p->scale)};
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
    plan.of_part = nns_ceil_div(most_queries, NNS_BLOCK) * RUNNING;
    plan.shares = plan.running + plan.chunk / most_queries * plan.of_part;
    plan.floats = plan.shares + rounded(plan.chunk, NNS_BLOCK) + NNS_BLOCK;
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

/* e^x for x up to 0; at least e^-87. NaN stays. */
NNS_INLINE nns_vec weight_of(nns_vec x) { return nns_exp_below(nns_max(nns_broadcast(-87.0f), x)); }

/* Adds bias and mask, unless they are NULL, to the scores of a query and `n` keys; returns the largest of each lane. Reads
 * whole vectors where they end before `bias_end` and `mask_end`. `inside` masks the lanes of the last vector that are keys. */
NNS_INLINE nns_vec complete_row(float *row, int64_t n, nns_ivec inside, const float *bias, const float *bias_end,
                                const float *mask, const float *mask_end) {
    const int64_t last = (n - 1) / NNS_BLOCK * NNS_BLOCK, some = n - last;
    nns_vec tops = nns_broadcast(-INFINITY), score = nns_load(row + last);
    for (int64_t i = 0; i < last; i += NNS_BLOCK) {
        nns_vec whole = nns_load(row + i);
        if (bias) whole += nns_load(bias + i);
        if (mask) whole += nns_load(mask + i);
        if (bias || mask) nns_store(row + i, whole);
        tops = nns_max(tops, whole);
    }
    if (bias) score += bias_end - bias >= last + NNS_BLOCK ? nns_load(bias + last) : nns_load_some(bias + last, some, 0);
    if (mask) score += mask_end - mask >= last + NNS_BLOCK ? nns_load(mask + last) : nns_load_some(mask + last, some, 0);
    nns_store(row + last, score);
    return nns_max(tops, nns_select(inside, score, nns_broadcast(-INFINITY)));
}

/* Makes weights e^(score - top) of the scores of a query and `n` keys; returns the sum of each lane. */
NNS_INLINE nns_vec weigh_row(float *row, int64_t n, nns_ivec inside, nns_vec top) {
    const int64_t last = (n - 1) / NNS_BLOCK * NNS_BLOCK;
    nns_vec sums = nns_zero();
    COMPUTE_UNROLL_TWICE
    for (int64_t i = 0; i < last; i += NNS_BLOCK) {
        const nns_vec e = weight_of(nns_load(row + i) - top);
        nns_store(row + i, e);
        sums += e;
    }
    const nns_vec e = weight_of(nns_load(row + last) - top);
    nns_store(row + last, e);
    return sums + nns_select(inside, e, nns_zero());
}

/* A unit in progress: some queries of a head. */
typedef struct {
    const attention_plan *plan;
    float *memory;
    const float *bias, *mask; /* of the head's first query, or NULL */
    const float *bias_end, *mask_end;
    int64_t image, head, first, count;
    int64_t parts; /* tiles of queries */
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

/* Makes weights of the scores of up to NNS_BLOCK queries from `query` on and of `n` keys from `first_key` on. `running` holds the
 * queries' running tops and sums. Writes the factors for what was summed before to `kept`. */
static void weigh_rows(const attention_unit *unit, float *scores, int64_t query, int64_t count, int64_t first_key, int64_t n,
                       float *running, float *kept) {
    const attention_parameters *p = unit->plan->p;
    nns_vec each[NNS_BLOCK];
    nns_ivec inside;
    COMPUTE_FOR(i, NNS_BLOCK) inside[i] = i <= (n - 1) % NNS_BLOCK ? -1 : 0;
    COMPUTE_FOR(i, NNS_BLOCK) each[i] = nns_zero();
    for (int64_t r = 0; r < count; r++) {
        const float *bias = unit->bias ? unit->bias + (query + r) * p->bias_query + first_key : NULL;
        const float *mask = unit->mask ? unit->mask + (query + r) * p->mask_query + first_key : NULL;
        each[r] = complete_row(scores + r * ROWS_STEP, n, inside, bias, unit->bias_end, mask, unit->mask_end);
    }
    const nns_vec zero = nns_zero(), before = nns_load(running), sums = nns_load(running + NNS_BLOCK);
    const nns_vec top = nns_max(before, max_of_each(each)), finite = nns_select(top == -INFINITY, zero, top);
    const nns_vec factors = nns_select(sums == zero, zero, weight_of(before - finite));
    float tops[NNS_BLOCK];
    nns_store(tops, finite);
    for (int64_t r = 0; r < count; r++) each[r] = weigh_row(scores + r * ROWS_STEP, n, inside, nns_broadcast(tops[r]));
    nns_store(kept, factors);
    nns_store(running, top);
    nns_store(running + NNS_BLOCK, sums * factors + sum_of_each(each));
}

/* Lets `n` packed keys from `first_key` on pass the queries [row, row + count) of a unit, which are its part `part`. */
static void pass_keys(const attention_unit *unit, const float *q, int64_t part, int64_t row, int64_t count,
                      int64_t first_key, int64_t n, int64_t vectors, rows_tile tile) {
    const attention_plan *plan = unit->plan;
    const attention_parameters *p = plan->p;
    float *memory = unit->memory, *scores = memory + plan->scores;
    float *running = memory + plan->running + part * plan->of_part, kept[MOST_QUERIES + NNS_BLOCK];
    score_rows(unit, q, row, count, n, vectors, tile);
    for (int64_t r = 0; r < count; r += NNS_BLOCK, running += RUNNING)
        weigh_rows(unit, scores + r * ROWS_STEP, unit->first + row + r, nns_min_int(NNS_BLOCK, count - r), first_key, n,
                   running, kept + r);
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

/* The first query of part `part` of a unit. */
NNS_INLINE int64_t part_begin(const attention_unit *unit, int64_t part) { return unit->count * part / unit->parts; }

/* Computes 1 / sum for each query of a unit; not a number where all its scores are minus infinity. */
static const float *shares_of(const attention_unit *unit) {
    const attention_plan *plan = unit->plan;
    float *shares = unit->memory + plan->shares;
    for (int64_t part = 0; part < unit->parts; part++) {
        const float *running = unit->memory + plan->running + part * plan->of_part;
        const int64_t end = part_begin(unit, part + 1);
        for (int64_t i = part_begin(unit, part); i < end; i += NNS_BLOCK, running += RUNNING) {
            const nns_vec share = 1.0f / nns_load(running + NNS_BLOCK);
            nns_store(shares + i, nns_select(nns_load(running) == -INFINITY, nns_broadcast(NAN), share));
        }
    }
    return shares;
}

/* Writes what the queries of a unit sum up to, and zeros in the lanes beyond the last channel. */
static void write_unit(const attention_unit *unit, float *y) {
    const attention_plan *plan = unit->plan;
    const attention_parameters *p = plan->p;
    const float *shares = shares_of(unit);
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
                          nns_load(unit->memory + plan->sums + i * plan->wide_width + c) * shares[i]);
        return;
    }
    for (int64_t i = 0; i < unit->count; i++) {
        float *row = unit->memory + plan->sums + i * plan->wide_width;
        const float share = shares[i];
        for (int64_t c = 0; c < p->width; c += NNS_BLOCK) nns_store(row + c, nns_load(row + c) * share);
        write_channels(y, &where, row, unit->first + i, channel, p->width);
        write_channels(y, &where, zeros, unit->first + i, channels, padding);
    }
}

/* Lets all keys pass the queries of a unit. `packed` is the number of the head, from 1 on, whose keys are packed. */
static void compute_unit(const attention_unit *unit, const nns_args *args, int64_t *packed, int64_t vectors,
                         rows_tile tile) {
    const attention_plan *plan = unit->plan;
    const attention_parameters *p = plan->p;
    const int64_t group = unit->head / (p->heads / p->groups), number = unit->image * p->groups + group + 1;
    float *running = unit->memory + plan->running;
    for (; running < unit->memory + plan->shares; running += RUNNING) {
        nns_store(running, nns_broadcast(-INFINITY));
        nns_store(running + NNS_BLOCK, nns_zero());
    }
    for (int64_t key = 0; key < p->keys; key += plan->tile_keys) {
        const int64_t n = nns_min_int(plan->tile_keys, p->keys - key);
        if (plan->tiles > 1 || *packed != number) {
            const attention_tokens k = tokens_of(p, unit->image, p->keys, p->groups * p->depth);
            const attention_tokens v = tokens_of(p, unit->image, p->keys, p->groups * p->width);
            pack_keys(plan, unit->memory, args->in[READ_K], &k, group * p->depth, key, n, vectors);
            pack_values(plan, unit->memory, args->in[READ_V], &v, group * p->width, key, n);
            *packed = number;
        }
        for (int64_t part = 0; part < unit->parts; part++) {
            const int64_t row = part_begin(unit, part);
            pass_keys(unit, args->in[READ_Q], part, row, part_begin(unit, part + 1) - row, key, n, vectors, tile);
        }
    }
}

static void attention_run(const nns_args *args, int64_t begin, int64_t end, void *scratch, int64_t most_queries,
                          int64_t vectors, rows_tile tile) {
    const attention_parameters *p = (const void *)args->p;
    const attention_plan plan = plan_of(p, most_queries, vectors);
    attention_unit unit = {.plan = &plan, .memory = scratch};
    if (args->in[READ_BIAS])
        unit.bias_end = (const float *)args->in[READ_BIAS] + args->in_bytes[READ_BIAS] / (int64_t)sizeof(float);
    if (args->in[READ_MASK])
        unit.mask_end = (const float *)args->in[READ_MASK] + args->in_bytes[READ_MASK] / (int64_t)sizeof(float);
    for (int64_t i = begin; i < end; i++) {
        const int64_t chunk = i % plan.chunks;
        unit.head = i / plan.chunks % p->heads;
        unit.image = i / plan.chunks / p->heads;
        unit.first = p->queries * chunk / plan.chunks;
        unit.count = p->queries * (chunk + 1) / plan.chunks - unit.first;
        unit.parts = nns_ceil_div(unit.count, most_queries);
        unit.bias = args->in[READ_BIAS], unit.mask = args->in[READ_MASK];
        if (unit.bias) unit.bias += unit.image * p->bias_image + unit.head * p->bias_head;
        if (unit.mask) unit.mask += unit.image * p->mask_image + unit.head * p->mask_head;
        compute_unit(&unit, args, scratch, vectors, tile);
        write_unit(&unit, args->out[0]);
    }
}

#define KERNEL(stem, name, where, queries, vectors)                                              \
    WHERE_##where(ROWS_DEFINE_TILE(stem, queries, vectors)                                       \
                      NNS_DEFINE_KERNEL(stem, attention_check(args, work, queries, vectors),     \
                                        attention_run(args, begin, end, scratch, queries, vectors, stem##_tile)))
KERNELS_attention(KERNEL)

NNS_DEFINE_FAMILY(attention);
