/* SPDX-License-Identifier: Apache-2.0
 * Statuses, data types and tensors: the words that every other header uses. */
#ifndef MICA_TYPES_H
#define MICA_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define MICA_API __attribute__((visibility("default")))
#else
#define MICA_API
#endif

#define MICA_VERSION_MAJOR 0
#define MICA_VERSION_MINOR 1
#define MICA_VERSION_PATCH 0

/* Version of the library that is loaded, "0.1.0". */
MICA_API const char *mica_version(void);

/* ---- statuses ------------------------------------------------------------------------------
 * X(name, text). A call that fails leaves its objects as they were; mica_error() then has the
 * value and the rule in words. */
#define MICA_STATUSES(X)                                                                           \
    X(OK, "ok")                                                                                    \
    X(INVALID, "invalid: the description or the call contradicts itself")                          \
    X(UNSUPPORTED, "unsupported: sound, but no engine takes it here")                              \
    X(OUT_OF_MEMORY, "out of host memory")                                                         \
    X(OUT_OF_DEVICE_MEMORY, "out of device memory")                                                \
    X(NO_DEVICE, "no such device, or no driver for it")                                            \
    X(NO_COMPILER, "the run-time compiler (NVRTC) was not found")                                  \
    X(COMPILE_FAILED, "a kernel did not compile")                                                  \
    X(DEVICE_ERROR, "a device call failed; the device is still usable")                            \
    X(DEVICE_LOST, "the device faulted; this process cannot use it any more")                      \
    X(FORKED_PROCESS, "a GPU call in a forked child; start the child with posix_spawn instead")    \
    X(IO, "a file could not be read or written")                                                   \
    X(NOT_FOUND, "nothing is recorded under that name")                                            \
    X(CANCELLED, "cancelled by the caller")                                                        \
    X(INTERNAL, "a mistake inside mica; please report it")                                         \
    X(DISTURBED, "other programs disturbed a measurement, which was not used")

typedef enum mica_status {
#define MICA_X(name, text) MICA_##name,
    MICA_STATUSES(MICA_X)
#undef MICA_X
        MICA_STATUS_COUNT
} mica_status;

/* "MICA_INVALID"; never NULL. */
MICA_API const char *mica_status_name(mica_status status);

/* What the calling thread's last failed call had to say: the value and the rule. Never NULL;
 * valid until the next mica call of this thread. */
MICA_API const char *mica_error(void);

/* ---- data types ----------------------------------------------------------------------------
 * X(NAME, spelling, bits, unit roundoff as an exponent of 2 (0 = exact integers)). */
#define MICA_DTYPES(X)                                                                             \
    X(F64, "f64", 64, -53)                                                                         \
    X(F32, "f32", 32, -24)                                                                         \
    X(F16, "f16", 16, -11)                                                                         \
    X(BF16, "bf16", 16, -8)                                                                        \
    X(E4M3, "e4m3", 8, -4)                                                                         \
    X(E5M2, "e5m2", 8, -3)                                                                         \
    X(E2M1, "e2m1", 4, -2)                                                                         \
    X(S8, "s8", 8, 0)                                                                              \
    X(U8, "u8", 8, 0)                                                                              \
    X(S4, "s4", 4, 0)                                                                              \
    X(U4, "u4", 4, 0)                                                                              \
    X(S32, "s32", 32, 0)                                                                           \
    X(S64, "s64", 64, 0)                                                                           \
    X(U32, "u32", 32, 0)                                                                           \
    X(BOOL, "bool", 8, 0)                                                                          \
    X(C32, "c32", 64, -24)                                                                         \
    X(C64, "c64", 128, -53)                                                                        \
    X(E8M0, "e8m0", 8, -1)

typedef enum mica_dtype {
    MICA_NONE, /* no tensor */
#define MICA_X(name, text, bits, unit) MICA_##name,
    MICA_DTYPES(MICA_X)
#undef MICA_X
        MICA_DTYPE_COUNT
} mica_dtype;

/* "bf16"; "none" for MICA_NONE or an unknown value. */
MICA_API const char *mica_dtype_name(mica_dtype dtype);
/* Storage of one element in bits (sub-byte types pack two per byte, low half first). */
MICA_API int mica_dtype_bits(mica_dtype dtype);

/* ---- zeros -----------------------------------------------------------------------------------
 * A field of a descriptor that is zero is left out: it has its default. Where that is not the
 * number 0 (beta1 is 0.9, groups is 1), these are the number 0, as "beta1=0" is in a line. What is
 * then not legal is refused like any other value. MICA_ZERO is the smallest normal double, which
 * passes unharmed through fast arithmetic, JSON and text; nothing else means it. */
#define MICA_ZERO     2.2250738585072014e-308
#define MICA_ZERO_INT INT64_MIN

/* ---- tensors -------------------------------------------------------------------------------
 * Dimensions are in the logical order N C W, N C H W or N C D H W whatever the memory order;
 * strides are in elements and may be anything, negative and zero included, as long as no two
 * elements of an output share memory. All strides zero means packed, last dimension fastest, unless
 * `strided` says that they are meant: one element that stands for all.
 * A tensor has at most 2^48 elements. Any dimension may be 0: such a tensor is legal and operations
 * on it do nothing. */
#define MICA_MAX_RANK 8

typedef struct mica_tensor {
    mica_dtype dtype; /* MICA_NONE: absent, to be inferred where the operation can */
    int32_t rank;
    int64_t dims[MICA_MAX_RANK];
    int64_t strides[MICA_MAX_RANK];
    int64_t strided; /* not 0: strides that are all zero are strides of 0, and not left out */
} mica_tensor;

/* A packed tensor, last dimension fastest (NCHW). */
MICA_API mica_tensor mica_tensor_packed(mica_dtype dtype, int rank, const int64_t *dims);
/* The same with the channel dimension (index 1) fastest: NHWC, NDHWC, NWC. */
MICA_API mica_tensor mica_tensor_channels_last(mica_dtype dtype, int rank, const int64_t *dims);

/* Reads "bf16:256x64x56x56:nhwc". After the second colon stands a layout (packed: nothing or
 * nchw; channels last: nhwc; bshd: dimensions 1 and 2 of four swapped in memory; t: the last two)
 * or the strides, "f32:2x3:8x1"; "f32:2x3:0x0" is one element. */
MICA_API mica_status mica_tensor_from_text(const char *text, mica_tensor *tensor);
/* Writes that form. Returns its length as snprintf does. */
MICA_API int mica_tensor_text(const mica_tensor *tensor, char *buffer, size_t size);

/* Number of elements, or -1 if it does not fit 63 bits. */
MICA_API int64_t mica_tensor_count(const mica_tensor *tensor);
/* Memory that the elements span. *first is the byte offset of the lowest element from element 0
 * (<= 0, nonzero only with negative strides); returns bytes from the lowest to past the highest
 * element, or -1 on overflow. */
MICA_API int64_t mica_tensor_span(const mica_tensor *tensor, int64_t *first);

/* Converts between doubles in logical order (last dimension fastest, packed) and a tensor's
 * memory on the host. Storing rounds to nearest even; integers saturate; e4m3 saturates to
 * 448, e5m2 overflows to infinity; e8m0, the powers of two of block scales, takes the nearest one,
 * of two the larger, 2^-127 for 0 and NaN for what is negative or infinite. s64 beyond 2^53 loses
 * digits. */
MICA_API mica_status mica_tensor_store(const mica_tensor *tensor, const double *values, void *data);
MICA_API mica_status mica_tensor_load(const mica_tensor *tensor, const void *data, double *values);

#ifdef __cplusplus
}
#endif
#endif
