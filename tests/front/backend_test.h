/* SPDX-License-Identifier: Apache-2.0
 * What the tests of the graph interface share: descriptors in a few words, and the sequence of
 * calls of PyTorch from an operation graph to a run, parts destroyed before the whole. */
#ifndef BACKEND_TEST_H
#define BACKEND_TEST_H

#include "backend_abi.h"
#include "front_test.h"

enum {
#define A(owner, name, number, type, child, most, access) AT_##owner##_##name = number,
#include "backend_attributes.def"
#undef A
};

typedef cudnnBackendDescriptor_t desc;

static inline desc make(int type)
{
    desc d = NULL;
    SUCCEEDS(cudnnBackendCreateDescriptor((unsigned)type, &d));
    assert_non_null(d);
    return d;
}

static inline void put(desc d, int attribute, int type, int64_t count, const void *elements)
{
    SUCCEEDS(cudnnBackendSetAttribute(d, (unsigned)attribute, (unsigned)type, count, elements));
}

static inline void put_int(desc d, int attribute, int type, int value)
{
    put(d, attribute, type, 1, &value);
}

static inline void put_wide(desc d, int attribute, int64_t value)
{
    put(d, attribute, BW_INT64, 1, &value);
}

static inline void put_bool(desc d, int attribute, bool value)
{
    put(d, attribute, BW_BOOLEAN, 1, &value);
}

static inline void put_float(desc d, int attribute, float value)
{
    put(d, attribute, BW_FLOAT, 1, &value);
}

static inline void put_desc(desc d, int attribute, desc child)
{
    put(d, attribute, BW_DESCRIPTOR, 1, &child);
}

static inline void finish(desc d)
{
    SUCCEEDS(cudnnBackendFinalize(d));
}

static inline void drop(desc d)
{
    SUCCEEDS(cudnnBackendDestroyDescriptor(d));
}

static inline cudnnDataType_t type_of(mica_dtype dtype)
{
    switch (dtype) {
    case MICA_F64:
        return CUDNN_DATA_DOUBLE;
    case MICA_F16:
        return CUDNN_DATA_HALF;
    case MICA_BF16:
        return CUDNN_DATA_BFLOAT16;
    case MICA_S32:
        return CUDNN_DATA_INT32;
    case MICA_S64:
        return CUDNN_DATA_INT64;
    case MICA_BOOL:
        return CUDNN_DATA_BOOLEAN;
    default:
        return CUDNN_DATA_FLOAT;
    }
}

/* 'v': virtual, 'n': a number by value, 'r': real. */
static inline desc tensor_desc(int64_t uid, const mica_tensor *t, char kind)
{
    desc d = make(BT_TENSOR);
    put_int(d, AT_TENSOR_DATA_TYPE, BW_DATA_TYPE, (int)type_of(t->dtype));
    put(d, AT_TENSOR_DIMENSIONS, BW_INT64, t->rank, t->dims);
    put(d, AT_TENSOR_STRIDES, BW_INT64, t->rank, t->strides);
    put_wide(d, AT_TENSOR_UNIQUE_ID, uid);
    put_wide(d, AT_TENSOR_BYTE_ALIGNMENT, 16);
    if (kind == 'v') put_bool(d, AT_TENSOR_IS_VIRTUAL, true);
    if (kind == 'n') put_bool(d, AT_TENSOR_IS_BY_VALUE, true);
    finish(d);
    return d;
}

/* A pointwise operation; b, t: may be NULL. Its descriptor is destroyed before it is used. */
static inline desc pointwise(int mode, desc x, desc b, desc t, desc y, int64_t axis, float alpha2)
{
    desc p = make(BT_POINTWISE), op = make(BT_OP_POINTWISE);
    put_int(p, AT_POINTWISE_MODE, BW_POINTWISE_MODE, mode);
    put_int(p, AT_POINTWISE_MATH_PREC, BW_DATA_TYPE, CUDNN_DATA_FLOAT);
    if (axis >= 0) put_wide(p, AT_POINTWISE_AXIS, axis);
    finish(p);
    put_desc(op, AT_OP_POINTWISE_DESC, p);
    put_desc(op, AT_OP_POINTWISE_X, x);
    if (b) put_desc(op, AT_OP_POINTWISE_B, b);
    if (t) put_desc(op, AT_OP_POINTWISE_T, t);
    put_desc(op, AT_OP_POINTWISE_Y, y);
    put_float(op, AT_OP_POINTWISE_ALPHA1, 1);
    put_float(op, AT_OP_POINTWISE_ALPHA2, alpha2);
    finish(op);
    drop(p);
    return op;
}

static inline desc matmul(desc a, desc b, desc c)
{
    desc m = make(BT_MATMUL), op = make(BT_OP_MATMUL);
    put_int(m, AT_MATMUL_COMP_TYPE, BW_DATA_TYPE, CUDNN_DATA_FLOAT);
    finish(m);
    put_desc(op, AT_OP_MATMUL_A, a);
    put_desc(op, AT_OP_MATMUL_B, b);
    put_desc(op, AT_OP_MATMUL_C, c);
    put_desc(op, AT_OP_MATMUL_DESC, m);
    finish(op);
    drop(m);
    return op;
}

static inline desc reduction(int kind, desc x, desc y)
{
    desc r = make(BT_REDUCTION), op = make(BT_OP_REDUCTION);
    put_int(r, AT_REDUCTION_OPERATOR, BW_REDUCTION_OPERATOR, kind);
    put_int(r, AT_REDUCTION_COMP_TYPE, BW_DATA_TYPE, CUDNN_DATA_FLOAT);
    put_bool(r, AT_REDUCTION_IS_DETERMINISTIC, false);
    finish(r);
    put_desc(op, AT_OP_REDUCTION_X, x);
    put_desc(op, AT_OP_REDUCTION_Y, y);
    put_desc(op, AT_OP_REDUCTION_DESC, r);
    finish(op);
    drop(r);
    return op;
}

