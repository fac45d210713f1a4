/* Convolutions of plain images with fused multiply-add, which halves the instructions of their inner loops. */
#define nns_family_conv_planar nns_family_conv_planar_fma
#include "conv_planar.c"
