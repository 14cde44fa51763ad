/* SPDX-License-Identifier: Apache-2.0
 * gemm on Hopper's tensor cores, fed by the copy engine: bf16, f16, tf32 (f32 with compute=tf32),
 * 8-bit integers and floats. Good for everything whose operands the copy engine can address; of
 * tf32's one may lie across K: a warpgroup's 64 lines of it go through registers, which the tensor
 * core takes as the left operand, so that c may have to be stored along those lines. Cost:
 * 2MNK at 0.9 of the sustained rate for full tiles, in whole rounds of tiles over the
 * multiprocessors; few rows run at the speed of memory. Gates, aux, amax and 8-bit results have a
 * kernel of their own. */
#include "ops/gemm/gemm_sm90_extra_args.h"
#include "ops/gemm/gemm_sm90_operand.h"

#include <limits.h>
#include <math.h>

enum { KNOB_TILE_M, KNOB_TILE_N, KNOB_STAGES, KNOB_DEPTH, KNOB_SPLIT, KNOB_LINES, KNOB_TURNS };
static const char *const knobs[] = {"tile_m", "tile_n", "stages", "depth",
                                    "split",  "lines",  "turns",  NULL};

enum {
    LINE_BYTES = GEMM_SM90_LINE_BYTES,
    MAX_BATCH_RANK = 3,
    KEPT = 4,
    ROWS_OF_GROUP = 64,
    BUFFER_BYTES = 8192,
    BARRIERS = 320, /* bytes */
    MOST_BUFFERS = 4,
    LEAST_STAGES = 3,    /* beside buffers of a residual */
    FEW = 32,            /* lines that are memory's business */
    DEEP_BYTES = 512,    /* of K, if they are more: with less, c is what takes time */
    LONG_ROW = 16 << 10, /* bytes of K */
    BRIEF_FILLS = 2,
    BRIEF_STAGES = 4
};

/* Stages fill shared memory. Two warpgroups multiply where a tile has 128 lines or more, or take
 * tiles in turns: the last knob. */
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

/* Tiles have lines and what lies across: rows and columns of c, or the reverse where c is
 * transposed, so that neighbours across are neighbours in memory. Where c has few rows or columns
 * those lie across; an f32 operand that lies across K is that of the lines. */
typedef struct geometry {
    gemm_shape shape; /* with a gate n counts all columns of b */
    gemm_extra extra;
    bool swapped, halves;
    bool few;               /* across: the others are read at the speed of memory */
    gemm_sm90_operand a, b; /* of the lines, across */
    const long long *a_batch, *b_batch;
    long long c_line, c_across, r_line, r_across;
} geometry;

typedef struct state {
    gemm_sm90_extra_args args; /* all but maps, pointers and scalars */
    mica_tensor_map_spec a, b, c, residual;
    bool swapped, light, boxed_residual;
    bool extra;   /* else the plain kernel gets the product's arguments only */
    int c_vector; /* bytes of alignment that vectors of c need; 0: c has no vectors */
    mica_kernel *kernel;
    mica_plan *fallback;
    mica_grid grid;
} state;

/* ---- what the copy engine can address ---- */

static mica_status check_operand(gemm_sm90_operand *o, const gemm_shape *s, const long long *batch,
                                 mica_why *why)
{
    MICA_TRY(gemm_sm90_check_operand(o, why));
    for (int i = 0; i < s->batch_rank; i++)
        if (batch[i])
            MICA_TRY(gemm_sm90_check_stride(o, "batch items", s->batch[i], batch[i], 0, why));
    return MICA_OK;
}

