/* SPDX-License-Identifier: Apache-2.0
 * Sums, products and maxima of chunks, for files that define
 *   real, held     what elements are, and what is computed in: unsigned, where it wraps around
 *   NUMBERS        their member of mica_scan_numbers
 *   LOWEST, IS_NAN(v) */
#include "ops/scan/cpu/scan_cpu.h"
#include "cpu/cpu.h"

#define INLINE __attribute__((always_inline)) static inline

INLINE real nothing(int by)
{
    return by == SCAN_PRODUCT ? 1 : by == SCAN_MAX ? LOWEST : 0;
}

/* b comes behind a: of equals it wins, and NaN over all. */
INLINE real join(int by, real a, real b)
{
    if (by == SCAN_MAX) return b >= a || IS_NAN(b) ? b : a;
    return (real)(by == SCAN_PRODUCT ? (held)a * (held)b : (held)a + (held)b);
}

/* One slice: four at once, of which the next four wait for one operation. */
INLINE void scan_row(int by, bool exclusive, int step, real *x, int64_t n, bool silent, real *state)
{
    real run = *state;
    int64_t i = 0;
    for (; i + 4 <= n; i += 4, x += 4 * step) {
        const real a = x[0], b = x[step], c = x[2 * step], d = x[3 * step];
        const real ab = join(by, a, b), abc = join(by, ab, c), all = join(by, ab, join(by, c, d));
        const real next = join(by, run, all);
        if (!silent) {
            x[0] = exclusive ? run : join(by, run, a);
            x[step] = join(by, run, exclusive ? a : ab);
            x[2 * step] = join(by, run, exclusive ? ab : abc);
            x[3 * step] = exclusive ? join(by, run, abc) : next;
        }
        run = next;
    }
    for (; i < n; i++, x += step) {
        const real next = join(by, run, *x);
        if (!silent) *x = exclusive ? run : next;
        run = next;
    }
    *state = run;
}

/* One slice's maxima: that a later one wins is rare in a row, which a branch foresees. */
INLINE void max_of_row(bool exclusive, int step, const mica_scan_chunk *c, mica_scan_state *state)
{
    real *x = c->a, run = state->a.NUMBERS[0];
    int64_t at = state->index[0];
    const int64_t first = step > 0 ? 0 : c->m - 1;
    for (int64_t k = 0, i = first; k < c->m; k++, i += step) {
        const real v = x[i];
        if (exclusive) {
            x[i] = run;
            if (c->index) c->index[i] = at;
        }
        if (__builtin_expect(v >= run || IS_NAN(v), 0)) run = v, at = c->from + i;
        if (exclusive) continue;
        x[i] = run;
        if (c->index) c->index[i] = at;
    }
    state->a.NUMBERS[0] = run, state->index[0] = at;
}

INLINE void row_of(int by, const mica_scan_step *s, const mica_scan_chunk *c, real *state)
{
    real *x = c->a;
    if (s->reverse && s->exclusive)
        scan_row(by, true, -1, x + c->m - 1, c->m, c->silent, state);
    else if (s->reverse)
        scan_row(by, false, -1, x + c->m - 1, c->m, c->silent, state);
    else if (s->exclusive)
        scan_row(by, true, 1, x, c->m, c->silent, state);
    else
        scan_row(by, false, 1, x, c->m, c->silent, state);
}

static MICA_MEMORY_CLONES void sum_row(const mica_scan_step *s, const mica_scan_chunk *c,
                                       real *state)
{
    row_of(SCAN_SUM, s, c, state);
}

static MICA_MEMORY_CLONES void product_row(const mica_scan_step *s, const mica_scan_chunk *c,
                                           real *state)
{
    row_of(SCAN_PRODUCT, s, c, state);
}

static void max_row(const mica_scan_step *s, const mica_scan_chunk *c, mica_scan_state *state)
{
    const int step = s->reverse ? -1 : 1;
    if (s->exclusive)
        max_of_row(true, step, c, state);
    else
        max_of_row(false, step, c, state);
}

/* Where segments begin. */
static void begin_segments(int by, const uint8_t *heads, int64_t width, mica_scan_state *state)
{
    for (int64_t j = 0; j < width; j++)
        if (heads[j]) state->a.NUMBERS[j] = nothing(by), state->index[j] = -1, state->cut[j] = 1;
}

