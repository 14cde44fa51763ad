/* SPDX-License-Identifier: Apache-2.0
 * Engine "cpu": statistics in one corrected pass about a guess of the mean (rarely two), then one
 * pass that writes; sums in f32 (f64 for f64) of pieces that move to double. Any strides and types,
 * no workspace. A set that fits the cache comes from memory once: layer, rms, group and instance.
 * Batch reads x twice and is bound by that; so is dscale of layer and rms, a walk of its own. Not
 * on ops/reduce, whose tiles cost more than short rows: docs/experiments/norm.md.
 *
 * Engine "cpu_once": that dscale and dbias along with dx, row by row, so that x and dy come from
 * memory once. Its workspace holds the sums by column of each part of the rows: 32 n bytes, times
 * at most NORM_ONCE_PARTS. */
#include "ops/norm/cpu/norm_cpu.h"

#include <string.h>

#include "cpu/cpu.h"
#include "cpu/stream.h"

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    (void)desc, (void)device, (void)why;
    return MICA_OK;
}

static double predict(const void *desc, const mica_device_info *device, const mica_config *config)
{
    (void)config;
    const mica_norm_desc *d = desc;
    bool again = d->kind == MICA_NORM_BATCH && d->mode == MICA_NORM_TRAIN;
    return (again ? 2 : 1.5) * mica_roofline_ms(&mica_op_norm, desc, device) + 3e-4;
}

/* Partial sums are of at most NORM_FLUSH additions (of four lanes or more along a run); what adds
 * them is double. */
static void contract(const void *desc, const mica_config *config, mica_contract *c)
{
    (void)desc, (void)config;
    if (c->n_seq > NORM_FLUSH) c->n_seq = NORM_FLUSH;
    c->n_outer = 4;
}

/* ---- planes ---- */

static bool varies(const norm_space *space, int arg)
{
    for (int i = 0; i < space->rank; i++)
        if (space->strides[arg][i] != 0) return true;
    return false;
}

static int64_t smallest_stride(const norm_space *space)
{
    if (space->rank == 0) return INT64_MAX;
    int64_t s = space->strides[MICA_NORM_X][space->rank - 1];
    return s < 0 ? -s : s;
}

/* Parts of a block's reduction, by its size alone. */
static void choose_parts(norm_plane *p)
{
    int64_t elements = p->reduced > INT64_MAX / p->block ? INT64_MAX : p->reduced * p->block;
    int64_t parts = elements / NORM_PART_SIZE;
    p->parts = parts < 1 ? 1 : parts > NORM_PARTS ? NORM_PARTS : (int)parts;
    if (p->parts > p->reduced && p->reduced > 0) p->parts = (int)p->reduced;
    p->part_size = (p->reduced + p->parts - 1) / p->parts;
    p->part_size = (p->part_size + p->fold - 1) / p->fold * p->fold;
}

/* How many rows form one run: as many as fit, if they lie behind each other in every tensor of x's
 * shape and nothing else varies along them. */
static int64_t choose_fold(const mica_norm_desc *d, const norm_plane *p)
{
    if (!p->side_by_side || p->rows.rank != 1 || p->cols.rank != 1) return 1;
    int64_t width = p->cols.dims[0];
    for (int a = 0; a < NORM_ARG_COUNT; a++) {
        const mica_tensor *t = mica_norm_tensor(d, a);
        if (!mica_tensor_given(t)) continue;
        /* mean and rstd of groups of one channel may have x's shape, too: they are operands */
        bool whole = p->cols.strides[a][0] == 1 && p->rows.strides[a][0] == width;
        bool like_x = t->rank == d->x.rank && !mica_norm_is_per_set(a);
        if (!(like_x ? whole : p->rows.strides[a][0] == 0)) return 1;
    }
    return width < NORM_COLUMNS ? NORM_COLUMNS / width : 1;
}

static void make_plane(const mica_norm_desc *d, const norm_split *split, int64_t together,
                       norm_plane *p)
{
    p->together = together;
    p->side_by_side = smallest_stride(&split->kept) < smallest_stride(&split->reduced);
    p->rows = p->side_by_side ? split->reduced : split->kept;
    p->cols = p->side_by_side ? split->kept : split->reduced;
    for (int i = 0; i < NORM_ARG_COUNT; i++) {
        p->along_cols[i] = varies(&p->cols, i);
    }
    p->reduced = split->reduced.count;
    p->block = p->blocks_per_run = 1;
    p->blocks = split->kept.count;
    if (p->side_by_side && p->blocks > 0) {
        int64_t run = p->cols.dims[p->cols.rank - 1];
        p->blocks_per_run = (run + NORM_COLUMNS - 1) / NORM_COLUMNS;
        p->block = ((run + p->blocks_per_run - 1) / p->blocks_per_run + 15) / 16 * 16;
        if (together > 1) {
            p->block = NORM_COLUMNS / together * together;
            p->blocks_per_run = (run + p->block - 1) / p->block;
        }
        p->blocks = split->kept.count / run * p->blocks_per_run;
    }
    p->fold = choose_fold(d, p);
    choose_parts(p);
}

/* Channels that are neighbours in memory, as in NHWC, and fewer to a group than a block has
 * columns: a group's channels are kept apart until their sums are added. */
static int64_t columns_of_group(const mica_norm_desc *d)
{
    if (d->kind != MICA_NORM_GROUP) return 1;
    int64_t step = d->x.strides[1], reach;
    if (step < 1 || __builtin_mul_overflow(step, d->x.dims[1], &reach)) return 1;
    for (int i = 0; i < d->x.rank; i++)
        if (i != 1 && d->x.dims[i] > 1 && d->x.strides[i] < reach) return 1;
    int64_t channels = d->x.dims[1] / d->groups;
    return channels <= NORM_COLUMNS ? channels : 1;
}

