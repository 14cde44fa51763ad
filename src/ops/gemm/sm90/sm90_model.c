/* SPDX-License-Identifier: Apache-2.0
 * gemm by `sm90`: which tiles there are, and how long a product takes by each. */
#include "ops/gemm/sm90/sm90_tiles.h"

#include <math.h>

enum {
    KEPT = 4,
    LONG_ROW = 16 << 10, /* bytes of K */
    BRIEF_FILLS = 2,
    BRIEF_STAGES = 4,
    LEAST_STAGES = 3 /* beside buffers of a residual */
};

/* Stages fill shared memory. Two warpgroups multiply where a tile has 128 lines or more, or take
 * tiles in ping-pong: the last knob. */
static const mica_config choices[] = {
    {{128, 256, 4, 1, 1}},         {{256, 128, 4, 1, 1}},         {{128, 224, 4, 1, 1}},
    {{128, 192, 4, 1, 1}},         {{128, 176, 5, 1, 1}},         {{128, 160, 5, 1, 1}},
    {{128, 128, 6, 1, 1}},         {{128, 112, 6, 1, 1}},         {{128, 64, 8, 1, 1}},
    {{64, 256, 5, 1, 1}},          {{64, 192, 6, 1, 1}},          {{64, 128, 8, 1, 1}},
    {{64, 112, 9, 1, 1}},          {{64, 96, 10, 1, 1}},          {{64, 64, 12, 1, 1}},
    {{64, 64, 6, 2, 1}},           {{64, 32, 16, 1, 1}},          {{64, 32, 8, 2, 1}},
    {{128, 128, 6, 1, 2}},         {{128, 128, 6, 1, 4}},         {{128, 64, 8, 1, 2}},
    {{128, 64, 8, 1, 4}},          {{64, 64, 12, 1, 2}},          {{64, 64, 12, 1, 4}},
    {{64, 32, 16, 1, 2}},          {{64, 32, 16, 1, 4}},          {{128, 176, 4, 1, 1, 128, 1}},
    {{128, 160, 4, 1, 1, 128, 1}}, {{128, 128, 6, 1, 1, 128, 1}}, {{128, 112, 5, 1, 1, 128, 1}},
    {{128, 64, 6, 1, 1, 128, 1}},  {{64, 256, 4, 1, 1, 64, 1}},   {{64, 192, 6, 1, 1, 64, 1}},
    {{64, 128, 8, 1, 1, 64, 1}}};
/* 8-bit floats hold a second sum. */
static const mica_config promoted[] = {
    {{256, 128, 4, 1, 1}}, {{128, 192, 4, 1, 1}}, {{128, 176, 5, 1, 1}}, {{128, 160, 5, 1, 1}},
    {{128, 128, 6, 1, 1}}, {{128, 112, 6, 1, 1}}, {{128, 64, 8, 1, 1}},  {{64, 128, 8, 1, 1}},
    {{64, 96, 10, 1, 1}},  {{64, 64, 12, 1, 1}},  {{64, 64, 6, 2, 1}},   {{64, 32, 16, 1, 1}},
    {{64, 32, 8, 2, 1}},   {{128, 64, 8, 1, 2}},  {{64, 64, 12, 1, 2}},  {{64, 64, 12, 1, 4}},
    {{64, 32, 16, 1, 2}},  {{64, 32, 16, 1, 4}}};

/* Time to go through K and c. Slices of all tiles of a multiprocessor follow each other without a
 * gap; each takes the longer one of its arithmetic and its copy from L2 and a part of the other
 * one, its share of the stage's barrier, and at least what TMA takes to begin and,
 * where the ring is short, its share of the latency of memory. In ping-pong a tile is finished
 * while the next is multiplied, by half the threads; where rows of K are long that hides little,
 * and the smaller tiles draw more power: on an H100 at its limit they took 1 to 8 % longer than 128
 * x 256, on an H200 about as long. */
