/* SPDX-License-Identifier: Apache-2.0
 * The family `scan`: what its files share. */
#ifndef MICA_OPS_SCAN_SCAN_H
#define MICA_OPS_SCAN_SCAN_H

#include "mica/scan.h"
#include "ops/op.h"
#include "ops/access/layout.h"
#include "ops/scan/scan_args.h"

/* One walk along the axis. A gradient's direction is the opposite of forward's, and what is shown
 * at an element is again formed with or without it: gradients are scans. */
typedef struct mica_scan_step {
    int by;        /* scan_args.h */
    bool opposite; /* minima are maxima of opposites */
    bool exclusive, reverse;
    mica_dtype acc;                    /* what it computes in: f64, f32, or s64 for integers */
    mica_tensor tensor[SCAN_OPERANDS]; /* without a type: there is none */
    int arg[SCAN_OPERANDS];            /* the run argument; -1: workspace */
} mica_scan_step;

enum { MICA_SCAN_STEPS = 2 };
/* The walks of a problem, one behind the other: products' gradients take two, of which the first
 * leaves in the workspace what the second multiplies by. */
int mica_scan_steps(const mica_scan_desc *d, mica_scan_step *steps);
/* The slices of a step and its strides along the axis; those of absent operands are 0. */
void mica_scan_split(const mica_scan_step *s, int64_t axis, mica_layout *outer, long long *along);
/* An integer as a type has it that it wraps around in. */
int64_t mica_scan_wrapped(mica_dtype type, int64_t v);

void mica_scan_reference(const void *desc, const mica_view *args, const double *scalars);

extern const mica_op mica_op_scan;
extern const mica_engine mica_scan_cpu, mica_scan_cuda;

#endif
