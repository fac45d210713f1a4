/* Convolutions of blocked tensors whose groups lie within a block: depthwise (groups of 1 channel), and groups of 2, 4 or 8
 * channels with as many outputs, as in ResNeXt.
 *
 * reads   x, weights, bias or NULL (one float per lane), residual like the output or NULL
 * writes  y, which may be the residual's memory
 * p       the window, then output rows per unit, and the activation's kind, a, b
 *
 * Weights are float[block][kh][kw][GROUP][lane]: what output lane l takes from member i of its group. The inputs of step i
 * are one shuffle of the input vector. */
#include "compute.h"

enum {
    DEPTHWISE_ROWS = WINDOW_COUNT,
    DEPTHWISE_ACTIVATION,
    DEPTHWISE_PARAMETERS = DEPTHWISE_ACTIVATION + 3,
};

enum { DEPTHWISE_X, DEPTHWISE_W, DEPTHWISE_BIAS, DEPTHWISE_RESIDUAL, DEPTHWISE_READS };

/* Pixels of an output row that are computed at once. */
#if COMPUTE_MANY_REGISTERS
#define DEPTHWISE_PIXELS 8
#else
#define DEPTHWISE_PIXELS 6
#endif

/* Most that a unit copies of its input. */
#define DEPTHWISE_COPY_BYTES (1 << 18)

/* One output row of one block. */
typedef struct {
    const float *x; /* where the row's tap (0, 0) would be for output pixel 0 */
    const float *w, *bias, *residual;
    float *y;
    int64_t tap_row;    /* floats */
    tap_range taps;     /* rows of the kernel that lie inside the input */
    int64_t begin, end; /* pixels all of whose columns of taps lie inside the input */
    epilogue finish;
} depthwise_row;

/* In lane l the lane of `x` that is member `member` of l's group of `group` lanes. Both are constants. */
NNS_INLINE nns_vec pick(nns_vec x, int group, int member) {
#define LANE(l, g, m) ((l) / (g) * (g) + (m))
#if NNS_BLOCK == 16
#define PICK(g, m)                                                                                                    \
    case (g) * 16 + (m):                                                                                              \
        return __builtin_shufflevector(x, x, LANE(0, g, m), LANE(1, g, m), LANE(2, g, m), LANE(3, g, m),              \
                                       LANE(4, g, m), LANE(5, g, m), LANE(6, g, m), LANE(7, g, m), LANE(8, g, m),     \
                                       LANE(9, g, m), LANE(10, g, m), LANE(11, g, m), LANE(12, g, m), LANE(13, g, m), \
                                       LANE(14, g, m), LANE(15, g, m));
#elif NNS_BLOCK == 8
#define PICK(g, m)                                                                                                \
    case (g) * 16 + (m):                                                                                          \
        return __builtin_shufflevector(x, x, LANE(0, g, m), LANE(1, g, m), LANE(2, g, m), LANE(3, g, m),          \
                                       LANE(4, g, m), LANE(5, g, m), LANE(6, g, m), LANE(7, g, m));
#else
#define PICK(g, m)       \
    case (g) * 16 + (m): \
        return __builtin_shufflevector(x, x, LANE(0, g, m), LANE(1, g, m), LANE(2, g, m), LANE(3, g, m));
#endif
    switch (group * 16 + member) {
        PICK(2, 0) PICK(2, 1)
#if NNS_BLOCK > 4
        PICK(4, 0) PICK(4, 1) PICK(4, 2) PICK(4, 3)
#endif
#if NNS_BLOCK > 8
        PICK(8, 0) PICK(8, 1) PICK(8, 2) PICK(8, 3) PICK(8, 4) PICK(8, 5) PICK(8, 6) PICK(8, 7)
#endif
    default: return x;
    }
#undef PICK
#undef LANE
}

