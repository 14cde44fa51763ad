/* SPDX-License-Identifier: Apache-2.0
 * oneDNN behind one door: making primitives. */
#include "ops/onednn/onednn_api.h"
#include "base/memory.h"
#include "cpu/cpu.h"

#include <pthread.h>

#define ALIGNMENT 256

static const int outputs[] = {
    [MICA_ONEDNN_MATMUL] = MICA_ONEDNN_DST,
    [MICA_ONEDNN_CONV_FWD] = MICA_ONEDNN_DST,
    [MICA_ONEDNN_CONV_DGRAD] = MICA_ONEDNN_SRC,
    [MICA_ONEDNN_CONV_WGRAD] = MICA_ONEDNN_WEI,
};
static const char *const tensor_names[] = {"src", "weights", "dst"};

static mica_status describe(md *m, const mica_tensor *t, bool any, const char *name, mica_why *why)
{
    if (type_of(t->dtype) == ONEDNN_UNDEF)
        return mica_refuse(why, "%s is %s, oneDNN has no such type", name,
                           mica_dtype_name(t->dtype));
    for (int i = 0; i < t->rank; i++)
        if (t->dims[i] > 1 && t->strides[i] <= 0)
            return mica_refuse(why, "stride %lld of %s: oneDNN takes positive strides only",
                               (long long)t->strides[i], name);
    dnnl_status_t s = md_make(m, t, any);
    if (s != ONEDNN_SUCCESS)
        return mica_refuse(why, "oneDNN does not take the layout of %s (its status %d)", name,
                           (int)s);
    return MICA_OK;
}

/* relu and leaky_relu are a comparison and one product. Its clips are that, too, but give a bound
 * for NaN. */
static bool act_algorithm(mica_act act, float a, dnnl_alg_kind_t *alg, float *slope)
{
    *slope = act == MICA_ACT_RELU ? 0 : a;
    *alg = ONEDNN(eltwise_relu);
    return act == MICA_ACT_RELU || act == MICA_ACT_LEAKY_RELU;
}

/* Without a slope some of its kernels take the maximum of 0 and NaN, which is 0 there. */
bool mica_onednn_hides_nan(const int32_t *epilogue, double act_a)
{
    for (int i = 0; i < MICA_MAX_STEPS && epilogue[i]; i++)
        if (epilogue[i] == MICA_STEP_ACT + MICA_ACT_RELU ||
            (epilogue[i] == MICA_STEP_ACT + MICA_ACT_LEAKY_RELU && act_a == 0))
            return true;
    return false;
}

bool mica_onednn_has_act(mica_act act)
{
    dnnl_alg_kind_t alg;
    float slope;
    return act_algorithm(act, 0, &alg, &slope);
}

bool mica_onednn_exact_int8(void)
{
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx512vnni");
#else
    return false;
#endif
}

bool mica_onednn_adds_late(void)
{
#if defined(__x86_64__)
    return !__builtin_cpu_supports("avx512f");
#else
    return true;
#endif
}

/* ---- making ---- */

static mica_status append_step(dnnl_post_ops_t ops, const mica_onednn_step *step, mica_why *why)
{
    dnnl_status_t s;
    if (step->kind == MICA_ONEDNN_SUM) {
        s = append_sum(ops, step->scale);
    } else if (step->kind == MICA_ONEDNN_ACT) {
        dnnl_alg_kind_t alg;
        float slope;
        if (!act_algorithm(step->act, step->a, &alg, &slope))
            return mica_refuse(why, "activation %d: oneDNN approximates it", (int)step->act);
        s = append_act(ops, alg, slope, 0);
    } else {
        md m = {0};
        MICA_TRY(describe(&m, &step->t, false, "an epilogue's tensor", why));
        s = mica_dnnl.append_binary(
            ops, step->kind == MICA_ONEDNN_ADD ? ONEDNN_BINARY_ADD : ONEDNN_BINARY_MUL, md_get(&m));
        md_drop(&m);
    }
    if (s != ONEDNN_SUCCESS)
        return mica_refuse(why, "oneDNN does not take an epilogue step of kind %d (its status %d)",
                           (int)step->kind, (int)s);
    return MICA_OK;
}