static void make_geometry(const mica_gemm_desc *d, geometry *g)
{
    *g = (geometry){.halves = d->gate == MICA_GEMM_GATE_HALVES};
    gemm_shape_make_extra(d, &g->shape, &g->extra);
    gemm_shape *s = &g->shape;
    if (d->gate) s->n *= 2;
    if (d->gate == MICA_GEMM_GATE_PAIRS) s->b_n /= 2;
    gemm_sm90_operand a = {"a", d->a.dtype, s->m, s->a_m, s->k, s->a_k, false, false};
    gemm_sm90_operand b = {"b", d->b.dtype, s->n, s->b_n, s->k, s->b_k, false, false};
    bool deep = s->k * gemm_sm90_bytes(d->a.dtype) > DEEP_BYTES;
    g->few = deep && !gemm_has_extra(d) && (s->m <= FEW ? s->m < s->n : s->n <= FEW);
    g->swapped = g->few ? s->m < s->n : s->c_n != 1 && s->n != 1 && (s->c_m == 1 || s->m == 1);
    bool across_k = !gemm_sm90_along_k(&a) || !gemm_sm90_along_k(&b);
    if (gemm_sm90_bytes(d->a.dtype) == 4 && across_k && !gemm_has_extra(d)) {
        g->few = false;
        g->swapped = gemm_sm90_along_k(&a);
        *(g->swapped ? &b.words : &a.words) = true;
    }
    g->a = g->swapped ? b : a;
    g->b = g->swapped ? a : b;
    g->a_batch = g->swapped ? s->b_batch : s->a_batch;
    g->b_batch = g->swapped ? s->a_batch : s->b_batch;
    g->c_line = g->swapped ? s->c_n : s->c_m;
    g->c_across = g->swapped ? s->c_m : s->c_n;
    g->r_line = g->swapped ? s->r_n : s->r_m;
    g->r_across = g->swapped ? s->r_m : s->r_n;
}

static mica_status check_types(const mica_gemm_desc *d, mica_why *why)
{
    if (gemm_has_blocks(d)) return mica_refuse(why, "scales of blocks: sm90_blocks takes them");
    return gemm_sm90_check_types(d, why);
}

static mica_status check_sizes(const mica_gemm_desc *d, const gemm_shape *s, mica_why *why)
{
    const long long limit = 1LL << 30;
    if (s->k == 0 || s->batches == 0) return mica_refuse(why, "the product is empty");
    if (s->m > limit || s->n > limit || s->k > limit)
        return mica_refuse(why, "M, N, K are %lld, %lld, %lld, the limit is 2^30", s->m, s->n,
                           s->k);
    if (mica_dtype_is_integer(d->a.dtype) && s->k > 65536)
        return mica_refuse(why, "K is %lld, sums of 65536 products fit 32 bits", s->k);
    if (s->batch_rank > MAX_BATCH_RANK)
        return mica_refuse(why, "%d batch dimensions, tensor maps hold %d", s->batch_rank,
                           MAX_BATCH_RANK);
    double tiles = ((double)s->m / 64 + 1) * ((double)s->n / 32 + 1) * (double)s->batches;
    if (tiles > INT_MAX) return mica_refuse(why, "%.3g tiles, the limit is 2^31", tiles);
    return MICA_OK;
}

static mica_status plan_geometry(const mica_gemm_desc *d, geometry *g, mica_why *why)
{
    MICA_TRY(check_types(d, why));
    make_geometry(d, g);
    MICA_TRY(check_sizes(d, &g->shape, why));
    if (d->gate && g->swapped)
        return mica_refuse(why,
                           "c lies along its rows, gated pairs are finished along its columns");
    MICA_TRY(check_operand(&g->a, &g->shape, g->a_batch, why));
    MICA_TRY(check_operand(&g->b, &g->shape, g->b_batch, why));
    if (g->halves && g->b.mn_major && g->shape.n / 2 % 8)
        return mica_refuse(why,
                           "halves of %lld columns: the second begins at no multiple of 16 bytes",
                           g->shape.n / 2);
    return MICA_OK;
}

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    geometry g;
    if (device->arch != 90)
        return mica_refuse(why, "the device is sm_%d, the kernels are sm_90's", device->arch);
    return plan_geometry(desc, &g, why);
}

/* ---- configs and model ---- */

/* Of a tile, out of the TILE_M that are multiplied; 0 stands for all in older records. */
static int lines_of(const mica_config *c)
{
    return c->knob[KNOB_LINES] ? c->knob[KNOB_LINES] : c->knob[KNOB_TILE_M];
}

/* Columns of a box of c: 128 bytes, or the whole tile. */
static int box_of(const mica_gemm_desc *d, const mica_config *c)
{
    int widest = LINE_BYTES / gemm_sm90_bytes(d->c.dtype), n = c->knob[KNOB_TILE_N];
    return n < widest ? n : widest;
}

