/* SPDX-License-Identifier: Apache-2.0
 * Test data: positions, lengths, pages, frequencies. */
#include "ops/rope/rope.h"
#include "base/random.h"

#include <math.h>

static double uniform_to(double n, uint64_t seed, int64_t i)
{
    return floor(mica_random_uniform(seed, (uint64_t)i) * n);
}

/* Of a table rows of it, with EXTREME also some outside; else numbers small and large. */
static void fill_positions(const rope_angles *a, const mica_tensor *t, mica_fill fill,
                           uint64_t seed, double *values)
{
    static const double extreme[] = {-1,      0, 1, -1048577, 1 << 20, 2147483647.0, -2147483647.0,
                                     12345678};
    int64_t count = mica_tensor_count(t);
    bool table = mica_tensor_given(a->cos);
    double most = fill == MICA_FILL_RANGE       ? (t->dtype == MICA_S64 ? 0x1p40 : 0x1p31 - 0x1p20)
                  : fill == MICA_FILL_SAME_SIGN ? 4096
                  : fill == MICA_FILL_EXACT     ? 100
                                                : 0x1p21;
    if (table) most = (double)a->cos->dims[0];
    for (int64_t i = 0; i < count; i++) {
        values[i] = uniform_to(most, seed, i);
        uint64_t bits = mica_random_bits(seed ^ 0xb, (uint64_t)i);
        if (fill != MICA_FILL_EXTREME) continue;
        if (!table) values[i] = extreme[bits % 8];
        if (table && bits % 4 == 0) values[i] = bits & 16 ? -3 : most + 5;
    }
}

static void fill_frequencies(int64_t count, mica_fill fill, uint64_t seed, double *values)
{
    static const double extreme[] = {1, 0, -0.5, 0x1p-100, 3.75, 0x1p-20, 100, 0x1p-149};
    for (int64_t i = 0; i < count; i++) {
        double u = mica_random_uniform(seed, (uint64_t)i);
        values[i] = fill == MICA_FILL_EXTREME ? extreme[mica_random_bits(seed, (uint64_t)i) % 8]
                                              : exp2(-14 * u);
    }
}

/* Some sequences are empty, some have one row; with EXTREME the first and last rows are nobody's.
 */
static void fill_offsets(const mica_tensor *t, int64_t rows, mica_fill fill, uint64_t seed,
                         double *values)
{
    int64_t n = t->dims[0] - 1, first = fill == MICA_FILL_EXTREME ? rows / 16 : 0;
    int64_t last = rows - first, at = first;
    for (int64_t i = 0; i <= n; i++) {
        double share = (double)i + 0.5 * mica_random_uniform(seed, (uint64_t)i);
        int64_t end = first + (int64_t)((double)(last - first) * share / (double)(n ? n : 1));
        if (i % 4 == 2) end = at;
        if (i % 4 == 3) end = at + 1;
        if (end > last || i == n) end = last;
        if (end < at || i == 0) end = at;
        values[i] = (double)(at = end);
    }
}

static void round_to_type(const mica_tensor *t, double *values)
{
    mica_load_fn load = mica_dtype_load(t->dtype);
    mica_store_fn store = mica_dtype_store(t->dtype);
    int64_t count = mica_tensor_count(t);
    for (int64_t i = 0; i < count; i++) {
        char element[16];
        store(element, 0, values[i]);
        values[i] = load(element, 0);
    }
}

bool rope_fill(const void *desc, const double *scalars, int arg, mica_fill fill, uint64_t seed,
               double *values)
{
    (void)scalars;
    const mica_rope_desc *d = desc;
    const mica_tensor *t = mica_op_tensor(&mica_op_rope, desc, arg);
    rope_angles a;
    rope_angles_of(d, &a);
    seed = mica_random_bits(seed, (uint64_t)arg + 201);
    switch (arg) {
    case MICA_ROPE_POSITIONS:
    case MICA_ROPE_START:
        fill_positions(&a, t, fill, seed, values);
        break;
    case MICA_ROPE_CU:
        fill_offsets(t, a.rows, fill, seed, values);
        break;
    case MICA_ROPE_INV_FREQ:
        fill_frequencies(mica_tensor_count(t), fill, seed, values);
        break;
    default:
        return false;
    }
    round_to_type(t, values);
    return true;
}

