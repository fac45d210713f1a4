/* Lanes of a vector: parts of a vector in memory, and what all lanes make together. */

typedef union {
    floatb vector;
    float lane[B];
} lanes;

/* The first `count` of B numbers that are `step` apart; the other lanes are `rest`. */
static inline floatb load_some(const global float *x, long step, int count, float rest)
{
    if (step == 1 && count >= B)
        return LOAD(x);
    lanes all;
    for (int i = 0; i < B; i++)
        all.lane[i] = i < count ? x[i * step] : rest;
    return all.vector;
}

/* Stores the first `count` lanes. */
static inline void store_some(floatb value, global float *y, int count)
{
    if (count >= B) {
        STORE(value, y);
        return;
    }
    lanes all;
    all.vector = value;
    for (int i = 0; i < count; i++)
        y[i] = all.lane[i];
}

/* Folds a vector of B lanes to four by halves: a loop over lanes would wait for every operation. */
#if NNS_BLOCK == 16
#define FOLD(combine, x) combine(combine((x).lo, (x).hi).lo, combine((x).lo, (x).hi).hi)
#elif NNS_BLOCK == 8
#define FOLD(combine, x) combine((x).lo, (x).hi)
#else
#define FOLD(combine, x) (x)
#endif
#define ADD(a, b) ((a) + (b))

static inline float sum_of_lanes(floatb x)
{
    const float4 sum = FOLD(ADD, x);
    return (sum.x + sum.y) + (sum.z + sum.w);
}

static inline float largest_lane(floatb x)
{
    const float4 largest = FOLD(max, x);
    return max(max(largest.x, largest.y), max(largest.z, largest.w));
}
