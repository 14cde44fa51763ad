/* SPDX-License-Identifier: Apache-2.0
 * Engine "cuda" of kv_append: bound by memory. A thread finds the place of a row once, the angles
 * of a few of its columns if k is rotated, and takes them through up to ROPE_GROUP heads; k and v
 * share one launch. Any strides and types; up to 16 bytes an access where strides and pointers
 * allow. */
#include "ops/rope/rope_cuda.h"

#include <math.h>
#include <string.h>

enum { HEADS };
static const char *const knobs[] = {"heads", NULL};

typedef struct state {
    mica_kernel *kernel;
    kv_shape shape;
    kv_append_args args;
    const mica_tensor *tensors[KV_SIDES][2]; /* of k, of v: from, to */
    bool has[KV_SIDES];
    int vector, v_vector;
    double frequencies[];
} state;

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    (void)desc, (void)device, (void)why;
    return MICA_OK;
}

static int64_t best_group(const mica_kv_append_desc *d, const mica_device_info *device)
{
    const mica_tensor *tensors[] = {&d->k, &d->k_cache};
    double columns = (double)d->k.dims[3];
    if (mica_tensor_given(&d->v)) columns += (double)d->v.dims[3];
    int vector = rope_vector(tensors, 2, d->rotary_dim / 2, d->k.dims[3] - d->rotary_dim);
    double items = (double)d->k.dims[0] * (double)d->k.dims[2] * columns / (2 * vector);
    return rope_group((int64_t)fmin(items, 0x1p60), (int64_t[]){d->k.dims[1], 0}, device);
}

static int configs(const void *desc, const mica_device_info *device, mica_config *out)
{
    const mica_kv_append_desc *d = desc;
    return rope_configs(best_group(d, device), (int64_t[]){d->k.dims[1], 0}, out);
}

static double predict(const void *desc, const mica_device_info *device, const mica_config *config)
{
    double other = config->knob[HEADS] == best_group(desc, device) ? 1 : 1.2;
    return 1.2 * other * mica_roofline_ms(&mica_op_kv_append, desc, device) + 3e-3 * other;
}

static mica_status add_kernel(mica_plan *plan, const mica_kv_append_desc *d, state *s)
{
    char buffer[1024] = "";
    mica_text p = {buffer, sizeof buffer, 0};
    rope_prologue(&p, &s->shape.angles, d->k.dtype, rope_accumulator(d->k.dtype, d->k_cache.dtype),
                  s->vector);
    mica_prologue_type(&p, "k_t", d->k_cache.dtype);
    mica_prologue_type(&p, "v_t", s->has[1] ? d->v_cache.dtype : d->k_cache.dtype);
    mica_prologue_int(&p, "V_VEC", s->v_vector);
    mica_prologue_int(&p, "ROTATES", s->shape.angles.rotates);
    mica_kernel_spec spec = {"ops/rope/kv_append_cuda.cu", "kv_append", buffer, 0};
    return mica_plan_add_kernel(plan, &spec, &s->kernel);
}

/* Strides and sizes; pointers come with a run. */
static void fill_args(const mica_kv_append_desc *d, const state *s, kv_append_args *args)
{
    const kv_shape *shape = &s->shape;
    rope_source_of(&shape->angles, &args->at);
    if (s->has[0]) args->k = rope_side_of(&d->k, &d->k_cache);
    if (s->has[1]) args->v = rope_side_of(&d->v, &d->v_cache);
    args->by_row = rope_by_row(s->has[0] ? &args->k : &args->v);
    args->range.pairs = shape->angles.pairs;
    args->v_units = s->has[1] ? rope_copied(d->v.dims[3] / s->v_vector) : 0;
    if (mica_tensor_given(&d->seq_q)) args->seq_q_n = d->seq_q.strides[0];
    if (mica_tensor_given(&d->pages))
        args->pages_n = d->pages.strides[0], args->pages_p = d->pages.strides[1];
    if (mica_tensor_given(&d->scale_k))
        args->k_scale.step = d->scale_k.dims[0] == 1 ? 0 : d->scale_k.strides[0];
    if (mica_tensor_given(&d->scale_v))
        args->v_scale.step = d->scale_v.dims[0] == 1 ? 0 : d->scale_v.strides[0];
    args->rows = shape->angles.rows;
    args->heads = shape->heads;
    args->most = shape->most;
    args->page = shape->page;
    args->pool = shape->pool;
}

