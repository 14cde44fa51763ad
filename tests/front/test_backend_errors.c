/* SPDX-License-Identifier: Apache-2.0
 * What the graph interface refuses, and that it never falls over: wrong attributes, types, counts,
 * descriptors that are not finalized or destroyed, graphs that do not hold together, and random
 * programs of descriptors. */
#include "backend_test.h"

static const mica_tensor *some(void)
{
    static mica_tensor t;
    t = packed(MICA_F32, 1, 2, 3, 4);
    return &t;
}

static char last_text[1024];

static void refused(cudnnStatus_t status, cudnnStatus_t expected, const char *words)
{
    cudnnGetLastErrorString(last_text, sizeof last_text);
    if (status != expected || !strstr(last_text, words))
        fail_msg("%s (%s), not %s (%s)", cudnnGetErrorString(status), last_text,
                 cudnnGetErrorString(expected), words);
}

static void attributes(void **unused)
{
    (void)unused;
    desc t = make(BT_TENSOR), c = make(BT_CONVOLUTION), g = make(BT_GRAPH), other;
    const int64_t nine[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1}, zero[2] = {0, 1};
    int64_t count = 5;
    int32_t type = CUDNN_DATA_FLOAT;
    refused(cudnnBackendCreateDescriptor(1000, &other), CUDNN_STATUS_BAD_PARAM, "1000");
    refused(cudnnBackendCreateDescriptor(BT_TENSOR, NULL), CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "");
    refused(cudnnBackendSetAttribute(NULL, AT_TENSOR_DIMENSIONS, BW_INT64, 1, nine),
            CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "descriptor");
    refused(cudnnBackendSetAttribute(handle, AT_TENSOR_DIMENSIONS, BW_INT64, 1, nine),
            CUDNN_STATUS_BAD_PARAM, "descriptor");
    refused(cudnnBackendSetAttribute(t, AT_TENSOR_DIMENSIONS, BW_FLOAT, 1, nine),
            CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE, "INT64");
    refused(cudnnBackendSetAttribute(t, AT_TENSOR_DIMENSIONS, BW_INT64, 9, nine),
            CUDNN_STATUS_BAD_PARAM_OUT_OF_BOUND, "9 elements");
    refused(cudnnBackendSetAttribute(t, AT_TENSOR_DIMENSIONS, BW_INT64, -1, nine),
            CUDNN_STATUS_BAD_PARAM_OUT_OF_BOUND, "-1 elements");
    refused(cudnnBackendSetAttribute(t, AT_TENSOR_DIMENSIONS, BW_INT64, 2, NULL),
            CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "DIMENSIONS");
    refused(cudnnBackendSetAttribute(t, AT_CONVOLUTION_COMP_TYPE, BW_DATA_TYPE, 1, &type),
            CUDNN_STATUS_BAD_PARAM, "convolution descriptor");
    refused(cudnnBackendSetAttribute(t, 99999, BW_DATA_TYPE, 1, &type), CUDNN_STATUS_NOT_SUPPORTED,
            "99999");
    refused(cudnnBackendGetAttribute(t, AT_TENSOR_DIMENSIONS, BW_INT64, 1, &count, NULL),
            CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "not finalized");
    refused(cudnnBackendFinalize(t), CUDNN_STATUS_BAD_PARAM, "BYTE_ALIGNMENT");
    refused(cudnnBackendFinalize(c), CUDNN_STATUS_BAD_PARAM, "COMP_TYPE");
    refused(cudnnBackendSetAttribute(g, AT_GRAPH_OPS, BW_DESCRIPTOR, 1, &t),
            CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE, "operation");
    put_int(t, AT_TENSOR_DATA_TYPE, BW_DATA_TYPE, CUDNN_DATA_FLOAT);
    put(t, AT_TENSOR_DIMENSIONS, BW_INT64, 2, zero);
    put(t, AT_TENSOR_STRIDES, BW_INT64, 2, nine);
    put_wide(t, AT_TENSOR_UNIQUE_ID, 1);
    put_wide(t, AT_TENSOR_BYTE_ALIGNMENT, 4);
    refused(cudnnBackendFinalize(t), CUDNN_STATUS_BAD_PARAM_OUT_OF_BOUND, "DIMENSIONS");
    put(t, AT_TENSOR_DIMENSIONS, BW_INT64, 3, nine);
    refused(cudnnBackendFinalize(t), CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT, "STRIDES");
    put(t, AT_TENSOR_DIMENSIONS, BW_INT64, 2, nine);
    put_wide(t, AT_TENSOR_BYTE_ALIGNMENT, 2);
    refused(cudnnBackendFinalize(t), CUDNN_STATUS_BAD_PARAM, "BYTE_ALIGNMENT");
    put_wide(t, AT_TENSOR_BYTE_ALIGNMENT, 16);
    finish(t);
    refused(cudnnBackendFinalize(t), CUDNN_STATUS_BAD_PARAM, "already");
    refused(cudnnBackendSetAttribute(t, AT_TENSOR_UNIQUE_ID, BW_INT64, 1, nine),
            CUDNN_STATUS_NOT_INITIALIZED, "finalized");
    int64_t found[2] = {0};
    SUCCEEDS(cudnnBackendGetAttribute(t, AT_TENSOR_DIMENSIONS, BW_INT64, 1, &count, found));
    assert_int_equal(count, 1);
    assert_int_equal(found[1], 0); /* not more than was asked for */
    SUCCEEDS(cudnnBackendGetAttribute(t, AT_TENSOR_DIMENSIONS, BW_INT64, 8, &count, NULL));
    assert_int_equal(count, 2);
    SUCCEEDS(cudnnBackendInitialize(t));
    refused(cudnnBackendFinalize(t), CUDNN_STATUS_BAD_PARAM, "BYTE_ALIGNMENT");
    SUCCEEDS(cudnnBackendDestroyDescriptor(NULL));
    drop(t);
    drop(c);
    drop(g);
    for (int i = 0; i <= 50; i++) { /* all can be made, and are no more than that */
        desc d = make(i);
        const bool whole = i == BT_PACK || i == BT_KERNEL_CACHE; /* need nothing */
        assert_int_equal(cudnnBackendFinalize(d) == CUDNN_STATUS_SUCCESS, whole);
        drop(d);
    }
}

