/* SPDX-License-Identifier: Apache-2.0
 * oneDNN behind one door: running primitives, packing their inputs, plain products. */
#include "ops/onednn/onednn_api.h"
#include "base/system/fork.h"
#include "cpu/cpu.h"

#include <omp.h>
#include <sched.h>

/* ---- running ---- */

/* Where all threads are busy with what the caller does: ours, or those of oneDNN's own OpenMP. */
static bool in_parallel(void)
{
    return omp_in_parallel() || (mica_dnnl.in_parallel && mica_dnnl.in_parallel());
}

bool mica_onednn_ready(const mica_onednn *p)
{
    if (!mica_onednn_usable()) return false;
    return p->threads == 1 || (!in_parallel() && mica_cpu_threads() >= p->threads);
}

/* Runs are synchronous, so a busy context comes free by itself; in a forked child those that were
 * busy in the parent are free. */
static context *claim(const mica_onednn *p)
{
    context *all = (context *)(uintptr_t)p->contexts;
    int own = 1 + mica_forks();
    for (;; sched_yield())
        for (int i = 0; i < CONTEXTS; i++) {
            int busy = atomic_load_explicit(&all[i].busy, memory_order_relaxed);
            if (busy != own &&
                atomic_compare_exchange_strong_explicit(&all[i].busy, &busy, own,
                                                        memory_order_acquire, memory_order_relaxed))
                return &all[i];
        }
}

static void release(context *c)
{
    atomic_store_explicit(&c->busy, 0, memory_order_release);
}

static dnnl_status_t set_handles(const mica_onednn *p, context *c, const mica_onednn_args *args,
                                 void *workspace)
{
    dnnl_status_t s = ONEDNN_SUCCESS;
    char *base = workspace;
    for (int i = 0; i < MICA_ONEDNN_TENSORS && !s; i++) {
        void *inner = p->unpack[i] ? args->tensor[i] : base + p->inner_at[i];
        if (!p->unpack[i]) s = mica_dnnl.memory_set(c->user[i], args->tensor[i]);
        if (!s && c->inner[i]) s = mica_dnnl.memory_set(c->inner[i], inner);
    }
    if (!s && c->bias) s = mica_dnnl.memory_set(c->bias, args->bias);
    for (int i = 0; i < MICA_MAX_STEPS && !s; i++)
        if (c->steps[i]) s = mica_dnnl.memory_set(c->steps[i], args->steps[i]);
    if (!s && base) s = mica_dnnl.memory_set(c->scratch, base + p->scratch_at);
    return s;
}

static dnnl_status_t reorder(const mica_onednn *p, const context *c, int i)
{
    bool out = i == p->output;
    dnnl_exec_arg_t args[2] = {{ONEDNN_ARG_FROM, out ? c->inner[i] : c->user[i]},
                               {ONEDNN_ARG_TO, out ? c->user[i] : c->inner[i]}};
    return mica_dnnl.primitive_execute(p->reorder[i], c->stream, 2, args);
}

static mica_status closed(void)
{
    return mica_fail(MICA_INTERNAL, "oneDNN is closed: the process ends");
}

mica_status mica_onednn_run(const mica_onednn *p, const mica_onednn_args *args, void *workspace)
{
    if (!mica_onednn_enter()) return closed();
    int before = swap_threads(p->threads);
    context *c = claim(p);
    dnnl_status_t s = set_handles(p, c, args, workspace);
    for (int i = 0; i < MICA_ONEDNN_TENSORS && !s; i++)
        if (p->reorder[i] && i != p->output) s = reorder(p, c, i);
    if (!s) s = mica_dnnl.primitive_execute(p->primitive, c->stream, c->arg_count, c->args);
    if (!s && p->reorder[p->output]) s = reorder(p, c, p->output);
    if (!s) s = mica_dnnl.stream_wait(c->stream);
    release(c);
    swap_threads(before);
    mica_onednn_leave();
    if (s) return mica_fail(MICA_INTERNAL, "oneDNN failed with its status %d", (int)s);
    return MICA_OK;
}

/* ---- packing ---- */

size_t mica_onednn_packed_bytes(const mica_onednn *p, int i)
{
    return p->unpack[i] ? mica_dnnl.md_bytes(inner_md(p, i)) : 0;
}

