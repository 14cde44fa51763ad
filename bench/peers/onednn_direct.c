/* SPDX-License-Identifier: Apache-2.0
 * oneDNN called directly. The C APIs of versions 2 and 3 differ in how descriptors are made. */
#include "onednn_direct.h"

#include <dnnl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SRC, WEI, DST, BIAS, FIRST_STEP, TENSORS = FIRST_STEP + MICA_MAX_STEPS, MAX_SETS = 64 };

typedef struct tensor {
    bool used, output;
    int arg;    /* of the mica problem */
    int number; /* DNNL_ARG_... */
    mica_tensor t;
} tensor;

typedef struct layout {
    bool any, before;      /* the primitive chooses it; and runs find the tensor so */
    dnnl_primitive_t join; /* the reorder of each run, or NULL */
    dnnl_memory_t inner;   /* what the reorder joins the user's memory with */
} layout;

struct direct {
    direct_formats formats;
    uint64_t packed;
    tensor tensors[TENSORS];
    layout layouts[TENSORS];
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    dnnl_primitive_desc_t pd;
    dnnl_primitive_t primitive;
    dnnl_memory_t memory[MAX_SETS][TENSORS]; /* the user's, or packed */
    int sets;
};

/* ---- the two C APIs ---- */

#if DNNL_VERSION_MAJOR >= 3
typedef const_dnnl_memory_desc_t md_ref;
typedef dnnl_memory_desc_t md;
static md_ref ref(const md *m)
{
    return *m;
}
static dnnl_status_t describe(md *m, const mica_tensor *t, bool any)
{
    dnnl_dims_t dims = {0}, strides = {0};
    for (int i = 0; i < t->rank; i++) dims[i] = t->dims[i], strides[i] = t->strides[i];
    if (any)
        return dnnl_memory_desc_create_with_tag(m, t->rank, dims, dnnl_f32, dnnl_format_tag_any);
    return dnnl_memory_desc_create_with_strides(m, t->rank, dims, dnnl_f32, strides);
}
static void drop(md *m)
{
    if (*m) dnnl_memory_desc_destroy(*m);
}
static dnnl_status_t append_act(dnnl_post_ops_t ops, dnnl_alg_kind_t alg, float a)
{
    return dnnl_post_ops_append_eltwise(ops, alg, a, 0);
}
#else
typedef const dnnl_memory_desc_t *md_ref;
typedef dnnl_memory_desc_t md;
static md_ref ref(const md *m)
{
    return m;
}
static dnnl_status_t describe(md *m, const mica_tensor *t, bool any)
{
    dnnl_dims_t dims = {0}, strides = {0};
    for (int i = 0; i < t->rank; i++) dims[i] = t->dims[i], strides[i] = t->strides[i];
    if (any) return dnnl_memory_desc_init_by_tag(m, t->rank, dims, dnnl_f32, dnnl_format_tag_any);
    return dnnl_memory_desc_init_by_strides(m, t->rank, dims, dnnl_f32, strides);
}
static void drop(md *m)
{
    (void)m;
}
static dnnl_status_t append_act(dnnl_post_ops_t ops, dnnl_alg_kind_t alg, float a)
{
    return dnnl_post_ops_append_eltwise(ops, 1, alg, a, 0);
}
#endif

/* ---- the epilogue ---- */

static const struct {
    mica_act act;
    dnnl_alg_kind_t alg;
    float alpha;
} acts[] = {
    {MICA_ACT_RELU, dnnl_eltwise_relu, 0},     {MICA_ACT_SIGMOID, dnnl_eltwise_logistic, 0},
    {MICA_ACT_TANH, dnnl_eltwise_tanh, 0},     {MICA_ACT_SILU, dnnl_eltwise_swish, 1},
    {MICA_ACT_GELU, dnnl_eltwise_gelu_erf, 0}, {MICA_ACT_GELU_TANH, dnnl_eltwise_gelu_tanh, 0}};

static bool append(dnnl_post_ops_t ops, int step, const mica_tensor *operand)
{
    for (size_t i = 0; i < sizeof acts / sizeof *acts; i++)
        if (step == (int)MICA_STEP_ACT + (int)acts[i].act)
            return append_act(ops, acts[i].alg, acts[i].alpha) == dnnl_success;
    if (step >= MICA_STEP_ACT) return false;
    md m = {0};
    bool ok = describe(&m, operand, false) == dnnl_success &&
              dnnl_post_ops_append_binary(
                  ops, step == MICA_STEP_SCALE ? dnnl_binary_mul : dnnl_binary_add, ref(&m)) ==
                  dnnl_success;
    drop(&m);
    return ok;
}

