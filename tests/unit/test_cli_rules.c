/* SPDX-License-Identifier: Apache-2.0
 * Options that exclude or need each other: what each rule says, and that every pair of the list is
 * refused by the command that it is for, which so has both options. */
#include "rules.h"
#include "cli.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

/* ---- the list against itself ---- */

static const char *broken(const char *command, const char *const *options, int count,
                          const char *argument)
{
    static char text[400];
    char arg[64], *args[] = {arg};
    snprintf(arg, sizeof arg, "%s", argument ? argument : "");
    const cli_given given = {options, count, args, argument != NULL};
    *text = 0;
    bool is_broken = cli_rules_broken(command, &given, text, sizeof text);
    assert_int_equal(is_broken, *text != 0);
    return text;
}
#define BROKEN(command, argument, ...)                                                             \
    broken(command, (const char *const[]){__VA_ARGS__},                                            \
           sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *), argument)

static void texts(void **state)
{
    (void)state;
    assert_string_equal(BROKEN("check", NULL, "engine", "compile-only", "self-test"),
                        "--compile-only and --self-test exclude each other: nothing runs, so there "
                        "is nothing to compare");
    assert_string_equal(BROKEN("check", NULL, "update"), "--update needs --table: that is what it "
                                                         "writes");
    assert_string_equal(BROKEN("bench", NULL, "set"),
                        "--set needs --json or --csv: it goes into result lines");
    assert_string_equal(BROKEN("tune", NULL, "fit", "budget"),
                        "--budget needs an argument: it is the time of a problem line");
    assert_string_equal(BROKEN("cache", "show", "all"),
                        "--all needs warm or build: it is about what is compiled");
    assert_string_equal(BROKEN("cache", "warm", "all"), "");
    assert_string_equal(BROKEN("cache", "build", "all", "arch"), "");
    assert_string_equal(BROKEN("cache", "warm", "arch"),
                        "--arch needs build: others are about one device, or none");
    assert_string_equal(BROKEN("tune", "x", "fit", "budget"), "");
    assert_string_equal(BROKEN("bench", NULL, "set", "csv"), "");
    /* Rules are those of their command; names count whole. */
    assert_string_equal(BROKEN("bench", NULL, "update"), "");
    assert_string_equal(BROKEN("check", NULL, "compile-only", "self"), "");
}

/* ---- the list against the commands ---- */

static int (*const run[])(int, char **) = {cmd_info,  cmd_list, cmd_demo,    cmd_check,
                                           cmd_bench, cmd_tune, cmd_explain, cmd_cache};
static const char *const commands[] = {"info",  "list", "demo",    "check",
                                       "bench", "tune", "explain", "cache"};
enum { COMMANDS = sizeof commands / sizeof *commands };

/* Runs a command line in a process of its own; true if it is a usage error that says `want`. */
static bool refuses(int command, char **argv, int argc, const char *want)
{
    int ends[2], status = 0;
    char said[4096] = "";
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDOUT_FILENO);
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        exit(run[command](argc, argv));
    }
    close(ends[1]);
    size_t length = 0;
    for (ssize_t n; (n = read(ends[0], said + length, sizeof said - 1 - length)) > 0;)
        length += (size_t)n;
    close(ends[0]);
    waitpid(child, &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == CLI_USAGE && strstr(said, want) != NULL;
}

/* Options take nothing, or a value that one of these is. */
static const char *const values[] = {NULL, "9", "exact", "0/2"};
enum { VALUES = sizeof values / sizeof *values };

static char *spelled(const char *name, int value)
{
    if (*name == '*') return cli_format("activation");
    return values[value] ? cli_format("--%s=%s", name, values[value]) : cli_format("--%s", name);
}

/* With some spelling of the options (other NULL: of the one) the command says `want`. */
static bool refused_somehow(const char *name, const char *option, const char *other,
                            const char *want)
{
    int command = 0;
    bool found = false;
    while (command < COMMANDS && strcmp(commands[command], name) != 0) command++;
    assert_true(command < COMMANDS);
    for (int i = 0; i < VALUES * VALUES && !found; i++) {
        if (!other && i >= VALUES) break;
        char *first = spelled(option, i % VALUES);
        char *second = other ? spelled(other, i / VALUES) : NULL;
        char program[] = "mica", *argv[] = {program, first, second, NULL};
        found = refuses(command, argv, other ? 3 : 2, want);
        free(first);
        free(second);
    }
    return found;
}

static void every_pair_is_refused(void **state)
{
    (void)state;
    int pairs = 0;
    for (const cli_rule *r = cli_rules; r->command; r++) {
        if (r->kind == CLI_NEEDS && !refused_somehow(r->command, r->option, NULL, r->why))
            fail_msg("%s --%s is not refused where it stands alone", r->command, r->option);
        pairs += r->kind == CLI_NEEDS;
        for (const char *s = r->others; r->kind == CLI_EXCLUDES && *s;) {
            size_t length = strcspn(s, " ");
            char other[64], want[128];
            snprintf(other, sizeof other, "%.*s", (int)length, s);
            snprintf(want, sizeof want, "--%s and %s%s exclude each other", r->option,
                     *other == '*' ? "" : "--", *other == '*' ? "an argument" : other);
            if (!refused_somehow(r->command, r->option, other, want))
                fail_msg("%s --%s --%s is not refused", r->command, r->option, other);
            pairs++;
            s += length + (s[length] == ' ');
        }
    }
    print_message("%d pairs\n", pairs);
    assert_true(pairs > 60);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts),
        cmocka_unit_test(every_pair_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
