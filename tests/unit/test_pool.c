/* SPDX-License-Identifier: Apache-2.0
 * Pooling: values worked out by hand, PyTorch's rules for ceil and divisors, gradients by adjoint
 * identity and by differences, indices that lie, refusals. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "mica/mica.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static mica_context *ctx;
static const char *const engines[] = {"cpu", "ref"};

static int open_context(void **state)
{
    (void)state;
    return mica_context_create("cpu", &ctx) != MICA_OK;
}

static int close_context(void **state)
{
    (void)state;
    mica_context_destroy(ctx);
    return 0;
}

static void run(const char *line, const char *engine, void *x, void *y, void *indices)
{
    mica_plan *plan;
    mica_options only = {.engine = engine};
    if (mica_plan_from_text(ctx, line, &only, &plan) != MICA_OK)
        fail_msg("%s: %s", line, mica_error());
    mica_run r = {.args = {x, y, indices}};
    if (mica_plan_run(plan, &r) != MICA_OK) fail_msg("%s: %s", line, mica_error());
    mica_plan_destroy(plan);
}

static mica_tensor tensor_of(const char *line, int arg)
{
    mica_problem *p;
    mica_arg_info info;
    if (mica_problem_from_text(line, &p) != MICA_OK) fail_msg("%s: %s", line, mica_error());
    assert_int_equal(mica_problem_arg(p, arg, &info), MICA_OK);
    mica_problem_destroy(p);
    return info.tensor;
}

/* ---- values ---- */

enum { MOST = 64 };
typedef struct golden {
    const char *line;
    float x[MOST];
    int count;
    float y[MOST];
    int64_t indices[MOST];
} golden;

/* By hand; divisors and numbers of windows as torch.nn.functional.{max,avg}_pool1d give them
 * (PyTorch 2.11: ceil_mode leaves out windows that start past the input and its left padding;
 * count_include_pad counts padding, but nothing past it). */
