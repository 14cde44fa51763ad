/* SPDX-License-Identifier: Apache-2.0
 * fake_quantize: tables, inference, checks, operands, and the truth. */
#include "ops/quantize/fake_quantize.h"
#include "ops/quantize/fake_quantize_args.h"

#include <math.h>
#include <string.h>

extern const mica_op mica_op_fake_quantize;

static const char *const passes[] = {"fwd", "bwd", NULL};
static const char *const rules[] = {"quotient", "product", NULL};

/* By mica_fake_quantize_type. */
static const char *const types[] = {"s8", "u8", "s4", "u4", "e4m3", "e5m2", "e2m1", NULL};
static const mica_dtype dtypes[] = {MICA_S8,   MICA_U8,   MICA_S4,  MICA_U4,
                                    MICA_E4M3, MICA_E5M2, MICA_E2M1};

#define FIELD(member, kind, ...) MICA_FIELD(mica_fake_quantize_desc, member, kind, __VA_ARGS__)
static const mica_field fields[] = {
    FIELD(pass, ENUM, .spellings = passes, .doc = "forward, or gradient of x"),
    FIELD(type, ENUM, .spellings = types, .doc = "that is simulated"),
    FIELD(rule, ENUM, .spellings = rules, .doc = "how x comes over the scale"),
    FIELD(x, TENSOR, .zero = "needed", .doc = "input"),
    FIELD(y, TENSOR, .zero = "inferred", .doc = "fwd: output"),
    FIELD(dy, TENSOR, .zero = "inferred", .doc = "bwd: gradient of y"),
    FIELD(dx, TENSOR, .zero = "inferred", .doc = "bwd: gradient of x"),
    FIELD(scale, TENSOR, .zero = "inferred", .doc = "one element for each block"),
    FIELD(zero, TENSOR, .zero = "none", .doc = "code of 0 in each block"),
    FIELD(block, AXES, .count = MICA_MAX_RANK, .apart = true,
          .zero = "the whole dimension; all 0: inferred from scale",
          .doc = "elements along each dimension that share a scale"),
    FIELD(low, I64, .zero = "the type's", .doc = "least code"),
    FIELD(high, I64, .zero = "the type's", .doc = "greatest code"),
};

static mica_tensor of_blocks(const void *desc)
{
    const mica_fake_quantize_desc *d = desc;
    return mica_quantize_of_blocks(&d->x, &d->scale, d->block, MICA_F32);
}
static mica_tensor zero_of_blocks(const void *desc)
{
    const mica_fake_quantize_desc *d = desc;
    return mica_quantize_of_blocks(&d->x, &d->zero, d->block, MICA_F32);
}

#define ARG(member, fwd, bwd, ...)                                                                 \
    {                                                                                              \
        .name = #member, .tensor = offsetof(mica_fake_quantize_desc, member), .dir = {fwd, bwd},   \
        __VA_ARGS__                                                                                \
    }
#define INFERRED .types = MICA_FLOATS, .need = {MICA_INFERRED, MICA_INFERRED}, .like = "x"
static const mica_arg args[] = {
    [MICA_FAKE_QUANTIZE_X] =
        ARG(x, MICA_IN, MICA_IN, .types = MICA_FLOATS, .need = {MICA_NEEDED, MICA_NEEDED}),
    [MICA_FAKE_QUANTIZE_Y] = ARG(y, MICA_OUT, MICA_UNUSED, INFERRED, .alias = "x"),
    [MICA_FAKE_QUANTIZE_DY] = ARG(dy, MICA_UNUSED, MICA_IN, INFERRED),
    [MICA_FAKE_QUANTIZE_DX] = ARG(dx, MICA_UNUSED, MICA_OUT, INFERRED, .alias = "dy"),
    [MICA_FAKE_QUANTIZE_SCALE] =
        ARG(scale, MICA_IN, MICA_IN, .types = MICA_FLOATS, .need = {MICA_INFERRED, MICA_INFERRED},
            .shape = of_blocks, .words = "blocks of x"),
    [MICA_FAKE_QUANTIZE_ZERO] =
        ARG(zero, MICA_IN, MICA_IN, .types = MICA_TYPE(F32) | MICA_TYPE(S8) | MICA_TYPE(U8),
            .shape = zero_of_blocks, .words = "blocks of x"),
};

int mica_fake_quantize_code(const mica_fake_quantize_desc *d)
{
    return mica_quantize_code(dtypes[d->type]);
}

