/* SPDX-License-Identifier: Apache-2.0
 * Softmax with a scale, a mask or noise, and sparsemax: what its engines share. */
#ifndef MICA_OPS_SOFTMAX_VARIANTS_VARIANTS_H
#define MICA_OPS_SOFTMAX_VARIANTS_VARIANTS_H

#include "ops/softmax/softmax.h"
#include "ops/softmax/variants/variants_args.h"

enum { MICA_SOFTMAX_MASK_NONE, MICA_SOFTMAX_MASK_BYTES, MICA_SOFTMAX_MASK_ADDED };

typedef struct mica_softmax_variant {
    int arg[MICA_SOFTMAX_PLACES];         /* run argument */
    mica_dtype type[MICA_SOFTMAX_PLACES]; /* none: there is no such operand */
    mica_layout outer;                    /* slices */
    int64_t n, along[MICA_SOFTMAX_PLACES];
    int mask;
    bool wide, noise;
    int64_t rng_stride;
    double scale, by; /* of mica_softmax_variants_args */
} mica_softmax_variant;

/* views: NULL, or those whose strides hold in place of the descriptor's. */
void mica_softmax_variant_make(mica_softmax_variant *v, const mica_softmax_desc *d,
                               const mica_view *views);
void mica_softmax_variant_slice(const mica_softmax_variant *v, int64_t slice, int64_t *at);

void mica_softmax_variants_reference(const mica_softmax_desc *d, const mica_view *args);

#endif
