/* SPDX-License-Identifier: Apache-2.0
 * JSON lines of result files. */
#define _GNU_SOURCE
#include "json.h"

#include <errno.h>
#include <math.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What is open. */
enum { MOST_FILES = 4 };
static struct {
    FILE *file;
    const char *path;
    bool failed;
} files[MOST_FILES];

static int find(const FILE *file)
{
    for (int i = 0; i < MOST_FILES; i++)
        if (files[i].file == file) return i;
    return -1;
}

FILE *cli_json_open(const char *path)
{
    FILE *f = !strcmp(path, "-") ? stdout : fopen(path, "w");
    if (!f) cli_say("%s: %s", path, strerror(errno));
    int i = f && f != stdout ? find(NULL) : -1;
    if (i >= 0) {
        files[i].file = f;
        files[i].path = path;
        files[i].failed = false;
    }
    return f;
}

static void fail(FILE *file)
{
    int i = find(file), error = errno;
    if (i < 0 || files[i].failed) return;
    files[i].failed = true;
    cli_output_lost(files[i].path, error);
}

void cli_json_close(FILE *file)
{
    if (!file || file == stdout) return;
    int i = find(file);
    bool bad = ferror(file) != 0;
    if (fclose(file) != 0 && !bad && i >= 0 && !files[i].failed)
        cli_output_lost(files[i].path, errno);
    if (i >= 0) files[i].file = NULL;
}

void cli_json_text(FILE *file, const char *line)
{
    int i = file ? find(file) : -1;
    if (!file || (i >= 0 && files[i].failed)) return;
    long before = ftell(file);
    if (fputs(line, file) >= 0 && fflush(file) == 0) return;
    fail(file);
    __fpurge(file); /* else closing it tries once more */
    if (i >= 0 && before >= 0 && ftruncate(fileno(file), before) != 0) errno = 0; /* no file */
}

void cli_json_line(FILE *file, json_t *object)
{
    char *text = file && object ? json_dumps(object, JSON_COMPACT | JSON_REAL_PRECISION(6)) : NULL;
    if (text) {
        char *line = cli_format("%s\n", text);
        cli_json_text(file, line);
        free(line);
    }
    free(text);
    json_decref(object);
}

json_t *cli_json_number(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}
