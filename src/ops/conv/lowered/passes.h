/* SPDX-License-Identifier: Apache-2.0
 * A convolution by another engine and the passes behind it: the parts that both backends share. */
#ifndef MICA_OPS_CONV_LOWERED_PASSES_H
#define MICA_OPS_CONV_LOWERED_PASSES_H

#include "ops/conv/conv.h"
#include "ops/conv/lowered/passes_args.h"
#include "ops/access/layout.h"

/* The config's number is the index of an engine in the backend's NULL-terminated list. */
extern const char *const conv_passes_knobs[];

typedef struct conv_passes {
    mica_plan *child; /* NULL: y is empty */
    size_t child_at, sums_at;
    bool finish, stats;
    mica_dtype sums;    /* their type in the workspace */
    mica_layout layout; /* of the tensors of passes_args.h */
} conv_passes;

mica_status conv_passes_accepts(const mica_engine *const *engines, const mica_conv_desc *d,
                                const mica_device_info *device, mica_why *why);
int conv_passes_configs(const mica_engine *const *engines, const mica_conv_desc *d,
                        const mica_device_info *device, mica_config *configs);
/* The convolution at the speed of its roofline, and the passes. */
double conv_passes_predict(const mica_engine *const *engines, const mica_conv_desc *d,
                           const mica_device_info *device, const mica_config *config);
void conv_passes_contract(const mica_engine *const *engines, const mica_conv_desc *d,
                          const mica_config *config, mica_contract *contract);
mica_status conv_passes_build(mica_plan *plan, const mica_engine *const *engines, conv_passes *p);
/* The convolution itself, into y or the workspace. */
mica_status conv_passes_run(const conv_passes *p, const mica_run *run);
/* One channel of y. */
mica_tensor conv_passes_channel(const mica_conv_desc *d);

#endif
