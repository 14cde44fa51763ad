/* SPDX-License-Identifier: Apache-2.0
 * embed ROOT OUT FILE...: writes a C file with the text of each FILE (relative to ROOT) as an
 * array, and a table of them by name. */
#include <stdio.h>
#include <stdlib.h>

static void embed_file(FILE *out, const char *root, const char *name, int index)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", root, name);
    FILE *in = fopen(path, "rb");
    if (!in) {
        fprintf(stderr, "embed: cannot read %s\n", path);
        exit(1);
    }
    fprintf(out, "static const char file_%d[] = {", index);
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

int main(int argc, char **argv)
{
    FILE *out = argc >= 3 ? fopen(argv[2], "w") : NULL;
    if (!out) {
        fprintf(stderr, "usage: embed ROOT OUT FILE...\n");
        return 2;
    }
    fprintf(out, "#include \"cuda/sources.h\"\n");
    for (int i = 3; i < argc; i++) embed_file(out, argv[1], argv[i], i);
    fprintf(out, "const mica_source mica_sources[] = {\n");
    for (int i = 3; i < argc; i++) fprintf(out, "    {\"%s\", file_%d},\n", argv[i], i);
    fprintf(out, "    {0, 0}};\n");
    return fclose(out) != 0;
}
