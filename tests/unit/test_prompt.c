/* SPDX-License-Identifier: Apache-2.0
 * Prompt plans, on a driver and a compiler that keep books: an engine stands in while another one
 * is compiled, runs change over afterwards and never within a capture, and plans, contexts and
 * processes may end in between. */
#define _GNU_SOURCE
#include "mica/mica.h"
#include "base/memory.h"
#include "../fake/help.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>

static const char gemm[] = "gemm a=bf16:256x256 b=bf16:256x256";
static const mica_options prompt = {.prompt = true, .nondeterministic = true};
static mica_context *context;

static void set_compile_ms(int ms)
{
    fake_compile_ms_fn *set;
    help_find(help_nvrtc, "fake_compile_ms", &set);
    set(ms);
}

static void fail_to_compile(const char *name)
{
    fake_compile_fail_fn *set;
    help_find(help_nvrtc, "fake_compile_fail", &set);
    set(name);
}

/* ---- each test has a context and an empty kernel cache ---- */

static void forget_cache(void)
{
    char path[512];
    snprintf(path, sizeof path, "%s/cache", help_directory);
    help_remove_tree(path);
}

static int open_context(void **state)
{
    (void)state;
    forget_cache();
    return mica_context_create("cuda:0", &context) != MICA_OK;
}

/* Nothing is left, whatever was being compiled. */
static int close_context(void **state)
{
    (void)state;
    set_compile_ms(0);
    fail_to_compile("");
    mica_context_destroy(context);
    context = NULL;
    return help_books().modules || help_programs() || help_books().allocations ||
           help_books().streams;
}

static mica_plan *plan_of(const char *line, const mica_options *options)
{
    mica_plan *plan = NULL;
    if (mica_plan_from_text(context, line, options, &plan) != MICA_OK) fail_msg("%s", mica_error());
    return plan;
}

/* Compiles an engine's kernels, so that they are at hand. */
static size_t compile(const char *line, const char *engine)
{
    mica_plan *plan = plan_of(line, &(mica_options){.engine = engine, .nondeterministic = true});
    const size_t workspace = mica_plan_workspace(plan);
    mica_plan_destroy(plan);
    return workspace;
}

/* The engine that is planned without haste. */
static char *best_of(const char *line)
{
    static char name[64];
    mica_plan *plan = plan_of(line, &(mica_options){.nondeterministic = true});
    snprintf(name, sizeof name, "%s", mica_plan_engine(plan));
    mica_plan_destroy(plan);
    mica_context_destroy(context);
    assert_int_equal(open_context(NULL), 0);
    return name;
}

static mica_run memory_of(const mica_plan *plan)
{
    mica_run run = {0};
    mica_arg_info a;
    for (int i = 0; mica_plan_arg(plan, i, &a) == MICA_OK; i++)
        if (a.dir != MICA_UNUSED)
            assert_int_equal(mica_malloc(context, mica_tensor_span(&a.tensor, NULL), &run.args[i]),
                             MICA_OK);
    assert_int_equal(mica_malloc(context, (int64_t)mica_plan_workspace(plan), &run.workspace),
                     MICA_OK);
    return run;
}

static void free_memory(mica_run *run)
{
    for (int i = 0; i < MICA_MAX_ARGS; i++) mica_free(context, run->args[i]);
    mica_free(context, run->workspace);
}

static void run_plan(const mica_plan *plan, const mica_run *run)
{
    if (mica_plan_run(plan, run) != MICA_OK) fail_msg("%s", mica_error());
}

/* ---- options ---- */

