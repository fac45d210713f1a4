/* Common definitions of all kernels: the vector type of one channel block, loads and stores, and activations.
 *
 * A kernel takes a buffer for every tensor, reads first, then writes, and finally one struct by value, `given`: the offset
 * of every buffer in numbers, in the same order, then the kernel's parameters. All members are ints, or structs of ints; float
 * parameters are the bits of a float32. The struct is a single argument because drivers process each argument at every enqueue.
 * Members that a loop needs are read before it, since the compiler may assume that stores in the loop change them.
 *
 * A `number` of a tensor, weight or bias is a float, or a half if NNS_HALF is 1. Sums are always floats: reads and writes
 * convert, which needs no half arithmetic of the device. Values beyond the range of halves are written as the largest half,
 * because padding lanes must be finite.
 *
 * NNS_BLOCK is the block b of the blocked layout NCHW[b]c: a tensor is stored as N, ceil(C/b), H, W, b. Padding lanes of C
 * hold arbitrary finite values. NNS_CPU is 1 on devices on the CPU, else 0.
 *
 * NNS_IMAGES says which reads are images, made from the same buffers: bit i is read i. A pixel is four numbers, and offsets
 * count numbers as in buffers. GPUs have caches for images beside those for buffers. The weights, read 1, may be one.
 */
#define NNS_JOIN_(a, b) a##b
#define NNS_JOIN(a, b) NNS_JOIN_(a, b)

#define B NNS_BLOCK
typedef NNS_JOIN(float, NNS_BLOCK) floatb;
#define LOAD(pointer) NNS_JOIN(vload, NNS_BLOCK)(0, pointer)
#define STORE(value, pointer) NNS_JOIN(vstore, NNS_BLOCK)(value, 0, pointer)

/* Stores a block of a blocked tensor, aligned to its size. Drivers may split an unaligned store. */
#define STORE_BLOCK(value, pointer) (*(global floatb *)(pointer) = (value))

#ifndef NNS_HALF
#define NNS_HALF 0
#endif

#define LARGEST_HALF 65504.0f
#define TO_HALF(value) clamp(value, -LARGEST_HALF, LARGEST_HALF)
#define LOAD_HALF(pointer) NNS_JOIN(vload_half, NNS_BLOCK)(0, pointer)
#define STORE_HALF(value, pointer) NNS_JOIN(vstore_half, NNS_BLOCK)(TO_HALF(value), 0, pointer)
#define LOAD_ONE(pointer) (*(pointer))
#define STORE_ONE(value, pointer) (*(pointer) = (value))
#define LOAD_ONE_HALF(pointer) vload_half(0, pointer)
#define STORE_ONE_HALF(value, pointer) vstore_half(TO_HALF(value), 0, pointer)

/* Loads and stores of numbers: B of them (a block of a blocked tensor), or one. */
#if NNS_HALF
#define number half
#define READ LOAD_HALF
#define WRITE STORE_HALF
#define WRITE_BLOCK STORE_HALF
#define READ_ONE LOAD_ONE_HALF
#define WRITE_ONE STORE_ONE_HALF
#else
#define number float
#define READ LOAD
#define WRITE STORE
#define WRITE_BLOCK STORE_BLOCK
#define READ_ONE LOAD_ONE
#define WRITE_ONE STORE_ONE
#endif

/* The weights: `weights_in` is their memory and `weights_at` a place in it, to which numbers can be added. READ_WEIGHTS reads from
 * a place what READ reads from a pointer; from an image this must be four numbers, at a multiple of four. */
#ifndef NNS_IMAGES
#define NNS_IMAGES 0
#endif
#if NNS_IMAGES & 2
#define weights_in read_only image1d_buffer_t
typedef int weights_at;
#define WEIGHTS_AT(memory, offset) ((int)(offset))
#define READ_WEIGHTS(READ, memory, place) read_imagef(memory, (int)((place) >> 2))
#define PREFETCH_WEIGHTS(place)
#else
#define weights_in const global number *
typedef const global number *weights_at;
#define WEIGHTS_AT(memory, offset) ((memory) + (offset))
#define READ_WEIGHTS(READ, memory, place) READ(place)
#define PREFETCH_WEIGHTS(place) PREFETCH(place)
#endif

/* Prefetches a cache line. CPU cores, unlike GPUs, stall on a long stream of weights from memory. `prefetch` of OpenCL C does
 * nothing in PoCL, whose compiler knows clang's. Other drivers may reject or crash on what is not OpenCL C. */
#ifdef POCL_DEVICE_ADDRESS_BITS
#define PREFETCH(pointer) __builtin_prefetch(pointer)
#else
#define PREFETCH(pointer)
#endif

