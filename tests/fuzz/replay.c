/* SPDX-License-Identifier: Apache-2.0
 * replay PATH...: gives a fuzz target what libFuzzer would, without searching: each file of a
 * directory as it is, and each line of a .txt file. A finding stays found: its input goes into
 * seeds/. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int inputs;

static uint8_t *read_file(const char *path, size_t *size)
{
    FILE *in = fopen(path, "rb");
    if (!in || fseek(in, 0, SEEK_END) != 0) {
        perror(path);
        exit(1);
    }
    long end = ftell(in);
    rewind(in);
    uint8_t *data = malloc((size_t)end + 1);
    if (!data || fread(data, 1, (size_t)end, in) != (size_t)end) {
        perror(path);
        exit(1);
    }
    fclose(in);
    *size = (size_t)end;
    return data;
}

static void give(const uint8_t *data, size_t size)
{
    LLVMFuzzerTestOneInput(data, size);
    inputs++;
}

static void give_lines(const char *path)
{
    size_t size;
    uint8_t *data = read_file(path, &size);
    for (size_t start = 0, end; start < size; start = end + 1) {
        for (end = start; end < size && data[end] != '\n'; end++) continue;
        if (end > start && data[start] != '#') give(data + start, end - start);
    }
    free(data);
}

static void give_folder(const char *path, DIR *folder)
{
    struct dirent *entry;
    while ((entry = readdir(folder))) {
        if (entry->d_name[0] == '.') continue;
        char name[4096];
        snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
        size_t size;
        uint8_t *data = read_file(name, &size);
        give(data, size);
        free(data);
    }
    closedir(folder);
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        DIR *folder = opendir(argv[i]);
        if (folder)
            give_folder(argv[i], folder);
        else
            give_lines(argv[i]);
    }
    printf("%d inputs replayed\n", inputs);
    return inputs == 0;
}
