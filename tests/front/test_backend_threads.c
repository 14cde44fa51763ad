/* SPDX-License-Identifier: Apache-2.0
 * Threads with handles of their own that describe the same graphs and run them, and that share one
 * plan with numbers of their own. */
#include "backend_test.h"

#include <pthread.h>

enum { THREADS = 4, ROUNDS = 12, COUNT = 24 };

typedef struct worker {
    desc plan; /* that all share */
    float *x, *y;
    float number;
    int failures;
} worker;

static const int64_t uids[] = {1, 2, 3};

static cudnnStatus_t run_with(cudnnHandle_t own, desc plan, void **pointers)
{
    desc pack;
    cudnnStatus_t status = cudnnBackendCreateDescriptor(BT_PACK, &pack);
    if (status != CUDNN_STATUS_SUCCESS) return status;
    cudnnBackendSetAttribute(pack, AT_PACK_DATA_POINTERS, BW_POINTER, 3, pointers);
    cudnnBackendSetAttribute(pack, AT_PACK_UNIQUE_IDS, BW_INT64, 3, uids);
    status = cudnnBackendFinalize(pack);
    if (status == CUDNN_STATUS_SUCCESS) status = cudnnBackendExecute(own, plan, pack);
    cudnnBackendDestroyDescriptor(pack);
    return status;
}

/* y = norm of x with an epsilon, which is part of the plan: other numbers, other plans. */
static desc norm_plan(cudnnHandle_t own)
{
    const mica_tensor t = packed(MICA_F32, 6, 4, 1, 1), one = packed(MICA_F32, 1, 1, 1, 1);
    desc x = tensor_desc(1, &t, 'r'), y = tensor_desc(2, &t, 'r'), e = tensor_desc(3, &one, 'n');
    desc op = make(BT_OP_NORM_FWD), g = make(BT_GRAPH), engine = make(BT_ENGINE);
    desc config = make(BT_CONFIG);
    put_int(op, AT_OP_NORM_FWD_MODE, BW_NORM_MODE, NORM_LAYER);
    put_int(op, AT_OP_NORM_FWD_PHASE, BW_NORM_PHASE, NORM_INFERENCE);
    put_desc(op, AT_OP_NORM_FWD_X, x);
    put_desc(op, AT_OP_NORM_FWD_Y, y);
    put_desc(op, AT_OP_NORM_FWD_EPSILON, e);
    finish(op);
    put_desc(g, AT_GRAPH_OPS, op);
    put(g, AT_GRAPH_HANDLE, BW_HANDLE, 1, &own);
    finish(g);
    put_desc(engine, AT_ENGINE_OPERATION_GRAPH, g);
    put_wide(engine, AT_ENGINE_GLOBAL_INDEX, 0);
    finish(engine);
    put_desc(config, AT_CONFIG_ENGINE, engine);
    finish(config);
    desc plan = plan_of(config), parts[] = {x, y, e, op, g, engine, config};
    for (int i = 0; i < 7; i++) drop(parts[i]);
    return plan;
}

static bool is_right(const worker *w)
{
    for (int row = 0; row < 6; row++) {
        double mean = 0, variance = 0;
        for (int i = 0; i < 4; i++) mean += (double)w->x[row * 4 + i] / 4;
        for (int i = 0; i < 4; i++) variance += pow((double)w->x[row * 4 + i] - mean, 2) / 4;
        for (int i = 0; i < 4; i++) {
            const double y =
                ((double)w->x[row * 4 + i] - mean) / sqrt(variance + (double)w->number);
            if (!(fabs((double)w->y[row * 4 + i] - y) < 1e-5)) return false;
        }
    }
    return true;
}

static void *work(void *user)
{
    worker *w = user;
    cudnnHandle_t own;
    void *pointers[] = {NULL, NULL, &w->number};
    if (cudnnCreate(&own) != CUDNN_STATUS_SUCCESS) return w->failures++, NULL;
    for (int i = 0; i < 2; i++) mica_malloc(memory, COUNT * 4, &pointers[i]);
    for (int round = 0; round < ROUNDS; round++) {
        desc plan = round % 2 ? w->plan : norm_plan(own);
        w->number = (float)(round % 3) * 0.25f + 1e-5f;
        mica_upload(memory, pointers[0], w->x, COUNT * 4, NULL);
        w->failures += run_with(own, plan, pointers) != CUDNN_STATUS_SUCCESS;
        mica_download(memory, w->y, pointers[1], COUNT * 4, NULL);
        w->failures += !is_right(w);
        if (!(round % 2)) cudnnBackendDestroyDescriptor(plan);
    }
    for (int i = 0; i < 2; i++) mica_free(memory, pointers[i]);
    w->failures += cudnnDestroy(own) != CUDNN_STATUS_SUCCESS;
    return NULL;
}

static void threads(void **unused)
{
    (void)unused;
    pthread_t thread[THREADS];
    worker workers[THREADS] = {{0}};
    desc plan = norm_plan(handle);
    for (int i = 0; i < THREADS; i++) {
        workers[i].plan = plan;
        workers[i].x = calloc(COUNT, sizeof(float));
        workers[i].y = calloc(COUNT, sizeof(float));
        for (int k = 0; k < COUNT; k++) workers[i].x[k] = (float)(draw(65) - 32) / 16;
        assert_int_equal(pthread_create(&thread[i], NULL, work, &workers[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(thread[i], NULL);
        assert_int_equal(workers[i].failures, 0);
        free(workers[i].x);
        free(workers[i].y);
    }
    drop(plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(threads)};
    return cmocka_run_group_tests(tests, open_device, close_device);
}
