/* SPDX-License-Identifier: Apache-2.0
 * gemm on the CPU in plain loops: every type, any strides, no workspace. Good for what oneDNN does
 * not take (f64, 16-bit and fp8 types, odd strides) and for sizes where a call into a library would
 * cost more than the product.
 *
 * A task is a tile of c. It walks K in chunks; a chunk of a and b is converted to float (double for
 * f64) into panels on the stack, and a kernel of 6 rows multiplies panel by panel in registers.
 * Chunk sums are added up in double. With 8-bit integers every chunk sum is below 2^24, hence exact
 * in float, and so is the total. Cost: 2MNK at about 0.7 of what oneDNN reaches in f32. */
#include "ops/gemm/cpu/gemm_cpu.h"
#include "cpu/cpu.h"
#include "cpu/scratch.h"
#include "ops/convert/cpu/bf16.h"
#include "ops/convert/cpu/convert.h"
#include "ops/convert/cpu/functions_f32.h"

#include <math.h>
#include <string.h>

enum {
    ROWS = 48,    /* of a tile */
    COLS = 64,    /* of a tile */
    CHUNK = 128,  /* of K; 128 * 255 * 128 < 2^24 */
    PANEL_M = 6,  /* rows of a kernel */
    PANEL_N = 16, /* its columns in float: one 512-bit, two 256-bit vectors */
    PANEL_D = 8   /* its columns in double */
};
_Static_assert(ROWS % PANEL_M == 0 && COLS % PANEL_N == 0 && COLS <= GEMM_EPILOGUE_RUN, "tile");

typedef uint32_t words __attribute__((vector_size(32), aligned(4), may_alias));

static int at_most(int64_t left, int limit)
{
    return left < limit ? (int)left : limit;
}

/* ---- panels ---- */

/* f16 by one multiplication: moved into a float's place its exponent is 112 too small. */
__attribute__((always_inline)) static inline float f16_value(uint16_t h)
{
    uint32_t u = (uint32_t)(h & 0x7fff) << 13;
    float f;
    memcpy(&f, &u, sizeof f);
    f *= 0x1p112f;
    memcpy(&u, &f, sizeof u);
    u |= (h & 0x7c00) == 0x7c00 ? 0x7f800000 : 0;
    u |= (uint32_t)(h & 0x8000) << 16;
    memcpy(&f, &u, sizeof f);
    return f;
}

__attribute__((always_inline)) static inline float value(mica_dtype d, const void *p, int64_t i)
{
    if (d == MICA_F32) return ((const float *)p)[i];
    uint16_t u = ((const uint16_t *)p)[i];
    return d == MICA_BF16 ? mica_bf16_value(u) : f16_value(u);
}

/* A block of a matrix: `lines` rows of a or columns of b, `step` apart, `depth` elements of K,
 * `step_k` apart. */
typedef struct block {
    const void *data;
    int64_t at, step, step_k;
    int lines, depth;
} block;

/* Whether the numbers of a line follow each other. */
static bool by_lines(const block *b)
{
    return b->step_k == 1 && b->step != 1;
}

/* to[k * width + line], lines past the last are zero. */
__attribute__((always_inline)) static inline void
fill_panel(mica_dtype d, const block *b, int64_t at, int lines, int width, float *to)
{
    int64_t step = b->step, step_k = b->step_k;
    if (step == 1) {
        for (int k = 0; k < b->depth; k++)
            for (int i = 0; i < lines; i++)
                to[k * width + i] = value(d, b->data, at + k * step_k + i);
    } else {
        for (int i = 0; i < lines; i++)
            for (int k = 0; k < b->depth; k++)
                to[k * width + i] = value(d, b->data, at + i * step + k * step_k);
    }
    for (int k = 0; k < b->depth && lines < width; k++)
        for (int i = lines; i < width; i++) to[k * width + i] = 0;
}

