/* SPDX-License-Identifier: Apache-2.0
 * Recurrent nets of the drop-in: weights where cudnnGetRNNWeightParams says, forward against plain
 * loops, gradients against differences of those loops, sequences of unequal lengths in all layouts,
 * dropout that is the same in both directions. */
#include "front_test.h"

enum { T = 4, B = 3, I = 3, H = 4, L = 2 };

typedef struct net {
    cudnnRNNMode_t cell;
    cudnnRNNBiasMode_t bias;
    cudnnDataType_t type;
    int sides, projection; /* 0: none */
    cudnnRNNDataLayout_t layout;
    int lengths[B];
    /* made from these */
    cudnnRNNDescriptor_t rnn;
    cudnnDropoutDescriptor_t dropout;
    cudnnRNNDataDescriptor_t x_desc, y_desc;
    int64_t weights;
    array x, y, w, hx, cx, hy, cy;
} net;

static int bytes_of(cudnnDataType_t type)
{
    return type == CUDNN_DATA_DOUBLE ? 8 : type == CUDNN_DATA_FLOAT ? 4 : 2;
}

static int out_of(const net *n)
{
    return n->projection ? n->projection : H;
}

/* Element of a step in the memory of a layout; -1 behind a packed sequence's end. */
static int64_t place(const net *n, int size, int t, int b, int i)
{
    int64_t row = 0;
    switch (n->layout) {
    case CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED:
        row = t * B + b;
        break;
    case CUDNN_RNN_DATA_LAYOUT_BATCH_MAJOR_UNPACKED:
        row = b * T + t;
        break;
    default:
        if (t >= n->lengths[b]) return -1;
        for (int s = 0; s <= t; s++)
            for (int k = 0; k < B; k++)
                if ((s < t || k < b) && n->lengths[k] > s) row++;
    }
    return row * size + i;
}

static void set_up(net *n, float drop)
{
    SUCCEEDS(cudnnCreateDropoutDescriptor(&n->dropout));
    size_t bytes;
    void *states;
    SUCCEEDS(cudnnDropoutGetStatesSize(handle, &bytes));
    assert_int_equal(mica_malloc(memory, (int64_t)bytes, &states), MICA_OK);
    SUCCEEDS(cudnnSetDropoutDescriptor(n->dropout, handle, drop, states, bytes, 11));
    SUCCEEDS(cudnnCreateRNNDescriptor(&n->rnn));
    SUCCEEDS(cudnnSetRNNDescriptor_v8(
        n->rnn, CUDNN_RNN_ALGO_STANDARD, n->cell, n->bias,
        n->sides == 2 ? CUDNN_BIDIRECTIONAL : CUDNN_UNIDIRECTIONAL, CUDNN_LINEAR_INPUT, n->type,
        n->type == CUDNN_DATA_DOUBLE ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT, CUDNN_FMA_MATH, I, H,
        n->projection ? n->projection : H, L, n->dropout, 1));
    const int out = out_of(n);
    float fill = 0;
    double fill64 = 0;
    void *padding = n->type == CUDNN_DATA_DOUBLE ? (void *)&fill64 : (void *)&fill;
    SUCCEEDS(cudnnCreateRNNDataDescriptor(&n->x_desc));
    SUCCEEDS(cudnnCreateRNNDataDescriptor(&n->y_desc));
    SUCCEEDS(
        cudnnSetRNNDataDescriptor(n->x_desc, n->type, n->layout, T, B, I, n->lengths, padding));
    SUCCEEDS(cudnnSetRNNDataDescriptor(n->y_desc, n->type, n->layout, T, B, n->sides * out,
                                       n->lengths, padding));
    SUCCEEDS(cudnnGetRNNWeightSpaceSize(handle, n->rnn, &bytes));
    n->weights = (int64_t)bytes / bytes_of(n->type);
    int rows = T * B;
    if (n->layout == CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_PACKED)
        rows = n->lengths[0] + n->lengths[1] + n->lengths[2];
    n->x = array_new(n->type, NCHW, (int[]){rows * I, 0});
    n->y = array_filled(n->type, NCHW, (int[]){rows * n->sides * out, 0}, 0);
    n->w = array_new(n->type, NCHW, (int[]){(int)n->weights, 0});
    /* Odd enough that nothing lies at the kink of relu. */
    for (int64_t i = 0; i < n->weights; i++) n->w.v[i] = n->w.v[i] / 4 + draw(1000) / 79190.0;
    array_write(&n->w);
    n->hx = array_new(n->type, NCHW, (int[]){L * n->sides, B, out, 0});
    n->cx = array_new(n->type, NCHW, (int[]){L * n->sides, B, H, 0});
    n->hy = array_new(n->type, NCHW, (int[]){L * n->sides, B, out, 0});
    n->cy = array_new(n->type, NCHW, (int[]){L * n->sides, B, H, 0});
}

