/* Changes between the plain and the blocked layout. Work items: (range of pixels, channel block, image). */
#include "common.cl"

/* Lanes behind the last channel are written as zero. */
kernel void to_blocked(const global float *x_buffer, int x_offset, global float *y_buffer, int y_offset,
                       int channels, int plane, int per_item)
{
    const int block = get_global_id(1), image = get_global_id(2);
    const int blocks = (channels + B - 1) / B, lanes = min(B, channels - block * B);
    const global float *x = x_buffer + x_offset + ((long)image * channels + block * B) * plane;
    global float *y = y_buffer + y_offset + ((long)image * blocks + block) * plane * B;
    const int begin = (int)get_global_id(0) * per_item, end = min(begin + per_item, plane);
    for (long p = begin; p < end; p++) {
        float lane[B];
        UNROLL for (int i = 0; i < B; i++)
            lane[i] = i < lanes ? x[(long)i * plane + p] : 0.0f;
        STORE(LOAD(lane), y + p * B);
    }
}

kernel void to_plain(const global float *x_buffer, int x_offset, global float *y_buffer, int y_offset,
                     int channels, int plane, int per_item)
{
    const int block = get_global_id(1), image = get_global_id(2);
    const int blocks = (channels + B - 1) / B, lanes = min(B, channels - block * B);
    const global float *x = x_buffer + x_offset + ((long)image * blocks + block) * plane * B;
    global float *y = y_buffer + y_offset + ((long)image * channels + block * B) * plane;
    const int begin = (int)get_global_id(0) * per_item, end = min(begin + per_item, plane);
    for (int i = 0; i < lanes; i++) {
        for (long p = begin; p < end; p++)
            y[(long)i * plane + p] = x[p * B + i];
    }
}

/* Work items: (range of `per_item` floats). */
kernel void copy(const global float *x_buffer, int x_offset, global float *y_buffer, int y_offset, int count, int per_item)
{
    const global float *x = x_buffer + x_offset;
    global float *y = y_buffer + y_offset;
    long i = (long)get_global_id(0) * per_item;
    const long end = min(i + per_item, (long)count);
    for (; i + B <= end; i += B)
        STORE(LOAD(x + i), y + i);
    for (; i < end; i++)
        y[i] = x[i];
}