/* Output pixels of a row all of whose columns of taps lie inside the input. */
static tap_range interior_of(const window *s) {
    const int64_t begin = nns_min_int(s->ow, nns_ceil_div(s->pl, s->sw));
    const int64_t room = s->w - 1 - (s->kw - 1) * s->dw + s->pl; /* where the last one's tap 0 may be, padding included */
    const int64_t end = room < 0 ? begin : nns_min_int(s->ow, room / s->sw + 1);
    return (tap_range){begin, nns_max_int(begin, end)};
}

/* Width and height in pixels of the input that `rows` output rows read, with its padding. */
static int64_t copy_width(const window *s) { return (s->ow - 1) * s->sw + (s->kw - 1) * s->dw + 1; }
static int64_t copy_height(const window *s, int64_t rows) { return (rows - 1) * s->sh + (s->kh - 1) * s->dh + 1; }

/* Pixels at the border are slow, one at a time. Where they are many, units of `rows` output rows copy their input with its
 * padding first, unless the copy would leave the nearer caches. */
static bool wants_copy(const window *s, int64_t rows) {
    const tap_range interior = interior_of(s);
    const int64_t bytes = NNS_FLOAT_BYTES(copy_height(s, nns_min_int(rows, s->oh)), copy_width(s), NNS_BLOCK);
    return (interior.end - interior.begin) * 7 < s->ow * 6 && bytes >= 0 && bytes <= DEPTHWISE_COPY_BYTES;
}

static const char *depthwise_check(const nns_args *args, nns_work *work, int64_t group) {
    const int64_t *p = args->p;
    if (args->n_in != DEPTHWISE_READS || args->n_out != 1 || args->n_p != DEPTHWISE_PARAMETERS)
        return "a depthwise convolution wants 4 reads, 1 write and 19 parameters";
    const char *wrong = window_check(p);
    if (wrong) return wrong;
    const window s = window_read(p);
    if (s.c != s.o) return "a depthwise convolution gives as many channels as it reads";
    if (p[DEPTHWISE_ROWS] < 1 || p[DEPTHWISE_ROWS] > COMPUTE_MAX_EXTENT ||
        !nns_activation_known(p[DEPTHWISE_ACTIVATION]))
        return "a parameter of the depthwise convolution is out of range";
    const int64_t blocks = blocks_of(s.c), y = NNS_FLOAT_BYTES(s.n, blocks, NNS_BLOCK, s.oh, s.ow);
    if (!nns_holds(args->in_bytes[DEPTHWISE_X], NNS_FLOAT_BYTES(s.n, blocks, NNS_BLOCK, s.h, s.w)))
        return "the depthwise convolution's input is too small";
    if (!nns_holds(args->in_bytes[DEPTHWISE_W], NNS_FLOAT_BYTES(blocks, s.kh, s.kw, group, NNS_BLOCK)))
        return "the depthwise convolution's weights are too small";
    if (args->in_bytes[DEPTHWISE_BIAS] && !nns_holds(args->in_bytes[DEPTHWISE_BIAS], NNS_FLOAT_BYTES(blocks, NNS_BLOCK)))
        return "the depthwise convolution's bias is too small";
    if (args->in_bytes[DEPTHWISE_RESIDUAL] && !nns_holds(args->in_bytes[DEPTHWISE_RESIDUAL], y))
        return "the depthwise convolution's residual is too small";
    if (!nns_holds(args->out_bytes[0], y)) return "the depthwise convolution's output is too small";
    work->units = s.n * blocks * nns_ceil_div(s.oh, p[DEPTHWISE_ROWS]);
    work->scratch = wants_copy(&s, p[DEPTHWISE_ROWS]) ? DEPTHWISE_COPY_BYTES : 0;
    return NULL;
}

