/* SPDX-License-Identifier: Apache-2.0
 * Losses: tables, inference, checks, fills. */
#include "ops/loss/loss.h"
#include "ops/pointwise/expression.h"
#include "base/random.h"

#include <math.h>
#include <string.h>

#define LOSS(KIND, text, flag, value, flagged, full, dx, dtarget, dother, x, target, other,        \
             weighted, doc)                                                                        \
    [MICA_LOSS_KIND_##KIND] = {text,                                                               \
                               LOSS_##flag,                                                        \
                               NULL,                                                               \
                               value,                                                              \
                               flagged,                                                            \
                               full,                                                               \
                               {dx, dtarget, dother},                                              \
                               {LOSS_##x, LOSS_##target, LOSS_##other},                            \
                               LOSS_##weighted,                                                    \
                               doc,                                                                \
                               LOSS_NO_LABELS},
#define ROWS(KIND, text, flag, sums, value, flagged, x, target, other, weighted, doc)              \
    [MICA_LOSS_KIND_##KIND] = {text,                                                               \
                               LOSS_##flag,                                                        \
                               sums,                                                               \
                               value,                                                              \
                               flagged,                                                            \
                               "",                                                                 \
                               {"", "", ""},                                                       \
                               {LOSS_##x, LOSS_##target, LOSS_##other},                            \
                               LOSS_##weighted,                                                    \
                               doc,                                                                \
                               LOSS_NO_LABELS},
#define LABELS(KIND, text, labels, value, squared, slope, slope_of_squared, weighted, doc)         \
    [MICA_LOSS_KIND_##KIND] = {text,                                                               \
                               LOSS_NEVER,                                                         \
                               NULL,                                                               \
                               value,                                                              \
                               squared,                                                            \
                               "",                                                                 \
                               {slope, slope_of_squared, ""},                                      \
                               {LOSS_REAL, LOSS_CLASSES, LOSS_REAL},                               \
                               LOSS_##weighted,                                                    \
                               doc,                                                                \
                               LOSS_##labels},
const mica_loss_row mica_loss_rows[] = {
#include "ops/loss/losses.def"
};

#define LOSS(KIND, text, ...)   [MICA_LOSS_KIND_##KIND] = text,
#define ROWS(KIND, text, ...)   [MICA_LOSS_KIND_##KIND] = text,
#define LABELS(KIND, text, ...) [MICA_LOSS_KIND_##KIND] = text,
static const char *const kinds[] = {
#include "ops/loss/losses.def"
    NULL};

static const char *const passes[] = {"fwd", "bwd", NULL};
static const char *const reductions[] = {"mean", "sum", "none", "batchmean", NULL};

#define FIELD(member, kind, ...) MICA_FIELD(mica_loss_desc, member, kind, __VA_ARGS__)
static const mica_field fields[] = {
    FIELD(pass, ENUM, .spellings = passes, .doc = "forward, or gradients"),
    FIELD(kind, ENUM, .spellings = kinds, .doc = "which loss"),
    FIELD(reduction, ENUM, .spellings = reductions,
          .doc =
              "of the losses of elements or rows; batchmean: their sum over x's first dimension"),
    FIELD(x, TENSOR, .zero = "needed", .doc = "input"),
    FIELD(target, TENSOR, .zero = "needed", .doc = "target, label of 1 and -1, or classes"),
    FIELD(other, TENSOR, .zero = "none", .doc = "second input, negative, or variance"),
    FIELD(weight, TENSOR, .zero = "none", .doc = "of elements, broadcast to x"),
    FIELD(pos_weight, TENSOR, .zero = "none", .doc = "bce_logits: of target, broadcast to x"),
    FIELD(y, TENSOR, .zero = "inferred", .doc = "fwd: loss"),
    FIELD(dy, TENSOR, .zero = "inferred", .doc = "bwd: gradient of y"),
    FIELD(dx, TENSOR, .zero = "inferred", .doc = "bwd: gradient of x"),
    FIELD(dtarget, TENSOR, .zero = "not wanted", .doc = "bwd: gradient of target"),
    FIELD(dother, TENSOR, .zero = "not wanted", .doc = "bwd: gradient of other"),
    FIELD(margin, F64, .apart = true, .zero = "0 of margin_ranking and cosine_embedding, else 1",
          .doc = "of what has one"),
    FIELD(beta, F64, .def = 1, .doc = "smooth_l1's beta, huber's delta"),
    FIELD(eps, F64, .apart = true, .zero = "1e-8 of poisson_nll, else 1e-6",
          .doc = "poisson_nll, gaussian_nll, triplet_margin"),
    FIELD(p, F64, .apart = true, .zero = "2 of triplet_margin, else 1",
          .doc = "triplet_margin: of the distance; multi_margin, multilabel_margin: 1 or 2"),
    FIELD(log_target, FLAG, .doc = "kl_div: target is a log-probability"),
    FIELD(rates, FLAG, .doc = "poisson_nll: x is a rate, not its logarithm"),
    FIELD(full, FLAG, .doc = "poisson_nll, gaussian_nll: with the constant term"),
    FIELD(swap, FLAG, .doc = "triplet_margin: or from target, if that is nearer"),
};

#define TARGETS                                                                                    \
    (MICA_FLOATS | MICA_TYPE(S8) | MICA_TYPE(U8) | MICA_TYPE(S32) | MICA_TYPE(U32) |               \
     MICA_TYPE(S64) | MICA_TYPE(BOOL))
#define ARG(member, fwd, bwd, ...)                                                                 \
    {                                                                                              \
        .name = #member, .tensor = offsetof(mica_loss_desc, member), .dir = {fwd, bwd},            \
        __VA_ARGS__                                                                                \
    }
static const mica_arg args[] = {
    [MICA_LOSS_X] =
        ARG(x, MICA_IN, MICA_IN, .types = MICA_FLOATS, .need = {MICA_NEEDED, MICA_NEEDED}),
    [MICA_LOSS_TARGET] =
        ARG(target, MICA_IN, MICA_IN, .types = TARGETS, .need = {MICA_NEEDED, MICA_NEEDED}),
    [MICA_LOSS_OTHER] = ARG(other, MICA_IN, MICA_IN, .types = MICA_FLOATS, .like = "x"),
    [MICA_LOSS_WEIGHT] = ARG(weight, MICA_IN, MICA_IN, .types = MICA_FLOATS),
    [MICA_LOSS_POS_WEIGHT] = ARG(pos_weight, MICA_IN, MICA_IN, .types = MICA_FLOATS),
    [MICA_LOSS_Y] = ARG(y, MICA_OUT, MICA_UNUSED, .types = MICA_FLOATS),
    [MICA_LOSS_DY] = ARG(dy, MICA_UNUSED, MICA_IN, .types = MICA_FLOATS),
    [MICA_LOSS_DX] = ARG(dx, MICA_UNUSED, MICA_OUT, .types = MICA_FLOATS, .like = "x",
                         .need = {MICA_IF_GIVEN, MICA_INFERRED}),
    [MICA_LOSS_DTARGET] =
        ARG(dtarget, MICA_UNUSED, MICA_OUT, .types = MICA_FLOATS, .like = "target"),
    [MICA_LOSS_DOTHER] =
        ARG(dother, MICA_UNUSED, MICA_OUT, .types = MICA_FLOATS, .like = "other", .with = "other"),
};

/* ---- texts ---- */

static bool is_flagged(const mica_loss_desc *d)
{
    switch (mica_loss_row_of(d)->flag) {
    case LOSS_LOG_TARGET:
        return d->log_target;
    case LOSS_RATES:
        return d->rates;
    case LOSS_POS_WEIGHT:
        return mica_tensor_given(&d->pos_weight);
    case LOSS_NO_BETA:
        return d->beta == 0;
    case LOSS_SWAP:
        return d->swap;
    default:
        return false;
    }
}

/* `from` up to ';' with numbers for their letters. */
static void put_numbers(const mica_loss_desc *d, const char *from, mica_text *text)
{
    const double n = d->x.rank ? (double)d->x.dims[d->x.rank - 1] : 1;
    for (; *from && *from != ';'; from++) {
        double v = 0;
        if (*from != '$') {
            mica_text_add(text, "%c", *from);
            continue;
        }
        switch (*++from) {
        case 'm':
            v = d->margin;
            break;
        case 'b':
            v = d->beta;
            break;
        case 'e':
            v = d->eps;
            break;
        case 'p':
            v = d->p;
            break;
        case 'q':
            v = 1 / d->p;
            break;
        default:
            v = n;
        }
        /* A point: what it meets stays real. */
        mica_text_add(text, v < 0 ? "(%.17g+0.0)" : "%.17g", v);
        if (v == floor(v) && fabs(v) < 1e15 && v >= 0) mica_text_add(text, ".0");
    }
}

static void finish(const mica_loss_desc *d, bool weighted, double scale, mica_text *text)
{
    mica_text_add(text, ")");
    if (weighted && mica_tensor_given(&d->weight)) mica_text_add(text, "*x3");
    if (scale != 1) mica_text_add(text, "*%.17g", scale);
}

void mica_loss_make_texts(const mica_loss_desc *d, double scale, mica_loss_texts *t)
{
    const mica_loss_row *row = mica_loss_row_of(d);
    memset(t, 0, sizeof *t);
    mica_text value = {t->value, sizeof t->value, 0};
    mica_text_add(&value, "(");
    put_numbers(d, is_flagged(d) && *row->flagged ? row->flagged : row->value, &value);
    if (d->full) put_numbers(d, row->full, &value);
    finish(d, !row->sums, scale, &value);
    for (int k = 0; k < 3; k++) {
        if (!*row->gradient[k]) continue;
        mica_text text = {t->gradient[k], sizeof t->gradient[k], 0};
        mica_text_add(&text, "(");
        put_numbers(d, row->gradient[k], &text);
        finish(d, true, scale, &text);
    }
    for (const char *sum = row->sums; sum && mica_loss_has(t->value, t->sums);) {
        mica_text text = {t->sum[t->sums], sizeof t->sum[t->sums], 0};
        mica_text_add(&text, "(");
        put_numbers(d, sum, &text);
        finish(d, true, 1, &text);
        t->sums++;
        sum = strchr(sum, ';');
        if (sum) sum++;
    }
}

void mica_loss_make_pair(const mica_loss_desc *d, char value[LOSS_TEXT], char slope[LOSS_TEXT])
{
    const mica_loss_row *row = mica_loss_row_of(d);
    mica_text of_value = {value, LOSS_TEXT, 0}, of_slope = {slope, LOSS_TEXT, 0};
    put_numbers(d, d->p == 2 ? row->flagged : row->value, &of_value);
    put_numbers(d, row->gradient[d->p == 2], &of_slope);
}

bool mica_loss_has(const char *text, int k)
{
    const char name[] = {'x', (char)('0' + k), 0};
    for (const char *at = text; (at = strstr(at, name)); at++)
        if (at == text || !strchr("abcdefghijklmnopqrstuvwxyz_0123456789", at[-1])) return true;
    return false;
}

/* Whether the loss depends on input k. */
static bool takes(const mica_loss_desc *d, int k)
{
    mica_loss_texts t;
    mica_loss_make_texts(d, 1, &t);
    bool found = !mica_loss_row_of(d)->sums && mica_loss_has(t.value, k);
    for (int i = 0; i < t.sums; i++) found |= mica_loss_has(t.sum[i], k);
    return found;
}

/* The target of rows stands beside their sums. */
static bool has_row_target(const mica_loss_desc *d)
{
    const mica_loss_row *row = mica_loss_row_of(d);
    return row->labels == LOSS_ONE_LABEL || (row->sums && mica_loss_has(row->value, 3));
}

/* ---- shapes ---- */

mica_tensor mica_loss_rows_of(const mica_loss_desc *d)
{
    return mica_tensor_packed(d->x.dtype, d->x.rank > 0 ? d->x.rank - 1 : 0, d->x.dims);
}

int64_t mica_loss_count(const mica_loss_desc *d)
{
    const mica_tensor rows = mica_loss_rows_of(d);
    return mica_tensor_count(mica_loss_of_a_row(d) ? &rows : &d->x);
}

bool mica_loss_is_over_weights(const mica_loss_desc *d)
{
    return mica_loss_row_of(d)->weighted == LOSS_DIVISOR && d->reduction == MICA_LOSS_MEAN &&
           mica_tensor_given(&d->weight);
}

double mica_loss_scale(const mica_loss_desc *d)
{
    if (mica_loss_is_over_weights(d)) return 1;
    if (d->reduction == MICA_LOSS_MEAN) return 1 / (double)mica_loss_count(d);
    return d->reduction == MICA_LOSS_BATCHMEAN ? 1 / (double)d->x.dims[0] : 1;
}

mica_tensor mica_loss_expanded(const mica_tensor *t, const mica_tensor *dims)
{
    mica_tensor wide = *dims;
    const int apart = dims->rank - t->rank;
    wide.dtype = t->dtype;
    for (int i = 0; i < dims->rank; i++) {
        const bool own = i >= apart && (t->dims[i - apart] != 1 || dims->dims[i] == 1);
        wide.strides[i] = own ? t->strides[i - apart] : 0;
    }
    return wide;
}

mica_tensor mica_loss_of_rows(const mica_tensor *t, const mica_tensor *x)
{
    mica_tensor wide = *x;
    wide.dtype = t->dtype;
    for (int i = 0; i < x->rank; i++) wide.strides[i] = i < t->rank ? t->strides[i] : 0;
    return wide;
}

mica_dtype mica_loss_real(const mica_loss_desc *d)
{
    for (int i = MICA_LOSS_X; i <= MICA_LOSS_DOTHER; i++) {
        const mica_tensor *t = mica_op_tensor(&mica_op_loss, d, i);
        const bool classes = i == MICA_LOSS_TARGET && mica_loss_row_of(d)->labels;
        if (mica_op_dir(&mica_op_loss, d, i) == MICA_UNUSED || classes) continue;
        if (t->dtype == MICA_F64 || t->dtype == MICA_S32 || t->dtype == MICA_U32) return MICA_F64;
    }
    return MICA_F32;
}

static mica_tensor result_dims(const mica_loss_desc *d)
{
    if (d->reduction != MICA_LOSS_NONE) return mica_tensor_packed(d->x.dtype, 0, NULL);
    if (mica_loss_of_a_row(d)) return mica_loss_rows_of(d);
    mica_tensor y = d->x;
    mica_tensor_strides_like(&y, &d->x);
    return y;
}

static mica_status infer(void *desc, mica_why *why)
{
    mica_loss_desc *d = desc;
    const bool bwd = d->pass == MICA_LOSS_BWD;
    (void)why;
    if (mica_left_out(d->margin))
        d->margin =
            d->kind != MICA_LOSS_KIND_MARGIN_RANKING && d->kind != MICA_LOSS_KIND_COSINE_EMBEDDING;
    if (mica_left_out(d->p)) d->p = d->kind == MICA_LOSS_KIND_TRIPLET_MARGIN ? 2 : 1;
    if (mica_left_out(d->eps)) d->eps = d->kind == MICA_LOSS_KIND_POISSON_NLL ? 1e-8 : 1e-6;
    if (!mica_tensor_given(&d->x)) return MICA_OK;
    mica_tensor *result = bwd ? &d->dy : &d->y;
    if (!mica_tensor_given(result)) *result = result_dims(d);
    *(bwd ? &d->y : &d->dy) = (mica_tensor){0};
    if (!bwd) d->dx = d->dtarget = d->dother = (mica_tensor){0};
    return MICA_OK;
}

static mica_status broadcasts(const mica_tensor *t, const char *name, const mica_tensor *x,
                              mica_why *why)
{
    if (t->rank > x->rank)
        return mica_invalid(why, "%s has rank %d, more than x with %d", name, t->rank, x->rank);
    for (int i = 1; i <= t->rank; i++)
        if (t->dims[t->rank - i] != 1 && t->dims[t->rank - i] != x->dims[x->rank - i])
            return mica_invalid(why,
                                "%s does not broadcast to x: dimension %d from the last is %lld, "
                                "that of x %lld",
                                name, i, (long long)t->dims[t->rank - i],
                                (long long)x->dims[x->rank - i]);
    return MICA_OK;
}

/* Steps have a dimension more, that of labels. */
static mica_status check_labels(const mica_loss_desc *d, mica_why *why)
{
    const mica_loss_row *row = mica_loss_row_of(d);
    const mica_tensor *weight = &d->weight;
    const int64_t classes = d->x.dims[d->x.rank - 1];
    if (d->target.dtype != MICA_S32 && d->target.dtype != MICA_S64)
        return mica_invalid(why, "target is %s, %s takes classes in s32 or s64",
                            mica_dtype_name(d->target.dtype), row->name);
    if (d->x.rank == MICA_MAX_RANK)
        return mica_invalid(why, "x has rank %d, %s takes %d", d->x.rank, row->name,
                            MICA_MAX_RANK - 1);
    if (classes == 0) return mica_invalid(why, "x has no classes, its last dimension is 0");
    if (mica_tensor_given(weight) && (weight->rank != 1 || weight->dims[0] != classes))
        return mica_invalid(why, "weight of %s is that of classes, of which there are %lld",
                            row->name, (long long)classes);
    if (d->p == 1 || d->p == 2) return MICA_OK;
    return mica_invalid(why, "p is %g, %s takes 1 or 2", d->p, row->name);
}

static mica_status check_inputs(const mica_loss_desc *d, mica_why *why)
{
    const mica_loss_row *row = mica_loss_row_of(d);
    const bool other = mica_tensor_given(&d->other);
    if (mica_loss_of_a_row(d) && d->x.rank == 0)
        return mica_invalid(why, "x has rank 0, %s needs rows", row->name);
    if (other != takes(d, MICA_LOSS_OTHER))
        return mica_invalid(why, other ? "other is given, %s has none" : "%s needs other",
                            row->name);
    if (mica_tensor_given(&d->weight) && !row->weighted)
        return mica_invalid(why, "weight is given, %s has none", row->name);
    if (mica_tensor_given(&d->pos_weight) && row->flag != LOSS_POS_WEIGHT)
        return mica_invalid(why, "pos_weight is given, %s has none", row->name);
    if (mica_tensor_given(&d->weight)) MICA_TRY(broadcasts(&d->weight, "weight", &d->x, why));
    if (mica_tensor_given(&d->pos_weight))
        MICA_TRY(broadcasts(&d->pos_weight, "pos_weight", &d->x, why));
    if (row->labels) MICA_TRY(check_labels(d, why));
    if (!row->labels && d->target.dtype == MICA_S64)
        return mica_invalid(why, "target is s64, only classes are");
    const mica_tensor rows = mica_loss_rows_of(d);
    return has_row_target(d) ? mica_tensor_same_dims(&d->target, "target", &rows, "rows of x", why)
                             : mica_tensor_same_dims(&d->target, "target", &d->x, "x", why);
}

static mica_status check(const void *desc, mica_why *why)
{
    const mica_loss_desc *d = desc;
    const mica_tensor want = result_dims(d);
    const bool bwd = d->pass == MICA_LOSS_BWD;
    MICA_TRY(check_inputs(d, why));
    if (d->reduction == MICA_LOSS_BATCHMEAN && (d->kind != MICA_LOSS_KIND_KL_DIV || d->x.rank == 0))
        return mica_invalid(why, "reduction=batchmean is for kl_div of one dimension or more");
    if (d->beta < 0 || (d->beta == 0 && d->kind == MICA_LOSS_KIND_HUBER))
        return mica_invalid(why, "beta is %g, it must be %s", d->beta + 0.0,
                            d->beta < 0 ? "0 or more" : "above 0");
    if (!(d->p > 0)) return mica_invalid(why, "p is %g, it must be above 0", d->p);
    if (d->eps < 0) return mica_invalid(why, "eps is %g, it must be 0 or more", d->eps);
    if (mica_tensor_given(&d->dtarget) &&
        (has_row_target(d) || !mica_dtype_is_float(d->target.dtype)))
        return mica_invalid(why, "dtarget is given, %s",
                            has_row_target(d) ? "target has labels of rows"
                                              : "target is no floating-point type");
    return mica_tensor_same_dims(bwd ? &d->dy : &d->y, bwd ? "dy" : "y", &want,
                                 d->reduction != MICA_LOSS_NONE ? "a number"
                                 : mica_loss_of_a_row(d)        ? "rows of x"
                                                                : "x",
                                 why);
}

/* ---- contract and fills ---- */

/* Inputs that a text has, or its gradients with respect to those of `wanted`; all if it is none. */
static unsigned inputs_of(const char *text, unsigned wanted)
{
    mica_expr e = {0};
    mica_why why;
    for (int k = 0; k < MICA_EXPR_INPUTS; k++)
        e.inputs[k] = k <= LOSS_DY || k >= MICA_EXPR_X ? MICA_F32 : MICA_NONE;
    if (mica_expr_parse(&e, text, &why) != MICA_OK ||
        (wanted && mica_expr_derive(&e, wanted, &why) != MICA_OK))
        return ~0u;
    return mica_expr_inputs(&e);
}

/* A gradient may be that of an input which it does not depend on. */
static unsigned read_inputs(const mica_loss_desc *d)
{
    mica_loss_texts t;
    unsigned inputs = 0, derived = 0;
    if (d->pass == MICA_LOSS_FWD || mica_loss_of_a_row(d)) return ~0u;
    mica_loss_make_texts(d, 1, &t);
    for (int k = 0; k < 3; k++) {
        if (!mica_tensor_given(mica_op_tensor(&mica_op_loss, d, MICA_LOSS_DX + k))) continue;
        if (*t.gradient[k])
            inputs |= inputs_of(t.gradient[k], 0);
        else
            derived |= 1u << k;
    }
    return derived ? inputs | inputs_of(t.value, derived) : inputs;
}

static void cost(const void *desc, double *flops, double *bytes)
{
    const mica_loss_desc *d = desc;
    const unsigned inputs = read_inputs(d);
    *flops = 8 * (double)mica_tensor_count(&d->x);
    if (mica_loss_row_of(d)->labels == LOSS_LABEL_LIST) *flops *= (double)d->x.dims[d->x.rank - 1];
    for (int i = 0; i <= MICA_LOSS_DOTHER; i++)
        if (i > MICA_LOSS_POS_WEIGHT || inputs >> i & 1)
            *bytes += mica_op_arg_bytes(&mica_op_loss, d, i);
}

static int64_t terms(const void *desc)
{
    const mica_loss_desc *d = desc;
    const bool list = mica_loss_row_of(d)->labels == LOSS_LABEL_LIST;
    const bool all = d->pass == MICA_LOSS_FWD && d->reduction != MICA_LOSS_NONE;
    const int64_t length = mica_loss_of_a_row(d) ? d->x.dims[d->x.rank - 1] : 1;
    const int64_t row = list ? length * length : length;
    const int64_t n = all ? mica_loss_count(d) : 1;
    return n * row > 0 ? n * row : 1;
}

static double placed(int domain, uint64_t seed, uint64_t i)
{
    const double u = mica_random_uniform(seed, i);
    switch (domain) {
    case LOSS_UNIT:
        return 0.01 + 0.98 * u;
    case LOSS_POSITIVE:
        return 0.1 + 3 * u;
    default:
        return u < 0.5 ? -1 : 1;
    }
}

/* Classes; of a list a third of its length, of which one is there twice, then -1 and what is not
 * read any more. */
static void fill_classes(const mica_loss_desc *d, uint64_t seed, double *values)
{
    const bool list = mica_loss_row_of(d)->labels == LOSS_LABEL_LIST;
    const int64_t classes = d->x.dims[d->x.rank - 1], count = mica_tensor_count(&d->target);
    for (int64_t i = 0; i < count; i++) {
        const int64_t k = list ? i % classes : 0, row = list ? i / classes : i;
        const int64_t length = row % 3 ? (classes + 2) / 3 : row % 2 * classes;
        const uint64_t bits = mica_random_bits(seed, (uint64_t)(k == 1 ? i - 1 : i));
        values[i] = list && k == length ? -1 : (double)(bits % (uint64_t)classes);
    }
}

static bool fill(const void *desc, const double *scalars, int arg, mica_fill kind, uint64_t seed,
                 double *values)
{
    const mica_loss_desc *d = desc;
    const mica_tensor *t = mica_op_tensor(&mica_op_loss, d, arg);
    (void)scalars, (void)kind;
    const bool divides = arg == MICA_LOSS_WEIGHT && mica_loss_is_over_weights(d);
    if (arg > MICA_LOSS_OTHER && !divides) return false;
    int domain = divides ? LOSS_POSITIVE : mica_loss_row_of(d)->domain[arg];
    if (arg == MICA_LOSS_X && d->rates) domain = LOSS_POSITIVE;
    if (arg == MICA_LOSS_TARGET && d->log_target) domain = LOSS_REAL;
    if (domain == LOSS_REAL) return false;
    if (domain == LOSS_CLASSES) {
        fill_classes(d, seed, values);
        return true;
    }
    const int64_t count = mica_tensor_count(t);
    for (int64_t i = 0; i < count; i++) {
        char kept[16];
        double v = placed(domain, seed + (uint64_t)arg, (uint64_t)i);
        if (domain == LOSS_SIGN &&
            (t->dtype == MICA_U8 || t->dtype == MICA_U32 || t->dtype == MICA_BOOL))
            v = v > 0;
        mica_dtype_store(t->dtype)(kept, 0, v);
        values[i] = mica_dtype_load(t->dtype)(kept, 0);
    }
    return true;
}

/* Sums of small integers. */
static bool exact(const void *desc)
{
    const mica_loss_desc *d = desc;
    mica_loss_texts t;
    mica_expr e = {0};
    mica_why why;
    if (d->pass == MICA_LOSS_BWD || mica_loss_of_a_row(d) ||
        (d->reduction != MICA_LOSS_NONE && d->reduction != MICA_LOSS_SUM))
        return false;
    mica_loss_make_texts(d, 1, &t);
    for (int k = 0; k < LOSS_DY; k++) e.inputs[k] = MICA_F32;
    if (mica_expr_parse(&e, t.value, &why) != MICA_OK) return false;
    const double most = mica_expr_bound(&e);
    return most * (d->reduction == MICA_LOSS_SUM ? (double)mica_loss_count(d) : 1) <= 0x1p24;
}

static const mica_engine *const engines[] = {&mica_loss_compose, &mica_engine_ref,
                                             &mica_loss_compose_cuda, NULL};

const mica_op mica_op_loss = {
    .name = "loss",
    .doc = "Losses of elements and rows, their mean or sum, and their gradients",
    .desc_size = sizeof(mica_loss_desc),
    .fields = fields,
    .field_count = sizeof fields / sizeof *fields,
    .args = args,
    .arg_count = sizeof args / sizeof *args,
    .infer = infer,
    .check = check,
    .cost = cost,
    .terms = terms,
    .exact = exact,
    .ulps = 4,
    .fill = fill,
    .reference = mica_loss_reference,
    .engines = engines,
};
