/* SPDX-License-Identifier: Apache-2.0
 * Tensor maps: the driver's limits, checked with a reason each, and its encoder. */
#include "cuda/device.h"

#include <inttypes.h>

/* Numbers of CUtensorMapDataType; only the width matters to a copy, except for what fills the
 * outside: zero in all of them. */
enum {
    NO_TYPE = -1,
    U8 = 0,
    U32 = 2,
    S32 = 3,
    U64 = 4,
    S64 = 5,
    F16 = 6,
    F32 = 7,
    F64 = 8,
    BF16 = 9
};

static int map_type(mica_dtype dtype)
{
    static const struct {
        mica_dtype dtype;
        int type;
    } types[] = {{MICA_F64, F64}, {MICA_F32, F32}, {MICA_F16, F16}, {MICA_BF16, BF16},
                 {MICA_E4M3, U8}, {MICA_E5M2, U8}, {MICA_S8, U8},   {MICA_U8, U8},
                 {MICA_BOOL, U8}, {MICA_S32, S32}, {MICA_U32, U32}, {MICA_S64, S64},
                 {MICA_C32, U64}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i].dtype == dtype) return types[i].type;
    return NO_TYPE;
}

static mica_status check_dims(const mica_tensor_map_spec *s)
{
    for (int i = 0; i < s->rank; i++) {
        if (s->dims[i] < 1 || s->dims[i] > (int64_t)1 << 32)
            return mica_fail(MICA_UNSUPPORTED,
                             "tensor map: dimension %d is %" PRId64 ", the rule is 1 to 2^32", i,
                             s->dims[i]);
        if (i > 0 && (s->stride_bytes[i] < 0 || s->stride_bytes[i] % 16 ||
                      s->stride_bytes[i] >= (int64_t)1 << 40))
            return mica_fail(MICA_UNSUPPORTED,
                             "tensor map: the stride of dimension %d is %" PRId64
                             " bytes, the rule is a multiple of 16 below 2^40",
                             i, s->stride_bytes[i]);
        if (s->element_strides[i] > 8)
            return mica_fail(MICA_UNSUPPORTED,
                             "tensor map: the element stride of dimension %d is %u, the limit 8", i,
                             s->element_strides[i]);
    }
    return MICA_OK;
}

/* The bytes of one row of what is transferred must fit the swizzle. */
static mica_status check_row(const mica_tensor_map_spec *s, uint32_t elements)
{
    int64_t bytes = (int64_t)elements * mica_dtype_bits(s->dtype) / 8;
    if (bytes % 16)
        return mica_fail(MICA_UNSUPPORTED,
                         "tensor map: a row of the box is %" PRId64
                         " bytes, the rule is a multiple of 16",
                         bytes);
    if (s->swizzle_bytes && bytes > s->swizzle_bytes)
        return mica_fail(MICA_UNSUPPORTED,
                         "tensor map: a row of the box is %" PRId64
                         " bytes, more than the swizzle of %d",
                         bytes, s->swizzle_bytes);
    return MICA_OK;
}

static mica_status check_tiled(const mica_tensor_map_spec *s)
{
    for (int i = 0; i < s->rank; i++)
        if (s->box[i] < 1 || s->box[i] > 256)
            return mica_fail(MICA_UNSUPPORTED,
                             "tensor map: the box is %u in dimension %d, the rule is 1 to 256",
                             s->box[i], i);
    return check_row(s, s->box[0]);
}

static mica_status check_im2col(const mica_tensor_map_spec *s)
{
    if (s->rank < 3)
        return mica_fail(MICA_UNSUPPORTED, "tensor map: im2col has rank 3 to 5, not %d", s->rank);
    int spatial = s->rank - 2, limit = spatial == 1 ? 32768 : spatial == 2 ? 128 : 16;
    for (int i = 0; i < spatial; i++) {
        int low = s->lower[i] < s->upper[i] ? s->lower[i] : s->upper[i];
        int high = s->lower[i] < s->upper[i] ? s->upper[i] : s->lower[i];
        if (low < -limit || high >= limit)
            return mica_fail(MICA_UNSUPPORTED,
                             "tensor map: corners %d and %d of spatial dimension %d, the rule for "
                             "rank %d is %d to %d",
                             s->lower[i], s->upper[i], i, s->rank, -limit, limit - 1);
    }
    if (s->channels_per_pixel < 1 || s->channels_per_pixel > 256)
        return mica_fail(MICA_UNSUPPORTED,
                         "tensor map: %u channels per pixel, the rule is 1 to 256",
                         s->channels_per_pixel);
    if (s->pixels_per_column < 1 || s->pixels_per_column > 1024)
        return mica_fail(MICA_UNSUPPORTED,
                         "tensor map: %u pixels per column, the rule is 1 to 1024",
                         s->pixels_per_column);
    return check_row(s, s->channels_per_pixel);
}

