/* SPDX-License-Identifier: Apache-2.0
 * Attention on the CPU: any strides, every type but f64, both passes. Scores are formed in tiles
 * and never stored. Two engines:
 *
 *     cpu    all arithmetic is f32. Cost: the two products at about 0.7 of the machine's rate, and
 *            an exponential per score. passes=1 or 2, of gradients: see below.
 *
 *     bf16   where all inputs are bf16: products of bf16 with sums in f32, on the matrix unit where
 *            there is one. unit=2 is AMX, unit=1 AVX-512's sums of two products, unit=0 plain
 *            loops, which is for proof. */
#include "ops/attention/cpu/attention_cpu.h"
#include "cpu/cpu.h"

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    const mica_attention_desc *d = desc;
    (void)device;
    if (d->q.dtype == MICA_F64) return mica_refuse(why, "q is f64, this engine computes in f32");
    return attention_check_results(d, why);
}

static mica_status accepts_bf16(const void *desc, const mica_device_info *device, mica_why *why)
{
    const mica_attention_desc *d = desc;
    const mica_tensor *inputs[] = {&d->q, &d->k, &d->v, &d->dout};
    const char *const names[] = {"q", "k", "v", "dout"};
    (void)device;
    for (int i = 0; i < 4; i++)
        if (mica_tensor_given(inputs[i]) && inputs[i]->dtype != MICA_BF16)
            return mica_refuse(why, "%s is %s, this engine multiplies bf16", names[i],
                               mica_dtype_name(inputs[i]->dtype));
    return attention_check_results(d, why);
}

static int configs_bf16(const void *desc, const mica_device_info *device, mica_config *list)
{
    int count = 0;
    (void)desc, (void)device;
    for (int unit = (int)mica_matrix_best(); unit >= 0; unit--)
        list[count++] = (mica_config){{unit}};
    return count;
}

/* Weights are rounded to bf16, which has hardly any digits below 2^-126; units take such numbers
 * for zeros. */
static void contract_bf16(const void *desc, const mica_config *config, mica_contract *c)
{
    (void)desc, (void)config;
    c->flushes = true;
}

/* ---- one pass or two for the gradients ----
 * One pass for all of them takes five products, two passes seven; but what keys add to dq must be
 * kept apart where several threads share a head. */
enum { FLOAT_BLOCK = 128 }; /* rows or keys of a block of floats */

/* Parts of a head's keys that one pass would have: as many tasks as two passes have, or enough. 0:
 * there is none. */
static int64_t count_chunks(const mica_attention_desc *d, const attention_shape *s)
{
    enum { TASKS = 64, MOST = 16 };
    const double most_bytes = 1 << 29;
    const int64_t threads = 16; /* whatever there are: bits do not depend on it */
    int64_t blocks = ceiling(s->keys, FLOAT_BLOCK), tasks = s->sequences * s->kv_heads;
    bool packed = mica_tensor_given(&d->cu_q) || mica_tensor_given(&d->cu_k);
    if (packed || !mica_tensor_count(&d->dq) || !mica_tensor_count(&d->dk) ||
        !mica_tensor_count(&d->dv))
        return 0;
    int64_t chunks = smaller(smaller(ceiling(TASKS, tasks), blocks), MOST);
    if (tasks * chunks < TASKS && chunks < blocks) return 0;
    double bytes = (double)attention_sum_floats(s) * sizeof(float);
    double kept = bytes * (double)(chunks > 1 ? tasks * chunks : threads);
    return kept > most_bytes ? 0 : chunks;
}

static int configs(const void *desc, const mica_device_info *device, mica_config *list)
{
    const mica_attention_desc *d = desc;
    attention_shape s;
    int count = 0;
    (void)device;
    attention_shape_make(d, &s);
    bool forward = d->pass == MICA_ATTENTION_FWD;
    if (forward || count_chunks(d, &s)) list[count++] = (mica_config){{1}};
    if (!forward) list[count++] = (mica_config){{2}};
    return count;
}

