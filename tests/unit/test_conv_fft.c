/* SPDX-License-Identifier: Apache-2.0
 * The engines fft: tiles that cover a problem, configs, refusals, what roundings add up to. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "mica/mica.h"
#include "ops/conv/fft/fft.h"

#include <stdio.h>
#include <string.h>

static mica_conv_desc read_line(const char *line)
{
    const mica_op *op;
    mica_conv_desc d, resolved = {0};
    double scalars[8];
    mica_why why;
    memset(&d, 0, sizeof d);
    mica_op_default_scalars(&mica_op_conv, scalars);
    if (mica_op_parse(line, &op, &d, sizeof d, scalars, &why) != MICA_OK ||
        mica_op_resolve(op, &d, sizeof d, &resolved, &why) != MICA_OK)
        fail_msg("%s: %s", line, why.text);
    return resolved;
}

/* No result wraps around a tile, and none is left out. */
static void assert_covered(const conv_fft_axis *x, int64_t taps, int64_t out)
{
    assert_int_equal(x->taps, taps);
    assert_int_equal(x->out, out);
    assert_true(x->part > 0 && x->step > 0);
    assert_true(x->part + x->step - 1 <= x->points);
    assert_true(x->parts * x->part >= taps && (x->parts - 1) * x->part < taps);
    assert_true(x->tiles * x->step >= out && (x->tiles - 1) * x->step < out);
    assert_true(x->parts == 1 || x->part == x->step);
    assert_int_equal(x->slots, x->tiles + x->parts - 1);
}

