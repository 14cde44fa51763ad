/* SPDX-License-Identifier: Apache-2.0
 * gemm: its fields, arguments and rules. */
#include "ops/gemm/gemm_shape.h"

#include <math.h>

static const char *const compute_spellings[] = {
    [MICA_COMPUTE_DEFAULT] = "default", [MICA_COMPUTE_TF32] = "tf32", NULL};

static const char *const gates[] = {[MICA_GEMM_GATE_NONE] = "none",
                                    [MICA_GEMM_GATE_PAIRS] = "pairs",
                                    [MICA_GEMM_GATE_HALVES] = "halves",
                                    NULL};

static const mica_field fields[] = {
    MICA_FIELD(mica_gemm_desc, a, TENSOR, .zero = "needed", .doc = "[batch x] M x K"),
    MICA_FIELD(mica_gemm_desc, b, TENSOR, .zero = "needed", .doc = "[batch x] K x N"),
    MICA_FIELD(mica_gemm_desc, c, TENSOR, .zero = "inferred", .doc = "[batch x] M x N"),
    MICA_FIELD(mica_gemm_desc, compute, ENUM, .spellings = compute_spellings,
               .doc = "tf32 allows f32 inputs to be rounded to 11 bits"),
    MICA_FIELD(mica_gemm_desc, scale_a, TENSOR, .zero = "none",
               .doc = "f32: 1 element, one per row of a, or M x ceil(K/128)"),
    MICA_FIELD(mica_gemm_desc, scale_b, TENSOR, .zero = "none",
               .doc = "f32: 1 element, one per column of b, or ceil(K/128) x ceil(N/128)"),
    MICA_FIELD(mica_gemm_desc, epilogue, LIST, .count = MICA_MAX_STEPS,
               .spellings = mica_step_spellings, .doc = "steps applied to the result, in order"),
    MICA_FIELD(mica_gemm_desc, act_a, F64, .apart = true, .infinite = true,
               .zero = "the function's own", .doc = "first parameter of the activation"),
    MICA_FIELD(mica_gemm_desc, act_b, F64, .infinite = true, .zero = "the function's own",
               .doc = "second parameter of the activation"),
    MICA_FIELD(mica_gemm_desc, bias, TENSOR, .zero = "inferred with its step", .doc = "N"),
    MICA_FIELD(mica_gemm_desc, scale, TENSOR, .zero = "inferred with its step", .doc = "N"),
    MICA_FIELD(mica_gemm_desc, shift, TENSOR, .zero = "inferred with its step", .doc = "N"),
    MICA_FIELD(mica_gemm_desc, residual, TENSOR, .zero = "inferred with its step", .doc = "as c"),
    MICA_FIELD(mica_gemm_desc, gate, ENUM, .spellings = gates,
               .doc = "c has N/2 columns: act(t[m,2j]) t[m,2j+1], or act(t[m,j]) t[m,j+N/2]"),
    MICA_FIELD(mica_gemm_desc, scale_c, TENSOR, .zero = "none",
               .doc = "f32: 1 element, by which an 8-bit c is scaled before rounding"),
    MICA_FIELD(mica_gemm_desc, aux, TENSOR, .zero = "none",
               .doc = "M x N: the values before the activation; a type is enough"),
    MICA_FIELD(mica_gemm_desc, amax, TENSOR, .zero = "none",
               .doc = "1 element: largest |value| before scale_c; a type is enough"),
};

/* ---- arguments ---- */

/* Size of batch dimension i from the last; 1 where t has none. */
static int64_t batch_dim(const mica_tensor *t, int i)
{
    int d = t->rank - 3 - i;
    return d < 0 ? 1 : t->dims[d];
}

/* Of the product, before columns are gated. */
static mica_status product_dims(const mica_gemm_desc *d, mica_tensor *c, mica_why *why)
{
    const mica_tensor *a = &d->a, *b = &d->b;
    c->rank = a->rank > b->rank ? a->rank : b->rank;
    for (int i = 0; i < c->rank - 2; i++) {
        int64_t x = batch_dim(a, i), y = batch_dim(b, i);
        if (x != y && x != 1 && y != 1)
            return mica_invalid(why,
                                "batch dimension %d from the last is %lld in a, %lld in b; they "
                                "must agree, or one be 1",
                                i + 1, (long long)x, (long long)y);
        c->dims[c->rank - 3 - i] = x == 1 ? y : x;
    }
    c->dims[c->rank - 2] = a->dims[a->rank - 2];
    c->dims[c->rank - 1] = b->dims[b->rank - 1];
    return MICA_OK;
}

