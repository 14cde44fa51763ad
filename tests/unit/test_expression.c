/* SPDX-License-Identifier: Apache-2.0
 * Expressions: what is refused and where, values worked out by hand, the edges that the table of
 * functions documents on both CPU engines, results that lie on operands, and the gradient of every
 * function against differences of its value. */
#include "line.h"
#include "ops/op.h"
#include "ops/pointwise/expression.h"

/* ---- reading ---- */

static void says_where_and_what(void **state)
{
    (void)state;
    refuses("pointwise expr=x0+ x0=f32:3", "column 4: an operand expected at the end");
    refuses("pointwise expr=(x0 x0=f32:3", "column 4: an operator or ')' expected at the end");
    refuses("pointwise expr=x0) x0=f32:3", "column 3: an operator or ';' expected, found \")\"");
    refuses("pointwise expr=x0*gelo(x0) x0=f32:3",
            "column 4: no function is called \"gelo\"; the nearest is gelu");
    refuses("pointwise expr=_mul32(x0,x0) x0=s32:3", "no function is called");
    refuses("pointwise expr=exp(x0,x0) x0=f32:3", "exp has 1 argument, here is one more");
    refuses("pointwise expr=max(x0) x0=f32:3", "column 7: max has 2 arguments, here are 1");
    refuses("pointwise expr=exp x0=f32:3", "exp is a function, '(' must follow");
    refuses("pointwise expr=x0+y x0=f32:3", "column 4: \"y\" is no operand");
    refuses("pointwise expr=x0+x1 x0=f32:3", "column 4: x1 is not given");
    refuses("pointwise expr=x9 x0=f32:3", "inputs are x0 to x7");
    refuses("pointwise expr=x0;x0;x0;x0;x0 x0=f32:3", "more than 4 results");
    refuses("pointwise expr=x0 x0=f32:3 x1=f32:3", "x1 is given, no result depends on it");
    refuses("pointwise expr=x0 x0=f32:3 y1=f32:3", "y1 is given, expr has 1 result");
    refuses("pointwise expr=x0 x0=s4:4", "x0 is s4; taken are");
    refuses("pointwise expr=x0+i2 x0=f32:3x4", "column 4: i2 is along dimension 2, the results");
    refuses("pointwise expr=x0+i9 x0=f32:3x4", "column 4: i9 is along dimension 9, the results");
    refuses("pointwise x0=f32:3", "expr is needed");
    refuses("pointwise expr=1.5", "without an input, y0 is needed");
}

static void types_are_checked(void **state)
{
    (void)state;
    refuses("pointwise expr=x0&1 x0=f32:3", "column 3: band needs integers, argument 1 is real");
    refuses("pointwise expr=x0+300 x0=u8:3", "add: 300 is no u8");
    refuses("pointwise expr=x0*0.5 x0=s8:3 y0=s8:3",
            "result 0 of expr is real, y0 is s8: write s8(...)");
    refuses("pointwise expr=x0 x0=s32:3 y0=s8:3", "result 0 of expr is s32, y0 is s8");
    refuses("pointwise expr=x0 x0=s64:3 y0=s32:3", "result 0 of expr is s64, y0 is s32");
    refuses("pointwise expr=x0+x1 x0=s32:3 x1=u32:3 y0=s32:3", "result 0 of expr is s64");
    refuses("pointwise expr=i0 x0=f32:3", "x0 is given, no result depends on it");
    refuses("pointwise pass=bwd expr=x0>0 x0=f32:3", "result 0 of expr is bool, it must be real");
    refuses("pointwise pass=bwd expr=digamma(x0) x0=f32:3", "digamma has no derivative");
    refuses("pointwise pass=bwd expr=x0*1.5 x0=s8:3", "no input is of a floating-point type");
    refuses("pointwise pass=bwd expr=x0+x1 x0=f32:4x3 x1=f32:3 dx1=f32:4x3", "dx1 has rank 2");
    refuses("pointwise pass=bwd expr=x0+x1 x0=f32:4x3 x1=f32:4x1 dx1=f32:1x1",
            "dimension 0 of dx1 is 1, of x1 4");
    refuses("pointwise expr=x0+x1 x0=f32:4x3 x1=f32:2x3", "dimension 2 from the last is 2");
}

