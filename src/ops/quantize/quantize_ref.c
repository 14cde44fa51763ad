/* SPDX-License-Identifier: Apache-2.0
 * The truth of quantize and dequantize, element by element and block by block, from the words of
 * the header; arithmetic is rounded where it says so. */
#include "ops/quantize/quantize.h"
#include "cpu/cpu.h"
#include "ops/random/random_body.h"
#include "ops/random/random.h"

#include <math.h>

typedef struct truth {
    mica_quantize_set set;
    const mica_view *views;
    double global_scale;
    mica_random_stream stream;
} truth;

/* To the arithmetic's type. */
static double rounded(const truth *t, double v)
{
    return t->set.real == MICA_F64 ? v : (double)(float)v;
}

static int64_t at_of(const truth *t, int place, const int64_t *c)
{
    int64_t at = 0;
    for (int d = 0; d < t->set.at[place].rank; d++) at += c[d] * t->set.at[place].strides[d];
    return at;
}

static double get(const truth *t, int place, const int64_t *c)
{
    return mica_get(&t->views[t->set.arg[place]], at_of(t, place, c));
}

static double range_low(int code)
{
    return CODE_LOW(code);
}

/* Of the multiples of the unit around v that away from 0 if the word's upper 31 bits are below
 * 2^31 times the fraction. */
static double by_chance(double v, double unit, const uint32_t *word)
{
    const double below = floor(fabs(v) / unit), fraction = fabs(v) / unit - below;
    const bool up = *word / 2 < floor(fraction * 0x1p31);
    return copysign((below + up) * unit, v);
}

/* Nearest even, or by chance if there is a word, as codes of the type. */
static double code_of(const truth *t, double x, double scale, double zero, const uint32_t *word)
{
    const double top = CODE_TOP(t->set.code), low = range_low(t->set.code);
    double q = x == 0 && scale == 0 ? 0 : rounded(t, x / scale);
    const mica_dtype type = t->set.at[MICA_QUANTIZE_PLACE_CODE].dtype;
    if (!CODE_IS_FLOAT(t->set.code)) {
        if (isnan(q)) q = 0;
        q = fmin(fmax(q, -0x1p20), 0x1p20); /* which is beyond all codes */
        q = (word ? by_chance(q, 1, word) : nearbyint(q)) + zero;
        return fmin(fmax(q, low), top);
    }
    if (isnan(q)) return t->set.code == CODE_E2M1 ? top : q;
    if (word) {
        q = fmin(fmax(q, -top), top);
        const int e = q == 0 ? CODE_LEAST(t->set.code) : ilogb(q);
        const int own = e < CODE_LEAST(t->set.code) ? CODE_LEAST(t->set.code) : e;
        return by_chance(q, ldexp(1, own - CODE_DIGITS(t->set.code)), word);
    }
    return mica_fill_rounded(type, fmin(fmax(q, -top), top));
}

/* ---- scales ---- */

typedef struct ends {
    double amax, low, high;
    bool nan;
} ends;

/* Of the elements of the block with these coordinates. */
static ends look(const truth *t, const int64_t *block)
{
    const mica_quantize_set *s = &t->set;
    const int rank = s->at[0].rank;
    int64_t first[MICA_MAX_RANK], size[MICA_MAX_RANK], count = 1;
    ends e = {0};
    for (int d = 0; d < rank; d++) {
        const int64_t n = s->at[0].dims[d];
        first[d] = block[d] * s->block[d];
        size[d] = n - first[d] < s->block[d] ? n - first[d] : s->block[d];
        count *= size[d];
    }
    for (int64_t i = 0; i < count; i++) {
        int64_t c[MICA_MAX_RANK], rest = i;
        for (int d = rank - 1; d >= 0; d--) c[d] = first[d] + rest % size[d], rest /= size[d];
        const double v = get(t, MICA_QUANTIZE_PLACE_VALUE, c);
        e.nan |= isnan(v);
        e.amax = fmax(e.amax, fabs(v));
        e.low = fmin(e.low, v), e.high = fmax(e.high, v);
    }
    return e;
}

