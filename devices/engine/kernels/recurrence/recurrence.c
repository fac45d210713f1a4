/* Recurrent layers (LSTM, GRU) whose inputs have been multiplied by the input weights before, all steps at once.
 *
 * reads   x: sums of the gates, [directions][gates][hidden] channels of [images][steps][sequences] or
 *         [images][sequences][steps] pixels, plain (channels last) or blocked
 *         weights: of a direction and a block of hidden units, float[hidden][gates][block]; those of a GRU that resets before
 *         the product are float[hidden][2][block] and float[hidden][1][block]
 *         bias or NULL: of the candidate of a GRU that resets after the product, float[directions][hidden, in whole blocks]
 *         hidden, cell or NULL (zeros): the first states, [directions][images][sequences][hidden]
 * writes  hidden states of all steps, [directions][hidden] channels of the same pixels
 * p       as in the manifest
 *
 * Gates are in the order of ONNX: input, output, forget, candidate; update, reset, candidate. A unit of work is a chunk of the
 * sequences of an image in one direction. It takes all steps one after another; at each step, register tiles of some sequences ×
 * a vector of every gate multiply the states by the weights. */
#include "../compute.h"

NNS_DEFINE_READS(recurrence);

enum {
    TILE_ROWS = NNS_MOST(recurrence, 2),
    MOST_GATES = 4,
    LEAST_SUMS = 8 /* sums that are added to in turn, so that none waits for the one before */
};
_Static_assert((int)TILE_ROWS <= (int)COMPUTE_MOST_COUNT, "COMPUTE_BY_COUNT has no case for a tile of this many rows");

typedef enum { LSTM, GRU_RESET_BEFORE, GRU_RESET_AFTER } recurrent_cell;

/* How channels of pixels lie in memory, in floats. */
typedef struct {
    int64_t of_pixel, of_image;
    int64_t of_block; /* between blocks of channels; those of a plain tensor are neighbours */
} channel_steps;

/* What all units of a step share. */
typedef struct {
    const recurrence_parameters *p;
    int64_t gates, blocks, padded;            /* blocks of hidden units, and the units in whole blocks */
    bool staged;                              /* sums of gates begin within blocks, and are copied */
    int64_t between_steps, between_sequences; /* pixels */
    int64_t chunks;                           /* per image */
    channel_steps x, y;
    int64_t next, cell, reset, stage, floats; /* offsets in private memory, and its size */
} recurrence_plan;

static channel_steps steps_of(const recurrence_parameters *p, int64_t channels) {
    const int64_t pixels = p->steps * p->sequences;
    if (!p->block) return (channel_steps){.of_pixel = channels, .of_image = channels * pixels, .of_block = NNS_BLOCK};
    return (channel_steps){.of_pixel = NNS_BLOCK,
                           .of_image = blocks_of(channels) * pixels * NNS_BLOCK,
                           .of_block = pixels * NNS_BLOCK};
}

static recurrence_plan plan_of(const recurrence_parameters *p, int64_t gates) {
    recurrence_plan plan = {.p = p, .gates = gates, .blocks = blocks_of(p->hidden)};
    plan.padded = plan.blocks * NNS_BLOCK;
    plan.staged = plan.padded != p->hidden;
    plan.between_steps = p->steps_inner ? 1 : p->sequences;
    plan.between_sequences = p->steps_inner ? p->steps : 1;
    plan.chunks = nns_ceil_div(p->sequences, p->chunk);
    plan.x = steps_of(p, p->directions * gates * p->hidden);
    plan.y = steps_of(p, p->directions * p->hidden);
    const int64_t states = p->chunk * plan.padded;
    plan.next = states;
    plan.cell = plan.next + states;
    plan.reset = plan.cell + states;
    plan.stage = plan.reset + states;
    plan.floats = plan.stage + (plan.staged ? states * gates : 0);
    return plan;
}

