/* SPDX-License-Identifier: Apache-2.0
 * Engine "cuda": one pass over memory, one or two vectors of up to 16 bytes per thread. Any types
 * and strides; memory-bound when the operands are packed alike, and bound by index arithmetic when
 * they are not. */
#include "ops/pointwise/pointwise.h"
#include "base/memory.h"
#include "ops/access/access.h"

#include <string.h>

enum { BLOCK = 256, PROLOGUE = 1 << 16 };

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

static bool spreads(const mica_layout *l, int slot)
{
    return l->rank > 0 && l->strides[slot][l->rank - 1] == 0;
}

/* Neighbours that one access of every operand takes; those whose row is one element don't count. */
static int choose_vector(const state *s, const int *slots)
{
    const mica_layout *l = &s->args.layout;
    mica_dtype types[MICA_POINTWISE_OPERANDS];
    int64_t shifts = 0;
    unsigned which = 0;
    int count = 0;
    for (int k = 0; k < s->set.count; k++) {
        const mica_pointwise_operand *o = &s->set.at[k];
        if (slots[k] < 0 || spreads(l, slots[k]) || o->index) continue;
        which |= 1u << slots[k];
        types[count++] = o->tensor.dtype;
        shifts |= o->shift;
    }
    const int width = mica_access_fit(mica_access_most(types, count), shifts);
    return mica_access_layout(width, l, which);
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

static mica_status add_kernel(mica_plan *plan, state *s, const int *slots, int places, bool linear,
                              int vector)
{
    const mica_pointwise *w = plan->op->pointwise;
    char *buffer = mica_alloc(PROLOGUE);
    if (!buffer) return mica_fail_memory(PROLOGUE);
    mica_text p = {buffer, PROLOGUE, 0};
    masks m = {0};
    mica_dtype types[MICA_POINTWISE_OPERANDS];
    for (int k = 0; k < s->set.count; k++) {
        const mica_pointwise_operand *o = &s->set.at[k];
        bool there = slots[k] >= 0;
        types[k] = there ? o->tensor.dtype : MICA_F32;
        m.read |= (unsigned)(there && o->read) << k;
        m.written |= (unsigned)(there && o->written) << k;
        m.follows |= (unsigned)(there && o->follows) << k;
        m.index |= (unsigned)(there && o->index) << k;
        m.spread |= (unsigned)(there && spreads(&s->args.layout, slots[k])) << k;
    }
    if (w->prologue) w->prologue(mica_pointwise_what(plan, sizeof *s), &p);
    mica_prologue_types(&p, "operand_t", types, s->set.count);
    mica_prologue_type(&p, "real", s->real);
    mica_prologue_int(&p, "OPERANDS", s->set.count);
    mica_prologue_int(&p, "PLACES", places);
    mica_text_add(&p, "constexpr int PLACE[] = {");
    for (int k = 0; k < s->set.count; k++)
        mica_text_add(&p, "%s%d", k ? "," : "", slots[k] < 0 ? 0 : slots[k]);
    mica_text_add(&p, "};\n");
    mica_prologue_int(&p, "READ", m.read);
    mica_prologue_int(&p, "WRITTEN", m.written);
    mica_prologue_int(&p, "FOLLOWS", m.follows);
    mica_prologue_int(&p, "SPREAD", m.spread);
    mica_prologue_int(&p, "INDEX", m.index);
    mica_prologue_int(&p, "VARIANT", s->set.variant);
    mica_prologue_int(&p, "SCALES", has_scale(plan->op));
    mica_prologue_int(&p, "LINEAR", linear);
    mica_prologue_int(&p, "RAGGED", s->args.elements % vector != 0);
    mica_prologue_int(&p, "VECTOR", vector);
    mica_prologue_int(&p, "BLOCK", BLOCK);
    mica_prologue_int(&p, "PER_THREAD", per_thread(&m, vector));
    const int64_t tile = (int64_t)BLOCK * per_thread(&m, vector);
    s->grid = (mica_grid){.grid = {(unsigned)((s->args.layout.count + tile - 1) / tile)},
                          .block = {BLOCK}};
    mica_kernel_spec spec = {w->kernel, w->entry, buffer, 0};
    mica_status status = mica_plan_add_kernel(plan, &spec, &s->kernel);
    mica_release(buffer);
    return status;
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
    const int vector = choose_vector(s, slots);
    s->args.elements = l->rank == 1 ? l->count : 0;
    for (int k = 0; k < s->set.count; k++)
        if (slots[k] >= 0 && !spreads(l, slots[k]) && !s->set.at[k].index)
            s->align_mask[k] =
                (uintptr_t)(vector * mica_dtype_bits(s->set.at[k].tensor.dtype) / 8) - 1;
    mica_access_count(l, vector, places);
    return add_kernel(plan, s, slots, places, linear, vector);
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
