/* SPDX-License-Identifier: Apache-2.0
 * One line per event, to the callback of mica_log_set or to where MICA_LOG says. */
#ifndef MICA_BASE_LOG_H
#define MICA_BASE_LOG_H

#include "mica/plan.h"

/* True when a line of that level would go anywhere: ask before composing an expensive one. */
bool mica_log_wants(mica_log_level level);
void mica_log(mica_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Seconds on the monotonic clock. */
double mica_seconds(void);

#endif
