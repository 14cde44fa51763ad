/* SPDX-License-Identifier: Apache-2.0
 * Programs have locales of their own: numbers are read and written with a point all the same. */
#define _GNU_SOURCE
#include "mica/mica.h"
#include "base/format.h"
#include "base/text.h"

#include <float.h>
#include <locale.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

static char folder[] = "/tmp/mica-locale-XXXXXX";

/* A locale with a comma, made of nothing: bare systems have only C and C.UTF-8. */
static void write_sources(void)
{
    FILE *f = fopen("charmap", "w");
    assert_non_null(f);
    fputs("<code_set_name> ASCII\n<comment_char> %\n<escape_char> /\n<mb_cur_min> 1\n"
          "<mb_cur_max> 1\nCHARMAP\n",
          f);
    for (int c = 0; c < 128; c++) fprintf(f, "<U%04X> /x%02x\n", (unsigned)c, (unsigned)c);
    fputs("END CHARMAP\n", f);
    fclose(f);
    f = fopen("comma", "w");
    assert_non_null(f);
    fputs("comment_char %\nescape_char /\nLC_NUMERIC\ndecimal_point \"<U002C>\"\n"
          "thousands_sep \"<U002E>\"\ngrouping 3;3\nEND LC_NUMERIC\n",
          f);
    fclose(f);
}

static bool made;
static int set_up(void **state)
{
    (void)state;
    if (!mkdtemp(folder) || chdir(folder) != 0) return -1;
    write_sources();
    made = system("localedef -c -f ./charmap -i ./comma ./comma_XX >localedef.txt 2>&1") >= 0 &&
           access("comma_XX/LC_NUMERIC", R_OK) == 0;
    if (!made) (void)fprintf(stderr, "localedef is missing or failed: skipped\n");
    setenv("LOCPATH", folder, 1);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    char command[64];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return chdir("/") != 0 || system(command) != 0;
}

static int comma(void **state)
{
    (void)state;
    if (!made) return 0;
    if (!setlocale(LC_NUMERIC, "comma_XX")) return -1;
    char text[16];
    snprintf(text, sizeof text, "%.1f", 0.5);
    return strcmp(text, "0,5"); /* the test would prove nothing */
}

static int point(void **state)
{
    (void)state;
    setlocale(LC_NUMERIC, "C");
    return 0;
}

#define NEEDS_LOCALE                                                                               \
    if (!made) skip()

static void test_formats_as_snprintf(void **state)
{
    (void)state;
    static const double values[] = {0,       -0.0,    1,        0.5,       -1234567.875, 1e-300,
                                    DBL_MAX, DBL_MIN, INFINITY, -INFINITY, NAN,          0.1};
    static const char *const formats[] = {"%g",  "%.17g", "%f",    "%.0f", "%12.3f|", "%-12.3e|",
                                          "%+g", "% g",   "%#.0f", "%a",   "%08.2f",  "%G %%"};
    char got[600], want[600];
    for (size_t f = 0; f < sizeof formats / sizeof *formats; f++)
        for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
            int n = mica_format(got, sizeof got, formats[f], values[v]);
            assert_int_equal(n, snprintf(want, sizeof want, formats[f], values[v]));
#pragma GCC diagnostic pop
            assert_string_equal(got, want);
        }
    int n =
        mica_format(got, sizeof got, "%s|%-6s|%.*s|%*d|%-*d|%c|%5.3d|%x|%#X|%o|%zu|%lld|%hhu|%p",
                    "text", "ab", 2, "xyz", 4, 7, 4, 7, 'c', 5, 255u, 255u, 8u, (size_t)-1,
                    -5000000000LL, (unsigned char)200, (void *)0);
    int m = snprintf(want, sizeof want, "%s|%-6s|%.*s|%*d|%-*d|%c|%5.3d|%x|%#X|%o|%zu|%lld|%hhu|%p",
                     "text", "ab", 2, "xyz", 4, 7, 4, 7, 'c', 5, 255u, 255u, 8u, (size_t)-1,
                     -5000000000LL, (unsigned char)200, (void *)0);
    assert_int_equal(n, m);
    assert_string_equal(got, want);
    assert_int_equal(mica_format(got, sizeof got, "%*d|%.*f|%Lg", -5, 3, -1, 0.5, 2.5L),
                     snprintf(want, sizeof want, "%*d|%.*f|%Lg", -5, 3, -1, 0.5, 2.5L));
    assert_string_equal(got, want);
}

static void test_cuts_as_snprintf(void **state)
{
    (void)state;
    for (size_t size = 0; size < 24; size++) {
        char got[24], want[24];
        memset(got, '#', sizeof got);
        memset(want, '#', sizeof want);
        int n = mica_format(got, size, "a=%d b=%.3f c=%s", 12, 0.25, "end");
        assert_int_equal(n, snprintf(want, size, "a=%d b=%.3f c=%s", 12, 0.25, "end"));
        assert_memory_equal(got, want, sizeof got);
    }
    assert_int_equal(mica_format(NULL, 0, "%.2f", 1.0), 4);
}

