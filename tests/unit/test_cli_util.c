/* SPDX-License-Identifier: Apache-2.0
 * Counts and durations in messages; tables that keep to their width. */
#define _GNU_SOURCE
#include "bench/table.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static void counts(void **state)
{
    (void)state;
    assert_string_equal(cli_count(0, "line"), "0 lines");
    assert_string_equal(cli_count(1, "line"), "1 line");
    assert_string_equal(cli_count(2, "line"), "2 lines");
    assert_string_equal(cli_count(1, "entry"), "1 entry");
    assert_string_equal(cli_count(11, "entry"), "11 entries");
    /* Several in one message. */
    const char *a = cli_count(1, "plan"), *b = cli_count(2, "plan");
    assert_string_equal(a, "1 plan");
    assert_string_equal(b, "2 plans");
}

static void durations(void **state)
{
    (void)state;
    assert_string_equal(cli_duration(0), "0 s");
    assert_string_equal(cli_duration(0.0315), "0.0315 s");
    assert_string_equal(cli_duration(119), "119 s");
    assert_string_equal(cli_duration(150), "2.5 minutes");
    assert_string_equal(cli_duration(7200), "2 hours");
    assert_string_equal(cli_duration(86400 * 3), "3 days");
    assert_string_equal(cli_duration(31557600 * 17.0), "17 years");
    assert_string_equal(cli_duration(1650586719047173799936.0), "5.23e+13 years");
    assert_string_equal(cli_duration(-1), "-1 s");
}

static char *printed(cli_table *t)
{
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);
    cli_table_print(t, f);
    fclose(f);
    cli_table_end(t);
    return text;
}

static void tables_wrap(void **state)
{
    cli_table t;
    (void)state;
    cli_table_begin(&t, "name|>n|~words|end");
    cli_cell(&t, "a");
    cli_cell(&t, "%d", 7);
    for (int i = 0; i < 2; i++) {
        char words[160] = "";
        for (int n = 0; n < 30; n++) strcat(words, "word ");
        cli_cell(&t, "%s", i ? "short" : words);
        cli_cell(&t, "%s", i ? "" : "z");
        if (i) break;
        cli_cell(&t, "b");
        cli_cell(&t, "%d", 10);
    }
    char *text = printed(&t), *rest = text;
    static const char *const starts[] = {"name   n  words", "a      7  word word", "          word",
                                         "b     10  short"};
    for (int i = 0; i < 4; i++) {
        char *line = strsep(&rest, "\n");
        assert_non_null(line);
        assert_true(strlen(line) <= CLI_LINE && (i == 3 || strlen(line) > 30));
        assert_memory_equal(line, starts[i], strlen(starts[i]));
        if (i == 3) assert_string_equal(line, starts[i]); /* no blanks behind */
    }
    free(text);
}

/* A word longer than its column is cut, not lost; and tables without such columns are as before. */
static void tables_cut_long_words(void **state)
{
    cli_table t;
    char word[221];
    (void)state;
    memset(word, 'x', 220);
    word[220] = 0;
    cli_table_begin(&t, "~w|v");
    cli_cell(&t, "%s", word);
    cli_cell(&t, "v");
    char *text = printed(&t);
    int letters = 0;
    for (const char *s = text; *s; s++) letters += *s == 'x';
    assert_int_equal(letters, 220);
    free(text);
    cli_table_begin(&t, "w|v");
    cli_cell(&t, "%s", word);
    cli_cell(&t, "v");
    text = printed(&t);
    assert_non_null(strstr(text, word));
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(counts), cmocka_unit_test(durations),
                                       cmocka_unit_test(tables_wrap),
                                       cmocka_unit_test(tables_cut_long_words)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
