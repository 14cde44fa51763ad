/* SPDX-License-Identifier: Apache-2.0
 * Engine "cuda": pooling on any GPU, any strides and types, no workspace. Three kernels:
 *   forward   a thread per window, up to 16 bytes of channels each where those are adjacent
 *   reduce    large windows: a warp per window, or eight warps on the windows of 32 channels
 *   backward  a thread per element (or channels of it) gathers from the windows over it
 * Small windows are bound by memory; the cache answers the overlap. */
#include "ops/pool/pool.h"

#include <stdlib.h>

enum { BLOCK = 256, WARPS = 8, WARP = 32, VECTOR_BYTES = 16 };
enum { LARGE_WINDOW = 32, HUGE_WINDOW = 512, FEW_THREADS = 1 << 16 };

typedef struct state {
    mica_kernel *kernel;
    mica_pool_args args;
    mica_grid grid;
    bool backward, indices, reduce;
    uintptr_t align; /* bytes less one that allow vectors */
} state;

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    (void)desc, (void)device, (void)why;
    return MICA_OK;
}

static int64_t ceil_div(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}

/* ---- what the kernel is compiled for ---- */

static bool small_tensor(const mica_tensor *t)
{
    int64_t first, span = mica_tensor_span(t, &first);
    return !mica_tensor_given(t) ||
           (span <= INT32_MAX && mica_tensor_count(t) <= INT32_MAX - BLOCK);
}

/* Whether every size, offset and intermediate of the index arithmetic stays below 2^31. */
static bool fits_int(const mica_pool_desc *d, const mica_pool_axis axes[3])
{
    bool fits = small_tensor(&d->x) && small_tensor(&d->y) && small_tensor(&d->indices);
    int64_t most = INT32_MAX / 4;
    for (int a = 0; a < 3; a++) {
        const mica_pool_axis *x = &axes[a];
        fits = fits && x->x < most && x->y < most && x->end < most && x->stride < most &&
               x->pad < most && (x->window - 1) < most / x->dilation && x->dilation < most;
        if (x->adaptive) fits = fits && x->x + 1 < most / (x->y + 1);
    }
    return fits && mica_pool_plane(axes) < INT32_MAX;
}

static mica_dtype accumulator(const mica_pool_desc *d)
{
    mica_dtype t = d->x.dtype;
    if (t == MICA_F64 || t == MICA_S32) return MICA_F64;
    /* Sums of 8-bit integers are exact in f64 */
    return mica_dtype_is_integer(t) && d->mode != MICA_POOL_MAX ? MICA_F64 : MICA_F32;
}

static void add_constants(mica_text *p, const mica_pool_desc *d, bool channels, bool small)
{
    bool dilated = false;
    for (int i = 0; i < 3; i++) dilated |= d->dilation[i] != 1;
    mica_prologue_int(p, "MAX", MICA_POOL_MAX);
    mica_prologue_int(p, "AVG", MICA_POOL_AVG);
    mica_prologue_int(p, "AVG_VALID", MICA_POOL_AVG_VALID);
    mica_prologue_int(p, "MODE", d->mode);
    mica_prologue_int(p, "ADAPTIVE", d->adaptive);
    mica_prologue_int(p, "DILATED", dilated);
    mica_prologue_int(p, "CHANNELS", channels);
    mica_prologue_type(p, "value_t", d->x.dtype);
    mica_prologue_type(p, "acc_t", accumulator(d));
    mica_prologue_type(p, "int_t", small ? MICA_S32 : MICA_S64);
    mica_prologue_type(p, "index_t", d->indices.dtype ? d->indices.dtype : MICA_S64);
}

/* Channels of one access: they are adjacent in x and y, and all other strides keep them aligned. */
static int vector_length(const mica_pool_desc *d, const mica_pool_args *a)
{
    int n = VECTOR_BYTES / (mica_dtype_bits(d->x.dtype) / 8);
    bool indices = mica_tensor_given(&d->indices);
    if (a->x[1] != 1 || a->y[1] != 1 || (indices && a->i[1] != 1)) return 1;
    for (int i = 0; i < 5; i++)
        while (i != 1 && (a->x[i] % n || a->y[i] % n)) n /= 2;
    while (a->c % n) n /= 2;
    return n;
}

/* ---- launches ---- */

static mica_status add_kernel(mica_plan *plan, const mica_kernel_spec *spec, state *s,
                              mica_grid grid)
{
    s->grid = grid;
    return mica_plan_add_kernel(plan, spec, &s->kernel);
}

