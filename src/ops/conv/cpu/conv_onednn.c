/* SPDX-License-Identifier: Apache-2.0
 * Engine "onednn": oneDNN's primitives, f32, bf16 and 8-bit integers. formats=0 runs on the user's
 * layouts as they are; formats=1 lets the primitive choose the filter's layout, formats=2 every
 * layout, with reorders in each run: worth it for packed (NCHW) tensors, whose direct kernels reach
 * half the rate, and never needed for channels-last images. Runs with alpha and beta other than 1
 * and 0, and those where the threads of the plan are not there, go to the loops of engine "cpu".
 * A packed filter lies in the primitive's layout and costs nothing in runs; the workspace has room
 * for a plain copy of it, for the runs that go to the loops. */
#include "ops/conv/conv.h"

#include "cpu/cpu.h"
#include "ops/onednn/onednn.h"

enum { FORMATS_USER, FORMATS_FILTER, FORMATS_ALL, FORMATS };

static const char *const knobs[] = {"formats", NULL};

typedef struct state {
    mica_onednn *primitive;
    size_t workspace;
    int args[MICA_ONEDNN_TENSORS]; /* run arguments */
    int step_args[MICA_MAX_STEPS]; /* of the steps inside the primitive; -1: none */
    int bias_arg;                  /* -1: none */
    int done;                      /* steps of the epilogue inside the primitive */
    bool rest;                     /* others follow in a second pass over y */
} state;

/* ---- from the descriptor to oneDNN's terms ---- */

static mica_tensor filter_tensor(const mica_conv_desc *d, const mica_conv_geometry *g)
{
    if (g->groups == 1) return d->w;
    mica_tensor t = {.dtype = d->w.dtype, .rank = d->w.rank + 1};
    t.dims[0] = g->groups, t.strides[0] = g->f.g;
    for (int i = 0; i < d->w.rank; i++) {
        t.dims[i + 1] = i ? d->w.dims[i] : g->k;
        t.strides[i + 1] = d->w.strides[i];
    }
    return t;
}

static const mica_tensor *step_tensor(const mica_conv_desc *d, int step, int *arg)
{
    static const int args[] = {[MICA_STEP_BIAS] = MICA_CONV_BIAS,
                               [MICA_STEP_SCALE] = MICA_CONV_SCALE,
                               [MICA_STEP_SHIFT] = MICA_CONV_SHIFT,
                               [MICA_STEP_RESIDUAL] = MICA_CONV_RESIDUAL};
    const mica_tensor *all[] = {[MICA_STEP_BIAS] = &d->bias,
                                [MICA_STEP_SCALE] = &d->scale,
                                [MICA_STEP_SHIFT] = &d->shift,
                                [MICA_STEP_RESIDUAL] = &d->residual};
    *arg = args[step];
    return all[step];
}

/* Adds step i to the primitive, or returns false where oneDNN has no exact equal of it. */
static bool add_step(const mica_conv_desc *d, int i, mica_onednn_spec *spec, state *s)
{
    int kind = d->epilogue[i];
    mica_onednn_step *step = &spec->steps[spec->step_count];
    if (kind >= MICA_STEP_ACT) {
        mica_act act = (mica_act)(kind - MICA_STEP_ACT);
        if (!mica_onednn_has_act(act)) return false;
        *step = (mica_onednn_step){.kind = MICA_ONEDNN_ACT, .act = act, .a = (float)d->act_a};
        s->step_args[spec->step_count++] = -1;
        return true;
    }
    int arg;
    const mica_tensor *t = step_tensor(d, kind, &arg);
    if (t->dtype != MICA_F32) return false;
    if (kind == MICA_STEP_RESIDUAL) {
        if (!mica_tensor_equal(t, &d->y)) return false;
        /* of a single channel of nhwc 2.6 adds other elements than these */
        if (d->y.dims[1] == 1) return false;
        if (d->groups > 1 && mica_onednn_adds_late()) return false;
        *step = (mica_onednn_step){.kind = MICA_ONEDNN_ADD, .t = *t};
    } else {
        if (t->strides[0] != 1) return false;
        if (i == 0 && kind == MICA_STEP_BIAS) {
            spec->bias = *t;
            s->bias_arg = arg;
            return true;
        }
        *step =
            (mica_onednn_step){.kind = kind == MICA_STEP_SCALE ? MICA_ONEDNN_MUL : MICA_ONEDNN_ADD,
                               .t = {.dtype = MICA_F32, .rank = d->y.rank}};
        for (int k = 0; k < d->y.rank; k++) step->t.dims[k] = step->t.strides[k] = 1;
        step->t.dims[1] = step->t.strides[0] = t->dims[0];
    }
    s->step_args[spec->step_count++] = arg;
    return true;
}

