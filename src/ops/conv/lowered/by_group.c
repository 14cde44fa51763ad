/* SPDX-License-Identifier: Apache-2.0
 * Engine "by_group": groups one after the other, each a convolution of its own on its channels of
 * the same tensors. The child plan is made once, by whatever engine is best for one group, and run
 * with other pointers. For few groups of many channels, which engines of one group do at the speed
 * of tensor cores; cost: a launch or two for each group. All passes and epilogues. */
#include "ops/compose/compose.h"
#include "ops/conv/lowered/gemm.h"

#include <math.h>

enum { MAX_GROUPS = 32, ALIGNMENT = 16 };

typedef struct groups {
    mica_conv_geometry g;
    int64_t step[MICA_MAX_ARGS]; /* bytes of a run argument from group to group */
} groups;

static int64_t bytes_of(const mica_tensor *t)
{
    return mica_dtype_bits(t->dtype) / 8;
}

/* The first of the groups alone. */
static mica_conv_desc group_of(const mica_conv_desc *d)
{
    mica_conv_desc c = *d;
    mica_tensor *channels[] = {&c.bias, &c.scale, &c.shift};
    c.groups = 1;
    c.x.dims[1] /= d->groups;
    c.y.dims[1] /= d->groups;
    c.w.dims[0] /= d->groups;
    if (mica_tensor_given(&c.residual)) c.residual.dims[1] /= d->groups;
    for (size_t i = 0; i < sizeof channels / sizeof *channels; i++)
        if (mica_tensor_given(channels[i])) channels[i]->dims[0] /= d->groups;
    return c;
}

static void find_steps(const mica_conv_desc *d, groups *s)
{
    const mica_conv_geometry *g = &s->g;
    const mica_conv_roles roles = mica_conv_roles_of(d);
    mica_conv_geometry_make(d, &s->g);
    long long channels = roles.out == roles.a ? g->c : g->k;
    s->step[roles.a] = g->a.g * bytes_of(mica_conv_tensor(d, roles.a));
    s->step[roles.b] = g->b.g * bytes_of(mica_conv_tensor(d, roles.b));
    s->step[MICA_CONV_W] = g->f.g * bytes_of(&d->w);
    s->step[MICA_CONV_RESIDUAL] = g->residual.g * bytes_of(&d->residual);
    s->step[MICA_CONV_BIAS] = channels * d->bias.strides[0] * bytes_of(&d->bias);
    s->step[MICA_CONV_SCALE] = channels * d->scale.strides[0] * bytes_of(&d->scale);
    s->step[MICA_CONV_SHIFT] = channels * d->shift.strides[0] * bytes_of(&d->shift);
}

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    const mica_conv_desc *d = desc;
    (void)device;
    MICA_TRY(conv_refuse_full_epilogue(d, why));
    if (d->groups < 2 || d->groups > MAX_GROUPS)
        return mica_refuse(why, "groups is %lld, this engine takes 2 to %d", (long long)d->groups,
                           MAX_GROUPS);
    groups s = {0};
    find_steps(d, &s);
    if (s.g.c == 1) return mica_refuse(why, "groups have one channel, this engine is for more");
    const int images[] = {MICA_CONV_X, MICA_CONV_W, MICA_CONV_Y};
    for (size_t i = 0; i < sizeof images / sizeof *images; i++)
        if (s.step[images[i]] % ALIGNMENT)
            return mica_refuse(why,
                               "groups of %s are %lld bytes apart, this engine asks for "
                               "multiples of %d, by which one group's engine is chosen",
                               mica_op_conv.args[images[i]].name, (long long)s.step[images[i]],
                               ALIGNMENT);
    return MICA_OK;
}

/* Groups of few channels take longer than any engine says of one: they touch a part of each line of
 * memory. */
static double predict(const void *desc, const mica_device_info *device, const mica_config *config)
{
    const double whole = 64;
    const mica_conv_desc *d = desc;
    mica_conv_desc c = group_of(d);
    (void)config;
    double narrow = fmax(1, whole / (double)(c.x.dims[1] > 0 ? c.x.dims[1] : 1));
    return narrow * (double)d->groups * mica_op_predict(&mica_op_conv, &c, device, true);
}

static void contract(const void *desc, const mica_config *config, mica_contract *c)
{
    (void)config;
    conv_child_contract(desc, c);
}

static mica_status build(mica_plan *plan)
{
    const mica_conv_desc *d = plan->desc;
    const mica_conv_desc first = group_of(d);
    groups s = {0};
    mica_compose c = {0};
    find_steps(d, &s);
    mica_compose_step(&c, "conv", &first, sizeof first, NULL);
    mica_compose_pass(&c, mica_op_conv.arg_count);
    mica_compose_scale(&c);
    mica_compose_repeat(&c, d->groups);
    for (int i = 0; i < mica_op_conv.arg_count; i++) mica_compose_advance(&c, i, s.step[i]);
    return mica_compose_build(plan, &c);
}

const mica_engine mica_conv_by_group = {.name = "by_group",
                                        .cuda = true,
                                        .accepts = accepts,
                                        .predict = predict,
                                        .contract = contract,
                                        .build = build,
                                        .run = mica_compose_run};
