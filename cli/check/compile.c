/* SPDX-License-Identifier: Apache-2.0
 * `mica check --compile-only`: compiles every kernel that a set of problems can lead to, for a
 * device that need not be there, and compares registers and spills with a checked-in table. */
#define _GNU_SOURCE
#include "check/check.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct kernel_row {
    char *key; /* file, entry and prologue on one line: what the kernel is */
    uint64_t hash;
    int spill_bytes;
    bool seen;
    const cli_line *line; /* a plan that holds it: problem, engine, config */
    char *engine, *config;
} kernel_row;

typedef struct kernel_rows {
    kernel_row *items;
    size_t count;
} kernel_rows;

/* How many kernels the lines of a case file lead to. */
typedef struct kernel_set {
    char *name;
    long kernels;
    bool seen;
    kernel_rows rows; /* keys only */
} kernel_set;

/* tests/kernels/ARCH.txt, and what was found. */
typedef struct kernel_table {
    kernel_rows rows; /* of a file: those that spill */
    kernel_set *sets;
    size_t set_count;
} kernel_table;

static int by_key(const void *a, const void *b)
{
    return strcmp(((const kernel_row *)a)->key, ((const kernel_row *)b)->key);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const kernel_set *)a)->name, ((const kernel_set *)b)->name);
}

/* FNV-1a: comparing long keys that begin alike is what would take the time. */
static uint64_t hash_of(const char *key)
{
    uint64_t hash = 14695981039346656037u;
    for (; *key; key++) hash = (hash ^ (unsigned char)*key) * 1099511628211u;
    return hash;
}

static kernel_row *find(const kernel_rows *rows, const char *key)
{
    uint64_t hash = hash_of(key);
    for (size_t i = 0; i < rows->count; i++)
        if (rows->items[i].hash == hash && !strcmp(rows->items[i].key, key)) return &rows->items[i];
    return NULL;
}

static void add(kernel_rows *rows, kernel_row row)
{
    row.hash = hash_of(row.key);
    rows->items = cli_grow(rows->items, (rows->count + 1) * sizeof row);
    rows->items[rows->count++] = row;
}

static kernel_set *set_of(kernel_table *t, const char *name)
{
    for (size_t i = 0; i < t->set_count; i++)
        if (!strcmp(t->sets[i].name, name)) return &t->sets[i];
    t->sets = cli_grow(t->sets, (t->set_count + 1) * sizeof *t->sets);
    t->sets[t->set_count] = (kernel_set){.name = cli_format("%s", name)};
    return &t->sets[t->set_count++];
}

static void release_rows(kernel_rows *rows)
{
    for (size_t i = 0; i < rows->count; i++) {
        free(rows->items[i].key);
        free(rows->items[i].engine);
        free(rows->items[i].config);
    }
    free(rows->items);
}

