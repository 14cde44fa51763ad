/* SPDX-License-Identifier: Apache-2.0
 * CTC before PyTorch (tests/judges/ctc_loss.py, which has added up all alignments of short
 * sequences): losses and gradients, of log-probabilities and of logits; the derivative by
 * log-probabilities by differences; labels in a row; no steps, no labels, no alignment, labels and
 * lengths that are none; long sequences in f32 before f64; refusals. */
#include "line.h"

#define VALUES(...) ((double *[MICA_MAX_ARGS]){__VA_ARGS__})

enum { STEPS = 12, BATCH = 3, CLASSES = 5, MOST = 6, COUNT = STEPS * BATCH * CLASSES };
static const struct judged {
    int blank, zero;
    double labels[BATCH * MOST], label_lengths[BATCH], steps[BATCH], log_probs[COUNT];
    double losses[BATCH], weighted[COUNT], mean[1], of_mean[COUNT];
} judged[] = {
#include "../judges/ctc_loss.h"
};
enum { JUDGED = sizeof judged / sizeof *judged };

static const char *line_of(const struct judged *j, const char *pass, const char *input,
                           const char *labels, const char *rest)
{
    static char line[300];
    const int made =
        snprintf(line, sizeof line,
                 "ctc_loss pass=%s x=f64:12x3x5 input=%s labels=s32:%s "
                 "label_lengths=s32:3 input_lengths=s64:3 blank=%d zero_infinity=%d %s",
                 pass, input, labels, j->blank, j->zero, rest);
    assert_true(made < (int)sizeof line);
    return line;
}

static void before_pytorch(void **state)
{
    (void)state;
    const char *const inputs[] = {"log_probs", "logits"};
    double weights[] = {1, 2, 3}, one[] = {1};
    for (int i = 0; i < JUDGED; i++)
        for (int e = 0; e < 4; e++) {
            struct judged j = judged[i];
            double loss[BATCH], dx[COUNT], mean;
            const char *engine = engines[e % 2], *input = inputs[e / 2];
            /* A constant of each step changes log-probabilities, and no logits. */
            for (int k = 0; k < COUNT && e / 2; k++) j.log_probs[k] += k / CLASSES % 7 - 3;
            double *const values[MICA_MAX_ARGS] = {j.log_probs, j.labels, j.label_lengths, j.steps,
                                                   loss};
            run_ok(engine, line_of(&j, "fwd", input, "3x6", "reduction=none"), values);
            assert_int_equal(differences(loss, j.losses, BATCH, 0, 1e-13), 0);
            run_ok(engine, line_of(&j, "fwd", input, "3x6", ""),
                   VALUES(j.log_probs, j.labels, j.label_lengths, j.steps, &mean));
            assert_int_equal(differences(&mean, j.mean, 1, 0, 1e-13), 0);
            run_ok(engine, line_of(&j, "bwd", input, "3x6", "reduction=none"),
                   VALUES(j.log_probs, j.labels, j.label_lengths, j.steps, NULL, weights, dx));
            assert_int_equal(differences(dx, j.weighted, COUNT, 1e-13, 1e-12), 0);
            run_ok(engine, line_of(&j, "bwd", input, "3x6", ""),
                   VALUES(j.log_probs, j.labels, j.label_lengths, j.steps, NULL, one, dx));
            assert_int_equal(differences(dx, j.of_mean, COUNT, 1e-13, 1e-12), 0);
        }
}

/* The same labels one behind the other, and a sum. */
static void in_a_row(void **state)
{
    (void)state;
    for (int i = 0; i < JUDGED; i++)
        for (int e = 0; e < 2; e++) {
            struct judged j = judged[i];
            double row[BATCH * MOST], loss[BATCH], sum, want = 0;
            char shape[16];
            int n = 0;
            for (int b = 0; b < BATCH; b++) {
                for (int k = 0; k < j.label_lengths[b]; k++) row[n++] = j.labels[b * MOST + k];
                want += j.losses[b];
            }
            snprintf(shape, sizeof shape, "%d", n);
            run_ok(engines[e], line_of(&j, "fwd", "log_probs", shape, "reduction=none"),
                   VALUES(j.log_probs, row, j.label_lengths, j.steps, loss));
            assert_int_equal(differences(loss, j.losses, BATCH, 0, 1e-13), 0);
            run_ok(engines[e], line_of(&j, "fwd", "log_probs", shape, "reduction=sum"),
                   VALUES(j.log_probs, row, j.label_lengths, j.steps, &sum));
            assert_int_equal(differences(&sum, &want, 1, 0, 1e-13), 0);
        }
}

