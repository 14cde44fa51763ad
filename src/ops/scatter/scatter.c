/* SPDX-License-Identifier: Apache-2.0
 * Scatter: tables, inference, checks, the maps. */
#include "mica/scatter.h"
#include "ops/index/index.h"

extern const mica_op mica_op_scatter;

static const char *const modes[] = {"elements", "nd", NULL};
static const char *const reductions[] = {"none", "add", "mul", "max", "min", NULL};

#define FIELD(member, kind, ...) MICA_FIELD(mica_scatter_desc, member, kind, __VA_ARGS__)
static const mica_field fields[] = {
    FIELD(mode, ENUM, .spellings = modes, .doc = "elements along axis, or slices by coordinates"),
    FIELD(reduction, ENUM, .spellings = reductions,
          .doc = "of an element and its updates; none: the last one stays"),
    FIELD(x, TENSOR, .zero = "needed", .doc = "input"),
    FIELD(index, TENSOR, .zero = "needed", .doc = "s32, s64 or u32"),
    FIELD(u, TENSOR, .zero = "inferred", .doc = "updates, of x's type"),
    FIELD(y, TENSOR, .zero = "inferred", .doc = "output, as x; may lie on it"),
    FIELD(axis, I64, .zero = "axis 0", .doc = "of elements; below 0: from the end"),
    FIELD(negative, FLAG, .doc = "indices below 0 count from the end"),
};

#define ARG(member) #member, offsetof(mica_scatter_desc, member)
static const mica_arg args[] = {
    [MICA_SCATTER_X] = {ARG(x), {MICA_IN}, .need = {MICA_NEEDED}},
    [MICA_SCATTER_INDEX] = {ARG(index),
                            {MICA_IN},
                            .types = MICA_INDICES | MICA_TYPE(U32),
                            .need = {MICA_NEEDED}},
    [MICA_SCATTER_U] = {ARG(u), {MICA_IN}, .same = "x", .need = {MICA_INFERRED}},
    [MICA_SCATTER_Y] =
        {ARG(y), {MICA_OUT}, .alias = "x", .same = "x", .like = "x", .need = {MICA_INFERRED}},
};

static mica_index_by by_of(const mica_scatter_desc *d, const mica_tensor *x)
{
    return (mica_index_by){.mode = d->mode == MICA_SCATTER_ND ? MICA_INDEX_ND : MICA_INDEX_ELEMENTS,
                           .axis = (int)d->axis,
                           .x = x,
                           .index = &d->index};
}

static mica_status infer(void *desc, mica_why *why)
{
    mica_scatter_desc *d = desc;
    if (d->axis < -d->x.rank || d->axis >= MICA_MAX_RANK)
        return mica_invalid(why, "axis is %lld, x has %d dimensions", (long long)d->axis,
                            d->x.rank);
    if (d->axis < 0) d->axis += d->x.rank;
    if (d->mode == MICA_SCATTER_ND) d->axis = 0;
    if (mica_tensor_given(&d->u)) return MICA_OK;
    const mica_index_by by = by_of(d, &d->x);
    MICA_TRY(mica_index_by_dims(&by, &d->u, why));
    d->u.dtype = d->x.dtype;
    mica_tensor_default_strides(&d->u);
    return MICA_OK;
}

static mica_status check(const void *desc, mica_why *why)
{
    const mica_scatter_desc *d = desc;
    const mica_index_by by = by_of(d, &d->x);
    mica_tensor want = {0};
    MICA_TRY(mica_index_by_dims(&by, &want, why));
    return mica_tensor_same_dims(&d->u, "u", &want, "what is updated", why);
}

static void maps(const void *desc, mica_index_set *set)
{
    static const mica_index_reduce as[] = {MICA_INDEX_LAST, MICA_INDEX_ADD, MICA_INDEX_MUL,
                                           MICA_INDEX_MAX, MICA_INDEX_MIN};
    const mica_scatter_desc *d = desc;
    const mica_index_by by = by_of(d, &d->y);
    set->map[set->count++] =
        mica_index_between(MICA_INDEX_COPY, MICA_SCATTER_Y, &d->y, MICA_SCATTER_X, &d->x);
    mica_index_map *m = &set->map[set->count++];
    *m = mica_index_by_map(&by, MICA_INDEX_COMBINE, MICA_SCATTER_U, &d->u, MICA_SCATTER_Y,
                           MICA_SCATTER_INDEX);
    m->negative = d->negative;
    m->reduce = as[d->reduction];
}

static void cost(const void *desc, double *flops, double *bytes)
{
    const mica_scatter_desc *d = desc;
    const double size = mica_dtype_bits(d->x.dtype) / 8.0, u = (double)mica_tensor_count(&d->u);
    *bytes = (2 * (double)mica_tensor_count(&d->x) + 2 * u) * size +
             (double)mica_tensor_count(&d->index) * mica_dtype_bits(d->index.dtype) / 8;
    *flops = d->reduction == MICA_SCATTER_NONE ? 0 : u;
}

static int64_t terms(const void *desc)
{
    const mica_scatter_desc *d = desc;
    const mica_index_by by = by_of(d, &d->x);
    return d->reduction == MICA_SCATTER_NONE ? 1 : 1 + mica_index_by_terms(&by);
}

static bool fill(const void *desc, const double *scalars, int arg, mica_fill fill, uint64_t seed,
                 double *values)
{
    const mica_scatter_desc *d = desc;
    const mica_index_by by = by_of(d, &d->x);
    (void)scalars;
    if (arg != MICA_SCATTER_INDEX) return false;
    mica_index_by_fill(&by, d->negative, fill, seed, values);
    return true;
}

const mica_op mica_op_scatter = {
    .name = "scatter",
    .doc = "updates where an index tensor says, with or without a reduction",
    .desc_size = sizeof(mica_scatter_desc),
    .fields = fields,
    .field_count = sizeof fields / sizeof *fields,
    .args = args,
    .arg_count = sizeof args / sizeof *args,
    .infer = infer,
    .check = check,
    .cost = cost,
    .terms = terms,
    .exact = mica_index_exact,
    .fill = fill,
    .index = &(const mica_index){.maps = maps},
    .engines = mica_index_engines,
};