/* Copies `rows` input rows of a plane from `h` on, which may be outside, with `s->pl` and more columns of padding. */
static void copy_rows(const window *s, const float *plane, int64_t h, int64_t rows, float *to) {
    const int64_t width = copy_width(s), inside = nns_max_int(0, nns_min_int(s->w, width - s->pl));
    const int64_t left = nns_min_int(width, s->pl);
    for (int64_t i = 0; i < rows; i++, to += width * NNS_BLOCK) {
        const bool within = h + i >= 0 && h + i < s->h;
        const int64_t begin = within ? left : width, end = within ? left + inside : width;
        for (int64_t j = 0; j < begin; j++) nns_store(to + j * NNS_BLOCK, nns_zero());
        const float *from = plane + (within ? h + i : 0) * s->w * NNS_BLOCK;
        for (int64_t j = begin; j < end; j++) nns_store(to + j * NNS_BLOCK, nns_load(from + (j - begin) * NNS_BLOCK));
        for (int64_t j = end; j < width; j++) nns_store(to + j * NNS_BLOCK, nns_zero());
    }
}

static void depthwise_run(const nns_args *args, int64_t unit_begin, int64_t unit_end, void *scratch, int64_t group,
                          void (*compute)(const depthwise_row *, const window *)) {
    const int64_t *p = args->p;
    const window s = window_read(p);
    const int64_t blocks = blocks_of(s.c), chunks = nns_ceil_div(s.oh, p[DEPTHWISE_ROWS]);
    const bool copy = wants_copy(&s, p[DEPTHWISE_ROWS]);
    const tap_range interior = copy ? (tap_range){0, s.ow} : interior_of(&s);
    const float *bias = args->in[DEPTHWISE_BIAS], *residual = args->in[DEPTHWISE_RESIDUAL];
    depthwise_row row = {.begin = interior.begin, .end = interior.end};
    row.tap_row = s.dh * (copy ? copy_width(&s) : s.w) * NNS_BLOCK;
    row.finish = epilogue_read(p + DEPTHWISE_ACTIVATION);
    for (int64_t unit = unit_begin; unit < unit_end; unit++) {
        const int64_t plane = unit / chunks, first = unit % chunks * p[DEPTHWISE_ROWS];
        const int64_t last = nns_min_int(s.oh, first + p[DEPTHWISE_ROWS]), block = plane % blocks;
        const float *x = (const float *)args->in[DEPTHWISE_X] + plane * s.h * s.w * NNS_BLOCK;
        if (copy) copy_rows(&s, x, first * s.sh - s.pt, copy_height(&s, last - first), scratch);
        row.w = (const float *)args->in[DEPTHWISE_W] + block * s.kh * s.kw * group * NNS_BLOCK;
        row.bias = bias ? bias + block * NNS_BLOCK : NULL;
        for (int64_t oh = first; oh < last; oh++) {
            const int64_t h = oh * s.sh - s.pt, out = (plane * s.oh + oh) * s.ow * NNS_BLOCK;
            row.taps = copy ? (tap_range){0, s.kh} : taps_inside(h, s.kh, s.dh, s.h);
            row.x = copy ? (const float *)scratch + (oh - first) * s.sh * copy_width(&s) * NNS_BLOCK
                         : x + (h * s.w - s.pl) * NNS_BLOCK;
            row.y = (float *)args->out[0] + out;
            row.residual = residual ? residual + out : NULL;
            compute(&row, &s);
            if (row.finish.second_pass) epilogue_second_pass(&row.finish, row.y, s.ow * NNS_BLOCK);
        }
    }
}

#define GROUP 1
#include "depthwise.inc"
#define GROUP 2
#include "depthwise.inc"
#if NNS_BLOCK > 4
#define GROUP 4
#include "depthwise.inc"
#endif
#if NNS_BLOCK > 8
#define GROUP 8
#include "depthwise.inc"
#endif

#define ROW(group) {"depthwise_" #group, check_##group, run_##group}
static const nns_kernel rows[] = {
    ROW(g1),
    ROW(g2),
#if NNS_BLOCK > 4
    ROW(g4),
#endif
#if NNS_BLOCK > 8
    ROW(g8),
#endif
};

const nns_kernel_family nns_family_depthwise = NNS_FAMILY(rows);
