/* SPDX-License-Identifier: Apache-2.0
 * Order statistics and the comparison of two samples. */
#include "bench/stats.h"
#include "cli.h"

#include <math.h>
#include <stdlib.h>

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void cli_sort(double *values, size_t n)
{
    qsort(values, n, sizeof *values, ascending);
}

double cli_quantile(const double *v, size_t n, double q)
{
    if (n == 0) return NAN;
    double at = q * (double)(n - 1);
    size_t i = (size_t)at;
    if (i + 1 >= n) return v[n - 1];
    return v[i] + (at - (double)i) * (v[i + 1] - v[i]);
}

double cli_median(double *values, size_t n)
{
    cli_sort(values, n);
    return cli_quantile(values, n, 0.5);
}

typedef struct ranked {
    double value;
    bool from_a;
} ranked;

static int by_value(const void *a, const void *b)
{
    return ascending(&((const ranked *)a)->value, &((const ranked *)b)->value);
}

double cli_mann_whitney(const double *a, size_t na, const double *b, size_t nb)
{
    size_t n = na + nb;
    if (na == 0 || nb == 0) return 1;
    ranked *all = cli_alloc(n * sizeof *all);
    for (size_t i = 0; i < n; i++) all[i] = (ranked){i < na ? a[i] : b[i - na], i < na};
    qsort(all, n, sizeof *all, by_value);
    double rank_sum = 0, ties = 0;
    for (size_t i = 0, j; i < n; i = j) {
        for (j = i; j < n && all[j].value == all[i].value;) j++;
        double rank = (double)(i + j + 1) / 2, t = (double)(j - i);
        ties += t * t * t - t;
        for (size_t k = i; k < j; k++)
            if (all[k].from_a) rank_sum += rank;
    }
    free(all);
    double x = (double)na, y = (double)nb, m = (double)n;
    double u = rank_sum - x * (x + 1) / 2, mean = x * y / 2;
    double variance = x * y / 12 * (m + 1 - ties / (m * (m - 1)));
    double distance = fabs(u - mean) - 0.5;
    if (!(variance > 0) || distance <= 0) return 1;
    return erfc(distance / sqrt(2 * variance));
}
