/* SPDX-License-Identifier: Apache-2.0
 * Sets of tensors and their cut into boxes; what blocks hold. */
#include "ops/quantize/quantize.h"
#include "mica/reduce.h"
#include "cpu/scratch.h"
#include "ops/random/random.h"

#include <math.h>
#include <string.h>

double mica_quantize_top(int code)
{
    return CODE_TOP(code);
}

double mica_quantize_power(double v, int exponent)
{
    int64_t bits;
    memcpy(&bits, &v, sizeof bits);
    const int e = code_power(bits, exponent);
    return e > 127 ? NAN : ldexp(1, e);
}

int mica_quantize_code(mica_dtype d)
{
    static const int codes[MICA_DTYPE_COUNT] = {
        [MICA_E4M3] = CODE_E4M3, [MICA_E5M2] = CODE_E5M2, [MICA_E2M1] = CODE_E2M1,
        [MICA_S8] = CODE_S8,     [MICA_U8] = CODE_U8,     [MICA_S4] = CODE_S4,
        [MICA_U4] = CODE_U4,     [MICA_S32] = CODE_S32};
    return codes[d];
}

/* With the rank of the elements; of one element, or none, strides 0. */
mica_tensor mica_quantize_spread(const mica_tensor *t, int rank)
{
    mica_tensor r = {.dtype = t->dtype, .rank = rank};
    for (int d = 0; d < rank; d++) {
        const bool own = t->dtype && t->rank == rank;
        r.dims[d] = own ? t->dims[d] : 1;
        r.strides[d] = own && t->dims[d] > 1 ? t->strides[d] : 0;
    }
    return r;
}

void mica_quantize_set_make(const mica_op *op, const void *desc, const mica_view *views,
                            mica_quantize_set *set)
{
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    char *viewed = mica_scratch_take(MICA_MAX_DESC);
    memcpy(viewed, desc, op->desc_size);
    for (int i = 0; views && i < op->arg_count; i++)
        if (views[i].data)
            memcpy(viewed + op->args[i].tensor + offsetof(mica_tensor, strides), views[i].t.strides,
                   sizeof views[i].t.strides);
    memset(set, 0, sizeof *set);
    set->quantizes = op == &mica_op_quantize;
    const mica_quantize_desc *q = (const void *)viewed;
    const mica_dequantize_desc *w = (const void *)viewed;
    const mica_tensor *x = mica_op_tensor(op, viewed, MICA_QUANTIZE_X),
                      *y = mica_op_tensor(op, viewed, MICA_QUANTIZE_Y),
                      *scale = mica_op_tensor(op, viewed, MICA_QUANTIZE_SCALE),
                      *zero = mica_op_tensor(op, viewed, MICA_QUANTIZE_ZERO);
    const int64_t *block = set->quantizes ? q->block : w->block;
    set->pass = set->quantizes ? q->pass : MICA_QUANTIZE_GIVEN;
    set->at[MICA_QUANTIZE_PLACE_CODE] = set->quantizes ? *y : *x;
    set->at[MICA_QUANTIZE_PLACE_VALUE] = set->quantizes ? *x : *y;
    set->at[MICA_QUANTIZE_PLACE_SCALE] = mica_quantize_spread(scale, x->rank);
    set->at[MICA_QUANTIZE_PLACE_ZERO] = mica_quantize_spread(zero, x->rank);
    set->rng_arg = -1;
    set->at[MICA_QUANTIZE_PLACE_INDEX] = mica_quantize_spread(&(mica_tensor){0}, x->rank);
    set->arg[MICA_QUANTIZE_PLACE_INDEX] = -1;
    if (set->quantizes && q->rounding == MICA_QUANTIZE_STOCHASTIC) {
        set->at[MICA_QUANTIZE_PLACE_INDEX] = mica_random_index(x, q->steps);
        set->rng_arg = MICA_QUANTIZE_RNG;
        set->rng_stride = q->rng.strides[0];
        set->first_index = q->first;
    }
    set->arg[MICA_QUANTIZE_PLACE_CODE] = set->quantizes ? MICA_QUANTIZE_Y : MICA_QUANTIZE_X;
    set->arg[MICA_QUANTIZE_PLACE_VALUE] = set->quantizes ? MICA_QUANTIZE_X : MICA_QUANTIZE_Y;
    set->arg[MICA_QUANTIZE_PLACE_SCALE] = MICA_QUANTIZE_SCALE;
    set->arg[MICA_QUANTIZE_PLACE_ZERO] = zero->dtype ? MICA_QUANTIZE_ZERO : -1;
    set->global_arg = mica_op_tensor(op, viewed, MICA_QUANTIZE_GLOBAL_SCALE)->dtype
                          ? MICA_QUANTIZE_GLOBAL_SCALE
                          : -1;
    for (int d = 0; d < x->rank; d++) {
        set->block[d] = block[d] ? block[d] : x->dims[d];
        set->blocks[d] = x->dims[d] ? (x->dims[d] - 1) / set->block[d] + 1 : 0;
    }
    const mica_dtype value = set->at[MICA_QUANTIZE_PLACE_VALUE].dtype,
                     code = set->at[MICA_QUANTIZE_PLACE_CODE].dtype;
    set->real = value == MICA_F64 || code == MICA_S32 ? MICA_F64 : MICA_F32;
    set->code = mica_quantize_code(code);
}

