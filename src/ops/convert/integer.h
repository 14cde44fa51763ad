/* SPDX-License-Identifier: Apache-2.0
 * Rounding of reference results to integer types: the rounding is part of such an operation's
 * definition, so the truth has to have it even where it is written to doubles. The same with the
 * ends of a quantised type. */
#ifndef MICA_OPS_CONVERT_INTEGER_H
#define MICA_OPS_CONVERT_INTEGER_H

#include "base/tensor.h"

/* The value as type d holds it if that is an integer type, else unchanged. */
static inline double mica_round_integer(mica_dtype d, double value)
{
    if (!mica_dtype_is_integer(d)) return value;
    int64_t cell = 0;
    mica_dtype_store(d)(&cell, 0, value);
    return mica_dtype_load(d)(&cell, 0);
}

/* A value on its way to a quantised tensor: e4m3 and integers saturate as they are stored, e5m2
 * would become infinite. NaN stays. */
static inline double mica_saturate_e5m2(mica_dtype d, double value)
{
    if (d != MICA_E5M2) return value;
    return value > 57344 ? 57344 : value < -57344 ? -57344 : value;
}

#endif
