/* SPDX-License-Identifier: Apache-2.0
 * What unit tests call of cmocka, behind its own header, for a C library that this system has no
 * cmocka for: a test that fails says where and jumps out, and a program with one ends with 1. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static jmp_buf out;
static int failures, skipped;

void print_message(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
}

void print_error(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vfprintf(stdout, format, args);
    va_end(args);
}

void _fail(const char *file, int line)
{
    printf("%s:%d: failed\n", file, line);
    longjmp(out, 1);
}

void _skip(const char *file, int line)
{
    printf("%s:%d: skipped\n", file, line);
    skipped++;
    longjmp(out, 2);
}

static void need(int holds, const char *what, const char *file, int line)
{
    if (holds) return;
    printf("%s\n", what);
    _fail(file, line);
}

void _assert_true(const LargestIntegralType result, const char *expression, const char *file,
                  const int line)
{
    need(result != 0, expression, file, line);
}

void _assert_int_equal(const LargestIntegralType a, const LargestIntegralType b, const char *file,
                       const int line)
{
    if (a != b) printf("%#llx != %#llx\n", (unsigned long long)a, (unsigned long long)b);
    need(a == b, "integers differ", file, line);
}

void _assert_int_not_equal(const LargestIntegralType a, const LargestIntegralType b,
                           const char *file, const int line)
{
    need(a != b, "integers are equal", file, line);
}

void _assert_in_range(const LargestIntegralType value, const LargestIntegralType least,
                      const LargestIntegralType most, const char *file, const int line)
{
    need(value >= least && value <= most, "out of range", file, line);
}

void _assert_float_equal(const float a, const float b, const float epsilon, const char *file,
                         const int line)
{
    need(a - b <= epsilon && b - a <= epsilon, "numbers differ", file, line);
}

void _assert_string_equal(const char *a, const char *b, const char *file, const int line)
{
    if (strcmp(a, b) != 0) printf("\"%s\" != \"%s\"\n", a, b);
    need(!strcmp(a, b), "texts differ", file, line);
}

void _assert_string_not_equal(const char *a, const char *b, const char *file, const int line)
{
    need(strcmp(a, b) != 0, "texts are equal", file, line);
}

void _assert_memory_equal(const void *a, const void *b, size_t size, const char *file, int line)
{
    need(!memcmp(a, b, size), "memory differs", file, line);
}

void _assert_memory_not_equal(const void *a, const void *b, size_t size, const char *file, int line)
{
    need(memcmp(a, b, size) != 0, "memory is equal", file, line);
}

int _cmocka_run_group_tests(const char *name, const struct CMUnitTest *tests, size_t count,
                            CMFixtureFunction setup, CMFixtureFunction teardown)
{
    void *group = NULL;
    (void)name;
    if (setup && setup(&group) != 0) return 1;
    for (size_t i = 0; i < count; i++) {
        void *volatile state = tests[i].initial_state ? tests[i].initial_state : group;
        void *given = state;
        int how = setjmp(out);
        if (how == 0) {
            if (tests[i].setup_func && tests[i].setup_func(&given) != 0) _fail(tests[i].name, 0);
            state = given;
            tests[i].test_func(&given);
            state = given;
        }
        if (how == 1) failures++;
        if (how == 1) printf("%s\n", tests[i].name);
        given = state;
        if (tests[i].teardown_func && setjmp(out) == 0) (void)tests[i].teardown_func(&given);
        fflush(stdout);
    }
    if (teardown) (void)teardown(&group);
    printf("%zu tests, %d failed, %d skipped\n", count, failures, skipped);
    return failures != 0;
}
