/* SPDX-License-Identifier: Apache-2.0
 * oneDNN behind one door. */
#include "ops/shared/onednn.h"

#ifdef MICA_HAVE_ONEDNN

#include "base/memory.h"
#include "cpu/cpu.h"

#include <omp.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include <dnnl.h>

#define ALIGNMENT 256
/* dnnl_memory objects carry pointers, so a run needs a set of its own; the ninth thread that runs
 * one plan at one time waits for the first of eight to finish. */
#define CONTEXTS 8
#define MAX_ARGS (MICA_ONEDNN_TENSORS + MICA_MAX_STEPS + 2)

static dnnl_data_type_t type_of(mica_dtype d)
{
    switch (d) {
    case MICA_F32:
        return dnnl_f32;
    case MICA_F16:
        return dnnl_f16;
    case MICA_BF16:
        return dnnl_bf16;
    case MICA_S8:
        return dnnl_s8;
    case MICA_U8:
        return dnnl_u8;
    case MICA_S32:
        return dnnl_s32;
    default:
        return dnnl_data_type_undef;
    }
}

/* Its arrays hold DNNL_MAX_NDIMS numbers, ours fewer. */
static void to_dims(dnnl_dims_t to, const int64_t *from, int count)
{
    memset(to, 0, sizeof(dnnl_dims_t));
    for (int i = 0; i < count; i++) to[i] = from[i];
}

/* ---- the two C APIs ---- */

#if DNNL_VERSION_MAJOR >= 3
typedef const_dnnl_memory_desc_t md_ref;
typedef struct md {
    dnnl_memory_desc_t it;
} md;
static md_ref md_get(const md *m)
{
    return m->it;
}
static dnnl_status_t md_make(md *m, const mica_tensor *t, bool any)
{
    dnnl_dims_t dims, strides;
    to_dims(dims, t->dims, t->rank);
    to_dims(strides, t->strides, t->rank);
    dnnl_data_type_t type = type_of(t->dtype);
    if (any)
        return dnnl_memory_desc_create_with_tag(&m->it, t->rank, dims, type, dnnl_format_tag_any);
    return dnnl_memory_desc_create_with_strides(&m->it, t->rank, dims, type, strides);
}
static void md_drop(md *m)
{
    if (m->it) dnnl_memory_desc_destroy(m->it);
    m->it = NULL;
}
static dnnl_status_t append_act(dnnl_post_ops_t ops, dnnl_alg_kind_t alg, float a, float b)
{
    return dnnl_post_ops_append_eltwise(ops, alg, a, b);
}
static dnnl_status_t append_sum(dnnl_post_ops_t ops, float scale)
{
    return dnnl_post_ops_append_sum(ops, scale, 0, dnnl_data_type_undef);
}
#else
typedef const dnnl_memory_desc_t *md_ref;
typedef struct md {
    dnnl_memory_desc_t it;
} md;
static md_ref md_get(const md *m)
{
    return &m->it;
}
static dnnl_status_t md_make(md *m, const mica_tensor *t, bool any)
{
    dnnl_dims_t dims, strides;
    to_dims(dims, t->dims, t->rank);
    to_dims(strides, t->strides, t->rank);
    dnnl_data_type_t type = type_of(t->dtype);
    if (any) return dnnl_memory_desc_init_by_tag(&m->it, t->rank, dims, type, dnnl_format_tag_any);
    return dnnl_memory_desc_init_by_strides(&m->it, t->rank, dims, type, strides);
}
static void md_drop(md *m)
{
    (void)m;
}
static dnnl_status_t append_act(dnnl_post_ops_t ops, dnnl_alg_kind_t alg, float a, float b)
{
    return dnnl_post_ops_append_eltwise(ops, 1.0f, alg, a, b);
}
static dnnl_status_t append_sum(dnnl_post_ops_t ops, float scale)
{
    return dnnl_post_ops_append_sum(ops, scale);
}
#endif

/* Packed inputs as bytes: version 2 writes the padding of a layout whenever it is given a pointer,
 * here into memory that other threads read. Primitives go by their own descriptions. */
static dnnl_status_t md_bytes(md *m, size_t bytes)
{
    mica_tensor t = {.dtype = MICA_U8, .rank = 1, .dims = {(int64_t)bytes}, .strides = {1}};
    return md_make(m, &t, false);
}

typedef struct maker {
    const mica_onednn_spec *spec;
    dnnl_engine_t engine;
    dnnl_primitive_attr_t attr;
    md tensor[MICA_ONEDNN_TENSORS], bias;
    dnnl_dims_t stride, dilation, low, high; /* dilation 0 is dense */
} maker;