/* The operand of the lines is f32 and lies across K. */
static bool by_registers(const geometry *g)
{
    return g->a.mn_major && gemm_sm90_bytes(g->a.dtype) == 4;
}

/* Neighbours in c are of different lines. */
static bool along_lines(const geometry *g)
{
    return by_registers(g) && g->c_line == 1 && g->c_across != 1;
}

/* Whether the copy engine can load the residual as it stores c. */
static bool is_boxed(const mica_gemm_desc *d, const geometry *g)
{
    const gemm_shape *s = &g->shape;
    int bytes = gemm_sm90_bytes(d->c.dtype);
    if (!mica_tensor_given(&d->residual) || gemm_sm90_bytes(d->residual.dtype) != bytes ||
        gemm_finish_type(d) != MICA_F32 || along_lines(g))
        return false;
    bool boxed = g->r_across == 1 &&
                 (g->a.lines == 1 || (g->r_line >= g->b.lines && g->r_line * bytes % 16 == 0));
    for (int i = 0; i < s->batch_rank; i++)
        boxed = boxed && s->r_batch[i] >= 0 && s->r_batch[i] * bytes % 16 == 0;
    return boxed;
}

static bool has_short_end(const mica_gemm_desc *d, const geometry *g)
{
    mica_gemm_desc rest = *d;
    int count = 0;
    for (int i = 0; i < MICA_MAX_STEPS; i++) {
        rest.epilogue[i] = 0;
        if (d->epilogue[i] != MICA_STEP_RESIDUAL || !is_boxed(d, g))
            rest.epilogue[count++] = d->epilogue[i];
    }
    return gemm_is_short(&rest);
}

/* Results across of a warpgroup's 64 lines that fill a buffer. */
static int across_of_buffer(const mica_gemm_desc *d)
{
    return BUFFER_BYTES / ROWS_OF_GROUP / gemm_sm90_bytes(d->c.dtype);
}

/* Whether the copy engine can store c. */
static bool is_tiled(const mica_gemm_desc *d, const geometry *g, const mica_config *c)
{
    int bytes = gemm_sm90_bytes(d->c.dtype);
    const gemm_shape *s = &g->shape;
    bool along = along_lines(g);
    long long rows = along ? g->b.lines : g->a.lines, columns = along ? g->a.lines : g->b.lines;
    long long row = along ? g->c_across : g->c_line;
    bool tiled = (along ? g->swapped : g->c_across == 1) && !gemm_has_extra(d) &&
                 (rows == 1 || (row >= columns && row * bytes % 16 == 0));
    /* The copy engine writes whole 16 bytes: a row of 10 would spoil what lies behind it. */
    tiled = tiled && columns * bytes % 16 == 0 && c->knob[KNOB_SPLIT] == 1 && !g->few;
    int box = box_of(d, c) * bytes;
    tiled =
        tiled && (along ? c->knob[KNOB_TILE_N] % across_of_buffer(d) == 0 : (box & (box - 1)) == 0);
    for (int i = 0; i < s->batch_rank; i++)
        tiled = tiled && s->c_batch[i] > 0 && s->c_batch[i] * bytes % 16 == 0;
    return tiled;
}

/* A last box that repeats some of its neighbour's columns would find results in the place of a
 * residual that is c itself. */
static bool repeats_residual(const mica_gemm_desc *d, const mica_config *c)
{
    return mica_tensor_given(&d->residual) && c->knob[KNOB_TILE_N] % box_of(d, c);
}

/* Whether the copy engine stores c, and what follows the sums is short enough to be unrolled for
 * all of them. */
static bool is_light(const mica_gemm_desc *d, const geometry *g, const mica_config *c)
{
    return is_tiled(d, g, c) && has_short_end(d, g) && !repeats_residual(d, c);
}

/* Whether it also loads the residual. */
static bool brings_residual(const mica_gemm_desc *d, const geometry *g, const mica_config *c)
{
    return is_boxed(d, g) && is_light(d, g, c);
}

static int groups_of(const mica_config *c)
{
    return c->knob[KNOB_TURNS] || c->knob[KNOB_TILE_M] > ROWS_OF_GROUP ? 2 : 1;
}

