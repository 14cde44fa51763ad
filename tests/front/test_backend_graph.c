/* SPDX-License-Identifier: Apache-2.0
 * Operation graphs node by node, against plain loops: products with groups, reductions, changes of
 * shape, random numbers, pooling. */
#include "backend_test.h"

/* ---- products and reductions ---- */

static void products(void **unused)
{
    (void)unused;
    static const int heads[][3] = {{4, 4, 4}, {4, 2, 4}, {1, 4, 4}, {4, 1, 4}, {2, 6, 6}};
    for (int i = 0; i < 5; i++)
        for (int t = 0; t < 2; t++) {
            const int ha = heads[i][0], hb = heads[i][1], hc = heads[i][2];
            array a = array_new(CUDNN_DATA_FLOAT, NCHW, (const int[]){2, ha, 3, 5, 0});
            array b = array_new(CUDNN_DATA_FLOAT, NCHW, (const int[]){2, hb, 5, 4, 0});
            array c = array_new(CUDNN_DATA_FLOAT, NCHW, (const int[]){2, hc, 3, 4, 0});
            desc parts[] = {tensor_desc(1, &a.t, 'r'), tensor_desc(2, &b.t, 'r'),
                            tensor_desc(3, &c.t, 'r')};
            desc op = matmul(parts[0], parts[1], parts[2]);
            for (int k = 0; k < 3; k++) drop(parts[k]);
            run_ops(1, &op, t, 3, (const int64_t[]){1, 2, 3}, (void *[]){a.data, b.data, c.data});
            double expected[2 * 6 * 12];
            for (int e = 0; e < 2 * hc * 12; e++) {
                const int n = e / (hc * 12), h = e / 12 % hc, row = e / 4 % 3, col = e % 4;
                const int ga = h / (hc / ha), gb = h / (hc / hb);
                expected[e] = 0;
                for (int k = 0; k < 5; k++)
                    expected[e] += a.v[((n * ha + ga) * 3 + row) * 5 + k] *
                                   b.v[((n * hb + gb) * 5 + k) * 4 + col];
            }
            array_is(&c, expected, 2, 1);
            array_free(&a);
            array_free(&b);
            array_free(&c);
        }
}

static double reduced(int kind, const double *v, int count)
{
    double r = kind == 1 || kind == 8 ? 1 : kind == 2 ? INFINITY : kind == 3 ? -INFINITY : 0;
    for (int i = 0; i < count; i++) {
        switch (kind) {
        case 1:
            r *= v[i];
            break;
        case 2:
            r = fmin(r, v[i]);
            break;
        case 3:
            r = fmax(r, v[i]);
            break;
        case 4:
            r = fmax(r, fabs(v[i]));
            break;
        case 6:
            r += fabs(v[i]);
            break;
        case 7:
            r += v[i] * v[i];
            break;
        case 8:
            r *= v[i] != 0 ? v[i] : 1;
            break;
        default:
            r += v[i];
        }
    }
    return kind == 5 ? r / count : kind == 7 ? sqrt(r) : r;
}

/* All kinds over one dimension; in parts of a dimension; over nothing. */
static void reductions(void **unused)
{
    (void)unused;
    for (int kind = 0; kind < REDUCTION_KINDS; kind++)
        for (int out = 0; out < 3; out++) {
            const int left = out == 0 ? 1 : out == 1 ? 2 : 6;
            array x = array_new(CUDNN_DATA_FLOAT, NCHW, (const int[]){2, 6, 3, 1, 0});
            array y = array_new(CUDNN_DATA_FLOAT, NHWC, (const int[]){2, left, 3, 1, 0});
            desc parts[] = {tensor_desc(1, &x.t, 'r'), tensor_desc(2, &y.t, 'r')};
            desc op = reduction(kind, parts[0], parts[1]);
            run_one(op, parts, 2, (const int64_t[]){1, 2}, (void *[]){x.data, y.data});
            double expected[36], v[6];
            for (int e = 0; e < 2 * left * 3; e++) {
                const int n = e / (left * 3), c = e / 3 % left, row = e % 3, count = 6 / left;
                for (int i = 0; i < count; i++) v[i] = x.v[(n * 6 + c * count + i) * 3 + row];
                expected[e] = reduced(kind, v, count);
            }
            array_is(&y, expected, 4, 1);
            array_free(&x);
            array_free(&y);
        }
}