static void options_that_contradict_it(void **state)
{
    (void)state;
    static const struct {
        mica_options options;
        const char *word;
    } wrong[] = {
        {{.prompt = true}, "nondeterministic"},
        {{.prompt = true, .nondeterministic = true, .packed = 1}, "packed"},
        {{.prompt = true, .nondeterministic = true, .mode = MICA_MODE_MEASURE}, "measure"},
    };
    mica_plan *plan;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(mica_plan_from_text(context, gemm, &wrong[i].options, &plan),
                         MICA_INVALID);
        assert_non_null(strstr(mica_error(), "prompt"));
        assert_non_null(strstr(mica_error(), wrong[i].word));
    }
    static const char network[] = "input x = f32:64\noutput y\nactivation act=relu x=@x y=@y\n";
    mica_graph *graph;
    mica_graph_plan *whole;
    const mica_graph_options o = {.nodes = &prompt};
    assert_int_equal(mica_graph_from_text(network, &graph), MICA_OK);
    assert_int_equal(mica_graph_plan_create(context, graph, &o, &whole), MICA_UNSUPPORTED);
    assert_non_null(strstr(mica_error(), "prompt"));
    const mica_graph_options replay = {.nodes = &prompt, .replay = true};
    assert_int_equal(mica_graph_plan_create(context, graph, &replay, &whole), MICA_UNSUPPORTED);
    assert_non_null(strstr(mica_error(), "prompt"));
    mica_graph_destroy(graph);
}

static void a_cpu_has_nothing_to_compile(void **state)
{
    (void)state;
    mica_context *cpu;
    mica_plan *plan;
    assert_int_equal(mica_context_create("cpu", &cpu), MICA_OK);
    assert_int_equal(mica_plan_from_text(cpu, gemm, &prompt, &plan), MICA_OK);
    assert_string_equal(mica_plan_pending(plan), "");
    assert_int_equal(mica_plan_await(plan), MICA_OK);
    mica_plan_destroy(plan);
    mica_context_destroy(cpu);
    assert_int_equal(mica_plan_await(NULL), MICA_INVALID);
    assert_string_equal(mica_plan_pending(NULL), "");
}

/* ---- who stands in ---- */

static void what_is_at_hand_is_taken_at_once(void **state)
{
    (void)state;
    char *best = best_of(gemm);
    compile(gemm, best);
    const long before = help_compiles();
    mica_plan *plan = plan_of(gemm, &prompt);
    assert_string_equal(mica_plan_engine(plan), best);
    assert_string_equal(mica_plan_pending(plan), "");
    assert_int_equal(mica_plan_await(plan), MICA_OK);
    assert_int_equal(help_compiles(), before);
    mica_plan_destroy(plan);
}

static void another_engine_stands_in(void **state)
{
    (void)state;
    char *best = best_of(gemm);
    assert_string_equal(best, "sm90");
    const size_t small = compile(gemm, "sm80");
    set_compile_ms(400);
    const long before = help_compiles();
    mica_plan *plan = plan_of(gemm, &prompt);
    assert_string_equal(mica_plan_engine(plan), "sm80");
    assert_non_null(strstr(mica_plan_pending(plan), "sm90"));
    assert_non_null(strstr(mica_plan_pending(plan), "is being compiled, sm80 stands in"));
    const size_t workspace = mica_plan_workspace(plan);
    assert_true(workspace >= small);
    mica_kernel_info kernel;
    assert_int_equal(mica_plan_kernel(plan, 0, &kernel), MICA_OK);
    assert_string_equal(kernel.entry, "gemm_sm80");
    mica_contract covers, contract;
    assert_int_equal(mica_plan_contract(plan, &covers, NULL), MICA_OK);

    mica_run run = memory_of(plan);
    run_plan(plan, &run);
    assert_string_equal(help_launch().kernel, "gemm_sm80");
    if (mica_plan_await(plan) != MICA_OK) fail_msg("%s", mica_error());
    const long compiled = help_compiles();
    assert_true(compiled > before);
    assert_string_equal(mica_plan_engine(plan), "sm90");
    assert_string_equal(mica_plan_pending(plan), "");
    assert_int_equal(mica_plan_kernel(plan, 0, &kernel), MICA_OK);
    assert_string_equal(kernel.entry, "gemm_sm90");
    assert_int_equal(mica_plan_workspace(plan), workspace);
    run_plan(plan, &run);
    assert_string_equal(help_launch().kernel, "gemm_sm90");

    /* The same options find the same plan; others make one of their own, whose kernels are there.
     */
    mica_plan *again = plan_of(gemm, &prompt);
    assert_ptr_equal(again, plan);
    mica_plan_destroy(again);
    for (int i = 0; i < 2; i++) {
        again = plan_of(gemm, &(mica_options){.engine = i ? "sm80" : "sm90"});
        assert_ptr_not_equal(again, plan);
        assert_true(workspace >= mica_plan_workspace(again));
        assert_int_equal(mica_plan_contract(again, &contract, NULL), MICA_OK);
        assert_true(covers.n_seq >= contract.n_seq && covers.k_inst >= contract.k_inst);
        assert_true(covers.truncates >= contract.truncates);
        mica_plan_destroy(again);
    }
    assert_int_equal(help_compiles(), compiled);
    free_memory(&run);
    mica_plan_destroy(plan);
}

