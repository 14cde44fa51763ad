/* SPDX-License-Identifier: Apache-2.0
 * Engine "cuda": a group of 1 to 512 threads per slice. A slice that fits the group's registers is
 * read once, as is one that fits shared memory (forward); a longer one twice (maximum and sum are
 * formed together). Short packed slices whose length is no whole number of vectors pass through
 * shared memory. Memory-bound where the axis or its neighbour is contiguous; correct for any
 * strides and types. */
#include "ops/softmax/softmax.h"
#include "ops/softmax/softmax_args.h"
#include "ops/access/access.h"
#include "ops/access/slices.h"

/* Values a thread keeps in registers without spills (a backward pass keeps two tensors). */
enum { KEEP_FORWARD = 32, KEEP_BACKWARD = 16, SCRATCH_BYTES = 2048 };
enum { STAGED_BLOCK = 256, STAGED_SLICE = 512 };

typedef struct state {
    mica_kernel *kernel;
    mica_softmax_args args;
    int arg[3], count; /* run arguments in the order of the kernel */
    mica_slices slices;
    int bytes[3]; /* of an element */
    bool staged;
    mica_grid grid;
} state;

/* Bytes of a slice in shared memory; 0: it stays in registers or does not fit. */
static int64_t held_bytes(const mica_softmax_desc *d, const mica_slices *s, int64_t n, int bytes,
                          const mica_device_info *device)
{
    if (d->pass != MICA_SOFTMAX_FWD || s->items || !s->along || s->slices > 1) return 0;
    int64_t vectors = (n + s->vector - 1) / s->vector + s->ragged;
    int64_t items = (vectors + s->threads - 1) / s->threads;
    int64_t all = items * s->threads * s->vector * bytes;
    return all + SCRATCH_BYTES <= device->shared_bytes ? all : 0;
}

/* Whether slices lie one behind the other in all tensors, but not in whole accesses. */
static bool wants_staging(const mica_softmax_shape *s, const mica_slices *slices, const int *bytes,
                          int count)
{
    bool packed = s->outer.rank == 1 && !slices->ragged && slices->items && slices->along;
    int widest = 1;
    for (int t = 0; t < count && packed; t++) {
        packed = s->axis_stride[t] == 1 && s->outer.strides[t][0] == s->n;
        widest = bytes[t] > widest ? bytes[t] : widest;
    }
    return packed && slices->vector * widest < MICA_ACCESS_BYTES && s->n * widest <= STAGED_SLICE;
}

/* Threads have their elements one by one. */
static void choose_staged(mica_slices *s, int64_t n, int keep)
{
    int threads = 1;
    while (threads * keep < n) threads *= 2;
    *s = (mica_slices){.threads = threads,
                       .slices = STAGED_BLOCK / threads,
                       .along = true,
                       .vector = 1,
                       .items = (int)((n + threads - 1) / threads)};
}

/* A block's slices of the inputs; results take the place of the first where they are of its size.
 */
static int64_t staged_bytes(const mica_slices *s, int64_t n, const int *bytes, int count)
{
    int64_t each = bytes[count - 1] == bytes[0] ? 0 : bytes[count - 1];
    for (int t = 0; t < count - 1; t++) each += bytes[t];
    return each * s->slices * n;
}

static mica_status add_kernel(mica_plan *plan, const mica_softmax_desc *d, const state *s,
                              int64_t held, mica_kernel **kernel)
{
    mica_softmax_operands o = mica_softmax_operands_of(d);
    char buffer[1024] = "";
    mica_text p = {buffer, sizeof buffer, 0};
    mica_prologue_int(&p, "BACKWARD", d->pass == MICA_SOFTMAX_BWD);
    mica_prologue_int(&p, "LOG", d->log);
    int64_t most = plan->device.shared_bytes;
    if (s->staged)
        mica_prologue_int(&p, "LENGTH", s->args.n);
    else
        mica_prologue_int(&p, "HELD", !held ? 0 : 2 * (held + SCRATCH_BYTES) <= most ? 2 : 1);
    mica_slices_prologue(&p, &s->slices);
    mica_prologue_type(&p, "a_t", o.tensor[0]->dtype);
    mica_prologue_type(&p, "b_t", o.tensor[o.count - 2]->dtype);
    mica_prologue_type(&p, "out_t", o.tensor[o.count - 1]->dtype);
    mica_prologue_type(&p, "acc_t", mica_softmax_is_wide(&o) ? MICA_F64 : MICA_F32);
    mica_kernel_spec spec = {"ops/softmax/softmax_cuda.cu", "softmax", buffer,
                             s->grid.dynamic_shared};
    if (s->staged) spec.file = "ops/softmax/softmax_staged.cu", spec.entry = "softmax_staged";
    return mica_plan_add_kernel(plan, &spec, kernel);
}

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    (void)device;
    return mica_softmax_refuse_variant(desc, why);
}

static mica_status build(mica_plan *plan)
{
    const mica_softmax_desc *d = plan->desc;
    mica_softmax_operands o = mica_softmax_operands_of(d);
    mica_softmax_shape shape;
    state *s;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    mica_softmax_shape_make(&shape, d);
    for (int t = 0; t < o.count; t++) s->bytes[t] = mica_dtype_bits(o.tensor[t]->dtype) / 8;
    int keep = d->pass == MICA_SOFTMAX_FWD ? KEEP_FORWARD : KEEP_BACKWARD;
    if (mica_softmax_is_wide(&o)) keep /= 2; /* an f64 takes two registers */
    mica_slices *slices = &s->slices;
    mica_slices_choose(slices, &shape.outer, shape.n, shape.axis_stride, s->bytes, o.count, keep);
    s->args.outer = shape.outer;
    s->args.n = shape.n;
    s->count = o.count;
    for (int t = 0; t < o.count; t++) {
        s->arg[t] = o.arg[t];
        s->args.along[t] = shape.axis_stride[t];
    }
    s->staged = wants_staging(&shape, slices, s->bytes, o.count);
    if (s->staged) choose_staged(slices, shape.n, keep);
    s->grid = mica_slices_grid(slices, shape.outer.count);
    int64_t held = held_bytes(d, slices, shape.n, s->bytes[0], &plan->device);
    int64_t shared = s->staged ? staged_bytes(slices, shape.n, s->bytes, o.count) : held;
    s->grid.dynamic_shared = (unsigned)shared;
    return add_kernel(plan, d, s, held, &s->kernel);
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
    for (int t = 0; t < s->count && s->staged; t++)
        args.whole &= mica_access_starts(pointers[t], MICA_ACCESS_BYTES);
    return mica_kernel_launch(s->kernel, &s->grid, r->stream, &args);
}

const mica_engine mica_softmax_cuda = {.name = "cuda",
                                       .cuda = true,
                                       .reached = 1 / 1.5,
                                       .start_ms = 3e-3,
                                       .accepts = accepts,
                                       .build = build,
                                       .run = run};
