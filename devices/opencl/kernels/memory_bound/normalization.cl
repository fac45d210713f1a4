/* Layer normalisation over the channels of a pixel, and group normalisation over the channels of a group and all pixels.
 * Variances are means of squared distances from the mean, so that a large mean costs no digits. */
#include "common.cl"
#include "lanes.cl"

#define PIXELS 4 /* at once */

/* 1 in the lanes of the channels from `first` on that a tensor has, 0 in padding lanes. */
static inline floatb present(int first, int channels)
{
    lanes all;
    for (int i = 0; i < B; i++)
        all.lane[i] = first + i < channels ? 1.0f : 0.0f;
    return all.vector;
}

typedef struct {
    int x_offset, scale_offset, shift_offset, y_offset;
    int channels, plane, per_item, rms, epsilon, kind, a, b;
} layer_norm_blocked_arguments;

/* Normalises `count` neighbouring pixels over their channels. Several at once hide how long each sum of lanes takes. */
INLINE void norm_pixels(const global number *x, const global number *scale, const global number *shift, global number *y,
                        const int count, const floatb last, const layer_norm_blocked_arguments given)
{
    const int blocks = (given.channels + B - 1) / B;
    const long step = (long)given.plane * B;
    const float inverse = 1.0f / given.channels, epsilon = as_float(given.epsilon);
    floatb sum[PIXELS];
    float mean[PIXELS], factor[PIXELS];
    UNROLL for (int p = 0; p < count; p++)
        sum[p] = 0.0f;
    for (int i = 0; i < blocks && !given.rms; i++) {
        const floatb known = i + 1 < blocks ? (floatb)1.0f : last;
        UNROLL for (int p = 0; p < count; p++)
            sum[p] += READ(x + i * step + p * B) * known;
    }
    UNROLL for (int p = 0; p < count; p++) {
        mean[p] = sum_of_lanes(sum[p]) * inverse;
        sum[p] = 0.0f;
    }
    for (int i = 0; i < blocks; i++) {
        const floatb known = i + 1 < blocks ? (floatb)1.0f : last;
        UNROLL for (int p = 0; p < count; p++) {
            const floatb d = (READ(x + i * step + p * B) - mean[p]) * known;
            sum[p] += d * d;
        }
    }
    UNROLL for (int p = 0; p < count; p++)
        factor[p] = 1.0f / sqrt(sum_of_lanes(sum[p]) * inverse + epsilon);
    for (int i = 0; i < blocks; i++) {
        const floatb gain = READ(scale + i * B), moved = READ(shift + i * B);
        UNROLL for (int p = 0; p < count; p++) {
            const floatb scaled = (READ(x + i * step + p * B) - mean[p]) * (gain * factor[p]) + moved;
            WRITE(activate(scaled, given.kind, given.a, given.b), y + i * step + p * B);
        }
    }
}

/* Each pixel over its channels, blocked. Scale and shift are 0 in padding lanes. Work items: (range of pixels, image). */
kernel void layer_norm_blocked(const global number *x_buffer, const global number *scale_buffer,
                               const global number *shift_buffer, global number *y_buffer,
                               const layer_norm_blocked_arguments given)
{
    const int channels = given.channels, blocks = (channels + B - 1) / B;
    const long image = (long)get_global_id(1) * blocks * given.plane * B;
    const global number *x = x_buffer + given.x_offset + image;
    const global number *scale = scale_buffer + given.scale_offset, *shift = shift_buffer + given.shift_offset;
    global number *y = y_buffer + given.y_offset + image;
    const floatb last = present((blocks - 1) * B, channels);
    long p = (long)get_global_id(0) * given.per_item;
    const long end = min(p + given.per_item, (long)given.plane);
    for (; p + PIXELS <= end; p += PIXELS)
        norm_pixels(x + p * B, scale, shift, y + p * B, PIXELS, last, given);
    for (; p < end; p++)
        norm_pixels(x + p * B, scale, shift, y + p * B, 1, last, given);
}

typedef struct {
    int x_offset, scale_offset, shift_offset, y_offset;
    int count, inner, rms, epsilon, kind, a, b;
} layer_norm_arguments;

