/* The shapes of AMX's tiles. */
#ifndef NNS_TILE_SHAPES_H
#define NNS_TILE_SHAPES_H

#include <stdint.h>

/* The memory of _tile_loadconfig. */
typedef struct {
    uint8_t palette, start, reserved[14];
    uint16_t bytes[16]; /* of a row */
    uint8_t rows[16];
} tile_shapes;

#endif
