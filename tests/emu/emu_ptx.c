/* SPDX-License-Identifier: Apache-2.0
 * The assembly of mica's kernels, instruction by instruction, as the PTX manual describes it.
 * Results of the matrix units are sums in double precision, rounded once: better than the
 * hardware's. */
#define _GNU_SOURCE
#include "emu_run.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- operands ---- */

static uint32_t word_of(const emu_ref *r)
{
    uint32_t v = 0;
    if (r->out)
        memcpy(&v, r->at, r->bytes < 4 ? r->bytes : 4);
    else
        v = (uint32_t)r->bits;
    return v;
}

static float float_of(const emu_ref *r)
{
    uint32_t bits = word_of(r);
    float v;
    memcpy(&v, &bits, 4);
    return v;
}

static double double_of(const emu_ref *r)
{
    double v;
    memcpy(&v, r->out ? r->at : (const void *)&r->bits, 8);
    return v;
}

static void put(const emu_ref *r, uint32_t v)
{
    memcpy(r->at, &v, r->bytes < 4 ? r->bytes : 4);
}

static void put_float(const emu_ref *r, float v)
{
    memcpy(r->at, &v, 4);
}

/* ---- number formats ---- */

enum { F16, BF16, TF32, E4M3, E5M2, S8, U8, FORMATS };
static const char *const formats[FORMATS] = {"f16", "bf16", "tf32", "e4m3", "e5m2", "s8", "u8"};
static const int format_bytes[FORMATS] = {2, 2, 4, 1, 1, 1, 1};

static double half_value(uint32_t h)
{
    static double values[1 << 16]; /* of what was asked for; of zeros each time anew */
    if (values[h & 0xffff] != 0) return values[h & 0xffff];
    int e = (int)(h >> 10 & 31), m = (int)(h & 1023);
    double a = e == 31 ? (m ? (double)NAN : (double)INFINITY)
               : e     ? ldexp(1024 + m, e - 25)
                       : ldexp(m, -24);
    return values[h & 0xffff] = h & 0x8000 ? -a : a;
}

static double value_of(int format, const unsigned char *p)
{
    uint32_t bits = 0;
    float v;
    memcpy(&bits, p, (size_t)format_bytes[format]);
    switch (format) {
    case F16:
        return half_value(bits);
    case BF16:
    case TF32: /* the unit does not look at the last 13 bits */
        bits = format == BF16 ? bits << 16 : bits & ~0x1fffu;
        memcpy(&v, &bits, 4);
        return (double)v;
    case E5M2:
        return half_value(bits << 8);
    case E4M3: {
        int e = (int)(bits >> 3 & 15), m = (int)(bits & 7);
        double a = e == 15 && m == 7 ? (double)NAN : e ? ldexp(8 + m, e - 10) : ldexp(m, -9);
        return bits & 0x80 ? -a : a;
    }
    case S8:
        return (double)(int8_t)bits;
    default:
        return (double)(uint8_t)bits;
    }
}

static uint32_t half_bits(double v)
{
    uint32_t sign = signbit(v) ? 0x8000 : 0;
    double a = fabs(v);
    if (v != v) return 0x7fff;
    int e;
    frexp(a, &e); /* a = m 2^e, m in [0.5, 1) */
    int last = (a > 0 && e - 11 > -24) ? e - 11 : -24;
    double n = rint(ldexp(a, -last)); /* of 2^last */
    if (ldexp(n, last) >= 65536) return sign | 0x7c00;
    if (n == 0) return sign;
    if (last == -24 && n < 1024) return sign | (uint32_t)n;
    while (n >= 2048) {
        n /= 2;
        last++;
    }
    return sign | (((uint32_t)(last + 25) << 10) + ((uint32_t)n - 1024));
}

/* ---- single threads ---- */

/* The code of the nearest value, of two the even one; what is past the last one saturates. */
static uint32_t eight_bits(int format, float v)
{
    unsigned char best = 0, last = format == E4M3 ? 0x7e : 0x7b;
    if (v != v) return 0x7f;
    double most = value_of(format, &last), a = fmin(fabs((double)v), most);
    for (unsigned char code = 1; code <= last; code++) {
        double far = fabs(a - value_of(format, &best)), near = fabs(a - value_of(format, &code));
        if (near < far || (near == far && code % 2 == 0)) best = code;
    }
    return best | (signbit(v) ? 0x80 : 0);
}

