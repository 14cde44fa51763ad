/* SPDX-License-Identifier: Apache-2.0
 * quantized_gemm: tables, inference, checks, fills. */
#include "ops/quantized_gemm/quantized_gemm.h"
#include "base/random.h"

#include <math.h>
#include <string.h>

static const mica_engine *const engines[] = {&mica_quantized_gemm_cpu,  &mica_engine_ref,
                                             &mica_quantized_gemm_gemv, &mica_quantized_gemm_sm80,
                                             &mica_quantized_gemm_cuda, NULL};

#define FORMAT(KIND, name, ...) [MICA_WEIGHTS_BLOCKS + MICA_BLOCK_FORMAT_##KIND] = #name,
static const char *const formats[] = {[MICA_WEIGHTS_CODES] = "codes",
#include "ops/quantize_blocks/formats.def"
                                      NULL};

#define OF_READ  0
#define OF_BOTH  0
#define OF_ASIDE 1
#define FORMAT(KIND, name, elements, bytes, scale, second, way, doc)                               \
    | OF_##way << (MICA_WEIGHTS_BLOCKS + MICA_BLOCK_FORMAT_##KIND)
enum {
    WITH_SCALES = 1 << MICA_WEIGHTS_CODES
#include "ops/quantize_blocks/formats.def"
};

#define FIELD(member, kind, ...) MICA_FIELD(mica_quantized_gemm_desc, member, kind, __VA_ARGS__)
static const mica_field fields[] = {
    FIELD(format, ENUM, .spellings = formats, .doc = "how w holds the weights"),
    FIELD(x, TENSOR, .zero = "needed", .doc = "M x K"),
    FIELD(w, TENSOR, .zero = "needed", .doc = "N x K codes, or N rows of blocks; or G of either"),
    FIELD(y, TENSOR, .zero = "inferred", .doc = "M x N; inferred in x's type"),
    FIELD(scales, TENSOR, .zero = "codes, nf4 and fp4: inferred",
          .doc = "(G x) N x ceil(K/group), or one element"),
    FIELD(zeros, TENSOR, .zero = "none", .doc = "zero points of integer codes, as scales"),
    FIELD(bias, TENSOR, .zero = "none", .doc = "N, or G x N"),
    FIELD(group, I64, .positive = true, .zero = "inferred",
          .doc = "elements of a row of w with one scale"),
    FIELD(ends, TENSOR, .zero = "inferred where w has groups",
          .doc = "G, s32 or s64: where the rows of x of each group end"),
};

/* ---- shapes ---- */

static const mica_blocks_format *format_of(const mica_quantized_gemm_desc *d)
{
    return d->format == MICA_WEIGHTS_CODES ? NULL
                                           : &mica_blocks_formats[d->format - MICA_WEIGHTS_BLOCKS];
}

static int64_t ceil_div(int64_t n, int64_t by)
{
    return n ? (n - 1) / by + 1 : 0;
}

static bool is_single(const mica_tensor *t)
{
    return mica_tensor_given(t) && t->rank && mica_tensor_count(t) == 1;
}

static bool has_groups(const mica_quantized_gemm_desc *d)
{
    return d->w.rank == 3;
}

/* A matrix's rows, and columns. */
static int64_t rows_of_w(const mica_quantized_gemm_desc *d)
{
    return d->w.dims[d->w.rank - 2];
}

static int64_t columns_of_w(const mica_quantized_gemm_desc *d)
{
    return d->w.dims[d->w.rank - 1];
}

/* A single element that stands for all may have any rank. */
static mica_tensor of_groups(const mica_quantized_gemm_desc *d, const mica_tensor *own,
                             mica_dtype type)
{
    if (!format_of(d) && is_single(own)) return *own;
    const int64_t dims[] = {d->w.dims[0], rows_of_w(d), ceil_div(d->x.dims[1], d->group)};
    return mica_tensor_packed(type, d->w.rank, has_groups(d) ? dims : dims + 1);
}