static inline desc reshape(desc x, desc y)
{
    desc op = make(BT_OP_RESHAPE);
    put_desc(op, AT_OP_RESHAPE_X, x);
    put_desc(op, AT_OP_RESHAPE_Y, y);
    finish(op);
    return op;
}

static inline desc bernoulli(desc seed, desc offset, desc y, double keep)
{
    desc r = make(BT_RNG), op = make(BT_OP_RNG);
    put_int(r, AT_RNG_DISTRIBUTION, BW_RNG_DISTRIBUTION, RNG_BERNOULLI);
    put(r, AT_RNG_BERNOULLI_PROBABILITY, BW_DOUBLE, 1, &keep);
    finish(r);
    put_desc(op, AT_OP_RNG_Y, y);
    put_desc(op, AT_OP_RNG_SEED, seed);
    put_desc(op, AT_OP_RNG_OFFSET, offset);
    put_desc(op, AT_OP_RNG_DESC, r);
    finish(op);
    drop(r);
    return op;
}

static inline desc graph_of(int count, const desc *ops)
{
    desc g = make(BT_GRAPH);
    put(g, AT_GRAPH_OPS, BW_DESCRIPTOR, count, ops);
    put(g, AT_GRAPH_HANDLE, BW_HANDLE, 1, &handle);
    finish(g);
    return g;
}

/* Configuration `which` of a mode, as many as are there in *count; NULL: there is none such. */
static inline desc config_of(desc graph, int mode, int which, int64_t *count)
{
    desc h = make(BT_HEURISTICS), configs[16], found = NULL;
    int64_t told = 0, filled = 0;
    put_desc(h, AT_HEURISTICS_OPERATION_GRAPH, graph);
    put_int(h, AT_HEURISTICS_MODE, BW_HEURISTIC_MODE, mode);
    finish(h);
    SUCCEEDS(cudnnBackendGetAttribute(h, AT_HEURISTICS_RESULTS, BW_DESCRIPTOR, 0, &told, NULL));
    assert_in_range(told, 0, 16);
    for (int64_t i = 0; i < told; i++) configs[i] = make(BT_CONFIG);
    SUCCEEDS(
        cudnnBackendGetAttribute(h, AT_HEURISTICS_RESULTS, BW_DESCRIPTOR, told, &filled, configs));
    assert_int_equal(filled, told);
    drop(h);
    for (int64_t i = 0; i < told; i++) {
        if (i == which)
            found = configs[i];
        else
            drop(configs[i]);
    }
    if (count) *count = told;
    return found;
}

static inline desc plan_of(desc config)
{
    desc p = make(BT_PLAN);
    put(p, AT_PLAN_HANDLE, BW_HANDLE, 1, &handle);
    put_desc(p, AT_PLAN_ENGINE_CONFIG, config);
    finish(p);
    return p;
}

static inline int64_t workspace_of(desc plan)
{
    int64_t bytes = -1;
    SUCCEEDS(cudnnBackendGetAttribute(plan, AT_PLAN_WORKSPACE_SIZE, BW_INT64, 1, NULL, &bytes));
    return bytes;
}

static inline cudnnStatus_t run_plan(desc plan, int count, const int64_t *uids, void **pointers)
{
    desc pack = make(BT_PACK);
    const int64_t bytes = workspace_of(plan);
    void *space = NULL, *workspace = NULL; /* it may lie anywhere */
    if (bytes) assert_int_equal(mica_malloc(memory, bytes + 16, &space), MICA_OK);
    if (bytes) workspace = (char *)space + 16;
    put(pack, AT_PACK_DATA_POINTERS, BW_POINTER, count, pointers);
    put(pack, AT_PACK_UNIQUE_IDS, BW_INT64, count, uids);
    put(pack, AT_PACK_WORKSPACE, BW_POINTER, 1, &workspace);
    finish(pack);
    cudnnStatus_t status = cudnnBackendExecute(handle, plan, pack);
    drop(pack);
    assert_int_equal(mica_synchronize(memory, NULL), MICA_OK);
    mica_free(memory, space);
    return status;
}

/* Builds engine `which`, destroys graph and operations first, and runs it. */
static inline void run_ops(int count, desc *ops, int which, int tensors, const int64_t *uids,
                           void **pointers)
{
    desc g = graph_of(count, ops);
    desc config = config_of(g, HEURISTIC_INSTANT, which, NULL);
    for (int i = 0; i < count; i++) drop(ops[i]);
    if (!config) {
        char text[1024];
        cudnnGetLastErrorString(text, sizeof text);
        fail_msg("no configuration: %s", text);
    }
    drop(g);
    desc plan = plan_of(config);
    SUCCEEDS(run_plan(plan, tensors, uids, pointers));
    drop(config);
    drop(plan);
}

static inline mica_tensor packed(mica_dtype type, int a, int b, int c, int d)
{
    return mica_tensor_packed(type, 4, (const int64_t[]){a, b, c, d});
}

static inline array array_like(mica_tensor t, double low, double high)
{
    array a = array_of(t, type_of(t.dtype));
    for (int64_t i = 0; i < a.count; i++) a.v[i] = low + (high - low) * draw(1025) / 1024;
    array_write(&a);
    return a;
}

/* Runs one operation; operands are destroyed before. */
static inline void run_one(desc op, desc *operands, int count, const int64_t *uids, void **pointers)
{
    for (int i = 0; i < count; i++) drop(operands[i]);
    run_ops(1, &op, 0, count, uids, pointers);
}

#endif
