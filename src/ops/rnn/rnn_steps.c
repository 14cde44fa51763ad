/* SPDX-License-Identifier: Apache-2.0
 * Engines "cpu" and "cuda": step by step. W x + b of all steps of a layer are one product; then
 * each step is the product R h, of both directions at once, and what the cell makes of it: loops on
 * the CPU, a kernel on GPUs, where a step thus costs two launches; with a projection, or a gru's
 * reset before the product, a second product and the rest of the step cost two more. Products and
 * copies of states are child plans. Not on ops/compose: that repeats a step of its list, and here a
 * product and a kernel take turns. Floor: R is read once a step, from the cache where it fits
 * there. */
#include "mica/pointwise.h"
#include "ops/compose/compose.h"
#include "ops/rnn/rnn_parts.h"

/* W x + b of a layer: rows of z by time and sequence. */
typedef struct inputs {
    mica_plan *product;
    int64_t z_time, z_batch;
} inputs;

typedef struct state {
    rnn_walk walk;
    bool twice;   /* a second product */
    int64_t made; /* gates that R h is of at first */
    inputs inputs[RNN_KINDS];
    mica_plan *rec[RNN_KINDS], *rec_new[RNN_KINDS];
    mica_plan *load_h, *load_state, *store_h, *store_state;
    size_t z, rec_at, rec_new_at, low, low_made, state, between;
    mica_plan *dropouts[]; /* behind each layer */
} state;

static bool has_state(const mica_rnn_desc *d)
{
    return d->cell == MICA_RNN_CELL_LSTM || d->cell == MICA_RNN_CELL_GRU;
}

/* ---- children ---- */

/* Steps and sequences are rows of one matrix where they lie at one distance, steps or sequences
 * counted slower; else there is a product for each step. */
static void choose_rows(const mica_tensor *x, const rnn_sizes *s, mica_gemm_desc *g, inputs *in)
{
    const int64_t rows = s->steps * s->batch, width = s->gates * s->hidden, *by = x->strides;
    const bool times = s->batch == 1 || s->steps == 1 || by[0] == s->batch * by[1];
    in->z_time = s->batch * width, in->z_batch = width;
    if (!times && by[1] == s->steps * by[0]) {
        in->z_time = width, in->z_batch = s->steps * width;
        g->a = matrix(s->type, rows, x->dims[2], by[0], by[2]);
    } else if (times) {
        g->a = matrix(s->type, rows, x->dims[2], s->batch == 1 ? by[0] : by[1], by[2]);
    } else {
        g->a = *x;
        g->c = mica_tensor_packed(s->acc, 3, (int64_t[]){s->steps, s->batch, width});
        return;
    }
    g->c = mica_tensor_packed(s->acc, 2, (int64_t[]){rows, width});
}

/* x and the bias, for each gate. */
static mica_status add_skip(mica_plan *plan, inputs *in)
{
    const mica_rnn_desc *d = plan->desc;
    const rnn_sizes *z = &((const state *)plan->state)->walk.s;
    const int64_t *by = d->x.strides;
    mica_pointwise_desc p = {
        .expr = "x0",
        .x0 = {.dtype = z->type,
               .rank = 4,
               .dims = {z->steps, z->batch, z->gates, z->hidden},
               .strides = {by[0], by[1], 0, by[2]},
               .strided = 1},
        .y0 = mica_tensor_packed(z->acc, 4, (int64_t[]){z->steps, z->batch, z->gates, z->hidden})};
    if (d->bias != MICA_RNN_BIAS_NONE) {
        strcpy(p.expr, "x0+x1");
        p.x1 = mica_tensor_packed(z->type, 2, (int64_t[]){z->gates, z->hidden});
    }
    in->z_time = z->batch * z->gates * z->hidden, in->z_batch = z->gates * z->hidden;
    return rnn_add_child(plan, "pointwise", &p, sizeof p, &in->product);
}

