/* SPDX-License-Identifier: Apache-2.0
 * An operation graph while it is lowered: operations with numbered tensors, and the text that
 * grows. */
#ifndef FRONT_CUDNN_BACKEND_NODE_H
#define FRONT_CUDNN_BACKEND_NODE_H

#include "backend.h"

#define BACKEND_MAX_NODES 256
#define BACKEND_MAX_REFS  72

typedef struct node_tensor {
    int64_t uid;
    const backend *desc;
    mica_tensor t;    /* as the client has it */
    mica_tensor form; /* as it is declared in the mica graph: t, but for what its writer needs */
    bool is_virtual, by_value, used, inout;
    bool bits;  /* of 1 bit each in the client's memory, which has the name with a p */
    int writer; /* -1: none */
    int reads;
    int alias;                /* another tensor that has its content; -1: none */
    int ragged_axis, lengths; /* of positions, 0: not ragged; of the tensor of their lengths */
    bool summed;              /* these are sums */
    char name[28];
} node_tensor;

typedef struct node_ref {
    unsigned attribute;
    int tensor;
    bool written;
} node_ref;

typedef struct node {
    const backend *op;
    int type;
    int mode; /* of a pointwise operation, else -1 */
    node_ref *refs;
    int ref_count;
    bool done; /* lowered as part of another one */
} node;

typedef struct node_text {
    char *text;
    size_t length, room;
    bool failed;
} node_text;

typedef struct lowering {
    node nodes[BACKEND_MAX_NODES];
    int node_count;
    int order[BACKEND_MAX_NODES]; /* what is read is written before */
    node_ref *refs;
    node_tensor *tensors;
    int tensor_count, ref_count;
    bool channels_last; /* what a tensor counts as that could be both */
    int fresh;          /* names of tensors that the client does not have */
    int copies[4][2];   /* tensors that are changed in place, in another place before */
    int copy_count;
    node_text body, extra;
    backend_lowered *out;
} lowering;

void node_put(node_text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Says why mica does not take the graph. */
cudnnStatus_t node_refuse(lowering *l, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The tensor at an attribute of an operation, behind aliases; -1: none. */
int node_at(const lowering *l, const node *n, unsigned attribute);
void backend_tensor(const backend *desc, mica_tensor *tensor);
/* Its number, and a new one where the unique id is; BAD_PARAM if it had another tensor before. */
cudnnStatus_t node_find_tensor(lowering *l, const backend *desc, int *index);
/* Whether strides of dimensions above 1 are those of a packed tensor, or with channels last. */
bool node_is_laid_out(const mica_tensor *t, bool last);
/* Strides of dimensions of 1 say nothing: those of a usual layout are put there. */
void node_settle(mica_tensor *t, bool channels_last);
/* Whether no two elements share memory, for any tensor that loops could make. */
bool node_is_apart(const mica_tensor *t);
void node_put_tensor(node_text *to, const mica_tensor *t);
/* " field=AxBxC", left out where all are `plain`. */
void node_put_axes(lowering *l, const char *field, const int64_t *values, int count, int64_t plain);
/* " field=A,B,C", of at least one. */
void node_put_list(lowering *l, const char *field, const int64_t *values, int count);

/* " arg=@name" in the line at hand; `as`: through a view of these dimensions and strides. */
void node_read(lowering *l, const char *arg, int tensor);
void node_read_as(lowering *l, const char *arg, int tensor, const mica_tensor *as);
/* Of a result; `as`, if not NULL: how it is declared, with as many elements. */
void node_write(lowering *l, const char *arg, int tensor, const mica_tensor *as);
/* A number in host memory; gives the name it has in lines. */
cudnnStatus_t node_number(lowering *l, int tensor, backend_use use, double value,
                          const char **name);

/* A ragged tensor becomes a padded one, to and from which a run moves it: `axis` is that of
 * positions, `lengths` the number of the tensor of sequences' lengths, or of their sums from 0 on.
 * A tensor that is not ragged, or -1, is left as it is. */
cudnnStatus_t node_unravel(lowering *l, int tensor, int axis, int lengths, bool summed);
/* Its line of the header. */
void node_put_ragged(node_text *text, const lowering *l, int tensor);

/* The line of operation n, or lines; body is where they go. */
cudnnStatus_t backend_lower_operation(lowering *l, node *n);
cudnnStatus_t backend_lower_pointwise(lowering *l, node *n);
cudnnStatus_t backend_lower_shape(lowering *l, node *n);
cudnnStatus_t backend_lower_norm(lowering *l, node *n);
cudnnStatus_t backend_lower_sdpa(lowering *l, node *n);
cudnnStatus_t backend_lower_serving(lowering *l, const node *n);
/* Finds attention in parts and writes its lines; its operations are done then. */
cudnnStatus_t backend_find_attention(lowering *l);
cudnnStatus_t backend_find_attention_bwd(lowering *l);

/* Checks of single descriptors. */
cudnnStatus_t backend_pointwise_check(const backend *b);
cudnnStatus_t backend_operation_check(const backend *b);
/* Operands of an operation of this mode: 1 X, 2 X and B, 3 X, B and T, 0 X and DY (a gradient). */
int backend_pointwise_operands(int mode);
#endif
