/* SPDX-License-Identifier: Apache-2.0
 * embed ROOT OUT FILE...: writes a C file with the text of each FILE (relative to ROOT) as an
 * array, and a table of them by name.
 * embed --text NAME FILE OUT: writes a C file with the text of FILE as `const char NAME[]`. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void embed_file(FILE *out, const char *path, const char *storage, const char *name)
{
    FILE *in = fopen(path, "rb");
    if (!in) {
        fprintf(stderr, "embed: cannot read %s\n", path);
        exit(1);
    }
    fprintf(out, "%sconst char %s[] = {", storage, name);
    int c, column = 0;
    /* as a char: 200 for a byte of UTF-8 would be an overflow where char is signed */
    while ((c = getc(in)) != EOF) fprintf(out, "%s%d,", column++ % 24 ? "" : "\n", (char)c);
    fprintf(out, "0};\n");
    if (ferror(in)) {
        fprintf(stderr, "embed: error while reading %s\n", path);
        exit(1);
    }
    fclose(in);
}

static void embed_table(FILE *out, const char *root, char **files, int count)
{
    char path[4096], name[32];
    fprintf(out, "#include \"cuda/sources.h\"\n");
    for (int i = 0; i < count; i++) {
        snprintf(path, sizeof path, "%s/%s", root, files[i]);
        snprintf(name, sizeof name, "file_%d", i);
        embed_file(out, path, "static ", name);
    }
    fprintf(out, "const mica_source mica_sources[] = {\n");
    for (int i = 0; i < count; i++) fprintf(out, "    {\"%s\", file_%d},\n", files[i], i);
    fprintf(out, "    {0, 0}};\n");
}

int main(int argc, char **argv)
{
    bool text = argc == 5 && !strcmp(argv[1], "--text");
    FILE *out = argc >= 3 ? fopen(argv[text ? 4 : 2], "w") : NULL;
    if (!out) {
        fprintf(stderr, "usage: embed ROOT OUT FILE...\n       embed --text NAME FILE OUT\n");
        return 2;
    }
    if (text) {
        fprintf(out, "extern const char %s[];\n", argv[2]);
        embed_file(out, argv[3], "", argv[2]);
    } else {
        embed_table(out, argv[1], argv + 3, argc - 3);
    }
    return fclose(out) != 0;
}
