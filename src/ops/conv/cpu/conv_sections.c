/* SPDX-License-Identifier: Apache-2.0
 * Engine "sections": forward convolutions of long rows (sound, signals) on the CPU, whose images
 * are cut across the innermost axis and done one section after the other. Child plans, made once
 * for the first section, the last and those between, run with other pointers; each reads the halo
 * of its windows from the neighbour's columns. For `onednn`, whose forward kernels want memory and
 * preparation in proportion to a row. All types and epilogues. */
#include "ops/conv/conv.h"

enum { FIRST, BETWEEN, LAST, KINDS };
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

typedef struct state {
    cut cut;
    mica_plan *children[KINDS];
    size_t at[KINDS];
} state;

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

static int kind_of(const cut *c, int64_t i)
{
    return i == 0 ? FIRST : i == c->sections - 1 ? LAST : BETWEEN;
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

static mica_status build(mica_plan *plan)
{
    const mica_conv_desc *d = plan->desc;
    state *s;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    s->cut = cut_of(d);
    const int64_t of_kind[KINDS] = {0, 1, s->cut.sections - 1};
    for (int i = 0; i < KINDS; i++) {
        section part = section_of(&s->cut, of_kind[i]);
        mica_conv_desc c = part_of(d, &s->cut, &part);
        MICA_TRY(
            mica_plan_child_create(plan, "conv", &c, sizeof c, NULL, &s->children[i], &s->at[i]));
    }
    return MICA_OK;
}

/* Moves a run argument to an image's column. */
static void move(mica_run *r, int arg, const mica_tensor *t, int64_t image, int64_t column)
{
    if (!r->args[arg]) return; /* a tensor that is not given has no dimensions either */
    int64_t elements = image * t->strides[0] + column * t->strides[t->rank - 1];
    r->args[arg] = (char *)r->args[arg] + elements * mica_dtype_bits(t->dtype) / 8;
}

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    const mica_conv_desc *d = plan->desc;
    const state *s = plan->state;
    for (int64_t i = 0; i < d->x.dims[0] * s->cut.sections; i++) {
        int64_t image = i / s->cut.sections, at = i % s->cut.sections;
        section part = section_of(&s->cut, at);
        int kind = kind_of(&s->cut, at);
        mica_run child = *r;
        child.workspace = mica_at(r, s->at[kind]);
        move(&child, MICA_CONV_X, &d->x, image, part.from);
        move(&child, MICA_CONV_Y, &d->y, image, part.to);
        move(&child, MICA_CONV_RESIDUAL, &d->residual, image, part.to);
        MICA_TRY(mica_plan_child_run(s->children[kind], &child));
    }
    return MICA_OK;
}

const mica_engine mica_conv_sections = {.name = "sections",
                                        .accepts = accepts,
                                        .predict = predict,
                                        .contract = contract,
                                        .build = build,
                                        .run = run};
