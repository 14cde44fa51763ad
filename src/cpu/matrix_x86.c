/* SPDX-License-Identifier: Apache-2.0
 * Blocks of bf16 on x86: products in AVX-512's pairs and AMX's tiles, and the order that they take.
 */
#include "cpu/matrix_x86.h"

#if MICA_MATRIX_X86
#include "cpu/cpu.h"

#include <cpuid.h>
#include <immintrin.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define INLINE __attribute__((always_inline)) static inline

typedef uint32_t words __attribute__((vector_size(64), aligned(2), may_alias));
enum { WIDTH = 16, DEPTH = 32 };

/* ---- pairs ---- */

#define WITH_PAIRS __attribute__((target("avx512f,avx512bw,avx512bf16")))
enum { PAIRS_ROWS = 8 };

/* Eight rows by `width` vectors, a constant. */
__attribute__((always_inline)) WITH_PAIRS static inline void
pairs_rows(const mica_matrix_product *p, int64_t i, int64_t j, int width)
{
    __m512 sum[PAIRS_ROWS][2];
    const uint16_t *a = p->a + i * p->a_ld, *b = p->b + j * 2;
    float *c = p->c + i * p->c_ld + j;
#pragma GCC unroll 8
    for (int r = 0; r < PAIRS_ROWS; r++)
        for (int v = 0; v < width; v++)
            sum[r][v] = p->add ? _mm512_loadu_ps(c + r * p->c_ld + v * WIDTH) : _mm512_setzero_ps();
    for (int64_t k = 0; k < p->depth; k += 2, a += 2, b += 2 * p->b_ld) {
        __m512bh x = (__m512bh)_mm512_loadu_si512(b);
        __m512bh y = width > 1 ? (__m512bh)_mm512_loadu_si512(b + 2 * WIDTH) : x;
#pragma GCC unroll 8
        for (int r = 0; r < PAIRS_ROWS; r++) {
            int pair;
            memcpy(&pair, a + r * p->a_ld, sizeof pair);
            __m512bh all = (__m512bh)_mm512_set1_epi32(pair);
            sum[r][0] = _mm512_dpbf16_ps(sum[r][0], all, x);
            if (width > 1) sum[r][1] = _mm512_dpbf16_ps(sum[r][1], all, y);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < PAIRS_ROWS; r++)
        for (int v = 0; v < width; v++) _mm512_storeu_ps(c + r * p->c_ld + v * WIDTH, sum[r][v]);
}

WITH_PAIRS void mica_pairs_multiply(const mica_matrix_product *p)
{
    int64_t j = 0;
    for (; j + 2 * WIDTH <= p->cols; j += 2 * WIDTH)
        for (int64_t i = 0; i < p->rows; i += PAIRS_ROWS) pairs_rows(p, i, j, 2);
    for (; j < p->cols; j += WIDTH)
        for (int64_t i = 0; i < p->rows; i += PAIRS_ROWS) pairs_rows(p, i, j, 1);
}

/* ---- tiles ---- */

#define WITH_TILES __attribute__((target("amx-tile,amx-bf16")))

/* As the instruction reads it: all eight tiles have 16 rows of 64 bytes. */
typedef struct tile_config {
    uint8_t palette, start, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_config;
_Static_assert(sizeof(tile_config) == 64, "the instruction reads 64 bytes");

WITH_TILES void mica_tiles_begin(void)
{
    static const tile_config config = {.palette = 1,
                                       .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
                                       .rows = {16, 16, 16, 16, 16, 16, 16, 16}};
    _tile_loadconfig(&config);
}

WITH_TILES void mica_tiles_end(void)
{
    _tile_release();
}

/* Two by two tiles of c, or fewer: both numbers are constants. */
__attribute__((always_inline)) WITH_TILES static inline void
multiply_tiles(const mica_matrix_product *p, int64_t i, int64_t j, int down, int across)
{
    const int64_t a_step = 2 * p->a_ld, b_step = 4 * p->b_ld, c_step = 4 * p->c_ld; /* bytes */
    const uint16_t *a = p->a + i * p->a_ld, *b = p->b + j * 2;
    float *c = p->c + i * p->c_ld + j, *below = c + WIDTH * p->c_ld;
    if (p->add) {
        _tile_loadd(0, c, c_step);
        if (across > 1) _tile_loadd(1, c + WIDTH, c_step);
        if (down > 1) _tile_loadd(2, below, c_step);
        if (down > 1 && across > 1) _tile_loadd(3, below + WIDTH, c_step);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t k = 0; k < p->depth; k += DEPTH, a += DEPTH, b += DEPTH * p->b_ld) {
        _tile_loadd(6, b, b_step);
        _tile_loadd(4, a, a_step);
        _tile_dpbf16ps(0, 4, 6);
        if (across > 1) {
            _tile_loadd(7, b + 2 * WIDTH, b_step);
            _tile_dpbf16ps(1, 4, 7);
        }
        if (down > 1) {
            _tile_loadd(5, a + WIDTH * p->a_ld, a_step);
            _tile_dpbf16ps(2, 5, 6);
            if (across > 1) _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, c, c_step);
    if (across > 1) _tile_stored(1, c + WIDTH, c_step);
    if (down > 1) _tile_stored(2, below, c_step);
    if (down > 1 && across > 1) _tile_stored(3, below + WIDTH, c_step);
}

WITH_TILES void mica_tiles_multiply(const mica_matrix_product *p)
{
    /* gcc's loads of tiles do not say that they read memory. */
    __asm__ volatile("" ::: "memory");
    for (int64_t i = 0; i < p->rows; i += 2 * WIDTH)
        for (int64_t j = 0; j < p->cols; j += 2 * WIDTH) {
            bool one_down = p->rows - i <= WIDTH, one_across = p->cols - j <= WIDTH;
            if (one_down && one_across)
                multiply_tiles(p, i, j, 1, 1);
            else if (one_down)
                multiply_tiles(p, i, j, 1, 2);
            else if (one_across)
                multiply_tiles(p, i, j, 2, 1);
            else
                multiply_tiles(p, i, j, 2, 2);
        }
    __asm__ volatile("" ::: "memory");
}

/* ---- order ----
 * All by blocks of 16 by 16 pairs. Pairs lie in memory, or are made of two lines; rows and columns
 * of a block may change places. */

#define PICK(a, b, ...) ((words)MICA_SHUFFLE(words, a, b, __VA_ARGS__))

/* Lanes of b and a whose numbers differ in one bit change places. */
INLINE void exchange_1(words *a, words *b)
{
    words x = *a, y = *b;
    *a = PICK(x, y, 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30);
    *b = PICK(x, y, 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31);
}
INLINE void exchange_2(words *a, words *b)
{
    words x = *a, y = *b;
    *a = PICK(x, y, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
    *b = PICK(x, y, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
}
INLINE void exchange_4(words *a, words *b)
{
    words x = *a, y = *b;
    *a = PICK(x, y, 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27);
    *b = PICK(x, y, 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31);
}
INLINE void exchange_8(words *a, words *b)
{
    words x = *a, y = *b;
    *a = PICK(x, y, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23);
    *b = PICK(x, y, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
}

INLINE void exchange_rows_and_columns(words m[WIDTH])
{
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) exchange_8(&m[i], &m[i + 8]);
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) exchange_4(&m[i / 4 * 8 + i % 4], &m[i / 4 * 8 + i % 4 + 4]);
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) exchange_2(&m[i / 2 * 4 + i % 2], &m[i / 2 * 4 + i % 2 + 2]);
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) exchange_1(&m[i * 2], &m[i * 2 + 1]);
}

/* 16 lines of 16 pairs become columns. */
INLINE void turn_pairs(const uint16_t *from, int64_t ld, uint16_t *to, int64_t to_ld)
{
    words m[WIDTH];
#pragma GCC unroll 16
    for (int i = 0; i < WIDTH; i++) m[i] = *(const words *)(from + i * ld);
    exchange_rows_and_columns(m);
#pragma GCC unroll 16
    for (int i = 0; i < WIDTH; i++) *(words *)(to + i * to_ld) = m[i];
}

/* Two lines of 32 numbers: pairs of those at even and of those at odd places. */
INLINE void pair_lines(const uint16_t *a, const uint16_t *b, words *even, words *odd)
{
    words x = *(const words *)a, y = *(const words *)b;
    *even = (x & 0xffff) | y << 16;
    *odd = x >> 16 | (y & 0xffff0000);
}

/* 32 lines of 32 numbers, of which `count` are stored, as lines of pairs. */
INLINE void make_pairs(const uint16_t *from, int64_t ld, int count, uint16_t *to, int64_t to_ld)
{
    for (int i = 0; i < WIDTH; i++) {
        words x, y, *line = (words *)(to + i * to_ld);
        pair_lines(from + 2 * i * ld, from + (2 * i + 1) * ld, &x, &y);
        line[0] = PICK(x, y, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
        if (count > WIDTH)
            line[1] = PICK(x, y, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    }
}

/* The same as columns: `count` lines of 32 numbers. */
INLINE void turn_numbers(const uint16_t *from, int64_t ld, int count, uint16_t *to, int64_t to_ld)
{
    words even[WIDTH], odd[WIDTH];
#pragma GCC unroll 16
    for (int i = 0; i < WIDTH; i++)
        pair_lines(from + 2 * i * ld, from + (2 * i + 1) * ld, &even[i], &odd[i]);
    exchange_rows_and_columns(even);
#pragma GCC unroll 16
    for (int i = 0; i < WIDTH; i++)
        if (2 * i < count) *(words *)(to + 2 * i * to_ld) = even[i];
    exchange_rows_and_columns(odd);
#pragma GCC unroll 16
    for (int i = 0; i < WIDTH; i++)
        if (2 * i < count) *(words *)(to + (2 * i + 1) * to_ld) = odd[i];
}

/* `lines` lines of `count` numbers, in blocks of 32 numbers and 16 or 32 lines, which lie `down`
 * and `across` numbers apart in `to`. */
typedef struct move {
    const uint16_t *from;
    uint16_t *to;
    int64_t ld, to_ld, lines, count, down, across;
} move;

typedef enum order { TURN_PAIRS, MAKE_PAIRS, TURN_NUMBERS } order;

INLINE void move_block(order order, const uint16_t *from, int64_t ld, int count, uint16_t *to,
                       int64_t to_ld)
{
    if (order == TURN_PAIRS)
        turn_pairs(from, ld, to, to_ld);
    else if (order == MAKE_PAIRS)
        make_pairs(from, ld, count, to, to_ld);
    else
        turn_numbers(from, ld, count, to, to_ld);
}

/* The order is a constant. */
INLINE void move_all(const move *m, order order)
{
    const int high = order == TURN_PAIRS ? WIDTH : DEPTH;
    for (int64_t i = 0; i < m->lines; i += high)
        for (int64_t j = 0; j < m->count; j += DEPTH) {
            const uint16_t *from = m->from + i * m->ld + j;
            uint16_t *to = m->to + i / high * m->down + j / DEPTH * m->across;
            int64_t lines = m->lines - i, count = m->count - j;
            if (lines >= high && count >= DEPTH) {
                move_block(order, from, m->ld, DEPTH, to, m->to_ld);
                continue;
            }
            uint16_t part[DEPTH * DEPTH] = {0};
            if (lines > high) lines = high;
            if (count > DEPTH) count = DEPTH;
            for (int64_t l = 0; l < lines; l++)
                memcpy(part + l * DEPTH, from + l * m->ld, (size_t)count * sizeof *part);
            move_block(order, part, DEPTH, (int)mica_matrix_lines(count), to, m->to_ld);
        }
}

WITH_PAIRS void mica_pairs_pack(const uint16_t *from, int64_t ld, int64_t depth, int64_t cols,
                                uint16_t *to, int64_t to_ld)
{
    const move m = {from, to, ld, 2 * to_ld, depth, cols, DEPTH * to_ld, 2 * DEPTH};
    move_all(&m, MAKE_PAIRS);
}

WITH_PAIRS void mica_pairs_pack_transposed(const uint16_t *from, int64_t ld, int64_t depth,
                                           int64_t cols, uint16_t *to, int64_t to_ld)
{
    const move m = {from, to, ld, 2 * to_ld, cols, depth, 2 * WIDTH, DEPTH * to_ld};
    move_all(&m, TURN_PAIRS);
}

WITH_PAIRS void mica_pairs_turn(const uint16_t *from, int64_t ld, int64_t rows, int64_t depth,
                                uint16_t *to, int64_t to_ld)
{
    const move m = {from, to, ld, to_ld, depth, rows, DEPTH, DEPTH * to_ld};
    move_all(&m, TURN_NUMBERS);
}

WITH_PAIRS void mica_pairs_transpose_f32(const float *from, int64_t ld, int64_t rows, int64_t cols,
                                         float *to, int64_t to_ld)
{
    for (int64_t i = 0; i < rows; i += WIDTH)
        for (int64_t j = 0; j < cols; j += WIDTH) {
            words m[WIDTH];
#pragma GCC unroll 16
            for (int r = 0; r < WIDTH; r++) m[r] = *(const words *)(from + (i + r) * ld + j);
            exchange_rows_and_columns(m);
#pragma GCC unroll 16
            for (int r = 0; r < WIDTH; r++) *(words *)(to + (j + r) * to_ld + i) = m[r];
        }
}

/* Whole pairs of rows. */
WITH_PAIRS void mica_pairs_round(const float *from, int64_t ld, int64_t depth, int64_t cols,
                                 uint16_t *to, int64_t to_ld)
{
    const __m512i order =
        _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                         21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    for (int64_t k = 0; k < depth; k += 2)
        for (int64_t j = 0; j < cols; j += WIDTH) {
            __m512 even = _mm512_loadu_ps(from + k * ld + j);
            __m512 odd = _mm512_loadu_ps(from + (k + 1) * ld + j);
            __m512i rows = (__m512i)_mm512_cvtne2ps_pbh(odd, even);
            _mm512_storeu_si512(to + k * to_ld + 2 * j, _mm512_permutexvar_epi16(order, rows));
        }
}

/* ---- which ---- */

bool mica_has_pairs(void)
{
    return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512bw");
}

static bool has_tiles(void)
{
    const unsigned wanted = 1u << 22 | 1u << 24; /* bf16, tiles */
    unsigned a, b, c, d;
    return mica_has_pairs() && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & wanted) == wanted;
}

/* Linux keeps room for a thread's tiles only where the process has asked for it; threads there are,
 * threads to come and children have it, too. */
static bool may_use_tiles(void)
{
    const long ask_permission = 0x1023, tile_data = 18;
    return syscall(SYS_arch_prctl, ask_permission, tile_data) == 0;
}

bool mica_open_tiles(void)
{
    return has_tiles() && may_use_tiles();
}
#endif