static const golden goldens[] = {
    {"pool x=f32:1x1x6 window=3 stride=2 pad=1 indices=s64",
     {3, 1, 4, 1, 5, 9},
     3,
     {3, 4, 9},
     {0, 2, 5}},
    {"pool x=f32:1x1x6 window=2 indices=s64", {7, 7, 2, 3, 0, 0}, 3, {7, 3, 0}, {0, 3, 4}},
    {"pool x=f32:1x1x6 window=2 dilation=3 stride=1 indices=s64",
     {1, 5, 6, 2, 5, 3},
     3,
     {2, 5, 6},
     {3, 1, 2}},
    {"pool x=f32:1x1x5 window=2 ceil=1 indices=s64", {1, 2, 3, 4, 5}, 3, {2, 4, 5}, {1, 3, 4}},
    {"pool mode=avg x=f32:1x1x5 window=2 ceil=1", {1, 2, 3, 4, 5}, 3, {1.5, 3.5, 5}, {0}},
    {"pool mode=avg x=f32:1x1x4 window=3 stride=2 pad=1", {6, 3, 9, 12}, 2, {3, 8}, {0}},
    {"pool mode=avg_valid x=f32:1x1x4 window=3 stride=2 pad=1", {6, 3, 9, 12}, 2, {4.5, 8}, {0}},
    /* windows start at -1, 2 and 5; the last would hold padding only and is left out */
    {"pool mode=avg x=f32:1x1x5 window=3 stride=3 pad=1 ceil=1", {3, 6, 3, 6, 9}, 2, {3, 6}, {0}},
    /* x ends at 6, its padding at 7: the last window is cut from three taps to two */
    {"pool mode=avg x=f32:1x1x6 window=3 stride=2 pad=1 ceil=1",
     {3, 6, 3, 6, 9, 12},
     4,
     {3, 5, 9, 6},
     {0}},
    {"pool mode=avg_valid x=f32:1x1x6 window=3 stride=2 pad=1 ceil=1",
     {3, 6, 3, 6, 9, 12},
     4,
     {4.5, 5, 9, 12},
     {0}},
    {"pool mode=avg x=f32:1x1x4 window=2 stride=2 pad_extra=1", {1, 3, 5, 7}, 2, {2, 6}, {0}},
    {"pool mode=avg x=f32:1x1x5 window=2 stride=2 pad_extra=1", {1, 3, 5, 7, 8}, 3, {2, 6, 4}, {0}},
    /* AveragePool of ONNX 1.23.2's ReferenceEvaluator, opset 22: dilations, SAME_LOWER, ceil_mode
     */
    {"pool mode=avg x=f32:1x1x6 window=3 dilation=2 stride=1 pad=2",
     {3, 6, 3, 6, 9, 12},
     6,
     {2, 4, 5, 8, 4, 6},
     {0}},
    {"pool mode=avg_valid x=f32:1x1x6 window=3 dilation=2 stride=1 pad=2",
     {3, 6, 3, 6, 9, 12},
     6,
     {3, 6, 5, 8, 6, 9},
     {0}},
    {"pool mode=avg_valid x=f32:1x1x6 window=3 dilation=2 stride=1 pad=1 pad_extra=-1",
     {3, 6, 3, 6, 9, 12},
     3,
     {6, 5, 8},
     {0}},
    {"pool mode=avg x=f32:1x1x6 window=3 dilation=2 stride=3 pad=1 pad_extra=-1 ceil=1",
     {3, 6, 3, 6, 9, 12},
     2,
     {4, 6},
     {0}},
    {"pool mode=avg_valid x=f32:1x1x5 window=2 pad=1 pad_extra=-1",
     {3, 6, 3, 6, 9},
     3,
     {3, 4.5, 7.5},
     {0}},
    {"pool mode=avg x=f32:1x1x5 window=2 pad=1 pad_extra=-1",
     {3, 6, 3, 6, 9},
     3,
     {1.5, 4.5, 7.5},
     {0}},
    /* avg_pool2d(..., divisor_override=2) of PyTorch 2.15, with and without count_include_pad */
    {"pool mode=avg x=f32:1x1x6 window=3 stride=2 pad=1 ceil=1 divisor=2",
     {3, 6, 3, 6, 9, 12},
     4,
     {4.5, 7.5, 13.5, 6},
     {0}},
    {"pool mode=avg_valid x=f32:1x1x6 window=3 stride=2 pad=1 ceil=1 divisor=2",
     {3, 6, 3, 6, 9, 12},
     4,
     {4.5, 7.5, 13.5, 6},
     {0}},
    {"pool mode=avg adaptive=1 x=f32:1x1x5 y=f32:1x1x3", {1, 2, 3, 4, 5}, 3, {1.5, 3, 4.5}, {0}},
    {"pool adaptive=1 x=f32:1x1x5 y=f32:1x1x3 indices=s64",
     {1, 9, 3, 4, 5},
     3,
     {9, 9, 5},
     {1, 1, 4}},
    {"pool mode=avg x=f32:1x2x2x2", {1, 2, 3, 6, -1, -2, -3, -6}, 2, {3, -3}, {0}},
    {"pool x=f32:1x1x2x3 window=2x2 stride=1x1 indices=s64", {1, 5, 2, 5, 5, 0}, 2, {5, 5}, {1, 1}},
    {"pool x=f32:1x1x2x2x2 window=2x2x2 indices=s64", {1, 2, 3, 4, 5, 6, 8, 7}, 1, {8}, {6}},
    {"pool x=f32:1x1x3 window=3 indices=s64",
     {-INFINITY, -INFINITY, -INFINITY},
     1,
     {-INFINITY},
     {0}},
};

static void values_by_hand(void **state)
{
    (void)state;
    for (size_t g = 0; g < sizeof goldens / sizeof *goldens; g++)
        for (int e = 0; e < 2; e++) {
            const golden *row = &goldens[g];
            float x[MOST], y[MOST];
            int64_t indices[MOST];
            memcpy(x, row->x, sizeof x);
            memset(y, 0xff, sizeof y);
            memset(indices, 0x5a, sizeof indices);
            mica_tensor t = tensor_of(row->line, MICA_POOL_Y);
            assert_int_equal(mica_tensor_count(&t), row->count);
            bool max = strstr(row->line, "indices") != NULL;
            run(row->line, engines[e], x, y, max ? indices : NULL);
            for (int i = 0; i < row->count; i++) {
                if (y[i] != row->y[i])
                    fail_msg("%s, %s: y[%d] is %g, not %g", row->line, engines[e], i, (double)y[i],
                             (double)row->y[i]);
                if (max && indices[i] != row->indices[i])
                    fail_msg("%s, %s: index %d is %lld, not %lld", row->line, engines[e], i,
                             (long long)indices[i], (long long)row->indices[i]);
            }
        }
}

