/* SPDX-License-Identifier: Apache-2.0
 * Test data for attention, and when it makes results exact.
 *
 * EXACT: key j's number in binary stands in some of its dimensions, and a query has powers of two
 * of random signs there. So the scores of a row are all different, a `gap` or more apart, and one
 * key, a different one for every query, takes all the weight: out is its row of v. Whoever looks at
 * a key too many or too few takes another. Backward its weight is exactly 1, for lse is its score.
 */
#include "ops/attention/attention.h"
#include "base/memory.h"
#include "base/random.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* ---- exact scores ---- */

typedef struct exact_scores {
    int bits;         /* of a key's number */
    int q_exp, k_exp; /* exponents of the smallest entry of q, of the entries of k */
    double gap;
} exact_scores;

/* Largest exponent of two that the type holds; of 8-bit types half of it. */
static int top_exponent(mica_dtype t)
{
    switch (t) {
    case MICA_F16:
        return 15;
    case MICA_E5M2:
        return 14;
    case MICA_E4M3:
        return 8;
    case MICA_S8:
        return 6;
    default:
        return 60;
    }
}

static double gap_of(const mica_attention_desc *d)
{
    bool wide = d->q.dtype == MICA_F64;
    double gap = wide ? 64 : d->out.dtype == MICA_F32 ? 32 : 12;
    /* Where 0 is a result, all others must vanish. f16 has less to vanish from, and f32's rounding
     * of larger scores would show in its weights. */
    if (d->pass == MICA_ATTENTION_BWD || d->dropout > 0) gap = wide ? 1024 : 128;
    if (d->pass == MICA_ATTENTION_FWD && d->out.dtype == MICA_F16 && gap > 32) gap = 32;
    if (mica_tensor_given(&d->slopes) || mica_tensor_given(&d->bias)) gap += 32;
    return gap;
}

static int64_t key_rows(const mica_attention_desc *d)
{
    return d->k.dims[2] * (mica_tensor_given(&d->pages) ? d->k.dims[0] : 1);
}

/* False if such scores do not fit the problem. */
static bool make_exact(const mica_attention_desc *d, exact_scores *e)
{
    *e = (exact_scores){.gap = gap_of(d)};
    double rows = (double)key_rows(d), scale = fabs(d->scale);
    e->bits = 1;
    while (e->bits < 40 && exp2(e->bits) < rows) e->bits++;
    /* A page that stands twice in a sequence brings equal scores. */
    if (mica_tensor_given(&d->pages) && d->pages.dims[1] > d->k.dims[0]) return false;
    if (e->bits > d->q.dims[3] || !(scale > 0x1p-40 && scale < 0x1p40)) return false;
    int total = (int)ceil(log2(e->gap / scale));
    if (total < 0) total = 0;
    int top = top_exponent(d->k.dtype) < 8 ? top_exponent(d->k.dtype) : 7;
    e->k_exp = total < top ? total : top;
    e->q_exp = total - e->k_exp;
    if (e->q_exp + e->bits - 1 > top_exponent(d->q.dtype)) return false;
    /* With scales of 8-bit types up to 2 each; sinks are beyond all scores. */
    double highest = exp2(total + e->bits + 2) * scale;
    bool half = mica_tensor_given(&d->sinks) && d->sinks.dtype == MICA_F16;
    return highest <= (half ? 0x1p15 : 0x1p21);
}

static bool is_power_of_two(double x)
{
    int exponent;
    return frexp(fabs(x), &exponent) == 0.5;
}

/* Few keys, where engines may hold scores and weights in less than f32's precision. */
enum { NARROW_BITS = 7 };

bool attention_exact(const void *desc)
{
    const mica_attention_desc *d = desc;
    exact_scores e;
    bool narrow = d->q.dtype != MICA_F32 && d->q.dtype != MICA_F64;
    if (d->soft_cap > 0 || !is_power_of_two(1 - d->dropout) || !make_exact(d, &e)) return false;
    if (d->pass == MICA_ATTENTION_BWD)
        return is_power_of_two(d->scale) && !mica_tensor_given(&d->slopes);
    /* lse is rounded, and so are 16-bit weights that meet an f32 sum. */
    if (mica_tensor_given(&d->lse) || mica_tensor_given(&d->weights)) return false;
    if (mica_tensor_given(&d->scores) &&
        (!is_power_of_two(d->scale) || mica_tensor_given(&d->slopes) ||
         mica_tensor_given(&d->bias)))
        return false;
    return !narrow || (d->out.dtype != MICA_F32 && e.bits <= NARROW_BITS);
}

