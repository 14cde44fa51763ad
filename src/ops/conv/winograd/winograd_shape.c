/* SPDX-License-Identifier: Apache-2.0
 * Which problems Winograd's filtering takes, and their tiles in chunks. */
#include "ops/conv/winograd/winograd.h"

enum {
    TAPS = CONV_WINOGRAD_TAPS,
    ROUND_TILES = 16,
    LEAST_TILES = 32,
    FINER = 8,
    MOST_CHUNKINGS = 5
};
static const int64_t MOST_CHANNELS = 1 << 24, MOST_TILES = 1 << 30;
static const double MOST_CHUNK_BYTES = 0x1p30;

/* ---- the problem ---- */

static int64_t magnitude(int64_t stride)
{
    return stride < 0 ? -stride : stride;
}

void conv_winograd_make(const mica_conv_desc *d, conv_winograd_problem *p)
{
    *p = (conv_winograd_problem){.roles = mica_conv_roles_of(d)};
    mica_conv_geometry_make(d, &p->g);
    mica_conv_geometry *g = &p->g;
    p->wgrad = p->roles.wgrad;
    p->dgrad = p->roles.dgrad;
    p->read = p->roles.image;
    p->other = p->dgrad ? p->roles.a : p->roles.b;
    p->from = p->dgrad ? g->k : g->c;
    p->to = p->dgrad ? g->c : g->k;
    p->read_at = p->dgrad ? &g->b : &g->a;
    p->other_at = p->dgrad ? &g->a : &g->b;
    p->read_size = p->dgrad ? g->out : g->in;
    p->other_size = p->dgrad ? g->in : g->out;
    p->read_by_channel = p->read_at->c == 1;
    p->other_by_channel = p->other_at->c == 1;
    p->filter_by_to = magnitude(p->dgrad ? g->f.c : g->f.n) < magnitude(p->dgrad ? g->f.n : g->f.c);
}

static int64_t tiles_along(const conv_winograd_problem *p, int axis, int tile)
{
    return (p->other_size[axis] + tile - 1) / tile;
}

static mica_status accepts_shape(const mica_conv_desc *d, mica_why *why)
{
    if (d->x.rank != 4)
        return mica_refuse(why, "x has %d spatial axes, this engine takes 2", d->x.rank - 2);
    if (d->w.dims[2] != TAPS || d->w.dims[3] != TAPS)
        return mica_refuse(why, "the filter has %lld x %lld taps, this engine takes 3 x 3",
                           (long long)d->w.dims[2], (long long)d->w.dims[3]);
    for (int i = 0; i < 2; i++)
        if (d->stride[i] != 1 || d->dilation[i] != 1)
            return mica_refuse(why,
                               "stride is %lld and dilation %lld on axis %d, this engine takes 1",
                               (long long)d->stride[i], (long long)d->dilation[i], i + 1);
    if (d->groups != 1)
        return mica_refuse(why, "there are %lld groups, this engine takes 1", (long long)d->groups);
    return MICA_OK;
}

mica_status conv_winograd_accepts(const mica_conv_desc *d, mica_why *why)
{
    conv_winograd_problem p;
    MICA_TRY(conv_refuse_full_epilogue(d, why));
    MICA_TRY(accepts_shape(d, why));
    conv_winograd_make(d, &p);
    mica_dtype type = mica_conv_tensor(d, p.read)->dtype;
    if (type != MICA_F32 && type != MICA_F16 && type != MICA_BF16)
        return mica_refuse(why, "inputs are %s, this engine takes f32, f16 and bf16",
                           mica_dtype_name(type));
    if (!mica_conv_positions_fit_s32(&p.g))
        return mica_refuse(why, "positions of pixels exceed 2^30, this engine's are 32 bits");
    if (p.from > MOST_CHANNELS || p.to > MOST_CHANNELS || p.from * p.to > INT32_MAX)
        return mica_refuse(why,
                           "%lld x %lld channels, this engine numbers 2^24 each and 2^31 pairs",
                           (long long)p.from, (long long)p.to);
    if (mica_conv_misses(&p.g))
        return mica_refuse(why,
                           "no tap meets a pixel, this engine's zeros would be sums of what it "
                           "rounded");
    double tiles = (double)p.g.n * (double)tiles_along(&p, 1, 2) * (double)tiles_along(&p, 2, 2);
    if (tiles > (double)MOST_TILES)
        return mica_refuse(why, "the images have %.10g tiles of 2 x 2, this engine numbers %lld",
                           tiles, (long long)MOST_TILES);
    return MICA_OK;
}

