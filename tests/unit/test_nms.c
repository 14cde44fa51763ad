/* SPDX-License-Identifier: Apache-2.0
 * nms on values computed by hand: the conventions of torchvision.ops (nms, batched_nms: suppressed
 * where "IoU is greater than iou_threshold", results by falling score), of ONNX's NonMaxSuppression
 * (corners in any order, center format, rows of image, class and index) and of mmcv's offset; ties,
 * boxes without area, NaN, infinities; rows that do not suffice; refusals. */
#include "line.h"

#define VALUES(...) ((double *[MICA_MAX_ARGS]){__VA_ARGS__})

enum { MOST = 8 };

/* Selected boxes of one list: indices, and -1 behind them. */
static void expect(const char *line, const double *boxes, const double *scores,
                   const double *classes, int count, const double *want, int rows)
{
    for (int e = 0; e < 2; e++) {
        double b[4 * MOST], s[MOST], c[MOST], selected[3 * MOST], found;
        mica_problem *p;
        mica_arg_info info;
        if (mica_problem_from_text(line, &p) != MICA_OK) fail_msg("%s: %s", line, mica_error());
        assert_int_equal(mica_problem_arg(p, MICA_NMS_SCORES, &info), MICA_OK);
        const int64_t n = mica_tensor_count(&info.tensor);
        mica_problem_destroy(p);
        assert_true(n <= MOST);
        memcpy(b, boxes, (size_t)n * 4 * sizeof *b);
        memcpy(s, scores, (size_t)n * sizeof *s);
        if (classes) memcpy(c, classes, (size_t)n * sizeof *c);
        run_ok(engines[e], line, VALUES(b, s, classes ? c : NULL, selected, &found));
        if (found != count) fail_msg("%s: %g selected, not %d", line, found, count);
        if (differences(selected, want, rows, 0, 0)) fail_msg("%s: selected", line);
    }
}
#define ROW(...) ((const double[]){__VA_ARGS__})

/* Areas 2 and 1, 1 in common: IoU 1/2, exactly. */
static void threshold(void **state)
{
    (void)state;
    const double boxes[] = {0, 0, 2, 1, 0, 0, 1, 1};
    expect("nms boxes=f32:2x4 iou_threshold=0.5", boxes, ROW(1, 2), NULL, 2, ROW(1, 0), 2);
    expect("nms boxes=f64:2x4 iou_threshold=0.5", boxes, ROW(1, 2), NULL, 2, ROW(1, 0), 2);
    expect("nms boxes=f32:2x4 iou_threshold=0.4999", boxes, ROW(1, 2), NULL, 1, ROW(1, -1), 2);
    expect("nms boxes=f32:2x4", boxes, ROW(1, 2), NULL, 1, ROW(1, -1), 2);
    /* No threshold, written out. */
    expect("nms boxes=f32:2x4 iou_threshold=0.5 score_threshold=-inf", boxes, ROW(-INFINITY, 2),
           NULL, 2, ROW(1, 0), 2);
    /* Thirds: the f32 nearest to 1/3 is above the number, the f64 below it. */
    const double thirds[] = {0, 0, 3, 1, 0, 0, 1, 1};
    expect("nms boxes=f32:2x4 iou_threshold=0.3333333333333333", thirds, ROW(2, 1), NULL, 1,
           ROW(0, -1), 2);
    expect("nms boxes=f32:2x4 iou_threshold=0.3333333432674408", thirds, ROW(2, 1), NULL, 2,
           ROW(0, 1), 2);
    expect("nms boxes=f64:2x4 iou_threshold=0.3333333333333333", thirds, ROW(2, 1), NULL, 2,
           ROW(0, 1), 2);
}

/* A chain: the middle one, suppressed, does not suppress the last. */
static void chain(void **state)
{
    (void)state;
    const double boxes[] = {0, 0, 4, 1, 2, 0, 6, 1, 4, 0, 8, 1};
    expect("nms boxes=f32:3x4 iou_threshold=0.3", boxes, ROW(3, 2, 1), NULL, 2, ROW(0, 2, -1), 3);
    expect("nms boxes=f32:3x4 iou_threshold=0.3", boxes, ROW(2, 3, 1), NULL, 1, ROW(1, -1, -1), 3);
}

/* Equal scores: the lower index; 0 and -0 are equal. */
static void ties(void **state)
{
    (void)state;
    const double boxes[] = {0, 0, 1, 1, 2, 0, 3, 1, 4, 0, 5, 1, 6, 0, 7, 1};
    expect("nms boxes=f32:4x4", boxes, ROW(1, 2, 1, 2), NULL, 4, ROW(1, 3, 0, 2), 4);
    expect("nms boxes=f64:4x4", boxes, ROW(-0.0, 0, -0.0, -1), NULL, 4, ROW(0, 1, 2, 3), 4);
    expect("nms boxes=f32:4x4", boxes, ROW(-0.0, 0, -2, -1), NULL, 4, ROW(0, 1, 3, 2), 4);
    const double same[] = {0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1, 1};
    expect("nms boxes=bf16:4x4", same, ROW(1, 2, 2, 2), NULL, 1, ROW(1, -1, -1, -1), 4);
    expect("nms boxes=bf16:4x4 iou_threshold=1", same, ROW(1, 2, 2, 2), NULL, 4, ROW(1, 2, 3, 0),
           4);
}

