/* SPDX-License-Identifier: Apache-2.0
 * JSON lines of result files. */
#include "json.h"

#include <errno.h>
#include <math.h>
#include <string.h>

FILE *cli_json_open(const char *path)
{
    if (!strcmp(path, "-")) return stdout;
    FILE *f = fopen(path, "w");
    if (!f) cli_say("%s: %s", path, strerror(errno));
    return f;
}

void cli_json_close(FILE *file)
{
    if (file && file != stdout && fclose(file) != 0) cli_say("a result file: %s", strerror(errno));
}

void cli_json_line(FILE *file, json_t *object)
{
    if (file && object) {
        json_dumpf(object, file, JSON_COMPACT | JSON_REAL_PRECISION(6));
        fputc('\n', file);
        fflush(file);
    }
    json_decref(object);
}

json_t *cli_json_number(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}