static size_t aligned(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

static double flops_of(const void *desc)
{
    double flops, bytes = 0;
    mica_op_attention.cost(desc, &flops, &bytes);
    return flops;
}

/* Few blocks see their keys in parts, for more threads than blocks. By sizes alone: bits do not
 * depend on the number of threads. */
enum { UNITS = 256, LEAST = 512 };

static void choose_parts(attention_cpu *p)
{
    const attention_shape *s = &p->s;
    int64_t tasks = s->sequences * s->kv_heads;
    p->parts = 1;
    if (p->blocks != 1 || s->keys <= 2 * LEAST || tasks >= UNITS) return;
    int64_t parts = (UNITS + tasks - 1) / tasks, most = (s->keys + LEAST - 1) / LEAST;
    if (parts > most) parts = most;
    p->part = ((s->keys + parts - 1) / parts + p->tile - 1) / p->tile * p->tile;
    p->parts = (s->keys + p->part - 1) / p->part;
}

static mica_status book_forward(mica_plan *plan, attention_cpu *p)
{
    const attention_shape *s = &p->s;
    p->blocks = (s->group * s->rows + p->block - 1) / p->block;
    p->few = !p->bf16 && s->group * s->rows <= FEW;
    choose_parts(p);
    p->scratch_bytes = aligned(attention_forward_scratch(p));
    if (p->parts == 1) return MICA_OK;
    p->partial_bytes = aligned(attention_partial_floats(s) * sizeof(float));
    size_t parts = (size_t)(s->sequences * s->kv_heads * p->parts);
    return mica_book(plan, "parts", parts * p->partial_bytes, &p->partial);
}

/* Of equal numbers of blocks of keys, but for the last one. */
static void choose_chunks(const mica_attention_desc *d, attention_cpu *p)
{
    int64_t blocks = ceiling(p->s.keys, p->block);
    p->chunk_blocks = ceiling(blocks, count_chunks(d, &p->s));
    p->chunks = ceiling(blocks, p->chunk_blocks);
}

static mica_status book_backward(mica_plan *plan, attention_cpu *p)
{
    const mica_attention_desc *d = plan->desc;
    size_t bias = attention_bias_floats(d, &p->s) * sizeof(float);
    size_t rows = (size_t)mica_tensor_count(&d->lse);
    if (!p->bf16 && plan->config.knob[0] == 1) choose_chunks(d, p);
    p->scratch_bytes = aligned(attention_backward_scratch(p) + bias);
    MICA_TRY(mica_book(plan, "delta", rows * sizeof(float), &p->delta));
    if (p->chunks <= 1) return MICA_OK;
    int64_t chunks = p->s.sequences * p->s.kv_heads * p->chunks;
    size_t floats = (size_t)(chunks * attention_sum_floats(&p->s));
    return mica_book(plan, "sums of dq", floats * sizeof(float), &p->sums);
}

/* Products of floats want what fits the first cache. Those of bf16 take less time than to bring
 * values into their order, which larger blocks share, and sums into the unit, as larger tiles do.
 */
static void choose_sizes(attention_cpu *p)
{
    p->block = p->bf16 ? 256 : FLOAT_BLOCK;
    p->tile = p->bf16 ? 128 : 64;
}

static bool is_empty(const mica_attention_desc *d)
{
    const mica_tensor *outputs[] = {&d->out, &d->lse, &d->dq, &d->dk, &d->dv};
    bool fwd = d->pass == MICA_ATTENTION_FWD;
    for (int i = fwd ? 0 : 2; i < (fwd ? 2 : 5); i++)
        if (mica_tensor_given(outputs[i]) && mica_tensor_count(outputs[i]) > 0) return false;
    return true;
}

static mica_status build(mica_plan *plan)
{
    const mica_attention_desc *d = plan->desc;
    attention_cpu *p;
    MICA_TRY(mica_plan_state(plan, sizeof *p, &p));
    attention_shape_make(d, &p->s);
    p->wide = mica_cpu_is_wide();
    p->bf16 = plan->engine == &mica_attention_bf16;
    p->unit = (mica_matrix_unit)plan->config.knob[0];
    choose_sizes(p);
    /* Four operations take about as long as a byte of traffic. */
    p->threads = mica_cpu_threads_planned(mica_op_bytes(plan->op, d) + flops_of(d) / 4);
    if (is_empty(d)) return MICA_OK;
    MICA_TRY(d->pass == MICA_ATTENTION_FWD ? book_forward(plan, p) : book_backward(plan, p));
    MICA_TRY(mica_book(plan, "scratch", (size_t)p->threads * p->scratch_bytes, &p->scratch));
    return mica_book(plan, "starts", ((size_t)p->s.sequences + 1) * sizeof(int64_t), &p->starts);
}

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    const attention_cpu *p = plan->state;
    const mica_attention_desc *d = plan->desc;
    if (p->scratch_bytes == 0) return MICA_OK;
    attention_job job = {.p = p,
                         .d = d,
                         .args = r->args,
                         .drop = attention_dropout_make(d, r->args[MICA_ATTENTION_RNG]),
                         .starts = mica_at(r, p->starts),
                         .scratch = mica_at(r, p->scratch),
                         .partial = mica_at(r, p->partial),
                         .sums = mica_at(r, p->sums),
                         .delta = mica_at(r, p->delta)};
    /* Fewer than at build time in a forked child. */
    job.threads = mica_cpu_threads() < p->threads ? mica_cpu_threads() : p->threads;
    if (d->pass == MICA_ATTENTION_FWD)
        attention_forward_run(&job);
    else
        attention_backward_run(&job);
    return MICA_OK;
}

