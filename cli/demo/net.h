/* SPDX-License-Identifier: Apache-2.0
 * The demonstration's network: a list of plans over named buffers. Each step is made from a problem
 * line, so what is trained can be replayed with `mica bench` and `mica check`. */
#ifndef MICA_CLI_DEMO_NET_H
#define MICA_CLI_DEMO_NET_H

#include "cli.h"

enum { NET_STEPS = 24, NET_BUFFERS = 64, NET_CHANNELS_1 = 16, NET_CHANNELS_2 = 32 };

typedef enum net_list { NET_TRAIN, NET_TEST, NET_LISTS } net_list;

/* What a step of training is for. */
typedef enum net_phase { NET_FORWARD, NET_BACKWARD, NET_UPDATE } net_phase;

typedef struct net_step {
    char name[32], line[320];
    net_phase phase;
    double flops, bytes; /* arithmetic, and least bytes moved */
    double roof_ms;      /* what the device could do at best, by the cost model's rates */
    mica_plan *plan;
    mica_run run;
    double scalars[MICA_MAX_SCALARS];
    double ms; /* measured by net_time */
} net_step;

typedef struct net {
    mica_context *context;
    int batch, held_out;
    net_step steps[NET_LISTS][NET_STEPS];
    int count[NET_LISTS];
    struct {
        char name[24];
        char *memory;
        int64_t bytes;
        bool owned;
    } buffers[NET_BUFFERS];
    int buffer_count;
    void *workspace;
    net_step *optimiser;
    net_phase phase; /* of the steps that are being added */
    int64_t parameters;
} net;

/* conv 3x3, batch norm, ReLU, conv 3x3, batch norm, ReLU, max pool, fully connected, softmax
 * cross-entropy, AdamW; training plans for `batch` images and inference plans for `held_out`. */
mica_status net_create(net *n, mica_context *context, int batch, int held_out, uint64_t seed);
void net_destroy(net *n);
/* Memory of a buffer by name: "x", "labels", "loss", "logits", "test.x", "test.y", ... */
void *net_buffer(net *n, const char *name, int64_t *bytes);
/* One optimisation step on what lies in x and labels; step counts from 1. */
mica_status net_train(net *n, double learning_rate, int step);
/* Probabilities of test.x into test.y. */
mica_status net_test(net *n);
/* Times every step of a list: the median of some runs. */
mica_status net_time(net *n, net_list list);

#endif
