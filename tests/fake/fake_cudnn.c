/* SPDX-License-Identifier: Apache-2.0
 * cuDNN's graph interface as far as the library calls it. Numbers as in cudnn_graph.h. */
#include "fake_cudnn.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

enum { ENGINE = 2, CONFIG = 3, HEURISTICS = 4, PLAN = 5, PACK = 16, TENSOR = 17 };
enum { MOST_ATTRIBUTES = 8, MOST_VALUES = 16, NOT_SUPPORTED = 3000, BROKEN = 4000 };

typedef struct attribute {
    int name;
    int64_t count;
    unsigned char values[MOST_VALUES * 8];
} attribute;

typedef struct descriptor {
    int kind, engine;
    bool finished;
    int count;
    attribute list[MOST_ATTRIBUTES];
} descriptor;

static fake_cudnn books;

EXPORT fake_cudnn *fake_cudnn_books(void);
EXPORT size_t cudnnGetVersion(void);
EXPORT void cudnnGetLastErrorString(char *text, size_t size);
EXPORT int cudnnCreate(void **handle);
EXPORT int cudnnSetStream(void *handle, void *stream);
EXPORT int cudnnBackendCreateDescriptor(int kind, descriptor **d);
EXPORT int cudnnBackendDestroyDescriptor(descriptor *d);
EXPORT int cudnnBackendSetAttribute(descriptor *d, int name, int type, int64_t count,
                                    const void *values);
EXPORT int cudnnBackendGetAttribute(descriptor *d, int name, int type, int64_t room, int64_t *count,
                                    void *values);
EXPORT int cudnnBackendFinalize(descriptor *d);
EXPORT int cudnnBackendExecute(void *handle, descriptor *plan, descriptor *pack);

fake_cudnn *fake_cudnn_books(void)
{
    return &books;
}

static bool due(void)
{
    return ++books.calls == books.fail_call;
}

size_t cudnnGetVersion(void)
{
    return 91900;
}

void cudnnGetLastErrorString(char *text, size_t size)
{
    snprintf(text, size, "words of the fake\nand more");
}

int cudnnCreate(void **handle)
{
    *handle = &books;
    return 0;
}

int cudnnSetStream(void *handle, void *stream)
{
    if (due() || handle != &books) return BROKEN;
    books.stream = stream;
    return 0;
}

int cudnnBackendCreateDescriptor(int kind, descriptor **d)
{
    if (due()) return BROKEN;
    *d = calloc(1, sizeof **d);
    if (!*d) return BROKEN;
    (*d)->kind = kind;
    books.alive++;
    return 0;
}

int cudnnBackendDestroyDescriptor(descriptor *d)
{
    books.alive--;
    free(d);
    return 0;
}

static size_t value_size(int type)
{
    static const unsigned char sizes[] = {8, 4, 1, 8, 4, 8, 8, 4, 4, 4, 4, 4, 4, 4, 4, 8};
    return sizes[type];
}

static const attribute *find(const descriptor *d, int name)
{
    for (int i = 0; i < d->count; i++)
        if (d->list[i].name == name) return &d->list[i];
    return NULL;
}

static int64_t number(const descriptor *d, int name, size_t size)
{
    int64_t value = 0;
    const attribute *a = find(d, name);
    if (a) memcpy(&value, a->values, size);
    return value;
}

static descriptor *child(const descriptor *d, int name)
{
    descriptor *value = NULL;
    const attribute *a = find(d, name);
    if (a) memcpy(&value, a->values, sizeof value);
    return value;
}

int cudnnBackendSetAttribute(descriptor *d, int name, int type, int64_t count, const void *values)
{
    if (due()) return BROKEN;
    if (d->finished || d->count == MOST_ATTRIBUTES || count < 1 || count > MOST_VALUES) return 2000;
    attribute *a = &d->list[d->count++];
    a->name = name;
    a->count = count;
    memcpy(a->values, values, (size_t)count * value_size(type));
    return 0;
}

static void note_tensor(const descriptor *d)
{
    const attribute *dims = find(d, 902), *strides = find(d, 903);
    if (books.tensor_count == FAKE_TENSORS || dims->count > 5) return;
    fake_tensor *t = &books.tensors[books.tensor_count++];
    *t = (fake_tensor){.type = (int)number(d, 901, 4),
                       .is_virtual = (int)number(d, 907, 1),
                       .rank = (int)dims->count,
                       .id = number(d, 906, 8)};
    memcpy(t->dims, dims->values, (size_t)dims->count * 8);
    memcpy(t->strides, strides->values, (size_t)dims->count * 8);
}

int cudnnBackendFinalize(descriptor *d)
{
    if (due()) return BROKEN;
    if (d->kind == PLAN) {
        d->engine = child(d, 401)->engine;
        if (books.unplannable >> d->engine & 1) return NOT_SUPPORTED;
    }
    if (d->kind == TENSOR) note_tensor(d);
    d->finished = true;
    return 0;
}

/* Two engines in mode A, and it announces one more than it fills; the others in mode FALLBACK. */
static int results(const descriptor *d, int64_t room, int64_t *count, void *values)
{
    enum { FALLBACK = 2 };
    bool rest = number(d, 200, 4) == FALLBACK;
    int first = rest ? 2 : 0, there = rest ? FAKE_ENGINES - 2 : 2;
    *count = there + 1;
    if (room == 0) return 0;
    *count = there;
    for (int i = 0; i < there && i < room; i++) ((descriptor **)values)[i]->engine = first + i;
    return 0;
}

int cudnnBackendGetAttribute(descriptor *d, int name, int type, int64_t room, int64_t *count,
                             void *values)
{
    (void)type;
    if (due()) return BROKEN;
    if (d->kind == HEURISTICS && name == 202) return results(d, room, count, values);
    *count = 1;
    if (d->kind == CONFIG && name == 300) {
        (*(descriptor **)values)->engine = d->engine;
    } else if (d->kind == ENGINE && name == 1301) {
        *(int64_t *)values = books.index + d->engine;
    } else if (d->kind == ENGINE && name == 1303) {
        *count = 0;
        for (int i = 0; i < 10; i++)
            if (books.notes[d->engine] >> i & 1) ((int *)values)[(*count)++] = i;
    } else if (d->kind == PLAN && name == 402) {
        *(int64_t *)values = books.workspace;
    } else {
        return 2000;
    }
    return 0;
}

int cudnnBackendExecute(void *handle, descriptor *plan, descriptor *pack)
{
    if (due() || handle != &books || !plan->finished || !pack->finished) return BROKEN;
    const attribute *ids = find(pack, 1000), *pointers = find(pack, 1001);
    books.given = (int)ids->count;
    memcpy(books.ids, ids->values, (size_t)ids->count * 8);
    memcpy(books.pointers, pointers->values, (size_t)ids->count * 8);
    books.run_workspace = child(pack, 1003);
    books.engine = plan->engine;
    books.runs++;
    return 0;
}
