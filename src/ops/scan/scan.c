/* SPDX-License-Identifier: Apache-2.0
 * Scans: tables, inference, checks, fills, and the walks that a problem is. */
#include "ops/scan/scan.h"
#include "base/random.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const passes[] = {"fwd", "bwd", NULL};
static const char *const kinds[] = {"sum", "prod", "max", "min", "logsumexp", NULL};

/* What backward of a kind reads beside dy. */
enum { READS_X = 1, READS_Y = 2, READS_INDEX = 4, READS_FLAGS = 8 };
static const struct {
    int by, back, reads;
    bool opposite;
    bool sums; /* of integers s64 is inferred, and stored as it wraps around */
} rows[] = {
    [MICA_SCAN_KIND_SUM] = {SCAN_SUM, SCAN_SUM, READS_FLAGS, false, true},
    [MICA_SCAN_KIND_PROD] = {SCAN_PRODUCT, SCAN_MAPS, READS_X | READS_FLAGS, false, true},
    [MICA_SCAN_KIND_MAX] = {SCAN_MAX, SCAN_RUNS, READS_INDEX, false, false},
    [MICA_SCAN_KIND_MIN] = {SCAN_MAX, SCAN_RUNS, READS_INDEX, true, false},
    [MICA_SCAN_KIND_LOGSUMEXP] = {SCAN_EXP, SCAN_EXP_SLOPES, READS_X | READS_Y | READS_FLAGS, false,
                                  false},
};

#define FIELD(member, kind, ...) MICA_FIELD(mica_scan_desc, member, kind, __VA_ARGS__)
static const mica_field fields[] = {
    FIELD(pass, ENUM, .spellings = passes, .doc = "forward, or gradient of x"),
    FIELD(kind, ENUM, .spellings = kinds, .doc = "what is formed of the elements so far"),
    FIELD(x, TENSOR, .zero = "needed in fwd and in bwd of prod and logsumexp", .doc = "input"),
    FIELD(flags, TENSOR, .zero = "none",
          .doc = "integers as x: where one is not 0 a segment begins"),
    FIELD(y, TENSOR, .zero = "inferred; in bwd needed for logsumexp",
          .doc = "result; s64 for sums and products of integers, else of x's type"),
    FIELD(index, TENSOR, .zero = "none in fwd, needed in bwd",
          .doc = "max, min: positions along the axis, the latest of equals, s32 or s64"),
    FIELD(dy, TENSOR, .zero = "needed in bwd", .doc = "gradient of y"),
    FIELD(dx, TENSOR, .zero = "inferred", .doc = "gradient of x"),
    FIELD(axis, I64, .zero = "axis 0", .doc = "negative: from the end"),
    FIELD(exclusive, FLAG, .doc = "an element is not part of its own result"),
    FIELD(reverse, FLAG, .doc = "from the end of the axis"),
};

static const mica_tensor *main_of(const mica_scan_desc *d)
{
    return d->pass == MICA_SCAN_FWD ? &d->x : &d->dy;
}

static mica_tensor model(const void *desc)
{
    return *main_of(desc);
}

#define SCAN_TYPES                                                                                 \
    (MICA_FLOATS | MICA_INDICES | MICA_TYPE(S8) | MICA_TYPE(U8) | MICA_TYPE(U32) | MICA_TYPE(BOOL))
#define SCAN_FLAG_TYPES (SCAN_TYPES & ~MICA_FLOATS)
static const mica_arg args[] = {
    [MICA_SCAN_X] = {"x",
                     offsetof(mica_scan_desc, x),
                     {MICA_IN, MICA_IN},
                     .types = SCAN_TYPES,
                     .need = {MICA_NEEDED},
                     .shape = model,
                     .like = "x, of bwd dy"},
    [MICA_SCAN_FLAGS] = {"flags",
                         offsetof(mica_scan_desc, flags),
                         {MICA_IN, MICA_IN},
                         .types = SCAN_FLAG_TYPES,
                         .shape = model,
                         .like = "x, of bwd dy"},
    [MICA_SCAN_Y] = {"y",
                     offsetof(mica_scan_desc, y),
                     {MICA_OUT, MICA_IN},
                     .types = SCAN_TYPES,
                     .shape = model,
                     .like = "x, of bwd dy",
                     .alias = "x"},
    [MICA_SCAN_INDEX] = {"index",
                         offsetof(mica_scan_desc, index),
                         {MICA_OUT, MICA_IN},
                         .types = MICA_INDICES,
                         .shape = model,
                         .like = "x, of bwd dy"},
    [MICA_SCAN_DY] = {"dy",
                      offsetof(mica_scan_desc, dy),
                      {MICA_UNUSED, MICA_IN},
                      .types = MICA_FLOATS,
                      .need = {MICA_IF_GIVEN, MICA_NEEDED}},
    [MICA_SCAN_DX] = {"dx",
                      offsetof(mica_scan_desc, dx),
                      {MICA_UNUSED, MICA_OUT},
                      .types = MICA_FLOATS,
                      .need = {MICA_IF_GIVEN, MICA_INFERRED},
                      .like = "dy",
                      .alias = "dy"},
};

