/* Layouts of tensors of one byte per element: changes of layout, and concatenation of channels in the blocked layout. */
#include "bytes.h"

#define ELEMENT int8_t
#undef VECTOR
#define VECTOR NNS_JOIN(i8x, LANES)
#undef IVECTOR
#define IVECTOR NNS_JOIN(i8x, LANES)

/* ---- reorder/layout_bytes: as reorder/layout. ---------------------------------------------------------------------- */

#define PARAMETERS reorder_bytes_parameters
#define CHECK_SIZES(...) NNS_CHECK_SIZES(reorder_bytes, __VA_ARGS__)
#include "memory_bound/data_movement/reorder_layout.inc"

/* ---- concat/lanes_bytes: as concat/lanes. -------------------------------------------------------------------------- */

#undef PARAMETERS
#define PARAMETERS concat_bytes_parameters
#include "memory_bound/data_movement/concat_blocks.inc"

NNS_DEFINE_FAMILY(reorder_bytes);
NNS_DEFINE_FAMILY(concat_bytes);
