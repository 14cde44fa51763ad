/* SPDX-License-Identifier: Apache-2.0
 * Engine "persistent": all steps of a layer in one launch, forward and the gradients of data, for
 * 16-bit types. A block has some units of a direction; its rows of R (backward: columns) stay in
 * registers and shared memory over all steps, and what steps hand on goes through the L2, with a
 * barrier behind each step of the blocks of a direction and of a group of sequences. Products of
 * inputs, copies and what is between layers are those of the engines that go step by step. Floor of
 * a step: a release, an acquire and a read of h, each a round trip to the L2, where a step of two
 * launches takes twice as long.
 *
 * The barrier needs all blocks at once. The layout has no more blocks than the device has
 * multiprocessors, and one block fits on each: launch bounds and shared memory say so at planning.
 * That they come at once, whatever other streams run, and that two such kernels do not take half of
 * the device each and wait forever, is what the cooperative launch guarantees; where a part of the
 * device is set aside the launch fails instead of waiting. Counters are set to 0 in the run, so
 * that a captured graph can be launched again. */
#include "ops/rnn/rnn_parts.h"

static bool is_backward(const mica_rnn_desc *d)
{
    return d->pass == MICA_RNN_BWD_DATA;
}

/* Rows of R are columns of the product forward, units backward. */
static int columns_of(const mica_rnn_desc *d, int units)
{
    return is_backward(d) ? units : (int)mica_rnn_gates(d->cell) * units;
}

/* What a sequence hands to the next step: h, or dz. */
static int64_t width_of(const mica_rnn_desc *d)
{
    return is_backward(d) ? mica_rnn_gates(d->cell) * d->hidden : d->hidden;
}

static int at_most(int64_t a, int b)
{
    return a < b ? (int)a : b;
}

/* Sums, weights that registers do not hold, and the block's own numbers of its sequences. */
static int64_t shared_of(const mica_rnn_desc *d, const rnn_layout *l)
{
    const int64_t rows = RNN_ROWS * l->row_tiles, pitch = 8 * (l->tiles | 1);
    const int64_t all = (l->rows + rows - 1) / rows * rows;
    const int64_t unit = is_backward(d) ? 8 * all : 6 * all + 4 * mica_rnn_gates(d->cell);
    return RNN_WARPS * (4 * rows * pitch + (l->tiles - l->kept) * l->k_blocks * 512) +
           l->units * unit + 4 * all;
}

/* Tiles of rows x tiles of columns: their sums take 64 registers; backward 32, as a cell reads
 * more. */
static int most_tiles(const mica_rnn_desc *d)
{
    return is_backward(d) ? 8 : 16;
}

enum {
    KEPT_REGISTERS = 96, /* of weights */
    KEPT_ALONE = 128     /* where sums take half of what they may */
};

/* By measurements on an H200: the barrier and what waits for it; of each 16 sequences what every
 * block reads, its products, and its cells. */
static double step_ms(const rnn_layout *l, bool backward)
{
    const int chunk = RNN_ROWS * l->row_tiles;
    const double rows = (l->rows + chunk - 1) / chunk * l->row_tiles;
    const double products = l->k_blocks * (0.09 + 0.05 * l->tiles);
    const double cells = (backward ? 0.5 : 0.1) * l->tiles;
    return 1e-3 * ((backward ? 2.5 : 1.6) + rows * (products + cells));
}

/* As many sequences at once as registers and shared memory allow. */
static bool fill_block(const mica_rnn_desc *d, const mica_device_info *device, rnn_layout *l)
{
    const int64_t k = (width_of(d) + RNN_K_BLOCK - 1) / RNN_K_BLOCK;
    const int most = most_tiles(d);
    l->tiles = (columns_of(d, l->units) + 7) / 8;
    l->k_blocks = (int)((k + RNN_WARPS - 1) / RNN_WARPS);
    if (l->tiles > most) return false;
    l->row_tiles = at_most(most / l->tiles, at_most(l->rows / RNN_ROWS, 4));
    for (; l->row_tiles > 0; l->row_tiles--) {
        const int room = l->row_tiles * l->tiles > most / 2 ? KEPT_REGISTERS : KEPT_ALONE;
        l->kept = at_most(room / (4 * l->k_blocks), l->tiles);
        l->shared_bytes = shared_of(d, l);
        if (l->shared_bytes <= device->shared_bytes) return true;
    }
    return false;
}

/* Sequences divided into as many groups as there are blocks for, at most; the fastest of those that
 * fit. */
