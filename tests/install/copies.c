/* SPDX-License-Identifier: Apache-2.0
 * A host with several copies of the library: one linked in, and those that it opens, of whatever
 * version, for itself or for everybody. Each runs the lines with its own functions, tables and
 * error texts, all in turns and by threads at once, and all come to the same bits.
 *
 *     copies local|global LIBRARY=VERSION... -- LINE...
 *
 * Prints the digest of the bits: that of a host built with -ffast-math is the same. */
#include <mica/mica.h>

#include <dlfcn.h>
#include <fenv.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CALLS(X)                                                                                   \
    X(mica_version)                                                                                \
    X(mica_error)                                                                                  \
    X(mica_context_create)                                                                         \
    X(mica_context_destroy)                                                                        \
    X(mica_problem_from_text)                                                                      \
    X(mica_problem_fill)                                                                           \
    X(mica_problem_scalars)                                                                        \
    X(mica_problem_destroy)                                                                        \
    X(mica_plan_problem)                                                                           \
    X(mica_plan_arg)                                                                               \
    X(mica_plan_workspace)                                                                         \
    X(mica_plan_run)                                                                               \
    X(mica_plan_destroy)                                                                           \
    X(mica_tensor_count)                                                                           \
    X(mica_tensor_span)                                                                            \
    X(mica_tensor_store)

typedef struct copy {
#define FIELD(name) __typeof__(&name) name;
    CALLS(FIELD)
    mica_context *context;
    char *const *lines;
    int line_count;
    uint64_t digest;
} copy;

static void *find(void *library, const char *name)
{
    void *symbol = dlsym(library, name);
    if (symbol) return symbol;
    fprintf(stderr, "%s\n", dlerror());
    exit(1);
}

static copy linked(void)
{
    copy c = {0};
#define SET(name) c.name = name;
    CALLS(SET)
    return c;
}

static copy opened(const char *path, int how)
{
    copy c = {0};
    void *library = dlopen(path, RTLD_NOW | how);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
#define FIND(name) *(void **)(void *)&c.name = find(library, #name);
    CALLS(FIND)
    return c;
}

static void fail(const copy *c, const char *what)
{
    fprintf(stderr, "%s: %s: %s\n", c->mica_version(), what, c->mica_error());
    exit(1);
}

static void digest(uint64_t *to, const void *data, size_t bytes)
{
    const unsigned char *at = data;
    for (size_t i = 0; i < bytes; i++) *to = (*to ^ at[i]) * UINT64_C(0x100000001b3);
}

/* Memory of an argument with its inputs; *element is where element 0 lies. */
static void *filled(const copy *c, const mica_problem *p, int i, const mica_arg_info *a,
                    size_t *bytes, void **element)
{
    int64_t first, span = c->mica_tensor_span(&a->tensor, &first);
    double *values = calloc((size_t)c->mica_tensor_count(&a->tensor) + 1, sizeof *values);
    *bytes = ((size_t)span + 255) / 256 * 256 + 256;
    char *block = aligned_alloc(256, *bytes);
    if (!values || !block) exit(99);
    memset(block, 0, *bytes);
    *element = block - first;
    fenv_t own; /* numbers of the host's are its own: the library promises runs */
    fegetenv(&own);
    fesetenv(FE_DFL_ENV);
    if (a->dir != MICA_OUT) {
        if (c->mica_problem_fill(p, i, MICA_FILL_EXTREME, 5, values) != MICA_OK) fail(c, "fill");
        c->mica_tensor_store(&a->tensor, values, *element);
    }
    fesetenv(&own);
    free(values);
    return block;
}