static void depth_and_size_are_bounded(void **state)
{
    (void)state;
    char line[1024] = "pointwise expr=";
    for (int i = 0; i < 60; i++) strcat(line, "-(");
    strcat(line, "x0 x0=f32:3");
    refuses(line, "more than 40 levels");
    strcpy(line, "pointwise expr=x0");
    for (int i = 2; i < 86; i++) snprintf(line + strlen(line), 16, "*x0+%d", i);
    strcat(line, " x0=f32:3");
    refuses(line, "at most 479 characters");
    strcpy(line, "pointwise pass=bwd expr=");
    for (int i = 0; i < 15; i++) strcat(line, "gelu_tanh(");
    strcat(line, "x0)))))))))))))))");
    refuses(strcat(line, " x0=f32:3"), "more than 192 terms");
}

static void equal_terms_are_one(void **state)
{
    (void)state;
    mica_expr e = {.inputs = {MICA_F32}};
    mica_why why;
    assert_int_equal(mica_expr_parse(&e, "exp(x0)*exp(x0)+exp(x0)", &why), MICA_OK);
    assert_int_equal(e.count, 4); /* x0, exp, their product, the sum */
    assert_int_equal(mica_expr_parse(&e, "x0+(2*3-1)/2", &why), MICA_OK);
    assert_int_equal(e.nodes[e.results[0]].arg[1] >= 0, 1);
    assert_true(e.nodes[e.nodes[e.results[0]].arg[1]].value == 2.5);
}

static void names_are_found_once(void **state)
{
    (void)state;
    for (int i = 0; i < MICA_FUNCTIONS; i++) {
        const mica_function *f = &mica_functions[i];
        const int length = (int)strlen(f->name);
        assert_true(f->arity >= 1 && f->arity <= MICA_FUNCTION_ARGS && *f->doc && length < 24);
        assert_int_equal(mica_function_find(f->name, length),
                         f->kind == MICA_FUNCTION_HIDDEN ? -1 : i);
    }
}

/* ---- values ---- */

typedef struct value {
    const char *expr;
    const char *type;
    double a, b, want;
} value;

