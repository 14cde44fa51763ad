/* SPDX-License-Identifier: Apache-2.0
 * A problem with its data and its truth, to be run by one plan after the other. */
#ifndef MICA_CLI_CHECK_CASE_H
#define MICA_CLI_CHECK_CASE_H

#include "check/buffers.h"
#include "check/compare.h"

typedef struct cli_case {
    mica_context *context;
    const mica_problem *problem;
    mica_fill fill;
    bool exact;     /* the fill makes every result exact */
    double largest; /* of all inputs, in absolute value; at least 1 */
    bool finite;    /* all inputs are */
    int args;
    mica_arg_info info[MICA_MAX_ARGS];
    cli_buffer buffers[MICA_MAX_ARGS];
    cli_buffer workspace;
    uint64_t packed; /* set after cli_case_init: the plans' mica_options.packed */
    cli_buffer packs[MICA_MAX_ARGS];
    double *results[MICA_MAX_ARGS], *magnitudes[MICA_MAX_ARGS]; /* of outputs */
    unsigned char *kept[MICA_MAX_ARGS];                         /* outputs of an earlier run */
    char weak[256];                                             /* why the truth says little */
} cli_case;

/* What a run came to. */
typedef struct cli_judgement {
    bool ok;
    double margin;
    char text[256]; /* what is wrong, if no element is */
    int arg;        /* whose elements are wrong, or -1 */
    cli_comparison wrong;
} cli_judgement;

enum { CLI_FILLS = 6 };
extern const char *const cli_fill_names[]; /* by mica_fill, NULL-terminated */

/* Allocates; the problem must outlive the case. bare: optional arguments are left NULL. */
mica_status cli_case_init(cli_case *c, mica_context *context, const mica_problem *problem,
                          bool bare);
void cli_case_free(cli_case *c);
/* Fills the inputs; with cli_case_truth evaluates the reference. */
mica_status cli_case_fill(cli_case *c, mica_fill fill, uint64_t seed);
mica_status cli_case_truth(cli_case *c);
/* Takes a plan's own results for the truth, for problems that the reference would take hours for;
 * its tolerance must be exact. */
mica_status cli_case_truth_of(cli_case *c, const mica_plan *plan);
/* How a run places its data. */
typedef struct cli_placement {
    int poison;    /* byte that fills everything but elements */
    int shift;     /* elements off the aligned position */
    bool in_place; /* outputs lie on the inputs whose memory they may share */
    const char *what;
} cli_placement;
/* One run: poison everything, place the inputs, run, wait, fetch. */
mica_status cli_case_run(cli_case *c, const mica_plan *plan, const cli_placement *placement);
/* Whether any output may lie on an input. */
bool cli_case_has_in_place(const cli_case *c);
/* What the plan's numeric contract allows on this data. */
cli_tolerance cli_case_tolerance(const cli_case *c, const mica_plan *plan);
/* Judges the images that the last run left. */
void cli_case_judge(const cli_case *c, cli_tolerance tolerance, cli_judgement *judgement);
/* Does the truth say enough under this tolerance? Fills c->weak. */
void cli_case_trust(cli_case *c, cli_tolerance tolerance);
/* Keeps the outputs of the last run; later compares those of another run with them, bit by bit. */
void cli_case_keep(cli_case *c);
bool cli_case_repeats(const cli_case *c, char *text, size_t size);
bool cli_is_output(const mica_arg_info *info);

#endif
