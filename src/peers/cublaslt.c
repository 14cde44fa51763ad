/* SPDX-License-Identifier: Apache-2.0
 * cuBLASLt through our own prototypes. The numbers are those of cublasLt.h and library_types.h,
 * which the library promises to keep. */
#include "peers/cublaslt.h"
#include "cuda/device.h"
#include "cuda/driver.h"
#include "base/env.h"
#include "base/system/library.h"
#include "base/log.h"
#include "base/memory.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

enum { MOST_RANKS = 16, MOST_DEVICES = 64 };
enum {
    LAYOUT_BATCHES = 5,
    LAYOUT_BATCH_STRIDE = 6,
    DESC_TRANSPOSE_A = 3,
    DESC_TRANSPOSE_B = 4,
    DESC_EPILOGUE = 7,
    DESC_BIAS = 8,
    DESC_SCALE_A = 17,
    DESC_SCALE_B = 18,
    DESC_BIAS_TYPE = 26,
    PREFERENCE_WORKSPACE = 1,
    PREFERENCE_REDUCTION = 3,
    PREFERENCE_ALIGNMENT = 5, /* of a, then b, c and d */
    REDUCE_IN_COMPUTE_TYPE = 2,
    EPILOGUE_NONE = 1,
    EPILOGUE_RELU = 2,
    EPILOGUE_BIAS = 4,
    COMPUTE_F32 = 68,
    COMPUTE_F64 = 70,
    COMPUTE_S32 = 72,
    COMPUTE_TF32 = 77,
    SUPPORTED = 0
};

/* cublasLtMatmulAlgo_t, cublasLtMatmulHeuristicResult_t, cublasLtMatmulDescOpaque_t */
typedef struct algorithm {
    uint64_t data[8];
} algorithm;
typedef struct heuristic {
    algorithm algorithm;
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
} heuristic;
typedef struct description {
    uint64_t data[32];
} description;

#define CALLS(X)                                                                                   \
    X(create, "cublasLtCreate", (void **))                                                         \
    X(describe, "cublasLtMatmulDescCreate", (void **, int, int))                                   \
    X(undescribe, "cublasLtMatmulDescDestroy", (void *))                                           \
    X(set, "cublasLtMatmulDescSetAttribute", (void *, int, const void *, size_t))                  \
    X(layout, "cublasLtMatrixLayoutCreate", (void **, int, uint64_t, uint64_t, int64_t))           \
    X(unlayout, "cublasLtMatrixLayoutDestroy", (void *))                                           \
    X(set_layout, "cublasLtMatrixLayoutSetAttribute", (void *, int, const void *, size_t))         \
    X(preference, "cublasLtMatmulPreferenceCreate", (void **))                                     \
    X(unprefer, "cublasLtMatmulPreferenceDestroy", (void *))                                       \
    X(prefer, "cublasLtMatmulPreferenceSetAttribute", (void *, int, const void *, size_t))         \
    X(search, "cublasLtMatmulAlgoGetHeuristic",                                                    \
      (void *, void *, void *, void *, void *, void *, void *, int, heuristic *, int *))           \
    X(multiply, "cublasLtMatmul",                                                                  \
      (void *, const void *, const void *, const void *, const void *, const void *, const void *, \
       const void *, const void *, const void *, void *, const void *, const algorithm *, void *,  \
       size_t, void *))

static struct {
#define MICA_X(name, symbol, prototype) int(*name) prototype;
    CALLS(MICA_X)
#undef MICA_X
    size_t (*version)(void);
} lt;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static void *library;
static char path[512];
static void *handles[MOST_DEVICES]; /* as long as the process: they are costly and few */

struct mica_cublaslt {
    mica_cuda *cuda;
    mica_cublaslt_spec spec;
    void *description, *a, *b, *d;
    algorithm algorithm;
    size_t workspace;
};

/* ---- the library ---- */

static mica_status open_library(void)
{
    static const char *const names[] = {"libcublasLt.so.13", "libcublasLt.so.12", NULL};
    char text[1024] = "";
    mica_text looked = {text, sizeof text, 0};
    library = mica_library_open("MICA_CUBLASLT", mica_env(MICA_ENV_CUBLASLT), names, &looked);
    if (!library) return mica_fail(MICA_UNSUPPORTED, "cuBLASLt is not here: %s", text);
    const char *missing = NULL;
#define MICA_X(name, symbol, prototype)                                                            \
    *(void **)&lt.name = dlsym(library, symbol);                                                   \
    if (!lt.name) missing = symbol;
    CALLS(MICA_X)
#undef MICA_X
    *(void **)&lt.version = dlsym(library, "cublasLtGetVersion");
    if (missing || !lt.version) {
        dlclose(library);
        library = NULL;
        return mica_fail(MICA_UNSUPPORTED, "libcublasLt has no %s",
                         missing ? missing : "cublasLtGetVersion");
    }
    mica_library_path(*(void **)&lt.create, path, sizeof path);
    mica_log(MICA_LOG_INFO, "cuBLASLt %zu from %s", lt.version(), path);
    return MICA_OK;
}

