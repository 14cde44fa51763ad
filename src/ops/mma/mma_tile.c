/* SPDX-License-Identifier: Apache-2.0
 * Tiles on tensor cores: choices, sizes, constants, speed. */
#include "ops/mma/mma_tile.h"

enum { SLICE_BYTES = 64, MOST_THREADS = 256 };

const mica_mma_choice mica_mma_choices[] = {
    {128, 256, 0.85, 0},   {128, 128, 0.80, 0.90}, {128, 64, 0.65, 0.85},
    {64, 128, 0.65, 0.00}, {64, 64, 0.50, 0.75},
};
const int mica_mma_choice_count = sizeof mica_mma_choices / sizeof *mica_mma_choices;

static int bytes_of(mica_dtype d)
{
    return mica_dtype_bits(d) / 8;
}

bool mica_mma_is_staged(const mica_mma_operand *o)
{
    return !o->shifted && o->vector * bytes_of(o->dtype) < 4;
}

/* What goes through registers goes element by element, or shifted. */
static int piece_of(const mica_mma_operand *o)
{
    if (o->shifted) return 16 / bytes_of(o->dtype);
    return mica_mma_is_staged(o) ? 1 : o->vector;
}

/* ---- what follows from a tile ---- */

typedef struct warps {
    int m, n; /* results of a warp */
    int stages, resident;
} warps;

/* A warp with 64 x 64 results reads least from shared memory. Pieces that wait in registers leave
 * room for fewer results. */
static warps warps_of(const mica_mma_tile *t)
{
    if (mica_mma_is_staged(&t->a) || mica_mma_is_staged(&t->b)) {
        bool bytes = bytes_of(t->a.dtype) == 1, small = t->tile_m * t->tile_n <= 64 * 64;
        return (warps){32, bytes ? 16 : 32, 2, small && !bytes ? 2 : 1};
    }
    if (t->a.shifted || t->b.shifted)
        return (warps){t->tile_m == 64 ? 32 : 64, 32, 2, t->tile_m * t->tile_n > 128 * 64 ? 1 : 2};
    /* two sums for each result */
    if (t->precise && t->tile_n == 128) return (warps){64, 32, 4, 1};
    if (t->precise) return (warps){t->tile_m == 64 ? 32 : 64, 32, 4, t->tile_m == 64 ? 3 : 2};
    int m = t->tile_m == 64 ? 32 : 64, n = t->tile_n == 64 ? 32 : 64;
    int resident = t->tile_n == 256 ? 1 : t->tile_n == 64 ? 3 : 2;
    return (warps){m, n, t->tile_n == 256 ? 3 : 4, resident};
}

int mica_mma_threads(const mica_mma_tile *t)
{
    warps w = warps_of(t);
    return t->tile_m / w.m * (t->tile_n / w.n) * 32;
}

int mica_mma_slice(const mica_mma_tile *t)
{
    return SLICE_BYTES / bytes_of(t->a.dtype);
}

static int slice_bytes(const mica_mma_operand *o, int lines)
{
    int bytes = bytes_of(o->dtype);
    bool k_major = o->k_fast || bytes == 1;
    if (k_major) return lines * SLICE_BYTES;
    return SLICE_BYTES / bytes * (lines * bytes + (bytes == 4 ? 32 : 0));
}

int mica_mma_shared_bytes(const mica_mma_tile *t)
{
    int pass = t->tile_m < 64 ? t->tile_m : 64;
    int turn = t->c_n_fast ? pass * (t->tile_n + 8) * 4 : t->tile_n * (pass + 4) * 4;
    int pipe = warps_of(t).stages * (slice_bytes(&t->a, t->tile_m) + slice_bytes(&t->b, t->tile_n));
    return pipe > turn ? pipe : turn;
}

