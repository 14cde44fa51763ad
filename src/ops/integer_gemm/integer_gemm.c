/* SPDX-License-Identifier: Apache-2.0
 * integer_gemm: tables, inference, checks, fills, and the truth. */
#include "ops/integer_gemm/integer_gemm.h"
#include "base/random.h"
#include "cpu/cpu.h"

#include <math.h>

#define FIELD(member, ...) MICA_FIELD(mica_integer_gemm_desc, member, TENSOR, __VA_ARGS__)
static const mica_field fields[] = {
    FIELD(a, .zero = "needed", .doc = "M x K"),
    FIELD(b, .zero = "needed", .doc = "K x N"),
    FIELD(y, .zero = "inferred", .doc = "M x N; s32 without scales and bias, else f32"),
    FIELD(zero_a, .zero = "none", .doc = "zero points of a: 1 or M"),
    FIELD(zero_b, .zero = "none", .doc = "zero points of b: 1 or N"),
    FIELD(sums_b, .zero = "made", .doc = "with zero_a: s32, sums of b's columns, N"),
    FIELD(scale_a, .zero = "none", .doc = "f32, scales of a: 1 or M"),
    FIELD(scale_b, .zero = "none", .doc = "f32, scales of b: 1 or N"),
    FIELD(bias, .zero = "none", .doc = "N"),
    FIELD(scale_y, .zero = "none", .doc = "f32, scale of s8 and u8 results: 1"),
    FIELD(zero_y, .zero = "none", .doc = "zero point of s8 and u8 results: 1"),
};

static int64_t dim(const void *desc, char letter)
{
    const mica_integer_gemm_desc *d = desc;
    return letter == 'M' ? d->a.dims[0] : letter == 'N' ? d->b.dims[1] : d->a.dims[1];
}

/* One element, or one for each of a vector. */
static mica_tensor one_or(const mica_tensor *own, int64_t n, mica_dtype type)
{
    if (own->rank && mica_tensor_given(own) && mica_tensor_count(own) == 1) return *own;
    return mica_tensor_packed(type, 1, &n);
}

static mica_tensor zero_a_shape(const void *desc)
{
    const mica_integer_gemm_desc *d = desc;
    return one_or(&d->zero_a, dim(desc, 'M'), d->a.dtype);
}
static mica_tensor zero_b_shape(const void *desc)
{
    const mica_integer_gemm_desc *d = desc;
    return one_or(&d->zero_b, dim(desc, 'N'), d->b.dtype);
}
static mica_tensor scale_a_shape(const void *desc)
{
    const mica_integer_gemm_desc *d = desc;
    return one_or(&d->scale_a, dim(desc, 'M'), MICA_F32);
}
static mica_tensor scale_b_shape(const void *desc)
{
    const mica_integer_gemm_desc *d = desc;
    return one_or(&d->scale_b, dim(desc, 'N'), MICA_F32);
}

#define BYTES (MICA_TYPE(S8) | MICA_TYPE(U8))
#define REALS (MICA_TYPE(F32) | MICA_TYPE(F16) | MICA_TYPE(BF16))
#define ZEROS (BYTES | MICA_TYPE(S32))
#define ARG(member, direction, TYPES, ...)                                                         \
    {                                                                                              \
        .name = #member, .tensor = offsetof(mica_integer_gemm_desc, member), .dir = {direction},   \
        .types = TYPES, __VA_ARGS__                                                                \
    }
#define ROWS    .words = "1 or M elements"
#define COLUMNS .words = "1 or N elements"
static const mica_arg args[] = {
    [MICA_INTEGER_GEMM_A] = ARG(a, MICA_IN, BYTES, .need = {MICA_NEEDED}),
    [MICA_INTEGER_GEMM_B] = ARG(b, MICA_IN, BYTES, .need = {MICA_NEEDED}),
    [MICA_INTEGER_GEMM_Y] =
        ARG(y, MICA_OUT, REALS | ZEROS, .need = {MICA_INFERRED}, .like = "a", .dims = "MxN"),
    [MICA_INTEGER_GEMM_ZERO_A] = ARG(zero_a, MICA_IN, ZEROS, .shape = zero_a_shape, ROWS),
    [MICA_INTEGER_GEMM_ZERO_B] = ARG(zero_b, MICA_IN, ZEROS, .shape = zero_b_shape, COLUMNS),
    [MICA_INTEGER_GEMM_SUMS_B] =
        ARG(sums_b, MICA_IN, MICA_TYPE(S32), .like = "b", .dims = "N", .with = "zero_a"),
    [MICA_INTEGER_GEMM_SCALE_A] =
        ARG(scale_a, MICA_IN, MICA_TYPE(F32), .shape = scale_a_shape, ROWS),
    [MICA_INTEGER_GEMM_SCALE_B] =
        ARG(scale_b, MICA_IN, MICA_TYPE(F32), .shape = scale_b_shape, COLUMNS),
    [MICA_INTEGER_GEMM_BIAS] = ARG(bias, MICA_IN, REALS, .like = "b", .dims = "N"),
    [MICA_INTEGER_GEMM_SCALE_Y] = ARG(scale_y, MICA_IN, MICA_TYPE(F32), .like = "y", .dims = "1"),
    [MICA_INTEGER_GEMM_ZERO_Y] = ARG(zero_y, MICA_IN, ZEROS, .like = "y", .dims = "1"),
};

