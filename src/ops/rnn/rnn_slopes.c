/* SPDX-License-Identifier: Apache-2.0
 * Gradients of x and of states, from the last step to the first: each is what the cell makes of the
 * gradient of its h, then the product of that with R, of both directions at once. Behind the steps
 * of a layer those of its inputs are one product for each direction. */
#include "ops/rnn/rnn_parts.h"

enum { BLOCK = 128, PHASES = 2, KINDS = 2 };

typedef struct state {
    rnn_sizes s;
    mica_plan *rec[KINDS];       /* by kind of layer: the first one has other inputs */
    mica_plan *inputs[KINDS][2]; /* of a direction, of the one added to it */
    mica_plan *load_h, *load_c, *store_h, *store_c;
    mica_kernel *kernels[PHASES];
    mica_grid grid;
    size_t child_at, child_bytes;
    size_t rec_at, direct, dc, low, between, sums;
} state;

static mica_status add_child(mica_plan *plan, const char *op, const void *desc, size_t size,
                             mica_plan **child)
{
    state *s = plan->state;
    MICA_TRY(mica_plan_child_create(plan, op, desc, size, NULL, child, NULL));
    if ((*child)->workspace > s->child_bytes) s->child_bytes = (*child)->workspace;
    return MICA_OK;
}

static mica_status add_copy(mica_plan *plan, const mica_tensor *outside, bool load,
                            mica_plan **child)
{
    const state *s = plan->state;
    if (!mica_tensor_given(outside)) return MICA_OK;
    const mica_transform_desc t = copy_of(&s->s, outside, s->s.acc, load);
    return add_child(plan, "transform", &t, sizeof t, child);
}

/* dz R */
static mica_status add_product(mica_plan *plan, int kind)
{
    const mica_rnn_desc *d = plan->desc;
    state *st = plan->state;
    const rnn_sizes *s = &st->s;
    const int64_t h = s->hidden, width = s->gates * h;
    const int64_t apart = mica_rnn_weight(d, kind, 1, MICA_RNN_PART_R).offset -
                          mica_rnn_weight(d, kind, 0, MICA_RNN_PART_R).offset;
    const mica_gemm_desc g = {
        .a = beside(matrix(s->type, s->batch, width, width, 1), s->sides, s->batch * width),
        .b = beside(matrix(s->type, width, h, h, 1), s->sides, apart),
        .c = beside(matrix(s->acc, s->batch, h, h, 1), s->sides, s->batch * h),
        .compute = d->compute};
    return add_child(plan, "gemm", &g, sizeof g, &st->rec[kind]);
}

/* dz W into x, a matrix where its rows lie at one distance, else a product for each step. */
static mica_status add_inputs(mica_plan *plan, int kind, const mica_tensor *x)
{
    const mica_rnn_desc *d = plan->desc;
    state *st = plan->state;
    const rnn_sizes *s = &st->s;
    const int64_t width = s->gates * s->hidden, row = rnn_slopes(d) * s->hidden;
    const int64_t rows = s->steps * s->batch, inputs = x->dims[2], *by = x->strides;
    const bool rows_fit = s->batch == 1 || s->steps == 1 || by[0] == s->batch * by[1];
    mica_gemm_desc g = {.b = matrix(s->type, width, inputs, inputs, 1), .compute = d->compute};
    mica_tensor sums;
    if (rows_fit) {
        g.a = matrix(s->type, rows, width, row, 1);
        g.c = matrix(s->type, rows, inputs, s->batch == 1 ? by[0] : by[1], by[2]);
        sums = mica_tensor_packed(s->acc, 2, (int64_t[]){rows, inputs});
    } else {
        g.a = (mica_tensor){.dtype = s->type,
                            .rank = 3,
                            .dims = {s->steps, s->batch, width},
                            .strides = {s->batch * row, row, 1},
                            .strided = 1};
        g.c = *x;
        sums = mica_tensor_packed(s->acc, 3, x->dims);
    }
    const mica_tensor last = g.c;
    if (s->sides == 2) g.c = sums;
    MICA_TRY(add_child(plan, "gemm", &g, sizeof g, &st->inputs[kind][0]));
    if (s->sides == 1) return MICA_OK;
    g.c = last, g.residual = sums;
    g.epilogue[0] = MICA_STEP_RESIDUAL;
    return add_child(plan, "gemm", &g, sizeof g, &st->inputs[kind][1]);
}

