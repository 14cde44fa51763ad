/* SPDX-License-Identifier: Apache-2.0
 * man IN OUT: copies the source of a man page (scdoc) and puts the lists that the headers hold in
 * place of the lines @statuses@, @dtypes@, @activations@, @environment@ and @places@. */
#include <stdio.h>
#include <string.h>

#include "base/env.h"
#include "mica/mica.h"

typedef struct row {
    const char *name, *text;
} row;

static const row statuses[] = {
#define MICA_X(name, text) {"MICA_" #name, text},
    MICA_STATUSES(MICA_X)
#undef MICA_X
};
static const row dtypes[] = {
#define MICA_X(name, text, bits, unit) {text, "MICA_" #name ", " #bits " bits"},
    MICA_DTYPES(MICA_X)
#undef MICA_X
};
static const row activations[] = {
#define MICA_X(name, text, formula) {text, formula},
    MICA_ACTIVATIONS(MICA_X)
#undef MICA_X
};
static const row environment[] = {
#define MICA_X(name, doc) {"MICA_" #name, doc},
    MICA_ENVIRONMENT(MICA_X)
#undef MICA_X
};
static const row places[] = {
#define MICA_X(name, doc) {#name, doc},
    MICA_ENVIRONMENT_PLACES(MICA_X)
#undef MICA_X
};

static const struct {
    const char *line;
    const row *rows;
    size_t count;
} lists[] = {
    {"@statuses@\n", statuses, sizeof statuses / sizeof *statuses},
    {"@dtypes@\n", dtypes, sizeof dtypes / sizeof *dtypes},
    {"@activations@\n", activations, sizeof activations / sizeof *activations},
    {"@environment@\n", environment, sizeof environment / sizeof *environment},
    {"@places@\n", places, sizeof places / sizeof *places},
};

/* Everything that scdoc would take for markup is escaped. */
static void put_text(FILE *out, const char *text)
{
    for (; *text; text++) {
        if (strchr("\\*_~#[]|<>", *text)) putc('\\', out);
        putc(*text, out);
    }
}

static void put_rows(FILE *out, const row *rows, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        fprintf(out, "*");
        put_text(out, rows[i].name);
        fprintf(out, "*\n\t");
        put_text(out, rows[i].text);
        fprintf(out, "\n\n");
    }
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: man IN OUT\n");
        return 2;
    }
    FILE *in = fopen(argv[1], "r"), *out = fopen(argv[2], "w");
    if (!in || !out) {
        fprintf(stderr, "man: cannot open %s\n", in ? argv[2] : argv[1]);
        return 1;
    }
    char line[4096];
    while (fgets(line, sizeof line, in)) {
        size_t i = 0, n = sizeof lists / sizeof *lists;
        while (i < n && strcmp(line, lists[i].line) != 0) i++;
        if (i < n) {
            put_rows(out, lists[i].rows, lists[i].count);
        } else if (line[0] == '@') {
            fprintf(stderr, "man: %s has no list for %s", argv[1], line);
            return 1;
        } else {
            fputs(line, out);
        }
    }
    fclose(in);
    return fclose(out) != 0;
}