/* conv's slabs take seconds to compile; nothing at all is at hand. */
static void the_quicker_one_is_compiled_first(void **state)
{
    (void)state;
    static const char conv[] = "conv x=f16:8x64x56x56:nhwc w=f16:64x64x3x3:nhwc pad=1x1";
    char *best = best_of(conv);
    assert_string_equal(best, "sm90_stream");
    mica_plan *plan = plan_of(conv, &prompt);
    const char *first = mica_plan_engine(plan);
    assert_string_not_equal(first, best);
    assert_non_null(strstr(mica_plan_pending(plan), best));
    if (mica_plan_await(plan) != MICA_OK) fail_msg("%s", mica_error());
    assert_string_equal(mica_plan_engine(plan), best);
    mica_plan_destroy(plan);
}

static void without_another_it_waits(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        mica_options o = prompt;
        if (i) o.engine = "sm90"; /* no other may stand in */
        if (i) compile(gemm, "sm80");
        mica_plan *plan = plan_of(gemm, &o);
        assert_string_equal(mica_plan_engine(plan), "sm90");
        assert_string_equal(mica_plan_pending(plan), "");
        mica_plan_destroy(plan);
        assert_int_equal(close_context(NULL), 0);
        assert_int_equal(open_context(NULL), 0);
    }
}

static void a_limit_holds_for_both(void **state)
{
    (void)state;
    compile(gemm, "sm80");
    set_compile_ms(100);
    mica_options o = prompt;
    o.workspace_limit = MICA_NO_WORKSPACE;
    mica_plan *plan = plan_of(gemm, &o);
    assert_int_equal(mica_plan_workspace(plan), 0);
    assert_int_equal(mica_plan_await(plan), MICA_OK);
    mica_plan_destroy(plan);
}

/* An operation of others has one engine: its children are prompt. */
static void children_are_prompt(void **state)
{
    (void)state;
    static const char line[] = "mha q=bf16:2x256x256 heads=4";
    mica_kernel_info kernel;
    mica_plan *plan = plan_of(line, &prompt);
    assert_string_equal(mica_plan_pending(plan), ""); /* nothing stood in: they were waited for */
    int kernels = 0;
    bool sm80 = false, sm90 = false;
    for (; mica_plan_kernel(plan, kernels, &kernel) == MICA_OK; kernels++)
        sm90 |= !strcmp(kernel.entry, "gemm_sm90");
    assert_true(kernels > 2 && sm90);
    mica_plan_destroy(plan);
    assert_int_equal(close_context(NULL), 0);
    assert_int_equal(open_context(NULL), 0);

    compile("gemm a=bf16:512x256 b=bf16:256x256:t", "sm80");
    compile("attention q=bf16:2x4x256x64:bshd lse=f32:2x4x256", "sm80");
    set_compile_ms(100);
    plan = plan_of(line, &prompt);
    const bool pending = *mica_plan_pending(plan);
    for (int i = 0; mica_plan_kernel(plan, i, &kernel) == MICA_OK; i++)
        sm80 |= !strcmp(kernel.entry, "gemm_sm80");
    assert_true(pending);
    assert_true(sm80);
    if (mica_plan_await(plan) != MICA_OK) fail_msg("%s", mica_error());
    assert_string_equal(mica_plan_pending(plan), "");
    for (int i = 0; mica_plan_kernel(plan, i, &kernel) == MICA_OK; i++)
        assert_string_not_equal(kernel.entry, "gemm_sm80");
    mica_plan_destroy(plan);
}