static double compute_ms(const mica_gemm_desc *d, const gemm_sm90_geometry *g,
                         const mica_device_info *device, const mica_config *c, double blocks)
{
    const double latency_ms = 1.28e-3, tile_ms = 0.33e-3, sums_ms = 0.76e-3, exchange_ms = 5.9e-3;
    const double peak = 1.062, fill_gbps = 24700, overlap = 0.387, promoting = 0.94;
    const double promoting_two = 0.89; /* waves of a warpgroup */
    const double barrier_ms = 0.014e-3, copies_ms = 0.09e-3;
    /* tiles of 112 columns take 10 to 13 % longer than the others' share says */
    const double overlap_turns = 0.254, overlap_112 = 0.47, handing_ms = 0.36e-3;
    const double half_the_threads = 1.67, long_rows = 1.05;
    const double boxed_ms = 0.4e-3, apart_ms = 20e-3; /* a residual, element by element */
    double m = c->knob[KNOB_TILE_M], n = c->knob[KNOB_TILE_N], units = device->units;
    int bytes = gemm_sm90_bytes(d->a.dtype), split = c->knob[KNOB_SPLIT];
    bool turns = c->knob[KNOB_PINGPONG];
    double rate = peak * device->bf16_tflops * 2e9 / bytes / units;
    if (gemm_sm90_promotes(d->a.dtype)) rate *= m > 128 ? promoting_two : promoting;
    double arithmetic = 2 * m * n * (LINE_BYTES / bytes) / rate;
    double fill = (gemm_sm90_tile_rows(c) + n) * LINE_BYTES / (fill_gbps * 1e6 / units);
    double slice = fmax(arithmetic, fill);
    double shown = !turns ? overlap : n == 112 ? overlap_112 : overlap_turns;
    slice += shown * fmin(arithmetic, fill);
    slice += barrier_ms / c->knob[KNOB_DEPTH];
    slice = fmax(slice, latency_ms / (c->knob[KNOB_STAGES] * c->knob[KNOB_DEPTH]));
    slice = fmax(slice, copies_ms);
    if (turns && g->shape.k * bytes >= LONG_ROW) slice *= long_rows;
    double sum = slice * (double)ceiling(g->shape.k, (long long)LINE_BYTES / bytes * split);
    double finish = tile_ms + sums_ms * m * n / (128 * 256) + (split > 1 ? exchange_ms : 0);
    if (mica_tensor_given(&d->residual))
        finish += (gemm_sm90_brings_residual(d, g, c) ? boxed_ms : apart_ms) * m * n / (128 * 256);
    double rounds = ceil(blocks / units);
    if (!turns) return rounds * (sum + finish);
    finish *= half_the_threads;
    return rounds * fmax(sum + handing_ms, (sum + finish) / 2) + finish;
}

/* What `active` blocks draw from memory: bound by its bandwidth, of which some of the
 * multiprocessors draw somewhat less, or by what their rings have in flight. */
static double memory_rate(const gemm_sm90_geometry *g, const mica_device_info *device,
                          const mica_config *c, double active)
{
    bool few = g->few || (gemm_sm90_by_registers(g) && g->b.lines <= FEW);
    const double reading = few ? 1.03 : 0.822, fewer = 0.06, latency_ms = 1.6e-3;
    double lines = fmin((double)g->a.lines, gemm_sm90_tile_rows(c));
    double ring =
        (lines + c->knob[KNOB_TILE_N]) * LINE_BYTES * c->knob[KNOB_STAGES] * c->knob[KNOB_DEPTH];
    return fmin(reading * device->copy_gbps * 1e6 * pow(active / device->units, fewer),
                active * ring / latency_ms);
}

/* Short K: at most two stages of the ring for a tile, so that the epilogue dominates and c is most
 * of the traffic. On an H100 tiles of 64 by 256 were best, or as good as any: 96 products of 2048 x
 * 128 x 2048 take 331 us by them, 329 by 128 x 128, 393 by 128 x 256 without ping-pong, 440 by 128
 * x 176. */
static bool is_brief(const gemm_sm90_geometry *g, const mica_config *c)
{
    return !g->few && c->knob[KNOB_SPLIT] == 1 && gemm_sm90_fills(g, c) <= BRIEF_FILLS;
}

/* What it takes of memory's time: more where a tile's last box repeats some of its neighbour's
 * columns, where nothing is multiplied meanwhile, or where rows are stored in short pieces. */
