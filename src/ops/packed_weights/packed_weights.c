/* SPDX-License-Identifier: Apache-2.0
 * dequantize_weights and repack_weights: tables, inference, checks, fills. */
#include "ops/packed_weights/packed_weights.h"
#include "base/random.h"

#include <string.h>

static const mica_engine *const dequantize_engines[] = {
    &mica_dequantize_weights_cpu, &mica_engine_ref, &mica_dequantize_weights_cuda, NULL};
static const mica_engine *const repack_engines[] = {&mica_repack_weights_cpu, &mica_engine_ref,
                                                    &mica_repack_weights_cuda, NULL};

static const char *const formats[] = {[MICA_PACKED_GPTQ] = "gptq",
                                      [MICA_PACKED_GPTQ_V2] = "gptq_v2",
                                      [MICA_PACKED_AWQ] = "awq",
                                      [MICA_PACKED_MARLIN] = "marlin",
                                      NULL};
_Static_assert(PACKED_GPTQ == (int)MICA_PACKED_GPTQ && PACKED_GPTQ_V2 == (int)MICA_PACKED_GPTQ_V2 &&
                   PACKED_AWQ == (int)MICA_PACKED_AWQ && PACKED_MARLIN == (int)MICA_PACKED_MARLIN,
               "kernels have the same numbers");

#define DEQUANTIZE(member, kind, ...)                                                              \
    MICA_FIELD(mica_dequantize_weights_desc, member, kind, __VA_ARGS__)
static const mica_field dequantize_fields[] = {
    DEQUANTIZE(format, ENUM, .spellings = formats, .doc = "layout of the codes"),
    DEQUANTIZE(bits, I64, .def = 4, .doc = "of a code"),
    DEQUANTIZE(group, I64, .positive = true, .zero = "inferred", .doc = "rows of K with one scale"),
    DEQUANTIZE(qweight, TENSOR, .zero = "needed", .doc = "words of codes"),
    DEQUANTIZE(scales, TENSOR, .zero = "needed", .doc = "G x N"),
    DEQUANTIZE(qzeros, TENSOR, .zero = "none", .doc = "words of zero points"),
    DEQUANTIZE(g_idx, TENSOR, .zero = "none", .doc = "group of each row of K"),
    DEQUANTIZE(y, TENSOR, .zero = "inferred", .doc = "K x N; inferred in scales' type"),
};

#define REPACK(member, kind, ...) MICA_FIELD(mica_repack_weights_desc, member, kind, __VA_ARGS__)
static const mica_field repack_fields[] = {
    REPACK(format, ENUM, .spellings = formats, .doc = "layout of the codes"),
    REPACK(bits, I64, .def = 4, .doc = "of a code"),
    REPACK(qweight, TENSOR, .zero = "needed", .doc = "words of codes"),
    REPACK(scales, TENSOR, .zero = "none", .doc = "G x N"),
    REPACK(qzeros, TENSOR, .zero = "none", .doc = "words of zero points"),
    REPACK(order, TENSOR, .zero = "none", .doc = "row of K that a column of w takes"),
    REPACK(w, TENSOR, .zero = "inferred", .doc = "N x K codes"),
    REPACK(w_scales, TENSOR, .zero = "inferred if scales are given", .doc = "N x G"),
    REPACK(w_zeros, TENSOR, .zero = "inferred if qzeros are given", .doc = "N x G"),
};

/* ---- sizes ---- */

static int64_t ceil_div(int64_t n, int64_t by)
{
    return n ? (n - 1) / by + 1 : 0;
}

/* K, N and words of a row of qzeros; sound once the rows and columns of qweight are checked. */
static int64_t size_of(mica_packed_format format, int64_t bits, const mica_tensor *qweight,
                       char letter)
{
    const int64_t rows = qweight->dims[0], cols = qweight->dims[1];
    const int64_t k = format == MICA_PACKED_MARLIN ? rows * 16
                      : format == MICA_PACKED_AWQ  ? rows
                                                   : rows * 32 / bits;
    const int64_t n = format == MICA_PACKED_MARLIN ? cols * 2 / bits
                      : format == MICA_PACKED_AWQ  ? cols * 8
                                                   : cols;
    return letter == 'K' ? k : letter == 'N' ? n : ceil_div(n * bits, 32);
}

static int64_t dequantize_dim(const void *desc, char letter)
{
    const mica_dequantize_weights_desc *d = desc;
    if (letter == 'G') return d->scales.dims[0];
    return size_of(d->format, d->bits, &d->qweight, letter);
}

