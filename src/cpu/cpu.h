/* SPDX-License-Identifier: Apache-2.0
 * The CPU as a device: threads, caches, rates. Knows no operation. */
#ifndef MICA_CPU_CPU_H
#define MICA_CPU_CPU_H

#include "mica/plan.h"

void mica_cpu_device_info(mica_device_info *info);
/* Threads a run may use: MICA_THREADS or OpenMP's number; 1 in a forked child, whose parent's pool
 * does not exist there. */
int mica_cpu_threads(void);
/* Threads worth waking for that many bytes of traffic, use as num_threads() of a parallel region:
 * now, in a run, fewer while CPUs are contended (contention.h), so results must not depend on it;
 * and when a plan is built, which does not change with that. */
int mica_cpu_threads_for(double bytes);
int mica_cpu_threads_planned(double bytes);

/* Put before a hot loop: the compiler emits it for each level and picks at load time. Not with
 * musl, whose loader knows no such choice: there -march says what the machine has.
 * MICA_MEMORY_CLONES: one that memory limits, which vectors of 32 bytes keep as busy. */
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__) &&       \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define MICA_CLONES        __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#define MICA_NARROW_CLONES __attribute__((target_clones("default", "arch=x86-64-v3")))
#define MICA_MEMORY_CLONES MICA_NARROW_CLONES
enum { MICA_NARROW = 32 };
#else
#define MICA_CLONES
#define MICA_NARROW_CLONES
#define MICA_MEMORY_CLONES
enum { MICA_NARROW = 16 };
#endif

/* gcc keeps a vector that is wider than the machine's in memory, sums that should stay in registers
 * included. Loops of such sums are written for two widths: of 64 bytes (MICA_WIDE), called only
 * where mica_cpu_is_wide(), and of MICA_NARROW bytes (MICA_NARROW_CLONES). */
#if defined(__x86_64__)
#define MICA_WIDE __attribute__((target("avx512f")))
#else
#define MICA_WIDE
#endif
bool mica_cpu_is_wide(void);

/* Put before a loop whose iterations do not depend on each other, although the compiler cannot see
 * it: pointers may be equal, as results that lie on operands are. */
#ifdef __clang__
#define MICA_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define MICA_INDEPENDENT _Pragma("GCC ivdep")
#else
#define MICA_INDEPENDENT
#endif

/* Put before arrays that vector loops write: a vector of 64 bytes across two cache lines is stored
 * several times slower than one within a line. */
#define MICA_ALIGNED _Alignas(64)

/* Lanes of two vectors, those of the second counted after those of the first. */
#ifdef __clang__
#define MICA_SHUFFLE(type, a, b, ...) __builtin_shufflevector((type)(a), (type)(b), __VA_ARGS__)
#else
#define MICA_SHUFFLE(type, a, b, ...) __builtin_shuffle((type)(a), (type)(b), (type){__VA_ARGS__})
#endif

#endif
