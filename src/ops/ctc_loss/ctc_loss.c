/* SPDX-License-Identifier: Apache-2.0
 * CTC: tables, inference, checks, fills, and the operations that its engines run. */
#include "ops/ctc_loss/ctc_loss.h"
#include "mica/pointwise.h"
#include "mica/reduce.h"
#include "mica/scan.h"
#include "base/random.h"

#include <math.h>

static const char *const passes[] = {"fwd", "bwd", NULL};
static const char *const reductions[] = {"mean", "sum", "none", NULL};
static const char *const inputs[] = {"logits", "log_probs", NULL};
static const char *const gradients[] = {"by_logits", "by_log_probs", NULL};

#define FIELD(member, kind, ...) MICA_FIELD(mica_ctc_loss_desc, member, kind, __VA_ARGS__)
static const mica_field fields[] = {
    FIELD(pass, ENUM, .spellings = passes, .doc = "forward, or gradient of x"),
    FIELD(x, TENSOR, .zero = "needed", .doc = "logits or log-probabilities, T x B x C"),
    FIELD(labels, TENSOR, .zero = "needed", .doc = "B x L, or all in a row; s32 or s64"),
    FIELD(label_lengths, TENSOR, .zero = "inferred", .doc = "labels of each sequence, s32 or s64"),
    FIELD(input_lengths, TENSOR, .zero = "T each", .doc = "steps of each sequence, s32 or s64"),
    FIELD(loss, TENSOR, .zero = "inferred", .doc = "fwd: one element, or B with reduction=none"),
    FIELD(dloss, TENSOR, .zero = "inferred", .doc = "bwd: gradient of the loss"),
    FIELD(dx, TENSOR, .zero = "inferred", .doc = "bwd: gradient of x"),
    FIELD(reduction, ENUM, .spellings = reductions,
          .doc = "mean of losses per label, sum of losses, or none"),
    FIELD(input, ENUM, .spellings = inputs, .doc = "what x is"),
    FIELD(gradient, ENUM, .spellings = gradients, .doc = "bwd: by what; the second of log_probs"),
    FIELD(blank, I64, .zero = "class 0", .doc = "the class that is no label"),
    FIELD(zero_infinity, FLAG, .doc = "without an alignment the loss and its gradient are 0"),
};

/* ---- arguments ---- */

static mica_tensor lengths_shape(const void *desc)
{
    const mica_ctc_loss_desc *d = desc;
    return mica_tensor_packed(MICA_S64, 1, &d->x.dims[1]);
}

/* A loss of each sequence, or one element, in any number of dimensions. */
static mica_tensor loss_shape(const void *desc)
{
    const mica_ctc_loss_desc *d = desc;
    const mica_tensor *loss = d->pass == MICA_CTC_LOSS_FWD ? &d->loss : &d->dloss;
    if (d->reduction == MICA_REDUCE_NONE) return mica_tensor_packed(d->x.dtype, 1, &d->x.dims[1]);
    mica_tensor one = loss->rank ? *loss : mica_tensor_packed(d->x.dtype, 1, (int64_t[]){1});
    one.dtype = d->x.dtype;
    return one;
}

#define ARG(member, FWD, BWD, FWD_NEED, BWD_NEED, ...)                                             \
    {                                                                                              \
#member, offsetof(mica_ctc_loss_desc, member),                                             \
            {FWD, BWD }, .need = {FWD_NEED, BWD_NEED }, __VA_ARGS__                                \
    }
#define OF_SEQUENCES .like = "x", .words = "the sequences of x"
static const mica_arg args[] = {
    [MICA_CTC_LOSS_X] = ARG(x, MICA_IN, MICA_IN, MICA_NEEDED, MICA_NEEDED, .types = MICA_FLOATS),
    [MICA_CTC_LOSS_LABELS] =
        ARG(labels, MICA_IN, MICA_IN, MICA_NEEDED, MICA_NEEDED, .types = MICA_INDICES),
    [MICA_CTC_LOSS_LABEL_LENGTHS] =
        ARG(label_lengths, MICA_IN, MICA_IN, MICA_INFERRED, MICA_INFERRED, .types = MICA_INDICES,
            .shape = lengths_shape, OF_SEQUENCES),
    [MICA_CTC_LOSS_INPUT_LENGTHS] =
        ARG(input_lengths, MICA_IN, MICA_IN, 0, 0, .types = MICA_INDICES, .shape = lengths_shape,
            OF_SEQUENCES),
    [MICA_CTC_LOSS_LOSS] = ARG(loss, MICA_OUT, MICA_UNUSED, MICA_INFERRED, 0, .types = MICA_FLOATS,
                               .shape = loss_shape, .state = true, OF_SEQUENCES),
    [MICA_CTC_LOSS_DLOSS] = ARG(dloss, MICA_UNUSED, MICA_IN, 0, MICA_INFERRED, .types = MICA_FLOATS,
                                .shape = loss_shape, .state = true, OF_SEQUENCES),
    [MICA_CTC_LOSS_DX] =
        ARG(dx, MICA_UNUSED, MICA_OUT, 0, MICA_INFERRED, .types = MICA_FLOATS, .like = "x"),
};

