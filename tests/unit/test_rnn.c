/* SPDX-License-Identifier: Apache-2.0
 * Recurrent nets before PyTorch and ONNX Runtime (tests/judges/rnn.py): values of every cell, of
 * layers, directions, biases and packed sequences, and gradients; what lies behind a sequence,
 * sequences of no step; where weights lie; refusals; equal bits for any number of threads. */
#include "line.h"

#define VALUES(...) ((double *[MICA_MAX_ARGS]){__VA_ARGS__})

enum { STEPS = 4, BATCH = 3, INPUTS = 3, MOST = 36 * 4, WEIGHTS = 240 };
static const struct judged {
    const char *fields;
    int begins, cut, weights; /* states to begin with, lengths; elements of w */
    double y[96], hy[24], cy[24], dx[36], dhx[24], dcx[24], dw[WEIGHTS], dpeepholes[24];
} judged[] = {
#include "../judges/rnn.h"
};
enum { SALT_X = 1, SALT_W, SALT_HX, SALT_CX, SALT_DY, SALT_DHY, SALT_DCY, SALT_P };
enum { ALL = 3000 };
static double lengths[BATCH] = {2, 4, 1};
static double rng[] = {0x123456789abc, 7}; /* seed and offset of the script */

/* As made() of the script: multiples of 1/512 from -1 on. */
static double *made(int salt, double *to, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = (double)((i + 3) * 7919 * (2 * salt + 1) / 5 % 1024) / 512 - 1;
    return to;
}

static int64_t count_of(const char *line, int arg)
{
    mica_problem *p;
    mica_arg_info info;
    if (mica_problem_from_text(line, &p) != MICA_OK) fail_msg("%s: %s", line, mica_error());
    assert_int_equal(mica_problem_arg(p, arg, &info), MICA_OK);
    const int64_t count = info.dir == MICA_UNUSED ? 0 : mica_tensor_count(&info.tensor);
    mica_problem_destroy(p);
    return count;
}

static void before_judges(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof judged / sizeof *judged; i++)
        for (int e = 0; e < 2; e++) {
            const struct judged *j = &judged[i];
            const bool lstm = strstr(j->fields, "lstm") != NULL;
            char line[320];
            double x[MOST], w[WEIGHTS], hx[24], cx[24], y[96], hy[24], cy[24], peepholes[24];
            snprintf(line, sizeof line, "rnn %s x=f64:4x3x3 hy=f64 %s %s %s %s", j->fields,
                     lstm ? "cy=f64" : "", j->begins ? "hx=f64" : "",
                     lstm && j->begins ? "cx=f64" : "", j->cut ? "lengths=s64" : "");
            assert_int_equal(count_of(line, MICA_RNN_W), j->weights);
            run_ok(
                engines[e], line,
                VALUES(
                    made(SALT_X, x, 36), made(SALT_W, w, j->weights), made(SALT_HX, hx, 24),
                    made(SALT_CX, cx, 24), lengths, y, hy,
                    cy, [MICA_RNN_RNG] = rng, [MICA_RNN_PEEPHOLES] = made(SALT_P, peepholes, 24)));
            if (differences(y, j->y, count_of(line, MICA_RNN_Y), 1e-14, 1e-13))
                fail_msg("%s: y", line);
            if (differences(hy, j->hy, count_of(line, MICA_RNN_HY), 1e-14, 1e-13))
                fail_msg("%s: hy", line);
            if (lstm && differences(cy, j->cy, count_of(line, MICA_RNN_CY), 1e-14, 1e-13))
                fail_msg("%s: cy", line);
        }
}

/* The line of a row in a pass; what there is beside x. */
static void line_of(const struct judged *j, const char *pass, const char *more, char *line,
                    size_t size)
{
    const int made = snprintf(line, size, "rnn pass=%s %s x=f64:4x3x3 %s %s", pass, j->fields, more,
                              j->cut && strcmp(pass, "bwd_weights") ? "lengths=s64" : "");
    assert_true(made < (int)size);
}

