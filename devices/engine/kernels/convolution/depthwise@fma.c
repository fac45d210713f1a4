/* Depthwise convolutions with fused multiply-add, which halves the instructions of their inner loops. */
#define nns_depthwise_rows nns_depthwise_rows_fma
#define nns_family_depthwise nns_family_depthwise_fma
#include "depthwise.c"