static mica_tensor scales_shape(const void *desc)
{
    const mica_quantized_gemm_desc *d = desc;
    return of_groups(d, &d->scales, MICA_F32);
}

static mica_tensor zeros_shape(const void *desc)
{
    const mica_quantized_gemm_desc *d = desc;
    return of_groups(d, &d->zeros, d->w.dtype);
}

static mica_tensor bias_shape(const void *desc)
{
    const mica_quantized_gemm_desc *d = desc;
    const int64_t dims[] = {d->w.dims[0], rows_of_w(d)};
    const int rank = has_groups(d) && d->bias.rank != 1 ? 2 : 1;
    return mica_tensor_packed(d->y.dtype, rank, dims + 2 - rank);
}

static mica_tensor ends_shape(const void *desc)
{
    const mica_quantized_gemm_desc *d = desc;
    return mica_tensor_packed(MICA_S32, 1, d->w.dims);
}

static int64_t dim(const void *desc, char letter)
{
    const mica_quantized_gemm_desc *d = desc;
    return letter == 'M' ? d->x.dims[0] : letter == 'N' ? rows_of_w(d) : d->x.dims[1];
}

#define COMMON   (MICA_TYPE(F32) | MICA_TYPE(F16) | MICA_TYPE(BF16))
#define INTEGERS (MICA_TYPE(S8) | MICA_TYPE(U8) | MICA_TYPE(S4) | MICA_TYPE(U4))
#define CODES    (INTEGERS | MICA_TYPE(E4M3) | MICA_TYPE(E5M2) | MICA_TYPE(E2M1))

static const mica_arg args[] = {
    [MICA_QUANTIZED_GEMM_X] = {"x",
                               offsetof(mica_quantized_gemm_desc, x),
                               {MICA_IN},
                               .types = COMMON,
                               .need = {MICA_NEEDED}},
    [MICA_QUANTIZED_GEMM_W] = {"w",
                               offsetof(mica_quantized_gemm_desc, w),
                               {MICA_IN},
                               .types = CODES,
                               .need = {MICA_NEEDED}},
    [MICA_QUANTIZED_GEMM_Y] = {"y",
                               offsetof(mica_quantized_gemm_desc, y),
                               {MICA_OUT},
                               .types = COMMON,
                               .need = {MICA_INFERRED},
                               .like = "x",
                               .dims = "MxN"},
    [MICA_QUANTIZED_GEMM_SCALES] = {"scales",
                                    offsetof(mica_quantized_gemm_desc, scales),
                                    {MICA_IN},
                                    .types = COMMON | MICA_TYPE(E4M3) | MICA_TYPE(E8M0),
                                    .need = {MICA_INFERRED},
                                    .shape = scales_shape,
                                    .words = "groups of w",
                                    .when = "format",
                                    .values = WITH_SCALES},
    [MICA_QUANTIZED_GEMM_ZEROS] = {"zeros",
                                   offsetof(mica_quantized_gemm_desc, zeros),
                                   {MICA_IN},
                                   .types = INTEGERS | COMMON,
                                   .shape = zeros_shape,
                                   .words = "groups of w"},
    [MICA_QUANTIZED_GEMM_BIAS] = {"bias",
                                  offsetof(mica_quantized_gemm_desc, bias),
                                  {MICA_IN},
                                  .types = COMMON,
                                  .shape = bias_shape,
                                  .words = "columns of y, or those of each group"},
    [MICA_QUANTIZED_GEMM_ENDS] = {"ends",
                                  offsetof(mica_quantized_gemm_desc, ends),
                                  {MICA_IN},
                                  .types = MICA_INDICES,
                                  .shape = ends_shape,
                                  .words = "groups of w"},
};

static const mica_scalar scalars[] = {[MICA_QUANTIZED_GEMM_ALPHA] = {"alpha", 1}};

/* ---- inference and checks ---- */