static mica_status make_attr(maker *m, mica_why *why)
{
    dnnl_post_ops_t ops = NULL;
    if (mica_dnnl.attr_create(&m->attr) || mica_dnnl.post_ops_create(&ops) ||
        mica_dnnl.attr_set_scratchpad(m->attr, ONEDNN_SCRATCHPAD_USER)) {
        mica_dnnl.post_ops_destroy(ops);
        return mica_refuse(why, "oneDNN could not make attributes");
    }
    mica_status status = MICA_OK;
    for (int i = 0; i < m->spec->step_count && status == MICA_OK; i++)
        status = append_step(ops, &m->spec->steps[i], why);
    if (status == MICA_OK && mica_dnnl.attr_set_post_ops(m->attr, ops))
        status = mica_refuse(why, "oneDNN does not take the epilogue");
    mica_dnnl.post_ops_destroy(ops);
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

static onednn_md_ref scratch_md(const mica_onednn *p)
{
    return mica_dnnl.pd_query_md(p->pd, ONEDNN_QUERY_EXEC_ARG_MD, ONEDNN_ARG_SCRATCHPAD);
}

/* Layouts with sums for corrections in them (8-bit integers) have no way back: not packed. */
static bool make_unpack(mica_onednn *p, int i, const md *user)
{
    int before = swap_threads(1);
    dnnl_status_t s = new_reorder(p, inner_md(p, i), md_get(user), &p->unpack[i]);
    swap_threads(before);
    return s == ONEDNN_SUCCESS;
}

/* A reorder where the primitive's layout is not the user's. */
static mica_status make_reorder(mica_onednn *p, int i, const md *user, bool packed, mica_why *why)
{
    onednn_md_ref inner = inner_md(p, i);
    bool out = i == p->output;
    if (mica_dnnl.md_equal(inner, md_get(user))) return MICA_OK;
    if (packed && !out && make_unpack(p, i, user)) {
        p->plain_at[i] = p->plain_bytes;
        p->plain_bytes += round_up(mica_dnnl.md_bytes(md_get(user)));
        return MICA_OK;
    }
    dnnl_status_t s =
        new_reorder(p, out ? inner : md_get(user), out ? md_get(user) : inner, &p->reorder[i]);
    if (s != ONEDNN_SUCCESS)
        return mica_refuse(why, "oneDNN has no reorder of %s (its status %d)", tensor_names[i],
                           (int)s);
    size_t bytes = mica_dnnl.md_bytes(inner);
    p->inner_at[i] = book(p, bytes);
    p->reorder_bytes += (double)bytes + (double)mica_dnnl.md_bytes(md_get(user));
    return MICA_OK;
}

static mica_status make_description(mica_onednn *p, const maker *m, mica_why *why)
{
    dnnl_status_t s = make_pd(m, &p->pd);
    if (s != ONEDNN_SUCCESS)
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
    if (mica_dnnl.primitive_create(&p->primitive, p->pd))
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
    p->scratch_at = book(p, mica_dnnl.md_bytes(scratch_md(p)));
    if (p->workspace < p->plain_bytes) p->workspace = p->plain_bytes;
    return MICA_OK;
}

static void add_arg(context *c, int number, dnnl_memory_t memory)
{
    c->args[c->arg_count].arg = number;
    c->args[c->arg_count++].memory = memory;
}

static dnnl_status_t new_packed(const mica_onednn *p, int i, dnnl_memory_t *memory)
{
    md bytes = {0};
    dnnl_status_t s = md_bytes(&bytes, mica_dnnl.md_bytes(inner_md(p, i)));
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
        add_arg(c, arg_number(p->kind, i), c->inner[i] ? c->inner[i] : c->user[i]);
    }
    return ONEDNN_SUCCESS;
}