/* The dimension that bit b of a key's number lies in: from the last one to the first. */
static int64_t bit_dimension(const exact_scores *e, int64_t d, int b)
{
    return e->bits > 1 ? d - 1 - b * (d - 1) / (e->bits - 1) : d - 1;
}

static void exact_queries(const mica_attention_desc *d, const exact_scores *e, uint64_t seed,
                          double *values)
{
    int64_t n = d->q.dims[3], rows = n ? mica_tensor_count(&d->q) / n : 0;
    for (int64_t row = 0; row < rows; row++, values += n) {
        /* Keys have nothing there. */
        for (int64_t c = 0; c < n; c++)
            values[c] = floor(3 * mica_random_uniform(seed, (uint64_t)(row * n + c))) - 1;
        uint64_t signs = mica_random_bits(seed ^ 0x519, (uint64_t)row);
        for (int b = 0; b < e->bits; b++)
            values[bit_dimension(e, n, b)] = ldexp(signs >> b & 1 ? -1 : 1, e->q_exp + b);
    }
}

static void exact_keys(const mica_attention_desc *d, const exact_scores *e, uint64_t seed,
                       double *values)
{
    int64_t n = d->k.dims[3], rows = d->k.dims[2], heads = d->k.dims[1];
    int64_t count = n ? mica_tensor_count(&d->k) / n : 0;
    bool paged = mica_tensor_given(&d->pages);
    for (int64_t a = 0; a < count; a++, values += n) {
        int64_t batch = a / rows / heads, head = a / rows % heads;
        uint64_t number = (uint64_t)(a % rows + (paged ? batch * rows : 0));
        number ^= mica_random_bits(seed, (uint64_t)(paged ? head : batch * heads + head));
        memset(values, 0, (size_t)n * sizeof *values);
        for (int b = 0; b < e->bits; b++)
            values[bit_dimension(e, n, b)] = number >> b & 1 ? ldexp(1, e->k_exp) : 0;
    }
}

static void small_integers(int64_t count, int bound, bool zero, uint64_t seed, double *values)
{
    for (int64_t i = 0; i < count; i++) {
        double u = mica_random_uniform(seed, (uint64_t)i);
        values[i] = zero ? floor(u * (2 * bound + 1)) - bound : 1 + floor(u * bound);
        if (!zero && mica_random_bits(seed + 1, (uint64_t)i) & 1) values[i] = -values[i];
    }
}

/* Engines may hold gradients of scores in q's type, where bf16 has integers up to 256: in at most
 * 32 columns values of up to 4 and results of up to 2 meet +-1. */
static void exact_dout(const mica_tensor *t, uint64_t seed, double *values)
{
    int64_t n = t->dims[3], step = n / 32 + 1;
    small_integers(mica_tensor_count(t), 1, true, seed, values);
    if (mica_dtype_unit(t->dtype) < 0x1p-20) return;
    for (int64_t i = 0; i < mica_tensor_count(t); i++)
        if (i % n % step) values[i] = 0;
}

/* ---- scores of +-120, and of about 8 ---- */

static void extreme_vectors(const mica_attention_desc *d, bool query, uint64_t seed, double *values)
{
    const mica_tensor *t = query ? &d->q : &d->k;
    int64_t n = t->dims[3], rows = n ? mica_tensor_count(t) / n : 0;
    static const double small[] = {0, -0.0, 0x1p-14, -0x1p-133, 0x1p-9};
    double other = exp2(round(-log2(fabs(d->scale) > 0 ? fabs(d->scale) : 1)));
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t c = 0; c < n; c++)
            values[row * n + c] = small[mica_random_bits(seed, (uint64_t)(row * n + c)) % 5];
        /* Runs of three equal keys; one in eight is 0. */
        uint64_t bits = mica_random_bits(seed ^ 0xe7, (uint64_t)(query ? row : row / 3));
        double sign = bits & 1 ? 1 : -1;
        values[row * n] = query ? sign * 120 : bits >> 8 & 7 ? sign * other : 0;
    }
}

