/* SPDX-License-Identifier: Apache-2.0
 * Sampling of tokens: tables, checks, fills. */
#include "ops/sample/sample.h"
#include "base/random.h"
#include "ops/sample/sample_body.h"

static const char *const inputs[] = {"logits", "probabilities", NULL};
static const char *const logprobs[] = {"raw", "processed", NULL};

#define FIELD(member, kind, ...) MICA_FIELD(mica_sample_desc, member, kind, __VA_ARGS__)
static const mica_field fields[] = {
    FIELD(input, ENUM, .spellings = inputs, .doc = "what x is"),
    FIELD(logprobs, ENUM, .spellings = logprobs,
          .doc = "logprob by x as it came, or by what was left to draw from"),
    FIELD(x, TENSOR, .zero = "needed", .doc = "logits or probabilities, rows x columns"),
    FIELD(token, TENSOR, .zero = "inferred", .doc = "the columns chosen, rows"),
    FIELD(logprob, TENSOR, .zero = "not wanted", .doc = "their log-probabilities, rows"),
    FIELD(temperatures, TENSOR, .zero = "the scalar", .doc = "temperature of each row; 0: greedy"),
    FIELD(top_ks, TENSOR, .zero = "the scalar", .doc = "top_k of each row; 0: all"),
    FIELD(top_ps, TENSOR, .zero = "the scalar", .doc = "top_p of each row"),
    FIELD(min_ps, TENSOR, .zero = "the scalar", .doc = "min_p of each row"),
    FIELD(seeds, TENSOR, .zero = "the scalar", .doc = "seed of each row"),
    FIELD(offsets, TENSOR, .zero = "the scalar", .doc = "offset of each row"),
    FIELD(mask, TENSOR, .zero = "all may", .doc = "tokens that may be chosen, 32 in a word"),
    FIELD(bias, TENSOR, .zero = "none", .doc = "added to logits"),
    FIELD(counts, TENSOR, .zero = "none", .doc = "how often tokens were made, for penalties"),
    FIELD(prompt, TENSOR, .zero = "none", .doc = "tokens of the prompt, 32 in a word"),
    FIELD(repetitions, TENSOR, .zero = "the scalar", .doc = "repetition penalty of each row"),
    FIELD(presences, TENSOR, .zero = "the scalar", .doc = "presence penalty of each row"),
    FIELD(frequencies, TENSOR, .zero = "the scalar", .doc = "frequency penalty of each row"),
    FIELD(typical_ps, TENSOR, .zero = "the scalar", .doc = "typical_p of each row"),
    FIELD(top_tokens, TENSOR, .zero = "not wanted", .doc = "columns of the N largest, rows x N"),
    FIELD(top_logprobs, TENSOR, .zero = "not wanted",
          .doc = "their log-probabilities, rows x N; N is that of either"),
};

/* N, by what is given with dimensions; 0 if neither is. */
static int64_t top_of(const mica_sample_desc *d)
{
    return d->top_tokens.rank ? d->top_tokens.dims[1] : d->top_logprobs.dims[1];
}

/* R rows, C columns, W words of bits, N of the largest. */
static int64_t dim(const void *desc, char letter)
{
    const mica_sample_desc *d = desc;
    if (letter == 'N') return top_of(d);
    if (letter == 'R') return d->x.dims[0];
    return letter == 'C' ? d->x.dims[1] : (d->x.dims[1] + 31) / 32;
}

#define WORDS (MICA_TYPE(U32) | MICA_TYPE(S32))
#define ARG(member, direction, ...)                                                                \
    {                                                                                              \
        .name = #member, .tensor = offsetof(mica_sample_desc, member), .dir = {direction},         \
        __VA_ARGS__                                                                                \
    }