static int swizzle_mode(int bytes)
{
    switch (bytes) {
    case 0:
        return 0;
    case 32:
        return 1;
    case 64:
        return 2;
    case 128:
        return 3;
    default:
        return -1;
    }
}

static mica_status check(const mica_cuda *cuda, const mica_tensor_map_spec *s, const void *address)
{
    if (cuda->info.arch < 90)
        return mica_fail(MICA_UNSUPPORTED, "tensor maps need sm_90, %s is sm_%d", cuda->info.name,
                         cuda->info.arch);
    if (s->rank < 1 || s->rank > 5)
        return mica_fail(MICA_UNSUPPORTED, "tensor map: rank %d, the rule is 1 to 5", s->rank);
    if (map_type(s->dtype) == NO_TYPE)
        return mica_fail(MICA_UNSUPPORTED, "tensor map: no element type for %s",
                         mica_dtype_name(s->dtype));
    if (swizzle_mode(s->swizzle_bytes) < 0)
        return mica_fail(MICA_UNSUPPORTED,
                         "tensor map: swizzle of %d bytes, there are 0, 32, 64, "
                         "128",
                         s->swizzle_bytes);
    if ((uintptr_t)address % 16)
        return mica_fail(MICA_UNSUPPORTED,
                         "tensor map: the address %p is not a multiple of 16 bytes", address);
    MICA_TRY(check_dims(s));
    return s->im2col ? check_im2col(s) : check_tiled(s);
}

static mica_status encode(mica_cuda *cuda, const mica_tensor_map_spec *s, void *address,
                          mica_tensor_map *map)
{
    enum { NO_INTERLEAVE = 0, PROMOTE_TO_128_BYTES = 2, FILL_WITH_ZERO = 0 };
    uint64_t dims[5] = {0}, strides[5] = {0};
    uint32_t steps[5] = {1, 1, 1, 1, 1};
    for (int i = 0; i < s->rank; i++) {
        dims[i] = (uint64_t)s->dims[i];
        if (i > 0) strides[i - 1] = (uint64_t)s->stride_bytes[i];
        if (s->element_strides[i]) steps[i] = s->element_strides[i];
    }
    int type = map_type(s->dtype), swizzle = swizzle_mode(s->swizzle_bytes);
    unsigned rank = (unsigned)s->rank;
    if (!s->im2col)
        return MICA_CU(cuda, cuTensorMapEncodeTiled, map->bytes, type, rank, address, dims, strides,
                       s->box, steps, NO_INTERLEAVE, swizzle, PROMOTE_TO_128_BYTES, FILL_WITH_ZERO);
    return MICA_CU(cuda, cuTensorMapEncodeIm2col, map->bytes, type, rank, address, dims, strides,
                   s->lower, s->upper, s->channels_per_pixel, s->pixels_per_column, steps,
                   NO_INTERLEAVE, swizzle, PROMOTE_TO_128_BYTES, FILL_WITH_ZERO);
}

mica_status mica_tensor_map_encode(mica_cuda *cuda, const mica_tensor_map_spec *s, void *address,
                                   mica_tensor_map *map)
{
    bool pushed;
    MICA_TRY(mica_cuda_usable(cuda));
    MICA_TRY(check(cuda, s, address));
    if (!mica_driver.cuTensorMapEncodeTiled || !mica_driver.cuTensorMapEncodeIm2col)
        return mica_fail(MICA_UNSUPPORTED, "tensor maps need a driver of CUDA 12 or newer");
    /* the encoders ask for a current context */
    MICA_TRY(mica_cuda_enter(cuda, &pushed));
    mica_status status = encode(cuda, s, address, map);
    mica_cuda_leave(cuda, pushed);
    return status;
}
