/* SPDX-License-Identifier: Apache-2.0
 * `mica check --compile-only`: compiles every kernel that a set of problems can lead to, for a
 * device that need not be there, and compares registers and spills with a checked-in table. */
#define _GNU_SOURCE
#include "check/check.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

typedef struct kernel_row {
    char *key; /* file, entry and prologue on one line: what the kernel is */
    int registers, spill_bytes;
    long long shared_bytes;
    bool seen;
    const cli_line *line; /* a plan that holds it: problem, engine, config */
    char *engine, *config;
} kernel_row;

typedef struct kernel_rows {
    kernel_row *items;
    size_t count;
} kernel_rows;

static int by_key(const void *a, const void *b)
{
    return strcmp(((const kernel_row *)a)->key, ((const kernel_row *)b)->key);
}

static kernel_row *find(const kernel_rows *rows, const char *key)
{
    for (size_t i = 0; i < rows->count; i++)
        if (!strcmp(rows->items[i].key, key)) return &rows->items[i];
    return NULL;
}

static void add(kernel_rows *rows, kernel_row row)
{
    rows->items = cli_grow(rows->items, (rows->count + 1) * sizeof row);
    rows->items[rows->count++] = row;
}

static void release(kernel_rows *rows)
{
    for (size_t i = 0; i < rows->count; i++) {
        free(rows->items[i].key);
        free(rows->items[i].engine);
        free(rows->items[i].config);
    }
    free(rows->items);
}

/* One statement of a prologue, shortened: a constant to NAME=value, a type to name:type; lists of
 * enumerators are the same for every kernel of a file and left out, and so are the functions at the
 * end, which follow from the constants. */
static char *shorten(const char *statement)
{
    char name[64], value[160];
    if (!strncmp(statement, "enum", 4)) return cli_format("%s", "");
    if (sscanf(statement, "constexpr %*s %63s = %159[^\n]", name, value) == 2)
        return cli_format(" %s=%s", name, value);
    if (sscanf(statement, "typedef %159s %63s", value, name) == 2)
        return cli_format(" %s:%s", name, value);
    return cli_format(" %s", statement);
}

static char *one_line(const char *prologue)
{
    char *copy = cli_format("%s", prologue), *rest = copy, *statement, *out = cli_format("%s", "");
    char *functions = strstr(copy, "__device__");
    if (functions) *functions = 0;
    while ((statement = strsep(&rest, ";"))) {
        statement += strspn(statement, " \t\n");
        if (!*statement) continue;
        for (char *p = statement; *p; p++)
            if (*p == '\n') *p = ' ';
        char *shorter = shorten(statement), *longer = cli_format("%s%s", out, shorter);
        free(shorter);
        free(out);
        out = longer;
    }
    free(copy);
    return out;
}

/* ---- the table's file: registers spill shared | key ---- */

static bool read_table(const char *path, kernel_rows *rows)
{
    FILE *f = fopen(path, "r");
    if (!f) {
        cli_say("%s: %s; --update writes it", path, strerror(errno));
        return false;
    }
    char *line = NULL;
    size_t capacity = 0;
    bool ok = true;
    for (int number = 1; ok && getline(&line, &capacity, f) >= 0; number++) {
        kernel_row row = {0};
        int at = 0;
        line[strcspn(line, "\n")] = 0;
        if (*line == '#' || !*line) continue;
        ok = sscanf(line, "%d %d %lld | %n", &row.registers, &row.spill_bytes, &row.shared_bytes,
                    &at) == 3 &&
             at > 0;
        if (!ok) cli_say("%s:%d: a line reads `registers spill shared | kernel`", path, number);
        row.key = cli_format("%s", ok ? line + at : "");
        add(rows, row);
    }
    free(line);
    fclose(f);
    return ok;
}

static bool write_table(const char *path, const char *device, kernel_rows *rows)
{
    FILE *f = fopen(path, "w");
    if (!f) {
        cli_say("%s: %s", path, strerror(errno));
        return false;
    }
    fprintf(f, "# Kernels for %s: registers, bytes of spills, bytes of static shared memory.\n",
            device);
    if (rows->count) qsort(rows->items, rows->count, sizeof *rows->items, by_key);
    for (size_t i = 0; i < rows->count; i++)
        fprintf(f, "%d %d %lld | %s\n", rows->items[i].registers, rows->items[i].spill_bytes,
                rows->items[i].shared_bytes, rows->items[i].key);
    if (fclose(f) == 0) return true;
    cli_say("%s: %s", path, strerror(errno));
    return false;
}