static dnnl_status_t move(const mica_onednn *p, context *c, int i, dnnl_primitive_t reorder,
                          void *user, dnnl_memory_t inner, void *packed)
{
    bool unpack = reorder == p->unpack[i];
    dnnl_exec_arg_t args[2] = {{ONEDNN_ARG_FROM, unpack ? inner : c->user[i]},
                               {ONEDNN_ARG_TO, unpack ? c->user[i] : inner}};
    dnnl_status_t s = mica_dnnl.memory_set(c->user[i], user);
    if (!s) s = mica_dnnl.memory_set(inner, packed);
    if (!s) s = mica_dnnl.primitive_execute(reorder, c->stream, 2, args);
    return s ? s : mica_dnnl.stream_wait(c->stream);
}

static mica_status packing_failed(dnnl_status_t s)
{
    if (s) return mica_fail(MICA_INTERNAL, "oneDNN's reorder failed with its status %d", (int)s);
    return MICA_OK;
}

/* Once per constant, so the reorder is made for it, with the threads that are there now. */
mica_status mica_onednn_pack(const mica_onednn *p, int i, const void *from, void *to)
{
    onednn_md_ref user;
    dnnl_primitive_t pack = NULL;
    dnnl_memory_t inner = NULL;
    if (mica_onednn_forked())
        return mica_fail(MICA_FORKED_PROCESS,
                         "this process was forked after oneDNN had been opened: "
                         "pack before, or make a new plan");
    if (!mica_onednn_enter()) return closed();
    int before = swap_threads(in_parallel() ? 1 : mica_cpu_threads());
    context *c = claim(p);
    dnnl_status_t s = mica_dnnl.memory_md(c->user[i], &user);
    if (!s) s = new_reorder(p, user, inner_md(p, i), &pack);
    if (!s) s = new_memory(p, inner_md(p, i), &inner);
    if (!s) s = move(p, c, i, pack, (void *)(uintptr_t)from, inner, to);
    drop_memory(inner);
    if (pack) mica_dnnl.primitive_destroy(pack);
    release(c);
    swap_threads(before);
    mica_onednn_leave();
    return packing_failed(s);
}

mica_status mica_onednn_unpack(const mica_onednn *p, mica_onednn_args *args, void *workspace)
{
    dnnl_status_t s = ONEDNN_SUCCESS;
    if (!mica_onednn_enter()) return closed();
    context *c = claim(p);
    for (int i = 0; i < MICA_ONEDNN_TENSORS && !s; i++) {
        if (!p->unpack[i]) continue;
        void *plain = (char *)workspace + p->plain_at[i];
        s = move(p, c, i, p->unpack[i], plain, c->inner[i], args->tensor[i]);
        args->tensor[i] = plain;
    }
    release(c);
    mica_onednn_leave();
    return packing_failed(s);
}

static dnnl_status_t gemm(const mica_onednn_gemm_args *g)
{
    const int32_t zero = 0;
    char a_t = g->a_t ? 'T' : 'N', b_t = g->b_t ? 'T' : 'N';
    if (g->type == MICA_F32)
        return mica_dnnl.sgemm(a_t, b_t, g->m, g->n, g->k, g->alpha, g->a, g->a_ld, g->b, g->b_ld,
                               g->beta, g->c, g->c_ld);
    if (g->type == MICA_S8)
        return mica_dnnl.gemm_s8s8s32(a_t, b_t, 'F', g->m, g->n, g->k, 1, g->a, g->a_ld, 0, g->b,
                                      g->b_ld, 0, 0, g->c, g->c_ld, &zero);
    return mica_dnnl.gemm_u8s8s32(a_t, b_t, 'F', g->m, g->n, g->k, 1, g->a, g->a_ld, 0, g->b,
                                  g->b_ld, 0, 0, g->c, g->c_ld, &zero);
}

mica_status mica_onednn_gemm(const mica_onednn_gemm_args *g)
{
    if (!mica_onednn_enter()) return closed();
    int before = swap_threads(in_parallel() ? 1 : mica_cpu_threads());
    dnnl_status_t s = gemm(g);
    swap_threads(before);
    mica_onednn_leave();
    if (s) return mica_fail(MICA_INTERNAL, "oneDNN's gemm failed with its status %d", (int)s);
    return MICA_OK;
}