/* Bytes of the ring, and what aligns it. */
static int ring_bytes(const mica_config *c)
{
    const int32_t *knob = c->knob;
    int slices = knob[KNOB_STAGES] * knob[KNOB_DEPTH];
    return (lines_of(c) + knob[KNOB_TILE_N]) * LINE_BYTES * slices + 1024;
}

/* Of a warpgroup, for c on its way out; what the ring leaves. */
static int buffers_of(const mica_config *c, const mica_device_info *device)
{
    int room = (int)device->shared_bytes - ring_bytes(c) - BARRIERS;
    int count = room / (groups_of(c) * BUFFER_BYTES);
    return count < MOST_BUFFERS ? count : MOST_BUFFERS;
}

/* Time to go through K and c. Slices of all tiles of a multiprocessor follow each other without a
 * gap; each takes the longer one of its arithmetic and its copy from L2 and a part of the other
 * one, its share of the stage's barrier, and at least what the copy engine takes to begin and,
 * where the ring is short, its share of the latency of memory. In turns a tile is finished while
 * the next is multiplied, by half the threads; where rows of K are long that hides little, and the
 * smaller tiles draw more power: on an H100 at its limit they took 1 to 8 % longer than 128 x 256,
 * on an H200 about as long. */
static double compute_ms(const mica_gemm_desc *d, const geometry *g, const mica_device_info *device,
                         const mica_config *c, double blocks)
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
    bool turns = c->knob[KNOB_TURNS];
    double rate = peak * device->bf16_tflops * 2e9 / bytes / units;
    if (gemm_sm90_promotes(d->a.dtype)) rate *= m > 128 ? promoting_two : promoting;
    double arithmetic = 2 * m * n * (LINE_BYTES / bytes) / rate;
    double fill = (lines_of(c) + n) * LINE_BYTES / (fill_gbps * 1e6 / units);
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
        finish += (brings_residual(d, g, c) ? boxed_ms : apart_ms) * m * n / (128 * 256);
    double rounds = ceil(blocks / units);
    if (!turns) return rounds * (sum + finish);
    finish *= half_the_threads;
    return rounds * fmax(sum + handing_ms, (sum + finish) / 2) + finish;
}

/* What `active` blocks draw from memory: bound by its bandwidth, of which some of the
 * multiprocessors draw somewhat less, or by what their rings have under way. */
static double memory_rate(const geometry *g, const mica_device_info *device, const mica_config *c,
                          double active)
{
    bool few = g->few || (by_registers(g) && g->b.lines <= FEW);
    const double reading = few ? 1.03 : 0.822, fewer = 0.06, latency_ms = 1.6e-3;
    double lines = fmin((double)g->a.lines, lines_of(c));
    double ring =
        (lines + c->knob[KNOB_TILE_N]) * LINE_BYTES * c->knob[KNOB_STAGES] * c->knob[KNOB_DEPTH];
    return fmin(reading * device->copy_gbps * 1e6 * pow(active / device->units, fewer),
                active * ring / latency_ms);
}

/* Stages of K. */
static long long fills_of(const geometry *g, const mica_config *c)
{
    int bytes = gemm_sm90_bytes(g->a.dtype);
    return ceiling(g->shape.k, c->knob[KNOB_DEPTH] * LINE_BYTES / bytes);
}

/* A tile of one or two fills is hardly multiplied before it is stored: c is most of the traffic. On
 * an H100 tiles of 64 by 256 were best, or as good as any: 96 products of 2048 x 128 x 2048 take
 * 331 us by them, 329 by 128 x 128, 393 by 128 x 256 not in turns, 440 by 128 x 176. */
static bool is_brief(const geometry *g, const mica_config *c)
{
    return !g->few && c->knob[KNOB_SPLIT] == 1 && fills_of(g, c) <= BRIEF_FILLS;
}

/* What it takes of memory's time: more where a tile's last box repeats some of its neighbour's
 * columns, where nothing is multiplied meanwhile, or where rows are stored in short pieces. */
