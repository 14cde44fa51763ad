/* SPDX-License-Identifier: Apache-2.0
 * Reading expressions: characters to typed nodes. */
#include "ops/pointwise/expression.h"
#include "ops/pointwise/expression_build.h"
#include "base/format.h"

#include <math.h>
#include <string.h>

static mica_status expected(mica_expr_reader *r, const char *what)
{
    if (*r->at) return mica_expr_fail(r, "%s expected, found \"%.12s\"", what, r->at);
    return mica_expr_fail(r, "%s expected at the end", what);
}

/* ---- operators ---- */

typedef struct operation {
    const char *text;
    int level; /* higher ones bind closer */
    mica_function_id function;
} operation;

/* Longer texts before those that they begin with. */
static const operation binary[] = {
    {"||", 1, MICA_FN_lor}, {"&&", 2, MICA_FN_land}, {"|", 3, MICA_FN_bor}, {"^", 4, MICA_FN_bxor},
    {"&", 5, MICA_FN_band}, {"==", 6, MICA_FN_eq},   {"!=", 6, MICA_FN_ne}, {"<<", 8, MICA_FN_shl},
    {">>", 8, MICA_FN_shr}, {"<=", 7, MICA_FN_le},   {">=", 7, MICA_FN_ge}, {"<", 7, MICA_FN_lt},
    {">", 7, MICA_FN_gt},   {"+", 9, MICA_FN_add},   {"-", 9, MICA_FN_sub}, {"*", 10, MICA_FN_mul},
    {"/", 10, MICA_FN_div}, {"%", 10, MICA_FN_rem},
};
static const operation unary[] = {
    {"-", 11, MICA_FN_neg}, {"!", 11, MICA_FN_lnot}, {"~", 11, MICA_FN_bnot}};

static const operation *find_operation(const operation *list, size_t count, const char *at)
{
    for (size_t i = 0; i < count; i++)
        if (*list[i].text == *at && !strncmp(list[i].text, at, strlen(list[i].text)))
            return &list[i];
    return NULL;
}

/* ---- operands ---- */

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || c == '_';
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static mica_status read_expression(mica_expr_reader *r, int level, int *node);

static mica_status read_number(mica_expr_reader *r, int *node)
{
    char *end;
    const double value = mica_read_double(r->at, &end);
    if (end == r->at) return expected(r, "a number");
    bool integer = true;
    int64_t whole = 0;
    for (const char *c = r->at; c < end; c++)
        integer = integer && is_digit(*c) && !__builtin_mul_overflow(whole, 10, &whole) &&
                  !__builtin_add_overflow(whole, *c - '0', &whole);
    *node = integer ? mica_expr_whole(r, whole) : mica_expr_number(r, value, MICA_F64);
    r->at = end;
    return *node < 0 ? r->status : MICA_OK;
}

static mica_status read_call(mica_expr_reader *r, const char *name, int length, int *node)
{
    const int function = mica_function_find(name, length);
    if (function < 0) {
        r->at = name;
        return mica_expr_fail(r, "no function is called \"%.*s\"; the nearest is %s",
                              length < 24 ? length : 24, name, mica_function_nearest(name, length));
    }
    const mica_function *f = &mica_functions[function];
    int args[MICA_FUNCTION_ARGS] = {-1, -1, -1}, count = 0;
    r->at++; /* ( */
    for (;; r->at++) {
        if (count == f->arity)
            return mica_expr_fail(r, "%s has %d argument%s, here is one more", f->name, f->arity,
                                  f->arity == 1 ? "" : "s");
        MICA_TRY(read_expression(r, 1, &args[count++]));
        if (*r->at != ',') break;
    }
    if (*r->at == ')' && count < f->arity)
        return mica_expr_fail(r, "%s has %d arguments, here are %d", f->name, f->arity, count);
    if (*r->at != ')') return expected(r, count < f->arity ? "an operator or ','" : "')'");
    r->at++;
    const char *after = r->at;
    r->at = name;
    *node = mica_expr_call(r, function, args);
    r->at = after;
    return *node < 0 ? r->status : MICA_OK;
}

static bool is_word(const char *name, int length, const char *word)
{
    return (int)strlen(word) == length && !strncmp(name, word, (size_t)length);
}

static mica_status read_input(mica_expr_reader *r, const char *name, int *node)
{
    const int k = name[1] - '0';
    if (k < 0 || k >= MICA_EXPR_X) {
        r->at = name;
        return mica_expr_fail(r, "inputs are x0 to x%d", MICA_EXPR_X - 1);
    }
    if (r->e->inputs[k] == MICA_NONE) {
        r->at = name;
        return mica_expr_fail(r, "x%d is not given", k);
    }
    *node = mica_expr_input(r, k);
    return *node < 0 ? r->status : MICA_OK;
}