/* Through all three passes, each of which reads what the ones before it left. */
static void gradients_before_judges(void **state)
{
    (void)state;
    static double gates[ALL], cells[ALL], states[ALL], dz[ALL], inner[ALL];
    for (size_t i = 0; i < sizeof judged / sizeof *judged; i++)
        for (int e = 0; e < 2; e++) {
            const struct judged *j = &judged[i];
            const bool lstm = strstr(j->fields, "lstm") != NULL;
            char line[320];
            double x[36], w[WEIGHTS], hx[24] = {0}, cx[24] = {0}, y[96], dx[36], dw[WEIGHTS];
            if (strstr(j->fields, "clip=gates")) continue;
            if (j->begins) made(SALT_HX, hx, 24), made(SALT_CX, cx, 24);
            double peepholes[24];
            made(SALT_X, x, 36), made(SALT_W, w, j->weights), made(SALT_P, peepholes, 24);
            line_of(j, "fwd", lstm ? "hx=f64 cx=f64 states=f64" : "hx=f64 states=f64", line,
                    sizeof line);
            run_ok(engines[e], line,
                   VALUES(x, w, hx, cx, lengths,
                          y, [MICA_RNN_GATES] = gates, [MICA_RNN_CELLS] = cells,
                          [MICA_RNN_STATES] = states, [MICA_RNN_INNER] = inner,
                          [MICA_RNN_RNG] = rng, [MICA_RNN_PEEPHOLES] = peepholes));
            double dhx[24], dcx[24], dy[96], dhy[24], dcy[24];
            made(SALT_DY, dy, 96), made(SALT_DHY, dhy, 24), made(SALT_DCY, dcy, 24);
            line_of(j, "bwd_data", lstm ? "hx=f64 cx=f64 hy=f64 cy=f64" : "hx=f64 hy=f64", line,
                    sizeof line);
            run_ok(engines[e], line,
                   VALUES(dx, w, dhx, dcx, lengths, dy, dhy, dcy, gates, cells, states,
                          dz, [MICA_RNN_RNG] = rng, [MICA_RNN_PEEPHOLES] = peepholes));
            if (differences(dx, j->dx, 36, 1e-13, 1e-12)) fail_msg("%s: dx", line);
            const int64_t all = count_of(line, MICA_RNN_HX);
            if (differences(dhx, j->dhx, all, 1e-13, 1e-12)) fail_msg("%s: dhx", line);
            const int64_t cells_of = count_of(line, MICA_RNN_CX);
            if (lstm && differences(dcx, j->dcx, cells_of, 1e-13, 1e-12)) fail_msg("%s: dcx", line);
            line_of(j, "bwd_weights", "", line, sizeof line);
            run_ok(engines[e], line,
                   VALUES(x, dw, [MICA_RNN_STATES] = states, [MICA_RNN_DZ] = dz,
                          [MICA_RNN_INNER] = inner, [MICA_RNN_RNG] = rng, [MICA_RNN_CELLS] = cells,
                          [MICA_RNN_PEEPHOLES] = peepholes));
            if (differences(dw, j->dw, j->weights, 1e-13, 1e-12)) fail_msg("%s: dw", line);
            const int64_t peeping = count_of(line, MICA_RNN_PEEPHOLES);
            if (differences(peepholes, j->dpeepholes, peeping, 1e-13, 1e-12))
                fail_msg("%s: gradient of peepholes", line);
        }
}

