/* SPDX-License-Identifier: Apache-2.0
 * Gradients of x and of states, from the last step to the first: each is what the cell makes of the
 * gradient of its h, then the product of that with R, of both directions at once; where forward has
 * a second product in a step, so does this. All steps can be one
 * launch (rnn_persistent.c). Behind the steps of a layer those of its inputs are one product for
 * each direction. */
#include "mica/reduce.h"
#include "ops/rnn/rnn_parts.h"

typedef struct state {
    rnn_walk walk;
    mica_plan *rec[RNN_KINDS], *rec_new[RNN_KINDS];
    mica_plan *inputs[RNN_KINDS][2]; /* of a direction, of the one added to it */
    mica_plan *load_h, *load_c, *store_h, *store_c;
    size_t rec_at, rec_new_at, direct, dc, low, low_new, between, sums;
    mica_plan *skip;       /* instead of inputs[0] */
    mica_plan *dropouts[]; /* behind each layer */
} state;

/* dz R; of a second product the other factor is dz of n, or the gradient of h. */
static mica_status add_products(mica_plan *plan, int kind)
{
    const mica_rnn_desc *d = plan->desc;
    state *s = plan->state;
    const int64_t h = d->hidden, made = d->reset_before ? 2 : s->walk.s.gates;
    MICA_TRY(rnn_add_product(plan, kind, MICA_RNN_PART_R, made * h, true, &s->rec[kind]));
    if (!rnn_has_inner(d)) return MICA_OK;
    const mica_rnn_part part = d->projection ? MICA_RNN_PART_S : MICA_RNN_PART_R;
    return rnn_add_product(plan, kind, part, d->projection ? d->projection : h, true,
                           &s->rec_new[kind]);
}

/* dz W into x, a matrix where its rows lie at one distance, else a product for each step. */
static mica_status add_inputs(mica_plan *plan, int kind, const mica_tensor *x)
{
    const mica_rnn_desc *d = plan->desc;
    state *st = plan->state;
    const rnn_sizes *s = &st->walk.s;
    const int64_t width = s->gates * s->hidden, row = rnn_slope_row(d);
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
    MICA_TRY(rnn_add_child(plan, "gemm", &g, sizeof g, &st->inputs[kind][0]));
    if (s->sides == 1) return MICA_OK;
    g.c = last, g.residual = sums;
    g.epilogue[0] = MICA_STEP_RESIDUAL;
    return rnn_add_child(plan, "gemm", &g, sizeof g, &st->inputs[kind][1]);
}

/* The sum of dz over directions and gates. */
static mica_status add_skip(mica_plan *plan)
{
    const mica_rnn_desc *d = plan->desc;
    state *st = plan->state;
    const rnn_sizes *s = &st->walk.s;
    const int64_t row = rnn_slope_row(d);
    const mica_reduce_desc t = {
        .x = {.dtype = s->type,
              .rank = 5,
              .dims = {s->sides, s->steps, s->batch, s->gates, s->hidden},
              .strides = {s->steps * s->batch * row, s->batch * row, row, s->hidden, 1},
              .strided = 1},
        .y = d->x,
        .axes = {MICA_REDUCE_AXIS(0), MICA_REDUCE_AXIS(3)}};
    return rnn_add_child(plan, "reduce", &t, sizeof t, &st->skip);
}

static mica_status book(mica_plan *plan)
{
    const mica_rnn_desc *d = plan->desc;
    state *s = plan->state;
    const rnn_sizes *z = &s->walk.s;
    const int64_t rows = z->sides * z->batch, units = rows * z->hidden, outs = rows * z->out;
    const int64_t later = z->sides * z->out, twice = rnn_has_inner(d);
    const bool stepwise = !s->walk.persistent;
    const int64_t widest = d->layers > 1 && later > z->inputs ? later : z->inputs;
    const int64_t sums = z->sides == 2 ? z->steps * z->batch * widest : 0;
    const struct {
        const char *name;
        mica_dtype type;
        int64_t count;
        size_t *at;
    } list[] = {{"products with R", z->acc, stepwise * outs, &s->rec_at},
                {"second products", z->acc, twice * units, &s->rec_new_at},
                {"gradients of states", z->acc, outs, &s->direct},
                {"gradients of c", z->acc, d->cell == MICA_RNN_CELL_LSTM ? units : 0, &s->dc},
                {"dz of a step", z->type, stepwise * units * z->gates, &s->low},
                {"of second products", z->type, twice * outs, &s->low_new},
                {"between layers", z->type, d->layers > 1 ? outs * z->steps : 0, &s->between},
                {"products of a direction", z->acc, sums, &s->sums}};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        MICA_TRY(mica_book(plan, list[i].name, bytes_of(list[i].type, list[i].count), list[i].at));
    return mica_book(plan, "child plans", s->walk.child_bytes, &s->walk.child_at);
}