/* What IDENTITY repeats counts as often as it is there. */
static void repeated(void **unused)
{
    (void)unused;
    array x = array_new(CUDNN_DATA_FLOAT, NCHW, (const int[]){2, 3, 1, 1, 0});
    array y = array_new(CUDNN_DATA_FLOAT, NCHW, (const int[]){2, 3, 1, 1, 0});
    const mica_tensor wide = packed(MICA_F32, 2, 3, 4, 5);
    desc parts[] = {tensor_desc(1, &x.t, 'r'), tensor_desc(2, &y.t, 'r'),
                    tensor_desc(3, &wide, 'v')};
    desc ops[] = {pointwise(PW_IDENTITY, parts[0], NULL, NULL, parts[2], -1, 1),
                  reduction(CUDNN_REDUCE_TENSOR_ADD, parts[2], parts[1])};
    for (int i = 0; i < 3; i++) drop(parts[i]);
    run_ops(2, ops, 0, 2, (const int64_t[]){1, 2}, (void *[]){x.data, y.data});
    double expected[6];
    for (int i = 0; i < 6; i++) expected[i] = 20 * x.v[i];
    array_is(&y, expected, 4, 1);
    array_free(&x);
    array_free(&y);
}

/* Sums and sums of squares by channel. */
static void statistics(void **unused)
{
    (void)unused;
    array x = array_new(CUDNN_DATA_FLOAT, NHWC, (const int[]){2, 3, 4, 5, 0});
    array sum = array_new(CUDNN_DATA_FLOAT, NCHW, (const int[]){1, 3, 1, 1, 0});
    array squares = array_new(CUDNN_DATA_FLOAT, NCHW, (const int[]){1, 3, 1, 1, 0});
    desc parts[] = {tensor_desc(1, &x.t, 'r'), tensor_desc(2, &sum.t, 'r'),
                    tensor_desc(3, &squares.t, 'r')},
         op = make(BT_OP_GENSTATS);
    put_int(op, AT_OP_GENSTATS_MODE, BW_GENSTATS_MODE, 0);
    put_int(op, AT_OP_GENSTATS_MATH_PREC, BW_DATA_TYPE, CUDNN_DATA_FLOAT);
    put_desc(op, AT_OP_GENSTATS_X, parts[0]);
    put_desc(op, AT_OP_GENSTATS_SUM, parts[1]);
    put_desc(op, AT_OP_GENSTATS_SQUARES, parts[2]);
    finish(op);
    run_one(op, parts, 3, (const int64_t[]){1, 2, 3}, (void *[]){x.data, sum.data, squares.data});
    double sums[3] = {0}, more[3] = {0};
    for (int i = 0; i < 120; i++) sums[i / 20 % 3] += x.v[i], more[i / 20 % 3] += x.v[i] * x.v[i];
    array_is(&sum, sums, 4, 1);
    array_is(&squares, more, 4, 1);
    array_free(&x);
    array_free(&sum);
    array_free(&squares);
}

/* ---- shapes ---- */

