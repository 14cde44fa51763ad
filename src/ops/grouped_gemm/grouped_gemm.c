/* SPDX-License-Identifier: Apache-2.0
 * grouped_gemm: its fields, arguments and rules. What holds within a group is gemm's to say. */
#include "ops/grouped_gemm/grouped_gemm.h"
#include "base/random.h"

#include <math.h>
#include <string.h>

static const char *const passes[] = {"fwd", "wgrad", NULL};
static const char *const compute_spellings[] = {
    [MICA_COMPUTE_DEFAULT] = "default", [MICA_COMPUTE_TF32] = "tf32", NULL};

#define FIELD(member, kind, ...) MICA_FIELD(mica_grouped_gemm_desc, member, kind, __VA_ARGS__)
static const mica_field fields[] = {
    FIELD(pass, ENUM, .spellings = passes, .doc = "groups of rows, or of terms of the sum"),
    FIELD(a, TENSOR, .zero = "needed",
          .doc = "M x K, sorted by group; or G x M x K, of which some rows count"),
    FIELD(b, TENSOR, .zero = "needed", .doc = "G x K x N; wgrad: K x N"),
    FIELD(c, TENSOR, .zero = "inferred, in wgrad from groups", .doc = "M x N, or G x M x N"),
    FIELD(groups, TENSOR, .zero = "inferred where ends are needed",
          .doc = "G, s32 or s64: where each group ends; how many rows count"),
    FIELD(compute, ENUM, .spellings = compute_spellings,
          .doc = "tf32 allows f32 inputs to be rounded to 11 bits"),
    FIELD(scale_a, TENSOR, .zero = "none",
          .doc = "f32: 1, G or one per row; or per row and 128 of K"),
    FIELD(scale_b, TENSOR, .zero = "none",
          .doc = "f32: 1, G, G x N, or G x ceil(K/128) x ceil(N/128)"),
    FIELD(epilogue, LIST, .count = MICA_MAX_STEPS, .spellings = mica_step_spellings,
          .doc = "steps applied to the result, in order"),
    FIELD(act_a, F64, .apart = true, .infinite = true, .zero = "the function's own",
          .doc = "first parameter of the activation"),
    FIELD(act_b, F64, .infinite = true, .zero = "the function's own",
          .doc = "second parameter of the activation"),
    FIELD(bias, TENSOR, .zero = "inferred with its step", .doc = "G x N, or N for all groups"),
    FIELD(scale, TENSOR, .zero = "inferred with its step", .doc = "G x N, or N for all groups"),
    FIELD(shift, TENSOR, .zero = "inferred with its step", .doc = "G x N, or N for all groups"),
    FIELD(residual, TENSOR, .zero = "inferred with its step", .doc = "as c"),
    FIELD(expected, I64, .positive = true, .zero = "equal shares",
          .doc = "rows (wgrad: terms) of a usual group, to choose a kernel by"),
};

/* c keeps rows of no group, so it is read as well, but for gradients. */
#define ARG(member, ...)                                                                           \
    {                                                                                              \
#member, offsetof(mica_grouped_gemm_desc, member), __VA_ARGS__                             \
    }
#define INPUT                                                                                      \
    {                                                                                              \
        MICA_IN, MICA_IN                                                                           \
    }
#define NEEDED                                                                                     \
    {                                                                                              \
        MICA_NEEDED, MICA_NEEDED                                                                   \
    }
