/* SPDX-License-Identifier: Apache-2.0
 * What both engines and the reference make of an operation's operands. */
#include "ops/pointwise/pointwise.h"
#include "ops/convert/cpu/convert.h"
#include "cpu/cpu.h"
#include "cpu/scratch.h"

#include <math.h>
#include <string.h>

mica_pointwise_operand mica_pointwise_argument(const mica_op *op, const void *desc, int arg)
{
    const mica_dir dir = mica_op_dir(op, desc, arg);
    if (dir == MICA_UNUSED) return (mica_pointwise_operand){.arg = arg};
    return (mica_pointwise_operand){.tensor = *mica_op_tensor(op, desc, arg),
                                    .arg = arg,
                                    .read = dir != MICA_OUT,
                                    .written = dir != MICA_IN};
}

void mica_pointwise_operands(const mica_op *op, const void *desc, mica_pointwise_set *set)
{
    memset(set, 0, sizeof *set);
    if (op->pointwise->operands) {
        op->pointwise->operands(desc, set);
        return;
    }
    set->count = op->arg_count;
    for (int i = 0; i < op->arg_count; i++) set->at[i] = mica_pointwise_argument(op, desc, i);
}

/* A dimension of one element may have any stride. */
static bool same_strides(const mica_tensor *a, const mica_tensor *b)
{
    for (int d = 0; d < a->rank; d++)
        if (a->dims[d] > 1 && a->strides[d] != b->strides[d]) return false;
    return true;
}

static bool is_broadcast(const mica_tensor *t)
{
    for (int d = 0; d < t->rank; d++)
        if (t->dims[d] > 1 && t->strides[d] == 0) return true;
    return false;
}

/* The first place says which dimension is the fastest: that of an operand with all of them. */
int mica_pointwise_layout(const mica_pointwise_set *set, mica_layout *layout, int *slots)
{
    const mica_tensor *tensors[MICA_POINTWISE_OPERANDS];
    int count = 0;
    for (int k = 0; k < set->count && count == 0; k++) {
        const mica_tensor *t = &set->at[k].tensor;
        if (mica_tensor_given(t) && !set->at[k].index && !is_broadcast(t)) tensors[count++] = t;
    }
    for (int k = 0; k < set->count; k++) {
        const mica_tensor *t = &set->at[k].tensor;
        slots[k] = -1;
        if (!mica_tensor_given(t)) continue;
        int slot = 0;
        while (slot < count && !same_strides(t, tensors[slot])) slot++;
        if (slot == count) tensors[count++] = t;
        slots[k] = slot;
    }
    mica_layout_make(layout, tensors, count);
    return count;
}

mica_dtype mica_pointwise_real(const mica_pointwise_set *set)
{
    if (set->f64) return MICA_F64;
    for (int k = 0; k < set->count; k++)
        if (mica_tensor_given(&set->at[k].tensor) && !mica_runs_f32(set->at[k].tensor.dtype))
            return MICA_F64;
    return MICA_F32;
}

/* ---- what is prepared ---- */

