/* SPDX-License-Identifier: Apache-2.0
 * gemm where c has few rows or few columns (decoding, classifiers, matrix times vector): f32, bf16,
 * f16, 8-bit floats and integers, on any GPU from sm_80 on (8-bit floats from sm_89). Good for up
 * to 16 lines; no workspace. Cost: the wide operand at the bandwidth of memory, as long as there
 * are blocks for all multiprocessors: few lines of it are divided along K over clusters (sm_90).
 */
#include "ops/gemm/skinny/skinny.h"
#include "ops/access/access.h"

#include <math.h>

enum { KNOB_GROUPS, KNOB_SPLIT, KNOB_CHUNKS, KNOB_WARPS };
static const char *const knobs[] = {"groups", "split", "chunks", "warps", NULL};

enum { FEW_MATRIX = 32, FEW_PLAIN = 16, STATIC_SHARED = 48 << 10, HELD_BYTES = 128, KEPT = 3 };

/* Tensor cores multiply all but f32. */
static bool has_matrix(const skinny_geometry *g)
{
    return g->wide.dtype != MICA_F32;
}

/* Lines of the other operand that a block has room for. */
static int few_held(const skinny_geometry *g)
{
    int held = has_matrix(g) ? 8 : 1;
    while (held < g->few.lines && held < FEW_MATRIX) held *= 2;
    return held;
}

/* ---- configs: what a block has ---- */

static int lines_of(const skinny_geometry *g, const mica_config *c)
{
    return c->knob[KNOB_GROUPS] * (g->k_major ? 16 : 8 * skinny_vector(g));
}

static int reads_of(const skinny_geometry *g)
{
    return g->k_major ? 2 : skinny_vector(g);
}

/* What a lane reads at once. */
static int held_bytes(const skinny_geometry *g, const mica_config *c)
{
    return c->knob[KNOB_CHUNKS] * c->knob[KNOB_GROUPS] * reads_of(g) * MICA_ACCESS_BYTES;
}

static double tiles_of(const skinny_geometry *g, const mica_config *c)
{
    long long lines = lines_of(g, c);
    return (double)((g->wide.lines + lines - 1) / lines) * (double)g->shape.batches;
}

/* Registers of a lane for what it reads and for its sums, and shared memory for all sums. */
static bool fits(const skinny_geometry *g, const mica_config *c)
{
    int chunks = c->knob[KNOB_CHUNKS], lines = lines_of(g, c), few = few_held(g);
    int words = g->shifted ? 10 : 4; /* of a read */
    int reads =
        chunks * words * (c->knob[KNOB_GROUPS] * reads_of(g) + (has_matrix(g) ? few / 8 : few));
    int sums = lines * few / 32 * (has_matrix(g) ? 1 : 4);
    return reads + sums <= (g->shifted ? 190 : 160) &&
           c->knob[KNOB_WARPS] * few * (lines + 1) * 4 <= STATIC_SHARED;
}

/* Lines and share of K of a block; false: there is no room for it, or no need. A block that has its
 * multiprocessor to itself reads twice as far ahead. */
static bool make_config(const skinny_geometry *g, const mica_device_info *device, int groups,
                        int split, mica_config *c)
{
    *c = (mica_config){{groups, split, 1, 8}};
    double blocks = tiles_of(g, c) * split;
    int bytes = blocks <= device->units ? 2 * HELD_BYTES : HELD_BYTES;
    if (g->shifted) bytes /= 2;
    if (bytes > held_bytes(g, c)) c->knob[KNOB_CHUNKS] = bytes / held_bytes(g, c);
    if (!fits(g, c)) c->knob[KNOB_CHUNKS] = 1;
    if (!fits(g, c)) c->knob[KNOB_WARPS] = 4;
    return fits(g, c) && (split == 1 || blocks <= 6.0 * device->units);
}

/* ---- which problems ---- */

static mica_status plan_geometry(const mica_gemm_desc *d, const mica_device_info *device,
                                 skinny_geometry *g, mica_why *why)
{
    MICA_TRY(skinny_geometry_make(d, device, g, why));
    bool bytes_across = !g->k_major && skinny_vector(g) == 16;
    int most = has_matrix(g) && !bytes_across ? FEW_MATRIX : FEW_PLAIN;
    if (g->few.lines > most)
        return mica_refuse(why, "c is %lld x %lld, one of them must be at most %d", g->shape.m,
                           g->shape.n, most);
    mica_config c;
    if (g->shifted && !make_config(g, device, 1, 1, &c))
        return mica_refuse(why,
                           "c is %lld x %lld and vectors begin at any element, which leaves no "
                           "registers for so many lines",
                           g->shape.m, g->shape.n);
    return MICA_OK;
}

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    skinny_geometry g;
    MICA_TRY(gemm_refuse_full_epilogue(desc, why));
    return plan_geometry(desc, device, &g, why);
}

/* ---- configs and model ---- */

