/* SPDX-License-Identifier: Apache-2.0
 * Which tiles suit a convolution on Hopper, and a model of their time. */
#include "ops/conv/im2col/im2col_cost.h"

#include <math.h>
#include <string.h>

#include "ops/conv/lowered/stats.h"

enum { MAX_CLUSTER = 8, MIN_STAGES = 4 };

/* Constants fitted to an H200's times of 184 problems (ResNet-50's layers of 256 and 32 images,
 * bench's list of networks) by 833 configs: 11 % off in the mean, the pick 1.7 % slower than the
 * best in the mean, 24 % at most. Bytes that one multiprocessor gets from L2 in a cycle: of the
 * image, of which the tiles across read the same at about the same time, of an image whose filter
 * stays, and of the filter, of which all blocks read the same; how much longer the filter takes
 * where its channels end inside a block of 64; cycles until a tile is stored, and more for each
 * result. */
static const double image_rate = 54.5, reuse = 0.265, held_rate = 43.1, filter_rate = 82.3;
static const double filter_partial = 3.38;
static const double store_base = 229, store_each = 0.0882;
static const double shown = 0.107; /* share of the shorter of products and filling */
/* Share of the shorter of arithmetic and traffic that the longer does not hide: where a block
 * stores before it goes on, where warpgroups ping-pong, where the filter stays. */
static const double exposed_direct = 0.108, exposed_turns = 0.204, exposed_held = 0.112;
static const double traffic_share = 1.2; /* of the time at the device's copy rate */
static const double hertz = 1.5e9;       /* the clock that a busy chip keeps */
static const double launch_ms = 3e-3;
static const double sharing = 5470; /* cycles in which a cluster adds up a tile */
/* Statistics: the same for each result, by instructions; and their addition by a second kernel. */
static const double count_each = 0.03, count_ms = 2e-3;

/* A residual, for each result: 16 bytes at once, or one by one. */
static const double residual_wide = 0.08, residual_apart = 1.5;

/* Max of both, plus the exposed share of the shorter one. */
static double overlapped(double one, double other, double exposed)
{
    return fmax(one, other) + exposed * fmin(one, other);
}

/* Clusters of so many that run at once: those of more than two leave multiprocessors idle, which
 * are not whole numbers of them in every part of the chip. */
static double clusters_at_once(int size, int units)
{
    return fmax(floor((size > 2 ? 0.91 : 1) * units / size), 1);
}

/* Share of the blocks of 64 channels read that the last channel ends inside. */
static double partial_share(const mica_conv_sm90_shape *s)
{
    long long channels = mica_conv_sm90_terms(s);
    return channels % MICA_CONV_BLOCK ? 1 / (double)conv_ceil_div(channels, MICA_CONV_BLOCK) : 0;
}

/* Cycles of one stage of a block, with so many tiles across: products, and what fills its shared
 * memory. */
static double stage_cycles(const mica_conv_sm90_shape *s, int rows, int cols, double across)
{
    double products = rows * cols / 32.0, part = partial_share(s);
    double image = rows * 128 / (image_rate * pow(across, reuse));
    double filter = cols * 128 / filter_rate * (1 + filter_partial * part);
    return overlapped(products, image + filter, shown);
}

static double store_cycles(const mica_conv_sm90_shape *s, int rows, int cols)
{
    double residual = !s->residual ? 0 : s->residual_wide ? residual_wide : residual_apart;
    return store_base + (store_each + residual + (s->stats ? count_each : 0)) * rows * cols;
}

int64_t mica_conv_sm90_steps(const mica_conv_sm90_shape *s, int class_index)
{
    const int *taps = s->classes[class_index].taps;
    return taps[0] * taps[1] * taps[2] * conv_ceil_div(mica_conv_sm90_terms(s), MICA_CONV_BLOCK);
}

int mica_conv_sm90_blocks(const mica_conv_sm90_shape *s, int cols, int units)
{
    int64_t across = conv_ceil_div(mica_conv_sm90_columns(s), cols);
    return s->stats && across <= units ? (int)(units / across * across) : units;
}

/* Long sums want shared memory for the ring, after short ones the time is that of the stores. What
 * a residual takes in registers grows with the slice. */
int mica_conv_sm90_slice(const mica_conv_sm90_shape *s, const mica_config *config)
{
    bool is_short = mica_conv_sm90_steps(s, 0) <= (config->knob[MICA_CONV_HELD] ? 4 : 8);
    return is_short && !s->residual && config->knob[MICA_CONV_COLS] % 128 == 0 ? 128 : 64;
}