/* Of no step and of no sequence the gradient of w is 0; x that lies by sequences is copied. */
static void gradients_of_weights(void **state)
{
    (void)state;
    double x[36], dw[WEIGHTS], apart[WEIGHTS], states[ALL], dz[ALL];
    for (int e = 0; e < 2; e++) {
        const char *const empty[] = {"rnn pass=bwd_weights cell=lstm x=f32:0x3x4 hidden=2",
                                     "rnn pass=bwd_weights cell=gru x=f32:3x0x4 hidden=2"};
        for (int l = 0; l < 2; l++) {
            made(SALT_X, states, ALL);
            run_ok(engines[e], empty[l],
                   VALUES(x, dw, [MICA_RNN_STATES] = states, [MICA_RNN_DZ] = dz));
            for (int64_t i = 0; i < count_of(empty[l], MICA_RNN_W); i++) assert_true(dw[i] == 0);
        }
        made(SALT_X, x, 36), made(SALT_HX, states, ALL), made(SALT_DY, dz, ALL);
        run_ok(engines[e], "rnn pass=bwd_weights cell=lstm x=f64:4x3x3 hidden=2",
               VALUES(x, dw, [MICA_RNN_STATES] = states, [MICA_RNN_DZ] = dz));
        run_ok(engines[e], "rnn pass=bwd_weights cell=lstm x=f64:4x3x3:3x12x1 hidden=2",
               VALUES(x, apart, [MICA_RNN_STATES] = states, [MICA_RNN_DZ] = dz));
        assert_int_equal(differences(dw, apart, 56, 1e-14, 1e-13), 0);
    }
}

/* beta adds to what was there. */
static void gradients_added(void **state)
{
    (void)state;
    double x[36], dw[WEIGHTS], more[WEIGHTS], states[ALL], dz[ALL];
    made(SALT_X, x, 36), made(SALT_HX, states, ALL), made(SALT_DY, dz, ALL);
    for (int e = 0; e < 2; e++) {
        run_ok(engines[e], "rnn pass=bwd_weights cell=gru x=f64:4x3x3 hidden=2 layers=2",
               VALUES(x, dw, [MICA_RNN_STATES] = states, [MICA_RNN_DZ] = dz));
        made(SALT_W, more, WEIGHTS);
        run_ok(engines[e], "rnn pass=bwd_weights cell=gru x=f64:4x3x3 hidden=2 layers=2 beta=0.5",
               VALUES(x, more, [MICA_RNN_STATES] = states, [MICA_RNN_DZ] = dz));
        double old[WEIGHTS];
        made(SALT_W, old, WEIGHTS);
        for (int i = 0; i < 78; i++) dw[i] += 0.5 * old[i];
        assert_int_equal(differences(dw, more, 78, 1e-14, 1e-13), 0);
    }
}

/* With one layer there is nothing between layers, and no rng; all of it dropped, the second layer's
 * input is 0. */
static void dropout_between_layers(void **state)
{
    (void)state;
    double x[36], w[WEIGHTS], zero[24] = {0}, plain[24], y[24];
    made(SALT_X, x, 36), made(SALT_W, w, WEIGHTS);
    for (int e = 0; e < 2; e++) {
        run_ok(engines[e], "rnn cell=gru x=f64:4x3x3 hidden=2", VALUES(x, w, [5] = plain));
        run_ok(engines[e], "rnn cell=gru x=f64:4x3x3 hidden=2 dropout=0.5", VALUES(x, w, [5] = y));
        assert_memory_equal(plain, y, sizeof y);
        run_ok(engines[e], "rnn cell=gru bias=none x=f64:4x3x3 hidden=2 layers=2 dropout=1",
               VALUES(x, w, [MICA_RNN_Y] = y, [MICA_RNN_RNG] = rng));
        assert_memory_equal(zero, y, sizeof y);
    }
}

/* A sequence of no step, of fewer than none and of more than there are; y behind a sequence is 0,
 * states at its end are those of its last step, or the initial ones. */