static mica_status add_inputs(mica_plan *plan, const mica_tensor *x, inputs *in)
{
    const mica_rnn_desc *d = plan->desc;
    const state *s = plan->state;
    const rnn_sizes *z = &s->walk.s;
    const int64_t width = z->gates * z->hidden;
    mica_gemm_desc g = {.b = matrix(z->type, x->dims[2], width, 1, x->dims[2]),
                        .compute = d->compute};
    choose_rows(x, z, &g, in);
    if (d->bias != MICA_RNN_BIAS_NONE) {
        g.epilogue[0] = MICA_STEP_BIAS;
        g.bias = mica_tensor_packed(z->type, 1, &width);
    }
    return rnn_add_child(plan, "gemm", &g, sizeof g, &in->product);
}

/* R h, and what a step takes that twice: R's rows of n, or the projection. */
static mica_status add_products(mica_plan *plan, int kind)
{
    const mica_rnn_desc *d = plan->desc;
    state *s = plan->state;
    const int64_t h = d->hidden;
    MICA_TRY(rnn_add_product(plan, kind, MICA_RNN_PART_R, s->made * h, false, &s->rec[kind]));
    if (!s->twice) return MICA_OK;
    const mica_rnn_part part = d->projection ? MICA_RNN_PART_S : MICA_RNN_PART_R;
    return rnn_add_product(plan, kind, part, d->projection ? d->projection : h, false,
                           &s->rec_new[kind]);
}

static mica_status add_children(mica_plan *plan)
{
    const mica_rnn_desc *d = plan->desc;
    state *s = plan->state;
    const rnn_sizes *z = &s->walk.s;
    const bool lstm = d->cell == MICA_RNN_CELL_LSTM, gru = d->cell == MICA_RNN_CELL_GRU;
    for (int kind = 0; kind < RNN_KINDS && kind < d->layers && z->steps > 0; kind++) {
        const mica_tensor between =
            mica_tensor_packed(z->type, 3, (int64_t[]){z->steps, z->batch, z->sides * z->out});
        MICA_TRY(d->skip_input && !kind
                     ? add_skip(plan, &s->inputs[kind])
                     : add_inputs(plan, kind ? &between : &d->x, &s->inputs[kind]));
        if (!s->walk.persistent) MICA_TRY(add_products(plan, kind));
    }
    MICA_TRY(rnn_add_copy(plan, &d->hx, z->type, true, &s->load_h));
    if (gru) {
        MICA_TRY(rnn_add_copy(plan, &d->hx, z->acc, true, &s->load_state));
        MICA_TRY(rnn_add_copy(plan, &d->hy, z->acc, false, &s->store_h));
    } else {
        MICA_TRY(rnn_add_copy(plan, &d->hy, z->type, false, &s->store_h));
    }
    if (!lstm) return MICA_OK;
    MICA_TRY(rnn_add_copy(plan, &d->cx, z->acc, true, &s->load_state));
    return rnn_add_copy(plan, &d->cy, z->acc, false, &s->store_state);
}

/* ---- building ---- */

static mica_status book(mica_plan *plan)
{
    const mica_rnn_desc *d = plan->desc;
    state *s = plan->state;
    const rnn_sizes *z = &s->walk.s;
    const int64_t rows = z->sides * z->batch, units = rows * z->hidden, outs = rows * z->out;
    const struct {
        const char *name;
        mica_dtype type;
        int64_t count;
        size_t *at;
    } list[] = {
        {"products of inputs", z->acc, units * z->steps * z->gates, &s->z},
        {"products of states", z->acc, s->walk.persistent ? 0 : units * s->made, &s->rec_at},
        {"second products", z->acc, s->twice ? outs : 0, &s->rec_new_at},
        {"states, rounded", z->type, outs, &s->low},
        {"of second products", z->type, s->twice ? units : 0, &s->low_made},
        {"states", z->acc, has_state(d) ? units : 0, &s->state},
        {"between layers", z->type, d->layers > 1 ? outs * z->steps : 0, &s->between}};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        MICA_TRY(mica_book(plan, list[i].name, bytes_of(list[i].type, list[i].count), list[i].at));
    return mica_book(plan, "child plans", s->walk.child_bytes, &s->walk.child_at);
}

