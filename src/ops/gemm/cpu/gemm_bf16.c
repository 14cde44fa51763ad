/* SPDX-License-Identifier: Apache-2.0
 * gemm of bf16 on the CPU: any strides, sums in f32 on the matrix unit where there is one. unit=2
 * is AMX, unit=1 AVX-512's sums of two products, unit=0 plain loops, which is for proof.
 *
 * A task is up to 256 rows of 64 columns of c. It walks K in chunks; a chunk of b is packed into
 * pairs once for all rows, and a is taken where it lies if it consists of whole tiles. Cost: 2MNK
 * at the unit's rate, and to pack b, once for 256 rows: as much time as the products of 100 rows
 * (AMX) or 20. */
#include "ops/gemm/cpu/gemm_bf16.h"
#include "ops/convert/cpu/convert.h"
#include "cpu/cpu.h"
#include "cpu/scratch.h"

#include <math.h>
#include <string.h>

enum {
    ROWS = 256, /* of a task */
    PART = 64,  /* of these, with a chunk of a in the first cache */
    COLS = 64,  /* of a task */
    CHUNK = 256 /* of K */
};
_Static_assert(COLS <= GEMM_EPILOGUE_RUN, "a row is finished at once");

/* ---- chunks ---- */

/* `lines` lines of `depth` numbers of K. */
typedef struct block {
    const uint16_t *data;
    int64_t step, step_k, lines, depth;
} block;

/* Line by line, with zeros up to whole tiles. */
static void copy_lines(const block *b, uint16_t *to)
{
    int64_t ld = mica_matrix_depth(b->depth);
    memset(to, 0, (size_t)(mica_matrix_lines(b->lines) * ld) * sizeof *to);
    for (int64_t i = 0; i < b->lines; i++)
        for (int64_t k = 0; k < b->depth; k++)
            to[i * ld + k] = b->data[i * b->step + k * b->step_k];
}

/* A left matrix; *ld: numbers from row to row. */
static const uint16_t *left(mica_matrix_unit unit, const block *a, uint16_t *buffer, int64_t *ld)
{
    bool whole = a->lines == mica_matrix_lines(a->lines) && a->depth == mica_matrix_depth(a->depth);
    *ld = a->step;
    if (whole && a->step_k == 1) return a->data;
    *ld = mica_matrix_depth(a->depth);
    if (a->step == 1)
        mica_matrix_turn(unit, a->data, a->step_k, a->lines, a->depth, buffer, *ld);
    else
        copy_lines(a, buffer);
    return buffer;
}

/* A right matrix of COLS columns. */
static void pack_right(mica_matrix_unit unit, const block *b, uint16_t *to)
{
    if (b->step == 1) {
        mica_matrix_pack(unit, b->data, b->step_k, b->depth, b->lines, to, COLS);
    } else if (b->step_k == 1) {
        mica_matrix_pack_transposed(unit, b->data, b->step, b->depth, b->lines, to, COLS);
    } else {
        mica_scratch scope MICA_SCOPED = mica_scratch_open();
        uint16_t *lines = mica_scratch_take(COLS * CHUNK * sizeof *lines);
        int64_t ld = mica_matrix_depth(b->depth);
        copy_lines(b, lines);
        mica_matrix_pack_transposed(unit, lines, ld, b->depth, b->lines, to, COLS);
    }
}

/* ---- tasks ---- */

