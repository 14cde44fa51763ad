/* SPDX-License-Identifier: Apache-2.0
 * The local response normalisation family: tables, inference, checks, geometry. */
#include "ops/lrn/lrn.h"
#include "ops/access/access.h"

#include <math.h>
#include <stdlib.h>

static const char *const passes[] = {"fwd", "bwd", NULL};
static const char *const kinds[] = {"across", "within", "divisive", NULL};
static const char *const extras[] = {"after", "before", NULL};

#define FIELD(member, kind, ...) MICA_FIELD(mica_lrn_desc, member, kind, __VA_ARGS__)
static const mica_field fields[] = {
    FIELD(pass, ENUM, .spellings = passes, .doc = "forward, or gradients"),
    FIELD(kind, ENUM, .spellings = kinds, .doc = "along which axes windows reach"),
    FIELD(extra, ENUM, .spellings = extras,
          .doc = "of an even size: on which side of an element more of its window lies"),
    FIELD(sum, FLAG, .doc = "alpha multiplies the sum of squares, not their mean"),
    FIELD(x, TENSOR, .zero = "needed", .doc = "input, N x C x up to 3 axes"),
    FIELD(means, TENSOR, .zero = "none: all 0", .doc = "divisive: taken from x in the squares"),
    FIELD(y, TENSOR, .zero = "inferred", .doc = "result"),
    FIELD(dy, TENSOR, .zero = "inferred", .doc = "bwd: gradient of y"),
    FIELD(dx, TENSOR, .zero = "inferred", .doc = "bwd: gradient of x"),
    FIELD(dmeans, TENSOR, .zero = "none", .doc = "bwd: gradient of means"),
    FIELD(size, I64, .def = 5, .positive = true, .doc = "elements of a window along an axis"),
    FIELD(alpha, F64, .def = 1e-4, .doc = "factor of the mean of squares"),
    FIELD(beta, F64, .def = 0.75, .doc = "power of the divisor"),
    FIELD(k, F64, .def = 1, .doc = "summand of the divisor"),
};

#define ARG(member) #member, offsetof(mica_lrn_desc, member)
#define AS_X        .types = MICA_FLOATS, .like = "x", .same = "x"
static const mica_arg args[] = {
    [MICA_LRN_X] = {ARG(x),
                    {MICA_IN, MICA_IN},
                    .types = MICA_FLOATS,
                    .need = {MICA_NEEDED, MICA_NEEDED}},
    [MICA_LRN_MEANS] = {ARG(means), {MICA_IN, MICA_IN}, AS_X},
    [MICA_LRN_Y] = {ARG(y), {MICA_OUT, MICA_UNUSED}, AS_X, .need = {MICA_INFERRED}},
    [MICA_LRN_DY] = {ARG(dy), {MICA_UNUSED, MICA_IN}, AS_X, .need = {0, MICA_INFERRED}},
    [MICA_LRN_DX] = {ARG(dx), {MICA_UNUSED, MICA_OUT}, AS_X, .need = {0, MICA_INFERRED}},
    [MICA_LRN_DMEANS] = {ARG(dmeans), {MICA_UNUSED, MICA_OUT}, AS_X, .with = "means"},
};

static bool is_forward(const mica_lrn_desc *d)
{
    return d->pass == MICA_LRN_FWD;
}

static mica_status check(const void *desc, mica_why *why)
{
    enum { MOST_BETA = 1000 };
    const mica_lrn_desc *d = desc;
    const bool across = d->kind == MICA_LRN_ACROSS;
    if (d->x.rank < (across ? 2 : 3) || d->x.rank > LRN_AXES)
        return mica_invalid(why, "x has rank %d; kind %s takes %d to %d", d->x.rank, kinds[d->kind],
                            across ? 2 : 3, LRN_AXES);
    if (mica_tensor_given(&d->means) && d->kind != MICA_LRN_DIVISIVE)
        return mica_invalid(why, "means are given, kind %s takes none", kinds[d->kind]);
    if (d->size < 1)
        return mica_invalid(why, "size is %lld, it must be positive", (long long)d->size);
    if (!(d->alpha >= 0))
        return mica_invalid(why, "alpha is %g, it must not be negative", d->alpha);
    if (!(d->k >= 0)) return mica_invalid(why, "k is %g, it must not be negative", d->k);
    if (!(d->beta >= 0 && d->beta <= MOST_BETA))
        return mica_invalid(why, "beta is %g, it must be 0 to %d", d->beta, MOST_BETA);
    return MICA_OK;
}

/* ---- geometry ---- */

static mica_lrn_steps steps_of(const mica_tensor *t)
{
    mica_lrn_steps s = {0};
    for (int i = 0; i < t->rank; i++)
        s.at[i < 2 ? i : i + LRN_AXES - t->rank] = mica_access_step(t->strides[i], t->dims[i]);
    return s;
}

