/* SPDX-License-Identifier: Apache-2.0
 * Problem lines: from arguments, case files and logs, with lists of values expanded.
 *
 *   conv x=f32:1x{3,4}x8x8 pad=0x0,1x1 epilogue=bias|bias,relu      # eight problems
 *
 * Behind " ; " stand options: "packed=a,b" names inputs that runs get packed (mica_plan_pack);
 * "engine=NAME" leaves a check to that engine, where the device has it: so engines are checked that
 * are only taken by name.
 * A comment that reads "# mistrusted: why" excuses comparisons that could hardly fail; one that
 * reads "# repeats: LINE" says that inputs and results are those of LINE, again and again along
 * dimension 0: so problems can be checked whose reference would take hours. A comma in a
 * value separates alternatives, except in fields that are lists themselves (epilogue): there '|'
 * does. Braces expand inside a value. A log line counts from its problem on. */
#ifndef MICA_CLI_LINES_H
#define MICA_CLI_LINES_H

#include "cli.h"

typedef struct cli_line {
    char *text;
    char *where;     /* "tests/cases/conv.txt:12", or "" for the command line */
    bool weak;       /* its comment reads "# mistrusted: why": the comparison may say little */
    char *one;       /* its comment reads "# repeats: one"; or NULL */
    uint64_t packed; /* as in mica_options */
    char *engine;    /* of "; engine=NAME"; or NULL */
} cli_line;

typedef struct cli_lines {
    cli_line *items;
    size_t count, capacity;
    size_t errors; /* reported on stderr already */
} cli_lines;

/* Reads arguments: an argument that names a readable file is a case file, "-" is standard input,
 * the others are problem lines; each line begins with an operation's name. */
void cli_lines_read(cli_lines *lines, char *const *args, int count);
void cli_lines_free(cli_lines *lines);
/* Puts the lines into an order that `seed` chooses, the same everywhere. */
void cli_lines_shuffle(cli_lines *lines, uint64_t seed);
/* Appends the expansions of one line; false and a text in error if it is malformed. */
bool cli_lines_expand(cli_lines *lines, const char *line, const char *where, char *error,
                      size_t size);
/* What a line belongs to in results: the name of its case file, "line" on the command line. */
char *cli_line_set(const cli_line *line);
/* The problem of a line; on failure reports where and why, counts the error and returns NULL. */
mica_problem *cli_line_problem(cli_lines *lines, const cli_line *line);
/* What a line packs, and of `also`, names divided by commas or "all", what the problem has as
 * inputs; NULL: nothing more. */
uint64_t cli_line_packed(const cli_line *line, const mica_problem *problem, const char *also);
/* The canonical line, with its options. */
char *cli_line_text(const mica_problem *problem, uint64_t packed);
/* ---- names of engines (engines.c) ---- */

/* Whether each name of a list divided by commas, or "all" or NULL, is that of some operation's
 * engine; says which is not, what could be meant, and those of the first line's operation. */
bool cli_engines_known(const char *option, const char *list, const cli_lines *lines);
/* The same text of one name; op NULL: without a list. The caller frees. */
char *cli_engine_unknown(const char *op, const char *name);
/* Why that engine does not run a problem here, or NULL if it does. The caller frees. */
char *cli_engine_refusal(mica_context *context, const mica_problem *problem, const char *name);

/* Says that an error belongs to a line, "file:12: text", without counting it. */
void cli_line_say(const cli_line *line, const char *text);
/* Says that an error belongs to a line: "file:12: text". */
void cli_line_error(cli_lines *lines, const char *where, const char *text);

#endif
