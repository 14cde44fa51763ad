/* SPDX-License-Identifier: Apache-2.0
 * Gradients of resampling: averages, and maxima that go by an index tensor of the forward pass or
 * by x; index tensors of all types, which count the elements of a window. */
#include "backend_test.h"

enum { N = 2, C = 3, H = 7, W = 6, P = 4, R = 4 }; /* x: H x W, y: P x R */
static const int64_t window[] = {3, 2}, stride[] = {2, 2}, pad[] = {1, 1};

static desc resample(int mode)
{
    desc r = make(BT_RESAMPLE);
    put_int(r, AT_RESAMPLE_MODE, BW_RESAMPLE_MODE, mode);
    put_int(r, AT_RESAMPLE_COMP_TYPE, BW_DATA_TYPE, CUDNN_DATA_FLOAT);
    put_wide(r, AT_RESAMPLE_SPATIAL_DIMS, 2);
    put(r, AT_RESAMPLE_WINDOW_DIMS, BW_INT64, 2, window);
    put(r, AT_RESAMPLE_STRIDES, BW_INT64, 2, stride);
    put(r, AT_RESAMPLE_PRE_PADDINGS, BW_INT64, 2, pad);
    put(r, AT_RESAMPLE_POST_PADDINGS, BW_INT64, 2, pad);
    put_int(r, AT_RESAMPLE_PADDING_MODE, BW_PADDING_MODE,
            mode == RESAMPLE_MAX ? PADDING_NEG_INF : PADDING_ZERO);
    finish(r);
    return r;
}

/* Element t of window e: its place in x, or -1 of padding. */
static int64_t element(int64_t e, int64_t t)
{
    const int64_t row = e / R % P * 2 - 1 + t / 2, col = e % R * 2 - 1 + t % 2;
    if (row < 0 || row >= H || col < 0 || col >= W) return -1;
    return (e / (P * R) * H + row) * W + col;
}

static int winner(const array *x, int64_t e)
{
    int best = -1;
    for (int t = 0; t < 6; t++)
        if (element(e, t) >= 0 && (best < 0 || x->v[element(e, t)] > x->v[element(e, best)]))
            best = t;
    return best;
}

static void expect(const array *x, const array *dy, int mode, double *dx)
{
    for (int64_t e = 0; e < dy->count; e++) {
        int inside = 0;
        for (int t = 0; t < 6; t++) inside += element(e, t) >= 0;
        for (int t = 0; t < 6; t++)
            if (element(e, t) >= 0 && (mode != RESAMPLE_MAX || winner(x, e) == t))
                dx[element(e, t)] += dy->v[e] / (mode == RESAMPLE_MAX   ? 1
                                                 : mode == RESAMPLE_AVG ? 6
                                                                        : inside);
    }
}

static array array_typed(mica_dtype type, cudnnDataType_t number, layout order)
{
    const int64_t dims[] = {N, C, P, R};
    array a = array_of(order == NHWC ? mica_tensor_channels_last(type, 4, dims)
                                     : mica_tensor_packed(type, 4, dims),
                       number);
    for (int64_t i = 0; i < a.count; i++) a.v[i] = 99;
    array_write(&a);
    return a;
}

static desc int8_desc(int64_t uid, const mica_tensor *t)
{
    desc d = make(BT_TENSOR);
    put_int(d, AT_TENSOR_DATA_TYPE, BW_DATA_TYPE, CUDNN_DATA_INT8);
    put(d, AT_TENSOR_DIMENSIONS, BW_INT64, t->rank, t->dims);
    put(d, AT_TENSOR_STRIDES, BW_INT64, t->rank, t->strides);
    put_wide(d, AT_TENSOR_UNIQUE_ID, uid);
    put_wide(d, AT_TENSOR_BYTE_ALIGNMENT, 16);
    finish(d);
    return d;
}

static desc index_desc(int64_t uid, const array *index)
{
    return index->t.dtype == MICA_S8 ? int8_desc(uid, &index->t) : tensor_desc(uid, &index->t, 'r');
}

