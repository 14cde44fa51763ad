/* SPDX-License-Identifier: Apache-2.0
 * embed ROOT OUT FILE...: joins the FILEs (relative to ROOT), C or C++ whose comments are left out
 * and whose lines are indented by one space for four: the name of each and its text, a zero after
 * either. Lines keep their numbers. embed --packed JOINED PACKED OUT: writes a C file with the
 * bytes of PACKED, which is JOINED compressed, and both sizes (src/cuda/compile/sources.h). embed
 * --text NAME FILE OUT: writes a C file with the text of FILE as `const char NAME[]`. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void fail(const char *path)
{
    fprintf(stderr, "embed: cannot read %s\n", path);
    exit(1);
}

static char *read_text(const char *path)
{
    FILE *in = fopen(path, "rb");
    char *text = NULL;
    size_t size = 0, room = 0;
    for (int c = 0; in && c != EOF;) {
        if (size == room) text = realloc(text, room = 2 * room + 4096);
        if (!text) break;
        c = getc(in);
        text[size++] = (char)(c == EOF ? 0 : c);
    }
    if (!in || !text || ferror(in)) fail(path);
    fclose(in);
    return text;
}

/* What follows the literal that begins at `from`. */
static const char *skip_literal(const char *from)
{
    const char *at = from + 1;
    while (*at && *at != '\n' && *at != *from) at += at[0] == '\\' && at[1] ? 2 : 1;
    return *at == *from ? at + 1 : at;
}

/* In place: a comment becomes a space and the ends of its lines. */
static void drop_comments(char *text)
{
    char *to = text;
    for (const char *at = text, *next; *at; at = next) {
        if (at[0] == '/' && at[1] == '*') {
            const char *end = strstr(at + 2, "*/");
            next = end ? end + 2 : at + strlen(at);
            *to++ = ' ';
            for (; at < next; at++)
                if (*at == '\n') *to++ = '\n';
        } else if (at[0] == '/' && at[1] == '/') {
            next = at + strcspn(at, "\n");
        } else {
            next = *at == '"' || *at == '\'' ? skip_literal(at) : at + 1;
            memmove(to, at, (size_t)(next - at));
            to += next - at;
        }
        while (*next == '\n' && to > text && to[-1] == ' ') to--;
    }
    *to = 0;
}

/* In place: a line begins with a quarter of its spaces. */
static void shorten_indents(char *text)
{
    char *to = text;
    for (const char *at = text; *at;) {
        size_t spaces = strspn(at, " "), rest = strcspn(at + spaces, "\n");
        if (at[spaces + rest]) rest++; /* the end of the line */
        memset(to, ' ', (spaces + 3) / 4);
        memmove(to + (spaces + 3) / 4, at + spaces, rest);
        to += (spaces + 3) / 4 + rest;
        at += spaces + rest;
    }
    *to = 0;
}

static void embed_text(FILE *out, const char *text, const char *name)
{
    int column = 0;
    fprintf(out, "extern const char %s[];\nconst char %s[] = {", name, name);
    /* as a char: 200 for a byte of UTF-8 would be an overflow where char is signed */
    for (; *text; text++) fprintf(out, "%s%d,", column++ % 24 ? "" : "\n", *text);
    fprintf(out, "0};\n");
}

static void join(FILE *out, const char *root, char **files, int count)
{
    char path[4096];
    for (int i = 0; i < count; i++) {
        snprintf(path, sizeof path, "%s/%s", root, files[i]);
        char *text = read_text(path);
        drop_comments(text);
        shorten_indents(text);
        fprintf(out, "%s%c%s%c", files[i], 0, text, 0);
        free(text);
    }
}

static void embed_packed(FILE *out, const char *joined, const char *packed)
{
    FILE *in = fopen(joined, "rb");
    if (!in || fseek(in, 0, SEEK_END) != 0) fail(joined);
    long size = ftell(in), packed_size = 0;
    fclose(in);
    in = fopen(packed, "rb");
    if (!in) fail(packed);
    fprintf(out,
            "#include \"cuda/compile/sources.h\"\nconst unsigned char mica_packed_sources[] = {");
    for (int c; (c = getc(in)) != EOF; packed_size++)
        fprintf(out, "%s%d,", packed_size % 24 ? "" : "\n", c);
    fprintf(out, "};\nconst size_t mica_packed_sources_size = %ld, mica_sources_size = %ld;\n",
            packed_size, size);
    fclose(in);
}

int main(int argc, char **argv)
{
    bool text = argc == 5 && !strcmp(argv[1], "--text");
    bool packed = argc == 5 && !strcmp(argv[1], "--packed");
    FILE *out = argc >= 3 ? fopen(argv[text || packed ? 4 : 2], "wb") : NULL;
    if (!out) {
        fprintf(stderr, "usage: embed ROOT OUT FILE...\n       embed --packed JOINED PACKED OUT\n"
                        "       embed --text NAME FILE OUT\n");
        return 2;
    }
    if (text) {
        char *content = read_text(argv[3]);
        embed_text(out, content, argv[2]);
        free(content);
    } else if (packed) {
        embed_packed(out, argv[2], argv[3]);
    } else {
        join(out, argv[1], argv + 3, argc - 3);
    }
    return fclose(out) != 0;
}