#define EIGHT_BITS (MICA_TYPE(E4M3) | MICA_TYPE(E5M2) | MICA_TYPE(S8))
#define INTEGERS   (MICA_TYPE(S32) | MICA_TYPE(S8) | MICA_TYPE(U8))
static const mica_arg args[] = {
    [MICA_GROUPED_GEMM_A] =
        ARG(a, INPUT, .need = NEEDED, .types = MICA_FLOATS | EIGHT_BITS | MICA_TYPE(U8)),
    [MICA_GROUPED_GEMM_B] = ARG(b, INPUT, .need = NEEDED, .types = MICA_FLOATS | EIGHT_BITS),
    [MICA_GROUPED_GEMM_C] =
        ARG(c, {MICA_INOUT, MICA_OUT}, .types = MICA_FLOATS | EIGHT_BITS | INTEGERS),
    [MICA_GROUPED_GEMM_SCALE_A] = ARG(scale_a, INPUT, .types = MICA_TYPE(F32)),
    [MICA_GROUPED_GEMM_SCALE_B] = ARG(scale_b, INPUT, .types = MICA_TYPE(F32)),
    [MICA_GROUPED_GEMM_BIAS] = ARG(bias, INPUT, .types = MICA_FLOATS, MICA_EPILOGUE_STEP(BIAS)),
    [MICA_GROUPED_GEMM_SCALE] = ARG(scale, INPUT, .types = MICA_FLOATS, MICA_EPILOGUE_STEP(SCALE)),
    [MICA_GROUPED_GEMM_SHIFT] = ARG(shift, INPUT, .types = MICA_FLOATS, MICA_EPILOGUE_STEP(SHIFT)),
    [MICA_GROUPED_GEMM_RESIDUAL] = ARG(residual, INPUT, .types = MICA_FLOATS | INTEGERS,
                                       MICA_EPILOGUE_STEP(RESIDUAL), .alias = "c"),
    [MICA_GROUPED_GEMM_GROUPS] = ARG(groups, INPUT, .types = MICA_INDICES),
};

static const mica_scalar scalars[] = {
    [MICA_GROUPED_GEMM_ALPHA] = {"alpha", 1}, [MICA_GROUPED_GEMM_BETA] = {"beta", 0}};

/* ---- the gemm of a group ---- */

grouped_form grouped_form_of(const mica_grouped_gemm_desc *d)
{
    if (d->pass == MICA_GROUPED_GEMM_WGRAD) return GROUPED_TERMS;
    return d->a.rank == 3 ? GROUPED_ROOMS : GROUPED_ROWS;
}

/* t of one group; *step: elements from group to group. */
static mica_tensor without_group(const mica_tensor *t, int64_t *step)
{
    mica_tensor r = {.dtype = t->dtype, .rank = t->rank - 1};
    memcpy(r.dims, t->dims + 1, (size_t)r.rank * sizeof *r.dims);
    memcpy(r.strides, t->strides + 1, (size_t)r.rank * sizeof *r.strides);
    *step = t->strides[0];
    return r;
}

/* A vector of N for all groups, or G x N. */
static mica_tensor vector_of(const mica_tensor *t, int64_t *step)
{
    *step = 0;
    return t->rank == 2 ? without_group(t, step) : *t;
}

/* One element for all, one per group, or more per group. */
static mica_tensor scale_of(const mica_tensor *t, int64_t *step)
{
    *step = 0;
    if (t->rank >= 2) return without_group(t, step);
    if (mica_tensor_count(t) == 1 || !mica_tensor_given(t)) return *t;
    *step = t->strides[0];
    return (mica_tensor){.dtype = t->dtype, .rank = 1, .dims = {1}, .strides = {1}};
}

/* Ranks are sound; c and what follows it may be absent. */
static void make_item(const mica_grouped_gemm_desc *d, grouped_form form, mica_gemm_desc *item,
                      int64_t *group)
{
    bool rooms = form == GROUPED_ROOMS, rows = form == GROUPED_ROWS;
    memset(group, 0, GROUPED_TENSORS * sizeof *group);
    *item = (mica_gemm_desc){.compute = d->compute, .act_a = d->act_a, .act_b = d->act_b};
    memcpy(item->epilogue, d->epilogue, sizeof item->epilogue);
    item->a = rooms ? without_group(&d->a, &group[MICA_GEMM_A]) : d->a;
    item->b = form == GROUPED_TERMS ? d->b : without_group(&d->b, &group[MICA_GEMM_B]);
    item->c = !rows && d->c.rank ? without_group(&d->c, &group[MICA_GEMM_C]) : d->c;
    item->scale_a = rows ? d->scale_a : scale_of(&d->scale_a, &group[MICA_GEMM_SCALE_A]);
    item->scale_b = scale_of(&d->scale_b, &group[MICA_GEMM_SCALE_B]);
    item->bias = vector_of(&d->bias, &group[MICA_GEMM_BIAS]);
    item->scale = vector_of(&d->scale, &group[MICA_GEMM_SCALE]);
    item->shift = vector_of(&d->shift, &group[MICA_GEMM_SHIFT]);
    item->residual = !rows && d->residual.rank
                         ? without_group(&d->residual, &group[MICA_GEMM_RESIDUAL])
                         : d->residual;
}

