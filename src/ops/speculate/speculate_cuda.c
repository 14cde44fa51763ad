/* SPDX-License-Identifier: Apache-2.0
 * Engine "cuda" of speculate: a block per sequence, which reads one row of p and one of q: sums of
 * 256 chunks, then the chunk in which the token is. A row of 128k columns is 1 MB of f32 and takes
 * one multiprocessor some 15 us; batches fill the others. Any strides. */
#include "ops/speculate/speculate.h"

enum { BLOCK = 512 };

typedef struct state {
    mica_speculate_args a;
    mica_kernel *kernel;
    mica_grid grid;
} state;

static mica_status build(mica_plan *plan)
{
    const mica_speculate_desc *d = plan->desc;
    char buffer[512] = "";
    mica_text p = {buffer, sizeof buffer, 0};
    state *s;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    mica_speculate_args_make(d, &s->a);
    if (s->a.batch == 0) return MICA_OK;
    s->grid = (mica_grid){.grid = {(unsigned)(s->a.batch < INT32_MAX ? s->a.batch : INT32_MAX)},
                          .block = {BLOCK}};
    mica_prologue_int(&p, "BLOCK", BLOCK);
    mica_prologue_type(&p, "p_t", d->p.dtype);
    mica_prologue_type(&p, "q_t", mica_tensor_given(&d->q) ? d->q.dtype : d->p.dtype);
    const mica_kernel_spec spec = {"ops/speculate/speculate.cu", "speculate", buffer, 0};
    return mica_plan_add_kernel(plan, &spec, &s->kernel);
}

static mica_status run(const mica_plan *plan, const mica_run *run)
{
    const state *s = plan->state;
    mica_speculate_args a = s->a;
    if (!s->kernel) return MICA_OK;
    mica_speculate_args_point(plan->desc, run->args, run->scalars, &a);
    return mica_kernel_launch(s->kernel, &s->grid, run->stream, &a);
}

const mica_engine mica_speculate_cuda = {
    .name = "cuda", .cuda = true, .reached = 0.3, .start_ms = 5e-3, .build = build, .run = run};