static mica_status build_plain(mica_plan *plan, const mica_pool_desc *d, state *s, mica_text *p,
                               bool channels)
{
    mica_pool_args *a = &s->args;
    int vec = channels ? vector_length(d, a) : 1;
    const mica_tensor *out = s->backward ? &d->x : &d->y;
    a->c = d->x.dims[1] / vec;
    a->count = mica_tensor_count(out) / vec;
    a->x[1] *= vec, a->y[1] *= vec, a->i[1] *= vec;
    s->align = (uintptr_t)(vec * mica_dtype_bits(d->x.dtype) / 8 - 1);
    mica_prologue_int(p, "VEC", vec);
    mica_prologue_int(p, "BLOCK", BLOCK);
    mica_kernel_spec spec = {"ops/pool/pool_cuda.cu", "pool", p->data, 0};
    if (s->backward) spec.file = "ops/pool/pool_bwd_cuda.cu", spec.entry = "pool_bwd";
    mica_grid grid = {.grid = {(unsigned)ceil_div(a->count, BLOCK)}, .block = {BLOCK}};
    return add_kernel(plan, &spec, s, grid);
}

static mica_status build_reduce(mica_plan *plan, const mica_pool_desc *d, state *s, mica_text *p,
                                bool channels)
{
    mica_pool_args *a = &s->args;
    a->c = d->x.dims[1];
    int64_t windows = mica_tensor_count(&d->y);
    a->count = channels ? windows / a->c * ceil_div(a->c, WARP) : windows;
    mica_prologue_int(p, "WARPS", WARPS);
    mica_kernel_spec spec = {"ops/pool/pool_reduce_cuda.cu", "pool_reduce", p->data, 0};
    int64_t blocks = channels ? a->count : ceil_div(a->count, WARPS);
    mica_grid grid = {.grid = {(unsigned)blocks}, .block = {WARP, WARPS}};
    return add_kernel(plan, &spec, s, grid);
}

/* Threads that share a window pay where there are few windows, or where single threads would each
 * walk a run of their own. */
static bool wants_reduce(const mica_pool_desc *d, const mica_pool_axis axes[3], bool channels)
{
    double taps = 1;
    for (int a = 0; a < 3; a++)
        taps *= axes[a].adaptive ? (double)axes[a].x / (double)axes[a].y : (double)axes[a].window;
    if (taps < LARGE_WINDOW) return false;
    bool few = mica_tensor_count(&d->y) < FEW_THREADS;
    bool apart = axes[2].adaptive || axes[2].stride >= axes[2].window;
    return few || (!channels && apart) || taps >= HUGE_WINDOW;
}

/* ---- the engine ---- */

static mica_status build(mica_plan *plan)
{
    const mica_pool_desc *d = plan->desc;
    char buffer[1024] = "";
    mica_text p = {buffer, sizeof buffer, 0};
    state *s;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    s->backward = d->pass == MICA_POOL_BWD;
    s->indices = mica_tensor_given(&d->indices);
    if (mica_tensor_count(s->backward ? &d->x : &d->y) == 0) return MICA_OK;
    mica_pool_args *a = &s->args;
    mica_pool_axes(d, a->axes);
    mica_pool_strides(&d->x, a->x);
    mica_pool_strides(&d->y, a->y);
    mica_pool_strides(&d->indices, a->i);
    a->n = d->x.dims[0];
    bool channels =
        d->x.dims[1] > 1 && (d->x.dims[d->x.rank - 1] <= 1 || llabs(a->x[1]) < llabs(a->x[4]));
    add_constants(&p, d, channels, fits_int(d, a->axes));
    mica_prologue_int(&p, "INDICES", s->indices);
    if (!s->backward && wants_reduce(d, a->axes, channels))
        return build_reduce(plan, d, s, &p, channels);
    return build_plain(plan, d, s, &p, channels);
}

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    const state *s = plan->state;
    mica_pool_args a = s->args;
    if (!s->kernel) return MICA_OK;
    a.in = r->args[s->backward ? MICA_POOL_Y : MICA_POOL_X];
    a.out = r->args[s->backward ? MICA_POOL_X : MICA_POOL_Y];
    a.indices = s->indices ? r->args[MICA_POOL_INDICES] : NULL;
    a.alpha = mica_run_scalar(plan, r, MICA_POOL_ALPHA);
    a.beta = mica_run_scalar(plan, r, MICA_POOL_BETA);
    a.scaled = a.alpha != 1 || a.beta != 0;
    a.aligned = (((uintptr_t)a.in | (uintptr_t)a.out) & s->align) == 0;
    return mica_kernel_launch(s->kernel, &s->grid, r->stream, &a);
}

const mica_engine mica_pool_cuda = {
    .name = "cuda", .cuda = true, .accepts = accepts, .build = build, .run = run};
