/* Dense layers with fused multiply-add, which halves the instructions of their inner loops. */
#define nns_family_dense nns_family_dense_fma
#include "dense.c"
