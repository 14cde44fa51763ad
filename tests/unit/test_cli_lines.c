/* SPDX-License-Identifier: Apache-2.0
 * Problem lines: expansion, comments, log lines, files with errors. */
#include "lines.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

/* Expands one line and compares with a NULL-terminated list. */
static void expect(const char *line, const char *const *want)
{
    cli_lines lines = {0};
    char error[160] = "";
    size_t n = 0;
    assert_true(cli_lines_expand(&lines, line, "", error, sizeof error));
    for (; want[n]; n++) {
        assert_true(n < lines.count);
        assert_string_equal(lines.items[n].text, want[n]);
    }
    assert_int_equal(lines.count, n);
    cli_lines_free(&lines);
}
#define EXPECT(line, ...) expect(line, (const char *const[]){__VA_ARGS__, NULL})

static void plain_lines(void **state)
{
    (void)state;
    EXPECT("  activation   act=relu\tx=f32:3 \n", "activation act=relu x=f32:3");
    EXPECT("activation x=f32:3 # act=tanh", "activation x=f32:3");
    expect("# only a comment", (const char *const[]){NULL});
    expect("   \t\n", (const char *const[]){NULL});
}

static void commas_and_braces(void **state)
{
    (void)state;
    EXPECT("activation act=relu,tanh x=f32:3,f64:4", "activation act=relu x=f32:3",
           "activation act=relu x=f64:4", "activation act=tanh x=f32:3",
           "activation act=tanh x=f64:4");
    EXPECT("activation x={f32,bf16}:{1,2}x3", "activation x=f32:1x3", "activation x=f32:2x3",
           "activation x=bf16:1x3", "activation x=bf16:2x3");
    EXPECT("activation x=f{16,3{2,3}}:1,s8:2", "activation x=f16:1", "activation x=f32:1",
           "activation x=f33:1", "activation x=s8:2");
    EXPECT("activation x=f32:3{,:1}", "activation x=f32:3", "activation x=f32:3:1");
    /* A text's commas are its own. */
    EXPECT("pointwise expr=max(x0,{1,2}) x0=f32:3", "pointwise expr=max(x0,1) x0=f32:3",
           "pointwise expr=max(x0,2) x0=f32:3");
}

static void repetitions(void **state)
{
    (void)state;
    cli_lines lines = {0};
    char error[160];
    assert_true(cli_lines_expand(&lines, "activation x=f32:3x4 # repeats: activation x=f32:1x4\n",
                                 "", error, 160));
    assert_int_equal(lines.count, 1);
    assert_string_equal(lines.items[0].text, "activation x=f32:3x4");
    assert_string_equal(lines.items[0].one, "activation x=f32:1x4");
    assert_true(cli_lines_expand(&lines, "activation x=f32:3 # it repeats: x", "", error, 160));
    assert_null(lines.items[1].one);
    assert_false(cli_lines_expand(&lines, "activation x=f32:3,f32:4 # repeats: activation x=f32:1",
                                  "", error, 160));
    assert_non_null(strstr(error, "single problem"));
    cli_lines_free(&lines);
}

static void excuses(void **state)
{
    (void)state;
    cli_lines lines = {0};
    char error[160];
    assert_true(cli_lines_expand(&lines, "activation x=f32:3 # mistrusted: why", "", error, 160));
    assert_true(cli_lines_expand(&lines, "activation x=f32:3 # is mistrusted", "", error, 160));
    assert_true(cli_lines_expand(&lines, "activation x=f32:3 # mistrusted", "", error, 160));
    assert_true(lines.items[0].weak && !lines.items[1].weak && !lines.items[2].weak);
    cli_lines_free(&lines);
}

