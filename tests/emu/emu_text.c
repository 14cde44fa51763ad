/* SPDX-License-Identifier: Apache-2.0
 * The text of a kernel as C++: statements `asm` become EMU_PTX, shared variables become references
 * to the block's memory. */
#define _GNU_SOURCE
#include "emu_text.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

static bool in_name(char c)
{
    return isalnum((unsigned char)c) || c == '_';
}

static const char *skip_space(const char *at)
{
    while (isspace((unsigned char)*at)) at++;
    return at;
}

/* Past a string or character literal that starts here, or one character. */
static const char *skip_one(const char *at)
{
    char quote = *at;
    if (quote != '"' && quote != '\'') return at + 1;
    for (at++; *at && *at != quote; at++)
        if (*at == '\\' && at[1]) at++;
    return *at ? at + 1 : at;
}

/* The first of `ends` that stands outside of brackets and literals. */
static const char *find_end(const char *at, const char *ends)
{
    int depth = 0;
    while (*at) {
        if (depth == 0 && strchr(ends, *at)) return at;
        if (strchr("([{", *at)) depth++;
        if (strchr(")]}", *at)) depth--;
        at = skip_one(at);
    }
    return at;
}

/* Whether the word stands here, whole. */
static bool word_at(const char *start, const char *at, const char *word)
{
    size_t n = strlen(word);
    return !strncmp(at, word, n) && !in_name(at[n]) && (at == start || !in_name(at[-1]));
}

/* Operands between two colons: "constraint"(expression), ... */
static void write_operands(FILE *out, const char *at, const char *end, const char *comma)
{
    while ((at = skip_space(at)) < end && *at == '"') {
        bool written = at[1] == '=' || at[1] == '+';
        at = skip_space(skip_one(at));
        const char *close = find_end(at + 1, ")");
        fprintf(out, "%s%s(%.*s)", comma, written ? "emu_out" : "emu_in", (int)(close - at - 1),
                at + 1);
        comma = ", ";
        at = skip_space(close + 1);
        if (*at == ',') at++;
    }
}

/* asm [volatile] ("text" : outputs : inputs : clobbers); gives what follows. */
static const char *write_asm(FILE *out, const char *at)
{
    at = skip_space(at + strlen("asm"));
    if (!strncmp(at, "volatile", 8)) at = skip_space(at + 8);
    const char *close = find_end(at + 1, ")"), *text = skip_space(at + 1), *end = text;
    while (*skip_space(end) == '"') end = skip_one(skip_space(end));
    if (end == text + 2) return close + 1; /* an empty text only holds the compiler back */
    const char *rest = skip_space(end);
    fprintf(out, *rest == ':' ? "EMU_PTX(%.*s" : "EMU_PTX_NONE(%.*s)", (int)(end - text), text);
    if (*rest != ':') return close + 1;
    bool any = false;
    for (int part = 0; part < 2 && rest < close && *rest == ':'; part++) {
        const char *stop = find_end(rest + 1, ":)");
        if (stop > close) stop = close;
        any |= memchr(rest, '(', (size_t)(stop - rest)) != NULL;
        write_operands(out, rest + 1, stop, ", ");
        rest = stop;
    }
    fprintf(out, any ? ")" : ", emu_in(0))");
    return close + 1;
}

/* [extern] __shared__ [alignment] type name dimensions; */
static const char *write_shared(FILE *out, const char *at, bool dynamic, int number)
{
    const char *type = skip_space(at + strlen("__shared__")), *end = find_end(type, ";"), *name;
    while (word_at(type, type, "__align__") || word_at(type, type, "alignas"))
        type = skip_space(find_end(find_end(type, "(") + 1, ")") + 1);
    const char *dims = find_end(type, "[;");
    for (name = dims; name > type && !in_name(name[-1]);) name--;
    const char *name_end = name;
    while (name > type && in_name(name[-1])) name--;
    int type_length = (int)(name - type), name_length = (int)(name_end - name);
    if (dynamic)
        fprintf(out, "%.*s(&%.*s)[] = *(%.*s(*)[])emu_dynamic()", type_length, type, name_length,
                name, type_length, type);
    else
        fprintf(out,
                "typedef %.*s emu_shared_%d%.*s; emu_shared_%d &%.*s = "
                "*(emu_shared_%d *)emu_static(%d, sizeof(emu_shared_%d), 128)",
                type_length, type, number, (int)(end - dims), dims, number, name_length, name,
                number, number, number);
    return end;
}

void emu_translate(FILE *out, const char *source)
{
    int shared = 0;
    for (const char *at = source; *at;) {
        const char *next = at;
        if (word_at(source, at, "asm")) {
            next = write_asm(out, at);
        } else if (word_at(source, at, "extern") && word_at(at, skip_space(at + 6), "__shared__")) {
            next = write_shared(out, skip_space(at + 6), true, 0);
        } else if (word_at(source, at, "__shared__")) {
            next = write_shared(out, at, false, shared++);
        } else if (!strncmp(at, "//", 2)) {
            next = strchrnul(at, '\n');
        } else if (!strncmp(at, "/*", 2)) {
            const char *end = strstr(at, "*/");
            next = end ? end + 2 : at + strlen(at);
            for (const char *c = at; c < next; c++)
                if (*c == '\n') fputc('\n', out);
        } else {
            next = skip_one(at);
            fwrite(at, 1, (size_t)(next - at), out);
        }
        at = next;
    }
}

const char *emu_next_kernel(const char *at, char name[128])
{
    const char *found = strstr(at, "__global__");
    if (!found) return NULL;
    at = found + strlen("__global__");
    for (;;) {
        while (*at && !in_name(*at)) at++;
        const char *word = at;
        while (in_name(*at)) at++;
        if (!*at) return NULL;
        if (*skip_space(at) != '(') continue;
        if (!strncmp(word, "__", 2)) {
            at = find_end(skip_space(at) + 1, ")");
            continue;
        }
        snprintf(name, 128, "%.*s", (int)(at - word), word);
        return at;
    }
}