static mica_status add_kernel(mica_plan *plan, int phase)
{
    const mica_rnn_desc *d = plan->desc;
    return rnn_add_kernel(plan, "ops/rnn/rnn_cell.cu", "rnn_cell", "SAVES",
                          mica_tensor_given(&d->states), phase);
}

static mica_status build_forward(mica_plan *plan)
{
    const mica_rnn_desc *d = plan->desc;
    state *s;
    MICA_TRY(mica_plan_state(
        plan, sizeof *s + (rnn_drops(d) ? (size_t)d->layers : 0) * sizeof *s->dropouts, &s));
    s->walk.s = rnn_sizes_of(d);
    s->twice = rnn_has_inner(d);
    s->made = d->reset_before ? 2 : s->walk.s.gates;
    if (s->walk.s.batch == 0) return MICA_OK;
    MICA_TRY(rnn_add_persistent(plan));
    MICA_TRY(add_children(plan));
    MICA_TRY(rnn_add_dropouts(plan, false, s->dropouts));
    MICA_TRY(book(plan));
    if (!plan->cuda || s->walk.s.steps == 0 || s->walk.persistent) return MICA_OK;
    if (!s->twice) return add_kernel(plan, RNN_WHOLE);
    MICA_TRY(add_kernel(plan, RNN_FIRST));
    return add_kernel(plan, RNN_SECOND);
}

/* ---- running ---- */

static mica_status begin(const mica_plan *plan, const mica_run *r, int64_t layer)
{
    const mica_rnn_desc *d = plan->desc;
    const state *s = plan->state;
    const rnn_sizes *z = &s->walk.s;
    const int64_t rows = z->sides * z->batch;
    const int first = d->cell == MICA_RNN_CELL_LSTM ? MICA_RNN_CX : MICA_RNN_HX;
    void *low = mica_at(r, s->low), *kept = mica_at(r, s->state);
    if (s->load_h)
        MICA_TRY(
            run_copy(r, s->walk.child_at, s->load_h, states_of(plan, r, MICA_RNN_HX, layer), low));
    else
        MICA_TRY(clear(plan, r, low, bytes_of(z->type, rows * z->out)));
    if (s->load_state)
        return run_copy(r, s->walk.child_at, s->load_state, states_of(plan, r, first, layer), kept);
    return has_state(d) ? clear(plan, r, kept, bytes_of(z->acc, rows * z->hidden)) : MICA_OK;
}

static mica_status finish(const mica_plan *plan, const mica_run *r, int64_t layer)
{
    const mica_rnn_desc *d = plan->desc;
    const state *s = plan->state;
    const size_t h = d->cell == MICA_RNN_CELL_GRU ? s->state : s->low;
    MICA_TRY(run_copy(r, s->walk.child_at, s->store_h, mica_at(r, h),
                      states_of(plan, r, MICA_RNN_HY, layer)));
    return run_copy(r, s->walk.child_at, s->store_state, mica_at(r, s->state),
                    states_of(plan, r, MICA_RNN_CY, layer));
}

static mica_status run_skip(const mica_run *r, size_t at, const mica_plan *child, void *x,
                            void *bias, void *z)
{
    mica_run run = {.size = sizeof run, .workspace = mica_at(r, at), .stream = r->stream};
    run.args[MICA_POINTWISE_X0] = x, run.args[MICA_POINTWISE_X0 + 1] = bias;
    run.args[MICA_POINTWISE_Y0] = z;
    return mica_plan_child_run(child, &run);
}

static mica_status run_inputs(const mica_plan *plan, const mica_run *r, int64_t layer)
{
    const mica_rnn_desc *d = plan->desc;
    const state *s = plan->state;
    const rnn_sizes *n = &s->walk.s;
    const int64_t apart = n->steps * n->batch * n->gates * n->hidden;
    const mica_plan *child = s->inputs[kind_of(layer)].product;
    void *x = layer ? mica_at(r, s->between) : r->args[MICA_RNN_X];
    for (int64_t side = 0; side < n->sides; side++) {
        void *bias = weights_of(plan, r, layer, side, MICA_RNN_PART_B);
        void *z = element(mica_at(r, s->z), n->acc, side * apart);
        if (d->skip_input && !layer)
            MICA_TRY(run_skip(r, s->walk.child_at, child, x, bias, z));
        else
            MICA_TRY(run_product(r, s->walk.child_at, child, x,
                                 weights_of(plan, r, layer, side, MICA_RNN_PART_W), z,
                                 MICA_GEMM_BIAS, bias));
    }
    return MICA_OK;
}