mica_status mica_cublaslt_load(void)
{
    pthread_mutex_lock(&mutex);
    mica_status status = library ? MICA_OK : open_library();
    pthread_mutex_unlock(&mutex);
    return status;
}

const char *mica_cublaslt_path(void)
{
    return path;
}

size_t mica_cublaslt_version(void)
{
    return library ? lt.version() : 0;
}

static mica_status check(const char *call, int code)
{
    if (code == 0) return MICA_OK;
    enum { NOT_SUPPORTED = 15, INVALID_VALUE = 7 };
    bool refused = code == NOT_SUPPORTED || code == INVALID_VALUE;
    return mica_fail(refused ? MICA_UNSUPPORTED : MICA_DEVICE_ERROR, "%s gave %d%s", call, code,
                     code == NOT_SUPPORTED   ? ", not supported"
                     : code == INVALID_VALUE ? ", invalid value"
                                             : "");
}
#define LT(call, ...) check("cuBLASLt's " #call, lt.call(__VA_ARGS__))

/* ---- products ---- */

static int type_of(mica_dtype dtype)
{
    switch (dtype) {
    case MICA_F64:
        return 1;
    case MICA_F16:
        return 2;
    case MICA_S8:
        return 3;
    case MICA_S32:
        return 10;
    case MICA_BF16:
        return 14;
    case MICA_E4M3:
        return 28;
    case MICA_E5M2:
        return 29;
    default:
        return 0; /* f32 */
    }
}

static mica_status make_layout(const mica_cublaslt_matrix *m, int64_t batches, void **layout)
{
    int32_t count = (int32_t)batches;
    MICA_TRY(LT(layout, layout, type_of(m->dtype), (uint64_t)m->rows, (uint64_t)m->cols, m->ld));
    MICA_TRY(LT(set_layout, *layout, LAYOUT_BATCHES, &count, sizeof count));
    return LT(set_layout, *layout, LAYOUT_BATCH_STRIDE, &m->batch_stride, sizeof m->batch_stride);
}

static mica_status make_description(mica_cublaslt *p)
{
    const mica_cublaslt_spec *s = &p->spec;
    mica_dtype in = s->a.dtype;
    int compute = in == MICA_F64  ? COMPUTE_F64
                  : in == MICA_S8 ? COMPUTE_S32
                  : s->tf32       ? COMPUTE_TF32
                                  : COMPUTE_F32;
    mica_dtype scale = in == MICA_F64 ? MICA_F64 : in == MICA_S8 ? MICA_S32 : MICA_F32;
    MICA_TRY(LT(describe, &p->description, compute, type_of(scale)));
    int32_t a = s->a.transposed, b = s->b.transposed;
    int epilogue = (s->relu ? EPILOGUE_RELU : 0) | (s->bias ? EPILOGUE_BIAS : 0);
    if (!epilogue) epilogue = EPILOGUE_NONE;
    MICA_TRY(LT(set, p->description, DESC_TRANSPOSE_A, &a, sizeof a));
    MICA_TRY(LT(set, p->description, DESC_TRANSPOSE_B, &b, sizeof b));
    MICA_TRY(LT(set, p->description, DESC_EPILOGUE, &epilogue, sizeof epilogue));
    if (!s->bias) return MICA_OK;
    int32_t bias = type_of(s->bias);
    return LT(set, p->description, DESC_BIAS_TYPE, &bias, sizeof bias);
}

/* Parts of a sum are added up in the type they are computed in: in that of the result, which the
 * library would allow itself, they would be rounded one by one. */
static mica_status set_preferences(const mica_cublaslt *p, void *preference, int64_t limit)
{
    uint64_t most = (uint64_t)limit;
    uint32_t alignment = p->spec.alignment, reduction = REDUCE_IN_COMPUTE_TYPE;
    MICA_TRY(LT(prefer, preference, PREFERENCE_WORKSPACE, &most, sizeof most));
    MICA_TRY(LT(prefer, preference, PREFERENCE_REDUCTION, &reduction, sizeof reduction));
    for (int i = 0; i < 4; i++)
        MICA_TRY(LT(prefer, preference, PREFERENCE_ALIGNMENT + i, &alignment, sizeof alignment));
    return MICA_OK;
}