static mica_status infer_codes(mica_quantized_gemm_desc *d, mica_why *why)
{
    const int64_t k = d->x.dims[1];
    const mica_tensor *s = &d->scales;
    if (columns_of_w(d) != k)
        return mica_invalid(why, "w has %lld columns, x has %lld; both are K",
                            (long long)columns_of_w(d), (long long)k);
    if (d->group) return MICA_OK;
    d->group = k ? k : 1;
    if (!mica_tensor_given(s) || s->rank != d->w.rank || s->dims[s->rank - 1] < 2 || k == 0)
        return MICA_OK;
    const int64_t groups = s->dims[s->rank - 1], group = ceil_div(k, groups);
    if (groups > k || ceil_div(k, group) != groups)
        return mica_invalid(why,
                            "scales has %lld columns, no length of groups makes that many of %lld",
                            (long long)groups, (long long)k);
    d->group = group;
    return MICA_OK;
}

static mica_status infer_blocks(mica_quantized_gemm_desc *d, const mica_blocks_format *f,
                                mica_why *why)
{
    const bool aside = f->way == MICA_BLOCKS_ASIDE;
    const int64_t k = d->x.dims[1];
    if (d->w.dtype != MICA_U8)
        return mica_invalid(why, "w is %s, blocks of %s are bytes: u8", mica_dtype_name(d->w.dtype),
                            f->name);
    if (d->group == 0) d->group = f->elements;
    if (!aside && d->group != f->elements)
        return mica_invalid(why, "group is %lld, a block of %s is %d", (long long)d->group, f->name,
                            f->elements);
    if (aside && (d->group < 32 || d->group > MICA_BLOCKS_MOST || d->group & (d->group - 1)))
        return mica_invalid(why, "group is %lld, of %s it must be a power of two from 32 to %d",
                            (long long)d->group, f->name, MICA_BLOCKS_MOST);
    if (!aside && mica_tensor_given(&d->scales))
        return mica_invalid(why, "scales are not for %s, whose blocks hold theirs", f->name);
    if (mica_tensor_given(&d->scales) && d->scales.dtype != MICA_F32)
        return mica_invalid(why, "scales is %s, of %s it must be f32",
                            mica_dtype_name(d->scales.dtype), f->name);
    if (mica_tensor_given(&d->zeros))
        return mica_invalid(why, "zeros are for codes, format is %s", f->name);
    if (k % d->group)
        return mica_invalid(why, "K is %lld, a block of %s is %lld elements: they must be whole",
                            (long long)k, f->name, (long long)d->group);
    const int64_t bytes = k / f->elements * f->bytes;
    if (columns_of_w(d) != bytes)
        return mica_invalid(why, "rows of w are %lld bytes, %lld elements of %s are %lld",
                            (long long)columns_of_w(d), (long long)k, f->name, (long long)bytes);
    return MICA_OK;
}

static mica_status infer(void *desc, mica_why *why)
{
    mica_quantized_gemm_desc *d = desc;
    const mica_blocks_format *f = format_of(d);
    if (d->x.rank != 2 || (d->w.rank != 2 && d->w.rank != 3))
        return mica_invalid(why,
                            "x has rank %d, w %d; both must be matrices, or w one of each group",
                            d->x.rank, d->w.rank);
    if (!has_groups(d) && mica_tensor_given(&d->ends))
        return mica_invalid(why, "ends are for groups, w has rank 2");
    if (has_groups(d) && !mica_tensor_given(&d->ends)) d->ends.dtype = MICA_S32;
    return f ? infer_blocks(d, f, why) : infer_codes(d, why);
}

static mica_status check(const void *desc, mica_why *why)
{
    const mica_quantized_gemm_desc *d = desc;
    if (!mica_tensor_given(&d->zeros)) return MICA_OK;
    if (!mica_dtype_is_integer(d->w.dtype))
        return mica_invalid(why, "w is %s, zeros are for integers", mica_dtype_name(d->w.dtype));
    if (d->zeros.dtype != d->w.dtype && d->zeros.dtype != d->scales.dtype)
        return mica_invalid(why, "zeros is %s, it must be of w's type, %s, or of scales', %s",
                            mica_dtype_name(d->zeros.dtype), mica_dtype_name(d->w.dtype),
                            mica_dtype_name(d->scales.dtype));
    return MICA_OK;
}

