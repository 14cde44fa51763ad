/* SPDX-License-Identifier: Apache-2.0
 * Test data for multi-head attention: weights that keep the size of what they multiply, so that
 * scores stay moderate, and backward results of the forward pass that belong together. */
#include "ops/mha/mha.h"
#include "base/memory.h"
#include "base/random.h"

#include <math.h>

static double value(mica_fill fill, uint64_t seed, uint64_t i)
{
    static const double extreme[] = {0, -0.0, 1, -0.5, 2.5, -1, 0x1p-14, -0x1p-24};
    double u = mica_random_uniform(seed, i);
    switch (fill) {
    case MICA_FILL_SAME_SIGN:
        return 0.5 + u;
    case MICA_FILL_RANGE: /* neighbours nearly cancel */
        u = exp2(5 * mica_random_uniform(seed, i & ~(uint64_t)1) - 4);
        return i & 1 ? -u * (1 + 0x1p-6) : u;
    case MICA_FILL_EXTREME:
        return extreme[mica_random_bits(seed, i) % 8];
    default:
        return mica_random_normal(seed, i);
    }
}

static void fill_floats(const mica_mha_desc *d, int arg, mica_fill fill, uint64_t seed,
                        double *values)
{
    const mica_tensor *t = mica_op_tensor(&mica_op_mha, d, arg);
    mica_load_fn load = mica_dtype_load(t->dtype);
    mica_store_fn store = mica_dtype_store(t->dtype);
    int64_t count = mica_tensor_count(t);
    bool weights = arg >= MICA_MHA_WQ && arg <= MICA_MHA_WO;
    int64_t terms = weights ? t->dims[d->pass == MICA_MHA_FWD ? 1 : 0] : 1;
    double size = 1 / (double)(terms ? terms : 1);
    if (fill != MICA_FILL_SAME_SIGN) size = sqrt(size);
    /* Were keys or values alike, gradients of scores and queries would cancel. */
    if (fill == MICA_FILL_SAME_SIGN && (arg == MICA_MHA_KH || arg == MICA_MHA_VH))
        fill = MICA_FILL_RANDOM;
    seed = mica_random_bits(seed, (uint64_t)arg + 1);
    for (int64_t i = 0; i < count; i++) {
        char element[16];
        store(element, 0, size * value(fill, seed, (uint64_t)i));
        values[i] = load(element, 0);
    }
}

/* Some rows see nothing, the others three keys of four. */
static void fill_mask(const mica_tensor *t, uint64_t seed, double *values)
{
    int64_t count = mica_tensor_count(t), n = t->dims[3];
    for (int64_t i = 0; i < count; i++) {
        bool none = t->dims[2] > 1 && mica_random_bits(seed ^ 0x3a, (uint64_t)(i / n)) % 5 == 0;
        values[i] = !none && mica_random_bits(seed, (uint64_t)i) % 4 != 0;
    }
}

/* Offsets in order, of which the outer ones may lie outside. */
static void fill_offsets(int64_t count, int64_t rows, uint64_t seed, double *values)
{
    for (int64_t i = 0; i < count; i++) {
        double at = (double)i - 0.5 + mica_random_uniform(seed, (uint64_t)i);
        values[i] = floor(at * (double)rows / (double)(count > 1 ? count - 1 : 1));
    }
}

/* Lengths, of which some lie outside. */
static void fill_lengths(int64_t count, int64_t rows, uint64_t seed, double *values)
{
    for (int64_t i = 0; i < count; i++)
        values[i] = floor((double)(rows + 3) * mica_random_uniform(seed, (uint64_t)i)) - 1;
}

