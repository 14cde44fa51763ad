/* SPDX-License-Identifier: Apache-2.0
 * What the files of recurrent nets share. */
#ifndef MICA_OPS_RNN_RNN_H
#define MICA_OPS_RNN_RNN_H

#include "mica/rnn.h"
#include "ops/op.h"
#include "ops/rnn/rnn_args.h"

extern const mica_op mica_op_rnn;
extern const mica_engine mica_rnn_cpu, mica_rnn_cuda, mica_rnn_persistent;

typedef struct rnn_sizes {
    int64_t steps, batch, inputs, hidden, layers, sides, gates;
    int64_t out; /* P: units of h */
    mica_dtype type, acc;
} rnn_sizes;
rnn_sizes rnn_sizes_of(const mica_rnn_desc *d);
/* Gradients of gates that a row of dz has of each unit, and its elements. */
int64_t rnn_slopes(const mica_rnn_desc *d);
int64_t rnn_slope_row(const mica_rnn_desc *d);
/* Whether a step has a second product: of r h, or of what becomes h. */
bool rnn_has_inner(const mica_rnn_desc *d);
/* Whether there is dropout between layers. */
bool rnn_drops(const mica_rnn_desc *d);

void rnn_reference(const void *desc, const mica_view *v, const double *scalars);

/* Of the passes backward: gradients of x and of states; of w, whose runs are mica_compose_run. */
mica_status rnn_build_slopes(mica_plan *plan);
mica_status rnn_run_slopes(const mica_plan *plan, const mica_run *r);
mica_status rnn_build_weights(mica_plan *plan);

/* Engines of all passes. */
mica_status rnn_build(mica_plan *plan);
mica_status rnn_run(const mica_plan *plan, const mica_run *r);
/* Milliseconds of the steps alone, of the engine that goes step by step. */
double rnn_stepwise_ms(const mica_rnn_desc *d, const mica_device_info *device);

/* A step on the CPU, in the types of the descriptor: rows of a direction and a sequence are shared
 * out to threads. phase: RNN_WHOLE, ... */
void rnn_cell_f32(const mica_rnn_desc *d, int phase, const mica_rnn_args *a);
void rnn_cell_f64(const mica_rnn_desc *d, int phase, const mica_rnn_args *a);
void rnn_slopes_f32(const mica_rnn_desc *d, int phase, const mica_rnn_slope_args *a);
void rnn_slopes_f64(const mica_rnn_desc *d, int phase, const mica_rnn_slope_args *a);

#endif