static void ranged(int64_t count, double size, uint64_t seed, double *values)
{
    for (int64_t i = 0; i < count; i++) values[i] = size * mica_random_normal(seed, (uint64_t)i);
}

static bool fill_vectors(const mica_attention_desc *d, bool query, mica_fill fill, uint64_t seed,
                         double *values)
{
    const mica_tensor *t = query ? &d->q : &d->k;
    exact_scores e;
    if (fill == MICA_FILL_EXACT && attention_exact(d) && make_exact(d, &e)) {
        if (query)
            exact_queries(d, &e, seed, values);
        else
            exact_keys(d, &e, seed, values);
    } else if (fill == MICA_FILL_EXACT) {
        small_integers(mica_tensor_count(t), 1, true, seed, values);
    } else if (fill == MICA_FILL_EXTREME && t->dims[3] > 0) {
        extreme_vectors(d, query, seed, values);
    } else if (fill == MICA_FILL_RANGE && t->dtype != MICA_S8) {
        ranged(mica_tensor_count(t), query ? 8 : 1, seed, values);
    } else {
        return false;
    }
    return true;
}

/* ---- the other floating-point inputs ---- */

static void fill_scales(mica_dtype of, int64_t count, mica_fill fill, uint64_t seed, double *values)
{
    for (int64_t i = 0; i < count; i++) {
        double u = mica_random_uniform(seed, (uint64_t)i);
        values[i] = fill == MICA_FILL_EXACT ? (u < 0.5 ? 1 : 2) : 0.5 + u;
        if (of == MICA_S8 && fill != MICA_FILL_EXACT) values[i] *= 0x1p-6;
    }
}

static void fill_slopes(const mica_attention_desc *d, mica_fill fill, uint64_t seed, double *values)
{
    attention_shape s;
    attention_shape_make(d, &s);
    double exponent = ceil(log2((double)s.rows + (double)s.keys + 1));
    bool exact = fill == MICA_FILL_EXACT && attention_exact(d);
    for (int64_t h = 0; h < s.heads; h++)
        values[h] = exact ? exp2(3 - exponent) : mica_random_uniform(seed, (uint64_t)h) / 4;
}

static void fill_sinks(const mica_attention_desc *d, mica_fill fill, uint64_t seed, double *values)
{
    double beyond = d->sinks.dtype == MICA_F16 ? 60000 : 0x1p22;
    for (int64_t h = 0; h < d->sinks.dims[0]; h++) {
        double v = mica_random_normal(seed, (uint64_t)h);
        if (fill == MICA_FILL_EXACT && attention_exact(d)) v = h % 2 ? beyond : -beyond;
        if (fill == MICA_FILL_RANGE) v *= 8;
        if (fill == MICA_FILL_EXTREME) v = h % 3 ? h % 3 == 1 ? 120 : 0 : -120;
        values[h] = v;
    }
}

/* A third of the rows is the lowest number of the type throughout, as masks are often written: all
 * keys weigh the same there. */
static void lowest_rows(const mica_tensor *t, uint64_t seed, double *values)
{
    int64_t count = mica_tensor_count(t), n = t->dims[3];
    double lowest = t->dtype == MICA_F16 ? -65504 : t->dtype == MICA_BF16 ? -0x1.fep127 : -FLT_MAX;
    if (t->dtype == MICA_F64) lowest = -DBL_MAX;
    for (int64_t i = 0; i < count; i++) {
        bool all = mica_random_bits(seed ^ 0x10e, (uint64_t)(i / n)) % 3 == 0;
        values[i] = all ? lowest : 8 * mica_random_normal(seed, (uint64_t)i);
    }
}

/* Of four dimensions: some rows see nothing, the others three keys of four. */
static void fill_mask(const mica_tensor *t, uint64_t seed, double *values)
{
    int64_t count = mica_tensor_count(t), n = t->dims[3];
    for (int64_t i = 0; i < count; i++) {
        bool none = t->dims[2] > 1 && mica_random_bits(seed ^ 0x3a, (uint64_t)(i / n)) % 5 == 0;
        values[i] = !none && mica_random_bits(seed, (uint64_t)i) % 4 != 0;
    }
}

/* ---- lengths ---- */

/* Some sequences are empty, some have one row; with EXTREME the first and last rows are nobody's.
 */
