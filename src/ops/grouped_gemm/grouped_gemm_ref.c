/* SPDX-License-Identifier: Apache-2.0
 * grouped_gemm: the truth, which is gemm's truth of one group after the other. */
#include "ops/grouped_gemm/grouped_gemm.h"

#include <string.h>

/* What a row of no group has kept is exact. */
static void keep(const mica_view *c)
{
    if (c->mag) memset(c->mag, 0, (size_t)mica_tensor_count(&c->t) * sizeof *c->mag);
}

/* The part of a view that begins at element `at`, with the dims of t and strides of its own: a
 * result is a packed tensor of doubles, whatever the descriptor's. */
static mica_view part_of(const mica_view *v, const mica_tensor *t, int64_t at)
{
    mica_view p = *v;
    p.t.rank = t->rank;
    if (!v->data) return p;
    int more = v->t.rank - t->rank;
    memcpy(p.t.dims, t->dims, sizeof p.t.dims);
    if (more >= 0) memmove(p.t.strides, v->t.strides + more, (size_t)t->rank * sizeof *p.t.strides);
    p.data = (char *)v->data + at * mica_dtype_bits(v->t.dtype) / 8;
    if (v->mag) p.mag = v->mag + at;
    return p;
}

static const mica_tensor *tensor_of(const mica_gemm_desc *item, int i)
{
    return (const mica_tensor *)((const char *)item + mica_op_gemm.args[i].tensor);
}

void grouped_reference(const void *desc, const mica_view *args, const double *scalars)
{
    const mica_view *c = &args[MICA_GROUPED_GEMM_C];
    grouped g;
    grouped_make(desc, &g);
    keep(c);
    g.group[MICA_GEMM_C] = g.form == GROUPED_ROWS ? 0 : c->t.strides[0];
    g.start[MICA_GEMM_C] = g.form == GROUPED_ROWS ? c->t.strides[0] : 0;
    int64_t end = 0;
    for (int64_t i = 0; i < g.count; i++) {
        grouped_span s = grouped_next(&g, args[MICA_GROUPED_GEMM_GROUPS].data, i, &end);
        mica_gemm_desc item = g.item;
        if (g.form == GROUPED_TERMS) {
            item.a.dims[1] = item.b.dims[0] = s.count;
        } else {
            item.a.dims[0] = item.c.dims[0] = s.count;
            if (item.residual.rank) item.residual.dims[0] = s.count;
        }
        mica_view views[MICA_MAX_ARGS] = {0}; /* a group has fewer tensors than a gemm may have */
        for (int t = 0; t < GROUPED_TENSORS; t++)
            views[t] = part_of(&args[t], tensor_of(&item, t), grouped_offset(&g, t, i, s.from));
        gemm_reference(&item, views, scalars);
    }
}
