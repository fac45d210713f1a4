/* Changes of the element type: other types to float32, float32 to float16 and bfloat16, rounded to nearest, ties to even, and
 * float32 to uint8. The bits are made by arithmetic that every machine has. */
#include "float16/bits.h"
#include "memory_bound/memory_bound.h"

enum { CAST_CHUNK = CHUNK };

NNS_INLINE float from_bfloat16(uint16_t x) { return nns_float_of_bits((uint32_t)x << 16); }

NNS_INLINE uint16_t to_bfloat16(float value) {
    const uint32_t bits = bits_of(value);
    const uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
    return (uint16_t)((bits & 0x7fffffffu) > EXPONENT(255) ? (bits >> 16 | 0x40u) : rounded);
}

/* The lowest byte of the whole part, without the fraction; numbers that int32 does not hold become 0. */
NNS_INLINE uint8_t to_uint8(float value) {
    return value > -0x1p31f && value < 0x1p31f ? (uint8_t)(int32_t)value : 0;
}

/* The kernel that makes elements of type TO of those of type FROM. */
#define CAST(stem, FROM, TO, CONVERT)                                                          \
    static const char *stem##_check(const nns_args *args, nns_work *work) {                    \
        const cast_parameters *p = (const void *)args->p;                                      \
        *work = (nns_work){.units = nns_ceil_div(p->count, CAST_CHUNK)};                       \
        return NNS_CHECK_SIZES(cast, args, NNS_PRODUCT(p->count, (int64_t)sizeof(TO)),         \
                               NNS_PRODUCT(p->count, (int64_t)sizeof(FROM)));                  \
    }                                                                                          \
    static void stem##_run(const nns_args *args, int64_t begin, int64_t end, void *scratch) {  \
        (void)scratch;                                                                         \
        const cast_parameters *p = (const void *)args->p;                                      \
        const FROM *restrict x = args->in[0];                                                  \
        TO *restrict out = args->out[0];                                                       \
        const int64_t last = nns_min_int(end * CAST_CHUNK, p->count);                          \
        for (int64_t i = begin * CAST_CHUNK; i < last; i++) out[i] = CONVERT(x[i]);            \
    }

CAST(from_float16, uint16_t, float, from_half)
CAST(to_float16, float, uint16_t, to_half)
CAST(from_bfloat16, uint16_t, float, from_bfloat16)
CAST(to_bfloat16, float, uint16_t, to_bfloat16)
CAST(to_uint8, float, uint8_t, to_uint8)
CAST(from_uint8, uint8_t, float, (float))
CAST(from_int32, int32_t, float, (float))
CAST(from_int64, int64_t, float, (float))

NNS_DEFINE_FAMILY(cast);
