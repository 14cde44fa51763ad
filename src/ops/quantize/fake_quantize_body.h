/* SPDX-License-Identifier: Apache-2.0
 * What quantize and dequantize make of an element, and where its gradient passes, for the CPU and
 * the kernel; behind quantize_body.h and with its macros. */

/* x over the scale; product: by its reciprocal. */
QUANTIZE real CODE_NAME(fake_quotient)(bool product, real x, real scale)
{
    return product ? mul_of(x, div_of((real)1, scale)) : div_of(x, scale);
}

/* nan: the code of what is none. */
QUANTIZE real CODE_NAME(fake_integer)(real low, real top, real nan, real r, real scale, real zero)
{
    const real near = add_of(rint_of(r), zero), q = r != r ? nan : near;
    return CODE_NAME(decoded)(q > top ? top : q < low ? low : q, scale, zero);
}

QUANTIZE bool CODE_NAME(fake_integer_passes)(real low, real top, real r, real zero)
{
    const real q = add_of(rint_of(r), zero);
    return r == r && q >= low && q <= top;
}

/* Of a type of so many digits. */
QUANTIZE real CODE_NAME(fake_float)(int digits, int least, real top, real r, real scale)
{
    const real v = r > top ? top : r < -top ? -top : r != r ? (real)0 : r;
    const int e = CODE_NAME(unit_of)(digits, least, v);
    const real per_unit = CODE_NAME(power_of_two)(-e), unit = CODE_NAME(power_of_two)(e);
    const real q = sign_of(mul_of(rint_of(mul_of(v, per_unit)), unit), v);
    return mul_of(r != r ? r : q, scale);
}
