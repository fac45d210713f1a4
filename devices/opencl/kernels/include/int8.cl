/* Int8 tensors: an int8 q stands for scale * (q - zero). Results are those of the CPU's int8 kernels (engine/kernels/int8):
 * sums are exact in int32, and the same float32 operations round them. With residuals, ties may be rounded the other way.
 *
 * Four input channels of a pixel, a quad, meet four weights of every lane's output: the weights of a quad are [B lanes][4].
 * A GPU whose driver has dot products of packed quads multiplies a quad at once. Others multiply channel by channel, CPUs always:
 * their drivers compute vectors of such dot products lane by lane, in ten times the time.
 */
#include "common.cl"

typedef NNS_JOIN(char, NNS_BLOCK) charb;
typedef NNS_JOIN(int, NNS_BLOCK) intb;
typedef NNS_JOIN(uint, NNS_BLOCK) uintb;
#define LOAD_BYTES(pointer) NNS_JOIN(vload, NNS_BLOCK)(0, pointer)
#define STORE_BYTES(value, pointer) NNS_JOIN(vstore, NNS_BLOCK)(value, 0, pointer)
#define BYTES_OF NNS_JOIN(convert_char, NNS_BLOCK)
#define TO_INTS NNS_JOIN(convert_int, NNS_BLOCK)
#define TO_FLOATS NNS_JOIN(convert_float, NNS_BLOCK)
#define BITS_OF NNS_JOIN(as_int, NNS_BLOCK)
#define FLOATS_OF_BITS NNS_JOIN(as_float, NNS_BLOCK)

/* ---- products ---- */

#define QUAD 4

/* The feature of OpenCL C 3.0 whose functions the extension cl_khr_integer_dot_product brings. */
#if defined(__opencl_c_integer_dot_product_input_4x8bit_packed) && !NNS_CPU
#define QUAD_PARTS 1 /* a part is all four channels */
typedef uint quad_input;
typedef uintb quad_weight;
#define PART_OF_INPUT(pointer, part) (*(const global uint *)(pointer))
#define PART_OF_BYTES(bytes, part) (bytes)
#define PART_OF_WEIGHTS(weights, part) (weights)
#define DOT(lane) dot_4x8packed_ss_int(x, w.lane)

/* sum + Σ x[channel] · w[channel] in every lane. */
INLINE intb multiply_add(intb sum, quad_input x, quad_weight w)
{
#if NNS_BLOCK == 16
    return sum + (intb)(DOT(s0), DOT(s1), DOT(s2), DOT(s3), DOT(s4), DOT(s5), DOT(s6), DOT(s7), DOT(s8), DOT(s9), DOT(sa),
                        DOT(sb), DOT(sc), DOT(sd), DOT(se), DOT(sf));
#elif NNS_BLOCK == 8
    return sum + (intb)(DOT(s0), DOT(s1), DOT(s2), DOT(s3), DOT(s4), DOT(s5), DOT(s6), DOT(s7));
#else
    return sum + (intb)(DOT(s0), DOT(s1), DOT(s2), DOT(s3));
#endif
}
#else
#define QUAD_PARTS 4 /* a part is one channel */
typedef int quad_input;
typedef intb quad_weight;
#define PART_OF_INPUT(pointer, part) ((int)(pointer)[part])
#define PART_OF_BYTES(bytes, part) ((int)((bytes) << (24 - 8 * (part))) >> 24)
#define PART_OF_WEIGHTS(weights, part) (BITS_OF((weights) << (24 - 8 * (part))) >> 24)

INLINE intb multiply_add(intb sum, quad_input x, quad_weight w)
{
    return sum + x * w;
}
#endif

/* The quads of weights of B lanes. */
#define LOAD_WEIGHTS(pointer) NNS_JOIN(vload, NNS_BLOCK)(0, (const global uint *)(pointer))

/* ---- results ---- */

/* Adding it to a float32 within ±2^22 rounds to the nearest integer, the even one of two, which is in the low bits. Bits of
 * larger sums are larger, and those of sums below zero negative, so integers compare as the values do. */
