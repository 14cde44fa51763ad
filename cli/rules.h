/* SPDX-License-Identifier: Apache-2.0
 * Options that contradict each other, or mean nothing without another one: the only list. */
#ifndef MICA_CLI_RULES_H
#define MICA_CLI_RULES_H

#include <stdbool.h>
#include <stddef.h>

typedef enum cli_rule_kind {
    CLI_EXCLUDES, /* none of the others may stand beside the option */
    CLI_NEEDS     /* one of the others has to */
} cli_rule_kind;

/* others: names divided by spaces; "*" is any argument that is no option, "=warm" that the first of
 * them is warm. why completes the sentence. */
typedef struct cli_rule {
    const char *command, *option;
    cli_rule_kind kind;
    const char *others, *why;
} cli_rule;

/* Ends with a row whose command is NULL. */
extern const cli_rule cli_rules[];

/* What stands on a command line: long names of options, and the other arguments. */
typedef struct cli_given {
    const char *const *options;
    int option_count;
    char *const *args;
    int arg_count;
} cli_given;

/* Writes the first rule that is broken, with both names, and returns true; else false. */
bool cli_rules_broken(const char *command, const cli_given *given, char *text, size_t size);

#endif
