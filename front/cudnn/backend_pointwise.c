/* SPDX-License-Identifier: Apache-2.0
 * Pointwise operations as expressions of element functions. A row is a mode: its number, its
 * operands and its expression, in which $0, $1 and $2 are X, B and T, and $a, $b, $s, $i the
 * numbers of the descriptor. Of a backward mode the expression is that of the forward one, whose
 * gradient it is. */
#include "backend_node.h"

#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct mode_row {
    int mode, operands; /* 0: a gradient */
    const char *expression;
} mode_row;

static const mode_row modes[] = {
    {PW_ADD, 2, "$0+$1"},
    {PW_MUL, 2, "$0*$1"},
    {2, 2, "min($0,$1)"},
    {3, 2, "max($0,$1)"},
    {4, 1, "sqrt($0)"},
    {5, 2, "$0+square($1)"},
    {PW_DIV, 2, "$0/$1"},
    {7, 2, "fmod($0,$1)"},
    {8, 2, "pow($0,$1)"},
    {PW_SUB, 2, "$0-$1"},
    {10, 1, "abs($0)"},
    {11, 1, "ceil($0)"},
    {12, 1, "cos($0)"},
    {PW_EXP, 1, "exp($0)"},
    {14, 1, "floor($0)"},
    {PW_LOG, 1, "log($0)"},
    {16, 1, "-$0"},
    {17, 1, "rsqrt($0)"},
    {18, 1, "sin($0)"},
    {19, 1, "tan($0)"},
    {20, 1, "erf($0)"},
    {PW_IDENTITY, 1, "$0"},
    {22, 1, "recip($0)"},
    {23, 2, "atan2($0,$1)"},
    {24, 2, "rem($0,$1)"},
    {PW_RELU_FWD, 1, "$r"},
    {101, 1, "tanh($0)"},
    {102, 1, "sigmoid($0)"},
    {103, 1, "elu($0,$a)"},
    {104, 1, "gelu($0)"},
    {105, 1, "softplus($b*$0)/$b"},
    {106, 1, "$0*sigmoid($s*$0)"},
    {107, 1, "gelu_tanh($0)"},
    {200, 0, "$r"},
    {201, 0, "tanh($0)"},
    {202, 0, "sigmoid($0)"},
    {203, 0, "elu($0,$a)"},
    {204, 0, "gelu($0)"},
    {205, 0, "softplus($b*$0)/$b"},
    {206, 0, "$0*sigmoid($s*$0)"},
    {207, 0, "gelu_tanh($0)"},
    {300, 2, "$0==$1"},
    {301, 2, "$0!=$1"},
    {302, 2, "$0>$1"},
    {PW_CMP_GE, 2, "$0>=$1"},
    {PW_CMP_LT, 2, "$0<$1"},
    {305, 2, "$0<=$1"},
    {PW_AND, 2, "land($0,$1)"},
    {401, 2, "lor($0,$1)"},
    {402, 1, "lnot($0)"},
    {PW_GEN_INDEX, 1, "$i"},
    {PW_SELECT, 3, "where($2,$0,$1)"},
};

static const mode_row *find(int mode)
{
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
        if (modes[i].mode == mode) return &modes[i];
    return NULL;
}

int backend_pointwise_operands(int mode)
{
    const mode_row *row = find(mode);
    return row ? row->operands : -1;
}

cudnnStatus_t backend_pointwise_check(const backend *b)
{
    const int mode = (int)backend_integer(b, AT_POINTWISE_MODE, -1);
    if (find(mode)) return CUDNN_STATUS_SUCCESS;
    return front_fail(CUDNN_STATUS_NOT_SUPPORTED, "pointwise mode %d is not served", mode);
}

/* ---- expressions ---- */

typedef struct operand {
    int tensor; /* -1: none */
    char text[80];
} operand;

