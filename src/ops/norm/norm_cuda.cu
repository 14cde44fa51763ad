/* SPDX-License-Identifier: Apache-2.0
 * Normalisation by groups of threads, one group per kept index (and part of the reduced space). Stages:
 * FUSED does a set from its sums to its elements, PARTIAL forms sums of one part (DIRECT: the only one,
 * finished here), APPLY computes elements from known statistics. Constants: those of
 * kernels/slices.cuh and norm.cuh; FUSED, PARTIAL, APPLY, DIRECT; PER_ELEMENT (mean and rstd vary
 * inside the reduced space: gradients of scale and bias); SCALED (gradient sums contain scale);
 * RESIDUAL (added in front), BEHIND (added behind the affine step), DRESIDUAL (written here), SUM, SCALE, BIAS
 * (present), SCALE_ALONG, BIAS_ALONG (they lie beside the elements of a
 * vector; else a vector has one of each); REDUCED_RANK; VECTOR; ITEMS (vectors a thread keeps in
 * registers, forward as they were read; 0: read again for each pass); GATHERS (FUSED, bwd: a group also sums
 * what its sets give to scale and bias, a part for MERGE); ACT. */
#include "kernels/slices.cuh"
#include "kernels/activation.cuh"
#include "kernels/overlap.cuh"
#include "ops/norm/norm.cuh"

static_assert(FUSED + PARTIAL + APPLY == 1, "one stage");
static_assert(VECTOR == 1 || ALONG, "vectors lie along the reduced space");
static_assert(ITEMS == 0 || FUSED, "only whole sets are kept");
static_assert(!GATHERS || (FUSED && BACKWARD && ITEMS > 0 && SLICES == 1 && !CHANNEL_SETS), "a thread has the same elements of each set");

constexpr int KEPT = ITEMS > 0 ? ITEMS : 1;
constexpr int UNROLL = REDUCED_RANK <= 1 && ALONG ? (BACKWARD ? 2 : 4) : BACKWARD || VECTOR > 1 ? 1 : 2; /* registers are the bound */

struct group {
    place base;
    long long kept, from, end; /* from == end past the last */
    bool writes;               /* the thread that stores results of the whole group */
};

__device__ __forceinline__ group find_group(const norm_args &a, long long kept, long long part)
{
    group g = {};
    g.kept = kept;
    if (kept >= a.split.kept.count) return g;
    g.base = kept_place(a, kept);
    g.from = part * a.piece;
    g.end = g.from + a.piece < a.split.reduced.count ? g.from + a.piece : a.split.reduced.count;
    g.writes = thread_in_slice() == 0;
    return g;
}

/* The thread's vectors: f(j, i) with i the index in the reduced space. */
template <typename F> __device__ __forceinline__ void each(const group &g, F f)
{
    long long first = g.from + (long long)thread_in_slice() * VECTOR;
    if constexpr (ITEMS > 0) {
#pragma unroll
        for (int j = 0; j < ITEMS; j++) {
            long long i = first + (long long)j * (THREADS * VECTOR);
            if (i < g.end) f(j, i);
        }
    } else {
#pragma unroll UNROLL
        for (long long i = first; i < g.end; i += THREADS * VECTOR) f(0, i);
    }
}

__device__ __forceinline__ place element_place(const norm_args &a, const group &g, long long i)
{
    place p = g.base;
    if constexpr (REDUCED_RANK == 1) {
#pragma unroll
        for (int t = 0; t < NORM_ARG_COUNT; t++) p.at[t] += i * a.split.reduced.strides[t][0];
    } else {
        add_place(a.split.reduced, REDUCED_RANK, i, p);
    }
    return p;
}

/* A vector in accesses of at most 16 bytes. */
template <typename T> __device__ __forceinline__ void read(const norm_args &a, int arg, const place &p, acc_t *v)
{
    constexpr int MOST = 16 / (int)sizeof(T), N = VECTOR < MOST ? VECTOR : MOST;
    const T *from = (const T *)a.args[arg] + p.at[arg];
#pragma unroll
    for (int k = 0; k < VECTOR; k += N) load_elements<T, N>(from + k, a.whole, v + k);
}
template <typename T> __device__ __forceinline__ void write(const norm_args &a, int arg, const place &p, const acc_t *v)
{
    constexpr int MOST = 16 / (int)sizeof(T), N = VECTOR < MOST ? VECTOR : MOST;
    T *to = (T *)a.args[arg] + p.at[arg];
#pragma unroll
    for (int k = 0; k < VECTOR; k += N) store_elements<T, N>(to + k, a.whole, v + k);
}