static double brief_share(const mica_gemm_desc *d, const gemm_sm90_geometry *g,
                          const mica_config *c)
{
    const double repeated = 1.2, waiting = 1.1, pieces = 1.06;
    int n = c->knob[KNOB_TILE_N], rest = n % gemm_sm90_box(d, c);
    if (!is_brief(g, c)) return 1;
    if (rest && g->b.lines > n - rest) return repeated;
    if (g->b.lines <= n) return 1;
    return !c->knob[KNOB_PINGPONG] ? waiting : n < 256 ? pieces : 1;
}

/* Time to read and write memory: whole rounds of blocks, and what is left. */
static double memory_ms(const mica_gemm_desc *d, const gemm_sm90_geometry *g,
                        const mica_device_info *device, const mica_config *c, double blocks)
{
    double units = device->units, whole = floor(blocks / units) * units, rest = blocks - whole;
    double share = mica_op_bytes(&mica_op_gemm, d) / blocks, ms = 0;
    if (whole > 0) ms += whole * share / memory_rate(g, device, c, units);
    if (rest > 0) ms += rest * share / memory_rate(g, device, c, rest);
    return ms * brief_share(d, g, c);
}

/* Results that TMA does not store, because rows of c are no whole 16 bytes apart: random sizes on
 * an H200 took some 4 us more for each million, less where rows are whole 8 bytes apart. */
static double scattered_ms(const mica_gemm_desc *d, const gemm_sm90_geometry *g)
{
    const double narrow_ms = 3.5e-9, half_ms = 0.5e-9;
    long long step = g->a.lines == 1 ? 0 : g->c_m * gemm_sm90_bytes(d->c.dtype);
    bool rows = g->c_n == 1 && step % 16 == 0;
    double each_ms = g->c_n == 1 && step % 8 == 0 ? half_ms : narrow_ms;
    if (rows || g->few || gemm_sm90_c_along_m(g)) return 0;
    return each_ms * (double)g->a.lines * (double)g->b.lines * (double)g->shape.batches;
}

/* Constants are fitted to an H200: 31 problems of more than 32 rows, each by 9 to 25 configs, 6 %
 * off in the mean; the pick is 0.7 % slower than the best config in the mean, 6 % at most. Few
 * rows: what 13 such problems drew from memory. */
static double model(const mica_gemm_desc *d, const gemm_sm90_geometry *g,
                    const mica_device_info *device, const mica_config *c)
{
    const double start_ms = 2.8e-3, both = g->few ? 0.09 : 0.043;
    double blocks = (double)(ceiling(g->a.lines, gemm_sm90_tile_rows(c)) *
                             ceiling(g->b.lines, c->knob[KNOB_TILE_N]) * g->shape.batches *
                             c->knob[KNOB_SPLIT]);
    double compute = compute_ms(d, g, device, c, blocks),
           memory = memory_ms(d, g, device, c, blocks);
    return start_ms + fmax(compute, memory) + both * fmin(compute, memory) + scattered_ms(d, g);
}

double gemm_sm90_predict(const void *desc, const mica_device_info *device, const mica_config *c)
{
    gemm_sm90_geometry g;
    mica_why why;
    if (gemm_sm90_plan_geometry(desc, &g, &why) != MICA_OK) return 0;
    return model(desc, &g, device, c);
}

/* Chunks of 64 (of each half) where an operand is not contiguous along K; K is split where tiles
 * are few, some stages for each block. Ping-pong is for results that TMA stores: half the threads
 * would take too long for others. */
