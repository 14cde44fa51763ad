/* SPDX-License-Identifier: Apache-2.0
 * The expression in front of a reduction: reading, checks, types. */
#include "ops/reduce/map.h"
#include "ops/pointwise/pointwise.h"
#include "ops/convert/cpu/convert.h"

#include <math.h>
#include <string.h>

const mica_tensor *mica_reduce_map_input(const mica_reduce_desc *d, int k)
{
    const mica_tensor *t = mica_op_tensor(&mica_op_reduce, d, mica_reduce_map_arg(k));
    return mica_tensor_given(t) ? t : NULL;
}

static mica_status read(const mica_reduce_desc *d, mica_expr *e, mica_why *why)
{
    for (int k = 0; k < MICA_EXPR_INPUTS; k++) {
        const mica_tensor *x = k < MICA_EXPR_X ? mica_reduce_map_input(d, k) : NULL;
        e->inputs[k] = x ? x->dtype : MICA_NONE;
    }
    e->rank = 0, e->extent = 1; /* no places */
    MICA_TRY(mica_expr_parse_field(e, "map", d->map, why));
    return mica_expr_store(e, 0, MICA_F64, why); /* an s64 is summed as a real */
}

/* Aligned at the last dimension, as NumPy has it; what repeats has stride 0. */
mica_tensor mica_reduce_map_expanded(const mica_reduce_desc *d, int k)
{
    const mica_tensor *t = mica_reduce_map_input(d, k);
    mica_tensor wide = d->x;
    const int apart = d->x.rank - t->rank;
    wide.dtype = t->dtype;
    for (int i = 0; i < d->x.rank; i++) {
        const bool own = i >= apart && (t->dims[i - apart] != 1 || d->x.dims[i] == 1);
        wide.strides[i] = own ? t->strides[i - apart] : 0;
    }
    return wide;
}

mica_dtype mica_reduce_map_real(const mica_reduce_desc *d)
{
    mica_expr e;
    mica_why why;
    bool floats = false;
    if (d->y.dtype == MICA_F64 || read(d, &e, &why) != MICA_OK || mica_expr_is_wide(&e))
        return MICA_F64;
    for (int k = 0; k < MICA_EXPR_X; k++) {
        const mica_tensor *x = mica_reduce_map_input(d, k);
        if (!x) continue;
        if (!mica_runs_f32(x->dtype)) return MICA_F64;
        floats |= mica_dtype_is_float(x->dtype);
    }
    return floats ? MICA_F32 : MICA_F64;
}

mica_dtype mica_reduce_map_type(const mica_reduce_desc *d)
{
    mica_dtype type = MICA_NONE;
    for (int k = 0; k < MICA_EXPR_X; k++) {
        const mica_tensor *x = mica_reduce_map_input(d, k);
        if (!x || !mica_dtype_is_float(x->dtype)) continue;
        if (type == MICA_NONE || type == x->dtype)
            type = x->dtype;
        else
            type = type == MICA_F64 || x->dtype == MICA_F64 ? MICA_F64 : MICA_F32;
    }
    return mica_dtype_is_common(type) ? type : MICA_F32;
}

static bool is_taken(mica_dtype t)
{
    return mica_dtype_is_float(t) || t == MICA_S8 || t == MICA_U8 || t == MICA_S32 ||
           t == MICA_U32 || t == MICA_BOOL;
}

static mica_status check_input(const mica_reduce_desc *d, const mica_expr *e, int k, mica_why *why)
{
    const mica_tensor *t = mica_reduce_map_input(d, k);
    const int apart = d->x.rank - t->rank;
    const char *name = mica_op_reduce.args[mica_reduce_map_arg(k)].name;
    if (!is_taken(t->dtype))
        return mica_invalid(why,
                            "%s is %s; map takes f64, f32, f16, bf16, e4m3, e5m2, s32, u32, s8, "
                            "u8, bool",
                            name, mica_dtype_name(t->dtype));
    if (!(mica_expr_inputs(e) >> k & 1))
        return mica_invalid(why, "%s is given, map does not depend on x%d", name, k);
    if (apart < 0)
        return mica_invalid(why, "%s has rank %d, more than x with %d", name, t->rank, d->x.rank);
    for (int i = 0; i < t->rank; i++)
        if (t->dims[i] != 1 && t->dims[i] != d->x.dims[i + apart])
            return mica_invalid(why,
                                "%s does not broadcast to x: dimension %d from the last is %lld, "
                                "that of x %lld",
                                name, t->rank - i, (long long)t->dims[i],
                                (long long)d->x.dims[i + apart]);
    return MICA_OK;
}

mica_status mica_reduce_map_check(const mica_reduce_desc *d, mica_why *why)
{
    mica_expr e;
    MICA_TRY(read(d, &e, why));
    if (e.result_count != 1)
        return mica_invalid(why, "map has %d results, it must have one", e.result_count);
    for (int i = 0; i < e.count; i++)
        if (e.nodes[i].kind == MICA_EXPR_SCALAR)
            return mica_invalid(why, "map: s%d is not there: reduce has no scalars",
                                e.nodes[i].index);
    for (int k = 0; k < MICA_EXPR_X; k++)
        if (mica_reduce_map_input(d, k)) MICA_TRY(check_input(d, &e, k, why));
    return MICA_OK;
}

void mica_reduce_map_program(const mica_reduce_desc *d, mica_expr_program *program)
{
    mica_why why;
    memset(program, 0, sizeof *program);
    if (read(d, &program->expr, &why) != MICA_OK) return;
    for (int k = 0; k < MICA_EXPR_INPUTS; k++) program->operand[k] = k < MICA_EXPR_X ? k : -1;
    program->result_operand[0] = REDUCE_MAP_RESULT;
    program->f64 = mica_reduce_map_real(d) == MICA_F64;
    mica_expr_compile(program);
}

int mica_reduce_map_terms(const mica_reduce_desc *d)
{
    mica_expr e;
    mica_why why;
    return read(d, &e, &why) == MICA_OK ? e.count : 0;
}

double mica_reduce_map_bound(const mica_reduce_desc *d)
{
    mica_expr e;
    mica_why why;
    return read(d, &e, &why) == MICA_OK ? mica_expr_bound(&e) : (double)INFINITY;
}
