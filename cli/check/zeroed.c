/* SPDX-License-Identifier: Apache-2.0
 * Fill edges: the line again with a 0 for each number that it does not say, where 0 is legal. */
#include "check/check.h"

#include <stdlib.h>
#include <string.h>

static bool says(const char *line, const char *name)
{
    char *field = cli_format(" %s=", name);
    const bool found = strstr(line, field) != NULL;
    free(field);
    return found;
}

/* The line with a value for a field, as a problem's canonical text; NULL: refused. */
static char *with(const check *c, const char *line, const char *name, const char *value,
                  mica_problem **problem)
{
    char *text = cli_format("%s %s=%s", line, name, value), *canonical = NULL;
    if (mica_problem_from_text(text, problem) == MICA_OK)
        canonical = cli_line_text(*problem, c->line_packed);
    free(text);
    return canonical;
}

/* A 0 where another number is the default must stay in the line, or the default runs in its place;
 * but for a field that this problem leaves out whatever its value. */
static void check_stays(check *c, const char *line, const mica_field_info *f, const char *def,
                        const char *zeroed)
{
    char *end, why[200];
    const double usual = strtod(def, &end);
    if (end == def || *end || usual == 0 || says(zeroed, f->name)) return;
    mica_problem *problem;
    char *other = with(c, line, f->name, !strcmp(f->type, "int") ? "1" : "0.5", &problem);
    if (!other) return;
    if (says(other, f->name)) {
        snprintf(why, sizeof why, "%s=0 was given, the problem has the default, %s", f->name, def);
        check_outcome bad = {.line = zeroed, .engine = "any", .fill = "edges", .text = why};
        bad.status = CHECK_MISMATCH;
        check_record(c, &bad);
    }
    free(other);
    mica_problem_destroy(problem);
}

/* plain: the problem without. Scalars of a run are 0 among finite numbers: what 0 times an infinity
 * gives is not promised. */
static void check_with(check *c, const char *line, const mica_field_info *f, const char *def,
                       const char *plain)
{
    mica_problem *problem;
    if (says(line, f->name)) return;
    char *text = with(c, line, f->name, "0", &problem);
    if (!text) return; /* refused, with the rule */
    if (def) check_stays(c, line, f, def, text);
    if (strcmp(text, plain))
        check_problem(c, problem, text, def ? MICA_FILL_EDGES : MICA_FILL_RANGE);
    free(text);
    mica_problem_destroy(problem);
}

void check_zeroed(check *c, const cli_line *line, const mica_problem *problem)
{
    const char *op = mica_problem_op(problem);
    char *plain = cli_line_text(problem, c->line_packed), def[64];
    mica_field_info f;
    double usual;
    c->zeroed = true;
    for (int i = 0; mica_op_field(op, i, &f) == MICA_OK && !cli_stopped(); i++) {
        if (strcmp(f.type, "float") != 0 && strcmp(f.type, "int") != 0) continue;
        mica_op_default(op, i, def, sizeof def);
        check_with(c, line->text, &f, def, plain);
    }
    for (int i = 0; mica_op_scalar(op, i, &f.name, &usual) == MICA_OK && !cli_stopped(); i++)
        check_with(c, line->text, &f, NULL, plain);
    c->zeroed = false;
    free(plain);
}
