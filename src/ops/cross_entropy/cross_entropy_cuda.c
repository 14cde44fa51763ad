/* SPDX-License-Identifier: Apache-2.0
 * Engine "cuda": a group of 1 to 512 threads per row (ops/access/slices.h). The forward pass reads
 * the logits once; sums over rows are partial sums by block in a fixed grid, finished by one block.
 * The backward pass keeps a row in registers if it fits, else reads it twice. Any strides and
 * types. Class weights, log-probabilities and probabilities have kernels of their own
 * (cross_entropy_targets.cuh). Configs: `blocks` that share a sum over rows; with 1 no workspace is
 * needed, and a mean's gradient counts the rows in every block; `columns`: where rows lie side by
 * side in memory, a thread has some neighbours for itself, as many as a vector. */
#include "ops/cross_entropy/cross_entropy.h"
#include "ops/cross_entropy/cross_entropy_args.h"
#include "ops/access/slices.h"

#include <string.h>

enum {
    KEEP = 32,
    COUNT_BLOCK = 256,
    REDUCE_BLOCK = 256,
    BLOCKS_PER_UNIT = 8,
    MOST_COUNT_BLOCKS = 256
};
enum { KNOB_BLOCKS, KNOB_COLUMNS };
static const char *const knobs[] = {"blocks", "columns", NULL};

typedef struct state {
    mica_kernel *main, *second; /* second: reduce (fwd, after main) or count (bwd, before it) */
    mica_grid grid, second_grid;
    mica_cross_entropy_args args;
    size_t partial; /* of the workspace, if there are partials */
    mica_slices slices;
    int bytes[4]; /* of an element of x and, where they are there, dx, target, dtarget */
    bool forward, columns;
} state;

/* Whether something is summed over rows at all. */
static bool shares_rows(const mica_cross_entropy_desc *d)
{
    if (d->pass == MICA_CROSS_ENTROPY_FWD) return d->reduction != MICA_REDUCE_NONE;
    if (d->targets == MICA_CROSS_ENTROPY_PROBABILITIES) return false;
    return d->reduction == MICA_REDUCE_MEAN && (d->ignore || mica_tensor_given(&d->weight));
}

/* Whether the classes are read of the target, or written of its gradient. */
static bool has_target(const mica_cross_entropy_desc *d)
{
    return d->targets == MICA_CROSS_ENTROPY_PROBABILITIES;
}

static bool has_dtarget(const mica_cross_entropy_desc *d)
{
    return mica_tensor_given(&d->dtarget);
}

/* Groups are chosen for the logits and, backward, their gradient; and for probabilities. */
typedef struct sliced {
    mica_layout outer;
    int64_t along[4];
    int bytes[4], count;
} sliced;

static void add_sliced(sliced *s, const mica_cross_entropy_rows *rows, int which, int64_t along,
                       const mica_tensor *t)
{
    memcpy(s->outer.strides[s->count], rows->layout.strides[which], sizeof s->outer.strides[0]);
    s->along[s->count] = along;
    s->bytes[s->count++] = mica_dtype_bits(t->dtype) / 8;
}

static sliced find_sliced(const mica_cross_entropy_desc *d, const mica_cross_entropy_rows *rows)
{
    sliced s = {.outer = rows->layout};
    add_sliced(&s, rows, 0, rows->x_stride, &d->x);
    if (d->pass == MICA_CROSS_ENTROPY_BWD) add_sliced(&s, rows, 3, rows->dx_stride, &d->dx);
    if (has_target(d)) add_sliced(&s, rows, 4, rows->target_stride, &d->target);
    if (has_dtarget(d)) add_sliced(&s, rows, 5, rows->dtarget_stride, &d->dtarget);
    return s;
}

static bool find_columns(const sliced *s, mica_slices *slices)
{
    return mica_slices_beside(slices, &s->outer, s->along, s->bytes, s->count);
}

static int configs(const void *desc, const mica_device_info *device, mica_config *list)
{
    mica_cross_entropy_rows rows;
    int count = 0;
    mica_slices slices;
    mica_cross_entropy_rows_make(&rows, desc);
    sliced s = find_sliced(desc, &rows);
    const bool beside = mica_cross_entropy_is_plain(desc) && find_columns(&s, &slices);
    for (int columns = beside; columns >= 0; columns--) {
        if (shares_rows(desc))
            list[count++] = (mica_config){{device->units * BLOCKS_PER_UNIT, columns}};
        list[count++] = (mica_config){{1, columns}};
    }
    return count;
}