static void ends_of_sequences(void **state)
{
    (void)state;
    const char *line = "rnn cell=lstm x=f64:4x3x3 hidden=2 bidirectional=1 hx=f64 cx=f64 hy=f64 "
                       "cy=f64 lengths=s32";
    double x[36], w[WEIGHTS], hx[12], cx[12], given[] = {0, -5, 99};
    made(SALT_X, x, 36), made(SALT_W, w, WEIGHTS), made(SALT_HX, hx, 12), made(SALT_CX, cx, 12);
    for (int e = 0; e < 2; e++) {
        double y[48], hy[12], cy[12], whole[48], all[] = {4, 4, 4};
        run_ok(engines[e], line, VALUES(x, w, hx, cx, given, y, hy, cy));
        run_ok(engines[e], line, VALUES(x, w, hx, cx, all, whole));
        for (int step = 0; step < STEPS; step++)
            for (int b = 0; b < BATCH; b++)
                for (int j = 0; j < 4; j++) {
                    const int at = (step * BATCH + b) * 4 + j;
                    assert_true(y[at] == (b < 2 ? 0 : whole[at]));
                }
        for (int side = 0; side < 2; side++)
            for (int i = side * 6; i < side * 6 + 4; i++)
                assert_true(hy[i] == hx[i] && cy[i] == cx[i]);
    }
}

/* A reverse direction over a sequence of 2 steps among 4 is what it is over these 2 alone. */
static void reverse_begins_at_the_last_step(void **state)
{
    (void)state;
    double x[36], w[WEIGHTS], cut[48], alone[24], two[] = {2, 2, 2};
    made(SALT_X, x, 36), made(SALT_W, w, WEIGHTS);
    for (int e = 0; e < 2; e++) {
        run_ok(engines[e], "rnn cell=gru x=f64:4x3x3 hidden=2 bidirectional=1 lengths=s32",
               VALUES(x, w, NULL, NULL, two, cut));
        run_ok(engines[e], "rnn cell=gru x=f64:2x3x3 hidden=2 bidirectional=1",
               VALUES(x, w, NULL, NULL, NULL, alone));
        assert_int_equal(differences(cut, alone, 24, 0, 0), 0);
    }
}

/* Batch first is a matter of strides: by one product of all rows, as if they lay by steps. */
static void batch_first(void **state)
{
    (void)state;
    double x[36], w[WEIGHTS], by_step[24], by_sequence[24];
    made(SALT_X, x, 36), made(SALT_W, w, WEIGHTS);
    for (int e = 0; e < 2; e++) {
        run_ok(engines[e], "rnn cell=lstm x=f64:4x3x3 hidden=2", VALUES(x, w, [5] = by_step));
        run_ok(engines[e], "rnn cell=lstm x=f64:4x3x3:3x12x1 hidden=2 y=f64:4x3x2:2x8x1",
               VALUES(x, w, [5] = by_sequence));
        assert_int_equal(differences(by_step, by_sequence, 24, 1e-15, 1e-14), 0);
    }
}

/* Parts follow each other without gaps: all matrices, then all biases. */
static void places_of_weights(void **state)
{
    (void)state;
    for (int bias = 0; bias < 6; bias++) {
        const bool projects = bias > 2;
        mica_rnn_desc d = {.cell = MICA_RNN_CELL_LSTM,
                           .x = mica_tensor_packed(MICA_F32, 3, (int64_t[]){5, 2, 7}),
                           .hidden = 3,
                           .layers = 3,
                           .bidirectional = true,
                           .bias = (mica_rnn_bias)(bias % 3),
                           .projection = projects ? 2 : 0};
        const int64_t out = projects ? 2 : 3;
        int64_t next = 0;
        static const mica_rnn_part matrices[] = {MICA_RNN_PART_W, MICA_RNN_PART_R, MICA_RNN_PART_S};
        static const mica_rnn_part vectors[] = {MICA_RNN_PART_B, MICA_RNN_PART_BR};
        for (int i = 0; i < 18; i++) {
            const mica_rnn_part part = matrices[i % 3];
            const mica_rnn_matrix m = mica_rnn_weight(&d, i / 6, i / 3 % 2, part);
            const bool last = part == MICA_RNN_PART_S;
            const int64_t cols[] = {i < 6 ? 7 : 2 * out, out, 3};
            assert_int_equal(m.rows, !last ? 12 : projects ? 2 : 0);
            assert_int_equal(m.offset, next);
            if (m.rows) assert_int_equal(m.cols, cols[i % 3]);
            next += m.rows * m.cols;
        }
        for (int i = 0; i < 12; i++) {
            const mica_rnn_matrix m = mica_rnn_weight(&d, i / 4, i / 2 % 2, vectors[i % 2]);
            const bool there = i % 2 < 2 - bias % 3;
            assert_int_equal(m.rows, there ? 12 : 0);
            if (there) assert_int_equal(m.offset, next);
            next += m.rows * m.cols;
        }
        assert_int_equal(next, mica_rnn_weight_count(&d));
    }
}

