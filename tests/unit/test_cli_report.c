/* SPDX-License-Identifier: Apache-2.0
 * The demonstration's report: that it says what it shows, and how to repeat it. */
#include "demo/report.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { BATCH = 16, EPOCHS = 3 };

static net network;
static digits data;
static report r;
static float *probabilities;
static char path[] = "/tmp/mica-report-XXXXXX";
static bool made;

static int set_up(void **state)
{
    mica_context *context;
    (void)state;
    assert_int_equal(mica_context_create("cpu", &context), MICA_OK);
    assert_true(digits_read(&data, NULL, 7));
    assert_int_equal(net_create(&network, context, BATCH, data.held_out, 7), MICA_OK);
    for (int i = 0; i < network.count[NET_TRAIN]; i++)
        network.steps[NET_TRAIN][i].ms = 0.001 * (i + 1);
    /* Every digit is read as it is, but for the first: one too many. */
    size_t n = (size_t)data.held_out * DIGIT_CLASSES;
    probabilities = calloc(n, sizeof *probabilities);
    for (int i = 0; i < data.held_out; i++) {
        int label = data.labels[data.count - data.held_out + i];
        probabilities[i * DIGIT_CLASSES + (i ? label : (label + 1) % DIGIT_CLASSES)] = 1;
    }
    r = (report){.network = &network,
                 .data = &data,
                 .epochs = EPOCHS,
                 .probabilities = probabilities,
                 .seed = 7,
                 .peak_rate = 3e-3,
                 .command = "mica demo --data 'a <b>&.csv'"};
    assert_int_equal(mica_context_info(context, &r.device), MICA_OK);
    r.device.units = 37;
    return 0;
}

static int tear_down(void **state)
{
    mica_context *context = network.context;
    (void)state;
    net_destroy(&network);
    mica_context_destroy(context);
    digits_free(&data);
    free(probabilities);
    return remove(path);
}

/* The page with accuracies from `first` to 98 %; the caller frees. */
static char *page(double first)
{
    for (int e = 0; e < EPOCHS; e++) {
        r.loss[e] = 1.0 / (e + 1);
        r.accuracy[e] = first + (0.98 - first) * e / (EPOCHS - 1);
    }
    if (!made) made = mkstemp(path) >= 0;
    assert_true(made);
    assert_true(report_write(&r, path));
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    char *text = calloc(1, 1 << 20);
    assert_true(fread(text, 1, (1 << 20) - 1, f) > 10000);
    fclose(f);
    return text;
}

static int count(const char *text, const char *what)
{
    int n = 0;
    for (const char *s = text; (s = strstr(s, what)); s += strlen(what)) n++;
    return n;
}

#define HAS(text, what)                                                                            \
    if (!strstr(text, what)) fail_msg("not in the report: %s", what)

static void says_how_to_repeat_it(void **state)
{
    (void)state;
    char *text = page(0.88);
    HAS(text, "<code>mica demo --data 'a &lt;b>&amp;.csv'</code>");
    HAS(text, "<dt>seed</dt><dd>7</dd>");
    HAS(text, "<dt>threads</dt><dd>37</dd>");
    HAS(text, "<dt>mica</dt><dd>");
    HAS(text, "<dt>compiler</dt><dd>");
    free(text);
}

static void axes_that_do_not_start_at_0_say_so(void **state)
{
    (void)state;
    char *text = page(0.88);
    HAS(text, "the axis starts at 85 %, not at 0");
    assert_int_equal(count(text, "l-5 -4l10 -4"), 1); /* and are broken */
    free(text);
    text = page(0.02);
    assert_null(strstr(text, "the axis starts at"));
    assert_null(strstr(text, "l-5 -4l10 -4"));
    free(text);
}

/* Every step of training has a bar, in the colour of its phase, with a rate; every forward step and
 * the optimiser a box. */
static void steps_are_drawn(void **state)
{
    (void)state;
    int phases[3] = {0, 0, 0};
    char *text = page(0.88), bar[64];
    for (int i = 0; i < network.count[NET_TRAIN]; i++) {
        const net_step *s = &network.steps[NET_TRAIN][i];
        phases[s->phase]++;
        assert_true(s->roof_ms > 0 && s->bytes > 0);
        assert_true((s->phase == NET_BACKWARD) == (i > 8 && s != network.optimiser));
    }
    static const char *const classes[] = {"forward", "backward", "update"};
    for (int p = 0; p < 3; p++) {
        assert_true(phases[p] > 0);
        snprintf(bar, sizeof bar, "<i class=\"%s\" style=\"width:", classes[p]);
        assert_int_equal(count(text, bar), phases[p]);
    }
    assert_int_equal(count(text, "class=\"name\""), 1 + phases[0] + 1);
    assert_int_equal(count(text, " FLOP/s"), 0);
    HAS(text, "GFLOP/s, ");
    HAS(text, " GB/s, ");
    HAS(text, ">by 32x16x3x3<");
    HAS(text, ">32 x 4 x 4<");
    HAS(text, ">rate up to 0.003<");
    free(text);
}

static void rates(void **state)
{
    char text[32];
    (void)state;
    report one = {.device = {.f32_tflops = 0.2, .copy_gbps = 20}};
    net_step s = {.flops = 3e9, .bytes = 1e6, .ms = 60};
    report_rate(text, sizeof text, &one, &s);
    assert_string_equal(text, "50 GFLOP/s");
    s.flops = 1e6;
    s.ms = 0.1;
    report_rate(text, sizeof text, &one, &s);
    assert_string_equal(text, "10 GB/s");
    s.ms = 0;
    report_rate(text, sizeof text, &one, &s);
    assert_string_equal(text, "-");
}

/* One cell for each digit is tinted as right, one is as wrong. */
static void confusions_are_tinted(void **state)
{
    (void)state;
    char *text = page(0.88);
    assert_int_equal(count(text, "<td style=\"background:rgba("), DIGIT_CLASSES);
    assert_int_equal(count(text, "<td class=\"wrong\" style=\"background:rgba("), 1);
    free(text);
}

/* Nothing is wider than a telephone but what shrinks: pictures have a viewBox and no width. */
static void narrow_screens(void **state)
{
    (void)state;
    char *text = page(0.88);
    HAS(text, "name=\"viewport\" content=\"width=device-width");
    HAS(text, "@media(max-width:640px)");
    HAS(text, "svg{display:block;width:100%;height:auto}");
    assert_int_equal(count(text, "<svg "), count(text, "<svg viewBox=\"0 0 "));
    for (const char *s = text; (s = strstr(s, "<svg viewBox=\"0 0 ")); s++)
        assert_true(atoi(s + strlen("<svg viewBox=\"0 0 ")) <= 480); /* letters stay legible */
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(says_how_to_repeat_it),
                                       cmocka_unit_test(axes_that_do_not_start_at_0_say_so),
                                       cmocka_unit_test(steps_are_drawn),
                                       cmocka_unit_test(rates),
                                       cmocka_unit_test(confusions_are_tinted),
                                       cmocka_unit_test(narrow_screens)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