static void release(kernel_table *t)
{
    release_rows(&t->rows);
    for (size_t i = 0; i < t->set_count; i++) {
        free(t->sets[i].name);
        release_rows(&t->sets[i].rows);
    }
    free(t->sets);
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

/* ---- the table's file ----
 *
 *   CASES N               so many kernels are what the lines of CASES.txt lead to
 *   BYTES | KERNEL        this one spills; all others do not */

static bool read_row(kernel_table *t, const char *line)
{
    char name[128];
    int at = 0;
    kernel_row row = {0};
    if (sscanf(line, "%d | %n", &row.spill_bytes, &at) == 1 && at > 0) {
        row.key = cli_format("%s", line + at);
        add(&t->rows, row);
        return true;
    }
    long kernels;
    if (sscanf(line, "%127s %ld%n", name, &kernels, &at) != 2 || line[at]) return false;
    set_of(t, name)->kernels = kernels;
    return true;
}

static bool read_table(const char *path, kernel_table *t)
{
    FILE *f = fopen(path, "r");
    if (!f) {
        cli_say("%s: %s", path, strerror(errno));
        return false;
    }
    char *line = NULL;
    size_t capacity = 0;
    bool ok = true;
    for (int number = 1; ok && getline(&line, &capacity, f) >= 0; number++) {
        line[strcspn(line, "\n")] = 0;
        ok = *line == '#' || !*line || read_row(t, line);
        if (!ok) cli_say("%s:%d: a line reads `CASES N' or `BYTES | KERNEL'", path, number);
    }
    free(line);
    fclose(f);
    return ok;
}

static bool write_table(const char *path, const char *device, kernel_table *t)
{
    FILE *f = fopen(path, "w");
    if (!f) {
        cli_say("%s: %s", path, strerror(errno));
        return false;
    }
    fprintf(
        f,
        "# Kernels for %s: how many the lines of each case file lead to, and bytes of spills of\n"
        "# those that spill.\n",
        device);
    if (t->set_count) qsort(t->sets, t->set_count, sizeof *t->sets, by_name);
    for (size_t i = 0; i < t->set_count; i++)
        fprintf(f, "%s %ld\n", t->sets[i].name, t->sets[i].kernels);
    if (t->rows.count) qsort(t->rows.items, t->rows.count, sizeof *t->rows.items, by_key);
    for (size_t i = 0; i < t->rows.count; i++)
        if (t->rows.items[i].spill_bytes)
            fprintf(f, "%d | %s\n", t->rows.items[i].spill_bytes, t->rows.items[i].key);
    bool bad = ferror(f) != 0;
    bad |= fclose(f) != 0;
    if (bad) cli_say("%s: writing failed: %s", path, strerror(errno));
    return !bad;
}

/* ---- planning ---- */

typedef struct compiler {
    kernel_table found; /* its rows: all of them */
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

static void count_kernel(compiler *k, const cli_line *line, const char *key)
{
    char *name = cli_line_set(line);
    kernel_set *set = set_of(&k->found, name);
    free(name);
    if (find(&set->rows, key)) return;
    add(&set->rows, (kernel_row){.key = cli_format("%s", key)});
    set->kernels++;
}

/* The plan's kernels that no earlier plan had. `made` says how to make the plan again. */
static void note_kernels(compiler *k, const mica_plan *plan, const kernel_row *made)
{
    mica_kernel_info info;
    for (int i = 0; mica_plan_kernel(plan, i, &info) == MICA_OK; i++) {
        char *key = key_of(&info);
        count_kernel(k, made->line, key);
        if (find(&k->found.rows, key)) {
            free(key);
            continue;
        }
        add(&k->found.rows, (kernel_row){.key = key,
                                         .spill_bytes = info.spill_bytes,
                                         .line = made->line,
                                         .engine = cli_format("%s", made->engine),
                                         .config = cli_format("%s", made->config)});
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
        if (v.status == MICA_OK && (only ? !strcmp(only, v.engine) : c->all || !v.by_name))
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

/* Kernels that spill more than the table says fail. Fewer are told. */
static bool compare_spills(check *c, compiler *k, const kernel_table *old)
{
    bool ok = true;
    long fewer = 0;
    mica_disk_cache_limit(0); /* or compiling again would find what was compiled */
    for (size_t i = 0; i < k->found.rows.count; i++) {
        kernel_row *n = &k->found.rows.items[i], *o = find(&old->rows, n->key);
        int before = o ? o->spill_bytes : 0;
        if (n->spill_bytes > before) look_again(c, k, n, before);
        fewer += n->spill_bytes < before;
        if (n->spill_bytes <= before) continue;
        printf("spills: %d bytes, the table says %d: %s\n", n->spill_bytes, before, n->key);
        ok = false;
    }
    if (fewer)
        printf("%s %s less than the table says; --update takes it over\n",
               cli_count(fewer, "kernel"), fewer == 1 ? "spills" : "spill");
    if (k->again)
        printf("%s a kernel was compiled again for fewer spills\n", cli_count(k->again, "time"));
    return ok;
}

/* Whole files lead to as many kernels as the table says: none is gone unnoticed. */
static bool compare_counts(compiler *k, kernel_table *old)
{
    bool ok = true;
    for (size_t i = 0; i < k->found.set_count; i++) {
        kernel_set *n = &k->found.sets[i], *o = set_of(old, n->name);
        if (o->kernels == n->kernels) continue;
        printf("%s: %s, the table says %ld; --update takes it over\n", n->name,
               cli_count(n->kernels, "kernel"), o->kernels);
        ok = false;
    }
    return ok;
}

/* Into the table goes what was found; what belongs to other case files stays. */
static void update_table(kernel_table *old, const kernel_table *found)
{
    for (size_t i = 0; i < found->set_count; i++)
        set_of(old, found->sets[i].name)->kernels = found->sets[i].kernels;
    for (size_t i = 0; i < found->rows.count; i++) {
        const kernel_row *n = &found->rows.items[i];
        kernel_row *o = find(&old->rows, n->key);
        if (o)
            o->spill_bytes = n->spill_bytes;
        else
            add(&old->rows,
                (kernel_row){.key = cli_format("%s", n->key), .spill_bytes = n->spill_bytes});
    }
}

static int judge_table(check *c, compiler *k, bool part)
{
    kernel_table old = {0};
    if (!c->table) return CLI_OK;
    bool fresh = c->update && access(c->table, F_OK) != 0;
    int code = CLI_USAGE;
    if (fresh || read_table(c->table, &old)) {
        if (c->update) {
            update_table(&old, &k->found);
            code = write_table(c->table, c->device.name, &old) ? CLI_OK : CLI_USAGE;
        } else {
            bool whole = !part && !c->engine && !c->config && !c->pick;
            bool ok = compare_spills(c, k, &old);
            if (whole) ok &= compare_counts(k, &old);
            code = ok ? CLI_OK : CLI_MISMATCH;
        }
    }
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
    for (size_t i = 0; i < k.found.rows.count; i++)
        spilling += k.found.rows.items[i].spill_bytes > 0;
    printf("%s, %s emitted, %ld assembled now (%.1f s of compiling), %ld with spills, %s, %s, %.1f "
           "s (%s)\n",
           cli_count(k.plans, "plan"), cli_count((long long)k.found.rows.count, "kernel"),
           k.assembled, k.compile_ms / 1e3, spilling, cli_count(k.warnings, "warning"),
           cli_count(k.failures, "failure"), cli_seconds() - start, c->device.name);
    if (k.plans == 0 && (c->engine || c->config)) {
        printf("no line leads to a kernel of that engine and config\n");
        code = cli_worse(code, CLI_UNSUPPORTED);
    }
    if (k.warnings || k.failures) code = cli_worse(code, CLI_MISMATCH);
    if (c->expect >= 0 && (size_t)c->expect != k.found.rows.count) {
        printf("%s, %ld were expected\n", cli_count((long long)k.found.rows.count, "kernel"),
               c->expect);
        code = cli_worse(code, CLI_MISMATCH);
    }
    if (c->lines.errors || c->lines.count == 0) code = cli_worse(code, CLI_USAGE);
    release(&k.found);
    return code;
}