/* ---- inference and checks ---- */

static mica_status infer(void *desc, mica_why *why)
{
    mica_integer_gemm_desc *d = desc;
    if (d->a.rank != 2 || d->b.rank != 2)
        return mica_invalid(why, "a has rank %d, b %d; both must be matrices", d->a.rank,
                            d->b.rank);
    if (d->a.dims[1] != d->b.dims[0])
        return mica_invalid(why, "a has %lld columns, b has %lld rows; both are K",
                            (long long)d->a.dims[1], (long long)d->b.dims[0]);
    const bool real = d->scale_a.dtype || d->scale_b.dtype || d->bias.dtype;
    if (!d->y.dtype)
        d->y = mica_tensor_packed(real ? MICA_F32 : MICA_S32, 2,
                                  (const int64_t[]){d->a.dims[0], d->b.dims[1]});
    return MICA_OK;
}

static mica_status check_zero(const mica_tensor *zero, const char *name, const mica_tensor *of,
                              const char *whose, mica_why *why)
{
    if (!mica_tensor_given(zero) || zero->dtype == MICA_S32 || zero->dtype == of->dtype)
        return MICA_OK;
    return mica_invalid(why, "%s is %s, it must be s32 or %s's %s", name,
                        mica_dtype_name(zero->dtype), whose, mica_dtype_name(of->dtype));
}

static mica_status check(const void *desc, mica_why *why)
{
    const mica_integer_gemm_desc *d = desc;
    const bool bytes = d->y.dtype == MICA_S8 || d->y.dtype == MICA_U8;
    static const int of_reals[] = {MICA_INTEGER_GEMM_SCALE_A, MICA_INTEGER_GEMM_SCALE_B,
                                   MICA_INTEGER_GEMM_BIAS};
    for (int i = 0; i < 3; i++)
        if (d->y.dtype == MICA_S32 && mica_op_tensor(&mica_op_integer_gemm, d, of_reals[i])->dtype)
            return mica_invalid(why, "%s with a y of s32, which is the sum alone",
                                args[of_reals[i]].name);
    for (int arg = MICA_INTEGER_GEMM_SCALE_Y; arg <= MICA_INTEGER_GEMM_ZERO_Y; arg++)
        if (!bytes && mica_op_tensor(&mica_op_integer_gemm, d, arg)->dtype)
            return mica_invalid(why, "%s is for a y of s8 or u8, it is %s", args[arg].name,
                                mica_dtype_name(d->y.dtype));
    MICA_TRY(check_zero(&d->zero_a, "zero_a", &d->a, "a", why));
    MICA_TRY(check_zero(&d->zero_b, "zero_b", &d->b, "b", why));
    return check_zero(&d->zero_y, "zero_y", &d->y, "y", why);
}

/* ---- cost and data ---- */

static void cost(const void *desc, double *flops, double *bytes)
{
    (void)bytes;
    *flops = 2 * (double)dim(desc, 'M') * (double)dim(desc, 'N') * (double)dim(desc, 'K');
}

static bool exact(const void *desc)
{
    return ((const mica_integer_gemm_desc *)desc)->y.dtype == MICA_S32;
}

/* Sums are integers and exact; what is behind them are some products. */
static int64_t terms(const void *desc)
{
    (void)desc;
    return 1;
}

/* Zero points within bytes; scales so that results of 8 bits are within their type, but for some.
 */
static bool fill(const void *desc, const double *scalars, int arg, mica_fill kind, uint64_t seed,
                 double *values)
{
    const mica_integer_gemm_desc *d = desc;
    const mica_tensor *t = mica_op_tensor(&mica_op_integer_gemm, desc, arg);
    const int64_t count = mica_tensor_count(t);
    const bool scale = t->dtype == MICA_F32 && arg != MICA_INTEGER_GEMM_BIAS;
    (void)scalars;
    const bool zero = arg == MICA_INTEGER_GEMM_ZERO_A || arg == MICA_INTEGER_GEMM_ZERO_B ||
                      arg == MICA_INTEGER_GEMM_ZERO_Y;
    if (!scale && !zero && t->dtype != MICA_S32) return false;
    seed = mica_random_bits(seed, (uint64_t)arg + 1);
    for (int64_t i = 0; i < count; i++) {
        const double u = mica_random_uniform(seed, (uint64_t)i);
        if (zero) /* near the middle of bytes, or of what exact fills have */
            values[i] = kind == MICA_FILL_EXACT ? floor(u * 3)
                        : t->dtype == MICA_U8   ? 108 + floor(u * 41)
                                                : floor(u * 41) - 20;
        else if (!scale)
            values[i] = floor(u * 201) - 100;
        else if (kind == MICA_FILL_EXACT)
            values[i] = ldexp(1, (int)floor(u * 3) - 1);
        else
            values[i] = mica_fill_rounded(
                t->dtype,
                (arg == MICA_INTEGER_GEMM_SCALE_Y ? 1e2 * sqrt((double)dim(d, 'K') + 1) : 1) *
                    (0.5 + u));
    }
    return true;
}