/* cuDNN's rule for a c that is NaN: it stays, or is clipped too. */
static void clipped_nan(void **state)
{
    (void)state;
    double w[8] = {0, 0, 0, 0}, x[] = {1}, cx[] = {NAN}, cy[1], y[1];
    for (int e = 0; e < 2; e++) {
        run_ok(engines[e],
               "rnn cell=lstm bias=none x=f64:1x1x1 hidden=1 cx=f64 cy=f64 clip=cells "
               "clip_low=-0.5 clip_high=3",
               VALUES(x, w, NULL, cx, [MICA_RNN_Y] = y, [MICA_RNN_CY] = cy));
        assert_true(isnan(cy[0]) && isnan(y[0]));
        run_ok(engines[e],
               "rnn cell=lstm bias=none x=f64:1x1x1 hidden=1 cx=f64 cy=f64 clip=cells "
               "clip_low=-0.5 clip_high=3 clip_nan=1",
               VALUES(x, w, NULL, cx, [MICA_RNN_Y] = y, [MICA_RNN_CY] = cy));
        assert_true(cy[0] == -0.5 && fabs(y[0] - 0.5 * tanh(-0.5)) < 1e-15);
    }
}

static void refusals(void **state)
{
    (void)state;
    refuses("rnn hidden=3", "x is needed");
    refuses("rnn x=f32:4x3 hidden=3", "x has rank 2, it must have 3: steps, sequences, inputs");
    refuses("rnn x=f32:4x3x2", "hidden is 0, it must be from 1 to 2^24");
    refuses("rnn x=f32:4x3x2 hidden=-2", "hidden is -2");
    refuses("rnn x=f32:4x3x2 hidden=3 layers=-1", "layers is -1, it must be from 1 to 2^24");
    refuses("rnn x=f32:4x3x2 hidden=16777216 layers=16777216", "at most 2^48 weights");
    refuses("rnn cell=gru x=f32:4x3x2 hidden=5 w=f32:134",
            "dimension 0 of w is 134, it must be 135");
    refuses("rnn x=f32:4x3x2 hidden=2 w=f32:12:2", "the stride of w is 2, it must be 1");
    refuses("rnn x=f32:4x3x2 hidden=2 w=f16:12", "w is f16, x is f32; they must agree");
    refuses("rnn x=f32:4x3x2 hidden=2 hx=f32:1x3x3", "dimension 2 of hx is 3, it must be 2");
    refuses("rnn x=f32:4x3x2 hidden=2 lengths=s32:4", "dimension 0 of lengths is 4, it must be 3");
    refuses("rnn x=f32:4x3x2 hidden=2 lengths=f32:3", "lengths is f32, it must be s32 or s64");
    refuses("rnn x=f32:4x3x2 hidden=2 y=f32:4x3x4", "dimension 2 of y is 4, it must be 2");
    refuses("rnn cell=lstm x=f32:4x3x2 hidden=2 reset_before=1",
            "reset_before is of gru, cell is lstm");
    refuses("rnn x=f32:4x3x2 hidden=2 layers=2 dropout=1.5",
            "dropout is 1.5, it must be at least 0 and at most 1");
    refuses("rnn x=f32:4x3x2 hidden=2 layers=2 dropout=0.5 rng=s32:2",
            "rng is s32, it must be s64");
    refuses("rnn x=f32:4x3x2 hidden=3 skip_input=1",
            "x has 2 inputs, with skip_input it must have hidden: 3");
    refuses("rnn cell=gru x=f32:4x3x2 hidden=2 projection=1", "projection is of lstm, cell is gru");
    refuses("rnn cell=lstm x=f32:4x3x2 hidden=2 projection=-1",
            "projection is -1, it must be from 1 to 2^24");
    refuses("rnn cell=lstm x=f32:4x3x2 hidden=5 projection=3 hx=f32:1x3x5",
            "dimension 2 of hx is 5, it must be 3");
    refuses("rnn cell=lstm x=f32:4x3x2 hidden=5 projection=3 inner=f32", "inner without states");
    refuses("rnn cell=lstm x=f32:4x3x2 hidden=2 clip_high=1",
            "clip_low, clip_high or clip_nan without clip");
    refuses("rnn cell=lstm x=f32:4x3x2 hidden=2 clip=cells clip_low=1 clip_high=-1",
            "clip_low is 1, clip_high is -1: they must be in order");
    refuses("rnn cell=gru x=f32:4x3x2 hidden=2 clip=cells clip_high=1",
            "clip=cells is of lstm, cell is gru");
    refuses("rnn pass=bwd_data cell=lstm x=f32:4x3x2 hidden=2 clip=gates clip_high=1",
            "pass is bwd_data, with clip=gates there is fwd alone");
    refuses("rnn cell=lstm x=f32:4x3x2 hidden=2 clip=gates clip_high=1 states=f32",
            "states are for gradients, with clip=gates there are none");
    refuses("rnn cell=lstm x=f32:4x3x2 hidden=2 gates=f32", "gates without states");
    refuses("rnn cell=lstm x=f32:4x3x2 hidden=2 states=f32:1x5x3x2:30x6x1x3",
            "states has strides, it must be packed");
    refuses("rnn pass=bwd_weights x=f32:4x3x2 hidden=2 dz=f32:1x4x3x4",
            "dimension 3 of dz is 4, it must be 2");
    refuses("rnn x=s8:4x3x2 hidden=2", "x is s8, it must be f64, f32, f16 or bf16");
}

