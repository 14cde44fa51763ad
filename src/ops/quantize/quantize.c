/* SPDX-License-Identifier: Apache-2.0
 * quantize and dequantize: tables, inference, checks, fills. */
#include "ops/quantize/quantize.h"
#include "base/random.h"
#include "cpu/scratch.h"
#include "ops/random/random.h"

#include <math.h>
#include <string.h>

static const mica_engine *const quantize_engines[] = {
    &mica_quantize_cpu, &mica_engine_ref, &mica_quantize_once, &mica_quantize_cuda, NULL};
static const mica_engine *const dequantize_engines[] = {&mica_dequantize_cpu, &mica_engine_ref,
                                                        &mica_dequantize_cuda, NULL};

static const char *const passes[] = {"given", "amax", "minmax", NULL};
static const char *const roundings[] = {"nearest", "stochastic", NULL};

#define QUANTIZE(member, kind, ...) MICA_FIELD(mica_quantize_desc, member, kind, __VA_ARGS__)
static const mica_field quantize_fields[] = {
    QUANTIZE(pass, ENUM, .spellings = passes, .doc = "where scales come from"),
    QUANTIZE(x, TENSOR, .zero = "needed", .doc = "input"),
    QUANTIZE(y, TENSOR, .zero = "needed", .doc = "quantised; a type alone suffices"),
    QUANTIZE(scale, TENSOR, .zero = "inferred", .doc = "one element for each block"),
    QUANTIZE(zero, TENSOR, .zero = "none; minmax: inferred", .doc = "code of 0 in each block"),
    QUANTIZE(global_scale, TENSOR, .zero = "none", .doc = "f32, a factor of all scales"),
    QUANTIZE(block, AXES, .count = MICA_MAX_RANK, .apart = true,
             .zero = "the whole dimension; all 0: inferred from scale",
             .doc = "elements along each dimension that share a scale"),
    QUANTIZE(rounding, ENUM, .spellings = roundings, .doc = "of quotients"),
    QUANTIZE(rng, TENSOR, .zero = "stochastic: inferred", .doc = "s64, {seed, offset}"),
    QUANTIZE(first, I64, .doc = "stochastic: index of the first element"),
    QUANTIZE(steps, AXES, .count = MICA_MAX_RANK, .permutation = true, .zero = "packed",
             .doc = "of the index along each dimension"),
};

#define DEQUANTIZE(member, kind, ...) MICA_FIELD(mica_dequantize_desc, member, kind, __VA_ARGS__)
static const mica_field dequantize_fields[] = {
    DEQUANTIZE(x, TENSOR, .zero = "needed", .doc = "quantised"),
    DEQUANTIZE(y, TENSOR, .zero = "inferred", .doc = "output; inferred in f32"),
    DEQUANTIZE(scale, TENSOR, .zero = "inferred", .doc = "one element for each block"),
    DEQUANTIZE(zero, TENSOR, .zero = "none", .doc = "code of 0 in each block"),
    DEQUANTIZE(global_scale, TENSOR, .zero = "none", .doc = "f32, a factor of all scales"),
    DEQUANTIZE(block, AXES, .count = MICA_MAX_RANK, .apart = true,
               .zero = "the whole dimension; all 0: inferred from scale",
               .doc = "elements along each dimension that share a scale"),
};

/* ---- shapes ---- */

static bool is_single(const mica_tensor *scale)
{
    return mica_tensor_given(scale) && mica_tensor_count(scale) == 1;
}

static bool is_whole(const int64_t *block)
{
    for (int d = 0; d < MICA_MAX_RANK; d++)
        if (block[d]) return false;
    return true;
}

/* A single element that stands for all may have any rank. */
mica_tensor mica_quantize_of_blocks(const mica_tensor *x, const mica_tensor *own,
                                    const int64_t *block, mica_dtype type)
{
    mica_tensor t = {.dtype = type, .rank = x->rank};
    if (own->rank && is_single(own) && is_whole(block)) return *own;
    for (int d = 0; d < x->rank; d++)
        t.dims[d] = x->dims[d] == 0 ? 0 : block[d] ? (x->dims[d] - 1) / block[d] + 1 : 1;
    mica_tensor_default_strides(&t);
    return t;
}

