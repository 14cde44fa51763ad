/* SPDX-License-Identifier: Apache-2.0
 * Which launches a problem takes, and how groups of threads share it. */
#include "ops/norm/norm_cuda.h"
#include "ops/access/access.h"

#include <stdlib.h>
#include <string.h>

enum {
    BLOCK = 128,          /* threads of a block that holds several groups, at least */
    SET_THREADS = 512,    /* of a group that does a whole set */
    PART_THREADS = 256,   /* of a group that does a part of one */
    STRIDED_THREADS = 16, /* where neighbouring threads belong to neighbouring kept indices */
    VECTORS = 4,          /* per thread, that keep its loads in flight */
    KEEP_FORWARD = 32,    /* registers in which a thread keeps its elements as they were read */
    KEEP_BACKWARD = 16,   /* values it keeps of each of two tensors */
    MOST_ITEMS = 8,       /* vectors whose offsets a thread has at hand */
    CHANNEL_LANES = 32,   /* threads beside each other on vectors of channels, at most */
    CHANNEL_THREADS = 512,
    SECTOR = 32,                 /* bytes that neighbours should read together, at least */
    PARTS = 128,                 /* at most: a few threads merge them */
    BLOCKS = 512,                /* that fill the largest device */
    PART_VECTORS = 16,           /* per thread and part, at least */
    GATHERING_THREADS = 1 << 16, /* of the blocks that gather gradients of scale and bias */
    GATHERED_SETS = 16           /* of such a block, at least: its part is written and read again */
};

static int power_of_two_from(int64_t least, int most)
{
    int p = 1;
    while (p < most && p < least) p *= 2;
    return p;
}

static int64_t inner_stride(const norm_space *s, int arg)
{
    return s->rank ? s->strides[arg][s->rank - 1] : 0;
}

bool norm_lies_along(const norm_split *split, int arg)
{
    return inner_stride(&split->reduced, arg) != 0;
}

/* Neighbours in memory are reduced, not kept. */
static bool is_along(const norm_split *split)
{
    if (split->kept.rank == 0) return true;
    return split->reduced.rank > 0 && llabs(inner_stride(&split->reduced, MICA_NORM_X)) <=
                                          llabs(inner_stride(&split->kept, MICA_NORM_X));
}

static bool is_broadcast(int arg)
{
    return arg == MICA_NORM_SCALE || arg == MICA_NORM_BIAS || arg == MICA_NORM_MEAN ||
           arg == MICA_NORM_RSTD;
}

/* From vector to vector of the argument, along its rows and from row to row. */
static int64_t steps_of(const norm_split *split, int arg)
{
    const norm_space *r = &split->reduced, *k = &split->kept;
    int64_t steps = 0;
    for (int i = 0; i + 1 < r->rank; i++) steps |= r->strides[arg][i];
    for (int i = 0; i < k->rank; i++) steps |= k->strides[arg][i];
    return steps;
}

static bool is_read_or_written(int arg)
{
    return arg <= MICA_NORM_RSTD || arg == MICA_NORM_DY || arg == MICA_NORM_DX ||
           arg == MICA_NORM_DRESIDUAL;
}

/* Elements of x of one access, of which a thread takes no more than 8. */
static int widest(const mica_norm_desc *d)
{
    const int most = mica_access_of(d->x.dtype);
    return most < 8 ? most : 8;
}

static int choose_vector(const mica_norm_desc *d, const norm_split *split)
{
    const norm_space *r = &split->reduced;
    if (r->rank == 0) return 1;
    int64_t steps = r->dims[r->rank - 1];
    for (int arg = 0; arg < NORM_ARG_COUNT; arg++) {
        if (!mica_tensor_given(mica_norm_tensor(d, arg)) || !is_read_or_written(arg)) continue;
        const int64_t stride = inner_stride(r, arg);
        if (is_broadcast(arg) && stride == 0) continue; /* one for the whole vector */
        if (mica_norm_is_per_set(arg) || stride != 1) return 1;
        steps |= steps_of(split, arg);
    }
    return mica_access_fit(widest(d), steps);
}

/* Groups of threads for n elements each. keep: values a thread may keep. */
static void choose_groups(const mica_norm_desc *d, const norm_split *split, int64_t n, int most,
                          int keep, mica_slices *g)
{
    memset(g, 0, sizeof *g);
    g->along = is_along(split);
    g->vector = g->along ? choose_vector(d, split) : 1;
    int64_t vectors = (n + g->vector - 1) / g->vector;
    int64_t few = g->along ? VECTORS : 8;
    g->threads = power_of_two_from((vectors + few - 1) / few, g->along ? most : STRIDED_THREADS);
    /* more of them where that keeps what would be read twice */
    while (g->along && g->threads < most && vectors > (int64_t)g->threads * keep / g->vector &&
           vectors <= (int64_t)most * keep / g->vector)
        g->threads *= 2;
    int beside = SECTOR / (g->vector * (mica_dtype_bits(d->x.dtype) / 8));
    if (g->along && g->threads < beside) g->threads = power_of_two_from(vectors, beside);
    int64_t items = (vectors + g->threads - 1) / g->threads;
    int64_t most_items = split->reduced.rank > 1 ? MOST_ITEMS / 4 : MOST_ITEMS;
    if (items > 0 && items <= most_items && items * g->vector <= keep)
        g->items = power_of_two_from(items, keep);
    g->slices = g->threads < BLOCK ? BLOCK / g->threads : 1;
    if (!g->along && g->slices < 32) g->slices = 32;
}

