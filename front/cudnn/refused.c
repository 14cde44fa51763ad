/* SPDX-License-Identifier: Apache-2.0
 * The functions of functions.def that are refused. Loaders resolve every function when they load a
 * client, so all are there; whoever calls one reads its name and the rule. They are weak: a body
 * elsewhere in this folder takes the place of its row here. */
#include "front.h"

static cudnnStatus_t refuse(front_call call, const char *words)
{
    front_enter(call);
    return front_fail(CUDNN_STATUS_NOT_SUPPORTED, "%s", words);
}

#define SERVED(part, result, name, arguments)
#define REFUSED(part, name, words)                                                                 \
    __attribute__((visibility("default"), weak)) cudnnStatus_t name(void);                         \
    cudnnStatus_t name(void)                                                                       \
    {                                                                                              \
        return refuse(CALL_##name, words);                                                         \
    }
#include "functions.def"
