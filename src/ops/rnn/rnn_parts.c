/* SPDX-License-Identifier: Apache-2.0
 * Children and kernels of the walks over layers and steps. */
#include "ops/rnn/rnn_parts.h"

mica_status rnn_add_child(mica_plan *plan, const char *op, const void *desc, size_t size,
                          mica_plan **child)
{
    rnn_walk *w = plan->state;
    MICA_TRY(mica_plan_child_create(plan, op, desc, size, NULL, child, NULL));
    if ((*child)->workspace > w->child_bytes) w->child_bytes = (*child)->workspace;
    return MICA_OK;
}

mica_status rnn_add_copy(mica_plan *plan, const mica_tensor *outside, mica_dtype inside, bool load,
                         mica_plan **child)
{
    if (!mica_tensor_given(outside)) return MICA_OK;
    mica_tensor out = *outside;
    out.dims[0] = ((const rnn_walk *)plan->state)->s.sides, out.strided = 1;
    const mica_tensor in = mica_tensor_packed(inside, 3, out.dims);
    const mica_transform_desc t = {.x = load ? out : in, .y = load ? in : out};
    return rnn_add_child(plan, "transform", &t, sizeof t, child);
}

mica_status rnn_add_product(mica_plan *plan, int kind, mica_rnn_part part, int64_t rows,
                            bool backward, mica_plan **child)
{
    const mica_rnn_desc *d = plan->desc;
    const rnn_sizes *s = &((const rnn_walk *)plan->state)->s;
    const mica_rnn_matrix m = mica_rnn_weight(d, kind, 0, part);
    const int64_t apart = mica_rnn_weight(d, kind, 1, part).offset - m.offset;
    const int64_t from = backward ? rows : m.cols, to = backward ? m.cols : rows;
    const mica_gemm_desc g = {
        .a = beside(matrix(s->type, s->batch, from, from, 1), s->sides, s->batch * from),
        .b =
            beside(backward ? matrix(s->type, from, to, to, 1) : matrix(s->type, from, to, 1, from),
                   s->sides, apart),
        .c = beside(matrix(s->acc, s->batch, to, to, 1), s->sides, s->batch * to),
        .compute = d->compute};
    return rnn_add_child(plan, "gemm", &g, sizeof g, child);
}

mica_status rnn_add_kernel(mica_plan *plan, const char *file, const char *entry, const char *flag,
                           bool set, int phase)
{
    const mica_rnn_desc *d = plan->desc;
    rnn_walk *w = plan->state;
    char buffer[512] = "";
    mica_text p = {buffer, sizeof buffer, 0};
    mica_prologue_int(&p, "CELL", d->cell);
    mica_prologue_int(&p, "PHASE", phase);
    mica_prologue_int(&p, flag, set);
    mica_prologue_int(&p, "CLIP", d->clip);
    mica_prologue_int(&p, "PEEPHOLES", mica_tensor_given(&d->peepholes));
    mica_prologue_int(&p, "BLOCK", RNN_BLOCK);
    mica_prologue_type(&p, "x_t", w->s.type);
    mica_prologue_type(&p, "acc_t", w->s.acc);
    const int64_t units = w->s.out > w->s.hidden ? w->s.out : w->s.hidden;
    const int64_t blocks = (w->s.sides * w->s.batch * units + RNN_BLOCK - 1) / RNN_BLOCK;
    w->grid = (mica_grid){.grid = {(unsigned)(blocks < INT32_MAX ? blocks : INT32_MAX)},
                          .block = {RNN_BLOCK}};
    const mica_kernel_spec spec = {file, entry, buffer, 0};
    return mica_plan_add_kernel(plan, &spec, &w->kernels[phase]);
}

mica_dropout_desc rnn_dropout(const mica_rnn_desc *d, int64_t layer, int64_t unit, int64_t units,
                              bool bwd)
{
    const rnn_sizes s = rnn_sizes_of(d);
    const int64_t row = s.sides * s.out;
    const mica_tensor t = mica_tensor_packed(s.type, 3, (int64_t[]){s.steps, s.batch, units});
    return (mica_dropout_desc){.pass = bwd ? MICA_DROPOUT_BWD : MICA_DROPOUT_FWD,
                               .p = d->dropout,
                               .x = bwd ? (mica_tensor){0} : t,
                               .dy = bwd ? t : (mica_tensor){0},
                               .rng = d->rng,
                               .first = layer * s.steps * s.batch * row + unit,
                               .steps = {s.batch * row, row, 1}};
}

mica_status rnn_add_dropouts(mica_plan *plan, bool bwd, mica_plan **children)
{
    const mica_rnn_desc *d = plan->desc;
    const rnn_sizes *s = &((const rnn_walk *)plan->state)->s;
    for (int64_t layer = 0; rnn_drops(d) && s->steps > 0 && layer + 1 < s->layers; layer++) {
        const mica_dropout_desc t = rnn_dropout(d, layer, 0, s->sides * s->out, bwd);
        MICA_TRY(rnn_add_child(plan, "dropout", &t, sizeof t, &children[layer]));
    }
    return MICA_OK;
}

mica_status rnn_run_dropout(const mica_run *r, size_t at, const mica_plan *child, void *data)
{
    if (!child) return MICA_OK;
    mica_run run = {.size = sizeof run, .workspace = mica_at(r, at), .stream = r->stream};
    run.args[MICA_DROPOUT_X] = run.args[MICA_DROPOUT_Y] = data;
    run.args[MICA_DROPOUT_DY] = run.args[MICA_DROPOUT_DX] = data;
    run.args[MICA_DROPOUT_RNG] = r->args[MICA_RNN_RNG];
    return mica_plan_child_run(child, &run);
}
