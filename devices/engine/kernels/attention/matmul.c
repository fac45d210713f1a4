/* Products of matrices that are both computed at run time: y = activation(x y), image by image.
 *
 * reads   x, y
 * writes  the products [outer][inner][m][n]
 * p       as in the manifest
 *
 * Element (i, j) of matrix (outer, inner) of x is x[outer · x_outer + inner · x_inner + i · m_step + j · k_step], where one of the steps
 * is 1; so a transposed operand is read where it lies. The right matrix is packed into private memory, in panels if it fits and
 * else tile by tile; rows of the left are packed per register tile. */
#include "../rows_product.h"
#include "../transpose.h"

NNS_DEFINE_READS(matmul);

enum {
    PACKED = 65536,  /* floats of the right matrix that fit a second-level cache with all else */
    CHUNK_TILES = 4, /* register tiles of rows per unit */
};

/* What all units of a step share. */
typedef struct {
    const matmul_parameters *p;
    int64_t panel, rows;              /* of the register tile */
    int64_t tile_n, tile_k, tiles;    /* of the packed right matrix; their number */
    int64_t chunk, chunks;            /* rows per unit at most; units per image */
    int64_t right, left, sums, floats; /* offsets in private memory, and its size */
} matmul_plan;

static matmul_plan plan_of(const matmul_parameters *p, int64_t rows, int64_t vectors) {
    matmul_plan plan = {.p = p, .panel = vectors * NNS_BLOCK, .rows = rows};
    plan.tile_k = nns_min_int(p->k, ROWS_MOST);
    const int64_t fit = nns_min_int(ROWS_MOST, PACKED / plan.tile_k) / plan.panel * plan.panel;
    plan.tile_n = nns_min_int(fit, nns_ceil_div(p->n, plan.panel) * plan.panel);
    plan.tiles = nns_ceil_div(p->n, plan.tile_n) * nns_ceil_div(p->k, plan.tile_k);
    plan.chunk = rows * CHUNK_TILES;
    plan.chunks = nns_ceil_div(p->m, plan.chunk);
    plan.right = NNS_BLOCK;
    plan.left = plan.right + plan.tile_k * plan.tile_n;
    plan.sums = plan.left + nns_ceil_div(rows, NNS_BLOCK) * NNS_BLOCK * ROWS_STEP;
    plan.floats = plan.sums + plan.chunk * ROWS_STEP;
    return plan;
}

/* Bytes of an operand up to its last element; -1 if they overflow. */
static int64_t operand_bytes(const matmul_parameters *p, int64_t of_outer, int64_t of_inner, int64_t rows, int64_t of_row,
                             int64_t columns, int64_t of_column) {
    const int64_t parts[] = {NNS_PRODUCT(p->outer - 1, of_outer), NNS_PRODUCT(p->inner - 1, of_inner),
                             NNS_PRODUCT(rows - 1, of_row), NNS_PRODUCT(columns - 1, of_column)};
    int64_t last = 1;
    for (int i = 0; i < 4; i++)
        if (parts[i] < 0 || __builtin_add_overflow(last, parts[i], &last)) return -1;
    return NNS_FLOAT_BYTES(last);
}

static const char *matmul_check(const nns_args *args, nns_work *work, int64_t rows, int64_t vectors) {
    const matmul_parameters *p = (const void *)args->p;
    if ((p->m_step != 1 && p->xk_step != 1) || (p->yk_step != 1 && p->n_step != 1)) return "neither step of a matrix is 1";
    const char *wrong = NNS_CHECK_SIZES(
        matmul, args, NNS_FLOAT_BYTES(p->outer, p->inner, p->m, p->n),
        operand_bytes(p, p->x_outer, p->x_inner, p->m, p->m_step, p->k, p->xk_step),
        operand_bytes(p, p->y_outer, p->y_inner, p->k, p->yk_step, p->n, p->n_step));
    if (wrong) return wrong;
    const matmul_plan plan = plan_of(p, rows, vectors);
    *work = (nns_work){.units = p->outer * p->inner * plan.chunks, .scratch = plan.floats * (int64_t)sizeof(float)};
    return NULL;
}

/* Copies `rows` × `columns` elements that lie at `from` with these steps, one of which is 1, to rows `of_to` floats apart. In whole
 * vectors where that stays inside both. */
static void copy_matrix(float *to, int64_t of_to, const float *from, int64_t of_row, int64_t of_column, int64_t rows,
                        int64_t columns) {
    int64_t row = 0;
    for (; of_column != 1 && row + NNS_BLOCK <= rows; row += NNS_BLOCK) {
        int64_t column = 0;
        for (; column + NNS_BLOCK <= columns; column += NNS_BLOCK) {
            nns_vec v[NNS_BLOCK];
            COMPUTE_FOR(i, NNS_BLOCK) v[i] = nns_load(from + (column + i) * of_column + row);
            transpose_block(v);
            COMPUTE_FOR(i, NNS_BLOCK) nns_store(to + (row + i) * of_to + column, v[i]);
        }
        for (; column < columns; column++)
            for (int64_t i = row; i < row + NNS_BLOCK; i++) to[i * of_to + column] = from[column * of_column + i];
    }
    for (; row < rows; row++) {
        int64_t column = 0;
        const float *line = from + row * of_row;
        for (; of_column == 1 && column + NNS_BLOCK <= columns; column += NNS_BLOCK)
            nns_store(to + row * of_to + column, nns_load(line + column));
        for (; column < columns; column++) to[row * of_to + column] = line[column * of_column];
    }
}

