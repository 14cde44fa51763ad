/* SPDX-License-Identifier: Apache-2.0
 * What the engine of nms on the CPU gives its loops. */
#ifndef MICA_OPS_NMS_CPU_H
#define MICA_OPS_NMS_CPU_H

#include "ops/nms/nms.h"

/* What a list needs while it is worked on, of n boxes; real: bytes of a number. */
size_t mica_nms_room(int64_t n, size_t real);
/* Indices of the boxes that a list has selected, and how many; by what IoUs are formed in. */
int64_t mica_nms_list_f32(const mica_nms_desc *d, const mica_nms_args *a, int64_t list, void *room,
                          int32_t *kept);
int64_t mica_nms_list_f64(const mica_nms_desc *d, const mica_nms_args *a, int64_t list, void *room,
                          int32_t *kept);

#endif
