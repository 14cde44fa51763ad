/* SPDX-License-Identifier: Apache-2.0
 * The table of element functions. */
#include "ops/pointwise/functions.h"

#include <stdbool.h>
#include <string.h>

const mica_function mica_functions[MICA_FUNCTIONS] = {
#define FUNCTION(name, kind, arity, exact, ulps, inner, value, da, db, dc, doc)                    \
    {#name,  MICA_FUNCTION_##kind, arity, MICA_EXACT_##exact, ulps, inner,                         \
     #value, {da, db, dc},         doc},
#define FORMULA(name, arity, text, doc)                                                            \
    {#name, MICA_FUNCTION_FORMULA, arity, MICA_EXACT_NO, 0, 0, #text, {"", "", ""}, doc},
#include "ops/pointwise/functions.def"
};

static bool is_visible(int function)
{
    return mica_functions[function].kind != MICA_FUNCTION_HIDDEN;
}

int mica_function_find(const char *name, int length)
{
    for (int i = 0; i < MICA_FUNCTIONS; i++)
        if (is_visible(i) && (int)strlen(mica_functions[i].name) == length &&
            !strncmp(mica_functions[i].name, name, (size_t)length))
            return i;
    return -1;
}

enum { LONGEST = 24 };

static int least(int a, int b, int c)
{
    int m = a < b ? a : b;
    return m < c ? m : c;
}

/* Insertions, removals and replacements between two names. */
static int edits(const char *a, int m, const char *b, int n)
{
    int row[LONGEST + 1];
    for (int j = 0; j <= n; j++) row[j] = j;
    for (int i = 1; i <= m; i++) {
        int corner = row[0];
        row[0] = i;
        for (int j = 1; j <= n; j++) {
            const int above = row[j];
            row[j] = least(above + 1, row[j - 1] + 1, corner + (a[i - 1] != b[j - 1]));
            corner = above;
        }
    }
    return row[n];
}

const char *mica_function_nearest(const char *name, int length)
{
    int best = 0, fewest = 1 << 20;
    if (length > LONGEST) length = LONGEST;
    for (int i = 0; i < MICA_FUNCTIONS; i++) {
        if (!is_visible(i)) continue;
        const char *other = mica_functions[i].name;
        const int count = edits(name, length, other, (int)strlen(other));
        if (count < fewest) {
            fewest = count;
            best = i;
        }
    }
    return mica_functions[best].name;
}