/* Without tensor cores each lane reads the few for itself, and element by element where they do not
 * lie along K: cycles of a multiprocessor for a warp's read and what it feeds, fitted to two
 * products on an H200 (8 lines along K, 10 across it). */
static double few_ms(const skinny_geometry *g, const mica_device_info *device, double tiles)
{
    const double along = 8, across = 17, flop_per_cycle = 256;
    if (has_matrix(g)) return 0;
    double vector = skinny_vector(g), chunks = ceil((double)g->shape.k / (4 * vector));
    double reads = tiles * chunks * few_held(g) * (g->few_k_major ? along : across * vector);
    return reads / (device->f32_tflops * 1e9 / flop_per_cycle);
}

/* Tiles whose K ends before each warp of a block has a part: nothing is in flight while sums meet
 * and are stored. Concluded from a dgrad on an H200 that took 10 ms, most of it such a product of
 * 4,194,304 lines by 27 with a K of 32; what few of them take was not measured. */
static double short_ms(const skinny_geometry *g, const mica_config *c, double rounds)
{
    const double tile_ms = 9e-3, few_rounds = 64;
    int share = 4 * skinny_vector(g) * c->knob[KNOB_CHUNKS] * c->knob[KNOB_SPLIT];
    bool is_short = g->shape.k <= (int64_t)share * (c->knob[KNOB_WARPS] - 1);
    return is_short ? fmax(rounds - few_rounds, 0) * tile_ms : 0;
}

/* Where the few do not lie along K a lane of the tensor core's reads them one by one, and waits for
 * each (9 x 5023 by 5023 x 24 of f16 took 74 us on an H200). */
static double apart_ms(const skinny_geometry *g, const mica_config *c, double rounds)
{
    const double element_ms = 0.2e-3;
    if (g->few_k_major || !has_matrix(g) || !g->shifted) return 0;
    const int32_t *knob = c->knob;
    double vector = skinny_vector(g), chunks = 4 * vector * knob[KNOB_SPLIT] * knob[KNOB_WARPS];
    return rounds * ceil((double)g->shape.k / chunks) * few_held(g) / 8 * vector * element_ms;
}

/* Steps through K of the warp that has most of them: whole groups of chunks are one, and where the
 * tile is not full, or K ends in a group, each chunk is. */
static double steps_of(const skinny_geometry *g, const mica_config *c)
{
    bool parts = !g->k_major && g->wide.lines % lines_of(g, c) != 0;
    long long chunk = 4LL * skinny_vector(g), chunks = c->knob[KNOB_CHUNKS], group = chunk * chunks;
    long long all = group * c->knob[KNOB_WARPS] * c->knob[KNOB_SPLIT];
    long long each = parts ? chunks : 1, rest = g->shape.k % all;
    long long last = ceiling(rest % group, chunk);
    if (rest >= group && last < each) last = each;
    return (double)(g->shape.k / all * each + last);
}

/* Operands of a few megabytes: the latency of a warp's steps, one after the other, with what a lane
 * does in each. Fitted to 189 times of 29 random products on an H200, 16 % off in the mean; the
 * pick is 3 % slower than the best config in the mean, 26 % at most. */
static double small_ms(const skinny_geometry *g, const mica_config *c, double rounds)
{
    const double start_ms = 4.9e-3, cluster_ms = 0.95e-3, step_ms = 0.49e-3;
    const double round_ms = 0.54e-3, clusters_ms = 1e-3, across_ms = 3e-3; /* of a further round */
    const double element_ms = 5.5e-6, plain_ms = 33e-6, shifted_ms = 0.156e-3;
    double groups = c->knob[KNOB_GROUPS], few = few_held(g), step = step_ms;
    double reads = has_matrix(g) ? few / 8 : few;
    if (!g->few_k_major) step += element_ms * reads * skinny_vector(g);
    if (!has_matrix(g)) step += plain_ms * groups * few;
    if (g->shifted) step += shifted_ms * groups * reads_of(g);
    double further = c->knob[KNOB_SPLIT] == 1 ? round_ms : g->k_major ? clusters_ms : across_ms;
    return start_ms + (c->knob[KNOB_SPLIT] > 1 ? cluster_ms : 0) + further * (rounds - 1) +
           step * steps_of(g, c);
}

/* The wide operand at the bandwidth of memory, as far as blocks are dealt evenly and enough is
 * in flight; the few lines come from L2, once for each block; clusters start and end slowly. */
