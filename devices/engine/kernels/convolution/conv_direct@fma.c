/* Direct convolutions with fused multiply-add, which halves the instructions of their inner loops. */
#define nns_family_conv_direct nns_family_conv_direct_fma
#include "conv_direct.c"
