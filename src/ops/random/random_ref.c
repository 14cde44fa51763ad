/* SPDX-License-Identifier: Apache-2.0
 * Random numbers: what operations that draw them share, and the truth, element by element. */
#include "ops/random/random.h"
#include "base/random.h"
#include "cpu/cpu.h"
#include "cpu/scratch.h"
#include "ops/random/random_body.h"

#include <math.h>
#include <string.h>

const mica_engine *const mica_random_engines[] = {&mica_random_cpu, &mica_engine_ref,
                                                  &mica_random_cuda, NULL};

/* ---- tables ---- */

void mica_random_infer_rng(mica_tensor *rng)
{
    if (rng->rank || rng->dtype) return;
    *rng = mica_tensor_packed(MICA_S64, 1, (const int64_t[]){2});
}

mica_status mica_random_check_rng(const mica_tensor *rng, mica_why *why)
{
    if (!mica_tensor_given(rng) || (rng->rank == 1 && rng->dims[0] == 2)) return MICA_OK;
    return mica_invalid(why,
                        "rng has %d dimensions and %lld elements, it must have 2: {seed, offset}",
                        rng->rank, (long long)mica_tensor_count(rng));
}

mica_status mica_random_check_share(double p, mica_why *why)
{
    if (p >= 0 && p <= 1) return MICA_OK;
    return mica_invalid(why, "p is %g, it must be at least 0 and at most 1", p);
}

mica_tensor mica_random_index(const mica_tensor *tensor, const int64_t *steps)
{
    mica_tensor t = *tensor;
    bool given = false;
    for (int d = 0; d < t.rank; d++) given |= steps[d] != 0;
    memset(t.strides, 0, sizeof t.strides);
    mica_tensor_default_strides(&t);
    if (given) memcpy(t.strides, steps, sizeof t.strides);
    return t;
}

mica_status mica_random_check_index(const mica_tensor *tensor, int64_t first, const int64_t *steps,
                                    mica_why *why)
{
    const mica_tensor t = mica_random_index(tensor, steps);
    double low = (double)first, high = low;
    for (int d = 0; d < MICA_MAX_RANK; d++) {
        if (d >= t.rank && steps[d])
            return mica_invalid(why, "steps[%d] is %lld, there are %d dimensions", d,
                                (long long)steps[d], t.rank);
        if (d >= t.rank || t.dims[d] < 2) continue;
        const double reach = (double)t.strides[d] * (double)(t.dims[d] - 1);
        *(reach < 0 ? &low : &high) += reach;
    }
    if (low >= 0 && high < 0x1p62) return MICA_OK;
    return mica_invalid(why,
                        "indices reach from %.17g to %.17g, they must be at least 0 and below 2^62",
                        low, high);
}

bool mica_random_fill_rng(mica_tensor rng, uint64_t seed, double *values)
{
    if (!mica_tensor_given(&rng)) return false;
    values[0] = (double)(mica_random_bits(seed, 0) >> 12);
    values[1] = (double)(mica_random_bits(seed, 1) >> 32);
    return true;
}

/* ---- what the engines get ---- */

void mica_random_set_make(const mica_op *op, const void *desc, const mica_view *views,
                          mica_random_set *set)
{
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    char *viewed = mica_scratch_take(MICA_MAX_DESC);
    memcpy(viewed, desc, op->desc_size);
    for (int i = 0; views && i < op->arg_count; i++)
        if (views[i].data)
            memcpy(viewed + op->args[i].tensor + offsetof(mica_tensor, strides), views[i].t.strides,
                   sizeof views[i].t.strides);
    memset(set, 0, sizeof *set);
    op->random(viewed, set);
    const mica_tensor *out = &set->at[MICA_RANDOM_PLACE_OUT];
    set->bytes = mica_dtype_bits(out->dtype) / 8;
    const double unit = mica_dtype_unit(out->dtype);
    set->digits = unit > 0x1p-24 ? -ilogb(unit) : 24;
    set->per_block = set->rng < 0 ? 1
                     : set->dropout
                         ? 4
                         : random_per_block(set->draw, set->bytes, out->dtype == MICA_F64);
}

mica_random_stream mica_random_stream_of(const void *rng, int64_t stride)
{
    if (!rng) return (mica_random_stream){0};
    const uint64_t *numbers = rng;
    return (mica_random_stream){
        {(uint32_t)numbers[0], (uint32_t)(numbers[0] >> 32)}, (uint32_t)numbers[stride], false};
}

void mica_random_layout(const mica_random_set *set, mica_layout *layout)
{
    mica_tensor tensors[MICA_RANDOM_PLACES];
    const mica_tensor *list[MICA_RANDOM_PLACES];
    for (int k = 0; k < MICA_RANDOM_PLACES; k++) {
        tensors[k] = set->at[k];
        if (k != MICA_RANDOM_PLACE_INDEX && !mica_tensor_given(&set->at[k])) {
            tensors[k] = set->at[MICA_RANDOM_PLACE_INDEX];
            memset(tensors[k].strides, 0, sizeof tensors[k].strides);
        }
        list[k] = &tensors[k];
    }
    mica_layout_make(layout, list, MICA_RANDOM_PLACES);
    if (layout->rank == 0) layout->rank = 1, layout->dims[0] = layout->count;
    /* Bits are those of neighbours: in rows of one element, which the layout leaves out, each has a
     * byte of its own. */
    const bool bits = mica_tensor_given(&set->at[MICA_RANDOM_PLACE_BITS]);
    if (!bits || layout->strides[MICA_RANDOM_PLACE_BITS][layout->rank - 1] == 1 ||
        layout->dims[layout->rank - 1] == 1 || layout->count == 0)
        return;
    const int last = layout->rank++;
    layout->dims[last] = 1;
    for (int k = 0; k < MICA_RANDOM_PLACES; k++) layout->strides[k][last] = 0;
}