/* ---- failures ---- */

static void it_stays_where_compiling_fails(void **state)
{
    (void)state;
    compile(gemm, "sm80");
    fail_to_compile("sm90.cu");
    set_compile_ms(100);
    mica_plan *plan = plan_of(gemm, &prompt);
    const char *before = mica_plan_pending(plan);
    assert_int_equal(mica_plan_await(plan), MICA_COMPILE_FAILED);
    assert_non_null(strstr(mica_error(), "it is told to fail"));
    assert_non_null(strstr(before, "is being compiled, sm80 stands in")); /* still good */
    assert_non_null(strstr(mica_plan_pending(plan), "cannot be had, sm80 stays"));
    assert_non_null(strstr(mica_plan_pending(plan), "it is told to fail"));
    assert_string_equal(mica_plan_engine(plan), "sm80");
    mica_run run = memory_of(plan);
    run_plan(plan, &run);
    assert_string_equal(help_launch().kernel, "gemm_sm80");
    free_memory(&run);
    mica_plan_destroy(plan);
}

/* The thread has nothing of a plan that is gone: AddressSanitizer tells. */
static void it_fails_after_its_plan_is_gone(void **state)
{
    (void)state;
    compile(gemm, "sm80");
    mica_context_cache_limit(context, 0);
    fail_to_compile("sm90.cu");
    set_compile_ms(150);
    mica_plan *plan = plan_of(gemm, &prompt);
    usleep(50000); /* it is being compiled */
    mica_plan_destroy(plan);
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    compile(gemm, "sm80");
    for (long n = 1;; n += n < 80 ? 1 : 11) {
        mica_plan *plan = NULL;
        mica_context *c = NULL;
        assert_int_equal(mica_context_create("cuda:0", &c), MICA_OK);
        mica_fault_set(MICA_FAULT_ALLOC, n, false);
        mica_status status = mica_plan_from_text(c, gemm, &prompt, &plan);
        if (status == MICA_OK) status = mica_plan_await(plan);
        const long seen = mica_fault_count(MICA_FAULT_ALLOC);
        mica_fault_set(MICA_FAULT_ALLOC, 0, false);
        if (plan) assert_true(*mica_plan_engine(plan));
        mica_plan_destroy(plan);
        mica_context_destroy(c);
        /* what was compiled would be at hand the next time */
        forget_cache();
        compile(gemm, "sm80");
        if (seen < n) {
            assert_int_equal(status, MICA_OK);
            assert_true(n > 30);
            break;
        }
    }
}

static void loading_may_fail(void **state)
{
    (void)state;
    compile(gemm, "sm80");
    mica_plan *held = plan_of(gemm, &(mica_options){.engine = "sm80"});
    help_fail("cuModuleLoadData", 200, 1, false); /* in the background: sm80 is loaded */
    mica_plan *plan = plan_of(gemm, &prompt);
    assert_int_not_equal(mica_plan_await(plan), MICA_OK);
    assert_string_equal(mica_plan_engine(plan), "sm80");
    assert_non_null(strstr(mica_plan_pending(plan), "sm80 stays"));
    help_fail("*", 0, 0, false);
    mica_plan_destroy(plan);
    mica_plan_destroy(held);
}

/* ---- ends ---- */