/* ---- norms ---- */

typedef struct norm {
    const char *fields;
    int nx, ny;
    double x[MOST], dy[MOST], y[MOST], dx[MOST];
} norm;

static const norm norms[] = {
#include "../judges/pool.h"
};

static void expect_close(const norm *row, const char *engine, const char *what, const double *got,
                         const double *want, int n)
{
    for (int i = 0; i < n; i++)
        if (!(fabs(got[i] - want[i]) <= 1e-13 * (1 + fabs(want[i]))))
            fail_msg("%s, %s: %s[%d] is %.17g, not %.17g", row->fields, engine, what, i, got[i],
                     want[i]);
}

static void run_norm(const char *fields, const char *engine, const void *const *args)
{
    char line[256];
    mica_plan *plan;
    mica_options only = {.engine = engine};
    snprintf(line, sizeof line, "pool pass=bwd mode=lp %s", fields);
    if (mica_plan_from_text(ctx, line, &only, &plan) != MICA_OK)
        fail_msg("%s: %s", line, mica_error());
    mica_run r = {0};
    for (int i = 0; i < 5; i++) r.args[i] = (void *)(uintptr_t)args[i];
    if (mica_plan_run(plan, &r) != MICA_OK) fail_msg("%s: %s", line, mica_error());
    mica_plan_destroy(plan);
}

static void norms_as_pytorch(void **state)
{
    (void)state;
    for (size_t n = 0; n < sizeof norms / sizeof *norms; n++)
        for (int e = 0; e < 2; e++) {
            const norm *row = &norms[n];
            double x[MOST], y[MOST], dx[MOST];
            char line[256];
            memcpy(x, row->x, sizeof x);
            snprintf(line, sizeof line, "pool mode=lp %s", row->fields);
            run(line, engines[e], x, y, NULL);
            expect_close(row, engines[e], "y", y, row->y, row->ny);
            const void *const args[] = {dx, row->dy, NULL, row->x, y};
            run_norm(row->fields, engines[e], args);
            expect_close(row, engines[e], "dx", dx, row->dx, row->nx);
        }
}

/* Sums of powers that leave the type: the norm does not. */
static void norms_of_any_size(void **state)
{
    (void)state;
    for (int e = 0; e < 2; e++) {
        const double sizes[] = {1e-320, 1e-200, 1, 1e200, 1e307};
        for (int i = 0; i < 5; i++) {
            double x[2] = {3 * sizes[i], -4 * sizes[i]}, y, dx[2], dy = 2;
            run("pool mode=lp x=f64:1x1x2", engines[e], x, &y, NULL);
            if (!(fabs(y - 5 * sizes[i]) <= 1e-15 * y + 5e-324)) fail_msg("%g: %g", sizes[i], y);
            const void *const args[] = {dx, &dy, NULL, x, &y};
            run_norm("x=f64:1x1x2", engines[e], args);
            assert_true(fabs(dx[0] - 1.2) < 1e-3 && fabs(dx[1] + 1.6) < 1e-3);
        }
        double x[4] = {0, -0.0, INFINITY, NAN}, y[2], zero[2] = {1, 1}, dx[4];
        run("pool mode=lp x=f64:1x1x4 window=2 p=3", engines[e], x, y, NULL);
        assert_true(y[0] == 0 && isnan(y[1]));
        const void *const args[] = {dx, zero, NULL, x, y};
        run_norm("x=f64:1x1x4 window=2 p=3", engines[e], args);
        assert_true(dx[0] == 0 && dx[1] == 0);
        x[3] = 1;
        run("pool mode=lp x=f64:1x1x4 window=2 p=2.5", engines[e], x, y, NULL);
        assert_true(y[1] == INFINITY);
        /* 5^9 + 3^9 - 5^9 - 3^9: in multiples of 5 the sum would keep a residue. */
        double cancelling[4] = {5, 3, -5, -3};
        run("pool mode=lp x=f64:1x1x4 window=4 p=3 signed_powers=1", engines[e], cancelling, y,
            NULL);
        assert_true(y[0] == 0);
        run("pool mode=lp x=f64:1x1x4 window=4 p=9 signed_powers=1", engines[e], cancelling, y,
            NULL);
        assert_true(y[0] == 0);
    }
}

