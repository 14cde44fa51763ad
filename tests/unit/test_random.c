/* SPDX-License-Identifier: Apache-2.0
 * random and dropout: known answers, functions against libm, distributions by fixed seeds, parts of
 * tensors, what dropout does to NaN and at p = 1, refusals. */
#include "line.h"
#include "ops/random/random_body.h"

#define VALUES(...) ((double *[MICA_MAX_ARGS]){__VA_ARGS__})

/* ---- the generator ---- */

/* Known answers of the generator's authors (Random123's kat_vectors). */
static void known_answers(void **state)
{
    (void)state;
    static const uint32_t rows[][10] = {
        {0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
        {UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX, 0x408f276d,
         0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
        {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0, 0xd16cfe09,
         0x94fdcceb, 0x5001e420, 0x24126ea1}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        uint32_t word[4];
        memcpy(word, rows[i], sizeof word);
        mica_philox(rows[i] + 4, word);
        assert_memory_equal(word, rows[i] + 6, sizeof word);
    }
    double rng[] = {0, 0}, y[16];
    for (int e = 0; e < 2; e++) {
        run_ok(engines[e], "random y=u32:4", VALUES(y, rng));
        for (int k = 0; k < 4; k++) assert_true(y[k] == rows[0][6 + k]);
        run_ok(engines[e], "random y=u8:16", VALUES(y, rng));
        for (int k = 0; k < 16; k++) assert_true(y[k] == (rows[0][6 + k / 4] >> k % 4 * 8 & 255));
        run_ok(engines[e], "random kind=uniform y=f32:4", VALUES(y, rng));
        for (int k = 0; k < 4; k++) assert_true(y[k] == (rows[0][6 + k] >> 8) * 0x1p-24);
        run_ok(engines[e], "random kind=uniform y=bf16:4", VALUES(y, rng));
        for (int k = 0; k < 4; k++) assert_true(y[k] == (rows[0][6 + k] >> 24) * 0x1p-8);
    }
}

/* What XLA's generator says of key {0, 12345} and counter 2^40 + 17 (jax.lax.rng_bit_generator of
 * JAX 0.10.2; tests/judges/random_numbers.py compares more), which puts the key into its counter,
 * too. */
static void as_xla(void **state)
{
    (void)state;
    static const double want[] = {0x8716ea97, 0x5ff7c787, 0x1bc1b6fc, 0x7d150f0b};
    double rng[] = {12345 * 0x1p32, 12345}, y[4];
    for (int e = 0; e < 2; e++) {
        run_ok(engines[e], "random y=u32:4 first=4398046511172", VALUES(y, rng));
        assert_memory_equal(y, want, sizeof y);
    }
}

/* All of s64, of which tests that read doubles see 53 bits. */
static void whole_words(void **state)
{
    (void)state;
    const int64_t rng[] = {0, 0};
    int64_t y[2], want[] = {(int64_t)0xe169c58d6627e8d5, (int64_t)0x9b00dbd8bc57ac4c};
    mica_random_desc d = {.y = mica_tensor_packed(MICA_S64, 1, (int64_t[]){2})};
    for (int e = 0; e < 2; e++) {
        mica_plan *plan;
        assert_int_equal(
            mica_random_plan(context, &d, &(mica_options){.engine = engines[e]}, &plan), MICA_OK);
        mica_run run = {.args = {[MICA_RANDOM_Y] = y, [MICA_RANDOM_RNG] = (void *)rng}};
        assert_int_equal(mica_plan_run(plan, &run), MICA_OK);
        assert_memory_equal(y, want, sizeof y);
        mica_plan_destroy(plan);
    }
}

/* ---- functions ---- */

static uint64_t step(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return *seed >> 11 | *seed << 53;
}

static void functions(void **state)
{
    (void)state;
    uint64_t seed = 1;
    for (int i = 0; i < 200000; i++) {
        const uint64_t w = step(&seed);
        float u = random_open32((uint32_t)w), c, s;
        double v = random_open64(w), cd, sd;
        if (i % 3 == 0) u = 1 - u * 0x1p-10f, v = 1 - v * 0x1p-30;
        if (fabs(random_log32(u) - log((double)u)) > 0x1p-22 * fabs(log((double)u)))
            fail_msg("log %a: %a", (double)u, (double)random_log32(u));
        if (fabs(random_log64(v) - log(v)) > 0x1p-51 * fabs(log(v))) fail_msg("log %a", v);
        random_circle32((uint32_t)w, &c, &s);
        random_circle64(w, &cd, &sd);
        const double t = (uint32_t)w * 0x1p-32 * 6.283185307179586,
                     td = (double)w * 0x1p-64 * 6.283185307179586;
        if (fabs(c - cos(t)) > 0x1.8p-23 || fabs(s - sin(t)) > 0x1.8p-23) fail_msg("circle %a", t);
        if (fabs(cd - cos(td)) > 0x1p-49 || fabs(sd - sin(td)) > 0x1p-49) fail_msg("circle %a", td);
    }
    for (double p = 0.5; p > 1e-300; p *= 0.93) {
        const double z = random_quantile(p), back = 0.5 * erfc(-z * 0.7071067811865476);
        /* A relative error of z counts z^2 times in p, where p is small. */
        if (fabs(back - p) > 1e-15 * (1 + z * z) * p) fail_msg("quantile of %g: %.17g", p, z);
    }
}

/* ---- distributions, by fixed seeds ---- */

enum { DRAWS = 40000 };

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double normal_below(double x)
{
    return 0.5 * erfc(-x / sqrt(2));
}
static double uniform_below(double x)
{
    return (x + 3) / 8;
}
static double exponential_below(double x)
{
    return 1 - exp(-2 * x);
}
static double scaled_below(double x)
{
    return normal_below((x - 1) / 2);
}
static double truncated_below(double x)
{
    const double low = normal_below(0.25), high = normal_below(1.5);
    return (scaled_below(x) - low) / (high - low);
}
static double tail_below(double x) /* beyond 9 */
{
    return 1 - erfc(x / sqrt(2)) / erfc(9 / sqrt(2));
}

/* Kolmogorov and Smirnov's distance is above 1.95 / sqrt(n) once in a thousand. */
static void distributions(void **state)
{
    (void)state;
    static const struct {
        const char *what;
        double (*below)(double);
    } rows[] = {{"kind=uniform low=-3 high=5", uniform_below},
                {"kind=normal mean=1 std=2", scaled_below},
                {"kind=exponential rate=2", exponential_below},
                {"kind=truncated_normal mean=1 std=2 low=1.5 high=4", truncated_below},
                {"kind=truncated_normal low=9 high=30", tail_below}};
    static double y[DRAWS];
    double rng[] = {20261128, 3};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int wide = 0; wide < 2; wide++) {
            char line[120];
            snprintf(line, sizeof line, "random %s y=%s:%d", rows[i].what, wide ? "f64" : "f32",
                     DRAWS);
            run_ok("cpu", line, VALUES(y, rng));
            double together = 0, most = 0;
            for (int k = 0; k + 1 < DRAWS; k++) /* neighbours, pairs of Box and Muller among them */
                together += (rows[i].below(y[k]) - 0.5) * (rows[i].below(y[k + 1]) - 0.5);
            if (fabs(together) > 3.3 / 12 * sqrt(DRAWS))
                fail_msg("%s: neighbours %g", line, together);
            qsort(y, DRAWS, sizeof *y, by_size);
            for (int k = 0; k < DRAWS; k++) {
                const double f = rows[i].below(y[k]);
                most = fmax(most, fmax(fabs(f - (double)k / DRAWS), fabs(f - (k + 1.0) / DRAWS)));
            }
            if (most > 1.95 / sqrt(DRAWS)) fail_msg("%s: distance %g", line, most);
        }
}

/* Sum over the cells of (count - expected)^2 / expected: with df degrees of freedom above this once
 * in a thousand (Wilson and Hilferty). */
static void expect_even(const char *what, const int *counts, int cells, double n)
{
    const double expected = n / cells, df = cells - 1;
    double chi = 0;
    for (int k = 0; k < cells; k++)
        chi += (counts[k] - expected) * (counts[k] - expected) / expected;
    const double bound = df * pow(1 - 2 / (9 * df) + 3.09 * sqrt(2 / (9 * df)), 3);
    if (chi > bound) fail_msg("%s: chi squared %g of at most %g", what, chi, bound);
}

static void counts(void **state)
{
    (void)state;
    static double y[DRAWS];
    double rng[] = {77, 5};
    int cells[7] = {0}, ones = 0;
    run_ok("cpu", "random kind=integers y=s8:40000 from=-3 to=4", VALUES(y, rng));
    for (int k = 0; k < DRAWS; k++) cells[(int)y[k] + 3]++;
    expect_even("integers", cells, 7, DRAWS);
    /* Three quarters of 2^64: without drawing again the first third would come twice as often. */
    int thirds[3] = {0};
    rng[0] = 78;
    run_ok("cpu",
           "random kind=integers y=s64:40000 from=-6917529027641081856 to=6917529027641081856",
           VALUES(y, rng));
    for (int k = 0; k < DRAWS; k++) thirds[y[k] < -0x1p61 ? 0 : y[k] < 0x1p61 ? 1 : 2]++;
    expect_even("integers of most of s64", thirds, 3, DRAWS);
    run_ok("cpu", "random kind=bernoulli p=0.3 y=bool:40000", VALUES(y, rng));
    for (int k = 0; k < DRAWS; k++) ones += y[k] == 1;
    assert_true(fabs(ones - 0.3 * DRAWS) < 3.3 * sqrt(0.21 * DRAWS));
    for (int p = 0; p < 2; p++) {
        run_ok("cpu",
               p ? "random kind=bernoulli p=1 y=f32:99" : "random kind=bernoulli p=0 y=f32:99",
               VALUES(y, rng));
        for (int k = 0; k < 99; k++) assert_true(y[k] == p);
    }
}

/* Each number once, each order as often as others, and of many numbers each at each place. */
static void permutations(void **state)
{
    (void)state;
    static double y[4099];
    double rng[] = {0, 9};
    int orders[24] = {0}, places[64] = {0}, next[16] = {0};
    for (int seed = 0; seed < 4800; seed++) {
        int order = 0;
        rng[0] = seed;
        run_ok("cpu", "random kind=permutation y=s32:4", VALUES(y, rng));
        for (int k = 0; k < 4; k++) {
            int smaller = 0;
            for (int j = k + 1; j < 4; j++) smaller += y[j] < y[k];
            order = order * (4 - k) + smaller;
        }
        orders[order]++;
    }
    expect_even("orders of 4", orders, 24, 4800);
    static const int sizes[] = {1, 2, 255, 256, 257, 1000, 4096, 4097, 4099};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        char line[80];
        bool seen[4099] = {false};
        snprintf(line, sizeof line, "random kind=permutation y=s64:%d", sizes[i]);
        run_ok("cpu", line, VALUES(y, rng));
        for (int k = 0; k < sizes[i]; k++) {
            assert_true(y[k] >= 0 && y[k] < sizes[i] && !seen[(int)y[k]]);
            seen[(int)y[k]] = true;
        }
    }
    int shown = 0;
    for (int seed = 0; seed < 100; seed++) {
        rng[0] = seed;
        run_ok("cpu", "random kind=permutation y=s32:4096", VALUES(y, rng));
        for (int k = 0; k < 4096; k += 16, shown++) {
            places[k / 512 * 8 + (int)y[k] / 512]++;
            next[(int)(y[k + 1] - y[k] + 4096) % 16]++; /* neighbours' distance */
        }
    }
    expect_even("places", places, 64, shown);
    expect_even("distances", next, 16, shown);
}

