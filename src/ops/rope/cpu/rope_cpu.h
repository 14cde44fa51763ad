/* SPDX-License-Identifier: Apache-2.0
 * What the CPU engines of rope and kv_append share. */
#ifndef MICA_OPS_ROPE_CPU_ROPE_CPU_H
#define MICA_OPS_ROPE_CPU_ROPE_CPU_H

#include "cpu/cpu.h"
#include "ops/rope/rope.h"

enum { ROPE_PIECE = 256 }; /* pairs that are worked on at once */
enum {
    ROPE_ROWS = 32
}; /* rows of which the angles are kept: they follow each other in memory,
      or the heads of one do */

/* A plan's angles: of theta the frequencies are kept. */
typedef struct rope_cpu {
    rope_angles a;
    const double
        *frequencies; /* of pairs, then what they are more than that; NULL: none are kept */
    bool f64;         /* the arithmetic */
} rope_cpu;

/* One head's row in flight. */
typedef struct rope_line {
    mica_dtype from_type, to_type;
    const void *from;
    void *to;
    int64_t from_at, from_step, to_at, to_step;
    double scale; /* of the result */
} rope_line;

/* A run of pairs and their cosines and sines. */
typedef struct rope_piece {
    int64_t first, n;
    union {
        struct {
            MICA_ALIGNED float c[ROPE_PIECE], s[ROPE_PIECE];
        } f32;
        struct {
            MICA_ALIGNED double c[ROPE_PIECE], s[ROPE_PIECE];
        } f64;
    } of;
} rope_piece;

/* frequencies: room for twice rope_kept of them. */
void rope_cpu_init(rope_cpu *w, const rope_angles *a, mica_dtype accumulator, double *frequencies);
/* Cosines and sines of `p`'s pairs at a position. */
void rope_cpu_angles(const rope_cpu *w, const rope_data *data, double position, rope_piece *p);
/* Rotates those pairs of a row. */
void rope_cpu_rotate(const rope_cpu *w, const rope_piece *p, const rope_line *line);
/* Copies columns from `first` on. */
void rope_cpu_copy(const rope_cpu *w, const rope_line *line, int64_t first, int64_t columns);

/* How rows and heads are divided: tasks of some rows and a group of heads. */
typedef struct rope_tasks {
    int64_t rows, heads;
    int64_t block, blocks, groups; /* rows of a task; tasks along rows, along heads */
} rope_tasks;
void rope_tasks_make(rope_tasks *t, int64_t rows, int64_t heads, double bytes);
/* Whether the heads of a row are nearer to each other than its rows are. */
bool rope_heads_first(const mica_tensor *t);
typedef struct rope_task {
    int64_t row, rows, head, last; /* heads from `head` to before `last` */
} rope_task;
rope_task rope_task_of(const rope_tasks *t, int64_t index);

/* All rows and heads of a task in the order of memory: heads of a row first or rows of a head. Row
 * i of the task and head h; past the last h is task->last. */
typedef struct rope_walk {
    bool heads_first;
    int64_t i, h;
} rope_walk;
static inline rope_walk rope_walk_start(const rope_task *task, bool heads_first)
{
    return (rope_walk){heads_first, 0, task->rows > 0 ? task->head : task->last};
}
static inline void rope_walk_on(rope_walk *at, const rope_task *task)
{
    if (at->heads_first) {
        if (++at->h < task->last) return;
        if (++at->i < task->rows) at->h = task->head;
    } else {
        if (++at->i < task->rows) return;
        at->i = 0, at->h++;
    }
}

/* ---- rope_cpu_real.c ---- */
void rope_cpu_angles_f32(const rope_cpu *w, const rope_data *data, double position, rope_piece *p);
void rope_cpu_angles_f64(const rope_cpu *w, const rope_data *data, double position, rope_piece *p);
void rope_cpu_rotate_f32(const rope_cpu *w, const rope_piece *p, const rope_line *line);
void rope_cpu_rotate_f64(const rope_cpu *w, const rope_piece *p, const rope_line *line);
void rope_cpu_copy_f32(const rope_line *line, int64_t first, int64_t columns);
void rope_cpu_copy_f64(const rope_line *line, int64_t first, int64_t columns);

#endif