/* Of the product, before columns are gated; its dimensions are sound. */
static mica_tensor product_of(const void *desc)
{
    mica_tensor t = {.dtype = ((const mica_gemm_desc *)desc)->a.dtype};
    mica_why why;
    (void)product_dims(desc, &t, &why);
    mica_tensor_default_strides(&t);
    return t;
}

static mica_tensor of_channels(const void *desc)
{
    const mica_gemm_desc *d = desc;
    return mica_epilogue_vector(&d->c, d->b.dims[d->b.rank - 1]);
}

#define EIGHT_BITS (MICA_TYPE(E4M3) | MICA_TYPE(E5M2) | MICA_TYPE(S8))
#define INTEGERS   (MICA_TYPE(S32) | MICA_TYPE(S8) | MICA_TYPE(U8))
#define ARG(member, direction, TYPES, ...)                                                         \
    {                                                                                              \
        .name = #member, .tensor = offsetof(mica_gemm_desc, member), .dir = {direction},           \
        .types = TYPES, __VA_ARGS__                                                                \
    }
#define STEP(name) .need = {MICA_INFERRED}, MICA_EPILOGUE_STEP(name)
#define VECTOR     MICA_EPILOGUE_CHANNELS(of_channels)
static const mica_arg args[] = {
    [MICA_GEMM_A] =
        ARG(a, MICA_IN, MICA_FLOATS | EIGHT_BITS | MICA_TYPE(U8), .need = {MICA_NEEDED}),
    [MICA_GEMM_B] = ARG(b, MICA_IN, MICA_FLOATS | EIGHT_BITS, .need = {MICA_NEEDED}),
    [MICA_GEMM_C] = ARG(c, MICA_OUT, MICA_FLOATS | EIGHT_BITS | INTEGERS, .need = {MICA_INFERRED}),
    [MICA_GEMM_SCALE_A] = ARG(scale_a, MICA_IN, MICA_TYPE(F32), .need = {0}),
    [MICA_GEMM_SCALE_B] = ARG(scale_b, MICA_IN, MICA_TYPE(F32), .need = {0}),
    [MICA_GEMM_BIAS] = ARG(bias, MICA_IN, MICA_FLOATS, STEP(BIAS), VECTOR),
    [MICA_GEMM_SCALE] = ARG(scale, MICA_IN, MICA_FLOATS, STEP(SCALE), VECTOR),
    [MICA_GEMM_SHIFT] = ARG(shift, MICA_IN, MICA_FLOATS, STEP(SHIFT), VECTOR),
    [MICA_GEMM_RESIDUAL] =
        ARG(residual, MICA_IN, MICA_FLOATS | INTEGERS, STEP(RESIDUAL), .like = "c", .alias = "c"),
    [MICA_GEMM_SCALE_C] = ARG(scale_c, MICA_IN, MICA_TYPE(F32), .dims = "1"),
    [MICA_GEMM_AUX] =
        ARG(aux, MICA_OUT, MICA_FLOATS, .like = "the product of a and b", .shape = product_of),
    [MICA_GEMM_AMAX] = ARG(amax, MICA_OUT, MICA_TYPE(F64) | MICA_TYPE(F32), .like = "a",
                           .dims = "1", .sums = true),
};

static const mica_scalar scalars[] = {
    [MICA_GEMM_ALPHA] = {"alpha", 1}, [MICA_GEMM_BETA] = {"beta", 0}};

/* ---- types ---- */

typedef enum kind { KIND_F64, KIND_FLOAT, KIND_FP8, KIND_INT } kind;

static kind kind_of(mica_dtype d)
{
    if (d == MICA_F64) return KIND_F64;
    if (mica_dtype_is_common(d)) return KIND_FLOAT;
    if (d == MICA_E4M3 || d == MICA_E5M2) return KIND_FP8;
    return KIND_INT;
}