static void cost(const void *desc, double *flops, double *bytes)
{
    const mica_quantized_gemm_desc *d = desc;
    *flops = 2.0 * (double)d->x.dims[0] * (double)d->x.dims[1] * (double)rows_of_w(d);
    if (!has_groups(d) || d->w.dims[0] == 0) return;
    /* The matrices of as many groups as there are rows. */
    const double used = fmin(1, (double)d->x.dims[0] / (double)d->w.dims[0]);
    *bytes = 1;
    for (int i = 0; i <= MICA_QUANTIZED_GEMM_ENDS; i++)
        *bytes += mica_op_arg_bytes(&mica_op_quantized_gemm, d, i) *
                  (i == MICA_QUANTIZED_GEMM_W || i == MICA_QUANTIZED_GEMM_SCALES ? used : 1);
}

/* Three more than the sum has: W, alpha and bias round, too. */
static int64_t terms(const void *desc)
{
    return ((const mica_quantized_gemm_desc *)desc)->x.dims[1] + 3;
}

/* Blocks hold scales of many bits. */
static bool exact(const void *desc)
{
    return ((const mica_quantized_gemm_desc *)desc)->format == MICA_WEIGHTS_CODES;
}

/* ---- engines' view ---- */

/* Strides by the matrix, and by the row and number of a group of elements, 0 of what is absent or
 * single. */
static void place_groups(const mica_tensor *t, int rank, long long *by_matrix, long long *by_n,
                         long long *by_g)
{
    const bool many = mica_tensor_given(t) && t->rank == rank;
    const int n = rank - 2, g = rank - 1;
    *by_matrix = many && rank == 3 && t->dims[0] > 1 ? t->strides[0] : 0;
    *by_n = many && t->dims[n] > 1 ? t->strides[n] : 0;
    *by_g = many && t->dims[g] > 1 ? t->strides[g] : 0;
}

void mica_qgemm_make(const mica_quantized_gemm_desc *desc, const mica_view *views, mica_qgemm *g)
{
    mica_quantized_gemm_desc d = *desc;
    mica_tensor *const tensors[] = {&d.x, &d.w, &d.y, &d.scales, &d.zeros, &d.bias, &d.ends};
    for (int i = 0; views && i < (int)(sizeof tensors / sizeof *tensors); i++)
        if (views[i].data) memcpy(tensors[i]->strides, views[i].t.strides, sizeof d.x.strides);
    memset(g, 0, sizeof *g);
    mica_qgemm_args *a = &g->a;
    g->blocks = format_of(&d);
    if (g->blocks) {
        g->elements = (int)d.group;
        g->bytes = (int)(g->blocks->bytes * d.group / g->blocks->elements);
    }
    const int rank = d.w.rank;
    a->m = d.x.dims[0], a->k = d.x.dims[1], a->n = rows_of_w(&d), a->group = d.group;
    a->x_m = d.x.strides[0], a->x_k = d.x.strides[1];
    a->w_n = d.w.strides[rank - 2], a->w_k = d.w.strides[rank - 1];
    a->y_m = d.y.strides[0], a->y_n = d.y.strides[1];
    place_groups(&d.scales, rank, &a->scale_each, &a->scale_n, &a->scale_g);
    place_groups(&d.zeros, rank, &a->zero_each, &a->zero_n, &a->zero_g);
    g->grouped = has_groups(&d);
    if (g->grouped) {
        a->w_each = d.w.strides[0];
        a->ends = (mica_qgemm_ends){NULL, d.ends.strides[0], d.w.dims[0], a->m};
    }
    g->has_scales = mica_tensor_given(&d.scales);
    g->has_zeros = mica_tensor_given(&d.zeros);
    g->has_bias = mica_tensor_given(&d.bias);
    if (g->has_bias) a->bias_n = d.bias.strides[d.bias.rank - 1];
    if (g->has_bias && d.bias.rank == 2) a->bias_each = d.bias.strides[0];
    g->x = d.x.dtype, g->w = d.w.dtype, g->y = d.y.dtype;
    g->scales = d.scales.dtype, g->zeros = d.zeros.dtype, g->bias = d.bias.dtype;
    g->ends = d.ends.dtype;
}