/* max(v, 0) where nothing else is said; the largest number of a float is no bound. */
static void put_relu(node_text *to, const backend *d, const char *x)
{
    const double lower = backend_real(d, AT_POINTWISE_RELU_LOWER_CLIP, 0);
    const double upper = backend_real(d, AT_POINTWISE_RELU_UPPER_CLIP, DBL_MAX);
    const double slope = backend_real(d, AT_POINTWISE_RELU_LOWER_CLIP_SLOPE, 0);
    const bool bounded = upper < FLT_MAX;
    if (bounded) node_put(to, "min(");
    if (lower == 0 && slope == 0)
        node_put(to, "relu(%s)", x);
    else
        node_put(to, "where(%s<(%.17g),(%.17g)+(%.17g)*(%s-(%.17g)),%s)", x, lower, lower, slope, x,
                 lower, x);
    if (bounded) node_put(to, ",(%.17g))", upper);
}

static void put_expression(node_text *to, const char *form, const backend *d, const operand *in)
{
    for (const char *s = form; *s; s++) {
        if (*s != '$') {
            node_put(to, "%c", *s);
            continue;
        }
        switch (*++s) {
        case 'r':
            put_relu(to, d, in[0].text);
            break;
        case 'a':
            node_put(to, "(%.17g)", backend_real(d, AT_POINTWISE_ELU_ALPHA, 1));
            break;
        case 'b':
            node_put(to, "(%.17g)", backend_real(d, AT_POINTWISE_SOFTPLUS_BETA, 1));
            break;
        case 's':
            node_put(to, "(%.17g)", backend_real(d, AT_POINTWISE_SWISH_BETA, 1));
            break;
        case 'i':
            node_put(to, "i%lld", (long long)backend_integer(d, AT_POINTWISE_AXIS, -1));
            break;
        default:
            node_put(to, "%s", in[*s - '0'].text);
            break;
        }
    }
}

static bool is_integer(mica_dtype type)
{
    return type == MICA_S8 || type == MICA_U8 || type == MICA_S32 || type == MICA_S64 ||
           type == MICA_U32 || type == MICA_BOOL;
}

/* Names the operands: x0 and so on of tensors, s0 of numbers in host memory; `binds` gets the rest
 * of the line. */
static cudnnStatus_t name_operands(lowering *l, operand *in, int count, const double *factor,
                                   node_text *binds)
{
    for (int i = 0; i < count; i++) {
        const node_tensor *t = &l->tensors[in[i].tensor];
        const char *name = NULL;
        char plain[16];
        snprintf(plain, sizeof plain, "%c%d", t->by_value ? 's' : 'x', i);
        if (factor[i] == 1)
            snprintf(in[i].text, sizeof in[i].text, "%s", plain);
        else
            snprintf(in[i].text, sizeof in[i].text, "((%.17g)*%s)", factor[i], plain);
        if (!t->by_value) continue;
        FRONT_TRY(node_number(l, in[i].tensor, USE_SCALAR, 1, &name));
        node_put(binds, " %s=@%s", plain, name);
    }
    return CUDNN_STATUS_SUCCESS;
}

/* Where nothing is computed, readers of Y read X. */
static bool is_same(const lowering *l, int x, int y)
{
    const node_tensor *a = &l->tensors[x], *b = &l->tensors[y];
    if (!b->is_virtual || a->by_value || a->t.dtype != b->t.dtype || a->t.rank != b->t.rank)
        return false;
    for (int i = 0; i < a->t.rank; i++)
        if (a->t.dims[i] != b->t.dims[i] || a->t.strides[i] != b->t.strides[i]) return false;
    return true;
}

static cudnnStatus_t lower_gradient(lowering *l, const node *n, const mode_row *row,
                                    const backend *d)
{
    const int x = node_at(l, n, AT_OP_POINTWISE_X), dy = node_at(l, n, AT_OP_POINTWISE_DY);
    const int dx = node_at(l, n, AT_OP_POINTWISE_DX);
    const operand in = {x, "x0"};
    if (backend_real(n->op, AT_OP_POINTWISE_ALPHA1, 1) != 1 ||
        backend_real(n->op, AT_OP_POINTWISE_ALPHA2, 1) != 1)
        return node_refuse(l, "a gradient of pointwise mode %d has factors", n->mode);
    node_put(&l->body, "pointwise pass=bwd expr=");
    put_expression(&l->body, row->expression, d, &in);
    node_read(l, "x0", x);
    node_read(l, "dy0", dy);
    node_write(l, "dx0", dx, NULL);
    node_put(&l->body, "\n");
    return CUDNN_STATUS_SUCCESS;
}