static bool suits(const mica_gemm_desc *d, const gemm_sm90_geometry *g,
                  const mica_device_info *device, const mica_config *c)
{
    const int32_t *knob = c->knob;
    int chunk = g->halves ? 128 : 64;
    double tiles = (double)ceiling(g->a.lines, knob[KNOB_TILE_M]) *
                   (double)ceiling(g->b.lines, knob[KNOB_TILE_N]) * (double)g->shape.batches;
    if (g->b.mn_major && knob[KNOB_TILE_N] % chunk) return false;
    if (gemm_sm90_by_registers(g) &&
        (knob[KNOB_TILE_M] > 128 || knob[KNOB_DEPTH] > 1 || knob[KNOB_PINGPONG]))
        return false;
    if (gemm_has_full_epilogue(d) && knob[KNOB_SPLIT] > 1) return false;
    if (knob[KNOB_PINGPONG] && !gemm_sm90_is_light(d, g, c)) return false;
    if (gemm_sm90_spoils_residual(d, g, c)) return false;
    return knob[KNOB_SPLIT] == 1 ||
           (gemm_sm90_fills(g, c) >= 4LL * knob[KNOB_SPLIT] && tiles < device->units);
}

/* Less of a ring where a residual wants buffers: one for each box of a warpgroup's tile, or all;
 * and where tiles of short K in ping-pong store through buffers (128 x 128: 329 us where six stages
 * take 415). */
static void make_room(const mica_gemm_desc *d, const gemm_sm90_geometry *g,
                      const mica_device_info *device, mica_config *c)
{
    int32_t *knob = c->knob, shares = knob[KNOB_PINGPONG] ? 1 : gemm_sm90_groups(c);
    int boxes =
        knob[KNOB_TILE_M] / ROWS_OF_GROUP / shares * (knob[KNOB_TILE_N] / gemm_sm90_box(d, c));
    int wanted = boxes < 2 ? 2 : boxes < MOST_BUFFERS ? boxes : MOST_BUFFERS;
    if (is_brief(g, c) && knob[KNOB_PINGPONG] && gemm_sm90_buffers(c, device) < wanted)
        knob[KNOB_STAGES] = BRIEF_STAGES;
    if (!gemm_sm90_brings_residual(d, g, c)) return;
    while (gemm_sm90_buffers(c, device) < wanted && knob[KNOB_STAGES] > LEAST_STAGES)
        knob[KNOB_STAGES]--;
}

/* Few lines across: tiles of as many of the others as deal them out evenly, a ring as deep as
 * shared memory is, and stages that are worth their barrier. */
static int few_configs(const mica_gemm_desc *d, const gemm_sm90_geometry *g,
                       const mica_device_info *device, mica_config *out)
{
    double ms[KEPT];
    int count = 0, n = g->b.mn_major ? ROWS_OF_GROUP : g->b.lines <= 16 ? 16 : 32;
    int room = (int)device->shared_bytes - 1024 - BARRIERS - 2 * BUFFER_BYTES;
    for (int lines = ROWS_OF_GROUP; lines >= (g->a.mn_major ? ROWS_OF_GROUP : 8); lines -= 8)
        for (int split = 1; split <= (lines == ROWS_OF_GROUP ? 4 : 1); split *= 2) {
            int depth = lines >= 24 ? 4 : 8, slice = (lines + n) * LINE_BYTES;
            mica_config c = {{ROWS_OF_GROUP, n, room / (slice * depth), depth, split, lines}};
            if (!suits(d, g, device, &c)) continue;
            count = mica_config_keep(out, ms, count, KEPT, &c, model(d, g, device, &c));
        }
    return count;
}

/* The best few of the model: others would only be compiled and timed for nothing. */
int gemm_sm90_configs(const void *desc, const mica_device_info *device, mica_config *out)
{
    gemm_sm90_geometry g;
    mica_why why;
    const mica_gemm_desc *d = desc;
    if (gemm_sm90_plan_geometry(d, &g, &why) != MICA_OK) return 0;
    if (g.few) return few_configs(d, &g, device, out);
    bool small = gemm_sm90_promotes(d->a.dtype);
    const mica_config *list = small ? promoted : choices;
    int all =
        small ? (int)(sizeof promoted / sizeof *promoted) : (int)(sizeof choices / sizeof *choices);
    double ms[KEPT];
    int count = 0;
    for (int i = 0; i < all; i++) {
        if (!suits(d, &g, device, &list[i])) continue;
        mica_config c = list[i];
        c.knob[KNOB_LINES] = gemm_sm90_tile_rows(&c);
        make_room(d, &g, device, &c);
        count = mica_config_keep(out, ms, count, KEPT, &c, model(d, &g, device, &c));
    }
    return count;
}
