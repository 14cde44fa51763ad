/* SPDX-License-Identifier: Apache-2.0
 * fake_quantize as the mechanism of pointwise sees it. */
#ifndef MICA_OPS_FAKE_QUANTIZE_H
#define MICA_OPS_FAKE_QUANTIZE_H

#include "ops/pointwise/pointwise.h"
#include "ops/quantize/quantize.h"

/* CODE_... of the type that is simulated. */
int mica_fake_quantize_code(const mica_fake_quantize_desc *d);
void mica_fake_quantize_operands(const void *desc, mica_pointwise_set *set);
mica_status mica_fake_quantize_numbers(const void *desc, const double *scalars, double *numbers);
void mica_fake_quantize_prologue(const void *desc, mica_text *prologue);
void mica_fake_quantize_truth(const void *desc, const double *numbers, double *v, double *mag);

extern const mica_pointwise mica_fake_quantize_pointwise;

#endif
