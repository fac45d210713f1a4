/* Polynomials by pieces of activations that tend to x on one side and to 0 on the other. */
#ifndef NNS_PIECES_H
#define NNS_PIECES_H

/* f(x) = max(x, 0) - t g(t) with t = |x|, where 0 <= t <= `most`, beyond which g is 0. Piece k is around t = k / scale:
 * g((k + r) / scale) = Σ terms[i][k] rⁱ with |r| <= 1/2. */
enum { NNS_PIECES = 32, NNS_PIECE_TERMS = 6, NNS_TERMS_OF_GELU = 5, NNS_TERMS_OF_SILU = NNS_PIECE_TERMS };
typedef struct {
    float scale, most;
    _Alignas(64) float terms[NNS_PIECE_TERMS][NNS_PIECES];
} nns_pieces;

/* Written while the engine is loaded, and constant from then on. */
extern nns_pieces nns_pieces_of_gelu, nns_pieces_of_gelu_tanh, nns_pieces_of_silu;

#endif