static const char *recurrence_check(const nns_args *args, nns_work *work, int64_t gates) {
    const recurrence_parameters *p = (const void *)args->p;
    if (p->block && p->block != NNS_BLOCK) return "the block is not the engine's";
    const int64_t padded = blocks_of(p->hidden) * NNS_BLOCK, channels = p->directions * p->hidden;
    const int64_t x = p->block ? blocks_of(channels * gates) * NNS_BLOCK : channels * gates;
    const int64_t y = p->block ? blocks_of(channels) * NNS_BLOCK : channels;
    const int64_t states = NNS_FLOAT_BYTES(p->directions, p->images, p->sequences, p->hidden);
    const char *wrong = NNS_CHECK_SIZES(
        recurrence, args, NNS_FLOAT_BYTES(p->images, p->steps, p->sequences, y),
        NNS_FLOAT_BYTES(p->images, p->steps, p->sequences, x), NNS_FLOAT_BYTES(p->directions, gates, p->hidden, padded),
        NNS_FLOAT_BYTES(p->directions, padded), states, states);
    if (wrong) return wrong;
    const recurrence_plan plan = plan_of(p, gates);
    *work = (nns_work){.units = p->directions * p->images * plan.chunks, .scratch = plan.floats * (int64_t)sizeof(float)};
    return NULL;
}

/* ---- sums: states × weights ------------------------------------------------------------------------------------------ */

typedef struct {
    const float *states; /* of the tile's rows */
    int64_t of_row;      /* floats between rows */
    const float *weights;
    int64_t k;           /* rows of weights */
    float *sums;         /* [rows][gates][block] */
} gates_product;

/* Adds the products of element k of each row with row k of the weights. */
NNS_INLINE void gates_add(const int count, const int gates, nns_vec acc[][MOST_GATES], const gates_product *product,
                          int64_t k) {
    const float *weights = product->weights + k * gates * NNS_BLOCK;
    nns_vec left[TILE_ROWS];
    COMPUTE_FOR(r, count) left[r] = nns_broadcast(product->states[r * product->of_row + k]);
    COMPUTE_FOR(g, gates) {
        const nns_vec right = nns_load(weights + g * NNS_BLOCK);
        COMPUTE_FOR(r, count) acc[r][g] += left[r] * right;
    }
}

NNS_INLINE void gates_tile(const int count, const int gates, const gates_product *product) {
    const int turns = count * gates < LEAST_SUMS ? 2 : 1;
    nns_vec acc[2][TILE_ROWS][MOST_GATES];
    COMPUTE_FOR(i, turns) COMPUTE_FOR(r, count) COMPUTE_FOR(g, gates) acc[i][r][g] = nns_zero();
    int64_t k = 0;
    for (; k + turns <= product->k; k += turns)
        COMPUTE_FOR(i, turns) gates_add(count, gates, acc[i], product, k + i);
    if (k < product->k) gates_add(count, gates, acc[0], product, k);
    COMPUTE_FOR(r, count) COMPUTE_FOR(g, gates) {
        const nns_vec sum = turns == 2 ? acc[0][r][g] + acc[1][r][g] : acc[0][r][g];
        nns_store(product->sums + (r * gates + g) * NNS_BLOCK, sum);
    }
}

/* Computes `count` rows of `gates` gates. */
typedef void (*gates_tiles)(int64_t count, int64_t gates, const gates_product *product);

/* ---- cells: states from sums ----------------------------------------------------------------------------------------- */

/* A step of a unit: the sums of its gates from x, and its states [sequences][hidden, in whole blocks]. */
typedef struct {
    const float *x;
    int64_t of_row, of_gate, of_block; /* floats of x */
    const float *bias;                 /* of the candidate's product, or NULL */
    const float *hidden;
    float *next, *cell, *reset;
    int64_t padded;
} cell_step;

/* The sum of gate `gate` of a row and a block that x contributes. */
NNS_INLINE nns_vec gate_of(const cell_step *step, int64_t row, int64_t block, int64_t gate) {
    return nns_load(step->x + row * step->of_row + gate * step->of_gate + block * step->of_block);
}

