/* SPDX-License-Identifier: Apache-2.0
 * placeholder */
#include "ops/norm/norm.h"
static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    (void)desc, (void)device;
    return mica_refuse(why, "not yet");
}
const mica_engine mica_norm_cuda = {.name = "cuda", .cuda = true, .accepts = accepts};
