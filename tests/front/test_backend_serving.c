/* SPDX-License-Identifier: Apache-2.0
 * Caches in pages, grouped products, products of a shorter inner size, running statistics, results
 * in the place of inputs, knobs, device properties. */
#include "backend_test.h"

#include <math.h>

static array numbers_of(mica_tensor t, const int *numbers)
{
    array a = array_of(t, type_of(t.dtype));
    for (int64_t i = 0; i < a.count; i++) a.v[i] = numbers[i];
    array_write(&a);
    return a;
}

/* Pages in any order, one of them twice; result with positions in dimension 2, and in 3. */
static void pages(void **unused)
{
    (void)unused;
    for (int turned = 0; turned < 2; turned++) {
        const int table[] = {4, 0, 2, 1, 4, 4};
        array pool = array_like(packed(MICA_F32, 5, 2, 4, 3), -2, 2);
        array pages = numbers_of(packed(MICA_S32, 2, 1, 3, 1), table);
        array length = numbers_of(packed(MICA_S32, 2, 1, 1, 1), (const int[]){12, 12});
        mica_tensor result = packed(MICA_F32, 2, 2, 12, 3);
        if (turned) {
            result.dims[2] = 3, result.dims[3] = 12;
            result.strides[2] = 1, result.strides[3] = 3;
        }
        array y = array_like(result, 7, 7);
        double *expected = calloc((size_t)y.count, sizeof *expected);
        for (int64_t i = 0; i < y.count; i++) {
            const int64_t d = turned ? i / 12 % 3 : i % 3, s = turned ? i % 12 : i / 3 % 12;
            const int64_t h = i / 36 % 2, b = i / 72;
            expected[i] = pool.v[((table[b * 3 + s / 4] * 2 + h) * 4 + s % 4) * 3 + d];
        }
        desc op = make(BT_OP_PAGED_LOAD);
        desc parts[] = {tensor_desc(1, &pool.t, 'r'), tensor_desc(2, &pages.t, 'r'),
                        tensor_desc(3, &length.t, 'r'), tensor_desc(4, &y.t, 'r')};
        put_desc(op, AT_OP_PAGED_LOAD_CONTAINER, parts[0]);
        put_desc(op, AT_OP_PAGED_LOAD_PAGE_TABLE, parts[1]);
        put_desc(op, AT_OP_PAGED_LOAD_SEQUENCE, parts[2]);
        put_desc(op, AT_OP_PAGED_LOAD_Y, parts[3]);
        finish(op);
        run_one(op, parts, 4, (const int64_t[]){1, 2, 3, 4},
                (void *[]){pool.data, pages.data, length.data, y.data});
        array_is(&y, expected, 0, 0);
        array *all[] = {&pool, &pages, &length, &y};
        for (int i = 0; i < 4; i++) array_free(all[i]);
        free(expected);
    }
}

/* Weights in columns, an expert without tokens, one with the last. */
static void experts(void **unused)
{
    (void)unused;
    const int first[] = {0, 3, 3, 5};
    const mica_tensor rows = mica_tensor_packed(MICA_F32, 3, (const int64_t[]){1, 9, 6});
    mica_tensor weights = mica_tensor_packed(MICA_F32, 3, (const int64_t[]){4, 6, 5});
    const mica_tensor result = mica_tensor_packed(MICA_F32, 3, (const int64_t[]){1, 9, 5});
    weights.strides[1] = 1, weights.strides[2] = 6;
    array x = array_like(rows, -2, 2), w = array_like(weights, -2, 2), y = array_like(result, 7, 7);
    array offsets = numbers_of(mica_tensor_packed(MICA_S32, 3, (const int64_t[]){4, 1, 1}), first);
    double expected[45] = {0};
    for (int t = 0; t < 9; t++)
        for (int n = 0; n < 5; n++)
            for (int k = 0; k < 6; k++)
                expected[t * 5 + n] += x.v[t * 6 + k] * w.v[((t < 3   ? 0
                                                              : t < 5 ? 2
                                                                      : 3) *
                                                                 6 +
                                                             k) *
                                                                5 +
                                                            n];
    desc op = make(BT_OP_MOE_MATMUL);
    desc parts[] = {tensor_desc(1, &x.t, 'r'), tensor_desc(2, &w.t, 'r'),
                    tensor_desc(3, &offsets.t, 'r'), tensor_desc(4, &y.t, 'r')};
    put_int(op, AT_OP_MOE_MATMUL_MODE, BW_MOE_MODE, 0);
    put_int(op, AT_OP_MOE_MATMUL_MATH_PREC, BW_DATA_TYPE, CUDNN_DATA_FLOAT);
    put_desc(op, AT_OP_MOE_MATMUL_TOKEN, parts[0]);
    put_desc(op, AT_OP_MOE_MATMUL_WEIGHT, parts[1]);
    put_desc(op, AT_OP_MOE_MATMUL_OFFSETS, parts[2]);
    put_desc(op, AT_OP_MOE_MATMUL_OUTPUT, parts[3]);
    finish(op);
    run_one(op, parts, 4, (const int64_t[]){1, 2, 3, 4},
            (void *[]){x.data, w.data, offsets.data, y.data});
    array_is(&y, expected, 16, 1);
    array *all[] = {&x, &w, &offsets, &y};
    for (int i = 0; i < 4; i++) array_free(all[i]);
}

