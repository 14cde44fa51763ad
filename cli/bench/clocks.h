/* SPDX-License-Identifier: Apache-2.0
 * The clock of a GPU's multiprocessors as its management library (NVML) reports it: a time means
 * little without it. */
#ifndef MICA_CLI_BENCH_CLOCKS_H
#define MICA_CLI_BENCH_CLOCKS_H

#include "mica/mica.h"

typedef struct cli_clocks cli_clocks;
/* NULL where there is no GPU or no NVML; nothing is said then. */
cli_clocks *cli_clocks_open(const mica_device_info *device);
void cli_clocks_close(cli_clocks *clocks);
/* MHz; 0 where that is not known, clocks NULL included. */
int cli_clocks_sm(const cli_clocks *clocks);

#endif
