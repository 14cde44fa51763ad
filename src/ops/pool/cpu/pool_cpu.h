/* SPDX-License-Identifier: Apache-2.0
 * What the files of pooling's CPU engine share. Work is cut into tiles of one row of the result:
 * some channels by some columns, whose accumulators stay in the first-level cache. */
#ifndef MICA_OPS_POOL_CPU_POOL_CPU_H
#define MICA_OPS_POOL_CPU_POOL_CPU_H

#include "cpu/cpu.h"
#include "ops/pool/pool.h"
#include "ops/pool/cpu/pool_lanes.h"
#include "ops/convert/cpu/bf16.h"

enum { MICA_POOL_TILE = 2048, MICA_POOL_SOURCE = 4096, MICA_POOL_MORE = 16 };
/* Shorter stores past the cache leave too many parts of lines. */
enum { MICA_POOL_LEAST_STREAM = 512 };

typedef struct mica_pool_state {
    mica_pool_axis axes[3];
    long long x[5], y[5], i[5];  /* strides of N C D H W */
    mica_dtype type, index_type; /* index_type MICA_NONE: no indices */
    mica_pool_mode mode;
    bool backward;
    bool wide;     /* f64 sums and 64-bit indices: f64, integers, planes of 2^31 elements */
    bool channels; /* channels are the adjacent lanes, else columns */
    bool window;   /* forward, small windows all alike: pool_cpu_window.c */
    bool planes;   /* maxima of small planes: pool_cpu_planes.c */
    bool band;     /* backward, columns: pool_cpu_band.c */
    bool samples;  /* windows that samples place: pool_cpu_fractional.c */
    bool runs;     /* forward, columns: each window on its own, its rows as runs */
    bool joined;   /* forward: rows of results follow each other in y and the indices */
    int64_t n, c;
    int64_t columns; /* of a row of results */
    int64_t tile_c, tile_h, tile_w, tiles_c, tiles_h, tiles_w, rows_d, rows_h, tasks;
    double bytes;
    bool past_cache; /* results are streamed */
    int64_t taps;    /* planes, forward: of a window */
    int32_t table[]; /* planes: where their windows lie */
} mica_pool_state;

typedef struct mica_pool_call {
    const mica_pool_state *state;
    const void *in; /* x; backward: dy */
    void *out;      /* y; backward: dx */
    void *indices;
    double alpha, beta;
    bool scaled;
} mica_pool_call;

/* Rows d, h of y (backward: of dx), channels [c, c + cn), columns [w, w + wn). */
typedef struct mica_pool_tile {
    int64_t n, c, cn, d, h, w, wn;
} mica_pool_tile;

/* Cells of float or double, and of 32 or 64-bit indices, by state->wide. Vectors of float may reach
 * behind their last, for which there is room: MORE elements after a full tile. */
typedef struct mica_pool_buffers {
    MICA_ALIGNED double result[MICA_POOL_TILE + MICA_POOL_MORE];
    MICA_ALIGNED int64_t index[MICA_POOL_TILE + MICA_POOL_MORE];
    MICA_ALIGNED double source[MICA_POOL_SOURCE], divisor[MICA_POOL_SOURCE];
    MICA_ALIGNED float line[MICA_POOL_SOURCE];
    bool alike; /* all divisors of a tile are the same */
    int32_t hits[MICA_POOL_SOURCE + MICA_POOL_MORE], from[MICA_POOL_SOURCE], to[MICA_POOL_SOURCE];
} mica_pool_buffers;

/* So many rows of y from tile->h on. */
void mica_pool_forward_tile(const mica_pool_call *call, const mica_pool_tile *tile, int64_t rows,
                            mica_pool_buffers *buffers);
/* Of the tile's columns, this axis' factor: buffers' `divisor` and `alike`. */
void mica_pool_find_divisors(const mica_pool_state *state, const mica_pool_tile *tile,
                             mica_pool_buffers *buffers);
/* Results and, unless NULL, indices of a tile, undivided; for states that fit. Some cells behind
 * them are written, too. */
bool mica_pool_window_fits(const mica_pool_state *state);
void mica_pool_window_tile(const mica_pool_call *call, const mica_pool_tile *tile,
                           mica_pool_buffers *buffers, float *best, int32_t *index);
void mica_pool_backward_tile(const mica_pool_call *call, const mica_pool_tile *tile,
                             mica_pool_buffers *buffers);
/* Tiles of some whole planes, each as one row; numbers of the table, and these. Forward leaves
 * results and indices in the buffers. */
bool mica_pool_planes_fits(const mica_pool_state *state);
void mica_pool_planes_tiles(mica_pool_state *state);
int64_t mica_pool_planes_table(const mica_pool_state *state);
void mica_pool_planes_fill(mica_pool_state *state);
void mica_pool_planes_forward(const mica_pool_call *call, const mica_pool_tile *tile,
                              mica_pool_buffers *buffers);
void mica_pool_planes_backward(const mica_pool_call *call, const mica_pool_tile *tile,
                               mica_pool_buffers *buffers);
/* Backward in bands of so many rows from tile->h on. */
bool mica_pool_band_fits(const mica_pool_state *state);
int64_t mica_pool_band_rows(const mica_pool_state *state);
void mica_pool_band_tile(const mica_pool_call *call, const mica_pool_tile *tile, int64_t rows,
                         mica_pool_buffers *buffers);
/* Norms: all of a run of the plan. */
void mica_pool_lp_run(const mica_plan *plan, const mica_run *run, const mica_pool_call *call);
/* Windows that samples place: the same. */
void mica_pool_fractional_run(const mica_plan *plan, const mica_run *run,
                              const mica_pool_call *call);
/* Scales and stores n results. */
void mica_pool_store_run(const mica_pool_call *call, int64_t offset, int64_t stride,
                         const void *results, int64_t n);
/* Scales and stores a tile's results; strides of `out`'s tensor. */
void mica_pool_store_tile(const mica_pool_call *call, const mica_pool_tile *tile,
                          const long long *strides, void *results);
/* Two loops as one where the memory allows it. */
void mica_pool_join(int64_t *outer, int64_t *outer_step, int64_t *inner, int64_t *inner_step);
/* Loads channels x columns into the source buffer, in the order of a tile. */
void mica_pool_load(const mica_pool_state *state, const void *data, int64_t offset,
                    const long long *strides, int64_t channels, int64_t columns, void *to);

/* NaN wins, the first of equal values stays. */
__attribute__((always_inline)) static inline bool mica_pool_beats(float v, float best)
{
    return !(v <= best) & (best == best);
}

/* Raises *best; returns the index of what it is now. Bits, not branches: of a chain of choices the
 * compiler makes jumps, and then no vectors. */
__attribute__((always_inline)) static inline int32_t mica_pool_max_of(float *best, float v,
                                                                      int32_t from, int32_t place)
{
    uint32_t wins = 0 - (uint32_t)mica_pool_beats(v, *best);
    *best = mica_float_of((mica_bits_of(v) & wins) | (mica_bits_of(*best) & ~wins));
    return (int32_t)(((uint32_t)place & wins) | ((uint32_t)from & ~wins));
}

static inline void *mica_pool_cell(bool wide, const void *buffer, int64_t i)
{
    return (char *)(uintptr_t)buffer + i * (int64_t)(wide ? sizeof(double) : sizeof(float));
}

#endif