static void try_groups(const mica_rnn_desc *d, const mica_device_info *device, rnn_layout *l,
                       rnn_layout *best)
{
    const int64_t batch = d->x.dims[1] > 1 ? d->x.dims[1] : 1;
    const int64_t row_tiles = (batch + RNN_ROWS - 1) / RNN_ROWS;
    const int most = at_most(row_tiles, device->units / (l->blocks * l->sides));
    for (int groups = 1; groups <= most; groups++) {
        l->rows = (int)((row_tiles + groups - 1) / groups) * RNN_ROWS;
        l->groups = (int)((batch + l->rows - 1) / l->rows);
        if (!fill_block(d, device, l)) continue;
        l->step_ms = step_ms(l, is_backward(d));
        if (best->units == 0 || l->step_ms < best->step_ms) *best = *l;
    }
}

/* With all blocks resident, those of both directions if they can be. */
static bool find_layout(const mica_rnn_desc *d, const mica_device_info *device, rnn_layout *best)
{
    rnn_layout l = {0};
    *best = l;
    for (l.sides = d->bidirectional ? 2 : 1; l.sides > 0 && best->units == 0; l.sides--)
        for (l.units = 8; l.units <= 128; l.units += 8) {
            const int64_t blocks = (d->hidden + l.units - 1) / l.units;
            if (blocks * l.sides > device->units) continue;
            l.blocks = (int)blocks;
            try_groups(d, device, &l, best);
        }
    return best->units > 0;
}

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    const mica_rnn_desc *d = desc;
    const int64_t steps = d->x.dims[0];
    rnn_layout l;
    if (d->pass == MICA_RNN_BWD_WEIGHTS)
        return mica_refuse(why, "pass is bwd_weights, this engine takes those that go by steps");
    if (d->x.dtype != MICA_F16 && d->x.dtype != MICA_BF16)
        return mica_refuse(why, "x is %s, this engine takes f16 and bf16",
                           mica_dtype_name(d->x.dtype));
    if (d->projection)
        return mica_refuse(why, "projection is %lld, this engine has one product in a step",
                           (long long)d->projection);
    if (d->reset_before)
        return mica_refuse(why, "reset_before is set, this engine has one product in a step");
    if (mica_tensor_given(&d->peepholes))
        return mica_refuse(why, "peepholes are given, this engine's gates do not see c");
    if (d->hidden % 8)
        return mica_refuse(why, "hidden is %lld, this engine takes multiples of 8",
                           (long long)d->hidden);
    if (d->x.dims[1] > INT16_MAX || steps > INT32_MAX / device->units)
        return mica_refuse(why, "x has %lld steps of %lld sequences, this engine counts %d and %d",
                           (long long)steps, (long long)d->x.dims[1], INT32_MAX / device->units,
                           INT16_MAX);
    if (!find_layout(d, device, &l))
        return mica_refuse(why,
                           "%lld units of %lld sequences: their weights, %lld x %lld, do not fit "
                           "in registers and shared memory of %d multiprocessors",
                           (long long)d->hidden, (long long)d->x.dims[1],
                           (long long)(mica_rnn_gates(d->cell) * d->hidden), (long long)d->hidden,
                           device->units);
    return MICA_OK;
}

static double predict(const void *desc, const mica_device_info *device, const mica_config *config)
{
    (void)config;
    const mica_rnn_desc *d = desc;
    rnn_layout l;
    if (!find_layout(d, device, &l)) return 0;
    const double launches = (double)d->layers * (d->bidirectional ? 2.0 / l.sides : 1);
    return 2e-2 + mica_roofline_ms(&mica_op_rnn, d, device) / 0.3 +
           launches * (1e-2 + (double)d->x.dims[0] * l.step_ms);
}

/* ---- building ---- */

static mica_status add_kernel(mica_plan *plan)
{
    const mica_rnn_desc *d = plan->desc;
    rnn_walk *w = plan->state;
    const rnn_layout *l = &w->layout;
    char buffer[512] = "";
    mica_text p = {buffer, sizeof buffer, 0};
    mica_prologue_int(&p, "CELL", d->cell);
    if (!is_backward(d)) mica_prologue_int(&p, "SAVES", mica_tensor_given(&d->states));
    mica_prologue_int(&p, "CLIP", d->clip);
    mica_prologue_int(&p, "UNITS", l->units);
    mica_prologue_int(&p, "TILES", l->tiles);
    mica_prologue_int(&p, "KEPT", l->kept);
    mica_prologue_int(&p, "K_BLOCKS", l->k_blocks);
    mica_prologue_int(&p, "ROW_TILES", l->row_tiles);
    mica_prologue_type(&p, "x_t", w->s.type);
    mica_prologue_type(&p, "acc_t", w->s.acc);
    w->grid = (mica_grid){.grid = {(unsigned)(l->blocks * l->groups * l->sides)},
                          .block = {32 * RNN_WARPS},
                          .dynamic_shared = (unsigned)l->shared_bytes,
                          .cooperative = true};
    const mica_kernel_spec spec = {
        is_backward(d) ? "ops/rnn/rnn_persistent_slopes.cu" : "ops/rnn/rnn_persistent.cu",
        is_backward(d) ? "rnn_persistent_slopes" : "rnn_persistent", buffer, l->shared_bytes};
    return mica_plan_add_kernel(plan, &spec, &w->kernels[0]);
}

