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

static const mica_arg args[] = {
    {.name = "x", .tensor = offsetof(mica_transform_desc, x), .dir = {MICA_IN}},
    {.name = "y", .tensor = offsetof(mica_transform_desc, y), .dir = {MICA_OUT}},
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

static mica_status infer(void *desc, mica_why *why)
{
    mica_transform_desc *d = desc;
    if (!mica_tensor_given(&d->x)) return mica_invalid(why, "x is needed");
    MICA_TRY(check_perm(d, why));
    drop_identity(d);
    if (!mica_tensor_given(&d->y)) d->y.dtype = d->x.dtype;
    if (d->y.rank || !d->x.rank) return MICA_OK;
    mica_tensor source = mica_transform_source(d, &d->x);
    d->y.rank = source.rank;
    memcpy(d->y.dims, source.dims, sizeof d->y.dims);
    if (permutes(d))
        mica_tensor_default_strides(&d->y);
    else
        mica_tensor_strides_like(&d->y, &d->x);
    return MICA_OK;
}

static mica_status check_type(const mica_tensor *t, const char *name, mica_why *why)
{
    if (mica_dtype_load(t->dtype) && mica_dtype_bits(t->dtype) >= 8) return MICA_OK;
    return mica_invalid(why, "%s is %s; a transform takes real types of a byte or more", name,
                        mica_dtype_name(t->dtype));
}

static mica_status check(const void *desc, mica_why *why)
{
    const mica_transform_desc *d = desc;
    MICA_TRY(check_type(&d->x, "x", why));
    MICA_TRY(check_type(&d->y, "y", why));
    MICA_TRY(check_perm(d, why));
    mica_tensor source = mica_transform_source(d, &d->x);
    return mica_tensor_same_dims(&source, permutes(d) ? "x (permuted)" : "x", &d->y, "y", why);
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
    .check = check,
    .terms = terms,
    .exact = exact,
    .reference = mica_transform_reference,
    .engines = engines,
};