static void tear_down(net *n)
{
    void *states;
    SUCCEEDS(cudnnGetDropoutDescriptor(n->dropout, handle, NULL, &states, NULL));
    mica_free(memory, states);
    SUCCEEDS(cudnnDestroyDropoutDescriptor(n->dropout));
    SUCCEEDS(cudnnDestroyRNNDescriptor(n->rnn));
    SUCCEEDS(cudnnDestroyRNNDataDescriptor(n->x_desc));
    SUCCEEDS(cudnnDestroyRNNDataDescriptor(n->y_desc));
    array *all[] = {&n->x, &n->y, &n->w, &n->hx, &n->cx, &n->hy, &n->cy};
    for (int i = 0; i < 7; i++) array_free(all[i]);
}

/* Elements of a matrix (or bias) from the beginning of the weights; -1 if the net has none. */
static int64_t part(const net *n, int pseudo, int linear, bool bias, int *cols)
{
    cudnnTensorDescriptor_t m, b;
    char base[1];
    void *matrix = base, *vector = base;
    SUCCEEDS(cudnnCreateTensorDescriptor(&m));
    SUCCEEDS(cudnnCreateTensorDescriptor(&b));
    SUCCEEDS(cudnnGetRNNWeightParams(handle, n->rnn, pseudo, 0, n->w.data, linear, m, &matrix, b,
                                     &vector));
    int rank, dims[3], strides[3];
    cudnnDataType_t type;
    SUCCEEDS(cudnnGetTensorNdDescriptor(bias ? b : m, 3, &type, &rank, dims, strides));
    assert_int_equal(rank, 3);
    if (cols) *cols = dims[2];
    SUCCEEDS(cudnnDestroyTensorDescriptor(m));
    SUCCEEDS(cudnnDestroyTensorDescriptor(b));
    void *found = bias ? vector : matrix;
    if (!found) return -1;
    return ((char *)found - (char *)n->w.data) / bytes_of(n->type);
}

