/* SPDX-License-Identifier: Apache-2.0
 * Attention in parts, merged: fields, arguments, inference, checks, test data, the truth. */
#include "ops/attention_merge/attention_merge.h"
#include "base/random.h"
#include "ops/access/layout.h"

#include <math.h>
#include <string.h>

#define FIELD(member, kind, ...) MICA_FIELD(mica_attention_merge_desc, member, kind, __VA_ARGS__)
static const mica_field fields[] = {
    FIELD(outs, TENSOR, .zero = "needed", .doc = "P x rows x D: what each part gave"),
    FIELD(lses, TENSOR, .zero = "inferred", .doc = "P x rows: logarithms of their sums"),
    FIELD(out, TENSOR, .zero = "inferred", .doc = "rows x D"),
    FIELD(lse, TENSOR, .zero = "none", .doc = "rows: logarithm of the whole sum"),
};

/* t without its first dimension (and the last: columns); of rank 1 at least. */
static mica_tensor inner(const mica_tensor *t, int first, int last)
{
    mica_tensor r = {.dtype = t->dtype, .rank = last - first};
    memcpy(r.dims, t->dims + first, (size_t)r.rank * sizeof *r.dims);
    memcpy(r.strides, t->strides + first, (size_t)r.rank * sizeof *r.strides);
    if (r.rank == 0) r.rank = 1, r.dims[0] = 1, r.strides[0] = 1;
    return r;
}

static mica_tensor part_of_outs(const void *desc)
{
    const mica_attention_merge_desc *d = desc;
    return inner(&d->outs, 1, d->outs.rank);
}

static mica_tensor sums_of_outs(const void *desc)
{
    const mica_attention_merge_desc *d = desc;
    return mica_tensor_packed(d->outs.dtype, d->outs.rank - 1, d->outs.dims);
}

static mica_tensor rows_of_outs(const void *desc)
{
    const mica_attention_merge_desc *d = desc;
    mica_tensor rows = inner(&d->outs, 1, d->outs.rank - 1);
    return mica_tensor_packed(rows.dtype, rows.rank, rows.dims);
}

#define TENSOR(member) #member, offsetof(mica_attention_merge_desc, member)
static const mica_arg args[] = {
    [MICA_ATTENTION_MERGE_OUTS] = {TENSOR(outs), {MICA_IN}, .types = MICA_FLOATS},
    [MICA_ATTENTION_MERGE_LSES] = {TENSOR(lses),
                                   {MICA_IN},
                                   .like = "outs without its columns",
                                   .shape = sums_of_outs,
                                   .need = {MICA_INFERRED},
                                   .state = true},
    [MICA_ATTENTION_MERGE_OUT] = {TENSOR(out),
                                  {MICA_OUT},
                                  .types = MICA_FLOATS,
                                  .like = "a part of outs",
                                  .shape = part_of_outs,
                                  .need = {MICA_INFERRED}},
    [MICA_ATTENTION_MERGE_LSE] = {TENSOR(lse),
                                  {MICA_OUT},
                                  .like = "the rows of outs",
                                  .shape = rows_of_outs},
};

void attention_merge_rows(const mica_attention_merge_desc *d, mica_layout *layout)
{
    int rank = d->outs.rank;
    bool lse = mica_tensor_given(&d->lse);
    const mica_tensor rows[] = {[MERGE_OUTS] = inner(&d->outs, 1, rank - 1),
                                [MERGE_LSES] = inner(&d->lses, 1, rank - 1),
                                [MERGE_OUT] = inner(&d->out, 0, rank - 2),
                                [MERGE_LSE] = lse && rank > 2 ? inner(&d->lse, 0, rank - 2)
                                                              : inner(&d->lses, 1, rank - 1)};
    const mica_tensor *tensors[MERGE_TENSORS];
    for (int i = 0; i < MERGE_TENSORS; i++) tensors[i] = &rows[i];
    mica_layout_make(layout, tensors, MERGE_TENSORS);
}