static double expected_of(const mica_grouped_gemm_desc *d, const grouped *g)
{
    double most = (double)g->limit, each = most;
    if (g->form != GROUPED_ROOMS) each = g->count > 0 ? most / (double)g->count : 0;
    return d->expected && (double)d->expected < most ? (double)d->expected : each;
}

void grouped_make(const mica_grouped_gemm_desc *d, grouped *g)
{
    *g = (grouped){.form = grouped_form_of(d), .groups = d->groups};
    make_item(d, g->form, &g->item, g->group);
    const mica_gemm_desc *item = &g->item;
    int64_t *start = g->start;
    g->count = g->form == GROUPED_TERMS ? d->c.dims[0] : d->b.dims[0];
    g->limit = g->form == GROUPED_TERMS ? item->a.dims[1] : item->a.dims[0];
    g->expected = expected_of(d, g);
    if (g->form == GROUPED_TERMS) {
        start[MICA_GEMM_A] = item->a.strides[1];
        start[MICA_GEMM_B] = item->b.strides[0];
    } else if (g->form == GROUPED_ROWS) {
        start[MICA_GEMM_A] = item->a.strides[0];
        start[MICA_GEMM_C] = item->c.strides[0];
        if (mica_tensor_given(&item->residual))
            start[MICA_GEMM_RESIDUAL] = item->residual.strides[0];
        if (mica_tensor_given(&item->scale_a) && mica_tensor_count(&item->scale_a) != 1)
            start[MICA_GEMM_SCALE_A] = item->scale_a.strides[0];
    }
}

grouped_span grouped_next(const grouped *g, const void *groups, int64_t index, int64_t *end)
{
    int64_t value = g->limit, at = index * g->groups.strides[0];
    if (groups)
        value = g->groups.dtype == MICA_S64 ? ((const int64_t *)groups)[at]
                                            : ((const int32_t *)groups)[at];
    if (value > g->limit) value = g->limit;
    if (g->form == GROUPED_ROOMS) return (grouped_span){0, value < 0 ? 0 : value};
    int64_t from = *end;
    if (value > from) *end = value;
    return (grouped_span){from, *end - from};
}

void grouped_bind(const grouped *g, void *const *args, int64_t index, int64_t from,
                  void *group_args[GROUPED_TENSORS])
{
    for (int i = 0; i < GROUPED_TENSORS; i++) {
        const mica_tensor *t = mica_op_tensor(&mica_op_gemm, &g->item, i);
        int64_t at = grouped_offset(g, i, index, from);
        group_args[i] = args[i] ? (char *)args[i] + at * mica_dtype_bits(t->dtype) / 8 : NULL;
    }
}

/* ---- inference ---- */

static mica_status check_ranks(const mica_grouped_gemm_desc *d, mica_why *why)
{
    bool wgrad = d->pass == MICA_GROUPED_GEMM_WGRAD;
    if (wgrad && (d->a.rank != 2 || d->b.rank != 2))
        return mica_invalid(why, "a has rank %d, b %d; wgrad takes a as M x K, b as K x N",
                            d->a.rank, d->b.rank);
    if (!wgrad && ((d->a.rank != 2 && d->a.rank != 3) || d->b.rank != 3))
        return mica_invalid(why, "a has rank %d, b %d; a is M x K or G x M x K, b is G x K x N",
                            d->a.rank, d->b.rank);
    return MICA_OK;
}