/* ---- walks ---- */

static void set(mica_scan_step *s, int operand, const mica_tensor *t, int arg)
{
    s->tensor[operand] = *t;
    s->arg[operand] = arg;
}

static mica_dtype acc_of(const mica_scan_step *s)
{
    if (mica_dtype_is_integer(s->tensor[SCAN_A].dtype)) return MICA_S64;
    for (int k = 0; k < SCAN_OPERANDS; k++)
        if (s->tensor[k].dtype == MICA_F64) return MICA_F64;
    return MICA_F32;
}

static int steps_of_gradient(const mica_scan_desc *d, mica_scan_step *steps)
{
    mica_scan_step *s = &steps[0];
    const bool product = d->kind == MICA_SCAN_KIND_PROD;
    *s = (mica_scan_step){.exclusive = d->exclusive, .reverse = !d->reverse};
    s->by = rows[d->kind].back;
    set(s, SCAN_A, &d->dy, MICA_SCAN_DY);
    set(s, SCAN_OUT, &d->dx, MICA_SCAN_DX);
    set(s, SCAN_FLAGS, &d->flags, MICA_SCAN_FLAGS);
    if (s->by == SCAN_RUNS) set(s, SCAN_B, &d->index, MICA_SCAN_INDEX);
    if (s->by == SCAN_EXP_SLOPES || product) set(s, SCAN_B, &d->x, MICA_SCAN_X);
    if (s->by == SCAN_EXP_SLOPES) set(s, SCAN_C, &d->y, MICA_SCAN_Y);
    s->acc = acc_of(s);
    if (!product) return 1;
    /* dx[j] = (product before j) (dy[j] + x[j + 1] (dy[j + 1] + x[j + 2] (...))) */
    mica_tensor before = d->x;
    before.dtype = s->acc;
    mica_tensor_strides_like(&before, &d->x);
    set(s, SCAN_C, &before, -1);
    steps[1] = *s;
    *s = (mica_scan_step){
        .by = SCAN_PRODUCT, .exclusive = true, .reverse = d->reverse, .acc = s->acc};
    set(s, SCAN_A, &d->x, MICA_SCAN_X);
    set(s, SCAN_OUT, &before, -1);
    set(s, SCAN_FLAGS, &d->flags, MICA_SCAN_FLAGS);
    return 2;
}

int mica_scan_steps(const mica_scan_desc *d, mica_scan_step *steps)
{
    mica_scan_step *s = &steps[0];
    if (d->pass == MICA_SCAN_BWD) return steps_of_gradient(d, steps);
    *s = (mica_scan_step){.exclusive = d->exclusive, .reverse = d->reverse};
    s->by = rows[d->kind].by;
    s->opposite = rows[d->kind].opposite;
    set(s, SCAN_A, &d->x, MICA_SCAN_X);
    set(s, SCAN_FLAGS, &d->flags, MICA_SCAN_FLAGS);
    set(s, SCAN_OUT, &d->y, MICA_SCAN_Y);
    set(s, SCAN_INDEX, &d->index, MICA_SCAN_INDEX);
    s->acc = acc_of(s);
    return 1;
}

void mica_scan_split(const mica_scan_step *s, int64_t axis, mica_layout *outer, long long *along)
{
    mica_tensor t[SCAN_OPERANDS];
    const mica_tensor *pointers[SCAN_OPERANDS];
    for (int k = 0; k < SCAN_OPERANDS; k++) {
        const bool there = mica_tensor_given(&s->tensor[k]);
        t[k] = there ? s->tensor[k] : s->tensor[SCAN_A];
        for (int i = 0; i < t[k].rank && !there; i++) t[k].strides[i] = 0;
        along[k] = t[k].strides[axis];
        t[k].dims[axis] = 1;
        pointers[k] = &t[k];
    }
    mica_layout_make(outer, pointers, SCAN_OPERANDS);
}

