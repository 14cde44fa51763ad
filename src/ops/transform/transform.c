/* SPDX-License-Identifier: Apache-2.0
 * The transform family: memory order and type. */
#include "ops/transform/transform.h"

#include <string.h>

static const mica_field fields[] = {
    MICA_FIELD(mica_transform_desc, x, TENSOR, .zero = "needed", .doc = "input"),
    MICA_FIELD(mica_transform_desc, y, TENSOR, .zero = "inferred",
               .doc = "output; inferred of x's type, packed (with perm) or in x's memory order"),
    MICA_FIELD(mica_transform_desc, perm, AXES, .count = MICA_MAX_RANK, .permutation = true,
               .zero = "no permutation", .doc = "y's dimension i is x's dimension perm[i]"),
};

static const mica_scalar scalars[] = {{"alpha", 1}, {"beta", 0}};

static bool permutes(const mica_transform_desc *d)
{
    for (int i = 0; i < MICA_MAX_RANK; i++)
        if (d->perm[i]) return true;
    return false;
}

static mica_status check_perm(const mica_transform_desc *d, mica_why *why)
{
    bool seen[MICA_MAX_RANK] = {false};
    if (!permutes(d)) return MICA_OK;
    for (int i = 0; i < d->x.rank; i++) {
        int64_t p = d->perm[i];
        if (p < 0 || p >= d->x.rank)
            return mica_invalid(why, "perm[%d] is %lld, x has dimensions 0 to %d", i, (long long)p,
                                d->x.rank - 1);
        if (seen[p])
            return mica_invalid(why, "perm names dimension %lld twice, each stands once",
                                (long long)p);
        seen[p] = true;
    }
    for (int i = d->x.rank; i < MICA_MAX_RANK; i++)
        if (d->perm[i])
            return mica_invalid(why, "perm[%d] is %lld, x has only %d dimensions", i,
                                (long long)d->perm[i], d->x.rank);
    return MICA_OK;
}

/* The identity is written as no permutation, so that equal problems have equal descriptors. */
static void drop_identity(mica_transform_desc *d)
{
    for (int i = 0; i < d->x.rank; i++)
        if (d->perm[i] != i) return;
    memset(d->perm, 0, sizeof d->perm);
}

mica_tensor mica_transform_source(const mica_transform_desc *d, const mica_tensor *x)
{
    mica_tensor t = *x;
    if (!permutes(d)) return t;
    for (int i = 0; i < t.rank; i++) {
        t.dims[i] = x->dims[d->perm[i]];
        t.strides[i] = x->strides[d->perm[i]];
    }
    return t;
}

/* x as y has it: its order in memory is x's where nothing is permuted. */
static mica_tensor permuted_x(const void *desc)
{
    const mica_transform_desc *d = desc;
    mica_tensor source = mica_transform_source(d, &d->x);
    return permutes(d) ? mica_tensor_packed(source.dtype, source.rank, source.dims) : d->x;
}

#define ARG(member, direction, ...)                                                                \
    {                                                                                              \
        .name = #member, .tensor = offsetof(mica_transform_desc, member), .dir = {direction},      \
        .types = MICA_REALS, __VA_ARGS__                                                           \
    }
static const mica_arg args[] = {
    [MICA_TRANSFORM_X] = ARG(x, MICA_IN, .need = {MICA_NEEDED}),
    [MICA_TRANSFORM_Y] = ARG(y, MICA_OUT, .need = {MICA_INFERRED}, .like = "x",
                             .words = "x (permuted)", .shape = permuted_x),
};

static mica_status infer(void *desc, mica_why *why)
{
    mica_transform_desc *d = desc;
    MICA_TRY(check_perm(d, why));
    drop_identity(d);
    return MICA_OK;
}

static int64_t terms(const void *desc)
{
    (void)desc;
    return 2;
}

static bool exact(const void *desc)
{
    (void)desc;
    return true;
}

void mica_transform_contract(const void *desc, const mica_config *config, mica_contract *contract)
{
    (void)desc, (void)config;
    contract->unit = 0x1p-53;
    contract->n_seq = 0; /* formed in f64 by the reference's own operations, rounded once */
}

static const mica_engine *const engines[] = {&mica_transform_cuda, &mica_transform_cpu,
                                             &mica_engine_ref, NULL};

const mica_op mica_op_transform = {
    .name = "transform",
    .doc = "change of memory order and type: y = alpha * permuted x + beta * y",
    .desc_size = sizeof(mica_transform_desc),
    .fields = fields,
    .field_count = sizeof fields / sizeof *fields,
    .args = args,
    .arg_count = sizeof args / sizeof *args,
    .scalars = scalars,
    .scalar_count = sizeof scalars / sizeof *scalars,
    .infer = infer,
    .terms = terms,
    .exact = exact,
    .reference = mica_transform_reference,
    .engines = engines,
};
