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

static int failures, tensors, values, likes, refused, zeros, still;

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

/* A field that is as another one, by that one's name; a word of an enumeration may be one, too. */
static void check_like(const row *r)
{
    if (!strcmp(r->field.type, "enum")) return;
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

/* The bits of the field are those of the number 0, or of -0. */
static bool is_zero(const row *r, const void *desc)
{
    const char *at = (const char *)desc + r->field.offset;
    if (!strcmp(r->field.type, "float")) return *(const double *)(const void *)at == 0;
    return *(const int64_t *)(const void *)at == 0;
}

/* A 0 that was given: it is refused, by name, or it is the number 0, which the canonical line says
 * again. problem NULL: it was refused. */
static void check_zero(const row *r, mica_problem *problem)
{
    mica_problem *again;
    if (!problem) {
        /* sizes of heads and padding of outputs may contradict a tensor instead */
        bool by_name = strstr(mica_error(), r->field.name) || strstr(mica_error(), "dimension") ||
                       strstr(mica_error(), "axis");
        if (!by_name) bad(r, mica_error());
        refused++;
        return;
    }
    zeros++;
    char *text = cli_problem_text(problem);
    size_t size = mica_op_desc_size(r->op);
    if (!is_zero(r, mica_problem_desc(problem))) bad(r, "0 was given, and is not what it has");
    if (mica_problem_from_text(text, &again) != MICA_OK) {
        bad(r, mica_error());
    } else {
        if (memcmp(mica_problem_desc(problem), mica_problem_desc(again), size) != 0)
            bad(r, "the canonical line is another problem");
        mica_problem_destroy(again);
    }
    /* A resolved descriptor is a caller's too. */
    if (mica_problem_create(r->op, mica_problem_desc(problem), size, &again) != MICA_OK) {
        bad(r, mica_error());
    } else {
        if (memcmp(mica_problem_desc(problem), mica_problem_desc(again), size) != 0)
            bad(r, "resolved twice it is another problem");
        mica_problem_destroy(again);
    }
    free(text);
    mica_problem_destroy(problem);
}

static void check_zero_of_line(const row *r)
{
    mica_problem *problem = NULL;
    char *longer = cli_format("%s %s=0", r->line, r->field.name);
    (void)mica_problem_from_text(longer, &problem);
    check_zero(r, problem);
    free(longer);
}

/* The descriptor of the line, with one field that is given as 0. */
static void check_zero_of_struct(const row *r)
{
    mica_problem *problem = NULL;
    size_t size = mica_op_desc_size(r->op);
    char *desc = malloc(size);
    const double zero = MICA_ZERO;
    const int64_t zero_int = MICA_ZERO_INT;
    bool real = !strcmp(r->field.type, "float");
    memcpy(desc, r->desc, size);
    memcpy(desc + r->field.offset, real ? (const void *)&zero : (const void *)&zero_int, 8);
    (void)mica_problem_create(r->op, desc, size, &problem);
    check_zero(r, problem);
    free(desc);
}

/* Strides of 0 that are given, and none given, of each input that has more than one element. */
static void check_strides(const row *r, int arg)
{
    mica_problem *problem;
    size_t size = mica_op_desc_size(r->op);
    mica_arg_info a;
    char *desc = malloc(size);
    mica_tensor t = *(const mica_tensor *)(const void *)((const char *)r->desc + r->field.offset);
    memset(t.strides, 0, sizeof t.strides);
    for (int strided = 0; strided < 2; strided++) {
        t.strided = strided;
        memcpy(desc, r->desc, size);
        memcpy(desc + r->field.offset, &t, sizeof t);
        /* some inputs may not overlap, as a cache */
        if (mica_problem_create(r->op, desc, size, &problem) != MICA_OK) continue;
        char *text = cli_problem_text(problem);
        int64_t one = (mica_dtype_bits(t.dtype) + 7) / 8, span;
        assert_int_equal(mica_problem_arg(problem, arg, &a), MICA_OK);
        span = mica_tensor_span(&a.tensor, NULL);
        if ((span == one) != strided) bad(r, text);
        mica_problem_destroy(problem);
        if (mica_problem_from_text(text, &problem) != MICA_OK) {
            bad(r, mica_error());
        } else {
            assert_int_equal(mica_problem_arg(problem, arg, &a), MICA_OK);
            if (mica_tensor_span(&a.tensor, NULL) != span) bad(r, text);
            still += strided;
            mica_problem_destroy(problem);
        }
        free(text);
    }
    free(desc);
}

static void check_all_strides(const row *r)
{
    mica_arg_info a;
    for (int i = 0; mica_op_arg(r->op, i, r->pass, &a) == MICA_OK; i++) {
        const mica_tensor *t;
        if (strcmp(a.name, r->field.name) != 0 || a.dir != MICA_IN) continue;
        t = (const mica_tensor *)(const void *)((const char *)r->desc + r->field.offset);
        if (t->dtype != MICA_NONE && mica_tensor_count(t) > 1) check_strides(r, i);
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
    if (!strcmp(type, "int") || !strcmp(type, "float") || !strcmp(type, "axes")) {
        check_zero_of_line(r);
        check_zero_of_struct(r);
    }
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
        if (i == 0 && !strcmp(r.field.name, "pass"))
            memcpy(&r.pass, (const char *)r.desc + r.field.offset, sizeof r.pass);
        mica_op_default(r.op, i, r.zero, sizeof r.zero);
        check_field(&r);
        if (!strcmp(r.field.type, "tensor")) check_all_strides(&r);
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
    assert_true(refused > 1000 && zeros > 1000 && still > 1000);
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