mica_ctc_loss_sizes mica_ctc_loss_sizes_of(const mica_ctc_loss_desc *d)
{
    mica_ctc_loss_sizes s = {.steps = d->x.dims[0], .batch = d->x.dims[1], .classes = d->x.dims[2]};
    s.labels = mica_tensor_count(&d->labels);
    s.padded = d->labels.rank == 2;
    s.most = s.padded ? d->labels.dims[1] : s.labels;
    s.pairs = s.labels + s.batch;
    return s;
}

bool mica_ctc_loss_is_wide(const mica_ctc_loss_desc *d)
{
    const mica_tensor *t[] = {&d->x, &d->loss, &d->dloss, &d->dx};
    for (size_t i = 0; i < sizeof t / sizeof *t; i++)
        if (t[i]->dtype == MICA_F64) return true;
    return false;
}

/* ---- inference and checks ---- */

static mica_status infer(void *desc, mica_why *why)
{
    mica_ctc_loss_desc *d = desc;
    if (d->x.rank != 3) return mica_invalid(why, "x has rank %d, it must be T x B x C", d->x.rank);
    if (d->labels.rank != 1 && d->labels.rank != 2)
        return mica_invalid(why, "labels has rank %d, it must be B x L or have all in a row",
                            d->labels.rank);
    return MICA_OK;
}

static mica_status check(const void *desc, mica_why *why)
{
    const mica_ctc_loss_desc *d = desc;
    const bool fwd = d->pass == MICA_CTC_LOSS_FWD;
    const mica_ctc_loss_sizes s = mica_ctc_loss_sizes_of(d);
    const int64_t losses = mica_tensor_count(fwd ? &d->loss : &d->dloss);
    if (d->reduction != MICA_REDUCE_NONE && losses != 1)
        return mica_invalid(why, "%s has %lld elements, reduction=%s needs one",
                            fwd ? "loss" : "dloss", (long long)losses, reductions[d->reduction]);
    if (s.padded && d->labels.dims[0] != s.batch)
        return mica_invalid(why, "labels is of %lld sequences, x of %lld",
                            (long long)d->labels.dims[0], (long long)s.batch);
    if (d->blank < 0 || d->blank >= s.classes)
        return mica_invalid(why, "blank is %lld, x has %lld classes", (long long)d->blank,
                            (long long)s.classes);
    if (d->gradient == MICA_CTC_LOSS_BY_LOG_PROBS && d->input == MICA_CTC_LOSS_LOGITS)
        return mica_invalid(why, "gradient=by_log_probs is for input=log_probs, this is logits");
    return MICA_OK;
}

/* Of each state and step three sums and a product, one way, or both; and exponentials. */
static void cost(const void *desc, double *flops, double *bytes)
{
    const mica_ctc_loss_desc *d = desc;
    const mica_ctc_loss_sizes s = mica_ctc_loss_sizes_of(d);
    const bool fwd = d->pass == MICA_CTC_LOSS_FWD;
    (void)bytes;
    *flops = (fwd ? 8 : 24) * (double)s.steps * (double)s.pairs +
             (fwd ? 4 : 7) * (double)mica_tensor_count(&d->x);
}

/* Each step rounds a product, two sums and an exponential. */
static int64_t terms(const void *desc)
{
    const mica_ctc_loss_desc *d = desc;
    const int64_t walk = 4 * d->x.dims[0];
    return walk > d->x.dims[2] ? walk : d->x.dims[2];
}

/* ---- fills ---- */

static int64_t pick(uint64_t seed, int64_t i, int64_t n)
{
    return (int64_t)floor(mica_random_uniform(seed, (uint64_t)i) * (double)n);
}

/* Any class but the blank; every fourth repeats the one before it, of long rows every sixteenth. */
static void fill_labels(const mica_ctc_loss_desc *d, uint64_t seed, double *values)
{
    const mica_ctc_loss_sizes s = mica_ctc_loss_sizes_of(d);
    const uint64_t often = s.most > 64 ? 16 : 4;
    for (int64_t i = 0; i < s.labels; i++) {
        const int64_t label = s.classes > 1 ? pick(seed, i, s.classes - 1) : 0;
        const bool again = i > 0 && mica_random_bits(seed ^ 5, (uint64_t)i) % often == 0;
        values[i] = again ? values[i - 1] : (double)(label + (label >= d->blank));
    }
}