static void test_writes_points(void **state)
{
    (void)state;
    NEEDS_LOCALE;
    char got[64];
    mica_format(got, sizeof got, "%g %.3f %e %a, %s", 0.5, -1234.5, 1.5, 0x1.8p3, "a,b");
    assert_string_equal(got, "0.5 -1234.500 1.500000e+00 0x1.8p+3, a,b");
    assert_float_equal(mica_read_double("1.5", NULL), 1.5, 0);
    char *end;
    assert_float_equal(mica_read_double("1,5", &end), 1, 0);
    assert_string_equal(end, ",5");
}

static void check_line(const char *line)
{
    mica_problem *problem;
    char text[256];
    assert_int_equal(mica_problem_from_text(line, &problem), MICA_OK);
    mica_problem_text(problem, text, sizeof text);
    mica_problem_destroy(problem);
    assert_string_equal(text, line);
}

static void test_lines(void **state)
{
    (void)state;
    NEEDS_LOCALE;
    check_line("norm x=f32:4x8 eps=0.001");
    check_line("gemm a=f32:4x8 b=f32:8x4 alpha=0.5");
    mica_problem *problem;
    assert_int_equal(mica_problem_from_text("norm kind=layer x=f32:4x8 eps=0,001", &problem),
                     MICA_INVALID);
    assert_int_equal(mica_problem_from_text("norm kind=layer x=f32:4x8 eps=-0.5", &problem),
                     MICA_INVALID);
    assert_non_null(strstr(mica_error(), "-0.5"));
}

static void test_records(void **state)
{
    (void)state;
    NEEDS_LOCALE;
    mica_context *ctx;
    assert_int_equal(mica_context_create("cpu", &ctx), MICA_OK);
    mica_plan *plan;
    const char *line = "softmax x=f32:64x64";
    mica_options options = {.size = sizeof options, .mode = MICA_MODE_MEASURE, .measure_ms = 5};
    for (int i = 0; i < 50; i++) { /* others may disturb a measurement, which then leaves nothing */
        assert_int_equal(mica_plan_from_text(ctx, line, &options, &plan), MICA_OK);
        bool disturbed = *mica_plan_disturbed(plan) != 0;
        mica_plan_destroy(plan);
        if (!disturbed) break;
    }
    assert_int_equal(mica_context_save_records(ctx, "records.txt"), MICA_OK);
    FILE *f = fopen("records.txt", "r");
    char text[1024];
    while (fgets(text, sizeof text, f)) { /* problem | device | engine | config | ms | version */
        char *last = strrchr(text, '|');
        assert_non_null(last);
        assert_non_null(strchr(text, '.'));
        *last = 0;
        assert_null(strchr(strrchr(text, '|'), ','));
    }
    fclose(f);
    f = fopen("own.txt", "w");
    fputs("softmax x=f32:64x64 | own | cpu |  | 0.25 | mica 0.1.0\n", f);
    fclose(f);
    assert_int_equal(mica_context_load_records(ctx, "own.txt"), MICA_OK);
    mica_context_destroy(ctx);
}

/* A thread may have a locale that the program has not. It is copied from the program's, which has
 * it for a moment: with LOCPATH, glibc's newlocale loses memory. */
static void *own_locale(void *made_here)
{
    if (!setlocale(LC_NUMERIC, "comma_XX")) return NULL;
    locale_t l = duplocale(LC_GLOBAL_LOCALE);
    setlocale(LC_NUMERIC, "C");
    if (!l) return NULL;
    uselocale(l);
    char text[32], theirs[32];
    snprintf(theirs, sizeof theirs, "%g", 0.5);
    mica_format(text, sizeof text, "%g", 0.5);
    *(bool *)made_here =
        !strcmp(theirs, "0,5") && !strcmp(text, "0.5") && mica_read_double("0.25", NULL) == 0.25;
    uselocale(LC_GLOBAL_LOCALE);
    freelocale(l);
    return NULL;
}

static void test_locale_of_a_thread(void **state)
{
    (void)state;
    NEEDS_LOCALE;
    bool good = false;
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, own_locale, &good), 0);
    pthread_join(thread, NULL);
    assert_true(good);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formats_as_snprintf),
        cmocka_unit_test(test_cuts_as_snprintf),
        cmocka_unit_test_setup_teardown(test_writes_points, comma, point),
        cmocka_unit_test_setup_teardown(test_lines, comma, point),
        cmocka_unit_test_setup_teardown(test_records, comma, point),
        cmocka_unit_test(test_locale_of_a_thread),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
