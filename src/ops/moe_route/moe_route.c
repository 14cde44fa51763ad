/* SPDX-License-Identifier: Apache-2.0
 * Routing: tables, checks, fills. */
#include "ops/moe_route/moe_route.h"
#include "base/random.h"

#include <math.h>

static const char *const passes[] = {"fwd", "bwd", NULL};
static const char *const scores[] = {"softmax", "sigmoid", NULL};
static const char *const group_scores[] = {"sum2", "max", NULL};

#define FIELD(member, kind, ...) MICA_FIELD(mica_moe_route_desc, member, kind, __VA_ARGS__)
static const mica_field fields[] = {
    FIELD(pass, ENUM, .spellings = passes, .doc = "forward, or gradient of the logits"),
    FIELD(logits, TENSOR, .zero = "needed", .doc = "tokens x experts"),
    FIELD(bias, TENSOR, .zero = "none",
          .doc = "fwd: added to the scores of experts where they are compared"),
    FIELD(indices, TENSOR, .zero = "inferred", .doc = "chosen experts, tokens x k, s32"),
    FIELD(weights, TENSOR, .zero = "inferred", .doc = "fwd: weights of the chosen, tokens x k"),
    FIELD(counts, TENSOR, .zero = "not wanted, in bwd none",
          .doc = "tokens that chose an expert, s32; bwd reads them with daux"),
    FIELD(aux, TENSOR, .zero = "not wanted", .doc = "fwd: balance loss"),
    FIELD(z, TENSOR, .zero = "not wanted", .doc = "fwd: mean square of logsumexp"),
    FIELD(dweights, TENSOR, .zero = "inferred", .doc = "bwd: gradient of the weights"),
    FIELD(daux, TENSOR, .zero = "none", .doc = "bwd: gradient of aux"),
    FIELD(dz, TENSOR, .zero = "none", .doc = "bwd: gradient of z"),
    FIELD(dlogits, TENSOR, .zero = "inferred", .doc = "bwd: gradient of the logits"),
    FIELD(k, I64, .def = 1, .doc = "experts of a token, 1 to 32"),
    FIELD(score, ENUM, .spellings = scores, .doc = "what experts are worth"),
    FIELD(groups, I64, .def = 1, .doc = "groups of neighbouring experts, 1 to 32"),
    FIELD(topk_groups, I64, .positive = true, .zero = "all",
          .doc = "groups that a token may choose from"),
    FIELD(group_score, ENUM, .spellings = group_scores,
          .doc = "what a group is worth: its two best together, or the best"),
    FIELD(renormalise, FLAG, .doc = "weights of a token sum to scale"),
    FIELD(scale, F64, .def = 1, .doc = "factor of the weights"),
};

/* ---- arguments ---- */

static mica_tensor indices_shape(const void *desc)
{
    const mica_moe_route_desc *d = desc;
    return mica_tensor_packed(MICA_S32, 2, (int64_t[]){d->logits.dims[0], d->k});
}

static mica_tensor counts_shape(const void *desc)
{
    const mica_moe_route_desc *d = desc;
    return mica_tensor_packed(MICA_S32, 1, (int64_t[]){d->logits.dims[1]});
}

static int64_t dim(const void *desc, char letter)
{
    const mica_moe_route_desc *d = desc;
    return letter == 'T' ? d->logits.dims[0] : letter == 'E' ? d->logits.dims[1] : d->k;
}

#define ARG(member, FWD, BWD, FWD_NEED, BWD_NEED, ...)                                             \
    {                                                                                              \
#member, offsetof(mica_moe_route_desc, member),                                            \
            {FWD, BWD }, .need = {FWD_NEED, BWD_NEED }, __VA_ARGS__                                \
    }