static __attribute__((noinline)) void lstm_states(const cell_step *step, int64_t row, int64_t count, int64_t block,
                                                  const float *sums) {
    for (int64_t end = row + count; row < end; row++, sums += 4 * NNS_BLOCK) {
        const int64_t at = row * step->padded + block * NNS_BLOCK;
        const nns_vec in = nns_sigmoid(gate_of(step, row, block, 0) + nns_load(sums));
        const nns_vec out = nns_sigmoid(gate_of(step, row, block, 1) + nns_load(sums + NNS_BLOCK));
        const nns_vec forget = nns_sigmoid(gate_of(step, row, block, 2) + nns_load(sums + 2 * NNS_BLOCK));
        const nns_vec candidate = nns_tanh(gate_of(step, row, block, 3) + nns_load(sums + 3 * NNS_BLOCK));
        const nns_vec cell = forget * nns_load(step->cell + at) + in * candidate;
        nns_store(step->cell + at, cell);
        nns_store(step->next + at, out * nns_tanh(cell));
    }
}

/* The hidden state between the candidate and the last one. */
NNS_INLINE nns_vec gru_state(nns_vec update, nns_vec candidate, nns_vec hidden) {
    return candidate + update * (hidden - candidate);
}

static __attribute__((noinline)) void gru_states(const cell_step *step, int64_t row, int64_t count, int64_t block,
                                                 const float *sums) {
    const nns_vec bias = step->bias ? nns_load(step->bias + block * NNS_BLOCK) : nns_zero();
    for (int64_t end = row + count; row < end; row++, sums += 3 * NNS_BLOCK) {
        const int64_t at = row * step->padded + block * NNS_BLOCK;
        const nns_vec update = nns_sigmoid(gate_of(step, row, block, 0) + nns_load(sums));
        const nns_vec reset = nns_sigmoid(gate_of(step, row, block, 1) + nns_load(sums + NNS_BLOCK));
        const nns_vec product = nns_load(sums + 2 * NNS_BLOCK) + bias;
        const nns_vec candidate = nns_tanh(gate_of(step, row, block, 2) + reset * product);
        nns_store(step->next + at, gru_state(update, candidate, nns_load(step->hidden + at)));
    }
}

/* The update gate, kept where an LSTM has its cell, and the hidden states that the reset gate leaves. */
static __attribute__((noinline)) void gru_gates(const cell_step *step, int64_t row, int64_t count, int64_t block,
                                                const float *sums) {
    for (int64_t end = row + count; row < end; row++, sums += 2 * NNS_BLOCK) {
        const int64_t at = row * step->padded + block * NNS_BLOCK;
        const nns_vec reset = nns_sigmoid(gate_of(step, row, block, 1) + nns_load(sums + NNS_BLOCK));
        nns_store(step->cell + at, nns_sigmoid(gate_of(step, row, block, 0) + nns_load(sums)));
        nns_store(step->reset + at, reset * nns_load(step->hidden + at));
    }
}

static __attribute__((noinline)) void gru_candidates(const cell_step *step, int64_t row, int64_t count, int64_t block,
                                                     const float *sums) {
    for (int64_t end = row + count; row < end; row++, sums += NNS_BLOCK) {
        const int64_t at = row * step->padded + block * NNS_BLOCK;
        const nns_vec candidate = nns_tanh(gate_of(step, row, block, 2) + nns_load(sums));
        const nns_vec update = nns_load(step->cell + at), hidden = nns_load(step->hidden + at);
        nns_store(step->next + at, gru_state(update, candidate, hidden));
    }
}

/* ---- units ----------------------------------------------------------------------------------------------------------- */

typedef void (*cell_states)(const cell_step *step, int64_t row, int64_t count, int64_t block, const float *sums);

/* Multiplies `count` rows of states by `gates` gates of all blocks and lets `finish` make states of the sums. The weights of
 * the blocks are `of_block` floats apart. */
static void multiply_states(const recurrence_plan *plan, const cell_step *step, const float *states, const float *weights,
                            int64_t of_block, int64_t gates, int64_t count, int64_t rows, gates_tiles tiles,
                            cell_states finish) {
    float sums[TILE_ROWS * MOST_GATES * NNS_BLOCK] __attribute__((aligned(64)));
    gates_product product = {.of_row = plan->padded, .k = plan->p->hidden, .sums = sums};
    const int64_t parts = nns_ceil_div(count, rows);
    for (int64_t block = 0; block < plan->blocks; block++) {
        product.weights = weights + block * of_block;
        for (int64_t part = 0; part < parts; part++) {
            const int64_t row = count * part / parts, some = count * (part + 1) / parts - row;
            product.states = states + row * plan->padded;
            tiles(some, gates, &product);
            finish(step, row, some, block, sums);
        }
    }
}

