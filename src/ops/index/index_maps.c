/* SPDX-License-Identifier: Apache-2.0
 * Maps by an index tensor: what gather and scatter have in common. */
#include "ops/index/index.h"
#include "base/random.h"

#include <string.h>

static int coordinates(const mica_index_by *by)
{
    return by->mode == MICA_INDEX_ND ? (int)by->index->dims[by->index->rank - 1] : 1;
}

static mica_status too_many(int64_t rank, mica_why *why)
{
    return mica_invalid(why, "a result of %lld dimensions, at most %d are legal", (long long)rank,
                        MICA_MAX_RANK);
}

static mica_status nd_dims(const mica_index_by *by, mica_tensor *other, mica_why *why)
{
    const mica_tensor *x = by->x, *index = by->index;
    if (index->rank < 1) return mica_invalid(why, "index has no dimension of coordinates");
    const int64_t n = index->dims[index->rank - 1];
    if (by->batch < 0 || by->batch >= index->rank || n < 1 || n > x->rank - by->batch)
        return mica_invalid(
            why,
            "index has %lld coordinates behind %d batch dimensions, x %d dimensions "
            "in all and index %d",
            (long long)n, by->batch, x->rank, index->rank);
    for (int d = 0; d < by->batch; d++)
        if (index->dims[d] != x->dims[d])
            return mica_invalid(why, "batch dimension %d is %lld in index and %lld in x", d,
                                (long long)index->dims[d], (long long)x->dims[d]);
    const int kept = by->batch + (int)n, rank = index->rank - 1 + x->rank - kept;
    if (rank > MICA_MAX_RANK) return too_many(rank, why);
    other->rank = rank;
    for (int d = 0; d < rank; d++)
        other->dims[d] =
            d < index->rank - 1 ? index->dims[d] : x->dims[kept + d - (index->rank - 1)];
    return MICA_OK;
}

static mica_status take_dims(const mica_index_by *by, mica_tensor *other, mica_why *why)
{
    const mica_tensor *x = by->x, *index = by->index;
    const int rank = x->rank - 1 + index->rank;
    if (rank > MICA_MAX_RANK) return too_many(rank, why);
    other->rank = rank;
    for (int d = 0; d < rank; d++) {
        const int i = d - by->axis;
        other->dims[d] = i < 0             ? x->dims[d]
                         : i < index->rank ? index->dims[i]
                                           : x->dims[d - index->rank + 1];
    }
    return MICA_OK;
}

static mica_status elements_dims(const mica_index_by *by, mica_tensor *other, mica_why *why)
{
    const mica_tensor *x = by->x, *index = by->index;
    if (index->rank != x->rank)
        return mica_invalid(why, "index has %d dimensions, x %d; mode=elements needs as many",
                            index->rank, x->rank);
    for (int d = 0; d < x->rank; d++)
        if (d != by->axis && index->dims[d] > x->dims[d])
            return mica_invalid(why, "dimension %d of index is %lld, x has only %lld", d,
                                (long long)index->dims[d], (long long)x->dims[d]);
    other->rank = index->rank;
    memcpy(other->dims, index->dims, sizeof other->dims);
    return MICA_OK;
}

mica_status mica_index_by_dims(const mica_index_by *by, mica_tensor *other, mica_why *why)
{
    memset(other->dims, 0, sizeof other->dims);
    if (by->mode == MICA_INDEX_ND) return nd_dims(by, other, why);
    if (by->axis < 0 || by->axis >= by->x->rank)
        return mica_invalid(why, "axis is %d, x has %d dimensions", by->axis, by->x->rank);
    return by->mode == MICA_INDEX_TAKE ? take_dims(by, other, why) : elements_dims(by, other, why);
}

static void map_nd(const mica_index_by *by, mica_index_map *m)
{
    const int leading = by->index->rank - 1, parts = coordinates(by);
    for (int d = 0; d < m->rank; d++) {
        if (d < leading) m->at[d].index = by->index->strides[d];
        if (d < by->batch) m->at[d].there = by->x->strides[d];
        if (d >= leading) m->at[d].there = by->x->strides[by->batch + parts + d - leading];
    }
    m->parts = parts;
    m->part_step = by->index->strides[leading];
    for (int p = 0; p < parts; p++)
        m->part[p] = (mica_index_part){by->x->dims[by->batch + p], by->x->strides[by->batch + p]};
}

mica_index_map mica_index_by_map(const mica_index_by *by, mica_index_work work, int arg,
                                 const mica_tensor *other, int x_arg, int index_arg)
{
    mica_index_map m = mica_index_between(work, arg, other, x_arg, NULL);
    m.index = index_arg;
    if (by->mode == MICA_INDEX_ND) {
        map_nd(by, &m);
        return m;
    }
    for (int d = 0; d < m.rank; d++) {
        const bool elements = by->mode == MICA_INDEX_ELEMENTS;
        const int i = elements ? d : d - by->axis, behind = d - by->index->rank + 1;
        if (i >= 0 && i < by->index->rank) m.at[d].index = by->index->strides[i];
        if (elements || d < by->axis)
            m.at[d].there = d == by->axis ? 0 : by->x->strides[d];
        else if (i >= by->index->rank)
            m.at[d].there = by->x->strides[behind];
    }
    m.parts = 1;
    m.part[0] = (mica_index_part){by->x->dims[by->axis], by->x->strides[by->axis]};
    return m;
}

int64_t mica_index_by_terms(const mica_index_by *by)
{
    int64_t n = by->mode == MICA_INDEX_ELEMENTS ? by->index->dims[by->axis]
                                                : mica_tensor_count(by->index) / coordinates(by);
    return n > 1 ? n : 1;
}

void mica_index_by_fill(const mica_index_by *by, bool negative, mica_fill fill, uint64_t seed,
                        double *values)
{
    const int64_t *extents = by->x->dims + (by->mode == MICA_INDEX_ND ? by->batch : by->axis);
    mica_index_fill(extents, coordinates(by), negative, mica_tensor_count(by->index), fill,
                    mica_random_bits(seed, 0x1d), values);
}
