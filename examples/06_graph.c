/* SPDX-License-Identifier: Apache-2.0
 * A small network as one object: a convolution, a block with a residual, a product and a softmax,
 * written as text, planned once, run on whatever the context is of.
 *
 *     06_graph [DEVICE]        "auto" if none is named: the GPU if there is one that works
 *
 * It shows what a graph plan says of itself (launches, workspace), runs it fused and node by node,
 * and compares. */
#include <mica/mica.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char network[] =
    "input  x  = f32:8x3x32x32            # images\n"
    "input  w1 = f32:16x3x3x3\n"
    "input  b1 = f32:16\n"
    "input  w2 = f32:16x16x3x3\n"
    "input  b2 = f32:16\n"
    "input  w3 = f32:16x10\n"
    "scalar sharpness = 1\n"
    "output classes\n"
    "\n"
    "conv x=@x w=@w1 y=@c1 pad=1x1 epilogue=bias bias=@b1\n"
    "activation act=relu x=@c1 y=@a1\n"
    "conv x=@a1 w=@w2 y=@c2 pad=1x1 epilogue=bias bias=@b2\n"
    "pointwise expr=relu(x0+x1) x0=@c2 x1=@a1 y0=@a2          # the residual\n"
    "pool mode=avg x=@a2 y=@mean window=32x32\n"
    "gemm a=f32:8x16@mean b=@w3 c=@logits                     # a view: two dimensions of four\n"
    "pointwise expr=x0*s0 x0=@logits y0=@sharp s0=@sharpness\n"
    "softmax axis=1 x=@sharp y=@classes\n";

enum { CLASSES = 80, MOST = 16 };

static int failed(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, mica_error());
    return 1;
}

/* Numbers that stand for images and trained weights. */
static mica_status fill(mica_context *ctx, void *memory, int64_t bytes, unsigned seed)
{
    const int64_t count = bytes / (int64_t)sizeof(float);
    float *values = malloc((size_t)bytes);
    for (int64_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        values[i] = (float)(seed >> 8) / (1 << 24) - 0.5f;
    }
    mica_status status = mica_upload(ctx, memory, values, bytes, NULL);
    free(values);
    return status;
}

/* Plans in a mode, makes memory for every tensor that is not the graph's own, runs, fetches. */
static int classify(mica_context *ctx, const mica_graph *graph, mica_graph_mode mode,
                    float *classes)
{
    const mica_graph_options options = {.mode = mode};
    mica_graph_plan *plan;
    void *tensors[MOST] = {0}, *workspace;
    mica_graph_tensor_info info;
    mica_graph_step step;
    int launches = 0, count = 0;
    if (mica_graph_plan_create(ctx, graph, &options, &plan)) return failed("plan");
    for (; mica_graph_plan_tensor(plan, count, &info) == MICA_OK; count++) {
        const int64_t bytes = mica_tensor_span(&info.tensor, NULL);
        if (mica_malloc(ctx, bytes, &tensors[count])) return failed(info.name);
        if (info.kind != MICA_GRAPH_OUTPUT && fill(ctx, tensors[count], bytes, (unsigned)count))
            return failed(info.name);
    }
    if (mica_malloc(ctx, (int64_t)mica_graph_plan_workspace(plan), &workspace))
        return failed("workspace");
    const double sharpness = 4;
    const mica_graph_run run = {.tensors = tensors, .workspace = workspace, .scalars = &sharpness};
    if (mica_graph_plan_run(plan, &run)) return failed("run");
    if (mica_download(ctx, classes, tensors[mica_graph_plan_index(plan, "classes")],
                      CLASSES * sizeof *classes, NULL))
        return failed("download");
    while (mica_graph_plan_step(plan, launches, &step) == MICA_OK) launches++;
    printf("%s: %d launches, workspace of %zu bytes\n",
           mode == MICA_GRAPH_FUSED ? "fused" : "node by node", launches,
           mica_graph_plan_workspace(plan));
    for (int i = 0; i < count; i++) mica_free(ctx, tensors[i]);
    mica_free(ctx, workspace);
    mica_graph_plan_destroy(plan);
    return 0;
}

int main(int argc, char **argv)
{
    mica_context *ctx;
    mica_graph *graph;
    float fused[CLASSES], apart[CLASSES], largest = 0, sum = 0;
    if (mica_context_create(argc > 1 ? argv[1] : "auto", &ctx)) return failed("context");
    if (mica_graph_from_text(network, &graph)) return failed("graph");
    if (classify(ctx, graph, MICA_GRAPH_FUSED, fused)) return 1;
    if (classify(ctx, graph, MICA_GRAPH_SEPARATE, apart)) return 1;
    for (int i = 0; i < CLASSES; i++) {
        largest = fmaxf(largest, fabsf(fused[i] - apart[i]));
        sum += fused[i];
    }
    printf("largest difference %.2g, sum of %d rows %.4f\n", largest, CLASSES / 10, sum);
    mica_graph_destroy(graph);
    mica_context_destroy(ctx);
    return largest < 1e-5f && fabsf(sum - CLASSES / 10) < 1e-3f ? 0 : 1;
}
