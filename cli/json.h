/* SPDX-License-Identifier: Apache-2.0
 * JSON lines of result files. */
#ifndef MICA_CLI_JSON_H
#define MICA_CLI_JSON_H

#include "cli.h"

#include <jansson.h>

/* Opens PATH for writing ("-": standard output); says why not and returns NULL. */
FILE *cli_json_open(const char *path);
void cli_json_close(FILE *file);
/* Writes one object as a line, flushes it, so that an interrupted file is valid, and drops it.
 * Where that fails it is said once, no half line stays, nothing more is written to the file, and
 * the tool ends with CLI_USAGE (cli_output_failed). */
void cli_json_line(FILE *file, json_t *object);
/* The same of any text that ends in a newline. */
void cli_json_text(FILE *file, const char *line);
/* A number, or null if it is not finite. */
json_t *cli_json_number(double value);

#endif
