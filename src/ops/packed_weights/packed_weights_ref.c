/* SPDX-License-Identifier: Apache-2.0
 * The truth of dequantize_weights and repack_weights, code by code. What the packages that define
 * the layouts make of them is in tests/judges/packed_weights.h. */
#include "ops/packed_weights/packed_weights.h"

#include <math.h>

#define PACKED static inline
#include "ops/packed_weights/packed_weights_body.h"

typedef struct truth {
    mica_packed p;
    const mica_view *views;
} truth;

static uint32_t word_at(const mica_view *v, int64_t at)
{
    return (uint32_t)(int32_t)mica_get(v, at);
}

/* next: the step to the word that a code of 3 bits may go on in. */
static int code_at(const truth *t, const mica_view *v, int64_t at, int bit, int64_t next)
{
    const int bits = t->p.bits;
    uint32_t word = word_at(v, at) >> bit;
    if (bit + bits > 32) word |= word_at(v, at + next) << (32 - bit);
    return (int)(word & ((1u << bits) - 1));
}

static int weight_of(const truth *t, int64_t k, int64_t n)
{
    const mica_packed_args *a = &t->p.a;
    const packed_place at = packed_weight(t->p.format, t->p.bits, k, n);
    return code_at(t, &t->views[0], at.row * a->qweight_r + at.col * a->qweight_c, at.bit,
                   a->qweight_r);
}

static int zero_of(const truth *t, int64_t g, int64_t n)
{
    const mica_packed_args *a = &t->p.a;
    const int bits = t->p.bits;
    if (!t->p.has_zeros) return 1 << (bits - 1);
    const packed_place at = packed_zero(t->p.format, bits, g, n);
    const int code = code_at(t, &t->views[t->p.arg_zeros],
                             at.row * a->qzeros_r + at.col * a->qzeros_c, at.bit, a->qzeros_c);
    return (code + packed_zero_offset(t->p.format)) & ((1 << bits) - 1);
}

static double scale_of(const truth *t, int64_t g, int64_t n)
{
    const mica_packed_args *a = &t->p.a;
    return mica_get(&t->views[t->p.arg_scales],
                    g * a->scales_r +
                        packed_scale_column(t->p.format, t->p.single, n) * a->scales_c);
}

/* The group or row that index i names, `i` or its group without indices; -1: none. */
static int64_t index_of(const truth *t, int64_t i, int64_t below)
{
    const mica_packed_args *a = &t->p.a;
    if (!t->p.has_index) return i / a->group;
    const double v = mica_get(&t->views[t->p.arg_index], i * a->index_r);
    return v >= 0 && v < (double)below ? (int64_t)v : -1;
}

void mica_dequantize_weights_reference(const void *desc, const mica_view *views,
                                       const double *scalars)
{
    truth t = {.views = views};
    const mica_packed_args *a = &t.p.a;
    (void)scalars;
    mica_packed_make(&mica_op_dequantize_weights, desc, views, &t.p);
    for (int64_t k = 0; k < a->k; k++) {
        const int64_t g = index_of(&t, k, a->groups);
        for (int64_t n = 0; n < a->n; n++) {
            float v = 0;
            if (g >= 0)
                v = (float)((double)(weight_of(&t, k, n) - zero_of(&t, g, n)) * scale_of(&t, g, n));
            mica_put(&views[t.p.arg_to], k * a->to_k + n * a->to_n, v, fabsf(v));
        }
    }
}

void mica_repack_weights_reference(const void *desc, const mica_view *views, const double *scalars)
{
    truth t = {.views = views};
    const mica_packed_args *a = &t.p.a;
    (void)scalars;
    mica_packed_make(&mica_op_repack_weights, desc, views, &t.p);
    const int less = t.p.has_zeros ? 0 : 1 << (t.p.bits - 1);
    for (int64_t n = 0; n < a->n; n++) {
        for (int64_t j = 0; j < a->k; j++) {
            const int64_t k = index_of(&t, j, a->k);
            const int v = k < 0 ? 0 : weight_of(&t, k, n) - less;
            mica_put(&views[t.p.arg_to], n * a->to_n + j * a->to_k, v, fabs((double)v));
        }
        for (int64_t g = 0; g < a->groups; g++) {
            if (t.p.has_scales) {
                const double s = scale_of(&t, g, n);
                mica_put(&views[MICA_REPACK_WEIGHTS_W_SCALES],
                         n * a->w_scales_n + g * a->w_scales_g, s, fabs(s));
            }
            if (t.p.has_zeros) {
                const int z = zero_of(&t, g, n);
                mica_put(&views[MICA_REPACK_WEIGHTS_W_ZEROS], n * a->w_zeros_n + g * a->w_zeros_g,
                         z, z);
            }
        }
    }
}
