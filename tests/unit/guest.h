/* SPDX-License-Identifier: Apache-2.0
 * Lines of the case files by every engine of the CPU that takes them, for tests of what mica asks
 * of a process and leaves as it found it (docs/embedding.md). No test names an operation. */
#ifndef MICA_TESTS_UNIT_GUEST_H
#define MICA_TESTS_UNIT_GUEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <glob.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../cli/lines.h"
#include "mica/mica.h"

/* A problem, an engine, and memory with the inputs. */
typedef struct guest_case {
    const char *line;
    char engine[64];
    mica_problem *problem;
    mica_arg_info info[MICA_MAX_ARGS];
    void *blocks[MICA_MAX_ARGS], *data[MICA_MAX_ARGS], *kept[MICA_MAX_ARGS];
    size_t bytes[MICA_MAX_ARGS];
} guest_case;

static inline bool guest_writes(const guest_case *c, int i)
{
    return c->info[i].dir == MICA_OUT || c->info[i].dir == MICA_INOUT;
}

static inline void guest_fill(guest_case *c, mica_fill fill)
{
    for (int i = 0; i < MICA_MAX_ARGS; i++) {
        if (!c->blocks[i]) continue;
        memset(c->blocks[i], 0, c->bytes[i]); /* old content that beta multiplies */
        if (c->info[i].dir == MICA_OUT) continue;
        int64_t count = mica_tensor_count(&c->info[i].tensor);
        double *values = malloc((size_t)count * sizeof *values + 1);
        assert_non_null(values);
        assert_int_equal(mica_problem_fill(c->problem, i, fill, 7, values), MICA_OK);
        assert_int_equal(mica_tensor_store(&c->info[i].tensor, values, c->data[i]), MICA_OK);
        free(values);
    }
}

static inline void guest_open(guest_case *c)
{
    for (int i = 0; mica_problem_arg(c->problem, i, &c->info[i]) == MICA_OK; i++) {
        if (c->info[i].dir == MICA_UNUSED) continue;
        int64_t first, span = mica_tensor_span(&c->info[i].tensor, &first);
        c->bytes[i] = ((size_t)span + 63) / 64 * 64 + 64;
        c->blocks[i] = aligned_alloc(64, c->bytes[i]);
        assert_non_null(c->blocks[i]);
        c->data[i] = (char *)c->blocks[i] - first;
    }
}

static inline void guest_close(guest_case *c)
{
    for (int i = 0; i < MICA_MAX_ARGS; i++) {
        free(c->blocks[i]);
        free(c->kept[i]);
    }
}

/* Keeps the results of a run, or compares those of another one with them, bit by bit. */
static inline void guest_keep(guest_case *c)
{
    for (int i = 0; i < MICA_MAX_ARGS; i++) {
        if (!c->blocks[i] || !guest_writes(c, i)) continue;
        if (!c->kept[i]) c->kept[i] = malloc(c->bytes[i]);
        assert_non_null(c->kept[i]);
        memcpy(c->kept[i], c->blocks[i], c->bytes[i]);
    }
}

static inline bool guest_same(const guest_case *c)
{
    for (int i = 0; i < MICA_MAX_ARGS; i++)
        if (c->kept[i] && memcmp(c->kept[i], c->blocks[i], c->bytes[i]) != 0) return false;
    return true;
}

/* As numbers: engines may differ in the sign of a zero. */
static inline bool guest_equal(const guest_case *c)
{
    bool equal = true;
    for (int i = 0; i < MICA_MAX_ARGS; i++) {
        if (!c->kept[i]) continue;
        const mica_tensor *t = &c->info[i].tensor;
        size_t count = (size_t)mica_tensor_count(t);
        double *a = malloc(count * sizeof *a + 1), *b = malloc(count * sizeof *b + 1);
        assert_true(a && b);
        ptrdiff_t first = (char *)c->data[i] - (char *)c->blocks[i];
        assert_int_equal(mica_tensor_load(t, c->data[i], a), MICA_OK);
        assert_int_equal(mica_tensor_load(t, (char *)c->kept[i] + first, b), MICA_OK);
        for (size_t k = 0; k < count; k++) equal &= a[k] == b[k] || (a[k] != a[k] && b[k] != b[k]);
        free(a);
        free(b);
    }
    return equal;
}

/* Plans anew, since nothing is cached in a context without a cache, and runs. */
static inline mica_status guest_plan(mica_context *context, const guest_case *c, mica_plan **plan)
{
    mica_options options = {.engine = *c->engine ? c->engine : NULL};
    return mica_plan_problem(context, c->problem, &options, plan);
}

static inline mica_status guest_run(mica_context *context, const guest_case *c)
{
    mica_plan *plan;
    mica_status status = guest_plan(context, c, &plan);
    if (status != MICA_OK) return status;
    mica_run run = {.scalars = mica_problem_scalars(c->problem)};
    memcpy(run.args, c->data, sizeof run.args);
    size_t workspace = (mica_plan_workspace(plan) + 255) / 256 * 256;
    if (workspace) run.workspace = aligned_alloc(256, workspace);
    status = mica_plan_run(plan, &run);
    free(run.workspace);
    mica_plan_destroy(plan);
    return status;
}

typedef void (*guest_fn)(mica_context *context, guest_case *c);

static inline void guest_engines(mica_context *context, mica_problem *problem, const char *line,
                                 const char *only, guest_fn fn)
{
    mica_verdict v;
    for (int i = 0; mica_problem_verdict(context, problem, i, &v) == MICA_OK; i++) {
        if (v.status != MICA_OK || (only && strcmp(only, v.engine) != 0)) continue;
        guest_case c = {.line = line, .problem = problem};
        snprintf(c.engine, sizeof c.engine, "%s", v.engine);
        guest_open(&c);
        guest_fill(&c, MICA_FILL_RANDOM);
        fn(context, &c);
        guest_close(&c);
    }
}

/* About `most` lines of each case file, spread over it, of at most `flops` and 4 MB. */
static inline void guest_file(mica_context *context, char *path, size_t most, double flops,
                              const char *only, guest_fn fn)
{
    cli_lines lines = {0};
    cli_lines_read(&lines, &path, 1);
    assert_int_equal(lines.errors, 0);
    size_t step = lines.count > most ? lines.count / most : 1;
    for (size_t i = 0; i < lines.count; i += step) {
        double work, bytes;
        mica_problem *problem = cli_line_problem(&lines, &lines.items[i]);
        if (!problem) fail_msg("%s: %s", lines.items[i].text, mica_error());
        mica_problem_cost(problem, &work, &bytes);
        if (work <= flops && bytes <= 4e6)
            guest_engines(context, problem, lines.items[i].text, only, fn);
        mica_problem_destroy(problem);
    }
    cli_lines_free(&lines);
}

static inline void guest_each(mica_context *context, size_t most, double flops, const char *only,
                              guest_fn fn)
{
    glob_t files;
    assert_int_equal(glob("tests/cases/*.txt", 0, NULL, &files), 0);
    for (size_t i = 0; i < files.gl_pathc; i++) {
        const char *path = files.gl_pathv[i];
        if (strstr(path, "huge") || strstr(path, "-l") || strstr(path, "-tiles")) continue;
        guest_file(context, files.gl_pathv[i], most, flops, only, fn);
    }
    globfree(&files);
}

/* A context that remembers no plans. */
static inline mica_context *guest_context(const char *device)
{
    mica_context *context;
    if (mica_context_create(device, &context) != MICA_OK) fail_msg("%s", mica_error());
    assert_int_equal(mica_context_cache_limit(context, 0), MICA_OK);
    return context;
}

#endif
