/* SPDX-License-Identifier: Apache-2.0
 * Order statistics and the comparison of two samples. */
#ifndef MICA_CLI_BENCH_STATS_H
#define MICA_CLI_BENCH_STATS_H

#include <stddef.h>

/* Sorts ascending. */
void cli_sort(double *values, size_t n);
/* Quantile q in [0, 1] of sorted values, linear between neighbours; NaN for n = 0. */
double cli_quantile(const double *sorted, size_t n, double q);
/* Sorts, then takes the middle. */
double cli_median(double *values, size_t n);
/* Two-sided p value of the Mann-Whitney U test (Mann and Whitney 1947), by the normal
 * approximation with ties and continuity corrected; 1 if a sample is empty. */
double cli_mann_whitney(const double *a, size_t na, const double *b, size_t nb);

#endif
