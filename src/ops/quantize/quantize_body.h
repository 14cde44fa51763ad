/* SPDX-License-Identifier: Apache-2.0
 * Arithmetic of an element and of a block's scale, in C and in CUDA, for `real` of f32 and of f64.
 * The file that includes it says what QUANTIZE, real, nan_of, mul_of, sub_of, add_of, div_of and
 * rint_of are: each rounds once; rint_of may leave what is above 2^20 at that; sign_of(v, of) is v
 * with the sign of the other. Codes are those of quantize_args.h. */

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

/* ---- units ---- */

QUANTIZE int CODE_NAME(exponent_of)(real v)
{
    unsigned bits = 0;
    unsigned long long wide = 0;
    if (sizeof v == sizeof bits) {
        memcpy(&bits, &v, sizeof bits);
        return (int)(bits >> 23 & 255) - 127;
    }
    memcpy(&wide, &v, sizeof v);
    return (int)(wide >> 52 & 2047) - 1023;
}

QUANTIZE real CODE_NAME(power_of_two)(int e)
{
    const unsigned bits = (unsigned)(e + 127) << 23;
    const unsigned long long wide = (unsigned long long)(e + 1023) << 52;
    real v = 0;
    if (sizeof v == sizeof bits)
        memcpy(&v, &bits, sizeof bits);
    else
        memcpy(&v, &wide, sizeof v);
    return v;
}

/* Exponent of what the last of so many digits counts. */
QUANTIZE int CODE_NAME(unit_of)(int digits, int least, real v)
{
    const int own = CODE_NAME(exponent_of)(v);
    return (own < least ? least : own) - digits;
}

/* ---- by chance ---- */

/* One of the two multiples of a unit that a number lies between: the one away from 0 with the
 * probability of the fraction, in 2^-31. */
QUANTIZE real CODE_NAME(by_chance)(real v, real unit, real per_unit, unsigned word)
{
    const real a = mul_of(v < 0 ? -v : v, per_unit), below = (real)(int)a;
    const int up = (int)(word >> 1) < (int)mul_of(sub_of(a, below), (real)0x1p31f);
    return sign_of(mul_of(add_of(below, (real)up), unit), v);
}

/* Of a number within the ends of a type of so many digits, or a NaN. */
QUANTIZE real CODE_NAME(float_by_chance)(int digits, int least, real q, unsigned word)
{
    const real v = q != q ? (real)0 : q;
    const int e = CODE_NAME(unit_of)(digits, least, v);
    const real r =
        CODE_NAME(by_chance)(v, CODE_NAME(power_of_two)(e), CODE_NAME(power_of_two)(-e), word);
    return q != q ? q : r;
}

/* Of a quotient. */
QUANTIZE real CODE_NAME(integer_by_chance)(real low, real top, real r, real zero, unsigned word)
{
    const real most = 1 << 20;
    r = r > most ? most : r < -most ? -most : r != r ? (real)0 : r;
    const real q = add_of(CODE_NAME(by_chance)(r, 1, 1, word), zero);
    return q > top ? top : q < low ? low : q;
}

QUANTIZE real CODE_NAME(coded_by_chance)(int code, real x, real scale, real zero, unsigned word)
{
    const real top = (real)CODE_TOP(code), low = (real)CODE_LOW(code);
    if (!CODE_IS_FLOAT(code))
        return CODE_NAME(integer_by_chance)(low, top, div_of(x, scale), zero, word);
    const real q = CODE_NAME(coded_float)(top, CODE_NAME(coded_nan)(code), x, scale);
    return CODE_NAME(float_by_chance)(CODE_DIGITS(code), CODE_LEAST(code), q, word);
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