static mica_status build(mica_plan *plan)
{
    const mica_kv_append_desc *d = plan->desc;
    kv_shape shape;
    state *s;
    kv_shape_of(d, &shape);
    const rope_angles *a = &shape.angles;
    bool has_k = mica_tensor_count(&d->k) > 0;
    bool has_v = shape.has_v && mica_tensor_count(&d->v) > 0;
    int64_t kept = has_k || has_v ? rope_kept(a) : 0;
    MICA_TRY(mica_plan_state(plan, sizeof *s + 2 * (size_t)kept * sizeof(double), &s));
    if (!has_k && !has_v) return MICA_OK;
    s->shape = shape;
    s->has[0] = has_k, s->has[1] = has_v;
    for (int64_t i = 0; i < kept; i++)
        s->frequencies[i] = rope_frequency(a, i, &s->frequencies[kept + i]);
    const mica_tensor *tensors[] = {&d->k, &d->k_cache, &d->v, &d->v_cache};
    memcpy(s->tensors, tensors, sizeof tensors);
    s->vector = has_k ? rope_vector(tensors, 2, a->pairs, a->columns - 2 * a->pairs) : 1;
    s->v_vector = has_v ? rope_vector(tensors + 2, 2, 0, d->v.dims[3]) : 1;
    fill_args(d, s, &s->args);
    s->args.group = plan->config.knob[HEADS];
    s->args.groups = (unsigned)rope_ceil(shape.heads, s->args.group);
    return add_kernel(plan, d, s);
}

static mica_status launch(const state *s, const mica_run *r, kv_append_args *args)
{
    int64_t lines = s->shape.angles.batches * s->shape.angles.rows;
    args->k_items = lines * (args->range.turned + args->range.copied);
    args->v_items = lines * args->v_units;
    args->k_blocks = (unsigned)rope_ceil(args->k_items, ROPE_BLOCK);
    args->v_blocks = (unsigned)rope_ceil(args->v_items, ROPE_BLOCK);
    unsigned blocks = (args->k_blocks + args->v_blocks) * args->groups;
    if (blocks == 0) return MICA_OK;
    mica_grid grid = {.grid = {blocks}, .block = {ROPE_BLOCK}};
    return mica_kernel_launch(s->kernel, &grid, r->stream, args);
}

static void point_args(const mica_plan *plan, const mica_run *r, kv_append_args *args)
{
    const state *s = plan->state;
    const mica_kv_append_desc *d = plan->desc;
    rope_data data = kv_data_of(r->args);
    rope_source_point(&s->shape.angles, &data, s->vector, &args->at);
    if (s->has[0])
        rope_side_point(s->tensors[0], r->args[MICA_KV_APPEND_K], r->args[MICA_KV_APPEND_K_CACHE],
                        s->vector, &args->k);
    if (s->has[1])
        rope_side_point(s->tensors[1], r->args[MICA_KV_APPEND_V], r->args[MICA_KV_APPEND_V_CACHE],
                        s->v_vector, &args->v);
    if (mica_tensor_given(&d->seq_q)) args->seq_q = r->args[MICA_KV_APPEND_SEQ_Q];
    if (mica_tensor_given(&d->pages)) args->pages = r->args[MICA_KV_APPEND_PAGES];
    if (mica_tensor_given(&d->scale_k)) args->k_scale.data = r->args[MICA_KV_APPEND_SCALE_K];
    if (mica_tensor_given(&d->scale_v)) args->v_scale.data = r->args[MICA_KV_APPEND_SCALE_V];
}

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    const state *s = plan->state;
    if (!s->kernel) return MICA_OK;
    kv_append_args args = s->args;
    const rope_angles *a = &s->shape.angles;
    point_args(plan, r, &args);
    int64_t step = rope_slice(a), pairs = s->has[0] ? a->pairs : 0;
    int64_t rest = s->has[0] ? a->columns - 2 * a->pairs : 0;
    for (int64_t first = 0; first < pairs || first == 0; first += step) {
        int64_t left = pairs - first;
        args.range.first = first;
        args.range.count = left < step ? left : step;
        args.range.turned = args.range.count / s->vector;
        args.range.copied = left <= step ? rope_copied(rest / s->vector) : 0;
        args.v_units = left <= step ? s->args.v_units : 0;
        rope_frequencies(a, s->frequencies, first, args.range.count, args.frequencies,
                         args.frequencies_below);
        MICA_TRY(launch(s, r, &args));
    }
    return MICA_OK;
}

static void contract(const void *desc, const mica_config *config, mica_contract *c)
{
    const mica_kv_append_desc *d = desc;
    kv_shape s;
    (void)config;
    kv_shape_of(d, &s);
    rope_contract(&s.angles, rope_accumulator(d->k.dtype, d->k_cache.dtype), c);
}

const mica_engine mica_kv_append_cuda = {.name = "cuda",
                                         .cuda = true,
                                         .knobs = knobs,
                                         .accepts = accepts,
                                         .configs = configs,
                                         .predict = predict,
                                         .contract = contract,
                                         .build = build,
                                         .run = run};