static void run_line(copy *c, const char *line)
{
    mica_problem *problem;
    mica_plan *plan;
    mica_arg_info info[MICA_MAX_ARGS];
    size_t bytes[MICA_MAX_ARGS] = {0};
    void *blocks[MICA_MAX_ARGS] = {0};
    int args = 0;
    if (c->mica_problem_from_text(line, &problem) != MICA_OK ||
        c->mica_plan_problem(c->context, problem, NULL, &plan) != MICA_OK)
        fail(c, line);
    mica_run run = {.scalars = c->mica_problem_scalars(problem)};
    for (; c->mica_plan_arg(plan, args, &info[args]) == MICA_OK; args++)
        if (info[args].dir != MICA_UNUSED)
            blocks[args] = filled(c, problem, args, &info[args], &bytes[args], &run.args[args]);
    size_t workspace = (c->mica_plan_workspace(plan) + 255) / 256 * 256;
    if (workspace) run.workspace = aligned_alloc(256, workspace);
    if (c->mica_plan_run(plan, &run) != MICA_OK) fail(c, line);
    for (int i = 0; i < args; i++) {
        if (info[i].dir == MICA_OUT || info[i].dir == MICA_INOUT)
            digest(&c->digest, blocks[i], bytes[i]);
        free(blocks[i]);
    }
    free(run.workspace);
    c->mica_plan_destroy(plan);
    c->mica_problem_destroy(problem);
}

static void *run_all(void *user)
{
    copy *c = user;
    c->digest = UINT64_C(0xcbf29ce484222325);
    for (int i = 0; i < c->line_count; i++) run_line(c, c->lines[i]);
    return NULL;
}

enum { MOST = 4 };

/* One after the other, then all at once; each time all come to the same. */
static uint64_t run_copies(copy *copies, int count, int at_once)
{
    pthread_t threads[MOST];
    for (int i = 0; i < count; i++) {
        if (!at_once)
            run_all(&copies[i]);
        else if (pthread_create(&threads[i], NULL, run_all, &copies[i]) != 0)
            exit(99);
    }
    for (int i = 0; i < count && at_once; i++) pthread_join(threads[i], NULL);
    for (int i = 1; i < count; i++)
        if (copies[i].digest != copies[0].digest) fail(&copies[i], "other bits");
    return copies[0].digest;
}

/* An error of one copy is none of the others'. */
static void check_errors(const copy *copies, int count)
{
    mica_problem *problem;
    for (int i = 0; i < count; i++) {
        char line[32], mine[256];
        snprintf(line, sizeof line, "no_such_operation_%d x=1", i);
        if (copies[i].mica_problem_from_text(line, &problem) == MICA_OK) exit(1);
        snprintf(mine, sizeof mine, "%s", copies[i].mica_error());
        if (!strstr(mine, "no_such_operation")) fail(&copies[i], "no error");
        for (int k = 0; k < i; k++)
            if (!strcmp(copies[k].mica_error(), mine)) fail(&copies[k], "another's error");
    }
}

int main(int argc, char **argv)
{
    copy copies[MOST];
    int count = 1, at = 2;
    if (argc < 4) return 2;
#if defined(__FAST_MATH__) && defined(__x86_64__)
    if (!(__builtin_ia32_stmxcsr() & 0x8000)) return fprintf(stderr, "no flush to zero\n"), 1;
#endif
    copies[0] = linked();
    for (; at < argc && strcmp(argv[at], "--") != 0 && count < MOST; at++) {
        char *version = strchr(argv[at], '=');
        if (!version) return 2;
        *version++ = 0;
        copies[count] = opened(argv[at], strcmp(argv[1], "global") ? RTLD_LOCAL : RTLD_GLOBAL);
        if (strcmp(copies[count].mica_version(), version) != 0)
            fail(&copies[count], "not the version that was opened");
        count++;
    }
    for (int i = 0; i < count; i++) {
        if (copies[i].mica_context_create("cpu", &copies[i].context) != MICA_OK)
            fail(&copies[i], "context");
        copies[i].lines = argv + at + 1;
        copies[i].line_count = argc - at - 1;
    }
    uint64_t alone = run_copies(copies, count, 0);
    if (run_copies(copies, count, 1) != alone) fail(copies, "other bits beside each other");
    check_errors(copies, count);
    for (int i = 0; i < count; i++) copies[i].mica_context_destroy(copies[i].context);
    printf("%d copies, %016llx\n", count, (unsigned long long)alone);
    return 0;
}