static void plans_and_contexts_end_meanwhile(void **state)
{
    (void)state;
    enum { PLANS = 6 };
    for (int outlives = 0; outlives < 2; outlives++) {
        mica_plan *plans[PLANS];
        compile(gemm, "sm80");
        mica_context_cache_limit(context, 0); /* plans end when they are destroyed */
        set_compile_ms(150);
        for (int i = 0; i < PLANS; i++) { /* one or two are compiled, others wait */
            char line[96];
            snprintf(line, sizeof line, "%s epilogue=%s", gemm,
                     (const char *[]){"relu", "gelu", "silu", "tanh", "sigmoid", "elu"}[i]);
            compile(line, "sm80");
            plans[i] = plan_of(line, &prompt);
            assert_string_equal(mica_plan_engine(plans[i]), "sm80");
        }
        if (outlives) mica_context_destroy(context);
        for (int i = 0; i < PLANS; i++) mica_plan_destroy(plans[i]);
        if (!outlives) mica_context_destroy(context);
        for (int i = 0; outlives && i < 200 && help_books().modules; i++) usleep(20000);
        assert_int_equal(help_books().modules, 0);
        set_compile_ms(0);
        assert_int_equal(open_context(NULL), 0);
    }
}

/* ThreadSanitizer's part of OpenMP does not survive exit() in a child of several threads, and what
 * the parent's threads hold is lost there, which LeakSanitizer reports. */
#if defined(__SANITIZE_ADDRESS__)
enum { SANITIZED = 1 };
#elif defined(__has_feature)
enum { SANITIZED = __has_feature(thread_sanitizer) || __has_feature(address_sanitizer) };
#else
enum { SANITIZED = 0 };
#endif
static void end_child(int status)
{
    if (SANITIZED) _exit(status);
    exit(status);
}

static void a_child_keeps_what_it_has(void **state)
{
    (void)state;
    int status;
    compile(gemm, "sm80");
    set_compile_ms(300);
    mica_plan *plan = plan_of(gemm, &prompt);
    pid_t pid = fork();
    if (pid == 0) {
        mica_run run = {0};
        alarm(20);
        if (mica_plan_await(plan) != MICA_FORKED_PROCESS) _exit(1);
        if (strcmp(mica_plan_engine(plan), "sm80") != 0) _exit(2);
        if (mica_plan_run(plan, &run) == MICA_OK) _exit(3);
        mica_plan_destroy(plan);
        mica_context_destroy(context);
        end_child(42);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 42);
    assert_int_equal(mica_plan_await(plan), MICA_OK);
    assert_string_equal(mica_plan_engine(plan), "sm90");
    mica_plan_destroy(plan);
}

/* In a fresh process, before this one uses the library: exit() waits for the compiler. */
static int exits_while_compiling(void)
{
    int status = 0;
    pid_t pid = fork();
    if (pid == 0) {
        alarm(20);
        if (open_context(NULL) != 0) _exit(1);
        mica_plan *plan;
        const mica_options sm80 = {.engine = "sm80"};
        if (mica_plan_from_text(context, gemm, &sm80, &plan) != MICA_OK) _exit(2);
        set_compile_ms(300);
        if (mica_plan_from_text(context, gemm, &prompt, &plan) != MICA_OK) _exit(3);
        if (!*mica_plan_pending(plan)) _exit(4);
        usleep(100000);
        exit(help_programs() >= 1 ? 42 : 5);
    }
    if (waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 42) return 0;
    fprintf(stderr, "exit() while a plan is compiled: status 0x%x\n", (unsigned)status);
    return 1;
}

/* ---- captures ---- */