#define OF_ROWS(TYPE) .types = MICA_TYPE(TYPE), .like = "x", .dims = "R"
static const mica_arg args[] = {
    [MICA_SAMPLE_X] = ARG(x, MICA_IN, .need = {MICA_NEEDED},
                          .types = MICA_TYPE(F32) | MICA_TYPE(F16) | MICA_TYPE(BF16)),
    [MICA_SAMPLE_TOKEN] = ARG(token, MICA_OUT, .types = MICA_INDICES, .like = "x", .dims = "R"),
    [MICA_SAMPLE_LOGPROB] = ARG(logprob, MICA_OUT, OF_ROWS(F32)),
    [MICA_SAMPLE_TEMPERATURES] = ARG(temperatures, MICA_IN, OF_ROWS(F32)),
    [MICA_SAMPLE_TOP_KS] = ARG(top_ks, MICA_IN, OF_ROWS(S32)),
    [MICA_SAMPLE_TOP_PS] = ARG(top_ps, MICA_IN, OF_ROWS(F32)),
    [MICA_SAMPLE_MIN_PS] = ARG(min_ps, MICA_IN, OF_ROWS(F32)),
    [MICA_SAMPLE_SEEDS] = ARG(seeds, MICA_IN, OF_ROWS(S64)),
    [MICA_SAMPLE_OFFSETS] = ARG(offsets, MICA_IN, OF_ROWS(S64)),
    [MICA_SAMPLE_MASK] = ARG(mask, MICA_IN, .types = WORDS, .like = "x", .dims = "RxW"),
    [MICA_SAMPLE_BIAS] =
        ARG(bias, MICA_IN, .types = MICA_TYPE(F32) | MICA_TYPE(F16) | MICA_TYPE(BF16), .like = "x"),
    [MICA_SAMPLE_COUNTS] = ARG(counts, MICA_IN, .types = MICA_TYPE(S32), .like = "x"),
    [MICA_SAMPLE_PROMPT] =
        ARG(prompt, MICA_IN, .types = WORDS, .like = "x", .dims = "RxW", .with = "counts"),
    [MICA_SAMPLE_REPETITIONS] = ARG(repetitions, MICA_IN, OF_ROWS(F32), .with = "counts"),
    [MICA_SAMPLE_PRESENCES] = ARG(presences, MICA_IN, OF_ROWS(F32), .with = "counts"),
    [MICA_SAMPLE_FREQUENCIES] = ARG(frequencies, MICA_IN, OF_ROWS(F32), .with = "counts"),
    [MICA_SAMPLE_TYPICAL_PS] = ARG(typical_ps, MICA_IN, OF_ROWS(F32)),
    [MICA_SAMPLE_TOP_TOKENS] =
        ARG(top_tokens, MICA_OUT, .types = MICA_INDICES, .like = "x", .dims = "RxN"),
    [MICA_SAMPLE_TOP_LOGPROBS] =
        ARG(top_logprobs, MICA_OUT, .types = MICA_TYPE(F32), .like = "x", .dims = "RxN"),
};

static const mica_scalar scalars[] = {
    [MICA_SAMPLE_TEMPERATURE] = {"temperature", 1},
    [MICA_SAMPLE_TOP_K] = {"top_k", 0},
    [MICA_SAMPLE_TOP_P] = {"top_p", 1},
    [MICA_SAMPLE_MIN_P] = {"min_p", 0},
    [MICA_SAMPLE_SEED] = {"seed", 0},
    [MICA_SAMPLE_OFFSET] = {"offset", 0},
    [MICA_SAMPLE_REPETITION] = {"repetition", 1},
    [MICA_SAMPLE_PRESENCE] = {"presence", 0},
    [MICA_SAMPLE_FREQUENCY] = {"frequency", 0},
    [MICA_SAMPLE_TYPICAL_P] = {"typical_p", 1},
};

static mica_status infer(void *desc, mica_why *why)
{
    mica_sample_desc *d = desc;
    if (d->x.rank != 2)
        return mica_invalid(why, "x has rank %d, it must be rows x columns", d->x.rank);
    if (!mica_tensor_given(&d->token) && d->token.rank == 0)
        d->token = mica_tensor_packed(MICA_S64, 1, d->x.dims);
    return MICA_OK;
}