static uint32_t bf16_bits(const emu_ref *v)
{
    uint32_t bits = word_of(v);
    return float_of(v) != float_of(v) ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

static void convert(const emu_ptx *what, emu_block *block, const emu_ref *const *refs)
{
    (void)block;
    const emu_ref *r = refs[0];
    uint32_t bits = word_of(&r[1]);
    switch (what->kind[0]) {
    case 0: /* f32 <- f16 */
        put_float(&r[0], (float)half_value(bits));
        break;
    case 1: /* f16 <- f32 */
        put(&r[0], half_bits((double)float_of(&r[1])));
        break;
    case 2: /* bf16 <- f32, nearest even */
        put(&r[0], bf16_bits(&r[1]));
        break;
    case 3: /* tf32 <- f32, nearest, ties away from zero */
        put(&r[0], (bits & 0x7f800000) == 0x7f800000 ? bits : (bits + 0x1000) & ~0x1fffu);
        break;
    case 6: /* two of 8 bits <- f32, f32: the first goes high */
    case 7: {
        int format = what->kind[0] == 6 ? E4M3 : E5M2;
        put(&r[0], eight_bits(format, float_of(&r[1])) << 8 | eight_bits(format, float_of(&r[2])));
        break;
    }
    case 8: /* f16x2, bf16x2 <- f32, f32: the first goes high */
        put(&r[0], half_bits((double)float_of(&r[1])) << 16 | half_bits((double)float_of(&r[2])));
        break;
    case 9:
        put(&r[0], bf16_bits(&r[1]) << 16 | bf16_bits(&r[2]));
        break;
    default: { /* f16x2 <- two of 8 bits */
        int format = what->kind[0] == 4 ? E4M3 : E5M2;
        unsigned char b[2] = {(unsigned char)bits, (unsigned char)(bits >> 8)};
        put(&r[0], half_bits(value_of(format, b)) | half_bits(value_of(format, b + 1)) << 16);
    }
    }
}

static void exp2_approx(const emu_ptx *what, emu_block *block, const emu_ref *const *refs)
{
    (void)what, (void)block;
    float v = exp2f(float_of(&refs[0][1]));
    put_float(&refs[0][0], fabsf(v) < 0x1p-126f ? 0.0f : v);
}

/* kind: whether the bytes of a, of b have signs; the sum is the first operand, before and after */
static void dot_bytes(const emu_ptx *what, emu_block *block, const emu_ref *const *refs)
{
    (void)block;
    uint32_t sum = word_of(&refs[0][0]);
    for (int i = 0; i < 4; i++) {
        uint8_t a = (uint8_t)(word_of(&refs[0][1]) >> 8 * i);
        uint8_t b = (uint8_t)(word_of(&refs[0][2]) >> 8 * i);
        sum += (uint32_t)((what->kind[0] ? (int8_t)a : a) * (what->kind[1] ? (int8_t)b : b));
    }
    put(&refs[0][0], sum);
}

static void max_nan(const emu_ptx *what, emu_block *block, const emu_ref *const *refs)
{
    (void)what, (void)block;
    float a = float_of(&refs[0][1]), b = float_of(&refs[0][2]);
    put_float(&refs[0][0], a != a || b != b ? NAN : a > b ? a : b);
}

static void load_global(const emu_ptx *what, emu_block *block, const emu_ref *const *refs)
{
    (void)block;
    const emu_ref *r = refs[0];
    const uint32_t *from = (const uint32_t *)(uintptr_t)r[what->kind[0]].bits;
    if ((uintptr_t)from % (uintptr_t)(4 * what->kind[0]))
        emu_stop("%s at %p", what->text, (const void *)from);
    for (int i = 0; i < what->kind[0]; i++) put(&r[i], from[i]);
}

static void store_global(const emu_ptx *what, emu_block *block, const emu_ref *const *refs)
{
    (void)what, (void)block;
    *(uint32_t *)(uintptr_t)refs[0][0].bits = word_of(&refs[0][1]);
}

/* kind[0] words; kind[1]: from another block of the cluster */
static void load_shared(const emu_ptx *what, emu_block *block, const emu_ref *const *refs)
{
    const emu_ref *r = refs[0];
    int words = what->kind[0];
    uint32_t at = word_of(&r[words]);
    if (what->kind[1]) block = emu_block_of((int)word_of(&r[words + 1]));
    if (at % 4) emu_stop("%s at %u", what->text, at);
    const char *from = emu_shared(block, at, 4 * (unsigned)words);
    for (int i = 0; i < words; i++) {
        uint32_t v;
        memcpy(&v, from + 4 * i, 4);
        put(&r[i], v);
    }
}

static void store_shared(const emu_ptx *what, emu_block *block, const emu_ref *const *refs)
{
    const emu_ref *r = refs[0];
    uint32_t at = word_of(&r[0]);
    if (at % (4u * (unsigned)what->kind[0])) emu_stop("%s at %u", what->text, at);
    char *to = emu_shared(block, at, 4 * (unsigned)what->kind[0]);
    for (int i = 0; i < what->kind[0]; i++) {
        uint32_t v = word_of(&r[1 + i]);
        memcpy(to + 4 * i, &v, 4);
    }
}

static void nothing(const emu_ptx *what, emu_block *block, const emu_ref *const *refs)
{
    (void)what, (void)block, (void)refs;
}

/* The warps of a block divide what it got at its start: at most 65536 registers, equal for all
 * threads and a multiple of 8. One that asks for more than is left waits forever. */
static void set_registers(const emu_ptx *what, emu_block *block, const emu_ref *const *refs)
{
    (void)what;
    int asked = 0, warps = block->threads / EMU_LANES, n = (int)word_of(&refs[0][0]);
    if (n < 24 || n > 256 || n % 8) emu_stop("setmaxnreg of %d", n);
    block->registers[emu_now->index / EMU_LANES] = n;
    for (int i = 0; i < warps; i++) {
        if (!block->registers[i]) return;
        asked += block->registers[i];
    }
    int each = 65536 / block->threads / 8 * 8;
    if (asked > warps * each)
        emu_stop("setmaxnreg: %d registers by %d warps, the block has %d", asked * EMU_LANES, warps,
                 warps * each * EMU_LANES);
}

static void cluster_rank(const emu_ptx *what, emu_block *block, const emu_ref *const *refs)
{
    (void)what;
    put(&refs[0][0], (uint32_t)block->rank);
}

static void cluster_barrier(const emu_ptx *what, emu_block *block, const emu_ref *const *refs)
{
    (void)what, (void)block, (void)refs;
    emu_cluster_barrier();
}

static void named_barrier(const emu_ptx *what, emu_block *block, const emu_ref *const *refs)
{
    (void)what, (void)block;
    emu_barrier((int)word_of(&refs[0][0]), (int)word_of(&refs[0][1]));
}

/* ---- barriers in shared memory: phase and counts in the first word, bytes in the second ---- */

typedef struct mbarrier {
    unsigned phase : 12, expected : 10, pending : 10;
    int bytes;
} mbarrier;

static mbarrier *barrier_at(emu_block *block, uint32_t at)
{
    if (at % 8) emu_stop("a barrier at %u", at);
    return emu_shared(block, at, sizeof(mbarrier));
}

static void settle(mbarrier *b)
{
    if (b->pending || b->bytes) return;
    b->pending = b->expected;
    b->phase++;
}

void emu_mbarrier_bytes(emu_block *block, uint32_t at, int bytes)
{
    mbarrier *b = barrier_at(block, at);
    b->bytes -= bytes;
    settle(b);
}

static void barrier_init(const emu_ptx *what, emu_block *block, const emu_ref *const *refs)
{
    (void)what;
    uint32_t count = word_of(&refs[0][1]);
    if (count < 1 || count > 1023) emu_stop("a barrier of %u arrivals", count);
    *barrier_at(block, word_of(&refs[0][0])) =
        (mbarrier){.expected = count & 1023, .pending = count & 1023};
}

static void barrier_arrive(const emu_ptx *what, emu_block *block, const emu_ref *const *refs)
{
    mbarrier *b = barrier_at(block, word_of(&refs[0][0]));
    if (b->pending == 0) emu_stop("more arrivals than the barrier expects");
    if (what->kind[0]) b->bytes += (int)word_of(&refs[0][1]);
    b->pending--;
    settle(b);
}

static void barrier_wait(const emu_ptx *what, emu_block *block, const emu_ref *const *refs)
{
    (void)what;
    uint32_t at = word_of(&refs[0][1]), parity = word_of(&refs[0][2]);
    mbarrier *b = barrier_at(block, at);
    emu_arrivals(block, at);
    if ((b->phase & 1) == parity) emu_wait((const volatile unsigned *)(const void *)b);
    put(&refs[0][0], (b->phase & 1) != parity);
}

/* ---- warps ---- */

/* Row i % 8 of matrix i / 8 is where lane i says. kind[0]: transposed, kind[1]: a store */
static void move_matrices(const emu_ptx *what, emu_block *block, const emu_ref *const *refs)
{
    bool store = what->kind[1];
    for (int m = 0; m < 4; m++) {
        uint16_t *rows[8];
        for (int i = 0; i < 8; i++) {
            uint32_t at = word_of(&refs[8 * m + i][store ? 0 : 4]);
            if (at % 16) emu_stop("%s at %u", what->text, at);
            rows[i] = emu_shared(block, at, 16);
        }
        for (int lane = 0; lane < EMU_LANES; lane++) {
            const emu_ref *r = &refs[lane][store ? 1 + m : m];
            uint16_t pair[2], *place[2];
            for (int e = 0; e < 2; e++)
                place[e] = what->kind[0] ? &rows[2 * (lane % 4) + e][lane / 4]
                                         : &rows[lane / 4][2 * (lane % 4) + e];
            uint32_t v = store ? word_of(r) : 0;
            memcpy(pair, &v, 4);
            for (int e = 0; e < 2; e++) {
                if (store) *place[e] = pair[e];
                pair[e] = *place[e];
            }
            memcpy(&v, pair, 4);
            if (!store) put(r, v);
        }
    }
}

/* 32 bytes of k: row i of a in registers of lanes 4 i ..., 16 rows to a warp. */
static void gather_rows(unsigned char (*rows)[32], const emu_ref *const *refs, int first,
                        int registers, int step)
{
    for (int lane = 0; lane < EMU_LANES; lane++)
        for (int i = 0; i < registers; i++) {
            uint32_t v = word_of(&refs[lane][first + i]);
            memcpy(
                &rows[lane / 4 + 8 * (step ? i % 2 : 0)][4 * (lane % 4) + 16 * (step ? i / 2 : i)],
                &v, 4);
        }
}

/* 32 bytes as numbers. */
static void read_row(int format, const unsigned char *row, double values[32])
{
    for (int k = 0; k < 32 / format_bytes[format]; k++)
        values[k] = value_of(format, row + k * format_bytes[format]);
}

static double dot(const double *a, const double *b, int count)
{
    double sum = 0;
    for (int k = 0; k < count; k++) sum += a[k] * b[k];
    return sum;
}

static void accumulate(const emu_ref *r, double product, bool whole, bool add)
{
    if (whole)
        put(r, (add ? word_of(r) : 0) + (uint32_t)(int64_t)product);
    else
        put_float(r, (float)((add ? (double)float_of(r) : 0) + product));
}

/* kind: formats of a and b */
static void multiply(const emu_ptx *what, emu_block *block, const emu_ref *const *refs)
{
    (void)block;
    unsigned char rows[24][32];
    double values[24][32];
    int k = 32 / format_bytes[what->kind[0]];
    gather_rows(rows, refs, 4, 4, 1);
    gather_rows(rows + 16, refs, 8, 2, 0);
    for (int i = 0; i < 24; i++) read_row(what->kind[i >= 16], rows[i], values[i]);
    for (int lane = 0; lane < EMU_LANES; lane++)
        for (int e = 0; e < 4; e++)
            accumulate(&refs[lane][e],
                       dot(values[lane / 4 + e / 2 * 8], values[16 + lane % 4 * 2 + e % 2], k),
                       what->kind[0] >= S8, true);
}

/* kind: rows, 8 or 16; 4 of k. A lane has one element of each operand for 8 rows or columns, and of
 * the result two neighbours in 8 rows. Sums are those of multiply-adds in the order of k. */
static void multiply_f64(const emu_ptx *what, emu_block *block, const emu_ref *const *refs)
{
    (void)block;
    int eights = what->kind[0] / 8;
    double a[16][4], b[4][8];
    for (int lane = 0; lane < EMU_LANES; lane++) {
        const emu_ref *r = refs[lane];
        for (int h = 0; h < eights; h++)
            a[lane / 4 + 8 * h][lane % 4] = double_of(&r[2 * eights + h]);
        b[lane % 4][lane / 4] = double_of(&r[3 * eights]);
    }
    for (int lane = 0; lane < EMU_LANES; lane++)
        for (int e = 0; e < 2 * eights; e++) {
            double sum = double_of(&refs[lane][e]);
            for (int k = 0; k < 4; k++)
                sum = fma(a[lane / 4 + e / 2 * 8][k], b[k][lane % 4 * 2 + e % 2], sum);
            memcpy(refs[lane][e].at, &sum, 8);
        }
}

static void shuffle(const emu_ptx *what, emu_block *block, const emu_ref *const *refs)
{
    (void)what, (void)block;
    for (int lane = 0; lane < EMU_LANES; lane++) {
        if (!refs[lane]) continue;
        const emu_ref *from = refs[word_of(&refs[lane][2]) % EMU_LANES];
        /* the value of a lane that is not there is not defined */
        uint64_t v = from ? from[1].bits : 0x7ff7fff7fff7fff7u;
        memcpy(refs[lane][0].at, &v, 8);
    }
}

static void vote(const emu_ptx *what, emu_block *block, const emu_ref *const *refs)
{
    (void)what, (void)block;
    uint32_t votes = 0;
    for (int lane = 0; lane < EMU_LANES; lane++)
        if (refs[lane] && word_of(&refs[lane][1])) votes |= 1u << lane;
    for (int lane = 0; lane < EMU_LANES; lane++)
        if (refs[lane]) put(&refs[lane][0], votes);
}

static const emu_ptx shuffle_code = {"shfl.sync", shuffle, EMU_WARP, {0}};
static const emu_ptx vote_code = {"vote.sync", vote, EMU_WARP, {0}};

uint64_t emu_exchange(unsigned mask, uint64_t bits, int from)
{
    uint64_t result = 0;
    emu_ref refs[3] = {{.at = &result, .bytes = 8, .out = true},
                       {.bits = bits, .bytes = 8},
                       {.bits = (uint64_t)(unsigned)from, .bytes = 4}};
    emu_meet(&shuffle_code, refs, mask);
    return result;
}

unsigned emu_ballot(unsigned mask, bool yes)
{
    unsigned result = 0;
    emu_ref refs[2] = {{.at = &result, .bytes = 4, .out = true}, {.bits = yes, .bytes = 4}};
    emu_meet(&vote_code, refs, mask);
    return result;
}

/* ---- warpgroups ---- */

typedef struct operand {
    uint32_t start, leading, stride;
    int swizzle; /* bytes */
} operand;

static operand operand_of(uint64_t d)
{
    static const int swizzles[] = {0, 128, 64, 32};
    return (operand){(uint32_t)(d & 0x3fff) << 4, (uint32_t)(d >> 16 & 0x3fff) << 4,
                     (uint32_t)(d >> 32 & 0x3fff) << 4, swizzles[d >> 62]};
}

static uint32_t swizzled(uint32_t at, int swizzle)
{
    uint32_t mask = swizzle ? (uint32_t)swizzle / 16 - 1 : 0;
    return at ^ (at >> 7 & mask) << 4;
}

/* Row `row` of an operand whose rows lie along k: 32 bytes. */
static void fetch_row(emu_block *block, const operand *o, int row, unsigned char *to)
{
    for (unsigned b = 0; b < 32; b += 16) {
        unsigned r = (unsigned)row;
        uint32_t at = o->swizzle ? o->start + r / 8 * o->stride + r % 8 * (unsigned)o->swizzle + b
                                 : o->start + r / 8 * o->stride + b / 16 * o->leading + r % 8 * 16;
        memcpy(to + b, emu_shared(block, swizzled(at, o->swizzle), 16), 16);
    }
}

/* The same of an operand of 16-bit elements whose rows lie along m or n. */
static void fetch_column(emu_block *block, const operand *o, int row, unsigned char *to)
{
    unsigned width = (unsigned)o->swizzle / 2, m = (unsigned)row;
    if (!o->swizzle) emu_stop("an operand along m or n without a swizzle");
    for (unsigned k = 0; k < 16; k++) {
        uint32_t at = o->start + m / width * o->leading + k / 8 * o->stride +
                      k % 8 * (unsigned)o->swizzle + m % width * 2;
        memcpy(to + 2 * k, emu_shared(block, swizzled(at, o->swizzle), 2), 2);
    }
}

/* kind: n, format of a, of b; flags: 1: a in registers, 2: a along m, 4: b along n */
static void multiply_group(const emu_ptx *what, emu_block *block, const emu_ref *const *refs)
{
    int n = what->kind[0], held = n / 2, flags = what->kind[3];
    unsigned char rows[64 + 256][32];
    static double values[64 + 256][32];
    int b_at = held + (flags & 1 ? 4 : 1), k = 32 / format_bytes[what->kind[1]];
    if (flags & 1) {
        for (int warp = 0; warp < 4; warp++)
            gather_rows(&rows[16 * warp], refs + 32 * warp, held, 4, 1);
    } else {
        operand a = operand_of(refs[0][held].bits);
        for (int i = 0; i < 64; i++) (flags & 2 ? fetch_column : fetch_row)(block, &a, i, rows[i]);
    }
    operand b = operand_of(refs[0][b_at].bits);
    for (int i = 0; i < n; i++) (flags & 4 ? fetch_column : fetch_row)(block, &b, i, rows[64 + i]);
    for (int i = 0; i < 64 + n; i++) read_row(what->kind[1 + (i >= 64)], rows[i], values[i]);
    bool add = word_of(&refs[0][b_at + 1]) != 0;
    for (int t = 0; t < EMU_GROUP; t++)
        for (int e = 0; e < held; e++) {
            int row = t / 32 * 16 + t % 32 / 4 + e % 4 / 2 * 8;
            int column = e / 4 * 8 + t % 4 * 2 + e % 2;
            accumulate(&refs[t][e], dot(values[row], values[64 + column], k), what->kind[1] >= S8,
                       add);
        }
}

/* ---- which instruction a text is ---- */

/* Longest first where one is part of another. */
static const emu_ptx codes[] = {
    {"cvt.f32.f16 ", convert, EMU_LANE, {0}},
    {"cvt.rn.f16.f32 ", convert, EMU_LANE, {1}},
    {"cvt.rn.bf16.f32 ", convert, EMU_LANE, {2}},
    {"cvt.rn.f16x2.f32 ", convert, EMU_LANE, {8}},
    {"cvt.rn.bf16x2.f32 ", convert, EMU_LANE, {9}},
    {"cvt.rna.tf32.f32 ", convert, EMU_LANE, {3}},
    {"cvt.rn.satfinite.e4m3x2.f32 ", convert, EMU_LANE, {6}},
    {"cvt.rn.satfinite.e5m2x2.f32 ", convert, EMU_LANE, {7}},
    {"cvt.rn.f16x2.e4m3x2 ", convert, EMU_LANE, {4}},
    {"cvt.rn.f16x2.e5m2x2 ", convert, EMU_LANE, {5}},
    {"dp4a.s32.s32 ", dot_bytes, EMU_LANE, {1, 1}},
    {"dp4a.s32.u32 ", dot_bytes, EMU_LANE, {1, 0}},
    {"dp4a.u32.s32 ", dot_bytes, EMU_LANE, {0, 1}},
    {"dp4a.u32.u32 ", dot_bytes, EMU_LANE, {0, 0}},
    {"ex2.approx.ftz.f32 ", exp2_approx, EMU_LANE, {0}},
    {"max.NaN.f32 ", max_nan, EMU_LANE, {0}},
    {"ld.global.nc.L1::no_allocate.v4.u32 ", load_global, EMU_LANE, {4}},
    {"ld.acquire.gpu.global.s32 ", load_global, EMU_LANE, {1}},
    {"st.release.gpu.global.s32 ", store_global, EMU_LANE, {0}},
    {"ld.shared.b32 ", load_shared, EMU_LANE, {1}},
    {"ld.shared.v4.u32 ", load_shared, EMU_LANE, {4}},
    {"ld.shared::cluster.v4.f32 ", load_shared, EMU_LANE, {4, 1}},
    {"ld.shared::cluster.u32 ", load_shared, EMU_LANE, {1, 1}},
    {"st.shared.v4.f32 ", store_shared, EMU_LANE, {4}},
    {"st.shared.v2.f32 ", store_shared, EMU_LANE, {2}},
    {"ldmatrix.sync.aligned.m8n8.x4.trans", move_matrices, EMU_WARP, {1, 0}},
    {"ldmatrix.sync.aligned.m8n8.x4", move_matrices, EMU_WARP, {0, 0}},
    {"stmatrix.sync.aligned.m8n8.x4.trans", move_matrices, EMU_WARP, {1, 1}},
    {"stmatrix.sync.aligned.m8n8.x4", move_matrices, EMU_WARP, {0, 1}},
    {"cp.async.cg.shared", emu_copy_async, EMU_LANE, {16}},
    {"cp.async.ca.shared", emu_copy_async, EMU_LANE, {0}},
    {"cp.async.commit_group", emu_copy_wait, EMU_LANE, {0}},
    {"cp.async.wait_group ", emu_copy_wait, EMU_LANE, {1}},
    {"cp.async.bulk.global.shared::cta.bulk_group ", emu_bulk_store, EMU_LANE, {0}},
    {"cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 ", emu_bulk_store, EMU_LANE, {1}},
    {"cp.async.bulk.commit_group", emu_tma_wait, EMU_LANE, {0}},
    {"cp.async.bulk.wait_group", emu_tma_wait, EMU_LANE, {1}},
    {"mbarrier.init.", barrier_init, EMU_LANE, {0}},
    {"mbarrier.arrive.expect_tx.", barrier_arrive, EMU_LANE, {1}},
    {"mbarrier.arrive.", barrier_arrive, EMU_LANE, {0}},
    {"mbarrier.try_wait.parity.", barrier_wait, EMU_LANE, {0}},
    {"bar.sync ", named_barrier, EMU_LANE, {0}},
    {"barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;",
     cluster_barrier,
     EMU_LANE,
     {0}},
    {"%%cluster_ctarank;", cluster_rank, EMU_LANE, {0}},
    {"griddepcontrol.", nothing, EMU_LANE, {0}}, /* kernels follow one another */
    {"fence.mbarrier_init.", nothing, EMU_LANE, {0}},
    {"fence.proxy.async", nothing, EMU_LANE, {0}},
    {"prefetch.tensormap ", nothing, EMU_LANE, {0}},
    {"setmaxnreg.", set_registers, EMU_LANE, {0}},
    {"wgmma.fence.", nothing, EMU_LANE, {0}},
    {"wgmma.commit_group.", nothing, EMU_LANE, {0}},
    {"wgmma.wait_group.", nothing, EMU_LANE, {0}},
};

static int format_at(const char **at)
{
    for (int f = 0; f < FORMATS; f++) {
        size_t n = strlen(formats[f]);
        if (**at == '.' && !strncmp(*at + 1, formats[f], n) && strchr(". ", (*at)[1 + n])) {
            *at += 1 + n;
            return f;
        }
    }
    return -1;
}

/* mma.sync.aligned.mMn8k4.row.col.f64.f64.f64.f64: 8 rows on sm_80, 16 from sm_90 on */
static bool read_mma_f64(emu_ptx *code)
{
    const char *at = strstr(code->text, "mma.sync.aligned.m");
    int m = 0, end = 0;
    if (!at) return false;
    sscanf(at, "mma.sync.aligned.m%dn8k4.row.col.f64.f64.f64.f64 %n", &m, &end);
    if (!end || (m != 8 && m != 16)) return false;
    code->run = multiply_f64;
    code->scope = EMU_WARP;
    code->kind[0] = m;
    return true;
}

/* mma.sync.aligned.m16n8kK.row.col.C.A.B.C; the first type may be that of the accumulator */
static bool read_mma(emu_ptx *code)
{
    const char *at = strstr(code->text, "mma.sync.aligned.m16n8k");
    if (!at || !(at = strstr(at, ".row.col."))) return false;
    at = strchr(at + strlen(".row.col."), '.');
    code->run = multiply;
    code->scope = EMU_WARP;
    code->kind[0] = format_at(&at);
    code->kind[1] = format_at(&at);
    return code->kind[0] >= 0 && code->kind[1] >= 0;
}

/* wgmma.mma_async.sync.aligned.m64nNkK.C.A.B {sums}, a, b, p [, 1, 1] [, a along m] [, b along n]
 */
static bool read_wgmma(emu_ptx *code)
{
    const char *at = strstr(code->text, "wgmma.mma_async.sync.aligned.m64n");
    int k = 0;
    if (!at || sscanf(at, "wgmma.mma_async.sync.aligned.m64n%dk%d", &code->kind[0], &k) != 2)
        return false;
    at = strchr(strchr(at, 'k'), '.');
    at = strchr(at + 1, '.');
    code->run = multiply_group;
    code->scope = EMU_WARPGROUP;
    code->kind[1] = format_at(&at);
    code->kind[2] = format_at(&at);
    if (code->kind[1] < 0 || code->kind[2] < 0) return false;
    bool in_registers = strstr(at, "}, {") != NULL;
    int a = 0, b = 0;
    const char *tail = strstr(at, ", p, 1, 1");
    if (k == 16 && tail) {
        int n = sscanf(tail, ", p, 1, 1, %d, %d", &a, &b);
        if (n != (in_registers ? 1 : 2)) return false;
        if (in_registers) b = a;
    }
    code->kind[3] = in_registers | (in_registers ? 0 : a ? 2 : 0) | (b ? 4 : 0);
    return true;
}

static bool read_tma(emu_ptx *code)
{
    const char *at = strstr(code->text, "cp.async.bulk.tensor.");
    if (!at) return false;
    code->kind[0] = atoi(at + strlen("cp.async.bulk.tensor."));
    code->kind[1] = strstr(at, ".im2col") != NULL;
    code->run = strstr(at, ".global.shared::cta") ? emu_tma_store : emu_tma_load;
    return true;
}

static bool read_code(emu_ptx *code)
{
    if (read_tma(code) || read_wgmma(code) || read_mma_f64(code) || read_mma(code)) return true;
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        if (!strstr(code->text, codes[i].text)) continue;
        const char *text = code->text;
        *code = codes[i];
        code->text = text;
        return true;
    }
    return false;
}

/* Equal texts are one code: lanes that meet compare its address. */
const emu_ptx *emu_ptx_find(const char *text)
{
    static struct known {
        struct known *next;
        emu_ptx code;
        char text[];
    } * known;
    for (struct known *k = known; k; k = k->next)
        if (!strcmp(k->text, text)) return &k->code;
    struct known *k = calloc(1, sizeof *k + strlen(text) + 1);
    if (!k) abort();
    strcpy(k->text, text);
    k->code.text = k->text;
    if (!read_code(&k->code)) emu_stop("no such instruction: %s", text);
    k->next = known;
    known = k;
    return &k->code;
}

void emu_ptx_run(const emu_ptx *what, const emu_ref *refs, int count)
{
    (void)count;
    if (what->scope == EMU_LANE)
        what->run(what, emu_now->block, &refs);
    else
        emu_meet(what, refs, 0xffffffffu);
}