static void captures_keep_their_engine(void **state)
{
    (void)state;
    int (*begin)(void *, int), (*end)(void *, void **),
        (*instantiate)(void **, void *, unsigned long long);
    int (*launch)(void *, void *), (*drop)(void *), (*drop_exec)(void *), (*push)(void *);
    int (*retain)(void **, int), (*release)(int);
    void *device, *stream, *graph, *exec;
    help_find(help_driver, "cuStreamBeginCapture_v2", &begin);
    help_find(help_driver, "cuStreamEndCapture", &end);
    help_find(help_driver, "cuGraphInstantiateWithFlags", &instantiate);
    help_find(help_driver, "cuGraphLaunch", &launch);
    help_find(help_driver, "cuGraphDestroy", &drop);
    help_find(help_driver, "cuGraphExecDestroy", &drop_exec);
    help_find(help_driver, "cuDevicePrimaryCtxRetain", &retain);
    help_find(help_driver, "cuDevicePrimaryCtxRelease_v2", &release);
    help_find(help_driver, "cuCtxPushCurrent_v2", &push);
    assert_int_equal(retain(&device, 0), 0);
    assert_int_equal(push(device), 0);
    compile(gemm, "sm80");
    set_compile_ms(100);
    mica_plan *plan = plan_of(gemm, &prompt);
    mica_run run = memory_of(plan);
    assert_int_equal(mica_stream_create(context, &stream), MICA_OK);
    run.stream = stream;
    assert_int_equal(begin(stream, 0), 0); /* of the mode that forbids others' loading */
    run_plan(plan, &run);
    if (mica_plan_await(plan) != MICA_OK) fail_msg("%s", mica_error());
    run_plan(plan, &run);
    assert_int_equal(end(stream, &graph), 0);
    assert_int_equal(instantiate(&exec, graph, 0), 0);
    assert_int_equal(launch(exec, stream), 0);
    assert_string_equal(help_launch().kernel, "gemm_sm80");
    run_plan(plan, &run);
    assert_string_equal(help_launch().kernel, "gemm_sm90");
    assert_int_equal(launch(exec, stream), 0); /* its kernels are still there */
    assert_string_equal(help_launch().kernel, "gemm_sm80");
    drop_exec(exec);
    drop(graph);
    mica_stream_destroy(context, stream);
    free_memory(&run);
    mica_plan_destroy(plan);
    int (*pop)(void **);
    help_find(help_driver, "cuCtxPopCurrent_v2", &pop);
    pop(&device);
    release(0);
}

/* ---- threads ---- */

enum { THREADS = 4 };
static atomic_int ended;

static void *run_until_over(void *user)
{
    const mica_run *run = user;
    mica_plan *plan;
    if (mica_plan_from_text(context, gemm, &prompt, &plan) != MICA_OK) return "no plan";
    char *wrong = NULL;
    for (int i = 0; !wrong && (i < 50 || atomic_load(&ended) == 0); i++) {
        if (mica_plan_run(plan, run) != MICA_OK) wrong = "no run";
        if (!*mica_plan_engine(plan) || strlen(mica_plan_pending(plan)) > 1000) wrong = "no name";
    }
    mica_plan_destroy(plan);
    return wrong;
}

static void threads_share_one(void **state)
{
    (void)state;
    pthread_t threads[THREADS];
    compile(gemm, "sm80");
    set_compile_ms(200);
    mica_plan *plan = plan_of(gemm, &prompt);
    mica_run run = memory_of(plan);
    atomic_store(&ended, 0);
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, run_until_over, &run), 0);
    assert_int_equal(mica_plan_await(plan), MICA_OK);
    run_plan(plan, &run);
    atomic_store(&ended, 1);
    for (int i = 0; i < THREADS; i++) {
        void *wrong;
        pthread_join(threads[i], &wrong);
        if (wrong) fail_msg("%s", (char *)wrong);
    }
    assert_string_equal(mica_plan_engine(plan), "sm90");
    free_memory(&run);
    mica_plan_destroy(plan);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_context, close_context)

int main(void)
{
    help_begin(__FILE__);
    help_fakes();
    unsetenv("MICA_KERNEL_DIR"); /* the kernels are mica's own */
    const struct CMUnitTest tests[] = {
        TEST(options_that_contradict_it),
        TEST(a_cpu_has_nothing_to_compile),
        TEST(what_is_at_hand_is_taken_at_once),
        TEST(another_engine_stands_in),
        TEST(the_quicker_one_is_compiled_first),
        TEST(without_another_it_waits),
        TEST(a_limit_holds_for_both),
        TEST(children_are_prompt),
        TEST(it_stays_where_compiling_fails),
        TEST(it_fails_after_its_plan_is_gone),
        TEST(every_allocation_may_fail),
        TEST(loading_may_fail),
        TEST(plans_and_contexts_end_meanwhile),
        TEST(a_child_keeps_what_it_has),
        TEST(captures_keep_their_engine),
        TEST(threads_share_one),
    };
    int failed = exits_while_compiling();
    failed += cmocka_run_group_tests(tests, NULL, NULL);
    help_end();
    return failed;
}