/* One value per element, or one for the vector. */
template <typename T, bool ALL> __device__ __forceinline__ void read_operand(const norm_args &a, int arg, const place &p, acc_t *v)
{
    if constexpr (ALL) {
        read<T>(a, arg, p, v);
    } else {
        acc_t one = widen<acc_t>(((const T *)a.args[arg])[p.at[arg]]);
#pragma unroll
        for (int k = 0; k < VECTOR; k++) v[k] = one;
    }
}

__device__ __forceinline__ void read_scale(const norm_args &a, const place &p, acc_t *v)
{
#pragma unroll
    for (int k = 0; k < VECTOR; k++) v[k] = 1;
    if constexpr (SCALE) read_operand<scale_t, SCALE_ALONG>(a, ARG_scale, p, v);
}
__device__ __forceinline__ void read_bias(const norm_args &a, const place &p, acc_t *v)
{
#pragma unroll
    for (int k = 0; k < VECTOR; k++) v[k] = 0;
    if constexpr (BIAS) read_operand<bias_t, BIAS_ALONG>(a, ARG_bias, p, v);
}

/* x and residual as they were read: all of a thread's are in flight before one is used. */
struct input {
    lanes<x_t, VECTOR> x;
    lanes<residual_t, VECTOR> residual; /* if RESIDUAL */
};

__device__ __forceinline__ input fetch_input(const norm_args &a, const place &p)
{
    input in;
    in.x = fetch<VECTOR>((const x_t *)a.args[ARG_x] + p.at[ARG_x], a.whole);
    if constexpr (RESIDUAL)
        in.residual = fetch<VECTOR>((const residual_t *)a.args[ARG_residual] + p.at[ARG_residual], a.whole);
    return in;
}

/* x + residual */
__device__ __forceinline__ void unpack_input(const input &in, acc_t *u)
{
    unpack(in.x, u);
    if constexpr (RESIDUAL) {
        acc_t r[VECTOR];
        unpack(in.residual, r);
#pragma unroll
        for (int k = 0; k < VECTOR; k++) u[k] += r[k];
    }
}

/* What is added behind the affine step. */
__device__ __forceinline__ void add_behind(const norm_args &a, const place &p, acc_t *v)
{
    if constexpr (BEHIND) {
        acc_t r[VECTOR];
        read<residual_t>(a, ARG_residual, p, r);
#pragma unroll
        for (int k = 0; k < VECTOR; k++) v[k] += r[k];
    }
}

/* ---- forward ---- */

/* Mean of g's elements, and the sum of their squared deviations. Two passes, corrected. `kept` keeps the
 * elements if ITEMS > 0. */
__device__ __forceinline__ void moments(const norm_args &a, const group &g, input *kept, acc_t *scratch, acc_t &mean, acc_t &squares)
{
    acc_t n = g.end > g.from ? (acc_t)(g.end - g.from) : (acc_t)1, sum = 0, plain = 0;
    if constexpr (ITEMS > 0) each(g, [&](int j, long long i) { kept[j] = fetch_input(a, element_place(a, g, i)); });
    if constexpr (CENTRED) {
        each(g, [&](int j, long long i) {
            acc_t u[VECTOR];
            unpack_input(ITEMS > 0 ? kept[j] : fetch_input(a, element_place(a, g, i)), u);
#pragma unroll
            for (int k = 0; k < VECTOR; k++) sum += u[k];
        });
        mean = slice_reduce(sum, scratch, add_op()) / n;
    } else {
        mean = 0;
    }
    squares = 0;
    each(g, [&](int j, long long i) {
        acc_t u[VECTOR];
        unpack_input(ITEMS > 0 ? kept[j] : fetch_input(a, element_place(a, g, i)), u);
#pragma unroll
        for (int k = 0; k < VECTOR; k++) {
            acc_t d = u[k] - mean;
            plain += d;
            squares += d * d;
        }
    });
    squares = slice_reduce(squares, scratch, add_op());
    if constexpr (CENTRED) repair_moments(n, slice_reduce(plain, scratch, add_op()), mean, squares);
}

