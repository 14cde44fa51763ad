/* SPDX-License-Identifier: Apache-2.0
 * Engine "peer/cudnn": NVIDIA's library where it is found, to measure against in one process. Taken
 * only when asked for by name. All passes of f64, f32, f16 and bf16, packed tensors with channels
 * first or last, and the epilogue in the same graph; alpha is 1 and beta 0, because both are fixed
 * when the library plans. Configs are its own candidates, best first by its heuristic. */
#include "ops/conv/conv.h"
#include "ops/mma/mma_tile.h"

#include "peers/cudnn.h"

enum { RANKS = 12, TENSORS = MICA_MAX_STEPS + 4 };

static const char *const knobs[] = {"rank", NULL};

/* A problem as the library gets it: at least two spatial axes, every layout written out. */
typedef struct graph_spec {
    mica_cudnn_conv conv; /* without the numbers of the tensors */
    mica_tensor a, f, b, residual, vector;
    mica_conv_roles roles;
    bool matrix_units;
} graph_spec;

typedef struct state {
    mica_cudnn *graph;
    size_t workspace;
    int args[2 * TENSORS]; /* run argument of each tensor of the graph; -1: virtual */
    int count;
} state;

/* ---- layouts ---- */

/* The tensor with a unit axis in front of a single spatial one. */
static mica_tensor widened(const mica_tensor *t)
{
    mica_tensor wide = *t;
    if (t->rank != 3) return wide;
    wide.rank = 4;
    wide.dims[3] = t->dims[2], wide.strides[3] = t->strides[2];
    wide.dims[2] = 1, wide.strides[2] = t->dims[2] * t->strides[2];
    return wide;
}

static mica_tensor laid_out(const mica_tensor *t, bool last)
{
    mica_tensor to = *t;
    int64_t step = 1;
    if (last) to.strides[1] = step, step *= t->dims[1];
    for (int i = t->rank - 1; i >= 2; i--) to.strides[i] = step, step *= t->dims[i];
    if (!last) to.strides[1] = step, step *= t->dims[1];
    to.strides[0] = step;
    return to;
}

/* Strides of axes of one element say nothing. */
static bool lies_as(const mica_tensor *t, const mica_tensor *other)
{
    for (int i = 0; i < t->rank; i++)
        if (t->dims[i] > 1 && t->strides[i] != other->strides[i]) return false;
    return true;
}

static mica_status find_layout(const mica_tensor *t, const char *name, bool *first, bool *last,
                               mica_why *why)
{
    mica_tensor forms[] = {laid_out(t, false), laid_out(t, true)};
    *first = lies_as(t, &forms[0]), *last = lies_as(t, &forms[1]);
    if (*first || *last) return MICA_OK;
    return mica_refuse(why, "%s is neither packed nor channels last: others are not given to cuDNN",
                       name);
}

/* All have one layout; where a tensor fits both it takes that of the others. Mixed ones the library
 * plans, too, but some of its candidates then give wrong results (9.19 on an H200). */
static mica_status write_layouts(mica_tensor *const *tensors, const char *const *names, int count,
                                 mica_why *why)
{
    bool first[TENSORS], last[TENSORS], any_last = false, any_first = false;
    for (int i = 0; i < count; i++) {
        MICA_TRY(find_layout(tensors[i], names[i], &first[i], &last[i], why));
        any_last |= last[i] && !first[i];
        any_first |= first[i] && !last[i];
    }
    if (any_first && any_last)
        return mica_refuse(why, "some tensors are packed and some channels last, which cuDNN "
                                "computes wrongly at times");
    for (int i = 0; i < count; i++) *tensors[i] = laid_out(tensors[i], any_last);
    return MICA_OK;
}

static mica_status add_layouts(const mica_conv_desc *d, graph_spec *s, mica_why *why)
{
    s->a = widened(mica_conv_tensor(d, s->roles.a));
    s->b = widened(mica_conv_tensor(d, s->roles.b));
    s->f = widened(&d->w);
    mica_tensor *tensors[4] = {&s->a, &s->b, &s->f};
    static const char *const plain[] = {"x", "y", "w", "residual"}, *const transposed[] = {
                                                                        "y", "x", "w", "residual"};
    int count = 3;
    if (mica_tensor_given(&d->residual)) {
        s->residual = widened(&d->residual);
        tensors[count++] = &s->residual;
    }
    return write_layouts(tensors, d->transposed ? transposed : plain, count, why);
}