/* What lies behind the inner size of a batch item is NaN and does not count. */
static void shorter_product(void **unused)
{
    (void)unused;
    const int sizes[] = {4, 7};
    array a = array_like(packed(MICA_F32, 2, 1, 3, 7), -2, 2);
    array b = array_like(packed(MICA_F32, 2, 1, 7, 5), -2, 2);
    array c = array_like(packed(MICA_F32, 2, 1, 3, 5), 7, 7);
    array k = numbers_of(packed(MICA_S32, 2, 1, 1, 1), sizes);
    double expected[30] = {0};
    for (int i = 0; i < 30; i++)
        for (int j = 0; j < sizes[i / 15]; j++)
            expected[i] += a.v[i / 15 * 21 + i / 5 % 3 * 7 + j] * b.v[i / 15 * 35 + j * 5 + i % 5];
    for (int j = 4; j < 7; j++)
        for (int i = 0; i < 5; i++) a.v[(i % 3) * 7 + j] = b.v[j * 5 + i] = NAN;
    array_write(&a);
    array_write(&b);
    desc m = make(BT_MATMUL), op = make(BT_OP_MATMUL);
    desc parts[] = {tensor_desc(1, &a.t, 'r'), tensor_desc(2, &b.t, 'r'), tensor_desc(3, &c.t, 'r'),
                    tensor_desc(4, &k.t, 'r')};
    put_int(m, AT_MATMUL_COMP_TYPE, BW_DATA_TYPE, CUDNN_DATA_FLOAT);
    finish(m);
    put_desc(op, AT_OP_MATMUL_A, parts[0]);
    put_desc(op, AT_OP_MATMUL_B, parts[1]);
    put_desc(op, AT_OP_MATMUL_C, parts[2]);
    put_desc(op, AT_OP_MATMUL_K_OVERRIDE, parts[3]);
    put_desc(op, AT_OP_MATMUL_DESC, m);
    finish(op);
    drop(m);
    run_one(op, parts, 4, (const int64_t[]){1, 2, 3, 4},
            (void *[]){a.data, b.data, c.data, k.data});
    array_is(&c, expected, 16, 1);
    array *all[] = {&a, &b, &c, &k};
    for (int i = 0; i < 4; i++) array_free(all[i]);
}

