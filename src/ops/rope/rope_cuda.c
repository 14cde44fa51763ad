/* SPDX-License-Identifier: Apache-2.0
 * Engine "cuda" of rope: bound by memory. A thread forms the angles of a few columns of a row once
 * and rotates up to ROPE_GROUP heads with them; q and k share one launch. Any strides and types; up
 * to 16 bytes an access where strides and pointers allow. In place, columns behind rotary_dim are
 * left alone. Frequencies by theta travel with the launch, 256 of them: rows of more than 512
 * rotated columns take several. */
#include "ops/rope/rope_cuda.h"

#include <math.h>
#include <string.h>

enum { HEADS };
static const char *const knobs[] = {"heads", NULL};

typedef struct state {
    mica_kernel *kernel;
    rope_angles angles;
    rope_args args;
    const mica_tensor *tensors[2][2]; /* of q, of k: from, to */
    bool has_k;
    int vector;
    double frequencies[];
} state;

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    (void)desc, (void)device, (void)why;
    return MICA_OK;
}

static int vector_of(const mica_rope_desc *d)
{
    const mica_tensor *tensors[] = {&d->q, &d->q_out, &d->k, &d->k_out};
    return rope_vector(tensors, mica_tensor_given(&d->k) ? 4 : 2, d->rotary_dim / 2,
                       d->q.dims[3] - d->rotary_dim);
}

static void heads_of(const mica_rope_desc *d, int64_t heads[2])
{
    heads[0] = d->q.dims[1];
    heads[1] = mica_tensor_given(&d->k) ? d->k.dims[1] : 0;
}

static int64_t best_group(const mica_rope_desc *d, const mica_device_info *device)
{
    double items = (double)d->q.dims[0] * (double)d->q.dims[2] * (double)d->q.dims[3];
    int64_t heads[2];
    heads_of(d, heads);
    return rope_group((int64_t)fmin(items / (2 * vector_of(d)), 0x1p60), heads, device);
}

static int configs(const void *desc, const mica_device_info *device, mica_config *out)
{
    int64_t heads[2];
    heads_of(desc, heads);
    return rope_configs(best_group(desc, device), heads, out);
}

static double predict(const void *desc, const mica_device_info *device, const mica_config *config)
{
    double other = config->knob[HEADS] == best_group(desc, device) ? 1 : 1.2;
    return 1.2 * other * mica_roofline_ms(&mica_op_rope, desc, device) + 3e-3 * other;
}

static mica_status add_kernel(mica_plan *plan, const mica_rope_desc *d, state *s)
{
    char buffer[1024] = "";
    mica_text p = {buffer, sizeof buffer, 0};
    rope_prologue(&p, &s->angles, d->q.dtype, rope_accumulator(d->q.dtype, d->q_out.dtype),
                  s->vector);
    mica_prologue_type(&p, "to_t", d->q_out.dtype);
    mica_kernel_spec spec = {"ops/rope/rope_cuda.cu", "rope", buffer, 0};
    return mica_plan_add_kernel(plan, &spec, &s->kernel);
}

static mica_status build(mica_plan *plan)
{
    const mica_rope_desc *d = plan->desc;
    rope_angles a;
    state *s;
    rope_angles_of(d, &a);
    bool has_k = mica_tensor_given(&d->k) && mica_tensor_count(&d->k) > 0;
    bool has_q = mica_tensor_count(&d->q) > 0;
    int64_t kept = has_q || has_k ? rope_kept(&a) : 0;
    MICA_TRY(mica_plan_state(plan, sizeof *s + 2 * (size_t)kept * sizeof(double), &s));
    if (!has_q && !has_k) return MICA_OK;
    s->angles = a;
    s->has_k = has_k;
    for (int64_t i = 0; i < kept; i++)
        s->frequencies[i] = rope_frequency(&a, i, &s->frequencies[kept + i]);
    const mica_tensor *tensors[] = {&d->q, &d->q_out, &d->k, &d->k_out};
    memcpy(s->tensors, tensors, sizeof tensors);
    s->vector = vector_of(d);
    rope_args *args = &s->args;
    rope_source_of(&a, &args->at);
    args->q = rope_side_of(&d->q, &d->q_out);
    if (has_k) args->k = rope_side_of(&d->k, &d->k_out);
    args->by_row = rope_by_row(has_q ? &args->q : &args->k);
    args->range.pairs = a.pairs;
    args->rows = a.rows;
    args->q_heads = has_q ? d->q.dims[1] : 0;
    args->k_heads = has_k ? d->k.dims[1] : 0;
    args->heads = plan->config.knob[HEADS];
    args->q_groups = (unsigned)rope_ceil(args->q_heads, args->heads);
    args->groups = args->q_groups + (unsigned)rope_ceil(args->k_heads, args->heads);
    return add_kernel(plan, d, s);
}

static mica_status launch(const state *s, const mica_run *r, rope_args *args)
{
    args->items = s->angles.batches * s->angles.rows * (args->range.turned + args->range.copied);
    if (args->items == 0) return MICA_OK;
    int64_t blocks = rope_ceil(args->items, ROPE_BLOCK) * args->groups;
    mica_grid grid = {.grid = {(unsigned)blocks}, .block = {ROPE_BLOCK}};
    return mica_kernel_launch(s->kernel, &grid, r->stream, args);
}

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    const state *s = plan->state;
    if (!s->kernel) return MICA_OK;
    rope_args args = s->args;
    const rope_angles *a = &s->angles;
    rope_data data = rope_data_of(r->args);
    rope_source_point(a, &data, s->vector, &args.at);
    rope_side_point(s->tensors[0], r->args[MICA_ROPE_Q], r->args[MICA_ROPE_Q_OUT], s->vector,
                    &args.q);
    if (s->has_k)
        rope_side_point(s->tensors[1], r->args[MICA_ROPE_K], r->args[MICA_ROPE_K_OUT], s->vector,
                        &args.k);
    bool in_place =
        (args.q_heads == 0 || args.q.from == args.q.to) && (!s->has_k || args.k.from == args.k.to);
    int64_t copied = in_place ? 0 : rope_copied((a->columns - 2 * a->pairs) / s->vector);
    int64_t step = rope_slice(a);
    for (int64_t first = 0; first < a->pairs || first == 0; first += step) {
        int64_t left = a->pairs - first;
        args.range.first = first;
        args.range.count = left < step ? left : step;
        args.range.turned = args.range.count / s->vector;
        args.range.copied = left <= step ? copied : 0;
        rope_frequencies(a, s->frequencies, first, args.range.count, args.frequencies,
                         args.frequencies_below);
        MICA_TRY(launch(s, r, &args));
    }
    return MICA_OK;
}

static void contract(const void *desc, const mica_config *config, mica_contract *c)
{
    const mica_rope_desc *d = desc;
    rope_angles a;
    (void)config;
    rope_angles_of(d, &a);
    rope_contract(&a, rope_accumulator(d->q.dtype, d->q_out.dtype), c);
}

const mica_engine mica_rope_cuda = {.name = "cuda",
                                    .cuda = true,
                                    .knobs = knobs,
                                    .accepts = accepts,
                                    .configs = configs,
                                    .predict = predict,
                                    .contract = contract,
                                    .build = build,
                                    .run = run};
