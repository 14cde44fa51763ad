/* SPDX-License-Identifier: Apache-2.0
 * replay FOLDER...: gives a fuzz target every file of the folders, as libFuzzer would, without
 * searching. A finding stays found: its input goes into seeds/. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

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

static void give_folder(const char *path)
{
    DIR *folder = opendir(path);
    if (!folder) {
        perror(path);
        exit(1);
    }
    struct dirent *entry;
    while ((entry = readdir(folder))) {
        if (entry->d_name[0] == '.') continue;
        char name[4096];
        snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
        size_t size;
        uint8_t *data = read_file(name, &size);
        LLVMFuzzerTestOneInput(data, size);
        free(data);
        inputs++;
    }
    closedir(folder);
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) give_folder(argv[i]);
    printf("%d inputs replayed\n", inputs);
    return inputs == 0;
}
