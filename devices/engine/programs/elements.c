#include "elements.h"

#include <math.h>

/* ---- floating-point types of 16 bits ---------------------------------------------------------------------- */

/* A number is a mantissa times 2 to the power of a step. Its bits are the sign, the exponent and the stored mantissa. */
typedef struct {
    int mantissa;   /* stored bits of the mantissa */
    int least_step; /* of denormal numbers, and of those with exponent 1 */
} narrow_type;

static const narrow_type half = {10, -24}, bfloat = {7, -133};

enum { SIGN = 0x8000, SIZE = 0x7fff };

static double from_bits(narrow_type type, uint16_t bits) {
    const int one = 1 << type.mantissa, exponent = (bits & SIZE) >> type.mantissa, rest = bits & (one - 1);
    const double sign = bits & SIGN ? -1 : 1;
    if (exponent == SIZE >> type.mantissa) return rest ? (double)NAN : sign * (double)INFINITY;
    return sign * (exponent ? ldexp(one + rest, type.least_step + exponent - 1) : ldexp(rest, type.least_step));
}

static uint16_t to_bits(narrow_type type, double value) {
    const int sign = signbit(value) ? SIGN : 0, infinite = SIZE >> type.mantissa << type.mantissa;
    int exponent = 0;
    frexp(value, &exponent);
    const int high = exponent - 1 - type.mantissa, step = value != 0 && high > type.least_step ? high : type.least_step;
    /* A mantissa that is rounded up to the next power of two carries into the exponent. */
    const double size = nearbyint(ldexp(fabs(value), -step)) + ldexp(step - type.least_step, type.mantissa);
    return (uint16_t)(sign | (size < infinite ? (int)size : infinite));
}

/* ---- all types -------------------------------------------------------------------------------------------- */

bool nns_is_floating(const nns_tensor *tensor) {
    return tensor->dtype == NNS_FLOAT32 || tensor->dtype == NNS_FLOAT16 || tensor->dtype == NNS_BFLOAT16 ||
           tensor->dtype == NNS_FLOAT64;
}

double nns_element(const nns_tensor *tensor, const void *array, int64_t index) {
    switch ((nns_dtype)tensor->dtype) {
    case NNS_FLOAT32: return (double)((const float *)array)[index];
    case NNS_FLOAT16: return from_bits(half, ((const uint16_t *)array)[index]);
    case NNS_BFLOAT16: return from_bits(bfloat, ((const uint16_t *)array)[index]);
    case NNS_FLOAT64: return ((const double *)array)[index];
    case NNS_INT8: return ((const int8_t *)array)[index];
    case NNS_UINT8:
    case NNS_BOOL: return ((const uint8_t *)array)[index];
    case NNS_INT16: return ((const int16_t *)array)[index];
    case NNS_UINT16: return ((const uint16_t *)array)[index];
    case NNS_INT32: return ((const int32_t *)array)[index];
    case NNS_UINT32: return ((const uint32_t *)array)[index];
    case NNS_INT64: return (double)((const int64_t *)array)[index];
    case NNS_UINT64: return (double)((const uint64_t *)array)[index];
    }
    return NAN; /* loaded models have no other types */
}

void nns_set_element(const nns_tensor *tensor, void *array, int64_t index, double value) {
    switch ((nns_dtype)tensor->dtype) {
    case NNS_FLOAT32: ((float *)array)[index] = (float)value; break;
    case NNS_FLOAT16: ((uint16_t *)array)[index] = to_bits(half, value); break;
    case NNS_BFLOAT16: ((uint16_t *)array)[index] = to_bits(bfloat, value); break;
    case NNS_FLOAT64: ((double *)array)[index] = value; break;
    case NNS_INT8: ((int8_t *)array)[index] = (int8_t)value; break;
    case NNS_UINT8:
    case NNS_BOOL: ((uint8_t *)array)[index] = (uint8_t)value; break;
    case NNS_INT16: ((int16_t *)array)[index] = (int16_t)value; break;
    case NNS_UINT16: ((uint16_t *)array)[index] = (uint16_t)value; break;
    case NNS_INT32: ((int32_t *)array)[index] = (int32_t)value; break;
    case NNS_UINT32: ((uint32_t *)array)[index] = (uint32_t)value; break;
    case NNS_INT64: ((int64_t *)array)[index] = (int64_t)value; break;
    case NNS_UINT64: ((uint64_t *)array)[index] = (uint64_t)value; break;
    }
}

double nns_random_number(const nns_tensor *tensor, double value, uint64_t bits) {
    switch ((nns_dtype)tensor->dtype) {
    case NNS_INT8: return (double)(bits & 0xff) - 128;
    case NNS_UINT8: return (double)(bits & 0xff);
    case NNS_BOOL: return (double)(bits & 1);
    default: return nns_is_floating(tensor) ? value : 0;
    }
}