static mica_status book(mica_plan *plan)
{
    const mica_rnn_desc *d = plan->desc;
    state *s = plan->state;
    const rnn_sizes *z = &s->s;
    const int64_t units = z->sides * z->batch * z->hidden, later = z->sides * z->hidden;
    const int64_t widest = d->layers > 1 && later > z->inputs ? later : z->inputs;
    const int64_t sums = z->sides == 2 ? z->steps * z->batch * widest : 0;
    const struct {
        const char *name;
        mica_dtype type;
        int64_t count;
        size_t *at;
    } rows[] = {{"products with R", z->acc, units, &s->rec_at},
                {"gradients of states", z->acc, units, &s->direct},
                {"gradients of c", z->acc, d->cell == MICA_RNN_CELL_LSTM ? units : 0, &s->dc},
                {"dz of a step", z->type, units * z->gates, &s->low},
                {"between layers", z->type, d->layers > 1 ? units * z->steps : 0, &s->between},
                {"products of a direction", z->acc, sums, &s->sums}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        MICA_TRY(mica_book(plan, rows[i].name, bytes_of(rows[i].type, rows[i].count), rows[i].at));
    return mica_book(plan, "child plans", s->child_bytes, &s->child_at);
}

static mica_status add_kernel(mica_plan *plan, int phase)
{
    const mica_rnn_desc *d = plan->desc;
    state *s = plan->state;
    char buffer[512] = "";
    mica_text p = {buffer, sizeof buffer, 0};
    mica_prologue_int(&p, "CELL", d->cell);
    mica_prologue_int(&p, "PHASE", phase);
    mica_prologue_int(&p, "BLOCK", BLOCK);
    mica_prologue_type(&p, "x_t", s->s.type);
    mica_prologue_type(&p, "acc_t", s->s.acc);
    const mica_kernel_spec spec = {"ops/rnn/rnn_slopes.cu", "rnn_slopes", buffer, 0};
    return mica_plan_add_kernel(plan, &spec, &s->kernels[phase]);
}

mica_status rnn_build_slopes(mica_plan *plan)
{
    const mica_rnn_desc *d = plan->desc;
    state *s;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    s->s = rnn_sizes_of(d);
    const rnn_sizes *z = &s->s;
    if (z->batch == 0) return MICA_OK;
    for (int kind = 0; kind < KINDS && kind < d->layers && z->steps > 0; kind++) {
        const mica_tensor between =
            mica_tensor_packed(z->type, 3, (int64_t[]){z->steps, z->batch, z->sides * z->hidden});
        MICA_TRY(add_product(plan, kind));
        MICA_TRY(add_inputs(plan, kind, kind ? &between : &d->x));
    }
    MICA_TRY(add_copy(plan, &d->hy, true, &s->load_h));
    MICA_TRY(add_copy(plan, &d->cy, true, &s->load_c));
    MICA_TRY(add_copy(plan, &d->hx, false, &s->store_h));
    MICA_TRY(add_copy(plan, &d->cx, false, &s->store_c));
    MICA_TRY(book(plan));
    if (!plan->cuda || z->steps == 0) return MICA_OK;
    const int64_t blocks = (z->sides * z->batch * z->hidden + BLOCK - 1) / BLOCK;
    s->grid = (mica_grid){.grid = {(unsigned)(blocks < INT32_MAX ? blocks : INT32_MAX)},
                          .block = {BLOCK}};
    MICA_TRY(add_kernel(plan, RNN_SLOPES));
    return add_kernel(plan, RNN_INITIAL);
}

/* ---- running ---- */

static mica_status begin(const mica_plan *plan, const mica_run *r, int64_t layer)
{
    const mica_rnn_desc *d = plan->desc;
    const state *s = plan->state;
    const size_t bytes = bytes_of(s->s.acc, s->s.sides * s->s.batch * s->s.hidden);
    void *dh = states_of(plan, r, MICA_RNN_HY, layer), *dc = states_of(plan, r, MICA_RNN_CY, layer);
    void *direct = mica_at(r, s->direct), *kept = mica_at(r, s->dc);
    MICA_TRY(s->load_h ? run_copy(r, s->child_at, s->load_h, dh, direct)
                       : clear(plan, r, direct, bytes));
    if (d->cell != MICA_RNN_CELL_LSTM) return MICA_OK;
    return s->load_c ? run_copy(r, s->child_at, s->load_c, dc, kept) : clear(plan, r, kept, bytes);
}

static mica_rnn_slope_args args_of(const mica_plan *plan, const mica_run *r, int64_t layer)
{
    const mica_rnn_desc *d = plan->desc;
    const state *s = plan->state;
    const rnn_sizes *z = &s->s;
    const bool last = layer == z->layers - 1;
    mica_rnn_slope_args a = {
        .sides = z->sides, .batch = z->batch, .units = z->hidden, .steps = z->steps, .first = 1};
    a.gates = states_of(plan, r, MICA_RNN_GATES, layer);
    a.cells = states_of(plan, r, MICA_RNN_CELLS, layer);
    a.states = states_of(plan, r, MICA_RNN_STATES, layer);
    a.lengths = r->args[MICA_RNN_LENGTHS], a.length_stride = d->lengths.strides[0];
    a.long_lengths = d->lengths.dtype == MICA_S64;
    a.y = last ? r->args[MICA_RNN_Y] : mica_at(r, s->between);
    a.y_unit = last ? d->y.strides[2] : 1;
    a.y_batch = last ? d->y.strides[1] : z->sides * z->hidden;
    a.y_time = last ? d->y.strides[0] : z->batch * a.y_batch;
    a.y_side = z->hidden * a.y_unit;
    a.rec = mica_at(r, s->rec_at), a.direct = mica_at(r, s->direct), a.dc = mica_at(r, s->dc);
    a.low = mica_at(r, s->low);
    a.dz = states_of(plan, r, MICA_RNN_DZ, layer);
    return a;
}

static mica_status run_step(const mica_plan *plan, const mica_run *r, int phase,
                            const mica_rnn_slope_args *a)
{
    const state *s = plan->state;
    if (plan->cuda) return mica_kernel_launch(s->kernels[phase], &s->grid, r->stream, a);
    if (s->s.acc == MICA_F64)
        rnn_slopes_f64(plan->desc, phase, a);
    else
        rnn_slopes_f32(plan->desc, phase, a);
    return MICA_OK;
}

static mica_status run_inputs(const mica_plan *plan, const mica_run *r, int64_t layer)
{
    const mica_rnn_desc *d = plan->desc;
    const state *s = plan->state;
    void *to = layer ? mica_at(r, s->between) : r->args[MICA_RNN_X], *sums = mica_at(r, s->sums);
    const int64_t side_of_dz = s->s.steps * s->s.batch * rnn_slopes(d) * s->s.hidden;
    char *dz = states_of(plan, r, MICA_RNN_DZ, layer);
    for (int64_t side = 0; side < s->s.sides; side++)
        MICA_TRY(run_product(
            r, s->child_at, s->inputs[layer > 0][side], element(dz, s->s.type, side * side_of_dz),
            weights_of(plan, r, layer, side, MICA_RNN_PART_W), side + 1 < s->s.sides ? sums : to,
            MICA_GEMM_RESIDUAL, side ? sums : NULL));
    return MICA_OK;
}

static mica_status run_layer(const mica_plan *plan, const mica_run *r, int64_t layer)
{
    const state *s = plan->state;
    mica_rnn_slope_args a = args_of(plan, r, layer);
    MICA_TRY(begin(plan, r, layer));
    for (a.step = a.steps - 1; a.step >= 0; a.step--) {
        MICA_TRY(run_step(plan, r, RNN_SLOPES, &a));
        MICA_TRY(run_product(r, s->child_at, s->rec[layer > 0], a.low,
                             weights_of(plan, r, layer, 0, MICA_RNN_PART_R), mica_at(r, s->rec_at),
                             MICA_GEMM_BIAS, NULL));
        a.first = 0;
    }
    if (a.steps > 0) {
        MICA_TRY(run_step(plan, r, RNN_INITIAL, &a));
        MICA_TRY(run_inputs(plan, r, layer));
    }
    MICA_TRY(run_copy(r, s->child_at, s->store_h, mica_at(r, s->direct),
                      states_of(plan, r, MICA_RNN_HX, layer)));
    return run_copy(r, s->child_at, s->store_c, mica_at(r, s->dc),
                    states_of(plan, r, MICA_RNN_CX, layer));
}

mica_status rnn_run_slopes(const mica_plan *plan, const mica_run *r)
{
    const state *s = plan->state;
    if (s->s.batch == 0) return MICA_OK;
    for (int64_t layer = s->s.layers - 1; layer >= 0; layer--) MICA_TRY(run_layer(plan, r, layer));
    return MICA_OK;
}