static void nan_wins_and_the_first_of_them(void **state)
{
    (void)state;
    static const char *const lines[] = {"pool x=f32:1x1x40 window=40 indices=s64",
                                        "pool x=f32:1x1x40:nwc window=40 indices=s64",
                                        "pool adaptive=1 x=f32:1x1x40 y=f32:1x1x1 indices=s64",
                                        "pool x=f32:1x1x40 window=9 stride=9 indices=s64"};
    for (size_t l = 0; l < sizeof lines / sizeof *lines; l++)
        for (int e = 0; e < 2; e++) {
            float x[40], y[4];
            int64_t indices[4];
            for (int i = 0; i < 40; i++) x[i] = (float)i;
            x[5] = x[3] = x[22] = NAN;
            run(lines[l], engines[e], x, y, indices);
            assert_true(isnan(y[0]));
            assert_int_equal(indices[0], 3);
        }
}

static void integers(void **state)
{
    (void)state;
    for (int e = 0; e < 2; e++) {
        int8_t x[6] = {-128, -128, -3, 5, 1, 2}, y[3];
        int32_t indices[3];
        run("pool x=s8:1x1x6 window=2 indices=s32", engines[e], x, y, indices);
        assert_int_equal(y[0], -128);
        assert_int_equal(y[1], 5);
        assert_int_equal(indices[0], 0);
        assert_int_equal(indices[1], 3);
        run("pool mode=avg x=s8:1x1x6 window=2", engines[e], x, y, NULL);
        assert_int_equal(y[0], -128);
        assert_int_equal(y[1], 1);
        assert_int_equal(y[2], 2); /* 1.5 to the even 2 */
        int32_t w[3] = {16777216, 16777217, -5}, best;
        run("pool x=s32:1x1x3", engines[e], w, &best, NULL);
        assert_int_equal(best, 16777217);
    }
}

/* ---- gradients ---- */

static double *doubles(int64_t n)
{
    return calloc((size_t)(n > 0 ? n : 1), sizeof(double));
}

static double dot(const double *a, const double *b, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

/* All in f64: forward with indices, then backward with the same ones. */
static void forward_backward(const char *fields, const char *engine, double *x, double *y,
                             const double *dy, double *dx, int64_t *indices)
{
    char line[512];
    bool max = !strstr(fields, "mode=avg");
    snprintf(line, sizeof line, "pool %s%s", fields, max ? " indices=s64" : "");
    run(line, engine, x, y, max ? indices : NULL);
    snprintf(line, sizeof line, "pool pass=bwd %s", fields);
    run(line, engine, dx, (void *)(uintptr_t)dy, max ? indices : NULL);
}

static const char *const shapes[] = {
    "x=f64:2x3x7x9 window=3x2 stride=2x1 pad=1x1",
    "x=f64:2x3x7x9:nhwc window=2x4 stride=2x4 pad=0x2",
    "x=f64:2x3x8x8 window=4x4 stride=1x2 pad=2x1 pad_extra=1x1",
    "mode=avg x=f64:2x3x8x9 window=4x2 stride=2x1 pad=1x1",
    "mode=avg x=f64:2x3x8x9:nhwc window=4x2 stride=4x2",
    "mode=avg_valid x=f64:2x3x8x8 window=2x2",
    "mode=avg x=f64:1x2x4x4x4 window=2x2x2 stride=1x1x1",
    "adaptive=1 x=f64:2x3x7x9 y=f64:2x3x3x4",
    "mode=avg adaptive=1 x=f64:2x3x8x4 y=f64:2x3x4x4",
    "window=2x2 dilation=2x3 stride=1x1 x=f64:1x2x6x7",
    "mode=avg x=f64:1x3x8x8",
    "mode=avg x=f64:2x3x8x9 window=4x2 dilation=2x3 stride=2x1 pad=0x0",
    "mode=avg x=f64:2x3x8x9:nhwc window=2x2 dilation=3x1 stride=1x2 pad=2x1 pad_extra=-1x-1",
    "mode=avg x=f64:2x3x8x9 window=3x3 stride=2x2 pad=1x1 divisor=8",
};

/* <pool(x), dy> = <x, pool*(dy)>: with small integers and divisors that are powers of two both
 * sides are exact. For a maximum the right side is linear in dy at the winners of x. */
static void adjoint_identity(void **state)
{
    (void)state;
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int e = 0; e < 2; e++) {
            char line[256];
            snprintf(line, sizeof line, "pool %s", shapes[s]);
            mica_tensor xt = tensor_of(line, MICA_POOL_X), yt = tensor_of(line, MICA_POOL_Y);
            int64_t nx = mica_tensor_count(&xt), ny = mica_tensor_count(&yt);
            double *x = doubles(nx), *dx = doubles(nx), *y = doubles(ny), *dy = doubles(ny);
            int64_t *indices = calloc((size_t)ny, sizeof *indices);
            for (int64_t i = 0; i < nx; i++) x[i] = (double)((i * 37 + 11) % 17 - 8);
            for (int64_t i = 0; i < ny; i++) dy[i] = (double)((i * 29 + 3) % 13 - 6);
            for (int64_t i = 0; i < nx; i++) dx[i] = NAN;
            forward_backward(shapes[s], engines[e], x, y, dy, dx, indices);
            double left = dot(y, dy, ny), right = dot(x, dx, nx);
            if (left != right)
                fail_msg("%s, %s: %.17g is not %.17g", shapes[s], engines[e], left, right);
            /* The check itself: a gradient that is wrong in one element must show. */
            int64_t wrong = nx / 2;
            while (x[wrong] == 0) wrong++;
            dx[wrong] += 0x1p-6;
            assert_true(dot(x, dx, nx) != left);
            free(x);
            free(dx);
            free(y);
            free(dy);
            free(indices);
        }
}

