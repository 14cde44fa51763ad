/* SPDX-License-Identifier: Apache-2.0
 * Repetition: tables, inference, checks, the maps. */
#include "mica/tile.h"
#include "ops/index/index.h"

extern const mica_op mica_op_tile;

#define FIELD(member, kind, ...) MICA_FIELD(mica_tile_desc, member, kind, __VA_ARGS__)
#define ARG(member)              #member, offsetof(mica_tile_desc, member)
/* `whole` repeated, packed. */
#define REPEATED(whole) .same = whole, .like = "the repeated " whole, .shape = repeated

static const char *const passes[] = {"fwd", "bwd", NULL};

static const mica_field fields[] = {
    FIELD(pass, ENUM, .spellings = passes, .doc = "forward, or gradient of x"),
    FIELD(x, TENSOR, .zero = "needed", .doc = "fwd: input"),
    FIELD(y, TENSOR, .zero = "inferred", .doc = "fwd: output, packed"),
    FIELD(dy, TENSOR, .zero = "inferred", .doc = "bwd: gradient of y"),
    FIELD(dx, TENSOR, .zero = "needed", .doc = "bwd: gradient of x"),
    FIELD(repeats, AXES, .count = MICA_MAX_RANK, .def = 1, .positive = true,
          .doc = "how often x stands there"),
    FIELD(shift, AXES, .count = MICA_MAX_RANK, .zero = "none", .doc = "to higher indices"),
};

static const mica_tensor *whole_of(const mica_tile_desc *d)
{
    return d->pass == MICA_TILE_BWD ? &d->dx : &d->x;
}
static const mica_tensor *part_of(const mica_tile_desc *d)
{
    return d->pass == MICA_TILE_BWD ? &d->dy : &d->y;
}

static mica_tensor repeated(const void *desc)
{
    const mica_tile_desc *d = desc;
    mica_tensor y = {.dtype = whole_of(d)->dtype, .rank = whole_of(d)->rank};
    for (int i = 0; i < y.rank; i++) y.dims[i] = whole_of(d)->dims[i] * d->repeats[i];
    mica_tensor_default_strides(&y);
    return y;
}

static const mica_arg args[] = {
    [MICA_TILE_X] = {ARG(x), {MICA_IN, MICA_UNUSED}, .need = {MICA_NEEDED}},
    [MICA_TILE_Y] = {ARG(y), {MICA_OUT, MICA_UNUSED}, .need = {MICA_INFERRED}, REPEATED("x")},
    [MICA_TILE_DY] = {ARG(dy), {MICA_UNUSED, MICA_IN}, .need = {0, MICA_INFERRED}, REPEATED("dx")},
    [MICA_TILE_DX] = {ARG(dx), {MICA_UNUSED, MICA_OUT}, .need = {0, MICA_NEEDED}},
};

static mica_status infer(void *desc, mica_why *why)
{
    mica_tile_desc *d = desc;
    const mica_tensor *x = whole_of(d);
    for (int i = 0; i < MICA_MAX_RANK; i++) {
        const int64_t n = i < x->rank ? x->dims[i] : 0;
        if (d->repeats[i] < 0 || (i >= x->rank && (d->repeats[i] != 1 || d->shift[i])) ||
            (n && d->repeats[i] > MICA_MOST_ELEMENTS / n))
            return mica_invalid(why, "repeats[%d] is %lld and shift[%d] %lld, dimensions are %d", i,
                                (long long)d->repeats[i], i, (long long)d->shift[i], x->rank);
        d->shift[i] = n ? mica_index_modulo(d->shift[i], n) : 0;
    }
    return MICA_OK;
}

static void maps(const void *desc, mica_index_set *set)
{
    const mica_tile_desc *d = desc;
    const bool fwd = d->pass == MICA_TILE_FWD;
    mica_index_map *m = &set->map[set->count++];
    *m = mica_index_between(fwd ? MICA_INDEX_COPY : MICA_INDEX_FOLD,
                            fwd ? MICA_TILE_Y : MICA_TILE_DY, part_of(d),
                            fwd ? MICA_TILE_X : MICA_TILE_DX, whole_of(d));
    for (int i = 0; i < m->rank; i++) {
        mica_index_dim *a = &m->at[i];
        if (d->repeats[i] == 1 && d->shift[i] == 0) continue;
        a->border = MICA_INDEX_WRAP;
        a->start = -d->shift[i];
        a->across = whole_of(d)->dims[i];
    }
}

static int64_t terms(const void *desc)
{
    const mica_tile_desc *d = desc;
    int64_t n = 1;
    for (int i = 0; i < whole_of(d)->rank; i++) n *= d->repeats[i];
    return n > 1 ? n : 1;
}

const mica_op mica_op_tile = {
    .name = "tile",
    .doc = "a tensor repeated and rolled, and its gradient",
    .desc_size = sizeof(mica_tile_desc),
    .fields = fields,
    .field_count = sizeof fields / sizeof *fields,
    .args = args,
    .arg_count = sizeof args / sizeof *args,
    .infer = infer,
    .terms = terms,
    .exact = mica_index_exact,
    .index = &(const mica_index){.maps = maps},
    .engines = mica_index_engines,
};
