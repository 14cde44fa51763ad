/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/gemm/sm90/sm90_operand.h"

bool gemm_sm90_along_k(const gemm_sm90_operand *o)
{
    return o->k_stride == 1 || o->k == 1;
}

bool gemm_sm90_promotes(mica_dtype t)
{
    return t == MICA_E4M3 || t == MICA_E5M2;
}

int gemm_sm90_bytes(mica_dtype t)
{
    return mica_dtype_bits(t) / 8;
}

mica_status gemm_sm90_check_types(const mica_gemm_desc *d, mica_why *why)
{
    mica_dtype a = d->a.dtype, b = d->b.dtype;
    bool narrow = (a == MICA_BF16 || a == MICA_F16) && a == b;
    bool tf32 = a == MICA_F32 && b == MICA_F32 && d->compute == MICA_COMPUTE_TF32;
    bool bytes = (gemm_sm90_promotes(a) && gemm_sm90_promotes(b)) ||
                 (mica_dtype_is_integer(a) && mica_dtype_is_integer(b));
    if (narrow || tf32 || bytes) return MICA_OK;
    return mica_refuse(
        why, "a is %s, b %s; taken are equal 16-bit floats, 8-bit types, and f32 with compute=tf32",
        mica_dtype_name(a), mica_dtype_name(b));
}

mica_status gemm_sm90_check_stride(const gemm_sm90_operand *o, const char *what, long long dim,
                                   long long stride, long long least, mica_why *why)
{
    long long bytes = stride * gemm_sm90_bytes(o->dtype);
    if (dim == 1) return MICA_OK;
    if (bytes % 16 || bytes < 0)
        return mica_refuse(why,
                           "%s of %s are %lld bytes apart, the rule is a positive multiple of 16",
                           what, o->name, bytes);
    if (stride < least)
        return mica_refuse(why, "%s of %s overlap: their stride is %lld, each has %lld elements",
                           what, o->name, stride, least);
    if (bytes >= 1LL << 40)
        return mica_refuse(why, "%s of %s are %lld bytes apart, the rule is below 2^40", what,
                           o->name, bytes);
    return MICA_OK;
}

mica_status gemm_sm90_check_operand(gemm_sm90_operand *o, mica_why *why)
{
    bool along_k = gemm_sm90_along_k(o);
    bool along_lines = o->line_stride == 1 || o->lines == 1;
    int bytes = gemm_sm90_bytes(o->dtype);
    bool either = bytes == 2 || (bytes == 4 && o->words);
    bool odd_lines = o->lines > 1 && o->line_stride * bytes % 16 != 0;
    o->mn_major = either && along_lines && (!along_k || odd_lines);
    if (!along_k && !along_lines)
        return mica_refuse(why, "%s has strides %lld and %lld, one must be 1", o->name,
                           o->line_stride, o->k_stride);
    if (!along_k && !either)
        return mica_refuse(why,
                           "%s is not contiguous along K; only 16-bit types may lie the other way, "
                           "and f32 as the one such operand of a gemm without gate, aux and amax",
                           o->name);
    if (o->mn_major)
        return gemm_sm90_check_stride(o, "lines along K", o->k, o->k_stride, o->lines, why);
    return gemm_sm90_check_stride(o, "lines", o->lines, o->line_stride, o->k, why);
}

int gemm_sm90_fill_map(const gemm_sm90_operand *o, int tile, mica_tensor_map_spec *m)
{
    int bytes = gemm_sm90_bytes(o->dtype), slice = GEMM_SM90_LINE_BYTES / bytes;
    int rows = o->lines < tile ? (int)o->lines : tile;
    *m =
        (mica_tensor_map_spec){.dtype = o->dtype, .rank = 2, .swizzle_bytes = GEMM_SM90_LINE_BYTES};
    m->tf32 = o->dtype == MICA_F32;
    m->dims[0] = o->mn_major ? o->lines : o->k;
    m->dims[1] = o->mn_major ? o->k : o->lines;
    m->stride_bytes[1] =
        gemm_map_stride(m->dims[1], o->mn_major ? o->k_stride : o->line_stride, m->dims[0], bytes);
    m->box[0] = (uint32_t)slice;
    m->box[1] = (uint32_t)(o->mn_major ? slice : rows);
    return GEMM_SM90_LINE_BYTES * (o->mn_major ? tile : rows);
}

int gemm_sm90_band(int tile_m, int tile_n, int units)
{
    int band = 1;
    while (band * band * tile_m < units * tile_n) band++;
    return band;
}

/* A step of the tensor core sums 32 bytes of products and truncates. 8-bit floats keep 13 bits
 * behind the point for a slice and are then added up in f32; tf32 rounds both factors. */
void gemm_sm90_contract(const mica_gemm_desc *d, mica_contract *c)
{
    int64_t k = d->a.dims[d->a.rank - 1];
    if (mica_dtype_is_integer(d->a.dtype)) return;
    c->truncates = true;
    c->k_inst = 32 / gemm_sm90_bytes(d->a.dtype);
    if (gemm_sm90_promotes(d->a.dtype)) {
        c->unit = 0x1p-14;
        c->k_inst = 16;
        c->n_seq = (k < 128 ? k : 128) + 16;
    } else if (d->a.dtype == MICA_F32) {
        c->unit = 0x1p-11;
        c->truncates = false;
        c->n_seq = 3 + k / (1 << 15);
        c->k_inst = 1;
    }
}
