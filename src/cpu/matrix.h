/* SPDX-License-Identifier: Apache-2.0
 * Products of bf16 matrices with sums in f32, a block at a time: on the matrix unit (AMX) where the
 * CPU has one, else in vectors. Whoever multiplies brings blocks into the order that is needed,
 * with the functions below, and keeps them in the caches.
 *
 * The left matrix lies by rows. The right one lies by pairs of rows, the two numbers of a column
 * side by side: number (k, j) at [(k / 2 * ld + j) * 2 + k % 2]. Blocks have whole tiles: rows and
 * columns come in sixteens, depth in 32s; what is past the end of a matrix is zero.
 *
 * AMX and AVX-512 take subnormal numbers for zeros, products and sums included. */
#ifndef MICA_CPU_MATRIX_H
#define MICA_CPU_MATRIX_H

#include <stdbool.h>
#include <stdint.h>

typedef enum mica_matrix_unit {
    MICA_MATRIX_PLAIN, /* everywhere; subnormal numbers count */
    MICA_MATRIX_PAIRS, /* AVX-512 with sums of two products */
    MICA_MATRIX_TILES  /* AMX */
} mica_matrix_unit;

/* The best that this machine has and the system lets us use; the first call asks for it. */
mica_matrix_unit mica_matrix_best(void);
/* Numbers up to the next whole tile. */
static inline int64_t mica_matrix_lines(int64_t n)
{
    return (n + 15) / 16 * 16;
}
static inline int64_t mica_matrix_depth(int64_t n)
{
    return (n + 31) / 32 * 32;
}

/* c = a b, or added to c. */
typedef struct mica_matrix_product {
    const uint16_t *a, *b;
    float *c;
    int64_t a_ld, b_ld,
        c_ld; /* numbers from row to row, or from pair of rows to pair of rows / 2 */
    int64_t rows, cols, depth;
    bool add;
} mica_matrix_product;

/* Around products of a thread: its tiles are set up, and given back. */
void mica_matrix_begin(mica_matrix_unit unit);
void mica_matrix_end(mica_matrix_unit unit);
void mica_matrix_multiply(mica_matrix_unit unit, const mica_matrix_product *p);

/* The order of the same unit. A right matrix of depth x cols from rows that are `ld` apart; `to_ld`
 * as b_ld. Zeros up to whole tiles, here and below. */
void mica_matrix_pack(mica_matrix_unit unit, const uint16_t *from, int64_t ld, int64_t depth,
                      int64_t cols, uint16_t *to, int64_t to_ld);
/* The same from its columns, which are `ld` apart. */
void mica_matrix_pack_transposed(mica_matrix_unit unit, const uint16_t *from, int64_t ld,
                                 int64_t depth, int64_t cols, uint16_t *to, int64_t to_ld);
/* The same from rows of floats, rounded to nearest even as the unit's instructions do. */
void mica_matrix_pack_f32(mica_matrix_unit unit, const float *from, int64_t ld, int64_t depth,
                          int64_t cols, uint16_t *to, int64_t to_ld);
/* A left matrix of rows x depth from its columns, which are `ld` apart. */
void mica_matrix_turn(mica_matrix_unit unit, const uint16_t *from, int64_t ld, int64_t rows,
                      int64_t depth, uint16_t *to, int64_t to_ld);
/* Floats: rows x cols, both whole tiles, become cols x rows. */
void mica_matrix_transpose_f32(mica_matrix_unit unit, const float *from, int64_t ld, int64_t rows,
                               int64_t cols, float *to, int64_t to_ld);

#endif
