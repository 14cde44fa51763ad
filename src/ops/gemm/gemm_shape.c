/* SPDX-License-Identifier: Apache-2.0
 * From the descriptor to sizes and strides: broadcasting, merging, folding. */
#include "ops/gemm/gemm_shape.h"

#include <string.h>

mica_epilogue gemm_epilogue(const mica_gemm_desc *desc)
{
    mica_gemm_desc *d = (mica_gemm_desc *)(uintptr_t)desc;
    return (mica_epilogue){.steps = d->epilogue,
                           .bias = &d->bias,
                           .scale = &d->scale,
                           .shift = &d->shift,
                           .residual = &d->residual,
                           .act_a = &d->act_a,
                           .act_b = &d->act_b};
}

int64_t gemm_batch_stride(const mica_tensor *t, int i)
{
    int d = t->rank - 3 - i;
    return d < 0 || t->dims[d] == 1 ? 0 : t->strides[d];
}

int64_t gemm_scale_stride(const mica_tensor *scale)
{
    return mica_tensor_count(scale) == 1 ? 0 : scale->strides[0];
}

bool gemm_has_blocks(const mica_gemm_desc *d)
{
    return d->scale_a.rank == 2 || d->scale_b.rank == 2;
}

void gemm_args_fill(const mica_gemm_desc *d, gemm_args *a)
{
    bool blocks = gemm_has_blocks(d);
    if (blocks) {
        a->scale_a_stride = d->scale_a.strides[0];
        a->scale_a_k = d->scale_a.strides[1];
        a->scale_b_k = d->scale_b.strides[0];
        a->scale_b_n = d->scale_b.strides[1];
    }
    if (!blocks && mica_tensor_given(&d->scale_a))
        a->scale_a_stride = gemm_scale_stride(&d->scale_a);
    if (!blocks && mica_tensor_given(&d->scale_b))
        a->scale_b_stride = gemm_scale_stride(&d->scale_b);
    a->epilogue.bias_stride = d->bias.strides[0];
    a->epilogue.scale_stride = d->scale.strides[0];
    a->epilogue.shift_stride = d->shift.strides[0];
    a->epilogue.act_a = d->act_a;
    a->epilogue.act_b = d->act_b;
}

void gemm_args_bind(const mica_plan *plan, const mica_run *r, gemm_args *a)
{
    a->a = r->args[MICA_GEMM_A];
    a->b = r->args[MICA_GEMM_B];
    a->c = r->args[MICA_GEMM_C];
    a->scale_a = r->args[MICA_GEMM_SCALE_A];
    a->scale_b = r->args[MICA_GEMM_SCALE_B];
    mica_epilogue_bind(&a->epilogue, r->args, MICA_GEMM_BIAS);
    a->alpha = mica_run_scalar(plan, r, MICA_GEMM_ALPHA);
    a->beta = mica_run_scalar(plan, r, MICA_GEMM_BETA);
}

void gemm_full_fill(const mica_gemm_desc *d, gemm_full_args *a)
{
    gemm_shape_make_full_epilogue(d, &a->gemm.shape, &a->extra);
    gemm_args_fill(d, &a->gemm);
}

void gemm_full_bind(const mica_plan *plan, const mica_run *r, gemm_full_args *a)
{
    gemm_args_bind(plan, r, &a->gemm);
    a->aux = r->args[MICA_GEMM_AUX];
    a->amax = r->args[MICA_GEMM_AMAX];
    a->scale_c = r->args[MICA_GEMM_SCALE_C];
}

mica_status gemm_full_begin(const mica_plan *plan, const mica_run *r)
{
    const mica_tensor *amax = &((const mica_gemm_desc *)plan->desc)->amax;
    if (!mica_tensor_given(amax)) return MICA_OK;
    return mica_cuda_memset(plan->cuda, r->args[MICA_GEMM_AMAX], 0,
                            mica_dtype_bits(amax->dtype) / 8, r->stream);
}

mica_dtype gemm_epilogue_type(const mica_gemm_desc *d)
{
    bool whole = mica_dtype_is_integer(d->a.dtype) && mica_dtype_is_integer(d->c.dtype);
    return whole ? MICA_F64 : MICA_F32;
}