/* The middle axis of a plain tensor (outer, count, inner). Work items: (inner index, outer index). */
kernel void layer_norm(const global float *x_buffer, const global float *scale_buffer, const global float *shift_buffer,
                       global float *y_buffer, const layer_norm_arguments given)
{
    const int count = given.count, inner = given.inner, kind = given.kind, a = given.a, b = given.b;
    const global float *scale = scale_buffer + given.scale_offset, *shift = shift_buffer + given.shift_offset;
    const long at = (long)get_global_id(1) * count * inner + get_global_id(0);
    const global float *x = x_buffer + given.x_offset + at;
    global float *y = y_buffer + given.y_offset + at;
    float sum = 0.0f;
    for (long i = 0; i < count && !given.rms; i++)
        sum += x[i * inner];
    const float mean = sum / count;
    sum = 0.0f;
    for (long i = 0; i < count; i++) {
        const float d = x[i * inner] - mean;
        sum += d * d;
    }
    const float factor = 1.0f / sqrt(sum / count + as_float(given.epsilon));
    for (long i = 0; i < count; i++)
        y[i * inner] = activate_one((x[i * inner] - mean) * (scale[i] * factor) + shift[i], kind, a, b);
}

typedef struct {
    int x_offset, y_offset;
    int blocks, plane;
} channel_moments_arguments;

/* The mean of each channel of a blocked tensor, and the sum of squared distances from it: two blocks of floats for each block of
 * an image. Work items: (channel block, image). */
kernel void channel_moments(const global number *x_buffer, global float *y_buffer, const channel_moments_arguments given)
{
    const int plane = given.plane;
    const long row = (long)get_global_id(1) * given.blocks + get_global_id(0);
    const global number *x = x_buffer + given.x_offset + row * plane * B;
    global float *y = y_buffer + given.y_offset + row * 2 * B;
    floatb sum = 0.0f;
    for (long p = 0; p < plane; p++)
        sum += READ(x + p * B);
    const floatb mean = sum / (float)plane;
    sum = 0.0f;
    for (long p = 0; p < plane; p++) {
        const floatb d = READ(x + p * B) - mean;
        sum += d * d;
    }
    STORE(mean, y);
    STORE(sum, y + B);
}

typedef struct {
    int x_offset, scale_offset, shift_offset, moments_offset, y_offset;
    int channels, blocks, plane, per_item, groups, epsilon, kind, a, b;
} group_norm_arguments;

/* Blocked x by the moments of `groups` groups of its channels. Scale and shift are 0 in padding lanes.
 * Work items: (range of pixels, channel block, image). */
kernel void group_norm(const global number *x_buffer, const global number *scale_buffer, const global number *shift_buffer,
                       const global float *moments_buffer, global number *y_buffer, const group_norm_arguments given)
{
    const int kind = given.kind, a = given.a, b = given.b, block = get_global_id(1), image = get_global_id(2);
    const int size = given.channels / given.groups;
    const global float *moments = moments_buffer + given.moments_offset + (long)image * given.blocks * 2 * B;
    lanes mean, factor;
    for (int lane = 0; lane < B; lane++) {
        const int first = min(block * B + lane, given.channels - 1) / size * size;
        float sum = 0.0f, squares = 0.0f;
        for (int c = first; c < first + size; c++)
            sum += moments[c / B * 2 * B + c % B];
        mean.lane[lane] = sum / size;
        for (int c = first; c < first + size; c++) {
            const float d = moments[c / B * 2 * B + c % B] - mean.lane[lane];
            squares += moments[(c / B * 2 + 1) * B + c % B] + d * d * given.plane;
        }
        factor.lane[lane] = 1.0f / sqrt(squares / ((float)size * given.plane) + as_float(given.epsilon));
    }
    const floatb scale = READ(scale_buffer + given.scale_offset + block * B) * factor.vector;
    const floatb shift = READ(shift_buffer + given.shift_offset + block * B);
    const long at = ((long)image * given.blocks + block) * given.plane * B;
    const global number *x = x_buffer + given.x_offset + at;
    global number *y = y_buffer + given.y_offset + at;
    const int begin = (int)get_global_id(0) * given.per_item, end = min(begin + given.per_item, given.plane);
    for (long p = begin; p < end; p++)
        WRITE(activate((READ(x + p * B) - mean.vector) * scale + shift, kind, a, b), y + p * B);
}
