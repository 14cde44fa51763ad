/* SPDX-License-Identifier: Apache-2.0
 * Expressions against what NumPy and PyTorch make of them (tests/judges/expressions.py), bit by
 * bit, on every engine that takes the line, with one thread and with several. */
#include "line.h"

typedef struct judged_argument {
    int arg, count;
    const uint64_t *bits; /* of each element */
} judged_argument;

enum { MOST = 12 };

typedef struct judgement {
    const char *line;
    judged_argument args[MOST];
} judgement;

static const judgement judgements[] = {
#include "../judges/expressions.h"
};
enum { JUDGEMENTS = sizeof judgements / sizeof *judgements };

static const judged_argument *judged(const judgement *j, int arg)
{
    for (const judged_argument *a = j->args; a < j->args + MOST && a->count; a++)
        if (a->arg == arg) return a;
    fail_msg("%s: nothing is known of argument %d", j->line, arg);
    return NULL;
}

static size_t element(const mica_arg_info *info)
{
    return (size_t)mica_dtype_bits(info->tensor.dtype) / 8;
}

/* Little-endian, as all that mica runs on. */
static void fill_in(const judged_argument *a, size_t bytes, char *to)
{
    for (int i = 0; i < a->count; i++) memcpy(to + (size_t)i * bytes, &a->bits[i], bytes);
}

static void compare(const char *engine, const judgement *j, const mica_arg_info *info,
                    const judged_argument *a, const char *got)
{
    const size_t bytes = element(info);
    for (int i = 0; i < a->count; i++) {
        uint64_t bits = 0;
        memcpy(&bits, got + (size_t)i * bytes, bytes);
        if (bits != a->bits[i])
            fail_msg("%s, %s: %s[%d] has the bits %#llx, the judges' %#llx", engine, j->line,
                     info->name, i, (unsigned long long)bits, (unsigned long long)a->bits[i]);
    }
}

static bool runs(const char *engine, const judgement *j)
{
    mica_problem *p;
    mica_plan *plan;
    mica_arg_info info[MICA_MAX_ARGS];
    mica_options options = {.engine = engine};
    if (mica_problem_from_text(j->line, &p) != MICA_OK) fail_msg("%s: %s", j->line, mica_error());
    mica_status status = mica_plan_problem(context, p, &options, &plan);
    if (status == MICA_UNSUPPORTED) {
        mica_problem_destroy(p);
        return false;
    }
    if (status != MICA_OK) fail_msg("%s, %s: %s", engine, j->line, mica_error());
    mica_run run = {.scalars = mica_problem_scalars(p)};
    const size_t workspace = (mica_plan_workspace(plan) / 256 + 1) * 256;
    run.workspace = aligned_alloc(256, workspace);
    assert_non_null(run.workspace);
    memset(run.workspace, 0xff, workspace);
    for (int i = 0; mica_problem_arg(p, i, &info[i]) == MICA_OK; i++) {
        if (info[i].dir == MICA_UNUSED) continue;
        const judged_argument *a = judged(j, i);
        assert_true(mica_tensor_count(&info[i].tensor) == a->count);
        run.args[i] = malloc((size_t)a->count * element(&info[i]) + 8);
        assert_non_null(run.args[i]);
        memset(run.args[i], 0xff, (size_t)a->count * element(&info[i]) + 8);
        if (info[i].dir == MICA_IN) fill_in(a, element(&info[i]), run.args[i]);
    }
    assert_int_equal(mica_plan_run(plan, &run), MICA_OK);
    for (int i = 0; mica_problem_arg(p, i, &info[i]) == MICA_OK; i++) {
        if (info[i].dir == MICA_OUT)
            compare(engine, j, &info[i], judged(j, i), (const char *)run.args[i]);
        free(run.args[i]);
    }
    free(run.workspace);
    mica_plan_destroy(plan);
    mica_problem_destroy(p);
    return true;
}

static void expressions_are_those_of_others(void **state)
{
    static const char *const names[] = {"cpu", "compose", "ref"};
    (void)state;
    for (int threads = 1; threads <= 3; threads += 2) {
        omp_set_num_threads(threads);
        for (int i = 0; i < JUDGEMENTS; i++) {
            int ran = 0;
            for (size_t e = 0; e < sizeof names / sizeof *names; e++)
                ran += runs(names[e], &judgements[i]);
            if (ran != 2) fail_msg("%s: %d engines, not 2, take it", judgements[i].line, ran);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(expressions_are_those_of_others)};
    return cmocka_run_group_tests(tests, open_context, close_context);
}
