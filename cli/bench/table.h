/* SPDX-License-Identifier: Apache-2.0
 * Aligned columns and colours for terminals, and the progress bar. */
#ifndef MICA_CLI_BENCH_TABLE_H
#define MICA_CLI_BENCH_TABLE_H

#include "cli.h"

/* Escape sequence for a style ("red", "green", "yellow", "bold", "dim", "off") if the stream is a
 * terminal and NO_COLOR is unset; else "". */
const char *cli_style(FILE *stream, const char *style);

typedef struct cli_table {
    int columns;
    size_t cells, capacity;
    char **text; /* row by row; the first row is the header */
    bool right[16], wrapped[16];
} cli_table;

/* Characters of a line that tables keep to where columns may be wrapped. */
enum { CLI_LINE = 100 };
/* headers: separated by '|'; one that begins with '>' is aligned to the right, one with '~' is
 * wrapped between words where the line would be longer than CLI_LINE. */
void cli_table_begin(cli_table *table, const char *headers);
/* Adds the next cell. */
void cli_cell(cli_table *table, const char *format, ...) __attribute__((format(printf, 2, 3)));
void cli_table_print(const cli_table *table, FILE *out);
/* The same, separated by commas, quoted where needed. */
void cli_table_csv(const cli_table *table, FILE *out);
void cli_table_end(cli_table *table);

/* ---- progress: a bar on stderr if that is a terminal, at most ten times a second ---- */
typedef struct cli_progress {
    bool on;
    size_t total;
    double start, last;
} cli_progress;

double cli_seconds(void);
void cli_progress_begin(cli_progress *progress, size_t total, bool quiet);
void cli_progress_step(cli_progress *progress, size_t done, const char *what);
/* Removes the bar, so that other text can be printed. */
void cli_progress_clear(cli_progress *progress);

#endif