int mica_conv_sm90_staging(int slice)
{
    return 8 * 16 * (slice * 2 + 16); /* warps, rows of each */
}

static int64_t direct_tile_count(const mica_conv_sm90_shape *s, int rows, int cols)
{
    int64_t tiles = 0;
    for (int i = 0; i < s->class_count; i++) tiles += conv_ceil_div(s->classes[i].pixels, rows);
    return tiles * conv_ceil_div(mica_conv_sm90_columns(s), cols);
}

static double direct_cycles(const mica_conv_sm90_shape *s, const int32_t *knob, int units)
{
    int rows = knob[MICA_CONV_ROWS], cols = knob[MICA_CONV_COLS], splits = knob[MICA_CONV_SPLITS];
    double columns = (double)conv_ceil_div(mica_conv_sm90_columns(s), cols), work = 0, longest = 0,
           tiles = 0;
    units = mica_conv_sm90_blocks(s, cols, units);
    double store = store_cycles(s, rows, cols);
    for (int i = 0; i < s->class_count; i++) {
        double steps = (double)conv_ceil_div(mica_conv_sm90_steps(s, i), splits);
        double sum = steps * stage_cycles(s, rows, cols, columns);
        double tile = knob[MICA_CONV_PINGPONG] ? fmax(sum, (sum + store) / 2) : sum + store;
        if (splits > 1) tile += sharing;
        double count = (double)conv_ceil_div(s->classes[i].pixels, rows) * columns;
        work += count * tile;
        tiles += count;
        longest = fmax(longest, tile);
    }
    if (splits > 1) return ceil(tiles / clusters_at_once(splits, units)) * longest;
    /* whole waves of the longest tile, or the mean where tiles are many */
    return ceil(work / longest / units) * longest + (knob[MICA_CONV_PINGPONG] ? store : 0);
}

/* The least traffic; of an image that strides skip, only the pixels that taps see are read. */
static double traffic_bytes(const mica_conv_sm90_shape *s)
{
    const mica_conv_geometry *g = &s->g;
    double groups = (double)g->groups, a = groups * (double)(g->n * g->c),
           b = groups * (double)(g->n * g->k), f = groups * (double)(g->k * g->c);
    for (int i = 0; i < 3; i++) {
        long long seen = g->out[i] * g->tap[i];
        a *= (double)(s->roles.dgrad || seen > g->in[i] ? g->in[i] : seen);
        b *= (double)g->out[i];
        f *= (double)g->tap[i];
    }
    double residual = !s->residual ? 0 : s->roles.dgrad ? a : b;
    return 2 * (a + b + f + residual);
}

static double traffic_ms(const mica_conv_sm90_shape *s, const mica_device_info *device)
{
    return traffic_bytes(s) / (device->copy_gbps * 1e6);
}

mica_conv_sm90_tiles mica_conv_sm90_wgrad_tiles(const mica_conv_sm90_shape *s, int rows, int cols)
{
    const long long *tap = s->g.tap;
    int64_t chunks = tap[0] * tap[1] * tap[2] * conv_ceil_div(s->g.c, 64);
    mica_conv_sm90_tiles t = {.rows = s->g.groups * conv_ceil_div(s->g.k, rows),
                              .cols = conv_ceil_div(chunks * 64, cols)};
    t.all = t.rows * t.cols;
    t.blocks = s->class_count ? mica_conv_sm90_pixel_blocks(s) : 0;
    return t;
}

/* A block's columns of the filter stay: all its tiles have the same. */
static double held_cycles(const mica_conv_sm90_shape *s, int rows, int cols, int units)
{
    int64_t across = conv_ceil_div(mica_conv_sm90_columns(s), cols);
    double each = (double)conv_ceil_div(conv_ceil_div(s->classes[0].pixels, rows), units / across);
    double steps = (double)mica_conv_sm90_steps(s, 0), store = store_cycles(s, rows, cols);
    double products = steps * rows * cols / 32.0, fill = steps * rows * 128 / held_rate;
    double sum = overlapped(products, fill, shown);
    return each * fmax(sum, (products + store) / 2) + store + steps * cols * 128 / filter_rate;
}

/* Share of what a stream reads that L2 does not have: its blocks are at different pixels. */
static double missed(const mica_conv_sm90_shape *s, const mica_device_info *device)
{
    double bytes = traffic_bytes(s);
    return bytes > 0 ? fmax(1 - (double)device->cache_bytes / bytes, 0) : 0;
}

/* Of a stream: one piece for each multiprocessor. */
static int pieces_of(const mica_conv_sm90_tiles *t, int units)
{
    return (int)(t->all * t->blocks < units ? t->all * t->blocks : units);
}