/* Without partial sums a single block does the forward pass, and every block counts all rows. */
static double predict(const void *desc, const mica_device_info *device, const mica_config *config)
{
    double share = config->knob[KNOB_COLUMNS] ? 1.4 : 1.5;
    double ms = share * mica_roofline_ms(&mica_op_cross_entropy, desc, device) + 3e-3;
    if (!shares_rows(desc)) return ms;
    return config->knob[KNOB_BLOCKS] > 1 ? ms + 3e-3 : ms * device->units;
}

/* ---- kernels ---- */

static void add_counting(mica_text *p, const mica_cross_entropy_desc *d)
{
    const bool weighted = mica_tensor_given(&d->weight);
    mica_prologue_int(p, "WEIGHTED", weighted);
    mica_prologue_type(p, "label_t", has_target(d) ? MICA_S64 : d->labels.dtype);
    mica_prologue_type(p, "weight_t", weighted ? d->weight.dtype : MICA_F32);
    mica_prologue_type(p, "counted_t", weighted ? MICA_F64 : MICA_S64);
}

static void add_common(mica_text *p, const mica_cross_entropy_desc *d)
{
    mica_prologue_int(p, "MEAN", MICA_REDUCE_MEAN);
    mica_prologue_int(p, "SUM", MICA_REDUCE_SUM);
    mica_prologue_int(p, "NONE", MICA_REDUCE_NONE);
    mica_prologue_int(p, "REDUCTION", d->reduction);
    mica_prologue_int(p, "IGNORE", d->ignore);
    mica_prologue_type(p, "x_t", d->x.dtype);
    mica_prologue_type(p, "acc_t", mica_cross_entropy_is_wide(d) ? MICA_F64 : MICA_F32);
    add_counting(p, d);
}

static void add_targets(mica_text *p, const mica_cross_entropy_desc *d)
{
    mica_prologue_int(p, "LOGITS", d->input == MICA_CROSS_ENTROPY_LOGITS);
    mica_prologue_int(p, "PROBABILITIES", has_target(d));
    mica_prologue_int(p, "DTARGET", has_dtarget(d));
    mica_prologue_type(p, "target_t", has_target(d) ? d->target.dtype : MICA_F32);
    mica_prologue_type(p, "dtarget_t", has_dtarget(d) ? d->dtarget.dtype : MICA_F32);
}

static void add_shape(mica_text *p, const state *s)
{
    if (!s->columns) {
        mica_slices_prologue(p, &s->slices);
        return;
    }
    mica_prologue_int(p, "THREADS", s->slices.slices);
    mica_prologue_int(p, "VECTOR", s->slices.vector);
}

static mica_status add_forward(mica_plan *plan, state *s)
{
    const mica_cross_entropy_desc *d = plan->desc;
    char buffer[1536] = "";
    mica_text p = {buffer, sizeof buffer, 0};
    add_common(&p, d);
    add_shape(&p, s);
    mica_prologue_int(&p, "SMOOTH", d->smoothing > 0);
    mica_prologue_int(&p, "DIRECT", s->args.partials == 0);
    mica_prologue_type(&p, "loss_t", d->loss.dtype);
    mica_prologue_type(&p, "lse_t", mica_tensor_given(&d->lse) ? d->lse.dtype : MICA_F32);
    mica_kernel_spec spec = {"ops/cross_entropy/cross_entropy_forward.cu", "cross_entropy_forward",
                             buffer, 0};
    if (s->columns) {
        spec.file = "ops/cross_entropy/cross_entropy_columns_forward.cu";
        spec.entry = "cross_entropy_columns_forward";
    }
    if (!mica_cross_entropy_is_plain(d)) {
        add_targets(&p, d);
        spec.file = "ops/cross_entropy/cross_entropy_targets_forward.cu";
        spec.entry = "cross_entropy_targets_forward";
    }
    MICA_TRY(mica_plan_add_kernel(plan, &spec, &s->main));
    if (s->args.partials == 0) return MICA_OK;
    char reduce[512] = "";
    p = (mica_text){reduce, sizeof reduce, 0};
    mica_prologue_int(&p, "BLOCK", REDUCE_BLOCK);
    mica_prologue_int(&p, "MEAN", MICA_REDUCE_MEAN);
    mica_prologue_int(&p, "REDUCTION", d->reduction);
    mica_prologue_int(&p, "IGNORE", d->ignore);
    mica_prologue_type(&p, "loss_t", d->loss.dtype);
    add_counting(&p, d);
    s->second_grid = (mica_grid){.grid = {1}, .block = {REDUCE_BLOCK}};
    spec = (mica_kernel_spec){"ops/cross_entropy/cross_entropy_reduce.cu", "cross_entropy_reduce",
                              reduce, 0};
    return mica_plan_add_kernel(plan, &spec, &s->second);
}