/* ---- from the descriptor to the graph ---- */

/* Padding after the end of an axis: what gives out positions, the same as before it if it may be.
 */
static int64_t pad_after(const mica_conv_geometry *g, int at)
{
    int64_t least = (g->out[at] - 1) * g->stride[at] + (g->tap[at] - 1) * g->dilation[at] + 1 -
                    g->in[at] - g->pad[at];
    int64_t most = least + g->stride[at] - 1;
    if (g->pad[at] >= least && g->pad[at] <= most) return g->pad[at];
    return least > 0 ? least : most < 0 ? most : 0;
}

static mica_status add_axes(const mica_conv_desc *d, mica_cudnn_conv *c, mica_why *why)
{
    mica_conv_geometry g;
    mica_conv_geometry_make(d, &g);
    c->axes = d->w.rank == 5 ? 3 : 2;
    for (int i = 0; i < c->axes; i++) {
        int at = i + 3 - c->axes;
        int64_t after = pad_after(&g, at);
        int64_t reach = (g.tap[at] - 1) * g.dilation[at];
        if (g.pad[at] < 0 || after < 0)
            return mica_refuse(why, "padding is %lld and %lld: cuDNN does not crop",
                               (long long)g.pad[at], (long long)after);
        if (c->pass == MICA_CUDNN_WGRAD && g.pad[at] != after)
            return mica_refuse(why,
                               "padding is %lld and %lld: cuDNN has filter gradients that look at "
                               "one of them only",
                               (long long)g.pad[at], (long long)after);
        if (g.in[at] + g.pad[at] + after > INT32_MAX || reach > INT32_MAX)
            return mica_refuse(why, "positions reach %lld, cuDNN counts them in 31 bits",
                               (long long)(g.in[at] + g.pad[at] + after));
        c->pad_low[i] = g.pad[at];
        c->pad_high[i] = after;
        c->stride[i] = g.stride[at];
        c->dilation[i] = g.dilation[at];
    }
    return MICA_OK;
}

static mica_status check_numbers(const mica_conv_desc *d, mica_dtype in, mica_why *why)
{
    if (mica_dtype_bits(in) == 8)
        return mica_refuse(why, "inputs are %s: 8-bit types are not given to cuDNN",
                           mica_dtype_name(in));
    MICA_TRY(conv_refuse_empty(d, why));
    for (int i = 0; i < MICA_MAX_STEPS && d->epilogue[i]; i++)
        if (d->epilogue[i] > MICA_STEP_ACT && d->epilogue[i] != MICA_STEP_ACT + MICA_ACT_RELU &&
            d->epilogue[i] != MICA_STEP_ACT + MICA_ACT_IDENTITY)
            return mica_refuse(why, "epilogue: of activations only relu is given to cuDNN, not %s",
                               mica_step_spellings[d->epilogue[i]]);
    const mica_tensor *vectors[] = {&d->bias, &d->scale, &d->shift};
    for (int i = 0; i < 3; i++)
        if (mica_tensor_given(vectors[i]) && vectors[i]->dims[0] > 1 && vectors[i]->strides[0] != 1)
            return mica_refuse(why, "a vector of the epilogue has stride %lld, cuDNN wants 1",
                               (long long)vectors[i]->strides[0]);
    return MICA_OK;
}

static mica_status make_spec(const mica_conv_desc *d, graph_spec *s, mica_why *why)
{
    static const mica_cudnn_pass passes[] = {[MICA_CONV_KIND_FWD] = MICA_CUDNN_FWD,
                                             [MICA_CONV_KIND_DGRAD] = MICA_CUDNN_DGRAD,
                                             [MICA_CONV_KIND_WGRAD] = MICA_CUDNN_WGRAD};
    *s = (graph_spec){.roles = mica_conv_roles_of(d)};
    mica_dtype in =
        mica_conv_tensor(d, s->roles.out == MICA_CONV_X ? MICA_CONV_Y : MICA_CONV_X)->dtype;
    s->matrix_units = in != MICA_F32 || d->compute == MICA_COMPUTE_TF32;
    s->conv = (mica_cudnn_conv){.pass = passes[s->roles.kind],
                                .flip = d->flip,
                                .compute = in == MICA_F64 ? MICA_F64 : MICA_F32};
    MICA_TRY(check_numbers(d, in, why));
    MICA_TRY(add_axes(d, &s->conv, why));
    MICA_TRY(add_layouts(d, s, why));
    s->vector = mica_conv_tensor(d, s->roles.out) == &d->w ? s->f
                : s->roles.out == s->roles.a               ? s->a
                                                           : s->b;
    return MICA_OK;
}

