/* SPDX-License-Identifier: Apache-2.0
 * Measured choice: the best few of the model run on random data, in turn, their buffers rotated
 * past twice the cache, short ones as chains of runs back to back; medians decide, and only a lead
 * of more than 3 % overrules the model, so that two runs agree. */
#include "plan/context.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/random.h"

#include <stdlib.h>
#include <string.h>

/* A clear of this size keeps a GPU busy for about BLOCKER_MS. */
static const int64_t blocker_bytes = 256 << 20;
static const double BLOCKER_MS = 0.05;
static const double CHAIN_MS = 0.05; /* what shorter runs are made up to */
enum { FINALISTS = 6, PEER_FINALISTS = 16, SETS = 8, ROUNDS = 41, MOST_CLEARS = 100 };
enum { MOST_CHAIN = 16, ATTEMPTS = 3 };

typedef struct contest {
    mica_context *context;
    const mica_op *op;
    const void *desc;
    mica_plan *plans[PEER_FINALISTS];
    int list_index[PEER_FINALISTS]; /* where the plan's candidate stands */
    int count;
    bool peer; /* no model of ours orders its candidates: more of them run, and the best is taken */
    int64_t first[MICA_MAX_ARGS], span[MICA_MAX_ARGS];
    void *buffers[SETS][MICA_MAX_ARGS];
    void *packed[PEER_FINALISTS][SETS][MICA_MAX_ARGS]; /* each plan has its own layout */
    int sets;
    double *normals; /* what large buffers repeat; NULL: not drawn yet */
    void *workspace;
    void *blocker; /* cleared before each round on a GPU, so that the host gets ahead of it */
    int clears;
    int chain; /* runs that are timed as one */
    mica_event *from[PEER_FINALISTS], *to[PEER_FINALISTS];
    double times[PEER_FINALISTS][ROUNDS];
    int rounds;
} contest;

static void finish(contest *c)
{
    for (int s = 0; s < SETS; s++)
        for (int a = 0; a < MICA_MAX_ARGS; a++) {
            for (int i = 0; i < c->count; i++) mica_free(c->context, c->packed[i][s][a]);
            mica_free(c->context, c->buffers[s][a]);
        }
    for (int i = 0; i < c->count; i++) mica_plan_destroy(c->plans[i]);
    mica_free(c->context, c->workspace);
    mica_free(c->context, c->blocker);
    mica_release(c->normals);
    for (int i = 0; i < PEER_FINALISTS; i++) {
        mica_event_destroy(c->context, c->from[i]);
        mica_event_destroy(c->context, c->to[i]);
    }
}

enum { DRAWN = 1 << 20 };

/* The elements of one argument: integers as the operation wants them, and small tensors. */
static mica_status fill_whole(const contest *c, int arg, void *to)
{
    const mica_tensor *t = mica_op_tensor(c->op, c->desc, arg);
    mica_problem problem = {.op = c->op, .desc = (void *)(uintptr_t)c->desc};
    size_t bytes = (size_t)mica_tensor_count(t) * sizeof(double), span = (size_t)c->span[arg];
    double *values = mica_alloc(bytes);
    char *host = mica_alloc(span);
    mica_status status = values && host ? MICA_OK : mica_fail_memory(bytes + span);
    if (status == MICA_OK) status = mica_problem_fill(&problem, arg, MICA_FILL_RANDOM, 1, values);
    if (status == MICA_OK) status = mica_tensor_store(t, values, host - c->first[arg]);
    if (status == MICA_OK) status = mica_upload(c->context, to, host, c->span[arg], NULL);
    mica_release(values);
    mica_release(host);
    return status;
}

/* DRAWN normal numbers over and over. */
static mica_status fill_repeated(contest *c, int arg, char *to)
{
    mica_dtype dtype = mica_op_tensor(c->op, c->desc, arg)->dtype;
    mica_tensor part = mica_tensor_packed(dtype, 1, (int64_t[]){DRAWN});
    int64_t piece = (int64_t)DRAWN * mica_dtype_bits(dtype) / 8, left = c->span[arg];
    if (!c->normals) {
        c->normals = mica_alloc(DRAWN * sizeof *c->normals);
        for (int i = 0; c->normals && i < DRAWN; i++)
            c->normals[i] = mica_random_normal(1, (uint64_t)i);
    }
    char *host = mica_alloc((size_t)piece);
    mica_status status =
        c->normals && host ? MICA_OK : mica_fail_memory(DRAWN * sizeof *c->normals);
    if (status == MICA_OK) status = mica_tensor_store(&part, c->normals, host);
    for (; status == MICA_OK && left > 0; to += piece, left -= piece)
        status = mica_upload(c->context, to, host, left < piece ? left : piece, NULL);
    mica_release(host);
    return status;
}