static double dot(const net *n, int pseudo, int linear, int row, const double *v)
{
    int cols;
    int64_t m = part(n, pseudo, linear, false, &cols), b = part(n, pseudo, linear, true, NULL);
    double sum = b < 0 ? 0 : n->w.v[b + row];
    for (int i = 0; i < cols; i++) sum += n->w.v[m + row * cols + i] * v[i];
    return sum;
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static void step(const net *n, int pseudo, const double *x, double *h, double *c)
{
    double z[8][H], next[H];
    const int gates = n->cell == CUDNN_LSTM ? 4 : n->cell == CUDNN_GRU ? 3 : 1;
    for (int g = 0; g < gates; g++)
        for (int i = 0; i < H; i++) {
            z[g][i] = dot(n, pseudo, g, i, x);
            z[4 + g][i] = dot(n, pseudo, gates + g, i, h);
        }
    for (int i = 0; i < H; i++) {
        double a = z[0][i] + z[4][i];
        if (n->cell == CUDNN_RNN_RELU) next[i] = fmax(a, 0);
        if (n->cell == CUDNN_RNN_TANH) next[i] = tanh(a);
        if (n->cell == CUDNN_LSTM) {
            c[i] = sigmoid(z[1][i] + z[5][i]) * c[i] + sigmoid(a) * tanh(z[2][i] + z[6][i]);
            next[i] = sigmoid(z[3][i] + z[7][i]) * tanh(c[i]);
        }
        if (n->cell == CUDNN_GRU) {
            double u = sigmoid(z[1][i] + z[5][i]), m = tanh(z[2][i] + sigmoid(a) * z[6][i]);
            next[i] = (1 - u) * m + u * h[i];
        }
    }
    for (int i = 0; i < out_of(n); i++) h[i] = n->projection ? dot(n, pseudo, 8, i, next) : next[i];
}

/* y in the layout's order, hy and cy, from the values that the arrays hold. */
static void reference(const net *n, double *y, double *hy, double *cy)
{
    const int out = out_of(n), size = n->sides * out;
    double below[T][B][2 * H], above[T][B][2 * H] = {0};
    for (int t = 0; t < T; t++)
        for (int b = 0; b < B; b++)
            for (int i = 0; i < I; i++) {
                int64_t at_x = place(n, I, t, b, i);
                below[t][b][i] = at_x < 0 ? 0 : n->x.v[at_x];
            }
    for (int l = 0; l < L; l++) {
        for (int d = 0; d < n->sides; d++)
            for (int b = 0; b < B; b++) {
                const int pseudo = l * n->sides + d;
                double h[H], c[H];
                for (int i = 0; i < out; i++) h[i] = n->hx.v[(pseudo * B + b) * out + i];
                for (int i = 0; i < H; i++) c[i] = n->cx.v[(pseudo * B + b) * H + i];
                for (int s = 0; s < n->lengths[b]; s++) {
                    int t = d ? n->lengths[b] - 1 - s : s;
                    step(n, pseudo, below[t][b], h, c);
                    for (int i = 0; i < out; i++) above[t][b][d * out + i] = h[i];
                }
                for (int i = 0; i < out; i++) hy[(pseudo * B + b) * out + i] = h[i];
                for (int i = 0; i < H; i++) cy[(pseudo * B + b) * H + i] = c[i];
            }
        memcpy(below, above, sizeof below);
    }
    for (int t = 0; t < T; t++)
        for (int b = 0; b < B; b++)
            for (int i = 0; i < size; i++) {
                int64_t at_y = place(n, size, t, b, i);
                if (at_y >= 0) y[at_y] = above[t][b][i];
            }
}

typedef struct spaces {
    void *workspace, *reserve;
    size_t workspace_bytes, reserve_bytes;
} spaces;

static spaces take_spaces(const net *n)
{
    spaces s;
    SUCCEEDS(cudnnGetRNNTempSpaceSizes(handle, n->rnn, CUDNN_FWD_MODE_TRAINING, n->x_desc,
                                       &s.workspace_bytes, &s.reserve_bytes));
    assert_int_equal(mica_malloc(memory, (int64_t)s.workspace_bytes, &s.workspace), MICA_OK);
    assert_int_equal(mica_malloc(memory, (int64_t)s.reserve_bytes, &s.reserve), MICA_OK);
    return s;
}

static void free_spaces(spaces *s)
{
    mica_free(memory, s->workspace);
    mica_free(memory, s->reserve);
}

static void forward(net *n, cudnnForwardMode_t mode, const spaces *s)
{
    SUCCEEDS(cudnnRNNForward(handle, n->rnn, mode, NULL, n->x_desc, n->x.data, n->y_desc, n->y.data,
                             n->hx.desc, n->hx.data, n->hy.data, n->cx.desc, n->cx.data, n->cy.data,
                             (size_t)n->w.bytes, n->w.data, s->workspace_bytes, s->workspace,
                             s->reserve_bytes, s->reserve));
}

static const net nets[] = {
    {.cell = CUDNN_LSTM,
     .bias = CUDNN_RNN_DOUBLE_BIAS,
     .type = CUDNN_DATA_DOUBLE,
     .sides = 1,
     .projection = 0,
     .layout = CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED,
     .lengths = {T, T, T}},
    {.cell = CUDNN_LSTM,
     .bias = CUDNN_RNN_DOUBLE_BIAS,
     .type = CUDNN_DATA_DOUBLE,
     .sides = 2,
     .projection = 2,
     .layout = CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_PACKED,
     .lengths = {4, 2, 1}},
    {.cell = CUDNN_GRU,
     .bias = CUDNN_RNN_DOUBLE_BIAS,
     .type = CUDNN_DATA_DOUBLE,
     .sides = 2,
     .projection = 0,
     .layout = CUDNN_RNN_DATA_LAYOUT_BATCH_MAJOR_UNPACKED,
     .lengths = {1, 4, 3}},
    {.cell = CUDNN_RNN_TANH,
     .bias = CUDNN_RNN_SINGLE_REC_BIAS,
     .type = CUDNN_DATA_DOUBLE,
     .sides = 1,
     .projection = 0,
     .layout = CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_PACKED,
     .lengths = {3, 3, 1}},
    {.cell = CUDNN_RNN_RELU,
     .bias = CUDNN_RNN_NO_BIAS,
     .type = CUDNN_DATA_DOUBLE,
     .sides = 2,
     .projection = 0,
     .layout = CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED,
     .lengths = {T, 2, T}},
    {.cell = CUDNN_LSTM,
     .bias = CUDNN_RNN_SINGLE_INP_BIAS,
     .type = CUDNN_DATA_FLOAT,
     .sides = 2,
     .projection = 0,
     .layout = CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED,
     .lengths = {T, T, T}},
    {.cell = CUDNN_GRU,
     .bias = CUDNN_RNN_DOUBLE_BIAS,
     .type = CUDNN_DATA_FLOAT,
     .sides = 1,
     .projection = 0,
     .layout = CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_PACKED,
     .lengths = {4, 4, 2}},
    {.cell = CUDNN_LSTM,
     .bias = CUDNN_RNN_DOUBLE_BIAS,
     .type = CUDNN_DATA_HALF,
     .sides = 2,
     .projection = 0,
     .layout = CUDNN_RNN_DATA_LAYOUT_BATCH_MAJOR_UNPACKED,
     .lengths = {T, 3, T}},
    {.cell = CUDNN_GRU,
     .bias = CUDNN_RNN_DOUBLE_BIAS,
     .type = CUDNN_DATA_BFLOAT16,
     .sides = 1,
     .projection = 0,
     .layout = CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_PACKED,
     .lengths = {4, 3, 1}},
};

static void test_forward(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < sizeof nets / sizeof *nets; i++) {
        net n = nets[i];
        set_up(&n, 0);
        spaces s = take_spaces(&n);
        double y[T * B * 2 * H] = {0}, hy[L * 2 * B * H], cy[L * 2 * B * H];
        reference(&n, y, hy, cy);
        for (int mode = 0; mode < 2; mode++) {
            forward(&n, (cudnnForwardMode_t)mode, &s);
            /* Of 16 bits, h is rounded after each step, and the next one reads it. */
            const double units = bytes_of(n.type) == 2 ? 4 * T : 64;
            array_is(&n.y, y, units, 1);
            array_is(&n.hy, hy, units, 1);
            if (n.cell == CUDNN_LSTM) array_is(&n.cy, cy, units, 2);
        }
        free_spaces(&s);
        tear_down(&n);
    }
}

