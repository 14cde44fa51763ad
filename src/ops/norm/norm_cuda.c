/* SPDX-License-Identifier: Apache-2.0
 * Engine "cuda": a group of 1 to 1024 threads per set, from its sums to its elements; a set that
 * fits the group's registers is read once, a longer one again from the cache. split=1, for few and
 * large sets (batch): sums in parts, merged, then a pass over the elements: one launch each, some
 * workspace, x read again (and once more by the sums of fwd, where caches do not keep a part).
 * Gradients of scale and bias are sums of the same kind; with split=2 blocks that take many long
 * rows, one after the other, form them on the way. Any strides and types; memory-bound where the
 * tensors are contiguous one way or the other; parts whose channels lie side by side (batch;
 * gradients of scale and bias of rows) have a kernel of their own. */
#include "ops/norm/norm_cuda.h"
#include "ops/access/access.h"

#include <string.h>

static const char *const knobs[] = {"split", NULL};

typedef struct launch {
    mica_kernel *kernel;
    norm_args args;
    mica_grid grid;
    bool affine, dx; /* only useful if these results are wanted */
    bool from_dresidual;
    int align[NORM_ARG_COUNT];
} launch;

typedef struct state {
    launch launches[NORM_MAX_STAGES];
    int count;
    size_t partial, known;
    bool uses_workspace;
} state;

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    (void)desc, (void)device, (void)why;
    return MICA_OK;
}

static int configs(const void *desc, const mica_device_info *device, mica_config *list)
{
    (void)device;
    int count = 0;
    list[count++].knob[0] = NORM_WHOLE;
    if (norm_stages_can_split(desc)) list[count++].knob[0] = NORM_SPLIT;
    if (norm_stages_can_gather(desc)) list[count++].knob[0] = NORM_GATHERED;
    return count;
}

/* Each launch at the speed of memory, less where its blocks do not fill the device. */
static double predict(const void *desc, const mica_device_info *device, const mica_config *config)
{
    norm_stages list;
    norm_stages_make(desc, config->knob[0], &list);
    double roofline = mica_roofline_ms(&mica_op_norm, desc, device), ms = 0;
    for (int i = 0; i < list.count; i++) {
        const norm_stage *s = &list.at[i];
        double threads = (double)norm_stage_blocks(s) * s->groups.threads * s->groups.slices;
        double full = (s->gathering ? 500.0 : 1024.0) * device->units,
               filled = threads < full ? threads / full : 1;
        double share = s->kind == NORM_MERGE ? 0 : s->kind == NORM_FUSED ? 1.2 : 0.8;
        ms += 3e-3 + (filled > 0 ? share * roofline / filled : 0);
    }
    return ms;
}

static int log2_of(int power)
{
    int n = 0;
    while (power > 1) power /= 2, n++;
    return n;
}

static int64_t quotient_up(int64_t n, int64_t by)
{
    return n / by + (n % by != 0);
}

/* Additions of one thread, then those of slice_reduce: a butterfly, then warp by warp. At least
 * four stand for the roundings outside of sums. */
static void contract(const void *desc, const mica_config *config, mica_contract *c)
{
    norm_stages list;
    norm_stages_make(desc, config->knob[0], &list);
    c->n_seq = 1, c->n_outer = 4;
    for (int i = 0; i < list.count; i++) {
        const norm_stage *s = &list.at[i];
        int threads = s->groups.threads;
        int64_t piece = s->piece < s->split.reduced.count ? s->piece : s->split.reduced.count;
        int64_t seq = (piece + threads - 1) / threads + s->groups.vector - 1;
        int64_t outer = log2_of(threads) + (s->groups.along && threads > 32 ? threads / 32 : 0);
        if (s->kind == NORM_APPLY || s->kind == NORM_MERGE) continue;
        if (s->gathering && quotient_up(s->split.kept.count, s->gathering) > seq)
            seq = quotient_up(s->split.kept.count, s->gathering);
        if (seq > c->n_seq) c->n_seq = seq;
        if (outer > c->n_outer) c->n_outer = outer;
    }
}

/* ---- kernels ---- */