int64_t mica_qgemm_group(const mica_qgemm *g, const void *ends, int64_t index, int64_t *end,
                         mica_qgemm_args *a)
{
    const int64_t from = *end, at = index * g->a.ends.groups_stride;
    int64_t value = g->a.m;
    if (ends)
        value = g->ends == MICA_S64 ? ((const int64_t *)ends)[at] : ((const int32_t *)ends)[at];
    if (value > g->a.m) value = g->a.m;
    if (value > from) *end = value;
    a->m = *end;
    a->w_at = index * a->w_each, a->bias_at = index * a->bias_each;
    a->scale_at = index * a->scale_each, a->zero_at = index * a->zero_each;
    return from;
}

double mica_qgemm_expected(const mica_qgemm *g)
{
    const double groups = (double)mica_qgemm_groups(g), rows = (double)g->a.m;
    return groups > 0 ? fmax(rows / groups, fmin(rows, 1)) : 0;
}

double mica_qgemm_tiles(const mica_qgemm *g, int rows, int columns)
{
    const double m = (double)g->a.m, across = ceil((double)g->a.n / columns);
    if (!g->grouped) return ceil(m / rows) * across;
    return fmin(m, floor(m / rows) + fmin(m, (double)g->a.ends.count)) * across;
}

void mica_qgemm_bind(const mica_plan *plan, const mica_run *run, mica_qgemm_args *a)
{
    a->x = run->args[MICA_QUANTIZED_GEMM_X];
    a->w = run->args[MICA_QUANTIZED_GEMM_W];
    a->y = run->args[MICA_QUANTIZED_GEMM_Y];
    a->scales = run->args[MICA_QUANTIZED_GEMM_SCALES];
    a->zeros = run->args[MICA_QUANTIZED_GEMM_ZEROS];
    a->bias = run->args[MICA_QUANTIZED_GEMM_BIAS];
    a->ends.groups = run->args[MICA_QUANTIZED_GEMM_ENDS];
    a->alpha = (float)mica_run_scalar(plan, run, MICA_QUANTIZED_GEMM_ALPHA);
}

bool mica_qgemm_rows_whole(const mica_qgemm *g, int bytes)
{
    const int bits = mica_dtype_bits(g->w);
    const long long row = g->a.n > 1 ? g->a.w_n * bits : 0, each = g->a.w_each * bits;
    return (g->a.w_k == 1 || g->a.k < 2) && row % 8 == 0 && row / 8 % bytes == 0 && each % 8 == 0 &&
           each / 8 % bytes == 0;
}

/* ---- fills ---- */

/* Exact ones are powers of two; of others some are 0, or small. */
static double fill_scale(mica_dtype type, mica_fill fill, uint64_t seed, uint64_t i)
{
    const uint64_t bits = mica_random_bits(seed, i);
    const double u = mica_random_uniform(seed, i);
    double v = fill == MICA_FILL_EXACT ? ldexp(1, (int)(bits % 3) - 1) : exp2(3 * u - 4);
    if (fill == MICA_FILL_EXTREME && bits >> 32 & 1) v = bits >> 33 & 1 ? 0 : 0x1p-100;
    return mica_fill_rounded(type, v);
}

/* Of blocks at random: f16 numbers of common size, signs by the fill. Other bytes are any: of
 * formats with scales of 8 bits the exponents of e8m0, which come first, are kept near 1. */
static unsigned fill_byte(const mica_blocks_format *f, mica_fill fill, uint64_t bits,
                          uint64_t of_block, int at)
{
    if (f->elements * 17 == f->bytes * 32 && at == 0) return 120 + (unsigned)(of_block % 8);
    for (int k = 0; k < 2; k++) {
        const int first = k ? f->second : f->scale;
        const uint64_t own = of_block >> 24 * k;
        if (first < 0 || (at != first && at != first + 1)) continue;
        const unsigned sign = fill == MICA_FILL_SAME_SIGN ? 0 : (unsigned)(own >> 20) & 1;
        const unsigned half =
            sign << 15 | (unsigned)(7 + own % 5) << 10 | ((unsigned)(own >> 8) & 1023);
        return at == first ? half & 255 : half >> 8;
    }
    return (unsigned)bits & 255;
}