/* The first sequence, or of labels in a row the last, has as many as there are, but at the extremes
 * no more than its steps can say. */
static void fill_label_lengths(const mica_ctc_loss_desc *d, mica_fill fill, uint64_t seed,
                               double *values)
{
    const mica_ctc_loss_sizes s = mica_ctc_loss_sizes_of(d);
    const int64_t said = fill == MICA_FILL_EXTREME ? s.labels : 2 * s.steps / 3;
    int64_t left = s.labels;
    for (int64_t b = 0; b < s.batch; b++) {
        const int64_t own = s.padded ? s.most : left / (s.batch - b);
        const bool all = s.padded ? b == 0 : b == s.batch - 1;
        const int64_t n = all ? own : pick(seed, b, own + 1);
        values[b] = (double)(n < said ? n : said);
        left -= n;
    }
}

/* At the extremes some sequences have too few steps, or none. */
static void fill_input_lengths(const mica_ctc_loss_desc *d, mica_fill fill, uint64_t seed,
                               double *values)
{
    const mica_ctc_loss_sizes s = mica_ctc_loss_sizes_of(d);
    const int64_t least = fill == MICA_FILL_EXTREME ? 0 : s.steps - s.steps / 4;
    for (int64_t b = 0; b < s.batch; b++)
        values[b] = (double)(b == 0 ? s.steps : least + pick(seed, b, s.steps - least + 1));
}

/* Of a wide range: logarithms far below what exponentials have, and a tenth of probability 0. */
static void fill_x(const mica_ctc_loss_desc *d, mica_fill fill, uint64_t seed, double *values)
{
    const int64_t count = mica_tensor_count(&d->x);
    const double wide = fill == MICA_FILL_RANGE ? 40 : 3;
    for (int64_t i = 0; i < count; i++) {
        const bool none =
            fill == MICA_FILL_EXTREME && mica_random_bits(seed, (uint64_t)i) % 10 == 0;
        double v = wide * mica_random_normal(seed, (uint64_t)i);
        if (d->input == MICA_CTC_LOSS_LOG_PROBS) v = -fabs(v) - 0.01;
        values[i] = mica_fill_rounded(d->x.dtype, none ? -(double)INFINITY : v);
    }
}

static bool fill_input(const void *desc, const double *scalars, int arg, mica_fill fill,
                       uint64_t seed, double *values)
{
    const mica_ctc_loss_desc *d = desc;
    (void)scalars;
    seed = mica_random_bits(seed, 0xc7c0 + (uint64_t)arg);
    if (arg == MICA_CTC_LOSS_LABELS)
        fill_labels(d, seed, values);
    else if (arg == MICA_CTC_LOSS_LABEL_LENGTHS)
        fill_label_lengths(d, fill, seed, values);
    else if (arg == MICA_CTC_LOSS_INPUT_LENGTHS)
        fill_input_lengths(d, fill, seed, values);
    else if (arg == MICA_CTC_LOSS_X && fill != MICA_FILL_EDGES)
        fill_x(d, fill, seed, values);
    else
        return false;
    return true;
}

/* ---- operations that engines run ---- */

static mica_status add_lse(mica_plan *plan, mica_ctc_loss_child *c)
{
    const mica_ctc_loss_desc *d = plan->desc;
    mica_reduce_desc r = {.kind = MICA_REDUCE_KIND_LOGSUMEXP, .x = d->x};
    const mica_dtype type = mica_ctc_loss_is_wide(d) ? MICA_F64 : MICA_F32;
    r.y = mica_tensor_packed(type, 2, d->x.dims);
    r.axes[0] = MICA_REDUCE_AXIS(2);
    MICA_TRY(mica_book(plan, "logarithms of sums of exponentials",
                       (size_t)mica_tensor_count(&r.y) * (size_t)mica_dtype_bits(type) / 8,
                       &c->result));
    return mica_plan_child_create(plan, "reduce", &r, sizeof r, NULL, &c->plan, &c->workspace);
}

/* Lengths that are none do not move what comes behind, so that sequences never share memory. The
 * number of labels is a scalar: one kernel serves all. */
static mica_status add_counts(mica_plan *plan, mica_ctc_loss_child *c)
{
    const mica_ctc_loss_desc *d = plan->desc;
    mica_pointwise_desc p = {.expr = "s64(min(max(x0,0),s0))", .x0 = d->label_lengths};
    p.y0 = mica_tensor_packed(MICA_S64, 1, d->label_lengths.dims);
    c->scalars[MICA_POINTWISE_S0] = (double)mica_ctc_loss_sizes_of(d).labels;
    MICA_TRY(
        mica_book(plan, "counts of labels", (size_t)p.y0.dims[0] * sizeof(int64_t), &c->result));
    return mica_plan_child_create(plan, "pointwise", &p, sizeof p, NULL, &c->plan, &c->workspace);
}

