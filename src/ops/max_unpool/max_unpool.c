/* SPDX-License-Identifier: Apache-2.0
 * Max unpooling: tables, checks, the maps. */
#include "mica/max_unpool.h"
#include "ops/index/index.h"
#include "base/random.h"

extern const mica_op mica_op_max_unpool;
extern const mica_engine mica_max_unpool_winner;

static const char *const passes[] = {"fwd", "bwd", NULL};

#define FIELD(member, kind, ...) MICA_FIELD(mica_max_unpool_desc, member, kind, __VA_ARGS__)
static const mica_field fields[] = {
    FIELD(pass, ENUM, .spellings = passes, .doc = "forward, or gradient of x"),
    FIELD(x, TENSOR, .zero = "needed", .doc = "fwd: maxima, N x C x 1 to 3 axes"),
    FIELD(indices, TENSOR, .zero = "needed",
          .doc = "positions within each N,C plane of y, s32 or s64"),
    FIELD(y, TENSOR, .zero = "needed", .doc = "fwd: output"),
    FIELD(dy, TENSOR, .zero = "needed", .doc = "bwd: gradient of y"),
    FIELD(dx, TENSOR, .zero = "inferred", .doc = "bwd: gradient of x"),
};

static mica_tensor gradient_shape(const void *desc)
{
    const mica_max_unpool_desc *d = desc;
    mica_tensor t = d->indices;
    t.dtype = d->dy.dtype;
    return t;
}

#define ARG(member) #member, offsetof(mica_max_unpool_desc, member)
enum { TYPES = MICA_FLOATS | MICA_INDICES | MICA_TYPE(S8) | MICA_TYPE(U8) };
static const mica_arg args[] = {
    [MICA_MAX_UNPOOL_X] = {ARG(x), {MICA_IN, MICA_UNUSED}, .types = TYPES, .need = {MICA_NEEDED}},
    [MICA_MAX_UNPOOL_INDICES] = {ARG(indices),
                                 {MICA_IN, MICA_IN},
                                 .types = MICA_INDICES,
                                 .need = {MICA_NEEDED, MICA_NEEDED},
                                 .like = "x"},
    [MICA_MAX_UNPOOL_Y] = {ARG(y), {MICA_OUT, MICA_UNUSED}, .same = "x", .need = {MICA_NEEDED}},
    [MICA_MAX_UNPOOL_DY] = {ARG(dy),
                            {MICA_UNUSED, MICA_IN},
                            .types = TYPES,
                            .need = {0, MICA_NEEDED}},
    [MICA_MAX_UNPOOL_DX] = {ARG(dx),
                            {MICA_UNUSED, MICA_OUT},
                            .same = "dy",
                            .like = "indices",
                            .shape = gradient_shape,
                            .need = {0, MICA_INFERRED}},
};

static const mica_tensor *large_of(const mica_max_unpool_desc *d)
{
    return d->pass == MICA_MAX_UNPOOL_FWD ? &d->y : &d->dy;
}

static mica_status check(const void *desc, mica_why *why)
{
    const mica_max_unpool_desc *d = desc;
    const bool fwd = d->pass == MICA_MAX_UNPOOL_FWD;
    const char *name = fwd ? "y" : "dy";
    const mica_tensor *large = large_of(d), *small = &d->indices;
    if (small->rank < 3 || small->rank > 5)
        return mica_invalid(why, "%s has rank %d; pooling takes N x C and one to three axes",
                            fwd ? "x" : "indices", small->rank);
    if (large->rank != small->rank)
        return mica_invalid(why, "%s has rank %d, indices %d; they must agree", name, large->rank,
                            small->rank);
    for (int i = 0; i < 2; i++)
        if (large->dims[i] != small->dims[i])
            return mica_invalid(why, "dimension %d of %s is %lld, of indices %lld; they must agree",
                                i, name, (long long)large->dims[i], (long long)small->dims[i]);
    return MICA_OK;
}