int64_t mica_scan_wrapped(mica_dtype type, int64_t v)
{
    switch (type) {
    case MICA_S8:
        return (int8_t)v;
    case MICA_U8:
        return (uint8_t)v;
    case MICA_S32:
        return (int32_t)v;
    case MICA_U32:
        return (uint32_t)v;
    case MICA_BOOL:
        return v != 0;
    default:
        return v;
    }
}

/* ---- inference and checks ---- */

static mica_status infer(void *desc, mica_why *why)
{
    mica_scan_desc *d = desc;
    const mica_tensor *t = main_of(d);
    const bool fwd = d->pass == MICA_SCAN_FWD;
    const int reads = rows[d->kind].reads;
    if (d->axis < -t->rank || d->axis >= t->rank)
        return mica_invalid(why, "axis is %lld, %s has rank %d", (long long)d->axis,
                            fwd ? "x" : "dy", t->rank);
    if (d->axis < 0) d->axis += t->rank;
    if (fwd && !mica_tensor_given(&d->y)) {
        const bool whole = rows[d->kind].sums && mica_dtype_is_integer(d->x.dtype);
        d->y = d->x;
        d->y.dtype = whole ? MICA_S64 : d->x.dtype;
        mica_tensor_strides_like(&d->y, &d->x);
    }
    const struct {
        mica_tensor *tensor;
        const char *name;
        int bit;
    } read[] = {{&d->x, "x", READS_X}, {&d->y, "y", READS_Y}, {&d->index, "index", READS_INDEX}};
    for (int i = 0; i < 3 && !fwd; i++) {
        if (!(reads & read[i].bit)) *read[i].tensor = (mica_tensor){0};
        if (reads & read[i].bit && !mica_tensor_given(read[i].tensor))
            return mica_invalid(why, "%s is needed for bwd of %s", read[i].name, kinds[d->kind]);
    }
    if (!fwd && !(reads & READS_FLAGS)) d->flags = (mica_tensor){0};
    return MICA_OK;
}

static mica_status check(const void *desc, mica_why *why)
{
    const mica_scan_desc *d = desc;
    const bool fwd = d->pass == MICA_SCAN_FWD, whole = mica_dtype_is_integer(d->x.dtype);
    const bool sums = rows[d->kind].sums, index = mica_tensor_given(&d->index);
    if (!fwd && mica_tensor_given(&d->x) && whole)
        return mica_invalid(why, "x is %s, what has a gradient is f64, f32, f16 or bf16",
                            mica_dtype_name(d->x.dtype));
    if (!fwd && mica_tensor_given(&d->y) && mica_dtype_is_integer(d->y.dtype))
        return mica_invalid(why, "y is %s, what has a gradient is f64, f32, f16 or bf16",
                            mica_dtype_name(d->y.dtype));
    if (index && !(rows[d->kind].reads & READS_INDEX))
        return mica_invalid(why, "index is for max and min, this is %s", kinds[d->kind]);
    if (index && d->index.dtype == MICA_S32 && main_of(d)->dims[d->axis] > INT32_MAX)
        return mica_invalid(why, "index is s32, %lld positions need s64",
                            (long long)main_of(d)->dims[d->axis]);
    if (!fwd) return MICA_OK;
    if (whole && d->kind == MICA_SCAN_KIND_LOGSUMEXP)
        return mica_invalid(why, "x is %s, logsumexp needs a floating-point type",
                            mica_dtype_name(d->x.dtype));
    if (whole != mica_dtype_is_integer(d->y.dtype) || (sums && d->y.dtype == MICA_BOOL))
        return mica_invalid(why, "y is %s, %s of %s must be %s", mica_dtype_name(d->y.dtype),
                            kinds[d->kind], mica_dtype_name(d->x.dtype),
                            !whole ? "f64, f32, f16 or bf16"
                            : sums ? "s8, u8, s32, u32 or s64"
                                   : "integers");
    return MICA_OK;
}

/* ---- contract and fills ---- */

static int64_t terms(const void *desc)
{
    const mica_scan_desc *d = desc;
    const int64_t n = main_of(d)->dims[d->axis];
    return n > 0 ? n : 1;
}

static void cost(const void *desc, double *flops, double *bytes)
{
    const mica_scan_desc *d = desc;
    (void)bytes;
    *flops = 2 * (double)mica_tensor_count(main_of(d));
}

