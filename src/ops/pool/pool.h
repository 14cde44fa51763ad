/* SPDX-License-Identifier: Apache-2.0
 * What the files of the pooling family share. */
#ifndef MICA_OPS_POOL_POOL_H
#define MICA_OPS_POOL_POOL_H

#include "mica/pool.h"
#include "ops/op.h"
#include "ops/pool/pool_args.h"

extern const mica_op mica_op_pool;
extern const mica_engine mica_pool_cpu, mica_pool_cuda;

/* The three axes, those that x lacks in front with one element and a window of one. */
void mica_pool_axes(const mica_pool_desc *desc, mica_pool_axis axes[3]);
/* Strides in the order N C D H W, 0 for axes that the tensor lacks. */
void mica_pool_strides(const mica_tensor *t, long long strides[5]);
/* Elements of a D x H x W plane of x. */
int64_t mica_pool_plane(const mica_pool_axis axes[3]);

/* From window to window of an axis with samples, rounded to f32 unless wide. */
double mica_pool_step(const mica_pool_axis *axis, bool wide);

/* What sums of powers grow by: taps over those in x, with `rescale`. */
double mica_pool_rescale(const mica_pool_desc *desc, const mica_pool_axis axes[3],
                         const int64_t window[3]);

void mica_pool_reference(const void *desc, const mica_view *args, const double *scalars);

/* ---- where windows lie, in coordinates of x ---- */

/* First tap of window o; may be negative. */
static inline int64_t mica_pool_first(const mica_pool_axis *a, int64_t o)
{
    return a->adaptive ? o * a->x / a->y : o * a->stride - a->pad;
}
/* Taps of window o, padding included. */
static inline int64_t mica_pool_taps(const mica_pool_axis *a, int64_t o)
{
    if (!a->adaptive) return a->window;
    int64_t end = (o + 1) * a->x;
    return end / a->y + (end % a->y != 0) - o * a->x / a->y;
}
/* Taps [*from, *to) of window o that lie in x. */
static inline void mica_pool_valid(const mica_pool_axis *a, int64_t o, int64_t *from, int64_t *to)
{
    int64_t first = mica_pool_first(a, o), taps = mica_pool_taps(a, o);
    *from = first < 0 ? (-first - 1) / a->dilation + 1 : 0;
    int64_t inside = first < a->x ? (a->x - 1 - first) / a->dilation + 1 : 0;
    *to = inside < taps ? inside : taps;
    if (*from > *to) *from = *to;
}
/* This axis' factor of an average's divisor. */
static inline int64_t mica_pool_divisor(const mica_pool_axis *a, int64_t o, bool valid_only)
{
    int64_t from, to;
    if (a->divisor) return a->divisor;
    if (valid_only || a->adaptive) {
        mica_pool_valid(a, o, &from, &to);
        return to - from;
    }
    int64_t first = mica_pool_first(a, o), left = (a->end - first - 1) / a->dilation + 1;
    return left < a->window ? left : a->window;
}
/* Windows [*from, *to) that reach from or past element i to or past it; with dilation not all of
 * them have a tap there. */
static inline void mica_pool_covering(const mica_pool_axis *a, int64_t i, int64_t *from,
                                      int64_t *to)
{
    if (a->adaptive) {
        int64_t end = (i + 1) * a->y;
        *from = i * a->y / a->x;
        *to = end / a->x + (end % a->x != 0);
        return;
    }
    int64_t past = i + a->pad - (a->window - 1) * a->dilation;
    *from = past > 0 ? (past - 1) / a->stride + 1 : 0;
    *to = (i + a->pad) / a->stride + 1;
    if (*to > a->y) *to = a->y;
    if (*from > *to) *from = *to;
}
/* Whether window o, one of those covering i, has a tap there. */
static inline bool mica_pool_hits(const mica_pool_axis *a, int64_t o, int64_t i)
{
    return a->dilation == 1 || (i - mica_pool_first(a, o)) % a->dilation == 0;
}

#endif