__device__ __forceinline__ void write_forward(const norm_args &a, const place &p, const acc_t *u, acc_t mean, acc_t rstd)
{
    acc_t scale[VECTOR], bias[VECTOR], y[VECTOR];
    read_scale(a, p, scale);
    read_bias(a, p, bias);
#pragma unroll
    for (int k = 0; k < VECTOR; k++) y[k] = (u[k] - mean) * rstd * scale[k] + bias[k];
    add_behind(a, p, y);
#pragma unroll
    for (int k = 0; k < VECTOR; k++) y[k] = activate<ACT>(y[k], (acc_t)a.act_a, (acc_t)a.act_b);
    if constexpr (SUM)
        if (a.args[ARG_sum]) write<sum_t>(a, ARG_sum, p, u);
    write<y_t>(a, ARG_y, p, y);
}

__device__ __forceinline__ void apply_forward(const norm_args &a, const group &g, acc_t mean, acc_t rstd)
{
    each(g, [&](int, long long i) {
        place p = element_place(a, g, i);
        acc_t u[VECTOR];
        unpack_input(fetch_input(a, p), u);
        write_forward(a, p, u, mean, rstd);
    });
}

__device__ __forceinline__ void fused_forward(const norm_args &a, const group &g, acc_t *scratch)
{
    input kept[KEPT];
    acc_t mean, squares, rstd;
    moments(a, g, kept, scratch, mean, squares);
    acc_t n = g.end > g.from ? (acc_t)(g.end - g.from) : (acc_t)1;
    rstd = reciprocal_root(squares / n, a.eps);
    if (g.writes) save_statistics(a, g.base, mean, squares / n);
    if constexpr (ITEMS == 0) {
        apply_forward(a, g, mean, rstd);
    } else {
        each(g, [&](int j, long long i) {
            acc_t u[VECTOR];
            unpack_input(kept[j], u);
            write_forward(a, element_place(a, g, i), u, mean, rstd);
        });
    }
}

/* ---- backward ---- */

struct statistics {
    acc_t mean, rstd;
};

__device__ __forceinline__ statistics read_statistics(const norm_args &a, const place &p)
{
    if constexpr (INFER) {
        acc_t var = get<stat_t>(a, ARG_running_var, p, (acc_t)1);
        return statistics{get<stat_t>(a, ARG_running_mean, p, (acc_t)0), reciprocal_root(var, a.eps)};
    }
    return statistics{get<stat_t>(a, ARG_mean, p, (acc_t)0), get<stat_t>(a, ARG_rstd, p, (acc_t)1)};
}

/* x and dy as they were read. */
struct pair {
    lanes<x_t, VECTOR> x;
    lanes<dy_t, VECTOR> dy;
};

__device__ __forceinline__ pair fetch_pair(const norm_args &a, const place &p)
{
    return pair{fetch<VECTOR>((const x_t *)a.args[ARG_x] + p.at[ARG_x], a.whole),
                fetch<VECTOR>((const dy_t *)a.args[ARG_dy] + p.at[ARG_dy], a.whole)};
}

/* Lets nobody know that they are what they were: numbers made of them before are not kept for after. */
__device__ __forceinline__ void renew(pair &in)
{
#pragma unroll
    for (int w = 0; w < in.x.WORDS; w++) asm volatile("" : "+r"(in.x.words[w]));
#pragma unroll
    for (int w = 0; w < in.dy.WORDS; w++) asm volatile("" : "+r"(in.dy.words[w]));
}