static mica_status add_starts(mica_plan *plan, mica_ctc_loss_child *c)
{
    const mica_ctc_loss_desc *d = plan->desc;
    mica_scan_desc s = {.exclusive = true};
    s.x = s.y = mica_tensor_packed(MICA_S64, 1, d->label_lengths.dims);
    MICA_TRY(mica_book(plan, "first labels", (size_t)s.y.dims[0] * sizeof(int64_t), &c->result));
    return mica_plan_child_create(plan, "scan", &s, sizeof s, NULL, &c->plan, &c->workspace);
}

static mica_status add_sum(mica_plan *plan, mica_ctc_loss_child *c)
{
    const mica_ctc_loss_desc *d = plan->desc;
    const bool mean = d->reduction == MICA_REDUCE_MEAN;
    mica_reduce_desc r = {.kind = mean ? MICA_REDUCE_KIND_MEAN : MICA_REDUCE_KIND_SUM};
    r.x = mica_tensor_packed(MICA_F64, 1, &d->x.dims[1]);
    r.y = (mica_tensor){.dtype = d->loss.dtype};
    r.axes[0] = MICA_REDUCE_AXIS(0);
    MICA_TRY(
        mica_book(plan, "losses of sequences", (size_t)r.x.dims[0] * sizeof(double), &c->result));
    return mica_plan_child_create(plan, "reduce", &r, sizeof r, NULL, &c->plan, &c->workspace);
}

mica_status mica_ctc_loss_children_build(mica_plan *plan, mica_ctc_loss_children *c)
{
    const mica_ctc_loss_desc *d = plan->desc;
    const mica_ctc_loss_sizes s = mica_ctc_loss_sizes_of(d);
    const bool reads = s.steps > 0 && s.batch > 0;
    if (d->input == MICA_CTC_LOSS_LOGITS && reads) MICA_TRY(add_lse(plan, &c->lse));
    if (!s.padded && s.batch > 0) {
        MICA_TRY(add_counts(plan, &c->counts));
        MICA_TRY(add_starts(plan, &c->starts));
    }
    if (d->pass == MICA_CTC_LOSS_BWD || d->reduction == MICA_REDUCE_NONE) return MICA_OK;
    return add_sum(plan, &c->sum);
}

static mica_status run_child(const mica_ctc_loss_child *c, const void *from, int result, void *to,
                             const mica_run *run)
{
    if (!c->plan) return MICA_OK;
    mica_run r = {.workspace = mica_at(run, c->workspace), .stream = run->stream};
    r.scalars = c->scalars;
    r.args[0] = (void *)(uintptr_t)from;
    r.args[result] = to;
    return mica_plan_child_run(c->plan, &r);
}

mica_status mica_ctc_loss_before(const mica_ctc_loss_children *c, const mica_run *run)
{
    MICA_TRY(run_child(&c->lse, run->args[MICA_CTC_LOSS_X], MICA_REDUCE_Y,
                       mica_at(run, c->lse.result), run));
    MICA_TRY(run_child(&c->counts, run->args[MICA_CTC_LOSS_LABEL_LENGTHS], MICA_POINTWISE_Y0,
                       mica_at(run, c->counts.result), run));
    return run_child(&c->starts, mica_at(run, c->counts.result), MICA_SCAN_Y,
                     mica_at(run, c->starts.result), run);
}

mica_status mica_ctc_loss_behind(const mica_ctc_loss_children *c, const mica_run *run)
{
    return run_child(&c->sum, mica_at(run, c->sum.result), MICA_REDUCE_Y,
                     run->args[MICA_CTC_LOSS_LOSS], run);
}

static const mica_engine *const engines[] = {&mica_ctc_loss_cpu, &mica_engine_ref,
                                             &mica_ctc_loss_cuda, NULL};

const mica_op mica_op_ctc_loss = {
    .name = "ctc_loss",
    .doc = "connectionist temporal classification, and its gradient",
    .desc_size = sizeof(mica_ctc_loss_desc),
    .fields = fields,
    .field_count = sizeof fields / sizeof *fields,
    .args = args,
    .arg_count = sizeof args / sizeof *args,
    .infer = infer,
    .check = check,
    .cost = cost,
    .terms = terms,
    .ulps = 6, /* of exp and log */
    .fill = fill_input,
    .reference = mica_ctc_loss_reference,
    .engines = engines,
};
