/* SPDX-License-Identifier: Apache-2.0
 * Operands of instructions and the numbers in them. */
#ifndef MICA_TESTS_EMU_EMU_NUMBERS_H
#define MICA_TESTS_EMU_EMU_NUMBERS_H

#include "emu_run.h"

#include <string.h>

/* ---- operands ---- */

static inline uint32_t word_of(const emu_ref *r)
{
    uint32_t v = 0;
    if (r->out)
        memcpy(&v, r->at, r->bytes < 4 ? r->bytes : 4);
    else
        v = (uint32_t)r->bits;
    return v;
}

static inline float float_of(const emu_ref *r)
{
    uint32_t bits = word_of(r);
    float v;
    memcpy(&v, &bits, 4);
    return v;
}

static inline double double_of(const emu_ref *r)
{
    double v;
    memcpy(&v, r->out ? r->at : (const void *)&r->bits, 8);
    return v;
}

static inline void put(const emu_ref *r, uint32_t v)
{
    memcpy(r->at, &v, r->bytes < 4 ? r->bytes : 4);
}

static inline void put_float(const emu_ref *r, float v)
{
    memcpy(r->at, &v, 4);
}

/* ---- number formats ---- */

enum { F16, BF16, TF32, E4M3, E5M2, S8, U8, FORMATS };
extern const char *const emu_formats[FORMATS];
extern const int emu_format_bytes[FORMATS];

double half_value(uint32_t bits);
double value_of(int format, const unsigned char *p);
uint32_t half_bits(double v);
/* Of an 8-bit format: the code of the nearest value, of two the even one; what is past the last one
 * saturates. */
uint32_t eight_bits(int format, float v);
uint32_t bf16_bits(const emu_ref *v);

/* Reads an instruction of the tensor cores (emu_mma.c); false if it is another one. */
bool emu_read_mma(emu_ptx *code);

#endif