static mica_status add_tensor(state *s, const mica_tensor *t, int arg, int *number)
{
    MICA_TRY(mica_cudnn_add_tensor(s->graph, t, arg < 0, number));
    s->args[*number] = arg;
    s->count = *number + 1;
    return MICA_OK;
}

/* What step i reads beside the result so far; -1: nothing. */
static mica_status add_operand(const mica_conv_desc *d, const graph_spec *spec, int step, state *s,
                               int *number)
{
    static const int args[] = {[MICA_STEP_BIAS] = MICA_CONV_BIAS,
                               [MICA_STEP_SCALE] = MICA_CONV_SCALE,
                               [MICA_STEP_SHIFT] = MICA_CONV_SHIFT,
                               [MICA_STEP_RESIDUAL] = MICA_CONV_RESIDUAL};
    *number = -1;
    if (step >= MICA_STEP_ACT) return MICA_OK;
    if (step == MICA_STEP_RESIDUAL)
        return add_tensor(s, &spec->residual, MICA_CONV_RESIDUAL, number);
    const mica_tensor *given = step == MICA_STEP_BIAS    ? &d->bias
                               : step == MICA_STEP_SCALE ? &d->scale
                                                         : &d->shift;
    mica_tensor t = spec->vector;
    t.dtype = given->dtype;
    for (int i = 0; i < t.rank; i++)
        if (i != 1) t.dims[i] = 1;
    t = laid_out(&t, spec->vector.strides[1] == 1);
    return add_tensor(s, &t, args[step], number);
}

/* The library knows a residual followed by a bias, not the other way about. */
static int steps_of(const mica_conv_desc *d, int *steps)
{
    int count = 0;
    for (int i = 0; i < MICA_MAX_STEPS && d->epilogue[i]; i++) {
        if (d->epilogue[i] == MICA_STEP_ACT + MICA_ACT_IDENTITY) continue;
        steps[count++] = d->epilogue[i];
        if (count < 2 || steps[count - 2] != MICA_STEP_BIAS ||
            steps[count - 1] != MICA_STEP_RESIDUAL)
            continue;
        steps[count - 2] = MICA_STEP_RESIDUAL;
        steps[count - 1] = MICA_STEP_BIAS;
    }
    return count;
}

/* The convolution's result goes from step to step in virtual tensors of the accumulator's type. */
static mica_status add_steps(const mica_conv_desc *d, const graph_spec *spec, const int *steps,
                             int count, int from, int out, state *s)
{
    for (int i = 0; i < count; i++) {
        int other, to = out;
        mica_tensor between = spec->vector;
        between.dtype = spec->conv.compute;
        MICA_TRY(add_operand(d, spec, steps[i], s, &other));
        if (i + 1 < count) MICA_TRY(add_tensor(s, &between, -1, &to));
        mica_cudnn_step how = steps[i] >= MICA_STEP_ACT     ? MICA_CUDNN_RELU
                              : steps[i] == MICA_STEP_SCALE ? MICA_CUDNN_MUL
                                                            : MICA_CUDNN_ADD;
        MICA_TRY(mica_cudnn_add_step(s->graph, how, spec->conv.compute, from, other, to));
        from = to;
    }
    return MICA_OK;
}