#ifdef __clang__
#define INLINE __attribute__((always_inline)) static inline
#define OUT_OF_LINE __attribute__((noinline)) static
#else
#define INLINE static inline
#define OUT_OF_LINE static
#endif

#define UNROLL _Pragma("unroll")

/* PART begins the definition of a long function. Drivers for CPUs compile several variants of a kernel; variants that call
 * one function compile much faster. */
#if NNS_CPU
#define PART OUT_OF_LINE
#else
#define PART static inline
#endif

enum {
    ACT_NONE = 0,
    ACT_RELU = 1,
    ACT_CLIP = 2,
    ACT_SIGMOID = 3,
    ACT_SILU = 4,
    ACT_HARD_SIGMOID = 5,
    ACT_HARD_SWISH = 6,
    ACT_LEAKY_RELU = 7,
    ACT_TANH = 8,
    ACT_EXP = 9,
    ACT_GELU = 10,
    ACT_GELU_TANH = 11,
    ACT_SWISH = 12,
    ACT_MISH = 13,
    ACT_SOFTPLUS = 14,
    ACT_ELU = 15,
    ACT_SELU = 16,
    ACT_ERF = 17
};

static inline floatb sigmoid(floatb x)
{
    return 1.0f / (1.0f + exp(-x));
}

/* x (1 + erf(x / sqrt(2))) / 2. The tail of the normal distribution is 2 to the power of a polynomial, as in the CPU engine's
 * functions.h: `erf` of some drivers is one call per number. */
static inline floatb gelu(floatb x)
{
    const floatb t = min(fabs(x), 9.0f);
    floatb p = 1.64472869e-9f * t - 6.84850292e-8f;
    p = p * t + 1.24232349e-6f;
    p = p * t - 1.28157089e-5f;
    p = p * t + 8.0637139e-5f;
    p = p * t - 2.8054064e-4f;
    p = p * t - 1.64167141e-5f;
    p = p * t + 6.98191579e-3f;
    p = p * t - 5.24715111e-2f;
    p = p * t - 4.5920977e-1f;
    p = p * t - 1.1511054f;
    p = p * t - 1.0f;
    return max(x, 0.0f) - t * exp2(p);
}

/* x tanh(ln(1 + e^x)) = x n / (n + 2) with n = e^x (e^x + 2). */
static inline floatb mish(floatb x)
{
    const floatb e = exp(min(x, 20.0f));
    const floatb n = e * (e + 2.0f);
    return x * (n / (n + 2.0f));
}

/* Rare or long activations, kept out of line. */
static inline floatb activate_other(floatb x, int kind, float a, float b)
{
    switch (kind) {
    case ACT_CLIP:
        return min(max(x, a), b);
    case ACT_SIGMOID:
        return sigmoid(x);
    case ACT_SILU:
        return x * sigmoid(x);
    case ACT_HARD_SIGMOID:
        return min(max(a * x + b, 0.0f), 1.0f);
    case ACT_HARD_SWISH:
        return x * min(max(x * (1.0f / 6.0f) + 0.5f, 0.0f), 1.0f);
    case ACT_LEAKY_RELU:
        return max(x, 0.0f) + a * min(x, 0.0f);
    case ACT_TANH:
        return tanh(x);
    case ACT_GELU:
        return gelu(x);
    case ACT_GELU_TANH:
        return x * sigmoid(x * (x * x * 7.1354816e-2f + 1.5957691f));
    case ACT_SWISH:
        return x * sigmoid(a * x);
    case ACT_MISH:
        return mish(x);
    case ACT_SOFTPLUS:
        return max(x, 0.0f) + log1p(exp(-fabs(x)));
    case ACT_ELU:
        return max(x, 0.0f) + a * expm1(b * min(x, 0.0f));
    case ACT_SELU:
        return b * (max(x, 0.0f) + a * expm1(min(x, 0.0f)));
    case ACT_ERF:
        return erf(x);
    default:
        return exp(min(x, 88.72283f)); /* finite, as required for padding lanes */
    }
}

static inline floatb activate(floatb x, int kind, int a_bits, int b_bits)
{
    if (kind == ACT_NONE)
        return x;
    if (kind == ACT_RELU)
        return max(x, 0.0f);
    return activate_other(x, kind, as_float(a_bits), as_float(b_bits));
}

/* The same for one number: for kernels on plain layouts and remainders of rows. */
static inline float activate_one(float x, int kind, int a_bits, int b_bits)
{
    if (kind == ACT_NONE)
        return x;
    if (kind == ACT_RELU)
        return max(x, 0.0f);
    union {
        floatb vector;
        float lane[B];
    } y;
    y.vector = activate_other((floatb)(x), kind, as_float(a_bits), as_float(b_bits));
    return y.lane[0];
}
