/* SPDX-License-Identifier: Apache-2.0
 * The geometry of normalisation. Every argument gets a stride along every dimension of x (0 where
 * it does not vary), channels being split into group and channel of the group; then the dimensions
 * are divided in kept and reduced ones and merged where all arguments allow. */
#include "ops/norm/norm.h"
#include "ops/access/layout.h"

#include <string.h>

#define FULL_RANK (MICA_MAX_RANK + 1) /* group splits the channels in two */

typedef struct full {
    int rank;
    int64_t dims[FULL_RANK];
    int64_t strides[NORM_ARG_COUNT][FULL_RANK];
    bool in_set[FULL_RANK];     /* reduced by the statistics */
    bool in_channel[FULL_RANK]; /* scale varies along it */
} full;

static bool is_per_channel(int arg)
{
    return arg == MICA_NORM_SCALE || arg == MICA_NORM_BIAS || arg == MICA_NORM_DSCALE ||
           arg == MICA_NORM_DBIAS || arg == MICA_NORM_RUNNING_MEAN || arg == MICA_NORM_RUNNING_VAR;
}

/* Which dimensions of x are reduced, and along which the affine parameters vary. */
static void mark(const mica_norm_desc *d, int dim, bool *in_set, bool *in_channel)
{
    bool trailing = dim >= d->x.rank - d->axes;
    switch (d->kind) {
    case MICA_NORM_LAYER:
    case MICA_NORM_RMS:
        *in_set = *in_channel = trailing;
        break;
    case MICA_NORM_BATCH:
        *in_set = dim != 1, *in_channel = dim == 1;
        break;
    case MICA_NORM_GROUP: /* the part of dimension 1 inside a group */
        *in_set = dim >= 1, *in_channel = dim == 1;
        break;
    case MICA_NORM_INSTANCE:
        *in_set = dim > 1, *in_channel = dim == 1;
        break;
    }
}

/* Strides of every argument along dimension `dim` of x, written to column `to`. The statistics and
 * affine tensors' own dimensions are the marked ones in order. */
static void set_strides(const mica_norm_desc *d, full *f, int to, int dim, int set_dim,
                        int channel_dim)
{
    for (int a = 0; a < NORM_ARG_COUNT; a++) {
        const mica_tensor *t = mica_norm_tensor(d, a);
        if (!mica_tensor_given(t)) continue;
        if (mica_norm_is_per_set(a))
            f->strides[a][to] = f->in_set[to] ? 0 : t->strides[set_dim];
        else if (is_per_channel(a))
            f->strides[a][to] = f->in_channel[to] ? t->strides[channel_dim] : 0;
        else
            f->strides[a][to] = t->strides[dim];
    }
}

static void add_dim(const mica_norm_desc *d, full *f, int dim, int *set_dim, int *channel_dim)
{
    int to = f->rank++;
    f->dims[to] = d->x.dims[dim];
    mark(d, dim, &f->in_set[to], &f->in_channel[to]);
    set_strides(d, f, to, dim, *set_dim, *channel_dim);
    *set_dim += !f->in_set[to];
    *channel_dim += f->in_channel[to];
}

/* Dimension 1 becomes groups x channels of a group; the group is kept. */
static void add_group_dim(const mica_norm_desc *d, full *f, int *set_dim)
{
    int outer = f->rank++;
    f->dims[outer] = d->groups;
    f->in_set[outer] = false, f->in_channel[outer] = true;
    set_strides(d, f, outer, 1, *set_dim, 0);
    int64_t channels = d->x.dims[1] / d->groups;
    for (int a = 0; a < NORM_ARG_COUNT; a++)
        if (!mica_norm_is_per_set(a)) f->strides[a][outer] *= channels;
    ++*set_dim;
    int inner = f->rank++;
    f->dims[inner] = channels;
    f->in_set[inner] = f->in_channel[inner] = true;
    set_strides(d, f, inner, 1, *set_dim, 0);
}

static void make_full(const mica_norm_desc *d, full *f)
{
    memset(f, 0, sizeof *f);
    int set_dim = 0, channel_dim = 0;
    for (int dim = 0; dim < d->x.rank; dim++) {
        if (d->kind == MICA_NORM_GROUP && dim == 1)
            add_group_dim(d, f, &set_dim);
        else
            add_dim(d, f, dim, &set_dim, &channel_dim);
    }
}

/* The loop nest over the dimensions whose mark equals `wanted`. */
static void make_space(const full *f, const bool *marks, bool wanted, norm_space *s)
{
    int rank = 0;
    memset(s, 0, sizeof *s);
    s->count = 1;
    for (int i = 0; i < f->rank; i++)
        if (marks[i] == wanted) s->count *= f->dims[i];
    if (s->count == 0) return;
    for (int i = 0; i < f->rank; i++) {
        if (marks[i] != wanted || f->dims[i] == 1) continue;
        s->dims[rank] = f->dims[i];
        for (int t = 0; t < NORM_ARG_COUNT; t++) s->strides[t][rank] = f->strides[t][i];
        rank++;
    }
    s->rank = mica_layout_merge(s->dims, s->strides, rank, NORM_ARG_COUNT);
    s->fits_int = mica_layout_fits_int(s->count, s->dims, s->strides, s->rank, NORM_ARG_COUNT);
}

void mica_norm_split_sets(const mica_norm_desc *d, norm_split *split)
{
    full f;
    make_full(d, &f);
    make_space(&f, f.in_set, false, &split->kept);
    make_space(&f, f.in_set, true, &split->reduced);
}

void mica_norm_split_channels(const mica_norm_desc *d, norm_split *split)
{
    full f;
    make_full(d, &f);
    make_space(&f, f.in_channel, true, &split->kept);
    make_space(&f, f.in_channel, false, &split->reduced);
}

int64_t mica_norm_offset(const norm_space *space, int arg, int64_t i)
{
    int64_t offset = 0;
    for (int d = space->rank - 1; d > 0; d--) {
        offset += i % space->dims[d] * space->strides[arg][d];
        i /= space->dims[d];
    }
    return space->rank ? offset + i * space->strides[arg][0] : 0;
}

int64_t mica_norm_set_size(const mica_norm_desc *d)
{
    norm_split split;
    mica_norm_split_sets(d, &split);
    return split.reduced.count;
}

double mica_norm_unbiased(const mica_norm_desc *d)
{
    double n = (double)mica_norm_set_size(d);
    return n > 1 && !d->running_biased ? n / (n - 1) : 1;
}

bool mica_norm_has_set_results(const mica_norm_desc *d)
{
    return mica_tensor_count(&d->x) > 0 ||
           (d->pass == MICA_NORM_FWD &&
            (mica_tensor_given(&d->mean) || mica_tensor_given(&d->rstd))) ||
           (d->pass == MICA_NORM_BWD && d->kind == MICA_NORM_BATCH);
}