static mica_status add_epilogue(const mica_conv_desc *d, int kind, mica_onednn_spec *spec, state *s,
                                mica_why *why)
{
    int i = 0;
    bool vectors = false;
    for (int k = 0; k < MICA_MAX_STEPS && d->epilogue[k]; k++)
        vectors |= d->epilogue[k] < MICA_STEP_ACT;
    if (vectors && mica_dtype_is_integer(d->y.dtype))
        return mica_refuse(why, "y is %s: oneDNN rounds to f32 before it rounds to integers",
                           mica_dtype_name(d->y.dtype));
    if (kind == MICA_CONV_KIND_FWD)
        while (i < MICA_MAX_STEPS && d->epilogue[i] && add_step(d, i, spec, s)) i++;
    s->done = i;
    s->rest = i < MICA_MAX_STEPS && d->epilogue[i];
    /* f32 results may wait in y for the rest; narrower ones would be rounded twice */
    if (s->rest && d->y.dtype != MICA_F32)
        return mica_refuse(why, "epilogue: oneDNN has no exact %s, and y is %s, not f32",
                           mica_step_spellings[d->epilogue[i]], mica_dtype_name(d->y.dtype));
    return MICA_OK;
}

static mica_status check_numbers(const mica_conv_desc *d, mica_why *why)
{
    MICA_TRY(conv_refuse_empty(d, why));
    if (d->x.dtype == MICA_E4M3 || d->x.dtype == MICA_E5M2)
        return mica_refuse(why, "x is %s, which oneDNN does not have here",
                           mica_dtype_name(d->x.dtype));
    if (d->x.dtype != MICA_S8 && d->x.dtype != MICA_U8) return MICA_OK;
    if (!mica_onednn_exact_int8())
        return mica_refuse(why, "8-bit sums are exact only with AVX-512 VNNI, which is not here");
    int64_t terms = mica_conv_terms(d), most = d->x.dtype == MICA_U8 ? 514 : 1024;
    if (d->y.dtype == MICA_S32 && terms > most)
        return mica_refuse(why, "sums of %lld products: past %lld oneDNN rounds s32 results to f32",
                           (long long)terms, (long long)most);
    return MICA_OK;
}

/* The forward kernels of 2.6 prepare something for each column of a row: 0.1 KB and 0.7 us with two
 * channels, 0.8 KB and 3 us with 64, and more where single taps have zeros around. */
static mica_status check_row(const mica_conv_roles *roles, const mica_conv_geometry *g,
                             mica_why *why)
{
    bool padded = false;
    for (int i = 0; i < 3; i++)
        padded = padded || g->pad[i] != 0 || (g->out[i] - 1) * g->stride[i] >= g->in[i];
    bool simple = g->tap[0] * g->tap[1] * g->tap[2] == 1 && !padded;
    if (roles->kind == MICA_CONV_KIND_FWD && g->out[2] > MICA_CONV_LONG_ROW && !simple)
        return mica_refuse(why, "rows have %lld columns, oneDNN is given at most %d", g->out[2],
                           MICA_CONV_LONG_ROW);
    return MICA_OK;
}

static mica_status make_spec(const mica_conv_desc *d, int formats, uint64_t packed,
                             mica_onednn_spec *spec, state *s, mica_why *why)
{
    static const mica_onednn_kind kinds[] = {MICA_ONEDNN_CONV_FWD, MICA_ONEDNN_CONV_DGRAD,
                                             MICA_ONEDNN_CONV_WGRAD};
    MICA_TRY(check_numbers(d, why));
    mica_conv_roles roles = mica_conv_roles_of(d);
    mica_conv_geometry g;
    mica_conv_geometry_make(d, &g);
    MICA_TRY(check_row(&roles, &g, why));
    *spec = (mica_onednn_spec){.kind = kinds[roles.kind]};
    *s = (state){.bias_arg = -1, .args = {roles.a, roles.f, roles.b}};
    spec->tensor[MICA_ONEDNN_SRC] = *mica_conv_tensor(d, roles.a);
    spec->tensor[MICA_ONEDNN_WEI] = filter_tensor(d, &g);
    spec->tensor[MICA_ONEDNN_DST] = *mica_conv_tensor(d, roles.b);
    spec->any[MICA_ONEDNN_SRC] = formats == FORMATS_ALL;
    /* not where a residual is added: 2.6 gave wrong sums for bf16 with 66 channels out */
    spec->any[MICA_ONEDNN_DST] = formats == FORMATS_ALL && !mica_tensor_given(&d->residual);
    spec->any[MICA_ONEDNN_WEI] = formats != FORMATS_USER;
    for (int i = 0; i < MICA_ONEDNN_TENSORS; i++)
        spec->packed[i] = spec->any[i] && packed >> s->args[i] & 1;
    int axes = d->x.rank - 2;
    for (int i = 0; i < axes; i++) {
        int at = i + 3 - axes;
        if (d->flip && g.tap[at] > 1)
            return mica_refuse(why, "flip: oneDNN does not mirror the filter's %lld taps",
                               g.tap[at]);
        if (g.pad[at] < 0) return mica_refuse(why, "pad is %lld: oneDNN does not crop", g.pad[at]);
        spec->stride[i] = g.stride[at];
        spec->dilation[i] = g.dilation[at];
        spec->pad_low[i] = g.pad[at];
        /* up to where the last output looks */
        spec->pad_high[i] = (g.out[at] - 1) * g.stride[at] + (g.tap[at] - 1) * g.dilation[at] + 1 -
                            g.in[at] - g.pad[at];
    }
    return add_epilogue(d, roles.kind, spec, s, why);
}

