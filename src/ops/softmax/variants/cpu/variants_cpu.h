/* SPDX-License-Identifier: Apache-2.0
 * What the engine of softmax's variants on the CPU gives its loops. */
#ifndef MICA_OPS_SOFTMAX_VARIANTS_CPU_H
#define MICA_OPS_SOFTMAX_VARIANTS_CPU_H

#include "ops/softmax/variants/variants.h"

typedef struct mica_softmax_variant_run {
    const mica_softmax_desc *d;
    const mica_softmax_variant *v;
    void *data[MICA_SOFTMAX_PLACES];
    uint32_t key[2], offset; /* of the noise */
} mica_softmax_variant_run;

/* One slice, by the type of sums. */
void mica_softmax_variant_f32(const mica_softmax_variant_run *r, int64_t slice);
void mica_softmax_variant_f64(const mica_softmax_variant_run *r, int64_t slice);

#endif