static mica_status check_inputs(const mica_gemm_desc *d, mica_why *why)
{
    kind ka = kind_of(d->a.dtype), kb = kind_of(d->b.dtype);
    if (ka != kb)
        return mica_invalid(why,
                            "a is %s, b is %s; f64 goes with f64, f32 f16 bf16 with each other, "
                            "e4m3 e5m2 with each other, s8 and u8 with an s8 b",
                            mica_dtype_name(d->a.dtype), mica_dtype_name(d->b.dtype));
    if (d->a.rank < 2 || d->b.rank < 2)
        return mica_invalid(why, "a has rank %d, b %d; a matrix has at least 2", d->a.rank,
                            d->b.rank);
    int64_t k = d->a.dims[d->a.rank - 1], b_k = d->b.dims[d->b.rank - 2];
    if (k != b_k)
        return mica_invalid(why, "a has %lld columns, b has %lld rows; both are K", (long long)k,
                            (long long)b_k);
    return MICA_OK;
}

static mica_status check_output_type(const mica_gemm_desc *d, mica_why *why)
{
    mica_dtype c = d->c.dtype;
    bool half = c == MICA_F32 || c == MICA_F16 || c == MICA_BF16;
    switch (kind_of(d->a.dtype)) {
    case KIND_F64:
        if (c == MICA_F64 || c == MICA_F32) return MICA_OK;
        return mica_invalid(why, "c is %s; with f64 inputs it is f64 or f32", mica_dtype_name(c));
    case KIND_INT:
        if (half || c == MICA_S32 || c == MICA_S8 || c == MICA_U8) return MICA_OK;
        return mica_invalid(why, "c is %s; with s8 inputs it is s32, s8, u8, f32, f16 or bf16",
                            mica_dtype_name(c));
    default:
        if (half || c == MICA_E4M3 || c == MICA_E5M2 || c == MICA_S8) return MICA_OK;
        return mica_invalid(why, "c is %s; with %s inputs it is f32, f16, bf16, e4m3, e5m2 or s8",
                            mica_dtype_name(c), mica_dtype_name(d->a.dtype));
    }
}

static mica_dtype output_type(const mica_gemm_desc *d)
{
    kind k = kind_of(d->a.dtype);
    if (k == KIND_INT) return MICA_S32;
    return k != KIND_FP8 && d->a.dtype == d->b.dtype ? d->a.dtype : MICA_F32;
}

/* ---- shapes ---- */

static mica_status gate_dims(const mica_gemm_desc *d, mica_tensor *c, mica_why *why)
{
    int64_t *n = &c->dims[c->rank - 1];
    if (d->gate == MICA_GEMM_GATE_NONE) return MICA_OK;
    if (*n % 2 != 0)
        return mica_invalid(why, "the product has %lld columns, gate=%s needs an even number",
                            (long long)*n, gates[d->gate]);
    *n /= 2;
    return MICA_OK;
}

static mica_status infer(void *desc, mica_why *why)
{
    mica_gemm_desc *d = desc;
    MICA_TRY(check_inputs(d, why));
    mica_tensor product = {0};
    MICA_TRY(product_dims(d, &product, why));
    mica_tensor c = product;
    MICA_TRY(gate_dims(d, &c, why));
    if (d->c.rank == 0)
        d->c = mica_tensor_packed(mica_tensor_given(&d->c) ? d->c.dtype : output_type(d), c.rank,
                                  c.dims);
    mica_epilogue e = gemm_epilogue(d);
    mica_epilogue_infer(&e, &d->c);
    return MICA_OK;
}

static mica_status check_scale(const mica_gemm_desc *d, const mica_tensor *s, const char *name,
                               int64_t lines, const char *what, mica_why *why)
{
    if (!mica_tensor_given(s)) return MICA_OK;
    if (mica_dtype_bits(d->a.dtype) != 8)
        return mica_invalid(why, "%s is for 8-bit inputs, a is %s", name,
                            mica_dtype_name(d->a.dtype));
    if (mica_tensor_count(s) != 1 && (s->rank != 1 || s->dims[0] != lines))
        return mica_invalid(why, "%s has %lld elements, it must have 1 or the %lld %s", name,
                            (long long)mica_tensor_count(s), (long long)lines, what);
    return MICA_OK;
}

