/* SPDX-License-Identifier: Apache-2.0
 * BOOLEAN tensors in memory, eight elements to a byte in the order of memory: masks that are
 * written, read, and both; and their neighbours, which stay as they are. */
#include "backend_test.h"

enum { COUNT = 2 * 4 * 3 * 6, BYTES = COUNT / 8 };

typedef struct mask {
    mica_tensor t;
    uint8_t host[BYTES + 2];
    char *data; /* the first byte is a neighbour */
} mask;

static mask mask_new(layout order)
{
    mask m = {.t = order == NHWC
                       ? mica_tensor_channels_last(MICA_BOOL, 4, (const int64_t[]){2, 4, 3, 6})
                       : packed(MICA_BOOL, 2, 4, 3, 6)};
    void *data;
    for (int i = 0; i < BYTES + 2; i++) m.host[i] = (uint8_t)draw(256);
    assert_int_equal(mica_malloc(memory, BYTES + 2, &data), MICA_OK);
    assert_int_equal(mica_upload(memory, data, m.host, BYTES + 2, NULL), MICA_OK);
    m.data = data;
    return m;
}

/* Where element i in logical order lies in memory. */
static int64_t place_of(const mica_tensor *t, int64_t i)
{
    int64_t place = 0;
    for (int d = t->rank - 1; d >= 0; i /= t->dims[d], d--) place += i % t->dims[d] * t->strides[d];
    return place;
}

static bool bit(const mask *m, int64_t i)
{
    const int64_t place = place_of(&m->t, i);
    return m->host[1 + place / 8] >> place % 8 & 1;
}

/* It holds x > 0, and nothing beside it has changed. */
static void mask_is(mask *m, const array *x)
{
    const uint8_t first = m->host[0], last = m->host[BYTES + 1];
    assert_int_equal(mica_download(memory, m->host, m->data, BYTES + 2, NULL), MICA_OK);
    for (int64_t i = 0; i < COUNT; i++) assert_int_equal(bit(m, i), x->v[i] > 0);
    assert_int_equal(m->host[0], first);
    assert_int_equal(m->host[BYTES + 1], last);
}

/* y = relu(x); mask = y > 0, in memory and read again; z = mask * x. */
static void written(layout order)
{
    array x = array_new(CUDNN_DATA_FLOAT, order, (const int[]){2, 4, 3, 6, 0});
    array y = array_filled(CUDNN_DATA_FLOAT, order, (const int[]){2, 4, 3, 6, 0}, NAN);
    array z = array_filled(CUDNN_DATA_FLOAT, order, (const int[]){2, 4, 3, 6, 0}, NAN);
    mask m = mask_new(order);
    float zero = 0;
    const mica_tensor one = packed(MICA_F32, 1, 1, 1, 1);
    desc t[] = {tensor_desc(1, &x.t, 'r'), tensor_desc(2, &y.t, 'r'), tensor_desc(3, &m.t, 'r'),
                tensor_desc(4, &z.t, 'r'), tensor_desc(5, &one, 'n')};
    desc ops[] = {pointwise(PW_RELU_FWD, t[0], NULL, NULL, t[1], -1, 1),
                  pointwise(302, t[1], t[4], NULL, t[2], -1, 1),
                  pointwise(PW_MUL, t[2], t[0], NULL, t[3], -1, 1)};
    double expected[COUNT];
    for (int i = 0; i < 5; i++) drop(t[i]);
    run_ops(3, ops, 0, 5, (const int64_t[]){1, 2, 3, 4, 5},
            (void *[]){x.data, y.data, m.data + 1, z.data, &zero});
    for (int i = 0; i < COUNT; i++) expected[i] = fmax(x.v[i], 0);
    array_is(&y, expected, 0, 1);
    array_is(&z, expected, 0, 1);
    mask_is(&m, &x);
    mica_free(memory, m.data);
    array_free(&x);
    array_free(&y);
    array_free(&z);
}

/* y = mask ? a : b * mask */
static void read_again(layout order)
{
    array a = array_new(CUDNN_DATA_HALF, order, (const int[]){2, 4, 3, 6, 0});
    array b = array_new(CUDNN_DATA_HALF, order, (const int[]){2, 4, 3, 6, 0});
    array y = array_filled(CUDNN_DATA_HALF, order, (const int[]){2, 4, 3, 6, 0}, NAN);
    mask m = mask_new(order), n = mask_new(NCHW);
    const mica_tensor wide = packed(MICA_F32, 2, 4, 3, 6);
    desc t[] = {tensor_desc(1, &a.t, 'r'), tensor_desc(2, &b.t, 'r'), tensor_desc(3, &m.t, 'r'),
                tensor_desc(4, &n.t, 'r'), tensor_desc(5, &y.t, 'r'), tensor_desc(6, &wide, 'v')};
    desc ops[] = {pointwise(PW_MUL, t[1], t[3], NULL, t[5], -1, 1),
                  pointwise(PW_SELECT, t[0], t[5], t[2], t[4], -1, 1)};
    double expected[COUNT];
    for (int i = 0; i < 6; i++) drop(t[i]);
    run_ops(2, ops, 0, 5, (const int64_t[]){1, 2, 3, 4, 5},
            (void *[]){a.data, b.data, m.data + 1, n.data + 1, y.data});
    for (int i = 0; i < COUNT; i++) expected[i] = bit(&m, i) ? a.v[i] : bit(&n, i) ? b.v[i] : 0;
    array_is(&y, expected, 0, 1);
    mica_free(memory, m.data);
    mica_free(memory, n.data);
    array_free(&a);
    array_free(&b);
    array_free(&y);
}

static void masks(void **unused)
{
    (void)unused;
    for (int order = NCHW; order <= NHWC; order++) {
        written((layout)order);
        read_again((layout)order);
    }
}

/* One bit more or less than a byte. */
static void no_bytes(void **unused)
{
    (void)unused;
    const mica_tensor t = packed(MICA_BOOL, 1, 1, 3, 3), f = packed(MICA_F32, 1, 1, 3, 3);
    desc m = tensor_desc(1, &t, 'r'), x = tensor_desc(2, &f, 'r');
    desc op = pointwise(302, x, x, NULL, m, -1, 1), g = graph_of(1, &op);
    char text[256];
    assert_null(config_of(g, HEURISTIC_A, 0, NULL));
    cudnnGetLastErrorString(text, sizeof text);
    assert_non_null(strstr(text, "9 elements"));
    drop(g);
    drop(op);
    drop(m);
    drop(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(masks), cmocka_unit_test(no_bytes)};
    return cmocka_run_group_tests(tests, open_device, close_device);
}
