/* SPDX-License-Identifier: Apache-2.0
 * Speculative decoding: tables, checks, fills. */
#include "ops/speculate/speculate.h"
#include "base/random.h"
#include "ops/speculate/speculate_body.h"

#define FIELD(member, kind, ...) MICA_FIELD(mica_speculate_desc, member, kind, __VA_ARGS__)
static const mica_field fields[] = {
    FIELD(p, TENSOR, .zero = "needed",
          .doc = "target's probabilities, batch x drafts + 1 x columns"),
    FIELD(q, TENSOR, .zero = "drafts are certain",
          .doc = "draft model's probabilities, batch x drafts x columns"),
    FIELD(drafts, TENSOR, .zero = "needed", .doc = "draft tokens, batch x drafts"),
    FIELD(tokens, TENSOR, .zero = "inferred",
          .doc = "accepted drafts, the token behind them, then -1; batch x drafts + 1"),
    FIELD(accepted, TENSOR, .zero = "inferred", .doc = "how many drafts were accepted, batch"),
    FIELD(bonus, TENSOR, .zero = "drawn",
          .doc =
              "token behind drafts that are all accepted, batch; p is then without its last row"),
    FIELD(lengths, TENSOR, .zero = "all", .doc = "drafts of each sequence, batch"),
    FIELD(seeds, TENSOR, .zero = "the scalar", .doc = "seed of each sequence"),
    FIELD(offsets, TENSOR, .zero = "the scalar", .doc = "offset of each sequence"),
};

/* B sequences, K drafts, T tokens, P rows of p, C columns. */
static int64_t dim(const void *desc, char letter)
{
    const mica_speculate_desc *d = desc;
    const int64_t drafts = d->drafts.dims[1];
    switch (letter) {
    case 'B':
        return d->drafts.dims[0];
    case 'K':
        return drafts;
    case 'T':
        return drafts + 1;
    case 'P':
        return drafts + !mica_tensor_given(&d->bonus);
    default:
        return d->p.dims[2];
    }
}

#define REALS (MICA_TYPE(F32) | MICA_TYPE(F16) | MICA_TYPE(BF16))
#define ARG(member, direction, ...)                                                                \
    {                                                                                              \
        .name = #member, .tensor = offsetof(mica_speculate_desc, member), .dir = {direction},      \
        __VA_ARGS__                                                                                \
    }
static const mica_arg args[] = {
    [MICA_SPECULATE_P] = ARG(p, MICA_IN, .types = REALS, .need = {MICA_NEEDED}, .dims = "BxPxC"),
    [MICA_SPECULATE_Q] = ARG(q, MICA_IN, .types = REALS, .like = "p", .dims = "BxKxC"),
    [MICA_SPECULATE_DRAFTS] = ARG(drafts, MICA_IN, .types = MICA_INDICES, .need = {MICA_NEEDED}),
    [MICA_SPECULATE_TOKENS] = ARG(tokens, MICA_OUT, .types = MICA_INDICES, .need = {MICA_INFERRED},
                                  .like = "drafts", .dims = "BxT"),
    [MICA_SPECULATE_ACCEPTED] = ARG(accepted, MICA_OUT, .types = MICA_INDICES,
                                    .need = {MICA_INFERRED}, .like = "drafts", .dims = "B"),
    [MICA_SPECULATE_BONUS] =
        ARG(bonus, MICA_IN, .types = MICA_INDICES, .like = "drafts", .dims = "B"),
    [MICA_SPECULATE_LENGTHS] =
        ARG(lengths, MICA_IN, .types = MICA_TYPE(S32), .like = "drafts", .dims = "B"),
    [MICA_SPECULATE_SEEDS] =
        ARG(seeds, MICA_IN, .types = MICA_TYPE(S64), .like = "drafts", .dims = "B"),
    [MICA_SPECULATE_OFFSETS] =
        ARG(offsets, MICA_IN, .types = MICA_TYPE(S64), .like = "drafts", .dims = "B"),
};

static const mica_scalar scalars[] = {
    [MICA_SPECULATE_SEED] = {"seed", 0},
    [MICA_SPECULATE_OFFSET] = {"offset", 0},
};

static mica_status infer(void *desc, mica_why *why)
{
    const mica_speculate_desc *d = desc;
    if (d->drafts.rank != 2)
        return mica_invalid(why, "drafts has rank %d, it must be batch x drafts", d->drafts.rank);
    if (d->p.rank != 3)
        return mica_invalid(why, "p has rank %d, it must be batch x positions x columns",
                            d->p.rank);
    return MICA_OK;
}

static mica_status check(const void *desc, mica_why *why)
{
    const mica_speculate_desc *d = desc;
    if (d->p.dims[2] > SPECULATE_COLUMNS)
        return mica_invalid(why, "p has %lld columns, %d are legal", (long long)d->p.dims[2],
                            SPECULATE_COLUMNS);
    if (d->drafts.dims[1] > SPECULATE_DRAFTS)
        return mica_invalid(why, "drafts has %lld columns, %d are legal",
                            (long long)d->drafts.dims[1], SPECULATE_DRAFTS);
    return MICA_OK;
}