static int64_t repack_dim(const void *desc, char letter)
{
    const mica_repack_weights_desc *d = desc;
    if (letter == 'G') return mica_tensor_given(&d->qzeros) ? d->qzeros.dims[0] : d->scales.dims[0];
    return size_of(d->format, d->bits, &d->qweight, letter);
}

static mica_tensor repack_w(const void *desc)
{
    const mica_repack_weights_desc *d = desc;
    const bool zeros = mica_tensor_given(&d->qzeros), byte = d->bits == 8;
    mica_tensor t = {.dtype = zeros  ? byte ? MICA_U8 : MICA_U4
                              : byte ? MICA_S8
                                     : MICA_S4,
                     .rank = 2,
                     .dims = {repack_dim(d, 'N'), repack_dim(d, 'K')}};
    mica_tensor_default_strides(&t);
    return t;
}

#define COMMON (MICA_TYPE(F32) | MICA_TYPE(F16) | MICA_TYPE(BF16))
#define CODES  (MICA_TYPE(S8) | MICA_TYPE(U8) | MICA_TYPE(S4) | MICA_TYPE(U4))

static const mica_arg dequantize_args[] = {
    [MICA_DEQUANTIZE_WEIGHTS_QWEIGHT] = {"qweight",
                                         offsetof(mica_dequantize_weights_desc, qweight),
                                         {MICA_IN},
                                         .types = MICA_TYPE(S32),
                                         .need = {MICA_NEEDED}},
    [MICA_DEQUANTIZE_WEIGHTS_SCALES] = {"scales",
                                        offsetof(mica_dequantize_weights_desc, scales),
                                        {MICA_IN},
                                        .types = COMMON,
                                        .need = {MICA_NEEDED},
                                        .dims = "GxN"},
    [MICA_DEQUANTIZE_WEIGHTS_QZEROS] = {"qzeros",
                                        offsetof(mica_dequantize_weights_desc, qzeros),
                                        {MICA_IN},
                                        .types = MICA_TYPE(S32),
                                        .dims = "GxZ"},
    [MICA_DEQUANTIZE_WEIGHTS_G_IDX] = {"g_idx",
                                       offsetof(mica_dequantize_weights_desc, g_idx),
                                       {MICA_IN},
                                       .types = MICA_INDICES,
                                       .dims = "K"},
    [MICA_DEQUANTIZE_WEIGHTS_Y] = {"y",
                                   offsetof(mica_dequantize_weights_desc, y),
                                   {MICA_OUT},
                                   .types = COMMON,
                                   .need = {MICA_INFERRED},
                                   .like = "scales",
                                   .dims = "KxN"},
};

static const mica_arg repack_args[] = {
    [MICA_REPACK_WEIGHTS_QWEIGHT] = {"qweight",
                                     offsetof(mica_repack_weights_desc, qweight),
                                     {MICA_IN},
                                     .types = MICA_TYPE(S32),
                                     .need = {MICA_NEEDED}},
    [MICA_REPACK_WEIGHTS_SCALES] = {"scales",
                                    offsetof(mica_repack_weights_desc, scales),
                                    {MICA_IN},
                                    .types = COMMON,
                                    .dims = "GxN"},
    [MICA_REPACK_WEIGHTS_QZEROS] = {"qzeros",
                                    offsetof(mica_repack_weights_desc, qzeros),
                                    {MICA_IN},
                                    .types = MICA_TYPE(S32),
                                    .dims = "GxZ"},
    [MICA_REPACK_WEIGHTS_ORDER] = {"order",
                                   offsetof(mica_repack_weights_desc, order),
                                   {MICA_IN},
                                   .types = MICA_INDICES,
                                   .dims = "K"},
    [MICA_REPACK_WEIGHTS_W] = {"w",
                               offsetof(mica_repack_weights_desc, w),
                               {MICA_OUT},
                               .types = CODES,
                               .need = {MICA_INFERRED},
                               .shape = repack_w,
                               .words = "codes of qweight"},
    [MICA_REPACK_WEIGHTS_W_SCALES] = {"w_scales",
                                      offsetof(mica_repack_weights_desc, w_scales),
                                      {MICA_OUT},
                                      .types = COMMON,
                                      .need = {MICA_INFERRED},
                                      .like = "scales",
                                      .dims = "NxG",
                                      .same = "scales",
                                      .with = "scales"},
    [MICA_REPACK_WEIGHTS_W_ZEROS] = {"w_zeros",
                                     offsetof(mica_repack_weights_desc, w_zeros),
                                     {MICA_OUT},
                                     .types = CODES | COMMON,
                                     .need = {MICA_INFERRED},
                                     .like = "w",
                                     .dims = "NxG",
                                     .with = "qzeros"},
};

