/* SPDX-License-Identifier: Apache-2.0
 * What rows of argument tables say: which tensors are there, of which types, and as which others.
 */
#include "ops/op.h"

#include <string.h>

static mica_tensor *tensor_of(const mica_op *op, void *desc, int i)
{
    return (mica_tensor *)(void *)((char *)desc + op->args[i].tensor);
}

/* Whether the field that the row names has one of its values. */
static bool holds(const mica_op *op, const mica_arg *a, const void *desc)
{
    if (!a->when) return true;
    for (int i = 0; i < op->field_count; i++) {
        const mica_field *f = &op->fields[i];
        if (*f->name != *a->when || strcmp(f->name, a->when) != 0) continue;
        const char *at = (const char *)desc + f->offset;
        if (f->kind == MICA_FIELD_FLAG) return *(const bool *)at;
        int count = f->kind == MICA_FIELD_LIST ? f->count : 1;
        for (int v = 0; v < count; v++)
            if (a->values >> ((const int32_t *)(const void *)at)[v] & 1) return true;
    }
    return false;
}

static bool other_given(const mica_op *op, const mica_arg *a, const void *desc)
{
    int other = mica_op_arg_index(op, a->with);
    return other < 0 || mica_tensor_given(mica_op_tensor(op, desc, other));
}

static bool is_unused(const mica_op *op, const void *desc, int i)
{
    return op->args[i].dir[mica_op_pass(op, desc)] == MICA_UNUSED || !holds(op, &op->args[i], desc);
}

static mica_status wrong_pass(const mica_op *op, const mica_arg *a, int pass, mica_why *why)
{
    const char *const *passes = op->fields[0].spellings;
    int used = 0;
    while (used < 2 && a->dir[used] == MICA_UNUSED) used++;
    return mica_invalid(why, "%s is for pass %s, this is %s", a->name, passes[used], passes[pass]);
}

void mica_types_text(uint32_t types, mica_text *text)
{
    int left = __builtin_popcount(types);
    for (int d = 0; d < MICA_DTYPE_COUNT; d++) {
        if (!(types >> d & 1)) continue;
        left--;
        mica_text_add(text, "%s%s", mica_dtype_name((mica_dtype)d),
                      left > 1 ? ", "
                      : left   ? " or "
                               : "");
    }
}

/* One of the row's types; or, of sums, the type that those over its model have. */
static mica_status check_type(const mica_op *op, const mica_arg *a, const void *desc,
                              const mica_tensor *t, mica_why *why)
{
    const int like = a->sums ? mica_op_arg_index(op, a->like) : -1;
    const mica_dtype model = like < 0 ? MICA_NONE : mica_op_tensor(op, desc, like)->dtype;
    uint32_t types = a->types;
    if (model) types = model == MICA_F64 ? MICA_TYPE(F64) : MICA_TYPE(F32);
    if (!types || types >> t->dtype & 1) return MICA_OK;
    char list[160] = "";
    mica_text text = {list, sizeof list, 0};
    mica_types_text(types, &text);
    return mica_invalid(why, "%s is %s, it must be %s", a->name, mica_dtype_name(t->dtype), list);
}

static mica_status check_same(const mica_op *op, const mica_arg *a, const void *desc,
                              const mica_tensor *t, mica_why *why)
{
    const int same = mica_op_arg_index(op, a->same);
    if (same < 0 || mica_op_dir(op, desc, same) == MICA_UNUSED) return MICA_OK;
    const mica_dtype type = mica_op_tensor(op, desc, same)->dtype;
    if (t->dtype == type) return MICA_OK;
    return mica_invalid(why, "%s is %s, %s is %s; they must agree", a->name,
                        mica_dtype_name(t->dtype), a->same, mica_dtype_name(type));
}

mica_status mica_args_given(const mica_op *op, const void *desc, mica_why *why)
{
    int pass = mica_op_pass(op, desc);
    for (int i = 0; i < op->arg_count; i++) {
        const mica_arg *a = &op->args[i];
        bool given = mica_tensor_given(mica_op_tensor(op, desc, i));
        if (!given && a->need[pass] == MICA_NEEDED && a->dir[pass] != MICA_UNUSED)
            return mica_invalid(why, "%s is needed", a->name);
        if (!given) continue;
        if (a->refused && a->dir[pass] == MICA_UNUSED) return wrong_pass(op, a, pass, why);
        if (!is_unused(op, desc, i) && !other_given(op, a, desc))
            return mica_invalid(why, "%s without %s", a->name, a->with);
        if (!is_unused(op, desc, i))
            MICA_TRY(check_type(op, a, desc, mica_op_tensor(op, desc, i), why));
    }
    return MICA_OK;
}