/* A vector over dimension `axis` of an output of rank `rank`. */
static mica_tensor spread(const mica_tensor *v, int rank, int axis)
{
    mica_tensor t = {.dtype = v->dtype, .rank = rank};
    for (int i = rank - 1; i >= 0; i--) {
        t.dims[i] = i == axis ? v->dims[0] : 1;
        t.strides[i] = i >= axis ? 1 : v->dims[0];
    }
    return t;
}

typedef struct epilogue {
    const int32_t *steps;
    const mica_tensor *operand[MICA_STEP_ACT]; /* by step */
    int arg[MICA_STEP_ACT];                    /* MICA_GEMM_ or MICA_CONV_ numbers */
    int axis;                                  /* of the vectors */
    bool whole_bias;                           /* the primitive wants a bias of the output's rank */
} epilogue;

static bool set_epilogue(direct *d, const epilogue *e, dnnl_primitive_attr_t attr, char *why,
                         size_t size)
{
    dnnl_post_ops_t ops;
    int rank = d->tensors[DST].t.rank, number = 0;
    if (dnnl_post_ops_create(&ops) != dnnl_success) return false;
    bool ok = true;
    for (int i = 0; ok && i < MICA_MAX_STEPS && e->steps[i]; i++) {
        int step = e->steps[i];
        const mica_tensor *v = step < MICA_STEP_ACT ? e->operand[step] : NULL;
        mica_tensor operand = {0};
        if (v && v->dtype != MICA_F32) ok = false;
        if (v) operand = step == MICA_STEP_RESIDUAL ? *v : spread(v, rank, e->axis);
        if (step == MICA_STEP_BIAS && i == 0) {
            d->tensors[BIAS] =
                (tensor){true, false, e->arg[step], DNNL_ARG_BIAS, e->whole_bias ? operand : *v};
            continue;
        }
        ok = ok && append(ops, step, &operand);
        if (v)
            d->tensors[FIRST_STEP + number] =
                (tensor){true, false, e->arg[step],
                         DNNL_ARG_ATTR_MULTIPLE_POST_OP(number) | DNNL_ARG_SRC_1, operand};
        number++;
    }
    ok = ok && dnnl_primitive_attr_set_post_ops(attr, ops) == dnnl_success;
    dnnl_post_ops_destroy(ops);
    if (!ok) snprintf(why, size, "the peer has no such epilogue");
    return ok;
}

/* ---- matrix products ---- */

static mica_tensor with_rank(const mica_tensor *t, int rank)
{
    mica_tensor r = {.dtype = t->dtype, .rank = rank};
    int lead = rank - t->rank;
    for (int i = 0; i < rank; i++) {
        r.dims[i] = i < lead ? 1 : t->dims[i - lead];
        r.strides[i] = i < lead ? t->strides[0] * t->dims[0] : t->strides[i - lead];
    }
    return r;
}

static dnnl_status_t make_matmul(direct *d, dnnl_primitive_attr_t attr, const md *m)
{
    const md *bias = d->tensors[BIAS].used ? &m[BIAS] : NULL;
#if DNNL_VERSION_MAJOR >= 3
    return dnnl_matmul_primitive_desc_create(&d->pd, d->engine, m[SRC], m[WEI], bias ? *bias : NULL,
                                             m[DST], attr);
#else
    dnnl_matmul_desc_t desc;
    dnnl_status_t s = dnnl_matmul_desc_init(&desc, &m[SRC], &m[WEI], bias, &m[DST]);
    return s ? s : dnnl_primitive_desc_create(&d->pd, &desc, attr, d->engine, NULL);
#endif
}

static void take_gemm(direct *d, const mica_gemm_desc *g, epilogue *e)
{
    int rank = g->c.rank;
    d->tensors[SRC] = (tensor){true, false, MICA_GEMM_A, DNNL_ARG_SRC, with_rank(&g->a, rank)};
    d->tensors[WEI] = (tensor){true, false, MICA_GEMM_B, DNNL_ARG_WEIGHTS, with_rank(&g->b, rank)};
    d->tensors[DST] = (tensor){true, true, MICA_GEMM_C, DNNL_ARG_DST, g->c};
    *e =
        (epilogue){.steps = g->epilogue,
                   .operand = {NULL, &g->bias, &g->scale, &g->shift, &g->residual},
                   .arg = {0, MICA_GEMM_BIAS, MICA_GEMM_SCALE, MICA_GEMM_SHIFT, MICA_GEMM_RESIDUAL},
                   .axis = rank - 1,
                   .whole_bias = true};
}