static void lifetimes(void **unused)
{
    (void)unused;
    desc x = tensor_desc(1, some(), 'r'), y = tensor_desc(2, some(), 'r');
    desc op = pointwise(PW_EXP, x, NULL, NULL, y, -1, 1), fresh = make(BT_OP_POINTWISE);
    drop(x); /* the operation still refers to it: it is known to be gone */
    refused(cudnnBackendSetAttribute(fresh, AT_OP_POINTWISE_X, BW_DESCRIPTOR, 1, &x),
            CUDNN_STATUS_BAD_PARAM, "destroyed");
    refused(cudnnBackendDestroyDescriptor(x), CUDNN_STATUS_BAD_PARAM, "destroyed");
    refused(cudnnBackendInitialize(y), CUDNN_STATUS_BAD_PARAM, "another descriptor");
    desc g = graph_of(1, &op), config = config_of(g, HEURISTIC_INSTANT, 0, NULL);
    drop(op);
    drop(g);
    drop(y);
    desc plan = plan_of(config), pack = make(BT_PACK);
    drop(config);
    refused(cudnnBackendExecute(handle, plan, pack), CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "pack");
    refused(cudnnBackendExecute(handle, pack, plan), CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE, "");
    refused(cudnnBackendExecute(NULL, plan, pack), CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "handle");
    put(pack, AT_PACK_UNIQUE_IDS, BW_INT64, 1, (const int64_t[]){1});
    refused(cudnnBackendFinalize(pack), CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT, "pointers");
    void *pointers[2] = {handle, handle};
    put(pack, AT_PACK_DATA_POINTERS, BW_POINTER, 2, pointers);
    put(pack, AT_PACK_UNIQUE_IDS, BW_INT64, 2, (const int64_t[]){1, 1});
    refused(cudnnBackendFinalize(pack), CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES, "twice");
    put(pack, AT_PACK_UNIQUE_IDS, BW_INT64, 2, (const int64_t[]){1, 3});
    finish(pack);
    refused(cudnnBackendExecute(handle, plan, pack), CUDNN_STATUS_BAD_PARAM_NULL_POINTER,
            "tensor 2");
    drop(plan);
    drop(pack);
    drop(fresh);
}

static cudnnStatus_t finish_graph(int count, desc *ops)
{
    desc g = make(BT_GRAPH);
    put(g, AT_GRAPH_OPS, BW_DESCRIPTOR, count, ops);
    put(g, AT_GRAPH_HANDLE, BW_HANDLE, 1, &handle);
    cudnnStatus_t status = cudnnBackendFinalize(g);
    cudnnGetLastErrorString(last_text, sizeof last_text);
    drop(g);
    for (int i = 0; i < count; i++) drop(ops[i]);
    return status;
}