static void options(void **state)
{
    (void)state;
    static const struct {
        const char *line;
        uint32_t packed;
        const char *engine;
    } rows[] = {
        {"gemm a=f32:2x2 b=f32:2x2 ; packed=b", 2, NULL},
        {"gemm a=f32:2x2 b=f32:2x2 ; packed=b,a # why", 3, NULL},
        {"gemm a=f32:2x2 b=f32:2x2", 0, NULL},
        {"gemm a=f32:2x2 b=f32:2x2 ; engine=cuda packed=b", 2, "cuda"},
        {"mica,v1,1732,plan,cpu,onednn,miss,0.12,gemm a=f32:2x2 b=f32:2x2 ; packed=a", 1, NULL}};
    cli_lines lines = {0};
    char error[160];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_true(cli_lines_expand(&lines, rows[i].line, "", error, sizeof error));
        assert_int_equal(lines.items[i].packed, rows[i].packed);
        assert_string_equal(lines.items[i].engine ? lines.items[i].engine : "",
                            rows[i].engine ? rows[i].engine : "");
        mica_problem *p = cli_line_problem(&lines, &lines.items[i]);
        assert_non_null(p);
        assert_int_equal(cli_line_packed(&lines.items[i], p, "a,w,c"), rows[i].packed | 1);
        assert_int_equal(cli_line_packed(&lines.items[i], p, "all"), 3);
        char *text = cli_line_text(p, 3);
        assert_string_equal(text, "gemm a=f32:2x2 b=f32:2x2 ; packed=a,b");
        free(text);
        mica_problem_destroy(p);
    }
    cli_lines_free(&lines);
    lines = (cli_lines){0};
    assert_false(cli_lines_expand(&lines, "gemm a=f32:2x2 ; packed=w", "", error, sizeof error));
    assert_string_equal(error, "packed=w: gemm has no argument w");
    assert_false(cli_lines_expand(&lines, "gemm a=f32:2x2 ; speed=9", "", error, sizeof error));
    assert_false(
        cli_lines_expand(&lines, "gemm a=f32:2x2 ; engine=a engine=b", "", error, sizeof error));
    assert_int_equal(lines.count, 0);
    cli_lines_free(&lines);
}

/* In a field that is a list itself, commas belong to the value. */
static void list_fields(void **state)
{
    (void)state;
    EXPECT("gemm epilogue=bias,relu|gelu a=f32:2x2", "gemm epilogue=bias,relu a=f32:2x2",
           "gemm epilogue=gelu a=f32:2x2");
    EXPECT("gemm epilogue=|relu a=f32:2x2", "gemm a=f32:2x2", "gemm epilogue=relu a=f32:2x2");
    EXPECT("gemm epilogue={bias,residual},relu", "gemm epilogue=bias,relu",
           "gemm epilogue=residual,relu");
}

static void log_lines(void **state)
{
    (void)state;
    EXPECT("mica,v1,1732,run,cuda:0,cpu,hit,0.12,activation act=relu x=f32:3",
           "activation act=relu x=f32:3");
}

static void malformed(void **state)
{
    (void)state;
    static const char *const lines[] = {"activation x={f32:3", "activation x=f32}:3",
                                        "activation x={1,{2}:3",
                                        "activation x={0,1,2,3,4,5,6,7,8,9}{0,1,2,3,4,5,6,7,8,9}"
                                        "{0,1,2,3,4,5,6,7,8,9}{0,1,2,3,4,5,6,7,8,9} "
                                        "y={0,1,2,3,4,5,6,7,8,9}{0,1,2,3,4,5,6,7,8,9}"};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        cli_lines out = {0};
        char error[160] = "";
        assert_false(cli_lines_expand(&out, lines[i], "", error, sizeof error));
        assert_true(*error);
        assert_int_equal(out.count, 0);
        cli_lines_free(&out);
    }
}

static void files_and_arguments(void **state)
{
    (void)state;
    char path[] = "/tmp/mica-lines-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    FILE *f = fdopen(fd, "w");
    fputs("activation act=relu x=f32:3\n\nactivation x={oops\nactivation act=tanh x=f32:4\n", f);
    fclose(f);
    char word1[] = "activation", word2[] = "x=f32:5", whole[] = "activation x=f32:6";
    char *args[] = {path, word1, word2, whole};
    cli_lines lines;
    cli_lines_read(&lines, args, 4);
    unlink(path);
    assert_int_equal(lines.count, 4);
    assert_int_equal(lines.errors, 1);
    assert_string_equal(lines.items[1].text, "activation act=tanh x=f32:4");
    assert_true(strstr(lines.items[1].where, ":4") != NULL);
    assert_string_equal(lines.items[2].text, "activation x=f32:5");
    assert_string_equal(lines.items[3].text, "activation x=f32:6");
    cli_lines_free(&lines);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_lines),
        cmocka_unit_test(commas_and_braces),
        cmocka_unit_test(list_fields),
        cmocka_unit_test(log_lines),
        cmocka_unit_test(repetitions),
        cmocka_unit_test(excuses),
        cmocka_unit_test(options),
        cmocka_unit_test(malformed),
        cmocka_unit_test(files_and_arguments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
