/* SPDX-License-Identifier: Apache-2.0
 * Optimisers: ten steps of every rule against the formulas of torch.optim written out here, the
 * first-step rule, master copies, refusals. */
#include "line.h"

enum { N = 37, STEPS = 10 };

typedef struct hyper {
    double lr, momentum, dampening, beta1, beta2, eps, decay, scale;
    bool adam, decoupled, nesterov, maximize;
} hyper;

typedef struct model {
    double p[N], m[N], v[N];
} model;

/* One step in double, in the order of PyTorch's single-tensor loops. */
static void plain_step(const hyper *h, int step, model *s, const double *gradient)
{
    for (int i = 0; i < N; i++) {
        double g = gradient[i] * h->scale;
        if (h->maximize) g = -g;
        if (h->decoupled)
            s->p[i] *= 1 - h->lr * h->decay;
        else
            g += h->decay * s->p[i];
        if (!h->adam) {
            if (h->momentum != 0) {
                if (step == 1)
                    s->m[i] = g;
                else
                    s->m[i] = s->m[i] * h->momentum + (1 - h->dampening) * g;
                g = h->nesterov ? g + h->momentum * s->m[i] : s->m[i];
            }
            s->p[i] -= h->lr * g;
            continue;
        }
        s->m[i] += (g - s->m[i]) * (1 - h->beta1);
        s->v[i] = s->v[i] * h->beta2 + (1 - h->beta2) * g * g;
        double correction1 = 1 - pow(h->beta1, step), correction2 = 1 - pow(h->beta2, step);
        double denominator = sqrt(s->v[i]) / sqrt(correction2) + h->eps;
        s->p[i] -= h->lr / correction1 * (s->m[i] / denominator);
    }
}

static const struct {
    const char *fields;
    hyper h;
} rules[] = {
    {"", {.lr = 0.1, .scale = 1}},
    {"weight_decay=0.2 maximize=1", {.lr = 0.1, .decay = 0.2, .scale = 1, .maximize = true}},
    {"momentum=0.9", {.lr = 0.1, .momentum = 0.9, .scale = 1}},
    {"momentum=0.9 dampening=0.4 weight_decay=0.1",
     {.lr = 0.1, .momentum = 0.9, .dampening = 0.4, .decay = 0.1, .scale = 1}},
    {"momentum=0.8 nesterov=1", {.lr = 0.05, .momentum = 0.8, .scale = 0.5, .nesterov = true}},
    {"rule=adam",
     {.lr = 0.01, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .scale = 1, .adam = true}},
    {"rule=adam weight_decay=0.1 beta1=0.5 beta2=0.75 eps=0.01 maximize=1",
     {.lr = 0.01,
      .beta1 = 0.5,
      .beta2 = 0.75,
      .eps = 0.01,
      .decay = 0.1,
      .scale = 0.25,
      .adam = true,
      .maximize = true}},
    {"rule=adamw weight_decay=0.1",
     {.lr = 0.02,
      .beta1 = 0.9,
      .beta2 = 0.999,
      .eps = 1e-8,
      .decay = 0.1,
      .scale = 1,
      .adam = true,
      .decoupled = true}},
};
enum { RULES = sizeof rules / sizeof *rules };

static void make_line(char *line, size_t size, int rule, const char *tensors, int step)
{
    const hyper *h = &rules[rule].h;
    snprintf(line, size, "optim %s %s lr=%.17g step=%d grad_scale=%.17g", tensors,
             rules[rule].fields, h->lr, step, h->scale);
}

/* Runs the rule for ten steps on an engine; returns how many parameters end up apart. */
static int trajectory(const char *engine, int rule, const char *tensors, const hyper *h,
                      double tolerance)
{
    model got = {0}, want;
    double gradient[N], master[N];
    wave(got.p, N, 0.3);
    memcpy(master, got.p, sizeof master);
    want = got;
    /* The buffer of sgd is set by the first step, whatever it held. */
    if (!h->adam)
        for (int i = 0; i < N; i++) got.m[i] = NAN;
    for (int step = 1; step <= STEPS; step++) {
        char line[300];
        wave(gradient, N, step);
        make_line(line, sizeof line, rule, tensors, step);
        run_ok(engine, line, (double *[MICA_MAX_ARGS]){got.p, gradient, got.m, got.v, master});
        plain_step(h, step, &want, gradient);
    }
    int apart = differences(got.p, want.p, N, tolerance, tolerance);
    if (strstr(tensors, "master")) apart += differences(master, want.p, N, 1e-6, 1e-6);
    return apart;
}

