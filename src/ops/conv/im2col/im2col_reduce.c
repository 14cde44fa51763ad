/* SPDX-License-Identifier: Apache-2.0
 * The reduction of the partial sums of the Hopper engines' wgrad. */
#include "ops/conv/im2col/im2col_shape.h"

enum { BLOCK = 256, MAX_SHARES = 16, QUAD = 4 };
enum { THREADS = 1024 }; /* of the reduction, for each multiprocessor */

/* Threads that share a sum: enough to fill the device, no more than there are parts. */
static int shares_of(int64_t sums, int parts, int units)
{
    int shares = 1;
    while (shares < MAX_SHARES && 2 * shares <= parts && sums * shares < units * (int64_t)THREADS)
        shares *= 2;
    return shares;
}

static bool side_by_side(const mica_conv_geometry *g)
{
    bool whole = g->f.c == 1 && g->f.n % QUAD == 0 && g->f_base % QUAD == 0;
    for (int i = 0; i < 3; i++) whole = whole && (g->tap[i] == 1 || g->f.s[i] % QUAD == 0);
    return whole;
}

mica_conv_sm90_filter mica_conv_sm90_filter_of(const mica_conv_geometry *g)
{
    return (mica_conv_sm90_filter){.f = g->f,
                                   .f_base = g->f_base,
                                   .taps = {(int)g->tap[0], (int)g->tap[1], (int)g->tap[2]},
                                   .channels = (int)g->c};
}

void mica_conv_sm90_filter_prologue(const mica_conv_sm90_shape *s, mica_text *p)
{
    mica_prologue_int(p, "VECTOR", side_by_side(&s->g) ? QUAD : 1);
    mica_prologue_type(p, "out_t", s->out);
}

void mica_conv_sm90_filter_bind(const mica_plan *plan, const mica_run *r, int out,
                                mica_conv_sm90_filter *f)
{
    f->out = r->args[out];
    f->alpha = (float)mica_run_scalar(plan, r, MICA_CONV_ALPHA);
    f->beta = (float)mica_run_scalar(plan, r, MICA_CONV_BETA);
}

mica_status mica_conv_sm90_reduce_build(mica_plan *plan, const mica_conv_sm90_shape *s, int parts,
                                        int columns, int pitch, const mica_conv_stream *stream,
                                        mica_conv_sm90_reduce *reduce)
{
    const mica_conv_geometry *g = &s->g;
    int taps = (int)(g->tap[0] * g->tap[1] * g->tap[2]);
    reduce->args =
        (mica_conv_sm90_reduce_args){.filter = mica_conv_sm90_filter_of(g),
                                     .split_stride = g->groups * g->k * columns,
                                     .columns = columns,
                                     .pitch = pitch,
                                     .count = (int)(g->groups * g->k * taps * g->c / QUAD),
                                     .splits = parts};
    if (stream) reduce->args.stream = *stream;
    size_t bytes = (size_t)parts * (size_t)reduce->args.split_stride * sizeof(float);
    MICA_TRY(mica_book(plan, "partial sums", bytes, &reduce->partial));
    int shares = shares_of(reduce->args.count, parts, plan->device.units);
    unsigned each = (unsigned)(BLOCK / shares), count = (unsigned)reduce->args.count;
    reduce->grid = (mica_grid){.grid = {(count + each - 1) / each}, .block = {BLOCK}};
    char buffer[256] = "";
    mica_text p = {buffer, sizeof buffer, 0};
    mica_prologue_int(&p, "BLOCK", BLOCK);
    mica_prologue_int(&p, "SHARES", shares);
    mica_conv_sm90_filter_prologue(s, &p);
    mica_kernel_spec spec = {"ops/conv/im2col/im2col_reduce.cu", "conv_sm90_reduce", buffer, 0};
    return mica_plan_add_kernel(plan, &spec, &reduce->kernel);
}

mica_status mica_conv_sm90_reduce_run(const mica_plan *plan, const mica_conv_sm90_reduce *reduce,
                                      int out, const mica_run *r)
{
    mica_conv_sm90_reduce_args a = reduce->args;
    a.partial = mica_at(r, reduce->partial);
    mica_conv_sm90_filter_bind(plan, r, out, &a.filter);
    return mica_kernel_launch(reduce->kernel, &reduce->grid, r->stream, &a);
}
