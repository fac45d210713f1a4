/* Attention by products of bfloat16: queries, keys, values and weights of values are rounded where they are packed. Scores,
 * their softmax and all sums stay in float32. */
#define ROWS_OF_BFLOAT16 1
#include "attention/attention.inc"

KERNELS_attention_bfloat16(ATTENTION_KERNEL)

NNS_DEFINE_FAMILY(attention_bfloat16);
