/* SPDX-License-Identifier: Apache-2.0
 * The loops of rope and kv_append on the CPU. */
#include "ops/rope/cpu/rope_cpu.h"
#include "ops/convert/cpu/bf16.h"
#include "ops/convert/cpu/real.h"

#include <math.h>
#include <string.h>

#include "ops/rope/rope_angle_args.h"

/* bf16 is rotated where it lies, by floats. */
#define NARROW !REAL_F64
/* A member of rope_piece, and the names of the functions. */
#if REAL_F64
#define ANGLES      f64
#define SINE_COSINE rope_quadrant_f64
#define ANGLES_OF   rope_cpu_angles_f64
#define TURN_ROW    rope_cpu_rotate_f64
#define COPY_ROW    rope_cpu_copy_f64
#else
#define ANGLES      f32
#define SINE_COSINE rope_quadrant_f32
#define ANGLES_OF   rope_cpu_angles_f32
#define TURN_ROW    rope_cpu_rotate_f32
#define COPY_ROW    rope_cpu_copy_f32
#endif

/* Angles in double whatever the arithmetic: two steps, so that each is one vector loop. */
CLONES
static void cosines_of(double position, const double *frequencies, const double *below, real factor,
                       real sign, int64_t n, real *c, real *s)
{
    MICA_ALIGNED real rest[ROPE_PIECE];
    uint32_t quarters[ROPE_PIECE];
    for (int64_t i = 0; i < n; i++) {
        double r;
        quarters[i] = rope_reduce(position, frequencies[i], below[i], &r);
        rest[i] = (real)r;
    }
    for (int64_t i = 0; i < n; i++) {
        real cosine, sine;
        SINE_COSINE(rest[i], quarters[i], &cosine, &sine);
        c[i] = cosine * factor;
        s[i] = sine * (factor * sign);
    }
}

CLONES
static void scale_all(real *c, real *s, real factor, real sign, int64_t n)
{
    for (int64_t i = 0; i < n; i++) c[i] *= factor;
    for (int64_t i = 0; i < n; i++) s[i] *= factor * sign;
}

void ANGLES_OF(const rope_cpu *w, const rope_data *data, double position, rope_piece *p)
{
    const rope_angles *a = &w->a;
    real *c = p->of.ANGLES.c, *s = p->of.ANGLES.s;
    real factor = (real)a->factor, sign = a->backward ? -1 : 1;
    if (mica_tensor_given(a->cos)) {
        int64_t row = rope_table_row(a, position);
        const mica_tensor *tables[] = {a->cos, a->sin};
        const void *from[] = {data->cos, data->sin};
        for (int i = 0; i < 2; i++)
            real_load(tables[i]->dtype, from[i],
                      row * tables[i]->strides[0] + p->first * tables[i]->strides[1],
                      tables[i]->strides[1], i ? s : c, p->n);
        scale_all(c, s, factor, sign, p->n);
        return;
    }
    MICA_ALIGNED double given[ROPE_PIECE], below[ROPE_PIECE] = {0};
    if (w->frequencies) {
        const double *first = w->frequencies + p->first;
        cosines_of(position, first, first + a->pairs, factor, sign, p->n, c, s);
        return;
    }
    int64_t step = a->inv_freq->strides[0];
    if (mica_tensor_given(a->inv_freq))
        mica_to_f64(MICA_F32, data->inv_freq, p->first * step, step, given, p->n);
    else
        for (int64_t i = 0; i < p->n; i++) given[i] = rope_frequency(a, p->first + i, &below[i]);
    cosines_of(position, given, below, factor, sign, p->n, c, s);
}

/* Element i of a run of `real`, or of a narrow one, which is bf16. */
MICA_INLINE real element(const void *x, int64_t i, const bool narrow)
{
    return narrow ? (real)mica_bf16_value(((const uint16_t *)x)[i]) : ((const real *)x)[i];
}

MICA_INLINE void set(void *y, int64_t i, real v, const bool narrow)
{
    if (narrow)
        ((uint16_t *)y)[i] = mica_bf16_rounded((float)v);
    else
        ((real *)y)[i] = v;
}