static mica_status read_index(mica_expr_reader *r, const char *name, int *node)
{
    const int k = name[1] - '0';
    if (k >= r->e->rank) {
        r->at = name;
        return mica_expr_fail(r, "i%d is along dimension %d, the results have %d", k, k,
                              r->e->rank);
    }
    *node = mica_expr_input(r, MICA_EXPR_INDEX + k);
    return *node < 0 ? r->status : MICA_OK;
}

static mica_status read_name(mica_expr_reader *r, int *node)
{
    static const struct {
        const char *name;
        double value;
    } numbers[] = {{"pi", 3.14159265358979324},
                   {"e", 2.71828182845904524},
                   {"inf", (double)INFINITY},
                   {"nan", (double)NAN}};
    const char *name = r->at;
    while (is_letter(*r->at) || is_digit(*r->at)) r->at++;
    const int length = (int)(r->at - name);
    if (*r->at == '(') return read_call(r, name, length, node);
    for (int i = 0; r->names && r->names[i].name; i++)
        if (is_word(name, length, r->names[i].name)) {
            *node = r->names[i].node;
            r->names[i].used = true;
            return MICA_OK;
        }
    if (length == 2 && name[0] == 'x' && is_digit(name[1])) return read_input(r, name, node);
    if (length == 2 && name[0] == 'i' && is_digit(name[1])) return read_index(r, name, node);
    if (length == 2 && name[0] == 's' && name[1] >= '0' && name[1] < '0' + MICA_EXPR_SCALARS)
        *node = mica_expr_scalar(r, name[1] - '0');
    else
        *node = -2;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (is_word(name, length, numbers[i].name))
            *node = mica_expr_number(r, numbers[i].value, MICA_F64);
    if (*node >= 0) return MICA_OK;
    if (*node == -1) return r->status;
    r->at = name;
    if (mica_function_find(name, length) >= 0)
        return mica_expr_fail(r, "%.*s is a function, '(' must follow", length, name);
    return mica_expr_fail(r,
                          "\"%.*s\" is no operand; those are x0 to x%d, s0 to s%d, i0 to i%d, "
                          "numbers, pi, e, inf, nan and function(...)",
                          length < 24 ? length : 24, name, MICA_EXPR_X - 1, MICA_EXPR_SCALARS - 1,
                          MICA_EXPR_INDICES - 1);
}

static mica_status read_operand(mica_expr_reader *r, int *node)
{
    const operation *o = find_operation(unary, sizeof unary / sizeof *unary, r->at);
    if (o) {
        const char *start = r->at++;
        int args[MICA_FUNCTION_ARGS] = {-1, -1, -1};
        MICA_TRY(read_expression(r, o->level, &args[0]));
        const char *after = r->at;
        r->at = start;
        *node = mica_expr_call(r, (int)o->function, args);
        r->at = after;
        return *node < 0 ? r->status : MICA_OK;
    }
    if (*r->at == '(') {
        r->at++;
        MICA_TRY(read_expression(r, 1, node));
        if (*r->at != ')') return expected(r, "an operator or ')'");
        r->at++;
        return MICA_OK;
    }
    if (is_digit(*r->at) || *r->at == '.') return read_number(r, node);
    if (is_letter(*r->at)) return read_name(r, node);
    return expected(r, "an operand");
}

/* Operators of that level and those that bind closer. */
static mica_status read_expression(mica_expr_reader *r, int level, int *node)
{
    if (++r->depth > MICA_EXPR_DEPTH)
        return mica_expr_fail(r, "more than %d levels of parentheses, functions and operators",
                              MICA_EXPR_DEPTH);
    MICA_TRY(read_operand(r, node));
    for (;;) {
        const operation *o = find_operation(binary, sizeof binary / sizeof *binary, r->at);
        if (!o || o->level < level) break;
        const char *start = r->at;
        int args[MICA_FUNCTION_ARGS] = {*node, -1, -1};
        r->at += strlen(o->text);
        MICA_TRY(read_expression(r, o->level + 1, &args[1]));
        const char *after = r->at;
        r->at = start;
        *node = mica_expr_call(r, (int)o->function, args);
        if (*node < 0) return r->status;
        r->at = after;
    }
    r->depth--;
    return MICA_OK;
}

mica_status mica_expr_read(mica_expr_reader *r, int *node)
{
    return read_expression(r, 1, node);
}

mica_status mica_expr_parse(mica_expr *e, const char *text, mica_why *why)
{
    return mica_expr_parse_field(e, "expr", text, why);
}

mica_status mica_expr_parse_field(mica_expr *e, const char *field, const char *text, mica_why *why)
{
    mica_expr_reader r = {.e = e, .text = text, .at = text, .why = why, .field = field};
    e->count = e->result_count = 0;
    for (;; r.at++) {
        if (e->result_count == MICA_EXPR_Y)
            return mica_expr_fail(&r, "more than %d results", MICA_EXPR_Y);
        MICA_TRY(mica_expr_read(&r, &e->results[e->result_count++]));
        if (*r.at != ';') break;
    }
    return *r.at ? expected(&r, "an operator or ';'") : MICA_OK;
}
