/* SPDX-License-Identifier: Apache-2.0
 * Norms of the graph interface against plain loops. */
#include "backend_test.h"

typedef struct norm_case {
    int kind, n, c, h, w;
    int sets; /* over all but dimension 1; all but 0; all but both */
} norm_case;

static int set_of(const norm_case *p, int i)
{
    const int inner = p->h * p->w, n = i / (p->c * inner), c = i / inner % p->c;
    return p->kind == NORM_BATCH ? c : p->kind == NORM_INSTANCE ? n * p->c + c : n;
}

/* Forward with statistics, then backward from them. */
static void norms(void **unused)
{
    (void)unused;
    const norm_case cases[] = {{NORM_LAYER, 6, 8, 1, 1, 6},
                               {NORM_RMS, 6, 8, 1, 1, 6},
                               {NORM_BATCH, 3, 4, 3, 2, 4},
                               {NORM_INSTANCE, 2, 3, 4, 3, 6}};
    for (int k = 0; k < 4; k++) {
        const norm_case *p = &cases[k];
        const int inner = p->h * p->w, count = p->n * p->c * inner, size = count / p->sets;
        const bool rms = p->kind == NORM_RMS;
        const mica_tensor of_c = packed(MICA_F32, 1, p->c, 1, 1);
        const mica_tensor stat =
            p->kind == NORM_BATCH
                ? of_c
                : packed(MICA_F32, p->n, p->kind == NORM_INSTANCE ? p->c : 1, 1, 1);
        const mica_tensor one = packed(MICA_F32, 1, 1, 1, 1);
        array x = array_like(packed(MICA_F32, p->n, p->c, p->h, p->w), -2, 2);
        array y = array_like(x.t, 7, 7), dy = array_like(x.t, -2, 2), dx = array_like(x.t, 7, 7);
        array scale = array_like(of_c, 0.5, 2), bias = array_like(of_c, -1, 1);
        array mean = array_like(stat, 7, 7), rstd = array_like(stat, 7, 7);
        array dscale = array_like(of_c, 7, 7), dbias = array_like(of_c, 7, 7);
        float epsilon = 1e-3f;
        desc op = make(BT_OP_NORM_FWD);
        desc parts[] = {tensor_desc(1, &x.t, 'r'),     tensor_desc(2, &y.t, 'r'),
                        tensor_desc(3, &scale.t, 'r'), tensor_desc(4, &bias.t, 'r'),
                        tensor_desc(5, &rstd.t, 'r'),  tensor_desc(6, &mean.t, 'r'),
                        tensor_desc(7, &one, 'n')};
        put_int(op, AT_OP_NORM_FWD_MODE, BW_NORM_MODE, p->kind);
        put_int(op, AT_OP_NORM_FWD_PHASE, BW_NORM_PHASE, NORM_TRAINING);
        put_desc(op, AT_OP_NORM_FWD_X, parts[0]);
        put_desc(op, AT_OP_NORM_FWD_Y, parts[1]);
        put_desc(op, AT_OP_NORM_FWD_SCALE, parts[2]);
        if (!rms) put_desc(op, AT_OP_NORM_FWD_BIAS, parts[3]);
        put_desc(op, AT_OP_NORM_FWD_INV_VARIANCE, parts[4]);
        if (!rms) put_desc(op, AT_OP_NORM_FWD_MEAN, parts[5]);
        put_desc(op, AT_OP_NORM_FWD_EPSILON, parts[6]);
        finish(op);
        run_one(op, parts, 7, (const int64_t[]){1, 2, 3, 4, 5, 6, 7},
                (void *[]){x.data, y.data, scale.data, bias.data, rstd.data, mean.data, &epsilon});
        double m[8] = {0}, r[8] = {0}, a[8] = {0}, b[8] = {0}, ds[8] = {0}, db[8] = {0};
        double *expected = calloc((size_t)count, sizeof *expected);
        for (int i = 0; i < count && !rms; i++) m[set_of(p, i)] += x.v[i] / size;
        for (int i = 0; i < count; i++) r[set_of(p, i)] += pow(x.v[i] - m[set_of(p, i)], 2) / size;
        for (int i = 0; i < p->sets; i++) r[i] = 1 / sqrt(r[i] + (double)epsilon);
        for (int i = 0; i < count; i++) {
            const int s = set_of(p, i), c = i / inner % p->c;
            const double unit = (x.v[i] - m[s]) * r[s];
            expected[i] = unit * scale.v[c] + (rms ? 0 : bias.v[c]);
            a[s] += dy.v[i] * scale.v[c] / size;
            b[s] += dy.v[i] * scale.v[c] * unit / size;
            ds[c] += dy.v[i] * unit;
            db[c] += dy.v[i];
        }
        array_is(&y, expected, 16, 2);
        array_is(&rstd, r, 16, 1);
        if (!rms) array_is(&mean, m, 16, 1);
        for (int i = 0; i < count; i++) {
            const int s = set_of(p, i), c = i / inner % p->c;
            expected[i] =
                r[s] * (dy.v[i] * scale.v[c] - (rms ? 0 : a[s]) - (x.v[i] - m[s]) * r[s] * b[s]);
        }
        desc back = make(BT_OP_NORM_BWD);
        desc more[] = {tensor_desc(1, &x.t, 'r'),      tensor_desc(2, &dy.t, 'r'),
                       tensor_desc(3, &scale.t, 'r'),  tensor_desc(4, &dx.t, 'r'),
                       tensor_desc(5, &rstd.t, 'r'),   tensor_desc(6, &mean.t, 'r'),
                       tensor_desc(7, &dscale.t, 'r'), tensor_desc(8, &dbias.t, 'r')};
        put_int(back, AT_OP_NORM_BWD_MODE, BW_NORM_MODE, p->kind);
        put_desc(back, AT_OP_NORM_BWD_X, more[0]);
        put_desc(back, AT_OP_NORM_BWD_DY, more[1]);
        put_desc(back, AT_OP_NORM_BWD_SCALE, more[2]);
        put_desc(back, AT_OP_NORM_BWD_DX, more[3]);
        put_desc(back, AT_OP_NORM_BWD_INV_VARIANCE, more[4]);
        if (!rms) put_desc(back, AT_OP_NORM_BWD_MEAN, more[5]);
        put_desc(back, AT_OP_NORM_BWD_DSCALE, more[6]);
        if (!rms) put_desc(back, AT_OP_NORM_BWD_DBIAS, more[7]);
        finish(back);
        run_one(back, more, 8, (const int64_t[]){1, 2, 3, 4, 5, 6, 7, 8},
                (void *[]){x.data, dy.data, scale.data, dx.data, rstd.data, mean.data, dscale.data,
                           dbias.data});
        array_is(&dx, expected, 64, 4);
        array_is(&dscale, ds, 64, 8);
        if (!rms) array_is(&dbias, db, 64, 8);
        array *all[] = {&x, &y, &dy, &dx, &scale, &bias, &mean, &rstd, &dscale, &dbias};
        for (int i = 0; i < 10; i++) array_free(all[i]);
        free(expected);
    }
}