/* xhat, the gradient in front of the activation, and scale. */
__device__ __forceinline__ void find_gradient(const norm_args &a, const place &p, const pair &in, statistics s, acc_t *xhat, acc_t *g, acc_t *scale)
{
    acc_t z[VECTOR]; /* in front of the activation */
    unpack(in.x, xhat);
    unpack(in.dy, g);
    read_scale(a, p, scale);
#pragma unroll
    for (int k = 0; k < VECTOR; k++) xhat[k] = (xhat[k] - s.mean) * s.rstd;
    if constexpr (ACT != ACT_IDENTITY) {
        read_bias(a, p, z);
#pragma unroll
        for (int k = 0; k < VECTOR; k++) z[k] += xhat[k] * scale[k];
        add_behind(a, p, z);
#pragma unroll
        for (int k = 0; k < VECTOR; k++) g[k] *= activate_slope<ACT>(z[k], (acc_t)a.act_a, (acc_t)a.act_b);
    }
}

/* What a group's sets so far give to scale and bias, at the thread's elements. */
struct gathered {
    acc_t plain[KEPT][VECTOR], with_xhat[KEPT][VECTOR];
};

__device__ __forceinline__ void gather(gathered &to, int j, const acc_t *xhat, const acc_t *g)
{
#pragma unroll
    for (int k = 0; k < VECTOR; k++) {
        to.plain[j][k] += g[k];
        to.with_xhat[j][k] += g[k] * xhat[k];
    }
}

/* `kept` keeps x and dy if ITEMS > 0. */
__device__ __forceinline__ void gradient_sums(const norm_args &a, const group &g, statistics s, pair *kept, gathered &all, acc_t *scratch, acc_t &plain, acc_t &with_xhat)
{
    plain = 0, with_xhat = 0;
    if constexpr (ITEMS > 0) each(g, [&](int j, long long i) { kept[j] = fetch_pair(a, element_place(a, g, i)); });
    each(g, [&](int j, long long i) {
        place p = element_place(a, g, i);
        acc_t xhat[VECTOR], f[VECTOR], scale[VECTOR];
        if constexpr (PER_ELEMENT) s = read_statistics(a, p);
        find_gradient(a, p, ITEMS > 0 ? kept[j] : fetch_pair(a, p), s, xhat, f, scale);
        if constexpr (DRESIDUAL && PARTIAL) write<dresidual_t>(a, ARG_dresidual, p, f);
        if constexpr (GATHERS) gather(all, j, xhat, f);
#pragma unroll
        for (int k = 0; k < VECTOR; k++) {
            if constexpr (SCALED) f[k] *= scale[k];
            plain += f[k];
            with_xhat += f[k] * xhat[k];
        }
    });
    plain = slice_reduce(plain, scratch, add_op());
    with_xhat = slice_reduce(with_xhat, scratch, add_op());
}

/* f is scale * dz, then dx. */
__device__ __forceinline__ void input_gradient(const acc_t *xhat, acc_t *f, acc_t rstd, acc_t plain, acc_t with_xhat)
{
#pragma unroll
    for (int k = 0; k < VECTOR; k++) f[k] = rstd * (f[k] - plain - xhat[k] * with_xhat);
}

typedef lanes<dx_t, VECTOR> old_dx; /* what beta multiplies; never read if that is 0 */

__device__ __forceinline__ old_dx fetch_old(const norm_args &a, const place &p)
{
    return fetch<VECTOR>((const dx_t *)a.args[ARG_dx] + p.at[ARG_dx], a.whole);
}
__device__ __forceinline__ void add_old(const norm_args &a, const old_dx &old, acc_t *f)
{
    acc_t v[VECTOR];
    unpack(old, v);
#pragma unroll
    for (int k = 0; k < VECTOR; k++) f[k] += (acc_t)a.beta * v[k];
}

__device__ __forceinline__ void apply_backward(const norm_args &a, const group &g, statistics s, pair *kept, acc_t plain, acc_t with_xhat)
{
    old_dx old[KEPT]; /* all in flight before one is used */
    if (ITEMS > 0 && a.beta != 0 && (!DRESIDUAL || a.args[ARG_dx])) each(g, [&](int j, long long i) { old[j] = fetch_old(a, element_place(a, g, i)); });
    each(g, [&](int j, long long i) {
        place p = element_place(a, g, i);
        acc_t xhat[VECTOR], f[VECTOR], scale[VECTOR];
        find_gradient(a, p, ITEMS > 0 ? kept[j] : fetch_pair(a, p), s, xhat, f, scale);
        if constexpr (DRESIDUAL) {
            write<dresidual_t>(a, ARG_dresidual, p, f);
            if (!a.args[ARG_dx]) return;
        }
#pragma unroll
        for (int k = 0; k < VECTOR; k++) f[k] *= scale[k];
        input_gradient(xhat, f, s.rstd, plain, with_xhat);
        if (a.beta != 0) add_old(a, ITEMS > 0 ? old[j] : fetch_old(a, p), f);
        write<dx_t>(a, ARG_dx, p, f);
    });
}