/* One row of each sequence is read, of p and of q. */
static void cost(const void *desc, double *flops, double *bytes)
{
    const mica_speculate_desc *d = desc;
    const double elements = (double)d->p.dims[0] * (double)d->p.dims[2];
    const int bits =
        mica_dtype_bits(d->p.dtype) + (mica_tensor_given(&d->q) ? mica_dtype_bits(d->q.dtype) : 0);
    *flops = 4 * elements;
    *bytes = elements * bits / 8;
}

/* The truth is the same arithmetic. */
static bool exact(const void *desc)
{
    (void)desc;
    return true;
}

/* ---- fills ---- */

/* Rows that sum to 1, of uneven shares. */
static void fill_rows(const mica_tensor *t, uint64_t seed, double *values)
{
    const int64_t columns = t->dims[2], rows = columns ? mica_tensor_count(t) / columns : 0;
    for (int64_t r = 0; r < rows; r++) {
        double *row = values + r * columns, sum = 0;
        for (int64_t c = 0; c < columns; c++) {
            const double u = mica_random_uniform(seed, (uint64_t)(r * columns + c));
            sum += row[c] = u * u * u * u;
        }
        for (int64_t c = 0; c < columns; c++) row[c] /= sum;
    }
}

static double parameter(const mica_speculate_desc *d, int arg, uint64_t bits)
{
    switch (arg) {
    case MICA_SPECULATE_LENGTHS:
        return (double)(bits % (uint64_t)(d->drafts.dims[1] + 1));
    case MICA_SPECULATE_SEEDS:
    case MICA_SPECULATE_OFFSETS:
        return (double)(bits >> 12);
    default: /* now and then none of the columns */
        return (double)((bits >> 8) % (uint64_t)(d->p.dims[2] + 1)) - (bits % 64 == 0);
    }
}

static bool fill(const void *desc, const double *unused, int arg, mica_fill kind, uint64_t seed,
                 double *values)
{
    const mica_tensor *t = mica_op_tensor(&mica_op_speculate, desc, arg);
    (void)unused, (void)kind;
    seed = mica_random_bits(seed, 0x57ec);
    if (arg == MICA_SPECULATE_P || arg == MICA_SPECULATE_Q) {
        fill_rows(t, seed, values);
        return true;
    }
    for (int64_t i = 0; i < mica_tensor_count(t); i++)
        values[i] = parameter(desc, arg, mica_random_bits(seed, (uint64_t)i));
    return true;
}

/* ---- what engines get ---- */

static const size_t places[] = {
    [MICA_SPECULATE_P] = offsetof(mica_speculate_args, p),
    [MICA_SPECULATE_Q] = offsetof(mica_speculate_args, q),
    [MICA_SPECULATE_DRAFTS] = offsetof(mica_speculate_args, drafts),
    [MICA_SPECULATE_TOKENS] = offsetof(mica_speculate_args, tokens),
    [MICA_SPECULATE_ACCEPTED] = offsetof(mica_speculate_args, accepted),
    [MICA_SPECULATE_BONUS] = offsetof(mica_speculate_args, bonus),
    [MICA_SPECULATE_LENGTHS] = offsetof(mica_speculate_args, lengths),
    [MICA_SPECULATE_SEEDS] = offsetof(mica_speculate_args, seeds),
    [MICA_SPECULATE_OFFSETS] = offsetof(mica_speculate_args, offsets),
};
enum { PLACES = sizeof places / sizeof *places };

static mica_speculate_operand *operand(mica_speculate_args *a, int i)
{
    return (mica_speculate_operand *)(void *)((char *)a + places[i]);
}

void mica_speculate_args_make(const mica_speculate_desc *d, mica_speculate_args *a)
{
    *a = (mica_speculate_args){
        .batch = d->drafts.dims[0], .drafts_most = d->drafts.dims[1], .columns = d->p.dims[2]};
    for (int i = 0; i < PLACES; i++) {
        const mica_tensor *t = mica_op_tensor(&mica_op_speculate, d, i);
        *operand(a, i) = (mica_speculate_operand){NULL, t->strides[0], t->strides[1], t->strides[2],
                                                  t->dtype == MICA_S64};
    }
}

void mica_speculate_args_point(const mica_speculate_desc *d, void *const *run_args,
                               const double *values, mica_speculate_args *a)
{
    for (int i = 0; i < PLACES; i++)
        if (mica_tensor_given(mica_op_tensor(&mica_op_speculate, d, i)))
            operand(a, i)->at = run_args[i];
    a->seed = (unsigned long long)(long long)(values ? values[MICA_SPECULATE_SEED] : 0);
    a->offset = (unsigned long long)(long long)(values ? values[MICA_SPECULATE_OFFSET] : 0);
}

static const mica_engine *const engines[] = {&mica_speculate_cpu, &mica_engine_ref,
                                             &mica_speculate_cuda, NULL};

const mica_op mica_op_speculate = {
    .name = "speculate",
    .doc = "Acceptance of draft tokens by probabilities of a target and a draft model",
    .desc_size = sizeof(mica_speculate_desc),
    .fields = fields,
    .field_count = sizeof fields / sizeof *fields,
    .args = args,
    .arg_count = sizeof args / sizeof *args,
    .scalars = scalars,
    .scalar_count = sizeof scalars / sizeof *scalars,
    .dim = dim,
    .infer = infer,
    .check = check,
    .cost = cost,
    .exact = exact,
    .fill = fill,
    .reference = mica_speculate_reference,
    .engines = engines,
};