/* Batch normalisation with statistics that are given. */
static void norm_inference(void **unused)
{
    (void)unused;
    array x = array_new(CUDNN_DATA_FLOAT, NHWC, (const int[]){2, 3, 2, 2, 0});
    array y = array_new(CUDNN_DATA_FLOAT, NHWC, (const int[]){2, 3, 2, 2, 0}), p[4];
    static const int places[] = {AT_OP_NORM_FWD_MEAN, AT_OP_NORM_FWD_INV_VARIANCE,
                                 AT_OP_NORM_FWD_SCALE, AT_OP_NORM_FWD_BIAS};
    desc op = make(BT_OP_NORM_FWD);
    desc parts[6] = {tensor_desc(1, &x.t, 'r'), tensor_desc(2, &y.t, 'r')};
    put_int(op, AT_OP_NORM_FWD_MODE, BW_NORM_MODE, NORM_BATCH);
    put_int(op, AT_OP_NORM_FWD_PHASE, BW_NORM_PHASE, NORM_INFERENCE);
    put_desc(op, AT_OP_NORM_FWD_X, parts[0]);
    put_desc(op, AT_OP_NORM_FWD_Y, parts[1]);
    for (int i = 0; i < 4; i++) {
        p[i] = array_new(CUDNN_DATA_FLOAT, NCHW, (const int[]){1, 3, 1, 1, 0});
        parts[2 + i] = tensor_desc(3 + i, &p[i].t, 'r');
        put_desc(op, places[i], parts[2 + i]);
    }
    finish(op);
    run_one(op, parts, 6, (const int64_t[]){1, 2, 3, 4, 5, 6},
            (void *[]){x.data, y.data, p[0].data, p[1].data, p[2].data, p[3].data});
    double expected[24];
    for (int i = 0; i < 24; i++) {
        const int c = i / 4 % 3;
        expected[i] = (x.v[i] - p[0].v[c]) * p[1].v[c] * p[2].v[c] + p[3].v[c];
    }
    array_is(&y, expected, 4, 1);
    array_free(&x);
    array_free(&y);
    for (int i = 0; i < 4; i++) array_free(&p[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(norms), cmocka_unit_test(norm_inference)};
    return cmocka_run_group_tests(tests, open_device, close_device);
}
