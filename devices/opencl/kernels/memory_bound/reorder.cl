/* Conversion between plain and blocked layout, between blocks, and between floats, halves and int8. Work items: (range of pixels,
 * channel block, image).
 *
 * Macros: FROM_HALVES, TO_HALVES: 1 if the input, or output, is of halves instead of floats; FROM_INT8, TO_INT8: 1 if it is of int8
 * that stand for scale * (q - zero); BYTES: 1 if both are of bytes, which stay as they are.
 */
#include "int8.cl"

#if FROM_INT8 || TO_INT8
#define CONVERSION                                                                                  \
    const float scale = as_float(given.scale);                                                      \
    const int zero = given.zero;
#else
#define CONVERSION
#endif

#if BYTES
#define moved char
#else
#define moved float
#endif
typedef NNS_JOIN(moved, NNS_BLOCK) moved_block;
typedef NNS_JOIN(moved, 4) moved_quad;

#if FROM_HALVES
#define source half
#define TAKE LOAD_HALF
#define TAKE_ONE LOAD_ONE_HALF
#define TAKE_QUAD(pointer) vload_half4(0, pointer)
#elif FROM_INT8
#define source char
#define TAKE(pointer) (TO_FLOATS(TO_INTS(LOAD_BYTES(pointer)) - zero) * scale)
#define TAKE_ONE(pointer) ((float)(*(pointer) - zero) * scale)
#define TAKE_QUAD(pointer) (convert_float4(convert_int4(vload4(0, pointer)) - zero) * scale)
#else
#define source moved
#define TAKE LOAD
#define TAKE_ONE LOAD_ONE
#define TAKE_QUAD(pointer) vload4(0, pointer)
#endif

#if TO_HALVES
#define target half
#define PUT STORE_HALF
#define PUT_ONE STORE_ONE_HALF
#define PUT_QUAD(value, pointer) vstore_half4(TO_HALF(value), 0, pointer)
#elif TO_INT8
#define target char
#define INT8_OF(value) rounded_steps(quotient(value, scale), zero, -128, 127)
#define PUT(value, pointer) STORE_BYTES(INT8_OF(value), pointer)
#define PUT_ONE(value, pointer) (*(pointer) = INT8_OF((floatb)(value)).s0)
#define PUT_QUAD(value, pointer) vstore4(INT8_OF(REPEATED(value)).s0123, 0, pointer)
#else
#define target moved
#define PUT STORE
#define PUT_ONE STORE_ONE
#define PUT_QUAD(value, pointer) vstore4(value, 0, pointer)
#endif

typedef struct {
    int x_offset, y_offset;
    int channels, plane, per_item, scale, zero;
} reorder_arguments;

/* A block of as many copies of four numbers as fit. */
#if NNS_BLOCK == 16
#define HALVINGS 4
#define REPEATED(quad) (floatb)(quad, quad, quad, quad)
#elif NNS_BLOCK == 8
#define HALVINGS 3
#define REPEATED(quad) (floatb)(quad, quad)
#else
#define HALVINGS 2
#define REPEATED(quad) (quad)
#endif

/* Exchanges vectors and lanes of a square of B vectors: as often as B can be halved, its halves are interleaved. */
INLINE void transpose(moved_block square[B])
{
    UNROLL for (int halving = 0; halving < HALVINGS; halving++) {
        moved_block next[B];
        UNROLL for (int i = 0; i < B / 2; i++) {
            next[2 * i].even = square[i].lo;
            next[2 * i].odd = square[i + B / 2].lo;
            next[2 * i + 1].even = square[i].hi;
            next[2 * i + 1].odd = square[i + B / 2].hi;
        }
        UNROLL for (int i = 0; i < B; i++)
            square[i] = next[i];
    }
}