static void add_types(mica_text *p, const mica_norm_desc *d)
{
    static const int vectors[] = {MICA_NORM_X,     MICA_NORM_RESIDUAL, MICA_NORM_SCALE,
                                  MICA_NORM_BIAS,  MICA_NORM_Y,        MICA_NORM_SUM,
                                  MICA_NORM_DY,    MICA_NORM_DX,       MICA_NORM_DSCALE,
                                  MICA_NORM_DBIAS, MICA_NORM_DRESIDUAL};
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++) {
        char name[32];
        mica_text text = {name, sizeof name, 0};
        const mica_tensor *t = mica_norm_tensor(d, vectors[i]);
        mica_text_add(&text, "%s_t", mica_op_norm.args[vectors[i]].name);
        mica_prologue_type(p, name, mica_tensor_given(t) ? t->dtype : d->x.dtype);
    }
    mica_prologue_type(p, "stat_t", mica_dtype_accumulator(d->x.dtype));
    mica_prologue_type(p, "acc_t", mica_dtype_accumulator(d->x.dtype));
}

static void add_common(mica_text *p, const mica_norm_desc *d)
{
    mica_text_add(p, "enum {");
    for (int i = 0; i < NORM_ARG_COUNT; i++)
        mica_text_add(p, " ARG_%s = %d,", mica_op_norm.args[i].name, i);
    mica_text_add(p, " };\n");
    mica_prologue_int(p, "BACKWARD", d->pass == MICA_NORM_BWD);
    mica_prologue_int(p, "INFER", d->mode == MICA_NORM_INFER);
    mica_prologue_int(p, "CENTRED", d->kind != MICA_NORM_RMS);
    mica_prologue_int(p, "CHANNEL_SETS", d->kind == MICA_NORM_BATCH);
    add_types(p, d);
}

static void add_stage(mica_text *p, const mica_norm_desc *d, const norm_stage *s)
{
    mica_prologue_int(p, "FUSED", s->kind == NORM_FUSED);
    mica_prologue_int(p, "PARTIAL", s->kind == NORM_PARTIAL);
    mica_prologue_int(p, "APPLY", s->kind == NORM_APPLY);
    mica_prologue_int(p, "DIRECT", s->direct);
    mica_prologue_int(p, "GATHERS", s->gathering != 0);
    mica_prologue_int(p, "PER_ELEMENT", !s->sets && d->kind != MICA_NORM_BATCH);
    mica_prologue_int(p, "SCALED", s->sets && d->kind != MICA_NORM_BATCH);
    mica_prologue_int(p, "RESIDUAL", mica_norm_adds_in_front(d));
    mica_prologue_int(p, "BEHIND", mica_norm_adds_behind(d));
    mica_prologue_int(p, "DRESIDUAL", s->dresidual);
    mica_prologue_int(p, "SUM", mica_tensor_given(&d->sum));
    mica_prologue_int(p, "SCALE", mica_tensor_given(&d->scale));
    mica_prologue_int(p, "BIAS", mica_tensor_given(&d->bias));
    mica_prologue_int(p, "SCALE_ALONG", norm_lies_along(&s->split, MICA_NORM_SCALE));
    mica_prologue_int(p, "BIAS_ALONG", norm_lies_along(&s->split, MICA_NORM_BIAS));
    mica_prologue_int(p, "REDUCED_RANK", s->split.reduced.rank);
    mica_prologue_activation(p, d->act);
    mica_prologue_int(p, "ACT", d->act);
    mica_slices_prologue(p, &s->groups);
}

static mica_status add_kernel(mica_plan *plan, const mica_norm_desc *d, const norm_stage *s,
                              mica_kernel **kernel)
{
    char buffer[4096] = "";
    mica_text p = {buffer, sizeof buffer, 0};
    add_common(&p, d);
    mica_kernel_spec spec = {"ops/norm/norm_cuda.cu", "norm_groups", buffer, 0};
    if (s->kind == NORM_MERGE) {
        spec.file = "ops/norm/norm_merge_cuda.cu", spec.entry = "norm_merge";
        mica_prologue_int(&p, "SETS", s->sets);
        mica_prologue_int(&p, "LANES", NORM_MERGE_LANES);
        mica_prologue_int(&p, "WALKERS", NORM_MERGE_WALKERS);
    } else {
        add_stage(&p, d, s);
        if (s->channels) spec.file = "ops/norm/norm_channels_cuda.cu", spec.entry = "norm_channels";
    }
    return mica_plan_add_kernel(plan, &spec, kernel);
}

/* ---- build and run ---- */

/* Alignment that vectors need: those of the tensors and of what lies beside their elements. */
static void set_alignment(const mica_norm_desc *d, const norm_stage *s, int *align)
{
    for (int i = 0; i < NORM_ARG_COUNT; i++) {
        const mica_tensor *t = mica_norm_tensor(d, i);
        bool vector = mica_tensor_given(t) && norm_lies_along(&s->split, i);
        align[i] = vector ? mica_access_bytes(t->dtype, s->groups.vector) : 1;
    }
}