static void shapes(void **unused)
{
    (void)unused;
    array x = array_new(CUDNN_DATA_FLOAT, NCHW, (const int[]){2, 3, 4, 5, 0});
    mica_tensor turned = packed(MICA_BF16, 2, 3, 5, 4);
    turned.strides[2] = 1, turned.strides[3] = 5;
    array y[] = {array_like(turned, 7, 7), array_like(packed(MICA_F32, 2, 4, 15, 1), 7, 7),
                 array_like(packed(MICA_F32, 5, 2, 4, 3), 7, 7),
                 array_like(packed(MICA_F32, 1, 2, 2, 3), 7, 7),
                 array_like(packed(MICA_F32, 2, 3, 4, 10), 7, 7)};
    const int64_t perm[] = {3, 0, 2, 1}, start[] = {1, 1, 0, 1}, limit[] = {2, 3, 4, 4};
    const int64_t steps[] = {1, 1, 2, 1};
    desc tx = tensor_desc(1, &x.t, 'r'), ty[5], ops[5];
    for (int i = 0; i < 5; i++) ty[i] = tensor_desc(2 + i, &y[i].t, 'r');
    ops[0] = reshape(tx, ty[0]);
    ops[1] = reshape(tx, ty[1]);
    ops[2] = make(BT_OP_TRANSPOSE);
    put_desc(ops[2], AT_OP_TRANSPOSE_X, tx);
    put_desc(ops[2], AT_OP_TRANSPOSE_Y, ty[2]);
    put(ops[2], AT_OP_TRANSPOSE_PERMUTATION, BW_INT64, 4, perm);
    ops[3] = make(BT_OP_SLICE);
    put_desc(ops[3], AT_OP_SLICE_X, tx);
    put_desc(ops[3], AT_OP_SLICE_Y, ty[3]);
    put(ops[3], AT_OP_SLICE_START, BW_INT64, 4, start);
    put(ops[3], AT_OP_SLICE_LIMIT, BW_INT64, 4, limit);
    put(ops[3], AT_OP_SLICE_STRIDES, BW_INT64, 4, steps);
    ops[4] = make(BT_OP_CONCAT);
    put(ops[4], AT_OP_CONCAT_INPUTS, BW_DESCRIPTOR, 2, (desc[]){tx, tx});
    put_wide(ops[4], AT_OP_CONCAT_AXIS, 3);
    put_desc(ops[4], AT_OP_CONCAT_Y, ty[4]);
    for (int i = 2; i < 5; i++) finish(ops[i]);
    drop(tx);
    for (int i = 0; i < 5; i++) drop(ty[i]);
    run_ops(5, ops, 0, 6, (const int64_t[]){1, 2, 3, 4, 5, 6},
            (void *[]){x.data, y[0].data, y[1].data, y[2].data, y[3].data, y[4].data});
    double expected[240];
    for (int i = 0; i < 120; i++) /* the same memory with the last two exchanged */
        expected[i] = x.v[i / 20 * 20 + i % 4 * 5 + i / 4 % 5];
    array_is(&y[0], expected, 1, 1);
    array_is(&y[1], x.v, 0, 0);
    for (int i = 0; i < 120; i++)
        expected[i] = x.v[(i / 12 % 2 * 3 + i % 3) * 20 + i / 3 % 4 * 5 + i / 24];
    array_is(&y[2], expected, 0, 0);
    for (int i = 0; i < 12; i++)
        expected[i] = x.v[(3 + 1 + i / 6) * 20 + i / 3 % 2 * 2 * 5 + 1 + i % 3];
    array_is(&y[3], expected, 0, 0);
    for (int i = 0; i < 240; i++) expected[i] = x.v[i / 10 * 5 + i % 5];
    array_is(&y[4], expected, 0, 0);
    array_free(&x);
    for (int i = 0; i < 5; i++) array_free(&y[i]);
}

/* ---- random numbers, pooling, statistics ---- */