void mica_mma_prologue(mica_text *p, const mica_mma_tile *t)
{
    warps w = warps_of(t);
    mica_prologue_int(p, "TILE_M", t->tile_m);
    mica_prologue_int(p, "TILE_N", t->tile_n);
    mica_prologue_int(p, "WARP_M", w.m);
    mica_prologue_int(p, "WARP_N", w.n);
    mica_prologue_int(p, "STAGES", w.stages);
    mica_prologue_int(p, "RESIDENT", w.resident);
    mica_prologue_int(p, "SHARED", mica_mma_shared_bytes(t));
    mica_prologue_int(p, "A_VECTOR", piece_of(&t->a));
    mica_prologue_int(p, "A_K_FAST", t->a.k_fast);
    mica_prologue_int(p, "A_SHIFTED", t->a.shifted);
    mica_prologue_int(p, "B_VECTOR", piece_of(&t->b));
    mica_prologue_int(p, "B_K_FAST", t->b.k_fast);
    mica_prologue_int(p, "B_SHIFTED", t->b.shifted);
    mica_prologue_int(p, "C_VECTOR", t->c_vector);
    mica_prologue_int(p, "C_N_FAST", t->c_n_fast);
    mica_prologue_int(p, "PRECISE", t->precise);
    mica_prologue_type(p, "a_t", t->a.dtype);
    mica_prologue_type(p, "b_t", t->b.dtype);
    mica_prologue_type(p, "c_t", t->c);
    mica_prologue_type(p, "sum_t", mica_dtype_accumulator(t->a.dtype));
}

int mica_mma_configs(const mica_mma_tile *tile, int64_t m, int64_t n, mica_config *configs)
{
    int count = 0;
    for (int i = 0; i < mica_mma_choice_count; i++) {
        mica_mma_tile t = *tile;
        t.tile_m = mica_mma_choices[i].tile_m, t.tile_n = mica_mma_choices[i].tile_n;
        bool small = t.tile_m == 64 && t.tile_n == 64;
        if (!small && (2 * m <= t.tile_m || 2 * n <= t.tile_n)) continue;
        if (mica_mma_threads(&t) > MOST_THREADS) continue;
        /* where products are dear, so are lines that do not exist */
        bool full = small || (m >= t.tile_m && n >= t.tile_n);
        if (t.precise && (mica_mma_choices[i].precise == 0 || !full)) continue;
        configs[count++] = (mica_config){{t.tile_m, t.tile_n}};
    }
    return count;
}

/* ---- speed ---- */

/* From sm_90 on mma.sync reaches some 0.6 of what wgmma does, which the device's rate is about. */
double mica_mma_rate(const mica_device_info *device, mica_dtype input)
{
    double rate = device->bf16_tflops * (device->arch == 90 ? 0.6 : 1.0);
    int bytes = bytes_of(input);
    return bytes == 1 ? 2 * rate : bytes == 4 ? rate / 2 : rate;
}

static double efficiency_of(const mica_mma_tile *t)
{
    double staged = mica_mma_is_staged(&t->a) || mica_mma_is_staged(&t->b) ? 0.4
                    : t->a.shifted || t->b.shifted                         ? 0.7
                                                                           : 1.0;
    for (int i = 0; i < mica_mma_choice_count; i++)
        if (mica_mma_choices[i].tile_m == t->tile_m && mica_mma_choices[i].tile_n == t->tile_n)
            return t->precise ? mica_mma_choices[i].precise
                              : staged * mica_mma_choices[i].efficiency;
    return staged * 0.5;
}

/* TFLOP/s with tiles full and k long. PRECISE: three products for one, and what a warp does beside
 * them for 8 of k: of a piece of 64 x 32 some 225 instructions (96 to split, 64 to add, 6 loads,
 * the rest addresses and copies; 48 are products), of 32 x 32 some 165. On plain units that is the
 * time of 0.44 and 0.64 of the product itself. Of the shorter one half is taken to overlap with the
 * longer one: judged, not measured; the floor is the longer one alone. */