static const value values[] = {
    /* precedence and grouping as in C */
    {"1+2*x0-x1", "f32", 3, 4, 3},
    {"-x0*-x1", "f32", 3, 4, 12},
    {"x0-x1-1", "f32", 9, 4, 4},
    {"x0<x1==1", "f32", 3, 4, 1},
    {"x0|x1^x0&x1", "s32", 12, 10, 14},
    {"1<<x0+x1", "s32", 1, 2, 8},
    {"!x0+~x1", "s32", 0, 5, -5},
    {"x0%x1", "f32", -7, 3, 2},
    /* edges of reals */
    {"x0/x1", "f32", 1, 0, INFINITY},
    {"x0/x1", "f64", 0, 0, NAN},
    {"floordiv(x0,x1)", "f32", -7, 2, -4},
    {"fmod(x0,x1)", "f32", -7, 3, -1},
    {"max(x0,x1)", "f32", NAN, 1, NAN},
    {"max(x0,x1)", "f32", 1, NAN, NAN},
    {"min(x0,x1)", "f64", 1, NAN, NAN},
    {"fmax(x0,x1)", "f32", NAN, 1, 1},
    {"fmin(x0,x1)", "f32", 1, NAN, 1},
    {"relu(x0)+0*x1", "f32", NAN, 1, NAN},
    {"clamp(x0,-1,x1)", "f32", NAN, 1, NAN},
    {"clamp(x0,-1,x1)", "f32", INFINITY, 1, 1},
    {"clip(x0,-1,x1)", "f32", NAN, 1, NAN},
    {"clip(x0,2,x1)", "f32", 0, 1, 1},
    {"clip(x0,2,x1)", "s64", 0, 1, 1},
    {"clamp(x0,2,x1)", "f32", 0, 1, 2},
    {"exp(x0)*x1", "f32", INFINITY, 1, INFINITY},
    {"exp(x0)*x1", "f32", -INFINITY, 1, 0},
    {"exp(x0)*x1", "f32", 89, 1, INFINITY},
    {"expm1(x0)*x1", "f32", -INFINITY, 1, -1},
    {"log(x0)*x1", "f32", 0, 1, -INFINITY},
    {"log(x0)*x1", "f32", -1, 1, NAN},
    {"log(x0)*x1", "f32", INFINITY, 1, INFINITY},
    {"log1p(x0)*x1", "f32", -1, 1, -INFINITY},
    {"log1p(x0)*x1", "f32", INFINITY, 1, INFINITY},
    {"xlogy(x0,x1)", "f32", 0, 0, 0},
    {"logaddexp(x0,x1)", "f32", -INFINITY, -INFINITY, -INFINITY},
    {"sign(x0)+0*x1", "f32", NAN, 1, NAN},
    {"round(x0)+0*x1", "f32", 2.5, 1, 2},
    {"round_away(x0)+0*x1", "f32", 2.5, 1, 3},
    {"s8(x0*x1)", "f32", 1000, 1, 127},
    {"s8(x0*x1)", "f32", NAN, 1, 0},
    {"u8(x0*x1)", "f32", -3, 1, 0},
    {"s32(x0*x1)", "f32", -2.9, 1, -2},
    /* integers: wrapping, no quotient by 0, shifts past the width */
    {"x0+x1", "s8", 127, 1, -128},
    {"x0*x1", "u8", 200, 2, 144},
    {"x0*x1", "s32", 2147483647, 2147483647, 1},
    {"x0+x1", "s32", 2147483647, 1, -2147483648.0},
    {"x0*x1", "u32", 4294967295.0, 4294967295.0, 1},
    {"-x0+0*x1", "s8", -128, 1, -128},
    {"abs(x0)+0*x1", "s8", -128, 1, -128},
    {"floordiv(x0,x1)", "s32", 7, 0, 0},
    {"rem(x0,x1)", "s32", 7, 0, 0},
    {"floordiv(x0,x1)", "s32", -7, 2, -4},
    {"rem(x0,x1)", "s32", -7, 2, 1},
    {"fmod(x0,x1)", "s32", -7, 2, -1},
    {"x0<<x1", "s32", 1, 31, -2147483648.0},
    {"x0<<x1", "s32", 1, 32, 0},
    {"x0>>x1", "s32", -8, 1, -4},
    {"x0>>x1", "s32", -8, 40, -1},
    {"x0>>x1", "u32", 8, 40, 0},
    {"gcd(x0,x1)", "s32", -12, 18, 6},
    {"lcm(x0,x1)", "s32", 4, 6, 12},
    {"popcount(x0)+0*x1", "u32", 4294967295.0, 0, 32},
    {"x0/x1", "s32", 1, 4, 0.25},
    {"s8(x0)+s8(x1)", "s32", 300, 1, 45},
    /* s64; that all 64 bits are right is test_expression_judges' */
    {"s64(x0*x1)", "f64", 1e30, 1, 9223372036854775808.0},
    {"s64(x0*x1)", "f64", -1e30, 1, -9223372036854775808.0},
    {"s64(x0*x1)", "f64", NAN, 1, 0},
    {"s64(x0*x1)", "f64", -2.9, 1, -2},
    {"s64(x0*x1)", "f32", -INFINITY, 1, -9223372036854775808.0},
    {"s64(x0)*x1", "s32", 2147483647, 2147483647, 4611686014132420609.0},
    {"x0*4294967296+x1", "s32", 3, 1, 12884901889.0},
    {"(x0+0*i0)-x1", "u32", 1, 3, -2},
    {"floordiv(x0,x1)", "s64", 7, 0, 0},
    {"rem(x0,x1)", "s64", -7, 2, 1},
    {"x0>>x1", "s64", -8, 64, -1},
    {"x0<<x1", "s64", 1, 63, -9223372036854775808.0},
    {"100000*100000+x0*x1", "s8", 0, 0, 10000000000.0},
    {"isinf(x0)+2*signbit(x0)+0*x1", "s64", -5, 0, 2},
    {"where(x0,x1,0)", "s64", 4294967296.0, 5, 5},
    {"!x0+2*(x0&&x1)+4*bool(x0)", "s64", 4294967296.0, 1, 6},
};