static mica_status fill_buffer(contest *c, int arg, void *to)
{
    const mica_tensor *t = mica_op_tensor(c->op, c->desc, arg);
    bool whole = mica_tensor_count(t) <= DRAWN || !mica_dtype_is_float(t->dtype);
    return whole ? fill_whole(c, arg, to) : fill_repeated(c, arg, to);
}

static mica_status pack_buffers(contest *c, const mica_plan *plan,
                                void *packed[SETS][MICA_MAX_ARGS])
{
    for (int s = 0; s < c->sets; s++)
        for (int a = 0; a < c->op->arg_count; a++) {
            size_t bytes = mica_plan_packed_bytes(plan, a);
            if (bytes == 0) continue;
            MICA_TRY(mica_malloc(c->context, (int64_t)bytes, &packed[s][a]));
            MICA_TRY(mica_plan_pack(plan, a, (char *)c->buffers[s][a] - c->first[a], packed[s][a],
                                    NULL));
        }
    return MICA_OK;
}

static mica_status allocate(contest *c)
{
    int64_t total = 0;
    for (int a = 0; a < c->op->arg_count; a++) {
        if (mica_op_dir(c->op, c->desc, a) == MICA_UNUSED) continue;
        c->span[a] = mica_tensor_span(mica_op_tensor(c->op, c->desc, a), &c->first[a]);
        total += c->span[a];
    }
    int64_t sets = total ? 2 * c->context->device.cache_bytes / total + 1 : 1;
    c->sets = sets < SETS ? (int)sets : SETS;
    for (int s = 0; s < c->sets; s++)
        for (int a = 0; a < c->op->arg_count; a++) {
            if (c->span[a] == 0) continue;
            MICA_TRY(mica_malloc(c->context, c->span[a], &c->buffers[s][a]));
            MICA_TRY(fill_buffer(c, a, c->buffers[s][a]));
        }
    for (int i = 0; i < c->count; i++) MICA_TRY(pack_buffers(c, c->plans[i], c->packed[i]));
    size_t workspace = 0;
    for (int i = 0; i < c->count; i++)
        if (c->plans[i]->workspace > workspace) workspace = c->plans[i]->workspace;
    if (workspace) MICA_TRY(mica_malloc(c->context, (int64_t)workspace, &c->workspace));
    /* without room for it the times are rougher */
    if (c->context->device.cuda) (void)mica_malloc(c->context, blocker_bytes, &c->blocker);
    for (int i = 0; i < c->count; i++) {
        MICA_TRY(mica_event_create(c->context, &c->from[i]));
        MICA_TRY(mica_event_create(c->context, &c->to[i]));
    }
    return MICA_OK;
}

static mica_status run_plan(const contest *c, int plan, int set)
{
    mica_run run = {.workspace = c->workspace};
    for (int a = 0; a < c->op->arg_count; a++)
        if (c->packed[plan][set][a])
            run.args[a] = c->packed[plan][set][a];
        else if (c->buffers[set][a])
            run.args[a] = (char *)c->buffers[set][a] - c->first[a];
    return mica_plan_run(c->plans[plan], &run);
}

static mica_status enqueue(contest *c, int plan, int set)
{
    MICA_TRY(mica_event_record(c->context, c->from[plan], NULL));
    for (int i = 0; i < c->chain; i++) MICA_TRY(run_plan(c, plan, (set + i) % c->sets));
    return mica_event_record(c->context, c->to[plan], NULL);
}

/* Each plan once, every round with another one first. */
static mica_status play(contest *c, int round, double *host_ms)
{
    for (int i = 0; c->blocker && i < c->clears; i++)
        MICA_TRY(mica_memset(c->context, c->blocker, 0, blocker_bytes, NULL));
    double start = mica_seconds();
    for (int i = 0; i < c->count; i++)
        MICA_TRY(enqueue(c, (round + i) % c->count, (round * c->count + i) * c->chain % c->sets));
    *host_ms = 1e3 * (mica_seconds() - start);
    for (int i = 0; i < c->count; i++)
        MICA_TRY(mica_event_elapsed(c->context, c->from[i], c->to[i], &c->times[i][round]));
    return MICA_OK;
}

