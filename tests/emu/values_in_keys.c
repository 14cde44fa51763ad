/* SPDX-License-Identifier: Apache-2.0
 * Latent attention with values that are the first columns of keys, in the same memory: the bits are
 * those of values with memory of their own, and the CPU agrees.  values_in_keys [DEVICE], default
 * cuda:0. */
#include <mica/mica.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char line[] = "attention q=bf16:2x16x1x576 k=bf16:2x1x100x576 "
                           "v=bf16:2x1x100x512:57600x57600x576x1 out=f32";
enum { HEADS = 16, BATCH = 2, KEYS = 100, D = 576, DV = 512, OUT = BATCH * HEADS * DV };
enum { Q_BYTES = 2 * BATCH * HEADS * D, K_BYTES = 2 * BATCH * KEYS * D, OUT_BYTES = 4 * OUT };

static void try(mica_status status)
{
    if (status == MICA_OK) return;
    fprintf(stderr, "values_in_keys: %s\n", mica_error());
    exit(1);
}

/* Numbers of 8 bits in bf16: their upper halves as f32. */
static void fill(unsigned short *to, int count, unsigned seed)
{
    for (int i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        float v = ((float)(seed >> 24) - 128) / 128;
        unsigned bits;
        memcpy(&bits, &v, sizeof bits);
        to[i] = (unsigned short)(bits >> 16);
    }
}

/* apart: values are a copy of the keys, else the keys themselves. */
static void attend(const char *device, const char *engine, const void *q, const void *k, bool apart,
                   float *out)
{
    mica_context *c;
    mica_plan *plan;
    void *memory[5] = {0};
    const int64_t bytes[4] = {Q_BYTES, K_BYTES, K_BYTES, OUT_BYTES};
    const void *from[4] = {q, k, k, NULL};
    const mica_options options = {.engine = engine};
    try(mica_context_create(device, &c));
    try(mica_plan_from_text(c, line, &options, &plan));
    for (int i = 0; i < 4; i++) {
        try(mica_malloc(c, bytes[i], &memory[i]));
        if (from[i]) try(mica_upload(c, memory[i], from[i], bytes[i], NULL));
    }
    if (!apart) try(mica_memset(c, memory[2], 0xff, K_BYTES, NULL)); /* NaN: not to be read */
    try(mica_malloc(c, (int64_t)mica_plan_workspace(plan), &memory[4]));
    mica_run run = {.args = {[MICA_ATTENTION_Q] = memory[0],
                             [MICA_ATTENTION_K] = memory[1],
                             [MICA_ATTENTION_V] = memory[apart ? 2 : 1],
                             [MICA_ATTENTION_OUT] = memory[3]},
                    .workspace = memory[4]};
    try(mica_plan_run(plan, &run));
    try(mica_synchronize(c, NULL));
    try(mica_download(c, out, memory[3], OUT_BYTES, NULL));
    for (int i = 0; i < 5; i++) mica_free(c, memory[i]);
    mica_plan_destroy(plan);
    mica_context_destroy(c);
}

int main(int argc, char **argv)
{
    static unsigned short q[Q_BYTES / 2], k[K_BYTES / 2];
    static float inside[OUT], apart[OUT], truth[OUT];
    const char *device = argc > 1 ? argv[1] : "cuda:0";
    fill(q, Q_BYTES / 2, 1);
    fill(k, K_BYTES / 2, 2);
    attend(device, "latent", q, k, false, inside);
    attend(device, "latent", q, k, true, apart);
    attend("cpu", NULL, q, k, false, truth);
    double most = 0, largest = 0;
    for (int i = 0; i < OUT; i++) {
        most = fmax(most, fabs((double)inside[i] - (double)truth[i]));
        largest = fmax(largest, fabs((double)truth[i]));
        if (!isfinite(inside[i])) most = INFINITY;
    }
    bool same = memcmp(inside, apart, sizeof inside) == 0;
    printf("values in keys: %s bits as apart; at most %.2g from the CPU, of %.2g\n",
           same ? "the same" : "other", most, largest);
    /* weights are rounded to 8 bits before they multiply values of at most 1 */
    return same && most < 0x1p-8 && largest > 0.05 ? 0 : 1;
}
