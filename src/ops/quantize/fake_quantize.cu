/* SPDX-License-Identifier: Apache-2.0
 * fake_quantize and its gradient, any strides. One read of x (and dy), one write: bound by memory. Constants:
 * CODE, HAS_ZERO, PRODUCT, BACKWARD. */
#include "ops/pointwise/pointwise.cuh"
#include "ops/quantize/quantize.cuh"
#include "ops/quantize/fake_quantize_args.h"
#include "ops/quantize/fake_quantize_body.h"

POINTWISE void pointwise_body(int, real *v, const real *n)
{
    constexpr real TOP = (real)CODE_TOP(CODE);
    const real low = n[FAKE_LOW], top = n[FAKE_TOP], scale = v[FAKE_SCALE], zero = HAS_ZERO ? v[FAKE_ZERO] : (real)0;
    const real x = v[FAKE_X], r = fake_quotient(PRODUCT, x, scale);
    if constexpr (CODE_IS_FLOAT(CODE)) {
        const real q = x == 0 && scale == 0 ? (real)0 : r;
        if constexpr (BACKWARD) v[FAKE_OUT] = q >= -TOP && q <= TOP ? v[FAKE_DY] : (real)0;
        else v[FAKE_OUT] = fake_float(CODE_DIGITS(CODE), CODE_LEAST(CODE), TOP, q, scale);
    } else {
        if constexpr (BACKWARD) v[FAKE_OUT] = fake_integer_passes(low, top, r, zero) ? v[FAKE_DY] : (real)0;
        else v[FAKE_OUT] = fake_integer(low, top, PRODUCT ? low : zero, r, scale, zero);
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK) fake_quantize(const mica_pointwise_args a) { pointwise(a); }
