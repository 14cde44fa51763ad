/* SPDX-License-Identifier: Apache-2.0
 * Keys and values into a cache: fields, arguments, inference, checks, cost, places. */
#include "ops/rope/rope.h"

#include <string.h>

static const char *const ropes[] = {"none", "half", "interleaved", NULL};

#define FIELD(member, kind, ...) MICA_FIELD(mica_kv_append_desc, member, kind, __VA_ARGS__)
static const mica_field fields[] = {
    FIELD(k, TENSOR, .zero = "needed", .doc = "new keys, B x Hk x S x D"),
    FIELD(v, TENSOR, .zero = "none", .doc = "new values, B x Hk x S x Dv"),
    FIELD(k_cache, TENSOR, .zero = "needed",
          .doc = "N x Hk x Smax x D; with pages P x Hk x page x D"),
    FIELD(v_cache, TENSOR, .zero = "inferred with v",
          .doc = "N x Hk x Smax x Dv; with pages P x Hk x page x Dv"),
    FIELD(seq_k, TENSOR, .zero = "inferred", .doc = "s32, N: keys in the cache before"),
    FIELD(seq_q, TENSOR, .zero = "none",
          .doc = "padded: s32, N: rows of each batch item that count"),
    FIELD(cu_q, TENSOR, .zero = "none", .doc = "packed: s32, N + 1 offsets"),
    FIELD(pages, TENSOR, .zero = "none", .doc = "paged: s32, N x pages of a sequence"),
    FIELD(scale_k, TENSOR, .zero = "none",
          .doc = "of an 8-bit k_cache: f32, 1 element or one per head"),
    FIELD(scale_v, TENSOR, .zero = "none",
          .doc = "of an 8-bit v_cache: f32, 1 element or one per head"),
    FIELD(rope, ENUM, .spellings = ropes, .doc = "whether and how k is rotated"),
    FIELD(rotary_dim, I64, .positive = true, .zero = "all",
          .doc = "columns that are rotated, the first ones"),
    FIELD(theta, F64, .def = 10000, .doc = "base of the frequencies"),
    FIELD(factor, F64, .def = 1, .doc = "of cos and sin"),
    FIELD(positions, TENSOR, .zero = "none",
          .doc = "s32 or s64, B x S or S; else places in the cache"),
    FIELD(inv_freq, TENSOR, .zero = "none",
          .doc = "f32, rotary_dim / 2: frequencies instead of theta"),
    FIELD(cos, TENSOR, .zero = "none",
          .doc = "positions x rotary_dim / 2: a table instead of theta"),
    FIELD(sin, TENSOR, .zero = "none", .doc = "as cos"),
};

#define ARG(member, direction, ...)                                                                \
    {                                                                                              \
        .name = #member, .tensor = offsetof(mica_kv_append_desc, member), .dir = {direction},      \
        __VA_ARGS__                                                                                \
    }
#define CACHES (MICA_FLOATS | MICA_TYPE(E4M3) | MICA_TYPE(E5M2) | MICA_TYPE(S8))
static const mica_arg args[] = {
    [MICA_KV_APPEND_K] = ARG(k, MICA_IN, .types = MICA_FLOATS, .need = {MICA_NEEDED}),
    [MICA_KV_APPEND_V] = ARG(v, MICA_IN, .types = MICA_FLOATS, .same = "k"),
    [MICA_KV_APPEND_K_CACHE] = ARG(k_cache, MICA_INOUT, .types = CACHES, .need = {MICA_NEEDED}),
    [MICA_KV_APPEND_V_CACHE] = ARG(v_cache, MICA_INOUT, .types = CACHES, .with = "v"),
    [MICA_KV_APPEND_SEQ_K] = ARG(seq_k, MICA_IN, .types = MICA_TYPE(S32), .need = {MICA_INFERRED}),
    [MICA_KV_APPEND_SEQ_Q] = ARG(seq_q, MICA_IN, .types = MICA_TYPE(S32)),
    [MICA_KV_APPEND_CU_Q] = ARG(cu_q, MICA_IN, .types = MICA_TYPE(S32)),
    [MICA_KV_APPEND_PAGES] = ARG(pages, MICA_IN, .types = MICA_TYPE(S32)),
    [MICA_KV_APPEND_SCALE_K] = ARG(scale_k, MICA_IN, .types = MICA_TYPE(F32)),
    [MICA_KV_APPEND_SCALE_V] = ARG(scale_v, MICA_IN, .types = MICA_TYPE(F32), .with = "v"),
    [MICA_KV_APPEND_POSITIONS] = ARG(positions, MICA_IN, .types = MICA_INDICES),
    [MICA_KV_APPEND_INV_FREQ] = ARG(inv_freq, MICA_IN, .types = MICA_TYPE(F32)),
    [MICA_KV_APPEND_COS] = ARG(cos, MICA_IN, .optional = false),
    [MICA_KV_APPEND_SIN] = ARG(sin, MICA_IN, .optional = false),
};

