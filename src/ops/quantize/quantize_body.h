/* SPDX-License-Identifier: Apache-2.0
 * Arithmetic of an element and of a block's scale, in C and in CUDA, for `real` of f32 and of f64.
 * The file that includes it says what QUANTIZE, real, nan_of, mul_of, sub_of, add_of, div_of and
 * rint_of are: each rounds once; rint_of may leave what is above 2^20 at that. Codes are those of
 * quantize_args.h. */

/* What a NaN becomes. */
QUANTIZE real CODE_NAME(coded_nan)(int code)
{
    return code == CODE_E2M1 ? (real)CODE_TOP(code) : nan_of();
}

/* A number of the code's type, or of one that rounds to it as it is stored. */
QUANTIZE real CODE_NAME(coded_float)(real top, real nan, real x, real scale)
{
    const real q = x == 0 && scale == 0 ? (real)0 : div_of(x, scale);
    return q > top ? top : q < -top ? -top : q != q ? nan : q;
}

QUANTIZE real CODE_NAME(coded_integer)(real low, real top, real x, real scale, real zero)
{
    const real r = div_of(x, scale), q = add_of(r != r ? (real)0 : rint_of(r), zero);
    return q > top ? top : q < low ? low : q;
}

QUANTIZE real CODE_NAME(coded)(int code, real x, real scale, real zero)
{
    const real top = (real)CODE_TOP(code), low = (real)CODE_LOW(code);
    return CODE_IS_FLOAT(code) ? CODE_NAME(coded_float)(top, CODE_NAME(coded_nan)(code), x, scale)
                               : CODE_NAME(coded_integer)(low, top, x, scale, zero);
}

QUANTIZE real CODE_NAME(decoded)(real code, real scale, real zero)
{
    return mul_of(sub_of(code, zero), scale);
}

/* a: the largest magnitude. Of scales that are powers of two what they are made of. */
QUANTIZE real CODE_NAME(scale_of_amax)(int code, bool power, real a, real global_scale)
{
    if (power) return div_of(a, global_scale);
    return div_of(div_of(a, (real)CODE_TOP(code)), global_scale);
}

QUANTIZE real CODE_NAME(scale_of_ends)(int code, real low, real high)
{
    low = low < 0 || low != low ? low : 0;
    high = high > 0 || high != high ? high : 0;
    return div_of(sub_of(high, low), (real)(CODE_TOP(code) - CODE_LOW(code)));
}

/* scale: as it is stored. */
QUANTIZE real CODE_NAME(zero_of_ends)(int code, real low, real scale)
{
    return CODE_NAME(coded)(code, low < 0 ? -low : 0, scale, (real)CODE_LOW(code));
}