static mica_status make_graph(const mica_conv_desc *d, graph_spec *spec, state *s)
{
    int a, b, f, steps[MICA_MAX_STEPS], count = steps_of(d, steps);
    mica_cudnn_conv *c = &spec->conv;
    MICA_TRY(add_tensor(s, &spec->a, spec->roles.a, &a));
    MICA_TRY(add_tensor(s, &spec->b, spec->roles.b, &b));
    MICA_TRY(add_tensor(s, &spec->f, spec->roles.f, &f));
    c->x = a, c->w = f, c->y = b;
    if (count == 0) return mica_cudnn_add_conv(s->graph, c);
    bool to_a = spec->roles.out == spec->roles.a;
    int out = to_a ? a : b, *result = to_a ? &c->x : &c->y;
    mica_tensor between = spec->vector;
    between.dtype = c->compute;
    MICA_TRY(add_tensor(s, &between, -1, result));
    int from = *result;
    MICA_TRY(mica_cudnn_add_conv(s->graph, c));
    return add_steps(d, spec, steps, count, from, out, s);
}

/* ---- engine ---- */

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    graph_spec spec;
    MICA_TRY(conv_refuse_full_epilogue(desc, why));
    if (device->offline) return mica_refuse(why, "cuDNN needs a device, this one is offline");
    MICA_TRY(make_spec(desc, &spec, why));
    if (mica_cudnn_load() != MICA_OK) return mica_refuse(why, "%s", mica_error());
    return MICA_OK;
}

static int configs(const void *desc, const mica_device_info *device, mica_config *list)
{
    (void)desc, (void)device;
    for (int i = 0; i < RANKS; i++) list[i].knob[0] = i;
    return RANKS;
}

static double predict(const void *desc, const mica_device_info *device, const mica_config *config)
{
    return mica_roofline_ms(&mica_op_conv, desc, device) * (1.2 + 1e-3 * config->knob[0]) + 3e-3;
}

/* Its kernels add in the tensor cores' way, may split the sum, and take subnormal numbers for
 * zeros (seen on an H200); nothing more is known of them. */
static void contract(const void *desc, const mica_config *config, mica_contract *c)
{
    const mica_conv_desc *d = desc;
    (void)config;
    if (d->x.dtype == MICA_F64) return;
    c->flushes = true;
    if (d->x.dtype == MICA_F32 && d->y.dtype == MICA_F32 && d->compute != MICA_COMPUTE_TF32) return;
    c->spreads = true;
    mica_mma_contract(d->compute == MICA_COMPUTE_TF32 ? MICA_F32 : MICA_BF16, c);
}

static mica_status build(mica_plan *plan)
{
    state *s;
    graph_spec spec;
    mica_why why = {""};
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    if (make_spec(plan->desc, &spec, &why) != MICA_OK)
        return mica_fail(MICA_UNSUPPORTED, "%s", why.text);
    MICA_TRY(mica_cudnn_create(plan->cuda, &s->graph));
    MICA_TRY(make_graph(plan->desc, &spec, s));
    MICA_TRY(mica_cudnn_plan(s->graph, plan->config.knob[0], spec.matrix_units));
    size_t bytes = mica_cudnn_workspace(s->graph);
    return bytes ? mica_book(plan, "cudnn", bytes, &s->workspace) : MICA_OK;
}

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    const state *s = plan->state;
    void *memory[2 * TENSORS] = {NULL};
    double alpha = mica_run_scalar(plan, r, MICA_CONV_ALPHA),
           beta = mica_run_scalar(plan, r, MICA_CONV_BETA);
    if (alpha != 1 || beta != 0)
        return mica_fail(MICA_UNSUPPORTED, "alpha is %g and beta %g: cuDNN planned for 1 and 0",
                         alpha, beta);
    for (int i = 0; i < s->count; i++)
        if (s->args[i] >= 0) memory[i] = r->args[s->args[i]];
    return mica_cudnn_run(s->graph, memory, plan->workspace ? mica_at(r, s->workspace) : NULL,
                          r->stream);
}

static void destroy(mica_plan *plan)
{
    state *s = plan->state;
    if (s) mica_cudnn_destroy(s->graph);
}

const mica_engine mica_conv_cudnn = {.name = "peer/cudnn",
                                     .cuda = true,
                                     .peer = true,
                                     .nondeterministic = true,
                                     .knobs = knobs,
                                     .accepts = accepts,
                                     .configs = configs,
                                     .predict = predict,
                                     .contract = contract,
                                     .build = build,
                                     .run = run,
                                     .destroy = destroy};
