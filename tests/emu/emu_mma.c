/* SPDX-License-Identifier: Apache-2.0
 * Tensor cores: mma of a warp, wgmma of a warpgroup. Results are sums in double precision, rounded
 * once: better than the hardware's. */
#include "emu_numbers.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- warps ---- */

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
    for (int k = 0; k < 32 / emu_format_bytes[format]; k++)
        values[k] = value_of(format, row + k * emu_format_bytes[format]);
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

/* kind: formats of a and b; 2 for 32 bytes of k, 1 for 16 */
static void multiply(const emu_ptx *what, emu_block *block, const emu_ref *const *refs)
{
    (void)block;
    unsigned char rows[24][32] = {{0}};
    double values[24][32];
    int halves = what->kind[2], k = 16 * halves / emu_format_bytes[what->kind[0]];
    gather_rows(rows, refs, 4, 2 * halves, 1);
    gather_rows(rows + 16, refs, 4 + 2 * halves, halves, 0);
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
    int b_at = held + (flags & 1 ? 4 : 1), k = 32 / emu_format_bytes[what->kind[1]];
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

static int format_at(const char **at)
{
    for (int f = 0; f < FORMATS; f++) {
        size_t n = strlen(emu_formats[f]);
        if (**at == '.' && !strncmp(*at + 1, emu_formats[f], n) && strchr(". ", (*at)[1 + n])) {
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
    int k = 0;
    if (!at || sscanf(at, "mma.sync.aligned.m16n8k%d", &k) != 1) return false;
    if (!(at = strstr(at, ".row.col."))) return false;
    at = strchr(at + strlen(".row.col."), '.');
    code->run = multiply;
    code->scope = EMU_WARP;
    code->kind[0] = format_at(&at);
    code->kind[1] = format_at(&at);
    if (code->kind[0] < 0 || code->kind[1] < 0) return false;
    code->kind[2] = k * emu_format_bytes[code->kind[0]] / 16;
    return code->kind[2] == 1 || code->kind[2] == 2;
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

bool emu_read_mma(emu_ptx *code)
{
    return read_wgmma(code) || read_mma_f64(code) || read_mma(code);
}