#if DNNL_VERSION_MAJOR >= 3
static dnnl_status_t make_pd(const maker *m, dnnl_primitive_desc_t *pd)
{
    const mica_onednn_spec *s = m->spec;
    md_ref src = m->tensor[0].it, wei = m->tensor[1].it, dst = m->tensor[2].it, bias = m->bias.it;
    switch (s->kind) {
    case MICA_ONEDNN_MATMUL:
        return dnnl_matmul_primitive_desc_create(pd, m->engine, src, wei, bias, dst, m->attr);
    case MICA_ONEDNN_CONV_FWD:
        return dnnl_convolution_forward_primitive_desc_create(
            pd, m->engine, dnnl_forward_inference, dnnl_convolution_direct, src, wei, bias, dst,
            m->stride, m->dilation, m->low, m->high, m->attr);
    case MICA_ONEDNN_CONV_DGRAD:
        return dnnl_convolution_backward_data_primitive_desc_create(
            pd, m->engine, dnnl_convolution_direct, src, wei, dst, m->stride, m->dilation, m->low,
            m->high, NULL, m->attr);
    case MICA_ONEDNN_CONV_WGRAD:
        return dnnl_convolution_backward_weights_primitive_desc_create(
            pd, m->engine, dnnl_convolution_direct, src, wei, NULL, dst, m->stride, m->dilation,
            m->low, m->high, NULL, m->attr);
    }
    return dnnl_invalid_arguments;
}
#else
static dnnl_status_t make_matmul(const maker *m, dnnl_primitive_desc_t *pd)
{
    dnnl_matmul_desc_t d;
    const dnnl_memory_desc_t *bias = m->spec->bias.dtype ? &m->bias.it : NULL;
    dnnl_status_t s =
        dnnl_matmul_desc_init(&d, &m->tensor[0].it, &m->tensor[1].it, bias, &m->tensor[2].it);
    return s ? s : dnnl_primitive_desc_create(pd, &d, m->attr, m->engine, NULL);
}
static dnnl_status_t make_pd(const maker *m, dnnl_primitive_desc_t *pd)
{
    const mica_onednn_spec *s = m->spec;
    const dnnl_memory_desc_t *src = &m->tensor[0].it, *wei = &m->tensor[1].it,
                             *dst = &m->tensor[2].it, *bias = s->bias.dtype ? &m->bias.it : NULL;
    dnnl_convolution_desc_t d;
    dnnl_status_t status = dnnl_invalid_arguments;
    switch (s->kind) {
    case MICA_ONEDNN_MATMUL:
        return make_matmul(m, pd);
    case MICA_ONEDNN_CONV_FWD:
        status = dnnl_dilated_convolution_forward_desc_init(
            &d, dnnl_forward_inference, dnnl_convolution_direct, src, wei, bias, dst, m->stride,
            m->dilation, m->low, m->high);
        break;
    case MICA_ONEDNN_CONV_DGRAD:
        status = dnnl_dilated_convolution_backward_data_desc_init(
            &d, dnnl_convolution_direct, src, wei, dst, m->stride, m->dilation, m->low, m->high);
        break;
    case MICA_ONEDNN_CONV_WGRAD:
        status = dnnl_dilated_convolution_backward_weights_desc_init(&d, dnnl_convolution_direct,
                                                                     src, wei, NULL, dst, m->stride,
                                                                     m->dilation, m->low, m->high);
        break;
    }
    return status ? status : dnnl_primitive_desc_create(pd, &d, m->attr, m->engine, NULL);
}
#endif

/* ---- what a primitive consists of ---- */

typedef struct context {
    atomic_flag busy;
    dnnl_stream_t stream;
    dnnl_memory_t user[MICA_ONEDNN_TENSORS], inner[MICA_ONEDNN_TENSORS];
    dnnl_memory_t bias, steps[MICA_MAX_STEPS], scratch;
    dnnl_exec_arg_t args[MAX_ARGS];
    int arg_count;
} context;

struct mica_onednn {
    mica_onednn_kind kind;
    int threads, output; /* the tensor that is written */
    dnnl_engine_t engine;
    dnnl_primitive_desc_t pd;
    dnnl_primitive_t primitive;
    dnnl_primitive_t reorder[MICA_ONEDNN_TENSORS]; /* NULL: in the user's memory */
    /* Of packed inputs, which are not reordered in runs; serial, so that they run anywhere. */
    dnnl_primitive_t unpack[MICA_ONEDNN_TENSORS];
    size_t inner_at[MICA_ONEDNN_TENSORS], scratch_at, workspace;
    /* Plain copies share the workspace with what runs of the primitive need. */
    size_t plain_at[MICA_ONEDNN_TENSORS], plain_bytes;
    double reorder_bytes;
    context contexts[CONTEXTS];
};

