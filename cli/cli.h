/* SPDX-License-Identifier: Apache-2.0
 * The command-line tool: what its files share. stdout carries data, stderr talk. */
#ifndef MICA_CLI_CLI_H
#define MICA_CLI_CLI_H

#include "mica/mica.h"

#include <argp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* Exit codes of every command. */
enum { CLI_OK, CLI_MISMATCH, CLI_USAGE, CLI_UNSUPPORTED, CLI_DEVICE_LOST };

int cmd_info(int argc, char **argv);
int cmd_list(int argc, char **argv);
int cmd_check(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_tune(int argc, char **argv);
int cmd_explain(int argc, char **argv);
int cmd_cache(int argc, char **argv);
int cmd_cudnn(int argc, char **argv);
int cmd_demo(int argc, char **argv);

/* ---- options that several commands have (options.c) ---- */

enum { CLI_MOST_GIVEN = 64 };
typedef struct cli_options {
    const char *device; /* --device, default "auto" */
    const char *commit; /* --commit: goes into result files */
    const char *json;   /* --json FILE */
    bool quiet;         /* --quiet: no progress, no table */
    char **args;        /* what is not an option: files and problem lines */
    int arg_count;
    const char *given[CLI_MOST_GIVEN]; /* long names of the options, the command's own too */
    int given_count;
} cli_options;

/* Parses with the command's own table and those of the common options that it has; the parser
 * hands its cli_options to state->child_inputs[0]. Options that exclude or need each other
 * (rules.c) and arguments where args_doc is "" are usage errors, on which this exits. */
void cli_parse(int argc, char **argv, const char *command, const struct argp_option *own,
               argp_parser_t parser, const char *args_doc, const char *doc, void *input);
void cli_options_free(cli_options *options);
/* A number of an option, or an exit with a usage error. */
double cli_number(struct argp_state *state, const char *option, const char *text, double low);
/* The context of --device; on failure says why on stderr and returns an exit code. */
int cli_context(const cli_options *options, mica_context **context, mica_device_info *info);

/* ---- errors, memory, interruption (util.c) ---- */

/* That name of the n which is at most two letters off, or NULL. */
const char *cli_nearest(const char *name, const char *const *names, int n);
/* Whether a file can be written there; says why not. */
bool cli_can_write(const char *path);
/* Says that a file could not be written to its end; the tool then ends with CLI_USAGE. */
void cli_output_lost(const char *path, int error);
bool cli_output_failed(void);
/* "mica: ..." on stderr. */
void cli_say(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The exit code that belongs to a status. */
int cli_exit_code(mica_status status);
/* The worse of two exit codes: a lost device, a mismatch, a usage error, unsupported, ok. */
int cli_worse(int a, int b);
/* Ctrl-C was pressed: finish the current case, print the summary. A second one kills. */
bool cli_stopped(void);
void cli_catch_interrupts(void);
/* Memory or an exit: the tool has nothing better to do without it. */
void *cli_alloc(size_t bytes);
void *cli_grow(void *memory, size_t bytes);
char *cli_format(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* "1 line", "3 lines": of regular words, and of those that end in y. The text is good until the
 * fourth call after it. */
const char *cli_count(long long n, const char *one);
/* Seconds as "0.03 s", "2.5 minutes", "17 years"; likewise. */
const char *cli_duration(double seconds);
/* The problem's canonical line. */
char *cli_problem_text(const mica_problem *problem);

#endif
