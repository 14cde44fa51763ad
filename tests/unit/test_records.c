/* SPDX-License-Identifier: Apache-2.0
 * Files of records that several processes write, that were cut, that are long. */
#define _GNU_SOURCE
#include "mica/mica.h"
#include "base/log.h"
#include "plan/context.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

static char path[] = "/tmp/mica-records-XXXXXX";

static int set_up(void **state)
{
    (void)state;
    strcpy(path + sizeof path - 7, "XXXXXX");
    int fd = mkstemp(path);
    return fd < 0 || close(fd) != 0;
}

static int tear_down(void **state)
{
    (void)state;
    return unlink(path);
}

static void add(mica_records *rs, int i, int who, bool fresh)
{
    char problem[400];
    snprintf(problem, sizeof problem, "softmax x=f32:%dx%d %0300d", i + 1, who + 1, i);
    assert_int_equal(mica_records_add(rs, problem, "a device", "cpu", "", i + 0.5, fresh), MICA_OK);
}

static void open_records(mica_records *rs)
{
    memset(rs, 0, sizeof *rs);
    pthread_mutex_init(&rs->mutex, NULL);
}

static void close_records(mica_records *rs)
{
    mica_records_free(rs);
    pthread_mutex_destroy(&rs->mutex);
}

enum { WRITERS = 6, EACH = 200 };

static void write_some(int who)
{
    for (int i = 0; i < EACH; i += 50) {
        mica_records rs;
        open_records(&rs);
        for (int k = i; k < i + 50; k++) add(&rs, k, who, true);
        if (mica_records_save(&rs, path) != MICA_OK) _exit(1);
        close_records(&rs);
    }
    _exit(0);
}

static void several_processes_append(void **state)
{
    (void)state;
    for (int w = 0; w < WRITERS; w++)
        if (fork() == 0) write_some(w);
    for (int w = 0; w < WRITERS; w++) {
        int ended;
        assert_true(wait(&ended) > 0);
        assert_int_equal(ended, 0);
    }
    mica_records rs;
    open_records(&rs);
    assert_int_equal(mica_records_load(&rs, path), MICA_OK);
    assert_int_equal(rs.count, WRITERS * EACH);
    for (int w = 0; w < WRITERS; w++)
        for (int i = 0; i < EACH; i++) {
            char problem[400];
            mica_choice c;
            snprintf(problem, sizeof problem, "softmax x=f32:%dx%d %0300d", i + 1, w + 1, i);
            assert_true(mica_records_find(&rs, problem, "a device", true, &c));
            assert_true(c.ms == i + 0.5);
        }
    close_records(&rs);
}

/* Wherever a writer was interrupted, its line is the only one lost, and is reported. */
static void a_cut_line_costs_itself(void **state)
{
    (void)state;
    static const char whole[] = "softmax x=f32:1x1 | a device | cpu | tile=1 | 0.125 | mica 0.1.0";
    size_t complete = (size_t)(strrchr(whole, '|') - whole) + 1; /* all that a choice needs */
    for (size_t n = 0; n < complete; n++) {
        FILE *f = fopen(path, "w");
        assert_non_null(f);
        fprintf(f, "softmax x=f32:9x9 | a device | cpu | | 1 | mica 0.1.0\n%.*s", (int)n, whole);
        fclose(f);
        mica_records rs;
        open_records(&rs);
        add(&rs, 3, 4, true);
        assert_int_equal(mica_records_save(&rs, path), MICA_OK);
        close_records(&rs);
        open_records(&rs);
        assert_int_equal(mica_records_load(&rs, path), n ? MICA_INVALID : MICA_OK);
        assert_int_equal(rs.count, 2);
        assert_string_equal(rs.list[0].problem, "softmax x=f32:9x9");
        assert_true(rs.list[1].ms == 3.5);
        close_records(&rs);
    }
}

static void a_column_too_many_is_refused(void **state)
{
    (void)state;
    FILE *f = fopen(path, "w");
    fputs("softmax x=f32:1x1 | a device | cpu | | 1softmax x=f32:2x2 | a device | cpu | | 1 | mica "
          "0.1.0\nsoftmax x=f32:1x1 | a device | cpu | | 1 | mica softmax x=f32:2x2 | a device | "
          "cpu | | 1 | mica 0.1.0\n",
          f);
    fclose(f);
    mica_records rs;
    open_records(&rs);
    assert_int_equal(mica_records_load(&rs, path), MICA_INVALID);
    assert_int_equal(rs.count, 0);
    close_records(&rs);
}

static void the_last_of_equals_counts(void **state)
{
    (void)state;
    mica_records rs;
    mica_choice c;
    open_records(&rs);
    for (int i = 0; i < 300; i++) { /* grows several times */
        assert_int_equal(mica_records_add(&rs, "p", "d", "one", "", i, false), MICA_OK);
        add(&rs, i, 0, false);
    }
    rs.list[rs.count - 2].shipped = true;
    assert_true(mica_records_find(&rs, "p", "d", true, &c));
    assert_true(c.ms == 299);
    assert_true(mica_records_find(&rs, "p", "d", false, &c));
    assert_true(c.ms == 298);
    assert_false(mica_records_find(&rs, "p", "e", true, &c));
    assert_false(mica_records_find(&rs, "q", "d", true, &c));
    close_records(&rs);
}

/* 20,000 look-ups among 20,000 took seconds when each walked the list. */
static void looking_up_is_quick(void **state)
{
    (void)state;
    enum { MANY = 20000 };
    mica_records rs;
    open_records(&rs);
    for (int i = 0; i < MANY; i++) add(&rs, i, 0, false);
    double start = mica_seconds();
    for (int i = 0; i < MANY; i++) {
        char problem[400];
        mica_choice c;
        snprintf(problem, sizeof problem, "softmax x=f32:%dx1 %0300d", i + 1, i);
        assert_true(mica_records_find(&rs, problem, "a device", true, &c));
    }
    double each = (mica_seconds() - start) / MANY;
    assert_true(each < 20e-6);
    close_records(&rs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(several_processes_append, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_cut_line_costs_itself, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_column_too_many_is_refused, set_up, tear_down),
        cmocka_unit_test(the_last_of_equals_counts),
        cmocka_unit_test(looking_up_is_quick),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
