/* SPDX-License-Identifier: Apache-2.0
 * Whether a time on the CPU is worth something: with another program on its cores a run takes
 * multiples of a scheduler's slice, 4 ms, whatever it does. */
#ifndef MICA_CLI_BENCH_WAITING_H
#define MICA_CLI_BENCH_WAITING_H

#include <stdbool.h>

/* Milliseconds that this process's threads have been ready to run and had no core, all of them
 * together, since they began; 0 where the kernel does not tell. */
double cli_waited_ms(void);
/* Whether a run of that length, during which that much was waited, was disturbed. */
bool cli_disturbed(double ms, double waited_ms);

#endif
