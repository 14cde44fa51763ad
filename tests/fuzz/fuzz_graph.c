/* SPDX-License-Identifier: Apache-2.0
 * Any bytes as the text of a graph. What is read has a text that reads back as itself, also behind
 * inference, and a plan or a reason; what is refused says where. */
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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
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
    } else {
        require(*mica_error() != 0, "a refusal has a reason", text);
    }
    mica_graph_destroy(g);
    return 0;
}