/* How many groups there are by the tensor that must say it; -1: it is absent. */
static int64_t groups_of(const mica_grouped_gemm_desc *d)
{
    if (d->pass == MICA_GROUPED_GEMM_FWD) return d->b.dims[0];
    if (d->c.rank == 3) return d->c.dims[0];
    return d->groups.rank == 1 ? d->groups.dims[0] : -1;
}

static void infer_vectors(mica_grouped_gemm_desc *d, int64_t count, int64_t n)
{
    mica_tensor *vectors[] = {&d->bias, &d->scale, &d->shift};
    const mica_step steps[] = {MICA_STEP_BIAS, MICA_STEP_SCALE, MICA_STEP_SHIFT};
    mica_dtype dtype = d->c.dtype == MICA_F64 ? MICA_F64 : MICA_F32;
    for (int i = 0; i < 3; i++)
        if (mica_epilogue_has(d->epilogue, steps[i]) && !mica_tensor_given(vectors[i]))
            *vectors[i] = mica_tensor_packed(dtype, 2, (int64_t[]){count, n});
    mica_epilogue e = {.steps = d->epilogue,
                       .bias = &d->bias,
                       .scale = &d->scale,
                       .shift = &d->shift,
                       .residual = &d->residual,
                       .act_a = &d->act_a,
                       .act_b = &d->act_b};
    mica_epilogue_infer(&e, &d->c);
}

static mica_status infer(void *desc, mica_why *why)
{
    mica_grouped_gemm_desc *d = desc;
    MICA_TRY(check_ranks(d, why));
    grouped_form form = grouped_form_of(d);
    int64_t count = groups_of(d), group[GROUPED_TENSORS];
    if (count < 0) return mica_invalid(why, "wgrad needs groups, or c as G x M x N");
    if (d->c.rank == 0) {
        mica_grouped_gemm_desc plain = {.pass = d->pass, .a = d->a, .b = d->b, .c = d->c};
        mica_gemm_desc item;
        make_item(&plain, form, &item, group);
        MICA_TRY(mica_op_gemm.infer(&item, why));
        int64_t dims[] = {count, item.c.dims[0], item.c.dims[1]};
        bool rows = form == GROUPED_ROWS;
        d->c = mica_tensor_packed(item.c.dtype, rows ? 2 : 3, rows ? dims + 1 : dims);
    }
    if (form != GROUPED_ROOMS && !mica_tensor_given(&d->groups))
        d->groups = mica_tensor_packed(MICA_S32, 1, &count);
    infer_vectors(d, count, d->c.dims[d->c.rank - 1]);
    return MICA_OK;
}

/* ---- checks ---- */

static mica_status check_groups(const mica_grouped_gemm_desc *d, int64_t count, mica_why *why)
{
    const mica_tensor *t = &d->groups;
    if (!mica_tensor_given(t)) return MICA_OK;
    if (t->rank == 1 && t->dims[0] == count) return MICA_OK;
    return mica_invalid(why, "groups has %lld elements in %d dimensions, there are %lld groups",
                        (long long)mica_tensor_count(t), t->rank, (long long)count);
}

/* ranks: allowed ones as bits; one with G in front has rank `grouped` or more. */
static mica_status check_leading(const mica_tensor *t, const char *name, unsigned ranks,
                                 int grouped, int64_t count, mica_why *why)
{
    if (!mica_tensor_given(t)) return MICA_OK;
    if (!(ranks >> t->rank & 1))
        return mica_invalid(why, "%s has rank %d, which it cannot have beside this a", name,
                            t->rank);
    if (t->rank < grouped || t->dims[0] == count) return MICA_OK;
    return mica_invalid(why, "%s begins with %lld, there are %lld groups", name,
                        (long long)t->dims[0], (long long)count);
}

