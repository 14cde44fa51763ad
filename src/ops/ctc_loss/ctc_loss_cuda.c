/* SPDX-License-Identifier: Apache-2.0
 * Engine "cuda" of CTC. Forward a block walks a sequence from both ends to its middle. Backward two
 * blocks walk it whole, at the same time, and leave tables (forward's are made again: on other
 * multiprocessors they cost no time, and the caller keeps nothing), and a warp for each step then
 * writes the gradients. Of logits the sums of exponentials come first. Any strides and types.
 * Floor: the steps, half of them forward, times what one waits for the next, and the bytes: of
 * logits x, backward x twice, dx and the tables. */
#include "ops/access/access.h"
#include "ops/ctc_loss/ctc_loss.h"
#include "ops/ctc_loss/ctc_loss_args.h"

/* Pairs of states that threads keep in registers, threads of a walk, steps on their way; warps and
 * most steps of a block that writes gradients, blocks that fill a multiprocessor twice. */
enum { MOST_THREADS = 256, DEPTH = 8, WARPS = 4, MOST_ROWS = 64, BLOCKS_PER_UNIT = 32 };
enum { MOST_GRID_Y = 65535 };

typedef struct state {
    mica_kernel *walk, *gradient;
    mica_grid walk_grid, gradient_grid;
    mica_ctc_loss_args args;
    mica_ctc_loss_children children;
    size_t states, table, outcomes, links;
    int vector, x_bytes, dx_bytes;
} state;

static unsigned grid_of(int64_t blocks)
{
    return (unsigned)(blocks < INT32_MAX ? blocks : INT32_MAX);
}

/* ---- kernels ---- */

static void add_common(mica_text *p, const mica_ctc_loss_desc *d)
{
    const bool lengths = mica_tensor_given(&d->input_lengths);
    mica_prologue_int(p, "LOGITS", d->input == MICA_CTC_LOSS_LOGITS);
    mica_prologue_type(p, "x_t", d->x.dtype);
    mica_prologue_type(p, "label_t", d->labels.dtype);
    mica_prologue_type(p, "label_length_t", d->label_lengths.dtype);
    mica_prologue_type(p, "input_length_t", lengths ? d->input_lengths.dtype : MICA_S64);
    mica_prologue_type(p, "acc_t", mica_ctc_loss_is_wide(d) ? MICA_F64 : MICA_F32);
}

/* As many threads as a sequence has pairs, or twice the mean where they are of all lengths. */
static mica_status add_walk(mica_plan *plan, state *s, const mica_ctc_loss_sizes *z)
{
    const mica_ctc_loss_desc *d = plan->desc;
    const bool fwd = d->pass == MICA_CTC_LOSS_FWD, wide = mica_ctc_loss_is_wide(d);
    const bool each = d->reduction == MICA_REDUCE_NONE;
    const int64_t mean = z->batch > 0 ? 2 * z->labels / z->batch : 0;
    const int64_t pairs = 1 + (z->padded || mean > z->most ? z->most : mean);
    int kept = 1;
    while (kept < (wide ? 2 : 4) && pairs > MOST_THREADS * kept) kept *= 2;
    int64_t threads = (pairs + kept - 1) / kept;
    threads = threads > MOST_THREADS ? MOST_THREADS : (threads + 31) / 32 * 32;
    char buffer[1024] = "";
    mica_text p = {buffer, sizeof buffer, 0};
    add_common(&p, d);
    mica_prologue_int(&p, "FORWARD", fwd);
    mica_prologue_int(&p, "THREADS", (int)threads);
    mica_prologue_int(&p, "KEPT", kept);
    mica_prologue_int(&p, "DEPTH", DEPTH / kept / (wide ? 2 : 1));
    mica_prologue_type(&p, "loss_t", fwd && each ? d->loss.dtype : MICA_F32);
    mica_prologue_type(&p, "dloss_t", fwd ? MICA_F32 : d->dloss.dtype);
    const mica_kernel_spec spec = {"ops/ctc_loss/ctc_loss_walk.cu", "ctc_loss_walk", buffer, 0};
    s->walk_grid = (mica_grid){.grid = {grid_of(z->batch), fwd ? 1 : 3},
                               .block = {(unsigned)threads * (fwd ? 2 : 1)}};
    return mica_plan_add_kernel(plan, &spec, &s->walk);
}

static int width_of(const mica_tensor *t)
{
    if (t->strides[2] != 1) return 1;
    return mica_access_fit(mica_access_of(t->dtype), t->strides[0] | t->strides[1] | t->dims[2]);
}

