/* SPDX-License-Identifier: Apache-2.0
 * Rotary position embedding: fields, arguments, inference, checks, cost. */
#include "ops/rope/rope.h"

#include <string.h>

static const char *const passes[] = {"fwd", "bwd", NULL};
static const char *const pairings[] = {"half", "interleaved", NULL};

#define FIELD(member, kind, ...) MICA_FIELD(mica_rope_desc, member, kind, __VA_ARGS__)
static const mica_field fields[] = {
    FIELD(pass, ENUM, .spellings = passes, .doc = "fwd or bwd"),
    FIELD(q, TENSOR, .zero = "needed", .doc = "B x H x S x D; bwd: its gradient"),
    FIELD(k, TENSOR, .zero = "none", .doc = "B x Hk x S x D"),
    FIELD(q_out, TENSOR, .zero = "inferred", .doc = "q, rotated"),
    FIELD(k_out, TENSOR, .zero = "inferred with k", .doc = "k, rotated"),
    FIELD(pairing, ENUM, .spellings = pairings,
          .doc = "columns i and i + rotary_dim / 2, or 2 i and 2 i + 1"),
    FIELD(rotary_dim, I64, .positive = true, .zero = "all",
          .doc = "columns that are rotated, the first ones"),
    FIELD(theta, F64, .def = 10000, .doc = "base of the frequencies"),
    FIELD(factor, F64, .def = 1, .doc = "of cos and sin"),
    FIELD(positions, TENSOR, .zero = "none",
          .doc = "s32 or s64, B x S or S; else counted from start"),
    FIELD(start, TENSOR, .zero = "none",
          .doc = "s32 or s64: position of the first row of each sequence"),
    FIELD(cu, TENSOR, .zero = "none", .doc = "packed: s32, N + 1 offsets"),
    FIELD(inv_freq, TENSOR, .zero = "none",
          .doc = "f32, rotary_dim / 2: frequencies instead of theta"),
    FIELD(cos, TENSOR, .zero = "none",
          .doc = "positions x rotary_dim / 2: a table instead of theta"),
    FIELD(sin, TENSOR, .zero = "none", .doc = "as cos"),
};

#define ARG(member, direction, ...)                                                                \
    {                                                                                              \
        .name = #member, .tensor = offsetof(mica_rope_desc, member),                               \
        .dir = {direction, direction}, __VA_ARGS__                                                 \
    }
static const mica_arg args[] = {
    [MICA_ROPE_Q] = ARG(q, MICA_IN, .types = MICA_FLOATS, .need = {MICA_NEEDED, MICA_NEEDED}),
    [MICA_ROPE_K] = ARG(k, MICA_IN, .types = MICA_FLOATS, .same = "q"),
    [MICA_ROPE_Q_OUT] = ARG(q_out, MICA_OUT, .alias = "q", .types = MICA_FLOATS, .like = "q",
                            .need = {MICA_INFERRED, MICA_INFERRED}),
    [MICA_ROPE_K_OUT] = ARG(k_out, MICA_OUT, .alias = "k", .types = MICA_FLOATS, .same = "q_out",
                            .like = "k", .with = "k"),
    [MICA_ROPE_POSITIONS] = ARG(positions, MICA_IN, .types = MICA_INDICES),
    [MICA_ROPE_START] = ARG(start, MICA_IN, .types = MICA_INDICES),
    [MICA_ROPE_CU] = ARG(cu, MICA_IN, .types = MICA_TYPE(S32)),
    [MICA_ROPE_INV_FREQ] = ARG(inv_freq, MICA_IN, .types = MICA_TYPE(F32)),
    [MICA_ROPE_COS] = ARG(cos, MICA_IN, .optional = false),
    [MICA_ROPE_SIN] = ARG(sin, MICA_IN, .optional = false),
};

void rope_angles_of(const mica_rope_desc *d, rope_angles *a)
{
    *a = (rope_angles){
        .rotates = true,
        .interleaved = d->pairing == MICA_ROPE_INTERLEAVED,
        .backward = d->pass == MICA_ROPE_BWD,
        .pairs = d->rotary_dim / 2,
        .columns = d->q.dims[3],
        .batches = d->q.dims[0],
        .rows = d->q.dims[2],
        .sequences = mica_tensor_given(&d->cu) ? d->cu.dims[0] - 1 : d->q.dims[0],
        .theta = d->theta,
        .factor = d->factor,
        .positions = &d->positions,
        .start = &d->start,
        .cu = &d->cu,
        .inv_freq = &d->inv_freq,
        .cos = &d->cos,
        .sin = &d->sin,
    };
}

