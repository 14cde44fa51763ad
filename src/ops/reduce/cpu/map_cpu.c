/* SPDX-License-Identifier: Apache-2.0
 * Values of an expression for the walks over slices: blocks of some hundred elements, whose
 * operands stay in the first-level cache. */
#include "ops/reduce/map.h"
#include "ops/convert/cpu/convert.h"
#include "cpu/cpu.h"
#include "cpu/scratch.h"

#include <string.h>

enum { PIECE = 1024 }; /* elements; in f64 half of it */

/* Positions from `from` on of operand `at`: where they lie, or in the buffer. */
static void *operand(const mica_reduce_tile *t, int at, int64_t from, int64_t rows, void *buffer)
{
    const mica_tile *m = &t->tile;
    const mica_dtype type = m->s->type[at];
    const bool wide = t->walk->real == MICA_F64, one = m->s->width == 1;
    const int64_t along = m->s->along[at], across = m->across[at], width = m->width;
    const int64_t first = m->offset[at] + from * along;
    /* A row of the buffer is `width` elements, or of one slice all of them. */
    const int64_t step = one ? along : across, n = one ? rows : width, count = one ? 1 : rows;
    if (type == t->walk->real && step == 1 && count == 1)
        return (char *)m->data[at] + first * (mica_dtype_bits(type) / 8);
    for (int64_t i = 0; i < count; i++)
        if (wide)
            mica_to_f64(type, m->data[at], first + i * along, step, (double *)buffer + i * n, n);
        else
            mica_to_f32(type, m->data[at], first + i * along, step, (float *)buffer + i * n, n);
    return buffer;
}

bool mica_reduce_map_chunk(const mica_reduce_tile *t, int64_t from, int64_t n, void *values)
{
    const mica_expr_program *p = t->walk->program;
    const mica_reduce_set *set = &t->walk->set;
    const bool wide = t->walk->real == MICA_F64;
    const int64_t size = wide ? sizeof(double) : sizeof(float);
    if (!p) return false;
    int64_t rows = PIECE * (int64_t)sizeof(float) / size / t->tile.width;
    if (rows < 1) rows = 1;
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    char(*buffers)[PIECE * sizeof(float)] = mica_scratch_take(MICA_EXPR_X * sizeof *buffers);
    for (int64_t a = 0, m; a < n; a += m) {
        void *v[MICA_POINTWISE_OPERANDS] = {0};
        m = n - a < rows ? n - a : rows;
        for (int k = 0, at = 0; at < set->count; at++) {
            if (set->at[at].arg == MICA_REDUCE_Y) continue;
            k = set->at[at].arg == MICA_REDUCE_X ? 0 : set->at[at].arg - MICA_REDUCE_X1 + 1;
            v[k] = operand(t, at, from + a, m, buffers[k]);
        }
        v[REDUCE_MAP_RESULT] = (char *)values + a * t->tile.width * size;
        (wide ? mica_expr_block_f64 : mica_expr_block_f32)(p, 0, v, NULL, m * t->tile.width);
    }
    return true;
}
