/* SPDX-License-Identifier: Apache-2.0
 * Rows of argument tables are kept: of every operation, by the problem lines of tests/cases, an
 * argument of a wrong type, one that is missing and one that may not be there are refused, by name.
 */
#include "lines.h"

#include <glob.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static int types, needed, strangers;

static mica_tensor *tensor_at(const char *op, void *desc, const char *name)
{
    mica_field_info f;
    for (int i = 0; mica_op_field(op, i, &f) == MICA_OK; i++)
        if (!strcmp(f.name, name)) return (mica_tensor *)(void *)((char *)desc + f.offset);
    fail_msg("%s has no field %s", op, name);
    return NULL;
}

static void refused(const char *op, const void *desc, const char *name, const char *rule,
                    int *count)
{
    mica_problem *problem;
    ++*count;
    if (mica_problem_create(op, desc, mica_op_desc_size(op), &problem) != MICA_INVALID)
        fail_msg("%s: %s was taken, the rule is \"%s\"", op, name, rule);
    if (!strstr(mica_error(), name) || !strstr(mica_error(), rule))
        fail_msg("%s: \"%s\" says nothing of %s and \"%s\"", op, mica_error(), name, rule);
}

static void check_argument(const char *op, const void *sound, int pass, int index)
{
    mica_arg_info a, other;
    size_t size = mica_op_desc_size(op);
    char *desc = malloc(size);
    assert_int_equal(mica_op_arg(op, index, pass, &a), MICA_OK);
    memcpy(desc, sound, size);
    mica_tensor *t = tensor_at(op, desc, a.name);
    bool used = a.dir != MICA_UNUSED, given = t->dtype != MICA_NONE;
    if (used && given && a.types && !(a.types >> MICA_U32 & 1)) {
        t->dtype = MICA_U32;
        refused(op, desc, a.name, "it must be", &types);
    } else if (!used && a.refused) {
        *t = mica_tensor_packed(MICA_F32, 1, (int64_t[]){1});
        refused(op, desc, a.name, "is for pass", &strangers);
    }
    memcpy(desc, sound, size);
    if (used && a.need == MICA_NEEDED) {
        memset(t, 0, sizeof *t);
        refused(op, desc, a.name, "needed", &needed);
    }
    memcpy(desc, sound, size);
    if (used && given && a.with) {
        memset(tensor_at(op, desc, a.with), 0, sizeof *t);
        refused(op, desc, a.with, "without", &strangers); /* one of those that go with it */
    }
    assert_true(!a.like || *a.like);
    for (int i = 0; a.with && mica_op_arg(op, i, pass, &other) == MICA_OK; i++)
        if (!strcmp(other.name, a.with)) a.with = NULL; /* it is an argument */
    assert_null(a.with);
    free(desc);
}

static void check_line(const char *line)
{
    mica_problem *problem;
    mica_field_info first;
    mica_arg_info a;
    int32_t pass = 0;
    if (mica_problem_from_text(line, &problem) != MICA_OK) return; /* `mica check` has its say */
    const char *op = mica_problem_op(problem);
    const void *desc = mica_problem_desc(problem);
    assert_int_equal(mica_op_field(op, 0, &first), MICA_OK);
    if (!strcmp(first.name, "pass")) memcpy(&pass, desc, sizeof pass);
    for (int i = 0; mica_op_arg(op, i, pass, &a) == MICA_OK; i++) check_argument(op, desc, pass, i);
    mica_problem_destroy(problem);
}

static void rows_are_kept(void **state)
{
    glob_t files;
    (void)state;
    assert_int_equal(glob("tests/cases/*.txt", 0, NULL, &files), 0);
    for (size_t f = 0; f < files.gl_pathc; f++) {
        cli_lines lines = {0};
        cli_lines_read(&lines, &files.gl_pathv[f], 1);
        size_t step = lines.count > 100 ? lines.count / 50 : 1;
        for (size_t i = 0; i < lines.count; i += step) check_line(lines.items[i].text);
        cli_lines_free(&lines);
    }
    globfree(&files);
    assert_true(types > 500 && needed > 100 && strangers > 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(rows_are_kept)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
