/* SPDX-License-Identifier: Apache-2.0
 * Plans for any extents, as saved.c sees them. */
#ifndef MICA_GRAPH_DYNAMIC_H
#define MICA_GRAPH_DYNAMIC_H

#include "graph/saved.h"

/* Without buckets; a copy of the graph. */
mica_status graph_dynamic_begin(mica_context *context, const mica_graph *graph,
                                const mica_graph_dynamic_options *options,
                                mica_graph_dynamic **dynamic);
/* A bucket that ends there, of those decisions; NOT_FOUND: they do not hold. */
mica_status graph_dynamic_restore(mica_graph_dynamic *dynamic, const int64_t *ends,
                                  const graph_decisions *decisions);
const mica_graph *graph_dynamic_graph(const mica_graph_dynamic *dynamic, mica_graph_mode *mode,
                                      mica_device_info *device);
/* Bucket `index`, for mica_graph_plan_destroy; NULL past the last. */
mica_graph_plan *graph_dynamic_bucket(mica_graph_dynamic *dynamic, int index, int64_t *ends);

#endif
