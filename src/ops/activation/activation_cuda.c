/* SPDX-License-Identifier: Apache-2.0
 * Engine "cuda": one pass over memory, a few elements per thread. Any strides and types;
 * memory-bound when the tensors are packed alike, and bound by index arithmetic when they are not.
 */
#include "ops/activation/activation.h"
#include "ops/activation/activation_args.h"
#include "ops/shared/layout.h"

enum { BLOCK = 256, PER_THREAD = 2, ACCESS_BYTES = 16 };

typedef struct state {
    mica_kernel *kernel;
    mica_activation_args args;
    int in[2], out;       /* run arguments: x, dy (-1: none), result */
    uintptr_t align_mask; /* of a vector's access, by the widest type */
    mica_grid grid;
} state;

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    (void)desc, (void)device, (void)why;
    return MICA_OK;
}

static mica_status add_kernel(mica_plan *plan, const mica_activation_desc *d, bool linear,
                              int vector, mica_kernel **kernel)
{
    char buffer[2048] = "";
    mica_text p = {buffer, sizeof buffer, 0};
    bool backward = d->pass == MICA_ACTIVATION_BWD;
    const mica_tensor *out = backward ? &d->dx : &d->y;
    bool f64 = d->x.dtype == MICA_F64 || out->dtype == MICA_F64 || d->dy.dtype == MICA_F64;
    mica_prologue_activations(&p);
    mica_prologue_int(&p, "ACT", d->act);
    mica_prologue_int(&p, "BACKWARD", backward);
    mica_prologue_int(&p, "GATED", d->gated);
    mica_prologue_int(&p, "LINEAR", linear);
    mica_prologue_int(&p, "VECTOR", vector);
    mica_prologue_int(&p, "BLOCK", BLOCK);
    mica_prologue_int(&p, "PER_THREAD", PER_THREAD);
    mica_prologue_type(&p, "x_t", d->x.dtype);
    mica_prologue_type(&p, "dy_t", backward ? d->dy.dtype : MICA_F32);
    mica_prologue_type(&p, "out_t", out->dtype);
    mica_prologue_type(&p, "acc_t", f64 ? MICA_F64 : MICA_F32);
    mica_kernel_spec spec = {"ops/activation/activation_cuda.cu", "activation", buffer, 0};
    return mica_plan_add_kernel(plan, &spec, kernel);
}

static int widest_bytes(const mica_tensor *const *tensors, int count)
{
    int widest = 1;
    for (int t = 0; t < count; t++) {
        int bytes = mica_dtype_bits(tensors[t]->dtype) / 8;
        widest = bytes > widest ? bytes : widest;
    }
    return widest;
}

/* Neighbours along the last dimension that lie side by side in all tensors and halves, and start
 * on a multiple of their number everywhere: as many as one access of the widest type holds. */
static int vector_of(const mica_layout *l, const mica_tensor *const *tensors, int count,
                     const int64_t *gates)
{
    int last = l->rank - 1;
    if (last < 0) return 1;
    for (int vector = ACCESS_BYTES / widest_bytes(tensors, count); vector > 1; vector /= 2) {
        bool fits = l->dims[last] % vector == 0;
        for (int t = 0; t < count; t++) {
            fits &= l->strides[t][last] == 1 && gates[t] % vector == 0;
            for (int d = 0; d < last; d++) fits &= l->strides[t][d] % vector == 0;
        }
        if (fits) return vector;
    }
    return 1;
}

static void count_in_vectors(mica_layout *l, int vector, int tensors)
{
    int last = l->rank - 1;
    if (vector == 1) return;
    l->count /= vector;
    l->dims[last] /= vector;
    for (int t = 0; t < tensors; t++) l->strides[t][last] = vector;
}

static mica_status build(mica_plan *plan)
{
    const mica_activation_desc *d = plan->desc;
    mica_activation_parts parts;
    state *s;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    mica_activation_split(d, &parts);
    bool backward = parts.count == 3;
    /* The kernel's order: x, result, dy. */
    const mica_tensor *tensors[] = {&parts.tensors[0], &parts.tensors[backward ? 2 : 1],
                                    &parts.tensors[1]};
    mica_layout_make(&s->args.layout, tensors, parts.count);
    const int64_t gates[] = {parts.gate[0], parts.gate[backward ? 2 : 1], 0};
    bool linear = mica_layout_is_linear(&s->args.layout, parts.count);
    int vector = vector_of(&s->args.layout, tensors, parts.count, gates);
    count_in_vectors(&s->args.layout, vector, parts.count);
    s->align_mask = (uintptr_t)(vector * widest_bytes(tensors, parts.count)) - 1;
    s->args.gate_x = parts.gate[0];
    s->args.gate_out = parts.gate[2];
    s->args.act_a = d->act_a;
    s->args.act_b = d->act_b;
    s->in[0] = MICA_ACTIVATION_X;
    s->in[1] = backward ? MICA_ACTIVATION_DY : -1;
    s->out = backward ? MICA_ACTIVATION_DX : MICA_ACTIVATION_Y;
    int64_t blocks = (s->args.layout.count + BLOCK * PER_THREAD - 1) / (BLOCK * PER_THREAD);
    s->grid = (mica_grid){.grid = {(unsigned)blocks}, .block = {BLOCK}};
    return add_kernel(plan, d, linear, vector, &s->kernel);
}

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    const state *s = plan->state;
    mica_activation_args args = s->args;
    args.x = r->args[s->in[0]];
    args.dy = s->in[1] < 0 ? NULL : r->args[s->in[1]];
    args.out = r->args[s->out];
    uintptr_t pointers = (uintptr_t)args.x | (uintptr_t)args.dy | (uintptr_t)args.out;
    args.whole = (pointers & s->align_mask) == 0;
    args.alpha = mica_run_scalar(plan, r, MICA_ACTIVATION_ALPHA);
    args.beta = mica_run_scalar(plan, r, MICA_ACTIVATION_BETA);
    args.scaled = args.alpha != 1 || args.beta != 0;
    return mica_kernel_launch(s->kernel, &s->grid, r->stream, &args);
}

/* reached: the median of the lines in bench/results/h200. */
static double predict(const void *desc, const mica_device_info *device, const mica_config *config)
{
    const double start_ms = 3e-3, reached = 0.95;
    (void)config;
    return start_ms + mica_roofline_ms(&mica_op_activation, desc, device) / reached;
}

const mica_engine mica_activation_cuda = {.name = "cuda",
                                          .cuda = true,
                                          .accepts = accepts,
                                          .predict = predict,
                                          .build = build,
                                          .run = run};