static mica_status add_kernels(mica_plan *plan)
{
    const mica_rnn_desc *d = plan->desc;
    const bool phases[RNN_PHASES] = {[RNN_SLOPES] = true,
                                     [RNN_INITIAL] = true,
                                     [RNN_BEFORE] = d->projection > 0,
                                     [RNN_BEHIND] = d->reset_before};
    for (int phase = 0; phase < RNN_PHASES; phase++)
        if (phases[phase])
            MICA_TRY(rnn_add_kernel(plan, "ops/rnn/rnn_slopes.cu", "rnn_slopes", "TWICE",
                                    rnn_has_inner(d), phase));
    return MICA_OK;
}

mica_status rnn_build_slopes(mica_plan *plan)
{
    const mica_rnn_desc *d = plan->desc;
    state *s;
    MICA_TRY(mica_plan_state(
        plan, sizeof *s + (rnn_drops(d) ? (size_t)d->layers : 0) * sizeof *s->dropouts, &s));
    s->walk.s = rnn_sizes_of(d);
    const rnn_sizes *z = &s->walk.s;
    if (z->batch == 0) return MICA_OK;
    MICA_TRY(rnn_add_persistent(plan));
    for (int kind = 0; kind < RNN_KINDS && kind < d->layers && z->steps > 0; kind++) {
        const mica_tensor between =
            mica_tensor_packed(z->type, 3, (int64_t[]){z->steps, z->batch, z->sides * z->out});
        if (!s->walk.persistent) MICA_TRY(add_products(plan, kind));
        MICA_TRY(d->skip_input && !kind ? add_skip(plan)
                                        : add_inputs(plan, kind, kind ? &between : &d->x));
    }
    MICA_TRY(rnn_add_dropouts(plan, true, s->dropouts));
    MICA_TRY(rnn_add_copy(plan, &d->hy, z->acc, true, &s->load_h));
    MICA_TRY(rnn_add_copy(plan, &d->cy, z->acc, true, &s->load_c));
    MICA_TRY(rnn_add_copy(plan, &d->hx, z->acc, false, &s->store_h));
    MICA_TRY(rnn_add_copy(plan, &d->cx, z->acc, false, &s->store_c));
    MICA_TRY(book(plan));
    return plan->cuda && z->steps > 0 && !s->walk.persistent ? add_kernels(plan) : MICA_OK;
}

/* ---- running ---- */

static mica_status begin(const mica_plan *plan, const mica_run *r, int64_t layer)
{
    const mica_rnn_desc *d = plan->desc;
    const state *s = plan->state;
    const rnn_sizes *z = &s->walk.s;
    const int64_t rows = z->sides * z->batch;
    void *dh = states_of(plan, r, MICA_RNN_HY, layer), *dc = states_of(plan, r, MICA_RNN_CY, layer);
    void *direct = mica_at(r, s->direct), *kept = mica_at(r, s->dc);
    MICA_TRY(s->load_h ? run_copy(r, s->walk.child_at, s->load_h, dh, direct)
                       : clear(plan, r, direct, bytes_of(z->acc, rows * z->out)));
    if (d->cell != MICA_RNN_CELL_LSTM) return MICA_OK;
    return s->load_c ? run_copy(r, s->walk.child_at, s->load_c, dc, kept)
                     : clear(plan, r, kept, bytes_of(z->acc, rows * z->hidden));
}

static mica_rnn_slope_args args_of(const mica_plan *plan, const mica_run *r, int64_t layer)
{
    const mica_rnn_desc *d = plan->desc;
    const state *s = plan->state;
    const rnn_sizes *z = &s->walk.s;
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
    a.y_batch = last ? d->y.strides[1] : z->sides * z->out;
    a.y_time = last ? d->y.strides[0] : z->batch * a.y_batch;
    a.y_side = z->out * a.y_unit;
    a.rec = mica_at(r, s->rec_at), a.direct = mica_at(r, s->direct), a.dc = mica_at(r, s->dc);
    a.rec_new = mica_at(r, s->rec_new_at);
    a.low = mica_at(r, s->low), a.low_new = mica_at(r, s->low_new);
    a.dz = states_of(plan, r, MICA_RNN_DZ, layer), a.dz_row = rnn_slope_row(d);
    a.bounds = bounds_of(d);
    a.peepholes = states_of(plan, r, MICA_RNN_PEEPHOLES, layer);
    return a;
}

