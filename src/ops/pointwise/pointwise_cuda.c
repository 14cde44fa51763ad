/* SPDX-License-Identifier: Apache-2.0
 * Engine "cuda": one pass over memory, one or two vectors of up to 16 bytes per thread. Any types
 * and strides. Operands that are not packed alike are taken in tiles, which pass through shared
 * memory where they run along different dimensions: memory-bound, too. What is too small for tiles,
 * or has short rows, is bound by index arithmetic. */
#include "ops/pointwise/pointwise.h"
#include "base/memory.h"
#include "ops/access/access.h"

#include <stdlib.h>
#include <string.h>

enum { BLOCK = 256, PROLOGUE = 1 << 16 };
/* Elements, and vectors of a row, that are worth tiles; bytes of those in shared memory. */
enum { TILED_FROM = 4096, ROW_FROM = 32, TILE_BYTES = 36864 };

typedef struct state {
    mica_kernel *kernel;
    mica_pointwise_set set;
    mica_pointwise_args args;
    uintptr_t
        align_mask[MICA_POINTWISE_OPERANDS]; /* of a vector's access; 0: absent, one element */
    mica_dtype real;
    mica_grid grid;
} state;

typedef struct masks {
    unsigned read, written, follows, spread, index;
} masks;

/* Tiles of two dimensions, the last and another. */
typedef struct tiling {
    bool used;
    int other;       /* dimension */
    unsigned across; /* bit k: operand k runs along it */
    int rows, cols;  /* elements along the last, along the other */
    int vector;      /* along the other */
} tiling;

static bool spreads(const mica_layout *l, int slot)
{
    return l->rank > 0 && l->strides[slot][l->rank - 1] == 0;
}

static int bytes_of(const state *s, int k)
{
    return mica_dtype_bits(s->set.at[k].tensor.dtype) / 8;
}

/* Neighbours that one access of every operand takes; those whose row is one element don't count,
 * nor do those that run along another dimension. */
static int choose_vector(const state *s, const int *slots, unsigned across)
{
    const mica_layout *l = &s->args.layout;
    mica_dtype types[MICA_POINTWISE_OPERANDS] = {0};
    int64_t shifts = 0;
    unsigned which = 0;
    int count = 0;
    for (int k = 0; k < s->set.count; k++) {
        const mica_pointwise_operand *o = &s->set.at[k];
        if (slots[k] < 0 || spreads(l, slots[k]) || o->index || across >> k & 1) continue;
        which |= 1u << slots[k];
        types[count++] = o->tensor.dtype;
        shifts |= o->shift;
    }
    const int width = mica_access_fit(mica_access_most(types, count), shifts);
    return mica_access_layout(width, l, which);
}

/* ---- tiles ---- */

static int power_for(int64_t n, int most)
{
    int p = 1;
    while (p < n && p < most) p *= 2;
    return p;
}

static int64_t tiles_for(int64_t n, int side)
{
    return n / side + (n % side != 0);
}

static int fastest(const mica_layout *l, int slot)
{
    int best = l->rank - 1;
    for (int d = l->rank - 2; d >= 0; d--)
        if (l->strides[slot][d] && llabs(l->strides[slot][d]) < llabs(l->strides[slot][best]))
            best = d;
    return best;
}

/* The dimension that the first operand that does not run along the last runs along, and all that
 * do. */
static void find_across(const state *s, const int *slots, tiling *t)
{
    const mica_layout *l = &s->args.layout;
    t->other = l->rank - 2;
    for (int k = 0; k < s->set.count; k++) {
        if (slots[k] < 0 || s->set.at[k].index || spreads(l, slots[k])) continue;
        const int along = fastest(l, slots[k]);
        if (along == l->rank - 1 || (t->across && along != t->other)) continue;
        t->other = along;
        t->across |= 1u << k;
    }
}

/* Elements of one access of operands that run across. */
static int across_vector(const state *s, const int *slots, const tiling *t)
{
    const mica_layout *l = &s->args.layout;
    int vector = MICA_ACCESS_BYTES;
    for (int k = 0; k < s->set.count; k++) {
        if (!(t->across >> k & 1)) continue;
        const mica_pointwise_operand *o = &s->set.at[k];
        int64_t steps = l->dims[t->other] | o->shift;
        for (int d = 0; d < l->rank; d++)
            if (d != t->other) steps |= l->strides[slots[k]][d];
        const int fits = mica_access_along(o->tensor.dtype, l->strides[slots[k]][t->other], steps);
        if (fits < vector) vector = fits;
    }
    return vector;
}

static int tile_bytes(const state *s, const tiling *t)
{
    int bytes = 0;
    for (int k = 0; k < s->set.count; k++)
        if (t->across >> k & 1) bytes += t->rows * (t->cols + 4) * bytes_of(s, k);
    return bytes;
}

