/* SPDX-License-Identifier: Apache-2.0
 * The environment: the only list of the variables mica reads, and the only reader. Values are taken
 * once; under AT_SECURE none is. */
#ifndef MICA_BASE_ENV_H
#define MICA_BASE_ENV_H

#include <stdbool.h>
#include <stdint.h>

/* X(NAME, what it does); the variable is MICA_<NAME>. */
#define MICA_ENVIRONMENT(X)                                                                        \
    X(LOG, "error, warn, info or debug: lines up to that level go to MICA_LOG_FILE")               \
    X(LOG_FILE, "path of the log; %p is the process id; default stderr")                           \
    X(DEVICE, "what \"auto\" means: cpu, cuda:0, sm_90a, ...")                                     \
    X(THREADS, "threads of the CPU backend; default: OpenMP's, but no more than CPUs it may use")  \
    X(WAIT, "spin or sleep: how threads wait; default: sleep while others want their CPUs")        \
    X(VECTORS, "narrow: no vectors of 64 bytes in loops that are there for two widths; for tests") \
    X(CACHE_DIR, "directory of the kernel cache; default $XDG_CACHE_HOME/mica or ~/.cache/mica")   \
    X(CACHE_BYTES, "bound of the kernel cache in bytes, or 100M; default 1G; 0: no disk cache")    \
    X(RECORDS, "file of tuning records to load, and the place of mica tune's results")             \
    X(KERNEL_DIR, "read kernel sources from this src directory instead of the built-in copies")    \
    X(ONEDNN, "absolute path of libdnnl.so.3 or libdnnl.so.2; none: do without oneDNN")            \
    X(CUDA_DRIVER, "absolute path of libcuda.so.1")                                                \
    X(NVRTC, "absolute path of libnvrtc.so")                                                       \
    X(CUBLASLT, "absolute path of libcublasLt.so, a peer engine of gemm")                          \
    X(CUDNN, "absolute path of libcudnn.so.9, a peer engine of conv")                              \
    X(SYNC, "1: wait after every launch and name the plan in errors (slow; for debugging)")

/* X(NAME, what it is read for): those of others that say where things are. */
#define MICA_ENVIRONMENT_PLACES(X)                                                                 \
    X(HOME, "~/.cache/mica is the kernel cache, ~/.local has what pip installed for the user")     \
    X(XDG_CACHE_HOME, "instead of ~/.cache")                                                       \
    X(CUDA_HOME, "a CUDA toolkit, for NVRTC")                                                      \
    X(CUDA_PATH, "likewise")                                                                       \
    X(VIRTUAL_ENV, "Python packages, for NVRTC")                                                   \
    X(CONDA_PREFIX, "likewise, and conda's libraries")                                             \
    X(PATH, "the first python3 in it has packages, for NVRTC; no python is run")

typedef enum mica_env_place_name {
#define MICA_X(name, doc) MICA_ENV_PLACE_##name,
    MICA_ENVIRONMENT_PLACES(MICA_X)
#undef MICA_X
        MICA_ENV_PLACE_COUNT
} mica_env_place_name;

typedef enum mica_env_name {
#define MICA_X(name, doc) MICA_ENV_##name,
    MICA_ENVIRONMENT(MICA_X)
#undef MICA_X
        MICA_ENV_COUNT
} mica_env_name;

/* The value, or NULL. The text lives as long as the process. */
const char *mica_env(mica_env_name name);
/* The number that it says, or the other one if it is unset or breaks its rule (which is reported:
 * mica_env_problem). */
int64_t mica_env_number(mica_env_name name, int64_t otherwise);
/* The same for variables of others. */
const char *mica_env_place(mica_env_place_name name);
/* Variables of others that decide what is loaded into a CUDA process, for mica info; value NULL:
 * unset. False past the last. */
bool mica_env_foreign(int index, const char **name, const char **value);

#endif
