/* SPDX-License-Identifier: Apache-2.0
 * Steps of child plans: their list, their memory, their run. */
#include "ops/compose/compose.h"
#include "base/memory.h"

#include <string.h>

typedef struct mica_compose_step {
    const char *op, *engine;
    void *desc; /* a copy */
    size_t size;
    int64_t runs, every, count; /* the last of its loops: runs in a round, rounds */
    bool scaled, if_beta;
} step;

typedef struct mica_compose_binding {
    int step, arg; /* of the child */
    mica_memory memory;
} binding;

/* An argument moves before each run of its step whose number is a multiple of `every`, but for the
 * first. */
typedef struct mica_compose_move {
    int step, arg; /* of the child */
    int64_t every, bytes;
} move;

/* What is kept of a list, behind each other in plan->state. */
typedef struct bound {
    int arg, from;  /* of the child, of the run or -1 */
    int64_t offset; /* from there, or in the workspace */
} bound;

typedef struct stage {
    const mica_plan *plan;
    size_t workspace_at;
    int bound_end; /* its bindings are those from the stage before on */
    int64_t runs;
    bool scaled, if_beta;
    int scalars[MICA_MAX_SCALARS]; /* which of the run each of the child's is, or -1 */
} stage;

typedef struct composed {
    stage *stages;
    move *moves;
    bound *bounds;
    int count, move_count, beta; /* which of the run's scalars */
} composed;

/* ---- the list ---- */

static void *append(mica_compose *c, void *list, int *count, size_t bytes)
{
    char *old, *grown;
    if (c->status != MICA_OK) return NULL;
    memcpy(&old, list, sizeof old);
    grown = mica_grow(old, ((size_t)*count + 1) * bytes);
    if (!grown) {
        c->status = mica_fail_memory(((size_t)*count + 1) * bytes);
        return NULL;
    }
    memcpy(list, &grown, sizeof grown);
    return memset(grown + (size_t)(*count)++ * bytes, 0, bytes);
}

mica_memory mica_compose_temporary(mica_compose *c, size_t bytes)
{
    size_t *t = append(c, &c->temporaries, &c->temporary_count, sizeof *t);
    if (t) *t = bytes;
    return (mica_memory){-1, c->temporary_count - 1, 0};
}

void mica_compose_step(mica_compose *c, const char *op, const void *desc, size_t size,
                       const char *engine)
{
    step *s = append(c, &c->steps, &c->step_count, sizeof *s);
    if (!s) return;
    *s = (step){.op = op, .engine = engine, .desc = mica_alloc(size), .size = size, .runs = 1};
    if (s->desc)
        memcpy(s->desc, desc, size);
    else
        c->status = mica_fail_memory(size);
}

void mica_compose_bind(mica_compose *c, int arg, mica_memory memory)
{
    binding *b = append(c, &c->bindings, &c->binding_count, sizeof *b);
    if (b) *b = (binding){c->step_count - 1, arg, memory};
}

void mica_compose_pass(mica_compose *c, int count)
{
    for (int i = 0; i < count; i++) mica_compose_bind(c, i, mica_compose_arg(i));
}

void mica_compose_scale(mica_compose *c)
{
    if (c->status == MICA_OK) c->steps[c->step_count - 1].scaled = true;
}

void mica_compose_if_beta(mica_compose *c)
{
    if (c->status == MICA_OK) c->steps[c->step_count - 1].if_beta = true;
}

void mica_compose_repeat(mica_compose *c, int64_t count)
{
    if (c->status != MICA_OK) return;
    step *s = &c->steps[c->step_count - 1];
    s->every = s->runs;
    s->count = count;
    s->runs *= count;
}

static void add_move(mica_compose *c, int arg, int64_t every, int64_t bytes)
{
    move *m = append(c, &c->moves, &c->move_count, sizeof *m);
    if (m) *m = (move){c->step_count - 1, arg, every, bytes};
}

void mica_compose_advance(mica_compose *c, int arg, int64_t bytes)
{
    if (c->status != MICA_OK) return;
    const step s = c->steps[c->step_count - 1];
    add_move(c, arg, s.every, bytes);
    add_move(c, arg, s.runs, -s.count * bytes); /* back to where the loop begins */
}

static void forget(mica_compose *c)
{
    for (int i = 0; i < c->step_count; i++) mica_release(c->steps[i].desc);
    mica_release(c->steps);
    mica_release(c->bindings);
    mica_release(c->moves);
    mica_release(c->temporaries);
    *c = (mica_compose){.status = c->status};
}