__device__ __forceinline__ void fused_backward(const norm_args &a, const group &g, gathered &all, acc_t *scratch)
{
    pair kept[KEPT];
    acc_t plain, with_xhat;
    statistics s = {};
    if (g.kept < a.split.kept.count) s = read_statistics(a, g.base);
    gradient_sums(a, g, s, kept, all, scratch, plain, with_xhat);
    if (g.kept < a.split.kept.count) finish_gradients(a, g.base, g.writes, plain, with_xhat);
    if (!DRESIDUAL && !a.args[ARG_dx]) return;
    if constexpr (ITEMS > 0)
#pragma unroll
        for (int j = 0; j < ITEMS; j++) renew(kept[j]);
    apply_backward(a, g, s, kept, plain, with_xhat);
}

/* ---- stages ---- */

__device__ __forceinline__ void partial_stage(const norm_args &a, const group &g, long long part, acc_t *scratch)
{
    acc_t first, second;
    if constexpr (BACKWARD) {
        gathered none;
        statistics s = {};
        if (!PER_ELEMENT && g.kept < a.split.kept.count) s = read_statistics(a, g.base);
        gradient_sums(a, g, s, nullptr, none, scratch, first, second);
    } else {
        input kept[1];
        moments(a, g, kept, scratch, first, second);
    }
    if (!g.writes) return;
    if constexpr (DIRECT) {
        save_gradients(a, g.base, first, second);
    } else {
        acc_t *to = (acc_t *)a.partial + part * 2 * a.split.kept.count + g.kept;
        to[0] = first;
        to[a.split.kept.count] = second;
    }
}

__device__ __forceinline__ void apply_stage(const norm_args &a, const group &g)
{
    if (g.from >= g.end) return;
    acc_t first = 0, second = 0;
    if constexpr (!INFER) {
        const acc_t *known = (const acc_t *)a.known + g.kept;
        first = known[0], second = known[a.split.kept.count];
    }
    if constexpr (BACKWARD) {
        apply_backward(a, g, read_statistics(a, g.base), nullptr, first, second);
    } else if constexpr (INFER) {
        statistics s = read_statistics(a, g.base);
        apply_forward(a, g, s.mean, s.rstd);
    } else {
        apply_forward(a, g, first, second);
    }
}

/* The block's part of the gradients of scale and bias: elements of a set are theirs, too. */
__device__ __forceinline__ void write_gathered(const norm_args &a, const gathered &all)
{
    const long long n = a.split.reduced.count;
    acc_t *to = (acc_t *)a.partial + blockIdx.x * 2 * n;
    group g = {};
    g.end = n;
    each(g, [&](int j, long long i) {
        store_vector<VECTOR>(to + i, all.plain[j]);
        store_vector<VECTOR>(to + n + i, all.with_xhat[j]);
    });
}

/* Blocks that gather have to lie beside each other, all at once. */
constexpr int BLOCKS = GATHERS ? 512 / THREADS : 1;

extern "C" __global__ void __launch_bounds__(THREADS *SLICES, BLOCKS) norm_groups(const norm_args a)
{
    overlap_wait();
    __shared__ acc_t scratch[SLICE_SCRATCH];
    gathered all = {};
    long long rows = (a.split.kept.count + SLICES - 1) / SLICES;
    for (long long b = blockIdx.x; b < rows * a.parts; b += gridDim.x) {
        long long part = b / rows;
        group g = find_group(a, (b - part * rows) * SLICES + slice_in_block(), part);
        if constexpr (PARTIAL) partial_stage(a, g, part, scratch);
        else if constexpr (APPLY) apply_stage(a, g);
        else if constexpr (BACKWARD) fused_backward(a, g, all, scratch);
        else fused_forward(a, g, scratch);
    }
    if constexpr (GATHERS) write_gathered(a, all);
}
