/* Depthwise and pointwise convolutions in one with fused multiply-add, which halves the instructions of their inner loops. */
#define nns_depthwise_rows nns_depthwise_rows_fma
#define nns_family_pair nns_family_pair_fma
#include "pair.c"
