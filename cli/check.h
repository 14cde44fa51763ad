/* SPDX-License-Identifier: Apache-2.0
 * `mica check`: what its files share. */
#ifndef MICA_CLI_CHECK_H
#define MICA_CLI_CHECK_H

#include "case.h"
#include "lines.h"
#include "table.h"

typedef enum check_status {
    CHECK_PASSED,
    CHECK_MISMATCH,
    CHECK_REFUSED,    /* an engine that was asked for by name, or all of them */
    CHECK_MISTRUSTED, /* the comparison could hardly have failed */
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
    bool configs;          /* all of them */
    bool fills[CLI_FILLS]; /* by mica_fill */
    uint64_t seed;
    bool allow_refusals, allow_mistrusted, self_test, verbose, compile_only;
    long expect; /* number of checks, or -1 */
    const char *table;
    bool update;

    mica_context *context;
    mica_device_info device;
    cli_lines lines;
    FILE *json;
    cli_progress progress;
    check_total totals[CHECK_MAX_ENGINES];
    int engines;
    long checks;
    bool weak;                  /* the current line excuses comparisons that could hardly fail */
    bool refused, failed, lost; /* lost: the device is gone, nothing more can run */
} check;

check_total *check_total_of(check *c, const char *engine);
/* Breaks results on purpose; returns how many breakages went unnoticed. */
int check_self_test(cli_case *k, cli_tolerance tolerance);
/* Prints which breakages were tried and noticed; false if one never applied or was missed. */
bool check_self_test_summary(FILE *out);
/* Plans everything, compares kernels with the table; an exit code. */
int check_compile(check *c);

#endif