/* sums[row][column] of a task. */
static void sum_task(const gemm_bf16_loops *loops, const gemm_cpu_epilogue *f,
                     const gemm_offsets *at, int64_t row, int64_t col, int64_t rows, int64_t cols,
                     float *sums)
{
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    uint16_t *right = mica_scratch_take(COLS * CHUNK * sizeof *right);
    uint16_t *buffer = mica_scratch_take(PART * CHUNK * sizeof *buffer);
    const gemm_shape *s = &loops->shape;
    const uint16_t *a_data = f->args[MICA_GEMM_A], *b_data = f->args[MICA_GEMM_B];
    block a = {.step = s->a_m, .step_k = s->a_k}, b = {.step = s->b_n, .step_k = s->b_k};
    if (s->k == 0) memset(sums, 0, ROWS * COLS * sizeof *sums);
    b.lines = cols;
    for (int64_t k = 0; k < s->k; k += CHUNK) {
        a.depth = b.depth = s->k - k < CHUNK ? s->k - k : CHUNK;
        b.data = b_data + at->b + col * s->b_n + k * s->b_k;
        pack_right(loops->unit, &b, right);
        for (int64_t i = 0; i < rows; i += PART) {
            mica_matrix_product p = {.b = right,
                                     .c = sums + i * COLS,
                                     .b_ld = COLS,
                                     .c_ld = COLS,
                                     .cols = mica_matrix_lines(cols),
                                     .depth = mica_matrix_depth(a.depth),
                                     .add = k > 0};
            a.data = a_data + at->a + (row + i) * s->a_m + k * s->a_k;
            a.lines = rows - i < PART ? rows - i : PART;
            p.a = left(loops->unit, &a, buffer, &p.a_ld);
            p.rows = mica_matrix_lines(a.lines);
            mica_matrix_multiply(loops->unit, &p);
        }
    }
}

/* Sums that are rounded to c and nothing else. */
static bool is_plain(const gemm_cpu_epilogue *f)
{
    const mica_gemm_desc *d = f->desc;
    return f->alpha == 1 && f->beta == 0 && !d->epilogue[0] && !mica_tensor_given(&d->scale_a) &&
           !mica_tensor_given(&d->scale_b) && mica_fits_f32(d->c.dtype);
}

static void finish_row(const gemm_cpu_epilogue *f, const gemm_offsets *at, int64_t row, int64_t col,
                       int count, const float *sums)
{
    const gemm_shape *s = f->shape;
    double v[COLS];
    if (is_plain(f)) {
        mica_from_f32(f->desc->c.dtype, f->args[MICA_GEMM_C], at->c + row * s->c_m + col * s->c_n,
                      s->c_n, sums, count);
        return;
    }
    for (int j = 0; j < count; j++) v[j] = (double)sums[j];
    gemm_cpu_epilogue_row(f, at, row, col, count, v, NULL);
}

int64_t gemm_bf16_tasks(const gemm_shape *s)
{
    return s->batches * ceiling(s->m, ROWS) * ceiling(s->n, COLS);
}

void gemm_bf16_run_task(const gemm_bf16_loops *loops, const gemm_cpu_epilogue *f, int64_t task)
{
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    float *sums = mica_scratch_take(ROWS * COLS * sizeof *sums);
    const gemm_shape *s = &loops->shape;
    int64_t down = ceiling(s->m, ROWS), across = ceiling(s->n, COLS);
    int64_t row = task / across % down * ROWS, col = task % across * COLS;
    int64_t rows = s->m - row < ROWS ? s->m - row : ROWS;
    int64_t cols = s->n - col < COLS ? s->n - col : COLS;
    gemm_offsets at = gemm_shape_offsets(s, task / across / down);
    mica_matrix_begin(loops->unit);
    sum_task(loops, f, &at, row, col, rows, cols, sums);
    mica_matrix_end(loops->unit);
    for (int64_t i = 0; i < rows; i++) finish_row(f, &at, row + i, col, (int)cols, sums + i * COLS);
}

/* ---- the engine ---- */

mica_status gemm_bf16_takes(const mica_gemm_desc *d, mica_why *why)
{
    if (d->a.dtype != MICA_BF16 || d->b.dtype != MICA_BF16)
        return mica_refuse(why, "a is %s, b %s; this engine multiplies bf16",
                           mica_dtype_name(d->a.dtype), mica_dtype_name(d->b.dtype));
    return gemm_refuse_full_epilogue(d, why);
}

int gemm_bf16_units(mica_config *list)
{
    int count = 0;
    for (int unit = (int)mica_matrix_best(); unit >= 0; unit--)
        list[count++] = (mica_config){{unit}};
    return count;
}