static mica_status check_blocks_of(const mica_tensor *s, const char *name, int64_t lines,
                                   int64_t blocks, mica_why *why)
{
    if (!mica_tensor_given(s))
        return mica_invalid(why, "%s is none: scales of blocks go together", name);
    if (s->rank == 2 && s->dims[0] == lines && s->dims[1] == blocks) return MICA_OK;
    return mica_invalid(why,
                        "%s has %lld x %lld elements in %d dimensions; for blocks of %d it has "
                        "%lld x %lld",
                        name, (long long)s->dims[0], (long long)s->dims[1], s->rank, GEMM_BLOCK,
                        (long long)lines, (long long)blocks);
}

static int64_t blocks_of(int64_t n)
{
    return n / GEMM_BLOCK + (n % GEMM_BLOCK != 0);
}

static mica_status check_blocks(const mica_gemm_desc *d, int64_t m, int64_t n, mica_why *why)
{
    int64_t k = blocks_of(d->a.dims[d->a.rank - 1]);
    if (kind_of(d->a.dtype) != KIND_FP8)
        return mica_invalid(why, "scales of blocks are for e4m3 and e5m2, a is %s",
                            mica_dtype_name(d->a.dtype));
    if (d->a.rank != 2 || d->b.rank != 2)
        return mica_invalid(why,
                            "a has rank %d, b %d; scales of blocks are for matrices (batches: "
                            "grouped_gemm)",
                            d->a.rank, d->b.rank);
    MICA_TRY(check_blocks_of(&d->scale_a, "scale_a", m, k, why));
    return check_blocks_of(&d->scale_b, "scale_b", k, blocks_of(n), why);
}

static mica_status check_scales(const mica_gemm_desc *d, int64_t m, int64_t n, mica_why *why)
{
    if (gemm_has_blocks(d)) return check_blocks(d, m, n, why);
    MICA_TRY(check_scale(d, &d->scale_a, "scale_a", m, "rows of a", why));
    return check_scale(d, &d->scale_b, "scale_b", n, "columns of b", why);
}

static mica_status check_gate(const mica_gemm_desc *d, mica_why *why)
{
    if (d->gate == MICA_GEMM_GATE_NONE) return MICA_OK;
    if (gemm_has_blocks(d))
        return mica_invalid(why, "gate=%s: not with scales of blocks", gates[d->gate]);
    int act = mica_epilogue_act(d->epilogue), count = mica_epilogue_count(d->epilogue);
    if (act == count)
        return mica_invalid(why, "gate=%s: epilogue has no activation (identity is one)",
                            gates[d->gate]);
    for (int i = 0; i < count; i++) {
        bool residual = d->epilogue[i] == MICA_STEP_RESIDUAL;
        if (i != act && (i > act) != residual)
            return mica_invalid(why,
                                "gate=%s: %s is step %d of epilogue, the activation step %d; bias, "
                                "scale and shift come before it, the residual after it",
                                gates[d->gate], mica_step_spellings[d->epilogue[i]], i + 1,
                                act + 1);
    }
    return MICA_OK;
}

static mica_status check(const void *desc, mica_why *why)
{
    const mica_gemm_desc *d = desc;
    MICA_TRY(check_inputs(d, why));
    MICA_TRY(check_output_type(d, why));
    mica_tensor product = {0};
    MICA_TRY(product_dims(d, &product, why));
    mica_tensor c = product;
    MICA_TRY(gate_dims(d, &c, why));
    MICA_TRY(mica_tensor_same_dims(&d->c, "c", &c,
                                   d->gate ? "the gated product" : "the product of a and b", why));
    int64_t m = product.dims[c.rank - 2], n = product.dims[c.rank - 1];
    MICA_TRY(check_scales(d, m, n, why));
    MICA_TRY(check_gate(d, why));
    MICA_TRY(mica_epilogue_check_aux(d->epilogue, &d->aux, d->a.dtype, why));
    if (mica_tensor_given(&d->scale_c) && mica_dtype_bits(d->c.dtype) != 8)
        return mica_invalid(why, "scale_c is for an 8-bit c, c is %s", mica_dtype_name(d->c.dtype));
    mica_epilogue e = gemm_epilogue(d);
    return mica_epilogue_check(&e, why);
}

/* ---- numbers ---- */

static void cost(const void *desc, double *flops, double *bytes)
{
    (void)bytes;
    gemm_shape s;
    gemm_shape_make(desc, &s);
    *flops = gemm_flops(&s);
    if (((const mica_gemm_desc *)desc)->gate) *flops *= 2;
}