/* The sum that the gradients below are of. */
static double objective(const net *n, const array *dy, const array *dhy, const array *dcy)
{
    double y[T * B * 2 * H] = {0}, hy[L * 2 * B * H], cy[L * 2 * B * H], sum = 0;
    reference(n, y, hy, cy);
    for (int64_t i = 0; i < dy->count; i++) sum += y[i] * dy->v[i];
    for (int64_t i = 0; i < dhy->count; i++) sum += hy[i] * dhy->v[i];
    for (int64_t i = 0; n->cell == CUDNN_LSTM && i < dcy->count; i++) sum += cy[i] * dcy->v[i];
    return sum;
}

/* A few elements of a gradient against central differences by that element. */
static void check_gradient(const char *name, net *n, array *of, const array *gradient,
                           const array *dy, const array *dhy, const array *dcy, double old)
{
    double *found = array_read(gradient);
    for (int k = 0; k < 12; k++) {
        int64_t i = draw((int)of->count);
        const double kept = of->v[i], h = 1e-5;
        of->v[i] = kept + h;
        double above = objective(n, dy, dhy, dcy);
        of->v[i] = kept - h;
        double difference = (above - objective(n, dy, dhy, dcy)) / (2 * h);
        of->v[i] = kept;
        difference += old * gradient->v[i];
        if (fabs(found[i] - difference) > 1e-7 * fmax(1, fabs(difference)))
            fail_msg("gradient of %s, element %lld: %.12g, not %.12g", name, (long long)i, found[i],
                     difference);
    }
    free(found);
}

