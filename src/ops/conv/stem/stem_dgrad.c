/* SPDX-License-Identifier: Apache-2.0
 * First layers, the image's gradient: how wide cells are, which products they leave out, and what
 * tiles of them are expected to cost. stem_dgrad.cu has the method. */
#include "ops/conv/stem/stem.h"

#include "cuda/cuda.h"

#include <math.h>

enum {
    WARPS = 4,
    MOST_STEPS = 8,
    MOST_STRIDE = 64,
    MOST_TAPS = 32,
    MOST_BITS = 31,
    MOST_SUMS = 128
};
enum { MOST_FILTER_BYTES = 100 << 10 }; /* wanted: the pixels need room as well */

static double parts_of(double n, double by)
{
    return ceil(n / by);
}

/* Whether a tap reaches the pixel of b that lies `pixel` steps from a cell's first, from the
 * pixel of a that lies `at` from it. */
static bool is_reached(const mica_conv_geometry *g, int axis, long long at, long long pixel)
{
    long long distance = at + g->pad[axis] - pixel * g->stride[axis];
    return distance >= 0 && distance % g->dilation[axis] == 0 &&
           distance / g->dilation[axis] < g->tap[axis];
}

/* Pixels of b that the taps of `size` pixels of a reach; false if they are too many. */
static bool find_around(const mica_conv_geometry *g, int axis, int size, int *first, int *taps)
{
    long long low = INT32_MAX, high = INT32_MIN;
    for (int at = 0; at < size; at++)
        for (long long tap = 0; tap < g->tap[axis]; tap++) {
            long long distance = at + g->pad[axis] - tap * g->dilation[axis];
            if (distance % g->stride[axis]) continue;
            long long pixel = distance / g->stride[axis];
            if (pixel < low) low = pixel;
            if (pixel > high) high = pixel;
        }
    if (low > high || high - low >= MOST_TAPS) return false;
    *first = (int)low;
    *taps = (int)(high - low) + 1;
    return true;
}

/* Of 8 columns, whether one has a weight in row ty of pixels around. */
static bool has_weights(const conv_stem_shape *s, const conv_stem_cells *c, int ty, int tile)
{
    for (int column = tile * 8; column < tile * 8 + 8; column++) {
        int row = column / c->line;
        if (row < c->height && column % c->line < c->run &&
            is_reached(&s->g, 1, row, ty + c->first[0]))
            return true;
    }
    return false;
}

static void find_taken(const conv_stem_shape *s, conv_stem_cells *c)
{
    c->taken = c->slots = 0;
    for (int ty = 0; ty < c->taps[0]; ty++)
        for (int tile = 0; tile < c->tiles; tile++) {
            /* some rows of a cell: the same kernel has others */
            if (c->height == s->g.stride[1] && !has_weights(s, c, ty, tile)) continue;
            c->taken |= 1 << (ty * c->tiles + tile);
            c->slots++;
        }
}

static double filter_bytes(const conv_stem_cells *c)
{
    return (double)c->taps[1] * c->slices * c->slice / 16 * c->slots * 256;
}

/* Columns from row to row, of a cell or, where all rows have the same pixels around, of a part. */
static bool arrange(const conv_stem_shape *s, int line, conv_stem_cells *c)
{
    c->line = line;
    for (int parts = 1; parts <= s->g.stride[1]; parts++) {
        if (s->g.stride[1] % parts) continue;
        if (parts > 1 && c->taps[0] > 1) return false;
        c->height = (int)s->g.stride[1] / parts;
        c->tiles = (c->height * line + 7) / 8;
        if (c->taps[0] * c->tiles >= MOST_BITS || c->tiles * 4 > MOST_SUMS) continue;
        find_taken(s, c);
        if (filter_bytes(c) <= MOST_FILTER_BYTES || c->height == 1 || c->taps[0] > 1) return true;
    }
    return false;
}

/* As few filters too many as possible; 32 of a pixel are two sectors of memory. */
static void choose_slice(conv_stem_shape *s, conv_stem_cells *c)
{
    static const int sizes[] = {32, 48, 16};
    c->slice = 0;
    for (int i = 0; i < 3; i++) {
        int slices = (int)parts_of((double)s->g.k, sizes[i]);
        if (c->slice && slices * sizes[i] >= c->slice * c->slices) continue;
        c->slice = sizes[i];
        c->slices = slices;
    }
}