/* The sum over K, and the few roundings after it: alpha, beta and their sum, scales, steps. */
static int64_t terms(const void *desc)
{
    const mica_gemm_desc *d = desc;
    int64_t n = d->a.dims[d->a.rank - 1] + 3;
    n += mica_tensor_given(&d->scale_a) + mica_tensor_given(&d->scale_b);
    n += mica_tensor_given(&d->scale_c) + (d->gate != MICA_GEMM_GATE_NONE);
    for (int i = 0; i < MICA_MAX_STEPS && d->epilogue[i]; i++) n++;
    return n;
}

static bool exact(const void *desc)
{
    const mica_gemm_desc *d = desc;
    /* A product of two sums: both must stay below 12 bits. */
    if (d->gate && d->a.dims[d->a.rank - 1] > 512) return false;
    for (int i = 0; i < MICA_MAX_STEPS && d->epilogue[i]; i++) {
        int step = d->epilogue[i];
        bool whole = step < MICA_STEP_ACT || step == MICA_STEP_ACT + MICA_ACT_IDENTITY ||
                     step == MICA_STEP_ACT + MICA_ACT_RELU ||
                     step == MICA_STEP_ACT + MICA_ACT_RELU6 ||
                     step == MICA_STEP_ACT + MICA_ACT_HARD_TANH;
        if (!whole) return false;
    }
    return true;
}

static bool is_plain_f32(const mica_gemm_desc *d, const double *scalars)
{
    bool f32 = d->a.dtype == MICA_F32 && d->b.dtype == MICA_F32 && d->c.dtype == MICA_F32;
    bool more = d->epilogue[0] || d->gate || mica_tensor_given(&d->aux) ||
                mica_tensor_given(&d->amax) || d->compute == MICA_COMPUTE_TF32;
    return f32 && !more && scalars[MICA_GEMM_ALPHA] == 1 && scalars[MICA_GEMM_BETA] == 0;
}

/* EXTREME has infinity, NaN, and numbers at the ends of f32 in one row of a each: they are to be
 * seen in that row of c, as f32 has them, and nowhere else. */
static bool fill_rows(const void *desc, const double *scalars, int arg, mica_fill fill,
                      uint64_t seed, double *values)
{
    const mica_gemm_desc *d = desc;
    const mica_tensor *a = &d->a;
    int64_t m = a->dims[a->rank - 2], k = a->dims[a->rank - 1];
    if (arg != MICA_GEMM_A || fill != MICA_FILL_EXTREME || !is_plain_f32(d, scalars)) return false;
    if (m < 4 || k < 4 || mica_tensor_count(a) == 0) return false;
    for (int i = 0; i < a->rank; i++)
        if (a->strides[i] == 0 && a->dims[i] > 1) return false; /* a row that is all rows */
    mica_fill_general(&mica_op_gemm, desc, arg, fill, seed, values);
    values[1] = (double)INFINITY;
    values[k + 2] = (double)NAN;
    values[2 * k + 3] = MICA_FILL_LARGEST;
    for (int64_t i = 0; i < k && k % 2 == 0; i++) values[2 * k + i] = MICA_FILL_SMALL;
    return true;
}

static const mica_engine *const engines[] = {&gemm_onednn,      &gemm_bf16,    &gemm_cpu,
                                             &mica_engine_ref,  &gemm_gemv,    &gemm_sm90_skinny,
                                             &gemm_skinny,      &gemm_sm90,    &gemm_sm90_blocks,
                                             &gemm_sm90_turned, &gemm_sm80,    &gemm_sm80_f32,
                                             &gemm_sm80_f64,    &gemm_split_k, &gemm_cuda,
                                             &gemm_cublaslt,    NULL};

const mica_op mica_op_gemm = {
    .name = "gemm",
    .doc = "matrix multiplication, batched and strided, with an epilogue",
    .desc_size = sizeof(mica_gemm_desc),
    .fields = fields,
    .field_count = sizeof fields / sizeof *fields,
    .args = args,
    .arg_count = sizeof args / sizeof *args,
    .scalars = scalars,
    .scalar_count = sizeof scalars / sizeof *scalars,
    .infer = infer,
    .check = check,
    .cost = cost,
    .terms = terms,
    .exact = exact,
    .ulps = 8,
    .fill = fill_rows,
    .reference = gemm_reference,
    .engines = engines,
};
