/* SPDX-License-Identifier: Apache-2.0
 * Engine "cuda" of nms: any types and strides. Scores are sorted: tiles in shared memory, then runs
 * that are merged by ranks. Sorted boxes are decided chunk by chunk: one block to a list goes
 * through the chunk, all others then compare what lies behind with what it selected. So work is the
 * number of boxes times the number of selected at most, and memory grows with boxes, not with
 * pairs. Two launches a chunk of 512, whatever is left. Workspace: of each list 37 bytes a box (73
 * with f64; 8 more with classes), 4 for each that may be selected, and 32 KiB. */
#include "ops/nms/nms.h"

enum {
    BLOCK = 256,
    TILE = 1024,
    CHUNK = 512,
    SELF = CHUNK / 64 * CHUNK / BLOCK,
    ROWS_OF_BLOCK = 2048
};
enum { SORT, MERGE, GATHER, SWEEP, PICK, WRITE, KERNELS };
enum { ITEMS, OTHERS, SORTED, IDS, GONE, ROW, KEPT, COUNTS, BOOKED };

typedef struct state {
    mica_nms_args args;
    mica_kernel *kernel[KERNELS]; /* NULL: not needed */
    size_t at[BOOKED];
} state;

static int64_t parts(int64_t n, int64_t of)
{
    return (n + of - 1) / of;
}

static mica_status book(mica_plan *plan, state *s, int64_t real)
{
    const mica_nms_desc *d = plan->desc;
    const mica_nms_args *a = &s->args;
    const int64_t boxes = a->lists * a->n;
    const struct {
        const char *name;
        int64_t bytes;
    } rows[BOOKED] = {
        [ITEMS] = {"scores", boxes * 2 * real},
        [OTHERS] = {"scores, merged", a->n > TILE ? boxes * 2 * real : 0},
        [SORTED] = {"boxes by score", boxes * 5 * real},
        [IDS] = {"classes by score", mica_tensor_given(&d->classes) ? boxes * 8 : 0},
        [GONE] = {"suppressed", boxes},
        [ROW] = {"pairs of a chunk", a->lists * CHUNK * (CHUNK / 8)},
        [KEPT] = {"selected", a->lists * a->limit * 4},
        [COUNTS] = {"counts", a->lists * 8},
    };
    for (int i = 0; i < BOOKED; i++)
        MICA_TRY(mica_book(plan, rows[i].name, (size_t)rows[i].bytes, &s->at[i]));
    return MICA_OK;
}

/* What a kernel does not look at is the same for all plans, which so share it. */
static void add_constants(const mica_nms_desc *d, int kernel, mica_text *p)
{
    const bool boxes = kernel == GATHER || kernel == SWEEP, write = kernel == WRITE;
    const bool loads = kernel == SORT || kernel == GATHER;
    const bool classes = boxes && mica_tensor_given(&d->classes);
    const mica_dtype real = kernel == PICK ? MICA_F32 : mica_nms_real(d);
    mica_prologue_int(p, "WIDE", real == MICA_F64);
    mica_prologue_int(p, "CHUNK", CHUNK);
    mica_prologue_int(p, "BLOCK", BLOCK);
    mica_prologue_int(p, "TILE", TILE);
    mica_prologue_int(p, "SELF", SELF);
    mica_prologue_int(p, "CENTER", kernel == GATHER && d->format == MICA_NMS_CENTER);
    mica_prologue_int(p, "OFFSET", boxes ? d->offset : 0);
    mica_prologue_int(p, "CLASSES", classes);
    mica_prologue_int(p, "BATCH", write && d->boxes.rank == 3);
    mica_prologue_type(p, "box_t", loads ? d->boxes.dtype : MICA_F32);
    mica_prologue_type(p, "class_t", kernel == GATHER && classes ? d->classes.dtype : MICA_S32);
    mica_prologue_type(p, "real", real);
    mica_prologue_type(p, "selected_t", write ? d->selected.dtype : MICA_S64);
    mica_prologue_type(p, "count_t", write ? d->count.dtype : MICA_S64);
}

