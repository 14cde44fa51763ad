/* SPDX-License-Identifier: Apache-2.0
 * Engine "sections": forward convolutions of long rows (sound, signals) on the CPU, whose images
 * are cut across the innermost axis and done one section after the other. Child plans, made once
 * for the first section, the last and those between, run with other pointers; each reads the halo
 * of its windows from the neighbour's columns. For `onednn`, whose forward kernels want memory and
 * preparation in proportion to a row. All types and epilogues. */
#include "ops/compose/compose.h"
#include "ops/conv/conv.h"

enum { SECTION = MICA_CONV_LONG_ROW / 2 }; /* of a long row there are at least three */

/* A convolution of one image's columns: what it writes, what it reads, and the zeros around. */
typedef struct section {
    int64_t to, columns;
    int64_t from, read;
    int64_t before, after;
} section;

typedef struct cut {
    int axis; /* of the fields; of the images 2 more */
    int64_t in, stride, pad, span;
    int64_t columns, sections, each;
} cut;

static cut cut_of(const mica_conv_desc *d)
{
    int axis = d->x.rank - 3;
    cut c = {.axis = axis,
             .in = d->x.dims[axis + 2],
             .stride = d->stride[axis],
             .pad = d->pad[axis],
             .span = (d->w.dims[axis + 2] - 1) * d->dilation[axis] + 1,
             .columns = d->y.dims[axis + 2]};
    c.sections = conv_ceil_div(c.columns, SECTION);
    c.each = c.sections ? conv_ceil_div(c.columns, c.sections) : 0;
    return c;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static section section_of(const cut *c, int64_t i)
{
    section s = {.to = i * c->each};
    s.columns = least(c->each, c->columns - s.to);
    int64_t begin = s.to * c->stride - c->pad;
    int64_t end = begin + (s.columns - 1) * c->stride + c->span;
    s.from = begin < 0 ? 0 : begin;
    s.read = least(end, c->in) - s.from;
    s.before = s.from - begin;
    s.after = end - s.from - s.read;
    return s;
}

static mica_conv_desc part_of(const mica_conv_desc *d, const cut *c, const section *s)
{
    mica_conv_desc part = *d;
    part.x.dims[0] = part.y.dims[0] = 1;
    part.x.dims[c->axis + 2] = s->read;
    part.y.dims[c->axis + 2] = s->columns;
    if (mica_tensor_given(&d->residual)) {
        part.residual.dims[0] = 1;
        part.residual.dims[c->axis + 2] = s->columns;
    }
    part.pad[c->axis] = s->before;
    part.pad_extra[c->axis] = s->after - s->before;
    return part;
}

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    const mica_conv_desc *d = desc;
    (void)device;
    MICA_TRY(conv_refuse_full_epilogue(d, why));
    if (d->pass != MICA_CONV_FWD || d->transposed)
        return mica_refuse(why, "this engine is for plain forward passes");
    cut c = cut_of(d);
    if (c.columns <= MICA_CONV_LONG_ROW)
        return mica_refuse(why, "rows have %lld columns, this engine cuts those of more than %d",
                           (long long)c.columns, MICA_CONV_LONG_ROW);
    MICA_TRY(conv_refuse_empty(d, why));
    section first = section_of(&c, 0), second = section_of(&c, 1);
    section inner = section_of(&c, c.sections - 2), last = section_of(&c, c.sections - 1);
    if (first.read < 1 || second.before || inner.after || last.read < 1)
        return mica_refuse(why,
                           "zeros around the image reach past the first or the last %lld "
                           "columns",
                           (long long)c.each);
    return MICA_OK;
}

static double predict(const void *desc, const mica_device_info *device, const mica_config *config)
{
    const mica_conv_desc *d = desc;
    cut c = cut_of(d);
    section s = section_of(&c, 0);
    mica_conv_desc part = part_of(d, &c, &s);
    (void)config;
    return (double)(d->x.dims[0] * c.sections) *
           mica_op_predict(&mica_op_conv, &part, device, false);
}

/* The least exact engine of a section is `onednn`. */
static void contract(const void *desc, const mica_config *config, mica_contract *c)
{
    mica_conv_onednn.contract(desc, config, c);
}

/* Bytes that a number of columns, or an image, take in a tensor; 0 of one that is not given. */
static int64_t columns_of(const mica_tensor *t, int64_t columns)
{
    return t->rank ? columns * t->strides[t->rank - 1] * mica_dtype_bits(t->dtype) / 8 : 0;
}

static int64_t image_of(const mica_tensor *t)
{
    return t->strides[0] * mica_dtype_bits(t->dtype) / 8;
}

/* `count` sections alike, of which `i` is the first, of all images. */
static void add_sections(mica_compose *list, const mica_conv_desc *d, const cut *c, int64_t i,
                         int64_t count)
{
    static const int args[] = {MICA_CONV_X, MICA_CONV_Y, MICA_CONV_RESIDUAL};
    const mica_tensor *tensors[] = {&d->x, &d->y, &d->residual};
    const section s = section_of(c, i);
    const int64_t at[] = {s.from, s.to, s.to}, apart[] = {c->each * c->stride, c->each, c->each};
    const mica_conv_desc part = part_of(d, c, &s);
    mica_compose_step(list, "conv", &part, sizeof part, NULL);
    mica_compose_pass(list, mica_op_conv.arg_count);
    mica_compose_scale(list);
    for (int k = 0; k < 3; k++) {
        mica_memory first = mica_compose_arg(args[k]);
        first.at = columns_of(tensors[k], at[k]);
        mica_compose_bind(list, args[k], first);
    }
    mica_compose_repeat(list, count);
    for (int k = 0; k < 3; k++)
        mica_compose_advance(list, args[k], columns_of(tensors[k], apart[k]));
    mica_compose_repeat(list, d->x.dims[0]);
    for (int k = 0; k < 3; k++) mica_compose_advance(list, args[k], image_of(tensors[k]));
}

static mica_status build(mica_plan *plan)
{
    const mica_conv_desc *d = plan->desc;
    const cut c = cut_of(d);
    mica_compose list = {0};
    add_sections(&list, d, &c, 0, 1);
    add_sections(&list, d, &c, 1, c.sections - 2);
    add_sections(&list, d, &c, c.sections - 1, 1);
    return mica_compose_build(plan, &list);
}

const mica_engine mica_conv_sections = {.name = "sections",
                                        .accepts = accepts,
                                        .predict = predict,
                                        .contract = contract,
                                        .build = build,
                                        .run = mica_compose_run};