/* ---- the truth ---- */

static int64_t whole(const mica_view *v, int64_t at)
{
    return (int64_t)mica_get(v, at);
}

/* Of one element for all, or of one of n. */
static double of_vector(const mica_view *v, int64_t i, double absent)
{
    if (!v->data) return absent;
    return mica_get(v, mica_tensor_count(&v->t) == 1 ? 0 : mica_offset(&v->t, i));
}

/* The sum over b's column that replaces what is given: t follows sums_b. */
static int64_t sum_of(const mica_view *views, int64_t m, int64_t n, int64_t k)
{
    const mica_view *a = &views[MICA_INTEGER_GEMM_A], *b = &views[MICA_INTEGER_GEMM_B],
                    *sums = &views[MICA_INTEGER_GEMM_SUMS_B];
    const int64_t zero_a = (int64_t)of_vector(&views[MICA_INTEGER_GEMM_ZERO_A], m, 0),
                  zero_b = (int64_t)of_vector(&views[MICA_INTEGER_GEMM_ZERO_B], n, 0);
    uint64_t t = 0; /* may wrap where zero points are s32 */
    int64_t column = 0;
    for (int64_t i = 0; i < k; i++) {
        const int64_t x = whole(a, m * a->t.strides[0] + i * a->t.strides[1]),
                      w = whole(b, i * b->t.strides[0] + n * b->t.strides[1]);
        t += (uint64_t)((x - zero_a) * (w - zero_b));
        column += w;
    }
    if (sums->data) t += (uint64_t)(zero_a * (column - (int64_t)of_vector(sums, n, 0)));
    return (int64_t)t;
}

void mica_integer_gemm_reference(const void *desc, const mica_view *views, const double *scalars)
{
    const mica_integer_gemm_desc *d = desc;
    const mica_view *y = &views[MICA_INTEGER_GEMM_Y];
    const int64_t rows = dim(d, 'M'), columns = dim(d, 'N'), k = dim(d, 'K');
    const bool bytes = d->y.dtype == MICA_S8 || d->y.dtype == MICA_U8;
    (void)scalars;
#pragma omp parallel for num_threads(mica_cpu_threads_for((double)(rows * columns * (k + 1))))
    for (int64_t i = 0; i < rows * columns; i++) {
        const int64_t m = i / columns, n = i % columns, t = sum_of(views, m, n, k);
        const int64_t at = m * y->t.strides[0] + n * y->t.strides[1];
        if (d->y.dtype == MICA_S32) {
            mica_put(y, at, (double)(int32_t)(uint32_t)(uint64_t)t, 0);
            continue;
        }
        const double bias = of_vector(&views[MICA_INTEGER_GEMM_BIAS], n, 0);
        const double scaled = (double)t * of_vector(&views[MICA_INTEGER_GEMM_SCALE_A], m, 1) *
                              of_vector(&views[MICA_INTEGER_GEMM_SCALE_B], n, 1);
        double v = scaled + bias, size = 4 * (fabs(scaled) + fabs(bias));
        if (bytes) {
            const double scale = of_vector(&views[MICA_INTEGER_GEMM_SCALE_Y], 0, 1),
                         low = d->y.dtype == MICA_U8 ? 0 : -128;
            v /= scale;
            if (fabs(v - trunc(v)) == 0.5) v = nearbyint(v); /* before zero_y, which may be odd */
            v += of_vector(&views[MICA_INTEGER_GEMM_ZERO_Y], 0, 0);
            v = fmin(fmax(v, low), low + 255), size /= fabs(scale);
        }
        mica_put(y, at, v, size);
    }
}

static const mica_engine *const engines[] = {&mica_integer_gemm_compose, &mica_engine_ref,
                                             &mica_integer_gemm_compose_cuda, NULL};

const mica_op mica_op_integer_gemm = {
    .name = "integer_gemm",
    .doc = "Products of 8-bit integers with zero points and scales",
    .desc_size = sizeof(mica_integer_gemm_desc),
    .fields = fields,
    .field_count = sizeof fields / sizeof *fields,
    .args = args,
    .arg_count = sizeof args / sizeof *args,
    .infer = infer,
    .dim = dim,
    .check = check,
    .cost = cost,
    .exact = exact,
    .terms = terms,
    .fill = fill,
    .reference = mica_integer_gemm_reference,
    .engines = engines,
};