static mica_status build(mica_plan *plan)
{
    static const char *const files[] = {"ops/nms/nms_sort.cu",   "ops/nms/nms_merge.cu",
                                        "ops/nms/nms_gather.cu", "ops/nms/nms_sweep.cu",
                                        "ops/nms/nms_pick.cu",   "ops/nms/nms_write.cu"};
    static const char *const entries[] = {"nms_sort",  "nms_merge", "nms_gather",
                                          "nms_sweep", "nms_pick",  "nms_write"};
    const mica_nms_desc *d = plan->desc;
    state *s;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    mica_nms_args *a = &s->args;
    mica_nms_args_make(d, a);
    if (a->n == 0) a->lists = 0;
    a->tiles = parts(a->n, TILE);
    MICA_TRY(book(plan, s, mica_dtype_bits(mica_nms_real(d)) / 8));
    for (int k = a->lists ? SORT : WRITE; k < KERNELS; k++) {
        char buffer[768] = "";
        mica_text p = {buffer, sizeof buffer, 0};
        const mica_kernel_spec spec = {files[k], entries[k], buffer, 0};
        if (k == MERGE && a->n <= TILE) continue;
        add_constants(d, k, &p);
        MICA_TRY(mica_plan_add_kernel(plan, &spec, &s->kernel[k]));
    }
    return MICA_OK;
}

static mica_status launch(const state *s, int kernel, mica_nms_args *a, int64_t blocks, int block,
                          void *stream)
{
    const mica_grid grid = {.grid = {(unsigned)blocks}, .block = {(unsigned)block}};
    return mica_kernel_launch(s->kernel[kernel], &grid, stream, a);
}

static mica_status sort(const state *s, mica_nms_args *a, void *stream)
{
    MICA_TRY(launch(s, SORT, a, a->lists * a->tiles, TILE / 2, stream));
    a->parts = parts(a->n, BLOCK);
    for (a->width = TILE; a->width < a->n; a->width *= 2, a->from = 1 - a->from)
        MICA_TRY(launch(s, MERGE, a, a->lists * a->parts, BLOCK, stream));
    return launch(s, GATHER, a, a->lists * a->parts, BLOCK, stream);
}

/* The chunk after a->chunk against itself, and what lies behind against what a->chunk selected. */
static mica_status sweep(const state *s, mica_nms_args *a, void *stream)
{
    a->parts = SELF;
    if (a->chunk >= 0) a->parts += parts(a->n - (a->chunk + 1) * CHUNK, BLOCK);
    return launch(s, SWEEP, a, a->lists * a->parts, BLOCK, stream);
}

static mica_status run(const mica_plan *plan, const mica_run *run)
{
    const state *s = plan->state;
    mica_nms_args a = s->args;
    mica_nms_args_point(plan, run, &a);
    a.items[0] = mica_at(run, s->at[ITEMS]);
    a.items[1] = mica_at(run, s->at[OTHERS]);
    a.sorted = mica_at(run, s->at[SORTED]);
    a.ids = mica_at(run, s->at[IDS]);
    a.gone = mica_at(run, s->at[GONE]);
    a.row = mica_at(run, s->at[ROW]);
    a.kept = mica_at(run, s->at[KEPT]);
    a.kept_count = mica_at(run, s->at[COUNTS]);
    if (a.lists) MICA_TRY(sort(s, &a, run->stream));
    for (a.chunk = -1; a.lists && (a.chunk + 1) * CHUNK < a.n;) {
        MICA_TRY(sweep(s, &a, run->stream));
        a.chunk++;
        MICA_TRY(launch(s, PICK, &a, a.lists, CHUNK / 2, run->stream));
    }
    a.parts = a.limit > ROWS_OF_BLOCK ? parts(a.limit, ROWS_OF_BLOCK) : 1;
    return launch(s, WRITE, &a, a.lists ? a.lists * a.parts : 1, BLOCK, run->stream);
}

const mica_engine mica_nms_cuda = {
    .name = "cuda", .cuda = true, .reached = 0.1, .start_ms = 3e-2, .build = build, .run = run};
