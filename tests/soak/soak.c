/* SPDX-License-Identifier: Apache-2.0
 * A host that uses everything at once for a long time: eight threads plan and run lines of all
 * families by all engines of the CPU, while the plan cache's bound changes, allocations fail, lines
 * are damaged, plans are refused and threads come and go. Results have the bits that they had when
 * computed alone, which `check` found right; memory, descriptors and threads are given back.
 *
 *     soak SECONDS SEED FILE...      files of problem lines
 *
 * Time is cut into rounds, each with a context and problems of its own: what a round leaves behind
 * shows. Prints a line for each and a summary; ends with 1 if anything was wrong. */
#define _GNU_SOURCE
#include "check/case.h"
#include "lines.h"
#include "base/memory.h"

#include <dirent.h>
#include <malloc.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { THREADS = 8, ITEMS = 192, LONGEST_ROUND = 30, FEWEST_ROUNDS = 2, MOST_FAMILIES = 128 };
static const double most_flops = 1e6, most_bytes = 2e5;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { WATCHED = 1 };
#elif defined(__has_feature)
enum { WATCHED = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) };
#else
enum { WATCHED = 0 };
#endif

/* A line, an engine, and what it computed alone. Whoever holds it may run it. */
typedef struct item {
    atomic_bool held;
    mica_problem *problem;
    cli_case data;
    cli_tolerance tolerance;
    mica_options options;
    char engine[64];
    bool ready, repeats;
} item;

static struct {
    mica_context *context;
    item items[ITEMS];
    cli_lines lines;
    pthread_rwlock_t alone;    /* written by who computes alone */
    pthread_mutex_t turnstile; /* that one goes first */
    atomic_bool stop;
    atomic_long failing; /* odd: allocations may fail just now */
    atomic_llong plans, runs, judged, refused, damaged, lacking, misused, threads, wrong;
    const char *families[MOST_FAMILIES];
    int family_count;
} soak;

/* ---- chance, time, what the system knows ---- */

static _Thread_local uint64_t state = 1;

static uint64_t chance(uint64_t below)
{
    state += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t x = state;
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return (x ^ x >> 31) % below;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void rest(double seconds)
{
    nanosleep(&(struct timespec){.tv_sec = (time_t)seconds,
                                 .tv_nsec = (long)(1e9 * (seconds - (double)(time_t)seconds))},
              NULL);
}

static int64_t resident(void)
{
    long long all = 0, pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f || fscanf(f, "%lld %lld", &all, &pages) != 2) pages = 0;
    if (f) fclose(f);
    return pages * sysconf(_SC_PAGESIZE);
}

static int entries(const char *path)
{
    DIR *d = opendir(path);
    int n = 0;
    while (d && readdir(d)) n++;
    if (d) closedir(d);
    return n;
}

__attribute__((format(printf, 1, 2))) static void wrong(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    printf("WRONG: ");
    vprintf(format, list);
    printf("\n");
    fflush(stdout);
    va_end(list);
    atomic_fetch_add(&soak.wrong, 1);
}

static void wrong_item(const item *t, const char *what)
{
    char line[2048];
    mica_problem_text(t->problem, line, sizeof line);
    wrong("%s ; engine=%s: %s", line, t->engine, what);
}

/* ---- items ---- */

static void note_family(const char *name)
{
    for (int i = 0; i < soak.family_count; i++)
        if (!strcmp(soak.families[i], name)) return;
    if (soak.family_count < MOST_FAMILIES) soak.families[soak.family_count++] = name;
}

static void forget(item *t)
{
    if (t->problem) cli_case_free(&t->data);
    mica_problem_destroy(t->problem);
    t->problem = NULL;
    t->ready = false;
}

/* One of the engines that take the problem without being named; false: none. */
static bool choose_engine(item *t)
{
    mica_verdict v;
    uint64_t seen = 0;
    for (int i = 0; mica_problem_verdict(soak.context, t->problem, i, &v) == MICA_OK; i++) {
        if (v.status != MICA_OK || mica_verdict_needs_name(&v) || chance(++seen) != 0) continue;
        snprintf(t->engine, sizeof t->engine, "%s", v.engine);
        t->repeats = v.deterministic;
    }
    return seen > 0;
}

/* Runs the item's case and judges it as `check` does. */
static mica_status run_case(item *t, const mica_plan *plan)
{
    const cli_placement placement = {chance(2) ? 0xff : 0x5a, 0, false, ""};
    mica_status status = cli_case_run(&t->data, plan, &placement);
    if (status == MICA_OK) atomic_fetch_add(&soak.runs, 1);
    return status;
}

