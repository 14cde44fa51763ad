/* SPDX-License-Identifier: Apache-2.0
 * Vectors, prologues and arguments of the kernels of rope and kv_append. */
#include "ops/rope/rope_cuda.h"
#include "ops/access/access.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SOURCE_THETA, SOURCE_INVERSE, SOURCE_TABLE }; /* as in rope.cuh */

int64_t rope_ceil(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}

int rope_vector(const mica_tensor *const *tensors, int count, int64_t pairs, int64_t rest)
{
    int n = MICA_ACCESS_BYTES;
    for (int i = 0; i < count; i++) {
        const int own = mica_access_rows(mica_access_of(tensors[i]->dtype), tensors[i]);
        if (own < n) n = own;
    }
    return mica_access_fit(n, pairs | rest);
}

static bool is_aligned(const void *p, int vector, mica_dtype type)
{
    return mica_access_starts(p, mica_access_bytes(type, vector));
}

void rope_prologue(mica_text *p, const rope_angles *a, mica_dtype from, mica_dtype accumulator,
                   int vector)
{
    bool table = mica_tensor_given(a->cos);
    mica_prologue_type(p, "from_t", from);
    mica_prologue_type(p, "acc_t", accumulator);
    mica_prologue_type(p, "table_t", table ? a->cos->dtype : MICA_F32);
    mica_prologue_int(p, "SOURCE",
                      table                            ? SOURCE_TABLE
                      : mica_tensor_given(a->inv_freq) ? SOURCE_INVERSE
                                                       : SOURCE_THETA);
    mica_prologue_int(p, "INTERLEAVED", a->interleaved);
    mica_prologue_int(p, "VEC", vector);
    mica_prologue_int(p, "HEADS", ROPE_HEADS);
    mica_prologue_int(p, "BLOCK", ROPE_BLOCK);
}

/* ---- arguments ---- */

void rope_source_of(const rope_angles *a, rope_source *at)
{
    *at = (rope_source){.factor = a->factor,
                        .sine_factor = a->backward ? -a->factor : a->factor,
                        .sequences = a->sequences};
    if (mica_tensor_given(a->positions)) {
        int last = a->positions->rank - 1;
        at->positions_b = last ? a->positions->strides[0] : 0;
        at->positions_s = a->positions->strides[last];
        at->wide_positions = a->positions->dtype == MICA_S64;
    }
    if (mica_tensor_given(a->start)) {
        at->start_n = a->start->strides[0];
        at->wide_start = a->start->dtype == MICA_S64;
    }
    if (mica_tensor_given(a->cu)) at->cu_n = a->cu->strides[0];
    if (mica_tensor_given(a->inv_freq)) at->inv_i = a->inv_freq->strides[0];
    if (!mica_tensor_given(a->cos)) return;
    at->table_rows = a->cos->dims[0];
    at->cos_p = a->cos->strides[0], at->cos_i = a->cos->strides[1];
    at->sin_p = a->sin->strides[0], at->sin_i = a->sin->strides[1];
}

void rope_source_point(const rope_angles *a, const rope_data *data, int vector, rope_source *at)
{
    at->positions = mica_tensor_given(a->positions) ? data->positions : NULL;
    at->start = mica_tensor_given(a->start) ? data->start : NULL;
    at->cu = mica_tensor_given(a->cu) ? data->cu : NULL;
    at->inv_freq = mica_tensor_given(a->inv_freq) ? data->inv_freq : NULL;
    if (!mica_tensor_given(a->cos)) return;
    int n = a->interleaved && vector > 1 ? vector / 2 : vector;
    at->cos = data->cos, at->sin = data->sin;
    const int64_t steps = mica_access_step(at->cos_p | at->sin_p, at->table_rows);
    at->tables_aligned = mica_access_fit(n, steps) == n && at->cos_i == 1 && at->sin_i == 1 &&
                         is_aligned(at->cos, n, a->cos->dtype) &&
                         is_aligned(at->sin, n, a->sin->dtype);
}

rope_side rope_side_of(const mica_tensor *from, const mica_tensor *to)
{
    const int64_t *f = from->strides, *t = to->strides;
    return (rope_side){.from_b = f[0],
                       .from_h = f[1],
                       .from_s = f[2],
                       .from_d = f[3],
                       .to_b = t[0],
                       .to_h = t[1],
                       .to_s = t[2],
                       .to_d = t[3],
                       .columns = from->dims[3]};
}

int rope_by_row(const rope_side *side)
{
    return llabs(side->from_h) < llabs(side->from_s);
}

void rope_side_point(const mica_tensor *const tensors[2], const void *from, void *to, int vector,
                     rope_side *side)
{
    side->from = from;
    side->to = to;
    side->from_aligned = is_aligned(from, vector, tensors[0]->dtype);
    side->to_aligned = is_aligned(to, vector, tensors[1]->dtype);
}

/* ---- launches ---- */

/* An even number: a sector of memory holds two runs, both of which threads then take side by side.
 */
int64_t rope_copied(int64_t runs)
{
    int64_t units = rope_ceil(runs, 2);
    return units % 2 && units < runs ? units + 1 : units;
}

int64_t rope_slice(const rope_angles *a)
{
    return rope_by_theta(a) ? ROPE_FREQUENCIES : (int64_t)1 << 30;
}

void rope_frequencies(const rope_angles *a, const double *kept, int64_t first, int64_t count,
                      double *to, double *below)
{
    if (!rope_by_theta(a)) return;
    bool have = rope_kept(a) > 0;
    for (int64_t i = 0; i < count; i++) {
        double rest = have ? kept[a->pairs + first + i] : 0;
        to[i] = have ? kept[first + i] : rope_frequency(a, first + i, &rest);
        below[i] = rest;
    }
}

static int64_t most_heads(const int64_t heads[2])
{
    int64_t group = ROPE_GROUP;
    while (group > 1 && group / 2 >= heads[0] && group / 2 >= heads[1]) group /= 2;
    return group;
}

static int64_t groups_of(const int64_t heads[2], int64_t group)
{
    return rope_ceil(heads[0], group) + rope_ceil(heads[1], group);
}

/* Threads that a device has at once: as many as that if there is work for them, but not a few more,
 * which would come second. */
int64_t rope_group(int64_t items, const int64_t heads[2], const mica_device_info *device)
{
    const int64_t at_once = 2 * ROPE_BLOCK * (int64_t)device->units;
    int64_t group = most_heads(heads);
    while (group > 1 && items < at_once && items * groups_of(heads, group / 2) <= at_once)
        group /= 2;
    return group;
}

int rope_configs(int64_t group, const int64_t heads[2], mica_config *out)
{
    const int64_t others[] = {most_heads(heads), 1};
    int count = 0;
    out[count++] = (mica_config){{(int32_t)group}};
    for (int i = 0; i < 2; i++)
        if (others[i] != group && (i == 0 || others[0] != 1))
            out[count++] = (mica_config){{(int32_t)others[i]}};
    return count;
}
