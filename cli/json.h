/* SPDX-License-Identifier: Apache-2.0
 * JSON lines of result files. */
#ifndef MICA_CLI_JSON_H
#define MICA_CLI_JSON_H

#include "cli.h"

#include <jansson.h>

/* Opens PATH for writing ("-": standard output); says why not and returns NULL. */
FILE *cli_json_open(const char *path);
void cli_json_close(FILE *file);
/* Writes one object as a line, flushes it, so that an interrupted file is valid, and drops it. */
void cli_json_line(FILE *file, json_t *object);
/* A number, or null if it is not finite. */
json_t *cli_json_number(double value);

#endif