NNS_INLINE void take_step(const recurrence_plan *plan, const cell_step *step, const float *weights, int64_t count,
                          const recurrent_cell cell, const int64_t rows, gates_tiles tiles) {
    const int64_t hidden = plan->p->hidden, of_block = plan->gates * hidden * NNS_BLOCK;
    if (cell == LSTM) {
        multiply_states(plan, step, step->hidden, weights, of_block, 4, count, rows, tiles, lstm_states);
    } else if (cell == GRU_RESET_AFTER) {
        multiply_states(plan, step, step->hidden, weights, of_block, 3, count, rows, tiles, gru_states);
    } else {
        multiply_states(plan, step, step->hidden, weights, of_block, 2, count, rows, tiles, gru_gates);
        multiply_states(plan, step, step->reset, weights + 2 * hidden * NNS_BLOCK, of_block, 1, count, rows, tiles,
                        gru_candidates);
    }
}

/* Copies `count` rows of states to whole blocks; zeros if there are none. */
static void enter_states(const recurrence_plan *plan, float *to, const float *from, int64_t count) {
    memset(to, 0, (size_t)(count * plan->padded) * sizeof *to);
    const int64_t hidden = plan->p->hidden;
    for (int64_t row = 0; from && row < count; row++)
        memcpy(to + row * plan->padded, from + row * hidden, (size_t)hidden * sizeof *to);
}

/* The place of channel `channel` of the pixel at `pixel`. */
NNS_INLINE int64_t channel_at(const recurrence_plan *plan, const channel_steps *steps, int64_t channel) {
    return plan->p->block ? channel / NNS_BLOCK * steps->of_block + channel % NNS_BLOCK : channel;
}

/* Copies the channels of `count` sequences' gates from `channel` on to whole blocks. */
static void stage_gates(const recurrence_plan *plan, float *to, const float *x, int64_t channel, int64_t count) {
    const int64_t hidden = plan->p->hidden;
    for (int64_t row = 0; row < count; row++) {
        const float *from = x + row * plan->between_sequences * plan->x.of_pixel;
        for (int64_t gate = 0; gate < plan->gates; gate++, to += plan->padded) {
            for (int64_t i = 0; i < hidden; i++)
                to[i] = from[channel_at(plan, &plan->x, channel + gate * hidden + i)];
            memset(to + hidden, 0, (size_t)(plan->padded - hidden) * sizeof *to);
        }
    }
}

/* Writes `count` sequences' states as channels from `channel` on; zeros behind the last one of all. */
static void leave_states(const recurrence_plan *plan, float *y, const float *states, int64_t channel, int64_t count) {
    const int64_t hidden = plan->p->hidden, channels = plan->p->directions * hidden;
    const int64_t end = plan->p->block && channel + hidden == channels ? blocks_of(channels) * NNS_BLOCK : channels;
    for (int64_t row = 0; row < count; row++, states += plan->padded) {
        float *to = y + row * plan->between_sequences * plan->y.of_pixel;
        if (!plan->staged) {
            float *first = to + channel_at(plan, &plan->y, channel);
            for (int64_t block = 0; block < plan->blocks; block++)
                nns_store(first + block * plan->y.of_block, nns_load(states + block * NNS_BLOCK));
            continue;
        }
        for (int64_t i = 0; i < hidden; i++) to[channel_at(plan, &plan->y, channel + i)] = states[i];
        for (int64_t i = channels; i < end; i++) to[channel_at(plan, &plan->y, i)] = 0;
    }
}

