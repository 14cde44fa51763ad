/* SPDX-License-Identifier: Apache-2.0
 * Bits put into another order, in the first-level cache. */
#include "ops/transform/cpu/transform_cpu.h"
#include "cpu/cpu.h"

#include <string.h>

#define INLINE __attribute__((always_inline)) static inline

/* ---- transposes in registers ----
 * Vectors of N lanes: of 32 bytes, for single bytes of sixteen, so that the compiler unrolls the
 * loops. Interleaving row i with row i + N/2, log2 N times, transposes N x N. */

typedef uint8_t narrow_8 __attribute__((vector_size(16)));
typedef uint8_t lanes_8 __attribute__((vector_size(32)));
typedef uint16_t lanes_16 __attribute__((vector_size(32)));
typedef uint32_t lanes_32 __attribute__((vector_size(32)));
typedef uint64_t lanes_64 __attribute__((vector_size(32)));

/* Through pointers: as values such vectors change the calling convention, which is warned of even
 * where no call is left. */
INLINE void zip_bytes(const narrow_8 *a, const narrow_8 *b, narrow_8 *low, narrow_8 *high)
{
    *low = MICA_SHUFFLE(narrow_8, *a, *b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    *high = MICA_SHUFFLE(narrow_8, *a, *b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15,
                         31);
}

INLINE void zip(const lanes_8 *a, const lanes_8 *b, int bytes, lanes_8 *low, lanes_8 *high)
{
    if (bytes == 2) {
        *low = (lanes_8)MICA_SHUFFLE(lanes_16, *a, *b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6,
                                     22, 7, 23);
        *high = (lanes_8)MICA_SHUFFLE(lanes_16, *a, *b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13,
                                      29, 14, 30, 15, 31);
    } else if (bytes == 4) {
        *low = (lanes_8)MICA_SHUFFLE(lanes_32, *a, *b, 0, 8, 1, 9, 2, 10, 3, 11);
        *high = (lanes_8)MICA_SHUFFLE(lanes_32, *a, *b, 4, 12, 5, 13, 6, 14, 7, 15);
    } else {
        *low = (lanes_8)MICA_SHUFFLE(lanes_64, *a, *b, 0, 4, 1, 5);
        *high = (lanes_8)MICA_SHUFFLE(lanes_64, *a, *b, 2, 6, 3, 7);
    }
}

INLINE void transpose_bytes(const char *x, int64_t x_step, char *y, int64_t y_step)
{
    narrow_8 a[16], b[16];
    for (int i = 0; i < 16; i++) memcpy(&a[i], x + i * x_step, 16);
    for (int width = 16; width > 1; width /= 2) {
        for (int i = 0; i < 8; i++) zip_bytes(&a[i], &a[i + 8], &b[2 * i], &b[2 * i + 1]);
        for (int i = 0; i < 16; i++) a[i] = b[i];
    }
    for (int i = 0; i < 16; i++) memcpy(y + i * y_step, &a[i], 16);
}

/* x: rows x_step bytes apart; y: the columns, y_step bytes apart. */
INLINE void transpose_block(const char *x, int64_t x_step, char *y, int64_t y_step, int bytes)
{
    const int n = 32 / bytes;
    lanes_8 a[16], b[16];
    for (int i = 0; i < n; i++) memcpy(&a[i], x + i * x_step, 32);
    for (int width = n; width > 1; width /= 2) {
        for (int i = 0; i < n / 2; i++) zip(&a[i], &a[i + n / 2], bytes, &b[2 * i], &b[2 * i + 1]);
        for (int i = 0; i < n; i++) a[i] = b[i];
    }
    for (int i = 0; i < n; i++) memcpy(y + i * y_step, &a[i], 32);
}

/* A tile of `rows` runs of x, each `cols` long, becoming columns of y. */
INLINE void transpose_tile(const char *x, int64_t x_step, char *y, int64_t y_step, int64_t rows,
                           int64_t cols, int bytes)
{
    const int n = bytes == 1 ? 16 : 32 / bytes;
    int64_t whole_rows = rows - rows % n, whole_cols = cols - cols % n;
    for (int64_t j = 0; j < whole_cols; j += n)
        for (int64_t i = 0; i < whole_rows; i += n)
            if (bytes == 1)
                transpose_bytes(x + i * x_step + j, x_step, y + j * y_step + i, y_step);
            else
                transpose_block(x + i * x_step + j * bytes, x_step, y + j * y_step + i * bytes,
                                y_step, bytes);
    for (int64_t j = 0; j < cols; j++)
        for (int64_t i = j < whole_cols ? whole_rows : 0; i < rows; i++)
            memcpy(y + j * y_step + i * bytes, x + i * x_step + j * bytes, (size_t)bytes);
}

MICA_MEMORY_CLONES
void transform_cpu_transpose(const char *x, int64_t x_step, char *y, int64_t y_step, int64_t rows,
                             int64_t cols, int bytes)
{
    if (bytes == 1)
        transpose_tile(x, x_step, y, y_step, rows, cols, 1);
    else if (bytes == 2)
        transpose_tile(x, x_step, y, y_step, rows, cols, 2);
    else if (bytes == 4)
        transpose_tile(x, x_step, y, y_step, rows, cols, 4);
    else
        transpose_tile(x, x_step, y, y_step, rows, cols, 8);
}

/* ---- thin blocks ---- */

INLINE void regroup_some(bool parts, const char *restrict from, char *restrict to, int64_t n,
                         int64_t k, int64_t bytes)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < k; j++) {
            int64_t group = (i * k + j) * bytes, line = (j * TRANSFORM_CPU_LINE + i) * bytes;
            memcpy(to + (parts ? line : group), from + (parts ? group : line), (size_t)bytes);
        }
}

/* Constant counts become shuffles. */
INLINE void regroup_sized(bool parts, const char *from, char *to, int64_t n, int64_t k,
                          int64_t bytes)
{
    if (k == 2)
        regroup_some(parts, from, to, n, 2, bytes);
    else if (k == 3)
        regroup_some(parts, from, to, n, 3, bytes);
    else if (k == 4)
        regroup_some(parts, from, to, n, 4, bytes);
    else
        regroup_some(parts, from, to, n, k, bytes);
}

INLINE void regroup_either(bool parts, const char *from, char *to, int64_t n, int64_t k,
                           int64_t bytes)
{
    if (bytes == 1)
        regroup_sized(parts, from, to, n, k, 1);
    else if (bytes == 2)
        regroup_sized(parts, from, to, n, k, 2);
    else if (bytes == 4)
        regroup_sized(parts, from, to, n, k, 4);
    else
        regroup_sized(parts, from, to, n, k, 8);
}

MICA_MEMORY_CLONES
void transform_cpu_regroup(bool parts, const char *from, char *to, int64_t n, int64_t k,
                           int64_t bytes)
{
    if (parts)
        regroup_either(true, from, to, n, k, bytes);
    else
        regroup_either(false, from, to, n, k, bytes);
}