static mica_rnn_args args_of(const mica_plan *plan, const mica_run *r, int64_t layer)
{
    const mica_rnn_desc *d = plan->desc;
    const state *s = plan->state;
    const rnn_sizes *z = &s->walk.s;
    const inputs *in = &s->inputs[kind_of(layer)];
    mica_rnn_args a = {.sides = z->sides, .batch = z->batch, .units = z->hidden, .steps = z->steps};
    a.z = mica_at(r, s->z);
    a.z_side = z->steps * z->batch * z->gates * z->hidden;
    a.z_time = in->z_time, a.z_batch = in->z_batch;
    a.rec = mica_at(r, s->rec_at), a.rec_new = mica_at(r, s->rec_new_at);
    a.bias = weights_of(plan, r, layer, 0, MICA_RNN_PART_BR);
    a.bias_side = 2 * z->gates * z->hidden;
    a.lengths = r->args[MICA_RNN_LENGTHS], a.length_stride = d->lengths.strides[0];
    a.long_lengths = d->lengths.dtype == MICA_S64;
    a.low = mica_at(r, s->low), a.low_made = mica_at(r, s->low_made);
    a.state = mica_at(r, s->state);
    const bool last = layer == z->layers - 1;
    a.y = last ? r->args[MICA_RNN_Y] : mica_at(r, s->between);
    a.y_unit = last ? d->y.strides[2] : 1;
    a.y_batch = last ? d->y.strides[1] : z->sides * z->out;
    a.y_time = last ? d->y.strides[0] : z->batch * a.y_batch;
    a.y_side = z->out * a.y_unit;
    a.bounds = bounds_of(d);
    a.peepholes = states_of(plan, r, MICA_RNN_PEEPHOLES, layer);
    if (!mica_tensor_given(&d->states)) return a;
    a.states = states_of(plan, r, MICA_RNN_STATES, layer);
    a.cells = states_of(plan, r, MICA_RNN_CELLS, layer);
    a.gates = states_of(plan, r, MICA_RNN_GATES, layer);
    a.inner = states_of(plan, r, MICA_RNN_INNER, layer);
    return a;
}

static mica_status run_cell(const mica_plan *plan, const mica_run *r, int phase,
                            const mica_rnn_args *a)
{
    const rnn_walk *w = plan->state;
    if (plan->cuda) return mica_kernel_launch(w->kernels[phase], &w->grid, r->stream, a);
    if (w->s.acc == MICA_F64)
        rnn_cell_f64(plan->desc, phase, a);
    else
        rnn_cell_f32(plan->desc, phase, a);
    return MICA_OK;
}

/* The second half of a step: the product of what the first one made, and what becomes of that. */
static mica_status run_second(const mica_plan *plan, const mica_run *r, int64_t layer,
                              mica_rnn_args a)
{
    const mica_rnn_desc *d = plan->desc;
    const state *s = plan->state;
    const int64_t skipped = d->projection ? 0 : 2 * d->hidden * d->hidden; /* rows of r and z */
    char *weights =
        weights_of(plan, r, layer, 0, d->projection ? MICA_RNN_PART_S : MICA_RNN_PART_R);
    MICA_TRY(run_product(r, s->walk.child_at, s->rec_new[kind_of(layer)], a.low_made,
                         element(weights, s->walk.s.type, skipped), mica_at(r, s->rec_new_at),
                         MICA_GEMM_BIAS, NULL));
    a.units = s->walk.s.out;
    return run_cell(plan, r, RNN_SECOND, &a);
}