static void threads_do_not_show(void **state)
{
    (void)state;
    const char *const lines[] = {"rnn cell=lstm x=f32:3x9x33 hidden=200 bidirectional=1",
                                 "rnn cell=gru x=bf16:3x9x33 hidden=200 reset_before=1"};
    const int before = omp_get_max_threads();
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        const int64_t weights = count_of(lines[i], MICA_RNN_W),
                      all = count_of(lines[i], MICA_RNN_Y);
        double *x = malloc(3 * 9 * 33 * sizeof *x), *w = malloc((size_t)weights * sizeof *w);
        double *few = malloc((size_t)all * sizeof *few), *many = malloc((size_t)all * sizeof *many);
        wave(x, 3 * 9 * 33, 1), wave(w, weights, 2);
        for (int64_t k = 0; k < weights; k++) w[k] /= 15;
        omp_set_num_threads(1);
        run_ok("cpu", lines[i], VALUES(x, w, [5] = few));
        omp_set_num_threads(5);
        run_ok("cpu", lines[i], VALUES(x, w, [5] = many));
        assert_memory_equal(few, many, (size_t)all * sizeof *few);
        assert_true(few[1] != 0 && fabs(few[all - 1]) < 1);
        free(x), free(w), free(few), free(many);
    }
    omp_set_num_threads(before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(before_judges),
        cmocka_unit_test(gradients_before_judges),
        cmocka_unit_test(gradients_of_weights),
        cmocka_unit_test(gradients_added),
        cmocka_unit_test(dropout_between_layers),
        cmocka_unit_test(ends_of_sequences),
        cmocka_unit_test(reverse_begins_at_the_last_step),
        cmocka_unit_test(batch_first),
        cmocka_unit_test(places_of_weights),
        cmocka_unit_test(clipped_nan),
        cmocka_unit_test(refusals),
        cmocka_unit_test(threads_do_not_show),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