/* ---- boxes ---- */

static mica_status push(mica_quantize_box *b, int64_t n, const int64_t *strides, int64_t blocks,
                        bool inner, mica_why *why)
{
    if (n == 1) return MICA_OK;
    const int r = b->at[0].rank;
    if (r == MICA_MAX_RANK)
        return mica_invalid(why, "blocks of more than %d dimensions, those within a block included",
                            MICA_MAX_RANK);
    for (int k = 0; k < MICA_QUANTIZE_PLACES; k++) {
        b->at[k].dims[r] = n;
        b->at[k].strides[r] = strides[k];
        b->at[k].rank = r + 1;
    }
    b->block_strides[r] = blocks;
    b->inner |= (unsigned)inner << r;
    return MICA_OK;
}

/* Rows, and in them groups of neighbours with one scale. */
static void merge(mica_quantize_box *b)
{
    const mica_tensor *list[MICA_QUANTIZE_PLACES];
    mica_layout *l = &b->layout;
    for (int k = 0; k < MICA_QUANTIZE_PLACES; k++) list[k] = &b->at[k];
    mica_layout_make(l, list, MICA_QUANTIZE_PLACES);
    if (l->rank == 0) l->rank = 1, l->dims[0] = 1;
    long long *code = l->strides[MICA_QUANTIZE_PLACE_CODE],
              *value = l->strides[MICA_QUANTIZE_PLACE_VALUE],
              *scale = l->strides[MICA_QUANTIZE_PLACE_SCALE],
              *zero = l->strides[MICA_QUANTIZE_PLACE_ZERO],
              *index = l->strides[MICA_QUANTIZE_PLACE_INDEX];
    int last = l->rank - 1;
    b->group = l->dims[last];
    if (scale[last] || zero[last]) {
        b->group = 1;
    } else if (last && code[last - 1] == l->dims[last] * code[last] &&
               value[last - 1] == l->dims[last] * value[last] &&
               index[last - 1] == l->dims[last] * index[last]) {
        l->dims[last - 1] *= l->dims[last];
        code[last - 1] = code[last], value[last - 1] = value[last], index[last - 1] = index[last];
        last = --l->rank - 1;
    }
    b->scale_step = scale[last], b->zero_step = zero[last];
    scale[last] = zero[last] = 0;
}

mica_status mica_quantize_cut(const mica_quantize_set *set, mica_quantize_box *boxes, int *count,
                              mica_why *why)
{
    const int rank = set->at[0].rank;
    int ragged[MICA_MAX_RANK], n = 0;
    *count = 0;
    if (mica_tensor_count(&set->at[MICA_QUANTIZE_PLACE_CODE]) == 0) return MICA_OK;
    for (int d = 0; d < rank; d++)
        if (set->at[0].dims[d] % set->block[d]) ragged[n++] = d;
    if (n > MICA_QUANTIZE_RAGGED)
        return mica_invalid(why, "%d dimensions end in shorter blocks, at most %d may", n,
                            MICA_QUANTIZE_RAGGED);
    for (unsigned mask = 0; mask < 1u << n; mask++) {
        mica_quantize_box *b = &boxes[(*count)++];
        unsigned tails = 0;
        memset(b, 0, sizeof *b);
        for (int i = 0; i < n; i++) tails |= (mask >> i & 1) << ragged[i];
        int64_t packed = 1, steps[MICA_MAX_RANK];
        for (int d = rank - 1; d >= 0; d--) steps[d] = packed, packed *= set->blocks[d];
        for (int d = 0; d < rank; d++) {
            const int64_t size = set->at[0].dims[d], block = set->block[d];
            const bool tail = tails >> d & 1;
            const int64_t before = tail ? size / block : 0;
            const int64_t length = tail ? size % block : block;
            int64_t outer[MICA_QUANTIZE_PLACES], inner[MICA_QUANTIZE_PLACES];
            for (int k = 0; k < MICA_QUANTIZE_PLACES; k++) {
                const bool of_element = k <= MICA_QUANTIZE_PLACE_INDEX;
                const int64_t stride = set->at[k].strides[d];
                outer[k] = of_element ? block * stride : stride;
                inner[k] = of_element ? stride : 0;
                b->first[k] += before * outer[k];
            }
            b->block_at += before * steps[d];
            MICA_TRY(push(b, tail ? 1 : size / block, outer, steps[d], false, why));
            MICA_TRY(push(b, length, inner, 0, true, why));
        }
        for (int k = 0; k < MICA_QUANTIZE_PLACES; k++) b->at[k].dtype = set->at[k].dtype;
        merge(b);
    }
    return MICA_OK;
}