static void test_gradients(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < 5; i++) {
        net n = nets[i];
        set_up(&n, 0);
        spaces s = take_spaces(&n);
        array dy = array_of(n.y.t, n.type), dhy = array_of(n.hy.t, n.type);
        array dcy = array_of(n.cy.t, n.type), dx = array_of(n.x.t, n.type);
        array dhx = array_of(n.hx.t, n.type), dcx = array_of(n.cx.t, n.type);
        array dw = array_new(n.type, NCHW, (int[]){(int)n.weights, 0});
        array *draws[] = {&dy, &dhy, &dcy};
        for (int k = 0; k < 3; k++) {
            for (int64_t j = 0; j < draws[k]->count; j++) draws[k]->v[j] = (draw(17) - 8) / 8.0;
            array_write(draws[k]);
        }
        forward(&n, CUDNN_FWD_MODE_TRAINING, &s);
        SUCCEEDS(cudnnRNNBackwardData_v8(handle, n.rnn, NULL, n.y_desc, n.y.data, dy.data, n.x_desc,
                                         dx.data, n.hx.desc, n.hx.data, dhy.data, dhx.data,
                                         n.cx.desc, n.cx.data, dcy.data, dcx.data,
                                         (size_t)n.w.bytes, n.w.data, s.workspace_bytes,
                                         s.workspace, s.reserve_bytes, s.reserve));
        const cudnnWgradMode_t mode = i % 2 ? CUDNN_WGRAD_MODE_SET : CUDNN_WGRAD_MODE_ADD;
        SUCCEEDS(cudnnRNNBackwardWeights_v8(handle, n.rnn, mode, NULL, n.x_desc, n.x.data,
                                            n.hx.desc, n.hx.data, n.y_desc, n.y.data,
                                            (size_t)n.w.bytes, dw.data, s.workspace_bytes,
                                            s.workspace, s.reserve_bytes, s.reserve));
        /* Behind the end of a sequence nothing depends on x or dy. */
        check_gradient("x", &n, &n.x, &dx, &dy, &dhy, &dcy, 0);
        check_gradient("hx", &n, &n.hx, &dhx, &dy, &dhy, &dcy, 0);
        if (n.cell == CUDNN_LSTM) check_gradient("cx", &n, &n.cx, &dcx, &dy, &dhy, &dcy, 0);
        check_gradient("w", &n, &n.w, &dw, &dy, &dhy, &dcy, mode == CUDNN_WGRAD_MODE_ADD ? 1 : 0);
        array *all[] = {&dy, &dhy, &dcy, &dx, &dhx, &dcx, &dw};
        for (int k = 0; k < 7; k++) array_free(all[k]);
        free_spaces(&s);
        tear_down(&n);
    }
}

/* Each training run draws anew, a restored state draws again; inference drops nothing. */
static void test_dropout(void **unused)
{
    (void)unused;
    net n = nets[0];
    set_up(&n, 0.5f);
    spaces s = take_spaces(&n);
    forward(&n, CUDNN_FWD_MODE_INFERENCE, &s);
    double *whole = array_read(&n.y);
    forward(&n, CUDNN_FWD_MODE_TRAINING, &s);
    double *first = array_read(&n.y);
    forward(&n, CUDNN_FWD_MODE_TRAINING, &s);
    double *second = array_read(&n.y);
    void *states;
    SUCCEEDS(cudnnGetDropoutDescriptor(n.dropout, handle, NULL, &states, NULL));
    SUCCEEDS(cudnnSetDropoutDescriptor(n.dropout, handle, 0.5f, states, 256, 11));
    forward(&n, CUDNN_FWD_MODE_TRAINING, &s);
    double *again = array_read(&n.y);
    const size_t bytes = (size_t)n.y.count * sizeof *first;
    assert_memory_not_equal(whole, first, bytes);
    assert_memory_not_equal(first, second, bytes);
    assert_memory_equal(first, again, bytes);
    free(whole), free(first), free(second), free(again);
    free_spaces(&s);
    tear_down(&n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forward),
        cmocka_unit_test(test_gradients),
        cmocka_unit_test(test_dropout),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