static double brief_share(const mica_gemm_desc *d, const geometry *g, const mica_config *c)
{
    const double repeated = 1.2, waiting = 1.1, pieces = 1.06;
    int n = c->knob[KNOB_TILE_N], rest = n % box_of(d, c);
    if (!is_brief(g, c)) return 1;
    if (rest && g->b.lines > n - rest) return repeated;
    if (g->b.lines <= n) return 1;
    return !c->knob[KNOB_TURNS] ? waiting : n < 256 ? pieces : 1;
}

/* Time to read and write memory: whole rounds of blocks, and what is left. */
static double memory_ms(const mica_gemm_desc *d, const geometry *g, const mica_device_info *device,
                        const mica_config *c, double blocks)
{
    double units = device->units, whole = floor(blocks / units) * units, rest = blocks - whole;
    double share = mica_op_bytes(&mica_op_gemm, d) / blocks, ms = 0;
    if (whole > 0) ms += whole * share / memory_rate(g, device, c, units);
    if (rest > 0) ms += rest * share / memory_rate(g, device, c, rest);
    return ms * brief_share(d, g, c);
}

/* Constants are fitted to an H200: 31 problems of more than 32 rows, each by 9 to 25 configs, 6 %
 * off in the mean; the pick is 0.7 % slower than the best config in the mean, 6 % at most. Few
 * rows: what 13 such problems drew from memory. */
static double model(const mica_gemm_desc *d, const geometry *g, const mica_device_info *device,
                    const mica_config *c)
{
    const double start_ms = 2.8e-3, both = g->few ? 0.09 : 0.043;
    double blocks =
        (double)(ceiling(g->a.lines, lines_of(c)) * ceiling(g->b.lines, c->knob[KNOB_TILE_N]) *
                 g->shape.batches * c->knob[KNOB_SPLIT]);
    double compute = compute_ms(d, g, device, c, blocks),
           memory = memory_ms(d, g, device, c, blocks);
    return start_ms + fmax(compute, memory) + both * fmin(compute, memory);
}

static double predict(const void *desc, const mica_device_info *device, const mica_config *c)
{
    geometry g;
    mica_why why;
    if (plan_geometry(desc, &g, &why) != MICA_OK) return 0;
    return model(desc, &g, device, c);
}

/* Chunks of 64 (of each half) where an operand lies across K; K is shared out where tiles are few,
 * some stages for each block. Turns are for results that the copy engine stores: half the threads
 * would take too long for others. */
static bool suits(const mica_gemm_desc *d, const geometry *g, const mica_device_info *device,
                  const mica_config *c)
{
    const int32_t *knob = c->knob;
    int chunk = g->halves ? 128 : 64;
    double tiles = (double)ceiling(g->a.lines, knob[KNOB_TILE_M]) *
                   (double)ceiling(g->b.lines, knob[KNOB_TILE_N]) * (double)g->shape.batches;
    if (g->b.mn_major && knob[KNOB_TILE_N] % chunk) return false;
    if (by_registers(g) && (knob[KNOB_TILE_M] > 128 || knob[KNOB_DEPTH] > 1 || knob[KNOB_TURNS]))
        return false;
    if (gemm_has_extra(d) && knob[KNOB_SPLIT] > 1) return false;
    if (knob[KNOB_TURNS] && !is_light(d, g, c)) return false;
    if (is_tiled(d, g, c) && has_short_end(d, g) && repeats_residual(d, c)) return false;
    return knob[KNOB_SPLIT] == 1 ||
           (fills_of(g, c) >= 4LL * knob[KNOB_SPLIT] && tiles < device->units);
}

/* Less of a ring where a residual wants buffers: one for each box of a warpgroup's tile, or all;
 * and where brief tiles in turns store through buffers (128 x 128: 329 us where six stages take
 * 415). */
static void make_room(const mica_gemm_desc *d, const geometry *g, const mica_device_info *device,
                      mica_config *c)
{
    int32_t *knob = c->knob, shares = knob[KNOB_TURNS] ? 1 : groups_of(c);
    int boxes = knob[KNOB_TILE_M] / ROWS_OF_GROUP / shares * (knob[KNOB_TILE_N] / box_of(d, c));
    int wanted = boxes < 2 ? 2 : boxes < MOST_BUFFERS ? boxes : MOST_BUFFERS;
    if (is_brief(g, c) && knob[KNOB_TURNS] && buffers_of(c, device) < wanted)
        knob[KNOB_STAGES] = BRIEF_STAGES;
    if (!brings_residual(d, g, c)) return;
    while (buffers_of(c, device) < wanted && knob[KNOB_STAGES] > LEAST_STAGES) knob[KNOB_STAGES]--;
}