static void central_differences(void **state)
{
    (void)state;
    const double step = 1e-6;
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        char line[256];
        snprintf(line, sizeof line, "pool %s", shapes[s]);
        mica_tensor xt = tensor_of(line, MICA_POOL_X), yt = tensor_of(line, MICA_POOL_Y);
        int64_t nx = mica_tensor_count(&xt), ny = mica_tensor_count(&yt);
        double *x = doubles(nx), *dx = doubles(nx), *y = doubles(ny), *dy = doubles(ny);
        int64_t *indices = calloc((size_t)ny, sizeof *indices);
        /* All different by far more than the step, so that winners stay. */
        for (int64_t i = 0; i < nx; i++) x[i] = (double)((i * 7919 + 13) % 1009) / 100;
        for (int64_t i = 0; i < ny; i++) dy[i] = sin((double)i);
        forward_backward(shapes[s], "ref", x, y, dy, dx, indices);
        for (int64_t i = 0; i < nx; i += 5) {
            double old = x[i];
            x[i] = old + step;
            run(line, "ref", x, y, NULL);
            double up = dot(y, dy, ny);
            x[i] = old - step;
            run(line, "ref", x, y, NULL);
            double slope = (up - dot(y, dy, ny)) / (2 * step);
            x[i] = old;
            if (!(fabs(slope - dx[i]) <= 1e-5 + 1e-3 * fabs(dx[i])))
                fail_msg("%s: dx[%lld] is %g, differences give %g", shapes[s], (long long)i, dx[i],
                         slope);
        }
        free(x);
        free(dx);
        free(y);
        free(dy);
        free(indices);
    }
}

/* Indices outside of their windows, or of anything, are lost and harm nothing. */
static void indices_that_lie(void **state)
{
    (void)state;
    static const char *const lines[] = {"pool pass=bwd x=f32:1x1x8 window=2",
                                        "pool pass=bwd x=f32:1x1x8:1x1x1 window=2",
                                        "pool pass=bwd x=f32:1x2x8:nwc window=2"};
    for (int l = 0; l < 3; l++)
        for (int e = 0; e < 2; e++) {
            int64_t channels = l == 2 ? 2 : 1;
            float memory[18], *dx = memory + 1, dy[8];
            int64_t indices[8];
            const int64_t lies[4] = {1, 0, INT64_MAX, -1};
            for (int i = 0; i < 18; i++) memory[i] = 77;
            for (int64_t o = 0; o < 4; o++)
                for (int64_t c = 0; c < channels; c++) {
                    dy[o * channels + c] = (float)(o + 1);
                    indices[o * channels + c] = lies[o];
                }
            run(lines[l], engines[e], dx, dy, indices);
            for (int64_t w = 0; w < 8; w++)
                for (int64_t c = 0; c < channels; c++)
                    assert_true(dx[w * channels + c] == (w == 1 ? 1.0f : 0.0f));
            assert_true(memory[0] == 77 && memory[8 * channels + 1] == 77);
        }
}

