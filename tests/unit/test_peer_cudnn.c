/* SPDX-License-Identifier: Apache-2.0
 * Engine peer/cudnn on a library that keeps books: which graph it gets, which candidate is taken,
 * what a run hands over, and that nothing is left behind. */
#define _GNU_SOURCE
#include "mica/mica.h"
#include "../fake/fake_cudnn.h"
#include "../fake/help.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <cmocka.h>

enum { MATRIX_UNITS = 1 << 0, ROUNDS = 1 << 1, WINOGRAD_4 = 1 << 6 };

static mica_context *context;
static fake_cudnn *books;

static int begin(void **state)
{
    (void)state;
    fake_cudnn_fn *get;
    help_find(help_cudnn, "fake_cudnn_books", &get);
    books = get();
    return mica_context_create("cuda:0", &context) != MICA_OK;
}

static int finish(void **state)
{
    (void)state;
    mica_context_destroy(context);
    return 0;
}

static int fresh(void **state)
{
    (void)state;
    *books = (fake_cudnn){.alive = books->alive};
    return 0;
}

static mica_status plan_of(const char *line, const char *config, mica_plan **plan)
{
    mica_options o = {.engine = "peer/cudnn", .config = config, .nondeterministic = true};
    mica_context_cache_limit(context, 0);
    return mica_plan_from_text(context, line, &o, plan);
}

static void assert_refused(const char *line, const char *reason)
{
    mica_plan *plan;
    mica_status status = plan_of(line, NULL, &plan);
    if (status != MICA_UNSUPPORTED || !strstr(mica_error(), reason))
        fail_msg("%s: %d %s", line, status, mica_error());
}

static void assert_tensor(int i, int type, int is_virtual, const long long *dims,
                          const long long *strides, int rank)
{
    const fake_tensor *t = &books->tensors[i];
    assert_int_equal(t->rank, rank);
    assert_int_equal(t->type, type);
    assert_int_equal(t->is_virtual, is_virtual);
    for (int k = 0; k < rank; k++) {
        assert_int_equal(t->dims[k], dims[k]);
        assert_int_equal(t->strides[k], strides[k]);
    }
}

static void a_run_hands_over_what_the_plan_named(void **state)
{
    (void)state;
    mica_plan *plan;
    int stream;
    books->workspace = 512;
    assert_int_equal(plan_of("conv x=bf16:2x3x5x4:nhwc w=bf16:8x3x1x1", NULL, &plan), MICA_OK);
    assert_int_equal(mica_plan_workspace(plan), 512);
    /* the filter fits both layouts: it is given as the image is */
    assert_tensor(0, 9, 0, (long long[]){2, 3, 5, 4}, (long long[]){60, 1, 12, 3}, 4);
    assert_tensor(1, 9, 0, (long long[]){2, 8, 5, 4}, (long long[]){160, 1, 32, 8}, 4);
    assert_tensor(2, 9, 0, (long long[]){8, 3, 1, 1}, (long long[]){3, 1, 3, 3}, 4);
    void *workspace = aligned_alloc(256, 512);
    char *big = aligned_alloc(256, 4096);
    mica_run run = {
        .args = {big, big + 1024, big + 2048}, .workspace = workspace, .stream = &stream};
    assert_int_equal(mica_plan_run(plan, &run), MICA_OK);
    assert_int_equal(books->runs, 1);
    assert_int_equal(books->given, 3);
    assert_ptr_equal(books->stream, &stream);
    assert_ptr_equal(books->run_workspace, workspace);
    /* image, result, filter */
    assert_ptr_equal(books->pointers[0], big);
    assert_ptr_equal(books->pointers[1], big + 2048);
    assert_ptr_equal(books->pointers[2], big + 1024);
    for (int i = 0; i < 3; i++) assert_int_equal(books->ids[i], books->tensors[i].id);
    free(workspace);
    free(big);
    mica_plan_destroy(plan);
    assert_int_equal(books->alive, 0);
}

static void what_the_plan_does_not_cover_is_refused_by_runs(void **state)
{
    (void)state;
    mica_plan *plan;
    char *big = aligned_alloc(256, 4096);
    assert_int_equal(plan_of("conv x=f32:1x2x4x4 w=f32:2x2x3x3", NULL, &plan), MICA_OK);
    mica_run run = {.args = {big, big + 1024, big + 2048}, .scalars = (double[]){2, 0}};
    assert_int_equal(mica_plan_run(plan, &run), MICA_UNSUPPORTED);
    assert_non_null(strstr(mica_error(), "alpha is 2"));
    run.scalars = NULL;
    run.args[MICA_CONV_W] = big + 1028;
    assert_int_equal(mica_plan_run(plan, &run), MICA_UNSUPPORTED);
    assert_non_null(strstr(mica_error(), "multiples of 16"));
    assert_int_equal(books->runs, 0);
    free(big);
    mica_plan_destroy(plan);
}

static void assert_engine(const char *line, const char *config, int engine)
{
    mica_plan *plan;
    char *big = aligned_alloc(256, 4096);
    assert_int_equal(plan_of(line, config, &plan), MICA_OK);
    mica_run run = {.args = {big, big + 1024, big + 2048}};
    assert_int_equal(mica_plan_run(plan, &run), MICA_OK);
    assert_int_equal(books->engine, engine);
    free(big);
    mica_plan_destroy(plan);
    assert_int_equal(books->alive, 0);
}