static mica_tensor quantize_scale(const void *desc)
{
    const mica_quantize_desc *d = desc;
    return mica_quantize_of_blocks(&d->x, &d->scale, d->block, MICA_F32);
}
static mica_tensor quantize_zero(const void *desc)
{
    const mica_quantize_desc *d = desc;
    return mica_quantize_of_blocks(&d->x, &d->zero, d->block, d->y.dtype);
}
static mica_tensor dequantize_scale(const void *desc)
{
    const mica_dequantize_desc *d = desc;
    return mica_quantize_of_blocks(&d->x, &d->scale, d->block, MICA_F32);
}
static mica_tensor dequantize_zero(const void *desc)
{
    const mica_dequantize_desc *d = desc;
    return mica_quantize_of_blocks(&d->x, &d->zero, d->block, d->x.dtype);
}
static mica_tensor dequantize_y(const void *desc)
{
    mica_tensor t = ((const mica_dequantize_desc *)desc)->x;
    t.dtype = MICA_F32;
    return t;
}

#define CODES                                                                                      \
    (MICA_TYPE(E4M3) | MICA_TYPE(E5M2) | MICA_TYPE(E2M1) | MICA_TYPE(S8) | MICA_TYPE(U8) |         \
     MICA_TYPE(S4) | MICA_TYPE(U4))
#define SCALES   (MICA_FLOATS | MICA_TYPE(E4M3) | MICA_TYPE(E8M0))
#define INTEGERS (MICA_TYPE(S8) | MICA_TYPE(U8) | MICA_TYPE(S4) | MICA_TYPE(U4))
#define EACH(what)                                                                                 \
    {                                                                                              \
        what, what, what                                                                           \
    }

static const mica_arg quantize_args[] = {
    [MICA_QUANTIZE_X] = {"x", offsetof(mica_quantize_desc, x), EACH(MICA_IN), .types = MICA_FLOATS,
                         .need = EACH(MICA_NEEDED)},
    [MICA_QUANTIZE_Y] = {"y", offsetof(mica_quantize_desc, y), EACH(MICA_OUT), .types = CODES,
                         .need = EACH(MICA_NEEDED), .like = "x"},
    [MICA_QUANTIZE_SCALE] = {"scale",
                             offsetof(mica_quantize_desc, scale),
                             {MICA_IN, MICA_OUT, MICA_OUT},
                             .types = SCALES,
                             .need = EACH(MICA_INFERRED),
                             .shape = quantize_scale,
                             .words = "blocks of x"},
    [MICA_QUANTIZE_ZERO] = {"zero",
                            offsetof(mica_quantize_desc, zero),
                            {MICA_IN, MICA_UNUSED, MICA_OUT},
                            .types = INTEGERS,
                            .need = {MICA_IF_GIVEN, MICA_IF_GIVEN, MICA_INFERRED},
                            .shape = quantize_zero,
                            .words = "blocks of x",
                            .refused = true},
    [MICA_QUANTIZE_GLOBAL_SCALE] = {"global_scale", offsetof(mica_quantize_desc, global_scale),
                                    EACH(MICA_IN), .types = MICA_TYPE(F32)},
    [MICA_QUANTIZE_RNG] = {"rng", offsetof(mica_quantize_desc, rng), EACH(MICA_IN),
                           .types = MICA_TYPE(S64)},
};

static const mica_arg dequantize_args[] = {
    [MICA_DEQUANTIZE_X] = {"x",
                           offsetof(mica_dequantize_desc, x),
                           {MICA_IN},
                           .types = CODES | MICA_TYPE(S32),
                           .need = {MICA_NEEDED}},
    [MICA_DEQUANTIZE_Y] = {"y",
                           offsetof(mica_dequantize_desc, y),
                           {MICA_OUT},
                           .types = MICA_FLOATS,
                           .need = {MICA_INFERRED},
                           .like = "x",
                           .shape = dequantize_y},
    [MICA_DEQUANTIZE_SCALE] = {"scale",
                               offsetof(mica_dequantize_desc, scale),
                               {MICA_IN},
                               .types = SCALES,
                               .need = {MICA_INFERRED},
                               .shape = dequantize_scale,
                               .words = "blocks of x"},
    [MICA_DEQUANTIZE_ZERO] = {"zero",
                              offsetof(mica_dequantize_desc, zero),
                              {MICA_IN},
                              .types = INTEGERS | MICA_TYPE(S32),
                              .shape = dequantize_zero,
                              .words = "blocks of x"},
    [MICA_DEQUANTIZE_GLOBAL_SCALE] = {"global_scale",
                                      offsetof(mica_dequantize_desc, global_scale),
                                      {MICA_IN},
                                      .types = MICA_TYPE(F32)},
};

/* ---- inference and checks ---- */

