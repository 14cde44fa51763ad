/* SPDX-License-Identifier: Apache-2.0
 * What x86 has for cpu/matrix.c: pairs (AVX-512 with bf16) and tiles (AMX). As the functions of
 * cpu/matrix.h; sizes are whole tiles where those say so. */
#ifndef MICA_CPU_MATRIX_X86_H
#define MICA_CPU_MATRIX_X86_H

#include "cpu/matrix.h"

#if defined(__x86_64__) && __has_include(<amxtileintrin.h>)
#define MICA_MATRIX_X86 1
#else
#define MICA_MATRIX_X86 0
#endif

bool mica_has_pairs(void);
/* Asks the system for tiles: one answer for the process. */
bool mica_open_tiles(void);

void mica_pairs_multiply(const mica_matrix_product *p);
/* Rows of floats; depth is even. */
void mica_pairs_round(const float *from, int64_t ld, int64_t depth, int64_t cols, uint16_t *to,
                      int64_t to_ld);
void mica_pairs_pack(const uint16_t *from, int64_t ld, int64_t depth, int64_t cols, uint16_t *to,
                     int64_t to_ld);
void mica_pairs_pack_transposed(const uint16_t *from, int64_t ld, int64_t depth, int64_t cols,
                                uint16_t *to, int64_t to_ld);
void mica_pairs_turn(const uint16_t *from, int64_t ld, int64_t rows, int64_t depth, uint16_t *to,
                     int64_t to_ld);
void mica_pairs_transpose_f32(const float *from, int64_t ld, int64_t rows, int64_t cols, float *to,
                              int64_t to_ld);

void mica_tiles_begin(void);
void mica_tiles_end(void);
void mica_tiles_multiply(const mica_matrix_product *p);

#endif
