/* SPDX-License-Identifier: Apache-2.0
 * Blocks of bf16: which unit there is, and plain loops where there is none. These are what the
 * others are compared with; nobody waits for them. */
#include "cpu/matrix_x86.h"

#include <pthread.h>
#include <string.h>

/* ---- plain ---- */

static float value(uint16_t number)
{
    uint32_t bits = (uint32_t)number << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* Nearest even; what is NaN stays one. */
static uint16_t rounded(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return (uint16_t)(f != f ? u >> 16 | 0x40 : (u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* Sixteen columns of a row at a time. */
static void multiply_plain(const mica_matrix_product *p)
{
    for (int64_t i = 0; i < p->rows; i++)
        for (int64_t j = 0; j < p->cols; j += 16) {
            float *c = p->c + i * p->c_ld + j, sum[16] = {0};
            for (int64_t k = 0; k < p->depth; k++) {
                const uint16_t *b = p->b + (k / 2 * p->b_ld + j) * 2 + k % 2;
                float a = value(p->a[i * p->a_ld + k]);
                for (int l = 0; l < 16; l++) sum[l] += a * value(b[2 * l]);
            }
            for (int l = 0; l < 16; l++) c[l] = p->add ? c[l] + sum[l] : sum[l];
        }
}

/* Number (k, j) of a right matrix. */
static uint16_t *right(uint16_t *to, int64_t ld, int64_t k, int64_t j)
{
    return to + (k / 2 * ld + j) * 2 + k % 2;
}

/* From numbers that are `down` and `across` apart. */
static void pack_plain(const uint16_t *from, int64_t down, int64_t across, int64_t depth,
                       int64_t cols, uint16_t *to, int64_t to_ld)
{
    for (int64_t k = 0; k < mica_matrix_depth(depth); k++)
        for (int64_t j = 0; j < mica_matrix_lines(cols); j++)
            *right(to, to_ld, k, j) = k < depth && j < cols ? from[k * down + j * across] : 0;
}

/* ---- which ---- */

static mica_matrix_unit best = MICA_MATRIX_PLAIN;

#if MICA_MATRIX_X86
static void find_best(void)
{
    if (mica_has_pairs()) best = MICA_MATRIX_PAIRS;
    if (mica_open_tiles()) best = MICA_MATRIX_TILES;
}

mica_matrix_unit mica_matrix_best(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find_best);
    return best;
}
#else
mica_matrix_unit mica_matrix_best(void)
{
    return best;
}
#endif

/* ---- products ---- */

void mica_matrix_begin(mica_matrix_unit unit)
{
#if MICA_MATRIX_X86
    if (unit == MICA_MATRIX_TILES) mica_tiles_begin();
#endif
    (void)unit;
}

void mica_matrix_end(mica_matrix_unit unit)
{
#if MICA_MATRIX_X86
    if (unit == MICA_MATRIX_TILES) mica_tiles_end();
#endif
    (void)unit;
}

void mica_matrix_multiply(mica_matrix_unit unit, const mica_matrix_product *p)
{
#if MICA_MATRIX_X86
    if (unit == MICA_MATRIX_TILES) {
        mica_tiles_multiply(p);
        return;
    }
    if (unit == MICA_MATRIX_PAIRS) {
        mica_pairs_multiply(p);
        return;
    }
#endif
    (void)unit;
    multiply_plain(p);
}

/* ---- order ---- */

void mica_matrix_pack(mica_matrix_unit unit, const uint16_t *from, int64_t ld, int64_t depth,
                      int64_t cols, uint16_t *to, int64_t to_ld)
{
#if MICA_MATRIX_X86
    if (unit != MICA_MATRIX_PLAIN) {
        mica_pairs_pack(from, ld, depth, cols, to, to_ld);
        return;
    }
#endif
    (void)unit;
    pack_plain(from, ld, 1, depth, cols, to, to_ld);
}

void mica_matrix_pack_transposed(mica_matrix_unit unit, const uint16_t *from, int64_t ld,
                                 int64_t depth, int64_t cols, uint16_t *to, int64_t to_ld)
{
#if MICA_MATRIX_X86
    if (unit != MICA_MATRIX_PLAIN) {
        mica_pairs_pack_transposed(from, ld, depth, cols, to, to_ld);
        return;
    }
#endif
    (void)unit;
    pack_plain(from, 1, ld, depth, cols, to, to_ld);
}

void mica_matrix_turn(mica_matrix_unit unit, const uint16_t *from, int64_t ld, int64_t rows,
                      int64_t depth, uint16_t *to, int64_t to_ld)
{
#if MICA_MATRIX_X86
    if (unit != MICA_MATRIX_PLAIN) {
        mica_pairs_turn(from, ld, rows, depth, to, to_ld);
        return;
    }
#endif
    (void)unit;
    for (int64_t i = 0; i < mica_matrix_lines(rows); i++)
        for (int64_t k = 0; k < mica_matrix_depth(depth); k++)
            to[i * to_ld + k] = i < rows && k < depth ? from[k * ld + i] : 0;
}

void mica_matrix_transpose_f32(mica_matrix_unit unit, const float *from, int64_t ld, int64_t rows,
                               int64_t cols, float *to, int64_t to_ld)
{
#if MICA_MATRIX_X86
    if (unit != MICA_MATRIX_PLAIN) {
        mica_pairs_transpose_f32(from, ld, rows, cols, to, to_ld);
        return;
    }
#endif
    (void)unit;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++) to[j * to_ld + i] = from[i * ld + j];
}

void mica_matrix_pack_f32(mica_matrix_unit unit, const float *from, int64_t ld, int64_t depth,
                          int64_t cols, uint16_t *to, int64_t to_ld)
{
    int64_t done = 0;
#if MICA_MATRIX_X86
    if (unit != MICA_MATRIX_PLAIN) {
        done = depth / 2 * 2;
        mica_pairs_round(from, ld, done, cols, to, to_ld);
    }
#endif
    (void)unit;
    for (int64_t k = done; k < mica_matrix_depth(depth); k++)
        for (int64_t j = 0; j < cols; j++)
            *right(to, to_ld, k, j) = k < depth ? rounded(from[k * ld + j]) : 0;
}