/* Blocks of a dimension that no block is shorter than are all of it: 0. */
mica_status mica_quantize_infer_block(const mica_tensor *x, const mica_tensor *scale,
                                      int64_t *block, mica_why *why)
{
    bool given = false;
    for (int d = 0; d < MICA_MAX_RANK; d++) {
        if (block[d] == MICA_ZERO_INT) given = true, block[d] = 0;
        if (block[d] < 0 || (d >= x->rank && block[d]))
            return mica_invalid(why, "block[%d] is %lld, %s", d, (long long)block[d],
                                d < x->rank ? "it must be at least 1; 0 is the whole dimension"
                                            : "x has no such dimension");
        if (d < x->rank && block[d] >= x->dims[d]) block[d] = 0;
    }
    if (given || !is_whole(block) || !scale->rank || is_single(scale)) return MICA_OK;
    if (scale->rank != x->rank)
        return mica_invalid(why, "scale has rank %d and %lld elements, it must have one or rank %d",
                            scale->rank, (long long)mica_tensor_count(scale), x->rank);
    for (int d = 0; d < x->rank; d++) {
        const int64_t n = x->dims[d], s = scale->dims[d];
        if (n == 0 || s == 1) continue;
        if (s < 1 || s > n || (n - 1) / ((n - 1) / s + 1) + 1 != s)
            return mica_invalid(
                why,
                "dimension %d of scale is %lld, no length of blocks makes that many "
                "of %lld",
                d, (long long)s, (long long)n);
        block[d] = (n - 1) / s + 1;
    }
    return MICA_OK;
}

static mica_status quantize_infer(void *desc, mica_why *why)
{
    mica_quantize_desc *d = desc;
    if (d->pass == MICA_QUANTIZE_MINMAX && d->y.dtype && !mica_dtype_is_integer(d->y.dtype))
        return mica_invalid(why, "y is %s, pass minmax makes s8, u8, s4 or u4",
                            mica_dtype_name(d->y.dtype));
    if (d->rounding == MICA_QUANTIZE_STOCHASTIC) {
        mica_random_infer_rng(&d->rng);
    } else {
        if (mica_tensor_given(&d->rng))
            return mica_invalid(why, "rng is for rounding=stochastic, it is nearest");
        d->first = 0;
        memset(d->steps, 0, sizeof d->steps);
    }
    return mica_quantize_infer_block(&d->x, &d->scale, d->block, why);
}

static mica_status dequantize_infer(void *desc, mica_why *why)
{
    mica_dequantize_desc *d = desc;
    return mica_quantize_infer_block(&d->x, &d->scale, d->block, why);
}

static mica_status check_set(const mica_op *op, const void *desc, mica_why *why)
{
    mica_quantize_set s;
    mica_quantize_set_make(op, desc, NULL, &s);
    const mica_tensor *code = &s.at[MICA_QUANTIZE_PLACE_CODE];
    const char *of = s.quantizes ? "y" : "x";
    const mica_tensor *scale = mica_op_tensor(op, desc, MICA_QUANTIZE_SCALE),
                      *zero = mica_op_tensor(op, desc, MICA_QUANTIZE_ZERO),
                      *all = mica_op_tensor(op, desc, MICA_QUANTIZE_GLOBAL_SCALE);
    if (mica_tensor_given(zero) && zero->dtype != code->dtype)
        return mica_invalid(why, "zero is %s, %s is %s: they must be the same integer type",
                            mica_dtype_name(zero->dtype), of, mica_dtype_name(code->dtype));
    if (scale->dtype == MICA_F64 && s.real != MICA_F64)
        return mica_invalid(why, "scale is f64, %s is not", s.quantizes ? "x" : "y");
    if (mica_tensor_given(all) && mica_tensor_count(all) != 1)
        return mica_invalid(why, "global_scale has %lld elements, it must have one",
                            (long long)mica_tensor_count(all));
    if (mica_tensor_given(all) && s.pass == MICA_QUANTIZE_MINMAX)
        return mica_invalid(why, "global_scale is not for pass minmax");
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    mica_quantize_box *boxes = mica_scratch_take(MICA_QUANTIZE_BOXES * sizeof *boxes);
    int count;
    return mica_quantize_cut(&s, boxes, &count, why);
}

static mica_status quantize_check(const void *desc, mica_why *why)
{
    const mica_quantize_desc *d = desc;
    MICA_TRY(mica_random_check_rng(&d->rng, why));
    MICA_TRY(mica_random_check_index(&d->x, d->first, d->steps, why));
    return check_set(&mica_op_quantize, desc, why);
}
static mica_status dequantize_check(const void *desc, mica_why *why)
{
    return check_set(&mica_op_dequantize, desc, why);
}

/* ---- fills ---- */

