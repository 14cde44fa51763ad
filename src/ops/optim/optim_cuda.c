/* SPDX-License-Identifier: Apache-2.0
 * Engine "cuda": one pass over memory. Tensors packed alike are stepped in vectors of up to 16
 * bytes, at the speed of memory; with other strides each thread steps single elements and index
 * arithmetic counts. Any types. */
#include "ops/optim/optim.h"
#include "ops/shared/layout.h"

enum { BLOCK = 256, PER_THREAD = 4 };

typedef struct state {
    mica_kernel *kernel;
    mica_layout layout;
    int alignment[MICA_OPTIM_ARGS]; /* bytes of a thread's vector; 0: absent */
    mica_grid grid;
} state;

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    (void)desc, (void)device, (void)why;
    return MICA_OK;
}

/* Elements whose widest vector is one access of 16 bytes; single ones where strides differ. */
static int vector_elements(const mica_optim_desc *d, bool linear)
{
    int bits = 16;
    for (int i = 0; i < MICA_OPTIM_ARGS; i++) {
        const mica_tensor *t = mica_optim_tensor(d, i);
        if (mica_tensor_given(t) && mica_dtype_bits(t->dtype) > bits)
            bits = mica_dtype_bits(t->dtype);
    }
    return linear ? 128 / bits : 1;
}

static mica_status add_kernel(mica_plan *plan, const int *at, bool linear, int vector,
                              mica_kernel **kernel)
{
    static const char *const types[] = {"p_t", "grad_t", "m_t", "v_t", "master_t"};
    static const char *const places[] = {"AT_P", "AT_GRAD", "AT_M", "AT_V", "AT_MASTER"};
    const mica_optim_desc *d = plan->desc;
    char buffer[2048] = "";
    mica_text p = {buffer, sizeof buffer, 0};
    int tensors = 0;
    for (int i = 0; i < MICA_OPTIM_ARGS; i++) {
        bool there = at[i] >= 0;
        tensors += there;
        mica_prologue_type(&p, types[i], there ? mica_optim_tensor(d, i)->dtype : MICA_F32);
        mica_prologue_int(&p, places[i], at[i]);
    }
    mica_prologue_type(&p, "acc_t", mica_optim_accumulator(d));
    mica_prologue_int(&p, "TENSORS", tensors);
    mica_prologue_int(&p, "ADAM", d->rule != MICA_OPTIM_SGD);
    mica_prologue_int(&p, "LINEAR", linear);
    mica_prologue_int(&p, "VECTOR", vector);
    mica_prologue_int(&p, "BLOCK", BLOCK);
    mica_prologue_int(&p, "PER_THREAD", PER_THREAD);
    mica_kernel_spec spec = {"ops/optim/optim_cuda.cu", "optim", buffer, 0};
    return mica_plan_add_kernel(plan, &spec, kernel);
}

static mica_status build(mica_plan *plan)
{
    const mica_optim_desc *d = plan->desc;
    state *s;
    int at[MICA_OPTIM_ARGS];
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    int tensors = mica_optim_layout(d, &s->layout, at);
    bool linear = mica_layout_is_linear(&s->layout, tensors);
    int vector = vector_elements(d, linear);
    for (int i = 0; i < MICA_OPTIM_ARGS; i++)
        if (at[i] >= 0)
            s->alignment[i] = vector * mica_dtype_bits(mica_optim_tensor(d, i)->dtype) / 8;
    int64_t tile = (int64_t)BLOCK * (linear ? vector : PER_THREAD);
    int64_t blocks = (s->layout.count + tile - 1) / tile;
    s->grid = (mica_grid){.grid = {(unsigned)blocks}, .block = {BLOCK}};
    return add_kernel(plan, at, linear, vector, &s->kernel);
}

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    const state *s = plan->state;
    mica_optim_args args = {.layout = s->layout, .aligned = 1};
    MICA_TRY(mica_optim_begin(plan, r, &args.n));
    if (s->layout.count == 0) return MICA_OK;
    for (int i = 0; i < MICA_OPTIM_ARGS; i++)
        if (s->alignment[i] && (uintptr_t)r->args[i] % (uintptr_t)s->alignment[i]) args.aligned = 0;
    args.p = r->args[MICA_OPTIM_P];
    args.grad = r->args[MICA_OPTIM_GRAD];
    args.m = s->alignment[MICA_OPTIM_M] ? r->args[MICA_OPTIM_M] : NULL;
    args.v = s->alignment[MICA_OPTIM_V] ? r->args[MICA_OPTIM_V] : NULL;
    args.master = s->alignment[MICA_OPTIM_MASTER] ? r->args[MICA_OPTIM_MASTER] : NULL;
    return mica_kernel_launch(s->kernel, &s->grid, r->stream, &args);
}

/* reached: the median of the lines in bench/results/h200. */
static double predict(const void *desc, const mica_device_info *device, const mica_config *config)
{
    const double start_ms = 3e-3, reached = 0.95;
    (void)config;
    return start_ms + mica_roofline_ms(&mica_op_optim, desc, device) / reached;
}

const mica_engine mica_optim_cuda = {.name = "cuda",
                                     .cuda = true,
                                     .accepts = accepts,
                                     .predict = predict,
                                     .build = build,
                                     .run = run};