static mica_status check_scale(const mica_tensor *t, const char *name, int64_t count, bool terms,
                               mica_why *why)
{
    unsigned ranks = terms ? 1u << 1 | 1u << 2 : 1u << 1 | 1u << 2 | 1u << 3;
    int grouped = mica_tensor_count(t) == 1 ? 2 : 1;
    return check_leading(t, name, ranks, grouped, count, why);
}

static mica_status check_tensors(const mica_grouped_gemm_desc *d, grouped_form form, int64_t count,
                                 mica_why *why)
{
    const unsigned matrix = form == GROUPED_ROWS ? 1u << 2 : 1u << 3, vector = 1u << 1 | 1u << 2;
    if (form == GROUPED_ROOMS) MICA_TRY(check_leading(&d->a, "a", matrix, 3, count, why));
    MICA_TRY(check_leading(&d->c, "c", matrix, 3, count, why));
    MICA_TRY(check_leading(&d->residual, "residual", matrix, 3, count, why));
    MICA_TRY(check_leading(&d->bias, "bias", vector, 2, count, why));
    MICA_TRY(check_leading(&d->scale, "scale", vector, 2, count, why));
    MICA_TRY(check_leading(&d->shift, "shift", vector, 2, count, why));
    if (form != GROUPED_ROWS)
        MICA_TRY(check_scale(&d->scale_a, "scale_a", count, form == GROUPED_TERMS, why));
    return check_scale(&d->scale_b, "scale_b", count, form == GROUPED_TERMS, why);
}

static mica_status check(const void *desc, mica_why *why)
{
    const mica_grouped_gemm_desc *d = desc;
    MICA_TRY(check_ranks(d, why));
    grouped_form form = grouped_form_of(d);
    int64_t count = groups_of(d), group[GROUPED_TENSORS];
    if (form != GROUPED_ROOMS && !mica_tensor_given(&d->groups))
        return mica_invalid(why, "groups is needed");
    if (count < 0) return mica_invalid(why, "wgrad needs c as G x M x N");
    MICA_TRY(check_groups(d, count, why));
    MICA_TRY(check_tensors(d, form, count, why));
    if (d->expected < 0)
        return mica_invalid(why, "expected is %lld, it must not be negative",
                            (long long)d->expected);
    mica_gemm_desc item;
    make_item(d, form, &item, group);
    MICA_TRY(mica_op_gemm.check(&item, why));
    MICA_TRY(mica_args_check(&mica_op_gemm, &item, why));
    if (!gemm_has_full_epilogue(&item)) return MICA_OK;
    return mica_invalid(why, "c is %s; with %s inputs it is f32, f16 or bf16",
                        mica_dtype_name(d->c.dtype), mica_dtype_name(d->a.dtype));
}

/* ---- numbers ---- */

static double bytes_of(const mica_tensor *t)
{
    return (double)mica_tensor_count(t) * mica_dtype_bits(t->dtype) / 8;
}

/* By the expected sizes; the real ones are data. */
static void cost(const void *desc, double *flops, double *bytes)
{
    const mica_grouped_gemm_desc *d = desc;
    grouped g;
    grouped_make(d, &g);
    const mica_gemm_desc *item = &g.item;
    double m = (double)item->c.dims[0], n = (double)item->c.dims[1], k = (double)item->a.dims[1];
    double part = g.limit ? g.expected * (double)g.count / (double)g.limit : 0;
    if (g.form != GROUPED_ROOMS && part > 1) part = 1;
    *flops = 2 * m * n * k * part;
    double a = bytes_of(&d->a), b = bytes_of(&d->b), c = bytes_of(&d->c), used = part;
    if (g.form == GROUPED_ROOMS) used = part / (double)(g.count ? g.count : 1);
    a *= used;
    if (g.form == GROUPED_TERMS)
        b *= used;
    else
        c *= used;
    *bytes = a + b + c + bytes_of(&d->groups) + bytes_of(&d->scale_a) + bytes_of(&d->scale_b) +
             bytes_of(&d->bias) + bytes_of(&d->scale) + bytes_of(&d->shift) +
             (mica_tensor_given(&d->residual) ? c : 0);
    if (*bytes <= 0) *bytes = 1;
}