static void fill_offsets(const mica_tensor *t, int64_t rows, mica_fill fill, uint64_t seed,
                         double *values)
{
    int64_t n = t->dims[0] - 1;
    int64_t first = fill == MICA_FILL_EXTREME ? rows / 16 : 0, last = rows - first, at = first;
    for (int64_t i = 0; i <= n; i++) {
        double even = (double)first + (double)(last - first) * (double)i / (double)(n ? n : 1);
        double jitter = mica_random_uniform(seed, (uint64_t)i) * (double)(last - first) /
                        (double)(n ? 2 * n : 1);
        int64_t end = (int64_t)(even + jitter);
        if (i % 4 == 2) end = at;
        if (i % 4 == 3) end = at + 1;
        if (end > last || i == n) end = last;
        if (end < at || i == 0) end = at;
        values[i] = (double)(at = end);
    }
}

static void fill_counts(const mica_tensor *t, int64_t rows, uint64_t seed, double *values)
{
    for (int64_t i = 0; i < t->dims[0]; i++) {
        double u = mica_random_uniform(seed, (uint64_t)i);
        values[i] = i % 4 == 0   ? (double)rows
                    : i % 4 == 2 ? (double)(rows > 0)
                                 : floor(u * ((double)rows + 1));
        if (i % 8 == 5) values[i] = 0;
    }
}