static mica_status check(const void *desc, mica_why *why)
{
    const mica_sample_desc *d = desc;
    if (d->x.dims[1] > SAMPLE_COLUMNS)
        return mica_invalid(why, "x has %lld columns, %d are legal", (long long)d->x.dims[1],
                            SAMPLE_COLUMNS);
    const bool top = mica_tensor_given(&d->top_tokens) || mica_tensor_given(&d->top_logprobs);
    if (top && (top_of(d) < 1 || top_of(d) > SAMPLE_TOP))
        return mica_invalid(why, "top_tokens and top_logprobs have %lld columns, 1 to %d are legal",
                            (long long)top_of(d), SAMPLE_TOP);
    const bool logits = d->input == MICA_SAMPLE_LOGITS;
    if (!logits && (mica_tensor_given(&d->bias) || mica_tensor_given(&d->counts)))
        return mica_invalid(why, "%s is for input=logits, this is probabilities",
                            mica_tensor_given(&d->bias) ? "bias" : "counts");
    return MICA_OK;
}

/* An exponential and a comparison. */
static void cost(const void *desc, double *flops, double *bytes)
{
    const mica_sample_desc *d = desc;
    (void)bytes;
    *flops = 20 * (double)mica_tensor_count(&d->x);
}

/* The truth is the same arithmetic. */
static bool exact(const void *desc)
{
    (void)desc;
    return true;
}

/* ---- fills ---- */

static double spread(double low, double high, uint64_t seed, uint64_t i)
{
    return low + (high - low) * mica_random_uniform(seed, i);
}

/* Parameters: a row of four is at an end of what they may be. */
static double parameter(const mica_sample_desc *d, int arg, uint64_t seed, uint64_t i)
{
    const bool end = mica_random_bits(seed ^ 0xe4d, i) % 4 == 0;
    const double columns = (double)d->x.dims[1];
    switch (arg) {
    case MICA_SAMPLE_TEMPERATURES:
        return end ? 0 : (float)spread(0.3, 2, seed, i);
    case MICA_SAMPLE_TOP_KS:
        return (int)(end ? 0 : spread(1, columns < 100 ? columns : 100, seed, i));
    case MICA_SAMPLE_TOP_PS:
    case MICA_SAMPLE_TYPICAL_PS:
        return end ? (double)(i & 1) : (float)spread(0.1, 1, seed, i);
    case MICA_SAMPLE_MIN_PS:
        return end ? 0 : (float)spread(0, 0.2, seed, i);
    case MICA_SAMPLE_SEEDS:
        return (double)(mica_random_bits(seed, i) >> 12);
    case MICA_SAMPLE_OFFSETS:
        return (double)(mica_random_bits(seed, i) >> (end ? 16 : 40));
    case MICA_SAMPLE_REPETITIONS:
        return (float)spread(0.8, 1.5, seed, i);
    default:
        return (float)spread(-0.5, 1, seed, i);
    }
}

static bool fill(const void *desc, const double *unused, int arg, mica_fill kind, uint64_t seed,
                 double *values)
{
    const mica_sample_desc *d = desc;
    (void)unused, (void)kind;
    const mica_tensor *t = mica_op_tensor(&mica_op_sample, desc, arg);
    const bool words = arg == MICA_SAMPLE_MASK || arg == MICA_SAMPLE_PROMPT;
    const bool of_rows = arg >= MICA_SAMPLE_TEMPERATURES && !words && arg != MICA_SAMPLE_BIAS;
    if (!words && !of_rows) return false;
    const int64_t count = mica_tensor_count(t);
    seed = mica_random_bits(seed, 0x5a4);
    for (int64_t i = 0; i < count; i++) {
        const uint64_t bits = mica_random_bits(seed, (uint64_t)i);
        if (arg == MICA_SAMPLE_COUNTS)
            values[i] = bits % 4 ? 0 : (double)(bits >> 60);
        else if (words)
            values[i] = t->dtype == MICA_U32 ? (uint32_t)bits : (double)(int32_t)bits;
        else
            values[i] = parameter(d, arg, seed, (uint64_t)i);
    }
    return true;
}

/* ---- what engines get ---- */

typedef struct place {
    int arg;
    size_t operand; /* in mica_sample_args */
    int scalar;     /* -1: none */
} place;
#define PLACE(ARG, member, SCALAR)                                                                 \
    {                                                                                              \
        MICA_SAMPLE_##ARG, offsetof(mica_sample_args, member), SCALAR                              \
    }