/* ---- convolutions ---- */

static mica_tensor grouped(const mica_tensor *w, int64_t groups)
{
    if (groups == 1) return *w;
    mica_tensor t = {.dtype = w->dtype, .rank = w->rank + 1};
    t.dims[0] = groups;
    t.strides[0] = w->strides[0] * (w->dims[0] / groups);
    for (int i = 0; i < w->rank; i++) {
        t.dims[i + 1] = i ? w->dims[i] : w->dims[0] / groups;
        t.strides[i + 1] = w->strides[i];
    }
    return t;
}

static const int conv_numbers[][3] = {
    [MICA_CONV_FWD] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST},
    [MICA_CONV_DGRAD] = {DNNL_ARG_DIFF_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_DST},
    [MICA_CONV_WGRAD] = {DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_DST}};

static void take_conv(direct *d, const mica_conv_desc *c, epilogue *e)
{
    const int *number = conv_numbers[c->pass];
    d->tensors[SRC] = (tensor){true, c->pass == MICA_CONV_DGRAD, MICA_CONV_X, number[0], c->x};
    d->tensors[WEI] = (tensor){true, c->pass == MICA_CONV_WGRAD, MICA_CONV_W, number[1],
                               grouped(&c->w, c->groups)};
    d->tensors[DST] = (tensor){true, c->pass == MICA_CONV_FWD, MICA_CONV_Y, number[2], c->y};
    *e =
        (epilogue){.steps = c->epilogue,
                   .operand = {NULL, &c->bias, &c->scale, &c->shift, &c->residual},
                   .arg = {0, MICA_CONV_BIAS, MICA_CONV_SCALE, MICA_CONV_SHIFT, MICA_CONV_RESIDUAL},
                   .axis = 1};
}

#if DNNL_VERSION_MAJOR >= 3
static dnnl_status_t make_conv(direct *d, const mica_conv_desc *c, dnnl_primitive_attr_t attr,
                               const md *m)
{
    dnnl_dims_t stride = {0}, dilation = {0}, low = {0}, high = {0};
    for (int i = 0; i < c->x.rank - 2; i++) {
        stride[i] = c->stride[i], dilation[i] = c->dilation[i] - 1;
        low[i] = c->pad[i], high[i] = c->pad[i] + c->pad_extra[i];
    }
    const dnnl_alg_kind_t alg = dnnl_convolution_direct;
    if (c->pass == MICA_CONV_DGRAD)
        return dnnl_convolution_backward_data_primitive_desc_create(
            &d->pd, d->engine, alg, m[SRC], m[WEI], m[DST], stride, dilation, low, high, NULL,
            attr);
    if (c->pass == MICA_CONV_WGRAD)
        return dnnl_convolution_backward_weights_primitive_desc_create(
            &d->pd, d->engine, alg, m[SRC], m[WEI], NULL, m[DST], stride, dilation, low, high, NULL,
            attr);
    return dnnl_convolution_forward_primitive_desc_create(
        &d->pd, d->engine, dnnl_forward_inference, alg, m[SRC], m[WEI],
        d->tensors[BIAS].used ? m[BIAS] : NULL, m[DST], stride, dilation, low, high, attr);
}
#else
static dnnl_status_t make_conv(direct *d, const mica_conv_desc *c, dnnl_primitive_attr_t attr,
                               const md *m)
{
    dnnl_dims_t stride = {0}, dilation = {0}, low = {0}, high = {0};
    for (int i = 0; i < c->x.rank - 2; i++) {
        stride[i] = c->stride[i], dilation[i] = c->dilation[i] - 1;
        low[i] = c->pad[i], high[i] = c->pad[i] + c->pad_extra[i];
    }
    const dnnl_alg_kind_t alg = dnnl_convolution_direct;
    dnnl_convolution_desc_t desc;
    dnnl_status_t s;
    if (c->pass == MICA_CONV_DGRAD)
        s = dnnl_dilated_convolution_backward_data_desc_init(&desc, alg, &m[SRC], &m[WEI], &m[DST],
                                                             stride, dilation, low, high);
    else if (c->pass == MICA_CONV_WGRAD)
        s = dnnl_dilated_convolution_backward_weights_desc_init(
            &desc, alg, &m[SRC], &m[WEI], NULL, &m[DST], stride, dilation, low, high);
    else
        s = dnnl_dilated_convolution_forward_desc_init(
            &desc, dnnl_forward_inference, alg, &m[SRC], &m[WEI],
            d->tensors[BIAS].used ? &m[BIAS] : NULL, &m[DST], stride, dilation, low, high);
    return s ? s : dnnl_primitive_desc_create(&d->pd, &desc, attr, d->engine, NULL);
}
#endif