static mica_status add_gradient(mica_plan *plan, state *s, const mica_ctc_loss_sizes *z)
{
    const mica_ctc_loss_desc *d = plan->desc;
    const int64_t blocks = (int64_t)plan->device.units * BLOCKS_PER_UNIT;
    int64_t rows = z->steps * z->batch / blocks / WARPS * WARPS;
    rows = rows < WARPS ? WARPS : rows > MOST_ROWS ? MOST_ROWS : rows;
    const int x = width_of(&d->x), dx = width_of(&d->dx);
    s->vector = x < dx ? x : dx;
    s->x_bytes = mica_access_bytes(d->x.dtype, s->vector);
    s->dx_bytes = mica_access_bytes(d->dx.dtype, s->vector);
    s->args.rows = (int)rows;
    char buffer[1024] = "";
    mica_text p = {buffer, sizeof buffer, 0};
    add_common(&p, d);
    mica_prologue_int(&p, "BY_LOGITS", d->gradient == MICA_CTC_LOSS_BY_LOGITS);
    mica_prologue_int(&p, "WARPS", WARPS);
    mica_prologue_int(&p, "VECTOR", s->vector);
    mica_prologue_type(&p, "dx_t", d->dx.dtype);
    const mica_kernel_spec spec = {"ops/ctc_loss/ctc_loss_gradient.cu", "ctc_loss_gradient", buffer,
                                   0};
    const int64_t most = MOST_GRID_Y < z->batch ? MOST_GRID_Y : z->batch;
    s->gradient_grid = (mica_grid){.grid = {grid_of((z->steps + rows - 1) / rows), (unsigned)most},
                                   .block = {32 * WARPS}};
    return mica_plan_add_kernel(plan, &spec, &s->gradient);
}

/* ---- planning ---- */

static void fill_args(const mica_ctc_loss_desc *d, const mica_ctc_loss_sizes *z,
                      mica_ctc_loss_args *a)
{
    a->steps = z->steps, a->batch = z->batch, a->classes = z->classes;
    a->label_count = z->labels, a->most = z->most, a->pairs = z->pairs;
    a->blank = d->blank;
    for (int i = 0; i < 3; i++) a->x_by[i] = d->x.strides[i], a->dx_by[i] = d->dx.strides[i];
    a->labels_by[0] = z->padded ? d->labels.strides[0] : 0;
    a->labels_by[1] = d->labels.strides[z->padded];
    a->label_length_by = d->label_lengths.strides[0];
    a->input_length_by = d->input_lengths.strides[0];
    a->loss_by = d->loss.strides[0];
    a->dloss_by = d->reduction == MICA_REDUCE_NONE ? d->dloss.strides[0] : 0;
    a->mean = d->reduction == MICA_REDUCE_MEAN;
    a->zero = d->zero_infinity;
}

static mica_status book(mica_plan *plan, state *s, const mica_ctc_loss_sizes *z)
{
    const mica_ctc_loss_desc *d = plan->desc;
    const size_t number = mica_ctc_loss_is_wide(d) ? 16 : 8, row = 2 * number * (size_t)z->pairs;
    MICA_TRY(mica_book(plan, "states", 4 * row, &s->states));
    if (d->pass == MICA_CTC_LOSS_FWD) return MICA_OK;
    MICA_TRY(mica_book(plan, "what precedes and follows each step", 2 * row * (size_t)z->steps,
                       &s->table));
    MICA_TRY(mica_book(plan, "outcomes", 2 * number * (size_t)z->batch, &s->outcomes));
    return mica_book(plan, "labels that are the same", 2 * sizeof(int64_t) * (size_t)z->pairs,
                     &s->links);
}

static mica_status build(mica_plan *plan)
{
    const mica_ctc_loss_desc *d = plan->desc;
    const mica_ctc_loss_sizes z = mica_ctc_loss_sizes_of(d);
    state *s;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    fill_args(d, &z, &s->args);
    MICA_TRY(mica_ctc_loss_children_build(plan, &s->children));
    if (z.batch == 0) return MICA_OK;
    MICA_TRY(book(plan, s, &z));
    const bool fwd = d->pass == MICA_CTC_LOSS_FWD;
    if (!fwd && z.steps == 0) return MICA_OK;
    MICA_TRY(add_walk(plan, s, &z));
    return fwd ? MICA_OK : add_gradient(plan, s, &z);
}

/* ---- running ---- */

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    const mica_ctc_loss_desc *d = plan->desc;
    const state *s = plan->state;
    mica_ctc_loss_args a = s->args;
    MICA_TRY(mica_ctc_loss_before(&s->children, r));
    a.x = r->args[MICA_CTC_LOSS_X];
    a.labels = r->args[MICA_CTC_LOSS_LABELS];
    a.label_lengths = r->args[MICA_CTC_LOSS_LABEL_LENGTHS];
    if (mica_tensor_given(&d->input_lengths))
        a.input_lengths = r->args[MICA_CTC_LOSS_INPUT_LENGTHS];
    a.dloss = r->args[MICA_CTC_LOSS_DLOSS];
    a.loss = r->args[MICA_CTC_LOSS_LOSS];
    a.dx = r->args[MICA_CTC_LOSS_DX];
    a.lse = mica_at(r, s->children.lse.result);
    if (s->children.starts.plan) a.starts = mica_at(r, s->children.starts.result);
    if (s->children.sum.plan) a.losses = mica_at(r, s->children.sum.result);
    a.states = mica_at(r, s->states);
    a.table = mica_at(r, s->table);
    a.outcomes = mica_at(r, s->outcomes);
    a.links = mica_at(r, s->links);
    a.whole = mica_access_starts(a.x, s->x_bytes) | mica_access_starts(a.dx, s->dx_bytes) << 1;
    if (s->walk) MICA_TRY(mica_kernel_launch(s->walk, &s->walk_grid, r->stream, &a));
    if (s->gradient) MICA_TRY(mica_kernel_launch(s->gradient, &s->gradient_grid, r->stream, &a));
    return mica_ctc_loss_behind(&s->children, r);
}

const mica_engine mica_ctc_loss_cuda = {
    .name = "cuda", .cuda = true, .reached = 0.3, .start_ms = 2e-2, .build = build, .run = run};
