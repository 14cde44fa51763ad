/* SPDX-License-Identifier: Apache-2.0
 * Convolutions for tests: values, plain loops and the operation. */
#ifndef BACKEND_CONV_TEST_H
#define BACKEND_CONV_TEST_H

#include "backend_test.h"

typedef struct problem {
    cudnnDataType_t type;
    layout order;
    int axes, n, c, k, groups, x[3], w[3], pad[3], after[3], stride[3], dilation[3];
    int mode;
    double alpha, beta;
} problem;

static inline int64_t out_of(const problem *p, int i)
{
    const int span = (p->w[i] - 1) * p->dilation[i] + 1;
    return (p->x[i] + p->pad[i] + p->after[i] - span) / p->stride[i] + 1;
}

typedef struct setting {
    array x, w, y;
} setting;

static inline setting set_up(const problem *p)
{
    int x[6] = {p->n, p->c}, w[6] = {p->k, p->c / p->groups}, y[6] = {p->n, p->k};
    for (int i = 0; i < p->axes; i++) {
        x[2 + i] = p->x[i];
        w[2 + i] = p->w[i];
        y[2 + i] = (int)out_of(p, i);
    }
    return (setting){array_new(p->type, p->order, x), array_new(p->type, p->order, w),
                     array_new(p->type, p->order, y)};
}

static inline void tear_down(setting *s)
{
    array_free(&s->x);
    array_free(&s->w);
    array_free(&s->y);
}

/* alpha * products + beta * old content of which of x, w, y is `out`. */
static inline double *convolve(const problem *p, const setting *s, char out)
{
    const array *result = out == 'x' ? &s->x : out == 'w' ? &s->w : &s->y;
    const int64_t *yd = s->y.t.dims, *wd = s->w.t.dims;
    double *sums = calloc((size_t)result->count + 1, sizeof *sums);
    int64_t taps = 1, pixels = 1;
    for (int i = 0; i < p->axes; i++) taps *= wd[2 + i], pixels *= yd[2 + i];
    for (int64_t n = 0; n < p->n; n++)
        for (int64_t k = 0; k < p->k; k++)
            for (int64_t q = 0; q < pixels; q++)
                for (int64_t c = 0; c < wd[1]; c++)
                    for (int64_t t = 0; t < taps; t++) {
                        int64_t yi[5] = {n, k}, wi[5] = {k, c};
                        int64_t xi[5] = {n, k / (p->k / p->groups) * wd[1] + c};
                        bool inside = true;
                        for (int64_t i = p->axes - 1, rq = q, rt = t; i >= 0; i--) {
                            const int64_t tap = rt % wd[2 + i];
                            yi[2 + i] = rq % yd[2 + i], rq /= yd[2 + i], rt /= wd[2 + i];
                            wi[2 + i] = p->mode == CUDNN_CONVOLUTION ? wd[2 + i] - 1 - tap : tap;
                            xi[2 + i] = yi[2 + i] * p->stride[i] - p->pad[i] + tap * p->dilation[i];
                            inside = inside && xi[2 + i] >= 0 && xi[2 + i] < p->x[i];
                        }
                        if (!inside) continue;
                        const int64_t xa = at(&s->x.t, xi), wa = at(&s->w.t, wi);
                        const int64_t ya = at(&s->y.t, yi);
                        if (out == 'y') sums[ya] += s->x.v[xa] * s->w.v[wa];
                        if (out == 'x') sums[xa] += s->y.v[ya] * s->w.v[wa];
                        if (out == 'w') sums[wa] += s->y.v[ya] * s->x.v[xa];
                    }
    for (int64_t i = 0; i < result->count; i++)
        sums[i] = p->alpha * sums[i] + (p->beta != 0 ? p->beta * result->v[i] : 0);
    return sums;
}

static inline desc conv_desc(const problem *p)
{
    desc d = make(BT_CONVOLUTION);
    int64_t pre[3], post[3], stride[3], dilation[3];
    for (int i = 0; i < p->axes; i++) {
        pre[i] = p->pad[i], post[i] = p->after[i];
        stride[i] = p->stride[i], dilation[i] = p->dilation[i];
    }
    put_int(d, AT_CONVOLUTION_COMP_TYPE, BW_DATA_TYPE,
            p->type == CUDNN_DATA_DOUBLE ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT);
    put_int(d, AT_CONVOLUTION_CONV_MODE, BW_CONVOLUTION_MODE, p->mode);
    put_wide(d, AT_CONVOLUTION_SPATIAL_DIMS, p->axes);
    put(d, AT_CONVOLUTION_PRE_PADDINGS, BW_INT64, p->axes, pre);
    put(d, AT_CONVOLUTION_POST_PADDINGS, BW_INT64, p->axes, post);
    put(d, AT_CONVOLUTION_DILATIONS, BW_INT64, p->axes, dilation);
    put(d, AT_CONVOLUTION_FILTER_STRIDES, BW_INT64, p->axes, stride);
    finish(d);
    return d;
}

static inline void put_factor(desc op, int attribute, cudnnDataType_t type, double value)
{
    if (type == CUDNN_DATA_DOUBLE)
        put(op, attribute, BW_DOUBLE, 1, &value);
    else
        put_float(op, attribute, (float)value);
}

static inline desc conv_op(const problem *p, int type, desc x, desc w, desc y)
{
    static const int places[][6] = {{AT_CONV_FWD_X, AT_CONV_FWD_W, AT_CONV_FWD_Y, AT_CONV_FWD_DESC,
                                     AT_CONV_FWD_ALPHA, AT_CONV_FWD_BETA},
                                    {AT_CONV_WGRAD_X, AT_CONV_WGRAD_DW, AT_CONV_WGRAD_DY,
                                     AT_CONV_WGRAD_DESC, AT_CONV_WGRAD_ALPHA, AT_CONV_WGRAD_BETA},
                                    {AT_CONV_DGRAD_DX, AT_CONV_DGRAD_W, AT_CONV_DGRAD_DY,
                                     AT_CONV_DGRAD_DESC, AT_CONV_DGRAD_ALPHA, AT_CONV_DGRAD_BETA}};
    const int *at = places[type - BT_CONV_FWD];
    desc op = make(type), d = conv_desc(p);
    put_desc(op, at[0], x);
    put_desc(op, at[1], w);
    put_desc(op, at[2], y);
    put_desc(op, at[3], d);
    put_factor(op, at[4], p->type, p->alpha);
    put_factor(op, at[5], p->type, p->beta);
    finish(op);
    drop(d);
    return op;
}

#define ONES                                                                                       \
    {                                                                                              \
        1, 1, 1                                                                                    \
    }
#define PLAIN .mode = CUDNN_CROSS_CORRELATION, .alpha = 1

#endif