static const place places[] = {
    PLACE(X, x, -1),
    PLACE(MASK, mask, -1),
    PLACE(BIAS, bias, -1),
    PLACE(COUNTS, counts, -1),
    PLACE(PROMPT, prompt, -1),
    PLACE(TEMPERATURES, temperature, MICA_SAMPLE_TEMPERATURE),
    PLACE(TOP_KS, top_k, MICA_SAMPLE_TOP_K),
    PLACE(TOP_PS, top_p, MICA_SAMPLE_TOP_P),
    PLACE(MIN_PS, min_p, MICA_SAMPLE_MIN_P),
    PLACE(SEEDS, seed, MICA_SAMPLE_SEED),
    PLACE(OFFSETS, offset, MICA_SAMPLE_OFFSET),
    PLACE(REPETITIONS, repetition, MICA_SAMPLE_REPETITION),
    PLACE(PRESENCES, presence, MICA_SAMPLE_PRESENCE),
    PLACE(FREQUENCIES, frequency, MICA_SAMPLE_FREQUENCY),
    PLACE(TYPICAL_PS, typical_p, MICA_SAMPLE_TYPICAL_P),
};
enum { PLACES = sizeof places / sizeof *places };

static mica_sample_operand *operand(mica_sample_args *a, int i)
{
    return (mica_sample_operand *)(void *)((char *)a + places[i].operand);
}

void mica_sample_args_make(const mica_sample_desc *d, mica_sample_args *a)
{
    *a = (mica_sample_args){.rows = d->x.dims[0], .columns = d->x.dims[1]};
    for (int i = 0; i < PLACES; i++) {
        const mica_tensor *t = mica_op_tensor(&mica_op_sample, d, places[i].arg);
        operand(a, i)->row = t->strides[0], operand(a, i)->column = t->strides[1];
    }
    a->token_row = d->token.strides[0], a->logprob_row = d->logprob.strides[0];
    a->top_token_row = d->top_tokens.strides[0], a->top_token_column = d->top_tokens.strides[1];
    a->top_logprob_row = d->top_logprobs.strides[0];
    a->top_logprob_column = d->top_logprobs.strides[1];
    if (mica_tensor_given(&d->top_tokens) || mica_tensor_given(&d->top_logprobs))
        a->top = top_of(d);
    a->raw = (a->top || mica_tensor_given(&d->logprob)) && d->logprobs == MICA_SAMPLE_RAW;
    a->long_token = d->token.dtype == MICA_S64, a->long_top = d->top_tokens.dtype == MICA_S64;
}

void mica_sample_args_scalars(const double *values, mica_sample_args *a)
{
    for (int i = 0; i < PLACES; i++)
        if (places[i].scalar >= 0)
            operand(a, i)->value =
                values ? values[places[i].scalar] : scalars[places[i].scalar].def;
}

void mica_sample_args_point(const mica_sample_desc *d, void *const *run_args, mica_sample_args *a)
{
    for (int i = 0; i < PLACES; i++)
        if (mica_tensor_given(mica_op_tensor(&mica_op_sample, d, places[i].arg)))
            operand(a, i)->at = run_args[places[i].arg];
    a->token = run_args[MICA_SAMPLE_TOKEN];
    if (mica_tensor_given(&d->logprob)) a->logprob = run_args[MICA_SAMPLE_LOGPROB];
    if (mica_tensor_given(&d->top_tokens)) a->top_token = run_args[MICA_SAMPLE_TOP_TOKENS];
    if (mica_tensor_given(&d->top_logprobs)) a->top_logprob = run_args[MICA_SAMPLE_TOP_LOGPROBS];
}

static const mica_engine *const engines[] = {&mica_sample_cpu, &mica_engine_ref, &mica_sample_cuda,
                                             NULL};

const mica_op mica_op_sample = {
    .name = "sample",
    .doc = "Tokens drawn from logits: temperature, top_k, top_p, min_p, typical_p, penalties",
    .desc_size = sizeof(mica_sample_desc),
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
    .reference = mica_sample_reference,
    .engines = engines,
};
