/* SPDX-License-Identifier: Apache-2.0
 * What `mica list` and the headers say that zero means is what happens: by the problem lines of
 * tests/cases, each field that a line leaves out. */
#include "lines.h"

#include <glob.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

typedef struct row {
    const char *op, *line;
    const void *desc;
    mica_field_info field;
    char zero[128];
    int pass;
} row;

static int failures, tensors, values, likes;

static void bad(const row *r, const char *rule)
{
    if (failures++ < 20)
        print_error("%s: field %s, zero means \"%s\": %s\n", r->line, r->field.name, r->zero, rule);
}

static bool is_in(const row *r)
{
    char start[80];
    snprintf(start, sizeof start, " %s=", r->field.name);
    return strstr(r->line, start) != NULL;
}

/* Whether the pass has an argument of that name. */
static bool is_used(const row *r)
{
    mica_arg_info a;
    for (int i = 0; mica_op_arg(r->op, i, r->pass, &a) == MICA_OK; i++)
        if (!strcmp(a.name, r->field.name)) return a.dir != MICA_UNUSED;
    return false;
}

/* "inferred", "needed" and "none" alone hold always; what more is said ("with its step") at times.
 */
static void check_tensor(const row *r)
{
    const mica_tensor *t = (const mica_tensor *)((const char *)r->desc + r->field.offset);
    tensors++;
    if (t->dtype != MICA_NONE) {
        if (!strstr(r->zero, "inferred")) bad(r, "it was inferred");
    } else if (is_used(r) && (!strcmp(r->zero, "inferred") || !strcmp(r->zero, "needed"))) {
        bad(r, "it was left out");
    }
}

/* The line with "field=value" is the same problem. */
static void check_value(const row *r, const char *value)
{
    mica_problem *problem;
    char *longer = cli_format("%s %s=%s", r->line, r->field.name, value);
    values++;
    if (mica_problem_from_text(longer, &problem) != MICA_OK) {
        bad(r, mica_error());
    } else {
        char *text = cli_problem_text(problem);
        if (strcmp(text, r->line) != 0) bad(r, text);
        free(text);
        mica_problem_destroy(problem);
    }
    free(longer);
}

/* A field that is as another one, by that one's name. */
static void check_like(const row *r)
{
    mica_field_info other;
    size_t bytes = !strcmp(r->field.type, "axes") ? 3 * sizeof(int64_t) : sizeof(int64_t);
    for (int i = 0; mica_op_field(r->op, i, &other) == MICA_OK; i++) {
        if (strcmp(other.name, r->zero) != 0) continue;
        likes++;
        if (memcmp((const char *)r->desc + other.offset, (const char *)r->desc + r->field.offset,
                   bytes) != 0)
            bad(r, "the two differ");
    }
}

static void check_field(const row *r)
{
    char *end;
    const char *type = r->field.type;
    if (!*r->zero) bad(r, "nothing is said");
    if (is_in(r)) return;
    if (!strcmp(type, "tensor")) {
        check_tensor(r);
        return;
    }
    (void)strtod(r->zero, &end);
    if (!strcmp(type, "flag"))
        check_value(r, "0");
    else if (!strcmp(type, "enum") || !*end)
        check_value(r, r->zero);
    else if (!strcmp(type, "int") || !strcmp(type, "float"))
        check_value(r, "0"); /* words: 0 itself is legal, and as if it were not there */
    check_like(r);
}

static void check_line(const char *line)
{
    mica_problem *problem;
    row r = {0};
    if (mica_problem_from_text(line, &problem) != MICA_OK) return; /* `mica check` has its say */
    char *text = cli_problem_text(problem);
    r.op = mica_problem_op(problem);
    r.line = text;
    r.desc = mica_problem_desc(problem);
    for (int i = 0; mica_op_field(r.op, i, &r.field) == MICA_OK; i++) {
        if (i == 0 && !strcmp(r.field.name, "pass")) memcpy(&r.pass, r.desc, sizeof r.pass);
        mica_op_default(r.op, i, r.zero, sizeof r.zero);
        check_field(&r);
    }
    free(text);
    mica_problem_destroy(problem);
}

static void what_zero_means(void **state)
{
    glob_t files;
    (void)state;
    assert_int_equal(glob("tests/cases/*.txt", 0, NULL, &files), 0);
    for (size_t f = 0; f < files.gl_pathc; f++) {
        cli_lines lines = {0};
        cli_lines_read(&lines, &files.gl_pathv[f], 1);
        assert_int_equal(lines.errors, 0);
        /* A part of long files: each field stands in many lines. */
        size_t step = lines.count > 200 ? lines.count / 100 : 1;
        for (size_t i = 0; i < lines.count; i += step) check_line(lines.items[i].text);
        cli_lines_free(&lines);
    }
    globfree(&files);
    assert_int_equal(failures, 0);
    /* Each kind was met. */
    assert_true(tensors > 1000 && values > 1000 && likes > 20);
}

/* The text is cut as snprintf cuts it; of what is not there nothing is said. */
static void what_is_said(void **state)
{
    char zero[128], cut[4];
    (void)state;
    assert_true(mica_op_default("conv", 7, zero, sizeof zero) > 0);
    assert_int_equal(mica_op_default("gemm", 0, cut, sizeof cut), 6);
    assert_string_equal(cut, "nee");
    assert_int_equal(mica_op_default("gemm", 99, zero, sizeof zero), 0);
    assert_string_equal(zero, "");
    assert_int_equal(mica_op_default("no_op", 0, NULL, 0), 0);
}

/* Each engine is of the CPU, of GPUs, or both; both lists in the library's order. */
static void backends(void **state)
{
    const char *op, *name;
    (void)state;
    for (int o = 0; (op = mica_op_name(o)); o++) {
        int all = 0, found[2] = {0, 0}, both = 0;
        while (mica_op_engine(op, all)) all++;
        for (int cuda = 0; cuda < 2; cuda++)
            for (int i = 0; (name = mica_op_backend_engine(op, cuda, i)); i++) {
                const char *other;
                found[cuda]++;
                for (int n = 0; cuda && (other = mica_op_backend_engine(op, false, n)); n++)
                    both += !strcmp(name, other);
            }
        assert_int_equal(all, found[0] + found[1] - both);
        assert_true(found[0] > 0 && found[1] > 0);
    }
    assert_null(mica_op_backend_engine("no_op", false, 0));
    assert_null(mica_op_backend_engine("gemm", true, -1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_zero_means),
                                       cmocka_unit_test(what_is_said), cmocka_unit_test(backends)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