#define ROUNDER 12582912.0f
#define ROUNDER_BITS 0x4b400000

/* The nearest int8 within bounds to values with ROUNDER added. Bounds are vectors: Oclgrind takes scalar ones for vectors, too. */
INLINE charb narrowed(floatb rounded, int zero, int low, int high)
{
    const intb steps = max(BITS_OF(rounded), (intb)(low - zero + ROUNDER_BITS)) + (zero - ROUNDER_BITS);
    return BYTES_OF(min(steps, (intb)(high)));
}

/* A sum whose terms are rounded before: compilers may make a * b + c one operation, but leave this one alone. */
#define PLUS(a, b) fma((floatb)(1.0f), a, (floatb)(b))

/* How sums become int8. The kernels have these as their last parameters. */
#define ROUNDING_OF(given)                                                                          \
    (int8)((given).zero, (given).low, (given).high, (given).residual_scale, (given).residual_zero,  \
           (given).sum_scale, (given).sum_zero, (given).has_residual)

/* A block of results: sums times multipliers, plus a residual unless there is none. With a `sum_scale` other than 0 sums become
 * int8 before it is added. */
INLINE charb results_of(intb sum, floatb multipliers, charb residual, int8 r)
{
    if (!r.s7)
        return narrowed(fma(TO_FLOATS(sum), multipliers, (floatb)(ROUNDER)), r.s0, r.s1, r.s2);
    floatb steps = TO_FLOATS(sum) * multipliers;
    const floatb addend = TO_FLOATS(TO_INTS(residual) - r.s4) * as_float(r.s3);
    if (r.s5 != 0) {
        const int zero_bits = ROUNDER_BITS - r.s6;
        const intb bits = min(max(BITS_OF(PLUS(steps, ROUNDER)), (intb)(zero_bits - 128)), (intb)(zero_bits + 127));
        steps = (FLOATS_OF_BITS(bits) - ROUNDER) * as_float(r.s5);
    }
    return narrowed(PLUS(PLUS(steps, addend), ROUNDER), r.s0, r.s1, r.s2);
}

/* Steps as int8 within bounds; what is not a number becomes the lower one. */
INLINE charb rounded_steps(floatb steps, int zero, int low, int high)
{
    const floatb least = (floatb)((float)(low - zero)), most = (floatb)((float)(high - zero));
    steps = select(least, steps, steps > least);
    steps = select(most, steps, steps < most);
    return BYTES_OF(BITS_OF(steps + ROUNDER) + (zero - ROUNDER_BITS));
}

/* The quotient as IEEE 754 rounds it, as far as it becomes an int8: division of OpenCL C may be less exact. `b` is positive and
 * neither near the least nor the largest number. */
INLINE floatb quotient(floatb a, float b)
{
    float inverse = 1.0f / b;
    inverse = fma(fma(-b, inverse, 1.0f), inverse, inverse);
    const floatb first = a * inverse;
    floatb better = fma(fma((floatb)(-b), first, a), (floatb)(inverse), first);
    better = fma(fma((floatb)(-b), better, a), (floatb)(inverse), better);
    return select(first, better, fabs(first) < 4194304.0f);
}

/* ---- parts of blocks ---- */

/* The first `count` of B integers; the other lanes are 0. */
INLINE charb load_some_bytes(const global char *x, int count)
{
    if (count >= B)
        return LOAD_BYTES(x);
    char lane[B];
    for (int i = 0; i < B; i++)
        lane[i] = i < count ? x[i] : 0;
    return LOAD_BYTES(lane);
}

/* Stores the first `count` lanes. */
INLINE void store_some_bytes(charb value, global char *y, int count)
{
    if (count >= B) {
        STORE_BYTES(value, y);
        return;
    }
    char lane[B];
    STORE_BYTES(value, lane);
    for (int i = 0; i < count; i++)
        y[i] = lane[i];
}
