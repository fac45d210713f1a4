/* Fits the polynomials of pieces.h: through the zeros of a Chebyshev polynomial, in double precision. This file is compiled
 * for the oldest CPU of the architecture, since it runs while the engine is loaded. */
#include "pieces.h"

#include <math.h>

nns_pieces nns_pieces_of_gelu, nns_pieces_of_gelu_tanh, nns_pieces_of_silu;

#if defined(__x86_64__)
typedef double lost_share(double t);

static double lost_by_gelu(double t) { return erfc(t * 0.70710678118654752440) / 2; }
static double lost_by_silu(double t) { return 1 / (1 + exp(t)); }
static double lost_by_gelu_tanh(double t) {
    return lost_by_silu(t * (1.59576912160573071176 + 0.07135481282553177252 * t * t));
}

/* Coefficients of the polynomial through `n` points, by Newton's divided differences. */
static void interpolate(int n, const double *x, const double *y, double *coefficients) {
    double differences[NNS_PIECE_TERMS];
    for (int i = 0; i < n; i++) differences[i] = y[i], coefficients[i] = 0;
    for (int order = 1; order < n; order++)
        for (int i = n - 1; i >= order; i--)
            differences[i] = (differences[i] - differences[i - 1]) / (x[i] - x[i - order]);
    for (int i = n - 1; i >= 0; i--) { /* coefficients = coefficients · (X - x[i]) + differences[i] */
        for (int j = n - 1; j > 0; j--) coefficients[j] = coefficients[j - 1] - x[i] * coefficients[j];
        coefficients[0] = differences[i] - x[i] * coefficients[0];
    }
}

static void fit(nns_pieces *pieces, lost_share *lost, double most, int terms) {
    pieces->most = (float)most;
    pieces->scale = (float)((NNS_PIECES - 1) / most);
    double r[NNS_PIECE_TERMS], values[NNS_PIECE_TERMS], coefficients[NNS_PIECE_TERMS];
    for (int i = 0; i < terms; i++) r[i] = 0.5 * cos(3.14159265358979323846 * (i + 0.5) / terms);
    for (int piece = 0; piece < NNS_PIECES; piece++) {
        for (int i = 0; i < terms; i++) values[i] = lost((piece + r[i]) / pieces->scale);
        interpolate(terms, r, values, coefficients);
        for (int i = 0; i < terms; i++) pieces->terms[i][piece] = (float)coefficients[i];
    }
    pieces->terms[0][NNS_PIECES - 1] = 0; /* at `most` and beyond */
}

__attribute__((constructor)) static void fit_all(void) {
    fit(&nns_pieces_of_gelu, lost_by_gelu, 6.2, NNS_TERMS_OF_GELU);
    fit(&nns_pieces_of_gelu_tanh, lost_by_gelu_tanh, 6.0, NNS_TERMS_OF_GELU);
    fit(&nns_pieces_of_silu, lost_by_silu, 21.5, NNS_TERMS_OF_SILU);
}
#endif