/* ---- indices ---- */

static void parts(void **state)
{
    (void)state;
    static const char *const kinds[] = {"bits y=u8", "uniform y=f32", "normal y=f64",
                                        "integers to=9 y=s32"};
    static double whole[60 * 40], part[60 * 40];
    double rng[] = {5, 6};
    for (int e = 0; e < 2; e++)
        for (int i = 0; i < 4; i++) {
            char line[120];
            snprintf(line, sizeof line, "random kind=%s:60x40", kinds[i]);
            run_ok(engines[e], line, VALUES(whole, rng));
            snprintf(line, sizeof line, "random kind=%s:7x13:1x9 first=%d steps=40x1", kinds[i],
                     5 * 40 + 11);
            run_ok(engines[e], line, VALUES(part, rng));
            for (int k = 0; k < 7 * 13; k++)
                assert_true(part[k] == whole[(5 + k / 13) * 40 + 11 + k % 13]);
            snprintf(line, sizeof line, "random kind=%s:60x40 steps=1x0", kinds[i]);
            run_ok(engines[e], line, VALUES(part, rng));
            for (int k = 0; k < 60 * 40; k++) assert_true(part[k] == whole[k / 40]);
        }
}

static void threads(void **state)
{
    (void)state;
    static double one[70000], many[70000];
    double rng[] = {5, 6};
    const int before = omp_get_max_threads();
    omp_set_num_threads(1);
    run_ok("cpu", "random kind=normal y=f32:70000", VALUES(one, rng));
    omp_set_num_threads(5);
    run_ok("cpu", "random kind=normal y=f32:70000", VALUES(many, rng));
    omp_set_num_threads(before);
    assert_memory_equal(one, many, sizeof one);
}

