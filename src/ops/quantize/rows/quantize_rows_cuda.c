/* SPDX-License-Identifier: Apache-2.0
 * Engine "fused" of quantize_rows: rows whose values the registers of a group of threads hold, in
 * one launch that reads x and writes codes once: of 16 bits 3 bytes an element, 5 of a gated one.
 * Where neither a norm nor a scale is of the whole row, a row is cut into segments. Longer rows,
 * groups that are no power of two, and rows whose columns are no neighbours in memory take
 * "compose". */
#include "ops/quantize/rows/quantize_rows.h"
#include "ops/access/access.h"
#include "ops/access/layout.h"
#include "ops/access/slices.h"
#include "ops/quantize/quantize.h"
#include "ops/quantize/rows/quantize_rows_args.h"

/* THREADS of a slice at most, each of MOST vectors; SEGMENT columns of rows that are cut. */
enum { VECTOR = 8, THREADS = 512, MOST = 8, FEW = 2, BLOCK = 128, SEGMENT = 2048, LANES = 32 };

typedef struct state {
    mica_quantize_rows_args args;
    mica_kernel *kernel;
    mica_grid grid;
    bool fits;
} state;

static const int of_place[ROWS_PLACES] = {MICA_QUANTIZE_ROWS_Y, MICA_QUANTIZE_ROWS_X,
                                          MICA_QUANTIZE_ROWS_RESIDUAL, MICA_QUANTIZE_ROWS_SUM,
                                          MICA_QUANTIZE_ROWS_SCALE};

static const mica_tensor *tensor(const mica_quantize_rows_desc *d, int arg)
{
    return mica_op_tensor(&mica_op_quantize_rows, d, arg);
}

static int power_of_two_from(int64_t least)
{
    int p = 1;
    while (p < least) p *= 2;
    return p;
}

/* ---- what it takes ---- */

/* Vectors of a group that neighbouring threads hold; 0: a group is a segment, or a scale is for
 * all. */
static int lanes_of(const quantize_rows_sizes *s)
{
    return s->one_scale || s->groups == 1 ? 0 : s->group < VECTOR ? 1 : (int)(s->group / VECTOR);
}

/* Vectors of a thread at most: wider ones take more registers. */
static int64_t columns_held(const mica_quantize_rows_desc *d)
{
    return (int64_t)THREADS * VECTOR * (d->x.dtype == MICA_F32 ? MOST / 2 : MOST);
}

static int64_t segment_of(const mica_quantize_rows_desc *d, const quantize_rows_sizes *s)
{
    const bool whole_row = d->norm || (s->groups == 1 && d->pass == MICA_QUANTIZE_ROWS_AMAX);
    return whole_row || s->columns < SEGMENT ? s->columns : SEGMENT;
}

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    const mica_quantize_rows_desc *d = desc;
    const quantize_rows_sizes s = mica_quantize_rows_sizes(d);
    (void)device;
    for (int k = 0; k < ROWS_SCALE; k++) {
        const mica_tensor *t = tensor(d, of_place[k]);
        if (mica_tensor_given(t) && t->dims[t->rank - 1] > 1 && t->strides[t->rank - 1] != 1)
            return mica_refuse(
                why, "columns of %s are %lld apart in memory, this engine takes neighbours",
                mica_op_quantize_rows.args[of_place[k]].name, (long long)t->strides[t->rank - 1]);
    }
    for (int arg = MICA_QUANTIZE_ROWS_WEIGHT; arg <= MICA_QUANTIZE_ROWS_BIAS; arg++) {
        const mica_tensor *t = tensor(d, arg);
        if (mica_tensor_given(t) && t->dims[0] > 1 && t->strides[0] != 1)
            return mica_refuse(
                why, "elements of %s are %lld apart in memory, this engine takes neighbours",
                mica_op_quantize_rows.args[arg].name, (long long)t->strides[0]);
    }
    const int64_t group = s.group, length = segment_of(d, &s);
    if (lanes_of(&s) && (group % VECTOR || group > LANES * VECTOR || group & (group - 1)))
        return mica_refuse(why, "a group of %lld, this engine takes 8, 16, 32, 64, 128 and 256",
                           (long long)group);
    if (length > columns_held(d))
        return mica_refuse(why, "a row of %lld columns, this engine holds %lld of %s",
                           (long long)length, (long long)columns_held(d),
                           mica_dtype_name(d->x.dtype));
    return MICA_OK;
}

/* ---- the kernel ---- */

static mica_slices slices_of(const state *s, int group_lanes)
{
    const int64_t vectors = (s->args.length - 1) / VECTOR + 1;
    mica_slices t = {.along = true, .vector = VECTOR};
    t.threads = power_of_two_from((vectors + FEW - 1) / FEW);
    if (t.threads > THREADS) t.threads = THREADS;
    if (t.threads < group_lanes) t.threads = group_lanes;
    t.items = power_of_two_from((vectors + t.threads - 1) / t.threads);
    t.slices = t.threads < BLOCK ? BLOCK / t.threads : 1;
    return t;
}

static void find_rows(const mica_quantize_rows_desc *d, const quantize_rows_sizes *s, state *to)
{
    mica_tensor t[ROWS_PLACES];
    const mica_tensor *list[ROWS_PLACES];
    const int outer = d->x.rank - 1;
    for (int k = 0; k < ROWS_PLACES; k++) {
        const mica_tensor *own = tensor(d, of_place[k]);
        const bool there = mica_tensor_given(own) && !(k == ROWS_SCALE && s->one_scale);
        t[k] = (mica_tensor){.dtype = there ? own->dtype : MICA_F32, .rank = outer};
        for (int i = 0; i < outer; i++) {
            t[k].dims[i] = d->x.dims[i];
            t[k].strides[i] = there ? own->strides[i] : 0;
        }
        list[k] = &t[k];
    }
    mica_layout *l = &to->args.rows;
    mica_layout_make(l, list, ROWS_PLACES);
    if (l->rank == 0) l->rank = 1, l->dims[0] = 1;
    to->args.scale_step = s->one_scale ? 0 : d->scale.strides[outer];
}