static dnnl_status_t make_context(const mica_onednn *p, const maker *m, context *c)
{
    atomic_init(&c->busy, 0);
    dnnl_status_t s = mica_dnnl.stream_create(&c->stream, p->engine, ONEDNN_STREAM_DEFAULT);
    if (!s) s = make_tensors(p, m, c);
    if (!s && m->spec->bias.dtype) {
        s = new_memory(p, md_get(&m->bias), &c->bias);
        add_arg(c, ONEDNN_ARG_BIAS, c->bias);
    }
    for (int i = 0; !s && i < m->spec->step_count; i++) {
        const mica_onednn_step *step = &m->spec->steps[i];
        if (step->kind != MICA_ONEDNN_ADD && step->kind != MICA_ONEDNN_MUL) continue;
        md d = {0};
        s = md_make(&d, &step->t, false);
        if (!s) s = new_memory(p, md_get(&d), &c->steps[i]);
        md_drop(&d);
        add_arg(c, ONEDNN(post_op_arg) * (i + 1) | ONEDNN_ARG_SRC_1, c->steps[i]);
    }
    if (!s) s = new_memory(p, scratch_md(p), &c->scratch);
    if (!s) add_arg(c, ONEDNN_ARG_SCRATCHPAD, c->scratch);
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
    if (mica_dnnl.engine_create(&p->engine, ONEDNN_CPU, 0))
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
    if (m.attr) mica_dnnl.attr_destroy(m.attr);
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

/* Gives back what is oneDNN's, where that can still be. */
static void close_up(mica_onednn *p)
{
    if (mica_onednn_forked() || !mica_onednn_enter()) return;
    for (int i = 0; i < CONTEXTS; i++) {
        context *c = &p->contexts[i];
        for (int t = 0; t < MICA_ONEDNN_TENSORS; t++) {
            drop_memory(c->user[t]);
            drop_memory(c->inner[t]);
        }
        for (int t = 0; t < MICA_MAX_STEPS; t++) drop_memory(c->steps[t]);
        drop_memory(c->bias);
        drop_memory(c->scratch);
        if (c->stream) mica_dnnl.stream_destroy(c->stream);
    }
    for (int t = 0; t < MICA_ONEDNN_TENSORS; t++) {
        if (p->reorder[t]) mica_dnnl.primitive_destroy(p->reorder[t]);
        if (p->unpack[t]) mica_dnnl.primitive_destroy(p->unpack[t]);
    }
    if (p->primitive) mica_dnnl.primitive_destroy(p->primitive);
    if (p->pd) mica_dnnl.pd_destroy(p->pd);
    if (p->engine) mica_dnnl.engine_destroy(p->engine);
    mica_onednn_leave();
}

static mica_status create(mica_onednn *p, const mica_onednn_spec *spec, bool probe, mica_why *why)
{
    p->kind = spec->kind;
    p->output = outputs[spec->kind];
    p->threads = mica_dnnl.set_threads ? mica_cpu_threads() : 1;
    if (!mica_onednn_enter()) return mica_refuse(why, "oneDNN is closed: the process ends");
    int before = swap_threads(p->threads);
    mica_status status = make(p, spec, probe, why);
    swap_threads(before);
    mica_onednn_leave();
    return status;
}

static mica_status check(const mica_onednn_spec *spec, mica_why *why)
{
    MICA_TRY(mica_onednn_load(why));
    return check_sizes(spec, why);
}

/* Nothing of ours is allocated, so that lack of memory is never taken for a refusal. */
mica_status mica_onednn_probe(const mica_onednn_spec *spec, mica_why *why)
{
    mica_onednn p = {0};
    MICA_TRY(check(spec, why));
    mica_status status = create(&p, spec, true, why);
    close_up(&p);
    return status;
}

mica_status mica_onednn_create(const mica_onednn_spec *spec, mica_onednn **primitive, mica_why *why)
{
    *primitive = NULL;
    MICA_TRY(check(spec, why));
    mica_onednn *p = mica_alloc(sizeof *p);
    if (!p) return mica_fail_memory(sizeof *p);
    mica_status status = create(p, spec, false, why);
    if (status == MICA_OK)
        *primitive = p;
    else
        mica_onednn_destroy(p);
    return status;
}

void mica_onednn_destroy(mica_onednn *p)
{
    if (!p) return;
    close_up(p);
    mica_release(p);
}

/* Code is generated for each primitive, and each context has memory objects with descriptions.
 * Resident memory of 300 plans held, by version 2.6: 94 to 103 KB for a convolution, 133 with two
 * reorders, 29 for a product. */
size_t mica_onednn_bytes(const mica_onednn *p)
{
    const size_t convolution = 96 << 10, product = 32 << 10, one_reorder = 24 << 10;
    size_t bytes = sizeof *p + (p->kind == MICA_ONEDNN_MATMUL ? product : convolution);
    for (int i = 0; i < MICA_ONEDNN_TENSORS; i++)
        bytes += (p->reorder[i] ? one_reorder : 0) + (p->unpack[i] ? one_reorder : 0);
    return bytes;
}

size_t mica_onednn_workspace(const mica_onednn *p)
{
    return p->workspace;
}

const char *mica_onednn_name(const mica_onednn *p)
{
    const char *name = "";
    if (mica_dnnl.pd_query(p->pd, ONEDNN_QUERY_IMPLEMENTATION, 0, &name)) return "";
    return name;
}

double mica_onednn_reorder_bytes(const mica_onednn *p)
{
    return p->reorder_bytes;
}
