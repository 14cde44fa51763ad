/* SPDX-License-Identifier: Apache-2.0
 * `mica bench`: what its files share. */
#ifndef MICA_CLI_BENCH_BENCH_H
#define MICA_CLI_BENCH_BENCH_H

#include "cli.h"

/* ---- timing one problem on several plans (timing.c) ---- */

typedef struct bench_entry {
    char engine[64];
    mica_plan *plan;
    void *workspace;
    void *packed[MICA_MAX_ARGS];        /* all sets of an argument that the plan gets packed */
    int64_t packed_step[MICA_MAX_ARGS]; /* bytes from one set's to the next one's */
    double *samples;                    /* milliseconds */
    size_t count, capacity;
    double total_ms, guess_ms;
    double host_ms;      /* that enqueuing a run takes */
    double predicted_ms; /* of one config of an engine; else 0 */
    bool is_config;      /* one of an engine's that --configs measures */
    bool picked;         /* that config is the planner's own choice */
    mica_status status;
    char error[256];
    char disturbed[128]; /* what else ran meanwhile (mica_load_disturbed), or "" */
} bench_entry;

typedef struct bench_limits {
    double seconds; /* of measured time, per plan */
    size_t least;   /* runs, unless ten times the seconds are over */
    bool hot;       /* one set of buffers, so that they stay in the cache */
} bench_limits;

/* Times the entries in turns, each on data that is not in the cache (unless hot). Entries that fail
 * keep their status; an error here is one of the data. */
mica_status bench_time(mica_context *context, const mica_device_info *device,
                       const mica_problem *problem, bench_entry *entries, int count,
                       const bench_limits *limits);

/* ---- the roof (roof.c) ---- */

typedef struct bench_roof bench_roof;
/* NULL where the description of the device serves. */
bench_roof *bench_roof_create(mica_context *context, const mica_device_info *device);
void bench_roof_free(bench_roof *roof);
/* What large copies reach now, on all threads; 0 if that is not measured. */
double bench_roof_gbps(const bench_roof *roof);
/* The least time of a problem at that rate, or, where it is 0, at the described one. */
double bench_roof_ms(const mica_context *context, const mica_device_info *device,
                     const mica_problem *problem, double measured_gbps);

/* ---- results ---- */

typedef struct bench_result {
    char *set, *line, *engine, *device;
    double ms, p10, p90, tflops, gbps, roofline;
    double flops, bytes;
    int mhz[2];      /* of a GPU's multiprocessors before and after; 0: not known */
    char *disturbed; /* why the times are not to be trusted, or NULL */
    char *config;    /* of --configs, or NULL */
    double predicted_ms;
    bool picked;
    size_t n;
    double *samples; /* n of them, or NULL */
} bench_result;

typedef struct bench_results {
    bench_result *items;
    size_t count;
} bench_results;

void bench_add(bench_results *results, bench_result result);
void bench_results_free(bench_results *results);
/* Reads a JSON lines file; says what is wrong and returns false. */
bool bench_read(bench_results *results, const char *path);
/* Ratios of two files; an exit code: mismatch if anything became slower. */
int bench_compare(const char *old_path, const char *new_path);
/* Roofline scatter and bars, self-contained. */
bool bench_plot(const char *path, const bench_results *results, const mica_device_info *device);
/* What the measurements of the host's time share. */
typedef struct bench_host {
    mica_context *context;
    double context_ms;  /* that making the context took */
    const char *engine; /* NULL: the planner's choice */
    const char *set, *commit, *device;
    FILE *json; /* or NULL */
} bench_host;
/* Host time of planning and launching; without lines and graphs a tiny line's. */
struct cli_graphs;
int bench_overhead(const bench_host *host, char *const *lines, size_t count,
                   const struct cli_graphs *graphs);
/* A row of that: the time of one of the `count` calls that `f` makes. */
struct cli_table;
typedef mica_status bench_calls(void *user, int count);
mica_status bench_host_row(struct cli_table *table, const bench_host *host, const char *line,
                           const char *engine, const char *what, bench_calls *f, void *user);
/* What the first calls of this process cost. */
int bench_first_calls(const bench_host *host, char *const *lines, size_t count);

#endif
