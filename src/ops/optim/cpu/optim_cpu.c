/* SPDX-License-Identifier: Apache-2.0
 * Engine "cpu": one pass over memory in pieces of a row, shared out to threads. Packed f32 (f64) is
 * stepped where it lies, at the speed of memory; other types and strides pass through buffers in
 * the first-level cache; where tensors disagree about which dimension is the fastest, in tiles of
 * it and their own. Any strides and types, no workspace. */
#include "ops/optim/cpu/optim_cpu.h"
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

/* The dimension along which an argument has its neighbours, if that is not the last; else -1. */
static int find_tiled(const optim_cpu_state *s)
{
    const mica_layout *l = &s->layout;
    for (int a = 0; a < MICA_OPTIM_ARGS; a++)
        for (int d = 0; s->at[a] >= 0 && d < l->rank - 1; d++)
            if (l->strides[s->at[a]][d] == 1 && l->strides[s->at[a]][l->rank - 1] != 1) return d;
    return -1;
}

/* Elements of a piece along dimension d. */
static int64_t step_of(const optim_cpu_state *s, int d)
{
    if (d == s->tiled) return OPTIM_ROWS;
    return d < s->layout.rank - 1 ? 1 : s->tiled >= 0 ? OPTIM_COLS : OPTIM_PIECE;
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
    s->tiled = find_tiled(s);
    s->pieces = s->layout.count > 0;
    for (int i = 0; i < s->layout.rank; i++) {
        s->counts[i] = (s->layout.dims[i] - 1) / step_of(s, i) + 1;
        s->pieces *= s->counts[i];
    }
    return MICA_OK;
}

static optim_piece find_piece(const optim_cpu_state *s, int64_t index)
{
    const mica_layout *l = &s->layout;
    optim_piece p = {.n = 1, .rows = 1};
    for (int a = 0; a < MICA_OPTIM_ARGS; a++) {
        if (s->at[a] < 0) continue;
        p.stride[a] = l->rank ? l->strides[s->at[a]][l->rank - 1] : 1;
        if (s->tiled >= 0) p.row_step[a] = l->strides[s->at[a]][s->tiled];
    }
    for (int d = l->rank - 1; d >= 0; d--) {
        int64_t step = step_of(s, d), first = index % s->counts[d] * step,
                left = l->dims[d] - first;
        index /= s->counts[d];
        if (d == l->rank - 1) p.n = left < step ? left : step;
        if (d == s->tiled) p.rows = left < step ? left : step;
        for (int a = 0; a < MICA_OPTIM_ARGS; a++)
            if (s->at[a] >= 0) p.at[a] += first * l->strides[s->at[a]][d];
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