#define OF_LOGITS .types = MICA_FLOATS, .like = "logits", .state = true
static const mica_arg args[] = {
    [MICA_MOE_ROUTE_LOGITS] = ARG(logits, MICA_IN, MICA_IN, MICA_NEEDED, MICA_NEEDED,
                                  .types = MICA_FLOATS, .alias = "dlogits"),
    [MICA_MOE_ROUTE_BIAS] = ARG(bias, MICA_IN, MICA_UNUSED, 0, 0, .like = "logits", .dims = "E",
                                .state = true, .sums = true),
    [MICA_MOE_ROUTE_INDICES] =
        ARG(indices, MICA_OUT, MICA_IN, MICA_INFERRED, MICA_INFERRED, .types = MICA_TYPE(S32),
            .shape = indices_shape, .like = "logits", .words = "tokens x k"),
    [MICA_MOE_ROUTE_WEIGHTS] =
        ARG(weights, MICA_OUT, MICA_UNUSED, MICA_INFERRED, 0, OF_LOGITS, .dims = "TxK"),
    [MICA_MOE_ROUTE_COUNTS] = ARG(counts, MICA_OUT, MICA_IN, 0, 0, .types = MICA_TYPE(S32),
                                  .shape = counts_shape, .like = "logits", .words = "experts"),
    [MICA_MOE_ROUTE_AUX] = ARG(aux, MICA_OUT, MICA_UNUSED, 0, 0, OF_LOGITS, .dims = "1"),
    [MICA_MOE_ROUTE_Z] = ARG(z, MICA_OUT, MICA_UNUSED, 0, 0, OF_LOGITS, .dims = "1"),
    [MICA_MOE_ROUTE_DWEIGHTS] =
        ARG(dweights, MICA_UNUSED, MICA_IN, 0, MICA_INFERRED, OF_LOGITS, .dims = "TxK"),
    [MICA_MOE_ROUTE_DAUX] =
        ARG(daux, MICA_UNUSED, MICA_IN, 0, 0, OF_LOGITS, .dims = "1", .with = "counts"),
    [MICA_MOE_ROUTE_DZ] = ARG(dz, MICA_UNUSED, MICA_IN, 0, 0, OF_LOGITS, .dims = "1"),
    [MICA_MOE_ROUTE_DLOGITS] = ARG(dlogits, MICA_UNUSED, MICA_OUT, 0, MICA_INFERRED,
                                   .types = MICA_FLOATS, .like = "logits"),
};

/* ---- what a description means ---- */

bool moe_route_limits_groups(const mica_moe_route_desc *d)
{
    return d->topk_groups < d->groups;
}

bool moe_route_by_score(const mica_moe_route_desc *d)
{
    return mica_tensor_given(&d->bias) ||
           (moe_route_limits_groups(d) && d->group_score == MICA_MOE_ROUTE_SUM2);
}

bool moe_route_is_wide(const mica_moe_route_desc *d)
{
    return d->logits.dtype == MICA_F64;
}

bool moe_route_sums(const mica_moe_route_desc *d)
{
    return d->pass == MICA_MOE_ROUTE_FWD &&
           (mica_tensor_given(&d->counts) || mica_tensor_given(&d->aux) ||
            mica_tensor_given(&d->z));
}

bool moe_route_needs_softmax(const mica_moe_route_desc *d)
{
    const bool fwd = d->pass == MICA_MOE_ROUTE_FWD;
    return (d->score == MICA_MOE_ROUTE_SOFTMAX && !d->renormalise) ||
           mica_tensor_given(fwd ? &d->aux : &d->daux) || mica_tensor_given(fwd ? &d->z : &d->dz);
}

/* ---- inference and checks ---- */

static mica_status infer(void *desc, mica_why *why)
{
    mica_moe_route_desc *d = desc;
    if (d->logits.rank != 2)
        return mica_invalid(why, "logits has rank %d, it must be tokens x experts", d->logits.rank);
    if (d->k < 1 || d->k > MOE_ROUTE_SLOTS)
        return mica_invalid(why, "k is %lld, 1 to %d are legal", (long long)d->k, MOE_ROUTE_SLOTS);
    if (d->topk_groups == 0) d->topk_groups = d->groups;
    return MICA_OK;
}

static mica_status check_groups(const mica_moe_route_desc *d, int64_t experts, mica_why *why)
{
    if (d->groups < 1 || d->groups > MOE_ROUTE_GROUPS || experts % d->groups)
        return mica_invalid(why, "groups is %lld, it must be 1 to %d and divide %lld experts",
                            (long long)d->groups, MOE_ROUTE_GROUPS, (long long)experts);
    if (d->topk_groups < 1 || d->topk_groups > d->groups)
        return mica_invalid(why, "topk_groups is %lld, 1 to %lld are legal",
                            (long long)d->topk_groups, (long long)d->groups);
    const int64_t each = experts / d->groups;
    if (moe_route_limits_groups(d) && d->group_score == MICA_MOE_ROUTE_SUM2 && each < 2)
        return mica_invalid(why, "group_score is sum2, groups of %lld have no two experts",
                            (long long)each);
    if (d->k > d->topk_groups * each)
        return mica_invalid(why, "k is %lld, %lld groups have %lld experts", (long long)d->k,
                            (long long)d->topk_groups, (long long)(d->topk_groups * each));
    return MICA_OK;
}

static mica_status check_types(const mica_moe_route_desc *d, mica_why *why)
{
    if (moe_route_is_wide(d)) return MICA_OK;
    for (int i = 0; i < mica_op_moe_route.arg_count; i++)
        if (mica_op_tensor(&mica_op_moe_route, d, i)->dtype == MICA_F64)
            return mica_invalid(why, "%s is f64, logits is %s; f64 is for f64 logits", args[i].name,
                                mica_dtype_name(d->logits.dtype));
    return MICA_OK;
}

