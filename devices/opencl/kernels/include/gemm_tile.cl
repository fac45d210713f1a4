/* A tile of a matrix product in local memory: TILE_OUTPUTS outputs × TILE_PIXELS pixels of a work group, ITEM_OUTPUTS ×
 * ITEM_PIXELS of them in the registers of an item, DEPTH rows of both operands per step. Two buffers alternate, so that the
 * next step is fetched while the current one is multiplied and one barrier per step suffices.
 *
 * SLICES: sets of items that compute the same tile, each with its share of the rows of a step; their sums are added up at the end.
 *
 * An item's outputs and pixels are quads (four of each) that lie as far apart as possible, so that the quads that a step reads
 * from local memory are contiguous across items. 32 consecutive items, which run in lockstep, form a patch of 4 × 8, 8 × 4 or
 * 16 × 2, so that they read few different quads.
 */
#define ITEMS_ACROSS (TILE_PIXELS / ITEM_PIXELS)
#define ITEMS_DOWN (TILE_OUTPUTS / ITEM_OUTPUTS)
#define TILE_ITEMS (ITEMS_ACROSS * ITEMS_DOWN)
#define ITEMS (TILE_ITEMS * SLICES)
#define OUTPUT_QUADS (ITEM_OUTPUTS / 4)
#define PIXEL_QUADS (ITEM_PIXELS / 4)
#define WEIGHTS_SIZE (DEPTH * TILE_OUTPUTS / 4) /* quads of a buffer */
#define INPUTS_SIZE (DEPTH * TILE_PIXELS / 4)
#define WEIGHT_FETCHES ((WEIGHTS_SIZE + ITEMS - 1) / ITEMS) /* quads of a step that an item copies to local memory, at most */
#define INPUT_FETCHES (INPUTS_SIZE / ITEMS)
#define FETCHES_WEIGHT(item, i) (((i) + 1) * ITEMS <= WEIGHTS_SIZE || (i) * ITEMS + (item) < WEIGHTS_SIZE)
#define TILE_SIZE (TILE_OUTPUTS * TILE_PIXELS / 4)
#define BUFFERS_SIZE (2 * (WEIGHTS_SIZE + INPUTS_SIZE))
#if TILE_SIZE * (SLICES / 2) > BUFFERS_SIZE
#define LOCAL_SIZE (TILE_SIZE * (SLICES / 2))
#else
#define LOCAL_SIZE BUFFERS_SIZE
#endif

#if NNS_HALF
#define READ_QUAD(pointer) vload_half4(0, pointer)
#define WRITE_QUAD(value, pointer) vstore_half4(TO_HALF(value), 0, pointer)
#else
#define READ_QUAD(pointer) (*(const global float4 *)(pointer))
#define WRITE_QUAD(value, pointer) (*(global float4 *)(pointer) = (value))
#endif

/* An item's place among the ITEMS_DOWN × ITEMS_ACROSS items of its slice. Consecutive items alternate between two rows. */
#define PATCH_ACROSS (ITEMS_ACROSS % 8 == 0 ? 8 : ITEMS_ACROSS % 4 == 0 ? 4 : 2)
#define PATCH_DOWN (32 / PATCH_ACROSS)
#define PATCH_OF(item) ((item) % TILE_ITEMS / 32)
#define PATCHES_ACROSS (ITEMS_ACROSS / PATCH_ACROSS)
#define DOWN_OF(item) \
    (PATCH_OF(item) / PATCHES_ACROSS * PATCH_DOWN + (item) % 32 / (2 * PATCH_ACROSS) * 2 + (item) % 2)
#define ACROSS_OF(item) (PATCH_OF(item) % PATCHES_ACROSS * PATCH_ACROSS + (item) % (2 * PATCH_ACROSS) / 2)

/* First output of an item's `i`th quad of outputs, and first column of its `j`th quad of pixels, within the tile. */
#define OUTPUT_OF(item, i) (((i) * ITEMS_DOWN + DOWN_OF(item)) * 4)
#define COLUMN_OF(item, j) (((j) * ITEMS_ACROSS + ACROSS_OF(item)) * 4)

/* The pixel in a column of local memory: neighbouring quads hold neighbouring pixels, so that neighbouring items write those
 * together. */
