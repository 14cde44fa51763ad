/* SPDX-License-Identifier: Apache-2.0
 * Engine "cuda" of sample: a block per row. A row is read once for its maximum and those of its
 * chunks. top_k then reads only the chunks that hold one of the first: the floor is the row's bytes
 * at the bandwidth, 134 MB of 256 rows of 128k f32 in 30 us. Without a small top_k the row is read
 * again for bins of weights, and once for each place that is looked for among them: 3 or 4 times in
 * all. Any strides. */
#include "ops/sample/sample.h"
#include "ops/access/access.h"

enum { BLOCK = 512, VALUES = 8 };

typedef struct state {
    mica_sample_args a;
    mica_kernel *kernel;
    mica_grid grid;
    int vector; /* bytes */
} state;

static mica_status build(mica_plan *plan)
{
    const mica_sample_desc *d = plan->desc;
    char buffer[1024] = "";
    mica_text p = {buffer, sizeof buffer, 0};
    state *s;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    mica_sample_args_make(d, &s->a);
    if (s->a.rows == 0) return MICA_OK;
    const int64_t step = mica_access_step(s->a.x.row, s->a.rows);
    const int vector = mica_access_along(d->x.dtype, s->a.columns > 1 ? s->a.x.column : 1, step);
    s->vector = mica_access_bytes(d->x.dtype, vector);
    s->grid = (mica_grid){.grid = {(unsigned)(s->a.rows < INT32_MAX ? s->a.rows : INT32_MAX)},
                          .block = {BLOCK}};
    mica_prologue_int(&p, "BLOCK", BLOCK);
    mica_prologue_int(&p, "VECTOR", vector);
    mica_prologue_int(&p, "BATCH", vector > 1 ? VALUES / vector : VALUES);
    mica_prologue_int(&p, "PROBABILITIES", d->input == MICA_SAMPLE_PROBABILITIES);
    mica_prologue_int(&p, "PROCESSED",
                      mica_tensor_given(&d->mask) || mica_tensor_given(&d->bias) ||
                          mica_tensor_given(&d->counts));
    mica_prologue_int(&p, "TOP", s->a.top > 0);
    mica_prologue_type(&p, "x_t", d->x.dtype);
    mica_prologue_type(&p, "bias_t", mica_tensor_given(&d->bias) ? d->bias.dtype : MICA_F32);
    const mica_kernel_spec spec = {"ops/sample/sample.cu", "sample", buffer, 0};
    return mica_plan_add_kernel(plan, &spec, &s->kernel);
}

static mica_status run(const mica_plan *plan, const mica_run *run)
{
    const state *s = plan->state;
    mica_sample_args a = s->a;
    if (!s->kernel) return MICA_OK;
    mica_sample_args_scalars(run->scalars, &a);
    mica_sample_args_point(plan->desc, run->args, &a);
    a.whole = mica_access_starts(a.x.at, s->vector);
    return mica_kernel_launch(s->kernel, &s->grid, run->stream, &a);
}

const mica_engine mica_sample_cuda = {
    .name = "cuda", .cuda = true, .reached = 0.4, .start_ms = 1e-2, .build = build, .run = run};