/* ---- shape ---- */

void kv_shape_of(const mica_kv_append_desc *d, kv_shape *s)
{
    bool paged = mica_tensor_given(&d->pages);
    *s = (kv_shape){
        .angles = {.rotates = d->rope != MICA_KV_APPEND_ROPE_NONE,
                   .interleaved = d->rope == MICA_KV_APPEND_ROPE_INTERLEAVED,
                   .pairs = d->rotary_dim / 2,
                   .columns = d->k.dims[3],
                   .batches = d->k.dims[0],
                   .rows = d->k.dims[2],
                   .sequences = mica_tensor_given(&d->cu_q) ? d->cu_q.dims[0] - 1 : d->k.dims[0],
                   .theta = d->theta,
                   .factor = d->factor,
                   .positions = &d->positions,
                   .start = &d->seq_k,
                   .cu = &d->cu_q,
                   .inv_freq = &d->inv_freq,
                   .cos = &d->cos,
                   .sin = &d->sin},
        .heads = d->k.dims[1],
        .page = paged ? d->k_cache.dims[2] : 0,
        .pages = paged ? d->pages.dims[1] : 0,
        .pool = d->k_cache.dims[0],
        .most = paged ? d->k_cache.dims[2] * d->pages.dims[1] : d->k_cache.dims[2],
        .has_v = mica_tensor_given(&d->v),
        .from = {&d->k, &d->v},
        .to = {&d->k_cache, &d->v_cache},
        .scale = {&d->scale_k, &d->scale_v},
    };
}

rope_data kv_data_of(void *const *run)
{
    return (rope_data){run[MICA_KV_APPEND_POSITIONS], run[MICA_KV_APPEND_SEQ_K],
                       run[MICA_KV_APPEND_CU_Q],      run[MICA_KV_APPEND_INV_FREQ],
                       run[MICA_KV_APPEND_COS],       run[MICA_KV_APPEND_SIN]};
}

static int64_t number(const void *data, int64_t offset)
{
    return ((const int32_t *)data)[offset];
}

kv_place kv_place_of(const mica_kv_append_desc *d, const kv_shape *s, void *const *run,
                     const rope_row *row)
{
    const kv_place dropped = {-1, 0};
    int64_t n = row->sequence;
    if (n < 0) return dropped;
    if (mica_tensor_given(&d->seq_q) &&
        row->index >= number(run[MICA_KV_APPEND_SEQ_Q], n * d->seq_q.strides[0]))
        return dropped;
    int64_t j = number(run[MICA_KV_APPEND_SEQ_K], n * d->seq_k.strides[0]) + row->index;
    if (j < 0 || j >= s->most) return dropped;
    if (!s->page) return (kv_place){n, j};
    int64_t at = n * d->pages.strides[0] + j / s->page * d->pages.strides[1];
    int64_t page = number(run[MICA_KV_APPEND_PAGES], at);
    if (page < 0 || page >= s->pool) return dropped;
    return (kv_place){page, j % s->page};
}

float kv_scale_of(const kv_shape *s, void *const *run, int side, int64_t head)
{
    const mica_tensor *t = s->scale[side];
    if (!mica_tensor_given(t)) return 1;
    const float *scale = run[side ? MICA_KV_APPEND_SCALE_V : MICA_KV_APPEND_SCALE_K];
    return scale[t->dims[0] == 1 ? 0 : head * t->strides[0]];
}

/* ---- inference ---- */