static double model(const mica_gemm_desc *d, const skinny_geometry *g,
                    const mica_device_info *device, const mica_config *c)
{
    const double start_ms = 6e-3, cluster_ms = 1.2e-3, reading = 0.94, latency_ms = 0.7e-3;
    const double small = 8e6; /* bytes */
    const int32_t *knob = c->knob;
    double tiles = tiles_of(g, c), blocks = tiles * knob[KNOB_SPLIT], units = device->units;
    double rounds = ceil(blocks / units), resident = rounds < 3 ? rounds : 3;
    double busy = rounds > 3 ? 1 : pow(blocks / (rounds * units), 0.6);
    double rate = reading * device->copy_gbps * 1e6 * busy;
    double active = rounds > 1 ? resident * units : blocks;
    double held = active * 32 * knob[KNOB_WARPS] * held_bytes(g, c);
    if (rate > held / latency_ms) rate = held / latency_ms;
    double bytes = mica_op_bytes(&mica_op_gemm, d), memory = bytes / rate;
    if (bytes <= small)
        return fmax(small_ms(g, c, rounds), start_ms / 2 + bytes / (device->copy_gbps * 1e6));
    double few = (double)(g->few.lines * g->shape.k * mica_dtype_bits(g->few.dtype) / 8) * tiles;
    double cache = few / (2 * device->copy_gbps * 1e6);
    double meeting = knob[KNOB_SPLIT] > 1 ? cluster_ms * knob[KNOB_SPLIT] : 0;
    return start_ms + memory + 0.5 * cache + meeting + few_ms(g, device, tiles) +
           short_ms(g, c, rounds) + apart_ms(g, c, rounds);
}

static double predict(const void *desc, const mica_device_info *device, const mica_config *c)
{
    skinny_geometry g;
    mica_why why;
    if (plan_geometry(desc, device, &g, &why) != MICA_OK) return 0;
    return model(desc, &g, device, c);
}

/* The best few of the model: others would only be compiled and timed for nothing. */
static int configs(const void *desc, const mica_device_info *device, mica_config *out)
{
    skinny_geometry g;
    mica_why why;
    if (plan_geometry(desc, device, &g, &why) != MICA_OK) return 0;
    double ms[KEPT];
    int count = 0, most = device->arch >= 90 ? 8 : 1;
    for (int groups = 1; groups <= (g.k_major ? 2 : 1); groups++)
        for (int split = 1; split <= most; split *= 2) {
            mica_config c;
            if (!make_config(&g, device, groups, split, &c)) continue;
            double t = model(desc, &g, device, &c);
            count = mica_config_keep(out, ms, count, KEPT, &c, t);
        }
    return count;
}

static void contract(const void *desc, const mica_config *config, mica_contract *c)
{
    const mica_gemm_desc *d = desc;
    (void)config;
    if (mica_dtype_is_integer(d->a.dtype) || d->a.dtype == MICA_F32) return;
    c->truncates = true;
    c->k_inst = 8; /* on sm_80; sm_90 sums 16 */
}

/* ---- plans ---- */

static void write_prologue(const mica_gemm_desc *d, const skinny_geometry *g, const mica_config *c,
                           mica_text *p)
{
    mica_prologue_int(p, "WARPS", c->knob[KNOB_WARPS]);
    mica_prologue_int(p, "GROUPS", c->knob[KNOB_GROUPS]);
    mica_prologue_int(p, "SPLIT", c->knob[KNOB_SPLIT]);
    mica_prologue_int(p, "CHUNKS", c->knob[KNOB_CHUNKS]);
    mica_prologue_int(p, "MATRIX", has_matrix(g));
    mica_prologue_int(p, "FEW", few_held(g));
    mica_prologue_int(p, "K_MAJOR", g->k_major);
    mica_prologue_int(p, "FEW_K_MAJOR", g->few_k_major);
    mica_prologue_int(p, "SHIFTED", g->shifted);
    skinny_prologue(d, g, p);
}

static mica_status build(mica_plan *plan)
{
    skinny_state *s;
    skinny_geometry g;
    mica_why why;
    const mica_gemm_desc *d = plan->desc;
    const mica_config *c = &plan->config;
    MICA_TRY(plan_geometry(d, &plan->device, &g, &why));
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    skinny_state_fill(d, &g, s);
    int split = c->knob[KNOB_SPLIT];
    double tiles = tiles_of(&g, c), most = INT32_MAX / split;
    s->grid = (mica_grid){.grid = {(unsigned)(tiles < most ? tiles : most) * (unsigned)split},
                          .block = {32 * (unsigned)c->knob[KNOB_WARPS]},
                          .cluster = split > 1 ? (unsigned)split : 0};
    char text[4096];
    mica_text prologue = {text, sizeof text, 0};
    write_prologue(d, &g, c, &prologue);
    return mica_plan_add_kernel(plan,
                                &(mica_kernel_spec){.file = "ops/gemm/skinny/skinny.cu",
                                                    .entry = "gemm_skinny",
                                                    .prologue = text},
                                &s->kernel);
}

const mica_engine gemm_skinny = {.name = "skinny",
                                 .cuda = true,
                                 .knobs = knobs,
                                 .accepts = accepts,
                                 .configs = configs,
                                 .predict = predict,
                                 .contract = contract,
                                 .build = build,
                                 .run = skinny_run};