/* In planes of every kind, against the reference: indices of the window and of those beside it, of
 * nothing, and 64-bit ones whose lower half is that of a good one. */
static void indices_that_lie_in_planes(void **state)
{
    (void)state;
    enum { W = 8, LIES = 12 };
    static const char *const lines[] = {
        "x=f32:2x3x8x8 window=2x2",
        "x=f32:2x3x8x8 window=3x3 stride=2x2 pad=1x1",
        "x=f32:2x3x8x8:nhwc window=3x3 stride=2x2 pad=1x1",
        "x=f32:2x3x8x8 window=2x2 dilation=2x3 stride=1x1",
        "x=f32:2x2x1000x8 window=2x2",
        "x=f32:2x2x1000x8 window=2x3 stride=1x2 pad=0x1",
    };
    for (size_t l = 0; l < sizeof lines / sizeof *lines; l++)
        for (int wide = 0; wide < 2; wide++) {
            char line[256];
            snprintf(line, sizeof line, "pool pass=bwd %s", lines[l]);
            mica_tensor xt = tensor_of(line, MICA_POOL_X), yt = tensor_of(line, MICA_POOL_Y);
            int64_t nx = mica_tensor_count(&xt), ny = mica_tensor_count(&yt);
            const int64_t *y = yt.dims;
            snprintf(line, sizeof line, "pool pass=bwd %s indices=%s:%dx%dx%dx%d%s", lines[l],
                     wide ? "s64" : "s32", (int)y[0], (int)y[1], (int)y[2], (int)y[3],
                     strstr(lines[l], "nhwc") ? ":nhwc" : "");
            float *dx[2] = {calloc((size_t)nx, sizeof **dx), calloc((size_t)nx, sizeof **dx)};
            float *dy = calloc((size_t)ny, sizeof *dy);
            int64_t *all = calloc((size_t)ny, sizeof *all);
            int32_t *narrow = calloc((size_t)ny, sizeof *narrow);
            for (int64_t i = 0; i < ny; i++) {
                int64_t at = strstr(lines[l], "nhwc") ? i / 3 % (y[2] * y[3]) : i % (y[2] * y[3]);
                int64_t good = at / y[3] * 2 * W + at % y[3] * 2;
                const int64_t lies[LIES] = {
                    good,     good + 1,           good + 2,  good - 1,
                    good + W, good + 2 * W,       good - W,  good + W + 2,
                    -1,       good + (1LL << 32), INT32_MAX, xt.dims[2] * W};
                all[i] = lies[i % LIES];
                narrow[i] = (int32_t)(all[i] >> 32 ? -7 : all[i]);
                dy[i] = (float)(i % 31 + 1);
            }
            for (int e = 0; e < 2; e++)
                run(line, engines[e], dx[e], dy, wide ? (void *)all : (void *)narrow);
            float sum = 0;
            for (int64_t i = 0; i < nx; i++) {
                sum += dx[1][i];
                if (dx[0][i] != dx[1][i])
                    fail_msg("%s: dx[%lld] is %g, not %g", line, (long long)i, (double)dx[0][i],
                             (double)dx[1][i]);
            }
            assert_true(sum > 0);
            free(dx[0]);
            free(dx[1]);
            free(dy);
            free(all);
            free(narrow);
        }
}

/* Without windows there is no gradient: zeros are written. */
static void no_windows(void **state)
{
    (void)state;
    for (int e = 0; e < 2; e++) {
        float dx[4] = {1, 2, 3, NAN}, none;
        int64_t index;
        run("pool pass=bwd adaptive=1 x=f32:1x1x4 y=f32:1x1x0", engines[e], dx, &none, &index);
        for (int i = 0; i < 4; i++) assert_true(dx[i] == 0);
    }
}

static void beta_zero_does_not_read(void **state)
{
    (void)state;
    for (int e = 0; e < 2; e++) {
        float x[4] = {1, 2, 3, 4}, y[2] = {NAN, NAN};
        mica_plan *plan;
        mica_options only = {.engine = engines[e]};
        assert_int_equal(mica_plan_from_text(ctx, "pool x=f32:1x1x4 window=2", &only, &plan), 0);
        const double scalars[] = {2, 0}, add[] = {1, 0.5};
        mica_run r = {.args = {x, y}, .scalars = scalars};
        assert_int_equal(mica_plan_run(plan, &r), MICA_OK);
        assert_true(y[0] == 4 && y[1] == 8);
        r.scalars = add;
        assert_int_equal(mica_plan_run(plan, &r), MICA_OK);
        assert_true(y[0] == 4 && y[1] == 8);
        mica_plan_destroy(plan);
    }
}