/* Neighbouring channels of x and of what has its shape that are one vector. */
static int channels_of(const mica_norm_desc *d, const norm_split *split)
{
    static const int like_x[] = {MICA_NORM_X,  MICA_NORM_RESIDUAL, MICA_NORM_Y,
                                 MICA_NORM_DY, MICA_NORM_DX,       MICA_NORM_DRESIDUAL};
    int64_t steps = split->kept.count;
    for (size_t i = 0; i < sizeof like_x / sizeof *like_x; i++) {
        if (!mica_tensor_given(mica_norm_tensor(d, like_x[i]))) continue;
        if (split->kept.strides[like_x[i]][0] != 1) return 1;
        steps |= split->reduced.strides[like_x[i]][0];
    }
    return mica_access_fit(widest(d), steps);
}

/* Sets are rows, all of whose elements have the same statistics. */
static bool has_sets_of_rows(const mica_norm_desc *d, const norm_space *kept)
{
    return d->kind != MICA_NORM_BATCH && kept->strides[MICA_NORM_MEAN][0] == 0 &&
           kept->strides[MICA_NORM_RSTD][0] == 0;
}

/* Channels side by side, of batch or as elements of scale and bias: sums and elements of a vector
 * of channels at once. */
static bool choose_channels(const mica_norm_desc *d, norm_stage *s)
{
    const norm_split *split = &s->split;
    if (split->kept.rank != 1 || split->reduced.rank != 1 || is_along(split)) return false;
    if (s->sets ? d->kind != MICA_NORM_BATCH : !has_sets_of_rows(d, &split->kept)) return false;
    const int vector = channels_of(d, split);
    if (vector == 1) return false;
    int lanes = power_of_two_from(split->kept.count / vector, CHANNEL_LANES);
    s->groups = (mica_slices){
        .threads = CHANNEL_THREADS / lanes, .slices = lanes, .along = false, .vector = vector};
    s->channels = true;
    return true;
}

static int64_t rows_of(const norm_stage *s)
{
    int64_t kept = (int64_t)s->groups.slices * (s->channels ? s->groups.vector : 1);
    return (s->split.kept.count + kept - 1) / kept;
}

int64_t norm_stage_blocks(const norm_stage *s)
{
    int64_t blocks;
    if (s->gathering) return s->gathering;
    if (s->kind == NORM_MERGE)
        return (s->split.kept.count + NORM_MERGE_LANES - 1) / NORM_MERGE_LANES;
    return __builtin_mul_overflow(rows_of(s), s->parts, &blocks) ? INT64_MAX : blocks;
}

/* Without overflow near the largest counts, which inputs with strides of 0 reach. */
static int64_t quotient_up(int64_t n, int64_t by)
{
    return n / by + (n % by != 0);
}

/* Cuts the reduced space in pieces of at least `least` vectors a thread, at most `most` of them. */
static void cut(norm_stage *s, int64_t most, int64_t least)
{
    int64_t n = s->split.reduced.count, vector = s->channels ? 1 : s->groups.vector;
    int64_t piece = (int64_t)s->groups.threads * vector * least;
    int64_t even = most > 0 ? quotient_up(n, most) : n;
    if (even <= INT64_MAX - vector) even = quotient_up(even, vector) * vector;
    s->piece = even > piece ? even : piece;
    s->parts = n > s->piece ? quotient_up(n, s->piece) : 1;
    if (s->parts == 1) s->piece = n;
}

static norm_stage *add(norm_stages *list, norm_stage_kind kind, bool sets, const norm_split *split)
{
    norm_stage *s = &list->at[list->count++];
    *s = (norm_stage){.kind = kind, .sets = sets, .split = *split, .parts = 1};
    s->piece = split->reduced.count;
    return s;
}

/* Values that fit a thread's registers. */
static int values_kept(const mica_norm_desc *d)
{
    if (d->pass == MICA_NORM_BWD) return d->x.dtype == MICA_F64 ? KEEP_BACKWARD / 2 : KEEP_BACKWARD;
    int bytes = mica_dtype_bits(d->x.dtype) / 8;
    if (mica_norm_adds_in_front(d)) bytes += mica_dtype_bits(d->residual.dtype) / 8;
    return KEEP_FORWARD * 4 / bytes;
}

static norm_stage *add_fused(const mica_norm_desc *d, norm_stages *list, const norm_split *split)
{
    norm_stage *s = add(list, NORM_FUSED, true, split);
    s->dresidual = mica_tensor_given(&d->dresidual);
    choose_groups(d, split, s->piece, SET_THREADS, values_kept(d), &s->groups);
    return s;
}

