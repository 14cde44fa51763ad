/* SPDX-License-Identifier: Apache-2.0
 * Blocks of bf16: every order of a matrix against plain indexing, products on every unit that this
 * machine has against sums in double, in all threads and in a forked child. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cpu/matrix.h"

static const char *const names[] = {"plain", "pairs", "tiles"};

/* Small integers: their sums are exact. */
static double value(int64_t row, int64_t col)
{
    return (double)((row * 7 + col * 13 + row * col % 5) % 9 - 4);
}

static uint16_t bf16(double v)
{
    float f = (float)v;
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return (uint16_t)(u >> 16);
}

/* rows x cols of value(), `ld` apart; between them numbers that must not be used. */
static uint16_t *matrix(int64_t rows, int64_t cols, int64_t ld, bool exchanged)
{
    uint16_t *m = malloc((size_t)(rows * ld + 1) * sizeof *m);
    assert_non_null(m);
    memset(m, 0x7f, (size_t)(rows * ld) * sizeof *m); /* 3.4e38 */
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++)
            m[i * ld + j] = bf16(exchanged ? value(j, i) : value(i, j));
    return m;
}

static uint16_t *poisoned(int64_t count)
{
    uint16_t *m = malloc((size_t)count * sizeof *m);
    assert_non_null(m);
    memset(m, 0xff, (size_t)count * sizeof *m);
    return m;
}

/* ---- order ---- */

static void check_pairs(const uint16_t *to, int64_t ld, int64_t depth, int64_t cols)
{
    for (int64_t k = 0; k < mica_matrix_depth(depth); k++)
        for (int64_t j = 0; j < ld; j++) {
            uint16_t got = to[(k / 2 * ld + j) * 2 + k % 2];
            uint16_t want = k < depth && j < cols         ? bf16(value(k, j))
                            : j < mica_matrix_lines(cols) ? 0
                                                          : 0xffff;
            if (got != want)
                fail_msg("%lld x %lld at %lld, %lld: %x, not %x", (long long)depth, (long long)cols,
                         (long long)k, (long long)j, got, want);
        }
}

static void order_of(mica_matrix_unit unit, int64_t depth, int64_t cols)
{
    int64_t ld = mica_matrix_lines(cols) + 16, count = mica_matrix_depth(depth) * ld;
    uint16_t *rows = matrix(depth, cols, cols + 3, false), *to = poisoned(count);
    mica_matrix_pack(unit, rows, cols + 3, depth, cols, to, ld);
    check_pairs(to, ld, depth, cols);
    free(to);

    uint16_t *columns = matrix(cols, depth, depth + 5, true);
    to = poisoned(count);
    mica_matrix_pack_transposed(unit, columns, depth + 5, depth, cols, to, ld);
    check_pairs(to, ld, depth, cols);
    free(to);

    /* As a left matrix of cols rows, from its columns. */
    int64_t left = mica_matrix_depth(depth) + 2;
    to = poisoned(mica_matrix_lines(cols) * left);
    mica_matrix_turn(unit, rows, cols + 3, cols, depth, to, left);
    for (int64_t i = 0; i < mica_matrix_lines(cols); i++)
        for (int64_t k = 0; k < left; k++) {
            uint16_t want = i < cols && k < depth          ? bf16(value(k, i))
                            : k < mica_matrix_depth(depth) ? 0
                                                           : 0xffff;
            assert_int_equal(to[i * left + k], want);
        }
    free(to), free(rows), free(columns);
}

static void orders(void **state)
{
    (void)state;
    const int64_t sizes[] = {1, 2, 15, 16, 17, 31, 32, 33, 64, 70};
    for (int unit = 0; unit <= (int)mica_matrix_best(); unit++)
        for (int i = 0; i < 10; i++)
            for (int j = 0; j < 10; j++) order_of((mica_matrix_unit)unit, sizes[i], sizes[j]);
}

/* Floats, from rows to columns. */
static void turned(void **state)
{
    (void)state;
    float from[48 * 40], to[32 * 50];
    for (int i = 0; i < 48 * 40; i++) from[i] = (float)i;
    for (int unit = 0; unit <= (int)mica_matrix_best(); unit++) {
        memset(to, 0, sizeof to);
        mica_matrix_transpose_f32((mica_matrix_unit)unit, from, 40, 48, 32, to, 50);
        for (int j = 0; j < 32; j++)
            for (int i = 0; i < 50; i++)
                assert_true(to[j * 50 + i] == (i < 48 ? from[i * 40 + j] : 0));
    }
}

/* Halves round to even; infinity and NaN stay what they are, and the next number above the largest
 * becomes infinity. */
static void rounding(void **state)
{
    (void)state;
    const struct {
        uint32_t from;
        uint16_t to;
    } cases[] = {{0x3f800000, 0x3f80}, {0x3f808000, 0x3f80}, {0x3f818000, 0x3f82},
                 {0x3f808001, 0x3f81}, {0x3f807fff, 0x3f80}, {0xbf818000, 0xbf82},
                 {0x7f800000, 0x7f80}, {0xff800000, 0xff80}, {0x7f7fffff, 0x7f80},
                 {0x7fffffff, 0x7fff}, {0x7f800001, 0x7fc0}, {0xffffffff, 0xffff},
                 {0x00000000, 0x0000}, {0x80000000, 0x8000}, {0x00018000, 0x0002}};
    float from[3 * 16];
    uint16_t to[32 * 16];
    for (int i = 0; i < 3 * 16; i++) memcpy(&from[i], &cases[i % 15].from, sizeof *from);
    for (int unit = 0; unit <= (int)mica_matrix_best(); unit++) {
        memset(to, 0xff, sizeof to);
        mica_matrix_pack_f32((mica_matrix_unit)unit, from, 16, 3, 16, to, 16);
        for (int k = 0; k < 32; k++)
            for (int j = 0; j < 16; j++) {
                uint16_t want = k < 3 ? cases[(k * 16 + j) % 15].to : 0;
                uint16_t got = to[(k / 2 * 16 + j) * 2 + k % 2];
                if (unit != MICA_MATRIX_PLAIN && want == 2) want = k < 2 ? 0 : want; /* subnormal */
                assert_int_equal(got, want);
            }
    }
}