/* n pairs, the second of each `apart` elements behind the first, firsts `step` elements apart;
 * flags and step are constants. y may be x: each pair is read before it is written, and no other is
 * touched, which is what simd says. */
MICA_INLINE void rotate_as(const bool narrow, const void *x, void *y, const int64_t step,
                           int64_t apart, const real *c, const real *s, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        real first = element(x, step * i, narrow), second = element(x, step * i + apart, narrow);
        set(y, step * i, first * c[i] - second * s[i], narrow);
        set(y, step * i + apart, second * c[i] + first * s[i], narrow);
    }
}

CLONES
static void rotate(bool interleaved, bool narrow, const void *x, void *y, int64_t half,
                   const real *c, const real *s, int64_t n)
{
    if (interleaved && narrow)
        rotate_as(true, x, y, 2, 1, c, s, n);
    else if (interleaved)
        rotate_as(false, x, y, 2, 1, c, s, n);
    else if (narrow)
        rotate_as(true, x, y, 1, half, c, s, n);
    else
        rotate_as(false, x, y, 1, half, c, s, n);
}

/* e5m2 would overflow to infinity where the other 8-bit types saturate; NaN passes. */
CLONES
static void finish(const rope_line *line, real *x, int64_t n)
{
    if (line->scale != 1) {
        real scale = (real)line->scale;
        for (int64_t i = 0; i < n; i++) x[i] *= scale;
    }
    if (line->to_type != MICA_E5M2) return;
    const real most = 57344;
    for (int64_t i = 0; i < n; i++) {
        real v = x[i] > most ? most : x[i];
        x[i] = v < -most ? -most : v;
    }
}

static void read_run(const rope_line *line, int64_t column, real *x, int64_t n)
{
    real_load(line->from_type, line->from, line->from_at + column * line->from_step,
              line->from_step, x, n);
}

static void write_run(const rope_line *line, int64_t column, const real *x, int64_t n)
{
    real_store(line->to_type, line->to, line->to_at + column * line->to_step, line->to_step, x, n);
}

/* Both are runs of one type that rotate() takes: pairs are rotated where they lie. */
static bool is_plain(const rope_line *line)
{
    bool type = line->from_type == REAL_TYPE || (NARROW && line->from_type == MICA_BF16);
    return type && line->to_type == line->from_type && line->from_step == 1 && line->to_step == 1 &&
           line->scale == 1;
}

void TURN_ROW(const rope_cpu *w, const rope_piece *p, const rope_line *line)
{
    MICA_ALIGNED real x[2 * ROPE_PIECE];
    const real *c = p->of.ANGLES.c, *s = p->of.ANGLES.s;
    /* A piece that is all of the halves is one run. */
    bool one = w->a.interleaved || p->n == w->a.pairs;
    int64_t column = w->a.interleaved ? 2 * p->first : p->first, second = p->first + w->a.pairs;
    if (is_plain(line)) {
        bool narrow = line->from_type != REAL_TYPE;
        int64_t bytes = narrow ? sizeof(uint16_t) : sizeof(real);
        rotate(w->a.interleaved, narrow,
               (const char *)line->from + (line->from_at + column) * bytes,
               (char *)line->to + (line->to_at + column) * bytes, w->a.pairs, c, s, p->n);
        return;
    }
    read_run(line, column, x, one ? 2 * p->n : p->n);
    if (!one) read_run(line, second, x + p->n, p->n);
    rotate(w->a.interleaved, false, x, x, p->n, c, s, p->n);
    finish(line, x, 2 * p->n);
    write_run(line, column, x, one ? 2 * p->n : p->n);
    if (!one) write_run(line, second, x + p->n, p->n);
}

void COPY_ROW(const rope_line *line, int64_t first, int64_t columns)
{
    MICA_ALIGNED real x[2 * ROPE_PIECE];
    for (int64_t n; first < columns; first += n) {
        n = columns - first < 2 * ROPE_PIECE ? columns - first : 2 * ROPE_PIECE;
        read_run(line, first, x, n);
        finish(line, x, n);
        write_run(line, first, x, n);
    }
}