static mica_status search(mica_cublaslt *p, void *handle, int rank, int64_t limit)
{
    heuristic found[MOST_RANKS];
    void *preference = NULL;
    int count = 0;
    MICA_TRY(LT(preference, &preference));
    mica_status status = set_preferences(p, preference, limit);
    if (status == MICA_OK)
        status = LT(search, handle, p->description, p->a, p->b, p->d, p->d, preference, rank + 1,
                    found, &count);
    lt.unprefer(preference);
    MICA_TRY(status);
    if (rank >= count || found[rank].state != SUPPORTED)
        return mica_fail(MICA_UNSUPPORTED, "cuBLASLt has %d candidates, number %d was asked for",
                         count, rank);
    p->algorithm = found[rank].algorithm;
    p->workspace = found[rank].workspace;
    return MICA_OK;
}

/* With the device's context current. */
static mica_status make(mica_cublaslt *p, int rank, int64_t limit)
{
    int ordinal = p->cuda->ordinal;
    if (ordinal >= MOST_DEVICES)
        return mica_fail(MICA_UNSUPPORTED, "device %d: cuBLASLt is opened on the first %d", ordinal,
                         MOST_DEVICES);
    pthread_mutex_lock(&mutex);
    mica_status status = handles[ordinal] ? MICA_OK : LT(create, &handles[ordinal]);
    pthread_mutex_unlock(&mutex);
    MICA_TRY(status);
    MICA_TRY(make_layout(&p->spec.a, p->spec.batches, &p->a));
    MICA_TRY(make_layout(&p->spec.b, p->spec.batches, &p->b));
    MICA_TRY(make_layout(&p->spec.d, p->spec.batches, &p->d));
    MICA_TRY(make_description(p));
    return search(p, handles[ordinal], rank, limit);
}

mica_status mica_cublaslt_create(mica_cuda *cuda, const mica_cublaslt_spec *spec, int rank,
                                 int64_t workspace_limit, mica_cublaslt **product)
{
    bool pushed;
    *product = NULL;
    if (rank >= MOST_RANKS) return mica_fail(MICA_UNSUPPORTED, "rank %d of %d", rank, MOST_RANKS);
    MICA_TRY(mica_cublaslt_load());
    mica_cublaslt *p = mica_alloc(sizeof *p);
    if (!p) return mica_fail(MICA_OUT_OF_MEMORY, "a product of %zu bytes", sizeof *p);
    p->cuda = cuda;
    p->spec = *spec;
    mica_status status = mica_cuda_enter(cuda, &pushed);
    if (status == MICA_OK) {
        status = make(p, rank, workspace_limit);
        mica_cuda_leave(cuda, pushed);
    }
    if (status == MICA_OK)
        *product = p;
    else
        mica_cublaslt_destroy(p);
    return status;
}

void mica_cublaslt_destroy(mica_cublaslt *p)
{
    if (!p) return;
    void *layouts[] = {p->a, p->b, p->d};
    for (int i = 0; i < 3; i++)
        if (layouts[i]) lt.unlayout(layouts[i]);
    if (p->description) lt.undescribe(p->description);
    mica_release(p);
}

size_t mica_cublaslt_workspace(const mica_cublaslt *product)
{
    return product->workspace;
}

/* Pointers are attributes of the description: each run sets them in a copy of its own. */
static mica_status set_pointers(const mica_cublaslt *p, const mica_cublaslt_args *r,
                                description *own)
{
    memcpy(own, p->description, sizeof *own);
    if (p->spec.bias) MICA_TRY(LT(set, own, DESC_BIAS, &r->bias, sizeof r->bias));
    if (p->spec.scale_a) MICA_TRY(LT(set, own, DESC_SCALE_A, &r->scale_a, sizeof r->scale_a));
    if (p->spec.scale_b) MICA_TRY(LT(set, own, DESC_SCALE_B, &r->scale_b, sizeof r->scale_b));
    return MICA_OK;
}

mica_status mica_cublaslt_run(const mica_cublaslt *p, const mica_cublaslt_args *r)
{
    description own;
    bool pushed;
    MICA_TRY(set_pointers(p, r, &own));
    float f32[2] = {(float)r->alpha, (float)r->beta};
    int32_t s32[2] = {(int32_t)r->alpha, (int32_t)r->beta};
    mica_dtype in = p->spec.a.dtype;
    const void *alpha = in == MICA_F64 ? (void *)&r->alpha : in == MICA_S8 ? (void *)s32 : f32;
    const void *beta = in == MICA_F64  ? (void *)&r->beta
                       : in == MICA_S8 ? (void *)(s32 + 1)
                                       : f32 + 1;
    MICA_TRY(mica_cuda_enter(p->cuda, &pushed));
    mica_status status =
        LT(multiply, handles[p->cuda->ordinal], &own, alpha, r->a, p->a, r->b, p->b, beta, r->d,
           p->d, r->d, p->d, &p->algorithm, r->workspace, p->workspace, r->stream);
    mica_cuda_leave(p->cuda, pushed);
    return status;
}