/* ---- products ---- */

static void product_of(mica_matrix_unit unit, int64_t rows, int64_t cols, int64_t depth, bool add)
{
    int64_t a_ld = depth + 32, b_ld = cols + 16, c_ld = cols + 7;
    uint16_t *a = matrix(rows, depth, a_ld, false), *from = matrix(depth, cols, cols, false);
    uint16_t *b = poisoned(depth * b_ld);
    float *c = malloc((size_t)(rows * c_ld) * sizeof *c);
    assert_non_null(c);
    for (int64_t i = 0; i < rows * c_ld; i++) c[i] = (float)(i % 11);
    mica_matrix_pack(unit, from, cols, depth, cols, b, b_ld);
    mica_matrix_begin(unit);
    mica_matrix_multiply(unit,
                         &(mica_matrix_product){a, b, c, a_ld, b_ld, c_ld, rows, cols, depth, add});
    mica_matrix_end(unit);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < c_ld; j++) {
            double want = (double)((i * c_ld + j) % 11);
            if (j < cols && !add) want = 0;
            for (int64_t k = 0; k < depth && j < cols; k++) want += value(i, k) * value(k, j);
            if ((double)c[i * c_ld + j] != want)
                fail_msg("%s, %lld x %lld x %lld at %lld, %lld: %g, not %g", names[unit],
                         (long long)rows, (long long)cols, (long long)depth, (long long)i,
                         (long long)j, (double)c[i * c_ld + j], want);
        }
    free(a), free(b), free(from), free(c);
}

static void products_on(mica_matrix_unit unit)
{
    const int64_t sizes[] = {16, 32, 48, 80};
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++)
            for (int64_t depth = 32; depth <= 96; depth += 32)
                for (int add = 0; add < 2; add++) product_of(unit, sizes[i], sizes[j], depth, add);
}

static void test_unit(void **state)
{
    mica_matrix_unit unit = *(mica_matrix_unit *)*state;
    if (unit > mica_matrix_best()) {
        print_message("%s: this machine has none, or may not use it\n", names[unit]);
        skip();
    }
    products_on(unit);
}

/* Sums are of f32: terms that bf16 could not hold beside each other. */
static void sums(void **state)
{
    (void)state;
    uint16_t a[16 * 32] = {0}, b[16 * 32] = {0};
    float c[16 * 16];
    for (int k = 0; k < 32; k++) a[k] = bf16(k ? 0x1p-10 : 1), b[k / 2 * 32 + k % 2] = bf16(1.5);
    for (int unit = 0; unit <= (int)mica_matrix_best(); unit++) {
        mica_matrix_begin((mica_matrix_unit)unit);
        mica_matrix_multiply((mica_matrix_unit)unit,
                             &(mica_matrix_product){a, b, c, 32, 16, 16, 16, 16, 32, false});
        mica_matrix_end((mica_matrix_unit)unit);
        assert_true((double)c[0] == 1.5 + 31 * 1.5 * 0x1p-10);
        assert_true(c[1] == 0 && c[16] == 0);
    }
}

/* ---- threads and children ---- */

static pthread_barrier_t barrier;

static void *multiply_later(void *arg)
{
    (void)arg;
    pthread_barrier_wait(&barrier); /* the process had not asked for tiles when this one began */
    products_on(mica_matrix_best());
    return NULL;
}

static void threads(void **state)
{
    (void)state;
    pthread_t thread[4];
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, multiply_later, NULL), 0);
    pthread_barrier_wait(&barrier);
    products_on(mica_matrix_best());
    for (int i = 0; i < 4; i++) pthread_join(thread[i], NULL);
}

static void child(void **state)
{
    (void)state;
    mica_matrix_unit unit = mica_matrix_best();
    mica_matrix_begin(unit); /* tiles in use do no harm */
    pid_t id = fork();
    if (id == 0) {
        product_of(unit, 48, 48, 64, true);
        _exit(mica_matrix_best() == unit ? 0 : 1);
    }
    mica_matrix_end(unit);
    int status = 0;
    assert_int_equal(waitpid(id, &status, 0), id);
    assert_int_equal(status, 0);
}

int main(void)
{
    mica_matrix_unit units[] = {MICA_MATRIX_PLAIN, MICA_MATRIX_PAIRS, MICA_MATRIX_TILES};
    pthread_barrier_init(&barrier, NULL, 5);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads), /* first: its threads are older than the question */
        cmocka_unit_test(orders),
        cmocka_unit_test(turned),
        cmocka_unit_test(rounding),
        {"plain", test_unit, NULL, NULL, &units[0]},
        {"pairs", test_unit, NULL, NULL, &units[1]},
        {"tiles", test_unit, NULL, NULL, &units[2]},
        cmocka_unit_test(sums),
        cmocka_unit_test(child),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