/* Units take subnormal numbers for zeros. */
void gemm_bf16_contract(const mica_config *config, mica_contract *c)
{
    c->flushes = config->knob[0] != MICA_MATRIX_PLAIN;
}

double gemm_bf16_rate(const mica_config *config)
{
    static const double rate[] = {
        [MICA_MATRIX_PLAIN] = 0.2, [MICA_MATRIX_PAIRS] = 0.9, [MICA_MATRIX_TILES] = 4};
    return rate[config->knob[0]];
}

double gemm_bf16_ms(const mica_config *config, const mica_device_info *device, double flops,
                    double rows, double bytes)
{
    /* what packing b for a block of rows costs */
    static const double pack_rows[] = {
        [MICA_MATRIX_PLAIN] = 20, [MICA_MATRIX_PAIRS] = 20, [MICA_MATRIX_TILES] = 100};
    rows = fmax(rows, 1);
    double down = (double)mica_matrix_lines((int64_t)ceil(rows));
    flops *= (down + pack_rows[config->knob[0]] * ceil(rows / ROWS)) / rows;
    double compute = flops / (gemm_bf16_rate(config) * device->f32_tflops * 1e9);
    return fmax(compute, bytes / (0.5 * device->copy_gbps * 1e6));
}

void gemm_bf16_make(const mica_gemm_desc *d, const mica_config *config, gemm_bf16_loops *s)
{
    gemm_shape_make(d, &s->shape);
    s->unit = (mica_matrix_unit)config->knob[0];
    double work = gemm_flops(&s->shape) / (4 * gemm_bf16_rate(config));
    s->threads = mica_cpu_threads_planned(mica_op_bytes(&mica_op_gemm, d) + work);
}

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    (void)device;
    return gemm_bf16_takes(desc, why);
}

static int configs(const void *desc, const mica_device_info *device, mica_config *list)
{
    (void)desc, (void)device;
    return gemm_bf16_units(list);
}

static double predict(const void *desc, const mica_device_info *device, const mica_config *config)
{
    gemm_shape s;
    gemm_shape_make(desc, &s);
    double flops = 2 * (double)s.m * (double)mica_matrix_lines(s.n) *
                   (double)mica_matrix_depth(s.k) * (double)s.batches;
    double bytes = mica_op_bytes(&mica_op_gemm, desc);
    return 2e-4 + gemm_bf16_ms(config, device, flops, (double)s.m, bytes);
}

static void contract(const void *desc, const mica_config *config, mica_contract *c)
{
    (void)desc;
    gemm_bf16_contract(config, c);
}

static mica_status build(mica_plan *plan)
{
    gemm_bf16_loops *s;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    gemm_bf16_make(plan->desc, &plan->config, s);
    return MICA_OK;
}

static void run_tasks(const gemm_bf16_loops *s, const gemm_cpu_epilogue *finish)
{
    int64_t tasks = gemm_bf16_tasks(&s->shape);
    int threads = mica_cpu_threads(); /* fewer than at build time in a forked child */
    if (threads > s->threads) threads = s->threads;
    if (threads > tasks) threads = tasks > 1 ? (int)tasks : 1;
    if (threads == 1) {
        for (int64_t i = 0; i < tasks; i++) gemm_bf16_run_task(s, finish, i);
        return;
    }
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t i = 0; i < tasks; i++) gemm_bf16_run_task(s, finish, i);
}

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    const gemm_bf16_loops *s = plan->state;
    gemm_cpu_epilogue finish = {.desc = plan->desc,
                                .shape = &s->shape,
                                .args = r->args,
                                .alpha = mica_run_scalar(plan, r, MICA_GEMM_ALPHA),
                                .beta = mica_run_scalar(plan, r, MICA_GEMM_BETA)};
    run_tasks(s, &finish);
    return MICA_OK;
}

static const char *const knobs[] = {"unit", NULL};

const mica_engine gemm_bf16 = {.name = "bf16",
                               .knobs = knobs,
                               .accepts = accepts,
                               .configs = configs,
                               .predict = predict,
                               .contract = contract,
                               .build = build,
                               .run = run};
