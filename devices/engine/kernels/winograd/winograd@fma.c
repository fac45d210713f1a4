/* Winograd convolutions with fused multiply-add, which halves the instructions of their inner loops. */
#define nns_family_winograd nns_family_winograd_fma
#include "winograd.c"