/* wgrad, fitted to 66 layers of ResNet-50 (three batches) by 1070 configs: 9 % off in the mean, the
 * pick is 0.7 % slower than the best. Blocks of a stream, and those of a cluster, read pixels at
 * different times, so that L2 serves each by itself. Partial sums are written and read again by a
 * second kernel, but by a cluster, whose blocks wait for each other. */
static double wgrad_ms(const mica_conv_sm90_shape *s, const int32_t *knob,
                       const mica_device_info *device)
{
    const double fill = 66.3, fill_stream = 39, fill_cluster = 59.6, share = 1.069, exposed = 0.028;
    const double begin_ms = 2.5e-3, reduce_ms = 2.89e-3, parts_gbps = 2490, clock = 1.55e9;
    const double store = 760, store_cluster = 3120, each_cluster = 0.134, meet = 1025,
                 meet_each = 742;
    int rows = knob[MICA_CONV_ROWS], cols = knob[MICA_CONV_COLS], splits = knob[MICA_CONV_SPLITS];
    int pieces = knob[MICA_CONV_PIECES], units = device->units;
    mica_conv_sm90_tiles t = mica_conv_sm90_wgrad_tiles(s, rows, cols);
    double tile = (double)rows * cols, parts = 0, cycles, traffic = traffic_ms(s, device);
    bool cluster = knob[MICA_CONV_CLUSTER];
    double rate = pieces ? fill_stream : cluster && splits > 1 ? fill_cluster : fill;
    double stage = fmax(rows * cols / 32.0, (rows + cols) * 128 / rate);
    if (cluster) {
        double blocks = (double)conv_ceil_div(t.blocks, splits);
        double last = store_cluster + each_cluster * tile / splits;
        if (splits > 1) last += meet + meet_each * splits;
        cycles = ceil((double)t.all / clusters_at_once(splits, units)) * (blocks * stage + last);
    } else if (pieces) {
        int64_t blocks = conv_ceil_div(t.all * t.blocks, pieces);
        double read = (double)(t.all * t.blocks) * (rows + cols) * MICA_CONV_ROW;
        parts = (double)(pieces + t.all);
        traffic = fmax(traffic, missed(s, device) * read / (device->copy_gbps * 1e6));
        cycles = (double)blocks * stage + (double)(conv_ceil_div(blocks, t.blocks) + 1) * store;
    } else {
        double blocks = (double)conv_ceil_div(t.blocks, splits);
        parts = (double)(t.all * splits);
        cycles = (double)conv_ceil_div(t.all * splits, units) * (blocks * stage + store);
    }
    double ms = begin_ms + overlapped(cycles / clock * 1e3, share * traffic, exposed);
    return ms + (parts > 0 ? reduce_ms : 0) + parts * tile * 4 / (parts_gbps * 1e6);
}

static const int direct_tiles[][2] = {{128, 64},  {256, 64},  {128, 128},
                                      {256, 128}, {128, 192}, {128, 256}};
static const int held_tiles[][2] = {{128, 64}, {128, 128}, {64, 256}};
enum { WGRAD_CONFIGS = 3 };
static const int wgrad_tiles_tried[][2] = {{128, 128}, {128, 192}, {128, 256},
                                           {256, 128}, {256, 192}, {128, 384}};

/* Left out: narrow tiles where wider ones are more than two waves, tiles much wider than the
 * result, and large ones where the smallest are no more than a wave. */
static bool tile_suits(const mica_conv_sm90_shape *s, int rows, int cols, int units)
{
    int64_t columns = mica_conv_sm90_columns(s);
    int least = columns > 64 ? 128 : 64;
    int64_t tiles = direct_tile_count(s, 128, least);
    bool few = tiles <= units;
    bool narrow = cols < least && tiles > 2 * (int64_t)units,
         wide = cols > 64 && columns <= cols / 2;
    bool odd =
        cols == 192 && conv_ceil_div(columns, 192) * 192 >= conv_ceil_div(columns, 128) * 128;
    bool large = few && (rows > 128 || cols > least);
    return !narrow && !wide && !odd && !large;
}

/* Blocks of a cluster share a tile's steps where tiles alone leave multiprocessors idle. */
static bool splits_suit(const mica_conv_sm90_shape *s, int rows, int cols, int splits, int units)
{
    if (splits == 1) return true;
    if (s->stats) return false;
    int64_t tiles = direct_tile_count(s, rows, cols);
    return rows == 128 && cols <= 128 && tiles * splits / 2 < units &&
           mica_conv_sm90_steps(s, 0) >= 2 * splits;
}

