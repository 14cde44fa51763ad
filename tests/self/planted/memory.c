/* SPDX-License-Identifier: Apache-2.0
 * memory overflow|shift: a read past a heap block, or a shift that C leaves undefined, so that the
 * tests can see AddressSanitizer and UndefinedBehaviorSanitizer stop it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
    if (argc != 2) return 2;
    size_t length = strlen(argv[1]);
    char *copy = malloc(length);
    if (!copy) return 2;
    memcpy(copy, argv[1], length);
    if (strcmp(argv[1], "overflow") == 0) printf("%d\n", copy[length]);
    if (strcmp(argv[1], "shift") == 0) printf("%d\n", 1 << (27 + (int)length));
    free(copy);
    return 0;
}