/* Few lines across: tiles of as many of the others as deal them out evenly, a ring as deep as
 * shared memory is, and stages that are worth their barrier. */
static int few_configs(const mica_gemm_desc *d, const geometry *g, const mica_device_info *device,
                       mica_config *out)
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
static int configs(const void *desc, const mica_device_info *device, mica_config *out)
{
    geometry g;
    mica_why why;
    const mica_gemm_desc *d = desc;
    if (plan_geometry(d, &g, &why) != MICA_OK) return 0;
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
        c.knob[KNOB_LINES] = lines_of(&c);
        make_room(d, &g, device, &c);
        count = mica_config_keep(out, ms, count, KEPT, &c, model(d, &g, device, &c));
    }
    return count;
}

static void contract(const void *desc, const mica_config *config, mica_contract *c)
{
    (void)config;
    gemm_sm90_contract(desc, c);
}

/* ---- plans ---- */

static void write_prologue(const mica_gemm_desc *d, const geometry *g, const mica_config *c,
                           const mica_device_info *device, mica_text *p)
{
    bool whole = mica_dtype_is_integer(d->a.dtype);
    mica_prologue_int(p, "TILE_M", c->knob[KNOB_TILE_M]);
    mica_prologue_int(p, "LINES", lines_of(c));
    mica_prologue_int(p, "TILE_N", c->knob[KNOB_TILE_N]);
    mica_prologue_int(p, "STAGES", c->knob[KNOB_STAGES]);
    mica_prologue_int(p, "GROUPS", groups_of(c));
    mica_prologue_int(p, "TURNS", c->knob[KNOB_TURNS]);
    mica_prologue_int(p, "DEPTH", c->knob[KNOB_DEPTH]);
    mica_prologue_int(p, "SPLIT", c->knob[KNOB_SPLIT]);
    mica_prologue_int(p, "BUFFERS", buffers_of(c, device));
    mica_prologue_int(p, "A_MN_MAJOR", g->a.mn_major);
    mica_prologue_int(p, "B_MN_MAJOR", g->b.mn_major);
    mica_prologue_int(p, "SWAPPED", g->swapped);
    mica_prologue_int(p, "ALONG_LINES", along_lines(g));
    mica_prologue_int(p, "PROMOTE", gemm_sm90_promotes(d->a.dtype));
    mica_prologue_int(p, "LIGHT", is_light(d, g, c));
    mica_prologue_int(p, "RESIDUAL", brings_residual(d, g, c));
    mica_prologue_int(p, "BATCH_RANK", g->shape.batch_rank);
    mica_prologue_int(p, "HAS_SCALE_A", mica_tensor_given(&d->scale_a));
    mica_prologue_int(p, "HAS_SCALE_B", mica_tensor_given(&d->scale_b));
    mica_prologue_type(p, "a_t", g->a.dtype);
    mica_prologue_type(p, "b_t", g->b.dtype);
    mica_prologue_type(p, "c_t", d->c.dtype);
    mica_prologue_type(p, "sum_t", whole ? MICA_S32 : MICA_F32);
    mica_prologue_type(p, "out_t", gemm_finish_type(d));
    mica_epilogue e = gemm_epilogue(d);
    mica_prologue_int(p, "PACKED_VECTORS", mica_epilogue_is_packed(&e));
    mica_prologue_epilogue(p, &e);
    if (gemm_has_extra(d)) {
        mica_prologue_int(p, "HALVES", g->halves);
        gemm_extra_prologue(d, p);
    }
    mica_prologue_wgmma(p, "mma",
                        &(mica_wgmma){.n = c->knob[KNOB_TILE_N],
                                      .a = g->a.dtype,
                                      .b = g->b.dtype,
                                      .a_mn_major = g->a.mn_major,
                                      .b_mn_major = g->b.mn_major,
                                      .a_in_registers = by_registers(g)});
}

