/* SPDX-License-Identifier: Apache-2.0
 * Engine "cuda": a token by 1 to 32 lanes of a warp, its logits in registers, each read once; slots
 * are found one after the other. Counts and losses are partial sums of blocks in a fixed grid,
 * which one more block adds up. Any strides; vectors where experts are neighbours. */
#include "ops/moe_route/moe_route.h"
#include "ops/moe_route/moe_route_args.h"
#include "ops/access/access.h"

enum { BLOCK = 256, BLOCKS_PER_UNIT = 16, SUM_BLOCKS_PER_UNIT = 4, FINISH_BLOCK = 1024, WARP = 32 };

typedef struct shape {
    int lanes, values, vector; /* as in moe_route.cuh */
} shape;

typedef struct state {
    mica_kernel *main, *finish;
    mica_grid grid, finish_grid;
    mica_moe_route_args args;
    int x_align, dx_align; /* bytes that vectors ask for */
    size_t p, z, counts;   /* of the workspace, where there are sums */
    bool forward;
} state;

static int power_of_two(int64_t least)
{
    int v = 1;
    while (v < least) v *= 2;
    return v;
}

/* Four experts to a lane where they are enough, so that its access is of 8 or 16 bytes. */
static shape choose_shape(const mica_moe_route_desc *d)
{
    const int64_t experts = d->logits.dims[1];
    const bool fwd = d->pass == MICA_MOE_ROUTE_FWD;
    shape s;
    s.lanes = power_of_two((experts + 3) / 4);
    if (s.lanes < d->k) s.lanes = power_of_two(d->k);
    if (s.lanes > WARP || (fwd && moe_route_limits_groups(d))) s.lanes = WARP;
    s.values = power_of_two((experts + s.lanes - 1) / s.lanes);
    const mica_dtype types[] = {d->logits.dtype, d->dlogits.dtype};
    const int most = mica_access_most(types, fwd ? 1 : 2);
    s.vector = mica_access_rows(most < s.values ? most : s.values, &d->logits);
    s.vector = mica_access_fit(s.vector, experts);
    if (!fwd) s.vector = mica_access_rows(s.vector, &d->dlogits);
    return s;
}

static void fill_args(const mica_moe_route_desc *d, mica_moe_route_args *a)
{
    const bool fwd = d->pass == MICA_MOE_ROUTE_FWD;
    const mica_tensor *w = fwd ? &d->weights : &d->dweights;
    const double tokens = (double)d->logits.dims[0];
    a->tokens = d->logits.dims[0];
    a->experts = (int)d->logits.dims[1];
    a->slots = (int)d->k;
    a->groups = (int)d->groups, a->kept_groups = (int)d->topk_groups;
    a->group = a->experts / (int)d->groups;
    a->x_token = d->logits.strides[0], a->x_expert = d->logits.strides[1];
    a->dx_token = d->dlogits.strides[0], a->dx_expert = d->dlogits.strides[1];
    a->index_token = d->indices.strides[0], a->index_slot = d->indices.strides[1];
    a->weight_token = w->strides[0], a->weight_slot = w->strides[1];
    a->bias_expert = d->bias.strides[0];
    a->counts_expert = d->counts.strides[0];
    a->scale = d->scale;
    a->aux_by = (double)a->experts / tokens / tokens;
    a->z_by = (fwd ? 1 : 2) / tokens;
}

static void add_losses(mica_text *p, const mica_moe_route_desc *d)
{
    const bool fwd = d->pass == MICA_MOE_ROUTE_FWD;
    const mica_tensor *aux = fwd ? &d->aux : &d->daux, *z = fwd ? &d->z : &d->dz;
    mica_prologue_int(p, "SHARES", mica_tensor_given(aux));
    mica_prologue_int(p, "SQUARES", mica_tensor_given(z));
    mica_prologue_type(p, "aux_t", mica_tensor_given(aux) ? aux->dtype : MICA_F32);
    mica_prologue_type(p, "z_t", mica_tensor_given(z) ? z->dtype : MICA_F32);
}

static mica_status add_main(mica_plan *plan, state *s, const shape *shape)
{
    const mica_moe_route_desc *d = plan->desc;
    const bool limits = moe_route_limits_groups(d);
    char buffer[1024] = "";
    mica_text p = {buffer, sizeof buffer, 0};
    mica_prologue_int(&p, "BLOCK", BLOCK);
    mica_prologue_int(&p, "LANES", shape->lanes);
    mica_prologue_int(&p, "VALUES", shape->values);
    mica_prologue_int(&p, "VECTOR", shape->vector);
    mica_prologue_int(&p, "SIGMOID", d->score == MICA_MOE_ROUTE_SIGMOID);
    mica_prologue_int(&p, "RENORMALISE", d->renormalise);
    mica_prologue_type(&p, "x_t", d->logits.dtype);
    mica_prologue_type(&p, "acc_t", moe_route_is_wide(d) ? MICA_F64 : MICA_F32);
    mica_prologue_type(&p, "w_t", s->forward ? d->weights.dtype : d->dweights.dtype);
    add_losses(&p, d);
    mica_kernel_spec spec = {"ops/moe_route/moe_route_backward.cu", "moe_route_backward", buffer,
                             0};
    if (s->forward) {
        mica_prologue_int(&p, "BY_SCORE", moe_route_by_score(d));
        mica_prologue_int(&p, "BIAS", mica_tensor_given(&d->bias));
        mica_prologue_int(&p, "LIMITED", limits);
        mica_prologue_int(&p, "SUM2", limits && d->group_score == MICA_MOE_ROUTE_SUM2);
        mica_prologue_int(&p, "SUMS", moe_route_sums(d));
        spec.file = "ops/moe_route/moe_route_forward.cu";
        spec.entry = "moe_route_forward";
    } else {
        mica_prologue_type(&p, "dx_t", d->dlogits.dtype);
    }
    return mica_plan_add_kernel(plan, &spec, &s->main);
}