__attribute__((always_inline)) static inline void fill_panels(mica_dtype d, const block *b,
                                                              int width, float *to)
{
    for (int line = 0; line < b->lines; line += width, to += width * b->depth) {
        int lines = b->lines - line < width ? b->lines - line : width;
        /* The constant lets the compiler unroll full panels. */
        if (lines == width)
            fill_panel(d, b, b->at + line * b->step, width, width, to);
        else
            fill_panel(d, b, b->at + line * b->step, lines, width, to);
    }
}

__attribute__((always_inline)) static inline void fill_panels_of(mica_dtype d, const block *b,
                                                                 int width, float *to)
{
    if (width == PANEL_M)
        fill_panels(d, b, PANEL_M, to);
    else
        fill_panels(d, b, PANEL_N, to);
}

/* Of f32, bf16 or f16; width: PANEL_M or PANEL_N. */
MICA_CLONES static void pack_panels(mica_dtype d, const block *b, int width, float *to)
{
    if (d == MICA_F32)
        fill_panels_of(MICA_F32, b, width, to);
    else if (d == MICA_BF16)
        fill_panels_of(MICA_BF16, b, width, to);
    else
        fill_panels_of(MICA_F16, b, width, to);
}

/* Of types of 8 bits, which become floats first, the numbers of a step of K side by side. */
static void pack_bytes(mica_dtype d, const block *b, int width, float *to)
{
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    float *steps = mica_scratch_take(CHUNK * COLS * sizeof *steps);
    bool whole = b->step == 1 && b->step_k == b->lines; /* steps follow each other */
    block floats = {.data = steps, .step = 1, .step_k = whole ? b->lines : COLS};
    floats.lines = b->lines, floats.depth = b->depth;
    int runs = whole ? 1 : b->depth, run = whole ? b->depth * b->lines : b->lines;
    for (int k = 0; k < runs; k++)
        mica_to_f32(d, b->data, b->at + k * b->step_k, b->step, steps + k * COLS, run);
    pack_panels(MICA_F32, &floats, width, to);
}

static void pack(mica_dtype d, const block *b, int width, float *to)
{
    if (mica_dtype_bits(d) == 8)
        pack_bytes(d, b, width, to);
    else
        pack_panels(d, b, width, to);
}

__attribute__((always_inline)) static inline void convert_lines(mica_dtype d, const block *b,
                                                                float *to)
{
    for (int i = 0; i < b->lines; i++)
        for (int k = 0; k < b->depth; k++)
            to[i * CHUNK + k] = value(d, b->data, b->at + i * b->step + k);
}

/* Of f32, bf16 or f16. */
MICA_CLONES static void convert_floats(mica_dtype d, const block *b, float *to)
{
    if (d == MICA_F32)
        convert_lines(MICA_F32, b, to);
    else if (d == MICA_BF16)
        convert_lines(MICA_BF16, b, to);
    else
        convert_lines(MICA_F16, b, to);
}

/* Rows whose numbers follow each other along K stay rows, CHUNK apart; whole panels of them. */
static void convert_rows(mica_dtype d, const block *b, float *to)
{
    if (mica_dtype_bits(d) == 8)
        for (int i = 0; i < b->lines; i++)
            mica_to_f32(d, b->data, b->at + i * b->step, 1, to + i * CHUNK, b->depth);
    else
        convert_floats(d, b, to);
    for (int i = b->lines; i % PANEL_M != 0; i++)
        memset(to + i * CHUNK, 0, (size_t)b->depth * sizeof *to);
}

#define PICK(a, b, ...) MICA_SHUFFLE(words, a, b, __VA_ARGS__)

/* Eight lines of eight numbers become columns, which are `width` apart: for each step there is an
 * instruction in AVX. */
