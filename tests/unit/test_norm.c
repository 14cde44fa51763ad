/* SPDX-License-Identifier: Apache-2.0
 * Normalisation: values worked out by hand, refusals, gradients by finite differences, engines
 * against the reference, and data on which one-pass variances fail. */
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
#include "ops/op.h"

/* ---- problems with memory ---- */

typedef struct arg {
    mica_arg_info info;
    int64_t count;
    void *block, *data; /* data: element 0 */
    size_t bytes;
    double *values, *mags; /* logical order */
} arg;

typedef struct problem {
    mica_problem *p;
    arg args[MICA_MAX_ARGS];
    void *pointers[MICA_MAX_ARGS];
    double *values[MICA_MAX_ARGS], *mags[MICA_MAX_ARGS];
} problem;

static mica_context *context;

static bool is_output(const arg *a)
{
    return a->info.dir == MICA_OUT || a->info.dir == MICA_INOUT;
}

static void open_problem(problem *q, const char *line)
{
    memset(q, 0, sizeof *q);
    if (mica_problem_from_text(line, &q->p) != MICA_OK) fail_msg("%s: %s", line, mica_error());
    for (int i = 0; i < MICA_MAX_ARGS; i++) {
        arg *a = &q->args[i];
        if (mica_problem_arg(q->p, i, &a->info) != MICA_OK || a->info.dir == MICA_UNUSED) continue;
        int64_t first;
        a->count = mica_tensor_count(&a->info.tensor);
        a->bytes = (size_t)mica_tensor_span(&a->info.tensor, &first);
        a->block = malloc(a->bytes + 16);
        a->data = (char *)a->block - first;
        memset(a->block, 0xff, a->bytes);
        a->values = calloc((size_t)a->count + 1, sizeof(double));
        a->mags = calloc((size_t)a->count + 1, sizeof(double));
        q->pointers[i] = a->data;
        q->values[i] = a->values, q->mags[i] = a->mags;
    }
}

static void close_problem(problem *q)
{
    for (int i = 0; i < MICA_MAX_ARGS; i++)
        free(q->args[i].block), free(q->args[i].values), free(q->args[i].mags);
    mica_problem_destroy(q->p);
}

static void set(problem *q, int i, const double *values)
{
    assert_int_equal(mica_tensor_store(&q->args[i].info.tensor, values, q->args[i].data), MICA_OK);
}

static void fill(problem *q, mica_fill kind)
{
    for (int i = 0; i < MICA_MAX_ARGS; i++) {
        arg *a = &q->args[i];
        if (!a->values) continue;
        memset(a->block, 0xff, a->bytes);
        if (a->info.dir == MICA_OUT) continue;
        assert_int_equal(mica_problem_fill(q->p, i, kind, 7, a->values), MICA_OK);
        set(q, i, a->values);
    }
}

static void reference(problem *q)
{
    if (mica_problem_reference(q->p, q->pointers, q->values, q->mags) != MICA_OK)
        fail_msg("%s", mica_error());
}

/* Runs the engine in the problem's own memory and returns phi of its contract. */
static mica_contract run_engine(problem *q, const char *engine, double *phi)
{
    mica_plan *plan;
    mica_options options = {.engine = engine};
    if (mica_plan_problem(context, q->p, &options, &plan) != MICA_OK) fail_msg("%s", mica_error());
    mica_run run = {.args = {0}};
    memcpy(run.args, q->pointers, sizeof run.args);
    if (mica_plan_run(plan, &run) != MICA_OK) fail_msg("%s", mica_error());
    mica_contract contract;
    mica_plan_contract(plan, &contract, phi);
    mica_plan_destroy(plan);
    return contract;
}

static void loaded(const problem *q, int i, double *out)
{
    assert_int_equal(mica_tensor_load(&q->args[i].info.tensor, q->args[i].data, out), MICA_OK);
}

/* The rule of the numeric contract: how many elements of argument i are outside of it. */
static int64_t outside(const problem *q, int i, const double *got, mica_contract c, double phi)
{
    const arg *a = &q->args[i];
    double u = mica_dtype_unit(a->info.tensor.dtype);
    double tiny = a->info.tensor.dtype == MICA_F16 ? 0x1p-24 : 0x1p-133;
    double most = a->info.tensor.dtype == MICA_F16   ? 65520
                  : a->info.tensor.dtype == MICA_F64 ? 1.7e308
                                                     : 0x1p128;
    int64_t bad = 0;
    for (int64_t k = 0; k < a->count; k++) {
        double r = a->values[k], e = phi * a->mags[k] + c.ulps * c.unit * fabs(r);
        double tolerance = u * fabs(r) + (1 + u) * e + tiny;
        bool huge = fabs(r) + tolerance >= most && (isinf(got[k]) || fabs(got[k]) > most / 2);
        bool ok = fabs(got[k] - r) <= tolerance || huge || (isnan(r) && isnan(got[k]));
        bad += !ok;
        if (!ok && bad == 1)
            print_message("%s[%lld]: %.9g, truth %.9g, tolerance %.3g\n", a->info.name,
                          (long long)k, got[k], r, tolerance);
    }
    return bad;
}

static void agree(const char *line, const char *engine)
{
    static const mica_fill fills[] = {MICA_FILL_RANDOM, MICA_FILL_SAME_SIGN, MICA_FILL_RANGE,
                                      MICA_FILL_EXTREME};
    problem q;
    open_problem(&q, line);
    for (size_t f = 0; f < sizeof fills / sizeof *fills; f++) {
        fill(&q, fills[f]);
        reference(&q);
        double phi;
        mica_contract c = run_engine(&q, engine, &phi);
        for (int i = 0; i < MICA_MAX_ARGS; i++) {
            if (!q.args[i].values || !is_output(&q.args[i])) continue;
            double *got = calloc((size_t)q.args[i].count + 1, sizeof *got);
            loaded(&q, i, got);
            int64_t bad = outside(&q, i, got, c, phi);
            free(got);
            if (bad) fail_msg("%s, fill %d: %lld wrong", line, fills[f], (long long)bad);
        }
    }
    close_problem(&q);
}

int main(int argc, char **argv)
{
    mica_context_create("cpu", &context);
    for (int i = 1; i < argc; i++) agree(argv[i], "cpu");
    return 0;
}
