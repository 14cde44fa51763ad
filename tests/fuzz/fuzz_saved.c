/* SPDX-License-Identifier: Apache-2.0
 * Any bytes as a saved plan, and as saved plans for any extents, of this version and device. What
 * is read has a text that reads back as itself; what is refused has a reason. */
#include "mica/mica.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { LONGEST = 2000, HEAD = 400, TEXT = 1 << 15 };
static const int64_t most_bytes = 1 << 16;

static void require(bool truth, const char *what, const char *text)
{
    if (truth) return;
    fprintf(stderr, "fuzz_saved: %s: %s\n%s\n", what, mica_error(), text);
    abort();
}

/* What a plan made here begins with: the lines of its version and device. */
static mica_context *begin(char *head)
{
    char text[2 * HEAD];
    mica_context *context;
    mica_graph *g = NULL;
    mica_graph_plan *plan = NULL;
    if (mica_context_create("cpu", &context) != MICA_OK ||
        mica_graph_from_text("", &g) != MICA_OK ||
        mica_graph_plan_create(context, g, NULL, &plan) != MICA_OK)
        abort();
    mica_graph_plan_text(plan, text, sizeof text);
    char *end = strstr(text, "\nmode ");
    if (!end || end - text >= HEAD - 1) abort();
    end[1] = 0;
    strcpy(head, text);
    mica_graph_plan_destroy(plan);
    mica_graph_destroy(g);
    return context;
}

/* Of a graph that is no graph, too: then nothing is planned. */
static bool is_small(const char *text)
{
    const char *graph = strstr(text, "\ngraph\n");
    mica_graph_tensor_info info;
    mica_graph *g;
    bool small = true;
    int i = 0;
    if (!graph || mica_graph_from_text(graph + 7, &g) != MICA_OK) return true;
    if (mica_graph_infer(g) == MICA_OK)
        for (; mica_graph_tensor_at(g, i, &info) == MICA_OK; i++)
            small &= mica_tensor_span(&info.tensor, NULL) <= most_bytes;
    mica_graph_destroy(g);
    return small && i < 12;
}

/* The same behind the other first word. */
static void with_extents(mica_context *context, const char *plan_text)
{
    static char once[TEXT], twice[TEXT];
    char text[HEAD + LONGEST + 8];
    mica_graph_dynamic *d = NULL, *again = NULL;
    snprintf(text, sizeof text, "mica_graph_dynamic%s", plan_text + strlen("mica_graph_plan"));
    if (mica_graph_dynamic_from_text(context, text, NULL, &d) != MICA_OK) {
        require(!d && *mica_error() != 0, "a refusal has a reason", text);
        return;
    }
    if (mica_graph_dynamic_text(d, once, sizeof once) < TEXT) {
        require(mica_graph_dynamic_from_text(context, once, NULL, &again) == MICA_OK,
                "its text is read", text);
        mica_graph_dynamic_text(again, twice, sizeof twice);
        require(!strcmp(once, twice), "the text stays", text);
        mica_graph_dynamic_destroy(again);
    }
    mica_graph_dynamic_destroy(d);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static mica_context *context;
    static char head[HEAD], once[TEXT], twice[TEXT];
    char text[HEAD + LONGEST];
    mica_graph_plan *plan = NULL, *again = NULL;
    if (!context) context = begin(head);
    if (size >= LONGEST) return 0;
    const size_t skip = strlen(head);
    memcpy(text, head, skip);
    memcpy(text + skip, data, size);
    text[skip + size] = 0;
    if (!is_small(text)) return 0;
    with_extents(context, text);
    if (mica_graph_plan_from_text(context, text, &plan) != MICA_OK) {
        require(!plan && *mica_error() != 0, "a refusal has a reason", text);
        return 0;
    }
    if (mica_graph_plan_text(plan, once, sizeof once) < TEXT) {
        require(mica_graph_plan_from_text(context, once, &again) == MICA_OK, "its text is read",
                text);
        mica_graph_plan_text(again, twice, sizeof twice);
        require(!strcmp(once, twice), "the text stays", text);
        mica_graph_plan_destroy(again);
    }
    mica_graph_plan_destroy(plan);
    return 0;
}