static int64_t common_divisor(int64_t a, int64_t b)
{
    while (b) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* A sequence's pages are different ones; some are absent with RANDOM and EXTREME. */
static void fill_pages(const mica_attention_desc *d, mica_fill fill, uint64_t seed, double *values)
{
    int64_t pool = d->k.dims[0], per = d->pages.dims[1], step = pool / 2 + 1;
    while (pool && common_divisor(step, pool) != 1) step++;
    for (int64_t i = 0; i < mica_tensor_count(&d->pages); i++) {
        int64_t n = i / per, p = i % per, page = -1;
        if (pool) {
            uint64_t base = mica_random_bits(seed, (uint64_t)n) % (uint64_t)pool;
            page = ((int64_t)base + p % pool * step) % pool;
        }
        bool absent = mica_random_bits(seed + 1, (uint64_t)i) % 8 == 0;
        if ((fill == MICA_FILL_EXTREME || fill == MICA_FILL_RANDOM) && absent)
            page = i % 2 ? -1 : pool;
        values[i] = (double)page;
    }
}

/* ---- results of the forward pass, as inputs of the backward pass ---- */

static void fill_one(const mica_attention_desc *d, int arg, mica_fill fill, uint64_t seed,
                     double *values)
{
    if (!attention_fill(d, NULL, arg, fill, seed, values))
        mica_fill_general(&mica_op_attention, d, arg, fill, seed, values);
}

/* An input in its own type and strides; NULL if memory is short. *block: to release. */
static void *make_input(const mica_attention_desc *d, int arg, mica_fill fill, uint64_t seed,
                        void **block)
{
    const mica_tensor *t = mica_op_tensor(&mica_op_attention, d, arg);
    int64_t first, bytes = mica_tensor_span(t, &first);
    double *values = mica_alloc((size_t)mica_tensor_count(t) * sizeof *values + 1);
    *block = mica_alloc((size_t)bytes + 1);
    void *data = NULL;
    if (values && *block) {
        data = (char *)*block - first;
        fill_one(d, arg, fill, seed, values);
        if (mica_tensor_store(t, values, data) != MICA_OK) data = NULL;
    }
    mica_release(values);
    return data;
}

/* Runs the forward pass on what the same seed gives; false if memory is short. */
static bool fill_forward(const mica_attention_desc *bwd, bool want_lse, mica_fill fill,
                         uint64_t seed, double *values)
{
    mica_attention_desc d = *bwd;
    d.pass = MICA_ATTENTION_FWD;
    mica_view views[MICA_MAX_ARGS] = {0};
    void *blocks[MICA_MAX_ARGS] = {0};
    bool ok = true;
    for (int i = 0; i < mica_op_attention.arg_count; i++) {
        if (mica_op_dir(&mica_op_attention, &d, i) != MICA_IN) continue;
        const mica_tensor *t = mica_op_tensor(&mica_op_attention, &d, i);
        /* Filled as for the backward pass: it is its inputs that these results must fit. */
        void *data = make_input(bwd, i, fill, seed, &blocks[i]);
        ok &= data != NULL;
        views[i] = (mica_view){*t, data, NULL, mica_dtype_load(t->dtype), NULL};
    }
    const int wanted = want_lse ? MICA_ATTENTION_LSE : MICA_ATTENTION_OUT;
    const int other = want_lse ? MICA_ATTENTION_OUT : MICA_ATTENTION_LSE;
    for (int i = 0; i < 2; i++) {
        int arg = i ? other : wanted;
        const mica_tensor *t = mica_op_tensor(&mica_op_attention, &d, arg);
        if (i) blocks[arg] = mica_alloc((size_t)mica_tensor_count(t) * sizeof(double) + 1);
        void *data = i ? blocks[arg] : values;
        ok &= data != NULL;
        views[arg] = (mica_view){mica_tensor_packed(MICA_F64, t->rank, t->dims), data, NULL,
                                 mica_dtype_load(MICA_F64), mica_dtype_store(MICA_F64)};
    }
    if (ok) attention_reference(&d, views, NULL);
    for (int i = 0; i < MICA_MAX_ARGS; i++) mica_release(blocks[i]);
    return ok;
}

/* ---- all of them ---- */

static bool fill_argument(const mica_attention_desc *d, int arg, mica_fill fill, uint64_t seed,
                          double *values)
{
    const mica_tensor *t = mica_op_tensor(&mica_op_attention, d, arg);
    int64_t count = mica_tensor_count(t);
    /* Where nothing is exact, small integers are numbers like others. */
    bool exact = fill == MICA_FILL_EXACT && attention_exact(d), bwd = d->pass == MICA_ATTENTION_BWD;
    uint64_t own = mica_random_bits(seed, (uint64_t)arg + 101);
    switch (arg) {
    case MICA_ATTENTION_Q:
    case MICA_ATTENTION_K:
        return fill_vectors(d, arg == MICA_ATTENTION_Q, fill, own, values);
    case MICA_ATTENTION_V:
        if (exact) small_integers(count, 4, false, own, values);
        return exact;
    case MICA_ATTENTION_OUT:
        if (exact) small_integers(count, 2, true, own, values);
        return exact || (bwd && fill_forward(d, false, fill, seed, values));
    case MICA_ATTENTION_LSE:
        return bwd && fill_forward(d, true, fill, seed, values);
    case MICA_ATTENTION_DOUT:
        if (exact) exact_dout(t, own, values);
        return exact;
    case MICA_ATTENTION_SCALE_Q:
    case MICA_ATTENTION_SCALE_K:
    case MICA_ATTENTION_SCALE_V: {
        const mica_dtype of[] = {d->q.dtype, d->k.dtype, d->v.dtype};
        fill_scales(of[arg - MICA_ATTENTION_SCALE_Q], count, fill, own, values);
        return true;
    }
    case MICA_ATTENTION_SLOPES:
        fill_slopes(d, fill, own, values);
        return true;
    case MICA_ATTENTION_BIAS:
        if (fill == MICA_FILL_RANGE) ranged(count, 8, own, values);
        if (fill == MICA_FILL_EXTREME && d->pass == MICA_ATTENTION_FWD) lowest_rows(t, own, values);
        return fill == MICA_FILL_RANGE ||
               (fill == MICA_FILL_EXTREME && d->pass == MICA_ATTENTION_FWD);
    case MICA_ATTENTION_MASK:
        fill_mask(t, own, values);
        return true;
    case MICA_ATTENTION_SINKS:
        fill_sinks(d, fill, own, values);
        return true;
    case MICA_ATTENTION_RNG:
        values[0] = (double)(mica_random_bits(own, 0) >> 12);
        values[1] = (double)(mica_random_bits(own, 1) >> 32);
        return true;
    case MICA_ATTENTION_CU_Q:
    case MICA_ATTENTION_CU_K:
        fill_offsets(t, arg == MICA_ATTENTION_CU_Q ? d->q.dims[2] : d->k.dims[2], fill, own,
                     values);
        return true;
    case MICA_ATTENTION_SEQ_Q:
    case MICA_ATTENTION_SEQ_K: {
        int64_t rows = arg == MICA_ATTENTION_SEQ_Q ? d->q.dims[2] : d->k.dims[2];
        if (arg == MICA_ATTENTION_SEQ_K && mica_tensor_given(&d->pages)) rows *= d->pages.dims[1];
        fill_counts(t, rows, own, values);
        return true;
    }
    case MICA_ATTENTION_PAGES:
        fill_pages(d, fill, own, values);
        return true;
    default:
        return false;
    }
}

/* What numbers rows of q or of k: offsets, lengths, or -1 for none. */
static int lengths_of(const mica_attention_desc *d, int arg)
{
    switch (arg) {
    case MICA_ATTENTION_Q:
    case MICA_ATTENTION_OUT:
    case MICA_ATTENTION_LSE:
    case MICA_ATTENTION_DOUT:
        if (mica_tensor_given(&d->cu_q)) return MICA_ATTENTION_CU_Q;
        return mica_tensor_given(&d->seq_q) ? MICA_ATTENTION_SEQ_Q : -1;
    case MICA_ATTENTION_K:
    case MICA_ATTENTION_V:
        if (mica_tensor_given(&d->cu_k)) return MICA_ATTENTION_CU_K;
        return mica_tensor_given(&d->seq_k) && !mica_tensor_given(&d->pages) ? MICA_ATTENTION_SEQ_K
                                                                             : -1;
    default:
        return -1;
    }
}

/* Rows that belong to no sequence become NaN: whoever multiplies them by 0 shows it. False if
 * memory is short. */
static bool hide_rows(const mica_attention_desc *d, int arg, uint64_t seed, double *values)
{
    int of = lengths_of(d, arg);
    if (of < 0) return true;
    const mica_tensor *t = mica_op_tensor(&mica_op_attention, d, arg);
    int64_t numbers = mica_tensor_count(mica_op_tensor(&mica_op_attention, d, of));
    double *list = mica_alloc((size_t)numbers * sizeof *list + 1);
    if (!list) return false;
    bool packed = of == MICA_ATTENTION_CU_Q || of == MICA_ATTENTION_CU_K;
    fill_argument(d, of, MICA_FILL_EXTREME, seed, list);
    int64_t heads = t->dims[1], rows = t->dims[2], columns = t->rank > 3 ? t->dims[3] : 1;
    for (int64_t a = 0; a < t->dims[0] * heads * rows; a++) {
        double row = (double)(a % rows);
        bool real =
            packed ? row >= list[0] && row < list[numbers - 1] : row < list[a / rows / heads];
        for (int64_t c = 0; c < columns && !real; c++) values[a * columns + c] = NAN;
    }
    mica_release(list);
    return true;
}

/* One query of the forward pass is NaN: so are its results, if it sees a key, and no others. */
static void spoil_query(const mica_tensor *q, double *values)
{
    int64_t columns = q->dims[3], row = q->dims[2] / 2;
    for (int64_t c = 0; c < columns; c += 2) values[row * columns + c] = NAN;
}

bool attention_fill(const void *desc, const double *scalars, int arg, mica_fill fill, uint64_t seed,
                    double *values)
{
    (void)scalars;
    const mica_attention_desc *d = desc;
    const mica_tensor *t = mica_op_tensor(&mica_op_attention, desc, arg);
    int64_t count = mica_tensor_count(t);
    bool own = fill_argument(desc, arg, fill, seed, values);
    bool extreme = fill == MICA_FILL_EXTREME && mica_dtype_is_float(t->dtype) && count > 0;
    bool spoil = extreme && arg == MICA_ATTENTION_Q && d->pass == MICA_ATTENTION_FWD;
    bool hide = extreme && lengths_of(desc, arg) >= 0;
    if ((spoil || hide) && !own) {
        mica_fill_general(&mica_op_attention, desc, arg, fill, seed, values);
        own = true;
    }
    if (spoil) spoil_query(t, values);
    if (hide) own = hide_rows(desc, arg, seed, values);
    if (!own) return false;
    mica_load_fn load_one = mica_dtype_load(t->dtype);
    mica_store_fn store_one = mica_dtype_store(t->dtype);
    for (int64_t i = 0; i < count; i++) {
        char element[16];
        store_one(element, 0, values[i]);
        values[i] = load_one(element, 0);
    }
    return true;
}
