/* Fused pairs of convolutions with fused multiply-add, which halves the instructions of their inner loops. */
#define nns_depthwise_rows nns_depthwise_rows_fma
#define nns_family_expand_depthwise nns_family_expand_depthwise_fma
#define nns_family_depthwise_project nns_family_depthwise_project_fma
#include "pair.c"
