/* SPDX-License-Identifier: Apache-2.0
 * Case files hold what two cores can check: a line that costs the reference more than a few
 * hundredths of a second belongs into *-long.txt, for a GPU or a machine with many cores. */
#include "lines.h"

#include <glob.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

static const double most_flops = 4e6, most_bytes = 512e3;

static bool is_cheap(const mica_problem *problem)
{
    double flops, bytes;
    mica_problem_cost(problem, &flops, &bytes);
    return flops <= most_flops && bytes <= most_bytes;
}

static bool is_for_many_cores(const char *file)
{
    static const char *const endings[] = {"-long.txt", "-tiles.txt", "-large.txt", "huge.txt"};
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        const char *at = strstr(file, endings[i]);
        if (at && !strcmp(at, endings[i])) return true;
    }
    return false;
}

static int dear_lines(char *path)
{
    cli_lines lines = {0};
    int dear = 0;
    cli_lines_read(&lines, &path, 1);
    for (size_t i = 0; i < lines.count; i++) {
        mica_problem *problem = cli_line_problem(&lines, &lines.items[i]);
        assert_non_null(problem);
        double flops, bytes;
        mica_problem_cost(problem, &flops, &bytes);
        if (!is_cheap(problem) && ++dear)
            print_message("%s: %.1f MFLOP and %.2f MB of at most %.1f and %.2f: move it to the "
                          "file's -long.txt\n  %s\n",
                          lines.items[i].where, flops / 1e6, bytes / 1e6, most_flops / 1e6,
                          most_bytes / 1e6, lines.items[i].text);
        mica_problem_destroy(problem);
    }
    assert_int_equal(lines.errors, 0);
    cli_lines_free(&lines);
    return dear;
}

static void lines_of_every_commit_are_cheap(void **state)
{
    (void)state;
    glob_t files;
    int dear = 0, looked_at = 0;
    assert_int_equal(glob("tests/cases/*.txt", 0, NULL, &files), 0);
    for (size_t i = 0; i < files.gl_pathc; i++) {
        if (is_for_many_cores(files.gl_pathv[i])) continue;
        dear += dear_lines(files.gl_pathv[i]);
        looked_at++;
    }
    globfree(&files);
    assert_true(looked_at > 10);
    assert_int_equal(dear, 0);
}

/* A product for the tiles of a GPU is noticed, and so is much memory with little arithmetic. */
static void dear_ones_are_noticed(void **state)
{
    (void)state;
    char path[] = "/tmp/mica-cases-XXXXXX";
    int fd = mkstemp(path);
    static const char text[] = "gemm a=f32:300x4096 b=f32:4096x256\n"
                               "activation act=relu x=f32:100000\n"
                               "activation act=relu x=f32:100\n";
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, sizeof text - 1), sizeof text - 1);
    close(fd);
    assert_int_equal(dear_lines(path), 2);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_of_every_commit_are_cheap),
        cmocka_unit_test(dear_ones_are_noticed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
