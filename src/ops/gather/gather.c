/* SPDX-License-Identifier: Apache-2.0
 * Gather: tables, inference, checks, the maps. */
#include "mica/gather.h"
#include "ops/index/index.h"

#include <string.h>

extern const mica_op mica_op_gather;

static const char *const passes[] = {"fwd", "bwd", NULL};
static const char *const modes[] = {"take", "elements", "nd", NULL};

#define FIELD(member, kind, ...) MICA_FIELD(mica_gather_desc, member, kind, __VA_ARGS__)
static const mica_field fields[] = {
    FIELD(pass, ENUM, .spellings = passes, .doc = "forward, or gradient of x"),
    FIELD(mode, ENUM, .spellings = modes,
          .doc = "slices along axis, elements along axis, or what coordinates name"),
    FIELD(x, TENSOR, .zero = "needed", .doc = "fwd: input"),
    FIELD(index, TENSOR, .zero = "needed", .doc = "s32, s64 or u32"),
    FIELD(y, TENSOR, .zero = "inferred", .doc = "fwd: output, packed"),
    FIELD(dy, TENSOR, .zero = "inferred", .doc = "bwd: gradient of y"),
    FIELD(dx, TENSOR, .zero = "needed", .doc = "bwd: gradient of x"),
    FIELD(axis, I64, .zero = "axis 0", .doc = "of take and elements; below 0: from the end"),
    FIELD(batch_dims, I64, .zero = "none", .doc = "of nd: dimensions that x and index share"),
    FIELD(negative, FLAG, .doc = "indices below 0 count from the end"),
    FIELD(padding, FLAG, .doc = "bwd: what has the index padding_idx is left out"),
    FIELD(padding_idx, I64, .zero = "row 0", .doc = "such as a vocabulary's row for padding"),
};

#define ARG(member) #member, offsetof(mica_gather_desc, member)
static const mica_arg args[] = {
    [MICA_GATHER_X] = {ARG(x), {MICA_IN, MICA_UNUSED}, .need = {MICA_NEEDED}},
    [MICA_GATHER_INDEX] = {ARG(index),
                           {MICA_IN, MICA_IN},
                           .types = MICA_INDICES | MICA_TYPE(U32),
                           .need = {MICA_NEEDED, MICA_NEEDED}},
    [MICA_GATHER_Y] = {ARG(y), {MICA_OUT, MICA_UNUSED}, .same = "x", .need = {MICA_INFERRED}},
    [MICA_GATHER_DY] = {ARG(dy), {MICA_UNUSED, MICA_IN}, .same = "dx", .need = {0, MICA_INFERRED}},
    [MICA_GATHER_DX] = {ARG(dx), {MICA_UNUSED, MICA_OUT}, .need = {0, MICA_NEEDED}},
};

static bool is_forward(const mica_gather_desc *d)
{
    return d->pass == MICA_GATHER_FWD;
}

static mica_index_by by_of(const mica_gather_desc *d)
{
    static const mica_index_mode as[] = {MICA_INDEX_TAKE, MICA_INDEX_ELEMENTS, MICA_INDEX_ND};
    return (mica_index_by){.mode = as[d->mode],
                           .axis = (int)d->axis,
                           .batch = (int)d->batch_dims,
                           .x = is_forward(d) ? &d->x : &d->dx,
                           .index = &d->index};
}

static mica_status infer(void *desc, mica_why *why)
{
    mica_gather_desc *d = desc;
    const bool fwd = is_forward(d);
    const mica_tensor *x = fwd ? &d->x : &d->dx;
    mica_tensor *y = fwd ? &d->y : &d->dy;
    if (d->axis < -x->rank || d->axis >= MICA_MAX_RANK || d->batch_dims < 0 ||
        d->batch_dims > MICA_MAX_RANK)
        return mica_invalid(why, "axis is %lld and batch_dims %lld, x has %d dimensions",
                            (long long)d->axis, (long long)d->batch_dims, x->rank);
    if (d->axis < 0) d->axis += x->rank;
    if (d->mode == MICA_GATHER_ND) d->axis = 0;
    if (d->mode != MICA_GATHER_ND) d->batch_dims = 0;
    if (fwd) d->padding = false;
    if (!d->padding) d->padding_idx = 0;
    if (mica_tensor_given(y)) return MICA_OK;
    const mica_index_by by = by_of(d);
    MICA_TRY(mica_index_by_dims(&by, y, why));
    y->dtype = x->dtype;
    mica_tensor_default_strides(y);
    return MICA_OK;
}

static mica_status check(const void *desc, mica_why *why)
{
    const mica_gather_desc *d = desc;
    const mica_index_by by = by_of(d);
    const mica_tensor *y = is_forward(d) ? &d->y : &d->dy;
    mica_tensor want = {0};
    MICA_TRY(mica_index_by_dims(&by, &want, why));
    return mica_tensor_same_dims(y, is_forward(d) ? "y" : "dy", &want, "what is gathered", why);
}

static void maps(const void *desc, mica_index_set *set)
{
    const mica_gather_desc *d = desc;
    const mica_index_by by = by_of(d);
    if (is_forward(d)) {
        set->map[set->count] = mica_index_by_map(&by, MICA_INDEX_COPY, MICA_GATHER_Y, &d->y,
                                                 MICA_GATHER_X, MICA_GATHER_INDEX);
        set->map[set->count++].negative = d->negative;
        return;
    }
    set->map[set->count++] = mica_index_filled(MICA_GATHER_DX, &d->dx);
    mica_index_map *m = &set->map[set->count++];
    *m = mica_index_by_map(&by, MICA_INDEX_COMBINE, MICA_GATHER_DY, &d->dy, MICA_GATHER_DX,
                           MICA_GATHER_INDEX);
    m->negative = d->negative;
    m->reduce = MICA_INDEX_ADD;
    m->skips = d->padding;
    m->skip = d->padding_idx < 0 ? d->padding_idx + m->part[0].extent : d->padding_idx;
}

/* Of x what is taken, not all; of a gradient all of dx is written. */
static void cost(const void *desc, double *flops, double *bytes)
{
    const mica_gather_desc *d = desc;
    const mica_tensor *y = is_forward(d) ? &d->y : &d->dy, *other = is_forward(d) ? y : &d->dx;
    const double size = mica_dtype_bits(y->dtype) / 8.0, moved = (double)mica_tensor_count(y);
    *bytes = (moved + (double)mica_tensor_count(other)) * size +
             (double)mica_tensor_count(&d->index) * mica_dtype_bits(d->index.dtype) / 8;
    *flops = is_forward(d) ? 0 : moved;
}

static int64_t terms(const void *desc)
{
    const mica_gather_desc *d = desc;
    const mica_index_by by = by_of(d);
    return is_forward(d) ? 1 : mica_index_by_terms(&by);
}

static bool fill(const void *desc, const double *scalars, int arg, mica_fill fill, uint64_t seed,
                 double *values)
{
    const mica_gather_desc *d = desc;
    const mica_index_by by = by_of(d);
    (void)scalars;
    if (arg != MICA_GATHER_INDEX) return false;
    mica_index_by_fill(&by, d->negative, fill, seed, values);
    return true;
}

const mica_op mica_op_gather = {
    .name = "gather",
    .doc = "slices or elements that an index tensor names, and the gradient",
    .desc_size = sizeof(mica_gather_desc),
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
