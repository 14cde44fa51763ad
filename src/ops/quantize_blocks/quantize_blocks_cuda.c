/* SPDX-License-Identifier: Apache-2.0
 * Engine "cuda" of quantize_blocks and dequantize_blocks: 8 elements of a block per thread are read
 * and stored as vectors, of a block's 32 to 4096; threads of a block find its scales in the cache.
 * A block is made by one thread, which reads its elements twice. Bound by memory. */
#include "ops/quantize_blocks/quantize_blocks.h"
#include "ops/access/access.h"

enum { BLOCK = 256, PIECE = 8 };

typedef struct state {
    mica_blocks b;
    mica_kernel *kernel;
    mica_blocks_args args;
    bool fits; /* blocks begin at whole vectors of elements */
    mica_grid grid;
} state;

static bool blocks_fit(const mica_blocks *b)
{
    const mica_tensor *t = &b->at[MICA_BLOCKS_PLACE_VALUE];
    if (b->step[1] != 1) return false;
    for (int d = 0; d < t->rank; d++)
        if (t->dims[d] > 1 && t->strides[d] % PIECE) return false;
    return true;
}

static mica_status build(mica_plan *plan)
{
    char buffer[1024] = "";
    mica_text p = {buffer, sizeof buffer, 0};
    state *s;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    mica_blocks *b = &s->b;
    mica_blocks_args *a = &s->args;
    mica_blocks_make(plan->op, plan->desc, NULL, b);
    mica_blocks_layout(b, &a->layout);
    if (a->layout.count == 0) return MICA_OK;
    a->step[0] = b->step[0], a->step[1] = b->step[1];
    a->count = a->layout.count * (b->encodes ? 1 : b->elements / PIECE);
    s->fits = blocks_fit(b);
    s->grid = (mica_grid){.grid = {(unsigned)((a->count - 1) / BLOCK + 1)}, .block = {BLOCK}};
    if (!b->encodes) {
        mica_prologue_int(&p, "ELEMENTS", b->elements);
        mica_prologue_int(&p, "ASIDE", b->arg[MICA_BLOCKS_PLACE_SCALE] >= 0);
    }
    mica_prologue_int(&p, "SIDE_BY_SIDE", b->step[0] == 1);
    mica_prologue_int(&p, "PIECE", PIECE);
    mica_prologue_int(&p, "BLOCK", BLOCK);
    mica_prologue_type(&p, "value_t", b->at[MICA_BLOCKS_PLACE_VALUE].dtype);
    mica_text_add(&p, "#define CODER %s_%s\n", b->encodes ? "encode" : "decode", b->format->name);
    mica_kernel_spec spec = {"ops/quantize_blocks/dequantize_blocks.cu", "dequantize_blocks",
                             buffer, 0};
    if (b->encodes)
        spec.file = "ops/quantize_blocks/quantize_blocks.cu", spec.entry = "quantize_blocks";
    return mica_plan_add_kernel(plan, &spec, &s->kernel);
}

static mica_status run(const mica_plan *plan, const mica_run *run)
{
    const state *s = plan->state;
    if (s->args.layout.count == 0) return MICA_OK;
    mica_blocks_args a = s->args;
    for (int p = 0; p < MICA_BLOCKS_PLACES; p++)
        if (s->b.arg[p] >= 0) a.at[p] = run->args[s->b.arg[p]];
    const mica_dtype type = s->b.at[MICA_BLOCKS_PLACE_VALUE].dtype;
    a.whole = s->fits &&
              mica_access_starts(a.at[MICA_BLOCKS_PLACE_VALUE], mica_access_bytes(type, PIECE));
    return mica_kernel_launch(s->kernel, &s->grid, run->stream, &a);
}

const mica_engine mica_quantize_blocks_cuda = {.name = "cuda",
                                               .cuda = true,
                                               .reached = 0.3,
                                               .start_ms = 3e-3,
                                               .contract = mica_blocks_contract,
                                               .build = build,
                                               .run = run};
const mica_engine mica_dequantize_blocks_cuda = {.name = "cuda",
                                                 .cuda = true,
                                                 .reached = 0.7,
                                                 .start_ms = 3e-3,
                                                 .contract = mica_blocks_contract,
                                                 .build = build,
                                                 .run = run};