/* Packs `k` × `n` elements of the right matrix in panels. What stands beyond `n` is arbitrary. */
static void pack_right(const matmul_plan *plan, float *memory, const float *y, int64_t k, int64_t n) {
    const matmul_parameters *p = plan->p;
    float *to = memory + plan->right;
    for (int64_t column = 0; column < n; column += plan->panel, to += plan->panel * k)
        copy_matrix(to, plan->panel, y + column * p->n_step, p->yk_step, p->n_step, k,
                    nns_min_int(plan->panel, n - column));
}

/* Adds the products of `count` rows with the packed k × n elements to the unit's sums, from `row` on. */
static void multiply_rows(const matmul_plan *plan, float *memory, const float *x, int64_t row, int64_t count, int64_t k,
                          int64_t n, bool first, int64_t vectors, rows_tile tile) {
    const matmul_parameters *p = plan->p;
    copy_matrix(memory + plan->left, ROWS_STEP, x, p->m_step, p->xk_step, count, k);
    rows_product product = {.a = memory + plan->left,
                            .b = memory + plan->right,
                            .c = memory + plan->sums + row * ROWS_STEP,
                            .kept = first ? NULL : rows_ones,
                            .of_b = plan->panel,
                            .of_c = ROWS_STEP,
                            .k = k};
    for (int64_t column = 0; column < n; column += plan->panel, product.b += plan->panel * k, product.c += plan->panel)
        tile(count, nns_min_int(vectors, nns_ceil_div(n - column, NNS_BLOCK)), &product);
}

/* Computes `count` rows of an image. `packed` is the number of the image, from 1 on, whose right matrix is packed. */
static void compute_rows(const matmul_plan *plan, float *memory, const float *x, const float *y, float *out, int64_t count,
                         int64_t number, int64_t *packed, int64_t vectors, rows_tile tile) {
    const matmul_parameters *p = plan->p;
    const epilogue finish = epilogue_of(&p->activation);
    const int64_t parts = nns_ceil_div(count, plan->rows);
    for (int64_t column = 0; column < p->n; column += plan->tile_n) {
        const int64_t n = nns_min_int(plan->tile_n, p->n - column);
        for (int64_t k = 0; k < p->k; k += plan->tile_k) {
            const int64_t some = nns_min_int(plan->tile_k, p->k - k);
            if (plan->tiles > 1 || *packed != number)
                pack_right(plan, memory, y + k * p->yk_step + column * p->n_step, some, n);
            *packed = number;
            for (int64_t part = 0; part < parts; part++) {
                const int64_t row = count * part / parts;
                multiply_rows(plan, memory, x + row * p->m_step + k * p->xk_step, row, count * (part + 1) / parts - row,
                              some, n, k == 0, vectors, tile);
            }
        }
        for (int64_t row = 0; row < count; row++) {
            float *to = out + row * p->n + column, *sums = memory + plan->sums + row * ROWS_STEP;
            for (int64_t i = 0; i < n; i += NNS_BLOCK) {
                const nns_vec sum = epilogue_clamp(&finish, nns_load(sums + i));
                if (i + NNS_BLOCK <= n)
                    nns_store(to + i, sum);
                else
                    nns_store_some(to + i, sum, n - i);
            }
            if (finish.second_pass) epilogue_second_pass(&finish, to, n);
        }
    }
}

static void matmul_run(const nns_args *args, int64_t begin, int64_t end, void *scratch, int64_t rows, int64_t vectors,
                       rows_tile tile) {
    const matmul_parameters *p = (const void *)args->p;
    const matmul_plan plan = plan_of(p, rows, vectors);
    for (int64_t i = begin; i < end; i++) {
        const int64_t chunk = i % plan.chunks, image = i / plan.chunks;
        const int64_t outer = image / p->inner, inner = image % p->inner;
        const int64_t row = p->m * chunk / plan.chunks, count = p->m * (chunk + 1) / plan.chunks - row;
        const float *x = (const float *)args->in[READ_X] + outer * p->x_outer + inner * p->x_inner + row * p->m_step;
        const float *y = (const float *)args->in[READ_Y] + outer * p->y_outer + inner * p->y_inner;
        float *out = (float *)args->out[0] + (image * p->m + row) * p->n;
        const int64_t number = outer * p->y_outer + inner * p->y_inner + 1;
        compute_rows(&plan, scratch, x, y, out, count, number, scratch, vectors, tile);
    }
}

#define KERNEL(stem, name, where, rows, vectors)                                         \
    WHERE_##where(ROWS_DEFINE_TILE(stem, rows, vectors)                                  \
                      NNS_DEFINE_KERNEL(stem, matmul_check(args, work, rows, vectors),   \
                                        matmul_run(args, begin, end, scratch, rows, vectors, stem##_tile)))
KERNELS_matmul(KERNEL)

NNS_DEFINE_FAMILY(matmul);