static bool exact(const void *desc)
{
    return ((const mica_scan_desc *)desc)->kind != MICA_SCAN_KIND_LOGSUMEXP;
}

/* Position along the axis of element i, in logical order, and the distance of neighbours. */
static int64_t position(const mica_scan_desc *d, int64_t i, int64_t *apart)
{
    const mica_tensor *t = main_of(d);
    *apart = 1;
    for (int k = t->rank - 1; k > d->axis; k--) *apart *= t->dims[k];
    return i / *apart % t->dims[d->axis];
}

/* As forward makes them, in segments: a third of the elements are larger than what came before. */
static void fill_index(const mica_scan_desc *d, uint64_t seed, double *values)
{
    const int64_t count = mica_tensor_count(&d->dy), n = d->dy.dims[d->axis];
    const int64_t step = d->reverse ? -1 : 1;
    for (int64_t k = 0; k < count; k++) {
        int64_t apart;
        const int64_t i = d->reverse ? count - 1 - k : k, at = position(d, i, &apart);
        const uint64_t bits = mica_random_bits(seed, (uint64_t)i);
        const bool first = at == (d->reverse ? n - 1 : 0) || bits % 11 == 0;
        const double before = first ? -1 : values[i - step * apart];
        if (first && d->exclusive)
            values[i] = -1;
        else if (before < 0 || bits % 3 == 0)
            values[i] = (double)(d->exclusive ? at - step : at);
        else
            values[i] = before;
    }
}

/* What forward gives for the x that is beside it. */
static void fill_logsumexp(const mica_scan_desc *d, mica_fill fill, uint64_t seed, double *values)
{
    const int64_t count = mica_tensor_count(&d->dy), n = d->dy.dims[d->axis];
    double *x = malloc((size_t)count * sizeof *x + 1), before = 0;
    if (!x) return;
    mica_fill_general(&mica_op_scan, d, MICA_SCAN_X, fill, seed, x);
    int64_t apart;
    for (int64_t k = 0; k < count; k++) {
        if (position(d, k, &apart) != 0) continue;
        before = -(double)INFINITY;
        for (int64_t j = 0; j < n; j++) {
            const int64_t i = k + (d->reverse ? n - 1 - j : j) * apart;
            const double top = fmax(before, x[i]), low = fmin(before, x[i]);
            const double now = low == -(double)INFINITY ? top : top + log1p(exp(low - top));
            values[i] = mica_fill_rounded(d->y.dtype, d->exclusive ? before : now);
            before = now;
        }
    }
    free(x);
}

static bool fill_input(const void *desc, const double *scalars, int arg, mica_fill fill,
                       uint64_t seed, double *values)
{
    const mica_scan_desc *d = desc;
    (void)scalars;
    const int64_t count = mica_tensor_count(mica_op_tensor(&mica_op_scan, d, arg));
    if (arg == MICA_SCAN_FLAGS) {
        for (int64_t i = 0; i < count; i++) {
            const uint64_t bits = mica_random_bits(seed ^ 0xf1a6, (uint64_t)i);
            values[i] = bits % 7 ? 0 : d->flags.dtype == MICA_BOOL ? 1 : (double)(1 + bits / 7 % 3);
        }
        return true;
    }
    if (arg == MICA_SCAN_INDEX) {
        fill_index(d, seed, values);
        return true;
    }
    if (arg == MICA_SCAN_Y) {
        fill_logsumexp(d, fill, seed, values);
        return true;
    }
    if (arg != MICA_SCAN_X || d->kind != MICA_SCAN_KIND_PROD) return false;
    mica_fill_factors(d->x.dtype, fill, seed, count, values);
    return true;
}

static const mica_engine *const engines[] = {&mica_scan_cpu, &mica_engine_ref, &mica_scan_cuda,
                                             NULL};

const mica_op mica_op_scan = {
    .name = "scan",
    .doc = "cumulative sums, products, extrema and logsumexp along an axis, and their gradients",
    .desc_size = sizeof(mica_scan_desc),
    .fields = fields,
    .field_count = sizeof fields / sizeof *fields,
    .args = args,
    .arg_count = sizeof args / sizeof *args,
    .infer = infer,
    .check = check,
    .cost = cost,
    .terms = terms,
    .exact = exact,
    .ulps = 6,
    .fill = fill_input,
    .reference = mica_scan_reference,
    .engines = engines,
};