static void graphs(void **unused)
{
    (void)unused;
    const mica_tensor other = packed(MICA_F32, 1, 2, 3, 5);
    desc x = tensor_desc(1, some(), 'r'), y = tensor_desc(2, some(), 'r');
    desc v = tensor_desc(3, some(), 'v'), w = tensor_desc(4, some(), 'v');
    desc wide = tensor_desc(1, &other, 'r'), out = tensor_desc(5, &other, 'r');
    desc a[] = {pointwise(PW_EXP, v, NULL, NULL, y, -1, 1)};
    assert_int_equal(finish_graph(1, a), CUDNN_STATUS_BAD_PARAM); /* nobody writes v */
    desc b[] = {pointwise(PW_EXP, v, NULL, NULL, w, -1, 1),
                pointwise(PW_EXP, w, NULL, NULL, v, -1, 1)};
    assert_int_equal(finish_graph(2, b), CUDNN_STATUS_BAD_PARAM);
    assert_non_null(strstr(last_text, "circle"));
    desc c[] = {pointwise(PW_EXP, x, NULL, NULL, y, -1, 1),
                pointwise(PW_LOG, x, NULL, NULL, y, -1, 1)};
    assert_int_equal(finish_graph(2, c), CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES);
    desc d[] = {pointwise(PW_EXP, x, NULL, NULL, y, -1, 1),
                pointwise(PW_LOG, wide, NULL, NULL, out, -1, 1)};
    assert_int_equal(finish_graph(2, d), CUDNN_STATUS_BAD_PARAM); /* id 1 is two tensors */
    desc op = make(BT_OP_POINTWISE), p = make(BT_POINTWISE);
    put_int(p, AT_POINTWISE_MODE, BW_POINTWISE_MODE, 999);
    refused(cudnnBackendFinalize(p), CUDNN_STATUS_NOT_SUPPORTED, "999");
    put_int(p, AT_POINTWISE_MODE, BW_POINTWISE_MODE, PW_ADD);
    finish(p);
    put_desc(op, AT_OP_POINTWISE_DESC, p);
    put_desc(op, AT_OP_POINTWISE_X, x);
    put_desc(op, AT_OP_POINTWISE_Y, y);
    refused(cudnnBackendFinalize(op), CUDNN_STATUS_BAD_PARAM, "needs B");
    put_desc(op, AT_OP_POINTWISE_B, wide);
    refused(cudnnBackendFinalize(op), CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "1x2x3x5");
    desc all[] = {x, y, v, w, wide, out, op, p};
    for (int i = 0; i < 8; i++) drop(all[i]);
}

/* A sound graph that mica has not: no configurations, with a text, and no engine. */
static void soft(void **unused)
{
    (void)unused;
    const mica_tensor f = packed(MICA_F32, 1, 2, 3, 4), l = packed(MICA_S32, 1, 1, 1, 1);
    desc x = tensor_desc(1, &f, 'r'), y = tensor_desc(2, &f, 'r'), n = tensor_desc(3, &l, 'r');
    desc op = make(BT_OP_SDPA_FWD);
    const int parts[] = {AT_OP_SDPA_FWD_Q, AT_OP_SDPA_FWD_K, AT_OP_SDPA_FWD_V};
    int64_t count = -1;
    for (int i = 0; i < 3; i++) put_desc(op, parts[i], x);
    put_desc(op, AT_OP_SDPA_FWD_O, y);
    put_desc(op, AT_OP_SDPA_FWD_PAGE_TABLE_K, n);
    finish(op);
    desc g = graph_of(1, &op), engine = make(BT_ENGINE);
    assert_null(config_of(g, HEURISTIC_A, 0, &count));
    assert_int_equal(count, 0);
    put_desc(engine, AT_ENGINE_OPERATION_GRAPH, g);
    put_wide(engine, AT_ENGINE_GLOBAL_INDEX, 0);
    refused(cudnnBackendFinalize(engine), CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "2807");
    desc all[] = {x, y, n, op, g, engine};
    for (int i = 0; i < 6; i++) drop(all[i]);
}

