/* SPDX-License-Identifier: Apache-2.0
 * What PyTorch and XLA ask of configurations, engines and plans, and plans as text. */
#include "backend_conv_test.h"

/* What PyTorch and XLA ask of configurations, engines and plans. */
static void questions(void **unused)
{
    (void)unused;
    const problem p = {CUDNN_DATA_FLOAT, NCHW,   2,      1,      3,    4,    1,
                       {5, 5},           {3, 3}, {1, 1}, {1, 1}, ONES, ONES, PLAIN};
    setting s = set_up(&p);
    desc x = tensor_desc(120, &s.x.t, 'r'), y = tensor_desc(121, &s.y.t, 'r');
    desc w = tensor_desc(119, &s.w.t, 'r'), op = conv_op(&p, BT_CONV_FWD, x, w, y);
    desc g = graph_of(1, &op);
    int64_t count = -1, index = -1, bytes = -1, told;
    int32_t notes[10], shared = -1;
    for (int mode = 0; mode < HEURISTIC_MODES; mode++) {
        drop(config_of(g, mode, 0, &count));
        assert_int_equal(count, 2); /* TF32 in front of IEEE arithmetic */
    }
    SUCCEEDS(cudnnBackendGetAttribute(g, AT_GRAPH_ENGINE_GLOBAL_COUNT, BW_INT64, 1, NULL, &bytes));
    assert_int_equal(bytes, 2);
    /* TF32 is told by the note of tensor cores alone, which a CPU has not */
    desc fast = config_of(g, HEURISTIC_A, 0, NULL), first = make(BT_ENGINE);
    SUCCEEDS(cudnnBackendGetAttribute(fast, AT_CONFIG_ENGINE, BW_DESCRIPTOR, 1, NULL, &first));
    SUCCEEDS(cudnnBackendGetAttribute(first, AT_ENGINE_NUMERICAL_NOTE, BW_NUMERICAL_NOTE, 10,
                                      &count, notes));
    assert_int_equal(count, strcmp(getenv("MICA_CUDNN_DEVICE"), "cpu") != 0);
    if (count) assert_int_equal(notes[0], NOTE_TENSOR_CORE);
    drop(fast);
    drop(first);
    desc config = config_of(g, HEURISTIC_B, 1, NULL), engine = make(BT_ENGINE), choices[44];
    SUCCEEDS(cudnnBackendGetAttribute(config, AT_CONFIG_ENGINE, BW_DESCRIPTOR, 1, &count, &engine));
    assert_int_equal(count, 1);
    SUCCEEDS(cudnnBackendGetAttribute(engine, AT_ENGINE_GLOBAL_INDEX, BW_INT64, 1, NULL, &index));
    assert_int_equal(index, 1);
    SUCCEEDS(cudnnBackendGetAttribute(engine, AT_ENGINE_NUMERICAL_NOTE, BW_NUMERICAL_NOTE, 10,
                                      &told, NULL));
    SUCCEEDS(cudnnBackendGetAttribute(engine, AT_ENGINE_NUMERICAL_NOTE, BW_NUMERICAL_NOTE, 10,
                                      &count, notes));
    assert_int_equal(count, told);
    assert_int_equal(count, 0); /* IEEE arithmetic */
    SUCCEEDS(cudnnBackendGetAttribute(engine, AT_ENGINE_KNOB_INFO, BW_DESCRIPTOR, 0, &count, NULL));
    assert_int_equal(count, 1);
    for (int i = 0; i < 44; i++) choices[i] = make(BT_KNOB_CHOICE);
    SUCCEEDS(cudnnBackendGetAttribute(config, AT_CONFIG_KNOB_CHOICES, BW_DESCRIPTOR, 44, &count,
                                      choices));
    assert_int_equal(count, 0);
    for (int i = 0; i < 44; i++) drop(choices[i]);
    SUCCEEDS(cudnnBackendGetAttribute(config, AT_CONFIG_WORKSPACE_SIZE, BW_INT64, 1, NULL, &bytes));
    SUCCEEDS(
        cudnnBackendGetAttribute(config, AT_CONFIG_SHARED_MEMORY_USED, BW_INT32, 1, NULL, &shared));
    assert_true(bytes >= 0 && shared >= 0);
    /* an engine made again of its index, as XLA does */
    desc again = make(BT_ENGINE), rebuilt = make(BT_CONFIG);
    put_desc(again, AT_ENGINE_OPERATION_GRAPH, g);
    put_wide(again, AT_ENGINE_GLOBAL_INDEX, index);
    finish(again);
    put_desc(rebuilt, AT_CONFIG_ENGINE, again);
    finish(rebuilt);
    desc plan = plan_of(rebuilt);
    assert_int_equal(workspace_of(plan), bytes);
    desc parts[] = {x, y, w, op, g, config, engine, again, rebuilt, plan};
    for (int i = 0; i < 10; i++) drop(parts[i]);
    tear_down(&s);
}