static void ten_steps(void **state)
{
    (void)state;
    for (int r = 0; r < RULES; r++) {
        const hyper *h = &rules[r].h;
        for (int e = 0; e < 2; e++) {
            assert_int_equal(trajectory(engines[e], r, "p=f64:37", h, 1e-12), 0);
            assert_int_equal(trajectory(engines[e], r, "p=f64:37 grad=f64:37:-1", h, 1e-12), 0);
            /* Gradients are rounded to f32 here, and adam's first steps amplify that. */
            assert_int_equal(trajectory(engines[e], r, "p=f32:37", h, 2e-6), 0);
            /* The parameter is a rounding of its master copy: no error piles up in it. */
            assert_int_equal(
                trajectory(engines[e], r, "p=bf16:37 grad=f32:37 master=f32:37", h, 0x1p-8), 0);
        }
    }
}

/* What the comparison must notice: each factor off, one at a time. */
static void mutants_are_noticed(void **state)
{
    (void)state;
    for (int r = 0; r < RULES; r++) {
        hyper h = rules[r].h;
        double *const knobs[] = {&h.lr,    &h.momentum, &h.dampening, &h.beta1,
                                 &h.beta2, &h.decay,    &h.scale};
        for (size_t k = 0; k < sizeof knobs / sizeof *knobs; k++) {
            h = rules[r].h;
            if (*knobs[k] == 0 || (h.adam && knobs[k] == &h.scale)) continue;
            *knobs[k] *= 1.001;
            if (knobs[k] == &h.beta2) *knobs[k] = 0.5; /* far from 1 in the powers that count */
            assert_true(trajectory("cpu", r, "p=f64:37", &h, 1e-12) > N / 2);
        }
        h = rules[r].h;
        h.maximize = !h.maximize;
        assert_true(trajectory("cpu", r, "p=f64:37", &h, 1e-12) > N / 2);
    }
}

/* One number by hand: p = 1, g = 0.5, lr = 0.1. Adam's first step is lr g / (|g| + eps). */
static void known_values(void **state)
{
    (void)state;
    for (int e = 0; e < 2; e++) {
        double p = 1, g = 0.5, m = 0, v = 0;
        run_ok(engines[e], "optim p=f64:1 lr=0.1", (double *[MICA_MAX_ARGS]){&p, &g});
        assert_int_equal(differences(&p, (double[]){0.95}, 1, 0, 1e-15), 0);
        p = 1;
        run_ok(engines[e], "optim rule=adam p=f64:1 lr=0.1",
               (double *[MICA_MAX_ARGS]){&p, &g, &m, &v});
        assert_int_equal(differences(&p, (double[]){1 - 0.1 * 0.5 / (0.5 + 1e-8)}, 1, 0, 1e-14), 0);
        assert_int_equal(differences(&m, (double[]){0.05}, 1, 0, 1e-14), 0);
        assert_int_equal(differences(&v, (double[]){0.00025}, 1, 0, 1e-12), 0);
    }
}

static void refusals(void **state)
{
    (void)state;
    refuses("optim", "p is needed");
    refuses("optim p=s8:4", "p is s8, it must be");
    refuses("optim p=f32:4 grad=f32:5", "dimension 0 of grad is 5, of p 4");
    refuses("optim rule=adam p=f32:4 v=f32:2x2", "v has rank 2");
    refuses("optim p=f32:4 master=bf16:4", "master is bf16, it may not be shorter than p");
    refuses("optim p=f32:4 nesterov=1", "nesterov with momentum 0");
    refuses("optim p=f32:4 nesterov=1 momentum=0.9 dampening=0.1", "dampening 0.1");
    refuses("optim p=f32:4 dampening=0.1", "dampening is 0.1 without a momentum");
    refuses("optim p=f32:4 momentum=-0.5", "momentum is -0.5");
    refuses("optim p=f32:4 weight_decay=-1", "weight_decay is -1");
    refuses("optim rule=adam p=f32:4 momentum=0.9", "momentum 0.9");
    refuses("optim rule=adam p=f32:4 beta1=1", "beta1 is 1, it must lie in [0, 1)");
    refuses("optim rule=adamw p=f32:4 beta2=-0.5", "beta2 is -0.5");
    refuses("optim rule=adamw p=f32:4 eps=-1", "eps is -1");
    refuses("optim p=f32:2x4:0x1", "share memory");
    /* The step is known when running. */
    double p[4] = {1, 2, 3, 4}, g[4] = {1, 1, 1, 1};
    assert_int_equal(line_run("cpu", "optim p=f32:4 step=0", (double *[MICA_MAX_ARGS]){p, g}, NULL),
                     MICA_INVALID);
    assert_non_null(strstr(mica_error(), "step is 0, steps count from 1"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ten_steps),
        cmocka_unit_test(mutants_are_noticed),
        cmocka_unit_test(known_values),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
