/* SPDX-License-Identifier: Apache-2.0
 * What mica costs where it is not alone: each problem line by one process, by two and by four at
 * once, beside a process with a thread that spins, and in a process that has one. Rounds go through
 * all of these in turn; a time is a process's seconds by its number of runs, a line's the median of
 * the rounds and of the processes of each. Public functions only, so that LD_LIBRARY_PATH puts
 * another build of the library under it. Built on demand; on two CPUs of a machine with more:
 *
 *     cmake --build build --target bench_contention
 *     taskset -c 0,1 build/bench_contention [-a] [-s SECONDS] [-r ROUNDS] [LINE...]
 *     taskset -c 0,1 build/bench_contention [-a] [-r ROUNDS] -p COMMAND ARGUMENT...
 *
 * -a: alone only, to compare builds; -p: times a whole program. bench/contention.sh does all of it.
 * Aims, times alone: two processes 2.3, four 4.8, beside a spinning thread 2.5. */
#define _GNU_SOURCE
#include "mica/mica.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST_PROCESSES = 4, MOST_ROUNDS = 101 };

typedef struct company {
    const char *name;
    int processes;
    int spinning; /* other processes that spin */
    bool thread;  /* one thread of the process does */
    double aim;
} company;

static const company companies[] = {{"alone", 1, 0, false, 0},
                                    {"two", 2, 0, false, 2.3},
                                    {"four", 4, 0, false, 4.8},
                                    {"spinner", 1, 1, false, 2.5},
                                    {"own spinner", 1, 0, true, 2.5}};
enum { COMPANIES = sizeof companies / sizeof *companies };

/* Between the processes: all get ready, then start. */
static struct shared {
    atomic_int ready, go;
    double seconds[MOST_PROCESSES];
} * shared;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *spin(void *unused)
{
    for (volatile unsigned n = 0;; n++) continue;
    return unused;
}

/* ---- a process ---- */

static _Noreturn void fail(const char *line)
{
    fprintf(stderr, "%s: %s\n", line, mica_error());
    _exit(1);
}

static mica_status bind(mica_context *c, const mica_problem *problem, const mica_plan *plan,
                        mica_run *run)
{
    mica_arg_info info;
    mica_status status = MICA_OK;
    for (int i = 0; status == MICA_OK && mica_problem_arg(problem, i, &info) == MICA_OK; i++) {
        if (info.dir == MICA_UNUSED) continue;
        void *memory;
        int64_t first, span = mica_tensor_span(&info.tensor, &first);
        status = mica_malloc(c, span, &memory);
        if (status == MICA_OK) status = mica_memset(c, memory, 0, span, NULL);
        run->args[i] = status == MICA_OK ? (char *)memory - first : NULL;
    }
    size_t bytes = mica_plan_workspace(plan);
    if (status == MICA_OK && bytes) status = mica_malloc(c, (int64_t)bytes, &run->workspace);
    return status;
}

/* Seconds a run; nothing is given back, for the process ends. */
static double time_runs(const char *line, double seconds)
{
    mica_context *context;
    mica_problem *problem;
    mica_plan *plan;
    mica_run run = {0};
    if (mica_context_create("cpu", &context) || mica_problem_from_text(line, &problem) ||
        mica_plan_problem(context, problem, NULL, &plan))
        fail(line);
    run.scalars = mica_problem_scalars(problem);
    if (bind(context, problem, plan, &run) || mica_plan_run(plan, &run)) fail(line);
    atomic_fetch_add(&shared->ready, 1);
    while (!atomic_load(&shared->go)) usleep(200);
    double start = now(), end;
    int64_t runs = 0;
    do {
        if (mica_plan_run(plan, &run)) fail(line);
        runs++;
        end = now();
    } while (end - start < seconds);
    return (end - start) / (double)runs;
}

/* ---- a round ---- */

static _Noreturn void be_process(const company *c, int index, const char *line, double seconds)
{
    pthread_t thread;
    if (c->thread && pthread_create(&thread, NULL, spin, NULL) != 0) _exit(1);
    shared->seconds[index] = time_runs(line, seconds);
    _exit(0);
}

static _Noreturn void be_program(char **argv)
{
    if (!freopen("/dev/null", "w", stdout) || !freopen("/dev/null", "w", stderr)) _exit(1);
    atomic_fetch_add(&shared->ready, 1);
    while (!atomic_load(&shared->go)) usleep(200);
    execvp(argv[0], argv);
    _exit(127);
}

