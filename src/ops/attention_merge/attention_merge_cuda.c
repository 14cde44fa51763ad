/* SPDX-License-Identifier: Apache-2.0
 * Engine "cuda": one pass over memory, 16 bytes of a row per thread where its columns are
 * neighbours, single elements where they are not. Each thread reads the logarithms of its row,
 * which neighbours have in the first cache: P exponentials for P accesses. Any strides and types;
 * no workspace. */
#include "ops/attention_merge/attention_merge.h"
#include "ops/attention_merge/attention_merge_args.h"
#include "ops/access/access.h"

enum { BLOCK = 256, BLOCKS_PER_UNIT = 64 };

typedef struct state {
    mica_kernel *kernel;
    attention_merge_args args;
    mica_grid grid;
    int x_align, y_align; /* bytes that a run asks for */
} state;

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    (void)desc, (void)device, (void)why;
    return MICA_OK;
}

static double predict(const void *desc, const mica_device_info *device, const mica_config *config)
{
    (void)config;
    return 1.3 * mica_roofline_ms(&mica_op_attention_merge, desc, device) + 3e-3;
}

/* Columns that are one access in outs and in out, for each row and part. */
static int run_length(const mica_attention_merge_desc *d, const mica_layout *rows)
{
    const mica_dtype types[] = {d->outs.dtype, d->out.dtype};
    const int last = d->outs.rank - 1;
    if (d->outs.strides[last] != 1 || d->out.strides[d->out.rank - 1] != 1) return 1;
    return mica_access_fit(mica_access_most(types, 2),
                           d->outs.dims[last] |
                               mica_access_step(d->outs.strides[0], d->outs.dims[0]) |
                               mica_access_steps(rows, MERGE_OUTS, rows->rank) |
                               mica_access_steps(rows, MERGE_OUT, rows->rank));
}

static mica_status build(mica_plan *plan)
{
    const mica_attention_merge_desc *d = plan->desc;
    char buffer[256] = "";
    mica_text p = {buffer, sizeof buffer, 0};
    state *s;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    attention_merge_args *a = &s->args;
    int last = d->outs.rank - 1;
    attention_merge_rows(d, &a->rows);
    int run = run_length(d, &a->rows);
    a->parts = d->outs.dims[0];
    a->outs_part = d->outs.strides[0];
    a->lses_part = d->lses.strides[0];
    a->columns = d->outs.dims[last];
    a->outs_column = d->outs.strides[last];
    a->out_column = d->out.strides[d->out.rank - 1];
    a->units = a->columns ? a->columns / run : 1;
    s->x_align = mica_access_bytes(d->outs.dtype, run);
    s->y_align = mica_access_bytes(d->out.dtype, run);
    int64_t blocks = (a->rows.count * a->units + BLOCK - 1) / BLOCK;
    int64_t most = (int64_t)plan->device.units * BLOCKS_PER_UNIT;
    s->grid = (mica_grid){.grid = {(unsigned)(blocks < most ? blocks : most)}, .block = {BLOCK}};
    mica_prologue_int(&p, "BLOCK", BLOCK);
    mica_prologue_int(&p, "VEC", run);
    mica_prologue_type(&p, "x_t", d->outs.dtype);
    mica_prologue_type(&p, "y_t", d->out.dtype);
    mica_prologue_type(&p, "stat_t", d->lses.dtype);
    mica_kernel_spec spec = {"ops/attention_merge/attention_merge_cuda.cu", "merge_parts", buffer,
                             0};
    return mica_plan_add_kernel(plan, &spec, &s->kernel);
}

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    const state *s = plan->state;
    const mica_attention_merge_desc *d = plan->desc;
    attention_merge_args args = s->args;
    args.outs = r->args[MICA_ATTENTION_MERGE_OUTS];
    args.lses = r->args[MICA_ATTENTION_MERGE_LSES];
    args.out = r->args[MICA_ATTENTION_MERGE_OUT];
    args.lse = mica_tensor_given(&d->lse) ? r->args[MICA_ATTENTION_MERGE_LSE] : NULL;
    args.aligned =
        mica_access_starts(args.outs, s->x_align) && mica_access_starts(args.out, s->y_align);
    return mica_kernel_launch(s->kernel, &s->grid, r->stream, &args);
}

const mica_engine mica_attention_merge_cuda = {.name = "cuda",
                                               .cuda = true,
                                               .accepts = accepts,
                                               .predict = predict,
                                               .build = build,
                                               .run = run};
