/* SPDX-License-Identifier: Apache-2.0
 * The floating-point environment. A host may flush subnormal numbers, round another way or have
 * traps on; what mica computes does not depend on it, and it finds its own as it left it. */
#ifndef MICA_CPU_FLOATING_H
#define MICA_CPU_FLOATING_H

#include <fenv.h>
#include <stdbool.h>
#include <stdint.h>

/* Round to nearest, subnormal numbers are kept, nothing traps. */
#if defined(__x86_64__)
#define MICA_FLOATING_DEFAULT 0x1f80u
#define MICA_FLOATING_CONTROL 0xffc0u /* without the flags of what happened */
typedef uint32_t mica_floating_state;
#else
typedef fenv_t mica_floating_state;
#endif

typedef struct mica_floating {
    mica_floating_state before;
    bool team; /* those that this thread runs parallel loops with were set, too */
} mica_floating;
#define MICA_FLOATING_SCOPE __attribute__((unused, cleanup(mica_floating_end)))

/* For the calling thread; team: and for those of its parallel loops, as a run needs it. Some
 * nanoseconds where the state is the default; where it is not, two parallel regions. */
mica_floating mica_floating_begin(bool team);
void mica_floating_end(mica_floating *scope);

/* Of the calling thread alone: whether its state is another one. */
bool mica_floating_is_odd(void);
/* What the threads of the calling thread's team were found to have: asked once, when they are first
 * used (mica_scratch_prepare). */
void mica_floating_team(bool odd);

#endif
