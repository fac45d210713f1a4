/* What the kernels use of OpenCL C, for clang's target of AMD GPUs: ziglang's package has the compiler, but no headers and no
 * library. Functions without an instruction are some arithmetic that takes about as many registers, not their values. */
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef unsigned long size_t;
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#define VECTORS_OF(type)                                                                            \
    typedef type type##2 __attribute__((ext_vector_type(2)));                                       \
    typedef type type##4 __attribute__((ext_vector_type(4)));                                       \
    typedef type type##8 __attribute__((ext_vector_type(8)));                                       \
    typedef type type##16 __attribute__((ext_vector_type(16)));
VECTORS_OF(float)
VECTORS_OF(half)
VECTORS_OF(int)
VECTORS_OF(uint)
VECTORS_OF(short)

#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#define FLT_MAX __FLT_MAX__
#define CLK_LOCAL_MEM_FENCE 1
#define CLK_GLOBAL_MEM_FENCE 2
#define FUNCTION static inline __attribute__((overloadable, always_inline))

#define OF_DIMENSION(name, x, y, z) \
    FUNCTION size_t name(uint d) { return d == 0 ? x : d == 1 ? y : z; }
OF_DIMENSION(get_local_id, __builtin_amdgcn_workitem_id_x(), __builtin_amdgcn_workitem_id_y(), __builtin_amdgcn_workitem_id_z())
OF_DIMENSION(get_group_id, __builtin_amdgcn_workgroup_id_x(), __builtin_amdgcn_workgroup_id_y(),
             __builtin_amdgcn_workgroup_id_z())
OF_DIMENSION(get_local_size, __builtin_amdgcn_workgroup_size_x(), __builtin_amdgcn_workgroup_size_y(),
             __builtin_amdgcn_workgroup_size_z())
OF_DIMENSION(get_global_size, __builtin_amdgcn_grid_size_x(), __builtin_amdgcn_grid_size_y(), __builtin_amdgcn_grid_size_z())
FUNCTION size_t get_global_id(uint d) { return get_group_id(d) * get_local_size(d) + get_local_id(d); }
FUNCTION void barrier(uint flags)
{
    __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "workgroup");
    __builtin_amdgcn_s_barrier();
}

/* Integers: of two types, as OpenCL C has them. */
#define WHOLE(type)                                                                                 \
    FUNCTION type min(type a, type b) { return a < b ? a : b; }                                     \
    FUNCTION type max(type a, type b) { return a > b ? a : b; }                                     \
    FUNCTION type clamp(type x, type a, type b) { return min(max(x, a), b); }
WHOLE(int)
WHOLE(uint)
WHOLE(long)
WHOLE(ulong)

#define REAL(type)                                                                                  \
    FUNCTION type min(type a, type b) { return __builtin_elementwise_min(a, b); }                   \
    FUNCTION type max(type a, type b) { return __builtin_elementwise_max(a, b); }                   \
    FUNCTION type fmin(type a, type b) { return __builtin_elementwise_min(a, b); }                  \
    FUNCTION type fmax(type a, type b) { return __builtin_elementwise_max(a, b); }                  \
    FUNCTION type fma(type a, type b, type c) { return __builtin_elementwise_fma(a, b, c); }        \
    FUNCTION type exp(type x) { return __builtin_elementwise_exp(x); }                              \
    FUNCTION type exp2(type x) { return __builtin_elementwise_exp2(x); }                            \
    FUNCTION type log(type x) { return __builtin_elementwise_log(x); }                              \
    FUNCTION type sqrt(type x) { return __builtin_elementwise_sqrt(x); }                            \
    FUNCTION type fabs(type x) { return __builtin_elementwise_abs(x); }                             \
    FUNCTION type ceil(type x) { return __builtin_elementwise_ceil(x); }                            \
    FUNCTION type floor(type x) { return __builtin_elementwise_floor(x); }                          \
    FUNCTION type clamp(type x, type a, type b) { return min(max(x, a), b); }                       \
    FUNCTION type expm1(type x) { return exp(x) - 1.0f; }                                           \
    FUNCTION type log1p(type x) { return log(x + 1.0f); }                                           \
    FUNCTION type tanh(type x) { return 1.0f - 2.0f / (exp(2.0f * x) + 1.0f); }                     \
    FUNCTION type erf(type x) { return 1.0f - exp(-x * x) * (0.3f + x * (0.2f + x * (0.1f + x))); }
#define REAL_VECTOR(type, whole)                                                                    \
    REAL(type)                                                                                      \
    FUNCTION whole isnan(type x) { return x != x; }                                                 \
    FUNCTION type select(type a, type b, whole c) { return c ? b : a; }                             \
    FUNCTION type min(type a, float b) { return min(a, (type)(b)); }                                \
    FUNCTION type max(type a, float b) { return max(a, (type)(b)); }                                \
    FUNCTION type clamp(type x, float a, float b) { return min(max(x, a), b); }
REAL(float)
REAL_VECTOR(float4, int4)
REAL_VECTOR(float8, int8)
REAL_VECTOR(float16, int16)
FUNCTION int isnan(float x) { return x != x; }
FUNCTION float select(float a, float b, int c) { return c ? b : a; }
#define as_float(x) __builtin_bit_cast(float, x)
#define as_int(x) __builtin_bit_cast(int, x)

#define LOADS(space, n)                                                                             \
    FUNCTION float##n vload##n(size_t at, const space float *from)                                  \
    {                                                                                               \
        float##n x;                                                                                 \
        __builtin_memcpy(&x, from + at * n, sizeof x);                                              \
        return x;                                                                                   \
    }                                                                                               \
    FUNCTION void vstore##n(float##n x, size_t at, space float *to) { __builtin_memcpy(to + at * n, &x, sizeof x); }
#define HALVES(n)                                                                                   \
    FUNCTION float##n vload_half##n(size_t at, const global half *from)                             \
    {                                                                                               \
        half##n x;                                                                                  \
        __builtin_memcpy(&x, from + at * n, sizeof x);                                              \
        return __builtin_convertvector(x, float##n);                                                \
    }                                                                                               \
    FUNCTION void vstore_half##n(float##n x, size_t at, global half *to)                            \
    {                                                                                               \
        const half##n y = __builtin_convertvector(x, half##n);                                      \
        __builtin_memcpy(to + at * n, &y, sizeof y);                                                \
    }
#define LENGTHS(n) LOADS(global, n) LOADS(local, n) LOADS(private, n) HALVES(n)
LENGTHS(4)
LENGTHS(8)
LENGTHS(16)
FUNCTION float vload_half(size_t at, const global half *from) { return from[at]; }
FUNCTION void vstore_half(float x, size_t at, global half *to) { to[at] = x; }

/* Images of buffers: the first quad of what is at the address of an image describes its buffer. */
float4 load_pixel(int4 buffer, int pixel, int offset, int base, int flags) __asm("llvm.amdgcn.struct.buffer.load.format.v4f32");
FUNCTION float4 read_imagef(read_only image1d_buffer_t image, int pixel)
{
    return load_pixel(*(const constant int4 *)__builtin_astype(image, const constant int *), pixel, 0, 0, 0);
}