static void make_scale(const truth *t, const int64_t *block)
{
    const mica_quantize_set *s = &t->set;
    const mica_view *scale = &t->views[MICA_QUANTIZE_SCALE];
    const mica_dtype type = s->at[MICA_QUANTIZE_PLACE_SCALE].dtype;
    const ends e = look(t, block);
    const double top = CODE_TOP(s->code), low = range_low(s->code);
    double v;
    if (s->pass == MICA_QUANTIZE_MINMAX)
        v = e.nan ? NAN : rounded(t, rounded(t, e.high - e.low) / (top - low));
    else if (type == MICA_E8M0)
        v = e.nan
                ? NAN
                : mica_quantize_power(rounded(t, e.amax / t->global_scale), CODE_EXPONENT(s->code));
    else
        v = e.nan ? NAN : rounded(t, rounded(t, e.amax / top) / t->global_scale);
    v = mica_fill_rounded(type, v);
    mica_put(scale, at_of(t, MICA_QUANTIZE_PLACE_SCALE, block), v, fabs(v));
    if (s->pass != MICA_QUANTIZE_MINMAX) return;
    const double zero = e.nan ? low : code_of(t, -e.low, v, low, NULL);
    mica_put(&t->views[MICA_QUANTIZE_ZERO], at_of(t, MICA_QUANTIZE_PLACE_ZERO, block), zero,
             fabs(zero));
}

static void make_scales(const truth *t)
{
    const int rank = t->set.at[0].rank;
    int64_t count = 1;
    for (int d = 0; d < rank; d++) count *= t->set.blocks[d];
    for (int64_t i = 0; i < count; i++) {
        int64_t c[MICA_MAX_RANK], rest = i;
        for (int d = rank - 1; d >= 0; d--)
            c[d] = rest % t->set.blocks[d], rest /= t->set.blocks[d];
        make_scale(t, c);
    }
}

/* ---- elements ---- */

static void element(const truth *t, int64_t i)
{
    const mica_quantize_set *s = &t->set;
    int64_t c[MICA_MAX_RANK], block[MICA_MAX_RANK], rest = i;
    for (int d = s->at[0].rank - 1; d >= 0; d--) {
        c[d] = rest % s->at[0].dims[d], rest /= s->at[0].dims[d];
        block[d] = c[d] / s->block[d];
    }
    double scale = get(t, MICA_QUANTIZE_PLACE_SCALE, block);
    if (s->global_arg >= 0) scale = rounded(t, scale * t->global_scale);
    const double zero =
        s->arg[MICA_QUANTIZE_PLACE_ZERO] < 0 ? 0 : get(t, MICA_QUANTIZE_PLACE_ZERO, block);
    const mica_view *y = &t->views[MICA_QUANTIZE_Y];
    if (s->quantizes) {
        uint32_t words[4], *word = NULL;
        if (s->rng_arg >= 0) {
            const uint64_t index =
                (uint64_t)(s->first_index + at_of(t, MICA_QUANTIZE_PLACE_INDEX, c));
            random_words(t->stream.key, t->stream.offset, index / 4, 0, words);
            word = &words[index % 4];
        }
        const double q = code_of(t, get(t, MICA_QUANTIZE_PLACE_VALUE, c), scale, zero, word);
        mica_put(y, at_of(t, MICA_QUANTIZE_PLACE_CODE, c), q, fabs(q));
    } else {
        const double v = get(t, MICA_QUANTIZE_PLACE_CODE, c) - zero;
        const double w = rounded(t, rounded(t, v) * scale);
        mica_put(y, at_of(t, MICA_QUANTIZE_PLACE_VALUE, c), w, fabs(w));
    }
}

static void reference(const mica_op *op, const void *desc, const mica_view *views)
{
    truth t = {.views = views, .global_scale = 1};
    mica_quantize_set_make(op, desc, views, &t.set);
    if (t.set.global_arg >= 0) t.global_scale = mica_get(&views[t.set.global_arg], 0);
    if (t.set.rng_arg >= 0)
        t.stream = mica_random_stream_of(views[t.set.rng_arg].data, t.set.rng_stride);
    const int64_t count = mica_tensor_count(&t.set.at[MICA_QUANTIZE_PLACE_CODE]);
    if (count == 0) return;
    if (t.set.pass != MICA_QUANTIZE_GIVEN) make_scales(&t);
    /* Two elements of four bits may lie in one byte. */
    const bool apart = mica_dtype_bits(t.set.at[MICA_QUANTIZE_PLACE_CODE].dtype) >= 8;
#pragma omp parallel for num_threads(apart ? mica_cpu_threads() : 1) schedule(static)
    for (int64_t i = 0; i < count; i++) element(&t, i);
}

void mica_quantize_reference(const void *desc, const mica_view *views, const double *scalars)
{
    (void)scalars;
    reference(&mica_op_quantize, desc, views);
}

void mica_dequantize_reference(const void *desc, const mica_view *views, const double *scalars)
{
    (void)scalars;
    reference(&mica_op_dequantize, desc, views);
}
