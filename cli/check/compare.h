/* SPDX-License-Identifier: Apache-2.0
 * Element-by-element comparison of a result with the reference.
 *
 * An element y passes against the reference R with magnitude sum S if
 *     |y - R| <= u |R| + (1 + u) E + tiny,    E = phi S + floor
 * where u and tiny are the unit roundoff and the smallest subnormal of the output type, phi comes
 * from the numeric contract of the engine and floor is what gradual underflow may cost. Integer
 * outputs must be a correct rounding of some value within E of R. Where every result is exact, the
 * tolerance is zero: y must be R as the output type rounds it. NaN and infinities must agree in
 * position and sign. Near the largest finite value y is infinite only if the type rounds some value
 * within E of R to infinity, and it is if the type does so with all of them; and a type that
 * saturates may. */
#ifndef MICA_CLI_CHECK_COMPARE_H
#define MICA_CLI_CHECK_COMPARE_H

#include "cli.h"

typedef struct cli_tolerance {
    double phi;
    double floor; /* error of intermediates that underflow in the accumulator's type */
    bool exact;
    double least; /* S of every element at least: results have errors of each other's terms */
    bool hides;   /* anything may stand for NaN */
    double most;  /* not 0: past a quarter of it, which S says, results may be infinite or NaN */
} cli_tolerance;

enum { CLI_SHOWN = 4 };

typedef struct cli_comparison {
    int64_t count, wrong;
    double margin; /* largest |y - R| over its tolerance; infinite if a NaN or sign disagrees */
    int shown;
    struct {
        int64_t index;
        double got, want, tolerance;
    } first[CLI_SHOWN]; /* the first wrong elements */
} cli_comparison;

/* Unit roundoff and smallest subnormal; zero for integers. */
double cli_unit(mica_dtype dtype);
double cli_tiny(mica_dtype dtype);
/* A value as the type stores it. */
double cli_quantize(mica_dtype dtype, double value);
/* E of one element. */
double cli_element_error(cli_tolerance tolerance, double magnitude);
/* What |y - R| may be for one element. */
double cli_element_tolerance(mica_dtype dtype, cli_tolerance tolerance, double want,
                             double magnitude);
/* Whether one element passes; *margin receives |y - R| over its tolerance. */
bool cli_element_passes(mica_dtype dtype, cli_tolerance tolerance, double got, double want,
                        double magnitude, double *margin);
/* All arrays packed in logical order. */
void cli_compare(mica_dtype dtype, cli_tolerance tolerance, int64_t count, const double *got,
                 const double *want, const double *magnitudes, cli_comparison *result);

/* Could the comparison have failed at all? Empty text: yes. Else why the test says little: the
 * tolerance is not below a quarter of the median |R|, nearly all R are zero though terms entered
 * them, or no term entered any. Outputs of at most one element are exempt. */
void cli_trust(mica_dtype dtype, cli_tolerance tolerance, int64_t count, const double *want,
               const double *magnitudes, char *text, size_t size);

#endif