static mica_status add_backward(mica_plan *plan, state *s)
{
    enum { ALL_ROWS, PARTIALS, OWN };
    const mica_cross_entropy_desc *d = plan->desc;
    char buffer[1536] = "";
    mica_text p = {buffer, sizeof buffer, 0};
    add_common(&p, d);
    add_shape(&p, s);
    mica_prologue_int(&p, "ALL_ROWS", ALL_ROWS);
    mica_prologue_int(&p, "PARTIALS", PARTIALS);
    mica_prologue_int(&p, "OWN", OWN);
    mica_prologue_int(&p, "COUNT", !shares_rows(d) ? ALL_ROWS : s->args.partials ? PARTIALS : OWN);
    mica_prologue_type(&p, "dloss_t", d->dloss.dtype);
    mica_prologue_type(&p, "dx_t", d->dx.dtype);
    mica_kernel_spec spec = {"ops/cross_entropy/cross_entropy_backward.cu",
                             "cross_entropy_backward", buffer, 0};
    if (s->columns) {
        spec.file = "ops/cross_entropy/cross_entropy_columns_backward.cu";
        spec.entry = "cross_entropy_columns_backward";
    }
    if (!mica_cross_entropy_is_plain(d)) {
        add_targets(&p, d);
        mica_prologue_int(&p, "SMOOTH", d->smoothing > 0);
        spec.file = "ops/cross_entropy/cross_entropy_targets_backward.cu";
        spec.entry = "cross_entropy_targets_backward";
    }
    MICA_TRY(mica_plan_add_kernel(plan, &spec, &s->main));
    if (s->args.partials == 0) return MICA_OK;
    char count[512] = "";
    p = (mica_text){count, sizeof count, 0};
    mica_prologue_int(&p, "BLOCK", COUNT_BLOCK);
    mica_prologue_int(&p, "IGNORE", d->ignore);
    add_counting(&p, d);
    s->second_grid = (mica_grid){.grid = {(unsigned)s->args.partials}, .block = {COUNT_BLOCK}};
    spec = (mica_kernel_spec){"ops/cross_entropy/cross_entropy_count.cu", "cross_entropy_count",
                              count, 0};
    return mica_plan_add_kernel(plan, &spec, &s->second);
}

/* ---- planning ---- */

/* Grid of the main kernel, and how many partial sums or counts go through the workspace. */
static void choose_grid(state *s, const mica_cross_entropy_desc *d, int blocks, int units)
{
    int64_t rows = s->args.rows.count;
    s->grid = mica_slices_grid(&s->slices, s->columns ? rows / s->slices.vector : rows);
    int64_t needed = s->grid.grid[0];
    if (!shares_rows(d)) return;
    if (s->forward) {
        s->grid.grid[0] = (unsigned)(needed < blocks ? needed : blocks);
        if (s->grid.grid[0] == 0)
            s->grid.grid[0] = 1; /* no rows: the loss is written all the same */
        s->args.partials = s->grid.grid[0] > 1 ? (int)s->grid.grid[0] : 0;
    } else if (blocks > 1) {
        int64_t count = (s->args.rows.count + COUNT_BLOCK - 1) / COUNT_BLOCK;
        s->args.partials = (int)(count < MOST_COUNT_BLOCKS ? count : MOST_COUNT_BLOCKS);
    } else {
        /* Each block counts: few blocks, with many rows each. */
        int64_t most = (int64_t)units * BLOCKS_PER_UNIT / 2;
        if (needed > most) s->grid.grid[0] = (unsigned)most;
    }
}