static int64_t low_of(const mica_fake_quantize_desc *d)
{
    return d->low ? d->low : (int64_t)CODE_LOW(mica_fake_quantize_code(d));
}

static int64_t high_of(const mica_fake_quantize_desc *d)
{
    return d->high ? d->high : (int64_t)CODE_TOP(mica_fake_quantize_code(d));
}

/* ---- inference and checks ---- */

static mica_status infer(void *desc, mica_why *why)
{
    mica_fake_quantize_desc *d = desc;
    const int code = mica_fake_quantize_code(d);
    if (CODE_IS_FLOAT(code)) {
        if (d->low || d->high || mica_tensor_given(&d->zero))
            return mica_invalid(why, "low, high and zero are for integers, type is %s",
                                types[d->type]);
    }
    return mica_quantize_infer_block(&d->x, &d->scale, d->block, why);
}

static mica_status check(const void *desc, mica_why *why)
{
    const mica_fake_quantize_desc *d = desc;
    int rank = d->x.rank;
    const int64_t low = low_of(d), high = high_of(d);
    if (!CODE_IS_FLOAT(mica_fake_quantize_code(d)) &&
        (low >= high || low < -MICA_FAKE_QUANTIZE_MOST || high > MICA_FAKE_QUANTIZE_MOST))
        return mica_invalid(why,
                            "low is %lld and high %lld, low must be below high and both within %d",
                            (long long)low, (long long)high, MICA_FAKE_QUANTIZE_MOST);
    for (int i = 0; i < d->x.rank; i++) {
        if (!d->block[i]) continue;
        if (d->x.dims[i] % d->block[i])
            return mica_invalid(why, "dimension %d is %lld, in blocks of %lld: they must be whole",
                                i, (long long)d->x.dims[i], (long long)d->block[i]);
        rank += d->block[i] > 1;
    }
    if (rank > MICA_MAX_RANK)
        return mica_invalid(why,
                            "blocks of %d dimensions, those within a block included, at most %d",
                            rank, MICA_MAX_RANK);
    return MICA_OK;
}

/* ---- what is done to an element ---- */

/* A dimension of blocks becomes two: what has an element for each block repeats it along the
 * second. */
static mica_pointwise_operand folded(const mica_fake_quantize_desc *d, int arg, bool of_block)
{
    mica_pointwise_operand o = mica_pointwise_argument(&mica_op_fake_quantize, d, arg);
    if (!mica_tensor_given(&o.tensor)) return o;
    const mica_tensor t = of_block ? mica_quantize_spread(&o.tensor, d->x.rank) : o.tensor;
    o.tensor = (mica_tensor){.dtype = t.dtype};
    for (int i = 0; i < d->x.rank; i++) {
        const int64_t block = d->block[i] ? d->block[i] : d->x.dims[i];
        const bool split = d->block[i] > 1;
        const int64_t stride = t.strides[i];
        int r = o.tensor.rank++;
        o.tensor.dims[r] = split ? d->x.dims[i] / block : d->x.dims[i];
        o.tensor.strides[r] = split && !of_block         ? stride * block
                              : of_block && !d->block[i] ? 0
                                                         : stride;
        if (!split) continue;
        r = o.tensor.rank++;
        o.tensor.dims[r] = block;
        o.tensor.strides[r] = of_block ? 0 : stride;
    }
    return o;
}

void mica_fake_quantize_operands(const void *desc, mica_pointwise_set *set)
{
    const mica_fake_quantize_desc *d = desc;
    const bool backward = d->pass == MICA_FAKE_QUANTIZE_BWD;
    set->at[FAKE_X] = folded(d, MICA_FAKE_QUANTIZE_X, false);
    set->at[FAKE_SCALE] = folded(d, MICA_FAKE_QUANTIZE_SCALE, true);
    set->at[FAKE_ZERO] = folded(d, MICA_FAKE_QUANTIZE_ZERO, true);
    set->at[FAKE_DY] = folded(d, MICA_FAKE_QUANTIZE_DY, false);
    set->at[FAKE_OUT] = folded(d, backward ? MICA_FAKE_QUANTIZE_DX : MICA_FAKE_QUANTIZE_Y, false);
    set->count = FAKE_OPERANDS;
}

mica_status mica_fake_quantize_numbers(const void *desc, const double *scalars, double *numbers)
{
    const mica_fake_quantize_desc *d = desc;
    const int code = mica_fake_quantize_code(d);
    (void)scalars;
    numbers[FAKE_LOW] = CODE_IS_FLOAT(code) ? -CODE_TOP(code) : (double)low_of(d);
    numbers[FAKE_TOP] = CODE_IS_FLOAT(code) ? CODE_TOP(code) : (double)high_of(d);
    return MICA_OK;
}

