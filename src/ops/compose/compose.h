/* SPDX-License-Identifier: Apache-2.0
 * Engines that are other operations, one after the other: an engine lists its steps, and gets from
 * that list the workspace, the run and the predicted time. A step is a problem of any operation,
 * with its arguments bound to those of the run or to temporaries; it becomes a child plan.
 *
 *     static void list_steps(const void *desc, mica_compose *c)
 *     {
 *         mica_memory middle = mica_compose_temporary(c, bytes);
 *         mica_compose_step(c, "transform", &t, sizeof t, NULL);
 *         mica_compose_bind(c, MICA_TRANSFORM_X, mica_compose_arg(MICA_X_X));
 *         mica_compose_bind(c, MICA_TRANSFORM_Y, middle);
 *         ...
 *     }
 *
 *     static const mica_engine engine = {.name = "compose", MICA_COMPOSED(list_steps)};
 *
 * An engine whose list may fail, or depends on its config, has a `build` of its own, which ends
 * with mica_compose_build, and mica_compose_run.
 *
 * A step may be run many times, on other parts of its tensors each time:
 *
 *         mica_compose_repeat(c, images);
 *         mica_compose_advance(c, MICA_TRANSFORM_X, bytes_of_an_image);
 *
 * Temporaries and the workspaces of child plans that no step needs at once share memory. What runs
 * out of memory while steps are listed is said by the build. plan->state is taken. */
#ifndef MICA_OPS_COMPOSE_COMPOSE_H
#define MICA_OPS_COMPOSE_COMPOSE_H

#include "ops/op.h"

/* Where an argument of a step lies. */
typedef struct mica_memory {
    int arg;       /* of the run; or -1 */
    int temporary; /* its number */
    int64_t at;    /* bytes from there on */
} mica_memory;

/* Zero it, list steps, and give it to build or predict, which give back what it holds. It may be
 * copied while steps are listed: the copy goes on. */
typedef struct mica_compose {
    struct mica_compose_step *steps;
    struct mica_compose_binding *bindings;
    struct mica_compose_move *moves;
    size_t *temporaries; /* bytes */
    int step_count, binding_count, move_count, temporary_count;
    mica_status status;
} mica_compose;

/* An argument of the run. */
static inline mica_memory mica_compose_arg(int arg)
{
    return (mica_memory){arg, 0, 0};
}
/* Workspace from the first step that binds it to the last; of 256-byte alignment. */
mica_memory mica_compose_temporary(mica_compose *c, size_t bytes);

/* A problem (its descriptor is copied) on the named engine, or NULL for the best. What follows is
 * about the step that was added last. */
void mica_compose_step(mica_compose *c, const char *op, const void *desc, size_t size,
                       const char *engine);
/* Of an argument that is bound twice the last holds. */
void mica_compose_bind(mica_compose *c, int arg, mica_memory memory);
/* Binds the first `count` to the run's of the same numbers: a step of the operation itself. */
void mica_compose_pass(mica_compose *c, int count);
/* It takes the run's scalars that have the names of its own; without this they are their defaults.
 */
void mica_compose_scale(mica_compose *c);
/* All of its runs so far are made `count` times, before the next step begins: loops are said from
 * the innermost out. */
void mica_compose_repeat(mica_compose *c, int64_t count);
/* From one round of the loop that was said last to the next, the argument lies so many bytes
 * further on; where the loop begins again, it does so too. */
void mica_compose_advance(mica_compose *c, int arg, int64_t bytes);
/* Left out of runs whose beta is 0: what reads the old content of a result. */
void mica_compose_if_beta(mica_compose *c);

/* The sum of what the steps are expected to take. */
double mica_compose_predict(mica_compose *c, const mica_device_info *device);
mica_status mica_compose_build(mica_plan *plan, mica_compose *c);
mica_status mica_compose_run(const mica_plan *plan, const mica_run *run);

/* An engine's build and run, and prediction, from the steps that STEPS lists. */
#define MICA_COMPOSED(STEPS)                                                                       \
    .steps = (STEPS), .build = mica_compose_build_steps, .run = mica_compose_run
mica_status mica_compose_build_steps(mica_plan *plan);

#endif