static const int arg_numbers[][MICA_ONEDNN_TENSORS] = {
    [MICA_ONEDNN_MATMUL] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST},
    [MICA_ONEDNN_CONV_FWD] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST},
    [MICA_ONEDNN_CONV_DGRAD] = {DNNL_ARG_DIFF_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_DST},
    [MICA_ONEDNN_CONV_WGRAD] = {DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_DST},
};
static const int outputs[] = {
    [MICA_ONEDNN_MATMUL] = MICA_ONEDNN_DST,
    [MICA_ONEDNN_CONV_FWD] = MICA_ONEDNN_DST,
    [MICA_ONEDNN_CONV_DGRAD] = MICA_ONEDNN_SRC,
    [MICA_ONEDNN_CONV_WGRAD] = MICA_ONEDNN_WEI,
};
static const char *const tensor_names[] = {"src", "weights", "dst"};

static mica_status describe(md *m, const mica_tensor *t, bool any, const char *name, mica_why *why)
{
    if (type_of(t->dtype) == dnnl_data_type_undef)
        return mica_refuse(why, "%s is %s, oneDNN has no such type", name,
                           mica_dtype_name(t->dtype));
    for (int i = 0; i < t->rank; i++)
        if (t->dims[i] > 1 && t->strides[i] <= 0)
            return mica_refuse(why, "stride %lld of %s: oneDNN takes positive strides only",
                               (long long)t->strides[i], name);
    dnnl_status_t s = md_make(m, t, any);
    if (s != dnnl_success)
        return mica_refuse(why, "oneDNN does not take the layout of %s (its status %d)", name,
                           (int)s);
    return MICA_OK;
}

/* relu, leaky_relu and the clips are comparisons and one product. */
static bool act_algorithm(mica_act act, float a, float b, dnnl_alg_kind_t *alg, float ab[2])
{
    ab[0] = a, ab[1] = b;
    *alg = dnnl_eltwise_clip;
    switch (act) {
    case MICA_ACT_RELU:
        ab[0] = 0;
        *alg = dnnl_eltwise_relu;
        return true;
    case MICA_ACT_LEAKY_RELU:
        *alg = dnnl_eltwise_relu;
        return true;
    case MICA_ACT_CLIP:
        return true;
    case MICA_ACT_HARD_TANH:
        ab[0] = -1, ab[1] = 1;
        return true;
    case MICA_ACT_RELU6:
        ab[0] = 0, ab[1] = 6;
        return true;
    default:
        return false;
    }
}

bool mica_onednn_has_act(mica_act act)
{
    dnnl_alg_kind_t alg;
    float ab[2];
    return act_algorithm(act, 0, 0, &alg, ab);
}

bool mica_onednn_exact_int8(void)
{
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx512vnni");
#else
    return false;
#endif
}

#define TEXT_OF_(x) #x
#define TEXT_OF(x)  TEXT_OF_(x)
const char *mica_onednn_version(void)
{
    return TEXT_OF(DNNL_VERSION_MAJOR) "." TEXT_OF(DNNL_VERSION_MINOR) "." TEXT_OF(
        DNNL_VERSION_PATCH);
}

/* ---- making ---- */

static mica_status append_step(dnnl_post_ops_t ops, const mica_onednn_step *step, mica_why *why)
{
    dnnl_status_t s;
    if (step->kind == MICA_ONEDNN_SUM) {
        s = append_sum(ops, step->scale);
    } else if (step->kind == MICA_ONEDNN_ACT) {
        dnnl_alg_kind_t alg;
        float ab[2];
        if (!act_algorithm(step->act, step->a, step->b, &alg, ab))
            return mica_refuse(why, "activation %d: oneDNN only approximates it", (int)step->act);
        s = append_act(ops, alg, ab[0], ab[1]);
    } else {
        md m = {0};
        MICA_TRY(describe(&m, &step->t, false, "an epilogue's tensor", why));
        s = dnnl_post_ops_append_binary(
            ops, step->kind == MICA_ONEDNN_ADD ? dnnl_binary_add : dnnl_binary_mul, md_get(&m));
        md_drop(&m);
    }
    if (s != dnnl_success)
        return mica_refuse(why, "oneDNN does not take an epilogue step of kind %d (its status %d)",
                           (int)step->kind, (int)s);
    return MICA_OK;
}