/* Ragged tensors, and booleans that fill no bytes, are not taken for plain ones. */
static void soft_tensors(void **unused)
{
    (void)unused;
    mica_tensor bits = packed(MICA_BOOL, 1, 2, 3, 4), two = packed(MICA_S32, 2, 1, 1, 1);
    bits.strides[1] = 16; /* gaps */
    desc x = tensor_desc(1, some(), 'r'), y = tensor_desc(2, some(), 'r');
    desc mask = tensor_desc(3, &bits, 'r'), offsets = tensor_desc(4, &two, 'r'), ragged;
    desc a[] = {pointwise(PW_SELECT, x, x, mask, y, -1, 1)};
    int64_t count = -1;
    ragged = make(BT_TENSOR);
    put_int(ragged, AT_TENSOR_DATA_TYPE, BW_DATA_TYPE, CUDNN_DATA_FLOAT);
    put(ragged, AT_TENSOR_DIMENSIONS, BW_INT64, 4, some()->dims);
    put(ragged, AT_TENSOR_STRIDES, BW_INT64, 4, some()->strides);
    put_wide(ragged, AT_TENSOR_UNIQUE_ID, 5);
    put_wide(ragged, AT_TENSOR_BYTE_ALIGNMENT, 16);
    put_desc(ragged, AT_TENSOR_RAGGED_OFFSET, offsets);
    finish(ragged);
    desc b[] = {pointwise(PW_EXP, ragged, NULL, NULL, y, -1, 1)};
    for (int i = 0; i < 2; i++) {
        desc g = graph_of(1, i ? b : a);
        assert_null(config_of(g, HEURISTIC_A, 0, &count));
        assert_int_equal(count, 0);
        drop(g);
        drop(i ? *b : *a);
    }
    desc all[] = {x, y, mask, offsets, ragged};
    for (int i = 0; i < 5; i++) drop(all[i]);
}