/* ---- inference and checks ---- */

static mica_status check_words(mica_packed_format format, int64_t bits, const mica_tensor *t,
                               mica_why *why)
{
    const bool gptq = format == MICA_PACKED_GPTQ || format == MICA_PACKED_GPTQ_V2;
    const int64_t unit = 32 * bits; /* words of 64 columns of Marlin */
    if (!(bits == 4 || (gptq && (bits == 2 || bits == 3)) ||
          (format != MICA_PACKED_AWQ && bits == 8)))
        return mica_invalid(why, "bits is %lld, of %s it must be %s", (long long)bits,
                            formats[format],
                            gptq                        ? "2, 3, 4 or 8"
                            : format == MICA_PACKED_AWQ ? "4"
                                                        : "4 or 8");
    if (t->rank != 2) return mica_invalid(why, "qweight has rank %d, it must be 2", t->rank);
    if (gptq && bits == 3 && t->dims[0] % 3)
        return mica_invalid(why, "qweight has %lld rows, 32 codes of 3 bits are 3",
                            (long long)t->dims[0]);
    if (format == MICA_PACKED_MARLIN && t->dims[1] % unit)
        return mica_invalid(why,
                            "qweight has %lld columns, a tile of marlin with %lld bits is %lld",
                            (long long)t->dims[1], (long long)bits, (long long)unit);
    return MICA_OK;
}

/* Of scales and qzeros, whose first dimension is G. */
static mica_status check_matrix(const char *name, const mica_tensor *t, mica_why *why)
{
    if (mica_tensor_given(t) && t->rank != 2)
        return mica_invalid(why, "%s has rank %d, it must be 2", name, t->rank);
    return MICA_OK;
}

static mica_status dequantize_infer(void *desc, mica_why *why)
{
    mica_dequantize_weights_desc *d = desc;
    MICA_TRY(check_words(d->format, d->bits, &d->qweight, why));
    MICA_TRY(check_matrix("scales", &d->scales, why));
    MICA_TRY(check_matrix("qzeros", &d->qzeros, why));
    const bool gptq = d->format == MICA_PACKED_GPTQ || d->format == MICA_PACKED_GPTQ_V2;
    const int64_t k = dequantize_dim(d, 'K'), groups = d->scales.dims[0];
    if (mica_tensor_given(&d->g_idx)) {
        if (!gptq) return mica_invalid(why, "g_idx is for gptq, format is %s", formats[d->format]);
        if (d->group)
            return mica_invalid(why, "group is %lld, with g_idx that says the groups",
                                (long long)d->group);
        if (groups == 0 && k)
            return mica_invalid(why, "scales has no rows, %lld rows of K need one", (long long)k);
        return MICA_OK;
    }
    if (d->group == 0 && groups) d->group = k ? ceil_div(k, groups) : 1;
    if (d->group == 0) d->group = 1;
    if (ceil_div(k, d->group) != groups && (k || groups > 1))
        return mica_invalid(why, "scales has %lld rows, K of %lld with groups of %lld needs %lld",
                            (long long)groups, (long long)k, (long long)d->group,
                            (long long)ceil_div(k, d->group));
    return MICA_OK;
}

static mica_status repack_infer(void *desc, mica_why *why)
{
    mica_repack_weights_desc *d = desc;
    MICA_TRY(check_words(d->format, d->bits, &d->qweight, why));
    MICA_TRY(check_matrix("scales", &d->scales, why));
    return check_matrix("qzeros", &d->qzeros, why);
}

static mica_status repack_check(const void *desc, mica_why *why)
{
    const mica_repack_weights_desc *d = desc;
    const mica_dtype type = repack_w(d).dtype;
    if (d->w.dtype != type)
        return mica_invalid(why, "w is %s, of %lld bits %s qzeros it is %s",
                            mica_dtype_name(d->w.dtype), (long long)d->bits,
                            mica_tensor_given(&d->qzeros) ? "with" : "without",
                            mica_dtype_name(type));
    const mica_dtype zeros = d->w_zeros.dtype;
    if (mica_tensor_given(&d->w_zeros) && mica_dtype_is_integer(zeros) && zeros != type)
        return mica_invalid(why, "w_zeros is %s, it must be of w's type, %s, or f32, f16 or bf16",
                            mica_dtype_name(zeros), mica_dtype_name(type));
    return MICA_OK;
}

