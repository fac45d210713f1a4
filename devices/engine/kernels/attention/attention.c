/* Attention by products of float32. */
#include "attention/attention.inc"

KERNELS_attention(ATTENTION_KERNEL)

NNS_DEFINE_FAMILY(attention);