/* Lanes after the last channel are written as zero. */
kernel void to_blocked(const global source *x_buffer, global target *y_buffer, const reorder_arguments given)
{
    CONVERSION
    const int channels = given.channels, plane = given.plane;
    const int block = get_global_id(1), image = get_global_id(2);
    const int blocks = (channels + B - 1) / B, lanes = min(B, channels - block * B);
    const global source *x = x_buffer + given.x_offset + ((long)image * channels + block * B) * plane;
    global target *y = y_buffer + given.y_offset + ((long)image * blocks + block) * plane * B;
    const int begin = (int)get_global_id(0) * given.per_item, end = min(begin + given.per_item, plane);
    long p = begin;
    for (; p + B <= end; p += B) {
        moved_block square[B];
        UNROLL for (int i = 0; i < B; i++)
            square[i] = i < lanes ? TAKE(x + (long)i * plane + p) : (moved_block)(0);
        transpose(square);
        UNROLL for (int i = 0; i < B; i++)
            PUT(square[i], y + (p + i) * B);
    }
    for (; p < end; p++) {
        moved lane[B];
        UNROLL for (int i = 0; i < B; i++)
            lane[i] = i < lanes ? TAKE_ONE(x + (long)i * plane + p) : (moved)0;
        PUT(LOAD(lane), y + p * B);
    }
}

kernel void to_plain(const global source *x_buffer, global target *y_buffer, const reorder_arguments given)
{
    CONVERSION
    const int channels = given.channels, plane = given.plane;
    const int block = get_global_id(1), image = get_global_id(2);
    const int blocks = (channels + B - 1) / B, lanes = min(B, channels - block * B);
    const global source *x = x_buffer + given.x_offset + ((long)image * blocks + block) * plane * B;
    global target *y = y_buffer + given.y_offset + ((long)image * channels + block * B) * plane;
    const int begin = (int)get_global_id(0) * given.per_item, end = min(begin + given.per_item, plane);
    long p = begin;
    for (; p + B <= end; p += B) {
        moved_block square[B];
        UNROLL for (int i = 0; i < B; i++)
            square[i] = TAKE(x + (p + i) * B);
        transpose(square);
        UNROLL for (int i = 0; i < B; i++) {
            if (i < lanes)
                PUT(square[i], y + (long)i * plane + p);
        }
    }
    for (int i = 0; i < lanes; i++) {
        for (long rest = p; rest < end; rest++)
            PUT_ONE(TAKE_ONE(x + rest * B + i), y + (long)i * plane + rest);
    }
}

typedef struct {
    int x_offset, y_offset;
    int channels, plane, source_block, target_block, per_item, scale, zero;
} between_blocks_arguments;

/* From one block to another, multiples of 4 both. Work items: (range of pixels, four lanes of the target, image). */
kernel void between_blocks(const global source *x_buffer, global target *y_buffer, const between_blocks_arguments given)
{
    CONVERSION
    const int plane = given.plane, from = given.source_block, to = given.target_block;
    const int channel = (int)get_global_id(1) * 4, image = get_global_id(2);
    const int channels = given.channels, from_blocks = (channels + from - 1) / from, to_blocks = (channels + to - 1) / to;
    const global source *x = x_buffer + given.x_offset + ((long)image * from_blocks + channel / from) * plane * from;
    global target *y = y_buffer + given.y_offset + ((long)image * to_blocks + channel / to) * plane * to;
    const int begin = (int)get_global_id(0) * given.per_item, end = min(begin + given.per_item, plane);
    const int has_source = channel < from_blocks * from;
    for (long p = begin; p < end; p++) {
        const moved_quad value = has_source ? TAKE_QUAD(x + p * from + channel % from) : (moved_quad)(0);
        PUT_QUAD(value, y + p * to + channel % to);
    }
}

typedef struct {
    int x_offset, y_offset;
    int count, per_item, scale, zero;
} copy_arguments;

/* Work items: (range of `per_item` numbers). */
kernel void copy(const global source *x_buffer, global target *y_buffer, const copy_arguments given)
{
    CONVERSION
    const global source *x = x_buffer + given.x_offset;
    global target *y = y_buffer + given.y_offset;
    long i = (long)get_global_id(0) * given.per_item;
    const long end = min(i + given.per_item, (long)given.count);
    for (; i + B <= end; i += B)
        PUT(TAKE(x + i), y + i);
    for (; i < end; i++)
        PUT_ONE(TAKE_ONE(x + i), y + i);
}