/* A plan goes into text and comes back without its graph. */
static void serialised(void **unused)
{
    (void)unused;
    const problem p = {CUDNN_DATA_FLOAT, NCHW,   2,      1,      3,    4,    1,
                       {5, 5},           {3, 3}, {1, 1}, {1, 1}, ONES, ONES, PLAIN};
    setting s = set_up(&p);
    double *expected = convolve(&p, &s, 'y');
    desc x = tensor_desc(-7, &s.x.t, 'r'), y = tensor_desc(121, &s.y.t, 'r');
    desc w = tensor_desc(119, &s.w.t, 'r'), op = conv_op(&p, BT_CONV_FWD, x, w, y);
    desc g = graph_of(1, &op), config = config_of(g, HEURISTIC_A, 1, NULL), plan = plan_of(config);
    int64_t length = 0, index = -1;
    SUCCEEDS(cudnnBackendGetAttribute(plan, AT_PLAN_JSON, BW_CHAR, 0, &length, NULL));
    char *json = calloc(1, (size_t)length + 1);
    SUCCEEDS(cudnnBackendGetAttribute(plan, AT_PLAN_JSON, BW_CHAR, length, &length, json));
    desc parts[] = {x, y, w, op, g, config, plan};
    for (int i = 0; i < 7; i++) drop(parts[i]);
    plan = make(BT_PLAN);
    put(plan, AT_PLAN_HANDLE, BW_HANDLE, 1, &handle);
    put(plan, AT_PLAN_JSON, BW_CHAR, length, json);
    finish(plan);
    SUCCEEDS(run_plan(plan, 3, (const int64_t[]){121, -7, 119},
                      (void *[]){s.y.data, s.x.data, s.w.data}));
    array_is(&s.y, expected, 2, 1);
    config = make(BT_CONFIG);
    desc engine = make(BT_ENGINE);
    SUCCEEDS(
        cudnnBackendGetAttribute(plan, AT_PLAN_ENGINE_CONFIG, BW_DESCRIPTOR, 1, NULL, &config));
    SUCCEEDS(cudnnBackendGetAttribute(config, AT_CONFIG_ENGINE, BW_DESCRIPTOR, 1, NULL, &engine));
    SUCCEEDS(cudnnBackendGetAttribute(engine, AT_ENGINE_GLOBAL_INDEX, BW_INT64, 1, NULL, &index));
    assert_int_equal(index, 1);
    drop(plan);
    drop(config);
    drop(engine);
    /* cut, or of somebody else */
    plan = make(BT_PLAN);
    put(plan, AT_PLAN_HANDLE, BW_HANDLE, 1, &handle);
    put(plan, AT_PLAN_JSON, BW_CHAR, length / 2, json);
    assert_int_not_equal(cudnnBackendFinalize(plan), CUDNN_STATUS_SUCCESS);
    put(plan, AT_PLAN_JSON, BW_CHAR, 2, "{}");
    assert_int_not_equal(cudnnBackendFinalize(plan), CUDNN_STATUS_SUCCESS);
    drop(plan);
    free(json);
    free(expected);
    tear_down(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(questions), cmocka_unit_test(serialised)};
    return cmocka_run_group_tests(tests, open_device, close_device);
}