/* Scales that leave numbers of normal size within the type's range, but for some; exact ones are
 * powers of two. */
bool mica_quantize_fill_scale(const mica_tensor *t, double size, mica_fill fill, uint64_t seed,
                              double *values)
{
    const int64_t count = mica_tensor_count(t);
    if (fill == MICA_FILL_EDGES && t->dtype != MICA_E8M0) return false;
    for (int64_t i = 0; i < count; i++) {
        const uint64_t bits = mica_random_bits(seed, (uint64_t)i);
        const double u = mica_random_uniform(seed, (uint64_t)i);
        double v = fill == MICA_FILL_EXACT ? ldexp(1, (int)(bits % 3) - 1) : size * exp2(3 * u - 2);
        if (fill == MICA_FILL_EXTREME && bits >> 32 & 1) v = bits >> 33 & 1 ? 0 : 1e-30;
        values[i] = mica_fill_rounded(t->dtype, v);
    }
    return true;
}

static bool fill_of(const mica_op *op, const void *desc, int arg, mica_fill fill, uint64_t seed,
                    double *values)
{
    mica_quantize_set s;
    const mica_tensor *t = mica_op_tensor(op, desc, arg);
    mica_quantize_set_make(op, desc, NULL, &s);
    if (arg == MICA_QUANTIZE_GLOBAL_SCALE)
        return mica_quantize_fill_scale(t, 1, fill, seed ^ 5, values);
    if (arg != MICA_QUANTIZE_SCALE) return false;
    return mica_quantize_fill_scale(t, s.quantizes ? 2.5 / mica_quantize_top(s.code) : 1, fill,
                                    seed, values);
}

/* Blocks whose zero point is not 0; with one sign rows of the one and of the other. */
static bool fill_ends(const mica_tensor *t, mica_fill fill, uint64_t seed, double *values)
{
    const int64_t count = mica_tensor_count(t);
    const int64_t row = t->rank && t->dims[t->rank - 1] ? t->dims[t->rank - 1] : 1;
    if (fill != MICA_FILL_SAME_SIGN && fill != MICA_FILL_EXACT) return false;
    for (int64_t i = 0; i < count; i++) {
        const double u = mica_random_uniform(seed, (uint64_t)i);
        const double sign = i / row & 1 ? 1 : -1;
        const double v = fill == MICA_FILL_EXACT ? floor(u * 7) - 2 : sign * (0.5 + u);
        values[i] = mica_fill_rounded(t->dtype, v);
    }
    return true;
}

static bool quantize_fill(const void *desc, const double *scalars, int arg, mica_fill fill,
                          uint64_t seed, double *values)
{
    const mica_quantize_desc *d = desc;
    (void)scalars;
    if (arg == MICA_QUANTIZE_X && d->pass == MICA_QUANTIZE_MINMAX)
        return fill_ends(&d->x, fill, seed, values);
    if (arg == MICA_QUANTIZE_RNG) return mica_random_fill_rng(d->rng, seed, values);
    return fill_of(&mica_op_quantize, desc, arg, fill, seed, values);
}
static bool dequantize_fill(const void *desc, const double *scalars, int arg, mica_fill fill,
                            uint64_t seed, double *values)
{
    (void)scalars;
    return fill_of(&mica_op_dequantize, desc, arg, fill, seed, values);
}

static bool exact(const void *desc)
{
    (void)desc;
    return true;
}

const mica_op mica_op_quantize = {
    .name = "quantize",
    .doc = "Numbers in few bits with scales of blocks, which are given or made",
    .desc_size = sizeof(mica_quantize_desc),
    .fields = quantize_fields,
    .field_count = sizeof quantize_fields / sizeof *quantize_fields,
    .args = quantize_args,
    .arg_count = sizeof quantize_args / sizeof *quantize_args,
    .infer = quantize_infer,
    .check = quantize_check,
    .exact = exact,
    .fill = quantize_fill,
    .reference = mica_quantize_reference,
    .engines = quantize_engines,
};

const mica_op mica_op_dequantize = {
    .name = "dequantize",
    .doc = "Numbers of few bits and scales of blocks, as floating-point numbers",
    .desc_size = sizeof(mica_dequantize_desc),
    .fields = dequantize_fields,
    .field_count = sizeof dequantize_fields / sizeof *dequantize_fields,
    .args = dequantize_args,
    .arg_count = sizeof dequantize_args / sizeof *dequantize_args,
    .infer = dequantize_infer,
    .check = dequantize_check,
    .exact = exact,
    .fill = dequantize_fill,
    .reference = mica_dequantize_reference,
    .engines = dequantize_engines,
};