/* Squares of 64 elements, of 128 bytes and more along each side, where a dimension is not short;
 * of 32 if some have 8 bytes. */
static void choose_square(const state *s, const int *slots, tiling *t)
{
    const mica_layout *l = &s->args.layout;
    const int64_t rows = l->dims[l->rank - 1], cols = l->dims[t->other];
    int side = 64;
    for (int k = 0; k < s->set.count; k++)
        if (slots[k] >= 0 && bytes_of(s, k) == 8) side = 32;
    t->cols = power_for(cols, side);
    t->rows = power_for(rows, side * side / t->cols);
    t->cols = power_for(cols, side * side / t->rows);
    while (tile_bytes(s, t) > TILE_BYTES && t->rows > MICA_ACCESS_BYTES) t->rows /= 2;
    while (tile_bytes(s, t) > TILE_BYTES) t->cols /= 2;
}

/* Rows as long as a block is wide, unless much of the last one were empty. */
static void choose_band(const state *s, int vector, int per_thread, tiling *t)
{
    const mica_layout *l = &s->args.layout;
    const int64_t vectors = l->dims[l->rank - 1] / vector;
    int wide = BLOCK;
    while (wide > ROW_FROM && tiles_for(vectors, wide) * wide > vectors + vectors / 8) wide /= 2;
    t->rows = wide * vector;
    t->cols = BLOCK * per_thread / wide;
}

/* The two dimensions become the last, which the kernel doesn't count. */
static void move_last(mica_layout *l, int d)
{
    const int to = l->rank - 2;
    const int64_t dim = l->dims[d];
    for (int i = d; i < to; i++) l->dims[i] = l->dims[i + 1];
    l->dims[to] = dim;
    for (int t = 0; t < MICA_LAYOUT_TENSORS; t++) {
        const int64_t stride = l->strides[t][d];
        for (int i = d; i < to; i++) l->strides[t][i] = l->strides[t][i + 1];
        l->strides[t][to] = stride;
    }
    l->rank = to;
}

/* Accesses that a thread has on their way at once: several vectors, where each means few. */
static int per_thread(const masks *m, int vector)
{
    if (vector == 1) return 4;
    return __builtin_popcount(m->read) + __builtin_popcount(m->written) <= 5 ? 2 : 1;
}

static bool has_scale(const mica_op *op)
{
    bool scales = false;
    for (int i = 0; i < op->scalar_count; i++) scales |= !strcmp(op->scalars[i].name, "alpha");
    return scales;
}

static void tile_prologue(const state *s, const tiling *t, mica_text *p)
{
    mica_text_add(p, "#define TILED\n");
    mica_prologue_int(p, "ACROSS", t->across);
    mica_prologue_int(p, "ACROSS_VECTOR", t->vector);
    mica_prologue_int(p, "TILE_ROWS", t->rows);
    mica_prologue_int(p, "TILE_COLS", t->cols);
    mica_prologue_int(p, "OUTER", s->args.layout.rank);
}

static mica_status add_kernel(mica_plan *plan, state *s, const int *slots, int places, bool linear,
                              int vector, const tiling *t, const masks *m)
{
    const mica_pointwise *w = plan->op->pointwise;
    char *buffer = mica_alloc(PROLOGUE);
    if (!buffer) return mica_fail_memory(PROLOGUE);
    mica_text p = {buffer, PROLOGUE, 0};
    mica_dtype types[MICA_POINTWISE_OPERANDS];
    for (int k = 0; k < s->set.count; k++)
        types[k] = slots[k] >= 0 ? s->set.at[k].tensor.dtype : MICA_F32;
    if (w->prologue) w->prologue(mica_pointwise_what(plan, sizeof *s), &p);
    mica_prologue_types(&p, "operand_t", types, s->set.count);
    mica_prologue_type(&p, "real", s->real);
    mica_prologue_int(&p, "OPERANDS", s->set.count);
    mica_prologue_int(&p, "PLACES", places);
    mica_text_add(&p, "constexpr int PLACE[] = {");
    for (int k = 0; k < s->set.count; k++)
        mica_text_add(&p, "%s%d", k ? "," : "", slots[k] < 0 ? 0 : slots[k]);
    mica_text_add(&p, "};\n");
    mica_prologue_int(&p, "READ", m->read);
    mica_prologue_int(&p, "WRITTEN", m->written);
    mica_prologue_int(&p, "FOLLOWS", m->follows);
    mica_prologue_int(&p, "SPREAD", m->spread);
    mica_prologue_int(&p, "INDEX", m->index);
    mica_prologue_int(&p, "VARIANT", s->set.variant);
    mica_prologue_int(&p, "SCALES", has_scale(plan->op));
    mica_prologue_int(&p, "LINEAR", linear);
    mica_prologue_int(&p, "RAGGED", s->args.elements % vector != 0);
    mica_prologue_int(&p, "VECTOR", vector);
    mica_prologue_int(&p, "BLOCK", BLOCK);
    mica_prologue_int(&p, "PER_THREAD", per_thread(m, vector));
    if (t->used) tile_prologue(s, t, &p);
    mica_kernel_spec spec = {w->kernel, w->entry, buffer, 0};
    mica_status status = mica_plan_add_kernel(plan, &spec, &s->kernel);
    mica_release(buffer);
    return status;
}