static void judge(item *t)
{
    cli_judgement j;
    cli_case_judge(&t->data, t->tolerance, &j);
    atomic_fetch_add(&soak.judged, 1);
    if (!j.ok) wrong_item(t, *j.text ? j.text : "elements differ from the reference");
}

static mica_status compute_alone(item *t)
{
    mica_plan *plan;
    mica_status status = mica_plan_problem(soak.context, t->problem, &t->options, &plan);
    if (status != MICA_OK) return status;
    atomic_fetch_add(&soak.plans, 1);
    status =
        cli_case_fill(&t->data, chance(4) ? MICA_FILL_RANDOM : MICA_FILL_EXACT, chance(99) + 1);
    if (status == MICA_OK) status = cli_case_truth(&t->data);
    t->tolerance = cli_case_tolerance(&t->data, plan);
    if (status == MICA_OK) status = run_case(t, plan);
    if (status == MICA_OK) {
        judge(t);
        cli_case_keep(&t->data);
    }
    mica_plan_destroy(plan);
    return status;
}

/* Another problem in the item's place, of a line by chance. */
static void renew(item *t)
{
    double flops, bytes;
    forget(t);
    const cli_line *line = &soak.lines.items[chance(soak.lines.count)];
    if (line->one || mica_problem_from_text(line->text, &t->problem) != MICA_OK) return;
    mica_problem_cost(t->problem, &flops, &bytes);
    mica_status status = MICA_UNSUPPORTED;
    if (cli_case_init(&t->data, soak.context, t->problem, false) != MICA_OK) {
        wrong_item(t, mica_error());
    } else if (flops <= most_flops && bytes <= most_bytes && choose_engine(t)) {
        t->data.packed = line->packed;
        t->options = (mica_options){.engine = t->engine, .packed = line->packed};
        status = compute_alone(t);
        if (status != MICA_OK && status != MICA_UNSUPPORTED) wrong_item(t, mica_error());
    }
    t->ready = status == MICA_OK;
    if (t->ready)
        note_family(mica_problem_op(t->problem));
    else
        forget(t);
}

/* ---- what threads do ---- */

static bool may_lack(long before)
{
    long after = atomic_load(&soak.failing);
    return (before & 1) || before != after;
}

static void use(item *t)
{
    char text[256];
    mica_plan *plan;
    mica_options options = t->options;
    long failing = atomic_load(&soak.failing);
    options.workspace_limit = (int64_t)1 << 40 | (int64_t)chance(64); /* as many keys */
    mica_status status = mica_plan_problem(soak.context, t->problem, &options, &plan);
    if (status == MICA_OK) {
        atomic_fetch_add(&soak.plans, 1);
        status = run_case(t, plan);
        mica_plan_destroy(plan);
    }
    if (status == MICA_OUT_OF_MEMORY && may_lack(failing))
        atomic_fetch_add(&soak.lacking, 1);
    else if (status != MICA_OK)
        wrong_item(t, mica_error());
    else if (!t->repeats || may_lack(failing) || chance(8) == 0)
        judge(t); /* where memory lacks, a child may be another engine's */
    else if (!cli_case_repeats(&t->data, text, sizeof text))
        wrong_item(t, text);
}

/* A line with some characters changed is a problem or refused. */
static void damage_a_line(void)
{
    char copy[512];
    mica_problem *problem;
    snprintf(copy, sizeof copy, "%s", soak.lines.items[chance(soak.lines.count)].text);
    size_t length = strlen(copy);
    for (uint64_t n = chance(4) + 1; length && n > 0; n--)
        copy[chance(length)] = (char)(chance(2) ? ' ' + (int)chance(95) : copy[chance(length)]);
    if (mica_problem_from_text(copy, &problem) == MICA_OK) mica_problem_destroy(problem);
    atomic_fetch_add(&soak.damaged, 1);
}

static void ask_for_what_is_refused(const item *t)
{
    mica_plan *plan = NULL;
    long failing = atomic_load(&soak.failing);
    mica_options options = {.engine = chance(2) ? "no such engine" : t->engine,
                            .mode = MICA_MODE_RECORDED};
    mica_status status = mica_plan_problem(soak.context, t->problem, &options, &plan);
    if (status == MICA_OK || (status == MICA_OUT_OF_MEMORY && !may_lack(failing)))
        wrong_item(t, "what is refused was planned");
    if (status == MICA_OK) mica_plan_destroy(plan);
    atomic_fetch_add(&soak.refused, 1);
}