static void fill_input(const mica_mha_desc *d, int arg, mica_fill fill, uint64_t seed,
                       double *values)
{
    const mica_tensor *t = mica_op_tensor(&mica_op_mha, d, arg);
    const uint64_t own = mica_random_bits(seed, (uint64_t)arg + 1);
    const bool queries = arg == MICA_MHA_CU_Q || arg == MICA_MHA_SEQ_Q;
    const int64_t rows = queries ? d->q.dims[1] : d->k.dims[1];
    switch (arg) {
    case MICA_MHA_MASK:
        fill_mask(t, own, values);
        return;
    case MICA_MHA_CU_Q:
    case MICA_MHA_CU_K:
        fill_offsets(t->dims[0], rows, own, values);
        return;
    case MICA_MHA_SEQ_Q:
    case MICA_MHA_SEQ_K:
        fill_lengths(t->dims[0], rows, own, values);
        return;
    case MICA_MHA_RNG:
        for (int i = 0; i < 2; i++) values[i] = (double)(mica_random_bits(own, (uint64_t)i) >> 12);
        return;
    default:
        fill_floats(d, arg, fill, seed, values);
    }
}

/* ---- oh and lse of the same qh, kh, vh: backward's ---- */

/* An input, packed, in its own type; false if memory is short. */
static bool make(const mica_mha_desc *d, int arg, mica_fill fill, uint64_t seed, mica_view *view)
{
    const mica_tensor *t = mica_op_tensor(&mica_op_mha, d, arg);
    if (!mica_tensor_given(t)) return true;
    mica_tensor packed = mica_tensor_packed(t->dtype, t->rank, t->dims);
    double *values = mica_alloc((size_t)(mica_tensor_count(t) + 1) * sizeof *values);
    void *data = mica_alloc((size_t)(mica_tensor_count(t) + 1) * sizeof(double));
    *view = (mica_view){packed, data, NULL, mica_dtype_load(t->dtype), NULL};
    bool good = values && data;
    if (good) fill_input(d, arg, fill, seed, values);
    good = good && mica_tensor_store(&packed, values, data) == MICA_OK;
    mica_release(values);
    return good;
}

static bool make_result(const mica_mha_desc *d, int arg, double *values, mica_view *view)
{
    const mica_tensor *t = mica_op_tensor(&mica_op_mha, d, arg);
    void *own = values ? NULL : mica_alloc((size_t)(mica_tensor_count(t) + 1) * sizeof(double));
    *view = (mica_view){mica_tensor_packed(MICA_F64, t->rank, t->dims), values ? values : own, NULL,
                        mica_dtype_load(MICA_F64), mica_dtype_store(MICA_F64)};
    return view->data != NULL;
}

static bool fill_forward(const mica_mha_desc *d, bool lse, mica_fill fill, uint64_t seed,
                         double *values)
{
    static const int inputs[] = {MICA_MHA_QH,   MICA_MHA_KH,     MICA_MHA_VH,    MICA_MHA_MASK,
                                 MICA_MHA_BIAS, MICA_MHA_SLOPES, MICA_MHA_RNG,   MICA_MHA_SINKS,
                                 MICA_MHA_CU_Q, MICA_MHA_CU_K,   MICA_MHA_SEQ_Q, MICA_MHA_SEQ_K};
    mica_view views[MICA_MAX_ARGS] = {0};
    bool good = true;
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++)
        good &= make(d, inputs[i], fill, seed, &views[inputs[i]]);
    good &= make_result(d, MICA_MHA_OH, lse ? NULL : values, &views[MICA_MHA_OH]);
    good &= make_result(d, MICA_MHA_LSE, lse ? values : NULL, &views[MICA_MHA_LSE]);
    if (good) mha_reference_attention(d, views);
    for (int i = 0; i < MICA_MAX_ARGS; i++)
        if (views[i].data != values) mica_release(views[i].data);
    return good;
}

bool mha_fill(const void *desc, const double *scalars, int arg, mica_fill fill, uint64_t seed,
              double *values)
{
    const mica_mha_desc *d = desc;
    (void)scalars;
    if (d->pass == MICA_MHA_BWD_WEIGHTS) return false;
    if (d->pass == MICA_MHA_BWD_DATA && (arg == MICA_MHA_OH || arg == MICA_MHA_LSE))
        return fill_forward(d, arg == MICA_MHA_LSE, fill, seed, values);
    fill_input(d, arg, fill, seed, values);
    return true;
}
