/* SPDX-License-Identifier: Apache-2.0
 * Permutations by experts: tables, inference, checks, fills, the truth. */
#include "ops/moe_permute/moe_permute.h"
#include "base/random.h"
#include "cpu/scratch.h"

#include <math.h>
#include <string.h>

#define FIELD(member, kind, ...) MICA_FIELD(mica_moe_permute_desc, member, kind, __VA_ARGS__)
static const mica_field fields[] = {
    FIELD(indices, TENSOR, .zero = "needed", .doc = "experts of choices, tokens x k, s32"),
    FIELD(x, TENSOR, .zero = "none", .doc = "tokens x columns"),
    FIELD(offsets, TENSOR, .zero = "inferred", .doc = "where the rows of experts begin, E + 1"),
    FIELD(rows, TENSOR, .zero = "inferred", .doc = "choices of rows, or -1"),
    FIELD(places, TENSOR, .zero = "inferred", .doc = "rows of choices, or -1: tokens x k"),
    FIELD(y, TENSOR, .zero = "inferred with x", .doc = "rows x columns"),
    FIELD(experts, I64, .def = 1, .doc = "how many there are"),
    FIELD(align, I64, .def = 1, .doc = "what numbers of rows of experts are multiples of"),
    FIELD(capacity, I64, .zero = "no limit", .positive = true, .doc = "most rows of an expert"),
};

