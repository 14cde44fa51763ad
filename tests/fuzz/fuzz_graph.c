/* SPDX-License-Identifier: Apache-2.0
 * Any bytes as the text of a graph. What is read has a text that reads back as itself, also behind
 * inference, and a plan or a reason; with extents that have names it has them for several values.
 * What is refused says where. */
#include "mica/mica.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { LONGEST = 2000, TEXT = 1 << 15 };
static const int64_t most_bytes = 1 << 16;

static void require(bool truth, const char *what, const char *text)
{
    if (truth) return;
    fprintf(stderr, "fuzz_graph: %s: %s\n%s\n", what, mica_error(), text);
    abort();
}

static bool is_small(const mica_graph *g)
{
    mica_graph_tensor_info info;
    int i = 0;
    for (; mica_graph_tensor_at(g, i, &info) == MICA_OK; i++)
        if (mica_tensor_span(&info.tensor, NULL) > most_bytes) return false;
    return i < 12;
}

static void reads_back(const mica_graph *g, const char *text)
{
    static char once[TEXT], twice[TEXT];
    mica_graph *again = NULL;
    if (mica_graph_text(g, once, sizeof once) >= TEXT) return;
    require(mica_graph_from_text(once, &again) == MICA_OK, "its text is read", text);
    mica_graph_text(again, twice, sizeof twice);
    require(!strcmp(once, twice), "the text stays", text);
    mica_graph_destroy(again);
}

/* At the lowest, the highest and one between: a plan whose tensors are those of the graph there. */
static void at_extents(mica_context *context, const mica_graph *g, const char *text)
{
    mica_graph_dynamic *d;
    mica_graph_extent_info e;
    int64_t values[MICA_GRAPH_EXTENTS];
    if (mica_graph_dynamic_create(context, g, NULL, &d) != MICA_OK) {
        require(*mica_error() != 0, "a refusal has a reason", text);
        return;
    }
    for (int part = 0; part < 3; part++) {
        mica_graph_plan *plan;
        mica_graph *fixed;
        mica_graph_tensor_info have, want;
        for (int i = 0; mica_graph_extent_at(g, i, &e) == MICA_OK; i++)
            values[i] = e.low + (e.high - e.low) / 2 * part;
        if (mica_graph_dynamic_plan(d, values, &plan) != MICA_OK) {
            require(*mica_error() != 0, "a refusal has a reason", text);
            continue;
        }
        require(mica_graph_fix(g, values, &fixed) == MICA_OK, "it is right there", text);
        require(mica_graph_infer(fixed) == MICA_OK, "it is inferred there", text);
        for (int i = 0, n = 0; mica_graph_tensor_at(fixed, i, &want) == MICA_OK; i++) {
            if (want.kind == MICA_GRAPH_VIRTUAL || want.kind == MICA_GRAPH_CONSTANT) continue;
            require(mica_graph_plan_tensor(plan, n++, &have) == MICA_OK, "it has them", text);
            require(!memcmp(have.tensor.dims, want.tensor.dims, sizeof want.tensor.dims),
                    "its tensors have these extents", text);
        }
        mica_graph_destroy(fixed);
        mica_graph_plan_destroy(plan);
    }
    mica_graph_dynamic_destroy(d);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    mica_graph_extent_info extent;
    static mica_context *context;
    char text[LONGEST];
    mica_graph *g = NULL;
    mica_graph_plan *plan = NULL;
    if (size >= sizeof text) return 0;
    memcpy(text, data, size);
    text[size] = 0;
    if (!context && mica_context_create("cpu", &context) != MICA_OK) abort();
    if (mica_graph_from_text(text, &g) != MICA_OK) {
        require(!strncmp(mica_error(), "line ", 5), "a refusal says where", text);
        return 0;
    }
    reads_back(g, text);
    if (mica_graph_infer(g) == MICA_OK) {
        reads_back(g, text);
        if (is_small(g) && mica_graph_plan_create(context, g, NULL, &plan) != MICA_OK)
            require(*mica_error() != 0, "a refusal has a reason", text);
        mica_graph_plan_destroy(plan);
        if (is_small(g) && mica_graph_extent_at(g, 0, &extent) == MICA_OK)
            at_extents(context, g, text);
    } else {
        require(*mica_error() != 0, "a refusal has a reason", text);
    }
    mica_graph_destroy(g);
    return 0;
}