/* ---- dropout ---- */

static void dropped(void **state)
{
    (void)state;
    double x[4000], y[4000], mask[4000], bits[500], rng[] = {1, 2}, back[4000], words[4000];
    for (int k = 0; k < 4000; k++)
        x[k] = k % 7 == 3 ? NAN : k % 7 == 4 ? (double)INFINITY : k + 1.0;
    for (int e = 0; e < 2; e++) {
        int kept = 0;
        run_ok(engines[e], "random y=u32:4000", VALUES(words, rng));
        run_ok(engines[e], "dropout p=0.25 x=f64:4000 mask=u8 bits=u8",
               VALUES([MICA_DROPOUT_X] = x, [MICA_DROPOUT_Y] = y, [MICA_DROPOUT_MASK] = mask,
                      [MICA_DROPOUT_BITS] = bits, [MICA_DROPOUT_RNG] = rng));
        for (int k = 0; k < 4000; k++) {
            kept += mask[k] == 1;
            assert_true(mask[k] == (words[k] >= 0x1p30));
            assert_true(((int)bits[k / 8] >> k % 8 & 1) == mask[k]);
            const double want = x[k] * (1 / 0.75);
            if (mask[k] == 0)
                assert_true(y[k] == 0 && !signbit(y[k]));
            else
                assert_true(isnan(want) ? isnan(y[k]) : y[k] == want);
        }
        assert_true(abs(kept - 3000) < 3.3 * sqrt(750));
        static const char *const from[] = {"", " mask=u8", " bits=u8"};
        for (int i = 0; i < 3; i++) {
            char line[100];
            snprintf(line, sizeof line, "dropout pass=bwd p=0.25 dy=f64:4000%s", from[i]);
            run_ok(
                engines[e], line,
                VALUES([MICA_DROPOUT_DY] = x, [MICA_DROPOUT_DX] = back, [MICA_DROPOUT_MASK] = mask,
                       [MICA_DROPOUT_BITS] = bits, [MICA_DROPOUT_RNG] = rng));
            if (differences(back, y, 4000, 0, 0)) fail_msg("%s: %s", engines[e], line);
        }
    }
}