__attribute__((always_inline)) static inline void turn_block(const float *from, int64_t ld,
                                                             float *to, int width)
{
    words r[8], t[8];
    for (int i = 0; i < 8; i++) r[i] = *(const words *)(from + i * ld);
    for (int i = 0; i < 8; i += 2) {
        t[i] = PICK(r[i], r[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
        t[i + 1] = PICK(r[i], r[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    }
    for (int i = 0; i < 8; i++) {
        const words *x = &t[i / 4 * 4 + i % 4 / 2];
        r[i] = i % 2 == 0 ? PICK(x[0], x[2], 0, 1, 8, 9, 4, 5, 12, 13)
                          : PICK(x[0], x[2], 2, 3, 10, 11, 6, 7, 14, 15);
    }
    for (int i = 0; i < 4; i++) {
        *(words *)(to + i * width) = PICK(r[i], r[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        *(words *)(to + (i + 4) * width) = PICK(r[i], r[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
}

/* PANEL_N lines of floats, ld apart, become the columns of a panel. */
MICA_CLONES static void turn_panel(const float *from, int64_t ld, int depth, float *to)
{
    int k = 0;
    for (; k + 8 <= depth; k += 8)
        for (int i = 0; i < PANEL_N; i += 8)
            turn_block(from + i * ld + k, ld, to + k * PANEL_N + i, PANEL_N);
    for (; k < depth; k++)
        for (int i = 0; i < PANEL_N; i++) to[k * PANEL_N + i] = from[i * ld + k];
}

static void pack_cols(mica_dtype d, const block *b, float *to)
{
    MICA_ALIGNED float rows[(PANEL_N + PANEL_M) * CHUNK];
    if (!by_lines(b)) {
        pack(d, b, PANEL_N, to);
        return;
    }
    for (int line = 0; line < b->lines; line += PANEL_N, to += PANEL_N * b->depth) {
        block panel = *b;
        panel.at += line * b->step;
        panel.lines = at_most(b->lines - line, PANEL_N);
        if (d == MICA_F32 && panel.lines == PANEL_N) {
            turn_panel((const float *)b->data + panel.at, b->step, b->depth, to);
            continue;
        }
        /* columns past the last are not stored, yet are numbers */
        if (panel.lines < PANEL_N) memset(rows, 0, sizeof rows);
        convert_rows(d, &panel, rows);
        turn_panel(rows, CHUNK, b->depth, to);
    }
}

static void pack_f64(const block *b, int width, double *to)
{
    const double *p = b->data;
    for (int line = 0; line < b->lines; line += width, to += width * b->depth)
        for (int k = 0; k < b->depth; k++)
            for (int i = 0; i < width; i++)
                to[k * width + i] =
                    line + i < b->lines ? p[b->at + (line + i) * b->step + k * b->step_k] : 0;
}

/* ---- kernels ---- */

#define VECTOR  64
#define CLONES  MICA_WIDE
#define NAME(x) x##_wide
#include "ops/gemm/cpu/gemm_cpu_kernels.h"

#define VECTOR  MICA_NARROW
#define CLONES  MICA_NARROW_CLONES
#define NAME(x) x##_narrow
#include "ops/gemm/cpu/gemm_cpu_kernels.h"

/* ---- tiles ----
 * With scales of blocks a chunk is a block of K, and its sums are scaled as they are added to the
 * others. */
_Static_assert(CHUNK == GEMM_BLOCK && GEMM_BLOCK % COLS == 0, "a chunk has one scale per row");

typedef struct job {
    const gemm_loops *s;
    gemm_cpu_epilogue finish;
    int64_t down, across; /* tiles of a batch item */
} job;

static void multiply_f32(const mica_gemm_desc *d, const block *a, const block *b, double *sums)
{
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    float *rows = mica_scratch_take(ROWS * CHUNK * sizeof *rows);
    float *cols = mica_scratch_take(COLS * CHUNK * sizeof *cols);
    bool by_rows = by_lines(a);
    int ld = by_rows ? CHUNK : a->depth;
    if (by_rows)
        convert_rows(d->a.dtype, a, rows);
    else
        pack(d->a.dtype, a, PANEL_M, rows);
    pack_cols(d->b.dtype, b, cols);
    void (*kernel)(int, const float *, bool, const float *, double *) =
        mica_cpu_is_wide() ? kernel_f32_wide : kernel_f32_narrow;
    for (int j = 0; j < b->lines; j += PANEL_N)
        for (int i = 0; i < a->lines; i += PANEL_M)
            kernel(a->depth, rows + i * ld, by_rows, cols + j * a->depth, sums + i * COLS + j);
}

static void multiply_f64(const block *a, const block *b, double *sums)
{
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    double *rows = mica_scratch_take(ROWS * CHUNK * sizeof *rows);
    double *cols = mica_scratch_take(COLS * CHUNK * sizeof *cols);
    pack_f64(a, PANEL_M, rows);
    pack_f64(b, PANEL_D, cols);
    void (*kernel)(int, const double *, const double *, double *) =
        mica_cpu_is_wide() ? kernel_f64_wide : kernel_f64_narrow;
    for (int j = 0; j < b->lines; j += PANEL_D)
        for (int i = 0; i < a->lines; i += PANEL_M)
            kernel(a->depth, rows + i * a->depth, cols + j * a->depth, sums + i * COLS + j);
}

/* sums += scale_a scale_b part, and part becomes 0. */
static void add_scaled(const gemm_cpu_epilogue *f, int64_t row, int64_t col, int64_t k, int rows,
                       double *part, double *sums)
{
    const mica_tensor *a = &f->desc->scale_a, *b = &f->desc->scale_b;
    const float *scale_a = f->args[MICA_GEMM_SCALE_A], *scale_b = f->args[MICA_GEMM_SCALE_B];
    int64_t block = k / GEMM_BLOCK;
    double fb = (double)scale_b[block * b->strides[0] + col / GEMM_BLOCK * b->strides[1]];
    for (int i = 0; i < rows; i++) {
        double fa = (double)scale_a[(row + i) * a->strides[0] + block * a->strides[1]] * fb;
        for (int j = 0; j < COLS; j++) sums[i * COLS + j] += fa * part[i * COLS + j];
    }
    memset(part, 0, ROWS * COLS * sizeof *part);
}

/* The sums of a tile of c; b_at: where b begins, or with a gate what belongs to the gates. */
static void sum_tile(const job *w, const gemm_offsets *at, int64_t b_at, int64_t row, int64_t col,
                     double *sums)
{
    const gemm_shape *s = &w->s->shape;
    const mica_gemm_desc *d = w->finish.desc;
    block a = {.data = w->finish.args[MICA_GEMM_A],
               .step = s->a_m,
               .step_k = s->a_k,
               .lines = at_most(s->m - row, ROWS)};
    block b = {.data = w->finish.args[MICA_GEMM_B],
               .step = s->b_n,
               .step_k = s->b_k,
               .lines = at_most(s->n - col, COLS)};
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    bool blocks = gemm_has_blocks(d);
    double *part = blocks ? mica_scratch_take(ROWS * COLS * sizeof *part) : NULL;
    if (blocks) memset(part, 0, ROWS * COLS * sizeof *part);
    int panels = (a.lines + PANEL_M - 1) / PANEL_M * PANEL_M;
    memset(sums, 0, (size_t)(panels * COLS) * sizeof *sums);
    for (int64_t k = 0; k < s->k; k += CHUNK) {
        a.depth = b.depth = at_most(s->k - k, CHUNK);
        a.at = at->a + row * s->a_m + k * s->a_k;
        b.at = b_at + col * s->b_n + k * s->b_k;
        if (d->a.dtype == MICA_F64)
            multiply_f64(&a, &b, sums);
        else
            multiply_f32(d, &a, &b, blocks ? part : sums);
        if (blocks) add_scaled(&w->finish, row, col, k, a.lines, part, sums);
    }
}

static void compute_tile(const job *w, int64_t item, int64_t row, int64_t col)
{
    const gemm_shape *s = &w->s->shape;
    const gemm_full_epilogue *e = &w->s->extra;
    gemm_offsets at = gemm_full_offsets(s, e, item);
    int rows = at_most(s->m - row, ROWS), cols = at_most(s->n - col, COLS);
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    double *sums = mica_scratch_take(ROWS * COLS * sizeof *sums);
    double *partners = mica_scratch_take(ROWS * COLS * sizeof *partners);
    sum_tile(w, &at, at.b, row, col, sums);
    bool gate = w->finish.desc->gate != MICA_GEMM_GATE_NONE;
    if (gate) sum_tile(w, &at, at.b + e->partner, row, col, partners);
    for (int i = 0; i < rows; i++)
        gemm_cpu_epilogue_row(&w->finish, &at, row + i, col, cols, sums + i * COLS,
                              gate ? partners + i * COLS : NULL);
}

/* Neighbouring tasks share rows of a, which then stay in the cache. */
static void compute_task(const job *w, int64_t task)
{
    int64_t each = w->down * w->across;
    compute_tile(w, task / each, task / w->across % w->down * ROWS, task % w->across * COLS);
}

/* ---- the engine ---- */

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    (void)desc, (void)device, (void)why;
    return MICA_OK;
}

void gemm_loops_make(const mica_gemm_desc *d, gemm_loops *s)
{
    gemm_shape_make_full_epilogue(d, &s->shape, &s->extra);
    /* Four operations take about as long as a byte of traffic. */
    double bytes = mica_op_bytes(&mica_op_gemm, d);
    double flops = gemm_flops(&s->shape) * (d->gate ? 2 : 1);
    s->threads = mica_cpu_threads_planned(bytes + flops / 4);
}

static void run_tasks(const gemm_loops *s, const gemm_cpu_epilogue *finish)
{
    job w = {.s = s,
             .finish = *finish,
             .down = (s->shape.m + ROWS - 1) / ROWS,
             .across = (s->shape.n + COLS - 1) / COLS};
    int64_t tasks = s->shape.batches * w.down * w.across;
    int threads = mica_cpu_threads(); /* fewer than at build time in a forked child */
    if (threads > s->threads) threads = s->threads;
    if (threads > tasks) threads = tasks > 1 ? (int)tasks : 1;
    if (threads == 1) {
        for (int64_t i = 0; i < tasks; i++) compute_task(&w, i);
        return;
    }
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t i = 0; i < tasks; i++) compute_task(&w, i);
}

void gemm_loops_run(const gemm_loops *s, const gemm_cpu_epilogue *finish)
{
    mica_amax amax = 0;
    gemm_cpu_epilogue f = *finish;
    f.extra = &s->extra;
    if (mica_tensor_given(&f.desc->amax)) f.amax = &amax;
    run_tasks(s, &f);
    gemm_cpu_epilogue_end(&f);
}

static mica_status build(mica_plan *plan)
{
    gemm_loops *s;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    gemm_loops_make(plan->desc, s);
    return MICA_OK;
}

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    const gemm_loops *s = plan->state;
    gemm_cpu_epilogue finish = {.desc = plan->desc,
                                .shape = &s->shape,
                                .args = r->args,
                                .alpha = mica_run_scalar(plan, r, MICA_GEMM_ALPHA),
                                .beta = mica_run_scalar(plan, r, MICA_GEMM_BETA)};
    gemm_loops_run(s, &finish);
    return MICA_OK;
}

/* Less than half of the nominal rate, panels' padding included. Packing b for a tile takes as long
 * as the products of some rows. */
double gemm_loops_ms(const mica_device_info *device, double flops, double rows, double bytes)
{
    const double pack_rows = 13;
    rows = fmax(rows, 1);
    double down = ceil(rows / PANEL_M) * PANEL_M + pack_rows * ceil(rows / ROWS);
    double compute = flops * down / rows / (0.45 * device->f32_tflops * 1e9);
    return fmax(compute, bytes / (0.5 * device->copy_gbps * 1e6));
}

static double predict(const void *desc, const mica_device_info *device, const mica_config *config)
{
    (void)config;
    gemm_shape s;
    gemm_shape_make(desc, &s);
    double cols = (double)((s.n + PANEL_N - 1) / PANEL_N * PANEL_N);
    double flops = 2 * (double)s.m * cols * (double)s.k * (double)s.batches;
    if (((const mica_gemm_desc *)desc)->gate) flops *= 2;
    return 2e-4 + gemm_loops_ms(device, flops, (double)s.m, mica_op_bytes(&mica_op_gemm, desc));
}

const mica_engine gemm_cpu = {
    .name = "cpu", .accepts = accepts, .predict = predict, .build = build, .run = run};