void gemm_full_prologue(const mica_gemm_desc *d, mica_text *p)
{
    bool aux = mica_tensor_given(&d->aux), amax = mica_tensor_given(&d->amax);
    mica_prologue_int(p, "GATE", d->gate != MICA_GEMM_GATE_NONE);
    mica_prologue_int(p, "AUX", aux);
    mica_prologue_int(p, "AMAX", amax);
    mica_prologue_int(p, "SCALE_C", mica_tensor_given(&d->scale_c));
    mica_prologue_int(p, "ACT_STEP", mica_epilogue_act(d->epilogue));
    mica_prologue_type(p, "aux_t", aux ? d->aux.dtype : MICA_F32);
    mica_prologue_type(p, "amax_t", amax ? d->amax.dtype : MICA_F32);
}

double gemm_flops(const gemm_shape *s)
{
    return 2.0 * (double)s->m * (double)s->n * (double)s->k * (double)s->batches;
}

static bool continues(long long outer, long long inner, long long dim)
{
    return outer == inner * dim;
}

bool gemm_is_short(const mica_gemm_desc *d)
{
    for (int i = 0; i < MICA_MAX_STEPS && d->epilogue[i]; i++) {
        int step = d->epilogue[i];
        bool is_short = step == MICA_STEP_BIAS || step == MICA_STEP_SCALE ||
                        step == MICA_STEP_SHIFT || step == MICA_STEP_ACT + MICA_ACT_RELU ||
                        step == MICA_STEP_ACT + MICA_ACT_IDENTITY;
        if (!is_short) return false;
    }
    return true;
}

bool gemm_has_full_epilogue(const mica_gemm_desc *d)
{
    bool integers = mica_dtype_is_integer(d->a.dtype);
    return d->gate || mica_tensor_given(&d->aux) || mica_tensor_given(&d->amax) ||
           mica_tensor_given(&d->scale_c) || (!integers && mica_dtype_bits(d->c.dtype) == 8);
}

mica_status gemm_refuse_full_epilogue(const mica_gemm_desc *d, mica_why *why)
{
    if (d->gate)
        return mica_refuse(why, "gate=%s is not taken by this engine",
                           d->gate == MICA_GEMM_GATE_PAIRS ? "pairs" : "halves");
    if (mica_tensor_given(&d->aux)) return mica_refuse(why, "aux is not taken by this engine");
    if (mica_tensor_given(&d->amax)) return mica_refuse(why, "amax is not taken by this engine");
    if (mica_tensor_given(&d->scale_c))
        return mica_refuse(why, "scale_c is not taken by this engine");
    if (gemm_has_full_epilogue(d))
        return mica_refuse(why, "c is %s; of floating sums this engine takes no 8-bit c",
                           mica_dtype_name(d->c.dtype));
    return MICA_OK;
}

/* Appends a batch dimension inside the others, or joins it to the last one. */
static void add_batch(gemm_shape *s, gemm_full_epilogue *e, long long dim,
                      const long long stride[5])
{
    int last = s->batch_rank - 1;
    bool joins = last >= 0 && continues(s->a_batch[last], stride[0], dim) &&
                 continues(s->b_batch[last], stride[1], dim) &&
                 continues(s->c_batch[last], stride[2], dim) &&
                 continues(s->r_batch[last], stride[3], dim) &&
                 continues(e->x_batch[last], stride[4], dim);
    int to = joins ? last : s->batch_rank++;
    s->batch[to] = joins ? s->batch[to] * dim : dim;
    s->a_batch[to] = stride[0];
    s->b_batch[to] = stride[1];
    s->c_batch[to] = stride[2];
    s->r_batch[to] = stride[3];
    e->x_batch[to] = stride[4];
}

static bool rows_continue(const gemm_shape *s, const gemm_full_epilogue *e, int i)
{
    return s->b_batch[i] == 0 &&
           (s->m == 1 ||
            (continues(s->a_batch[i], s->a_m, s->m) && continues(s->c_batch[i], s->c_m, s->m) &&
             continues(s->r_batch[i], s->r_m, s->m) && continues(e->x_batch[i], e->x_m, s->m)));
}

/* Items that share b and follow each other in memory are rows of one larger matrix. */
static void fold_into_rows(gemm_shape *s, gemm_full_epilogue *e)
{
    for (int i = s->batch_rank - 1; i >= 0; i--) {
        if (!rows_continue(s, e, i)) continue;
        if (s->m == 1) s->a_m = s->a_batch[i], s->c_m = s->c_batch[i], s->r_m = s->r_batch[i];
        if (s->m == 1) e->x_m = e->x_batch[i];
        s->m *= s->batch[i];
        s->batches /= s->batch[i];
        s->batch_rank--;
        size_t rest = (size_t)(s->batch_rank - i) * sizeof *s->batch;
        memmove(s->batch + i, s->batch + i + 1, rest);
        memmove(s->a_batch + i, s->a_batch + i + 1, rest);
        memmove(s->b_batch + i, s->b_batch + i + 1, rest);
        memmove(s->c_batch + i, s->c_batch + i + 1, rest);
        memmove(s->r_batch + i, s->r_batch + i + 1, rest);
        memmove(e->x_batch + i, e->x_batch + i + 1, rest);
    }
}