/* Descriptors made, set, finalized and asked at random; some of them sensible. */
static void random_programs(void **unused)
{
    (void)unused;
    static const struct {
        unsigned number;
        int owner, type, child;
    } rows[] = {
#define A(owner, name, number, type, child, most, access)                                          \
    {number, BT_##owner, BW_##type, BT_##child},
#include "backend_attributes.def"
#undef A
    };
    enum { ROWS = sizeof rows / sizeof *rows, POOL = 40 };
    const char *rounds = getenv("MICA_FUZZ_ROUNDS");
    for (int round = 0; round < (rounds ? atoi(rounds) : 300); round++) {
        desc pool[POOL] = {NULL};
        int type[POOL], made = 0;
        for (int step = 0; step < 400; step++) {
            const int i = made ? draw(made) : 0, what = draw(10);
            if (made < POOL && (!made || what == 0)) {
                type[made] = draw(3) ? rows[draw(ROWS)].owner : draw(51);
                pool[made] = make(type[made]);
                made++;
            } else if (what < 7) {
                int r = draw(ROWS);
                for (int k = 0; k < 300 && rows[r].owner != type[i]; k++) r = draw(ROWS);
                int64_t numbers[8];
                desc children[8];
                const void *elements = numbers;
                for (int k = 0; k < 8; k++) {
                    numbers[k] = draw(5) ? 1 + draw(4) : draw(400) - 20;
                    children[k] = pool[draw(made)];
                    for (int tries = 0; tries < 20 && rows[r].child >= 0; tries++) {
                        const int c = draw(made);
                        if (type[c] == rows[r].child) children[k] = pool[c];
                    }
                }
                unsigned wire = (unsigned)rows[r].type;
                if (wire == BW_REAL) wire = draw(2) ? BW_FLOAT : BW_DOUBLE;
                if (wire == BW_SEED) wire = draw(2) ? BW_INT64 : BW_DESCRIPTOR;
                if (!draw(40)) wire = (unsigned)draw(36);
                if (wire == BW_DESCRIPTOR) elements = children;
                if (wire == BW_HANDLE) children[0] = handle, elements = children;
                if (wire == BW_POINTER || wire == BW_FRACTION) continue;
                cudnnBackendSetAttribute(pool[i], rows[r].number, wire,
                                         wire == BW_HANDLE ? 1
                                         : draw(5)         ? 4 - draw(4)
                                                           : draw(9),
                                         elements);
            } else if (what < 9) {
                cudnnBackendFinalize(pool[i]);
            } else {
                int64_t count, numbers[512];
                const int r = draw(ROWS);
                if (rows[r].type == BW_DESCRIPTOR) continue;
                cudnnBackendGetAttribute(pool[i], rows[r].number, (unsigned)rows[r].type, draw(30),
                                         &count, draw(4) ? numbers : NULL);
            }
        }
        for (int i = 0; i < made; i++) drop(pool[i]);
    }
}

/* Random graphs of a few small operations: refused or run, and never out of bounds. */
static void random_graphs(void **unused)
{
    (void)unused;
    const char *rounds = getenv("MICA_FUZZ_ROUNDS");
    int served = 0;
    for (int round = 0; round < (rounds ? atoi(rounds) : 150); round++) {
        static const mica_dtype types[] = {MICA_F32, MICA_F16, MICA_BF16, MICA_S32, MICA_F64};
        enum { TENSORS = 10 };
        desc tensors[TENSORS], ops[8];
        mica_tensor t[TENSORS];
        void *data[TENSORS];
        int64_t uids[TENSORS];
        int count = 0;
        for (int i = 0; i < TENSORS; i++) {
            t[i] = packed(draw(4) ? MICA_F32 : types[draw(5)], 1 + draw(2), 1 + draw(2) * 3, 4, 4);
            for (int k = 2; k < 4; k++)
                if (!draw(6)) t[i].dims[k] = 1;
            if (!draw(4)) t[i].strides[2] = 1, t[i].strides[3] = 4;
            tensors[i] = tensor_desc(uids[i] = i, &t[i], draw(3) ? 'r' : 'v');
            assert_int_equal(mica_malloc(memory, 4096, &data[i]), MICA_OK);
            assert_int_equal(mica_memset(memory, data[i], 0, 4096, NULL), MICA_OK);
        }
        for (int i = 0; i < 1 + draw(5); i++) {
            desc x = tensors[draw(TENSORS)], b = tensors[draw(TENSORS)], y = tensors[draw(TENSORS)];
            const int kind = draw(3);
            desc d = make(kind == 0 ? BT_POINTWISE : kind == 1 ? BT_MATMUL : BT_REDUCTION), op;
            if (kind == 0) {
                static const int modes[] = {0, 1, 2, 3, 6, 9, 13, 21, 100, 303, 501, 601};
                op = make(BT_OP_POINTWISE);
                put_int(d, AT_POINTWISE_MODE, BW_POINTWISE_MODE, modes[draw(12)]);
                put_wide(d, AT_POINTWISE_AXIS, draw(4));
                finish(d);
                put_desc(op, AT_OP_POINTWISE_DESC, d);
                put_desc(op, AT_OP_POINTWISE_X, x);
                put_desc(op, AT_OP_POINTWISE_B, b);
                put_desc(op, AT_OP_POINTWISE_T, tensors[draw(TENSORS)]);
                put_desc(op, AT_OP_POINTWISE_Y, y);
                put_float(op, AT_OP_POINTWISE_ALPHA2, (float)draw(3));
            } else if (kind == 1) {
                op = make(BT_OP_MATMUL);
                put_int(d, AT_MATMUL_COMP_TYPE, BW_DATA_TYPE, CUDNN_DATA_FLOAT);
                finish(d);
                put_desc(op, AT_OP_MATMUL_DESC, d);
                put_desc(op, AT_OP_MATMUL_A, x);
                put_desc(op, AT_OP_MATMUL_B, b);
                put_desc(op, AT_OP_MATMUL_C, y);
            } else {
                op = make(BT_OP_REDUCTION);
                put_int(d, AT_REDUCTION_OPERATOR, BW_REDUCTION_OPERATOR, draw(REDUCTION_KINDS));
                put_int(d, AT_REDUCTION_COMP_TYPE, BW_DATA_TYPE, CUDNN_DATA_FLOAT);
                finish(d);
                put_desc(op, AT_OP_REDUCTION_DESC, d);
                put_desc(op, AT_OP_REDUCTION_X, x);
                put_desc(op, AT_OP_REDUCTION_Y, y);
            }
            drop(d);
            if (cudnnBackendFinalize(op) == CUDNN_STATUS_SUCCESS)
                ops[count++] = op;
            else
                drop(op);
        }
        desc g = make(BT_GRAPH);
        if (count) put(g, AT_GRAPH_OPS, BW_DESCRIPTOR, count, ops);
        put(g, AT_GRAPH_HANDLE, BW_HANDLE, 1, &handle);
        desc config = NULL, plan = make(BT_PLAN);
        if (count && cudnnBackendFinalize(g) == CUDNN_STATUS_SUCCESS)
            config = config_of(g, HEURISTIC_INSTANT, 0, NULL);
        if (config) put_desc(plan, AT_PLAN_ENGINE_CONFIG, config);
        if (config && cudnnBackendFinalize(plan) == CUDNN_STATUS_SUCCESS)
            served += run_plan(plan, TENSORS, uids, data) == CUDNN_STATUS_SUCCESS;
        if (config) drop(config);
        drop(plan);
        drop(g);
        for (int i = 0; i < count; i++) drop(ops[i]);
        for (int i = 0; i < TENSORS; i++) {
            drop(tensors[i]);
            mica_free(memory, data[i]);
        }
    }
    assert_true(served > 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attributes),   cmocka_unit_test(lifetimes),
        cmocka_unit_test(graphs),       cmocka_unit_test(soft),
        cmocka_unit_test(soft_tensors), cmocka_unit_test(random_programs),
        cmocka_unit_test(random_graphs)};
    return cmocka_run_group_tests(tests, open_device, close_device);
}
