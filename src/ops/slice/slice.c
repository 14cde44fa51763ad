/* SPDX-License-Identifier: Apache-2.0
 * Slices: tables, inference, checks, the maps. */
#include "mica/slice.h"
#include "ops/index/index.h"

extern const mica_op mica_op_slice;

#define FIELD(member, kind, ...) MICA_FIELD(mica_slice_desc, member, kind, __VA_ARGS__)
#define ARG(member)              #member, offsetof(mica_slice_desc, member)
static const char *const passes[] = {"fwd", "bwd", "write", NULL};

static const mica_field fields[] = {
    FIELD(pass, ENUM, .spellings = passes, .doc = "y from x, dx from dy, or y into x"),
    FIELD(x, TENSOR, .zero = "needed", .doc = "fwd, write: the whole"),
    FIELD(y, TENSOR, .zero = "inferred", .doc = "fwd, write: the part, packed"),
    FIELD(dy, TENSOR, .zero = "inferred", .doc = "bwd: gradient of y"),
    FIELD(dx, TENSOR, .zero = "needed", .doc = "bwd: gradient of x"),
    FIELD(start, AXES, .count = MICA_MAX_RANK, .zero = "the first", .doc = "below 0: from the end"),
    FIELD(step, AXES, .count = MICA_MAX_RANK, .def = 1, .doc = "below 0: backwards"),
};

static const mica_arg args[] = {
    [MICA_SLICE_X] = {ARG(x),
                      {MICA_IN, MICA_UNUSED, MICA_INOUT},
                      .need = {MICA_NEEDED, 0, MICA_NEEDED}},
    [MICA_SLICE_Y] = {ARG(y),
                      {MICA_OUT, MICA_UNUSED, MICA_IN},
                      .same = "x",
                      .need = {MICA_INFERRED, 0, MICA_INFERRED}},
    [MICA_SLICE_DY] = {ARG(dy),
                       {MICA_UNUSED, MICA_IN, MICA_UNUSED},
                       .same = "dx",
                       .need = {0, MICA_INFERRED}},
    [MICA_SLICE_DX] = {ARG(dx), {MICA_UNUSED, MICA_OUT, MICA_UNUSED}, .need = {0, MICA_NEEDED}},
};

static const mica_tensor *whole_of(const mica_slice_desc *d)
{
    return d->pass == MICA_SLICE_BWD ? &d->dx : &d->x;
}
static const mica_tensor *part_of(const mica_slice_desc *d)
{
    return d->pass == MICA_SLICE_BWD ? &d->dy : &d->y;
}

/* From start on, with that step, among n. */
static int64_t most(int64_t n, int64_t start, int64_t step)
{
    if (start < 0 || start >= n) return 0;
    return step > 0 ? (n - 1 - start) / step + 1 : start / -step + 1;
}

static mica_status infer(void *desc, mica_why *why)
{
    mica_slice_desc *d = desc;
    const mica_tensor *x = whole_of(d);
    mica_tensor *y = d->pass == MICA_SLICE_BWD ? &d->dy : &d->y;
    for (int i = 0; i < MICA_MAX_RANK; i++) {
        if (i >= x->rank && (d->start[i] || d->step[i] != 1))
            return mica_invalid(why, "start[%d] is %lld and step[%d] %lld, there are %d dimensions",
                                i, (long long)d->start[i], i, (long long)d->step[i], x->rank);
        if (i >= x->rank) continue;
        if (d->start[i] < 0) d->start[i] += x->dims[i];
        if (d->start[i] < 0 || d->start[i] > x->dims[i] || d->step[i] == 0 ||
            d->step[i] > MICA_MOST_ELEMENTS || d->step[i] < -MICA_MOST_ELEMENTS)
            return mica_invalid(why, "start[%d] is %lld and step[%d] %lld, the dimension has %lld",
                                i, (long long)d->start[i], i, (long long)d->step[i],
                                (long long)x->dims[i]);
    }
    if (mica_tensor_given(y)) return MICA_OK;
    y->dtype = x->dtype, y->rank = x->rank;
    for (int i = 0; i < x->rank; i++) y->dims[i] = most(x->dims[i], d->start[i], d->step[i]);
    mica_tensor_default_strides(y);
    return MICA_OK;
}

static mica_status check(const void *desc, mica_why *why)
{
    const mica_slice_desc *d = desc;
    const mica_tensor *x = whole_of(d), *y = part_of(d);
    if (x->rank != y->rank)
        return mica_invalid(why, "a part of %d dimensions, the whole has %d", y->rank, x->rank);
    for (int i = 0; i < x->rank; i++)
        if (y->dims[i] > most(x->dims[i], d->start[i], d->step[i]))
            return mica_invalid(why, "%lld from %lld on with step %lld, dimension %d has %lld",
                                (long long)y->dims[i], (long long)d->start[i],
                                (long long)d->step[i], i, (long long)x->dims[i]);
    return MICA_OK;
}

static void maps(const void *desc, mica_index_set *set)
{
    const mica_slice_desc *d = desc;
    const bool bwd = d->pass == MICA_SLICE_BWD;
    mica_index_map *m = &set->map[set->count++];
    if (d->pass == MICA_SLICE_WRITE) {
        *m = mica_index_between(MICA_INDEX_COPY, MICA_SLICE_X, &d->y, MICA_SLICE_Y, &d->y);
        for (int i = 0; i < m->rank; i++) {
            m->here_shift += d->y.dims[i] ? d->start[i] * d->x.strides[i] : 0;
            m->at[i].here = d->step[i] * d->x.strides[i];
        }
        return;
    }
    *m = mica_index_between(bwd ? MICA_INDEX_FOLD : MICA_INDEX_COPY,
                            bwd ? MICA_SLICE_DY : MICA_SLICE_Y, part_of(d),
                            bwd ? MICA_SLICE_DX : MICA_SLICE_X, whole_of(d));
    for (int i = 0; i < m->rank; i++) {
        mica_index_dim *a = &m->at[i];
        a->across = whole_of(d)->dims[i];
        if (d->start[i] == 0 && d->step[i] == 1 && a->size == a->across) continue;
        a->border = MICA_INDEX_NONE;
        a->start = d->start[i], a->step = d->step[i];
    }
}

/* Of the whole the part, but a gradient all of it. */
static void cost(const void *desc, double *flops, double *bytes)
{
    const mica_slice_desc *d = desc;
    const double part = (double)mica_tensor_count(part_of(d));
    const double other = d->pass == MICA_SLICE_BWD ? (double)mica_tensor_count(whole_of(d)) : part;
    *flops = 0;
    *bytes = (part + other) * mica_dtype_bits(part_of(d)->dtype) / 8;
}

const mica_op mica_op_slice = {
    .name = "slice",
    .doc = "parts of a tensor by start and step, their gradient, and writes to them",
    .desc_size = sizeof(mica_slice_desc),
    .fields = fields,
    .field_count = sizeof fields / sizeof *fields,
    .args = args,
    .arg_count = sizeof args / sizeof *args,
    .infer = infer,
    .check = check,
    .cost = cost,
    .exact = mica_index_exact,
    .index = &(const mica_index){.maps = maps},
    .engines = mica_index_engines,
};