static mica_status add_launch(mica_plan *plan, state *st, const norm_stage *s)
{
    mica_norm_desc desc;
    const mica_norm_desc *d = &desc;
    norm_stage_desc(plan->desc, s->from_dresidual, &desc);
    launch *l = &st->launches[st->count++];
    l->args = (norm_args){.split = s->split,
                          .parts = s->parts,
                          .piece = s->piece,
                          .eps = d->eps,
                          .momentum = d->momentum,
                          .unbiased = mica_norm_unbiased(d),
                          .act_a = d->act_a,
                          .act_b = d->act_b};
    int64_t blocks = norm_stage_blocks(s);
    int threads = s->kind == NORM_MERGE ? NORM_MERGE_LANES * NORM_MERGE_WALKERS
                                        : s->groups.threads * s->groups.slices;
    l->grid = (mica_grid){.grid = {(unsigned)(blocks < INT32_MAX ? blocks : INT32_MAX)},
                          .block = {(unsigned)threads}};
    bool batch = d->kind == MICA_NORM_BATCH;
    l->affine = !s->sets;
    l->dx = d->pass == MICA_NORM_BWD && s->sets && !s->gathering && !s->dresidual &&
            (!batch || s->kind == NORM_APPLY);
    l->from_dresidual = s->from_dresidual;
    set_alignment(d, s, l->align);
    return add_kernel(plan, d, s, &l->kernel);
}

/* The walks over channels and over sets are done one after the other and share the workspace. */
static mica_status book(mica_plan *plan, state *st, const norm_stages *list)
{
    size_t bytes = (size_t)mica_dtype_bits(
                       mica_dtype_accumulator(((const mica_norm_desc *)plan->desc)->x.dtype)) /
                   8;
    size_t partial = 0, known = 0;
    for (int i = 0; i < list->count; i++) {
        const norm_stage *s = &list->at[i];
        size_t kept = (size_t)s->split.kept.count * 2 * bytes;
        if (s->kind != NORM_MERGE) continue;
        if (kept * (size_t)s->parts > partial) partial = kept * (size_t)s->parts;
        if (s->sets) known = kept;
    }
    if (partial) MICA_TRY(mica_book(plan, "partial sums", partial, &st->partial));
    if (known) MICA_TRY(mica_book(plan, "statistics", known, &st->known));
    st->uses_workspace = partial > 0;
    return MICA_OK;
}

static mica_status build(mica_plan *plan)
{
    state *st;
    norm_stages list;
    MICA_TRY(mica_plan_state(plan, sizeof *st, &st));
    norm_stages_make(plan->desc, plan->config.knob[0], &list);
    for (int i = 0; i < list.count; i++) MICA_TRY(add_launch(plan, st, &list.at[i]));
    return book(plan, st, &list);
}

static bool is_wanted(const launch *l, void *const *args)
{
    if (l->affine && !args[MICA_NORM_DSCALE] && !args[MICA_NORM_DBIAS]) return false;
    return !l->dx || args[MICA_NORM_DX];
}

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    const state *st = plan->state;
    void *pointers[NORM_ARG_COUNT];
    for (int i = 0; i < NORM_ARG_COUNT; i++)
        pointers[i] = mica_op_dir(plan->op, plan->desc, i) == MICA_UNUSED ? NULL : r->args[i];
    for (int i = 0; i < st->count; i++) {
        const launch *l = &st->launches[i];
        if (!is_wanted(l, pointers)) continue;
        norm_args args = l->args;
        memcpy(args.args, pointers, sizeof pointers);
        if (l->from_dresidual) args.args[MICA_NORM_DY] = pointers[MICA_NORM_DRESIDUAL];
        args.whole = 1;
        args.beta = mica_run_scalar(plan, r, MICA_NORM_BETA);
        for (int a = 0; a < NORM_ARG_COUNT; a++)
            args.whole &= mica_access_starts(args.args[a], l->align[a]);
        if (st->uses_workspace) {
            args.partial = mica_at(r, st->partial);
            args.known = mica_at(r, st->known);
        }
        MICA_TRY(mica_kernel_launch(l->kernel, &l->grid, r->stream, &args));
    }
    return MICA_OK;
}

const mica_engine mica_norm_cuda = {.name = "cuda",
                                    .cuda = true,
                                    .knobs = knobs,
                                    .accepts = accepts,
                                    .configs = configs,
                                    .predict = predict,
                                    .contract = contract,
                                    .build = build,
                                    .run = run};