static mica_status infer(void *desc, mica_why *why)
{
    mica_kv_append_desc *d = desc;
    const mica_tensor *needed[] = {&d->k, &d->k_cache};
    for (int i = 0; i < 2; i++)
        if (!mica_tensor_given(needed[i]) || needed[i]->rank != 4)
            return mica_invalid(why, "%s has rank %d, it is needed and has 4 dimensions",
                                i ? "k_cache" : "k", needed[i]->rank);
    if (mica_tensor_given(&d->v)) {
        rope_infer_tensor(&d->v, d->k.dtype, 4, d->k.dims, &d->k);
        int64_t dims[4];
        memcpy(dims, d->k_cache.dims, sizeof dims);
        if (d->v.rank == 4) dims[3] = d->v.dims[3];
        rope_infer_tensor(&d->v_cache, d->k_cache.dtype, 4, dims, &d->k_cache);
    }
    int64_t n = d->k.dims[0];
    if (mica_tensor_given(&d->cu_q) && d->cu_q.rank == 1 && d->cu_q.dims[0] > 0)
        n = d->cu_q.dims[0] - 1;
    rope_infer_tensor(&d->seq_k, MICA_S32, 1, &n, NULL);
    if (d->rope != MICA_KV_APPEND_ROPE_NONE && d->rotary_dim == 0) d->rotary_dim = d->k.dims[3];
    return MICA_OK;
}

/* ---- checks ---- */

static bool is_eight_bit(mica_dtype t)
{
    return t == MICA_E4M3 || t == MICA_E5M2 || t == MICA_S8;
}

static mica_status check_types(const mica_kv_append_desc *d, mica_why *why)
{
    const mica_tensor *caches[] = {&d->k_cache, &d->v_cache};
    bool wide = d->k.dtype == MICA_F64;
    for (int i = 0; i < 2; i++) {
        mica_dtype t = caches[i]->dtype;
        bool legal =
            wide ? t == MICA_F64 : (mica_dtype_is_common(t) && t != MICA_F64) || is_eight_bit(t);
        MICA_TRY(rope_check_type(caches[i], i ? "v_cache" : "k_cache", legal,
                                 wide ? "f64 as k is" : "f32, f16, bf16, e4m3, e5m2 or s8", why));
    }
    return MICA_OK;
}

static mica_status check_scale(const mica_kv_append_desc *d, int side, mica_why *why)
{
    const mica_tensor *t = side ? &d->scale_v : &d->scale_k;
    const char *name = side ? "scale_v" : "scale_k", *of = side ? "v_cache" : "k_cache";
    mica_dtype type = side ? d->v_cache.dtype : d->k_cache.dtype;
    if (!mica_tensor_given(t)) return MICA_OK;
    if (!is_eight_bit(type))
        return mica_invalid(why, "%s is for 8-bit caches, %s is %s", name, of,
                            mica_dtype_name(type));
    if (t->rank != 1 || (t->dims[0] != 1 && t->dims[0] != d->k.dims[1]))
        return mica_invalid(why, "%s has %lld elements in %d dimensions, it is a list of 1 or %lld",
                            name, (long long)mica_tensor_count(t), t->rank,
                            (long long)d->k.dims[1]);
    return MICA_OK;
}

/* Before anything multiplies the two. */
static mica_status check_pages(const mica_kv_append_desc *d, mica_why *why)
{
    if (!mica_tensor_given(&d->pages)) return MICA_OK;
    if (d->pages.rank != 2)
        return mica_invalid(why, "pages has rank %d, it must have 2", d->pages.rank);
    if ((double)d->pages.dims[1] * (double)d->k_cache.dims[2] > (double)MICA_MOST_ELEMENTS)
        return mica_invalid(why, "%lld pages of %lld keys: at most 2^48 keys are legal",
                            (long long)d->pages.dims[1], (long long)d->k_cache.dims[2]);
    return MICA_OK;
}