/* Elements of a buffer of what steps hand on, of a direction. */
static int64_t exchange_count(const rnn_walk *w, const mica_rnn_desc *d)
{
    const int64_t tiles = (w->s.batch + RNN_ROWS - 1) / RNN_ROWS;
    return tiles * ((width_of(d) + RNN_K_BLOCK - 1) / RNN_K_BLOCK) * RNN_ROWS * RNN_K_BLOCK;
}

static size_t counter_bytes(const rnn_walk *w)
{
    return (size_t)(w->s.sides * w->layout.groups) * sizeof(int);
}

mica_status rnn_add_persistent(mica_plan *plan)
{
    const mica_rnn_desc *d = plan->desc;
    rnn_walk *w = plan->state;
    w->persistent = plan->engine == &mica_rnn_persistent;
    if (!w->persistent) return MICA_OK;
    MICA_TRY(mica_cuda_cooperates(plan->cuda));
    if (!find_layout(d, &plan->device, &w->layout))
        return mica_fail(MICA_UNSUPPORTED, "rnn: no layout for %lld units", (long long)d->hidden);
    const size_t buffer = bytes_of(w->s.type, w->s.sides * exchange_count(w, d));
    MICA_TRY(mica_book(plan, "what steps hand on", 2 * buffer, &w->exchange));
    MICA_TRY(mica_book(plan, "counters of blocks", counter_bytes(w), &w->arrived));
    return w->s.steps > 0 ? add_kernel(plan) : MICA_OK;
}

/* ---- running ---- */

static mica_rnn_exchange exchange_of(const mica_plan *plan, const mica_run *r, int64_t layer)
{
    const mica_rnn_desc *d = plan->desc;
    const rnn_walk *w = plan->state;
    const mica_rnn_matrix m = mica_rnn_weight(d, layer, 0, MICA_RNN_PART_R);
    return (mica_rnn_exchange){.weights = weights_of(plan, r, layer, 0, MICA_RNN_PART_R),
                               .weights_side =
                                   mica_rnn_weight(d, layer, 1, MICA_RNN_PART_R).offset - m.offset,
                               .exchange = mica_at(r, w->exchange),
                               .width = width_of(d),
                               .side = exchange_count(w, d),
                               .apart = w->s.sides * exchange_count(w, d),
                               .arrived = mica_at(r, w->arrived),
                               .blocks = w->layout.blocks,
                               .groups = w->layout.groups,
                               .rows = w->layout.rows};
}

/* args: of the kernel; exchange: within them. */
static mica_status launch(const mica_plan *plan, const mica_run *r, const void *args,
                          mica_rnn_exchange *exchange)
{
    const rnn_walk *w = plan->state;
    MICA_TRY(clear(plan, r, exchange->arrived, counter_bytes(w)));
    for (exchange->first = 0; exchange->first < w->s.sides; exchange->first += w->layout.sides)
        MICA_TRY(mica_kernel_launch(w->kernels[0], &w->grid, r->stream, args));
    return MICA_OK;
}

mica_status rnn_run_persistent(const mica_plan *plan, const mica_run *r, int64_t layer,
                               const mica_rnn_args *a)
{
    mica_rnn_persistent_args all = {*a, exchange_of(plan, r, layer)};
    return launch(plan, r, &all, &all.exchange);
}

mica_status rnn_run_persistent_slopes(const mica_plan *plan, const mica_run *r, int64_t layer,
                                      const mica_rnn_slope_args *a)
{
    mica_rnn_persistent_slope_args all = {*a, exchange_of(plan, r, layer)};
    return launch(plan, r, &all, &all.exchange);
}

const mica_engine mica_rnn_persistent = {.name = "persistent",
                                         .cuda = true,
                                         .accepts = accepts,
                                         .predict = predict,
                                         .build = rnn_build,
                                         .run = rnn_run};
