/* SPDX-License-Identifier: Apache-2.0
 * fake_quantize: as PyTorch has it where its rule is asked for (tests/judges/fake_quantize.py);
 * equal to quantize followed by dequantize; gradients at the ends of ranges; refusals. */
#include "line.h"

#define VALUES(...) ((double *[MICA_MAX_ARGS]){__VA_ARGS__})

typedef struct judgement {
    const char *fields;
    const double *x;
    double scale[4], zero[4], y[24], dx[24];
} judgement;
#include "../judges/fake_quantize.h"

static void run(const char *engine, const char *line, double *const *values)
{
    if (line_run(engine, line, values, NULL) != MICA_OK) fail_msg("%s: %s", line, mica_error());
}

static void as_pytorch(void **state)
{
    (void)state;
    for (size_t j = 0; j < sizeof judgements / sizeof *judgements; j++)
        for (int e = 0; e < 2; e++) {
            judgement row = judgements[j];
            char line[160];
            double x[24], y[24], dy[24], dx[24];
            memcpy(x, row.x, sizeof x);
            for (int i = 0; i < 24; i++) dy[i] = 1;
            snprintf(line, sizeof line, "fake_quantize rule=product x=f32:4x6 %s", row.fields);
            run(engines[e], line, VALUES(x, y, NULL, NULL, row.scale, row.zero));
            snprintf(line, sizeof line, "fake_quantize pass=bwd rule=product x=f32:4x6 %s",
                     row.fields);
            run(engines[e], line, VALUES(x, NULL, dy, dx, row.scale, row.zero));
            for (int i = 0; i < 24; i++)
                if (y[i] != row.y[i] || dx[i] != row.dx[i])
                    fail_msg("%s, %s: %.9g becomes %.9g and %g, they have %.9g and %g", engines[e],
                             row.fields, x[i], y[i], dx[i], row.y[i], row.dx[i]);
        }
}

/* Of every type, in blocks of a row. */
static void as_both(void **state)
{
    (void)state;
    static const char *const types[] = {"s8", "u8", "s4", "u4", "e4m3", "e5m2", "e2m1"};
    double x[96], codes[96], y[96], both[96], scale[] = {0.5, 0.3, 0.07, 11, 0, 1};
    for (int i = 0; i < 96; i++) x[i] = (i % 7 - 3) * 0.37 * (1 << i % 9);
    x[3] = INFINITY, x[20] = -INFINITY, x[50] = 0, x[70] = 0;
    for (size_t t = 0; t < sizeof types / sizeof *types; t++)
        for (int e = 0; e < 2; e++) {
            char line[160];
            /* a NaN of e2m1, which has none, stays one here */
            x[40] = t == 6 ? 1 : NAN;
            snprintf(line, sizeof line, "quantize x=f32:2x48 y=%s block=1x16", types[t]);
            run(engines[e], line, VALUES(x, codes, scale));
            snprintf(line, sizeof line, "dequantize x=%s:2x48 block=1x16", types[t]);
            run(engines[e], line, VALUES(codes, both, scale));
            snprintf(line, sizeof line, "fake_quantize type=%s x=f32:2x48 block=1x16", types[t]);
            run(engines[e], line, VALUES(x, y, NULL, NULL, scale));
            for (int i = 0; i < 96; i++)
                if (y[i] != both[i] && !(isnan(y[i]) && isnan(both[i])))
                    fail_msg("%s of %s: %.9g becomes %.9g, by codes %.9g", line, engines[e], x[i],
                             y[i], both[i]);
        }
}

/* The ends have a gradient, what is past them has none. */
static void ends(void **state)
{
    (void)state;
    double x[] = {127.4, 127.6, -128.4, -128.6, NAN, INFINITY}, dy[] = {2, NAN, 4, 5, 6, 7};
    double e4m3[] = {448, 448.1, -448, -460, NAN, -INFINITY}, scale = 1, dx[6];
    static const double passed[] = {2, 0, 4, 0, 0, 0};
    for (int e = 0; e < 2; e++) {
        run(engines[e], "fake_quantize pass=bwd x=f32:6", VALUES(x, NULL, dy, dx, &scale));
        assert_memory_equal(dx, passed, sizeof dx);
        run(engines[e], "fake_quantize pass=bwd type=e4m3 x=f32:6",
            VALUES(e4m3, NULL, dy, dx, &scale));
        assert_memory_equal(dx, passed, sizeof dx);
    }
}

static void refusals(void **state)
{
    (void)state;
    refuses("fake_quantize type=s8", "x is needed");
    refuses("fake_quantize type=s16 x=f32:4", "s16");
    refuses("fake_quantize type=e4m3 x=f32:4 low=-3", "low, high and zero are for integers");
    refuses("fake_quantize type=e2m1 x=f32:4 zero=f32", "low, high and zero are for integers");
    refuses("fake_quantize x=f32:4 low=5 high=5", "low is 5 and high 5");
    refuses("fake_quantize x=f32:4 low=-70000", "low is -70000");
    refuses("fake_quantize x=f32:5x7 block=1x4", "dimension 1 is 7, in blocks of 4");
    refuses("fake_quantize x=f32:4x4x4x4x4 block=2x2x2x2x2", "blocks of 10 dimensions");
    refuses("fake_quantize x=s32:4", "x is s32");
    refuses("fake_quantize x=f32:4 zero=s32", "zero is s32");
    refuses("fake_quantize x=f32:4x4 scale=f32:3x1", "no length of blocks");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_pytorch),
        cmocka_unit_test(as_both),
        cmocka_unit_test(ends),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