#define PIXEL_AT(column) ((column) % 4 * (TILE_PIXELS / 4) + (column) / 4)

#define ADD_PIXEL(number, one)                                                                      \
    UNROLL for (int i = 0; i < OUTPUT_QUADS; i++)                                                   \
        sum[j * 4 + number][i] = fma(w[i], (float4)(one), sum[j * 4 + number][i]);

INLINE void multiply_step(const local float4 *weights, const local float4 *inputs, int item,
                          float4 sum[ITEM_PIXELS][OUTPUT_QUADS])
{
    const int first = item / TILE_ITEMS * (DEPTH / SLICES); /* row */
    weights += first * (TILE_OUTPUTS / 4) + DOWN_OF(item);
    inputs += first * (TILE_PIXELS / 4) + ACROSS_OF(item);
    UNROLL for (int k = 0; k < DEPTH / SLICES; k++) {
        float4 w[OUTPUT_QUADS], v[PIXEL_QUADS];
        UNROLL for (int i = 0; i < OUTPUT_QUADS; i++)
            w[i] = weights[k * (TILE_OUTPUTS / 4) + i * ITEMS_DOWN];
        UNROLL for (int j = 0; j < PIXEL_QUADS; j++)
            v[j] = inputs[k * (TILE_PIXELS / 4) + j * ITEMS_ACROSS];
        UNROLL for (int j = 0; j < PIXEL_QUADS; j++) {
            ADD_PIXEL(0, v[j].s0)
            ADD_PIXEL(1, v[j].s1)
            ADD_PIXEL(2, v[j].s2)
            ADD_PIXEL(3, v[j].s3)
        }
    }
}

/* Copies what an item fetched to a buffer: weights as they are, inputs (four channels of one pixel) to four rows. */
INLINE void put_step(const float4 w[WEIGHT_FETCHES], const float4 v[INPUT_FETCHES], int item, local float4 *weights,
                     local float4 *inputs)
{
    UNROLL for (int i = 0; i < WEIGHT_FETCHES; i++) {
        if (FETCHES_WEIGHT(item, i))
            weights[i * ITEMS + item] = w[i];
    }
    local float *to = (local float *)inputs + item / TILE_PIXELS * 4 * TILE_PIXELS + item % TILE_PIXELS;
    UNROLL for (int i = 0; i < INPUT_FETCHES; i++, to += ITEMS * 4) {
        to[0 * TILE_PIXELS] = v[i].s0;
        to[1 * TILE_PIXELS] = v[i].s1;
        to[2 * TILE_PIXELS] = v[i].s2;
        to[3 * TILE_PIXELS] = v[i].s3;
    }
}

#if SLICES > 1

/* Adds up the sums of all slices in those of the first, by halves. */
INLINE void add_slices(local float4 *exchange, int item, float4 sum[ITEM_PIXELS][OUTPUT_QUADS])
{
    const int slice = item / TILE_ITEMS;
    UNROLL for (int rest = SLICES / 2; rest > 0; rest /= 2) {
        local float4 *at = exchange + slice % rest * TILE_SIZE + item % TILE_ITEMS;
        if (slice >= rest && slice < 2 * rest) {
            UNROLL for (int p = 0; p < ITEM_PIXELS; p++) {
                UNROLL for (int i = 0; i < OUTPUT_QUADS; i++)
                    at[(p * OUTPUT_QUADS + i) * TILE_ITEMS] = sum[p][i];
            }
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        if (slice < rest) {
            UNROLL for (int p = 0; p < ITEM_PIXELS; p++) {
                UNROLL for (int i = 0; i < OUTPUT_QUADS; i++)
                    sum[p][i] += at[(p * OUTPUT_QUADS + i) * TILE_ITEMS];
            }
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
}

#endif

/* The activation of four numbers. */
#if NNS_BLOCK == 4
#define ACTIVATE_QUAD activate
#elif NNS_BLOCK == 8
#define ACTIVATE_QUAD(x, kind, a, b) activate((float8)(x, x), kind, a, b).lo
#else
#define ACTIVATE_QUAD(x, kind, a, b) activate((float16)(x, x, x, x), kind, a, b).lo.lo
#endif