mica_status conv_stem_cells_make(conv_stem_shape *s, mica_why *why)
{
    const mica_conv_geometry *g = &s->g;
    double least = HUGE_VAL;
    conv_stem_cells c = {0};
    if (g->stride[1] > MOST_STRIDE)
        return mica_refuse(why, "the stride is %lld down, this engine's gradients have up to %d",
                           g->stride[1], MOST_STRIDE);
    choose_slice(s, &c);
    for (c.steps = 1; c.steps <= MOST_STEPS; c.steps++) {
        c.width = (int)g->stride[2] * c.steps;
        c.run = c.width * (int)g->c;
        if (!find_around(g, 1, (int)g->stride[1], &c.first[0], &c.taps[0])) break;
        if (!find_around(g, 2, c.width, &c.first[1], &c.taps[1])) break;
        c.down = parts_of((double)g->in[1], (double)g->stride[1]);
        c.across = parts_of((double)g->in[2], c.width);
        int lines[] = {(c.run + 7) / 8 * 8, c.run}; /* rows may share a tile of columns */
        for (int i = 0; i < 2; i++) {
            if (!arrange(s, lines[i], &c)) continue;
            double products =
                parts_of(c.across, 16) * c.slots * c.taps[1] * (double)(g->stride[1] / c.height);
            if (products >= least) continue;
            least = products;
            s->cells = c;
        }
    }
    if (least < HUGE_VAL) return MICA_OK;
    return mica_refuse(why,
                       "%lld x %lld taps at distances %lld x %lld for strides %lld x %lld lead to "
                       "more than %d pixels of the gradient along an axis, or %d products of tiles",
                       g->tap[1], g->tap[2], g->dilation[1], g->dilation[2], g->stride[1],
                       g->stride[2], MOST_TAPS, MOST_BITS);
}

/* ---- tiles ---- */

static double halo_pixels(const conv_stem_cells *c, const conv_stem_layout *t)
{
    double wide = (t->tile_w - 1) * c->steps + c->taps[1];
    return (t->tile_h + c->taps[0] - 1) * parts_of(wide, c->steps) * c->steps;
}

static void count_cycles(const conv_stem_shape *s, conv_stem_layout *t)
{
    const conv_stem_cells *c = &s->cells;
    const double product = 1.7, bytes_per_clock = 26; /* of a multiprocessor */
    double steps = c->taps[1] * (double)c->slices * c->slice / 16;
    double units = t->lines * c->slots * product;
    double reads = (t->lines + c->taps[0] - 1) * 4 + c->slots * 2; /* of shared memory */
    double work = WARPS * steps * fmax(units, reads) * 1.1;
    double pixels = halo_pixels(c, t), filters = (double)c->slices * c->slice;
    double arrival = pixels * filters * 2 / bytes_per_clock;
    double copy = pixels * filters / 8 * 14 / 128;
    double store = t->lines * (c->tiles * 4 + parts_of(c->height * 2 * c->run, 32) * 40);
    t->cycles = fmax(work, arrival) + (t->blocks > 1 ? 0.6 : 1) * (copy + store);
    if (s->g.b.c != 1) t->cycles *= 3; /* filters of a pixel lie apart */
    t->setup = 1500 + filter_bytes(c) / 8;
}

bool conv_stem_cells_layout(const conv_stem_shape *s, const mica_device_info *device,
                            conv_stem_layout *t)
{
    const conv_stem_cells *c = &s->cells;
    int warps_x = t->tile_w / 16;
    if (t->tile_w % 16 || warps_x > WARPS || WARPS % warps_x) return false;
    t->lines = t->tile_h * warps_x / WARPS;
    int sums = t->lines * c->tiles * 4;
    if (t->lines * WARPS != t->tile_h * warps_x || sums > MOST_SUMS) return false;
    t->warps = WARPS;
    t->chunks = (int)s->g.stride[1] / c->height;
    double buffers = 2 * halo_pixels(c, t) * c->slice * 2;
    double bytes = buffers + filter_bytes(c) + WARPS * c->height * 16.0 * c->run * 4;
    if (bytes > (double)device->shared_bytes) return false;
    t->shared = (int)bytes;
    int registers = sums + 2 * c->slots + 64;
    int by_shared = (int)((device->shared_bytes + 1024) / (t->shared + 1024));
    int by_registers = 65536 / (32 * WARPS * ((registers + 7) / 8 * 8));
    t->blocks = by_shared < by_registers ? by_shared : by_registers;
    if (t->blocks > 4) t->blocks = 4;
    if (t->blocks < 1) t->blocks = 1;
    count_cycles(s, t);
    t->down = parts_of(c->down, t->tile_h);
    t->across = parts_of(c->across, t->tile_w);
    t->tiles = (double)s->g.n * t->down * t->across;
    return true;
}

void conv_stem_cells_prologue(const conv_stem_shape *s, mica_text *p)
{
    const conv_stem_cells *c = &s->cells;
    mica_prologue_int(p, "DILATION_X", s->g.dilation[2]);
    mica_prologue_int(p, "PAD_Y", s->g.pad[1]);
    mica_prologue_int(p, "PAD_X", s->g.pad[2]);
    mica_prologue_int(p, "STEPS", c->steps);
    mica_prologue_int(p, "FIRST_Y", c->first[0]);
    mica_prologue_int(p, "FIRST_X", c->first[1]);
    mica_prologue_int(p, "TAPS_Y", c->taps[0]);
    mica_prologue_int(p, "TAPS_X", c->taps[1]);
    mica_prologue_int(p, "CELL_H", c->height);
    mica_prologue_int(p, "LINE", c->line);
    mica_prologue_int(p, "TAKEN", c->taken);
    mica_prologue_int(p, "SLICE", c->slice);
    mica_prologue_int(p, "SLICES", c->slices);
}