/* Half the nominal rate, rows padded to panels. */
static double predict(const void *desc, const mica_device_info *device, const mica_config *config)
{
    const double products = config->knob[0] == 2 ? 7.0 / 5 : 1;
    double compute = products * flops_of(desc) / (0.5 * device->f32_tflops * 1e9);
    double memory = mica_op_bytes(&mica_op_attention, desc) / (0.5 * device->copy_gbps * 1e6);
    return 2e-3 + (compute > memory ? compute : memory);
}

static double predict_bf16(const void *desc, const mica_device_info *device,
                           const mica_config *config)
{
    static const double rate[] = {
        [MICA_MATRIX_PLAIN] = 0.2, [MICA_MATRIX_PAIRS] = 0.8, [MICA_MATRIX_TILES] = 1.5};
    const double turn_rows = 10; /* as long as these take values to be transposed */
    attention_shape s;
    attention_shape_make(desc, &s);
    double rows = (double)(s.group * s.rows), taken = (double)mica_matrix_lines(s.group * s.rows);
    double more = rows > 0 ? (taken + turn_rows) / rows : 1;
    double compute = more * flops_of(desc) / (rate[config->knob[0]] * device->f32_tflops * 1e9);
    double memory = mica_op_bytes(&mica_op_attention, desc) / (0.5 * device->copy_gbps * 1e6);
    double ms = compute > memory ? compute : memory;
    return 2e-3 + (rows > FEW ? ms : 1.1 * ms); /* where memory counts, "cpu" reads as quickly */
}

static const char *const knobs[] = {"passes", NULL}; /* over queries and keys, for gradients */
static const char *const knobs_bf16[] = {"unit", NULL};

const mica_engine mica_attention_bf16 = {.name = "bf16",
                                         .knobs = knobs_bf16,
                                         .accepts = accepts_bf16,
                                         .configs = configs_bf16,
                                         .predict = predict_bf16,
                                         .contract = contract_bf16,
                                         .build = build,
                                         .run = run};

const mica_engine mica_attention_cpu = {.name = "cpu",
                                        .knobs = knobs,
                                        .accepts = accepts,
                                        .configs = configs,
                                        .predict = predict,
                                        .build = build,
                                        .run = run};
