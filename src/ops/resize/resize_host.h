/* SPDX-License-Identifier: Apache-2.0
 * Coordinates and weights on the host: resize_body.h in C. */
#include <math.h>

#define RESIZE __attribute__((unused)) static inline
typedef double weight_t;

#include "ops/resize/resize_body.h"