/* ---- engine ---- */

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    (void)device;
    mica_status status = MICA_UNSUPPORTED;
    MICA_TRY(conv_refuse_full_epilogue(desc, why));
    for (int formats = FORMATS - 1; formats >= 0 && status != MICA_OK; formats--) {
        mica_onednn_spec spec;
        state s;
        status = make_spec(desc, formats, 0, &spec, &s, why);
        if (status == MICA_OK) status = mica_onednn_probe(&spec, why);
    }
    return status;
}

static int configs(const void *desc, const mica_device_info *device, mica_config *list)
{
    (void)device;
    int count = 0;
    for (int formats = 0; formats < FORMATS; formats++) {
        mica_onednn_spec spec;
        state s;
        mica_why why;
        if (make_spec(desc, formats, 0, &spec, &s, &why) == MICA_OK &&
            mica_onednn_probe(&spec, &why) == MICA_OK)
            list[count++].knob[0] = formats;
    }
    return count;
}

static double bytes_of(const mica_tensor *t)
{
    return (double)mica_tensor_count(t) * mica_dtype_bits(t->dtype) / 8;
}

static int64_t taps_of(const mica_conv_desc *d)
{
    int64_t taps = 1;
    for (int i = 0; i < d->w.rank - 2; i++) taps *= d->w.dims[i + 2];
    return taps;
}

/* The wgrad kernels for channels-last images lose to those for blocked ones in one dimension, and
 * in two where taps or outputs lie apart. */
static bool skipping_wgrad(const mica_conv_desc *d)
{
    bool apart = d->w.rank == 3;
    for (int i = 0; i < d->w.rank - 2; i++) apart |= d->stride[i] > 1 || d->dilation[i] > 1;
    return d->pass == MICA_CONV_WGRAD && d->w.rank < 5 && taps_of(d) > 1 && apart && d->groups == 1;
}

/* And where single taps or groups are all there is, if runs get blocked images anyway. */
static bool blocked_wgrad(const mica_conv_desc *d, uint64_t packed)
{
    const uint32_t images = 1u << MICA_CONV_X | 1u << MICA_CONV_Y;
    return d->pass == MICA_CONV_WGRAD && (packed & images) == images &&
           (taps_of(d) == 1 || d->groups > 1);
}

static double bytes_copied(const mica_conv_desc *d, int formats, bool last, uint64_t packed)
{
    static const int args[] = {MICA_CONV_W, MICA_CONV_X, MICA_CONV_Y};
    bool all = formats == FORMATS_ALL && (!last || skipping_wgrad(d));
    int count = formats == FORMATS_USER ? 0 : all ? 3 : 1;
    double bytes = 0;
    for (int i = 0; i < count; i++)
        if (!(packed >> args[i] & 1)) bytes += bytes_of(mica_conv_tensor(d, args[i]));
    return bytes;
}

static double predict_packed(const void *desc, const mica_device_info *device,
                             const mica_config *config, uint64_t packed)
{
    const mica_conv_desc *d = desc;
    bool last = mica_tensor_is_channels_last(&d->x) && mica_tensor_is_channels_last(&d->y);
    double ms = mica_roofline_ms(&mica_op_conv, desc, device);
    int formats = config->knob[0];
    double copied = bytes_copied(d, formats, last, packed);
    bool grouped = d->groups > 1;
    /* Ratios measured on Zen 4 and Sapphire Rapids: plain layouts reach a half of the rate, a
     * twentieth with groups; wide depthwise filters have no quick wgrad. */
    double slowness = last ? 1.2 : grouped ? 30 : 2.5;
    bool depthwise = grouped && d->w.rank == 4 && d->w.dims[1] == 1;
    if (last && depthwise && d->pass != MICA_CONV_WGRAD) slowness = 1.5;
    if (last && formats == FORMATS_FILTER && skipping_wgrad(d)) slowness = 1.7;
    if (formats == FORMATS_USER) slowness = grouped ? 30 : 4;
    if (formats == FORMATS_ALL && !last) slowness = 1.2;
    if (formats == FORMATS_ALL && last && blocked_wgrad(d, packed)) slowness = 1;
    /* Depthwise ones of volumes have nothing but loops. */
    if (grouped && d->w.rank == 5 && d->w.dims[1] == 1) slowness = last ? 25 : 80;
    bool wide = d->w.rank == 4 && d->w.dims[2] * d->w.dims[3] > 25;
    if (d->pass == MICA_CONV_WGRAD && grouped && wide) slowness = 8;
    return slowness * ms + 2 * copied / (device->copy_gbps * 1e6) + 2e-3;
}

