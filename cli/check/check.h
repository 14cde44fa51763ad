/* SPDX-License-Identifier: Apache-2.0
 * `mica check`: what its files share. */
#ifndef MICA_CLI_CHECK_CHECK_H
#define MICA_CLI_CHECK_CHECK_H

#include "check/case.h"
#include "check/digest.h"
#include "graph/graphs.h"
#include "lines.h"
#include "bench/table.h"

typedef enum check_status {
    CHECK_PASSED,
    CHECK_MISMATCH,
    CHECK_REFUSED,    /* an engine that was asked for by name, or all of them */
    CHECK_MISTRUSTED, /* the comparison could hardly have failed */
    CHECK_NO_MEMORY,  /* the problem, its truth or its workspace does not fit */
    CHECK_STATUSES
} check_status;

/* Totals of one engine; the table of the summary has one row each. */
typedef struct check_total {
    char name[64];
    long count[CHECK_STATUSES], skipped;
    long excused; /* refusals and mistrusted comparisons that are no failures */
    double margin;
} check_total;

enum { CHECK_MAX_ENGINES = 256 };

typedef struct check {
    cli_options options;
    const char *engine;    /* only this one */
    bool all;              /* those too that are only taken by name */
    const char *against;   /* the engine whose results are the truth; NULL: the reference */
    const char *packed;    /* names of arguments that every line packs */
    const char *config;    /* only this one of it */
    bool pick;             /* of each engine the config that the planner would take */
    bool fills[CLI_FILLS]; /* by mica_fill */
    mica_fill first_fill;  /* of those that are wanted */
    uint64_t seed;
    bool allow_refusals, allow_mistrusted, self_test, verbose, compile_only;
    long expect; /* number of checks, or -1 */
    const char *digest_path;
    const char *table;
    bool update;
    double seconds;     /* of processor time, after which no problem is begun; 0: no limit */
    uint64_t part;      /* with seconds: the order of the problems */
    long share, shares; /* of compile-only: which problems; shares 0: all */

    mica_context *context;
    mica_device_info device;
    cli_lines lines;
    cli_graphs graphs;
    FILE *json, *digests;
    cli_progress progress;
    check_total totals[CHECK_MAX_ENGINES];
    int engines;
    long checks;
    uint64_t line_packed;    /* what the current line packs */
    const char *line_engine; /* the engine that it names; or NULL */
    bool zeroed;             /* the current problem has a 0 that its line does not say */
    bool weak;               /* the current line excuses comparisons that could hardly fail */
    bool refused, failed;    /* refused: or out of memory */
    bool lost;               /* lost: the device is gone, nothing more can run */
} check;

/* One result: what it concerned and how it ended. */
typedef struct check_outcome {
    const char *line, *engine, *config, *fill;
    check_status status;
    double margin;
    const char *text;
} check_outcome;

check_total *check_total_of(check *c, const char *engine);
/* Counts it, writes it to the JSON file, prints it if it is a failure or --verbose. */
void check_record(check *c, const check_outcome *outcome);
/* A line of the file of digests, if there is one and anything ran. Fields are apart by tabs. */
void check_write_digest(check *c, const check_outcome *outcome, const cli_digest *digest);
/* A call that failed is a mismatch, and true is returned. */
bool check_call_failed(check *c, mica_status status, check_outcome *outcome, char *text,
                       size_t size);
void check_print_wrong(const char *name, const mica_tensor *tensor, const cli_comparison *wrong);

enum { CHECK_MAX_PLANS = 256 };
typedef struct check_plan {
    mica_verdict verdict;
    mica_plan *plan;
} check_plan;
/* The only engine to be checked on a problem whose line names `named` (or NULL): the command
 * line's, or that one if the device has it. NULL: all but peers and those only taken by name. */
const char *check_only(const check *c, const mica_problem *problem, const char *named);
/* Plans with each config of each engine that takes the problem; returns how many. */
int check_plan_engines(check *c, const mica_problem *problem, const char *line, check_plan *plans);
/* Plans on every engine and runs with one fill. */
void check_problem(check *c, const mica_problem *problem, const char *line, mica_fill fill);
/* Fill edges: the line with a 0 in each number that it leaves out. */
void check_zeroed(check *c, const cli_line *line, const mica_problem *problem);
/* The line's problem, whose result repeats that of a smaller problem along dimension 0. */
void check_repeats(check *c, const cli_line *line);
/* Breaks results on purpose; returns how many breakages went unnoticed. */
int check_self_test(cli_case *k, cli_tolerance tolerance);
/* Prints which breakages were tried and noticed; false if one never applied or was missed. */
bool check_self_test_summary(FILE *out);
/* Graphs: fused, unfused and node by node, beside the references of their nodes; or compiled only.
 */
void check_graphs(check *c);
/* Plans everything, compares kernels with the table; an exit code. */
int check_compile(check *c);

/* Whether c->seconds are used up, which one problem may always do; and, where they limit, how many
 * problems were looked at. */
bool check_time_is_up(const check *c, size_t looked_at);
void check_say_part(const check *c, size_t looked_at);

#endif