static int64_t rounded_up(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

static int64_t dim(const void *desc, char letter)
{
    const mica_moe_permute_desc *d = desc;
    const int64_t choices = d->indices.dims[0] * d->indices.dims[1], each = d->align;
    if (letter == 'T') return d->indices.dims[0];
    if (letter == 'K') return d->indices.dims[1];
    if (letter == 'D') return d->x.dims[1];
    if (letter == 'F') return d->experts + 1;
    const int64_t worst = rounded_up(choices + d->experts * (each - 1), each);
    const int64_t most =
        d->experts * rounded_up(d->capacity < choices ? d->capacity : choices, each);
    return d->capacity && most < worst ? most : worst;
}

#define ARG(member, ...)                                                                           \
    {                                                                                              \
#member, offsetof(mica_moe_permute_desc, member), __VA_ARGS__                              \
    }
#define MAP(DIMS)                                                                                  \
    {MICA_OUT}, .types = MICA_INDICES, .need = {MICA_INFERRED}, .like = "indices", .dims = DIMS
static const mica_arg args[] = {
    [MICA_MOE_PERMUTE_INDICES] =
        ARG(indices, {MICA_IN}, .types = MICA_TYPE(S32), .need = {MICA_NEEDED}),
    [MICA_MOE_PERMUTE_X] = ARG(x, {MICA_IN}, .types = MICA_REALS),
    [MICA_MOE_PERMUTE_OFFSETS] = ARG(offsets, MAP("F")),
    [MICA_MOE_PERMUTE_ROWS] = ARG(rows, MAP("R")),
    [MICA_MOE_PERMUTE_PLACES] = ARG(places, MAP("TxK")),
    [MICA_MOE_PERMUTE_Y] = ARG(y, {MICA_OUT}, .types = MICA_REALS, .like = "x", .dims = "RxD",
                               .same = "x", .with = "x"),
};

static mica_status infer(void *desc, mica_why *why)
{
    mica_moe_permute_desc *d = desc;
    if (d->indices.rank != 2)
        return mica_invalid(why, "indices has rank %d, it must be tokens x k", d->indices.rank);
    if (d->experts < 1 || d->experts > MOE_PERMUTE_EXPERTS)
        return mica_invalid(why, "experts is %lld, 1 to %d are legal", (long long)d->experts,
                            MOE_PERMUTE_EXPERTS);
    if (d->align < 1 || d->align > MOE_PERMUTE_ALIGN)
        return mica_invalid(why, "align is %lld, 1 to %d are legal", (long long)d->align,
                            MOE_PERMUTE_ALIGN);
    if (d->capacity < 0)
        return mica_invalid(why, "capacity is %lld, it must be above 0", (long long)d->capacity);
    if (mica_tensor_given(&d->x) && (d->x.rank != 2 || d->x.dims[0] != d->indices.dims[0]))
        return mica_invalid(why, "x has rank %d and %lld rows, it must be %lld tokens x columns",
                            d->x.rank, (long long)d->x.dims[0], (long long)d->indices.dims[0]);
    if (mica_tensor_given(&d->x) && !mica_tensor_given(&d->y))
        d->y = mica_tensor_packed(d->x.dtype, 2, (int64_t[]){dim(d, 'R'), d->x.dims[1]});
    return MICA_OK;
}

static mica_status check(const void *desc, mica_why *why)
{
    const mica_moe_permute_desc *d = desc;
    const mica_tensor *maps[] = {&d->offsets, &d->rows, &d->places};
    for (int i = 0; i < 3; i++)
        if (maps[i]->dtype == MICA_S32 && d->rows.dims[0] > INT32_MAX)
            return mica_invalid(why, "%s is s32, %lld rows need s64",
                                args[MICA_MOE_PERMUTE_OFFSETS + i].name,
                                (long long)d->rows.dims[0]);
    return MICA_OK;
}

/* Experts of a skewed load; some choices are outside where the fill is extreme. */
static bool fill_indices(const void *desc, const double *scalars, int arg, mica_fill fill,
                         uint64_t seed, double *values)
{
    const mica_moe_permute_desc *d = desc;
    (void)scalars;
    if (arg != MICA_MOE_PERMUTE_INDICES) return false;
    for (int64_t c = 0; c < mica_tensor_count(&d->indices); c++) {
        const double u = mica_random_uniform(seed, (uint64_t)c);
        const uint64_t bits = mica_random_bits(seed ^ 1, (uint64_t)c);
        values[c] = floor((fill == MICA_FILL_RANGE ? u * u * u : u) * (double)d->experts);
        if (fill == MICA_FILL_EXTREME && bits % 4 == 0)
            values[c] = bits & 8 ? -1 : bits & 16 ? (double)d->experts : -2147483648.0;
    }
    return true;
}

static bool exact(const void *desc)
{
    (void)desc;
    return true;
}

/* ---- sorting, in order ---- */

void moe_permute_sort(const mica_moe_permute_desc *d, const moe_maps *m)
{
    const int64_t choices = mica_tensor_count(&d->indices), rows = d->rows.dims[0];
    int64_t at = 0;
    memset(m->count, 0, (size_t)d->experts * sizeof *m->count);
    for (int64_t r = 0; r < rows; r++) moe_map_put(&d->rows, m->rows, r * d->rows.strides[0], -1);
    for (int64_t c = 0; c < choices; c++) {
        const int64_t e = m->indices[moe_choice_offset(&d->indices, c)];
        if (e >= 0 && e < d->experts) m->count[e]++;
    }
    for (int64_t e = 0; e <= d->experts; e++) {
        moe_map_put(&d->offsets, m->offsets, e * d->offsets.strides[0], at);
        if (e == d->experts) break;
        int64_t n = m->count[e];
        if (d->capacity && n > d->capacity) n = d->capacity;
        m->count[e] = at;
        at += rounded_up(n, d->align);
    }
    for (int64_t c = 0; c < choices; c++) {
        const int64_t e = m->indices[moe_choice_offset(&d->indices, c)];
        int64_t place = -1;
        if (e >= 0 && e < d->experts) {
            const int64_t first = moe_map_get(&d->offsets, m->offsets, e * d->offsets.strides[0]);
            if (!d->capacity || m->count[e] - first < d->capacity) place = m->count[e]++;
        }
        if (place >= 0) moe_map_put(&d->rows, m->rows, place * d->rows.strides[0], c);
        moe_map_put(&d->places, m->places, moe_choice_offset(&d->places, c), place);
    }
}

static void no_magnitudes(const mica_view *v)
{
    for (int64_t i = 0; v->mag && i < mica_tensor_count(&v->t); i++) v->mag[i] = 0;
}

void moe_permute_reference(const void *desc, const mica_view *args, const double *scalars)
{
    const mica_moe_permute_desc *d = desc;
    const mica_view *x = &args[MICA_MOE_PERMUTE_X], *y = &args[MICA_MOE_PERMUTE_Y];
    const mica_view *indices = &args[MICA_MOE_PERMUTE_INDICES];
    const int64_t choices = mica_tensor_count(&indices->t), rows = d->rows.dims[0];
    (void)scalars;
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    int64_t *count = mica_scratch_zeroed((size_t)d->experts * sizeof *count);
    int64_t *first = mica_scratch_zeroed((size_t)(d->experts + 1) * sizeof *first);
    double element;
    for (int64_t c = 0; c < choices; c++) {
        element = mica_get(indices, mica_offset(&indices->t, c));
        if (element >= 0 && element < (double)d->experts) count[(int64_t)element]++;
    }
    for (int64_t e = 0; e < d->experts; e++) {
        const int64_t n = d->capacity && count[e] > d->capacity ? d->capacity : count[e];
        first[e + 1] = first[e] + rounded_up(n, d->align);
        count[e] = 0;
    }
    for (int i = MICA_MOE_PERMUTE_OFFSETS; i <= MICA_MOE_PERMUTE_Y; i++)
        if (args[i].data) no_magnitudes(&args[i]);
    for (int64_t e = 0; e <= d->experts; e++)
        mica_put(&args[MICA_MOE_PERMUTE_OFFSETS], e * args[MICA_MOE_PERMUTE_OFFSETS].t.strides[0],
                 (double)first[e], 0);
    for (int64_t r = 0; r < rows; r++) {
        mica_put(&args[MICA_MOE_PERMUTE_ROWS], r * args[MICA_MOE_PERMUTE_ROWS].t.strides[0], -1, 0);
        for (int64_t i = 0; y->data && i < y->t.dims[1]; i++)
            mica_put(y, r * y->t.strides[0] + i * y->t.strides[1], 0, 0);
    }
    for (int64_t c = 0; c < choices; c++) {
        const mica_view *places = &args[MICA_MOE_PERMUTE_PLACES];
        element = mica_get(indices, mica_offset(&indices->t, c));
        const int64_t e = element >= 0 && element < (double)d->experts ? (int64_t)element : -1;
        const bool kept = e >= 0 && (!d->capacity || count[e] < d->capacity);
        const int64_t r = kept ? first[e] + count[e]++ : -1;
        mica_put(places, mica_offset(&places->t, c), (double)r, 0);
        if (!kept) continue;
        mica_put(&args[MICA_MOE_PERMUTE_ROWS], r * args[MICA_MOE_PERMUTE_ROWS].t.strides[0],
                 (double)c, 0);
        for (int64_t i = 0; y->data && i < y->t.dims[1]; i++)
            mica_put(y, r * y->t.strides[0] + i * y->t.strides[1],
                     mica_get(x, c / indices->t.dims[1] * x->t.strides[0] + i * x->t.strides[1]),
                     0);
    }
}

static const mica_engine *const engines[] = {&moe_permute_cpu, &mica_engine_ref, &moe_permute_cuda,
                                             NULL};

const mica_op mica_op_moe_permute = {
    .name = "moe_permute",
    .doc = "tokens in the order of the experts that they go to, with the maps there and back",
    .desc_size = sizeof(mica_moe_permute_desc),
    .fields = fields,
    .field_count = sizeof fields / sizeof *fields,
    .args = args,
    .arg_count = sizeof args / sizeof *args,
    .infer = infer,
    .dim = dim,
    .check = check,
    .exact = exact,
    .fill = fill_indices,
    .reference = moe_permute_reference,
    .engines = engines,
};