static mica_status race(contest *c, double end)
{
    double host_ms;
    /* the first round is slow for the host, too: libraries load kernels */
    c->chain = 1;
    MICA_TRY(play(c, 0, &host_ms));
    if (c->blocker) {
        double least = CHAIN_MS;
        MICA_TRY(play(c, 0, &host_ms));
        for (int i = 0; i < c->count; i++)
            if (c->times[i][0] < least) least = c->times[i][0];
        c->chain = least * MOST_CHAIN > CHAIN_MS ? (int)(CHAIN_MS / least) : MOST_CHAIN;
        host_ms *= c->chain;
        c->clears =
            host_ms < MOST_CLEARS * BLOCKER_MS ? 1 + (int)(host_ms / BLOCKER_MS) : MOST_CLEARS;
    }
    for (int r = 0; r < ROUNDS && (r == 0 || mica_seconds() < end); r++, c->rounds = r)
        MICA_TRY(play(c, r, &host_ms));
    return MICA_OK;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int winner(contest *c, double *best_ms)
{
    double median[PEER_FINALISTS] = {0};
    for (int i = 0; i < c->count; i++) {
        qsort(c->times[i], (size_t)c->rounds, sizeof(double), ascending);
        median[i] = c->times[i][c->rounds / 2] / c->chain;
    }
    int best = 0;
    for (int i = 1; i < c->count; i++)
        if (median[i] < median[best]) best = i;
    if (!c->peer && median[best] > 0.97 * median[0]) best = 0;
    *best_ms = median[best];
    return best;
}

/* The times that the choice rests on: the model's pick and the best. */
static bool was_disturbed(const contest *c, const mica_load *from, int best, char *why, size_t size)
{
    mica_load to;
    const double *const times[] = {c->times[0], c->times[best]};
    mica_load_read(&to);
    for (int i = 0; i < 2; i++)
        if (mica_load_disturbed(from, &to, c->context->device.cuda, times[i], (size_t)c->rounds,
                                why, size))
            return true;
    return false;
}

/* Runs them until nothing else disturbs that, while there is time. */
static mica_status decide(contest *c, int budget_ms, int *best, double *best_ms)
{
    double end = mica_seconds() + 1e-3 * budget_ms, ms = 0;
    char why[128] = "";
    bool disturbed = false;
    for (int i = 0; i == 0 || (i < ATTEMPTS && disturbed && mica_seconds() < end); i++) {
        mica_load from;
        mica_load_read(&from);
        MICA_TRY(race(c, end));
        *best = winner(c, &ms);
        disturbed = !c->context->keep_disturbed && was_disturbed(c, &from, *best, why, sizeof why);
    }
    if (disturbed) return mica_fail(MICA_DISTURBED, "%s", why);
    *best_ms = ms;
    return MICA_OK;
}

mica_status mica_measure(mica_context *context, const mica_op *op, const void *desc,
                         const mica_options *options, mica_candidate *list, int count,
                         double *best_ms)
{
    if (context->device.offline)
        return mica_fail(MICA_NO_DEVICE, "%s is offline: nothing can be measured on it",
                         context->device.name);
    contest *c = mica_alloc(sizeof *c);
    if (!c) return mica_fail_memory(sizeof *c);
    c->context = context;
    c->op = op;
    c->desc = desc;
    c->peer = count > 0 && list[0].engine->peer;
    for (int i = 0; i < count && c->count < (c->peer ? PEER_FINALISTS : FINALISTS); i++) {
        /* The reference enters only when nothing else does. */
        if (list[i].engine->reference && c->count > 0) continue;
        c->list_index[c->count] = i;
        if (mica_plan_build(context, op, desc, &list[i], options, &c->plans[c->count]) == MICA_OK)
            c->count++;
    }
    mica_status status = c->count ? allocate(c) : MICA_OK;
    int won = 0;
    if (status == MICA_OK && c->count)
        status = decide(c, options->measure_ms ? options->measure_ms : 2000, &won, best_ms);
    if (status == MICA_OK && c->count) {
        int from = c->list_index[won];
        mica_candidate best = list[from];
        memmove(list + 1, list, (size_t)from * sizeof *list);
        list[0] = best;
    }
    finish(c);
    mica_release(c);
    return status;
}