NNS_INLINE void recurrence_run(const nns_args *args, int64_t begin, int64_t end, float *memory, const recurrent_cell cell,
                               const int64_t gates, const int64_t rows, gates_tiles tiles) {
    const recurrence_parameters *p = (const void *)args->p;
    const recurrence_plan plan = plan_of(p, gates);
    const float *first_hidden = args->in[READ_HIDDEN], *first_cell = args->in[READ_CELL], *bias = args->in[READ_BIAS];
    for (int64_t unit = begin; unit < end; unit++) {
        const int64_t chunk = unit % plan.chunks, image = unit / plan.chunks % p->images;
        const int64_t direction = unit / plan.chunks / p->images;
        const int64_t row = p->sequences * chunk / plan.chunks, count = p->sequences * (chunk + 1) / plan.chunks - row;
        const int64_t given = ((direction * p->images + image) * p->sequences + row) * p->hidden;
        const float *weights = (const float *)args->in[READ_WEIGHTS] + direction * gates * p->hidden * plan.padded;
        const float *x = (const float *)args->in[READ_X] + image * plan.x.of_image;
        float *y = (float *)args->out[0] + image * plan.y.of_image;
        float *hidden = memory, *next = memory + plan.next;
        cell_step step = {.cell = memory + plan.cell, .reset = memory + plan.reset, .padded = plan.padded};
        step.bias = bias ? bias + direction * plan.padded : NULL;
        step.of_row = plan.staged ? gates * plan.padded : plan.between_sequences * plan.x.of_pixel;
        step.of_gate = plan.staged ? plan.padded : channel_at(&plan, &plan.x, p->hidden);
        step.of_block = plan.staged ? NNS_BLOCK : plan.x.of_block;
        enter_states(&plan, hidden, first_hidden ? first_hidden + given : NULL, count);
        enter_states(&plan, step.cell, first_cell ? first_cell + given : NULL, count);
        for (int64_t i = 0; i < p->steps; i++) {
            const int64_t time = (p->reverse != direction) ? p->steps - 1 - i : i;
            const int64_t pixel = time * plan.between_steps + row * plan.between_sequences;
            const int64_t channel = direction * gates * p->hidden;
            const float *sums = x + pixel * plan.x.of_pixel;
            if (plan.staged) stage_gates(&plan, memory + plan.stage, sums, channel, count);
            step.x = plan.staged ? memory + plan.stage : sums + channel_at(&plan, &plan.x, channel);
            step.hidden = hidden, step.next = next;
            take_step(&plan, &step, weights, count, cell, rows, tiles);
            leave_states(&plan, y + pixel * plan.y.of_pixel, next, direction * p->hidden, count);
            float *last = hidden;
            hidden = next, next = last;
        }
    }
}

/* Each kernel has tiles for the gates that its cell multiplies at a time. */
#define TILES(stem, gates, rows)                                                 \
    static void stem##_of_##gates(int64_t count, const gates_product *product) { \
        COMPUTE_BY_COUNT(count, rows, gates_tile, gates, product)                \
    }
#define TILES_LSTM(stem, rows) TILES(stem, 4, rows)
#define TILES_GRU_RESET_AFTER(stem, rows) TILES(stem, 3, rows)
#define TILES_GRU_RESET_BEFORE(stem, rows) TILES(stem, 2, rows) TILES(stem, 1, rows)
#define CALL_LSTM(stem) stem##_of_4(count, product)
#define CALL_GRU_RESET_AFTER(stem) stem##_of_3(count, product)
#define CALL_GRU_RESET_BEFORE(stem) gates == 2 ? stem##_of_2(count, product) : stem##_of_1(count, product)
#define GATES_LSTM 4
#define GATES_GRU_RESET_AFTER 3
#define GATES_GRU_RESET_BEFORE 3

#define KERNEL(stem, name, where, cell, rows)                                                          \
    WHERE_##where(TILES_##cell(stem, rows)                                                             \
    static void stem##_tiles(int64_t count, int64_t gates, const gates_product *product) {             \
        (void)gates;                                                                                   \
        CALL_##cell(stem);                                                                             \
    } NNS_DEFINE_KERNEL(stem, recurrence_check(args, work, GATES_##cell),                              \
                        recurrence_run(args, begin, end, scratch, cell, GATES_##cell, rows, stem##_tiles)))
KERNELS_recurrence(KERNEL)

NNS_DEFINE_FAMILY(recurrence);