static void all_or_nothing(void **state)
{
    (void)state;
    double x[9], y[9], mask[9], bits[2], r[9], rng[] = {1, 2};
    for (int k = 0; k < 9; k++)
        x[k] = k == 3 ? NAN : k == 4 ? (double)INFINITY : k + 1.0, r[k] = -k;
    for (int e = 0; e < 2; e++)
        for (int p = 0; p < 2; p++) {
            char line[100];
            snprintf(line, sizeof line, "dropout p=%d x=f32:9 residual=f32 mask=bool bits=u8", p);
            run_ok(engines[e], line,
                   VALUES([MICA_DROPOUT_X] = x, [MICA_DROPOUT_RESIDUAL] = r, [MICA_DROPOUT_Y] = y,
                          [MICA_DROPOUT_MASK] = mask, [MICA_DROPOUT_BITS] = bits,
                          [MICA_DROPOUT_RNG] = rng));
            for (int k = 0; k < 9; k++) {
                const double want = p ? r[k] : r[k] + x[k];
                assert_true(isnan(want) ? isnan(y[k]) : y[k] == want);
                assert_true(mask[k] == !p);
            }
            assert_true(bits[0] == (p ? 0 : 255) && bits[1] == !p);
            snprintf(line, sizeof line, "dropout pass=bwd p=%d dy=f32:9", p);
            run_ok(engines[e], line,
                   VALUES([MICA_DROPOUT_DY] = x, [MICA_DROPOUT_DX] = y, [MICA_DROPOUT_RNG] = rng));
            for (int k = 0; k < 9; k++)
                assert_true(p ? y[k] == 0 : isnan(x[k]) ? isnan(y[k]) : y[k] == x[k]);
        }
}

