/* One-dimensional transforms of Winograd's minimal filtering F(M, TAPS), in place on numbers `step` apart, for
 * ALPHA = M + TAPS - 1 = 4, 6 or 8 positions; the position of infinity affects the last output only. The points are those of
 * devices/algorithms/winograd.py and of the CPU engine's kernels: 0, pairs ±p, infinity.
 *
 * An item handles LANES neighbouring lanes as one `vec`: a whole block on a CPU, one lane on other devices.
 */
#if NNS_CPU
#define LANES B
typedef floatb vec;
#define LOAD_VEC(pointer) LOAD(pointer)
#define STORE_VEC(value, pointer) STORE_BLOCK(value, pointer)
#define READ_VEC(pointer) READ(pointer)
#define WRITE_VEC(value, pointer) WRITE_BLOCK(value, pointer)
#define ACTIVATE_VEC(x, kind, a, b) activate(x, kind, a, b)
#else
#define LANES 1
typedef float vec;
#define LOAD_VEC(pointer) (*(pointer))
#define STORE_VEC(value, pointer) (*(pointer) = (value))
#define READ_VEC(pointer) READ_ONE(pointer)
#define WRITE_VEC(value, pointer) WRITE_ONE(value, pointer)
#define ACTIVATE_VEC(x, kind, a, b) activate_one(x, kind, a, b)
#endif

#define ALPHA (M + TAPS - 1)
#define POSITIONS (ALPHA * ALPHA)

#if ALPHA == 4

static inline void transform_input(private vec *d, int step)
{
    const vec d0 = d[0], d1 = d[step], d2 = d[2 * step], d3 = d[3 * step];
    d[0] = d2 - d0;
    d[step] = d2 + d1;
    d[2 * step] = d2 - d1;
    d[3 * step] = d3 - d1;
}

static inline void transform_output(private vec *m, int step)
{
    const vec sum = m[step] + m[2 * step], difference = m[step] - m[2 * step], infinity = m[3 * step];
    m[0] += sum;
    m[step] = difference;
    if (M > 2)
        m[2 * step] = sum;
    m[(M - 1) * step] += infinity;
}

#elif ALPHA == 6

/* With a = 3/4 and b = 2a: point ±p has the even part d4 - q² d2 and the odd part ±p (d3 - q² d1), where q is the other point. */
static inline void transform_input(private vec *d, int step)
{
    const vec d0 = d[0], d1 = d[step], d2 = d[2 * step], d3 = d[3 * step], d4 = d[4 * step], d5 = d[5 * step];
    const vec scaled = d3 * 0.75f;
    const vec even_a = d4 - d2 * 2.25f, odd_a = scaled - d1 * 1.6875f;
    const vec even_b = d4 - d2 * 0.5625f, odd_b = (scaled + scaled) - d1 * 0.84375f;
    d[0] = (d4 - d2 * 2.8125f) + d0 * 1.265625f;
    d[step] = even_a + odd_a;
    d[2 * step] = even_a - odd_a;
    d[3 * step] = even_b + odd_b;
    d[4 * step] = even_b - odd_b;
    d[5 * step] = (d5 - d3 * 2.8125f) + d1 * 1.265625f;
}

static inline void transform_output(private vec *m, int step)
{
    const vec sum_a = m[step] + m[2 * step], difference_a = m[step] - m[2 * step];
    const vec sum_b = m[3 * step] + m[4 * step], difference_b = m[3 * step] - m[4 * step];
    const vec infinity = m[5 * step];
    m[0] += sum_a + sum_b;
    m[step] = (difference_a + difference_b * 2.0f) * 0.75f;
    m[2 * step] = (sum_a + sum_b * 4.0f) * 0.5625f;
    if (M > 3)
        m[3 * step] = (difference_a + difference_b * 8.0f) * 0.421875f;
    if (M > 4)
        m[4 * step] = (sum_a + sum_b * 16.0f) * 0.31640625f;
    m[(M - 1) * step] += infinity;
}

#else

/* The points are powers of 2, so that all scaling is exact. */
static inline void transform_input(private vec *d, int step)
{
    const vec d0 = d[0], d1 = d[step], d2 = d[2 * step], d3 = d[3 * step], d4 = d[4 * step], d5 = d[5 * step],
              d6 = d[6 * step], d7 = d[7 * step];
    const vec even_half = (d6 - d4 * 5.0f) + d2 * 4.0f, odd_half = (d5 - d3 * 5.0f) + d1 * 4.0f;
    const vec even_one = (d6 + d2) - d4 * 4.25f, odd_one = (d5 + d1) - d3 * 4.25f;
    const vec even_two = (d6 - d4 * 1.25f) + d2 * 0.25f, odd_two = (d5 - d3 * 1.25f) + d1 * 0.25f;
    d[0] = (d6 - d0) + (d2 - d4) * 5.25f;
    d[step] = even_one + odd_one;
    d[2 * step] = even_one - odd_one;
    d[3 * step] = even_half + odd_half * 0.5f;
    d[4 * step] = even_half - odd_half * 0.5f;
    d[5 * step] = even_two + odd_two * 2.0f;
    d[6 * step] = even_two - odd_two * 2.0f;
    d[7 * step] = (d7 - d1) + (d3 - d5) * 5.25f;
}

static inline void transform_output(private vec *m, int step)
{
    const vec sum_one = m[step] + m[2 * step], difference_one = m[step] - m[2 * step];
    const vec sum_half = m[3 * step] + m[4 * step], difference_half = m[3 * step] - m[4 * step];
    const vec sum_two = m[5 * step] + m[6 * step], difference_two = m[5 * step] - m[6 * step];
    const vec infinity = m[7 * step];
    m[0] = (m[0] + sum_one) + (sum_half + sum_two);
    m[step] = difference_one + difference_half * 0.5f + difference_two * 2.0f;
    m[2 * step] = sum_one + sum_half * 0.25f + sum_two * 4.0f;
    if (M > 3)
        m[3 * step] = difference_one + difference_half * 0.125f + difference_two * 8.0f;
    if (M > 4)
        m[4 * step] = sum_one + sum_half * 0.0625f + sum_two * 16.0f;
    if (M > 5)
        m[5 * step] = difference_one + difference_half * 0.03125f + difference_two * 32.0f;
    m[(M - 1) * step] += infinity;
}

#endif
