/* SPDX-License-Identifier: Apache-2.0
 * Tiles, panels and products of bf16, for attention on CPUs with a matrix unit. */
#include "ops/attention/cpu/attention_cpu.h"

#include <string.h>

bool attention_lies_in_tiles(const mica_tensor *t, int64_t n)
{
    int64_t columns = t->dims[3];
    return t->strides[3] == 1 && columns == mica_matrix_depth(columns) && n == mica_matrix_lines(n);
}

void attention_copy_row16(const mica_tensor *t, const void *data, int64_t at, uint16_t *to)
{
    int64_t n = at < 0 ? 0 : t->dims[3], step = t->strides[3];
    const uint16_t *from = (const uint16_t *)data + (at < 0 ? 0 : at);
    if (step == 1)
        memcpy(to, from, (size_t)n * sizeof *to);
    else
        for (int64_t c = 0; c < n; c++) to[c] = from[c * step];
    memset(to + n, 0, (size_t)(mica_matrix_depth(t->dims[3]) - n) * sizeof *to);
}

attention_tile attention_finish_tile16(const mica_tensor *t, int64_t n, uint16_t *buffer)
{
    int64_t ld = mica_matrix_depth(t->dims[3]), more = mica_matrix_lines(n) - n;
    memset(buffer + n * ld, 0, (size_t)(more * ld) * sizeof *buffer);
    return (attention_tile){.rows16 = buffer, .ld = ld};
}

void attention_transpose_tile(const attention_job *job, attention_tile *tile, int64_t n,
                              int64_t columns, uint16_t *buffer)
{
    mica_matrix_turn(job->p->unit, tile->rows16, tile->ld, columns, n, buffer, TILE);
    tile->turned = buffer;
}

void attention_pack_panel16(const attention_job *job, const attention_tile *tile, int64_t n,
                            int64_t columns, uint16_t *to)
{
    if (n <= LANES / 2) memset(to, 0, (size_t)attention_panel_numbers(columns) * sizeof *to);
    mica_matrix_pack_transposed(job->p->unit, tile->rows16, tile->ld, columns, n, to, LANES);
}

void attention_multiply_rows16(const attention_job *job, const attention_tile *tile, int64_t n,
                               int64_t columns, const uint16_t *panel, int lanes, float *c)
{
    mica_matrix_multiply(job->p->unit, &(mica_matrix_product){.a = tile->rows16,
                                                              .b = panel,
                                                              .c = c,
                                                              .a_ld = tile->ld,
                                                              .b_ld = LANES,
                                                              .c_ld = LANES,
                                                              .rows = mica_matrix_lines(n),
                                                              .cols = lanes,
                                                              .depth = mica_matrix_depth(columns)});
}

void attention_round16(const attention_job *job, const float *weights, int64_t n, int lanes,
                       uint16_t *to)
{
    mica_matrix_pack_f32(job->p->unit, weights, LANES, n, lanes, to, LANES);
}

void attention_add_columns16(const attention_job *job, const attention_tile *tile, int64_t n,
                             int64_t columns, const uint16_t *weights, int lanes, float *c)
{
    mica_matrix_multiply(job->p->unit, &(mica_matrix_product){.a = tile->turned,
                                                              .b = weights,
                                                              .c = c,
                                                              .a_ld = TILE,
                                                              .b_ld = LANES,
                                                              .c_ld = LANES,
                                                              .rows = mica_matrix_lines(columns),
                                                              .cols = lanes,
                                                              .depth = mica_matrix_depth(n),
                                                              .add = true});
}