static void add_apply(const mica_norm_desc *d, norm_stages *list, const norm_split *split)
{
    norm_stage *s = add(list, NORM_APPLY, true, split);
    s->dresidual = mica_tensor_given(&d->dresidual);
    if (!choose_channels(d, s)) choose_groups(d, split, s->piece, PART_THREADS, 0, &s->groups);
    cut(s, INT64_MAX, 2 * VECTORS);
}

/* Sums in parts and their merger, or in one part that needs none. */
static norm_stage *add_sums(const mica_norm_desc *d, norm_stages *list, const norm_split *split,
                            bool sets, bool in_parts)
{
    norm_stage *s = add(list, NORM_PARTIAL, sets, split);
    if (!in_parts || !choose_channels(d, s))
        choose_groups(d, split, s->piece, in_parts ? PART_THREADS : SET_THREADS, 0, &s->groups);
    int64_t rows = rows_of(s), most = rows > 0 ? BLOCKS / rows : 1;
    if (in_parts) cut(s, most < 1 ? 1 : most > PARTS ? PARTS : most, PART_VECTORS);
    s->direct = !in_parts;
    if (!in_parts) return s;
    norm_stage *m = add(list, NORM_MERGE, sets, split);
    m->groups = s->groups, m->parts = s->parts, m->piece = s->piece;
    return s;
}

void norm_stage_desc(const mica_norm_desc *d, bool from_dresidual, mica_norm_desc *stage)
{
    *stage = *d;
    if (!from_dresidual) return;
    stage->dy = d->dresidual;
    stage->act = MICA_ACT_IDENTITY;
    stage->residual = stage->dresidual = stage->bias = (mica_tensor){0};
}

/* Sums, then elements, which need neither dy nor the residual again where the sums came with
 * dresidual. */
static void add_sums_and_apply(const mica_norm_desc *d, norm_stages *list, const norm_split *sets)
{
    mica_norm_desc rest;
    norm_split split;
    bool from = mica_norm_dresidual_is_first(d);
    add_sums(d, list, sets, true, true)->dresidual = from;
    norm_stage_desc(d, from, &rest);
    mica_norm_split_sets(&rest, &split);
    add_apply(&rest, list, &split);
    list->at[list->count - 1].from_dresidual = from;
}

static bool parts_help(const mica_norm_desc *d, const norm_split *split, bool sets)
{
    norm_stages list = {.count = 0};
    return add_sums(d, &list, split, sets, true)->parts > 1;
}

/* What bwd does for scale and bias by a walk of its own: batch has those sums anyway. */
static bool has_channel_walk(const mica_norm_desc *d)
{
    bool affine = mica_tensor_given(&d->dscale) || mica_tensor_given(&d->dbias);
    bool sums = d->kind == MICA_NORM_BATCH && d->mode == MICA_NORM_TRAIN;
    return d->pass == MICA_NORM_BWD && affine && !sums;
}

/* Sets that a block keeps: while it is at them it can add up what they give to scale and bias,
 * whose elements are theirs. x and dy are then read once. */
bool norm_stages_can_gather(const mica_norm_desc *d)
{
    if (!has_channel_walk(d) || (d->kind != MICA_NORM_LAYER && d->kind != MICA_NORM_RMS))
        return false;
    norm_split sets;
    norm_stages list = {.count = 0};
    mica_norm_split_sets(d, &sets);
    const mica_slices *g = &add_fused(d, &list, &sets)->groups;
    return g->along && g->items && g->slices == 1 && sets.kept.count > GATHERED_SETS;
}

static void add_gathering(const mica_norm_desc *d, norm_stages *list, const norm_split *sets,
                          const norm_split *channels)
{
    norm_stage *s = add_fused(d, list, sets);
    int64_t blocks = GATHERING_THREADS / s->groups.threads,
            most = quotient_up(sets->kept.count, GATHERED_SETS);
    s->gathering = blocks < most ? blocks : most;
    norm_stage *m = add(list, NORM_MERGE, false, channels);
    m->groups = s->groups, m->parts = s->gathering;
}

bool norm_stages_can_split(const mica_norm_desc *d)
{
    norm_split sets, channels;
    mica_norm_split_sets(d, &sets);
    mica_norm_split_channels(d, &channels);
    if (has_channel_walk(d) && parts_help(d, &channels, false)) return true;
    return d->mode == MICA_NORM_TRAIN && parts_help(d, &sets, true);
}

void norm_stages_make(const mica_norm_desc *d, int64_t split, norm_stages *list)
{
    norm_split sets, channels;
    mica_norm_split_sets(d, &sets);
    mica_norm_split_channels(d, &channels);
    list->count = 0;
    if (split == NORM_GATHERED) {
        add_gathering(d, list, &sets, &channels);
        return;
    }
    if (has_channel_walk(d) && channels.kept.count > 0)
        add_sums(d, list, &channels, false, split && parts_help(d, &channels, false));
    if (sets.kept.count == 0 || !mica_norm_has_set_results(d)) return;
    if (d->mode == MICA_NORM_INFER) {
        add_apply(d, list, &sets);
    } else if (split && parts_help(d, &sets, true)) {
        add_sums_and_apply(d, list, &sets);
    } else {
        add_fused(d, list, &sets);
    }
}