/* ---- lines ---- */

static void inference(void **state)
{
    (void)state;
    static const struct {
        const char *line;
        int64_t h, w;
    } rows[] = {
        {"pool x=f32:1x3x224x224 window=3x3 stride=2x2 pad=1x1", 112, 112},
        {"pool x=f32:1x3x7x9", 1, 1},
        {"pool x=f32:1x3x7x9 window=x3", 1, 3},
        {"pool x=f32:1x3x7x9 window=2x2", 3, 4},
        {"pool x=f32:1x3x7x9 window=2x2 ceil=1", 4, 5},
        {"pool x=f32:1x3x2x2 window=3x3 stride=2x2 ceil=1", 1, 1},
        {"pool x=f32:1x3x9x9 window=3x3 stride=1x1 dilation=3x4", 3, 1},
        {"pool x=f32:1x3x0x5 window=2x2", 0, 2},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        mica_tensor y = tensor_of(rows[i].line, MICA_POOL_Y);
        if (y.dims[2] != rows[i].h || y.dims[3] != rows[i].w)
            fail_msg("%s: %lld x %lld", rows[i].line, (long long)y.dims[2], (long long)y.dims[3]);
    }
    mica_tensor y = tensor_of("pool x=bf16:2x8x4x4:nhwc window=2x2", MICA_POOL_Y);
    assert_int_equal(y.strides[1], 1);
    mica_tensor i = tensor_of("pool pass=bwd x=bf16:2x8x4x4:nhwc window=2x2", MICA_POOL_INDICES);
    assert_int_equal(i.dtype, MICA_S64);
    assert_int_equal(i.strides[1], 1);
}