/* In the place of the old ones, and in another, where the old ones stay. */
static void running_statistics(void **unused)
{
    (void)unused;
    for (int apart = 0; apart < 2; apart++) {
        const mica_tensor of_c = packed(MICA_F32, 1, 3, 1, 1), one = packed(MICA_F32, 1, 1, 1, 1);
        array x = array_like(packed(MICA_F32, 2, 3, 2, 2), -2, 2), y = array_like(x.t, 7, 7);
        array old_mean = array_like(of_c, -1, 1), old_var = array_like(of_c, 0.5, 2);
        array new_mean = array_like(of_c, 7, 7), new_var = array_like(of_c, 7, 7);
        float epsilon = 1e-3f, factor = 0.25f;
        desc op = make(BT_OP_NORM_FWD);
        desc parts[] = {tensor_desc(1, &x.t, 'r'),  tensor_desc(2, &y.t, 'r'),
                        tensor_desc(3, &one, 'n'),  tensor_desc(4, &one, 'n'),
                        tensor_desc(5, &of_c, 'r'), tensor_desc(6, &of_c, 'r'),
                        tensor_desc(7, &of_c, 'r'), tensor_desc(8, &of_c, 'r')};
        static const int at[] = {
            AT_OP_NORM_FWD_X,
            AT_OP_NORM_FWD_Y,
            AT_OP_NORM_FWD_EPSILON,
            AT_OP_NORM_FWD_FACTOR,
            AT_OP_NORM_FWD_RUNNING_MEAN_IN,
            AT_OP_NORM_FWD_RUNNING_VAR_IN,
            AT_OP_NORM_FWD_RUNNING_MEAN_OUT,
            AT_OP_NORM_FWD_RUNNING_VAR_OUT,
        };
        put_int(op, AT_OP_NORM_FWD_MODE, BW_NORM_MODE, NORM_BATCH);
        put_int(op, AT_OP_NORM_FWD_PHASE, BW_NORM_PHASE, NORM_TRAINING);
        for (int i = 0; i < 8; i++) put_desc(op, at[i], parts[i]);
        finish(op);
        array *mean = apart ? &new_mean : &old_mean, *var = apart ? &new_var : &old_var;
        run_one(op, parts, 8, (const int64_t[]){1, 2, 3, 4, 5, 6, 7, 8},
                (void *[]){x.data, y.data, &epsilon, &factor, old_mean.data, old_var.data,
                           mean->data, var->data});
        double expected[2][3], before[2][3];
        for (int c = 0; c < 3; c++) {
            double m = 0, v = 0;
            for (int i = 0; i < 8; i++) m += x.v[i / 4 * 12 + c * 4 + i % 4] / 8;
            for (int i = 0; i < 8; i++) v += pow(x.v[i / 4 * 12 + c * 4 + i % 4] - m, 2) / 7;
            before[0][c] = old_mean.v[c], before[1][c] = old_var.v[c];
            expected[0][c] = 0.75 * old_mean.v[c] + 0.25 * m;
            expected[1][c] = 0.75 * old_var.v[c] + 0.25 * v;
        }
        array_is(mean, expected[0], 16, 1);
        array_is(var, expected[1], 16, 1);
        if (apart) array_is(&old_mean, before[0], 0, 0);
        if (apart) array_is(&old_var, before[1], 0, 0);
        array *all[] = {&x, &y, &old_mean, &old_var, &new_mean, &new_var};
        for (int i = 0; i < 6; i++) array_free(all[i]);
    }
}

/* A rotation whose two results replace its two inputs, halves of the same rows. */
static void in_place(void **unused)
{
    (void)unused;
    array x = array_like(packed(MICA_F32, 1, 2, 3, 8), -2, 2);
    mica_tensor half = x.t;
    half.dims[3] = 4;
    char *const at[] = {x.data, (char *)x.data + 16};
    desc ops[2];
    desc parts[] = {tensor_desc(1, &half, 'r'), tensor_desc(2, &half, 'r'),
                    tensor_desc(3, &half, 'r'), tensor_desc(4, &half, 'r')};
    ops[0] = pointwise(PW_SUB, parts[0], parts[1], NULL, parts[2], -1, 1);
    ops[1] = pointwise(PW_ADD, parts[0], parts[1], NULL, parts[3], -1, 1);
    for (int i = 0; i < 4; i++) drop(parts[i]);
    run_ops(2, ops, 0, 4, (const int64_t[]){1, 2, 3, 4}, (void *[]){at[0], at[1], at[0], at[1]});
    double expected[48];
    for (int i = 0; i < 48; i++)
        expected[i] = i % 8 < 4 ? x.v[i] - x.v[i + 4] : x.v[i - 4] + x.v[i];
    array_is(&x, expected, 0, 0);
    array_free(&x);
}