/* Axes of a plane that lie packed are one. */
static void add_plane(mica_index_map *m, const mica_tensor *large)
{
    for (int i = 2; i < large->rank; i++) {
        const mica_index_part now = {large->dims[i], large->strides[i]};
        mica_index_part *last = m->parts ? &m->part[m->parts - 1] : NULL;
        if (last && (last->extent == 1 || last->stride == now.stride * now.extent))
            *last = (mica_index_part){last->extent * now.extent, now.stride};
        else if (!last || now.extent != 1)
            m->part[m->parts++] = now;
    }
    m->flat = m->parts > 1;
}

static void maps(const void *desc, mica_index_set *set)
{
    const mica_max_unpool_desc *d = desc;
    const bool fwd = d->pass == MICA_MAX_UNPOOL_FWD;
    const mica_tensor *large = large_of(d), *small = fwd ? &d->x : &d->dx;
    const int here = fwd ? MICA_MAX_UNPOOL_X : MICA_MAX_UNPOOL_DX;
    const int there = fwd ? MICA_MAX_UNPOOL_Y : MICA_MAX_UNPOOL_DY;
    if (fwd) set->map[set->count++] = mica_index_filled(there, large);
    mica_index_map *m = &set->map[set->count++];
    *m = mica_index_between(fwd ? MICA_INDEX_COMBINE : MICA_INDEX_COPY, here, small, there, NULL);
    m->index = MICA_MAX_UNPOOL_INDICES;
    m->reduce = MICA_INDEX_LAST;
    for (int i = 0; i < m->rank; i++) {
        m->at[i].index = d->indices.strides[i];
        if (i < 2) m->at[i].there = large->strides[i];
    }
    add_plane(m, large);
}

static void cost(const void *desc, double *flops, double *bytes)
{
    const mica_max_unpool_desc *d = desc;
    const mica_tensor *large = large_of(d);
    const double small = (double)mica_tensor_count(&d->indices);
    const double size = mica_dtype_bits(large->dtype) / 8.0;
    const double moved = d->pass == MICA_MAX_UNPOOL_FWD ? (double)mica_tensor_count(large) : small;
    *flops = 0;
    *bytes = (small + moved) * size + small * mica_dtype_bits(d->indices.dtype) / 8;
}

/* What pooling makes, each index near its window; some anywhere, twice, or outside. */
static bool fill(const void *desc, const double *scalars, int arg, mica_fill kind, uint64_t seed,
                 double *values)
{
    const mica_max_unpool_desc *d = desc;
    const mica_tensor *large = large_of(d);
    (void)scalars;
    if (arg != MICA_MAX_UNPOOL_INDICES) return false;
    int64_t plane = 1, windows = 1;
    for (int i = 2; i < large->rank; i++) {
        plane *= large->dims[i];
        windows *= d->indices.dims[i];
    }
    const int64_t count = mica_tensor_count(&d->indices);
    mica_index_fill(&plane, 1, false, count, kind, seed, values);
    for (int64_t i = 0; i < count; i++) {
        const uint64_t bits = mica_random_bits(seed ^ 0x5a, (uint64_t)i);
        if (bits % 41 == 1) values[i] = bits & 64 ? -1 : -(double)plane;
        if (bits % 4 == 0 || plane == 0) continue;
        if (values[i] >= 0 && values[i] < (double)plane)
            values[i] = (double)(i % windows * plane / windows);
    }
    return true;
}

static const mica_engine *const engines[] = {&mica_index_cpu, &mica_engine_ref,
                                             &mica_max_unpool_winner, &mica_index_cuda, NULL};

const mica_op mica_op_max_unpool = {
    .name = "max_unpool",
    .doc = "maxima back where their indices say, and the gradient",
    .desc_size = sizeof(mica_max_unpool_desc),
    .fields = fields,
    .field_count = sizeof fields / sizeof *fields,
    .args = args,
    .arg_count = sizeof args / sizeof *args,
    .check = check,
    .cost = cost,
    .exact = mica_index_exact,
    .fill = fill,
    .index = &(const mica_index){.maps = maps},
    .engines = engines,
};