static double rate_of(const mica_device_info *device, const mica_mma_tile *t)
{
    double rate = mica_mma_rate(device, t->a.dtype);
    if (!t->precise) return rate * efficiency_of(t);
    double products = 3 / rate, beside = (t->tile_m == 64 ? 0.64 : 0.44) / device->f32_tflops;
    double longer = products > beside ? products : beside;
    return efficiency_of(t) / (longer + (products + beside - longer) / 2);
}

/* Tiles are dealt to the multiprocessors in rounds; a slice takes its arithmetic, or the latency of
 * its loads where too few stages and blocks hide it. A tile begins with an empty pipeline and ends
 * with its results, which each thread finishes one after the other (fitted on an H100). */
double mica_mma_predict(const mica_device_info *device, const mica_mma_tile *t, double tiles,
                        double k)
{
    const double latency_ms = 0.8e-3, begin_ms = 2.7e-3, result_ms = 0.013e-3;
    warps w = warps_of(t);
    double units = device->units, slice = mica_mma_slice(t);
    double rate = rate_of(device, t) * 1e9 / units;
    double rounds = (double)(int64_t)((tiles + units - 1) / units);
    double resident = rounds < w.resident ? rounds : w.resident;
    double step = 2.0 * t->tile_m * t->tile_n * slice / rate;
    double hidden = latency_ms / ((w.stages - 1) * resident);
    double slices = (double)(int64_t)((k + slice - 1) / slice);
    double results = (double)t->tile_m * t->tile_n / mica_mma_threads(t);
    double ends = (begin_ms + result_ms * results) / resident;
    return rounds * (slices * (step > hidden ? step : hidden) + ends);
}

void mica_mma_contract(mica_dtype input, mica_contract *c)
{
    if (mica_dtype_is_integer(input)) return;
    if (input == MICA_F32) {
        /* Two roundings to 11 bits a product; cutting four at a time adds 2^-24 * 2 n / 4. */
        c->n_outer = c->n_seq / 16384 + 1;
        c->n_seq = 2;
        c->unit = 0x1p-11;
        return;
    }
    c->truncates = true;
    c->k_inst = 8; /* on sm_80; sm_90 sums 16 */
}

/* What PRECISE tiles (kernels/mma_tile.cuh) may be off, in u = 2^-24 of the sum S of |a b|.
 *
 * A product: a = high + low + rest. high is a to 11 bits, so |low| <= 2^-11 |a|; low has 12 bits,
 * of which the unit drops the last, so |rest| <= 2^-23 |a| = 2 u |a|. Left out are rest_a b and a
 * rest_b, 2 u each, and low_a low_b <= 2^-22 |a b| = 4 u: together 8 u. A sum of eight: the unit
 * adds from 0. sm_90 cuts each term 25 bits behind the first of the largest one and the result to
 * 24 bits: 8 x 2^-25 + 2^-23 = 6 u. sm_80 takes two steps of four with a bit less, the second of
 * which has the first's result to cut as well: 4 u + 2 u + 5 u + 2 u = 13 u. The small sums are at
 * most 2^-10 S, and may be cut as often: 2 (13 + 13) u 2^-10 for each eight of n terms, less than n
 * u / 150. So 8 + 13 + n / 128 in all, as 2 n_seq / k_inst. The eights are added, and the small sum
 * at the end, rounded to nearest: n / 8 + 1 additions, and up to 8 + 3 of the operation's own after
 * them.
 *
 * A model of both units, bit for bit but for the order inside, on normal, one-signed and worst data
 * with K from 8 to 16384 finds at most an eighth of this, and less than plain multiply-adds are off
 * from K = 64 on (one-signed, K = 16384: 25 u, they 67 u). */
void mica_mma_precise_contract(mica_contract *c)
{
    int64_t n = c->n_seq;
    c->truncates = true;
    c->k_inst = 4;
    c->n_seq = 2 * (8 + 13) + n / 64 + 1;
    c->n_outer += n / 8 + 12;
}
