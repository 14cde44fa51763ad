/* SPDX-License-Identifier: Apache-2.0
 * What a plan holds beside its state: the bound of the plan cache counts it. */
#ifndef MICA_OPS_HOLDS_H
#define MICA_OPS_HOLDS_H

#include "ops/op.h"

/* Called by an engine's build, of memory that its destroy gives back. */
void mica_plan_holds(mica_plan *plan, size_t bytes);

#endif