/* Where the filter's columns fit shared memory beside a ring, and there are tiles to ping-pong.
 */
static bool holding_suits(const mica_conv_sm90_shape *s, int rows, int cols,
                          const mica_device_info *device)
{
    mica_config config = {{rows, cols, 1, 0, 1, 1}};
    int64_t columns = mica_conv_sm90_columns(s), across = conv_ceil_div(columns, cols);
    int64_t room = device->shared_bytes - MICA_CONV_RESERVE -
                   mica_conv_sm90_staging(mica_conv_sm90_slice(s, &config)) -
                   mica_conv_sm90_steps(s, 0) * cols * MICA_CONV_ROW;
    bool wide = cols > 64 && columns <= cols / 2;
    return s->class_count == 1 && !wide && room >= MIN_STAGES * rows * MICA_CONV_ROW &&
           mica_conv_sm90_steps(s, 0) > 0 && across <= device->units &&
           conv_ceil_div(s->classes[0].pixels, rows) > device->units / across;
}

/* Statistics: the columns of a block's tiles, and how many terms a lane adds up in f32. */
static bool counting_suits(const mica_conv_sm90_shape *s, int rows, int cols, int units)
{
    if (!s->stats) return true;
    int64_t across = conv_ceil_div(mica_conv_sm90_columns(s), cols), pixels = 0;
    if (across > units) return false;
    for (int i = 0; i < s->class_count; i++) pixels += s->classes[i].pixels;
    int64_t tiles = direct_tile_count(s, rows, cols) / across;
    int64_t each = 8 + conv_ceil_div(tiles, units / across) * rows / 128; /* 8 warps' 16 rows */
    return conv_stats_chain_ok((double)each, (double)pixels);
}

static int direct_configs(const mica_conv_sm90_shape *s, const mica_device_info *device,
                          mica_config *configs)
{
    int count = 0, units = device->units;
    for (size_t i = 0; s->class_count && i < sizeof direct_tiles / sizeof *direct_tiles; i++) {
        int rows = direct_tiles[i][0], cols = direct_tiles[i][1];
        if (!tile_suits(s, rows, cols, units) || !counting_suits(s, rows, cols, units)) continue;
        for (int splits = 1; splits <= MAX_CLUSTER; splits *= 2)
            if (splits_suit(s, rows, cols, splits, units))
                configs[count++] = (mica_config){{rows, cols, splits}};
        if (rows == 128 && cols <= 128 && direct_tile_count(s, rows, cols) > units)
            configs[count++] = (mica_config){{rows, cols, 1, 0, 1}};
    }
    for (size_t i = 0; s->class_count && i < sizeof held_tiles / sizeof *held_tiles; i++)
        if (holding_suits(s, held_tiles[i][0], held_tiles[i][1], device) &&
            counting_suits(s, held_tiles[i][0], held_tiles[i][1], units))
            configs[count++] = (mica_config){{held_tiles[i][0], held_tiles[i][1], 1, 0, 1, 1}};
    if (!s->class_count) configs[count++] = (mica_config){{128, 128, 1}};
    return count;
}

/* A cluster's sums pass through the ring's shared memory, 8 columns more to spread them over its
 * banks; each of its blocks has pixels, and finishes some rows. */
static bool cluster_suits(const mica_conv_sm90_tiles *t, int rows, int cols, int size,
                          const mica_device_info *device)
{
    int64_t stage = (int64_t)(rows + cols) * MICA_CONV_ROW;
    int64_t ring = (device->shared_bytes - MICA_CONV_RESERVE) / stage * stage;
    return size <= t->blocks && (int64_t)rows * (cols + 8) * 4 <= ring;
}

enum { BY_PARTS, BY_STREAM, BY_CLUSTER, WAYS };

/* Number `i` of the counts of parts that are tried: whole waves of blocks, half of one and a
 * quarter; what lies between was slower than the model thinks. 0: there are no more. */
static int splits_tried(const mica_conv_sm90_tiles *t, int kind, int units, int i)
{
    static const double waves[] = {0.25, 0.5, 1, 2, 3};
    if (kind == BY_STREAM) return i == 0;
    if (kind == BY_CLUSTER) return 1 << i <= MAX_CLUSTER ? 1 << i : 0;
    if (i >= (int)(sizeof waves / sizeof *waves)) return 0;
    double splits = fmin(floor(waves[i] * units / (double)t->all), (double)t->blocks);
    return splits > 1 ? (int)splits : 1;
}