/* mica gives a result the dimensions that operands have together. Where that is not all of Y, X is
 * repeated by strides of 0. */
static bool reaches(const lowering *l, const operand *in, int count, int y)
{
    const mica_tensor *to = &l->tensors[y].t;
    for (int i = 0; i < to->rank; i++) {
        bool found = to->dims[i] == 1;
        for (int k = 0; k < count; k++) {
            const node_tensor *t = &l->tensors[in[k].tensor];
            found |= !t->by_value && t->t.dims[i] == to->dims[i];
        }
        if (!found) return false;
    }
    return true;
}

static void read_repeated(lowering *l, const char *arg, int tensor, int y)
{
    const mica_tensor *to = &l->tensors[y].t;
    mica_tensor as = l->tensors[tensor].t;
    as.strided = 1;
    for (int i = 0; i < as.rank; i++) {
        if (as.dims[i] != to->dims[i]) as.strides[i] = 0;
        as.dims[i] = to->dims[i];
        if (as.strides[i]) as.strided = 0;
    }
    node_read_as(l, arg, tensor, &as);
}

cudnnStatus_t backend_lower_pointwise(lowering *l, node *n)
{
    static const unsigned places[] = {AT_OP_POINTWISE_X, AT_OP_POINTWISE_B, AT_OP_POINTWISE_T};
    const backend *d = backend_child(n->op, AT_OP_POINTWISE_DESC);
    const mode_row *row = find(n->mode);
    const int y = node_at(l, n, AT_OP_POINTWISE_Y);
    double factor[3] = {backend_real(n->op, AT_OP_POINTWISE_ALPHA1, 1),
                        backend_real(n->op, AT_OP_POINTWISE_ALPHA2, 1), 1};
    const char *expression = row->expression;
    int count = row->operands;
    operand in[3];
    node_text binds = {0};
    if (!count) return lower_gradient(l, n, row, d);
    for (int i = 0; i < count; i++) in[i].tensor = node_at(l, n, places[i]);
    /* B of a sum that counts 0 times is not read: it may be anything */
    if ((n->mode == PW_ADD || n->mode == PW_SUB) && factor[1] == 0) {
        expression = "$0";
        count = 1;
    }
    if (n->mode == PW_GEN_INDEX) count = 0;
    if (!strcmp(expression, "$0") && factor[0] == 1 && is_same(l, in[0].tensor, y)) {
        l->tensors[y].alias = in[0].tensor;
        return CUDNN_STATUS_SUCCESS;
    }
    cudnnStatus_t status = name_operands(l, in, count, factor, &binds);
    if (status == CUDNN_STATUS_SUCCESS) {
        const mica_dtype type = l->tensors[y].t.dtype;
        const bool whole = reaches(l, in, count, y);
        node_put(&l->body, "pointwise expr=%s", is_integer(type) ? mica_dtype_name(type) : "");
        if (is_integer(type)) node_put(&l->body, "(");
        put_expression(&l->body, expression, d, in);
        if (is_integer(type)) node_put(&l->body, ")");
        for (int i = 0; i < count; i++) {
            char arg[16];
            snprintf(arg, sizeof arg, "x%d", i);
            if (l->tensors[in[i].tensor].by_value) continue;
            if (whole)
                node_read(l, arg, in[i].tensor);
            else
                read_repeated(l, arg, in[i].tensor, y);
        }
        node_put(&l->body, "%s", binds.text ? binds.text : "");
        node_write(l, "y0", y, NULL);
        node_put(&l->body, "\n");
    }
    free(binds.text);
    return status;
}