/* ---- planning ---- */

typedef struct compiler {
    kernel_rows rows;
    long plans, assembled, again, warnings, failures;
    double compile_ms;
} compiler;

/* The library announces what the compiler complained about as warnings that begin "kernel". */
static void on_log(void *user, mica_log_level level, const char *line)
{
    compiler *k = user;
    const char *at = strstr(line, "kernel ");
    if (level > MICA_LOG_WARN || !at || !strstr(at, ".cu ")) return;
    k->warnings++;
    printf("warning: %s\n", line);
}

static char *key_of(const mica_kernel_info *info)
{
    char *prologue = one_line(info->prologue);
    char *key = cli_format("%s %s%s", info->file, info->entry, prologue);
    free(prologue);
    return key;
}

/* The plan's kernels that no earlier plan had. `made` says how to make the plan again. */
static void note_kernels(compiler *k, const mica_plan *plan, const kernel_row *made)
{
    mica_kernel_info info;
    for (int i = 0; mica_plan_kernel(plan, i, &info) == MICA_OK; i++) {
        char *key = key_of(&info);
        if (find(&k->rows, key)) {
            free(key);
            continue;
        }
        add(&k->rows, (kernel_row){key, info.registers, info.spill_bytes,
                                   (long long)info.shared_bytes, false, made->line,
                                   cli_format("%s", made->engine), cli_format("%s", made->config)});
        if (strcmp(info.origin, "compiled") != 0) continue;
        k->assembled++;
        k->compile_ms += info.compile_ms;
    }
}

static mica_status make_plan(check *c, const mica_problem *problem, const kernel_row *made,
                             mica_plan **plan)
{
    mica_options o = {.engine = made->engine,
                      .config = made->config,
                      .nondeterministic = true,
                      .packed = made->line->packed};
    return mica_plan_problem(c->context, problem, &o, plan);
}

static void compile_engine(check *c, compiler *k, const mica_problem *problem,
                           const mica_verdict *v, const cli_line *line)
{
    char config[128];
    for (int i = 0; !cli_stopped() && (i == 0 || !c->pick); i++) {
        if (mica_problem_config(c->context, problem, v->engine, i, config, sizeof config, NULL) !=
            MICA_OK)
            return;
        if (c->config && strcmp(c->config, config) != 0) continue;
        char engine[64];
        snprintf(engine, sizeof engine, "%s", v->engine);
        kernel_row made = {.line = line, .engine = engine, .config = config};
        mica_plan *plan;
        mica_status status = make_plan(c, problem, &made, &plan);
        k->plans++;
        if (status == MICA_OK) {
            note_kernels(k, plan, &made);
            mica_plan_destroy(plan);
            continue;
        }
        k->failures++;
        cli_progress_clear(&c->progress);
        printf("%s %s: %s: %s\n  %s\n", v->engine, config, mica_status_name(status), mica_error(),
               line->text);
    }
}

static void compile_line(check *c, compiler *k, const cli_line *line)
{
    mica_problem *problem = cli_line_problem(&c->lines, line);
    mica_verdict v;
    if (!problem) return;
    const char *only = check_only(c, problem, line->engine);
    for (int i = 0; mica_problem_verdict(c->context, problem, i, &v) == MICA_OK; i++)
        if (v.status == MICA_OK && (only ? !strcmp(only, v.engine) : !v.by_name))
            compile_engine(c, k, problem, &v, line);
    mica_problem_destroy(problem);
}

/* ---- comparing ---- */

/* What the compiler makes of one text varies with the addresses of its own memory, and by some
 * bytes of spills where registers are short. A kernel that spills more than its table says is
 * therefore compiled again, this many times at most, and only the best of them counts. */
enum { COMPILE_AGAIN = 12 };

/* A new context, since the old one keeps its kernels. */
static bool forget_kernels(check *c)
{
    mica_context_destroy(c->context);
    c->context = NULL;
    return cli_context(&c->options, &c->context, &c->device) == CLI_OK;
}

static void look_again(check *c, compiler *k, kernel_row *row, int wanted)
{
    mica_problem *problem = cli_line_problem(&c->lines, row->line);
    for (int n = 0; problem && n < COMPILE_AGAIN && row->spill_bytes > wanted; n++) {
        mica_plan *plan;
        mica_kernel_info info;
        if (!forget_kernels(c) || make_plan(c, problem, row, &plan) != MICA_OK) break;
        for (int i = 0; mica_plan_kernel(plan, i, &info) == MICA_OK; i++) {
            char *key = key_of(&info);
            if (!strcmp(key, row->key) && info.spill_bytes < row->spill_bytes)
                row->spill_bytes = info.spill_bytes;
            free(key);
        }
        mica_plan_destroy(plan);
        k->again++;
    }
    mica_problem_destroy(problem);
}