static double predict(const void *desc, const mica_device_info *device, const mica_config *config)
{
    return predict_packed(desc, device, config, 0);
}

/* The instructions that sum bf16 products in pairs take subnormal numbers for zeros; where there is
 * no second product it is one of zeros. */
static void contract(const void *desc, const mica_config *config, mica_contract *c)
{
    (void)config;
    const mica_conv_desc *d = desc;
    c->hides_nan = mica_onednn_hides_nan(d->epilogue, d->act_a);
    if (d->x.dtype != MICA_BF16 && d->y.dtype != MICA_BF16) return;
    c->k_inst = 2;
    c->flushes = true;
    c->spreads = true;
}

static mica_status build(mica_plan *plan)
{
    state *s;
    mica_onednn_spec spec;
    mica_why why = {""};
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    mica_status status = make_spec(plan->desc, plan->config.knob[0], plan->packed, &spec, s, &why);
    if (status == MICA_OK) status = mica_onednn_create(&spec, &s->primitive, &why);
    if (status == MICA_UNSUPPORTED) return mica_fail(status, "%s", why.text);
    MICA_TRY(status);
    mica_plan_holds(plan, mica_onednn_bytes(s->primitive));
    size_t bytes = mica_onednn_workspace(s->primitive);
    return bytes ? mica_book(plan, "onednn", bytes, &s->workspace) : MICA_OK;
}

static mica_status run_loops(const mica_plan *plan, const mica_run *r, mica_onednn_args *args,
                             void *workspace)
{
    const state *s = plan->state;
    mica_run plain = *r;
    MICA_TRY(mica_onednn_unpack(s->primitive, args, workspace));
    for (int i = 0; i < MICA_ONEDNN_TENSORS; i++) plain.args[s->args[i]] = args->tensor[i];
    return mica_conv_direct(plan->desc, &plain, mica_run_scalar(plan, r, MICA_CONV_ALPHA),
                            mica_run_scalar(plan, r, MICA_CONV_BETA));
}

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    const state *s = plan->state;
    mica_onednn_args args = {.bias = s->bias_arg < 0 ? NULL : r->args[s->bias_arg]};
    for (int i = 0; i < MICA_ONEDNN_TENSORS; i++) args.tensor[i] = r->args[s->args[i]];
    for (int i = 0; i < MICA_MAX_STEPS; i++)
        if (s->step_args[i] > 0) args.steps[i] = r->args[s->step_args[i]];
    void *workspace = plan->workspace ? mica_at(r, s->workspace) : NULL;
    if (mica_run_scalar(plan, r, MICA_CONV_ALPHA) != 1 ||
        mica_run_scalar(plan, r, MICA_CONV_BETA) != 0 || !mica_onednn_ready(s->primitive))
        return run_loops(plan, r, &args, workspace);
    MICA_TRY(mica_onednn_run(s->primitive, &args, workspace));
    if (s->rest) mica_conv_epilogue_pass(plan->desc, r, s->done);
    return MICA_OK;
}

static void destroy(mica_plan *plan)
{
    state *s = plan->state;
    if (s) mica_onednn_destroy(s->primitive);
}

/* ---- packed arguments ---- */

static int tensor_of(const state *s, int arg)
{
    for (int i = 0; i < MICA_ONEDNN_TENSORS; i++)
        if (s->args[i] == arg) return i;
    return -1;
}

static size_t packed_bytes(const mica_plan *plan, int arg)
{
    const state *s = plan->state;
    int i = tensor_of(s, arg);
    return i < 0 ? 0 : mica_onednn_packed_bytes(s->primitive, i);
}

static mica_status pack(const mica_plan *plan, int arg, const void *from, void *to, void *stream)
{
    (void)stream;
    const state *s = plan->state;
    return mica_onednn_pack(s->primitive, tensor_of(s, arg), from, to);
}

static const mica_packing packing = {packed_bytes, pack, predict_packed};

const mica_engine mica_conv_onednn = {.name = "onednn",
                                      .packing = &packing,
                                      .knobs = knobs,
                                      .available = mica_onednn_load,
                                      .accepts = accepts,
                                      .configs = configs,
                                      .predict = predict,
                                      .contract = contract,
                                      .build = build,
                                      .run = run,
                                      .destroy = destroy};