/* ---- making ---- */

static bool take(direct *d, const mica_problem *p, epilogue *e, char *why, size_t size)
{
    const double *scalars = mica_problem_scalars(p);
    const char *op = mica_problem_op(p);
    if (!strcmp(op, "gemm")) {
        take_gemm(d, mica_problem_desc(p), e);
    } else if (!strcmp(op, "conv")) {
        const mica_conv_desc *c = mica_problem_desc(p);
        if (c->transposed || c->flip) {
            snprintf(why, size, "the peer has no transposed or mirrored convolution");
            return false;
        }
        take_conv(d, c, e);
    } else {
        snprintf(why, size, "the peer has conv and gemm, not %s", op);
        return false;
    }
    if (scalars[0] != 1 || scalars[1] != 0) {
        snprintf(why, size, "the peer has no alpha and beta");
        return false;
    }
    for (int i = SRC; i <= DST; i++)
        if (d->tensors[i].t.dtype != MICA_F32) {
            snprintf(why, size, "the peer is for f32, this is %s",
                     mica_dtype_name(d->tensors[i].t.dtype));
            return false;
        }
    return true;
}

static void choose_formats(direct *d)
{
    for (int i = SRC; i <= DST; i++) {
        const tensor *t = &d->tensors[i];
        bool packed = !t->output && d->packed >> t->arg & 1;
        d->layouts[i].any = packed || d->formats >= (i == WEI ? DIRECT_WEIGHTS : DIRECT_ALL);
        d->layouts[i].before = packed || d->formats == DIRECT_BLOCKED;
    }
}

static bool make(direct *d, const mica_problem *p, char *why, size_t size)
{
    epilogue e;
    md m[TENSORS] = {0};
    dnnl_primitive_attr_t attr = NULL;
    if (!take(d, p, &e, why, size)) return false;
    snprintf(why, size, "oneDNN refuses it");
    bool ok =
        dnnl_engine_create(&d->engine, dnnl_cpu, 0) == dnnl_success &&
        dnnl_stream_create(&d->stream, d->engine, dnnl_stream_default_flags) == dnnl_success &&
        dnnl_primitive_attr_create(&attr) == dnnl_success && set_epilogue(d, &e, attr, why, size);
    if (ok) choose_formats(d);
    for (int i = 0; ok && i <= BIAS; i++)
        if (d->tensors[i].used)
            ok = describe(&m[i], &d->tensors[i].t, d->layouts[i].any) == dnnl_success;
    if (ok && !strcmp(mica_problem_op(p), "gemm"))
        ok = make_matmul(d, attr, m) == dnnl_success;
    else if (ok)
        ok = make_conv(d, mica_problem_desc(p), attr, m) == dnnl_success;
    /* Its reference loops are nobody's choice, and no fair comparison. */
    if (ok && !strncmp(direct_name(d), "ref", 3)) {
        snprintf(why, size, "oneDNN has only its reference loops for it");
        ok = false;
    }
    ok = ok && dnnl_primitive_create(&d->primitive, d->pd) == dnnl_success;
    for (int i = 0; i < TENSORS; i++) drop(&m[i]);
    if (attr) dnnl_primitive_attr_destroy(attr);
    return ok;
}

direct *direct_make(const mica_problem *problem, direct_formats formats, uint64_t packed, char *why,
                    size_t size)
{
    direct *d = calloc(1, sizeof *d);
    if (!d) return NULL;
    d->formats = formats;
    d->packed = packed;
    if (make(d, problem, why, size)) return d;
    direct_free(d);
    return NULL;
}

const char *direct_name(const direct *d)
{
    const char *name = "";
    dnnl_primitive_desc_query(d->pd, dnnl_query_impl_info_str, 0, &name);
    return name;
}

void direct_free(direct *d)
{
    if (!d) return;
    for (int s = 0; s < d->sets; s++)
        for (int i = 0; i < TENSORS; i++)
            if (d->memory[s][i]) dnnl_memory_destroy(d->memory[s][i]);
    for (int i = 0; i < TENSORS; i++) {
        if (d->layouts[i].join) dnnl_primitive_destroy(d->layouts[i].join);
        if (d->layouts[i].inner) dnnl_memory_destroy(d->layouts[i].inner);
    }
    if (d->primitive) dnnl_primitive_destroy(d->primitive);
    if (d->pd) dnnl_primitive_desc_destroy(d->pd);
    if (d->stream) dnnl_stream_destroy(d->stream);
    if (d->engine) dnnl_engine_destroy(d->engine);
    free(d);
}