static void refusals(void **state)
{
    (void)state;
    static const char *const rows[][2] = {
        {"pool window=2", "x is needed"},
        {"pool x=f32:2x3", "x has rank 2; pooling takes N x C and one to three axes"},
        {"pool x=f32:1x1x4x4 window=2x2x2", "window has a value for axis 2, x has 2 axes"},
        {"pool x=f32:1x1x4x4 window=2x2 dilation=1x1x2", "dilation has a value for axis 2"},
        {"pool x=f32:1x1x4 window=-2", "window of axis 0 is -2, it must be 1 or more"},
        {"pool x=f32:1x1x4 window=2 stride=-1", "stride of axis 0 is -1"},
        {"pool x=f32:1x1x4 window=2 pad=-1", "pad of axis 0 is -1, it must be 0 or more"},
        {"pool x=f32:1x1x4 window=2 pad=2", "padded by 2 before and 2 after, the window spans 2"},
        {"pool x=f32:1x1x4 window=2 pad_extra=2", "padded by 0 before and 2 after"},
        {"pool x=f32:1x1x4 window=2 pad=1 pad_extra=-2",
         "pad_extra of axis 0 is -2, it must be -1"},
        {"pool x=f32:1x1x4 window=2 divisor=3", "divisor is 3, mode=max has none"},
        {"pool x=f32:1x1x4 window=2 p=3", "p is given, mode=max has none"},
        {"pool mode=avg x=f32:1x1x4 window=2 rescale=1", "rescale is given, mode=avg has none"},
        {"pool mode=lp x=f32:1x1x4 window=2 p=-1", "p is -1, it must be 0.01 to 1000"},
        {"pool mode=lp x=f32:1x1x4 window=2 p=1.5 signed_powers=1", "of whole numbers"},
        {"pool mode=lp x=s8:1x1x4 window=2", "x is s8; a norm takes f64, f32, f16, bf16"},
        {"pool mode=avg x=f32:1x1x4 window=2 divisor=-3", "divisor is -3, it must be 1 or more"},
        {"pool mode=avg adaptive=1 x=f32:1x1x4 y=f32:1x1x2 divisor=2", "have their own"},
        {"pool x=f32:1x1x4 window=5", "axis 0: a window spans 5, x with its padding only 4"},
        {"pool x=f32:1x1x4 window=2 y=f32:1x1x3", "dimension 2 of y is 3, pooling x gives 2"},
        {"pool x=f32:1x1x4 window=2 y=bf16:1x1x2", "y is bf16, x is f32; they must agree"},
        {"pool x=s64:1x1x4", "x is s64; a maximum takes f64, f32, f16, bf16, s8, u8, s32"},
        {"pool mode=avg x=s32:1x1x4", "x is s32; an average takes"},
        {"pool pass=bwd x=s8:1x1x4", "x is s8; the gradient takes f64, f32, f16, bf16"},
        {"pool mode=avg x=f32:1x1x4 indices=s64", "only mode=max has them"},
        {"pool x=f32:1x1x4 indices=u8", "indices is u8, it must be s32 or s64"},
        {"pool x=f32:1x1x4 window=2 indices=s32:1x1x3", "dimension 2 of indices is 3, of y 2"},
        {"pool x=f32:1x1x3000000000:0x0x1 window=2 indices=s32", "use s64"},
        {"pool adaptive=1 x=f32:1x1x4", "adaptive: y is needed, with the rank of x, 3"},
        {"pool adaptive=1 x=f32:1x1x4 y=f32:1x1x2 window=2", "window is given, adaptive windows"},
        {"pool adaptive=1 ceil=1 x=f32:1x1x4 y=f32:1x1x2", "ceil is given"},
        {"pool adaptive=1 x=f32:1x1x0 y=f32:1x1x2", "2 windows of an axis without elements"},
        {"pool x=f32:1x1x4 window=9223372036854775807 dilation=9", "do not fit 63 bits"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        mica_problem *p;
        assert_int_equal(mica_problem_from_text(rows[i][0], &p), MICA_INVALID);
        if (!strstr(mica_error(), rows[i][1]))
            fail_msg("%s: \"%s\" lacks \"%s\"", rows[i][0], mica_error(), rows[i][1]);
    }
}

/* Fills of indices lie in their windows: all of dy arrives. */
static void filled_indices_are_valid(void **state)
{
    (void)state;
    static const char *const lines[] = {
        "pool pass=bwd x=f64:2x3x7x9 window=3x3 stride=2x2 pad=1x1 ceil=1",
        "pool pass=bwd x=f64:1x2x5x6x7 window=2x3x2 stride=1x2x1 dilation=2x1x3 pad=1x1x1",
        "pool pass=bwd adaptive=1 x=f64:2x3x7x9 y=f64:2x3x4x4"};
    for (int l = 0; l < 3; l++) {
        mica_problem *p;
        assert_int_equal(mica_problem_from_text(lines[l], &p), MICA_OK);
        mica_tensor xt = tensor_of(lines[l], MICA_POOL_X), yt = tensor_of(lines[l], MICA_POOL_Y);
        int64_t nx = mica_tensor_count(&xt), ny = mica_tensor_count(&yt);
        double *values = doubles(ny), *dy = doubles(ny), *dx = doubles(nx), sum = 0;
        int64_t *indices = calloc((size_t)ny, sizeof *indices);
        assert_int_equal(mica_problem_fill(p, MICA_POOL_INDICES, MICA_FILL_RANDOM, 3, values),
                         MICA_OK);
        for (int64_t i = 0; i < ny; i++) indices[i] = (int64_t)values[i], dy[i] = 1;
        run(lines[l], "cpu", dx, dy, indices);
        for (int64_t i = 0; i < nx; i++) sum += dx[i];
        assert_true(sum == (double)ny);
        free(values);
        free(dy);
        free(dx);
        free(indices);
        mica_problem_destroy(p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_by_hand),
        cmocka_unit_test(nan_wins_and_the_first_of_them),
        cmocka_unit_test(integers),
        cmocka_unit_test(adjoint_identity),
        cmocka_unit_test(central_differences),
        cmocka_unit_test(indices_that_lie),
        cmocka_unit_test(indices_that_lie_in_planes),
        cmocka_unit_test(no_windows),
        cmocka_unit_test(beta_zero_does_not_read),
        cmocka_unit_test(inference),
        cmocka_unit_test(norms_as_pytorch),
        cmocka_unit_test(norms_of_any_size),
        cmocka_unit_test(refusals),
        cmocka_unit_test(filled_indices_are_valid),
    };
    return cmocka_run_group_tests_name("pool", tests, open_context, close_context);
}