static void random_mask(void **unused)
{
    (void)unused;
    const mica_tensor one = packed(MICA_S64, 1, 1, 1, 1);
    array y[2] = {array_like(packed(MICA_F32, 4, 8, 16, 16), 7, 7),
                  array_like(packed(MICA_F32, 4, 8, 16, 16), 7, 7)};
    double *found[2], sum = 0, differ = 0;
    for (int i = 0; i < 2; i++) {
        const int64_t numbers[] = {42, i};
        void *random[2];
        for (int k = 0; k < 2; k++) {
            assert_int_equal(mica_malloc(memory, 8, &random[k]), MICA_OK);
            assert_int_equal(mica_upload(memory, random[k], &numbers[k], 8, NULL), MICA_OK);
        }
        desc parts[] = {tensor_desc(6, &one, 'r'), tensor_desc(7, &one, 'r'),
                        tensor_desc(8, &y[i].t, 'r')};
        desc op = bernoulli(parts[0], parts[1], parts[2], 0.75);
        run_one(op, parts, 3, (const int64_t[]){6, 7, 8},
                (void *[]){random[0], random[1], y[i].data});
        found[i] = array_read(&y[i]);
        for (int k = 0; k < 2; k++) mica_free(memory, random[k]);
    }
    for (int64_t i = 0; i < y[0].count; i++) {
        assert_true(found[0][i] == 0 || found[0][i] == 1);
        sum += found[0][i];
        differ += found[0][i] != found[1][i];
    }
    assert_true(fabs(sum / 8192 - 0.75) < 0.025);     /* five deviations */
    assert_true(fabs(differ / 8192 - 0.375) < 0.027); /* another offset, another mask */
    for (int i = 0; i < 2; i++) {
        free(found[i]);
        array_free(&y[i]);
    }
}

/* A square matrix: a view of it is its transpose, LOGICAL a copy. */
static void square_reshapes(void **unused)
{
    (void)unused;
    for (int mode = RESHAPE_VIEW; mode <= RESHAPE_LOGICAL; mode++) {
        array x = array_new(CUDNN_DATA_FLOAT, NCHW, (const int[]){2, 3, 4, 4, 0});
        mica_tensor turned = packed(MICA_F32, 2, 3, 4, 4);
        turned.strides[2] = 1, turned.strides[3] = 4;
        array y = array_like(turned, 7, 7);
        desc parts[] = {tensor_desc(1, &x.t, 'r'), tensor_desc(2, &y.t, 'r')},
             op = make(BT_OP_RESHAPE);
        put_desc(op, AT_OP_RESHAPE_X, parts[0]);
        put_desc(op, AT_OP_RESHAPE_Y, parts[1]);
        if (mode == RESHAPE_LOGICAL) put_int(op, AT_OP_RESHAPE_MODE, BW_RESHAPE_MODE, mode);
        finish(op);
        run_one(op, parts, 2, (const int64_t[]){1, 2}, (void *[]){x.data, y.data});
        double expected[96];
        for (int i = 0; i < 96; i++)
            expected[i] =
                mode == RESHAPE_LOGICAL ? x.v[i] : x.v[i / 16 * 16 + i % 4 * 4 + i / 4 % 4];
        array_is(&y, expected, 0, 0);
        array_free(&x);
        array_free(&y);
    }
}

/* A seed by value; uniform and normal numbers by their moments. */
static void random_numbers(void **unused)
{
    (void)unused;
    for (int kind = RNG_UNIFORM; kind <= RNG_NORMAL; kind++) {
        array y = array_like(packed(MICA_F32, 4, 8, 16, 16), 99, 99);
        desc r = make(BT_RNG), op = make(BT_OP_RNG), out = tensor_desc(1, &y.t, 'r');
        const double low = 1, high = 3;
        put_int(r, AT_RNG_DISTRIBUTION, BW_RNG_DISTRIBUTION, kind);
        put(r, AT_RNG_UNIFORM_MINIMUM, BW_DOUBLE, 1, &low);
        put(r, AT_RNG_UNIFORM_MAXIMUM, BW_DOUBLE, 1, &high);
        put_float(r, AT_RNG_NORMAL_MEAN, 2);
        put_float(r, AT_RNG_NORMAL_DEVIATION, 0.5f);
        finish(r);
        put_desc(op, AT_OP_RNG_DESC, r);
        put_desc(op, AT_OP_RNG_Y, out);
        put_wide(op, AT_OP_RNG_SEED, 77);
        finish(op);
        drop(r);
        run_one(op, &out, 1, (const int64_t[]){1}, (void *[]){y.data});
        double *found = array_read(&y), mean = 0, square = 0;
        for (int64_t i = 0; i < y.count; i++) {
            mean += found[i] / 8192;
            square += (found[i] - 2) * (found[i] - 2) / 8192;
            if (kind == RNG_UNIFORM) assert_true(found[i] >= low && found[i] <= high);
        }
        assert_true(fabs(mean - 2) < 0.035);
        assert_true(fabs(square - (kind == RNG_UNIFORM ? 1.0 / 3 : 0.25)) < 0.025);
        free(found);
        array_free(&y);
    }
}