/* The best way of this kind to share the pixels of these tiles out; false: there is none. */
static bool best_of_kind(const mica_conv_sm90_shape *s, int rows, int cols, int kind,
                         const mica_device_info *device, mica_config *best)
{
    mica_conv_sm90_tiles t = mica_conv_sm90_wgrad_tiles(s, rows, cols);
    double least = INFINITY;
    for (int i = 0, splits; (splits = splits_tried(&t, kind, device->units, i)) > 0; i++) {
        mica_config config = {{rows, cols, splits}};
        config.knob[MICA_CONV_PIECES] = kind == BY_STREAM ? pieces_of(&t, device->units) : 0;
        config.knob[MICA_CONV_CLUSTER] = kind == BY_CLUSTER;
        if (kind == BY_CLUSTER && !cluster_suits(&t, rows, cols, splits, device)) continue;
        double ms = wgrad_ms(s, config.knob, device);
        if (ms >= least) continue;
        least = ms;
        *best = config;
    }
    return least < INFINITY;
}

/* The best ways, and the best tile's by each kind. */
static int wgrad_configs(const mica_conv_sm90_shape *s, const mica_device_info *device,
                         mica_config *configs)
{
    double ms[WGRAD_CONFIGS];
    int count = 0;
    mica_config config;
    for (size_t i = 0; s->class_count && i < sizeof wgrad_tiles_tried / sizeof *wgrad_tiles_tried;
         i++) {
        int rows = wgrad_tiles_tried[i][0], cols = wgrad_tiles_tried[i][1];
        if (rows > 128 && s->g.k <= 128) continue;
        for (int kind = 0; kind < WAYS; kind++)
            if (best_of_kind(s, rows, cols, kind, device, &config))
                count = mica_config_keep(configs, ms, count, WGRAD_CONFIGS, &config,
                                         wgrad_ms(s, config.knob, device));
    }
    if (!count) configs[count++] = (mica_config){{128, 128, 1}};
    if (!s->class_count) return count;
    int rows = configs[0].knob[MICA_CONV_ROWS], cols = configs[0].knob[MICA_CONV_COLS],
        kept = count;
    for (int kind = 0; kind < WAYS; kind++) {
        if (!best_of_kind(s, rows, cols, kind, device, &config)) continue;
        bool there = false;
        for (int i = 0; i < kept; i++)
            there = there || memcmp(&configs[i], &config, sizeof config) == 0;
        if (!there) configs[count++] = config;
    }
    return count;
}

/* Parts of the tile that the most pieces of a stream meet in. */
static int most_parts(const mica_conv_sm90_tiles *t, int64_t pieces)
{
    int64_t most = 1, length = t->all * t->blocks;
    for (int64_t i = 0; i < t->all; i++) {
        int64_t first = (i * t->blocks + 1) * pieces - 1, last = (i + 1) * t->blocks * pieces - 1;
        int64_t parts = last / length - first / length + 1;
        if (parts > most) most = parts;
    }
    return (int)most;
}

int mica_conv_sm90_parts(const mica_conv_sm90_shape *s, const mica_config *config)
{
    const int32_t *k = config->knob;
    if (k[MICA_CONV_PIECES] == 0) return k[MICA_CONV_SPLITS];
    mica_conv_sm90_tiles t = mica_conv_sm90_wgrad_tiles(s, k[MICA_CONV_ROWS], k[MICA_CONV_COLS]);
    return most_parts(&t, k[MICA_CONV_PIECES]);
}

int mica_conv_sm90_configs(const mica_conv_sm90_shape *s, const mica_device_info *device,
                           mica_config *configs)
{
    if (s->roles.wgrad) return wgrad_configs(s, device, configs);
    return direct_configs(s, device, configs);
}

double mica_conv_sm90_predict(const mica_conv_sm90_shape *s, const mica_device_info *device,
                              const mica_config *config)
{
    const int32_t *k = config->knob;
    if (s->roles.wgrad) return wgrad_ms(s, k, device);
    double cycles = k[MICA_CONV_HELD]
                        ? held_cycles(s, k[MICA_CONV_ROWS], k[MICA_CONV_COLS], device->units)
                        : direct_cycles(s, k, device->units);
    double exposed = k[MICA_CONV_HELD]       ? exposed_held
                     : k[MICA_CONV_PINGPONG] ? exposed_turns
                                             : exposed_direct;
    return launch_ms + (s->stats ? count_ms : 0) +
           overlapped(cycles / hertz * 1e3, traffic_share * traffic_ms(s, device), exposed);
}