/* More spills than before and kernels that are gone fail (unless only some were asked for); the
 * rest is told. */
static bool compare_tables(check *c, compiler *k, const kernel_rows *old, bool part)
{
    bool ok = true;
    long fresh = 0, moved = 0;
    mica_disk_cache_limit(0); /* or compiling again would find what was compiled */
    for (size_t i = 0; i < k->rows.count; i++) {
        kernel_row *n = &k->rows.items[i], *o = find(old, n->key);
        int before = o ? o->spill_bytes : 0;
        fresh += !o;
        moved += o && (o->registers != n->registers || o->shared_bytes != n->shared_bytes ||
                       o->spill_bytes != n->spill_bytes);
        if (o) o->seen = true;
        if (n->spill_bytes > before) look_again(c, k, n, before);
        if (n->spill_bytes <= before) continue;
        printf("spills: %d bytes, the table says %d: %s\n", n->spill_bytes, before, n->key);
        ok = false;
    }
    for (size_t i = 0; i < old->count; i++) {
        if (old->items[i].seen || c->engine || c->config || c->pick || part) continue;
        printf("missing: %s\n", old->items[i].key);
        ok = false;
    }
    if (fresh || moved)
        printf("%ld kernels are not in the table, %ld have other registers, spills or shared "
               "memory; --update takes them over\n",
               fresh, moved);
    if (k->again) printf("%ld times a kernel was compiled again for fewer spills\n", k->again);
    return ok;
}

static int judge_table(check *c, compiler *k, bool part)
{
    kernel_rows old = {0};
    if (!c->table) return CLI_OK;
    if (c->update && part) {
        cli_say("--update writes whole tables, not those of a part");
        return CLI_USAGE;
    }
    if (c->update) return write_table(c->table, c->device.name, &k->rows) ? CLI_OK : CLI_USAGE;
    int code = CLI_USAGE;
    if (read_table(c->table, &old)) code = compare_tables(c, k, &old, part) ? CLI_OK : CLI_MISMATCH;
    release(&old);
    return code;
}

int check_compile(check *c)
{
    compiler k = {0};
    double start = cli_seconds();
    mica_log_set(on_log, &k, MICA_LOG_WARN);
    cli_progress_begin(&c->progress, c->lines.count, c->options.quiet);
    size_t i = 0;
    for (; i < c->lines.count && !cli_stopped() && !check_time_is_up(c, i); i++) {
        if (c->shares && (long)i % c->shares != c->share) continue;
        cli_progress_step(&c->progress, i, c->lines.items[i].text);
        compile_line(c, &k, &c->lines.items[i]);
    }
    bool part = c->shares || i < c->lines.count;
    cli_progress_clear(&c->progress);
    check_say_part(c, i);
    mica_log_set(NULL, NULL, MICA_LOG_ERROR);
    int code = cli_stopped() ? CLI_MISMATCH : judge_table(c, &k, part);
    long spilling = 0;
    for (size_t i = 0; i < k.rows.count; i++) spilling += k.rows.items[i].spill_bytes > 0;
    printf("%ld plans, %zu kernels emitted, %ld assembled now (%.1f s of compiling), %ld with "
           "spills, %ld warnings, %ld failures, %.1f s (%s)\n",
           k.plans, k.rows.count, k.assembled, k.compile_ms / 1e3, spilling, k.warnings, k.failures,
           cli_seconds() - start, c->device.name);
    if (k.plans == 0 && (c->engine || c->config)) {
        printf("no line leads to a kernel of that engine and config\n");
        code = cli_worse(code, CLI_UNSUPPORTED);
    }
    if (k.warnings || k.failures) code = cli_worse(code, CLI_MISMATCH);
    if (c->expect >= 0 && (size_t)c->expect != k.rows.count) {
        printf("%zu kernels, %ld were expected\n", k.rows.count, c->expect);
        code = cli_worse(code, CLI_MISMATCH);
    }
    if (c->lines.errors || c->lines.count == 0) code = cli_worse(code, CLI_USAGE);
    release(&k.rows);
    return code;
}