static void values_are_as_documented(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        for (int e = 0; e < 2; e++) {
            char line[256];
            const value *v = &values[i];
            double a[3] = {v->a, v->a, v->a}, b[3] = {v->b, v->b, v->b}, y[3];
            double *args[MICA_MAX_ARGS] = {a, b};
            args[8] = y;
            snprintf(line, sizeof line, "pointwise expr=%s x0=%s:3 x1=%s:3 y0=%s:3", v->expr,
                     v->type, v->type, strcmp(v->type, "f32") ? "f64" : "f32");
            run_ok(engines[e], line, args);
            for (int k = 0; k < 3; k++)
                if (isnan(v->want) ? !isnan(y[k]) : y[k] != v->want)
                    fail_msg("%s, %s of %g and %g: %g, not %g", engines[e], line, v->a, v->b, y[k],
                             v->want);
        }
}

/* y1 lies on x1, which y2 still wants as it was. */
static void results_may_lie_on_operands(void **state)
{
    (void)state;
    enum { N = 1500 };
    static double a[N], b[N], sum[N], kept[N], other[N];
    const int onto[] = {9, 1};
    wave(a, N, 0);
    wave(b, N, 1);
    for (int e = 0; e < 2; e++) {
        double *args[MICA_MAX_ARGS] = {a, b, [8] = other, [9] = sum, [10] = kept};
        assert_int_equal(line_run(engines[e],
                                  "pointwise expr=exp(x0);x1+x0;x1 x0=f64:1500 x1=f64:1500", args,
                                  onto),
                         MICA_OK);
        for (int i = 0; i < N; i++) {
            assert_true(kept[i] == b[i]);
            assert_true(fabs(other[i] - exp(a[i])) < 1e-14 * exp(a[i]));
        }
    }
}

/* ---- gradients ---- */

/* Where the function is smooth and its arguments legal, by name; elsewhere 0.4, 0.7, 0.3. */
static const struct {
    const char *name;
    double at[3];
} places[] = {{"acosh", {1.7}},
              {"asech", {0.6}},
              {"acoth", {1.8}},
              {"log1mexp", {-0.4}},
              {"lgamma", {2.3}},
              {"gamma", {2.3}},
              {"where", {1, 0.7, 0.3}},
              {"clamp", {0.4, 0.1, 0.9}},
              {"clip", {0.4, 0.1, 0.9}},
              {"hard_shrink", {0.9, 0.5}},
              {"soft_shrink", {0.9, 0.5}},
              {"pow", {1.4, 0.7}}};

static double gradient(const char *line, double *const x, double *const *dx, int arity)
{
    double one = 1, *args[MICA_MAX_ARGS] = {0};
    for (int i = 0; i < arity; i++) {
        args[i] = &x[i];
        args[16 + i] = dx[i];
    }
    args[12] = &one;
    run_ok("ref", line, args);
    return one;
}