/* ---- buffers and runs ---- */

static bool make_reorder(direct *d, md_ref from, md_ref to, dnnl_primitive_t *primitive)
{
    dnnl_primitive_desc_t pd = NULL;
    bool ok = dnnl_reorder_primitive_desc_create(&pd, from, d->engine, to, d->engine, NULL) ==
                  dnnl_success &&
              dnnl_primitive_create(primitive, pd) == dnnl_success;
    if (pd) dnnl_primitive_desc_destroy(pd);
    return ok;
}

static bool reorder(direct *d, dnnl_primitive_t primitive, dnnl_memory_t from, dnnl_memory_t to)
{
    dnnl_exec_arg_t args[] = {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}};
    return dnnl_primitive_execute(primitive, d->stream, 2, args) == dnnl_success;
}

/* A tensor that lies elsewhere before the first run. */
static bool pack(direct *d, const tensor *t, md_ref user, md_ref wanted, dnnl_memory_t given,
                 dnnl_memory_t *memory)
{
    dnnl_primitive_t primitive = NULL;
    bool ok = dnnl_memory_create(memory, wanted, d->engine, DNNL_MEMORY_ALLOCATE) == dnnl_success;
    if (ok && !t->output)
        ok = make_reorder(d, user, wanted, &primitive) && reorder(d, primitive, given, *memory) &&
             dnnl_stream_wait(d->stream) == dnnl_success;
    if (primitive) dnnl_primitive_destroy(primitive);
    return ok;
}

/* A tensor that every run brings to the primitive's layout, or back from it. */
static bool join(direct *d, layout *l, bool output, md_ref user, md_ref wanted)
{
    if (l->join) return true;
    return dnnl_memory_create(&l->inner, wanted, d->engine, DNNL_MEMORY_ALLOCATE) == dnnl_success &&
           make_reorder(d, output ? wanted : user, output ? user : wanted, &l->join);
}

static bool bind_tensor(direct *d, int i, void *data, dnnl_memory_t *memory)
{
    const tensor *t = &d->tensors[i];
    layout *l = &d->layouts[i];
    md user = {0};
    if (describe(&user, &t->t, false) != dnnl_success) return false;
    md_ref wanted = dnnl_primitive_desc_query_md(d->pd, dnnl_query_exec_arg_md, t->number);
    dnnl_memory_t given = NULL;
    bool ok = dnnl_memory_create(&given, ref(&user), d->engine, data) == dnnl_success;
    bool equal = !wanted || dnnl_memory_desc_equal(wanted, ref(&user));
    if (ok && !equal && l->before) {
        ok = pack(d, t, ref(&user), wanted, given, memory);
    } else {
        if (ok && !equal) ok = join(d, l, t->output, ref(&user), wanted);
        *memory = given;
        given = NULL;
    }
    if (given) dnnl_memory_destroy(given);
    drop(&user);
    return ok;
}

int direct_bind(direct *d, void *const *args)
{
    if (d->sets == MAX_SETS) return -1;
    int set = d->sets++;
    for (int i = 0; i < TENSORS; i++)
        if (d->tensors[i].used && !bind_tensor(d, i, args[d->tensors[i].arg], &d->memory[set][i]))
            return -1;
    return set;
}

bool direct_run(direct *d, int set)
{
    dnnl_exec_arg_t args[TENSORS];
    int count = 0;
    bool ok = true;
    for (int i = 0; i < TENSORS && ok; i++) {
        const tensor *t = &d->tensors[i];
        const layout *l = &d->layouts[i];
        if (!t->used) continue;
        if (l->join && !t->output) ok = reorder(d, l->join, d->memory[set][i], l->inner);
        args[count++] = (dnnl_exec_arg_t){t->number, l->join ? l->inner : d->memory[set][i]};
    }
    ok = ok && dnnl_primitive_execute(d->primitive, d->stream, count, args) == dnnl_success;
    for (int i = 0; i < TENSORS && ok; i++) {
        const layout *l = &d->layouts[i];
        if (l->join && d->tensors[i].output) ok = reorder(d, l->join, l->inner, d->memory[set][i]);
    }
    return ok && dnnl_stream_wait(d->stream) == dnnl_success;
}