static void refusals(void **state)
{
    (void)state;
    refuses("random", "y is needed");
    refuses("random y=f32:4", "of kind bits it must be s8, u8, s32, s64 or u32");
    refuses("random kind=normal y=s32:4", "y is s32");
    refuses("random kind=uniform y=f32:4 low=1", "low is 1 and high 1");
    refuses("random kind=uniform y=f32:4 low=1 high=1.00000000001", "the same number in f32");
    refuses("random kind=uniform y=f32:4 low=-3e38 high=3e38", "finite in f32");
    refuses("random kind=normal y=f32:4 std=-1", "std -1");
    refuses("random kind=truncated_normal y=f32:4 std=0", "std above 0");
    refuses("random kind=truncated_normal y=f32:4 low=40 high=50", "37");
    refuses("random kind=bernoulli y=f32:4 p=1.5", "p is 1.5");
    refuses("random kind=exponential y=f32:4 rate=0", "rate is -0");
    refuses("random kind=exponential y=f32:4 rate=-2", "rate is -2");
    refuses("random kind=integers y=u8:4", "from is 0 and to 0");
    refuses("random kind=integers y=u8:4 to=257", "numbers of u8 lie between 0 and 255");
    refuses("random kind=integers y=s8:4 from=-129 to=3", "between -128 and 127");
    refuses("random kind=permutation y=s32:4 n=3", "the last index is 3");
    refuses("random kind=permutation y=s32:4 n=-1", "n is -1");
    refuses("random kind=permutation y=s32:4 n=2147483649", "fit s32");
    refuses("random y=u8:4 rng=s64:3", "{seed, offset}");
    refuses("random y=u8:4 first=-1", "indices reach from -1");
    refuses("random y=u8:4 first=4611686018427387904", "2^62");
    refuses("random y=u8:4 steps=-1", "indices reach from -3");
    refuses("random y=u8:4 steps=1x2", "steps[1] is 2");
    refuses("dropout p=-0.1 x=f32:4", "p is -0.1");
    refuses("dropout x=s32:4", "x is s32");
    refuses("dropout x=f32:4 mask=f32", "mask is f32");
    refuses("dropout x=f32:4 mask=u8:5", "mask");
    refuses("dropout x=f32:9 bits=u8:1", "bits");
    refuses("dropout x=f32:64 bits=u8:8:2", "the last stride of bits is 2");
    refuses("dropout pass=bwd dy=f32:4 mask=u8 bits=u8", "one of them");
    refuses("dropout pass=bwd dy=f32:4 mask=u8 rng=s64", "rng and a mask");
    refuses("dropout pass=bwd dy=f32:4 residual=f32:4", "residual");
    refuses("dropout pass=bwd", "dy is needed");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_answers),  cmocka_unit_test(as_xla),
        cmocka_unit_test(whole_words),    cmocka_unit_test(functions),
        cmocka_unit_test(distributions),  cmocka_unit_test(counts),
        cmocka_unit_test(permutations),   cmocka_unit_test(parts),
        cmocka_unit_test(threads),        cmocka_unit_test(dropped),
        cmocka_unit_test(all_or_nothing), cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
