/* SPDX-License-Identifier: Apache-2.0
 * Reductions: tables, inference, checks, fills. */
#include "ops/reduce/reduce_op.h"
#include "ops/reduce/map.h"
#include "base/random.h"

#include <math.h>
#include <string.h>

#define X(KIND, text, by, front, behind, result) [MICA_REDUCE_KIND_##KIND] = text,
static const char *const kinds[] = {REDUCE_KINDS(X) NULL};
#undef X
#define X(KIND, text, by, front, behind, result)                                                   \
    [MICA_REDUCE_KIND_##KIND] = {REDUCE_##by, REDUCE_##front, REDUCE_##behind, REDUCE_##result},
const mica_reduce_row mica_reduce_rows[] = {REDUCE_KINDS(X)};
#undef X

/* By value: MICA_REDUCE_AXIS. */
static const char *const axis_numbers[] = {"",   "0",  "1",  "2",  "3",  "4",  "5",  "6",  "7",
                                           "-1", "-2", "-3", "-4", "-5", "-6", "-7", "-8", NULL};

static const char *const passes[] = {"fwd", "bwd", NULL};

#define FIELD(member, kind, ...) MICA_FIELD(mica_reduce_desc, member, kind, __VA_ARGS__)
#define FURTHER(member)          FIELD(member, TENSOR, .zero = "not given", .doc = "further input of map")
static const mica_field fields[] = {
    FIELD(pass, ENUM, .spellings = passes, .doc = "forward, or gradient of x"),
    FIELD(kind, ENUM, .spellings = kinds, .doc = "what is formed of the elements of a slice"),
    FIELD(x, TENSOR, .zero = "needed", .doc = "input"),
    FIELD(y, TENSOR, .zero = "inferred", .doc = "result; without the reduced dimensions"),
    FIELD(axes, LIST, .count = MICA_REDUCE_MAX_AXES, .spellings = axis_numbers, .zero = "all",
          .doc = "reduced dimensions; negative: from the end"),
    FIELD(keepdims, FLAG, .doc = "reduced dimensions stay in y, of size 1"),
    FIELD(correction, F64, .zero = "none",
          .doc = "var, std: what the number of elements is lessened by; 1 is Bessel's"),
    FIELD(map, TEXT, .count = MICA_REDUCE_MAP, .zero = "x itself",
          .doc = "expression of x0, which is x, and x1 .. x7 whose values are reduced"),
    FURTHER(x1),
    FURTHER(x2),
    FURTHER(x3),
    FURTHER(x4),
    FURTHER(x5),
    FURTHER(x6),
    FURTHER(x7),
    FIELD(dy, TENSOR, .zero = "inferred", .doc = "bwd: gradient of y"),
    FIELD(dx, TENSOR, .zero = "inferred", .doc = "bwd: gradient of x"),
    FIELD(p, F64, .def = 2, .infinite = true, .doc = "norm: its order; inf and -inf, too"),
};

static const mica_arg args[] = {
    [MICA_REDUCE_X] = {"x", offsetof(mica_reduce_desc, x), {MICA_IN, MICA_IN}},
    [MICA_REDUCE_Y] = {"y", offsetof(mica_reduce_desc, y), {MICA_OUT}},
    [MICA_REDUCE_X1] = {"x1", offsetof(mica_reduce_desc, x1), {MICA_IN}},
    [MICA_REDUCE_X2] = {"x2", offsetof(mica_reduce_desc, x2), {MICA_IN}},
    [MICA_REDUCE_X3] = {"x3", offsetof(mica_reduce_desc, x3), {MICA_IN}},
    [MICA_REDUCE_X4] = {"x4", offsetof(mica_reduce_desc, x4), {MICA_IN}},
    [MICA_REDUCE_X5] = {"x5", offsetof(mica_reduce_desc, x5), {MICA_IN}},
    [MICA_REDUCE_X6] = {"x6", offsetof(mica_reduce_desc, x6), {MICA_IN}},
    [MICA_REDUCE_X7] = {"x7", offsetof(mica_reduce_desc, x7), {MICA_IN}},
    [MICA_REDUCE_DY] = {"dy",
                        offsetof(mica_reduce_desc, dy),
                        {MICA_UNUSED, MICA_IN},
                        .types = MICA_FLOATS,
                        .need = {0, MICA_INFERRED}},
    [MICA_REDUCE_DX] = {"dx",
                        offsetof(mica_reduce_desc, dx),
                        {MICA_UNUSED, MICA_OUT},
                        .types = MICA_FLOATS,
                        .need = {0, MICA_INFERRED},
                        .like = "x"},
};

/* ---- shapes ---- */

static int axis_of(int32_t value, int rank)
{
    return value <= MICA_MAX_RANK ? value - 1 : rank - (value - MICA_MAX_RANK);
}

unsigned mica_reduce_axes(const mica_reduce_desc *d)
{
    unsigned axes = 0;
    for (int i = 0; i < MICA_MAX_RANK && d->axes[i]; i++)
        axes |= 1u << axis_of(d->axes[i], d->x.rank);
    return d->axes[0] ? axes : (1u << d->x.rank) - 1;
}

int64_t mica_reduce_length(const mica_reduce_desc *d)
{
    const unsigned axes = mica_reduce_axes(d);
    int64_t n = 1;
    for (int i = 0; i < d->x.rank; i++)
        if (axes >> i & 1) n *= d->x.dims[i];
    return n;
}

void mica_reduce_operands(const void *desc, mica_reduce_set *set)
{
    const mica_reduce_desc *d = desc;
    set->axes = mica_reduce_axes(d);
    set->count = 2;
    set->first = 1;
    set->at[0] = (mica_reduce_operand){d->x, MICA_REDUCE_X};
    set->at[1] =
        (mica_reduce_operand){mica_reduce_of_slices(&d->y, &d->x, set->axes), MICA_REDUCE_Y};
    for (int k = 1; k < MICA_EXPR_X && mica_reduce_is_mapped(d); k++)
        if (mica_reduce_map_input(d, k))
            set->at[set->count++] =
                (mica_reduce_operand){mica_reduce_map_expanded(d, k), mica_reduce_map_arg(k)};
    if (mica_reduce_row_of(d)->by != REDUCE_ARG) return;
    mica_tensor *index = &set->at[set->count].tensor;
    set->at[set->count++].arg = -1;
    *index = d->x;
    int64_t step = 1;
    for (int i = d->x.rank - 1; i >= 0; i--) {
        const bool reduced = set->axes >> i & 1;
        index->strides[i] = reduced ? step : 0;
        if (reduced) step *= d->x.dims[i];
    }
}

mica_dtype mica_reduce_real(const void *desc)
{
    const mica_reduce_desc *d = desc;
    if (mica_reduce_is_mapped(d)) return mica_reduce_map_real(d);
    if (mica_dtype_is_integer(d->x.dtype)) return MICA_S64;
    return d->x.dtype == MICA_F64 || d->y.dtype == MICA_F64 ? MICA_F64 : MICA_F32;
}

/* ---- inference and checks ---- */

/* Dimensions once each, in order, counted from the front; all of them: none is named. */
static mica_status infer_axes(mica_reduce_desc *d, mica_why *why)
{
    unsigned axes = 0;
    for (int i = 0; d->axes[i]; i++) {
        const int axis = axis_of(d->axes[i], d->x.rank);
        if (axis < 0 || axis >= d->x.rank)
            return mica_invalid(why, "axes has %s, x has rank %d", axis_numbers[d->axes[i]],
                                d->x.rank);
        if (axes >> axis & 1) return mica_invalid(why, "axes names dimension %d twice", axis);
        axes |= 1u << axis;
    }
    memset(d->axes, 0, sizeof d->axes);
    if (axes == (1u << d->x.rank) - 1) return MICA_OK;
    for (int i = 0, to = 0; i < d->x.rank; i++)
        if (axes >> i & 1) d->axes[to++] = MICA_REDUCE_AXIS(i);
    return MICA_OK;
}

static mica_dtype infer_type(const mica_reduce_desc *d)
{
    const int result = mica_reduce_row_of(d)->result;
    const bool integers = mica_reduce_of_integers(d);
    if (result == REDUCE_TRUTHS) return MICA_BOOL;
    if (result == REDUCE_COUNTS || (result == REDUCE_SUMS && integers)) return MICA_S64;
    if (mica_reduce_is_mapped(d)) return mica_reduce_map_type(d);
    return integers || mica_dtype_is_common(d->x.dtype) ? d->x.dtype : MICA_F32;
}

static void kept_dims(const mica_reduce_desc *d, mica_tensor *t)
{
    const unsigned axes = mica_reduce_axes(d);
    t->rank = 0;
    for (int i = 0; i < d->x.rank; i++) {
        const bool reduced = axes >> i & 1;
        if (!reduced || d->keepdims) t->dims[t->rank++] = reduced ? 1 : d->x.dims[i];
    }
}

/* Before dy and dx get types from what has none. */
static mica_status refuse_backward(const mica_reduce_desc *d, mica_why *why)
{
    if (mica_reduce_row_of(d)->result >= REDUCE_TRUTHS)
        return mica_invalid(why, "pass is bwd, %s has no gradient", kinds[d->kind]);
    if (*d->map) return mica_invalid(why, "pass is bwd, a map has its gradient in pointwise");
    if (MICA_FLOATS >> d->x.dtype & 1) return MICA_OK;
    return mica_invalid(why, "x is %s, in bwd it must be f64, f32, f16 or bf16",
                        mica_dtype_name(d->x.dtype));
}

/* Norms that are kinds of their own; what has no order. */
static mica_status name_norm(mica_reduce_desc *d, mica_why *why)
{
    if (d->kind != MICA_REDUCE_KIND_NORM) {
        if (d->p == 2) return MICA_OK;
        return mica_invalid(why, "p is %g with kind=%s; only norm has it", d->p, kinds[d->kind]);
    }
    if (d->p == 1) d->kind = MICA_REDUCE_KIND_NORM1;
    if (d->p == 2) d->kind = MICA_REDUCE_KIND_NORM2;
    if (d->p == (double)INFINITY) d->kind = MICA_REDUCE_KIND_AMAX;
    if (d->kind != MICA_REDUCE_KIND_NORM) d->p = 2;
    return MICA_OK;
}

static mica_status infer(void *desc, mica_why *why)
{
    mica_reduce_desc *d = desc;
    if (!mica_tensor_given(&d->x)) return mica_invalid(why, "x is needed");
    MICA_TRY(name_norm(d, why));
    MICA_TRY(infer_axes(d, why));
    if (mica_reduce_row_of(d)->by != REDUCE_MOMENTS) d->correction = 0;
    if (d->pass == MICA_REDUCE_BWD) MICA_TRY(refuse_backward(d, why));
    mica_tensor *result = d->pass == MICA_REDUCE_BWD ? &d->dy : &d->y;
    if (mica_tensor_given(result)) return MICA_OK;
    kept_dims(d, result);
    *result = mica_tensor_packed(infer_type(d), result->rank, result->dims);
    return MICA_OK;
}

static mica_status check_backward(const mica_reduce_desc *d, mica_why *why)
{
    mica_tensor want = d->dy;
    kept_dims(d, &want);
    return mica_tensor_same_dims(&d->dy, "dy", &want, "x without the reduced dimensions", why);
}

static mica_status check_map(const mica_reduce_desc *d, mica_why *why)
{
    for (int k = 1; k < MICA_EXPR_X && !mica_reduce_is_mapped(d); k++)
        if (mica_reduce_map_input(d, k))
            return mica_invalid(why, "x%d is given, map, which it is for, is not", k);
    if (!mica_reduce_is_mapped(d)) return MICA_OK;
    if (d->kind == MICA_REDUCE_KIND_NORM)
        return mica_invalid(why, "norm of a map with p=%g: p may be 1, 2 and inf then", d->p);
    if (mica_reduce_row_of(d)->by == REDUCE_ARG)
        return mica_invalid(why, "%s of a map: positions are those of elements of x",
                            kinds[d->kind]);
    return mica_reduce_map_check(d, why);
}

static mica_status check(const void *desc, mica_why *why)
{
    const mica_reduce_desc *d = desc;
    const mica_reduce_row *row = mica_reduce_row_of(d);
    const bool integers = mica_reduce_of_integers(d);
    if (d->pass == MICA_REDUCE_BWD) return check_backward(d, why);
    MICA_TRY(check_map(d, why));
    if (!mica_reduce_is_mapped(d) &&
        (mica_dtype_bits(d->x.dtype) < 8 || !(integers || mica_dtype_is_float(d->x.dtype))))
        return mica_invalid(why, "x is %s, it must be a real type of a byte or more",
                            mica_dtype_name(d->x.dtype));
    if (integers && row->result == REDUCE_FLOATS)
        return mica_invalid(why, "x is %s, %s needs a floating-point type",
                            mica_dtype_name(d->x.dtype), kinds[d->kind]);
    const bool whole = integers || row->result >= REDUCE_TRUTHS;
    if (whole ? !mica_dtype_is_integer(d->y.dtype) || mica_dtype_bits(d->y.dtype) < 8
              : !mica_dtype_is_common(d->y.dtype))
        return mica_invalid(why, "y is %s, %s of %s must be %s", mica_dtype_name(d->y.dtype),
                            kinds[d->kind], mica_dtype_name(d->x.dtype),
                            whole ? "integers of a byte or more" : "f64, f32, f16 or bf16");
    if (row->by == REDUCE_ARG && mica_tensor_count(&d->y) > 0 && mica_reduce_length(d) == 0)
        return mica_invalid(why, "%s over no elements has no result", kinds[d->kind]);
    mica_tensor want = d->y;
    kept_dims(d, &want);
    return mica_tensor_same_dims(&d->y, "y", &want, "x without the reduced dimensions", why);
}

/* ---- contract and fills ---- */

static void cost(const void *desc, double *flops, double *bytes)
{
    const mica_reduce_desc *d = desc;
    (void)bytes;
    *flops = 2 * (double)mica_tensor_count(&d->x);
    if (mica_reduce_is_mapped(d))
        *flops += (double)mica_tensor_count(&d->x) * mica_reduce_map_terms(d);
}

static int64_t terms(const void *desc)
{
    const int64_t n = mica_reduce_length(desc);
    return n > 0 ? n : 1;
}

/* Sums, products, elements and counts of small integers. */
static bool exact(const void *desc)
{
    const mica_reduce_desc *d = desc;
    const mica_reduce_row *row = mica_reduce_row_of(d);
    if (d->pass == MICA_REDUCE_BWD)
        return d->kind == MICA_REDUCE_KIND_SUM || d->kind == MICA_REDUCE_KIND_NORM1;
    if (row->result == REDUCE_FLOATS) return false;
    if (!mica_reduce_is_mapped(d)) return true;
    return row->by != REDUCE_PRODUCT &&
           mica_reduce_map_bound(d) * (double)mica_reduce_length(d) <= 0x1p24;
}

/* Slices of zeros, of ones, of both, and of one that differs from all others. */
static double truth(uint64_t seed, int64_t slice, int64_t i, int64_t n)
{
    const bool one = i == (int64_t)(mica_random_bits(seed, (uint64_t)slice) % (uint64_t)n);
    switch ((slice + (int64_t)(seed % 5)) % 5) {
    case 0:
        return 1;
    case 1:
        return 0;
    case 2:
        return one ? 1 : 0;
    case 3:
        return one ? 0 : 1;
    default:
        return (double)(mica_random_bits(seed ^ 1, (uint64_t)(slice * n + i)) & 1);
    }
}

/* Extremes at two places of a slice, of which the first counts. */
static double planted(const mica_reduce_desc *d, uint64_t seed, int64_t slice, int64_t i, int64_t n,
                      double v)
{
    const uint64_t bits = mica_random_bits(seed ^ 2, (uint64_t)slice);
    const int64_t first = (int64_t)(bits % (uint64_t)n);
    const int64_t later = first + (int64_t)(bits >> 32) % (n - first);
    if (i != first && i != later) return v;
    return d->kind == MICA_REDUCE_KIND_ARGMIN ? -7 : 7;
}

static bool fill_input(const void *desc, const double *scalars, int arg, mica_fill fill,
                       uint64_t seed, double *values)
{
    const mica_reduce_desc *d = desc;
    const mica_reduce_row *row = mica_reduce_row_of(d);
    (void)scalars;
    if (mica_reduce_is_mapped(d) || arg != MICA_REDUCE_X) return false;
    const bool places = row->by == REDUCE_ARG && fill == MICA_FILL_EXACT;
    if (row->by != REDUCE_PRODUCT && row->result != REDUCE_TRUTHS && !places) return false;
    if (places) mica_fill_general(&mica_op_reduce, d, arg, fill, seed, values);
    /* Which slice, and which of its elements. */
    const unsigned axes = mica_reduce_axes(d);
    mica_tensor slice = d->x, element = d->x;
    int64_t slices = 1, elements = 1;
    for (int i = d->x.rank - 1; i >= 0; i--) {
        const bool reduced = axes >> i & 1;
        slice.strides[i] = reduced ? 0 : slices;
        element.strides[i] = reduced ? elements : 0;
        *(reduced ? &elements : &slices) *= d->x.dims[i];
    }
    if (row->by == REDUCE_PRODUCT) {
        mica_fill_factors(d->x.dtype, fill, seed, slices * elements, values);
        return true;
    }
    for (int64_t i = 0; i < slices * elements; i++) {
        const int64_t at = mica_offset(&slice, i), place = mica_offset(&element, i);
        const double v = places ? planted(d, seed, at, place, elements, values[i])
                                : truth(seed, at, place, elements);
        values[i] = mica_fill_rounded(d->x.dtype, v);
    }
    return true;
}

mica_status mica_reduce_accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    (void)device;
    const mica_reduce_desc *d = desc;
    if (d->kind == MICA_REDUCE_KIND_NORM)
        return mica_refuse(why, "norm's p is %g, this engine has those of 1, 2 and inf", d->p);
    if (d->pass == MICA_REDUCE_FWD) return MICA_OK;
    return mica_refuse(why, "pass is bwd, this engine has fwd");
}

static const mica_engine *const engines[] = {&mica_reduce_cpu,          &mica_reduce_compose,
                                             &mica_engine_ref,          &mica_reduce_cuda,
                                             &mica_reduce_compose_cuda, NULL};

const mica_op mica_op_reduce = {
    .name = "reduce",
    .doc = "sums, extrema, norms, moments, positions and more over any set of dimensions",
    .desc_size = sizeof(mica_reduce_desc),
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
    .reference = mica_reduce_reference,
    .engines = engines,
};