rope_data rope_data_of(void *const *run)
{
    return (rope_data){run[MICA_ROPE_POSITIONS], run[MICA_ROPE_START], run[MICA_ROPE_CU],
                       run[MICA_ROPE_INV_FREQ],  run[MICA_ROPE_COS],   run[MICA_ROPE_SIN]};
}

static mica_status infer(void *desc, mica_why *why)
{
    mica_rope_desc *d = desc;
    if (!mica_tensor_given(&d->q) || d->q.rank != 4)
        return mica_invalid(why, "q has rank %d, it is needed and has 4 dimensions", d->q.rank);
    if (mica_tensor_given(&d->k)) {
        rope_infer_tensor(&d->k, d->k.dtype, 4, d->q.dims, &d->q);
        mica_dtype out = mica_tensor_given(&d->q_out) ? d->q_out.dtype : d->q.dtype;
        if (!mica_tensor_given(&d->k_out))
            d->k_out.dtype = d->k.dtype == d->q.dtype ? out : d->k.dtype;
    }
    if (d->rotary_dim == 0) d->rotary_dim = d->q.dims[3];
    return MICA_OK;
}

static mica_status check_tensors(const mica_rope_desc *d, mica_why *why)
{
    if (!mica_tensor_given(&d->k)) return MICA_OK;
    if (d->k.rank != 4) return mica_invalid(why, "k has rank %d, it must have 4", d->k.rank);
    const int64_t dims[] = {d->q.dims[0], d->k.dims[1], d->q.dims[2], d->q.dims[3]};
    return rope_check_dims(&d->k, "k", 4, dims, why);
}

static mica_status check(const void *desc, mica_why *why)
{
    const mica_rope_desc *d = desc;
    rope_angles a;
    MICA_TRY(check_tensors(d, why));
    MICA_TRY(rope_check_offsets(&d->cu, "cu", &d->q, "q", why));
    rope_angles_of(d, &a);
    MICA_TRY(rope_check_dims(&d->start, "start", 1, &a.sequences, why));
    if (mica_tensor_given(&d->positions) &&
        (mica_tensor_given(&d->start) || mica_tensor_given(&d->cu)))
        return mica_invalid(why, "positions and %s exclude each other",
                            mica_tensor_given(&d->start) ? "start" : "cu");
    return rope_check_angles(&a, d->rotary_dim, d->q.dtype, why);
}

/* Of a table no more rows than there are positions. */
static void cost(const void *desc, double *flops, double *bytes)
{
    const mica_rope_desc *d = desc;
    const mica_tensor *moved[] = {&d->q, &d->k, &d->q_out, &d->k_out, &d->positions};
    double rows = (double)d->q.dims[0] * (double)d->q.dims[2];
    for (int i = 0; i < 5; i++)
        if (mica_tensor_given(moved[i]))
            *bytes += (double)mica_tensor_count(moved[i]) * mica_dtype_bits(moved[i]->dtype) / 8;
    double elements = (double)mica_tensor_count(&d->q);
    if (mica_tensor_given(&d->k)) elements += (double)mica_tensor_count(&d->k);
    if (mica_tensor_given(&d->cos) && *bytes > 0) {
        double have = (double)d->cos.dims[0];
        *bytes +=
            (have < rows ? have : rows) * (double)d->rotary_dim * mica_dtype_bits(d->cos.dtype) / 8;
    }
    *flops = 3 * elements;
}

static int64_t terms(const void *desc)
{
    (void)desc;
    return 2;
}

static bool exact(const void *desc)
{
    rope_angles a;
    rope_angles_of(desc, &a);
    return rope_exact(&a);
}

static const mica_engine *const engines[] = {&mica_rope_cpu, &mica_engine_ref, &mica_rope_cuda,
                                             NULL};

const mica_op mica_op_rope = {
    .name = "rope",
    .doc = "rotary position embedding of queries and keys, and its gradient",
    .desc_size = sizeof(mica_rope_desc),
    .fields = fields,
    .field_count = sizeof fields / sizeof *fields,
    .args = args,
    .arg_count = sizeof args / sizeof *args,
    .infer = infer,
    .check = check,
    .cost = cost,
    .terms = terms,
    .exact = exact,
    .ulps = 3,
    .fill = rope_fill,
    .reference = rope_reference,
    .engines = engines,
};