static bool is_windowed(const mica_lrn_desc *d, int axis)
{
    return d->kind == MICA_LRN_ACROSS ? axis == 1 : axis >= LRN_AXES + 2 - d->x.rank;
}

/* Axes axis and axis + 1 as one of the second, if all tensors have them so. */
static void merge(mica_lrn_args *a, int axis)
{
    mica_lrn_steps *const all[] = {&a->x_step,  &a->means_step, &a->y_step,
                                   &a->dy_step, &a->dx_step,    &a->dmeans_step};
    enum { ALL = sizeof all / sizeof *all };
    if (a->sizes[axis] == 1) return;
    for (int i = 0; i < ALL; i++) {
        const long long *s = all[i]->at;
        if (a->sizes[axis + 1] != 1 && s[axis] != s[axis + 1] * a->sizes[axis + 1]) return;
    }
    for (int i = 0; i < ALL; i++) {
        long long *s = all[i]->at;
        if (a->sizes[axis + 1] == 1) s[axis + 1] = s[axis];
        s[axis] = 0;
    }
    a->sizes[axis + 1] *= a->sizes[axis];
    a->sizes[axis] = 1;
}

void mica_lrn_prepare(const mica_lrn_desc *d, mica_lrn_args *a)
{
    const double bits = d->x.dtype == MICA_F64 ? 500 : 60;
    *a = (mica_lrn_args){.x_step = steps_of(&d->x),
                         .means_step = steps_of(&d->means),
                         .y_step = steps_of(&d->y),
                         .dy_step = steps_of(&d->dy),
                         .dx_step = steps_of(&d->dx),
                         .dmeans_step = steps_of(&d->dmeans),
                         .k = d->k,
                         .alpha = d->alpha,
                         .beta = d->beta,
                         .type = (int)d->x.dtype};
    for (int i = 0; i < LRN_AXES; i++) a->sizes[i] = 1;
    for (int i = 0; i < d->x.rank; i++)
        a->sizes[i < 2 ? i : i + LRN_AXES - d->x.rank] = d->x.dims[i];
    const int64_t less = (d->size - 1) / 2, more = d->size / 2;
    for (int i = 0; i < LRN_AXES; i++) {
        if (!is_windowed(d, i)) continue;
        const int64_t before = d->extra == MICA_LRN_AFTER ? less : more;
        const int64_t after = d->size - 1 - before, most = a->sizes[i] > 0 ? a->sizes[i] - 1 : 0;
        if (!d->sum) a->alpha /= (double)d->size;
        a->before[i] = before < most ? before : most;
        a->after[i] = after < most ? after : most;
    }
    if (d->kind == MICA_LRN_ACROSS) merge(a, 2), merge(a, 3);
    long long step = 1;
    for (int i = LRN_AXES - 1; i >= 0; i--) a->packed_step.at[i] = step, step *= a->sizes[i];
    a->high = exp2(bits / (d->beta + 1)), a->low = 1 / a->high;
}

int mica_lrn_power(const mica_lrn_desc *d)
{
    return d->beta == 0.75  ? LRN_THREE_QUARTERS
           : d->beta == 0.5 ? LRN_HALF
           : d->beta == 1   ? LRN_ONE
                            : LRN_POW;
}

int mica_lrn_row(const mica_lrn_args *a)
{
    int row = LRN_AXES - 1;
    for (int i = LRN_AXES - 1; i > 0; i--)
        if (a->sizes[i] > 1 &&
            (a->sizes[row] <= 1 || llabs(a->x_step.at[i]) < llabs(a->x_step.at[row])))
            row = i;
    return row;
}

/* ---- numbers ---- */

/* A gradient's sum is of those of windows. */
static int64_t terms(const void *desc)
{
    mica_lrn_args a;
    int64_t n = 1;
    mica_lrn_prepare(desc, &a);
    for (int i = 0; i < LRN_AXES; i++) n *= a.before[i] + a.after[i] + 1;
    return is_forward(desc) ? n : 2 * n;
}

static void cost(const void *desc, double *flops, double *bytes)
{
    const mica_lrn_desc *d = desc;
    *flops = (double)mica_tensor_count(&d->x) * 2 * ((double)terms(d) + 4);
    *bytes = 0;
}

static const mica_engine *const engines[] = {&mica_lrn_cpu, &mica_engine_ref, &mica_lrn_cuda, NULL};

const mica_op mica_op_lrn = {
    .name = "lrn",
    .doc = "Local response normalisation",
    .desc_size = sizeof(mica_lrn_desc),
    .fields = fields,
    .field_count = sizeof fields / sizeof *fields,
    .args = args,
    .arg_count = sizeof args / sizeof *args,
    .check = check,
    .cost = cost,
    .terms = terms,
    .ulps = 16,
    .reference = mica_lrn_reference,
    .engines = engines,
};