static masks find_masks(const state *s, const int *slots)
{
    masks m = {0};
    for (int k = 0; k < s->set.count; k++) {
        const mica_pointwise_operand *o = &s->set.at[k];
        if (slots[k] < 0) continue;
        m.read |= (unsigned)o->read << k;
        m.written |= (unsigned)o->written << k;
        m.follows |= (unsigned)o->follows << k;
        m.index |= (unsigned)o->index << k;
        m.spread |= (unsigned)spreads(&s->args.layout, slots[k]) << k;
    }
    return m;
}

/* Tiles, where there are dimensions for them and enough of them; sets the grid. */
static int choose_tiles(state *s, const int *slots, const masks *m, tiling *t)
{
    const mica_layout *l = &s->args.layout;
    if (l->rank >= 2 && l->count >= TILED_FROM) find_across(s, slots, t);
    const int vector = choose_vector(s, slots, t->across);
    if (l->rank < 2 || l->count < TILED_FROM) return vector;
    t->vector = t->across ? across_vector(s, slots, t) : 1;
    if (t->across)
        choose_square(s, slots, t);
    else
        choose_band(s, vector, per_thread(m, vector), t);
    const int64_t rows = l->dims[l->rank - 1], cols = l->dims[t->other];
    const int64_t blocks =
        tiles_for(rows, t->rows) * tiles_for(cols, t->cols) * (l->count / rows / cols);
    t->used = (t->across || rows / vector >= ROW_FROM) && blocks <= INT32_MAX;
    if (!t->used) t->across = 0;
    s->grid = (mica_grid){.grid = {(unsigned)blocks}, .block = {BLOCK}};
    return t->used ? vector : choose_vector(s, slots, 0);
}

/* Without tiles, vectors are counted from the first to the last. */
static void count_vectors(state *s, int vector, int per_thread, int places)
{
    mica_access_count(&s->args.layout, vector, places);
    const int64_t each = (int64_t)BLOCK * per_thread;
    s->grid = (mica_grid){.grid = {(unsigned)((s->args.layout.count + each - 1) / each)},
                          .block = {BLOCK}};
}

mica_status mica_pointwise_cuda_build(mica_plan *plan)
{
    int slots[MICA_POINTWISE_OPERANDS];
    state *s;
    MICA_TRY(mica_pointwise_state(plan, sizeof *s, &s));
    mica_pointwise_operands(plan->op, plan->desc, &s->set);
    s->real = mica_pointwise_real(&s->set);
    mica_layout *l = &s->args.layout;
    const int places = mica_pointwise_layout(&s->set, l, slots);
    const bool linear = mica_layout_is_linear(l, places);
    const masks m = find_masks(s, slots);
    tiling t = {0};
    const int vector = choose_tiles(s, slots, &m, &t);
    s->args.elements = l->rank == 1 ? l->count : 0;
    for (int k = 0; k < s->set.count; k++)
        if (slots[k] >= 0 && !spreads(l, slots[k]) && !s->set.at[k].index)
            s->align_mask[k] =
                (uintptr_t)((t.across >> k & 1 ? t.vector : vector) * bytes_of(s, k)) - 1;
    if (t.used)
        move_last(l, t.other);
    else
        count_vectors(s, vector, per_thread(&m, vector), places);
    return add_kernel(plan, s, slots, places, linear, vector, &t, &m);
}

mica_status mica_pointwise_cuda_run(const mica_plan *plan, const mica_run *r)
{
    const state *s = plan->state;
    mica_pointwise_args args = s->args;
    uintptr_t off = 0;
    MICA_TRY(mica_pointwise_begin(plan, r, s->real, &args.numbers, &args.alpha, &args.beta));
    if (s->args.layout.count == 0) return MICA_OK;
    for (int k = 0; k < s->set.count; k++) {
        const mica_pointwise_operand *o = &s->set.at[k];
        if (!mica_tensor_given(&o->tensor) || o->index) continue;
        args.at[k] = (char *)r->args[o->arg] + o->shift * (mica_dtype_bits(o->tensor.dtype) / 8);
        off |= (uintptr_t)args.at[k] & s->align_mask[k];
    }
    args.whole = off == 0;
    args.scaled = args.alpha != 1 || args.beta != 0;
    return mica_kernel_launch(s->kernel, &s->grid, r->stream, &args);
}

const mica_engine mica_pointwise_cuda = {MICA_POINTWISE_CUDA};