static size_t after(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

mica_status mica_pointwise_state(mica_plan *plan, size_t bytes, void *state_out)
{
    const mica_pointwise *p = plan->op->pointwise;
    MICA_TRY(mica_plan_state(plan, after(bytes) + p->prepared_size, state_out));
    if (p->prepare) p->prepare(plan->desc, (char *)plan->state + after(bytes));
    return MICA_OK;
}

const void *mica_pointwise_what(const mica_plan *plan, size_t state_bytes)
{
    return plan->op->pointwise->prepare ? (const char *)plan->state + after(state_bytes)
                                        : plan->desc;
}

/* ---- numbers ---- */

static mica_status find_numbers(const mica_op *op, const void *desc, const double *scalars,
                                double *numbers)
{
    if (op->pointwise->numbers) return op->pointwise->numbers(desc, scalars, numbers);
    for (int i = 0; i < op->pointwise->number_count; i++) numbers[i] = scalars[i];
    return MICA_OK;
}

/* Scalars of those names scale every result and its old content. */
static void find_scale(const mica_op *op, const double *scalars, double *alpha, double *beta)
{
    *alpha = 1, *beta = 0;
    for (int i = 0; i < op->scalar_count; i++) {
        const char *name = op->scalars[i].name;
        if (name[0] == 'a' && !strcmp(name, "alpha")) *alpha = scalars[i];
        if (name[0] == 'b' && !strcmp(name, "beta")) *beta = scalars[i];
    }
}

mica_status mica_pointwise_begin(const mica_plan *plan, const mica_run *run, mica_dtype real,
                                 mica_pointwise_numbers *numbers, double *alpha, double *beta)
{
    double scalars[MICA_MAX_SCALARS], n[MICA_POINTWISE_NUMBERS];
    const int count = plan->op->pointwise->number_count;
    for (int i = 0; i < plan->op->scalar_count; i++) scalars[i] = mica_run_scalar(plan, run, i);
    MICA_TRY(find_numbers(plan->op, plan->desc, scalars, n));
    for (int i = 0; i < count; i++)
        if (real == MICA_F64)
            numbers->f64[i] = n[i];
        else
            numbers->f32[i] = (float)n[i];
    find_scale(plan->op, scalars, alpha, beta);
    return MICA_OK;
}

/* ---- the reference ---- */

typedef struct job {
    const mica_op *op;
    const void *what;
    const mica_view *args;
    mica_pointwise_set set;
    double numbers[MICA_POINTWISE_NUMBERS], alpha, beta;
} job;

/* alpha v + beta old; the old value is not read when beta is 0. */
static void put(const job *j, const mica_view *out, int64_t at, double v, double magnitude)
{
    double old = j->beta != 0 ? mica_get(out, at) : 0;
    mica_put(out, at, j->alpha * v + j->beta * old,
             fabs(j->alpha) * magnitude + fabs(j->beta * old));
}

/* An s64 as the bits of a double. Views of checks may hold its value as a double. */
static double get_whole(const mica_pointwise_operand *o, const mica_view *from, int64_t at)
{
    double bits;
    int64_t v = at;
    if (!o->index && from->t.dtype == MICA_S64)
        v = ((const int64_t *)from->data)[at];
    else if (!o->index)
        v = (int64_t)mica_get(from, at);
    memcpy(&bits, &v, sizeof bits);
    return bits;
}

static void put_whole(const mica_view *to, int64_t at, double bits, double magnitude)
{
    int64_t v;
    memcpy(&v, &bits, sizeof v);
    mica_put(to, at, (double)v, magnitude);
    if (to->t.dtype == MICA_S64) ((int64_t *)to->data)[at] = v;
}

/* at: where the element lies in each operand. */
static void evaluate(const job *j, int64_t i, double *v, double *mag, int64_t *at)
{
    memset(v, 0, MICA_POINTWISE_OPERANDS * sizeof *v);
    memset(mag, 0, MICA_POINTWISE_OPERANDS * sizeof *mag);
    for (int k = 0; k < j->set.count; k++) {
        const mica_pointwise_operand *o = &j->set.at[k];
        if (!mica_tensor_given(&o->tensor)) continue;
        at[k] = o->shift + mica_offset(&o->tensor, i);
        if (o->whole && o->read)
            v[k] = get_whole(o, o->index ? NULL : &j->args[o->arg], at[k]);
        else if (o->read)
            v[k] = mica_get(&j->args[o->arg], at[k]);
    }
    j->op->pointwise->truth(j->what, j->numbers, v, mag);
}

static void element(const job *j, int64_t i)
{
    double v[MICA_POINTWISE_OPERANDS], mag[MICA_POINTWISE_OPERANDS];
    int64_t at[MICA_POINTWISE_OPERANDS];
    evaluate(j, i, v, mag, at);
    for (int k = 0; k < j->set.count; k++) {
        const mica_pointwise_operand *o = &j->set.at[k];
        if (!o->written || o->summed || !mica_tensor_given(&o->tensor)) continue;
        const mica_view *to = &j->args[o->arg];
        if (o->follows)
            mica_put(to, at[k], mica_get(&j->args[j->set.at[k - 1].arg], at[k - 1]), mag[k - 1]);
        else if (o->whole)
            put_whole(to, at[k], v[k], mag[k]);
        else
            put(j, to, at[k], v[k], mag[k]);
    }
}

/* Element `kept` of a sum, term by term in the order of the dimensions that it is over. */
static void sum_up(const job *j, int k, int64_t kept, int64_t terms)
{
    const mica_pointwise_operand *o = &j->set.at[k];
    double sum = 0, magnitudes = 0, errors = 0;
    int64_t to = o->shift, left = kept, pitch = 1, first = 0;
    for (int d = o->tensor.rank - 1; d >= 0; pitch *= o->tensor.dims[d--]) {
        if (o->summed >> d & 1) continue;
        to += left % o->tensor.dims[d] * o->tensor.strides[d];
        first += left % o->tensor.dims[d] * pitch;
        left /= o->tensor.dims[d];
    }
    for (int64_t term = 0; term < terms; term++) {
        double v[MICA_POINTWISE_OPERANDS], mag[MICA_POINTWISE_OPERANDS];
        int64_t at[MICA_POINTWISE_OPERANDS], i = first;
        left = term, pitch = 1;
        for (int d = o->tensor.rank - 1; d >= 0; pitch *= o->tensor.dims[d--]) {
            if (!(o->summed >> d & 1)) continue;
            i += left % o->tensor.dims[d] * pitch;
            left /= o->tensor.dims[d];
        }
        evaluate(j, i, v, mag, at);
        sum += v[k];
        magnitudes += fabs(v[k]);
        errors += mag[k];
    }
    /* Of random roundings about the root adds up. */
    const double additions = fmin((double)terms, 4 * sqrt((double)terms));
    put(j, &j->args[o->arg], to, sum, (terms > 1 ? additions * magnitudes : 0) + errors);
}

static void sum_all(const job *j, int k, int64_t count)
{
    const mica_pointwise_operand *o = &j->set.at[k];
    int64_t terms = 1, kept = 1;
    for (int d = 0; d < o->tensor.rank; d++)
        *(o->summed >> d & 1 ? &terms : &kept) *= o->tensor.dims[d];
#pragma omp parallel for num_threads(mica_cpu_threads_for((double)count * 64))
    for (int64_t i = 0; i < kept; i++) sum_up(j, k, i, terms);
}

void mica_pointwise_reference(const mica_op *op, const void *desc, const mica_view *args,
                              const double *scalars)
{
    /* The views may be packed copies: their own strides hold, not the descriptor's. */
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    char *as_viewed = mica_scratch_take(MICA_MAX_DESC);
    memcpy(as_viewed, desc, op->desc_size);
    for (int i = 0; i < op->arg_count; i++)
        if (args[i].data)
            memcpy(as_viewed + op->args[i].tensor + offsetof(mica_tensor, strides),
                   args[i].t.strides, sizeof args[i].t.strides);
    char *prepared = mica_scratch_take(MICA_POINTWISE_PREPARED);
    job j = {.op = op, .what = desc, .args = args};
    if (op->pointwise->prepare) {
        memset(prepared, 0, op->pointwise->prepared_size);
        op->pointwise->prepare(desc, prepared);
        j.what = prepared;
    }
    find_scale(op, scalars, &j.alpha, &j.beta);
    mica_pointwise_operands(op, as_viewed, &j.set);
    if (find_numbers(op, desc, scalars, j.numbers) != MICA_OK) return;
    int64_t count = 0;
    for (int k = 0; k < j.set.count && count == 0; k++)
        if (mica_tensor_given(&j.set.at[k].tensor)) count = mica_tensor_count(&j.set.at[k].tensor);
#pragma omp parallel for num_threads(mica_cpu_threads_for((double)count * 64))
    for (int64_t i = 0; i < count; i++) element(&j, i);
    for (int k = 0; k < j.set.count; k++)
        if (j.set.at[k].summed) sum_all(&j, k, count);
}

const mica_engine *const mica_pointwise_engines[] = {&mica_pointwise_cpu, &mica_engine_ref,
                                                     &mica_pointwise_cuda, NULL};