void mica_fake_quantize_prologue(const void *desc, mica_text *prologue)
{
    const mica_fake_quantize_desc *d = desc;
    mica_prologue_int(prologue, "CODE", mica_fake_quantize_code(d));
    mica_prologue_int(prologue, "HAS_ZERO", mica_tensor_given(&d->zero));
    mica_prologue_int(prologue, "PRODUCT", d->rule == MICA_FAKE_QUANTIZE_PRODUCT);
    mica_prologue_int(prologue, "BACKWARD", d->pass == MICA_FAKE_QUANTIZE_BWD);
}

/* ---- the truth ---- */

static double rounded(bool wide, double v)
{
    return wide ? v : (double)(float)v;
}

void mica_fake_quantize_truth(const void *desc, const double *numbers, double *v, double *mag)
{
    const mica_fake_quantize_desc *d = desc;
    const mica_tensor *out = d->pass == MICA_FAKE_QUANTIZE_BWD ? &d->dx : &d->y;
    const bool wide = d->x.dtype == MICA_F64 || d->scale.dtype == MICA_F64 ||
                      out->dtype == MICA_F64 || d->dy.dtype == MICA_F64;
    const bool floats = CODE_IS_FLOAT(mica_fake_quantize_code(d));
    const double low = numbers[FAKE_LOW], top = numbers[FAKE_TOP];
    const double x = v[FAKE_X], scale = v[FAKE_SCALE];
    const double zero = mica_tensor_given(&d->zero) ? v[FAKE_ZERO] : 0;
    double r = d->rule == MICA_FAKE_QUANTIZE_PRODUCT ? rounded(wide, x * rounded(wide, 1 / scale))
                                                     : rounded(wide, x / scale);
    double y;
    bool passes;
    if (floats) {
        if (x == 0 && scale == 0) r = 0;
        passes = fabs(r) <= top;
        y = isnan(r) ? r : mica_fill_rounded(dtypes[d->type], fmin(fmax(r, low), top));
    } else {
        const double q = rounded(wide, nearbyint(fmin(fmax(r, -0x1p20), 0x1p20)) + zero);
        const double nan = d->rule == MICA_FAKE_QUANTIZE_PRODUCT ? low : zero;
        passes = !isnan(r) && q >= low && q <= top;
        y = fmin(fmax(isnan(r) ? nan : q, low), top) - zero;
    }
    y = rounded(wide, y * scale);
    v[FAKE_OUT] = d->pass == MICA_FAKE_QUANTIZE_BWD ? (passes ? v[FAKE_DY] : 0) : y;
    mag[FAKE_OUT] = fabs(v[FAKE_OUT]);
}

/* ---- fills ---- */

static bool fill(const void *desc, const double *scalars, int arg, mica_fill kind, uint64_t seed,
                 double *values)
{
    const mica_fake_quantize_desc *d = desc;
    (void)scalars;
    if (arg == MICA_FAKE_QUANTIZE_SCALE)
        return mica_quantize_fill_scale(
            &d->scale, 2.5 / mica_quantize_top(mica_fake_quantize_code(d)), kind, seed, values);
    if (arg != MICA_FAKE_QUANTIZE_ZERO) return false;
    const int64_t count = mica_tensor_count(&d->zero);
    for (int64_t i = 0; i < count; i++)
        values[i] =
            (double)((low_of(d) + high_of(d)) / 2 + (int64_t)((seed + (uint64_t)i) % 3) - 1);
    return true;
}

static bool exact(const void *desc)
{
    (void)desc;
    return true;
}

static const mica_engine cpu = {MICA_POINTWISE_CPU, .contract = mica_quantize_contract};
static const mica_engine cuda = {MICA_POINTWISE_CUDA, .contract = mica_quantize_contract};
static const mica_engine *const engines[] = {&cpu, &mica_engine_ref, &cuda, NULL};

const mica_op mica_op_fake_quantize = {
    .name = "fake_quantize",
    .doc = "What quantize and dequantize make of numbers, and the straight-through gradient",
    .desc_size = sizeof(mica_fake_quantize_desc),
    .fields = fields,
    .field_count = sizeof fields / sizeof *fields,
    .args = args,
    .arg_count = sizeof args / sizeof *args,
    .infer = infer,
    .check = check,
    .exact = exact,
    .fill = fill,
    .pointwise = &mica_fake_quantize_pointwise,
    .engines = engines,
};
