/* SPDX-License-Identifier: Apache-2.0
 * Layers of experts: tables, inference, checks. */
#include "ops/moe/moe.h"
#include "mica/activation.h"
#include "ops/epilogue/activation.h"

static const char *const passes[] = {"fwd", "bwd", NULL};
static const char *const compute_spellings[] = {
    [MICA_COMPUTE_DEFAULT] = "default", [MICA_COMPUTE_TF32] = "tf32", NULL};
static const char *const scores[] = {"softmax", "sigmoid", NULL};
static const char *const group_scores[] = {"sum2", "max", NULL};
static const char *const activations[] = {"plain", "e4m3", NULL};

#define FIELD(member, kind, ...) MICA_FIELD(mica_moe_desc, member, kind, __VA_ARGS__)
#define GRADIENT(member)                                                                           \
    FIELD(d##member, TENSOR, .zero = "not wanted", .doc = "bwd: gradient of " #member)
static const mica_field fields[] = {
    FIELD(pass, ENUM, .spellings = passes, .doc = "forward, or gradients"),
    FIELD(x, TENSOR, .zero = "needed", .doc = "tokens x H"),
    FIELD(w1, TENSOR, .zero = "needed", .doc = "E x I x H; gated without w3: E x 2I x H"),
    FIELD(w2, TENSOR, .zero = "needed", .doc = "E x O x I"),
    FIELD(w3, TENSOR, .zero = "none", .doc = "gated: of what the activation is multiplied by"),
    FIELD(b1, TENSOR, .zero = "none", .doc = "bias behind w1: a row for each expert, or one"),
    FIELD(b2, TENSOR, .zero = "none", .doc = "behind w2, likewise"),
    FIELD(b3, TENSOR, .zero = "none", .doc = "behind w3, likewise"),
    FIELD(indices, TENSOR, .zero = "none", .doc = "experts of tokens, tokens x k, s32"),
    FIELD(weights, TENSOR, .zero = "inferred with indices", .doc = "of the choices, tokens x k"),
    FIELD(logits, TENSOR, .zero = "none", .doc = "tokens x E, to choose by"),
    FIELD(router, TENSOR, .zero = "none", .doc = "E x H, whose products with x are logits"),
    FIELD(score_bias, TENSOR, .zero = "none", .doc = "E: added to scores where they are compared"),
    FIELD(y, TENSOR, .zero = "inferred", .doc = "fwd: tokens x O"),
    FIELD(hidden, TENSOR, .zero = "not kept", .doc = "what enters the activation, rows x (2)I"),
    FIELD(dy, TENSOR, .zero = "inferred", .doc = "bwd: gradient of y"),
    FIELD(dx, TENSOR, .zero = "inferred", .doc = "bwd: gradient of x"),
    GRADIENT(w1),
    GRADIENT(w2),
    GRADIENT(w3),
    GRADIENT(b1),
    GRADIENT(b2),
    GRADIENT(b3),
    GRADIENT(weights),
    GRADIENT(logits),
    GRADIENT(router),
    FIELD(act, ENUM, .spellings = mica_act_spellings, .doc = "the function"),
    FIELD(gated, FLAG, .doc = "act(first half) * second half, or * the product with w3"),
    FIELD(act_a, F64, .apart = true, .infinite = true, .zero = "the function's own",
          .doc = "first parameter of the function"),
    FIELD(act_b, F64, .infinite = true, .zero = "the function's own",
          .doc = "second parameter of the function"),
    FIELD(compute, ENUM, .spellings = compute_spellings,
          .doc = "tf32 allows f32 inputs to be rounded to 11 bits"),
    FIELD(k, I64, .positive = true, .zero = "that of indices, else 1",
          .doc = "experts of a token, 1 to 32"),
    FIELD(score, ENUM, .spellings = scores, .doc = "what experts are worth"),
    FIELD(groups, I64, .def = 1, .doc = "groups of neighbouring experts, 1 to 32"),
    FIELD(topk_groups, I64, .positive = true, .zero = "all",
          .doc = "groups that a token may choose from"),
    FIELD(group_score, ENUM, .spellings = group_scores,
          .doc = "what a group is worth: its two best together, or the best"),
    FIELD(renormalise, FLAG, .doc = "weights of a token sum to scale"),
    FIELD(scale, F64, .def = 1, .doc = "factor of the weights"),
    FIELD(capacity, I64, .zero = "no limit", .positive = true, .doc = "most choices of an expert"),
    FIELD(activations, ENUM, .spellings = activations,
          .doc = "e4m3: x and h are quantised in blocks of 128"),
    FIELD(scales1, TENSOR, .zero = "weights in few bits: inferred",
          .doc = "of w1: E x rows x ceil(H/group), or one; e4m3: of squares of 128"),
    FIELD(scales2, TENSOR, .zero = "weights in few bits: inferred", .doc = "of w2, likewise"),
    FIELD(scales3, TENSOR, .zero = "weights in few bits: inferred", .doc = "of w3, likewise"),
    FIELD(zeros1, TENSOR, .zero = "none", .doc = "zero points of w1, as its scales"),
    FIELD(zeros2, TENSOR, .zero = "none", .doc = "of w2, likewise"),
    FIELD(zeros3, TENSOR, .zero = "none", .doc = "of w3, likewise"),
    FIELD(group, I64, .positive = true, .zero = "inferred from scales, or all",
          .doc = "elements of a row of weights in few bits with one scale"),
};

/* ---- sizes ---- */

moe_sizes moe_sizes_of(const mica_moe_desc *d)
{
    moe_sizes s = {.tokens = d->x.dims[0],
                   .k = d->k,
                   .width = d->x.dims[1],
                   .out = d->w2.dims[1],
                   .experts = d->w1.dims[0],
                   .inner = d->w2.dims[2]};
    const int64_t choices = s.tokens * s.k;
    const int64_t each = d->capacity && d->capacity < choices ? d->capacity : choices;
    s.pre = d->gated ? 2 * s.inner : s.inner;
    s.rows = each < choices && s.experts * each < choices ? s.experts * each : choices;
    return s;
}

static int64_t dim(const void *desc, char letter)
{
    const mica_moe_desc *d = desc;
    const moe_sizes s = moe_sizes_of(d);
    const struct {
        char letter;
        int64_t size;
    } sizes[] = {{'T', s.tokens},  {'K', s.k},     {'H', s.width}, {'O', s.out},
                 {'E', s.experts}, {'I', s.inner}, {'U', s.pre},   {'R', s.rows}};
    int i = 0;
    if (letter == 'W') return mica_tensor_given(&d->w3) ? s.inner : s.pre; /* rows of w1 */
    while (sizes[i].letter != letter) i++;
    return sizes[i].size;
}

bool moe_routes(const mica_moe_desc *d)
{
    return !mica_tensor_given(&d->indices);
}

bool moe_needs_dweights(const mica_moe_desc *d)
{
    return mica_tensor_given(&d->dweights) || mica_tensor_given(&d->dlogits) ||
           mica_tensor_given(&d->router);
}

mica_moe_route_desc moe_route_of(const mica_moe_desc *d, mica_moe_route_pass pass)
{
    const moe_sizes s = moe_sizes_of(d);
    const mica_dtype real = moe_real(d);
    const int64_t choices[] = {s.tokens, s.k}, all[] = {s.tokens, s.experts};
    mica_moe_route_desc r = {.pass = pass,
                             .logits = d->logits,
                             .indices = mica_tensor_packed(MICA_S32, 2, choices),
                             .k = d->k,
                             .score = d->score,
                             .groups = d->groups,
                             .topk_groups = d->topk_groups,
                             .group_score = d->group_score,
                             .renormalise = d->renormalise,
                             .scale = d->scale};
    if (!mica_tensor_given(&d->logits)) r.logits = mica_tensor_packed(real, 2, all);
    if (pass == MICA_MOE_ROUTE_FWD) {
        r.bias = d->score_bias;
        r.weights = mica_tensor_packed(real, 2, choices);
    } else {
        r.dweights = mica_tensor_packed(real, 2, choices);
        r.dlogits =
            mica_tensor_given(&d->router) ? mica_tensor_packed(d->x.dtype, 2, all) : d->dlogits;
    }
    return r;
}

/* ---- weights in few bits ---- */

static int64_t ceil_div(int64_t n, int64_t by)
{
    return n > 0 ? (n - 1) / by + 1 : 0;
}

typedef struct codes {
    const char *w, *scales, *zeros; /* names */
    mica_tensor *weights, *scale, *zero;
} codes;

/* Of w1, w2, w3. */
static void list_codes(const mica_moe_desc *desc, codes list[3])
{
    mica_moe_desc *d = (mica_moe_desc *)desc;
    list[0] = (codes){"w1", "scales1", "zeros1", &d->w1, &d->scales1, &d->zeros1};
    list[1] = (codes){"w2", "scales2", "zeros2", &d->w2, &d->scales2, &d->zeros2};
    list[2] = (codes){"w3", "scales3", "zeros3", &d->w3, &d->scales3, &d->zeros3};
}

/* A single element that stands for all may have any rank. */
static mica_tensor of_groups(const mica_moe_desc *d, const mica_tensor *w, const mica_tensor *own,
                             mica_dtype type)
{
    const bool squares = d->activations == MICA_MOE_ACTIVATIONS_E4M3;
    if (!squares && own->rank && mica_tensor_count(own) == 1) return *own;
    const int64_t rows = squares ? ceil_div(w->dims[1], MOE_BLOCK) : w->dims[1];
    const int64_t dims[] = {w->dims[0], rows, ceil_div(w->dims[2], d->group ? d->group : 1)};
    return mica_tensor_packed(type, 3, dims);
}

static mica_tensor scales1_shape(const void *desc)
{
    const mica_moe_desc *d = desc;
    return of_groups(d, &d->w1, &d->scales1, MICA_F32);
}

static mica_tensor scales2_shape(const void *desc)
{
    const mica_moe_desc *d = desc;
    return of_groups(d, &d->w2, &d->scales2, MICA_F32);
}

static mica_tensor scales3_shape(const void *desc)
{
    const mica_moe_desc *d = desc;
    return of_groups(d, &d->w3, &d->scales3, MICA_F32);
}

static mica_tensor zeros1_shape(const void *desc)
{
    const mica_moe_desc *d = desc;
    return of_groups(d, &d->w1, &d->zeros1, d->w1.dtype);
}

static mica_tensor zeros2_shape(const void *desc)
{
    const mica_moe_desc *d = desc;
    return of_groups(d, &d->w2, &d->zeros2, d->w2.dtype);
}

static mica_tensor zeros3_shape(const void *desc)
{
    const mica_moe_desc *d = desc;
    return of_groups(d, &d->w3, &d->zeros3, d->w3.dtype);
}

/* Elements with one scale, by the first scales that say it. */
static int64_t group_of(const mica_moe_desc *d)
{
    codes list[3];
    int64_t most = 1;
    list_codes(d, list);
    for (int i = 0; i < 3; i++) {
        const mica_tensor *w = list[i].weights;
        if (mica_tensor_given(w) && w->dims[2] > most) most = w->dims[2];
    }
    for (int i = 0; i < 3; i++) {
        const mica_tensor *w = list[i].weights, *s = list[i].scale;
        if (mica_tensor_given(w) && s->rank == 3 && s->dims[2] > 1)
            return ceil_div(w->dims[2], s->dims[2]);
    }
    return most;
}

static mica_status infer_codes(mica_moe_desc *d, mica_why *why)
{
    codes list[3];
    list_codes(d, list);
    if (d->x.dtype == MICA_F64)
        return mica_invalid(why, "x is f64, w1 %s: weights in few bits are for f32, f16 and bf16",
                            mica_dtype_name(d->w1.dtype));
    if (d->pass == MICA_MOE_BWD)
        return mica_invalid(why, "w1 is %s in bwd: experts in few bits have a forward pass only",
                            mica_dtype_name(d->w1.dtype));
    if (d->activations == MICA_MOE_ACTIVATIONS_E4M3) {
        if (d->w1.dtype != MICA_E4M3)
            return mica_invalid(why, "w1 is %s, with activations=e4m3 it must be e4m3",
                                mica_dtype_name(d->w1.dtype));
        if (d->group && d->group != MOE_BLOCK)
            return mica_invalid(why, "group is %lld, with activations=e4m3 it is %d",
                                (long long)d->group, MOE_BLOCK);
        d->group = MOE_BLOCK;
    }
    if (!d->group) d->group = group_of(d);
    for (int i = 0; i < 3; i++)
        if (mica_tensor_given(list[i].weights) && !mica_tensor_given(list[i].scale))
            list[i].scale->dtype = MICA_F32;
    return MICA_OK;
}

static mica_status check_codes(const mica_moe_desc *d, mica_why *why)
{
    codes list[3];
    list_codes(d, list);
    for (int i = 0; i < 3; i++) {
        const mica_dtype w = list[i].weights->dtype, s = list[i].scale->dtype;
        const mica_dtype z = list[i].zero->dtype;
        if (!moe_has_codes(d) && (s || z))
            return mica_invalid(why, "%s is for weights in few bits, %s is %s",
                                s ? list[i].scales : list[i].zeros, list[i].w, mica_dtype_name(w));
        if (d->activations == MICA_MOE_ACTIVATIONS_E4M3 && s && s != MICA_F32)
            return mica_invalid(why, "%s is %s, with activations=e4m3 it must be f32",
                                list[i].scales, mica_dtype_name(s));
        if (!z) continue;
        if (!mica_dtype_is_integer(w))
            return mica_invalid(why, "%s is for integers, %s is %s", list[i].zeros, list[i].w,
                                mica_dtype_name(w));
        if (z != w && z != s)
            return mica_invalid(why, "%s is %s, it must be of %s's type, %s, or of %s', %s",
                                list[i].zeros, mica_dtype_name(z), list[i].w, mica_dtype_name(w),
                                list[i].scales, mica_dtype_name(s));
    }
    return MICA_OK;
}

/* ---- arguments ---- */

#define ARG(member, FWD, BWD, FWD_NEED, BWD_NEED, ...)                                             \
    {                                                                                              \
#member, offsetof(mica_moe_desc, member),                                                  \
            {FWD, BWD }, .need = {FWD_NEED, BWD_NEED }, __VA_ARGS__                                \
    }
#define INPUT(member, NEED, ...) ARG(member, MICA_IN, MICA_IN, NEED, NEED, __VA_ARGS__)
#define RESULT(member, NEED, ...)                                                                  \
    ARG(member, MICA_UNUSED, MICA_OUT, 0, NEED, .types = MICA_FLOATS, __VA_ARGS__)
#define OF_X     .types = MICA_FLOATS, .like = "x"
#define INTEGERS (MICA_TYPE(S8) | MICA_TYPE(U8) | MICA_TYPE(S4) | MICA_TYPE(U4))
#define EXPERTS_OF                                                                                 \
    .types = MICA_FLOATS | INTEGERS | MICA_TYPE(E4M3) | MICA_TYPE(E5M2) | MICA_TYPE(E2M1),         \
    .like = "x"
#define SCALES_OF(member)                                                                          \
    .types = COMMON | MICA_TYPE(E4M3) | MICA_TYPE(E8M0), .shape = member##_shape,                  \
    .words = "groups of the weights"
#define ZEROS_OF(member)                                                                           \
    .types = COMMON | INTEGERS, .shape = member##_shape, .words = "groups of the weights"
#define COMMON (MICA_TYPE(F32) | MICA_TYPE(F16) | MICA_TYPE(BF16))
static const mica_arg args[] = {
    [MICA_MOE_X] = INPUT(x, MICA_NEEDED, .types = MICA_FLOATS),
    [MICA_MOE_W1] = INPUT(w1, MICA_NEEDED, EXPERTS_OF, .dims = "ExWxH"),
    [MICA_MOE_W2] = INPUT(w2, MICA_NEEDED, EXPERTS_OF, .dims = "ExOxI", .same = "w1"),
    [MICA_MOE_W3] = INPUT(w3, 0, EXPERTS_OF, .dims = "ExIxH", .same = "w1"),
    [MICA_MOE_B1] = INPUT(b1, 0, .types = MICA_FLOATS),
    [MICA_MOE_B2] = INPUT(b2, 0, .types = MICA_FLOATS),
    [MICA_MOE_B3] = INPUT(b3, 0, .types = MICA_FLOATS, .with = "w3"),
    [MICA_MOE_INDICES] = INPUT(indices, 0, .types = MICA_TYPE(S32), .dims = "TxK"),
    [MICA_MOE_WEIGHTS] =
        INPUT(weights, MICA_INFERRED, OF_X, .dims = "TxK", .state = true, .with = "indices"),
    [MICA_MOE_LOGITS] = INPUT(logits, 0, OF_X, .dims = "TxE"),
    [MICA_MOE_ROUTER] = INPUT(router, 0, OF_X, .dims = "ExH", .same = "x"),
    [MICA_MOE_SCORE_BIAS] =
        INPUT(score_bias, 0, .like = "x", .dims = "E", .state = true, .sums = true),
    [MICA_MOE_Y] = ARG(y, MICA_OUT, MICA_UNUSED, MICA_INFERRED, 0, OF_X, .dims = "TxO"),
    [MICA_MOE_HIDDEN] = ARG(hidden, MICA_OUT, MICA_IN, 0, 0, OF_X, .dims = "RxU", .same = "x"),
    [MICA_MOE_DY] = ARG(dy, MICA_UNUSED, MICA_IN, 0, MICA_INFERRED, OF_X, .dims = "TxO"),
    [MICA_MOE_DX] = RESULT(dx, MICA_INFERRED, .like = "x"),
    [MICA_MOE_DW1] = RESULT(dw1, 0, .like = "w1"),
    [MICA_MOE_DW2] = RESULT(dw2, 0, .like = "w2"),
    [MICA_MOE_DW3] = RESULT(dw3, 0, .like = "w3", .with = "w3"),
    [MICA_MOE_DB1] = RESULT(db1, 0, .like = "b1", .with = "b1"),
    [MICA_MOE_DB2] = RESULT(db2, 0, .like = "b2", .with = "b2"),
    [MICA_MOE_DB3] = RESULT(db3, 0, .like = "b3", .with = "b3"),
    [MICA_MOE_DWEIGHTS] = RESULT(dweights, 0, .like = "weights", .with = "indices"),
    [MICA_MOE_DLOGITS] = RESULT(dlogits, 0, .like = "logits", .with = "logits"),
    [MICA_MOE_DROUTER] = RESULT(drouter, 0, .like = "router", .with = "router"),
    [MICA_MOE_SCALES1] = INPUT(scales1, 0, SCALES_OF(scales1)),
    [MICA_MOE_SCALES2] = INPUT(scales2, 0, SCALES_OF(scales2)),
    [MICA_MOE_SCALES3] = INPUT(scales3, 0, SCALES_OF(scales3), .with = "w3"),
    [MICA_MOE_ZEROS1] = INPUT(zeros1, 0, ZEROS_OF(zeros1)),
    [MICA_MOE_ZEROS2] = INPUT(zeros2, 0, ZEROS_OF(zeros2)),
    [MICA_MOE_ZEROS3] = INPUT(zeros3, 0, ZEROS_OF(zeros3), .with = "w3"),
};
enum { ARGS = sizeof args / sizeof *args };

/* ---- inference and checks ---- */

static mica_status check_weight(const mica_tensor *t, const char *name, const mica_moe_desc *d,
                                mica_why *why)
{
    if (t->rank != 3)
        return mica_invalid(why, "%s has rank %d, it must be experts x outputs x inputs", name,
                            t->rank);
    if (t->dtype == (moe_has_codes(d) ? d->w1.dtype : d->x.dtype)) return MICA_OK;
    return mica_invalid(why, "%s is %s, %s is %s; they must agree", name, mica_dtype_name(t->dtype),
                        moe_has_codes(d) ? "w1" : "x",
                        mica_dtype_name(moe_has_codes(d) ? d->w1.dtype : d->x.dtype));
}

static mica_status infer(void *desc, mica_why *why)
{
    mica_moe_desc *d = desc;
    if (d->x.rank != 2)
        return mica_invalid(why, "x has rank %d, it must be tokens x columns", d->x.rank);
    MICA_TRY(check_weight(&d->w1, "w1", d, why));
    MICA_TRY(check_weight(&d->w2, "w2", d, why));
    if (mica_tensor_given(&d->w3)) MICA_TRY(check_weight(&d->w3, "w3", d, why));
    if (moe_has_codes(d)) MICA_TRY(infer_codes(d, why));
    if (d->group < 0)
        return mica_invalid(why, "group is %lld, it must be above 0", (long long)d->group);
    if (!moe_has_codes(d) && d->group)
        return mica_invalid(why, "group is for weights in few bits, w1 is %s",
                            mica_dtype_name(d->w1.dtype));
    if (!moe_has_codes(d) && d->activations)
        return mica_invalid(why, "w1 is %s, with activations=e4m3 it must be e4m3",
                            mica_dtype_name(d->w1.dtype));
    if (mica_tensor_given(&d->w3) && !d->gated)
        return mica_invalid(why, "w3 without gated: nothing is multiplied by its product");
    const int given = mica_tensor_given(&d->indices) + mica_tensor_given(&d->logits) +
                      mica_tensor_given(&d->router);
    if (given != 1)
        return mica_invalid(why, "%d of indices, logits and router are given, it must be one",
                            given);
    if (mica_tensor_given(&d->score_bias) && mica_tensor_given(&d->indices))
        return mica_invalid(why, "score_bias with indices: routes are given");
    if (mica_tensor_given(&d->indices) && d->indices.rank && d->indices.rank != 2)
        return mica_invalid(why, "indices has rank %d, it must be tokens x k", d->indices.rank);
    if (!d->k) d->k = d->indices.rank == 2 ? d->indices.dims[1] : 1;
    if (d->capacity < 0)
        return mica_invalid(why, "capacity is %lld, it must be above 0", (long long)d->capacity);
    if (d->groups < 1)
        return mica_invalid(why, "groups is %lld, it must be 1 or more", (long long)d->groups);
    if (!d->topk_groups) d->topk_groups = d->groups;
    mica_act_defaults(d->act, &d->act_a, &d->act_b);
    return MICA_OK;
}

static mica_status check_bias(const mica_tensor *b, const char *name, int64_t experts,
                              int64_t outputs, mica_why *why)
{
    if (!mica_tensor_given(b)) return MICA_OK;
    if (b->rank == 1 && b->dims[0] == outputs) return MICA_OK;
    if (b->rank == 2 && b->dims[0] == experts && b->dims[1] == outputs) return MICA_OK;
    return mica_invalid(why, "%s has %lld elements in %d dimensions, it must be %lld or %lldx%lld",
                        name, (long long)mica_tensor_count(b), b->rank, (long long)outputs,
                        (long long)experts, (long long)outputs);
}

/* What sums of f32 or f64 are stored as. */
static mica_status check_types(const mica_moe_desc *d, mica_why *why)
{
    const mica_dtype x = d->x.dtype;
    for (int i = 0; i < ARGS; i++) {
        const mica_tensor *t = mica_op_tensor(&mica_op_moe, d, i);
        const bool result = i == MICA_MOE_Y || (i >= MICA_MOE_DX && i < MICA_MOE_SCALES1),
                   products = result || i == MICA_MOE_DY;
        if (!mica_tensor_given(t) || t->dtype == x) continue;
        if (x != MICA_F64 && t->dtype == MICA_F64)
            return mica_invalid(why, "%s is f64, x is %s; f64 is for f64 x", args[i].name,
                                mica_dtype_name(x));
        if (products && t->dtype != moe_real(d) && i < MICA_MOE_DWEIGHTS)
            return mica_invalid(why, "%s is %s, it must be %s, as x, or %s", args[i].name,
                                mica_dtype_name(t->dtype), mica_dtype_name(x),
                                mica_dtype_name(moe_real(d)));
    }
    return MICA_OK;
}

static mica_status check(const void *desc, mica_why *why)
{
    enum { EXPERTS = 4096 };
    const mica_moe_desc *d = desc;
    const moe_sizes s = moe_sizes_of(d);
    if (s.experts < 1 || s.experts > EXPERTS)
        return mica_invalid(why, "w1 has %lld experts, 1 to %d are legal", (long long)s.experts,
                            EXPERTS);
    if ((double)s.tokens * (double)s.k > (double)MICA_MOST_ELEMENTS)
        return mica_invalid(why, "%lld tokens of %lld choices: at most 2^48 are legal",
                            (long long)s.tokens, (long long)s.k);
    MICA_TRY(check_types(d, why));
    MICA_TRY(check_codes(d, why));
    MICA_TRY(check_bias(&d->b1, "b1", s.experts, d->w1.dims[1], why));
    MICA_TRY(check_bias(&d->b2, "b2", s.experts, s.out, why));
    MICA_TRY(check_bias(&d->b3, "b3", s.experts, s.inner, why));
    if (!moe_routes(d)) return MICA_OK;
    mica_moe_route_desc route = moe_route_of(d, MICA_MOE_ROUTE_FWD), resolved;
    return mica_op_resolve_child("moe_route", &route, &resolved, why);
}

/* ---- numbers ---- */

/* Both products of a choice, three times in bwd; all weights, or those of as many experts as there
 * are choices. */
static void cost(const void *desc, double *flops, double *bytes)
{
    const mica_moe_desc *d = desc;
    const moe_sizes s = moe_sizes_of(d);
    const double choices = (double)s.tokens * (double)s.k;
    const double used = fmin(1, choices / (double)s.experts);
    *flops = 2 * (double)s.rows * (double)(s.pre * s.width + s.inner * s.out);
    if (d->pass == MICA_MOE_BWD) *flops *= mica_tensor_given(&d->hidden) ? 2 : 3;
    *bytes = 0;
    for (int i = 0; i < ARGS; i++) {
        const bool weight =
            i == MICA_MOE_W1 || i == MICA_MOE_W2 || i == MICA_MOE_W3 || i >= MICA_MOE_SCALES1;
        *bytes += mica_op_arg_bytes(&mica_op_moe, d, i) * (weight ? used : 1);
    }
    if (*bytes <= 0) *bytes = 1;
}

static int64_t terms(const void *desc)
{
    const mica_moe_desc *d = desc;
    const moe_sizes s = moe_sizes_of(d);
    const bool backward = d->pass == MICA_MOE_BWD;
    const int64_t counts[] = {s.width,
                              s.inner,
                              s.k,
                              mica_tensor_given(&d->router) ? s.experts : 0,
                              backward ? s.pre : 0,
                              backward ? s.out : 0,
                              backward ? s.tokens * s.k : 0};
    int64_t most = 0;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        if (counts[i] > most) most = counts[i];
    return most + (moe_has_codes(d) ? 6 : 4); /* weights in few bits round, too */
}

/* Of given routes, whose weights are small integers; fills see to what lies between. */
static bool exact(const void *desc)
{
    const mica_moe_desc *d = desc;
    const mica_activation_desc a = {.act = d->act, .act_a = d->act_a, .act_b = d->act_b};
    return !moe_routes(d) && !d->activations && mica_op_find("activation")->exact(&a);
}

static const mica_engine *const engines[] = {&mica_moe_compose, &mica_engine_ref,
                                             &mica_moe_compose_cuda, NULL};

const mica_op mica_op_moe = {
    .name = "moe",
    .doc = "layers of a mixture of experts, of 16 or few bits, and the gradients",
    .desc_size = sizeof(mica_moe_desc),
    .fields = fields,
    .field_count = sizeof fields / sizeof *fields,
    .args = args,
    .arg_count = ARGS,
    .infer = infer,
    .dim = dim,
    .check = check,
    .cost = cost,
    .terms = terms,
    .exact = exact,
    .ulps = 8,
    .fill = moe_fill,
    .reference = moe_reference,
    .engines = engines,
};
