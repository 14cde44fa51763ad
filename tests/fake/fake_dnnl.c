/* SPDX-License-Identifier: Apache-2.0
 * Libraries that are called oneDNN and cannot be used: of a version (FAKE_MAJOR) and a run time
 * (FAKE_RUNTIME), with no more than those to ask for, and with FAKE_OPENMP the entry by which the
 * OpenMP of LLVM and Intel is known. */

#define EXPORT __attribute__((visibility("default")))

typedef struct version {
    int major, minor, patch;
    const char *hash;
    unsigned cpu_runtime, gpu_runtime;
} version;

EXPORT const version *dnnl_version(void);
const version *dnnl_version(void)
{
    static const version v = {FAKE_MAJOR, 1, 4, "a fake", FAKE_RUNTIME, 0};
    return &v;
}

#ifdef FAKE_OPENMP
EXPORT void __kmpc_fork_call(void);
void __kmpc_fork_call(void) {}
#endif