static void fill_args(const mica_cross_entropy_desc *d, const mica_cross_entropy_rows *rows,
                      mica_cross_entropy_args *args)
{
    args->rows = rows->layout;
    args->classes = rows->classes;
    args->x_along = rows->x_stride;
    args->dx_along = rows->dx_stride;
    args->ignore_index = d->ignore_index;
    args->smoothing = d->smoothing;
    args->target_along = rows->target_stride;
    args->dtarget_along = rows->dtarget_stride;
    args->weight_along = d->weight.strides[0];
}

static mica_status build(mica_plan *plan)
{
    const mica_cross_entropy_desc *d = plan->desc;
    mica_cross_entropy_rows rows;
    state *s;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    mica_cross_entropy_rows_make(&rows, d);
    fill_args(d, &rows, &s->args);
    s->forward = d->pass == MICA_CROSS_ENTROPY_FWD;
    bool wide = mica_cross_entropy_is_wide(d);
    sliced in = find_sliced(d, &rows);
    memcpy(s->bytes, in.bytes, sizeof s->bytes);
    /* Of labels' log-probabilities only the label's is read. */
    const bool spread = has_target(d) || d->smoothing > 0;
    const bool lone = s->forward && !spread && d->input == MICA_CROSS_ENTROPY_LOG_PROBS;
    const int keep = (wide ? KEEP / 2 : KEEP) / (has_target(d) ? 2 : 1);
    s->columns = plan->config.knob[KNOB_COLUMNS];
    if (s->columns)
        find_columns(&in, &s->slices);
    else
        mica_slices_choose(&s->slices, &in.outer, lone ? 1 : rows.classes, in.along, in.bytes,
                           in.count, keep);
    if (s->forward) s->slices.items = 0;
    choose_grid(s, d, plan->config.knob[KNOB_BLOCKS], plan->device.units);
    MICA_TRY(s->forward ? add_forward(plan, s) : add_backward(plan, s));
    if (s->args.partials == 0) return MICA_OK;
    return mica_book(plan, s->forward ? "partial sums" : "partial counts",
                     (size_t)s->args.partials * sizeof *s->args.partial, &s->partial);
}

/* ---- running ---- */

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    const mica_cross_entropy_desc *d = plan->desc;
    const state *s = plan->state;
    mica_cross_entropy_args args = s->args;
    args.x = r->args[MICA_CROSS_ENTROPY_X];
    args.labels = r->args[MICA_CROSS_ENTROPY_LABELS];
    args.loss = r->args[MICA_CROSS_ENTROPY_LOSS];
    args.lse = mica_tensor_given(&d->lse) ? r->args[MICA_CROSS_ENTROPY_LSE] : NULL;
    args.dloss = r->args[MICA_CROSS_ENTROPY_DLOSS];
    args.dx = r->args[MICA_CROSS_ENTROPY_DX];
    args.target = r->args[MICA_CROSS_ENTROPY_TARGET];
    args.weight = r->args[MICA_CROSS_ENTROPY_WEIGHT];
    args.dtarget = r->args[MICA_CROSS_ENTROPY_DTARGET];
    const void *pointers[4] = {args.x};
    int pointer_count = 1;
    if (!s->forward) pointers[pointer_count++] = args.dx;
    if (has_target(d)) pointers[pointer_count++] = args.target;
    if (has_dtarget(d)) pointers[pointer_count++] = args.dtarget;
    args.whole = mica_slices_whole(&s->slices, pointers, s->bytes, pointer_count);
    if (s->second) args.partial = mica_at(r, s->partial);
    if (s->second && !s->forward)
        MICA_TRY(mica_kernel_launch(s->second, &s->second_grid, r->stream, &args));
    MICA_TRY(mica_kernel_launch(s->main, &s->grid, r->stream, &args));
    if (s->second && s->forward)
        return mica_kernel_launch(s->second, &s->second_grid, r->stream, &args);
    return MICA_OK;
}

const mica_engine mica_cross_entropy_cuda = {.name = "cuda",
                                             .cuda = true,
                                             .knobs = knobs,
                                             .configs = configs,
                                             .predict = predict,
                                             .build = build,
                                             .run = run};
