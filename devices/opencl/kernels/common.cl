/* What all kernels share: the vector type of one channel block, loads and stores, and activations.
 *
 * A kernel takes a buffer for every tensor, reads first, then writes, and behind them one struct by value, `given`: the offset
 * of every buffer in numbers, in the same order, then the kernel's parameters. All members are ints, or structs of ints; float
 * parameters travel as the bits of a float32. It is one argument, as drivers pay for each of them whenever a kernel is enqueued.
 * What loops need of it is read before them: a compiler may believe that their stores change it.
 *
 * A `number` of a tensor, weight or bias is a float, or a half if NNS_HALF is 1. Sums are floats in either case: reads and
 * writes convert, which every device can do, whether it computes in halves or not. What is too large for a half is written
 * as the largest one, as lanes that pad channels must be finite.
 *
 * NNS_BLOCK is the block b of the blocked layout NCHW[b]c: a tensor is stored as N, ceil(C/b), H, W, b. Lanes that pad C
 * hold finite values of any kind. NNS_CPU is 1 on devices that live on the CPU, else 0.
 */
#define NNS_JOIN_(a, b) a##b
#define NNS_JOIN(a, b) NNS_JOIN_(a, b)

#define B NNS_BLOCK
typedef NNS_JOIN(float, NNS_BLOCK) floatb;
#define LOAD(pointer) NNS_JOIN(vload, NNS_BLOCK)(0, pointer)
#define STORE(value, pointer) NNS_JOIN(vstore, NNS_BLOCK)(value, 0, pointer)

/* Stores a block of a blocked tensor, which lies at a multiple of its size. Drivers may make several stores of one that could
 * lie anywhere. */
#define STORE_BLOCK(value, pointer) (*(global floatb *)(pointer) = (value))

#ifndef NNS_HALF
#define NNS_HALF 0
#endif

#define HALF_MAX 65504.0f
#define TO_HALF(value) clamp(value, -HALF_MAX, HALF_MAX)
#define LOAD_HALF(pointer) NNS_JOIN(vload_half, NNS_BLOCK)(0, pointer)
#define STORE_HALF(value, pointer) NNS_JOIN(vstore_half, NNS_BLOCK)(TO_HALF(value), 0, pointer)
#define LOAD_ONE(pointer) (*(pointer))
#define STORE_ONE(value, pointer) (*(pointer) = (value))
#define LOAD_ONE_HALF(pointer) vload_half(0, pointer)
#define STORE_ONE_HALF(value, pointer) vstore_half(TO_HALF(value), 0, pointer)

/* Numbers: B of them, of a blocked tensor's block, or one. */
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

/* Fetches a cache line that will be read later. CPU cores, unlike GPUs, wait for a long stream of weights from memory. */
#if NNS_CPU && defined(__has_builtin)
#if __has_builtin(__builtin_prefetch)
#define PREFETCH(pointer) __builtin_prefetch(pointer)
#endif
#endif
#ifndef PREFETCH
#define PREFETCH(pointer)
#endif

#define UNROLL _Pragma("unroll")

/* PART begins the definition of a long function. Drivers for CPUs make several variants of a kernel: each then calls the same
 * code, which takes a fraction of the time to compile. */
#if NNS_CPU
#define PART __attribute__((noinline)) static
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
    ACT_EXP = 9
};

static inline floatb sigmoid(floatb x)
{
    return 1.0f / (1.0f + exp(-x));
}

/* The activations that are rare or long, kept out of the way of the common ones. */
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
    default:
        return exp(min(x, 88.72283f)); /* finite, as lanes that pad channels must be */
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

/* The same for one number: kernels on plain layouts and rests of rows. */
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