static double predict_step(const step *s, const mica_device_info *device)
{
    _Alignas(16) char resolved[MICA_MAX_DESC] = {0};
    const mica_op *op = mica_op_find(s->op);
    mica_why why = {""};
    if (mica_op_resolve_child(s->op, s->desc, resolved, &why) != MICA_OK) return 0;
    for (int i = 0; s->engine && op->engines[i]; i++)
        if (op->engines[i]->cuda == device->cuda && !strcmp(op->engines[i]->name, s->engine))
            return mica_engine_predict(op->engines[i], op, resolved, device);
    return mica_op_predict(op, resolved, device, device->cuda);
}

double mica_compose_predict(mica_compose *c, const mica_device_info *device)
{
    double ms = 0;
    for (int i = 0; c->status == MICA_OK && i < c->step_count; i++)
        ms += (double)c->steps[i].runs * predict_step(&c->steps[i], device);
    forget(c);
    return ms;
}

/* ---- memory ---- */

/* A temporary, or the workspace of a step's plan. */
typedef struct piece {
    size_t bytes, at;
    int first, last; /* steps that need it */
    bool placed;
} piece;

static bool meet(const piece *a, const piece *b)
{
    bool at_once = a->first <= b->last && b->first <= a->last;
    return at_once && a->at < b->at + b->bytes && b->at < a->at + a->bytes;
}

static void put_lowest(piece *pieces, int count, piece *p)
{
    p->at = 0;
    for (int i = 0; i < count; i++) {
        if (!pieces[i].placed || !meet(p, &pieces[i])) continue;
        p->at = pieces[i].at + pieces[i].bytes;
        i = -1; /* it may meet others there */
    }
    p->placed = true;
}

static piece *largest_left(piece *pieces, int count)
{
    piece *largest = NULL;
    for (int i = 0; i < count; i++)
        if (!pieces[i].placed && (!largest || pieces[i].bytes > largest->bytes))
            largest = &pieces[i];
    return largest;
}

/* Each as low as it goes, temporaries first, the largest of them first. One lies at 0 or on
 * another, so that they never take more than side by side, and plans, of which no two are needed at
 * once, never more than the largest of them on top. */
static mica_status place(piece *pieces, int temporaries, int count, size_t *total)
{
    size_t sum = 0;
    for (int i = 0; i < count; i++) {
        size_t rounded;
        if (__builtin_add_overflow(pieces[i].bytes, (size_t)255, &rounded) ||
            __builtin_add_overflow(sum, rounded / 256 * 256, &sum))
            return mica_fail(MICA_UNSUPPORTED, "a workspace of %zu + %zu bytes overflows", sum,
                             pieces[i].bytes);
        pieces[i].bytes = rounded / 256 * 256;
    }
    for (int i = 0; i < count; i++)
        put_lowest(pieces, count, i < temporaries ? largest_left(pieces, temporaries) : &pieces[i]);
    *total = 0;
    for (int i = 0; i < count; i++)
        if (pieces[i].at + pieces[i].bytes > *total) *total = pieces[i].at + pieces[i].bytes;
    return MICA_OK;
}

/* ---- plans ---- */

static mica_status add_child(mica_plan *plan, const step *from, stage *to, piece *workspace)
{
    mica_plan *child;
    MICA_TRY(
        mica_plan_child_create(plan, from->op, from->desc, from->size, from->engine, &child, NULL));
    to->plan = child;
    to->runs = from->runs;
    to->scaled = from->scaled;
    to->if_beta = from->if_beta;
    for (int i = 0; i < child->op->scalar_count; i++)
        to->scalars[i] = mica_op_scalar_index(plan->op, child->op->scalars[i].name);
    workspace->bytes = child->workspace;
    return MICA_OK;
}

static void bind_step(const mica_compose *c, int number, piece *temporaries, composed *st, int *end)
{
    for (; *end < c->binding_count && c->bindings[*end].step == number; ++*end) {
        const binding *b = &c->bindings[*end];
        st->bounds[*end] = (bound){b->arg, b->memory.arg, b->memory.at};
        if (b->memory.arg >= 0) continue;
        piece *t = &temporaries[b->memory.temporary];
        if (t->last < 0) t->first = number;
        t->last = number;
    }
    st->stages[number].bound_end = *end;
}

/* Now that pieces have their places. */
static void find_places(const mica_compose *c, const piece *pieces, size_t base, composed *st)
{
    for (int i = 0; i < c->step_count; i++)
        st->stages[i].workspace_at = base + pieces[c->temporary_count + i].at;
    for (int i = 0; i < c->binding_count; i++)
        if (st->bounds[i].from < 0)
            st->bounds[i].offset += (int64_t)(base + pieces[c->bindings[i].memory.temporary].at);
}