/* Whether all rows begin at whole vectors where the pointers do. */
static bool rows_fit(const mica_quantize_rows_desc *d, const mica_quantize_rows_args *a)
{
    int64_t steps = d->gated ? a->gate : 0;
    for (int k = 0; k < ROWS_SCALE; k++) steps |= mica_access_steps(&a->rows, k, a->rows.rank);
    return steps % VECTOR == 0;
}

static void type_of(mica_text *p, const char *name, const mica_tensor *t)
{
    mica_prologue_type(p, name, mica_tensor_given(t) ? t->dtype : MICA_F32);
}

static void write_prologue(const mica_quantize_rows_desc *d, const quantize_rows_sizes *s,
                           const mica_slices *slices, mica_text *p)
{
    mica_slices_prologue(p, slices);
    mica_prologue_activation(p, d->act);
    mica_prologue_int(p, "ACT", d->act);
    mica_prologue_int(p, "NORM",
                      d->norm == MICA_QUANTIZE_ROWS_RMS     ? ROWS_NORM_RMS
                      : d->norm == MICA_QUANTIZE_ROWS_LAYER ? ROWS_NORM_LAYER
                                                            : ROWS_NORM_NONE);
    mica_prologue_int(p, "GATED", d->gated);
    mica_prologue_int(p, "MAKES", d->pass == MICA_QUANTIZE_ROWS_AMAX);
    mica_prologue_int(p, "GROUP_LANES", lanes_of(s));
    mica_prologue_int(p, "HAS_RESIDUAL", mica_tensor_given(&d->residual));
    mica_prologue_int(p, "HAS_SUM", mica_tensor_given(&d->sum));
    mica_prologue_int(p, "HAS_WEIGHT", mica_tensor_given(&d->weight));
    mica_prologue_int(p, "HAS_BIAS", mica_tensor_given(&d->bias));
    mica_prologue_int(p, "CODE", mica_quantize_code(d->y.dtype));
    mica_prologue_int(p, "POWER", 0);
    mica_prologue_int(p, "HAS_GLOBAL", 0);
    mica_prologue_type(p, "code_t", d->y.dtype);
    mica_prologue_type(p, "scale_t", MICA_F32);
    mica_prologue_type(p, "real", MICA_F32);
    type_of(p, "x_t", &d->x);
    type_of(p, "residual_t", &d->residual);
    type_of(p, "sum_t", &d->sum);
    type_of(p, "weight_t", &d->weight);
    type_of(p, "bias_t", &d->bias);
}

/* ---- the engine ---- */

static mica_status build(mica_plan *plan)
{
    state *s;
    char buffer[2048] = "";
    mica_text prologue = {buffer, sizeof buffer, 0};
    const mica_quantize_rows_desc *d = plan->desc;
    const quantize_rows_sizes sizes = mica_quantize_rows_sizes(d);
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    if (sizes.rows == 0 || sizes.columns == 0) return MICA_OK;
    mica_quantize_rows_args *a = &s->args;
    *a = (mica_quantize_rows_args){.columns = sizes.columns,
                                   .length = segment_of(d, &sizes),
                                   .gate = sizes.columns,
                                   .group = sizes.group,
                                   .eps = d->eps,
                                   .act_a = d->act_a,
                                   .act_b = d->act_b};
    a->segments = (a->columns - 1) / a->length + 1;
    find_rows(d, &sizes, s);
    s->fits = rows_fit(d, a);
    const mica_slices slices = slices_of(s, lanes_of(&sizes));
    s->grid = mica_slices_grid(&slices, a->rows.count * a->segments);
    write_prologue(d, &sizes, &slices, &prologue);
    mica_kernel_spec spec = {"ops/quantize/rows/quantize_rows.cu", "quantize_rows", buffer, 0};
    return mica_plan_add_kernel(plan, &spec, &s->kernel);
}

static bool is_aligned(const mica_plan *plan, int arg, const void *at)
{
    const mica_tensor *t = mica_op_tensor(plan->op, plan->desc, arg);
    return !mica_tensor_given(t) || mica_access_starts(at, mica_access_bytes(t->dtype, VECTOR));
}

static mica_status run(const mica_plan *plan, const mica_run *run)
{
    const state *s = plan->state;
    if (!s->kernel) return MICA_OK;
    mica_quantize_rows_args a = s->args;
    a.whole = s->fits;
    for (int k = 0; k < ROWS_PLACES; k++) {
        a.at[k] = run->args[of_place[k]];
        if (k != ROWS_SCALE) a.whole = a.whole && is_aligned(plan, of_place[k], a.at[k]);
    }
    a.weight = run->args[MICA_QUANTIZE_ROWS_WEIGHT];
    a.bias = run->args[MICA_QUANTIZE_ROWS_BIAS];
    a.whole = a.whole && is_aligned(plan, MICA_QUANTIZE_ROWS_WEIGHT, a.weight) &&
              is_aligned(plan, MICA_QUANTIZE_ROWS_BIAS, a.bias);
    return mica_kernel_launch(s->kernel, &s->grid, run->stream, &a);
}

const mica_engine mica_quantize_rows_fused = {.name = "fused",
                                              .cuda = true,
                                              .reached = 0.85,
                                              .start_ms = 3e-3,
                                              .accepts = accepts,
                                              .build = build,
                                              .run = run};
