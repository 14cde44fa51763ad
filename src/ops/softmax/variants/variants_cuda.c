/* SPDX-License-Identifier: Apache-2.0
 * Engine "variants": a group of 1 to 512 threads per slice, element by element. Logits of slices of
 * up to 8 per thread stay in registers; of longer ones they are formed again in each pass, noise
 * and all. A sparsemax passes over them until the same elements stay, rarely more than 10 times.
 * Correct for any strides and types; reads memory well where the axis or its neighbour is
 * contiguous, but no vectors. */
#include "ops/softmax/variants/variants.h"
#include "ops/access/slices.h"

enum { KEEP = 8, BLOCK = 256, MOST = 512, WARP = 32 };

typedef struct state {
    mica_kernel *kernel;
    mica_softmax_variant v;
    mica_softmax_variants_args args;
    mica_grid grid;
} state;

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    (void)device;
    if (mica_softmax_is_variant(desc)) return MICA_OK;
    return mica_refuse(why, "a plain softmax, this engine is for scale, mask and other kinds");
}

/* Threads that share a slice along its axis, but where slices lie side by side. A sparsemax's
 * passes are counted by slice: it has a block for itself. */
static mica_slices choose_slices(const mica_softmax_variant *v, const mica_softmax_desc *d)
{
    const int last = v->outer.rank - 1, in = MICA_SOFTMAX_PLACE_IN;
    const bool alone = d->kind == MICA_SOFTMAX_KIND_SPARSEMAX && d->pass == MICA_SOFTMAX_FWD;
    mica_slices s = {.threads = 1, .vector = 1};
    s.along = alone || v->along[in] == 1 || last < 0 || v->outer.strides[in][last] != 1;
    const int least = alone ? WARP : 1, most = s.along ? MOST : BLOCK / WARP;
    while (s.threads < least || (s.threads < most && s.threads < v->n &&
                                 (s.threads * KEEP < v->n || (s.along && s.threads < WARP))))
        s.threads *= 2;
    s.slices = alone || s.threads > BLOCK ? 1 : BLOCK / s.threads;
    const int64_t items = (v->n + s.threads - 1) / s.threads, keep = v->wide ? KEEP / 2 : KEEP;
    while (d->pass == MICA_SOFTMAX_FWD && items <= keep && s.items < items)
        s.items = s.items ? s.items * 2 : 1;
    return s;
}

static mica_status add_kernel(mica_plan *plan, state *s, const mica_slices *slices)
{
    const mica_softmax_desc *d = plan->desc;
    const mica_softmax_variant *v = &s->v;
    char buffer[1024] = "";
    mica_text p = {buffer, sizeof buffer, 0};
    mica_prologue_int(&p, "BACKWARD", d->pass == MICA_SOFTMAX_BWD);
    mica_prologue_int(&p, "LOG", d->log);
    mica_prologue_int(&p, "SPARSE", d->kind == MICA_SOFTMAX_KIND_SPARSEMAX);
    mica_prologue_int(&p, "NOISE", v->noise);
    mica_prologue_int(&p, "HARD", d->hard);
    mica_prologue_int(&p, "MASK", v->mask);
    mica_slices_prologue(&p, slices);
    const mica_dtype grad = v->type[MICA_SOFTMAX_PLACE_GRAD];
    const bool adds = v->mask == MICA_SOFTMAX_MASK_ADDED;
    mica_prologue_type(&p, "out_t", v->type[MICA_SOFTMAX_PLACE_OUT]);
    mica_prologue_type(&p, "in_t", v->type[MICA_SOFTMAX_PLACE_IN]);
    mica_prologue_type(&p, "grad_t", grad ? grad : MICA_F32);
    mica_prologue_type(&p, "mask_t", adds ? v->type[MICA_SOFTMAX_PLACE_MASK] : MICA_U8);
    mica_prologue_type(&p, "acc_t", v->wide ? MICA_F64 : MICA_F32);
    mica_kernel_spec spec = {"ops/softmax/variants/variants.cu", "softmax_variants", buffer, 0};
    return mica_plan_add_kernel(plan, &spec, &s->kernel);
}

static mica_status build(mica_plan *plan)
{
    state *s;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    mica_softmax_variant_make(&s->v, plan->desc, NULL);
    if (s->v.outer.count == 0 || s->v.n == 0) return MICA_OK;
    const mica_slices slices = choose_slices(&s->v, plan->desc);
    s->args.outer = s->v.outer;
    s->args.n = s->v.n;
    for (int p = 0; p < MICA_SOFTMAX_PLACES; p++) s->args.along[p] = s->v.along[p];
    s->args.rng_stride = s->v.rng_stride;
    s->args.scale = s->v.scale;
    s->args.by = s->v.by;
    s->grid = mica_slices_grid(&slices, s->v.outer.count);
    return add_kernel(plan, s, &slices);
}

static mica_status run(const mica_plan *plan, const mica_run *run)
{
    const state *s = plan->state;
    mica_softmax_variants_args args = s->args;
    if (!s->kernel) return MICA_OK;
    for (int p = 0; p < MICA_SOFTMAX_PLACES; p++)
        if (s->v.type[p]) args.at[p] = run->args[s->v.arg[p]];
    if (s->v.noise) args.rng = run->args[MICA_SOFTMAX_RNG];
    return mica_kernel_launch(s->kernel, &s->grid, run->stream, &args);
}

const mica_engine mica_softmax_variants_cuda = {.name = "variants",
                                                .cuda = true,
                                                .accepts = accepts,
                                                .reached = 0.4,
                                                .start_ms = 3e-3,
                                                .build = build,
                                                .run = run};
