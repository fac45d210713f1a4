/* Strassen convolutions with fused multiply-add, which halves the instructions of their inner loops. */
#define nns_family_conv_strassen nns_family_conv_strassen_fma
#include "conv_strassen.c"
