/* SPDX-License-Identifier: Apache-2.0
 * Prototypes of the functions of cuDNN 9 that this library serves, from functions.def. */
#ifndef FRONT_CUDNN_ABI_H
#define FRONT_CUDNN_ABI_H

#include "cudnn_types.h"

/* Enumerations of the graph interface are as wide as an unsigned; backend_abi.h has their values.
 */
typedef unsigned cudnnBackendDescriptorType_t;
typedef unsigned cudnnBackendAttributeName_t;
typedef unsigned cudnnBackendAttributeType_t;

#pragma GCC visibility push(default)
#define SERVED(part, result, name, arguments) result name arguments;
#define REFUSED(part, name, words)
#include "functions.def"
#undef SERVED
#undef REFUSED
#pragma GCC visibility pop

#endif