static int64_t terms(const void *desc)
{
    grouped g;
    grouped_make(desc, &g);
    return mica_op_gemm.terms(&g.item);
}

static bool exact(const void *desc)
{
    grouped g;
    grouped_make(desc, &g);
    return mica_op_gemm.exact(&g.item);
}

/* ---- data ---- */

/* How much a group has: about its share, or nothing, one, and what lies beside the sizes of tiles.
 */
static double size_of(const grouped *g, mica_fill fill, double share, uint64_t seed, uint64_t i)
{
    static const double edges[] = {0, 1, 127, 128, 129, 63, 64, 65, 255, 257, 2, 17};
    double u = mica_random_uniform(seed, i);
    if (fill == MICA_FILL_RANGE) return edges[mica_random_bits(seed, i) % 12];
    if (fill == MICA_FILL_EXACT && mica_random_bits(seed + 1, i) % 4 == 0) return 0;
    if (fill == MICA_FILL_EXACT && g->form == GROUPED_ROOMS) return floor(u * (share + 1));
    return floor(share * (0.7 + 0.6 * u) + 0.5);
}

static double clamped(double v, double low, double high)
{
    return v < low ? low : v > high ? high : v;
}

/* Sizes or ends. Random ones use up all there is, exact ones mostly leave something; extreme ones
 * are none, and must do no harm. */
static void fill_groups(const mica_grouped_gemm_desc *d, mica_fill fill, uint64_t seed,
                        double *values)
{
    grouped g;
    grouped_make(d, &g);
    double limit = (double)g.limit, share = g.expected, end = 0;
    bool whole = !d->expected && (fill == MICA_FILL_RANDOM || fill == MICA_FILL_SAME_SIGN);
    seed = mica_random_bits(seed, 0x96095);
    for (int64_t i = 0; i < g.count; i++) {
        double size = size_of(&g, fill, share, seed, (uint64_t)i);
        end = clamped(end + size, 0, limit);
        if (whole && i == g.count - 1) end = limit;
        values[i] = g.form == GROUPED_ROOMS ? clamped(size, 0, limit) : end;
        if (fill != MICA_FILL_EXTREME) continue;
        switch (mica_random_bits(seed + 2, (uint64_t)i) % 5) {
        case 0:
            values[i] = -1000000007;
            break;
        case 1:
            values[i] = i == g.count - 1 ? 2147483647 : end - 5;
            break;
        case 2:
            if (i > g.count / 2) values[i] = limit + 1;
            break;
        default:
            break;
        }
    }
}

/* What must be kept in c is a NaN where it may be none of the result's business. */
static bool fill(const void *desc, const double *numbers, int arg, mica_fill kind, uint64_t seed,
                 double *values)
{
    const mica_grouped_gemm_desc *d = desc;
    if (arg == MICA_GROUPED_GEMM_GROUPS) {
        fill_groups(d, kind, seed, values);
        return true;
    }
    bool unread = arg == MICA_GROUPED_GEMM_C && numbers[MICA_GROUPED_GEMM_BETA] == 0 &&
                  kind == MICA_FILL_EXTREME && mica_dtype_is_float(d->c.dtype);
    int64_t count = mica_tensor_count(&d->c);
    for (int64_t i = 0; unread && i < count; i++) values[i] = NAN;
    return unread;
}

static const mica_engine *const engines[] = {&grouped_bf16, &grouped_cpu,  &mica_engine_ref,
                                             &grouped_sm90, &grouped_cuda, NULL};

const mica_op mica_op_grouped_gemm = {
    .name = "grouped_gemm",
    .doc = "many matrix multiplications in one, their sizes on the device",
    .desc_size = sizeof(mica_grouped_gemm_desc),
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
    .fill = fill,
    .reference = grouped_reference,
    .engines = engines,
};