/* Without an element to compute, a run needs no arguments. */
static bool is_empty(const item *t)
{
    int64_t most = 0;
    for (int i = 0; i < t->data.args; i++) {
        if (!cli_is_output(&t->data.info[i])) continue;
        int64_t count = mica_tensor_count(&t->data.info[i].tensor);
        if (count > most) most = count;
    }
    return most == 0;
}

/* A run without its arguments, NULL, and files that are no records. */
static void misuse(const item *t)
{
    mica_plan *plan;
    if (mica_plan_problem(soak.context, t->problem, &t->options, &plan) == MICA_OK) {
        mica_status status = mica_plan_run(plan, &(mica_run){0});
        if (status == MICA_OK && !is_empty(t)) wrong_item(t, "ran without arguments");
        if (mica_plan_run(plan, NULL) == MICA_OK) wrong_item(t, "ran without a run");
        mica_plan_destroy(plan);
    }
    if (mica_context_load_records(soak.context, "/proc/self/no/such/file") == MICA_OK)
        wrong("records of a file that is not there");
    atomic_fetch_add(&soak.misused, 1);
}

/* Another context than everybody's. */
static void use_another_context(void)
{
    mica_context *own;
    mica_stats stats;
    if (mica_context_create("cpu", &own) != MICA_OK) return;
    if (mica_context_stats(own, &stats) != MICA_OK) wrong("no statistics: %s", mica_error());
    mica_context_destroy(own);
}

static void act(item *t)
{
    switch (chance(16)) {
    case 0:
        damage_a_line();
        break;
    case 1:
        ask_for_what_is_refused(t);
        break;
    case 2:
        misuse(t);
        break;
    case 3:
        use_another_context();
        break;
    default:
        use(t);
        break;
    }
}

typedef struct worker {
    pthread_t thread;
    uint64_t seed;
    double until;
    atomic_bool done;
    bool started;
} worker;

static void *work(void *user)
{
    worker *w = user;
    state = w->seed;
    while (!atomic_load(&soak.stop) && now() < w->until) {
        item *t = &soak.items[chance(ITEMS)];
        pthread_mutex_lock(&soak.turnstile);
        pthread_mutex_unlock(&soak.turnstile);
        pthread_rwlock_rdlock(&soak.alone);
        if (!atomic_exchange(&t->held, true)) {
            if (t->ready) act(t);
            atomic_store(&t->held, false);
        }
        pthread_rwlock_unlock(&soak.alone);
    }
    atomic_store(&w->done, true);
    return NULL;
}

/* Threads live for a second or two. */
static void start(worker *w)
{
    if (w->started) pthread_join(w->thread, NULL);
    w->seed = chance(UINT64_MAX);
    w->until = now() + 0.5 + (double)chance(1500) / 1000;
    atomic_store(&w->done, false);
    w->started = pthread_create(&w->thread, NULL, work, w) == 0;
    if (!w->started) wrong("a thread could not be started");
    atomic_fetch_add(&soak.threads, 1);
}

/* ---- what the first thread does meanwhile ---- */

static void change_the_bound(void)
{
    static const int64_t bounds[] = {0, 1 << 16, 1 << 20, 8 << 20, 64 << 20};
    if (mica_context_cache_limit(soak.context, bounds[chance(5)]) != MICA_OK)
        wrong("the bound: %s", mica_error());
}

/* One allocation, or all of some milliseconds. */
static void let_allocations_fail(void)
{
    atomic_fetch_add(&soak.failing, 1);
    mica_fault_set(MICA_FAULT_ALLOC, (long)chance(200) + 1, chance(8) == 0);
    rest(0.02);
    mica_fault_set(MICA_FAULT_ALLOC, 0, false);
    atomic_fetch_add(&soak.failing, 1);
}

static void renew_some(int count)
{
    pthread_mutex_lock(&soak.turnstile);
    pthread_rwlock_wrlock(&soak.alone);
    pthread_mutex_unlock(&soak.turnstile);
    for (int i = 0; i < count; i++) renew(&soak.items[chance(ITEMS)]);
    pthread_rwlock_unlock(&soak.alone);
}

static int64_t round_peak;