/* ---- chunks ---- */

static int64_t rounded(int64_t tiles)
{
    return (tiles + ROUND_TILES - 1) / ROUND_TILES * ROUND_TILES;
}

/* [points of a tile][rows][columns], one of the two side by side in memory. */
static mica_tensor planes(int64_t points, int64_t rows, int64_t columns, bool by_column)
{
    return (mica_tensor){
        .dtype = MICA_F32,
        .rank = 3,
        .dims = {points, rows, columns},
        .strides = {rows * columns, by_column ? columns : 1, by_column ? 1 : rows}};
}

void conv_winograd_divide(const conv_winograd_problem *p, int tile, int64_t chunks,
                          conv_winograd_division *d)
{
    int64_t points = (tile + TAPS - 1) * (tile + TAPS - 1);
    *d = (conv_winograd_division){.tile = tile, .points = (int)points};
    d->down = tiles_along(p, 1, tile);
    d->across = tiles_along(p, 2, tile);
    d->tiles = p->g.n * d->down * d->across;
    d->each = rounded((d->tiles + chunks - 1) / chunks);
    d->chunks = d->each ? (d->tiles + d->each - 1) / d->each : 1;
    size_t point = (size_t)points * sizeof(float);
    d->read_bytes = point * (size_t)(d->each * p->from);
    d->other_bytes = point * (size_t)(d->each * p->to);
    d->filter_bytes = point * (size_t)(p->from * p->to);
    mica_tensor read = planes(points, d->each, p->from, p->read_by_channel);
    mica_tensor other = planes(points, d->each, p->to, p->other_by_channel);
    if (p->wgrad) {
        d->gemm.a = planes(points, p->to, d->each, !p->other_by_channel);
        d->gemm.b = read;
        d->gemm.c = planes(points, p->to, p->from, !p->filter_by_to);
        return;
    }
    d->gemm.a = read;
    d->gemm.b = planes(points, p->from, p->to, p->filter_by_to);
    d->gemm.c = other;
}

/* As few chunks as the bound allows, as many as keep points in the cache, and ever more for those
 * who have little memory. */
int conv_winograd_chunkings(const conv_winograd_problem *p, const mica_device_info *device,
                            int tile, mica_config *out)
{
    int count = 0;
    conv_winograd_division d;
    conv_winograd_divide(p, tile, 1, &d);
    double bytes = (double)d.read_bytes + (double)d.other_bytes;
    int64_t chunks = (int64_t)(bytes / MOST_CHUNK_BYTES) + 1;
    int64_t cached = 1;
    if (device->cache_bytes > 0) cached += (int64_t)(2 * bytes / (double)device->cache_bytes);
    int64_t most = (d.tiles + LEAST_TILES - 1) / LEAST_TILES;
    for (int i = 0; i < MOST_CHUNKINGS; i++) {
        conv_winograd_divide(p, tile, chunks, &d);
        out[count].knob[KNOB_TILE] = tile;
        out[count++].knob[KNOB_CHUNKS] = (int32_t)d.chunks;
        int64_t next = i == 0 && cached > chunks ? cached : FINER * d.chunks;
        chunks = next < most ? next : most;
        if (chunks <= d.chunks) break;
    }
    return count;
}
