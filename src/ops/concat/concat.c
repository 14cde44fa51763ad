/* SPDX-License-Identifier: Apache-2.0
 * Concatenation: tables, inference, checks, the maps. */
#include "mica/concat.h"
#include "ops/index/index.h"

extern const mica_op mica_op_concat;

#define FIELD(member, kind, ...) MICA_FIELD(mica_concat_desc, member, kind, __VA_ARGS__)
#define ARG(member)              #member, offsetof(mica_concat_desc, member)
static const char *const passes[] = {"fwd", "bwd", NULL};

static const mica_field fields[] = {
    FIELD(pass, ENUM, .spellings = passes, .doc = "y from all x, or all x from y: a split"),
    FIELD(x0, TENSOR, .zero = "needed", .doc = "the first part of y"),
    FIELD(x1, TENSOR, .zero = "none", .doc = "the part behind it"),
    FIELD(x2, TENSOR, .zero = "none", .doc = "..."),
    FIELD(x3, TENSOR, .zero = "none", .doc = "..."),
    FIELD(x4, TENSOR, .zero = "none", .doc = "..."),
    FIELD(x5, TENSOR, .zero = "none", .doc = "..."),
    FIELD(x6, TENSOR, .zero = "none", .doc = "..."),
    FIELD(x7, TENSOR, .zero = "none", .doc = "the last part"),
    FIELD(y, TENSOR, .zero = "inferred", .doc = "all of them, packed"),
    FIELD(axis, I64, .zero = "axis 0", .doc = "below 0: from the end"),
};

enum { PARTS = MICA_CONCAT_Y };

static const mica_arg args[] = {
    [MICA_CONCAT_X0] = {ARG(x0), {MICA_IN, MICA_OUT}, .need = {MICA_NEEDED, MICA_NEEDED}},
    [MICA_CONCAT_X1] = {ARG(x1), {MICA_IN, MICA_OUT}, .same = "x0"},
    [MICA_CONCAT_X2] = {ARG(x2), {MICA_IN, MICA_OUT}, .same = "x0"},
    [MICA_CONCAT_X3] = {ARG(x3), {MICA_IN, MICA_OUT}, .same = "x0"},
    [MICA_CONCAT_X4] = {ARG(x4), {MICA_IN, MICA_OUT}, .same = "x0"},
    [MICA_CONCAT_X5] = {ARG(x5), {MICA_IN, MICA_OUT}, .same = "x0"},
    [MICA_CONCAT_X6] = {ARG(x6), {MICA_IN, MICA_OUT}, .same = "x0"},
    [MICA_CONCAT_X7] = {ARG(x7), {MICA_IN, MICA_OUT}, .same = "x0"},
    [MICA_CONCAT_Y] = {ARG(y),
                       {MICA_OUT, MICA_IN},
                       .same = "x0",
                       .need = {MICA_INFERRED, MICA_INFERRED}},
};

static const mica_tensor *part(const mica_concat_desc *d, int i)
{
    return mica_op_tensor(&mica_op_concat, d, i);
}

static mica_status infer(void *desc, mica_why *why)
{
    mica_concat_desc *d = desc;
    if (d->axis < -d->x0.rank || d->axis >= d->x0.rank)
        return mica_invalid(why, "axis is %lld, x0 has %d dimensions", (long long)d->axis,
                            d->x0.rank);
    if (d->axis < 0) d->axis += d->x0.rank;
    if (mica_tensor_given(&d->y)) return MICA_OK;
    d->y = d->x0;
    for (int i = 1; i < PARTS; i++) d->y.dims[d->axis] += part(d, i)->dims[d->axis];
    for (int i = 0; i < MICA_MAX_RANK; i++) d->y.strides[i] = 0;
    mica_tensor_default_strides(&d->y);
    return MICA_OK;
}

static mica_status check(const void *desc, mica_why *why)
{
    const mica_concat_desc *d = desc;
    int64_t all = 0;
    for (int i = 0; i < PARTS; i++) {
        const mica_tensor *x = part(d, i);
        mica_tensor want = d->y;
        if (!mica_tensor_given(x)) continue;
        if (x->rank == want.rank) want.dims[d->axis] = x->dims[d->axis];
        MICA_TRY(mica_tensor_same_dims(x, args[i].name, &want, "y beside the axis", why));
        all += x->dims[d->axis];
    }
    if (all != d->y.dims[d->axis])
        return mica_invalid(why, "y has %lld along axis %lld, its parts %lld in all",
                            (long long)d->y.dims[d->axis], (long long)d->axis, (long long)all);
    return MICA_OK;
}

static void maps(const void *desc, mica_index_set *set)
{
    const mica_concat_desc *d = desc;
    const bool fwd = d->pass == MICA_CONCAT_FWD;
    int64_t shift = 0;
    for (int i = 0; i < PARTS; i++) {
        const mica_tensor *x = part(d, i);
        if (!mica_tensor_given(x)) continue;
        mica_tensor y = d->y;
        y.dims[d->axis] = x->dims[d->axis];
        mica_index_map *m = &set->map[set->count++];
        *m = fwd ? mica_index_between(MICA_INDEX_COPY, MICA_CONCAT_Y, &y, i, x)
                 : mica_index_between(MICA_INDEX_COPY, i, x, MICA_CONCAT_Y, &y);
        *(fwd ? &m->here_shift : &m->there_shift) = shift * y.strides[d->axis];
        shift += x->dims[d->axis];
    }
}

const mica_op mica_op_concat = {
    .name = "concat",
    .doc = "tensors side by side along an axis, and the split of one",
    .desc_size = sizeof(mica_concat_desc),
    .fields = fields,
    .field_count = sizeof fields / sizeof *fields,
    .args = args,
    .arg_count = sizeof args / sizeof *args,
    .infer = infer,
    .check = check,
    .exact = mica_index_exact,
    .index = &(const mica_index){.maps = maps},
    .engines = mica_index_engines,
};