/* One of a list of processes' end; the time of each is put down where it is a program. */
static bool wait_for(const pid_t *all, int count, double start, bool program)
{
    bool good = true;
    for (int left = count; left > 0; left--) {
        int status;
        pid_t pid = wait(&status);
        for (int i = 0; program && i < count; i++)
            if (all[i] == pid) shared->seconds[i] = now() - start;
        good = good && WIFEXITED(status) && WEXITSTATUS(status) == 0;
    }
    return good;
}

static bool run_round(const company *c, const char *line, double seconds, char **program)
{
    pid_t all[MOST_PROCESSES], spinner = 0;
    atomic_store(&shared->ready, 0);
    atomic_store(&shared->go, 0);
    for (int i = 0; i < c->processes; i++) {
        all[i] = fork();
        if (all[i] == 0 && program) be_program(program);
        if (all[i] == 0) be_process(c, i, line, seconds);
        if (all[i] < 0) return false;
    }
    while (atomic_load(&shared->ready) < c->processes) {
        usleep(1000);
        if (waitpid(-1, NULL, WNOHANG) > 0) return false;
    }
    if (c->spinning && (spinner = fork()) == 0) spin(NULL);
    double start = now();
    atomic_store(&shared->go, 1);
    if (spinner > 0) {
        siginfo_t info;
        for (int i = 0; i < c->processes; i++)
            waitid(P_PID, (id_t)all[i], &info, WEXITED | WNOWAIT);
        if (program) shared->seconds[0] = now() - start;
        kill(spinner, SIGKILL);
        waitpid(spinner, NULL, 0);
    }
    return wait_for(all, c->processes, start, program && !spinner);
}

/* ---- all of them ---- */

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, compare);
    return values[count / 2];
}

static bool measure(const char *line, double seconds, int rounds, int kinds, char **program)
{
    static double times[COMPANIES][MOST_ROUNDS * MOST_PROCESSES];
    int counts[COMPANIES] = {0};
    for (int r = 0; r < rounds; r++)
        for (int k = 0; k < kinds; k++) {
            if (program && companies[k].thread) continue;
            if (!run_round(&companies[k], line, seconds, program)) return false;
            for (int i = 0; i < companies[k].processes; i++)
                times[k][counts[k]++] = shared->seconds[i];
        }
    printf("%s\n", line);
    double alone = median(times[0], counts[0]);
    for (int k = 0; k < COMPANIES; k++) {
        if (counts[k] == 0) continue;
        double t = median(times[k], counts[k]);
        printf("  %-12s %10.4f ms  least %10.4f  %6.2f times", companies[k].name, 1e3 * t,
               1e3 * times[k][0], t / alone);
        if (companies[k].aim > 0) printf(", aim %.1f", companies[k].aim);
        printf("\n");
    }
    fflush(stdout);
    return true;
}

int main(int argc, char **argv)
{
    static char *const usual[] = {
        "softmax x=f32:128x1000 axis=1",         "softmax x=f32:4096x1000 axis=1",
        "activation act=relu x=f32:64x64x28x28", "gemm a=f32:64x256 b=f32:256x256",
        "gemm a=f32:512x512 b=f32:512x512",      "conv x=f32:16x32x28x28 w=f32:32x32x3x3 pad=1x1"};
    double seconds = 1;
    int rounds = 5, kinds = COMPANIES, code = 0, option;
    bool program = false;
    while ((option = getopt(argc, argv, "+as:r:p")) != -1) {
        if (option == 'a') kinds = 1;
        if (option == 's') seconds = atof(optarg);
        if (option == 'r') rounds = atoi(optarg);
        if (option == 'p') program = true;
        if (option == '?') return 2;
    }
    if (rounds < 1 || rounds > MOST_ROUNDS || (program && optind == argc)) {
        fprintf(stderr, "usage: %s [-a] [-s SECONDS] [-r 1 to %d] [LINE... | -p COMMAND...]\n",
                argv[0], MOST_ROUNDS);
        return 2;
    }
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) return 1;
    if (program) return !measure(argv[optind], 0, rounds, kinds, argv + optind);
    char *const *lines = argc > optind ? argv + optind : usual;
    int count = argc > optind ? argc - optind : (int)(sizeof usual / sizeof *usual);
    for (int i = 0; i < count; i++)
        if (!measure(lines[i], seconds, rounds, kinds, NULL)) code = 1;
    return code;
}
