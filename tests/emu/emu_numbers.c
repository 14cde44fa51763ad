/* SPDX-License-Identifier: Apache-2.0
 * Number formats of the tensor cores, and rounding to them. */
#include "emu_numbers.h"

#include <math.h>

const char *const emu_formats[FORMATS] = {"f16", "bf16", "tf32", "e4m3", "e5m2", "s8", "u8"};
const int emu_format_bytes[FORMATS] = {2, 2, 4, 1, 1, 1, 1};

double half_value(uint32_t h)
{
    static double values[1 << 16]; /* of what was asked for; of zeros each time anew */
    if (values[h & 0xffff] != 0) return values[h & 0xffff];
    int e = (int)(h >> 10 & 31), m = (int)(h & 1023);
    double a = e == 31 ? (m ? (double)NAN : (double)INFINITY)
               : e     ? ldexp(1024 + m, e - 25)
                       : ldexp(m, -24);
    return values[h & 0xffff] = h & 0x8000 ? -a : a;
}

double value_of(int format, const unsigned char *p)
{
    uint32_t bits = 0;
    float v;
    memcpy(&bits, p, (size_t)emu_format_bytes[format]);
    switch (format) {
    case F16:
        return half_value(bits);
    case BF16:
    case TF32: /* the unit does not look at the last 13 bits */
        bits = format == BF16 ? bits << 16 : bits & ~0x1fffu;
        memcpy(&v, &bits, 4);
        return (double)v;
    case E5M2:
        return half_value(bits << 8);
    case E4M3: {
        int e = (int)(bits >> 3 & 15), m = (int)(bits & 7);
        double a = e == 15 && m == 7 ? (double)NAN : e ? ldexp(8 + m, e - 10) : ldexp(m, -9);
        return bits & 0x80 ? -a : a;
    }
    case S8:
        return (double)(int8_t)bits;
    default:
        return (double)(uint8_t)bits;
    }
}

uint32_t half_bits(double v)
{
    uint32_t sign = signbit(v) ? 0x8000 : 0;
    double a = fabs(v);
    if (v != v) return 0x7fff;
    int e;
    frexp(a, &e); /* a = m 2^e, m in [0.5, 1) */
    int last = (a > 0 && e - 11 > -24) ? e - 11 : -24;
    double n = rint(ldexp(a, -last)); /* of 2^last */
    if (ldexp(n, last) >= 65536) return sign | 0x7c00;
    if (n == 0) return sign;
    if (last == -24 && n < 1024) return sign | (uint32_t)n;
    while (n >= 2048) {
        n /= 2;
        last++;
    }
    return sign | (((uint32_t)(last + 25) << 10) + ((uint32_t)n - 1024));
}

uint32_t eight_bits(int format, float v)
{
    unsigned char best = 0, last = format == E4M3 ? 0x7e : 0x7b;
    if (v != v) return 0x7f;
    double most = value_of(format, &last), a = fmin(fabs((double)v), most);
    for (unsigned char code = 1; code <= last; code++) {
        double far = fabs(a - value_of(format, &best)), near = fabs(a - value_of(format, &code));
        if (near < far || (near == far && code % 2 == 0)) best = code;
    }
    return best | (signbit(v) ? 0x80 : 0);
}

uint32_t bf16_bits(const emu_ref *v)
{
    uint32_t bits = word_of(v);
    return float_of(v) != float_of(v) ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