/* ---- kv_append ---- */

/* Most rows find a place; some reach behind the end, and with EXTREME some begin before 0. */
static void fill_lengths(const kv_shape *s, int64_t count, mica_fill fill, uint64_t seed,
                         double *values)
{
    double most = (double)s->most, rows = (double)s->angles.rows;
    for (int64_t i = 0; i < count; i++) {
        double room = most - rows;
        values[i] = room > 0 ? uniform_to(room + 1, seed, i) : 0;
        if (i % 4 == 3) values[i] = fmax(0, most - floor(rows / 2));
        if (fill != MICA_FILL_EXTREME) continue;
        if (i % 4 == 1) values[i] = i % 8 == 1 ? -1 : most;
        if (i % 8 == 6) values[i] = i % 16 == 6 ? 2147483647.0 : -2147483648.0;
    }
}

static void fill_counts(const kv_shape *s, int64_t count, uint64_t seed, double *values)
{
    double rows = (double)s->angles.rows;
    for (int64_t i = 0; i < count; i++)
        values[i] = i % 3 == 0 ? rows : i % 3 == 1 ? uniform_to(rows + 1, seed, i) : rows + 7;
}

static int64_t common_divisor(int64_t a, int64_t b)
{
    while (b) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* No page stands twice; where the pool is short, or with EXTREME, some are absent. */
static void fill_pages(const kv_shape *s, int64_t count, mica_fill fill, uint64_t seed,
                       double *values)
{
    int64_t pool = s->pool, step = pool / 2 + 1;
    while (pool && common_divisor(step, pool) != 1) step++;
    for (int64_t i = 0; i < count; i++) {
        values[i] = i < pool ? (double)(i * step % pool) : (double)(i % 2 ? -1 : pool);
        bool absent = mica_random_bits(seed, (uint64_t)i) % 8 == 0;
        if (fill == MICA_FILL_EXTREME && absent) values[i] = i % 2 ? -1 : (double)pool;
    }
}

/* Where results are compared exactly, the largest ones saturate. */
static double exact_scale(mica_dtype of)
{
    return of == MICA_E5M2 ? 0x1p-14 : of == MICA_E4M3 ? 0x1p-7 : 0x1p-6;
}

static void fill_scales(mica_dtype of, int64_t count, mica_fill fill, uint64_t seed, double *values)
{
    for (int64_t i = 0; i < count; i++) {
        double u = mica_random_uniform(seed, (uint64_t)i);
        values[i] = 0.5 + u;
        if (of == MICA_S8) values[i] *= 0x1p-5;
        if (fill == MICA_FILL_EXTREME) values[i] *= 0x1p-6;
        if (fill == MICA_FILL_EXACT) values[i] = u < 0.5 ? 2 : exact_scale(of);
    }
}

bool kv_append_fill(const void *desc, const double *scalars, int arg, mica_fill fill, uint64_t seed,
                    double *values)
{
    (void)scalars;
    const mica_kv_append_desc *d = desc;
    const mica_tensor *t = mica_op_tensor(&mica_op_kv_append, desc, arg);
    int64_t count = mica_tensor_count(t);
    kv_shape s;
    kv_shape_of(d, &s);
    seed = mica_random_bits(seed, (uint64_t)arg + 301);
    switch (arg) {
    case MICA_KV_APPEND_SEQ_K:
        fill_lengths(&s, count, fill, seed, values);
        break;
    case MICA_KV_APPEND_SEQ_Q:
        fill_counts(&s, count, seed, values);
        break;
    case MICA_KV_APPEND_CU_Q:
        fill_offsets(t, s.angles.rows, fill, seed, values);
        break;
    case MICA_KV_APPEND_PAGES:
        fill_pages(&s, count, fill, seed, values);
        break;
    case MICA_KV_APPEND_SCALE_K:
    case MICA_KV_APPEND_SCALE_V:
        fill_scales(s.to[arg == MICA_KV_APPEND_SCALE_V]->dtype, count, fill, seed, values);
        break;
    case MICA_KV_APPEND_POSITIONS:
        fill_positions(&s.angles, t, fill, seed, values);
        break;
    case MICA_KV_APPEND_INV_FREQ:
        fill_frequencies(count, fill, seed, values);
        break;
    default:
        return false;
    }
    round_to_type(t, values);
    return true;
}