/* gradient=by_log_probs is what differences of the loss say. */
static void by_differences(void **state)
{
    (void)state;
    const double h = 1e-5;
    for (int e = 0; e < 2; e++) {
        struct judged j = judged[0];
        double loss[BATCH], dx[COUNT], weights[] = {1, 1, 1};
        double *const values[MICA_MAX_ARGS] = {j.log_probs, j.labels, j.label_lengths, j.steps,
                                               loss};
        run_ok(engines[e],
               line_of(&j, "bwd", "log_probs", "3x6", "reduction=none gradient=by_log_probs"),
               VALUES(j.log_probs, j.labels, j.label_lengths, j.steps, NULL, weights, dx));
        for (int k = 0; k < COUNT; k += 7) {
            double at[2];
            const double x = j.log_probs[k];
            for (int side = 0; side < 2; side++) {
                j.log_probs[k] = x + (side ? h : -h);
                run_ok(engines[e], line_of(&j, "fwd", "log_probs", "3x6", "reduction=none"),
                       values);
                at[side] = loss[k / CLASSES % BATCH];
            }
            j.log_probs[k] = x;
            assert_true(fabs((at[1] - at[0]) / (2 * h) - dx[k]) < 1e-8);
        }
    }
}

static void edges(void **state)
{
    (void)state;
    const double inf = (double)INFINITY, nan = (double)NAN;
    for (int e = 0; e < 2; e++) {
        double x[2 * 7 * 3] = {0}, loss[7], dx[2 * 7 * 3], weights[7] = {1, 1, 1, 1, 1, 1, 1};
        /* None, two, a repeat for which steps are too few; no step with and without a label;
         * no class; the blank. */
        double labels[14] = {9, 9, 1, 2, 1, 1, 9, 9, 1, 9, 3, 1, 2, 0};
        double counts[7] = {0, 2, 2, 0, 1, 1, 2}, steps[7] = {2, 2, 2, 0, 0, 2, 2};
        const double log3 = log(3);
        const double want[7] = {2 * log3, 2 * log3, inf, 0, inf, nan, nan};
        run_ok(engines[e],
               "ctc_loss x=f64:2x7x3 labels=s32:7x2 label_lengths=s64:7 input_lengths=s64:7 "
               "reduction=none",
               VALUES(x, labels, counts, steps, loss));
        assert_int_equal(differences(loss, want, 7, 0, 1e-14), 0);
        run_ok(engines[e],
               "ctc_loss pass=bwd x=f64:2x7x3 labels=s32:7x2 label_lengths=s64:7 "
               "input_lengths=s64:7 reduction=none",
               VALUES(x, labels, counts, steps, NULL, weights, dx));
        for (int k = 0; k < 2 * 7 * 3; k++) {
            const int b = k / 3 % 7;
            assert_true(b == 3 || b == 4 ? dx[k] == 0 : (b == 2 || b > 4) == !!isnan(dx[k]));
        }
        /* Lengths below 0 and past what is there; the sequence behind keeps its labels. */
        double lengths[7] = {-1, 3, 2, 0, 0, 0, 2}, over[7] = {2, 2, 3, -1, 2, 2, 2};
        const double then[7] = {nan, nan, nan, nan, 2 * log3, 2 * log3, 2 * log3};
        labels[13] = 1;
        run_ok(engines[e],
               "ctc_loss x=f64:2x7x3 labels=s32:7x2 label_lengths=s64:7 input_lengths=s64:7 "
               "reduction=none",
               VALUES(x, labels, lengths, over, loss));
        assert_int_equal(differences(loss, then, 7, 0, 1e-14), 0);
        double row[] = {1, 2, 2, 1}, few[] = {-5, 2, 0, 2, 0, 0, 1};
        const double behind[7] = {nan, 2 * log3, 2 * log3, 2 * log3, 2 * log3, 2 * log3, nan};
        run_ok(engines[e], "ctc_loss x=f64:2x7x3 labels=s32:4 label_lengths=s64:7 reduction=none",
               VALUES(x, row, few, NULL, loss));
        assert_int_equal(differences(loss, behind, 7, 0, 1e-14), 0);
        /* Over no sequences. */
        run_ok(engines[e], "ctc_loss x=f64:2x0x3 labels=s32:0", VALUES(x, row, few, NULL, loss));
        assert_true(isnan(loss[0]));
        run_ok(engines[e], "ctc_loss x=f64:2x0x3 labels=s32:0 reduction=sum",
               VALUES(x, row, few, NULL, loss));
        assert_true(loss[0] == 0);
        /* What cannot happen is 0, whatever it is multiplied with. */
        double odd[] = {0, -inf, -inf, nan, 0, -inf}, label[] = {1}, single[] = {1};
        const double none[] = {0};
        run_ok(engines[e], "ctc_loss input=log_probs x=f64:2x1x3 labels=s32:1x1 reduction=none",
               VALUES(odd, label, single, NULL, loss));
        assert_int_equal(differences(loss, none, 1, 0, 0), 0);
    }
}

