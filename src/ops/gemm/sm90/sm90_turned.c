/* SPDX-License-Identifier: Apache-2.0
 * gemm on Hopper's tensor cores for operands that engine sm90 cannot read as they lie: 8-bit types
 * across K, tf32 where both are (or one, of a product with a gate, aux or amax), and lines that are
 * no multiples of 16 bytes apart. These are copied into the workspace along K, by a child plan of
 * transform; the product is a child plan of sm90. Cost: that of both. */
#include "mica/transform.h"
#include "ops/compose/compose.h"
#include "ops/gemm/gemm_shape.h"

enum { A, B, OPERANDS, ALIGNMENT = 16 };

typedef struct turned {
    mica_gemm_desc gemm; /* of the copies */
    mica_transform_desc copy[OPERANDS];
    bool copied[OPERANDS];
} turned;

static double bytes_of(const mica_tensor *t)
{
    return (double)mica_tensor_count(t) * mica_dtype_bits(t->dtype) / 8;
}

/* As `from`, with K (dimension `k`) side by side and lines padded to whole 16 bytes. What is
 * broadcast stays so. */
static void plan_transpose(const mica_tensor *from, int k, mica_transform_desc *copy,
                           mica_tensor *to)
{
    int line = 2 * from->rank - 3 - k; /* the other one of the last two */
    int64_t each = ALIGNMENT * 8 / mica_dtype_bits(from->dtype);
    *copy = (mica_transform_desc){.x = *from, .y = *from};
    for (int i = 0; i < from->rank - 2; i++)
        if (from->strides[i] == 0) copy->x.dims[i] = copy->y.dims[i] = 1;
    mica_tensor *y = &copy->y;
    int64_t stride = (from->dims[k] + each - 1) / each * each;
    y->strides[k] = 1;
    y->strides[line] = stride;
    stride *= from->dims[line];
    for (int i = from->rank - 3; i >= 0; i--) {
        y->strides[i] = stride;
        stride *= y->dims[i];
    }
    *to = *from;
    for (int i = 0; i < from->rank; i++)
        to->strides[i] = y->dims[i] == from->dims[i] ? y->strides[i] : 0;
}

/* Copies as few operands as sm90 wants. */
static mica_status make_turned(const mica_gemm_desc *d, const mica_device_info *device, turned *t,
                               mica_why *why)
{
    if (gemm_sm90.accepts(d, device, why) == MICA_OK)
        return mica_refuse(why, "sm90 takes the operands as they lie");
    for (int which = 1; which <= 3; which++) {
        *t = (turned){.gemm = *d, .copied = {which & 1, which >> 1}};
        if (t->copied[A]) plan_transpose(&d->a, d->a.rank - 1, &t->copy[A], &t->gemm.a);
        if (t->copied[B]) plan_transpose(&d->b, d->b.rank - 2, &t->copy[B], &t->gemm.b);
        if (gemm_sm90.accepts(&t->gemm, device, why) == MICA_OK) return MICA_OK;
    }
    return MICA_UNSUPPORTED; /* for sm90's reason */
}

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    turned t;
    return make_turned(desc, device, &t, why);
}

/* A copy: lines that are no whole 16 bytes are read in narrower accesses, bytes across K one by
 * one, and 16-bit elements across K two by two at best, in threads that wait for them (fitted to
 * random sizes on an H200). */
static double copy_ms(const mica_transform_desc *copy, int k, const mica_device_info *device)
{
    const double launch_ms = 4e-3, waiting_ms = 4e-3;
    const mica_tensor *from = &copy->x;
    int line = 2 * from->rank - 3 - k, bits = mica_dtype_bits(from->dtype);
    bool across = from->strides[k] != 1;
    int64_t step = across ? from->strides[k] : from->strides[line];
    bool aligned = step * bits / 8 % ALIGNMENT == 0, halves = step * bits / 8 % 8 == 0;
    double share = aligned ? 0.67 : bits == 32 ? 0.5 : halves ? 0.45 : 0.28;
    if (across && bits == 8) share = 0.11;
    double ms = launch_ms + (across && bits == 16 && !aligned ? waiting_ms : 0);
    return ms + 2 * bytes_of(&copy->y) / (share * device->copy_gbps * 1e6);
}

/* The product at its best, and the copies. */
static double predict(const void *desc, const mica_device_info *device, const mica_config *config)
{
    turned t;
    mica_why why;
    const mica_gemm_desc *d = desc;
    const int k[OPERANDS] = {d->a.rank - 1, d->b.rank - 2};
    (void)config;
    if (make_turned(desc, device, &t, &why) != MICA_OK) return 0;
    double ms = mica_engine_predict(&gemm_sm90, &mica_op_gemm, &t.gemm, device);
    for (int i = 0; i < OPERANDS; i++)
        if (t.copied[i]) ms += copy_ms(&t.copy[i], k[i], device);
    return ms;
}

/* ---- plans ---- */

static mica_status build(mica_plan *plan)
{
    static const int args[] = {MICA_GEMM_A, MICA_GEMM_B};
    mica_compose c = {0};
    mica_memory copies[OPERANDS];
    turned t;
    mica_why why;
    MICA_TRY(make_turned(plan->desc, &plan->device, &t, &why));
    for (int i = 0; i < OPERANDS; i++) {
        int64_t first;
        if (!t.copied[i]) continue;
        copies[i] = mica_compose_temporary(&c, (size_t)mica_tensor_span(&t.copy[i].y, &first));
        mica_compose_step(&c, "transform", &t.copy[i], sizeof t.copy[i], NULL);
        mica_compose_bind(&c, MICA_TRANSFORM_X, mica_compose_arg(args[i]));
        mica_compose_bind(&c, MICA_TRANSFORM_Y, copies[i]);
    }
    mica_compose_step(&c, "gemm", &t.gemm, sizeof t.gemm, gemm_sm90.name);
    mica_compose_pass(&c, mica_op_gemm.arg_count);
    mica_compose_scale(&c);
    for (int i = 0; i < OPERANDS; i++)
        if (t.copied[i]) mica_compose_bind(&c, args[i], copies[i]);
    return mica_compose_build(plan, &c);
}

static void contract(const void *desc, const mica_config *config, mica_contract *c)
{
    gemm_sm90.contract(desc, config, c);
}

const mica_engine gemm_sm90_turned = {.name = "sm90_turned",
                                      .cuda = true,
                                      .accepts = accepts,
                                      .predict = predict,
                                      .contract = contract,
                                      .build = build,
                                      .run = mica_compose_run};