/* ---- inference and checks ---- */

static mica_status infer(void *desc, mica_why *why)
{
    mica_attention_merge_desc *d = desc;
    if (!mica_tensor_given(&d->outs) || d->outs.rank < 2)
        return mica_invalid(why, "outs has rank %d, it is P x rows x D", d->outs.rank);
    return MICA_OK;
}

static mica_status check_type(const mica_tensor *t, const char *name, mica_dtype type,
                              mica_why *why)
{
    if (!mica_tensor_given(t) || t->dtype == type) return MICA_OK;
    return mica_invalid(why, "%s is %s, it must be %s", name, mica_dtype_name(t->dtype),
                        mica_dtype_name(type));
}

static mica_status check(const void *desc, mica_why *why)
{
    const mica_attention_merge_desc *d = desc;
    mica_dtype type = d->outs.dtype, stat = type == MICA_F64 ? MICA_F64 : MICA_F32;
    if ((type == MICA_F64) != (d->out.dtype == MICA_F64))
        return mica_invalid(why, "out is %s, it must be %s", mica_dtype_name(d->out.dtype),
                            type == MICA_F64 ? "f64 with f64 outs" : "f32, f16 or bf16");
    MICA_TRY(check_type(&d->lses, "lses", stat, why));
    return check_type(&d->lse, "lse", stat, why);
}

/* ---- numbers ---- */

static void cost(const void *desc, double *flops, double *bytes)
{
    const mica_attention_merge_desc *d = desc;
    (void)bytes;
    *flops = 2 * (double)mica_tensor_count(&d->outs) + 20 * (double)mica_tensor_count(&d->lses);
}

static int64_t terms(const void *desc)
{
    return ((const mica_attention_merge_desc *)desc)->outs.dims[0] + 4;
}

static bool exact(const void *desc)
{
    (void)desc;
    return true;
}

/* The sum i of `parts` by `rows`. EXACT: one part of each row takes all the weight. EXTREME: parts
 * that saw nothing, rows of which none saw anything, and a part of NaN or +inf in some rows. */
static double sum_value(int64_t parts, int64_t rows, mica_fill kind, uint64_t seed, int64_t i)
{
    uint64_t row = mica_random_bits(seed, (uint64_t)(i % rows));
    uint64_t bits = mica_random_bits(seed ^ 0x15f, (uint64_t)i);
    bool winner = (int64_t)(row % (uint64_t)parts) == i / rows;
    if (kind == MICA_FILL_EXACT) return winner ? (double)(row >> 40 & 7) - 4 : -2000;
    if (kind == MICA_FILL_EXTREME && winner && (row >> 40) % 16 == 1) return NAN;
    if (kind == MICA_FILL_EXTREME && winner && (row >> 40) % 16 == 2) return INFINITY;
    if (kind == MICA_FILL_EXTREME && ((row >> 40) % 5 == 0 || bits % 3 == 0)) return -INFINITY;
    if (kind == MICA_FILL_EXTREME) return bits % 3 == 1 ? 120 : -120;
    return (kind == MICA_FILL_RANGE ? 60 : 3) * mica_random_normal(seed ^ 0x15e, (uint64_t)i);
}

static bool fill(const void *desc, const double *scalars, int arg, mica_fill kind, uint64_t seed,
                 double *values)
{
    const mica_attention_merge_desc *d = desc;
    (void)scalars;
    int64_t count = mica_tensor_count(&d->lses), parts = d->lses.dims[0];
    int64_t rows = parts ? count / parts : 0, columns = d->outs.dims[d->outs.rank - 1];
    if (arg == MICA_ATTENTION_MERGE_LSES) {
        for (int64_t i = 0; i < count; i++) values[i] = sum_value(parts, rows, kind, seed, i);
        return true;
    }
    if (arg != MICA_ATTENTION_MERGE_OUTS || kind != MICA_FILL_EXTREME) return false;
    mica_fill_general(&mica_op_attention_merge, d, arg, kind, seed, values);
    for (int64_t i = 0; i < count; i++)
        for (int64_t c = 0; c < columns && sum_value(parts, rows, kind, seed, i) == -INFINITY; c++)
            values[i * columns + c] = NAN;
    /* A part of weight exp(-240) has NaN in one column: it shows. */
    for (int64_t i = 0; i < count; i++)
        if (columns && sum_value(parts, rows, kind, seed, i) == -120 &&
            mica_random_bits(seed ^ 0x160, (uint64_t)i) % 8 == 0)
            values[i * columns] = NAN;
    return true;
}