static mica_status run_phase(const mica_plan *plan, const mica_run *r, int phase,
                             const mica_rnn_slope_args *a)
{
    const rnn_walk *w = plan->state;
    if (plan->cuda) return mica_kernel_launch(w->kernels[phase], &w->grid, r->stream, a);
    if (w->s.acc == MICA_F64)
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
    const rnn_sizes *z = &s->walk.s;
    if (d->skip_input && !layer) {
        mica_run run = {
            .size = sizeof run, .workspace = mica_at(r, s->walk.child_at), .stream = r->stream};
        run.args[MICA_REDUCE_X] = r->args[MICA_RNN_DZ], run.args[MICA_REDUCE_Y] = to;
        return mica_plan_child_run(s->skip, &run);
    }
    const int64_t side_of_dz = z->steps * z->batch * rnn_slope_row(d);
    char *dz = states_of(plan, r, MICA_RNN_DZ, layer);
    for (int64_t side = 0; side < z->sides; side++)
        MICA_TRY(run_product(r, s->walk.child_at, s->inputs[kind_of(layer)][side],
                             element(dz, z->type, side * side_of_dz),
                             weights_of(plan, r, layer, side, MICA_RNN_PART_W),
                             side + 1 < z->sides ? sums : to, MICA_GEMM_RESIDUAL,
                             side ? sums : NULL));
    return MICA_OK;
}

/* Through the projection to the gradient of what it takes. */
static mica_status run_projection(const mica_plan *plan, const mica_run *r, int64_t layer,
                                  mica_rnn_slope_args a)
{
    const mica_rnn_desc *d = plan->desc;
    const state *s = plan->state;
    a.units = d->projection;
    a.dz = element(a.dz, s->walk.s.type, rnn_slopes(d) * d->hidden);
    MICA_TRY(run_phase(plan, r, RNN_BEFORE, &a));
    return run_product(r, s->walk.child_at, s->rec_new[kind_of(layer)], a.low_new,
                       weights_of(plan, r, layer, 0, MICA_RNN_PART_S), mica_at(r, s->rec_new_at),
                       MICA_GEMM_BIAS, NULL);
}

/* Through R's rows of n to the gradients of r h. */
static mica_status run_reset(const mica_plan *plan, const mica_run *r, int64_t layer,
                             const mica_rnn_slope_args *a)
{
    const state *s = plan->state;
    const rnn_sizes *z = &s->walk.s;
    char *of_state = weights_of(plan, r, layer, 0, MICA_RNN_PART_R);
    MICA_TRY(run_product(r, s->walk.child_at, s->rec_new[kind_of(layer)], a->low_new,
                         element(of_state, z->type, 2 * z->hidden * z->hidden),
                         mica_at(r, s->rec_new_at), MICA_GEMM_BIAS, NULL));
    return run_phase(plan, r, RNN_BEHIND, a);
}

static mica_status run_step(const mica_plan *plan, const mica_run *r, int64_t layer,
                            const mica_rnn_slope_args *a)
{
    const mica_rnn_desc *d = plan->desc;
    const state *s = plan->state;
    if (d->projection) MICA_TRY(run_projection(plan, r, layer, *a));
    MICA_TRY(run_phase(plan, r, RNN_SLOPES, a));
    if (d->reset_before) MICA_TRY(run_reset(plan, r, layer, a));
    return run_product(r, s->walk.child_at, s->rec[kind_of(layer)], a->low,
                       weights_of(plan, r, layer, 0, MICA_RNN_PART_R), mica_at(r, s->rec_at),
                       MICA_GEMM_BIAS, NULL);
}

static mica_status run_layer(const mica_plan *plan, const mica_run *r, int64_t layer)
{
    const state *s = plan->state;
    mica_rnn_slope_args a = args_of(plan, r, layer);
    MICA_TRY(begin(plan, r, layer));
    if (s->walk.persistent && a.steps > 0) MICA_TRY(rnn_run_persistent_slopes(plan, r, layer, &a));
    for (a.step = a.steps - 1; !s->walk.persistent && a.step >= 0; a.step--) {
        MICA_TRY(run_step(plan, r, layer, &a));
        a.first = 0;
    }
    if (a.steps > 0) {
        a.units = s->walk.s.out;
        if (!s->walk.persistent) MICA_TRY(run_phase(plan, r, RNN_INITIAL, &a));
        MICA_TRY(run_inputs(plan, r, layer));
        if (layer && rnn_drops(plan->desc))
            MICA_TRY(rnn_run_dropout(r, s->walk.child_at, s->dropouts[layer - 1],
                                     mica_at(r, s->between)));
    }
    MICA_TRY(run_copy(r, s->walk.child_at, s->store_h, mica_at(r, s->direct),
                      states_of(plan, r, MICA_RNN_HX, layer)));
    return run_copy(r, s->walk.child_at, s->store_c, mica_at(r, s->dc),
                    states_of(plan, r, MICA_RNN_CX, layer));
}

mica_status rnn_run_slopes(const mica_plan *plan, const mica_run *r)
{
    const rnn_sizes *z = &((const rnn_walk *)plan->state)->s;
    if (z->batch == 0) return MICA_OK;
    for (int64_t layer = z->layers - 1; layer >= 0; layer--) MICA_TRY(run_layer(plan, r, layer));
    return MICA_OK;
}