static mica_status check(const void *desc, mica_why *why)
{
    const mica_moe_route_desc *d = desc;
    MICA_TRY(check_types(d, why));
    const int64_t experts = d->logits.dims[1];
    const bool fwd = d->pass == MICA_MOE_ROUTE_FWD;
    if (experts < 1 || experts > MOE_ROUTE_EXPERTS)
        return mica_invalid(why, "logits has %lld experts, 1 to %d are legal", (long long)experts,
                            MOE_ROUTE_EXPERTS);
    if (d->k > experts)
        return mica_invalid(why, "k is %lld, logits has %lld experts", (long long)d->k,
                            (long long)experts);
    MICA_TRY(check_groups(d, experts, why));
    const mica_tensor *losses[] = {fwd ? &d->aux : &d->daux, fwd ? &d->z : &d->dz};
    for (int i = 0; i < 2; i++)
        if (mica_tensor_given(losses[i]) && d->score != MICA_MOE_ROUTE_SOFTMAX)
            return mica_invalid(why, "%s%s is for score=softmax, this is %s", fwd ? "" : "d",
                                i ? "z" : "aux", scores[d->score]);
    if (!fwd && mica_tensor_given(&d->counts) && !mica_tensor_given(&d->daux))
        return mica_invalid(why, "counts in bwd is for daux");
    return MICA_OK;
}

/* A comparison by expert and slot, and some functions. */
static void cost(const void *desc, double *flops, double *bytes)
{
    const mica_moe_route_desc *d = desc;
    (void)bytes;
    *flops = (double)mica_tensor_count(&d->logits) * (8 + (double)d->k);
}

/* Sums over the experts of a token; those over tokens are formed in double. */
static int64_t terms(const void *desc)
{
    return ((const mica_moe_route_desc *)desc)->logits.dims[1];
}

/* ---- fills ---- */

/* Different experts of a token: steps by a number that has no factor of theirs. One in eight slots
 * holds none where the fill is extreme. */
static void fill_indices(const mica_moe_route_desc *d, mica_fill fill, uint64_t seed,
                         double *values)
{
    const int64_t experts = d->logits.dims[1];
    for (int64_t t = 0; t < d->logits.dims[0]; t++) {
        const uint64_t bits = mica_random_bits(seed, (uint64_t)t);
        const int64_t first = (int64_t)(bits % (uint64_t)experts);
        for (int64_t j = 0; j < d->k; j++) {
            const uint64_t slot = mica_random_bits(seed ^ 1, (uint64_t)(t * d->k + j));
            const bool none = fill == MICA_FILL_EXTREME && slot % 8 == 0;
            values[t * d->k + j] =
                none ? (slot & 8 ? -1 : (double)experts) : (double)((first + j) % experts);
        }
    }
}

static bool fill_input(const void *desc, const double *scalars, int arg, mica_fill fill,
                       uint64_t seed, double *values)
{
    const mica_moe_route_desc *d = desc;
    (void)scalars;
    if (arg == MICA_MOE_ROUTE_INDICES) {
        fill_indices(d, fill, seed, values);
        return true;
    }
    if (arg == MICA_MOE_ROUTE_COUNTS) {
        for (int64_t e = 0; e < d->logits.dims[1]; e++)
            values[e] = floor(mica_random_uniform(seed, (uint64_t)e) *
                              (double)(d->logits.dims[0] * d->k + 1));
        return true;
    }
    if (arg != MICA_MOE_ROUTE_LOGITS || fill == MICA_FILL_EXACT || fill == MICA_FILL_EDGES)
        return false;
    if (fill == MICA_FILL_EXTREME) return false;
    for (int64_t i = 0; i < mica_tensor_count(&d->logits); i++)
        values[i] = mica_fill_rounded(d->logits.dtype, (fill == MICA_FILL_RANGE ? 8 : 1) *
                                                           mica_random_normal(seed, (uint64_t)i));
    return true;
}

static const mica_engine *const engines[] = {&mica_moe_route_cpu, &mica_engine_ref,
                                             &mica_moe_route_cuda, NULL};

const mica_op mica_op_moe_route = {
    .name = "moe_route",
    .doc = "experts of each token of a mixture of experts and their weights, and the gradient",
    .desc_size = sizeof(mica_moe_route_desc),
    .fields = fields,
    .field_count = sizeof fields / sizeof *fields,
    .args = args,
    .arg_count = sizeof args / sizeof *args,
    .infer = infer,
    .dim = dim,
    .check = check,
    .cost = cost,
    .terms = terms,
    .ulps = 8, /* of exp, a division and products */
    .fill = fill_input,
    .reference = mica_moe_route_reference,
    .engines = engines,
};