/* Ends of groups: alike, all to one, empty ones, beside the sizes of tiles; random ones use up all
 * rows, exact ones mostly leave some. Extreme ones are none, and must do no harm. */
static void fill_ends(const mica_quantized_gemm_desc *d, mica_fill fill, uint64_t seed,
                      double *values)
{
    static const double edges[] = {0, 1, 7, 8, 9, 63, 64, 65, 0, 33};
    const double rows = (double)d->x.dims[0], groups = (double)d->w.dims[0];
    double end = 0;
    for (int64_t i = 0; i < d->w.dims[0]; i++) {
        const uint64_t bits = mica_random_bits(seed ^ 0xe4d5, (uint64_t)i);
        const double u = mica_random_uniform(seed, (uint64_t)i), share = rows / groups;
        const double part = fill == MICA_FILL_EXACT ? 0.4 + 0.5 * u : 0.6 + 0.8 * u;
        double size = floor(share * part + (double)(bits >> 8 & 255) / 256);
        if (fill == MICA_FILL_RANGE) size = edges[bits % 10];
        if (fill == MICA_FILL_EXACT && bits % 4 == 0) size = 0;
        if (fill == MICA_FILL_EXACT && i == 0) size = floor(share * 0.8) + 1;
        if (fill == MICA_FILL_SAME_SIGN) size = i == d->w.dims[0] / 2 ? rows : 0;
        end = fmin(end + size, rows);
        if (fill == MICA_FILL_RANDOM && i == d->w.dims[0] - 1) end = rows;
        values[i] = end;
        if (fill != MICA_FILL_EXTREME || bits % 2) continue;
        values[i] = bits & 2 ? -1000000007 : bits & 4 ? end - 5 : 2147483647;
    }
}

static bool fill(const void *desc, const double *numbers, int arg, mica_fill kind, uint64_t seed,
                 double *values)
{
    const mica_quantized_gemm_desc *d = desc;
    const mica_blocks_format *f = format_of(d);
    (void)numbers;
    if (arg == MICA_QUANTIZED_GEMM_ENDS) {
        fill_ends(d, kind, seed, values);
        return true;
    }
    if (arg == MICA_QUANTIZED_GEMM_SCALES) {
        const int64_t count = mica_tensor_count(&d->scales);
        for (int64_t i = 0; i < count; i++)
            values[i] = fill_scale(d->scales.dtype, kind, seed, (uint64_t)i);
        return true;
    }
    if (arg != MICA_QUANTIZED_GEMM_W || !f) return false;
    const int64_t count = mica_tensor_count(&d->w);
    for (int64_t i = 0; i < count; i++) {
        const uint64_t of_block = mica_random_bits(seed ^ 77, (uint64_t)(i / f->bytes));
        values[i] =
            fill_byte(f, kind, mica_random_bits(seed, (uint64_t)i), of_block, (int)(i % f->bytes));
    }
    return true;
}

const mica_op mica_op_quantized_gemm = {
    .name = "quantized_gemm",
    .doc = "Product with quantised weights, of groups too: codes, GGUF blocks, nf4, fp4",
    .desc_size = sizeof(mica_quantized_gemm_desc),
    .fields = fields,
    .field_count = sizeof fields / sizeof *fields,
    .args = args,
    .arg_count = sizeof args / sizeof *args,
    .scalars = scalars,
    .scalar_count = sizeof scalars / sizeof *scalars,
    .infer = infer,
    .dim = dim,
    .check = check,
    .cost = cost,
    .terms = terms,
    .exact = exact,
    .fill = fill,
    .reference = mica_quantized_gemm_reference,
    .engines = engines,
};