/* Logarithms far below those of f32's exponentials: the loss is as exact as steps are few, and rows
 * of the gradient sum to 0. */
static void long_sequences(void **state)
{
    (void)state;
    enum { LONG = 700, SOME = 23, SAID = 90 };
    double *x = malloc(LONG * SOME * sizeof *x), *dx = malloc(LONG * SOME * sizeof *dx);
    double labels[SAID], count[] = {SAID}, one[] = {1}, loss, want;
    wave(x, LONG * SOME, 30);
    for (int i = 0; i < LONG * SOME; i++) x[i] = (float)(10 * x[i]);
    for (int i = 0; i < SAID; i++) labels[i] = 1 + (i * 7 + i / 5) % (SOME - 1);
    run_ok("ref", "ctc_loss x=f64:700x1x23 labels=s32:1x90", VALUES(x, labels, count, NULL, &want));
    assert_true(want > 2);
    run_ok("cpu", "ctc_loss x=f32:700x1x23 labels=s32:1x90 loss=f64",
           VALUES(x, labels, count, NULL, &loss));
    assert_true(fabs(loss - want) <= 1e-12 * want);
    run_ok("cpu", "ctc_loss x=f32:700x1x23 labels=s32:1x90", VALUES(x, labels, count, NULL, &loss));
    assert_true(fabs(loss - want) <= 1e-6 * want);
    run_ok("cpu", "ctc_loss pass=bwd x=f64:700x1x23 labels=s32:1x90",
           VALUES(x, labels, count, NULL, NULL, one, dx));
    for (int t = 0; t < LONG; t++) {
        double sum = 0;
        for (int c = 0; c < SOME; c++) sum += dx[t * SOME + c];
        assert_true(fabs(sum) < 1e-14);
    }
    free(x);
    free(dx);
}

static void refusals(void **state)
{
    (void)state;
    refuses("ctc_loss x=f32:5x4 labels=s32:4x2", "x has rank 2, it must be T x B x C");
    refuses("ctc_loss x=f32:5x2x4 labels=s32:2x2x2", "labels has rank 3");
    refuses("ctc_loss x=f32:5x2x4 labels=s32:3x2", "labels is of 3 sequences, x of 2");
    refuses("ctc_loss x=f32:5x2x4 labels=s32:2x2 blank=4", "blank is 4, x has 4 classes");
    refuses("ctc_loss x=f32:5x2x4 labels=s32:2x2 loss=f32:2", "loss has 2 elements");
    refuses("ctc_loss pass=bwd x=f32:5x2x4 labels=s32:2x2 gradient=by_log_probs",
            "gradient=by_log_probs is for input=log_probs");
    refuses("ctc_loss x=f32:5x2x4", "labels");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(before_pytorch), cmocka_unit_test(in_a_row),
        cmocka_unit_test(by_differences), cmocka_unit_test(edges),
        cmocka_unit_test(long_sequences), cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
