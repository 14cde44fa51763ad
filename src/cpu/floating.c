/* SPDX-License-Identifier: Apache-2.0
 * The floating-point environment of the calling thread and of its team. */
#include "cpu/floating.h"
#include "cpu/cpu.h"

static _Thread_local bool team_is_odd; /* OpenMP's threads inherit what their creator had */
static _Thread_local struct {
    mica_floating_state before;
    bool set;
} member;

#if defined(__x86_64__)
static inline mica_floating_state get(void)
{
    return __builtin_ia32_stmxcsr();
}

static inline void put(const mica_floating_state *s)
{
    __builtin_ia32_ldmxcsr(*s);
}

static inline bool is_odd(const mica_floating_state *s)
{
    return (*s & MICA_FLOATING_CONTROL) != MICA_FLOATING_DEFAULT;
}

static inline void put_default(void)
{
    __builtin_ia32_ldmxcsr(MICA_FLOATING_DEFAULT);
}

static inline bool differs(const mica_floating_state *s)
{
    return __builtin_ia32_stmxcsr() != *s;
}
#else
static inline mica_floating_state get(void)
{
    mica_floating_state s;
    fegetenv(&s);
    return s;
}

static inline void put(const mica_floating_state *s)
{
    fesetenv(s);
}

static inline bool is_odd(const mica_floating_state *s)
{
    (void)s; /* its bits are the C library's: set without asking */
    return fegetround() != FE_TONEAREST;
}

static inline void put_default(void)
{
    fesetenv(FE_DFL_ENV);
}

static inline bool differs(const mica_floating_state *s)
{
    (void)s;
    return true;
}
#endif

bool mica_floating_is_odd(void)
{
    mica_floating_state s = get();
    return is_odd(&s);
}

void mica_floating_team(bool odd)
{
    team_is_odd = odd;
}

/* Regions of the same size get the same threads; one that came since finds `set` false. */
static void set_team(void)
{
#pragma omp parallel num_threads(mica_cpu_threads())
    {
        member.before = get();
        member.set = true;
        put_default();
    }
}

static void restore_team(void)
{
#pragma omp parallel num_threads(mica_cpu_threads())
    {
        if (member.set) put(&member.before);
        member.set = false;
    }
}

mica_floating mica_floating_begin(bool team)
{
    mica_floating f = {.before = get()};
    bool odd = is_odd(&f.before);
#if defined(__x86_64__)
    if (!odd && !(team && team_is_odd)) return f;
#endif
    put_default();
    f.team = team && (odd || team_is_odd);
    if (f.team) set_team();
    return f;
}

void mica_floating_end(mica_floating *f)
{
    if (f->team) restore_team();
    if (differs(&f->before)) put(&f->before);
}