static mica_status check_dims(const mica_kv_append_desc *d, const kv_shape *s, mica_why *why)
{
    const int64_t *k = d->k.dims, *c = d->k_cache.dims;
    bool paged = mica_tensor_given(&d->pages);
    int64_t n = s->angles.sequences;
    const int64_t page_dims[] = {n, paged ? d->pages.dims[1] : 0};
    MICA_TRY(rope_check_dims(&d->pages, "pages", 2, page_dims, why));
    const int64_t cache[] = {paged ? c[0] : n, k[1], c[2], k[3]};
    MICA_TRY(rope_check_dims(&d->k_cache, "k_cache", 4, cache, why));
    MICA_TRY(rope_check_dims(&d->seq_k, "seq_k", 1, &n, why));
    MICA_TRY(rope_check_dims(&d->seq_q, "seq_q", 1, &n, why));
    if (!s->has_v) return MICA_OK;
    if (d->v.rank != 4) return mica_invalid(why, "v has rank %d, it must have 4", d->v.rank);
    const int64_t v[] = {k[0], k[1], k[2], d->v.dims[3]};
    const int64_t v_cache[] = {c[0], c[1], c[2], d->v.dims[3]};
    MICA_TRY(rope_check_dims(&d->v, "v", 4, v, why));
    return rope_check_dims(&d->v_cache, "v_cache", 4, v_cache, why);
}

static mica_status check_rope(const mica_kv_append_desc *d, const rope_angles *a, mica_why *why)
{
    if (a->rotates) return rope_check_angles(a, d->rotary_dim, d->k.dtype, why);
    const mica_tensor *none[] = {&d->positions, &d->inv_freq, &d->cos, &d->sin};
    const char *const names[] = {"positions", "inv_freq", "cos", "sin"};
    for (int i = 0; i < 4; i++)
        if (mica_tensor_given(none[i])) return mica_invalid(why, "%s without rope", names[i]);
    if (d->rotary_dim || d->theta != 10000 || d->factor != 1)
        return mica_invalid(why, "rotary_dim %lld, theta %g, factor %g without rope",
                            (long long)d->rotary_dim, d->theta, d->factor);
    return MICA_OK;
}

static mica_status check(const void *desc, mica_why *why)
{
    const mica_kv_append_desc *d = desc;
    kv_shape s;
    MICA_TRY(check_types(d, why));
    MICA_TRY(rope_check_offsets(&d->cu_q, "cu_q", &d->k, "k", why));
    if (mica_tensor_given(&d->cu_q) && mica_tensor_given(&d->seq_q))
        return mica_invalid(why, "cu_q and seq_q exclude each other");
    MICA_TRY(check_pages(d, why));
    kv_shape_of(d, &s);
    MICA_TRY(check_dims(d, &s, why));
    for (int side = 0; side < KV_SIDES; side++) MICA_TRY(check_scale(d, side, why));
    return check_rope(d, &s.angles, why);
}

/* ---- numbers ---- */

/* New rows are read, and as many written; the rest of the cache is not touched. */
static void cost(const void *desc, double *flops, double *bytes)
{
    const mica_kv_append_desc *d = desc;
    double k = (double)mica_tensor_count(&d->k), v = 0;
    if (mica_tensor_given(&d->v)) v = (double)mica_tensor_count(&d->v);
    *bytes = (k * (mica_dtype_bits(d->k.dtype) + mica_dtype_bits(d->k_cache.dtype)) +
              v * (mica_dtype_bits(d->k.dtype) + mica_dtype_bits(d->v_cache.dtype))) /
             8;
    *flops = d->rope != MICA_KV_APPEND_ROPE_NONE ? 3 * k : 0;
}

static int64_t terms(const void *desc)
{
    (void)desc;
    return 2;
}

static bool exact(const void *desc)
{
    kv_shape s;
    kv_shape_of(desc, &s);
    return rope_exact(&s.angles);
}

static const mica_engine *const engines[] = {&mica_kv_append_cpu, &mica_engine_ref,
                                             &mica_kv_append_cuda, NULL};

const mica_op mica_op_kv_append = {
    .name = "kv_append",
    .doc =
        "new keys and values into a cache, contiguous or paged, rotated and quantised on the way",
    .desc_size = sizeof(mica_kv_append_desc),
    .fields = fields,
    .field_count = sizeof fields / sizeof *fields,
    .args = args,
    .arg_count = sizeof args / sizeof *args,
    .infer = infer,
    .check = check,
    .cost = cost,
    .terms = terms,
    .exact = exact,
    .ulps = 3,
    .fill = kv_append_fill,
    .reference = kv_append_reference,
    .engines = engines,
};