void mica_quantize_contract(const void *desc, const mica_config *config, mica_contract *contract)
{
    (void)desc, (void)config;
    contract->unit = 0x1p-53;
    contract->n_seq = 0;
}

void mica_quantize_block_layout(const mica_quantize_set *set, mica_layout *layout)
{
    mica_tensor packed = {.dtype = set->real, .rank = set->at[0].rank};
    memcpy(packed.dims, set->blocks, sizeof packed.dims);
    mica_tensor_default_strides(&packed);
    mica_tensor scale = set->at[MICA_QUANTIZE_PLACE_SCALE],
                zero = set->at[MICA_QUANTIZE_PLACE_ZERO];
    memcpy(scale.dims, packed.dims, sizeof packed.dims);
    memcpy(zero.dims, packed.dims, sizeof packed.dims);
    const mica_tensor *list[] = {&packed, &scale, &zero};
    mica_layout_make(layout, list, 3);
    if (layout->rank == 0) layout->rank = 1, layout->dims[0] = layout->count;
}

/* ---- what blocks hold ---- */

static mica_status add_child(mica_plan *plan, const mica_quantize_set *set,
                             const mica_quantize_box *box, mica_reduce_kind kind, mica_plan **child,
                             size_t *at)
{
    mica_reduce_desc d = {.kind = kind, .x = box->at[MICA_QUANTIZE_PLACE_VALUE]};
    int named = 0;
    d.y.dtype = set->real;
    for (int i = 0; i < d.x.rank; i++) {
        if (box->inner >> i & 1) {
            d.axes[named++] = MICA_REDUCE_AXIS(i);
            continue;
        }
        d.y.dims[d.y.rank] = d.x.dims[i];
        d.y.strides[d.y.rank++] = box->block_strides[i];
    }
    if (!named) { /* blocks of one element: a dimension of size 1 is reduced */
        d.x.dims[d.x.rank] = 1;
        d.x.strides[d.x.rank] = 1;
        d.axes[0] = MICA_REDUCE_AXIS(d.x.rank);
        d.x.rank++;
    }
    return mica_plan_child_create(plan, "reduce", &d, sizeof d, NULL, child, at);
}

mica_status mica_quantize_extremes_build(mica_plan *plan, const mica_quantize_set *set,
                                         const mica_quantize_box *boxes, int count,
                                         mica_quantize_extremes *e)
{
    const bool ends = set->pass == MICA_QUANTIZE_MINMAX;
    int64_t blocks = 1;
    for (int d = 0; d < set->at[0].rank; d++) blocks *= set->blocks[d];
    *e = (mica_quantize_extremes){.kinds = ends ? 2 : 1, .boxes = count};
    e->real_bytes = mica_dtype_bits(set->real) / 8;
    e->value_bytes = mica_dtype_bits(set->at[MICA_QUANTIZE_PLACE_VALUE].dtype) / 8;
    for (int k = 0; k < e->kinds; k++) {
        const mica_reduce_kind kind = !ends ? MICA_REDUCE_KIND_AMAX
                                      : k   ? MICA_REDUCE_KIND_MIN
                                            : MICA_REDUCE_KIND_MAX;
        MICA_TRY(mica_book(plan, k ? "least" : "greatest", (size_t)blocks * (size_t)e->real_bytes,
                           &e->buffer[k]));
        for (int b = 0; b < count; b++)
            MICA_TRY(add_child(plan, set, &boxes[b], kind, &e->plans[k][b], &e->at[k][b]));
    }
    for (int b = 0; b < count; b++) {
        e->first_value[b] = boxes[b].first[MICA_QUANTIZE_PLACE_VALUE];
        e->first_block[b] = boxes[b].block_at;
    }
    return MICA_OK;
}

mica_status mica_quantize_extremes_run(const mica_quantize_extremes *e, const mica_run *run)
{
    for (int k = 0; k < e->kinds; k++)
        for (int b = 0; b < e->boxes; b++) {
            mica_run child = {.workspace = mica_at(run, e->at[k][b]), .stream = run->stream};
            child.args[MICA_REDUCE_X] =
                (char *)run->args[MICA_QUANTIZE_X] + e->first_value[b] * e->value_bytes;
            child.args[MICA_REDUCE_Y] =
                (char *)mica_at(run, e->buffer[k]) + e->first_block[b] * e->real_bytes;
            MICA_TRY(mica_plan_child_run(e->plans[k][b], &child));
        }
    return MICA_OK;
}