/* Returns the bytes of one slice. */
static int fill_map(const gemm_sm90_operand *o, const gemm_shape *s, const long long *batch,
                    int tile, mica_tensor_map_spec *m)
{
    int bytes = gemm_sm90_fill_map(o, tile, m);
    gemm_map_batch(s, batch, gemm_sm90_bytes(o->dtype), m);
    return bytes;
}

/* Of c, or of a residual that lies as c may. */
static void fill_box_map(const mica_gemm_desc *d, const geometry *g, const mica_config *c,
                         const gemm_sm90_operand *o, const long long *batch,
                         mica_tensor_map_spec *m)
{
    int bytes = gemm_sm90_bytes(o->dtype);
    int box = along_lines(g) ? LINE_BYTES / bytes : box_of(d, c);
    fill_map(o, &g->shape, batch, ROWS_OF_GROUP, m);
    m->tf32 = false;
    m->box[0] = (uint32_t)box;
    m->box[1] = (uint32_t)(along_lines(g) ? across_of_buffer(d) : ROWS_OF_GROUP);
    m->swizzle_bytes = box * bytes;
}

static void fill_box_maps(const mica_gemm_desc *d, const geometry *g, const mica_config *c,
                          state *s)
{
    gemm_sm90_operand out = {"c", d->c.dtype, g->a.lines, g->c_line, g->b.lines, 1, false, false};
    if (along_lines(g))
        out = (gemm_sm90_operand){"c",        d->c.dtype, g->b.lines, g->c_across,
                                  g->a.lines, 1,          false,      false};
    gemm_sm90_operand in = {
        "residual", d->residual.dtype, g->a.lines, g->r_line, g->b.lines, 1, false, false};
    s->light = is_light(d, g, c);
    s->boxed_residual = brings_residual(d, g, c);
    if (s->light) fill_box_map(d, g, c, &out, g->shape.c_batch, &s->c);
    if (s->boxed_residual) fill_box_map(d, g, c, &in, g->shape.r_batch, &s->residual);
}

/* Bytes to which every vector of four elements of c is aligned if c itself is; 0: not all are. */
static int vector_bytes(const mica_gemm_desc *d, const geometry *g)
{
    bool whole = g->c_across == 1 && (g->a.lines == 1 || g->c_line % 4 == 0);
    for (int i = 0; i < g->shape.batch_rank; i++) whole = whole && g->shape.c_batch[i] % 4 == 0;
    return whole ? 4 * gemm_sm90_bytes(d->c.dtype) : 0;
}

static void fill_args(const mica_gemm_desc *d, const geometry *g, const mica_config *c, int units,
                      state *s)
{
    gemm_sm90_args *a = &s->args.product;
    int m = lines_of(c), n = c->knob[KNOB_TILE_N], parts = g->halves ? 2 : 1;
    a->gemm.shape = g->shape;
    gemm_args_fill(d, &a->gemm);
    gemm_extra_fill(d, &s->args.x);
    s->extra = gemm_has_extra(d);
    a->lines = g->a.lines;
    a->across = g->b.lines;
    a->c_line = g->c_line;
    a->c_across = g->c_across;
    a->tiles_lines = (int)ceiling(a->lines, m);
    int tiles_across = (int)ceiling(a->across, n);
    a->tiles = (int)(a->tiles_lines * (long long)tiles_across * g->shape.batches);
    int high = gemm_sm90_band(c->knob[KNOB_TILE_M], n, units);
    if (high > a->tiles_lines) high = a->tiles_lines;
    a->plane = mica_fastdiv_make((unsigned)(a->tiles_lines * tiles_across));
    a->band = mica_fastdiv_make((unsigned)(high * tiles_across));
    a->high = mica_fastdiv_make((unsigned)high);
    a->last_high = mica_fastdiv_make((unsigned)((a->tiles_lines - 1) % high + 1));
    int depth = c->knob[KNOB_DEPTH];
    a->fills = (int)fills_of(g, c);
    int slice_bytes = fill_map(&g->a, &g->shape, g->a_batch, m, &s->a) +
                      parts * fill_map(&g->b, &g->shape, g->b_batch, n / parts, &s->b);
    a->stage_bytes = depth * slice_bytes;
    if (g->halves) a->partner = (int)(a->across / 2);
    s->swapped = g->swapped;
    s->c_vector = vector_bytes(d, g);
    fill_box_maps(d, g, c, s);
}

