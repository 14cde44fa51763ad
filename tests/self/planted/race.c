/* SPDX-License-Identifier: Apache-2.0
 * race [planted]: parallel loops that OpenMP's barriers order; with an argument also two threads
 * that nothing orders. ThreadSanitizer, as the tests set it up, is silent about the first and not
 * about the second; otherwise its silence elsewhere means nothing. */
#include <pthread.h>
#include <stdio.h>

static double values[100000];
static int counter;

static double fill_and_sum(void)
{
    const int n = sizeof values / sizeof *values;
    double sum = 0;
#pragma omp parallel for
    for (int i = 0; i < n; i++) values[i] = i;
#pragma omp parallel for reduction(+ : sum)
    for (int i = 0; i < n; i++) sum += values[n - 1 - i];
    return sum;
}

static void *count(void *unused)
{
    counter++;
    return unused;
}

int main(int argc, char **argv)
{
    (void)argv;
    double sum = 0;
    for (int i = 0; i < 20; i++) sum += fill_and_sum();
    if (argc > 1) {
        pthread_t a, b;
        if (pthread_create(&a, NULL, count, NULL) || pthread_create(&b, NULL, count, NULL))
            return 2;
        pthread_join(a, NULL);
        pthread_join(b, NULL);
    }
    printf("sum %g, counter %d\n", sum, counter);
    return 0;
}
