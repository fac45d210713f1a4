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

static inline float sum_of_lanes(floatb x)
{
    lanes all;
    all.vector = x;
    float sum = 0.0f;
    for (int i = 0; i < B; i++)
        sum += all.lane[i];
    return sum;
}

static inline float largest_lane(floatb x)
{
    lanes all;
    all.vector = x;
    float largest = all.lane[0];
    for (int i = 1; i < B; i++)
        largest = max(largest, all.lane[i]);
    return largest;
}