static void make_sets(const mica_norm_desc *d, norm_cpu_state *s)
{
    norm_split split;
    mica_norm_split_sets(d, &split);
    s->set_size = (double)split.reduced.count;
    int64_t together = split.reduced.count > 0 && split.kept.count > 0 ? columns_of_group(d) : 1;
    if (together > 1) {
        mica_norm_desc channels = *d;
        channels.kind = MICA_NORM_INSTANCE;
        s->sets.sets = split.kept;
        mica_norm_split_sets(&channels, &split);
    }
    make_plane(d, &split, together, &s->sets);
}

static bool has_plain_rows(const mica_norm_desc *d, const norm_plane *p)
{
    bool simple =
        d->pass == MICA_NORM_FWD && (d->kind == MICA_NORM_LAYER || d->kind == MICA_NORM_RMS);
    if (!simple || mica_tensor_given(&d->residual) || mica_tensor_given(&d->sum)) return false;
    if (p->side_by_side || p->cols.rank != 1) return false;
    if (p->reduced > (d->x.dtype == MICA_BF16 ? NORM_NARROW_ROW : NORM_ROW)) return false;
    for (int a = 0; a < NORM_ARG_COUNT; a++) {
        /* what does not vary along the row must not vary between rows either */
        if (!mica_tensor_given(mica_norm_tensor(d, a)) || mica_norm_is_per_set(a)) continue;
        bool whole = a == MICA_NORM_X || a == MICA_NORM_Y;
        if (whole ? p->cols.strides[a][0] != 1 : varies(&p->rows, a)) return false;
    }
    return true;
}

static mica_status build(mica_plan *plan)
{
    norm_cpu_state *s;
    norm_split split;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    const mica_norm_desc *d = s->d = plan->desc;
    s->behind = mica_norm_adds_behind(d);
    s->dresidual_first = mica_norm_dresidual_is_first(d);
    make_sets(d, s);
    if (!mica_norm_has_set_results(d)) s->sets.blocks = 0;
    s->plain_rows = s->sets.blocks > 0 && has_plain_rows(d, &s->sets);
    mica_norm_split_channels(d, &split);
    make_plane(d, &split, 1, &s->channels);
    s->channels_first = d->pass == MICA_NORM_BWD && d->kind != MICA_NORM_BATCH &&
                        (mica_tensor_given(&d->dscale) || mica_tensor_given(&d->dbias));
    s->bytes = mica_op_bytes(plan->op, d);
    s->past_cache = mica_stream_pays(s->bytes, plan->device.cache_bytes);
    return MICA_OK;
}

/* ---- once ---- */

static mica_status accepts_once(const void *desc, const mica_device_info *device, mica_why *why)
{
    (void)device;
    const mica_norm_desc *d = desc;
    norm_split split;
    norm_plane p;
    bool sums = mica_tensor_given(&d->dscale) || mica_tensor_given(&d->dbias);
    if (d->pass != MICA_NORM_BWD || !mica_norm_is_trailing(d) || !sums ||
        !mica_tensor_given(&d->dx))
        return mica_refuse(why, "this engine forms dx and dscale or dbias of layer and rms");
    mica_norm_split_sets(d, &split);
    if (split.kept.count < NORM_ONCE_ROWS || split.reduced.count > NORM_ONCE_ROW ||
        split.reduced.count < 1)
        return mica_refuse(
            why, "%lld rows of %lld elements, this engine takes %d rows or more of %d or less",
            (long long)split.kept.count, (long long)split.reduced.count, NORM_ONCE_ROWS,
            NORM_ONCE_ROW);
    make_plane(d, &split, 1, &p);
    if (p.side_by_side || p.parts != 1 || p.cols.rank != 1)
        return mica_refuse(why, "the elements of a row are not neighbours in x");
    return MICA_OK;
}

static double predict_once(const void *desc, const mica_device_info *device,
                           const mica_config *config)
{
    (void)config;
    return 1.3 * mica_roofline_ms(&mica_op_norm, desc, device) + 3e-4;
}

static mica_status build_once(mica_plan *plan)
{
    MICA_TRY(build(plan));
    norm_cpu_state *s = plan->state;
    int64_t parts = s->sets.blocks / NORM_ONCE_ROWS;
    s->once_parts = parts < NORM_ONCE_PARTS ? (int)parts : NORM_ONCE_PARTS;
    s->channels_first = false;
    size_t sums = (size_t)(2 * s->once_parts * s->sets.reduced);
    return mica_book(plan, "sums by column", 2 * sums * sizeof(double), &s->once_sums);
}

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    const norm_cpu_state *s = plan->state;
    void *args[NORM_ARG_COUNT];
    for (int i = 0; i < NORM_ARG_COUNT; i++)
        args[i] = mica_op_dir(plan->op, plan->desc, i) == MICA_UNUSED ? NULL : r->args[i];
    double beta = mica_run_scalar(plan, r, MICA_NORM_BETA);
    void *workspace = s->once_parts ? mica_at(r, s->once_sums) : NULL;
    if (s->d->x.dtype == MICA_F64)
        norm_cpu_run_f64(s, args, workspace, beta);
    else
        norm_cpu_run_f32(s, args, workspace, beta);
    return MICA_OK;
}

const mica_engine mica_norm_cpu = {.name = "cpu",
                                   .accepts = accepts,
                                   .predict = predict,
                                   .contract = contract,
                                   .build = build,
                                   .run = run};

const mica_engine mica_norm_cpu_once = {.name = "cpu_once",
                                        .accepts = accepts_once,
                                        .predict = predict_once,
                                        .contract = contract,
                                        .build = build_once,
                                        .run = run};