/* Position after position, of neighbouring slices. */
INLINE void columns_of(int by, const mica_scan_step *s, const mica_scan_chunk *c,
                       mica_scan_state *state)
{
    const int64_t width = c->width;
    real *run = state->a.NUMBERS;
    for (int64_t k = 0; k < c->m; k++) {
        const int64_t i = s->reverse ? c->m - 1 - k : k;
        real *x = (real *)c->a + i * width;
        if (c->heads) begin_segments(by, c->heads + i * width, width, state);
        if (s->exclusive)
            for (int64_t j = 0; j < width; j++) {
                const real before = run[j];
                run[j] = join(by, before, x[j]);
                x[j] = before;
            }
        else
            for (int64_t j = 0; j < width; j++) x[j] = run[j] = join(by, run[j], x[j]);
    }
}

static MICA_MEMORY_CLONES void sum_columns(const mica_scan_step *s, const mica_scan_chunk *c,
                                           mica_scan_state *state)
{
    columns_of(SCAN_SUM, s, c, state);
}

static MICA_MEMORY_CLONES void product_columns(const mica_scan_step *s, const mica_scan_chunk *c,
                                               mica_scan_state *state)
{
    columns_of(SCAN_PRODUCT, s, c, state);
}

static MICA_MEMORY_CLONES void max_columns(const mica_scan_step *s, const mica_scan_chunk *c,
                                           mica_scan_state *state)
{
    columns_of(SCAN_MAX, s, c, state);
}

static void max_with_index(const mica_scan_step *s, const mica_scan_chunk *c,
                           mica_scan_state *state)
{
    const int64_t width = c->width;
    real *run = state->a.NUMBERS;
    for (int64_t k = 0; k < c->m; k++) {
        const int64_t i = s->reverse ? c->m - 1 - k : k;
        real *x = (real *)c->a + i * width;
        int64_t *index = c->index + i * width;
        if (c->heads) begin_segments(SCAN_MAX, c->heads + i * width, width, state);
        for (int64_t j = 0; j < width; j++) {
            const real before = run[j], v = x[j];
            const int64_t index_before = state->index[j];
            const bool wins = v >= before || IS_NAN(v);
            run[j] = wins ? v : before;
            state->index[j] = wins ? c->from + i : index_before;
            x[j] = s->exclusive ? before : run[j];
            index[j] = s->exclusive ? index_before : state->index[j];
        }
    }
}

static void clear(const mica_scan_step *s, mica_scan_state *state, int64_t width)
{
    for (int64_t j = 0; j < width; j++) {
        state->a.NUMBERS[j] = nothing(s->by);
        state->b.NUMBERS[j] = s->by == SCAN_MAPS ? 1 : LOWEST;
        state->index[j] = -1, state->cut[j] = 0;
    }
}

static void simple_chunk(const mica_scan_step *s, const mica_scan_chunk *c, mica_scan_state *state)
{
    const bool row = c->width == 1 && !c->heads;
    if (s->by == SCAN_MAX && row)
        max_row(s, c, state);
    else if (c->index)
        max_with_index(s, c, state);
    else if (s->by == SCAN_MAX)
        max_columns(s, c, state);
    else if (s->by == SCAN_PRODUCT && row)
        product_row(s, c, state->a.NUMBERS);
    else if (s->by == SCAN_PRODUCT)
        product_columns(s, c, state);
    else if (row)
        sum_row(s, c, state->a.NUMBERS);
    else
        sum_columns(s, c, state);
}

/* The index says whether a maximum is of anything. */
static void simple_merge(const mica_scan_step *s, mica_scan_state *to, const mica_scan_state *later,
                         int64_t width)
{
    for (int64_t j = 0; j < width; j++) {
        const real a = later->cut[j] ? nothing(s->by) : to->a.NUMBERS[j], b = later->a.NUMBERS[j];
        const bool later_wins = later->cut[j] || b >= a || IS_NAN(b);
        if (later_wins && (later->cut[j] || later->index[j] >= 0)) to->index[j] = later->index[j];
        to->a.NUMBERS[j] = join(s->by, a, b);
        to->cut[j] |= later->cut[j];
    }
}