static void pooling(void **unused)
{
    (void)unused;
    static const int modes[] = {RESAMPLE_MAX, RESAMPLE_AVG, RESAMPLE_AVG_INSIDE};
    for (int m = 0; m < 3; m++) {
        array x = array_new(CUDNN_DATA_FLOAT, NHWC, (const int[]){1, 2, 5, 6, 0});
        array y = array_new(CUDNN_DATA_FLOAT, NHWC, (const int[]){1, 2, 3, 3, 0});
        const int64_t window[] = {3, 2}, stride[] = {2, 2}, pad[] = {1, 0};
        desc r = make(BT_RESAMPLE), op = make(BT_OP_RESAMPLE_FWD);
        put_int(r, AT_RESAMPLE_MODE, BW_RESAMPLE_MODE, modes[m]);
        put_int(r, AT_RESAMPLE_COMP_TYPE, BW_DATA_TYPE, CUDNN_DATA_FLOAT);
        put_wide(r, AT_RESAMPLE_SPATIAL_DIMS, 2);
        put(r, AT_RESAMPLE_WINDOW_DIMS, BW_INT64, 2, window);
        put(r, AT_RESAMPLE_STRIDES, BW_INT64, 2, stride);
        put(r, AT_RESAMPLE_PRE_PADDINGS, BW_INT64, 2, pad);
        put(r, AT_RESAMPLE_POST_PADDINGS, BW_INT64, 2, pad);
        put_int(r, AT_RESAMPLE_PADDING_MODE, BW_PADDING_MODE, m ? PADDING_ZERO : PADDING_NEG_INF);
        finish(r);
        desc parts[] = {tensor_desc(1, &x.t, 'r'), tensor_desc(2, &y.t, 'r')};
        put_desc(op, AT_OP_RESAMPLE_FWD_DESC, r);
        put_desc(op, AT_OP_RESAMPLE_FWD_X, parts[0]);
        put_desc(op, AT_OP_RESAMPLE_FWD_Y, parts[1]);
        finish(op);
        drop(r);
        run_one(op, parts, 2, (const int64_t[]){1, 2}, (void *[]){x.data, y.data});
        double expected[18];
        for (int e = 0; e < 18; e++) {
            double max = -INFINITY, sum = 0, inside = 0;
            for (int t = 0; t < 6; t++) {
                const int row = e / 3 % 3 * 2 - 1 + t / 2, col = e % 3 * 2 + t % 2;
                if (row < 0 || row > 4) continue;
                const double v = x.v[(e / 9 * 5 + row) * 6 + col];
                max = fmax(max, v), sum += v, inside++;
            }
            expected[e] = m == 0 ? max : sum / (m == 1 ? 6 : inside);
        }
        array_is(&y, expected, 2, 1);
        array_free(&x);
        array_free(&y);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products),    cmocka_unit_test(repeated),
        cmocka_unit_test(statistics),  cmocka_unit_test(reductions),
        cmocka_unit_test(shapes),      cmocka_unit_test(square_reshapes),
        cmocka_unit_test(random_mask), cmocka_unit_test(random_numbers),
        cmocka_unit_test(pooling)};
    return cmocka_run_group_tests(tests, open_device, close_device);
}