static mica_status build(mica_plan *plan, const mica_compose *c, piece *pieces)
{
    composed *st;
    int temporaries = c->temporary_count, end = 0;
    size_t stages = (size_t)c->step_count * sizeof(stage), total = 0, base;
    size_t moves = (size_t)c->move_count * sizeof(move);
    size_t bounds = (size_t)c->binding_count * sizeof(bound);
    MICA_TRY(mica_plan_state(plan, sizeof *st + stages + moves + bounds, &st));
    st->stages = (stage *)(st + 1);
    st->moves = (move *)(st->stages + c->step_count);
    st->bounds = (bound *)(st->moves + c->move_count);
    st->count = c->step_count;
    st->move_count = c->move_count;
    for (int i = 0; i < c->move_count; i++) st->moves[i] = c->moves[i];
    st->beta = mica_op_scalar_index(plan->op, "beta");
    for (int i = 0; i < temporaries; i++)
        pieces[i] = (piece){.bytes = c->temporaries[i], .last = -1};
    for (int i = 0; i < c->step_count; i++) {
        piece *workspace = &pieces[temporaries + i];
        *workspace = (piece){.first = i, .last = i};
        MICA_TRY(add_child(plan, &c->steps[i], &st->stages[i], workspace));
        bind_step(c, i, pieces, st, &end);
    }
    MICA_TRY(place(pieces, temporaries, temporaries + c->step_count, &total));
    MICA_TRY(mica_book(plan, "temporaries and child plans", total, &base));
    find_places(c, pieces, base, st);
    return MICA_OK;
}

mica_status mica_compose_build(mica_plan *plan, mica_compose *c)
{
    size_t bytes = (size_t)(c->temporary_count + c->step_count) * sizeof(piece);
    piece *pieces = mica_alloc(bytes);
    mica_status status = c->status;
    if (status == MICA_OK && !pieces) status = mica_fail_memory(bytes);
    if (status == MICA_OK) status = build(plan, c, pieces);
    mica_release(pieces);
    forget(c);
    return status;
}

/* All runs of a step; the first finds its arguments where `child` has them. */
static mica_status run_stage(const stage *s, const move *moves, const move *end, mica_run *child)
{
    for (int64_t i = 0; i < s->runs; i++) {
        for (const move *m = moves; i > 0 && m < end; m++)
            if (i % m->every == 0 && child->args[m->arg])
                child->args[m->arg] = (char *)child->args[m->arg] + m->bytes;
        MICA_TRY(mica_plan_child_run(s->plan, child));
    }
    return MICA_OK;
}

mica_status mica_compose_build_steps(mica_plan *plan)
{
    mica_compose list = {0};
    plan->engine->steps(plan->desc, &list);
    return mica_compose_build(plan, &list);
}

mica_status mica_compose_run(const mica_plan *plan, const mica_run *r)
{
    const composed *st = plan->state;
    const double beta = st->beta >= 0 ? mica_run_scalar(plan, r, st->beta) : 0;
    const bound *b = st->bounds;
    const move *moves = st->moves, *last = moves + st->move_count;
    for (const stage *s = st->stages; s < st->stages + st->count; s++) {
        const bound *end = st->bounds + s->bound_end;
        const move *own = moves;
        while (moves < last && moves->step == s - st->stages) moves++;
        double scalars[MICA_MAX_SCALARS];
        mica_run child; /* of arguments as many as its operation has: the rest is not read */
        child.size = offsetof(mica_run, args) + (size_t)s->plan->op->arg_count * sizeof *child.args;
        child.scalars = NULL;
        child.workspace = mica_at(r, s->workspace_at);
        child.stream = r->stream;
        for (int i = 0; i < s->plan->op->arg_count; i++) child.args[i] = NULL;
        for (; b < end; b++) {
            char *from = b->from < 0 ? r->workspace : r->args[b->from];
            child.args[b->arg] = from ? from + b->offset : NULL;
        }
        if (s->if_beta && beta == 0) continue;
        for (int i = 0; s->scaled && i < s->plan->op->scalar_count; i++)
            scalars[i] = s->scalars[i] >= 0 ? mica_run_scalar(plan, r, s->scalars[i])
                                            : s->plan->op->scalars[i].def;
        if (s->scaled) child.scalars = scalars;
        MICA_TRY(run_stage(s, own, moves, &child));
    }
    return MICA_OK;
}