/* Pointers that the copy engine cannot take are only known when running: the engine for any device
 * takes those. */
static mica_status add_fallback(mica_plan *plan, state *s)
{
    size_t workspace;
    return mica_plan_child_create(plan, "gemm", plan->desc, sizeof(mica_gemm_desc), gemm_cuda.name,
                                  &s->fallback, &workspace);
}

/* Persistent blocks, or one tile each where its K is shared out. */
static int blocks_of(const mica_config *c, const gemm_sm90_args *args,
                     const mica_device_info *device)
{
    int split = c->knob[KNOB_SPLIT];
    if (split > 1) return args->tiles * split;
    return args->tiles < device->units ? args->tiles : device->units;
}

static mica_status build(mica_plan *plan)
{
    state *s;
    geometry g;
    mica_why why;
    const mica_gemm_desc *d = plan->desc;
    MICA_TRY(plan_geometry(d, &g, &why));
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    fill_args(d, &g, &plan->config, plan->device.units, s);
    int threads = 128 * (groups_of(&plan->config) + 1);
    int split = plan->config.knob[KNOB_SPLIT];
    int shared = ring_bytes(&plan->config) +
                 groups_of(&plan->config) * buffers_of(&plan->config, &plan->device) * BUFFER_BYTES;
    s->grid =
        (mica_grid){.grid = {(unsigned)blocks_of(&plan->config, &s->args.product, &plan->device)},
                    .block = {(unsigned)threads},
                    .cluster = split > 1 ? (unsigned)split : 0,
                    .dynamic_shared = (unsigned)shared};
    char text[8192];
    mica_text prologue = {text, sizeof text, 0};
    write_prologue(d, &g, &plan->config, &plan->device, &prologue);
    MICA_TRY(mica_plan_add_kernel(
        plan,
        &(mica_kernel_spec){.file =
                                s->extra ? "ops/gemm/gemm_sm90_extra.cu" : "ops/gemm/gemm_sm90.cu",
                            .entry = s->extra ? "gemm_sm90_extra" : "gemm_sm90",
                            .prologue = text,
                            .dynamic_shared = shared},
        &s->kernel));
    return add_fallback(plan, s);
}

static bool is_aligned(const void *p, int bytes)
{
    return (uintptr_t)p % (uintptr_t)bytes == 0;
}

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    const state *s = plan->state;
    void *a = r->args[MICA_GEMM_A], *b = r->args[MICA_GEMM_B];
    if (!is_aligned(a, 16) || !is_aligned(b, 16)) return mica_plan_child_run(s->fallback, r);
    if (s->extra) MICA_TRY(gemm_extra_begin(plan, r));
    gemm_sm90_extra_args args = s->args;
    gemm_sm90_args *p = &args.product;
    MICA_TRY(mica_tensor_map_encode(plan->cuda, &s->a, s->swapped ? b : a, &p->a));
    MICA_TRY(mica_tensor_map_encode(plan->cuda, &s->b, s->swapped ? a : b, &p->b));
    gemm_args_bind(plan, r, &p->gemm);
    gemm_extra_bind(plan, r, &args.x);
    p->plain = p->gemm.alpha == 1;
    p->whole = s->c_vector && is_aligned(p->gemm.c, s->c_vector);
    void *residual = r->args[MICA_GEMM_RESIDUAL];
    p->light = s->light && p->gemm.beta == 0 && is_aligned(p->gemm.c, 16) &&
               (!s->boxed_residual || is_aligned(residual, 16));
    if (p->light) MICA_TRY(mica_tensor_map_encode(plan->cuda, &s->c, p->gemm.c, &p->c));
    if (p->light && s->boxed_residual)
        MICA_TRY(mica_tensor_map_encode(plan->cuda, &s->residual, residual, &p->residual));
    return mica_kernel_launch(s->kernel, &s->grid, r->stream, s->extra ? (void *)&args : p);
}

const mica_engine gemm_sm90 = {.name = "sm90",
                               .cuda = true,
                               .knobs = knobs,
                               .accepts = accepts,
                               .configs = configs,
                               .predict = predict,
                               .contract = contract,
                               .build = build,
                               .run = run};
