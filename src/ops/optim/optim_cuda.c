/* SPDX-License-Identifier: Apache-2.0
 * Engine "cuda": one pass over memory, a vector of neighbours per thread where all tensors are
 * packed alike, else an element. Memory-bound; any strides and types. */
#include "ops/optim/optim.h"
#include "ops/shared/layout.h"

enum { BLOCK = 256, VECTOR_BYTES = 16, P = MICA_OPTIM_P, GRAD, M, V, MASTER };

typedef struct state {
    mica_kernel *kernel;
    mica_optim_args args;
    int vector_bytes[MICA_OPTIM_TENSORS]; /* 0: absent */
    mica_grid grid;
} state;

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    (void)desc, (void)device, (void)why;
    return MICA_OK;
}

static double predict(const void *desc, const mica_device_info *device, const mica_config *config)
{
    (void)config;
    return 1.3 * mica_roofline_ms(&mica_op_optim, desc, device) + 3e-3;
}

static mica_status add_kernel(mica_plan *plan, const mica_optim_desc *d, bool linear, int vector,
                              mica_kernel **kernel)
{
    static const char *const types[] = {"p_t", "grad_t", "m_t", "v_t", "master_t"};
    char buffer[1024] = "";
    mica_text p = {buffer, sizeof buffer, 0};
    mica_prologue_int(&p, "SGD", MICA_OPTIM_SGD);
    mica_prologue_int(&p, "ADAM", MICA_OPTIM_ADAM);
    /* adamw differs from adam in the factors alone. */
    mica_prologue_int(&p, "RULE", d->rule == MICA_OPTIM_SGD ? MICA_OPTIM_SGD : MICA_OPTIM_ADAM);
    mica_prologue_int(&p, "MOMENTUM", d->momentum != 0);
    mica_prologue_int(&p, "NESTEROV", d->nesterov);
    mica_prologue_int(&p, "MASTER", mica_optim_has(d, MASTER));
    mica_prologue_int(&p, "LINEAR", linear);
    mica_prologue_int(&p, "VECTOR", vector);
    mica_prologue_int(&p, "BLOCK", BLOCK);
    for (int i = 0; i < MICA_OPTIM_TENSORS; i++)
        mica_prologue_type(&p, types[i], mica_optim_tensor(d, i)->dtype);
    mica_prologue_type(&p, "acc_t", mica_optim_is_wide(d) ? MICA_F64 : MICA_F32);
    mica_kernel_spec spec = {"ops/optim/optim_cuda.cu", "optim", buffer, 0};
    return mica_plan_add_kernel(plan, &spec, kernel);
}

static mica_status build(mica_plan *plan)
{
    const mica_optim_desc *d = plan->desc;
    const mica_tensor *tensors[MICA_OPTIM_TENSORS];
    state *s;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    int widest = 1;
    for (int i = 0; i < MICA_OPTIM_TENSORS; i++) {
        tensors[i] = mica_optim_tensor(d, i);
        int bytes = mica_dtype_bits(tensors[i]->dtype) / 8;
        s->vector_bytes[i] = mica_optim_has(d, i) ? bytes : 0;
        if (bytes > widest) widest = bytes;
    }
    mica_layout_make(&s->args.layout, tensors, MICA_OPTIM_TENSORS);
    bool linear = mica_layout_is_linear(&s->args.layout, MICA_OPTIM_TENSORS);
    int vector = linear ? VECTOR_BYTES / widest : 1;
    for (int i = 0; i < MICA_OPTIM_TENSORS; i++) s->vector_bytes[i] *= vector;
    int64_t blocks = (s->args.layout.count + BLOCK * vector - 1) / (BLOCK * vector);
    if (blocks > INT32_MAX) blocks = INT32_MAX; /* threads go on to further elements */
    s->grid = (mica_grid){.grid = {(unsigned)blocks}, .block = {BLOCK}};
    return add_kernel(plan, d, linear, vector, &s->kernel);
}

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    const state *s = plan->state;
    mica_optim_args args = s->args;
    MICA_TRY(mica_optim_run_factors(plan, r, &args.factors));
    args.p = r->args[P];
    args.grad = r->args[GRAD];
    args.m = r->args[M];
    args.v = r->args[V];
    args.master = r->args[MASTER];
    args.whole = 1;
    for (int i = 0; i < MICA_OPTIM_TENSORS; i++)
        if (s->vector_bytes[i])
            args.whole &= (uintptr_t)r->args[i] % (uintptr_t)s->vector_bytes[i] == 0;
    return mica_kernel_launch(s->kernel, &s->grid, r->stream, &args);
}

const mica_engine mica_optim_cuda = {.name = "cuda",
                                     .cuda = true,
                                     .accepts = accepts,
                                     .predict = predict,
                                     .build = build,
                                     .run = run};