/* One knob with one value; another is refused. */
static void knobs(void **unused)
{
    (void)unused;
    array x = array_like(packed(MICA_F32, 1, 1, 2, 3), -2, 2), y = array_like(x.t, 7, 7);
    desc tx = tensor_desc(1, &x.t, 'r'), ty = tensor_desc(2, &y.t, 'r');
    desc op = pointwise(PW_IDENTITY, tx, NULL, NULL, ty, -1, 1), graph = graph_of(1, &op);
    desc engine = make(BT_ENGINE), info = make(BT_KNOB_INFO);
    int64_t count = 0, ends[3] = {7, 7, 7};
    int32_t type = 0;
    put_desc(engine, AT_ENGINE_OPERATION_GRAPH, graph);
    put_wide(engine, AT_ENGINE_GLOBAL_INDEX, 0);
    finish(engine);
    SUCCEEDS(cudnnBackendGetAttribute(engine, AT_ENGINE_KNOB_INFO, BW_DESCRIPTOR, 0, &count, NULL));
    assert_int_equal(count, 1);
    SUCCEEDS(
        cudnnBackendGetAttribute(engine, AT_ENGINE_KNOB_INFO, BW_DESCRIPTOR, 1, &count, &info));
    SUCCEEDS(cudnnBackendGetAttribute(info, AT_KNOB_INFO_TYPE, BW_KNOB_TYPE, 1, &count, &type));
    for (int i = 0; i < 3; i++)
        SUCCEEDS(cudnnBackendGetAttribute(info, (unsigned)(AT_KNOB_INFO_MAXIMUM + i), BW_INT64, 1,
                                          &count, &ends[i]));
    assert_int_equal(type, 24);
    assert_int_equal(ends[0], 0);
    assert_int_equal(ends[1], 0);
    assert_int_equal(ends[2], 1);
    for (int64_t value = 0; value < 2; value++) {
        desc choice = make(BT_KNOB_CHOICE), config = make(BT_CONFIG);
        put_int(choice, AT_KNOB_CHOICE_TYPE, BW_KNOB_TYPE, type);
        put_wide(choice, AT_KNOB_CHOICE_VALUE, value);
        finish(choice);
        put_desc(config, AT_CONFIG_ENGINE, engine);
        put_desc(config, AT_CONFIG_KNOB_CHOICES, choice);
        assert_int_equal(cudnnBackendFinalize(config),
                         value ? CUDNN_STATUS_NOT_SUPPORTED : CUDNN_STATUS_SUCCESS);
        drop(choice);
        drop(config);
    }
    desc all[] = {tx, ty, op, graph, engine, info};
    for (int i = 0; i < 6; i++) drop(all[i]);
    array_free(&x);
    array_free(&y);
}

/* A graph without a handle, planned for a device that was written down as text. */
static void device_properties(void **unused)
{
    (void)unused;
    array x = array_like(packed(MICA_F32, 1, 1, 2, 3), -2, 2), y = array_like(x.t, 7, 7);
    desc device = make(BT_DEVICE), same = make(BT_DEVICE), nothing = make(BT_DEVICE);
    char json[64];
    int64_t length = 0;
    put_int(device, AT_DEVICE_ID, BW_INT32, 0);
    finish(device);
    SUCCEEDS(cudnnBackendGetAttribute(device, AT_DEVICE_JSON, BW_CHAR, sizeof json, &length, json));
    put(same, AT_DEVICE_JSON, BW_CHAR, length, json);
    finish(same);
    assert_int_equal(cudnnBackendFinalize(nothing), CUDNN_STATUS_BAD_PARAM);
    desc tx = tensor_desc(1, &x.t, 'r'), ty = tensor_desc(2, &y.t, 'r');
    desc op = pointwise(PW_EXP, tx, NULL, NULL, ty, -1, 1), graph = make(BT_GRAPH);
    put(graph, AT_GRAPH_OPS, BW_DESCRIPTOR, 1, &op);
    finish(graph);
    desc lost = make(BT_HEURISTICS), found = make(BT_HEURISTICS), config = make(BT_CONFIG);
    put_desc(lost, AT_HEURISTICS_OPERATION_GRAPH, graph);
    put_int(lost, AT_HEURISTICS_MODE, BW_HEURISTIC_MODE, HEURISTIC_A);
    assert_int_equal(cudnnBackendFinalize(lost), CUDNN_STATUS_BAD_PARAM);
    put_desc(found, AT_HEURISTICS_OPERATION_GRAPH, graph);
    put_int(found, AT_HEURISTICS_MODE, BW_HEURISTIC_MODE, HEURISTIC_A);
    put_desc(found, AT_HEURISTICS_DEVICE, same);
    finish(found);
    SUCCEEDS(
        cudnnBackendGetAttribute(found, AT_HEURISTICS_RESULTS, BW_DESCRIPTOR, 1, &length, &config));
    desc plan = plan_of(config);
    SUCCEEDS(run_plan(plan, 2, (const int64_t[]){1, 2}, (void *[]){x.data, y.data}));
    double expected[6];
    for (int i = 0; i < 6; i++) expected[i] = exp(x.v[i]);
    array_is(&y, expected, 16, 1);
    desc all[] = {device, same, nothing, tx, ty, op, graph, lost, found, config, plan};
    for (int i = 0; i < 11; i++) drop(all[i]);
    array_free(&x);
    array_free(&y);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages),
        cmocka_unit_test(experts),
        cmocka_unit_test(shorter_product),
        cmocka_unit_test(running_statistics),
        cmocka_unit_test(in_place),
        cmocka_unit_test(knobs),
        cmocka_unit_test(device_properties),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