static void meanwhile(double until)
{
    static worker workers[THREADS];
    memset(workers, 0, sizeof workers);
    atomic_store(&soak.stop, false);
    for (int i = 0; i < THREADS; i++) start(&workers[i]);
    for (int beat = 0; now() < until; beat++) {
        for (int i = 0; i < THREADS; i++)
            if (atomic_load(&workers[i].done)) start(&workers[i]);
        change_the_bound();
        if (beat % 2 == 0) let_allocations_fail();
        renew_some(2);
        int64_t size = resident();
        if (size > round_peak) round_peak = size;
        rest(0.05);
    }
    atomic_store(&soak.stop, true);
    for (int i = 0; i < THREADS; i++)
        if (workers[i].started) pthread_join(workers[i].thread, NULL);
}

typedef struct leftovers {
    int64_t bytes; /* resident */
    int64_t heap;  /* in use, of malloc */
    int files, threads;
} leftovers;

static leftovers one_round(double seconds)
{
    double end = now() + seconds;
    round_peak = 0;
    if (mica_context_create("cpu", &soak.context) != MICA_OK) wrong("%s", mica_error());
    for (int i = 0; i < ITEMS && now() < end - seconds / 2; i++) renew(&soak.items[i]);
    meanwhile(end);
    for (int i = 0; i < ITEMS; i++) forget(&soak.items[i]);
    mica_context_destroy(soak.context);
    malloc_trim(0);
    struct mallinfo2 heap = mallinfo2();
    return (leftovers){resident(), (int64_t)(heap.uordblks + heap.hblkhd), entries("/proc/self/fd"),
                       entries("/proc/self/task")};
}

/* The first round opens and keeps what the process has once. */
static void compare(const leftovers *first, const leftovers *later)
{
    enum { SLACK = 32 << 20, HEAP = 1 << 20, PEAK = 512 << 20 };
    if (!WATCHED && later->heap > first->heap + HEAP)
        wrong("%lld KB are in use after a round, %lld after the first",
              (long long)later->heap >> 10, (long long)first->heap >> 10);
    if (!WATCHED && later->bytes > first->bytes + SLACK)
        wrong("%lld KB are resident after a round, %lld after the first",
              (long long)later->bytes >> 10, (long long)first->bytes >> 10);
    if (!WATCHED && round_peak > first->bytes + PEAK)
        wrong("%lld KB were resident in a round", (long long)round_peak >> 10);
    if (later->files != first->files)
        wrong("%d descriptors, %d after the first round", later->files, first->files);
    if (later->threads > first->threads)
        wrong("%d threads, %d after the first round", later->threads, first->threads);
}

static void report(double seconds)
{
    printf("seconds %.0f\nthreads %d at once, %lld in all\nfamilies %d:", seconds, THREADS,
           (long long)soak.threads, soak.family_count);
    for (int i = 0; i < soak.family_count; i++) printf(" %s", soak.families[i]);
    printf(
        "\nplans %lld\nruns %lld, of which %lld judged beside the reference, the others by bits\n"
        "allocations failed in %lld\nlines damaged %lld\nplans refused %lld\nmisused %lld\n"
        "wrong %lld\n",
        (long long)soak.plans, (long long)soak.runs, (long long)soak.judged,
        (long long)soak.lacking, (long long)soak.damaged, (long long)soak.refused,
        (long long)soak.misused, (long long)soak.wrong);
}

int main(int argc, char **argv)
{
    double seconds = argc > 3 ? strtod(argv[1], NULL) : 0, begin = now();
    mallopt(M_ARENA_MAX, 1); /* malloc_trim leaves the ends of the others resident */
    if (!(seconds >= 1)) return fprintf(stderr, "usage: soak SECONDS SEED FILE...\n"), 2;
    state = strtoull(argv[2], NULL, 10);
    cli_lines_read(&soak.lines, argv + 3, argc - 3);
    if (soak.lines.errors || !soak.lines.count) return 2;
    pthread_rwlock_init(&soak.alone, NULL);
    pthread_mutex_init(&soak.turnstile, NULL);
    int rounds = (int)(seconds / LONGEST_ROUND);
    if (rounds < FEWEST_ROUNDS) rounds = FEWEST_ROUNDS;
    leftovers first = {0};
    for (int i = 0; i < rounds; i++) {
        leftovers later = one_round(seconds / rounds);
        printf("round %d: at most %lld MB resident; left %lld MB, of them %lld KB of malloc, %d "
               "descriptors, %d threads\n",
               i + 1, (long long)round_peak >> 20, (long long)later.bytes >> 20,
               (long long)later.heap >> 10, later.files - 3, later.threads - 2);
        fflush(stdout);
        if (i == 0) first = later;
        compare(&first, &later);
    }
    report(now() - begin);
    cli_lines_free(&soak.lines);
    return soak.wrong || soak.family_count == 0 || soak.runs == 0;
}
