/* SPDX-License-Identifier: Apache-2.0
 * Running a problem line on chosen values, for unit tests of families. Memory of outputs is
 * poisoned.
 */
#ifndef MICA_TESTS_UNIT_LINE_H
#define MICA_TESTS_UNIT_LINE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mica/mica.h"

static mica_context *context;

static int open_context(void **state)
{
    (void)state;
    return mica_context_create("cpu", &context) != MICA_OK;
}

static int close_context(void **state)
{
    (void)state;
    mica_context_destroy(context);
    return 0;
}

typedef struct line_memory {
    void *blocks[MICA_MAX_ARGS], *data[MICA_MAX_ARGS];
    mica_arg_info info[MICA_MAX_ARGS];
} line_memory;

/* Whether what was there enters results. */
static inline bool line_adds(const mica_problem *p)
{
    const char *name;
    double def;
    for (int i = 0; mica_op_scalar(mica_problem_op(p), i, &name, &def) == MICA_OK; i++)
        if (!strcmp(name, "beta")) return mica_problem_scalars(p)[i] != 0;
    return false;
}

static inline void line_open(const mica_problem *p, double *const *values, line_memory *m)
{
    memset(m, 0, sizeof *m);
    for (int i = 0; mica_problem_arg(p, i, &m->info[i]) == MICA_OK; i++) {
        if (m->info[i].dir == MICA_UNUSED) continue;
        int64_t first, bytes = mica_tensor_span(&m->info[i].tensor, &first);
        m->blocks[i] = malloc((size_t)bytes + 16);
        assert_non_null(m->blocks[i]);
        memset(m->blocks[i], 0xff, (size_t)bytes + 16);
        m->data[i] = (char *)m->blocks[i] - first;
        if (m->info[i].dir == MICA_OUT && !(line_adds(p) && values[i])) continue;
        if (!values[i]) fail_msg("no values for %s", m->info[i].name);
        assert_int_equal(mica_tensor_store(&m->info[i].tensor, values[i], m->data[i]), MICA_OK);
    }
}

/* values[i]: of argument i in logical order; outputs are overwritten where not NULL. onto: output
 * argument `onto[0]` lies on input `onto[1]`; NULL: none does. */
static inline mica_status line_run(const char *engine, const char *line, double *const *values,
                                   const int *onto)
{
    mica_problem *p;
    mica_plan *plan;
    line_memory m;
    if (mica_problem_from_text(line, &p) != MICA_OK) fail_msg("%s: %s", line, mica_error());
    line_open(p, values, &m);
    if (onto) m.data[onto[0]] = m.data[onto[1]];
    mica_options options = {.engine = engine};
    if (mica_plan_problem(context, p, &options, &plan) != MICA_OK)
        fail_msg("%s: %s", line, mica_error());
    assert_string_equal(mica_plan_engine(plan), engine);
    size_t workspace = (mica_plan_workspace(plan) + 255) / 256 * 256;
    mica_run run = {.scalars = mica_problem_scalars(p)};
    if (workspace) {
        run.workspace = aligned_alloc(256, workspace);
        assert_non_null(run.workspace);
        memset(run.workspace, 0xff, workspace);
    }
    memcpy(run.args, m.data, sizeof run.args);
    mica_status status = mica_plan_run(plan, &run);
    for (int i = 0; i < MICA_MAX_ARGS; i++) {
        bool out = m.info[i].dir == MICA_OUT || m.info[i].dir == MICA_INOUT;
        if (m.blocks[i] && out && values[i])
            assert_int_equal(mica_tensor_load(&m.info[i].tensor, m.data[i], values[i]), MICA_OK);
    }
    for (int i = 0; i < MICA_MAX_ARGS; i++) free(m.blocks[i]);
    free(run.workspace);
    mica_plan_destroy(plan);
    mica_problem_destroy(p);
    return status;
}

static inline void run_ok(const char *engine, const char *line, double *const *values)
{
    if (line_run(engine, line, values, NULL) != MICA_OK) fail_msg("%s: %s", line, mica_error());
}

/* How many elements differ by more than absolute + relative |want|; NaN agrees with NaN alone. */
static inline int differences(const double *got, const double *want, int64_t n, double absolute,
                              double relative)
{
    int count = 0;
    for (int64_t i = 0; i < n; i++) {
        bool same = isnan(want[i]) ? isnan(got[i])
                    : isinf(want[i])
                        ? got[i] == want[i]
                        : fabs(got[i] - want[i]) <= absolute + relative * fabs(want[i]);
        if (!same && !count++)
            print_message("[%lld] got %.17g want %.17g\n", (long long)i, got[i], want[i]);
    }
    return count;
}

static inline void refuses(const char *line, const char *fragment)
{
    mica_problem *p = NULL;
    if (mica_problem_from_text(line, &p) != MICA_INVALID) fail_msg("%s was taken", line);
    if (!strstr(mica_error(), fragment))
        fail_msg("%s: \"%s\" has no \"%s\"", line, mica_error(), fragment);
}

/* Something smooth and not symmetric, about unit size. */
static inline void wave(double *values, int64_t n, double phase)
{
    for (int64_t i = 0; i < n; i++)
        values[i] = sin(1.7 * (double)i + phase) + 0.3 * cos(0.37 * (double)(i * i) + phase);
}

static const char *const engines[] = {"cpu", "ref"};

#endif