static void classes(void **state)
{
    (void)state;
    const double same[] = {0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1, 1};
    expect("nms boxes=f32:4x4 classes=s64", same, ROW(1, 2, 3, 4), ROW(-7, 3, -7, 3), 2,
           ROW(3, 2, -1, -1), 4);
}

/* Two opposite corners in any order; middles and extents of the same boxes. */
static void formats(void **state)
{
    (void)state;
    expect("nms boxes=f32:2x4 iou_threshold=0.49", ROW(2, 0, 0, 1, 0, 1, 1, 0), ROW(1, 2), NULL, 1,
           ROW(1, -1), 2);
    expect("nms boxes=f32:2x4 iou_threshold=0.49 format=center", ROW(1, 0.5, 2, 1, 0.5, 0.5, 1, 1),
           ROW(1, 2), NULL, 1, ROW(1, -1), 2);
    expect("nms boxes=f32:2x4 iou_threshold=0.5 format=center", ROW(1, 0.5, 2, 1, 0.5, 0.5, 1, 1),
           ROW(1, 2), NULL, 2, ROW(1, 0), 2);
    /* An extent below 0 has no area. */
    expect("nms boxes=f32:2x4 format=center", ROW(1, 0.5, -2, 1, 0.5, 0.5, 1, 1), ROW(1, 2), NULL,
           2, ROW(1, 0), 2);
}

/* Pixels 0 to 1 and 1 to 2 of a row share pixel 1 of 3: IoU 1/3, as mmcv's nms with offset=1. */
static void pixels(void **state)
{
    (void)state;
    const double boxes[] = {0, 0, 1, 0, 1, 0, 2, 0};
    expect("nms boxes=f64:2x4 offset=1 iou_threshold=0.3", boxes, ROW(2, 1), NULL, 1, ROW(0, -1),
           2);
    expect("nms boxes=f64:2x4 offset=1 iou_threshold=0.34", boxes, ROW(2, 1), NULL, 2, ROW(0, 1),
           2);
    expect("nms boxes=f64:2x4", boxes, ROW(2, 1), NULL, 2, ROW(0, 1), 2);
}

/* What has no area, or none that is a number, neither suppresses nor is suppressed. */
static void no_numbers(void **state)
{
    (void)state;
    expect("nms boxes=f32:3x4", ROW(0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 1, 1), ROW(3, 2, 1), NULL, 3,
           ROW(0, 1, 2), 3);
    expect("nms boxes=f32:3x4", ROW(NAN, 0, 1, 1, 0, 0, NAN, 1, 0, 0, 1, 1), ROW(3, 2, 1), NULL, 3,
           ROW(0, 1, 2), 3);
    /* Of infinite area: IoU 0 with others, NaN with their like. */
    expect("nms boxes=f32:3x4", ROW(0, 0, INFINITY, 1, 0, 0, INFINITY, 1, 0, 0, 1, 1), ROW(3, 2, 1),
           NULL, 3, ROW(0, 1, 2), 3);
    /* Disjoint boxes are not suppressed whatever the threshold; a common edge is no area. */
    expect("nms boxes=f32:2x4 iou_threshold=-1", ROW(0, 0, 1, 1, 1, 0, 2, 1), ROW(3, 2), NULL, 2,
           ROW(0, 1), 2);
    /* Scores: NaN is left out, infinities are not, without a threshold. */
    const double apart[] = {0, 0, 1, 1, 2, 0, 3, 1, 4, 0, 5, 1};
    expect("nms boxes=f32:3x4", apart, ROW(-INFINITY, NAN, INFINITY), NULL, 2, ROW(2, 0, -1), 3);
    expect("nms boxes=f32:3x4 score_threshold=-3", apart, ROW(-INFINITY, NAN, INFINITY), NULL, 1,
           ROW(2, -1, -1), 3);
    expect("nms boxes=f32:3x4 score_threshold=1", apart, ROW(1, 1.0001, 0.5), NULL, 1,
           ROW(1, -1, -1), 3);
    /* 0.1 in f32 is above 0.1. */
    expect("nms boxes=f32:3x4 score_threshold=0.1", apart, ROW(0.1f, 0.05, 0.2), NULL, 2,
           ROW(2, 0, -1), 3);
}

/* The example of ONNX's test nonmaxsuppression_two_classes, whose boxes are those of all its tests;
 * of two lists rows come list by list; no more than the limit of each. */
