/* A tile of a matrix product in local memory: TILE_OUTPUTS outputs × TILE_PIXELS pixels of a work group, ITEM_OUTPUTS ×
 * ITEM_PIXELS of them in the registers of an item, DEPTH rows of both operands per step. Two buffers alternate, so that the
 * next step is fetched while the current one is multiplied and one barrier per step suffices.
 *
 * Items of a group are numbered along the pixels first: neighbours write neighbouring pixels. An item's outputs and pixels
 * are quads (four of each) that lie as far apart as possible, so that the quads that a step reads from local memory are
 * contiguous across items.
 */
#define DEPTH 16
#define ITEMS_ACROSS (TILE_PIXELS / ITEM_PIXELS)
#define ITEMS_DOWN (TILE_OUTPUTS / ITEM_OUTPUTS)
#define ITEMS (ITEMS_ACROSS * ITEMS_DOWN)
#define OUTPUT_QUADS (ITEM_OUTPUTS / 4)
#define PIXEL_QUADS (ITEM_PIXELS / 4)
#define WEIGHT_FETCHES (DEPTH * TILE_OUTPUTS / 4 / ITEMS) /* quads of a step that an item copies to local memory */
#define INPUT_FETCHES (DEPTH / 4 * TILE_PIXELS / ITEMS)
#define WEIGHTS_SIZE (DEPTH * TILE_OUTPUTS / 4) /* quads of a buffer */
#define INPUTS_SIZE (DEPTH * TILE_PIXELS / 4)

#if NNS_HALF
#define READ_QUAD(pointer) vload_half4(0, pointer)
#define WRITE_QUAD(value, pointer) vstore_half4(TO_HALF(value), 0, pointer)
#else
#define READ_QUAD(pointer) (*(const global float4 *)(pointer))
#define WRITE_QUAD(value, pointer) (*(global float4 *)(pointer) = (value))
#endif

/* First output of an item's `i`th quad of outputs, and first pixel of its `j`th quad of pixels, within the tile. */
#define OUTPUT_OF(item, i) (((i) * ITEMS_DOWN + (item) / ITEMS_ACROSS) * 4)
#define PIXEL_OF(item, j) (((j) * ITEMS_ACROSS + (item) % ITEMS_ACROSS) * 4)

#define ADD_PIXEL(number, one)                                                                      \
    UNROLL for (int i = 0; i < OUTPUT_QUADS; i++)                                                   \
        sum[j * 4 + number][i] = fma(w[i], (float4)(one), sum[j * 4 + number][i]);

INLINE void multiply_step(const local float4 *weights, const local float4 *inputs, int item,
                          float4 sum[ITEM_PIXELS][OUTPUT_QUADS])
{
    UNROLL for (int k = 0; k < DEPTH; k++) {
        float4 w[OUTPUT_QUADS], v[PIXEL_QUADS];
        UNROLL for (int i = 0; i < OUTPUT_QUADS; i++)
            w[i] = weights[(k * TILE_OUTPUTS + OUTPUT_OF(item, i)) / 4];
        UNROLL for (int j = 0; j < PIXEL_QUADS; j++)
            v[j] = inputs[(k * TILE_PIXELS + PIXEL_OF(item, j)) / 4];
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
    UNROLL for (int i = 0; i < WEIGHT_FETCHES; i++)
        weights[i * ITEMS + item] = w[i];
    local float *to = (local float *)inputs + item % TILE_PIXELS;
    UNROLL for (int i = 0; i < INPUT_FETCHES; i++) {
        const int row = (i * (ITEMS / TILE_PIXELS) + item / TILE_PIXELS) * 4;
        to[(row + 0) * TILE_PIXELS] = v[i].s0;
        to[(row + 1) * TILE_PIXELS] = v[i].s1;
        to[(row + 2) * TILE_PIXELS] = v[i].s2;
        to[(row + 3) * TILE_PIXELS] = v[i].s3;
    }
}

/* The activation of four numbers. */
#if NNS_BLOCK == 4
#define ACTIVATE_QUAD activate
#elif NNS_BLOCK == 8
#define ACTIVATE_QUAD(x, kind, a, b) activate((float8)(x, x), kind, a, b).lo
#else
#define ACTIVATE_QUAD(x, kind, a, b) activate((float16)(x, x, x, x), kind, a, b).lo.lo
#endif