static void tiles_cover_what_there_is(void **state)
{
    (void)state;
    const int taps[] = {1, 2, 31, 32, 33, 34, 63, 64, 65, 1000, 4097};
    const int sizes[] = {1, 5, 31, 32, 33, 64, 1000};
    for (size_t t = 0; t < sizeof taps / sizeof *taps; t++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            for (int points = 64; points <= 4096; points *= 4) {
                char line[128];
                snprintf(line, sizeof line, "conv x=f32:1x1x%d w=f32:1x1x%d",
                         taps[t] + sizes[i] - 1, taps[t]);
                mica_conv_desc d = read_line(line);
                const mica_config config = {.knob = {1, points, 1}};
                conv_fft_problem p;
                conv_fft_division v;
                conv_fft_make(&d, &p);
                conv_fft_divide(&p, &config, &v);
                assert_covered(&v.axis[0], 1, 1);
                assert_covered(&v.axis[1], taps[t], sizes[i]);
                assert_int_equal(v.slots, v.axis[1].slots);
                assert_int_equal(conv_fft_part_slots(&v, v.parts - 1), v.reach);
            }
}

static void strides_and_dilation_are_spread_out(void **state)
{
    (void)state;
    mica_conv_desc d =
        read_line("conv x=f32:2x4x50x61 w=f32:8x2x5x7 stride=3x2 dilation=2x3 groups=2");
    const mica_config config = {.knob = {16, 32, 1}};
    conv_fft_problem p;
    conv_fft_division v;
    conv_fft_make(&d, &p);
    conv_fft_divide(&p, &config, &v);
    assert_covered(&v.axis[0], 9, 3 * (d.y.dims[2] - 1) + 1);
    assert_covered(&v.axis[1], 19, 2 * (d.y.dims[3] - 1) + 1);
    assert_int_equal(v.axis[1].parts, 2);
    assert_int_equal(v.reach, 1);
    assert_int_equal(v.bins, 16 * 17);
    assert_false(p.depthwise);
}

/* Terms along an axis, counted one by one. */
static int64_t count_met(const mica_conv_geometry *g, int kind, int axis)
{
    int64_t sums[] = {g->out[axis], g->in[axis], g->tap[axis]}, most = 0;
    for (int64_t at = 0; at < sums[kind]; at++) {
        int64_t met = 0;
        for (int64_t q = 0; q < g->out[axis]; q++)
            for (int64_t t = 0; t < g->tap[axis]; t++) {
                int64_t p = q * g->stride[axis] - g->pad[axis] + t * g->dilation[axis];
                const int64_t sum[] = {q, p, t};
                met += p >= 0 && p < g->in[axis] && sum[kind] == at;
            }
        if (met > most) most = met;
    }
    return most;
}

static void terms_are_counted(void **state)
{
    (void)state;
    _Static_assert(MICA_CONV_KIND_FWD == 0 && MICA_CONV_KIND_DGRAD == 1, "count_met's order");
    unsigned seed = 1;
    int missed = 0;
    for (int i = 0; i < 3000; i++) {
        int r[6];
        for (int k = 0; k < 6; k++) r[k] = (int)((seed = seed * 1664525 + 1013904223) >> 16);
        mica_conv_geometry g = {.in = {1, 1 + r[0] % 9, 1},
                                .out = {1, 1 + r[1] % 9, 1},
                                .tap = {1, 1 + r[2] % 5, 1},
                                .stride = {1, 1 + r[3] % 6, 1},
                                .dilation = {1, 1 + r[4] % 6, 1},
                                .pad = {0, r[5] % 24 - 9, 0}};
        for (int kind = 0; kind < 3; kind++)
            assert_int_equal(mica_conv_most_met(&g, kind, 1), count_met(&g, kind, 1));
        assert_int_equal(mica_conv_misses(&g), count_met(&g, MICA_CONV_KIND_FWD, 1) == 0);
        missed += mica_conv_misses(&g);
        g.tap[0] = 0;
        assert_false(mica_conv_misses(&g)); /* no taps: nothing that could miss */
    }
    assert_in_range(missed, 100, 1500);
}

static void winograd_leaves_what_misses_to_others(void **state)
{
    (void)state;
    mica_why why;
    mica_device_info gpu = {.cuda = true};
    mica_conv_desc d = read_line("conv x=f32:1x18x4x4 w=f32:18x18x3x3 pad=3x3 pad_extra=-7x-7");
    assert_int_equal(mica_conv_winograd.accepts(&d, &gpu, &why), MICA_UNSUPPORTED);
    assert_non_null(strstr(why.text, "no tap meets a pixel"));
    d = read_line("conv x=f32:1x18x4x4 w=f32:18x18x3x3 pad=2x2 pad_extra=-5x-5");
    assert_int_equal(mica_conv_winograd.accepts(&d, &gpu, &why), MICA_OK);
    d = read_line("conv x=f32:0x18x4x4 w=f32:18x18x3x3");
    assert_int_equal(mica_conv_winograd.accepts(&d, &gpu, &why), MICA_OK);
}

/* With a limit on the workspace it has finer chunks, and longer filters longer transforms. */
static void configs_follow_the_filter(void **state)
{
    (void)state;
    mica_context *cpu;
    mica_plan *plan;
    mica_options o = {.engine = "fft"};
    const char *dense = "conv x=f32:16x32x500 w=f32:32x32x100";
    assert_int_equal(mica_context_create("cpu", &cpu), MICA_OK);
    assert_int_equal(mica_plan_from_text(cpu, dense, &o, &plan), MICA_OK);
    o.workspace_limit = (int64_t)mica_plan_workspace(plan) * 3 / 5;
    mica_plan_destroy(plan);
    if (mica_plan_from_text(cpu, dense, &o, &plan) != MICA_OK) fail_msg("%s", mica_error());
    assert_true((int64_t)mica_plan_workspace(plan) <= o.workspace_limit);
    assert_string_not_equal(strrchr(mica_plan_config(plan), '='), "=1");
    mica_plan_destroy(plan);
    o.workspace_limit = 0;
    const char *lines[] = {"conv x=f32:1x16x9000 w=f32:16x1x20 groups=16",
                           "conv x=f32:1x16x9000 w=f32:16x1x1500 groups=16"};
    int64_t cols[2];
    for (int i = 0; i < 2; i++) {
        assert_int_equal(mica_plan_from_text(cpu, lines[i], &o, &plan), MICA_OK);
        assert_int_equal(sscanf(mica_plan_config(plan), "rows=1 cols=%ld", &cols[i]), 1);
        mica_plan_destroy(plan);
    }
    assert_true(cols[0] < cols[1]);
    mica_context_destroy(cpu);
}

static void others_are_preferred_unless_it_is_named(void **state)
{
    (void)state;
    mica_context *cpu;
    mica_plan *plan;
    mica_contract contract;
    const char *line = "conv x=f32:4x64x8192 w=f32:64x1x1025 pad=512 groups=64";
    assert_int_equal(mica_context_create("cpu", &cpu), MICA_OK);
    assert_int_equal(mica_plan_from_text(cpu, line, NULL, &plan), MICA_OK);
    double other = mica_plan_predicted(plan);
    assert_string_not_equal(mica_plan_engine(plan), "fft");
    mica_plan_destroy(plan);
    mica_options o = {.engine = "fft"};
    assert_int_equal(mica_plan_from_text(cpu, line, &o, &plan), MICA_OK);
    assert_true(mica_plan_predicted(plan) < other);
    assert_int_equal(mica_plan_contract(plan, &contract, NULL), MICA_OK);
    assert_true(contract.amplify == 1 && contract.fractions); /* an image longer than the filter */
    mica_plan_destroy(plan);
    mica_context_destroy(cpu);
}

static void refusals_say_why(void **state)
{
    (void)state;
    static const char *const lines[][2] = {
        {"conv x=f32:1x1x9x9x9 w=f32:1x1x5x5x5", "x has 3 spatial axes, this engine takes 1 and 2"},
        {"conv x=s8:1x1x99 w=s8:1x1x50", "inputs are s8, this engine takes f64, f32, f16 and bf16"},
        {"conv x=f32:1x1x99 w=f32:1x1x50 pad=1100000000",
         "positions of pixels and taps reach 3300000100, this engine goes to 2^30"},
        {"conv x=f32:1x2x99 w=f32:2x2x50 stat_sum=f32", "stat_sum is not taken by this engine"},
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        mica_conv_desc d = read_line(lines[i][0]);
        mica_why why;
        assert_int_equal(conv_fft_accepts(&d, &why), MICA_UNSUPPORTED);
        assert_string_equal(why.text, lines[i][1]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tiles_cover_what_there_is),
        cmocka_unit_test(strides_and_dilation_are_spread_out),
        cmocka_unit_test(terms_are_counted),
        cmocka_unit_test(winograd_leaves_what_misses_to_others),
        cmocka_unit_test(configs_follow_the_filter),
        cmocka_unit_test(others_are_preferred_unless_it_is_named),
        cmocka_unit_test(refusals_say_why),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