static double plain_value(int function, const double *x)
{
    mica_expr_program p = {.expr = {.inputs = {MICA_F64, MICA_F64, MICA_F64}}, .f64 = true};
    const mica_function *f = &mica_functions[function];
    char text[64];
    mica_why why;
    double v[MICA_POINTWISE_OPERANDS] = {x[0], x[1], x[2]}, mag[MICA_POINTWISE_OPERANDS];
    snprintf(text, sizeof text, "%s(%s)", f->name,
             f->arity == 1   ? "x0"
             : f->arity == 2 ? "x0,x1"
                             : "x0,x1,x2");
    assert_int_equal(mica_expr_parse(&p.expr, text, &why), MICA_OK);
    for (int i = 0; i < MICA_POINTWISE_OPERANDS; i++) p.operand[i] = i;
    p.result_operand[0] = 3;
    mica_expr_truth(&p, NULL, v, mag);
    return v[3];
}

static bool has_gradient(const mica_function *f)
{
    static const mica_function_kind none[] = {MICA_FUNCTION_HIDDEN, MICA_FUNCTION_BITS,
                                              MICA_FUNCTION_TEST,   MICA_FUNCTION_LOGIC,
                                              MICA_FUNCTION_CLASS,  MICA_FUNCTION_WHOLE};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        if (f->kind == none[i]) return false;
    if (f->kind == MICA_FUNCTION_CAST) return false; /* rounding has no slope of its own */
    return f->kind == MICA_FUNCTION_FORMULA || *f->derivative[0];
}

static void check_gradient(int function, int *checked)
{
    const mica_function *f = &mica_functions[function];
    double x[3] = {0.4, 0.7, 0.3}, got[3], *dx[] = {got, got + 1, got + 2};
    char line[256];
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (!strcmp(places[i].name, f->name)) memcpy(x, places[i].at, sizeof x);
    snprintf(line, sizeof line, "pointwise pass=bwd expr=%s(%s) x0=f64:1%s%s", f->name,
             f->arity == 1   ? "x0"
             : f->arity == 2 ? "x0,x1"
                             : "x0,x1,x2",
             f->arity > 1 ? " x1=f64:1" : "", f->arity > 2 ? " x2=f64:1" : "");
    (void)gradient(line, x, dx, f->arity);
    for (int i = 0; i < f->arity; i++) {
        double left[3], right[3], wide_left[3], wide_right[3];
        const double h = 1e-4;
        memcpy(left, x, sizeof x), memcpy(right, x, sizeof x);
        memcpy(wide_left, x, sizeof x), memcpy(wide_right, x, sizeof x);
        left[i] -= h, right[i] += h, wide_left[i] -= 2 * h, wide_right[i] += 2 * h;
        const double near = (plain_value(function, right) - plain_value(function, left)) / (2 * h);
        const double far =
            (plain_value(function, wide_right) - plain_value(function, wide_left)) / (4 * h);
        const double want = (4 * near - far) / 3;
        if (!(fabs(got[i] - want) <= 1e-9 * (1 + fabs(want))))
            fail_msg("%s: gradient %d is %.12g, differences give %.12g", f->name, i, got[i], want);
        ++*checked;
    }
}

static void gradients_are_slopes(void **state)
{
    (void)state;
    int checked = 0;
    for (int i = 0; i < MICA_FUNCTIONS; i++)
        if (has_gradient(&mica_functions[i])) check_gradient(i, &checked);
    print_message("%d gradients of %d functions\n", checked, (int)MICA_FUNCTIONS);
    assert_true(checked > 120);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(says_where_and_what),         cmocka_unit_test(types_are_checked),
        cmocka_unit_test(depth_and_size_are_bounded),  cmocka_unit_test(equal_terms_are_one),
        cmocka_unit_test(names_are_found_once),        cmocka_unit_test(values_are_as_documented),
        cmocka_unit_test(results_may_lie_on_operands), cmocka_unit_test(gradients_are_slopes),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
