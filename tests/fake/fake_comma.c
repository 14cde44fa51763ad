/* SPDX-License-Identifier: Apache-2.0
 * Loaded in front of a program: numbers have commas before its main begins, as in a host that has
 * called setlocale. The locale comma_XX is found by LOCPATH. */
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>

__attribute__((constructor)) static void set_comma(void)
{
    if (setlocale(LC_NUMERIC, "comma_XX")) return;
    (void)fputs("fake_comma: there is no locale comma_XX\n", stderr);
    abort();
}