static mica_status make_attr(maker *m, mica_why *why)
{
    dnnl_post_ops_t ops = NULL;
    if (dnnl_primitive_attr_create(&m->attr) || dnnl_post_ops_create(&ops) ||
        dnnl_primitive_attr_set_scratchpad_mode(m->attr, dnnl_scratchpad_mode_user)) {
        dnnl_post_ops_destroy(ops);
        return mica_refuse(why, "oneDNN could not make attributes");
    }
    mica_status status = MICA_OK;
    for (int i = 0; i < m->spec->step_count && status == MICA_OK; i++)
        status = append_step(ops, &m->spec->steps[i], why);
    if (status == MICA_OK && dnnl_primitive_attr_set_post_ops(m->attr, ops))
        status = mica_refuse(why, "oneDNN does not take the epilogue");
    dnnl_post_ops_destroy(ops);
    return status;
}

static size_t round_up(size_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static size_t book(mica_onednn *p, size_t bytes)
{
    size_t at = p->workspace;
    p->workspace += round_up(bytes);
    return at;
}

static md_ref inner_md(const mica_onednn *p, int i)
{
    return dnnl_primitive_desc_query_md(p->pd, dnnl_query_exec_arg_md, arg_numbers[p->kind][i]);
}
static md_ref scratch_md(const mica_onednn *p)
{
    return dnnl_primitive_desc_query_md(p->pd, dnnl_query_exec_arg_md, DNNL_ARG_SCRATCHPAD);
}

static dnnl_status_t new_reorder(const mica_onednn *p, md_ref from, md_ref to,
                                 dnnl_primitive_t *reorder)
{
    dnnl_primitive_desc_t pd = NULL;
    dnnl_status_t s = dnnl_reorder_primitive_desc_create(&pd, from, p->engine, to, p->engine, NULL);
    if (s == dnnl_success) s = dnnl_primitive_create(reorder, pd);
    if (pd) dnnl_primitive_desc_destroy(pd);
    return s;
}

/* Layouts with sums for corrections in them (8-bit integers) have no way back: not packed. */
static bool make_unpack(mica_onednn *p, int i, const md *user)
{
    int before = omp_get_max_threads();
    omp_set_num_threads(1);
    dnnl_status_t s = new_reorder(p, inner_md(p, i), md_get(user), &p->unpack[i]);
    omp_set_num_threads(before);
    return s == dnnl_success;
}

/* A reorder where the primitive's layout is not the user's. */
static mica_status make_reorder(mica_onednn *p, int i, const md *user, bool packed, mica_why *why)
{
    md_ref inner = inner_md(p, i);
    bool out = i == p->output;
    if (dnnl_memory_desc_equal(inner, md_get(user))) return MICA_OK;
    if (packed && !out && make_unpack(p, i, user)) {
        p->plain_at[i] = p->plain_bytes;
        p->plain_bytes += round_up(dnnl_memory_desc_get_size(md_get(user)));
        return MICA_OK;
    }
    dnnl_status_t s =
        new_reorder(p, out ? inner : md_get(user), out ? md_get(user) : inner, &p->reorder[i]);
    if (s != dnnl_success)
        return mica_refuse(why, "oneDNN has no reorder of %s (its status %d)", tensor_names[i],
                           (int)s);
    size_t bytes = dnnl_memory_desc_get_size(inner);
    p->inner_at[i] = book(p, bytes);
    p->reorder_bytes += (double)bytes + (double)dnnl_memory_desc_get_size(md_get(user));
    return MICA_OK;
}

static mica_status make_description(mica_onednn *p, const maker *m, mica_why *why)
{
    dnnl_status_t s = make_pd(m, &p->pd);
    if (s != dnnl_success)
        return mica_refuse(why, "oneDNN %s has no primitive for it (its status %d)",
                           mica_onednn_version(), (int)s);
    if (!strncmp(mica_onednn_name(p), "ref", 3))
        return mica_refuse(why, "oneDNN %s has only its reference loops for it",
                           mica_onednn_version());
    return MICA_OK;
}

static mica_status make_primitive(mica_onednn *p, const maker *m, mica_why *why)
{
    const mica_onednn_spec *spec = m->spec;
    if (dnnl_primitive_create(&p->primitive, p->pd))
        return mica_refuse(why, "oneDNN could not make the primitive");
    for (int i = 0; i < MICA_ONEDNN_TENSORS; i++) {
        if (!spec->any[i]) continue;
        md user = {0};
        mica_status status = describe(&user, &spec->tensor[i], false, tensor_names[i], why);
        if (status == MICA_OK) status = make_reorder(p, i, &user, spec->packed[i], why);
        if (status == MICA_OK && p->reorder[i] && i == p->output)
            for (int k = 0; k < spec->step_count; k++)
                if (spec->steps[k].kind == MICA_ONEDNN_SUM)
                    status = mica_refuse(why, "the old content enters: no reorder of the output");
        md_drop(&user);
        MICA_TRY(status);
    }
    p->scratch_at = book(p, dnnl_memory_desc_get_size(scratch_md(p)));
    if (p->workspace < p->plain_bytes) p->workspace = p->plain_bytes;
    return MICA_OK;
}

static void add_arg(context *c, int number, dnnl_memory_t memory)
{
    c->args[c->arg_count].arg = number;
    c->args[c->arg_count++].memory = memory;
}

static dnnl_status_t new_memory(const mica_onednn *p, md_ref what, dnnl_memory_t *memory)
{
    return dnnl_memory_create(memory, what, p->engine, DNNL_MEMORY_NONE);
}

static dnnl_status_t new_packed(const mica_onednn *p, int i, dnnl_memory_t *memory)
{
    md bytes = {0};
    dnnl_status_t s = md_bytes(&bytes, dnnl_memory_desc_get_size(inner_md(p, i)));
    if (!s) s = new_memory(p, md_get(&bytes), memory);
    md_drop(&bytes);
    return s;
}

static dnnl_status_t make_tensors(const mica_onednn *p, const maker *m, context *c)
{
    for (int i = 0; i < MICA_ONEDNN_TENSORS; i++) {
        const mica_tensor *t = &m->spec->tensor[i];
        md user = {0};
        dnnl_status_t s = md_make(&user, t, false);
        if (!s) s = new_memory(p, md_get(&user), &c->user[i]);
        md_drop(&user);
        if (!s && p->reorder[i]) s = new_memory(p, inner_md(p, i), &c->inner[i]);
        if (!s && p->unpack[i]) s = new_packed(p, i, &c->inner[i]);
        if (s) return s;
        add_arg(c, arg_numbers[p->kind][i], c->inner[i] ? c->inner[i] : c->user[i]);
    }
    return dnnl_success;
}

static dnnl_status_t make_context(const mica_onednn *p, const maker *m, context *c)
{
    atomic_flag_clear(&c->busy);
    dnnl_status_t s = dnnl_stream_create(&c->stream, p->engine, dnnl_stream_default_flags);
    if (!s) s = make_tensors(p, m, c);
    if (!s && m->spec->bias.dtype) {
        s = new_memory(p, md_get(&m->bias), &c->bias);
        add_arg(c, DNNL_ARG_BIAS, c->bias);
    }
    for (int i = 0; !s && i < m->spec->step_count; i++) {
        const mica_onednn_step *step = &m->spec->steps[i];
        if (step->kind != MICA_ONEDNN_ADD && step->kind != MICA_ONEDNN_MUL) continue;
        md d = {0};
        s = md_make(&d, &step->t, false);
        if (!s) s = new_memory(p, md_get(&d), &c->steps[i]);
        md_drop(&d);
        add_arg(c, DNNL_ARG_ATTR_MULTIPLE_POST_OP(i) | DNNL_ARG_SRC_1, c->steps[i]);
    }
    if (!s) s = new_memory(p, scratch_md(p), &c->scratch);
    if (!s) add_arg(c, DNNL_ARG_SCRATCHPAD, c->scratch);
    return s;
}

static mica_status describe_all(maker *m, mica_why *why)
{
    const mica_onednn_spec *spec = m->spec;
    for (int i = 0; i < MICA_ONEDNN_TENSORS; i++)
        MICA_TRY(describe(&m->tensor[i], &spec->tensor[i], spec->any[i], tensor_names[i], why));
    if (spec->bias.dtype) MICA_TRY(describe(&m->bias, &spec->bias, false, "bias", why));
    to_dims(m->stride, spec->stride, 3);
    to_dims(m->low, spec->pad_low, 3);
    to_dims(m->high, spec->pad_high, 3);
    for (int i = 0; i < 3; i++) m->dilation[i] = spec->dilation[i] > 0 ? spec->dilation[i] - 1 : 0;
    return make_attr(m, why);
}

/* The whole primitive, or with `probe` only its description. */
static mica_status make(mica_onednn *p, const mica_onednn_spec *spec, bool probe, mica_why *why)
{
    maker m = {.spec = spec};
    mica_status status = MICA_OK;
    if (dnnl_engine_create(&p->engine, dnnl_cpu, 0))
        status = mica_refuse(why, "oneDNN has no CPU engine");
    m.engine = p->engine;
    if (status == MICA_OK) status = describe_all(&m, why);
    if (status == MICA_OK) status = make_description(p, &m, why);
    if (status == MICA_OK && !probe) status = make_primitive(p, &m, why);
    for (int i = 0; i < CONTEXTS && status == MICA_OK && !probe; i++)
        if (make_context(p, &m, &p->contexts[i]))
            status = mica_refuse(why, "oneDNN could not make memory objects");
    for (int i = 0; i < MICA_ONEDNN_TENSORS; i++) md_drop(&m.tensor[i]);
    md_drop(&m.bias);
    if (m.attr) dnnl_primitive_attr_destroy(m.attr);
    return status;
}

/* oneDNN counts in 32 bits in places, and divides by what then overflows to 0. */
static mica_status check_sizes(const mica_onednn_spec *spec, mica_why *why)
{
    for (int i = 0; i < MICA_ONEDNN_TENSORS; i++) {
        int64_t count = mica_tensor_count(&spec->tensor[i]);
        if (count > INT32_MAX)
            return mica_refuse(why, "a tensor has %lld elements, oneDNN is given at most 2^31 - 1",
                               (long long)count);
    }
    for (int i = 0; i < 3; i++) {
        const int64_t values[] = {spec->stride[i], spec->dilation[i], spec->pad_low[i],
                                  spec->pad_high[i]};
        for (size_t k = 0; k < sizeof values / sizeof *values; k++)
            if (values[k] > INT16_MAX || values[k] < INT16_MIN)
                return mica_refuse(why,
                                   "a stride, dilation or padding is %lld, oneDNN is given at "
                                   "most 32767",
                                   (long long)values[k]);
    }
    return MICA_OK;
}

static mica_status create(const mica_onednn_spec *spec, bool probe, mica_onednn **primitive,
                          mica_why *why)
{
    MICA_TRY(check_sizes(spec, why));
    mica_onednn *p = mica_alloc(sizeof *p);
    if (!p) return mica_fail_memory(sizeof *p);
    p->kind = spec->kind;
    p->output = outputs[spec->kind];
    p->threads = mica_cpu_threads();
    int before = omp_get_max_threads();
    omp_set_num_threads(p->threads);
    mica_status status = make(p, spec, probe, why);
    omp_set_num_threads(before);
    if (status == MICA_OK && !probe)
        *primitive = p;
    else
        mica_onednn_destroy(p);
    return status;
}

mica_status mica_onednn_probe(const mica_onednn_spec *spec, mica_why *why)
{
    return create(spec, true, NULL, why);
}

mica_status mica_onednn_create(const mica_onednn_spec *spec, mica_onednn **primitive, mica_why *why)
{
    *primitive = NULL;
    return create(spec, false, primitive, why);
}

static void drop_memory(dnnl_memory_t memory)
{
    if (memory) dnnl_memory_destroy(memory);
}

void mica_onednn_destroy(mica_onednn *p)
{
    if (!p) return;
    for (int i = 0; i < CONTEXTS; i++) {
        context *c = &p->contexts[i];
        for (int t = 0; t < MICA_ONEDNN_TENSORS; t++) {
            drop_memory(c->user[t]);
            drop_memory(c->inner[t]);
        }
        for (int t = 0; t < MICA_MAX_STEPS; t++) drop_memory(c->steps[t]);
        drop_memory(c->bias);
        drop_memory(c->scratch);
        if (c->stream) dnnl_stream_destroy(c->stream);
    }
    for (int t = 0; t < MICA_ONEDNN_TENSORS; t++) {
        if (p->reorder[t]) dnnl_primitive_destroy(p->reorder[t]);
        if (p->unpack[t]) dnnl_primitive_destroy(p->unpack[t]);
    }
    if (p->primitive) dnnl_primitive_destroy(p->primitive);
    if (p->pd) dnnl_primitive_desc_destroy(p->pd);
    if (p->engine) dnnl_engine_destroy(p->engine);
    mica_release(p);
}

size_t mica_onednn_workspace(const mica_onednn *p)
{
    return p->workspace;
}

const char *mica_onednn_name(const mica_onednn *p)
{
    const char *name = "";
    if (dnnl_primitive_desc_query(p->pd, dnnl_query_impl_info_str, 0, &name)) return "";
    return name;
}

double mica_onednn_reorder_bytes(const mica_onednn *p)
{
    return p->reorder_bytes;
}

/* ---- running ---- */

bool mica_onednn_ready(const mica_onednn *p)
{
    return p->threads == 1 || (!omp_in_parallel() && mica_cpu_threads() >= p->threads);
}

/* Runs are synchronous, so a busy context comes free by itself. */
static context *claim(const mica_onednn *p)
{
    context *all = (context *)(uintptr_t)p->contexts;
    for (;; sched_yield())
        for (int i = 0; i < CONTEXTS; i++)
            if (!atomic_flag_test_and_set_explicit(&all[i].busy, memory_order_acquire))
                return &all[i];
}

static dnnl_status_t set_handles(const mica_onednn *p, context *c, const mica_onednn_args *args,
                                 void *workspace)
{
    dnnl_status_t s = dnnl_success;
    char *base = workspace;
    for (int i = 0; i < MICA_ONEDNN_TENSORS && !s; i++) {
        void *inner = p->unpack[i] ? args->tensor[i] : base + p->inner_at[i];
        if (!p->unpack[i]) s = dnnl_memory_set_data_handle(c->user[i], args->tensor[i]);
        if (!s && c->inner[i]) s = dnnl_memory_set_data_handle(c->inner[i], inner);
    }
    if (!s && c->bias) s = dnnl_memory_set_data_handle(c->bias, args->bias);
    for (int i = 0; i < MICA_MAX_STEPS && !s; i++)
        if (c->steps[i]) s = dnnl_memory_set_data_handle(c->steps[i], args->steps[i]);
    if (!s && base) s = dnnl_memory_set_data_handle(c->scratch, base + p->scratch_at);
    return s;
}

static dnnl_status_t reorder(const mica_onednn *p, const context *c, int i)
{
    bool out = i == p->output;
    dnnl_exec_arg_t args[2] = {{DNNL_ARG_FROM, out ? c->inner[i] : c->user[i]},
                               {DNNL_ARG_TO, out ? c->user[i] : c->inner[i]}};
    return dnnl_primitive_execute(p->reorder[i], c->stream, 2, args);
}

mica_status mica_onednn_run(const mica_onednn *p, const mica_onednn_args *args, void *workspace)
{
    int before = omp_get_max_threads();
    if (before != p->threads) omp_set_num_threads(p->threads);
    context *c = claim(p);
    dnnl_status_t s = set_handles(p, c, args, workspace);
    for (int i = 0; i < MICA_ONEDNN_TENSORS && !s; i++)
        if (p->reorder[i] && i != p->output) s = reorder(p, c, i);
    if (!s) s = dnnl_primitive_execute(p->primitive, c->stream, c->arg_count, c->args);
    if (!s && p->reorder[p->output]) s = reorder(p, c, p->output);
    if (!s) s = dnnl_stream_wait(c->stream);
    atomic_flag_clear_explicit(&c->busy, memory_order_release);
    if (before != p->threads) omp_set_num_threads(before);
    if (s) return mica_fail(MICA_INTERNAL, "oneDNN failed with its status %d", (int)s);
    return MICA_OK;
}

/* ---- packing ---- */

size_t mica_onednn_packed_bytes(const mica_onednn *p, int i)
{
    return p->unpack[i] ? dnnl_memory_desc_get_size(inner_md(p, i)) : 0;
}

static dnnl_status_t move(const mica_onednn *p, context *c, int i, dnnl_primitive_t reorder,
                          void *user, dnnl_memory_t inner, void *packed)
{
    bool unpack = reorder == p->unpack[i];
    dnnl_exec_arg_t args[2] = {{DNNL_ARG_FROM, unpack ? inner : c->user[i]},
                               {DNNL_ARG_TO, unpack ? c->user[i] : inner}};
    dnnl_status_t s = dnnl_memory_set_data_handle(c->user[i], user);
    if (!s) s = dnnl_memory_set_data_handle(inner, packed);
    if (!s) s = dnnl_primitive_execute(reorder, c->stream, 2, args);
    return s ? s : dnnl_stream_wait(c->stream);
}

static mica_status packing_failed(dnnl_status_t s)
{
    if (s) return mica_fail(MICA_INTERNAL, "oneDNN's reorder failed with its status %d", (int)s);
    return MICA_OK;
}

/* Once per constant, so the reorder is made for it, with the threads that are there now. */
mica_status mica_onednn_pack(const mica_onednn *p, int i, const void *from, void *to)
{
    md_ref user;
    dnnl_primitive_t pack = NULL;
    dnnl_memory_t inner = NULL;
    int before = omp_get_max_threads();
    omp_set_num_threads(omp_in_parallel() ? 1 : mica_cpu_threads());
    context *c = claim(p);
    dnnl_status_t s = dnnl_memory_get_memory_desc(c->user[i], &user);
    if (!s) s = new_reorder(p, user, inner_md(p, i), &pack);
    if (!s) s = new_memory(p, inner_md(p, i), &inner);
    if (!s) s = move(p, c, i, pack, (void *)(uintptr_t)from, inner, to);
    drop_memory(inner);
    if (pack) dnnl_primitive_destroy(pack);
    atomic_flag_clear_explicit(&c->busy, memory_order_release);
    omp_set_num_threads(before);
    return packing_failed(s);
}

mica_status mica_onednn_unpack(const mica_onednn *p, mica_onednn_args *args, void *workspace)
{
    dnnl_status_t s = dnnl_success;
    context *c = claim(p);
    for (int i = 0; i < MICA_ONEDNN_TENSORS && !s; i++) {
        if (!p->unpack[i]) continue;
        void *plain = (char *)workspace + p->plain_at[i];
        s = move(p, c, i, p->unpack[i], plain, c->inner[i], args->tensor[i]);
        args->tensor[i] = plain;
    }
    atomic_flag_clear_explicit(&c->busy, memory_order_release);
    return packing_failed(s);
}

static dnnl_status_t gemm(const mica_onednn_gemm_args *g)
{
    const int32_t zero = 0;
    char a_t = g->a_t ? 'T' : 'N', b_t = g->b_t ? 'T' : 'N';
    if (g->type == MICA_F32)
        return dnnl_sgemm(a_t, b_t, g->m, g->n, g->k, g->alpha, g->a, g->a_ld, g->b, g->b_ld,
                          g->beta, g->c, g->c_ld);
    if (g->type == MICA_S8)
        return dnnl_gemm_s8s8s32(a_t, b_t, 'F', g->m, g->n, g->k, 1, g->a, g->a_ld, 0, g->b,
                                 g->b_ld, 0, 0, g->c, g->c_ld, &zero);
    return dnnl_gemm_u8s8s32(a_t, b_t, 'F', g->m, g->n, g->k, 1, g->a, g->a_ld, 0, g->b, g->b_ld, 0,
                             0, g->c, g->c_ld, &zero);
}

mica_status mica_onednn_gemm(const mica_onednn_gemm_args *g)
{
    int before = omp_get_max_threads(), threads = mica_cpu_threads();
    if (before != threads) omp_set_num_threads(threads);
    dnnl_status_t s = gemm(g);
    if (before != threads) omp_set_num_threads(before);
    if (s) return mica_fail(MICA_INTERNAL, "oneDNN's gemm failed with its status %d", (int)s);
    return MICA_OK;
}

#else

const char *mica_onednn_version(void)
{
    return NULL;
}
bool mica_onednn_has_act(mica_act act)
{
    (void)act;
    return false;
}
bool mica_onednn_exact_int8(void)
{
    return false;
}
mica_status mica_onednn_create(const mica_onednn_spec *spec, mica_onednn **primitive, mica_why *why)
{
    (void)spec;
    *primitive = NULL;
    return mica_refuse(why, "built without oneDNN");
}
mica_status mica_onednn_probe(const mica_onednn_spec *spec, mica_why *why)
{
    (void)spec;
    return mica_refuse(why, "built without oneDNN");
}
void mica_onednn_destroy(mica_onednn *p)
{
    (void)p;
}
size_t mica_onednn_workspace(const mica_onednn *p)
{
    (void)p;
    return 0;
}
const char *mica_onednn_name(const mica_onednn *p)
{
    (void)p;
    return "";
}
double mica_onednn_reorder_bytes(const mica_onednn *p)
{
    (void)p;
    return 0;
}
size_t mica_onednn_packed_bytes(const mica_onednn *p, int tensor)
{
    (void)p, (void)tensor;
    return 0;
}
mica_status mica_onednn_pack(const mica_onednn *p, int tensor, const void *from, void *to)
{
    (void)p, (void)tensor, (void)from, (void)to;
    return mica_fail(MICA_INTERNAL, "built without oneDNN");
}
mica_status mica_onednn_unpack(const mica_onednn *p, mica_onednn_args *args, void *workspace)
{
    (void)p, (void)args, (void)workspace;
    return mica_fail(MICA_INTERNAL, "built without oneDNN");
}
bool mica_onednn_ready(const mica_onednn *p)
{
    (void)p;
    return false;
}
mica_status mica_onednn_run(const mica_onednn *p, const mica_onednn_args *args, void *workspace)
{
    (void)p, (void)args, (void)workspace;
    return mica_fail(MICA_INTERNAL, "built without oneDNN");
}
mica_status mica_onednn_gemm(const mica_onednn_gemm_args *args)
{
    (void)args;
    return mica_fail(MICA_INTERNAL, "built without oneDNN");
}

#endif