static void lists(void **state)
{
    (void)state;
    const double one[] = {0, 0,  1, 1,  0, 0.1,  1, 1.1,  0, -0.1, 1, 0.9,
                          0, 10, 1, 11, 0, 10.1, 1, 11.1, 0, 100,  1, 101};
    for (int e = 0; e < 2; e++) {
        double boxes[24], scores[12], selected[15], count;
        const double of[] = {0.9, 0.75, 0.6, 0.95, 0.5, 0.3};
        memcpy(boxes, one, sizeof boxes);
        for (int i = 0; i < 12; i++) scores[i] = of[i % 6];
        run_ok(engines[e],
               "nms boxes=f32:1x6x4 scores=f32:1x2x6 limit=2 iou_threshold=0.5 score_threshold=0 "
               "selected=s64:5x3",
               VALUES(boxes, scores, NULL, selected, &count));
        assert_true(count == 4);
        assert_int_equal(
            differences(selected, ROW(0, 0, 3, 0, 0, 0, 0, 1, 3, 0, 1, 0, -1, -1, -1), 15, 0, 0),
            0);
        /* Rows that do not suffice: the last are left out, and counted. */
        run_ok(engines[e],
               "nms boxes=f32:1x6x4 scores=f32:1x2x6 iou_threshold=0.5 selected=s32:4x3",
               VALUES(boxes, scores, NULL, selected, &count));
        assert_true(count == 6);
        assert_int_equal(differences(selected, ROW(0, 0, 3, 0, 0, 0, 0, 0, 5, 0, 1, 3), 12, 0, 0),
                         0);
    }
}

static void nothing(void **state)
{
    (void)state;
    for (int e = 0; e < 2; e++) {
        double none[1] = {0}, selected[4], count = 7;
        run_ok(engines[e], "nms boxes=f32:0x4 selected=s64:4",
               VALUES(none, none, NULL, selected, &count));
        assert_true(count == 0);
        assert_int_equal(differences(selected, ROW(-1, -1, -1, -1), 4, 0, 0), 0);
    }
}

static void any_threads(void **state)
{
    (void)state;
    enum { N = 300, LISTS = 12 };
    static double boxes[3 * N * 4], scores[LISTS * N], selected[2][LISTS * N * 3], count[2];
    wave(boxes, 3 * N * 4, 1);
    wave(scores, LISTS * N, 2);
    for (int k = 0; k < 2; k++) {
        omp_set_num_threads(k ? 3 : 1);
        run_ok("cpu", "nms boxes=f32:3x300x4 scores=f32:3x4x300 iou_threshold=0.4",
               VALUES(boxes, scores, NULL, selected[k], &count[k]));
    }
    assert_true(count[0] == count[1] && count[0] > LISTS && count[0] < LISTS * N);
    assert_memory_equal(selected[0], selected[1], sizeof selected[0]);
}

static void refusals(void **state)
{
    (void)state;
    refuses("nms boxes=f32:4", "rank 1");
    refuses("nms boxes=f32:7x5", "rows of 5");
    refuses("nms boxes=f32:2x7x4 scores=f32:7", "scores has rank 1");
    refuses("nms boxes=f32:7x4 scores=f32:8", "of 1 x 8 boxes, there are 1 x 7");
    refuses("nms boxes=f32:2x7x4 scores=f32:3x1x7", "of 3 x 7 boxes, there are 2 x 7");
    refuses("nms boxes=f32:7x4 scores=f16:7", "scores is f16");
    refuses("nms boxes=s32:7x4", "boxes is s32");
    refuses("nms boxes=f32:7x4 classes=s64:8", "classes");
    refuses("nms boxes=f32:7x4 classes=f32", "classes is f32");
    refuses("nms boxes=f32:7x4 selected=s64:7x3", "selected has rank 2");
    refuses("nms boxes=f32:1x7x4 selected=s64:7x2", "rows x 3");
    refuses("nms boxes=f32:7x4 count=s64:2", "count has 2 elements");
    refuses("nms boxes=f32:7x4 offset=2", "offset is 2");
    refuses("nms boxes=f32:7x4 limit=-1", "limit is -1");
    refuses("nms boxes=f32:7x4 score_threshold=inf", "not a finite number");
    refuses("nms boxes=f32:7x4 score_threshold=nan", "not a finite number");
    refuses("nms boxes=f32:7x4 iou_threshold=-inf", "not a finite number");
    refuses("nms boxes=f32:4194305x4", "4194304 are legal");
    refuses("nms boxes=f32:70000x1x4 scores=f32:70000x300x1", "70000 x 300 lists");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threshold),   cmocka_unit_test(chain),   cmocka_unit_test(ties),
        cmocka_unit_test(classes),     cmocka_unit_test(formats), cmocka_unit_test(pixels),
        cmocka_unit_test(no_numbers),  cmocka_unit_test(lists),   cmocka_unit_test(nothing),
        cmocka_unit_test(any_threads), cmocka_unit_test(refusals)};
    return cmocka_run_group_tests(tests, open_context, close_context);
}
