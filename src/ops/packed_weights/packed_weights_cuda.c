/* SPDX-License-Identifier: Apache-2.0
 * Engine "cuda" of dequantize_weights and repack_weights: 8 codes of a column per thread, whose
 * words neighbouring threads share or read side by side. Done once for each checkpoint. Codes of
 * four bits whose rows are no whole bytes are put by atomic operations. Bound by memory; words of
 * repacked rows are stored apart. */
#include "ops/packed_weights/packed_weights.h"
#include "ops/access/access.h"

enum { BLOCK = 256, PIECE = 8 };

typedef struct state {
    mica_packed p;
    mica_kernel *kernel, *groups;
    mica_grid grid, groups_grid;
    bool fits; /* each piece of w is an aligned word if w is */
} state;

static mica_grid grid_of(int64_t count)
{
    return (mica_grid){.grid = {(unsigned)((count - 1) / BLOCK + 1)}, .block = {BLOCK}};
}

static void prologue(const mica_packed *p, mica_text *text)
{
    mica_prologue_int(text, "FORMAT", p->format);
    mica_prologue_int(text, "BITS", p->bits);
    mica_prologue_int(text, "SINGLE", p->single);
    mica_prologue_int(text, "HAS_ZEROS", p->has_zeros);
    mica_prologue_int(text, "HAS_INDEX", p->has_index);
    mica_prologue_int(text, "BLOCK", BLOCK);
    mica_prologue_type(text, "scale_t", p->has_scales ? p->scales : MICA_F32);
    mica_prologue_type(text, "idx_t", p->has_index ? p->index : MICA_S32);
}

static mica_status build(mica_plan *plan)
{
    char buffer[1024] = "", groups[1024] = "";
    mica_text text = {buffer, sizeof buffer, 0}, of_groups = {groups, sizeof groups, 0};
    state *s;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    mica_packed *p = &s->p;
    mica_packed_make(plan->op, plan->desc, NULL, p);
    const mica_packed_args *a = &p->a;
    if (a->n && a->groups && !p->dequantizes && (p->has_scales || p->has_zeros)) {
        s->groups_grid = grid_of(a->n * a->groups);
        prologue(p, &of_groups);
        mica_prologue_int(&of_groups, "HAS_SCALES", p->has_scales);
        mica_prologue_int(&of_groups, "ZERO_IS_CODE", p->zeros == p->to);
        mica_prologue_type(&of_groups, "zero_t",
                           p->has_zeros && p->zeros != p->to ? p->zeros : MICA_F32);
        mica_kernel_spec spec = {"ops/packed_weights/repack_groups.cu", "repack_groups", groups, 0};
        MICA_TRY(mica_plan_add_kernel(plan, &spec, &s->groups));
    }
    if (a->k == 0 || a->n == 0) return MICA_OK;
    p->a.count = ((a->k - 1) / PIECE + 1) * a->n;
    s->grid = grid_of(a->count);
    s->fits = mica_packed_rows_whole(p) && a->k % PIECE == 0 && (a->n < 2 || a->to_n % PIECE == 0);
    prologue(p, &text);
    mica_kernel_spec spec = {"ops/packed_weights/dequantize_weights.cu", "dequantize_weights",
                             buffer, 0};
    if (p->dequantizes) {
        mica_prologue_type(&text, "y_t", p->to);
    } else {
        spec.file = "ops/packed_weights/repack_weights.cu", spec.entry = "repack_weights";
        mica_prologue_int(&text, "WHOLE", mica_packed_rows_whole(p));
    }
    return mica_plan_add_kernel(plan, &spec, &s->kernel);
}

static mica_status run(const mica_plan *plan, const mica_run *run)
{
    const state *s = plan->state;
    mica_packed_args a = s->p.a;
    mica_packed_bind(&s->p, run, &a);
    if (s->kernel) {
        a.whole = s->fits && mica_access_starts(a.to, mica_dtype_bits(s->p.to) * PIECE / 8);
        MICA_TRY(mica_kernel_launch(s->kernel, &s->grid, run->stream, &a));
    }
    if (!s->groups) return MICA_OK;
    a.count = a.n * a.groups;
    return mica_kernel_launch(s->groups, &s->groups_grid, run->stream, &a);
}

const mica_engine mica_dequantize_weights_cuda = {.name = "cuda",
                                                  .cuda = true,
                                                  .reached = 0.5,
                                                  .start_ms = 3e-3,
                                                  .contract = mica_packed_contract,
                                                  .build = build,
                                                  .run = run};
const mica_engine mica_repack_weights_cuda = {.name = "cuda",
                                              .cuda = true,
                                              .reached = 0.2,
                                              .start_ms = 6e-3,
                                              .contract = mica_packed_contract,
                                              .build = build,
                                              .run = run};