static mica_status run_layer(const mica_plan *plan, const mica_run *r, int64_t layer)
{
    const state *s = plan->state;
    mica_rnn_args a = args_of(plan, r, layer);
    char *of_state = weights_of(plan, r, layer, 0, MICA_RNN_PART_R);
    MICA_TRY(begin(plan, r, layer));
    if (a.steps > 0) MICA_TRY(run_inputs(plan, r, layer));
    if (s->walk.persistent && a.steps > 0) MICA_TRY(rnn_run_persistent(plan, r, layer, &a));
    for (; !s->walk.persistent && a.step < a.steps; a.step++) {
        MICA_TRY(run_product(r, s->walk.child_at, s->rec[kind_of(layer)], a.low, of_state, a.rec,
                             MICA_GEMM_BIAS, NULL));
        MICA_TRY(run_cell(plan, r, s->twice ? RNN_FIRST : RNN_WHOLE, &a));
        if (s->twice) MICA_TRY(run_second(plan, r, layer, a));
    }
    if (rnn_drops(plan->desc))
        MICA_TRY(rnn_run_dropout(r, s->walk.child_at, s->dropouts[layer], mica_at(r, s->between)));
    return finish(plan, r, layer);
}

static mica_status run_forward(const mica_plan *plan, const mica_run *r)
{
    const rnn_sizes *z = &((const rnn_walk *)plan->state)->s;
    if (z->batch == 0) return MICA_OK;
    for (int64_t layer = 0; layer < z->layers; layer++) MICA_TRY(run_layer(plan, r, layer));
    return MICA_OK;
}

/* ---- engines ---- */

mica_status rnn_build(mica_plan *plan)
{
    const mica_rnn_pass pass = ((const mica_rnn_desc *)plan->desc)->pass;
    if (pass == MICA_RNN_BWD_DATA) return rnn_build_slopes(plan);
    return pass == MICA_RNN_BWD_WEIGHTS ? rnn_build_weights(plan) : build_forward(plan);
}

mica_status rnn_run(const mica_plan *plan, const mica_run *r)
{
    const mica_rnn_pass pass = ((const mica_rnn_desc *)plan->desc)->pass;
    if (pass == MICA_RNN_BWD_DATA) return rnn_run_slopes(plan, r);
    return pass == MICA_RNN_BWD_WEIGHTS ? mica_compose_run(plan, r) : run_forward(plan, r);
}

/* By measurements on an H200: two microseconds a launch that waits for the one before it, backward
 * three; R from the L2; products at half the rate of large ones; what the cells read and write. */
double rnn_stepwise_ms(const mica_rnn_desc *d, const mica_device_info *device)
{
    const rnn_sizes s = rnn_sizes_of(d);
    const double sides = (double)s.sides, batch = (double)s.batch;
    const double weights = sides * (double)(s.gates * s.hidden) * (double)s.out;
    const double rate = mica_dtype_bits(s.type) == 16 ? device->bf16_tflops : device->f32_tflops;
    const double read = weights * (double)mica_dtype_bits(s.type) / 8 / 5.5e9;
    const double launches = (rnn_has_inner(d) ? 4 : 2) * (d->pass == MICA_RNN_FWD ? 2e-3 : 3e-3);
    const double product = 2 * weights * batch / (0.5e9 * rate);
    const double cells = 40 * sides * batch * (double)s.hidden / (1e6 * device->copy_gbps);
    return (double)s.layers * (double)s.steps * (launches + read + product + cells);
}

static double predict(const void *desc, const mica_device_info *device, const mica_config *config)
{
    (void)config;
    const mica_rnn_desc *d = desc;
    const double steps = d->pass == MICA_RNN_BWD_WEIGHTS ? 0 : rnn_stepwise_ms(d, device);
    return 2e-2 + steps + mica_roofline_ms(&mica_op_rnn, d, device) / 0.3;
}

const mica_engine mica_rnn_cpu = {
    .name = "cpu", .reached = 0.2, .start_ms = 2e-3, .build = rnn_build, .run = rnn_run};

const mica_engine mica_rnn_cuda = {
    .name = "cuda", .cuda = true, .predict = predict, .build = rnn_build, .run = rnn_run};