/* In passes where the other one is not used nothing is as that. */
static bool has_model(const mica_op *op, const void *desc, const mica_arg *a)
{
    if (!a->like) return a->shape || a->dims;
    return a->shape || mica_op_dir(op, desc, mica_op_arg_index(op, a->like)) != MICA_UNUSED;
}

/* "BxSxHD": also digits, for numbers below ten. */
static mica_tensor spelled(const mica_op *op, const void *desc, const char *dims)
{
    mica_tensor t = {.rank = 1, .dims = {1}};
    for (const char *c = dims; *c; c++) {
        if (*c == 'x')
            t.dims[t.rank++] = 1;
        else
            t.dims[t.rank - 1] *= *c <= '9' ? *c - '0' : op->dim(desc, *c);
    }
    mica_tensor_default_strides(&t);
    return t;
}

/* What argument i is as. */
static mica_tensor model_of(const mica_op *op, const void *desc, int i)
{
    const mica_arg *a = &op->args[i];
    const int like = mica_op_arg_index(op, a->like);
    if (a->shape) return a->shape(desc);
    if (!a->dims) return *mica_op_tensor(op, desc, like);
    mica_tensor t = spelled(op, desc, a->dims);
    if (like < 0) return t;
    const mica_tensor *other = mica_op_tensor(op, desc, like);
    t.dtype = other->dtype;
    mica_tensor_strides_like(&t, other);
    return t;
}

/* Whether a tensor was inferred. */
static bool infer_once(const mica_op *op, void *desc)
{
    int pass = mica_op_pass(op, desc);
    bool any = false;
    for (int i = 0; i < op->arg_count; i++) {
        const mica_arg *a = &op->args[i];
        mica_tensor *t = tensor_of(op, desc, i);
        if (is_unused(op, desc, i)) {
            if (!a->refused) memset(t, 0, sizeof *t);
            continue;
        }
        bool inferred = a->need[pass] == MICA_INFERRED && other_given(op, a, desc);
        if (t->rank || !(inferred || mica_tensor_given(t)) || !has_model(op, desc, a)) continue;
        mica_tensor model = model_of(op, desc, i);
        mica_dtype type = a->state || a->sums ? mica_dtype_accumulator(model.dtype) : model.dtype;
        if (mica_tensor_given(t)) type = t->dtype;
        *t = model;
        t->dtype = type;
        mica_tensor_strides_like(t, &model);
        any = true;
    }
    return any;
}

void mica_args_infer(const mica_op *op, void *desc)
{
    if (infer_once(op, desc)) infer_once(op, desc); /* what is as one behind it in the table */
}

/* The argument's name, if it has the model's dimensions. */
static const char *model_name(const mica_op *op, const void *desc, const mica_arg *a,
                              const mica_tensor *model)
{
    int like = mica_op_arg_index(op, a->like);
    if (like < 0 || !a->words) return a->like;
    const mica_tensor *t = mica_op_tensor(op, desc, like);
    bool same =
        t->rank == model->rank && !memcmp(t->dims, model->dims, (size_t)t->rank * sizeof *t->dims);
    return same ? a->like : a->words;
}

static mica_status check_spelled(const mica_tensor *t, const char *name, const mica_tensor *model,
                                 mica_why *why)
{
    if (t->rank != model->rank)
        return mica_invalid(why, "%s has rank %d, it must have %d", name, t->rank, model->rank);
    for (int i = 0; i < t->rank; i++)
        if (t->dims[i] != model->dims[i])
            return mica_invalid(why, "dimension %d of %s is %lld, it must be %lld", i, name,
                                (long long)t->dims[i], (long long)model->dims[i]);
    return MICA_OK;
}

mica_status mica_args_check(const mica_op *op, const void *desc, mica_why *why)
{
    for (int i = 0; i < op->arg_count; i++) {
        const mica_arg *a = &op->args[i];
        const mica_tensor *t = mica_op_tensor(op, desc, i);
        if (mica_op_dir(op, desc, i) == MICA_UNUSED) continue;
        MICA_TRY(check_type(op, a, desc, t, why));
        MICA_TRY(check_same(op, a, desc, t, why));
        if (!has_model(op, desc, a)) continue;
        mica_tensor model = model_of(op, desc, i);
        if (a->dims) {
            /* one element may have any rank */
            const bool single = !strcmp(a->dims, "1") && mica_tensor_count(t) == 1;
            if (!single) MICA_TRY(check_spelled(t, a->name, &model, why));
            continue;
        }
        MICA_TRY(mica_tensor_same_dims(t, a->name, &model, model_name(op, desc, a, &model), why));
    }
    return MICA_OK;
}