/* index: NULL, or what the forward pass writes and the gradient reads. */
static void run_gradient(int mode, cudnnDataType_t type, layout order, array *index, bool given_x)
{
    array x = array_new(type, order, (const int[]){N, C, H, W, 0});
    array y = array_filled(type, order, (const int[]){N, C, P, R, 0}, NAN);
    array dy = array_new(type, order, (const int[]){N, C, P, R, 0});
    array dx = array_filled(type, order, (const int[]){N, C, H, W, 0}, NAN);
    double *expected = calloc((size_t)dx.count, sizeof *expected);
    expect(&x, &dy, mode, expected);
    desc r = resample(mode), op;
    if (index) {
        desc parts[] = {tensor_desc(1, &x.t, 'r'), tensor_desc(2, &y.t, 'r'), index_desc(3, index)};
        op = make(BT_OP_RESAMPLE_FWD);
        put_desc(op, AT_OP_RESAMPLE_FWD_DESC, r);
        put_desc(op, AT_OP_RESAMPLE_FWD_X, parts[0]);
        put_desc(op, AT_OP_RESAMPLE_FWD_Y, parts[1]);
        put_desc(op, AT_OP_RESAMPLE_FWD_INDEX, parts[2]);
        finish(op);
        run_one(op, parts, 3, (const int64_t[]){1, 2, 3}, (void *[]){x.data, y.data, index->data});
        double *found = array_read(index), *high = array_read(&y);
        for (int64_t e = 0; e < y.count; e++) {
            assert_true(found[e] == winner(&x, e));
            assert_true(high[e] == x.v[element(e, winner(&x, e))]);
        }
        free(found);
        free(high);
    }
    desc parts[] = {tensor_desc(4, &dy.t, 'r'), tensor_desc(5, &dx.t, 'r'),
                    given_x ? tensor_desc(1, &x.t, 'r')
                    : index ? index_desc(3, index)
                            : NULL};
    op = make(BT_OP_RESAMPLE_BWD);
    put_desc(op, AT_OP_RESAMPLE_BWD_DESC, r);
    put_desc(op, AT_OP_RESAMPLE_BWD_DY, parts[0]);
    put_desc(op, AT_OP_RESAMPLE_BWD_DX, parts[1]);
    if (given_x)
        put_desc(op, AT_OP_RESAMPLE_BWD_X, parts[2]);
    else if (index)
        put_desc(op, AT_OP_RESAMPLE_BWD_INDEX, parts[2]);
    finish(op);
    drop(r);
    run_one(op, parts, 2 + (given_x || index), (const int64_t[]){4, 5, given_x ? 1 : 3},
            (void *[]){dy.data, dx.data,
                       given_x ? x.data
                       : index ? index->data
                               : NULL});
    array_is(&dx, expected, 2, 1);
    free(expected);
    array_free(&x);
    array_free(&y);
    array_free(&dy);
    array_free(&dx);
}

static void gradients(void **unused)
{
    (void)unused;
    static const struct {
        mica_dtype type;
        cudnnDataType_t number;
    } types[] = {
        {MICA_S8, CUDNN_DATA_INT8}, {MICA_S32, CUDNN_DATA_INT32}, {MICA_S64, CUDNN_DATA_INT64}};
    for (int order = NCHW; order <= NHWC; order++) {
        const layout o = (layout)order;
        run_gradient(RESAMPLE_AVG, CUDNN_DATA_FLOAT, o, NULL, false);
        run_gradient(RESAMPLE_AVG_INSIDE, CUDNN_DATA_HALF, o, NULL, false);
        run_gradient(RESAMPLE_MAX, CUDNN_DATA_FLOAT, o, NULL, true);
        for (int i = 0; i < 3; i++) {
            array index = array_typed(types[i].type, types[i].number, o);
            run_gradient(RESAMPLE_MAX, CUDNN_DATA_FLOAT, o, &index, false);
            array_free(&index);
        }
    }
}

/* A maximum that nothing is known of; sizes that windows do not lead to. */
static void refusals(void **unused)
{
    (void)unused;
    const mica_tensor x = packed(MICA_F32, N, C, H, W), y = packed(MICA_F32, N, C, P, R);
    desc r = resample(RESAMPLE_MAX), dx = tensor_desc(1, &x, 'r'), dy = tensor_desc(2, &y, 'r');
    desc op = make(BT_OP_RESAMPLE_BWD), other = make(BT_OP_RESAMPLE_BWD);
    char text[256];
    put_desc(op, AT_OP_RESAMPLE_BWD_DESC, r);
    put_desc(op, AT_OP_RESAMPLE_BWD_DY, dy);
    put_desc(op, AT_OP_RESAMPLE_BWD_DX, dx);
    finish(op);
    desc g = graph_of(1, &op);
    assert_null(config_of(g, HEURISTIC_A, 0, NULL));
    cudnnGetLastErrorString(text, sizeof text);
    assert_non_null(strstr(text, "without index tensor and X"));
    put_desc(other, AT_OP_RESAMPLE_BWD_DESC, r);
    put_desc(other, AT_OP_RESAMPLE_BWD_DY, dx);
    put_desc(other, AT_OP_RESAMPLE_BWD_DX, dy);
    assert_int_equal(cudnnBackendFinalize(other), CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH);
    desc all[] = {r, dx, dy, op, other, g};
    for (int i = 0; i < 6; i++) drop(all[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(gradients), cmocka_unit_test(refusals)};
    return cmocka_run_group_tests(tests, open_device, close_device);
}