/* Where the columns of gates and their partners lie. */
static void place_gates(const mica_gemm_desc *d, gemm_shape *s, gemm_full_epilogue *e)
{
    e->channel_step = 1;
    if (d->gate == MICA_GEMM_GATE_NONE) return;
    bool pairs = d->gate == MICA_GEMM_GATE_PAIRS;
    e->channel_step = pairs ? 2 : 1;
    e->channel_partner = pairs ? 1 : s->n;
    e->partner = e->channel_partner * s->b_n;
    s->b_n *= e->channel_step;
}

void gemm_shape_make_full_epilogue(const mica_gemm_desc *d, gemm_shape *s, gemm_full_epilogue *e)
{
    const mica_tensor *a = &d->a, *b = &d->b, *c = &d->c, *r = &d->residual, *x = &d->aux;
    bool residual = mica_tensor_given(r), aux = mica_tensor_given(x);
    memset(s, 0, sizeof *s);
    memset(e, 0, sizeof *e);
    int rows = c->rank - 2, cols = c->rank - 1;
    s->m = c->dims[rows], s->n = c->dims[cols], s->k = a->dims[a->rank - 1];
    s->a_m = a->strides[a->rank - 2], s->a_k = a->strides[a->rank - 1];
    s->b_k = b->strides[b->rank - 2], s->b_n = b->strides[b->rank - 1];
    s->c_m = c->strides[rows], s->c_n = c->strides[cols];
    if (residual) s->r_m = r->strides[rows], s->r_n = r->strides[cols];
    if (aux) e->x_m = x->strides[rows], e->x_n = x->strides[cols];
    place_gates(d, s, e);
    if (mica_tensor_count(c) == 0) return;
    s->batches = 1;
    for (int i = rows - 1; i >= 0; i--) {
        long long dim = c->dims[rows - 1 - i];
        if (dim == 1) continue;
        s->batches *= dim;
        add_batch(s, e, dim,
                  (long long[5]){gemm_batch_stride(a, i), gemm_batch_stride(b, i),
                                 gemm_batch_stride(c, i), residual ? gemm_batch_stride(r, i) : 0,
                                 aux ? gemm_batch_stride(x, i) : 0});
    }
    bool scales_by_row = mica_tensor_given(&d->scale_a) && gemm_scale_stride(&d->scale_a) != 0;
    if (!scales_by_row) fold_into_rows(s, e);
}

void gemm_shape_make(const mica_gemm_desc *d, gemm_shape *s)
{
    gemm_full_epilogue unused;
    gemm_shape_make_full_epilogue(d, s, &unused);
}

int64_t gemm_map_stride(long long dim, long long stride, long long inner, int bytes)
{
    return dim == 1 ? ceiling(inner * bytes, 16) * 16 : stride * bytes;
}

void gemm_map_batch(const gemm_shape *s, const long long *stride, int bytes,
                    mica_tensor_map_spec *m)
{
    m->rank = 2 + s->batch_rank;
    for (int i = 0; i < s->batch_rank; i++) {
        int to = 1 + s->batch_rank - i; /* fastest last in the shape, first in the map */
        m->dims[to] = stride[i] ? s->batch[i] : 1;
        m->stride_bytes[to] = gemm_map_stride(m->dims[to], stride[i], 16, bytes);
        m->box[to] = 1;
    }
}

gemm_offsets gemm_shape_offsets(const gemm_shape *s, int64_t item)
{
    gemm_offsets o = {0};
    for (int i = s->batch_rank - 1; i >= 0; i--) {
        int64_t at = item % s->batch[i];
        item /= s->batch[i];
        o.a += at * s->a_batch[i];
        o.b += at * s->b_batch[i];
        o.c += at * s->c_batch[i];
        o.r += at * s->r_batch[i];
    }
    return o;
}

gemm_offsets gemm_full_offsets(const gemm_shape *s, const gemm_full_epilogue *e, int64_t item)
{
    gemm_offsets o = gemm_shape_offsets(s, item);
    for (int i = s->batch_rank - 1; i >= 0; i--) {
        o.x += item % s->batch[i] * e->x_batch[i];
        item /= s->batch[i];
    }
    return o;
}