static mica_status add_finish(mica_plan *plan, state *s)
{
    const mica_moe_route_desc *d = plan->desc;
    const size_t blocks = (size_t)s->args.blocks, experts = (size_t)s->args.experts;
    char buffer[512] = "";
    mica_text p = {buffer, sizeof buffer, 0};
    mica_prologue_int(&p, "BLOCK", FINISH_BLOCK);
    mica_prologue_int(&p, "COUNTS", mica_tensor_given(&d->counts));
    add_losses(&p, d);
    const mica_kernel_spec spec = {"ops/moe_route/moe_route_finish.cu", "moe_route_finish", buffer,
                                   0};
    s->finish_grid = (mica_grid){.grid = {1}, .block = {FINISH_BLOCK}};
    MICA_TRY(mica_plan_add_kernel(plan, &spec, &s->finish));
    MICA_TRY(mica_book(plan, "counts", blocks * experts * sizeof(int64_t), &s->counts));
    MICA_TRY(mica_book(plan, "sums of shares", blocks * experts * sizeof(double), &s->p));
    return mica_book(plan, "sums of squares", blocks * sizeof(double), &s->z);
}

static mica_status build(mica_plan *plan)
{
    const mica_moe_route_desc *d = plan->desc;
    state *s;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    s->forward = d->pass == MICA_MOE_ROUTE_FWD;
    const bool sums = moe_route_sums(d);
    if (d->logits.dims[0] == 0 && !sums) return MICA_OK;
    const shape shape = choose_shape(d);
    fill_args(d, &s->args);
    s->x_align = mica_access_bytes(d->logits.dtype, shape.vector);
    s->dx_align = s->forward ? 1 : mica_access_bytes(d->dlogits.dtype, shape.vector);
    const int64_t each = BLOCK / shape.lanes, needed = (s->args.tokens + each - 1) / each;
    const int64_t most = plan->device.units * (sums ? SUM_BLOCKS_PER_UNIT : BLOCKS_PER_UNIT);
    s->args.blocks = (int)(needed < most ? needed : most);
    if (s->args.blocks == 0) s->args.blocks = 1; /* no tokens: counts are written all the same */
    s->grid = (mica_grid){.grid = {(unsigned)s->args.blocks}, .block = {BLOCK}};
    MICA_TRY(add_main(plan, s, &shape));
    return sums ? add_finish(plan, s) : MICA_OK;
}

static mica_status run(const mica_plan *plan, const mica_run *run)
{
    const state *s = plan->state;
    mica_moe_route_args a = s->args;
    if (!s->main) return MICA_OK;
    void *const *args = run->args;
    a.logits = args[MICA_MOE_ROUTE_LOGITS];
    a.bias = args[MICA_MOE_ROUTE_BIAS];
    a.indices = args[MICA_MOE_ROUTE_INDICES];
    a.weights = args[s->forward ? MICA_MOE_ROUTE_WEIGHTS : MICA_MOE_ROUTE_DWEIGHTS];
    a.counts = args[MICA_MOE_ROUTE_COUNTS];
    a.aux = args[s->forward ? MICA_MOE_ROUTE_AUX : MICA_MOE_ROUTE_DAUX];
    a.z = args[s->forward ? MICA_MOE_ROUTE_Z : MICA_MOE_ROUTE_DZ];
    a.dlogits = args[MICA_MOE_ROUTE_DLOGITS];
    a.whole = mica_access_starts(a.logits, s->x_align) &&
              (s->forward || mica_access_starts(a.dlogits, s->dx_align));
    if (s->finish) {
        a.partial_p = mica_at(run, s->p);
        a.partial_z = mica_at(run, s->z);
        a.partial_counts = mica_at(run, s->counts);
    }
    MICA_TRY(mica_kernel_launch(s->main, &s->grid, run->stream, &a));
    return s->finish ? mica_kernel_launch(s->finish, &s->finish_grid, run->stream, &a) : MICA_OK;
}

const mica_engine mica_moe_route_cuda = {
    .name = "cuda", .cuda = true, .reached = 0.5, .start_ms = 3e-3, .build = build, .run = run};
