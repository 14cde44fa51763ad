/* SPDX-License-Identifier: Apache-2.0
 * Engine "cpu_variants": slice by slice, each by one thread, in chunks that pass through the loops.
 * Logits of up to 16384 elements are kept; of longer slices they are formed three times, noise and
 * all. Cost: the exponential, some 4 ns of noise, or a few passes over the kept logits of a
 * sparsemax; where the axis is not contiguous, a cache line per element. */
#include "ops/softmax/variants/cpu/variants_cpu.h"
#include "ops/random/random.h"
#include "cpu/cpu.h"

typedef struct state {
    mica_softmax_variant v;
    double bytes; /* of traffic and what arithmetic is worth, to choose threads */
} state;

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    (void)device;
    if (mica_softmax_is_variant(desc)) return MICA_OK;
    return mica_refuse(why, "a plain softmax, this engine is for scale, mask and other kinds");
}

static mica_status build(mica_plan *plan)
{
    const mica_softmax_desc *d = plan->desc;
    state *s;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    mica_softmax_variant_make(&s->v, d, NULL);
    s->bytes = mica_op_bytes(plan->op, d) + 32 * (double)s->v.outer.count * (double)(s->v.n + 1);
    return MICA_OK;
}

static mica_status run(const mica_plan *plan, const mica_run *run)
{
    const state *s = plan->state;
    mica_softmax_variant_run r = {.d = plan->desc, .v = &s->v};
    for (int p = 0; p < MICA_SOFTMAX_PLACES; p++)
        if (s->v.type[p]) r.data[p] = run->args[s->v.arg[p]];
    if (s->v.noise) {
        const mica_random_stream stream =
            mica_random_stream_of(run->args[MICA_SOFTMAX_RNG], s->v.rng_stride);
        r.key[0] = stream.key[0], r.key[1] = stream.key[1], r.offset = stream.offset;
    }
    const int64_t count = s->v.n ? s->v.outer.count : 0;
#pragma omp parallel for num_threads(mica_cpu_threads_for(s->bytes)) schedule(static)
    for (int64_t i = 0; i < count; i++) {
        if (s->v.wide)
            mica_softmax_variant_f64(&r, i);
        else
            mica_softmax_variant_f32(&r, i);
    }
    return MICA_OK;
}

const mica_engine mica_softmax_variants_cpu = {.name = "cpu_variants",
                                               .accepts = accepts,
                                               .reached = 0.3,
                                               .start_ms = 3e-4,
                                               .build = build,
                                               .run = run};