/* ---- the truth ---- */

static int64_t row_offset(const mica_tensor *t, int first, int64_t row, const mica_tensor *rows)
{
    int64_t offset = 0;
    for (int a = rows->rank - 1; a >= 0; a--) {
        offset += row % rows->dims[a] * t->strides[first + a];
        row /= rows->dims[a];
    }
    return offset;
}

/* A weight is wrong by as many units as its logarithm lies below the largest. */
static void reference(const void *desc, const mica_view *v, const double *scalars)
{
    const mica_attention_merge_desc *d = desc;
    const mica_view *outs = &v[MICA_ATTENTION_MERGE_OUTS], *lses = &v[MICA_ATTENTION_MERGE_LSES];
    const mica_view *out = &v[MICA_ATTENTION_MERGE_OUT], *lse = &v[MICA_ATTENTION_MERGE_LSE];
    (void)scalars;
    int last = outs->t.rank - 1;
    const mica_tensor rows = inner(&d->outs, 1, last);
    int64_t parts = outs->t.dims[0], columns = outs->t.dims[last], count = mica_tensor_count(&rows);
    for (int64_t row = 0; row < count; row++) {
        int64_t from = row_offset(&outs->t, 1, row, &rows),
                stat = row_offset(&lses->t, 1, row, &rows);
        double max = -INFINITY, sum = 0;
        for (int64_t p = 0; p < parts; p++)
            max = fmax(max, mica_get(lses, stat + p * lses->t.strides[0]));
        for (int64_t p = 0; p < parts; p++) {
            double l = mica_get(lses, stat + p * lses->t.strides[0]);
            if (l != -INFINITY) sum += exp(l - max); /* NaN stays; of +inf it becomes NaN */
        }
        bool seen = sum != 0;
        double whole = seen ? max + log(sum) : -INFINITY;
        if (lse->data)
            mica_put(lse, row_offset(&lse->t, 0, row, &rows), whole,
                     seen ? 1 + fabs(whole) + fabs(max) : 0);
        for (int64_t c = 0; c < columns; c++) {
            double value = 0, magnitude = 0;
            for (int64_t p = 0; p < parts && seen; p++) {
                double l = mica_get(lses, stat + p * lses->t.strides[0]), w = exp(l - max) / sum;
                if (l == -INFINITY) continue;
                double x =
                    mica_get(outs, from + p * outs->t.strides[0] + c * outs->t.strides[last]);
                value += w * x;
                if (w != 0) magnitude += w * fabs(x) * (1 + fabs(l - max));
            }
            int64_t to = row_offset(&out->t, 0, row, &rows) + c * out->t.strides[out->t.rank - 1];
            mica_put(out, to, value, magnitude);
        }
    }
}

static const mica_engine *const engines[] = {&mica_attention_merge_cpu, &mica_engine_ref,
                                             &mica_attention_merge_cuda, NULL};

const mica_op mica_op_attention_merge = {
    .name = "attention_merge",
    .doc = "results of attention over parts of the keys as those over all of them",
    .desc_size = sizeof(mica_attention_merge_desc),
    .fields = fields,
    .field_count = sizeof fields / sizeof *fields,
    .args = args,
    .arg_count = sizeof args / sizeof *args,
    .infer = infer,
    .check = check,
    .cost = cost,
    .terms = terms,
    .exact = exact,
    .ulps = 8,
    .fill = fill,
    .reference = reference,
    .engines = engines,
};
