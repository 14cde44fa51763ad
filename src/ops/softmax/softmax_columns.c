/* SPDX-License-Identifier: Apache-2.0
 * Engine "columns": a short axis whose neighbours lie side by side in memory, as the classes of
 * images have it. A thread keeps as many neighbouring slices as its registers hold; every byte
 * moves once, in vectors. Floor: the bytes at copy bandwidth; two exponentials of an element, 16 a
 * cycle and multiprocessor, take less. */
#include "ops/softmax/softmax.h"
#include "ops/softmax/softmax_args.h"
#include "ops/access/slices.h"

enum { KEPT_WORDS = 56 };

typedef struct state {
    mica_kernel *kernel;
    mica_softmax_args args;
    int arg[3], count; /* run arguments in the order of the kernel */
    mica_slices slices;
    int bytes[3]; /* of an element */
    mica_grid grid;
} state;

/* Lengths share kernels. */
static int items_of(int64_t n)
{
    int step = n <= 32 ? 4 : 8;
    return (int)((n + step - 1) / step) * step;
}

/* Registers that a thread's inputs take, of slices of at most KEPT_WORDS elements. */
static int words_of(const mica_softmax_operands *o, int64_t n, int vector)
{
    int words = 0;
    for (int t = 0; t + 1 < o->count; t++)
        words += (mica_dtype_bits(o->tensor[t]->dtype) / 8 * vector + 3) / 4;
    return words * items_of(n);
}

/* False where slices do not lie side by side. */
static bool find_columns(const mica_softmax_operands *o, const mica_softmax_shape *s, int *bytes,
                         mica_slices *slices)
{
    for (int t = 0; t < o->count; t++) bytes[t] = mica_dtype_bits(o->tensor[t]->dtype) / 8;
    if (!mica_slices_beside(slices, &s->outer, s->axis_stride, bytes, o->count)) return false;
    while (slices->vector > 1 && words_of(o, s->n, slices->vector) > KEPT_WORDS)
        slices->vector /= 2;
    return true;
}

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    (void)device;
    const mica_softmax_desc *d = desc;
    mica_softmax_operands o = mica_softmax_operands_of(d);
    mica_softmax_shape s;
    mica_softmax_shape_make(&s, d);
    mica_slices slices;
    int bytes[3];
    MICA_TRY(mica_softmax_refuse_variant(d, why));
    if (mica_softmax_is_wide(&o))
        return mica_refuse(why, "a tensor is f64, this engine's sums are f32");
    if (s.outer.count == 0) return mica_refuse(why, "there are no slices");
    if (s.n < 1 || s.n > KEPT_WORDS)
        return mica_refuse(why, "slices have %lld elements, a thread keeps 1 to %d", (long long)s.n,
                           KEPT_WORDS);
    if (!find_columns(&o, &s, bytes, &slices))
        return mica_refuse(why, "no 32 slices lie side by side in all tensors");
    if (words_of(&o, s.n, 1) > KEPT_WORDS)
        return mica_refuse(why, "slices of %lld do not fit the %d registers that are for them",
                           (long long)s.n, KEPT_WORDS);
    return MICA_OK;
}

static mica_status add_kernel(mica_plan *plan, const mica_softmax_desc *d, const state *s,
                              mica_kernel **kernel)
{
    mica_softmax_operands o = mica_softmax_operands_of(d);
    char buffer[1024] = "";
    mica_text p = {buffer, sizeof buffer, 0};
    mica_prologue_int(&p, "BACKWARD", d->pass == MICA_SOFTMAX_BWD);
    mica_prologue_int(&p, "LOG", d->log);
    mica_prologue_int(&p, "THREADS", s->slices.slices);
    mica_prologue_int(&p, "VECTOR", s->slices.vector);
    mica_prologue_int(&p, "ITEMS", items_of(s->args.n));
    mica_prologue_type(&p, "a_t", o.tensor[0]->dtype);
    mica_prologue_type(&p, "b_t", o.tensor[o.count - 2]->dtype);
    mica_prologue_type(&p, "out_t", o.tensor[o.count - 1]->dtype);
    mica_prologue_type(&p, "acc_t", MICA_F32);
    mica_kernel_spec spec = {"ops/softmax/softmax_columns.cu", "softmax_columns", buffer, 0};
    return mica_plan_add_kernel(plan, &spec, kernel);
}

static mica_status build(mica_plan *plan)
{
    const mica_softmax_desc *d = plan->desc;
    mica_softmax_operands o = mica_softmax_operands_of(d);
    mica_softmax_shape shape;
    state *s;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    mica_softmax_shape_make(&shape, d);
    find_columns(&o, &shape, s->bytes, &s->slices);
    s->args.outer = shape.outer;
    s->args.n = shape.n;
    s->count = o.count;
    for (int t = 0; t < o.count; t++) {
        s->arg[t] = o.arg[t];
        s->args.along[t] = shape.axis_stride[t];
    }
    s->grid = mica_slices_grid(&s->slices, shape.outer.count / s->slices.vector);
    return add_kernel(plan, d, s, &s->kernel);
}

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    const state *s = plan->state;
    mica_softmax_args args = s->args;
    args.a = r->args[s->arg[0]];
    args.b = r->args[s->arg[s->count - 2]];
    args.out = r->args[s->arg[s->count - 1]];
    const void *pointers[3];
    for (int t = 0; t < s->count; t++) pointers[t] = r->args[s->arg[t]];
    args.whole = mica_slices_whole(&s->slices, pointers, s->bytes, s->count);
    return mica_kernel_launch(s->kernel, &s->grid, r->stream, &args);
}

const mica_engine mica_softmax_columns = {.name = "columns",
                                          .cuda = true,
                                          .accepts = accepts,
                                          .reached = 1 / 1.3,
                                          .start_ms = 3e-3,
                                          .build = build,
                                          .run = run};
