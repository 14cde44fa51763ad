/* SPDX-License-Identifier: Apache-2.0
 * Engine "cpu": one pass over memory in pieces of a row, shared out to threads. Packed f32 (f64) is
 * stepped where it lies, at the speed of memory; other types and strides pass through buffers in
 * the first-level cache. Any strides and types, no workspace. */
#include "ops/optim/optim_cpu.h"
#include "cpu/cpu.h"

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    (void)desc, (void)device, (void)why;
    return MICA_OK;
}

static double predict(const void *desc, const mica_device_info *device, const mica_config *config)
{
    (void)config;
    return 1.3 * mica_roofline_ms(&mica_op_optim, desc, device) + 2e-4;
}

static mica_status build(mica_plan *plan)
{
    const mica_optim_desc *d = plan->desc;
    optim_cpu_state *s;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    mica_optim_layout(d, &s->layout, s->at);
    for (int i = 0; i < MICA_OPTIM_ARGS; i++) s->types[i] = mica_optim_tensor(d, i)->dtype;
    s->adam = d->rule != MICA_OPTIM_SGD;
    s->f64 = mica_optim_accumulator(d) == MICA_F64;
    s->bytes = mica_op_bytes(plan->op, d);
    int64_t length = s->layout.rank ? s->layout.dims[s->layout.rank - 1] : 1;
    s->pieces_per_row = (length + OPTIM_PIECE - 1) / OPTIM_PIECE;
    s->pieces = s->layout.count / length * s->pieces_per_row;
    return MICA_OK;
}

static optim_piece find_piece(const optim_cpu_state *s, int64_t index)
{
    const mica_layout *l = &s->layout;
    int last = l->rank - 1;
    int64_t row = index / s->pieces_per_row, start = index % s->pieces_per_row * OPTIM_PIECE;
    int64_t length = l->rank ? l->dims[last] : 1;
    optim_piece p = {.n = length - start < OPTIM_PIECE ? length - start : OPTIM_PIECE};
    for (int a = 0; a < MICA_OPTIM_ARGS; a++) {
        if (s->at[a] < 0) continue;
        p.stride[a] = l->rank ? l->strides[s->at[a]][last] : 1;
        p.at[a] = start * p.stride[a];
    }
    for (int d = last - 1; d >= 0; d--) {
        int64_t i = row % l->dims[d];
        row /= l->dims[d];
        for (int a = 0; a < MICA_OPTIM_ARGS; a++)
            if (s->at[a] >= 0) p.at[a] += i * l->strides[s->at[a]][d];
    }
    return p;
}

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    const optim_cpu_state *s = plan->state;
    mica_optim_numbers numbers;
    MICA_TRY(mica_optim_begin(plan, r, &numbers));
#pragma omp parallel for schedule(static) num_threads(mica_cpu_threads_for(s->bytes))
    for (int64_t i = 0; i < s->pieces; i++) {
        optim_piece piece = find_piece(s, i);
        if (s->f64)
            optim_cpu_step_f64(s, &piece, r->args, &numbers);
        else
            optim_cpu_step_f32(s, &piece, r->args, &numbers);
    }
    return MICA_OK;
}

const mica_engine mica_optim_cpu = {
    .name = "cpu", .accepts = accepts, .predict = predict, .build = build, .run = run};