/* ---- the truth ---- */

typedef struct truth {
    mica_random_set set;
    mica_random_stream stream;
    const mica_view *views;
} truth;

static const mica_view *view_at(const truth *t, int place)
{
    return mica_tensor_given(&t->set.at[place]) ? &t->views[t->set.arg[place]] : NULL;
}

/* Words of element i, in logical order; which of its block it is. */
static int draw(const truth *t, int64_t i, uint64_t *block, uint32_t word[4])
{
    const uint64_t index =
        (uint64_t)(t->set.numbers.first + mica_offset(&t->set.at[MICA_RANDOM_PLACE_INDEX], i));
    const uint64_t per = (uint64_t)t->set.per_block;
    *block = index / per;
    if (t->set.rows)
        random_row_words(t->stream.key, t->stream.offset, *block, word);
    else
        random_words(t->stream.key, t->stream.offset, *block, 0, word);
    return (int)(index % per);
}

static void draw_element(const truth *t, int64_t i)
{
    const mica_random_set *s = &t->set;
    const mica_view *to = view_at(t, MICA_RANDOM_PLACE_OUT);
    const int64_t at = mica_offset(&s->at[MICA_RANDOM_PLACE_OUT], i);
    const mica_dtype type = s->at[MICA_RANDOM_PLACE_OUT].dtype;
    uint64_t block;
    uint32_t word[4];
    const int lane = draw(t, i, &block, word);
    if (s->real != MICA_S64) {
        const double v = s->real == MICA_F64
                             ? random_f64(s->draw, type == MICA_F64, &s->numbers, lane, word)
                             : (double)random_f32(s->draw, s->digits, &s->numbers, lane, word);
        mica_put(to, at, v, fabs(v));
        return;
    }
    int64_t v = random_s64(s->draw, s->bytes, &s->numbers, t->stream.key, t->stream.offset, block,
                           lane, word);
    if (s->bytes == 8 && !to->mag) {
        ((int64_t *)to->data)[at] = v;
        return;
    }
    if (type == MICA_S8) v = (int8_t)v;
    if (type == MICA_S32) v = (int32_t)v;
    mica_put(to, at, (double)v, fabs((double)v));
}

static bool is_kept(const truth *t, int64_t i)
{
    const mica_random_set *s = &t->set;
    const mica_view *mask = view_at(t, MICA_RANDOM_PLACE_MASK),
                    *bits = view_at(t, MICA_RANDOM_PLACE_BITS);
    if (s->rng < 0 && mask)
        return mica_get(mask, mica_offset(&s->at[MICA_RANDOM_PLACE_MASK], i)) != 0;
    if (s->rng < 0) {
        const int64_t at = mica_offset(&s->at[MICA_RANDOM_PLACE_BITS], i);
        return (int)mica_get(bits, at >> 3) >> (at & 7) & 1;
    }
    uint64_t block;
    uint32_t word[4];
    const int lane = draw(t, i, &block, word);
    return word[lane] >= s->numbers.threshold;
}

static void drop_element(const truth *t, int64_t i)
{
    const mica_random_set *s = &t->set;
    const mica_view *mask = view_at(t, MICA_RANDOM_PLACE_MASK),
                    *add = view_at(t, MICA_RANDOM_PLACE_ADD);
    const bool kept = is_kept(t, i);
    const double scale = s->real == MICA_F64 ? s->numbers.scale : (float)s->numbers.scale;
    const double from =
        mica_get(view_at(t, MICA_RANDOM_PLACE_IN), mica_offset(&s->at[MICA_RANDOM_PLACE_IN], i));
    const double v = kept ? from * scale : 0;
    const double more = add ? mica_get(add, mica_offset(&s->at[MICA_RANDOM_PLACE_ADD], i)) : 0;
    mica_put(view_at(t, MICA_RANDOM_PLACE_OUT), mica_offset(&s->at[MICA_RANDOM_PLACE_OUT], i),
             add ? v + more : v, fabs(v) + fabs(more));
    if (s->saves && mask)
        mica_put(mask, mica_offset(&s->at[MICA_RANDOM_PLACE_MASK], i), kept, kept);
}

/* One byte of a row's bits. */
static void save_bits(const truth *t, int64_t i, int64_t columns)
{
    const mica_random_set *s = &t->set;
    int byte = 0;
    for (int64_t c = 0; c < 8 && c < columns - i % columns; c++) byte |= is_kept(t, i + c) << c;
    mica_put(view_at(t, MICA_RANDOM_PLACE_BITS),
             mica_offset(&s->at[MICA_RANDOM_PLACE_BITS], i) >> 3, byte, byte);
}

void mica_random_reference(const mica_op *op, const void *desc, const mica_view *views)
{
    truth t = {.views = views};
    mica_random_set_make(op, desc, views, &t.set);
    const mica_tensor *out = &t.set.at[MICA_RANDOM_PLACE_OUT];
    if (t.set.rng >= 0) t.stream = mica_random_stream_of(views[t.set.rng].data, t.set.rng_stride);
    const int64_t count = mica_tensor_count(out);
    const int64_t columns = out->rank ? out->dims[out->rank - 1] : 1;
    const bool bits = t.set.saves && view_at(&t, MICA_RANDOM_PLACE_BITS);
#pragma omp parallel for num_threads(mica_cpu_threads_for((double)count * 64))
    for (int64_t i = 0; i < count; i++) {
        if (t.set.dropout)
            drop_element(&t, i);
        else
            draw_element(&t, i);
        if (bits && i % columns % 8 == 0) save_bits(&t, i, columns);
    }
}