static void candidates_are_chosen_by_their_notes(void **state)
{
    (void)state;
    static const char f32[] = "conv x=f32:1x2x4x4 w=f32:2x2x3x3",
                      tf32[] = "conv compute=tf32 x=f32:1x2x4x4 w=f32:2x2x3x3";
    mica_plan *plan;
    books->notes[0] = MATRIX_UNITS;
    books->notes[1] = ROUNDS;
    books->notes[2] = WINOGRAD_4;
    assert_engine(f32, "rank=0", 3);
    assert_engine(tf32, "rank=0", 0);
    assert_engine(tf32, "rank=1", 3);
    assert_int_equal(plan_of(tf32, "rank=2", &plan), MICA_UNSUPPORTED);
    assert_non_null(
        strstr(mica_error(), "number 2 of cuDNN's candidates was asked for, it has 2; 2 more"));
    /* the first that can be planned; a later one only if it can */
    books->unplannable = 1 << 0;
    assert_engine(tf32, "rank=0", 3);
    assert_int_equal(plan_of(tf32, "rank=1", &plan), MICA_OK);
    mica_plan_destroy(plan);
    books->unplannable = 1 << 0 | 1 << 3;
    assert_int_equal(plan_of(tf32, "rank=1", &plan), MICA_UNSUPPORTED);
    assert_refused(tf32, "3000: words of the fake");
    assert_int_equal(books->alive, 0);
    /* number 17 of filter gradients transforms without a note */
    fresh(NULL);
    books->index = 17;
    assert_engine(tf32, "rank=0", 0);
    assert_engine("conv pass=wgrad x=bf16:1x2x4x4 w=bf16:2x2x3x3", "rank=0", 1);
}

static void an_epilogue_is_a_chain_of_virtual_tensors(void **state)
{
    (void)state;
    mica_plan *plan;
    assert_int_equal(
        plan_of("conv x=bf16:2x3x6:nwc w=bf16:8x3x3:nwc epilogue=bias,residual,relu", NULL, &plan),
        MICA_OK);
    /* one axis is given as two */
    assert_tensor(0, 9, 0, (long long[]){2, 3, 1, 6}, (long long[]){18, 1, 18, 3}, 4);
    assert_tensor(1, 9, 0, (long long[]){2, 8, 1, 4}, (long long[]){32, 1, 32, 8}, 4);
    assert_tensor(3, 0, 1, (long long[]){2, 8, 1, 4}, (long long[]){32, 1, 32, 8}, 4);
    assert_tensor(4, 9, 0, (long long[]){2, 8, 1, 4}, (long long[]){32, 1, 32, 8}, 4);
    assert_tensor(5, 0, 1, (long long[]){2, 8, 1, 4}, (long long[]){32, 1, 32, 8}, 4);
    assert_tensor(6, 0, 0, (long long[]){1, 8, 1, 1}, (long long[]){8, 1, 8, 8}, 4);
    assert_tensor(7, 0, 1, (long long[]){2, 8, 1, 4}, (long long[]){32, 1, 32, 8}, 4);
    assert_int_equal(books->tensor_count, 8);
    mica_plan_destroy(plan);
    assert_int_equal(books->alive, 0);
}

static void refusals_carry_the_value_and_the_rule(void **state)
{
    (void)state;
    assert_refused("conv x=s8:1x4x4x4 w=s8:4x4x3x3", "inputs are s8");
    assert_refused("conv x=f32:0x4x4x4 w=f32:4x4x3x3", "without elements");
    assert_refused("conv x=f32:1x4x8x8 w=f32:4x4x3x3 pad=-1x0", "padding is -1");
    assert_refused("conv x=f32:1x4x4x4:90x20x5x1 w=f32:4x4x3x3", "x is neither packed");
    assert_refused("conv x=f32:1x4x4x4 w=f32:4x4x3x3 epilogue=gelu", "only relu");
    assert_refused("conv x=f32:1x4x4x4:nhwc w=f32:4x4x3x3", "some channels last");
    assert_refused("conv pass=wgrad x=f32:1x4x4x4 w=f32:4x4x3x3 pad_extra=1x0", "0 and 1");
    assert_refused("conv x=f32:1x4x4x4 w=f32:4x4x3x3 epilogue=bias bias=f32:4:2", "stride 2");
    assert_refused("conv x=f32:1x1x4 w=f32:1x1x2 pad=1500000000 dilation=1500000000", "31 bits");
    assert_int_equal(books->calls, 0);
}

static void no_call_that_fails_leaves_anything_behind(void **state)
{
    (void)state;
    const char line[] = "conv x=f32:1x2x4x4 w=f32:2x2x3x3 epilogue=bias,relu";
    mica_plan *plan;
    assert_int_equal(plan_of(line, "rank=0", &plan), MICA_OK);
    mica_plan_destroy(plan);
    long calls = books->calls;
    assert_true(calls > 60);
    for (long n = 1; n <= calls; n++) {
        books->calls = 0;
        books->fail_call = n;
        mica_status status = plan_of(line, "rank=0", &plan);
        if (status == MICA_OK)
            mica_plan_destroy(plan); /* a candidate fewer is no failure */
        else
            assert_int_equal(status, MICA_UNSUPPORTED);
        assert_int_equal(books->alive, 0);
    }
}

int main(void)
{
    help_begin(__FILE__);
    help_fakes();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_run_hands_over_what_the_plan_named, fresh),
        cmocka_unit_test_setup(what_the_plan_does_not_cover_is_refused_by_runs, fresh),
        cmocka_unit_test_setup(candidates_are_chosen_by_their_notes, fresh),
        cmocka_unit_test_setup(an_epilogue_is_a_chain_of_virtual_tensors, fresh),
        cmocka_unit_test_setup(refusals_carry_the_value_and_the_rule, fresh),
        cmocka_unit_test_setup(no_call_that_fails_leaves_anything_behind, fresh),
    };
    int failed = cmocka_run_group_tests(tests, begin, finish);
    help_end();
    return failed;
}