static bool exact(const void *desc)
{
    (void)desc;
    return true;
}

void mica_packed_contract(const void *desc, const mica_config *config, mica_contract *contract)
{
    (void)desc, (void)config;
    contract->unit = 0x1p-53;
    contract->n_seq = 0;
}

/* ---- engines' view ---- */

static const mica_tensor none;

static mica_tensor seen(const mica_op *op, const void *desc, const mica_view *views, int arg)
{
    mica_tensor t = arg < 0 ? none : *mica_op_tensor(op, desc, arg);
    if (arg >= 0 && views && views[arg].data)
        memcpy(t.strides, views[arg].t.strides, sizeof t.strides);
    return t;
}

static void make_repack(const mica_op *op, const void *desc, const mica_view *views, mica_packed *p)
{
    const mica_repack_weights_desc *d = desc;
    mica_packed_args *a = &p->a;
    const mica_tensor w = seen(op, desc, views, MICA_REPACK_WEIGHTS_W);
    const mica_tensor s = seen(op, desc, views, MICA_REPACK_WEIGHTS_W_SCALES);
    const mica_tensor z = seen(op, desc, views, MICA_REPACK_WEIGHTS_W_ZEROS);
    p->format = (int)d->format, p->bits = (int)d->bits;
    p->arg_scales = MICA_REPACK_WEIGHTS_SCALES, p->arg_zeros = MICA_REPACK_WEIGHTS_QZEROS;
    p->arg_index = MICA_REPACK_WEIGHTS_ORDER, p->arg_to = MICA_REPACK_WEIGHTS_W;
    a->k = repack_dim(d, 'K'), a->n = repack_dim(d, 'N'), a->groups = repack_dim(d, 'G');
    a->group = 1;
    a->to_n = w.strides[0], a->to_k = w.strides[1];
    a->w_scales_n = s.strides[0], a->w_scales_g = s.strides[1];
    a->w_zeros_n = z.strides[0], a->w_zeros_g = z.strides[1];
    p->zeros = z.dtype;
}

static void make_dequantize(const mica_op *op, const void *desc, const mica_view *views,
                            mica_packed *p)
{
    const mica_dequantize_weights_desc *d = desc;
    mica_packed_args *a = &p->a;
    const mica_tensor y = seen(op, desc, views, MICA_DEQUANTIZE_WEIGHTS_Y);
    p->format = (int)d->format, p->bits = (int)d->bits;
    p->arg_scales = MICA_DEQUANTIZE_WEIGHTS_SCALES, p->arg_zeros = MICA_DEQUANTIZE_WEIGHTS_QZEROS;
    p->arg_index = MICA_DEQUANTIZE_WEIGHTS_G_IDX, p->arg_to = MICA_DEQUANTIZE_WEIGHTS_Y;
    a->k = dequantize_dim(d, 'K'), a->n = dequantize_dim(d, 'N');
    a->groups = dequantize_dim(d, 'G');
    a->group = d->group ? d->group : 1;
    a->to_k = y.strides[0], a->to_n = y.strides[1];
}

void mica_packed_make(const mica_op *op, const void *desc, const mica_view *views, mica_packed *p)
{
    memset(p, 0, sizeof *p);
    mica_packed_args *a = &p->a;
    p->dequantizes = op == &mica_op_dequantize_weights;
    (p->dequantizes ? make_dequantize : make_repack)(op, desc, views, p);
    const mica_tensor q = seen(op, desc, views, 0), s = seen(op, desc, views, p->arg_scales);
    const mica_tensor z = seen(op, desc, views, p->arg_zeros);
    const mica_tensor i = seen(op, desc, views, p->arg_index);
    p->has_scales = mica_tensor_given(&s), p->has_zeros = mica_tensor_given(&z);
    p->has_index = mica_tensor_given(&i);
    p->scales = s.dtype, p->index = i.dtype;
    p->to = mica_op_tensor(op, desc, p->arg_to)->dtype;
    p->single = a->groups == 1;
    a->qweight_r = q.strides[0], a->qweight_c = q.strides[1];
    a->qzeros_r = z.strides[0], a->qzeros_c = z.strides[1];
    a->scales_r = s.strides[0], a->scales_c = s.strides[1];
    a->index_r = i.strides[0];
}

