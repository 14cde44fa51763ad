/* SPDX-License-Identifier: Apache-2.0
 * What tests of plans on the CPU begin with: a context, and a line's plan. */
#ifndef MICA_TESTS_PLAN_H
#define MICA_TESTS_PLAN_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "mica/mica.h"

#include <string.h>

static mica_context *ctx;

static inline int open_context(void **state)
{
    (void)state;
    return mica_context_create("cpu", &ctx) != MICA_OK;
}

static inline int close_context(void **state)
{
    (void)state;
    mica_context_destroy(ctx);
    return 0;
}

static inline mica_plan *plan_of(const char *line)
{
    mica_plan *plan;
    if (mica_plan_from_text(ctx, line, NULL, &plan) != MICA_OK) fail_msg("%s", mica_error());
    return plan;
}

#endif
