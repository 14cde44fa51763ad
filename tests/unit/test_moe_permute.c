/* SPDX-License-Identifier: Apache-2.0
 * Permutations by experts and back: against PyTorch, what is dropped, nothing to permute, maps that
 * point outside, bits that do not depend on threads, what descriptions are refused. */
#include "line.h"

#define VALUES(...) ((double *[MICA_MAX_ARGS]){__VA_ARGS__})

/* ---- against PyTorch (tests/judges/moe_permute.py) ---- */

enum { MOST = 160 };
static const struct judgement {
    int tokens, k, experts, columns, align;
    double indices[MOST], x[MOST], offsets[8], rows[MOST], places[MOST], y[MOST];
    double made[MOST], weights[MOST], back[MOST], dy[MOST], dmade[MOST], dweights[MOST];
} judgements[] = {
#include "../judges/moe_permute.h"
};
enum { JUDGEMENTS = sizeof judgements / sizeof *judgements };

static int64_t rows_of(const struct judgement *j)
{
    const int64_t worst = j->tokens * j->k + j->experts * (j->align - 1);
    return (worst + j->align - 1) / j->align * j->align;
}

static void judge(const struct judgement *j, const char *engine, const char *type, double units)
{
    char line[300];
    double offsets[8], rows[MOST], places[MOST], y[MOST], dx[MOST], dw[MOST];
    double *const in = (double *)j->indices, *const x = (double *)j->x;
    const int64_t n = rows_of(j), choices = j->tokens * j->k, columns = j->columns;
    snprintf(line, sizeof line, "moe_permute indices=s32:%dx%d experts=%d align=%d x=%s:%dx%d",
             j->tokens, j->k, j->experts, j->align, type, j->tokens, j->columns);
    run_ok(engine, line, VALUES(in, x, offsets, rows, places, y));
    assert_int_equal(differences(offsets, j->offsets, j->experts + 1, 0, 0), 0);
    assert_int_equal(differences(rows, j->rows, n, 0, 0), 0);
    assert_int_equal(differences(places, j->places, choices, 0, 0), 0);
    assert_int_equal(differences(y, j->y, n * columns, 0, 0), 0);
    snprintf(line, sizeof line, "moe_unpermute x=%s:%dx%d places=s32:%dx%d weights=%s", type,
             (int)n, j->columns, j->tokens, j->k, type);
    run_ok(engine, line, VALUES((double *)j->made, places, (double *)j->weights, y));
    assert_int_equal(differences(y, j->back, j->tokens * columns, units, units), 0);
    snprintf(line, sizeof line,
             "moe_unpermute pass=bwd x=%s:%dx%d places=s32:%dx%d weights=%s dweights=%s", type,
             (int)n, j->columns, j->tokens, j->k, type, type);
    run_ok(engine, line,
           VALUES((double *)j->made, places, (double *)j->weights, NULL, rows, (double *)j->dy, dx,
                  dw));
    assert_int_equal(differences(dx, j->dmade, n * columns, units, units), 0);
    assert_int_equal(differences(dw, j->dweights, choices, units, units), 0);
}

static void judged(void **state)
{
    (void)state;
    for (const struct judgement *j = judgements; j < judgements + JUDGEMENTS; j++)
        for (int e = 0; e < 2; e++) {
            judge(j, engines[e], "f64", 1e-14);
            judge(j, engines[e], "f32", 1e-6);
        }
}

/* ---- by hand ---- */

/* Expert 1 takes two, in the order of tokens; 2 and -1 are no experts. */
static void what_is_dropped(void **state)
{
    (void)state;
    for (int e = 0; e < 2; e++) {
        double indices[] = {1, 0, 1, 2, 0, 1, -1, 1}, x[] = {10, 20, 30, 40};
        double offsets[3], rows[8], places[8], y[8];
        const double starts[] = {0, 2, 4}, wanted[] = {1, 4, 0, 2};
        const double back[] = {2, 0, 3, -1, 1, -1, -1, -1}, copied[] = {10, 30, 10, 20};
        run_ok(engines[e], "moe_permute indices=s32:4x2 experts=2 capacity=2 x=f32:4x1",
               VALUES(indices, x, offsets, rows, places, y));
        assert_int_equal(differences(offsets, starts, 3, 0, 0), 0);
        assert_int_equal(differences(rows, wanted, 4, 0, 0), 0);
        assert_int_equal(differences(places, back, 8, 0, 0), 0);
        assert_int_equal(differences(y, copied, 4, 0, 0), 0);
    }
}

static void nothing(void **state)
{
    (void)state;
    for (int e = 0; e < 2; e++) {
        double offsets[4] = {7, 7, 7, 7}, rows[8], none[1], places[4] = {-1, 0, 9, -5}, w[4], y[2];
        run_ok(engines[e], "moe_permute indices=s32:0x2 experts=3 align=2",
               VALUES(none, NULL, offsets, rows, none));
        for (int i = 0; i < 4; i++) assert_true(offsets[i] == 0 && rows[i < 3 ? i : 0] == -1);
        run_ok(engines[e], "moe_unpermute x=f32:0x1 places=s32:2x2", VALUES(none, places, NULL, y));
        assert_true(y[0] == 0 && y[1] == 0);
        double x[] = {3}, dy[] = {5, 7}, row[] = {4}, dx[1];
        run_ok(engines[e], "moe_unpermute x=f32:1x1 places=s32:2x2", VALUES(x, places, NULL, y));
        assert_true(y[0] == 3 && y[1] == 0);
        run_ok(engines[e], "moe_unpermute pass=bwd x=f32:1x1 places=s32:2x2 dweights=f32",
               VALUES(x, places, NULL, NULL, row, dy, dx, w));
        assert_true(dx[0] == 0 && w[0] == 0 && w[1] == 15 && w[2] == 0 && w[3] == 0);
    }
}

static void descriptions_are_refused(void **state)
{
    (void)state;
    refuses("moe_permute", "indices");
    refuses("moe_permute indices=s64:4x2", "indices is s64");
    refuses("moe_permute indices=s32:4", "indices has rank 1");
    refuses("moe_permute indices=s32:4x2 experts=4097", "experts is 4097, 1 to 4096");
    refuses("moe_permute indices=s32:4x2 align=1025", "align is 1025, 1 to 1024");
    refuses("moe_permute indices=s32:4x2 capacity=-1", "capacity");
    refuses("moe_permute indices=s32:4x2 x=f32:5x3", "it must be 4 tokens x columns");
    refuses("moe_permute indices=s32:4x2 x=f32:4x3 y=bf16:8x3", "y is bf16");
    refuses("moe_permute indices=s32:4x2 y=f32:8x3", "y without x");
    refuses("moe_permute indices=s32:4x2 rows=s32:7", "rows");
    refuses("moe_permute indices=s32:4x2 places=f32", "places is f32");
    refuses("moe_unpermute x=f32:4x3", "places is needed");
    refuses("moe_unpermute x=s8:4x3 places=s32:2x2", "x is s8");
    refuses("moe_unpermute x=f32:4x3 places=s32:2", "places has rank 1");
    refuses("moe_unpermute x=f32:4x3 places=s32:2x2 weights=f64", "weights is f64");
    refuses("moe_unpermute x=f32:4x3 places=s32:2x2 weights=f32:3x2", "weights");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(judged),
        cmocka_unit_test(what_is_dropped),
        cmocka_unit_test(nothing),
        cmocka_unit_test(descriptions_are_refused),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