void mica_packed_bind(const mica_packed *p, const mica_run *run, mica_packed_args *a)
{
    a->qweight = run->args[0];
    a->scales = run->args[p->arg_scales];
    a->qzeros = run->args[p->arg_zeros];
    a->index = run->args[p->arg_index];
    a->to = run->args[p->arg_to];
    if (p->dequantizes) return;
    a->w_scales = run->args[MICA_REPACK_WEIGHTS_W_SCALES];
    a->w_zeros = run->args[MICA_REPACK_WEIGHTS_W_ZEROS];
}

bool mica_packed_rows_whole(const mica_packed *p)
{
    if (mica_dtype_bits(p->to) == 8) return p->a.to_k == 1 || p->a.k < 2;
    return (p->a.to_k == 1 || p->a.k < 2) && (p->a.to_n % 2 == 0 || p->a.n < 2);
}

/* ---- fills ---- */

/* Words are any; indices are within their ends, of extreme fills some are not. */
static void fill_words(int64_t count, int64_t below, mica_fill fill, uint64_t seed, double *values)
{
    for (int64_t i = 0; i < count; i++) {
        const uint64_t bits = mica_random_bits(seed, (uint64_t)i);
        if (below < 0)
            values[i] = (double)(int32_t)(uint32_t)(bits >> 32);
        else if (fill == MICA_FILL_EXTREME && bits % 5 == 0)
            values[i] = bits >> 32 & 1 ? (double)below : -1;
        else
            values[i] = below ? (double)(bits % (uint64_t)below) : 0;
    }
}

static bool dequantize_fill(const void *desc, const double *scalars, int arg, mica_fill fill,
                            uint64_t seed, double *values)
{
    const mica_tensor *t = mica_op_tensor(&mica_op_dequantize_weights, desc, arg);
    (void)scalars;
    if (!mica_dtype_is_integer(t->dtype)) return false;
    const bool words = arg != MICA_DEQUANTIZE_WEIGHTS_G_IDX;
    const uint64_t own = seed + (uint64_t)arg * 1000003; /* zero points are not the first codes */
    fill_words(mica_tensor_count(t), words ? -1 : dequantize_dim(desc, 'G'), fill, own, values);
    return true;
}

static bool repack_fill(const void *desc, const double *scalars, int arg, mica_fill fill,
                        uint64_t seed, double *values)
{
    const mica_tensor *t = mica_op_tensor(&mica_op_repack_weights, desc, arg);
    (void)scalars;
    if (!mica_dtype_is_integer(t->dtype)) return false;
    const bool words = arg != MICA_REPACK_WEIGHTS_ORDER;
    const uint64_t own = seed + (uint64_t)arg * 1000003;
    fill_words(mica_tensor_count(t), words ? -1 : repack_dim(desc, 'K'), fill, own, values);
    return true;
}

const mica_op mica_op_dequantize_weights = {
    .name = "dequantize_weights",
    .doc = "Weights in the layouts of GPTQ, AWQ and Marlin, as floating-point numbers",
    .desc_size = sizeof(mica_dequantize_weights_desc),
    .fields = dequantize_fields,
    .field_count = sizeof dequantize_fields / sizeof *dequantize_fields,
    .args = dequantize_args,
    .arg_count = sizeof dequantize_args / sizeof *dequantize_args,
    .infer = dequantize_infer,
    .dim = dequantize_dim,
    .exact = exact,
    .fill = dequantize_fill,
    .reference = mica_dequantize_weights_reference,
    .engines = dequantize_engines,
};

const mica_op mica_op_repack_weights = {
    .name = "repack_weights",
    .doc = "Weights in the layouts of GPTQ, AWQ and Marlin, as codes that quantized_gemm takes",
    .desc_size = sizeof(mica_repack_weights_desc),
    .fields = repack_fields,
    .field_count = sizeof repack_fields / sizeof *repack_fields,
    .args = repack_args,
    .arg_count = sizeof repack_args / sizeof *repack_args,
    .infer = repack_infer,
    .dim = repack_dim,
    .check = repack_check,
    .exact = exact,
    .fill = repack_fill,
    .reference = mica_repack_weights_reference,
    .engines = repack_engines,
};
