/* SPDX-License-Identifier: Apache-2.0
 * Plans on the CPU: problem lines, refusals, pointer checks, options. */
#include "plan.h"
#include "plan/context.h"

#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- lines ---- */

static void lines_are_canonical(void **state)
{
    (void)state;
    const char *const rows[][2] = {
        {"activation act=relu x=f32:2x3", "activation act=relu x=f32:2x3"},
        {" activation  x=f32:2x3:nchw act=relu y=f32:2x3 ", "activation act=relu x=f32:2x3"},
        {"activation x=f32:2x3:nwc", NULL},
        {"activation act=leaky_relu act_a=0.01 x=f32:4", "activation act=leaky_relu x=f32:4"},
        {"activation gated=1 axis=-1 x=f32:2x4", "activation x=f32:2x4 gated=1 axis=1"},
        {"activation x=f32:2x3 y=bf16:2x3", "activation x=f32:2x3 y=bf16:2x3"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        mica_problem *p, *again;
        char text[512], second[512];
        mica_status status = mica_problem_from_text(rows[i][0], &p);
        assert_int_equal(status, MICA_OK);
        mica_problem_text(p, text, sizeof text);
        if (rows[i][1]) assert_string_equal(text, rows[i][1]);
        assert_int_equal(mica_problem_from_text(text, &again), MICA_OK);
        mica_problem_text(again, second, sizeof second);
        assert_string_equal(text, second);
        mica_problem_destroy(p);
        mica_problem_destroy(again);
    }
}

static void bad_lines_name_the_value_and_the_rule(void **state)
{
    (void)state;
    const char *const rows[][2] = {
        {"", "is no operation"},
        {"activate x=f32:2", "\"activate\" is no operation"},
        {"activation", "x is needed"},
        {"activation y", "name=value"},
        {"activation z=3", "no field z"},
        {"activation x=f32:2 x=f32:3", "stands twice"},
        {"activation act=rely x=f32:2", "known are identity, relu"},
        {"activation x=s8:4", "x is s8"},
        {"activation gated=1 axis=1 x=f32:2x5", "5 elements along axis 1"},
        {"activation gated=1 axis=2 x=f32:2x4", "axis is 2, x has 2"},
        {"activation x=f32:2x3 y=f32:2x4", "dimension 1 of y is 4, of x 3"},
        {"activation x=f32:2x3 y=f32:2x3:1x1", "share memory"},
        {"activation x=f32:4294967296x4294967296", "63 bits"},
        {"activation x=f32:2 alpha=x", "not a finite number"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        mica_plan *plan = NULL;
        assert_int_equal(mica_plan_from_text(ctx, rows[i][0], NULL, &plan), MICA_INVALID);
        assert_null(plan);
        if (!strstr(mica_error(), rows[i][1])) fail_msg("%s: %s", rows[i][0], mica_error());
    }
}

static void null_pointers_are_statuses(void **state)
{
    (void)state;
    mica_plan *plan;
    mica_run run = {0};
    assert_int_equal(mica_context_create("cpu", NULL), MICA_INVALID);
    assert_int_equal(mica_plan_from_text(NULL, "activation x=f32:1", NULL, &plan), MICA_INVALID);
    assert_int_equal(mica_plan_from_text(ctx, NULL, NULL, &plan), MICA_INVALID);
    assert_int_equal(mica_plan_create(ctx, "activation", NULL, 0, NULL, &plan), MICA_INVALID);
    assert_int_equal(mica_plan_create(ctx, "nothing", "", 0, NULL, &plan), MICA_INVALID);
    assert_int_equal(mica_plan_run(NULL, &run), MICA_INVALID);
    mica_plan_destroy(NULL);
    mica_context_destroy(NULL);
    mica_problem_destroy(NULL);
}

static void unknown_devices_are_refused(void **state)
{
    (void)state;
    mica_context *c = NULL;
    const char *const names[] = {"gpu", "cuda:x", "cuda:-1", "cuda:999", "sm_12", ""};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        assert_int_not_equal(mica_context_create(names[i], &c), MICA_OK);
        assert_null(c);
        assert_true(strlen(mica_error()) > 5);
    }
}

/* ---- runs ---- */

static void run_checks_pointers(void **state)
{
    (void)state;
    mica_plan *plan = plan_of("activation act=relu x=f32:8");
    float x[16] = {-1, 2, -3, 4, -5, 6, -7, 8}, y[8];
    char *odd = (char *)x + 1;
    const struct {
        void *x, *y;
        mica_status status;
        const char *says;
    } rows[] = {{x, y, MICA_OK, NULL},
                {x, x, MICA_OK, NULL}, /* in place */
                {NULL, y, MICA_INVALID, "pointer of x is NULL"},
                {x, NULL, MICA_INVALID, "pointer of y is NULL"},
                {odd, y, MICA_INVALID, "4-byte alignment"},
                {x, x + 1, MICA_INVALID, "overlaps"},
                {x + 7, x, MICA_INVALID, "overlaps"},
                {x + 8, x, MICA_OK, NULL}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        mica_run run = {.args = {rows[i].x, rows[i].y}};
        assert_int_equal(mica_plan_run(plan, &run), rows[i].status);
        if (rows[i].says) assert_non_null(strstr(mica_error(), rows[i].says));
    }
    mica_plan_destroy(plan);
}

/* Memory after which the next page may not be touched. */
static void *at_the_end_of_a_page(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(pages, MAP_FAILED);
    assert_int_equal(mprotect(pages + page, page, PROT_NONE), 0);
    return pages + page - bytes;
}

/* A caller that knows fewer arguments, or more, than this library. Engines look at a, b, c, bias.
 */
static void runs_of_any_size(void **state)
{
    (void)state;
    mica_plan *plan = plan_of("gemm a=f32:2x2 b=f32:2x2 epilogue=bias");
    float a[] = {1, 2, 3, 4}, b[] = {1, 0, 0, 1}, c[4], bias[] = {10, 20};
    float *args[MICA_GEMM_BIAS + 1] = {
        [MICA_GEMM_A] = a, [MICA_GEMM_B] = b, [MICA_GEMM_C] = c, [MICA_GEMM_BIAS] = bias};
    const size_t given = sizeof args / sizeof *args;
    const size_t head = offsetof(mica_run, args), each = sizeof(void *);
    const struct {
        size_t size;
        const char *says;
    } rows[] = {{head + given * each, NULL},
                {head + (given + 1) * each - 1, NULL},
                {sizeof(mica_run), NULL},
                {sizeof(mica_run) + 9 * each, NULL},
                {head + (given - 1) * each, "pointer of bias is NULL"},
                {head, "pointer of a is NULL"},
                {head - 1, "the run's size is 31 bytes, it has at least 32"},
                {1, "the run's size is 1 bytes"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        /* Only the size may be read of one that is too short. */
        size_t bytes = rows[i].size < head ? sizeof(size_t) : rows[i].size;
        mica_run *run = at_the_end_of_a_page((bytes + each - 1) / each * each);
        run->size = rows[i].size;
        for (size_t k = 0; k < given && head + (k + 1) * each <= bytes; k++) run->args[k] = args[k];
        memset(c, 0, sizeof c);
        mica_status status = mica_plan_run(plan, run);
        assert_int_equal(status, rows[i].says ? MICA_INVALID : MICA_OK);
        if (rows[i].says) assert_non_null(strstr(mica_error(), rows[i].says));
        if (!rows[i].says) assert_memory_equal(c, ((float[]){11, 22, 13, 24}), sizeof c);
    }
    mica_plan_destroy(plan);
}

static void in_place_needs_equal_tensors(void **state)
{
    (void)state;
    mica_plan *plan = plan_of("activation act=relu x=f32:2x4 y=f32:2x4:t");
    float x[8];
    mica_run run = {.args = {x, x}};
    assert_int_equal(mica_plan_run(plan, &run), MICA_INVALID);
    mica_plan_destroy(plan);
}

static void zero_size_runs_do_nothing(void **state)
{
    (void)state;
    mica_plan *plan = plan_of("activation act=relu x=f32:3x0");
    mica_run run = {0};
    assert_int_equal(mica_plan_run(plan, &run), MICA_OK);
    mica_plan_destroy(plan);
}

static void offline_devices_plan_but_do_not_run(void **state)
{
    (void)state;
    mica_context *c;
    mica_plan *plan;
    assert_int_equal(mica_context_create("sm_90a", &c), MICA_OK);
    mica_status status = mica_plan_from_text(c, "activation act=relu x=f32:8", NULL, &plan);
    if (status == MICA_NO_COMPILER) {
        print_message("NVRTC is not here: planning for sm_90a not tested\n");
    } else {
        assert_int_equal(status, MICA_OK);
        float x[8] = {0}, y[8];
        mica_run run = {.args = {x, y}};
        assert_int_equal(mica_plan_run(plan, &run), MICA_NO_DEVICE);
        mica_plan_destroy(plan);
    }
    mica_context_destroy(c);
}

/* ---- options ---- */

static void engines_can_be_named(void **state)
{
    (void)state;
    mica_plan *plan;
    mica_options o = {.engine = "ref"};
    assert_int_equal(mica_plan_from_text(ctx, "activation x=f32:8", &o, &plan), MICA_OK);
    assert_string_equal(mica_plan_engine(plan), "ref");
    mica_plan_destroy(plan);
    o.engine = "sm90_that_is_not";
    assert_int_equal(mica_plan_from_text(ctx, "activation x=f32:8", &o, &plan), MICA_UNSUPPORTED);
    assert_non_null(strstr(mica_error(), "another engine was asked for"));
    o = (mica_options){.mode = (mica_mode)9};
    assert_int_equal(mica_plan_from_text(ctx, "activation x=f32:8", &o, &plan), MICA_INVALID);
    o = (mica_options){.workspace_limit = -7};
    assert_int_equal(mica_plan_from_text(ctx, "activation x=f32:8", &o, &plan), MICA_INVALID);
    o = (mica_options){.workspace_limit = MICA_NO_WORKSPACE};
    assert_int_equal(mica_plan_from_text(ctx, "activation x=f32:8", &o, &plan), MICA_OK);
    assert_int_equal(mica_plan_workspace(plan), 0);
    mica_plan_destroy(plan);
}

/* A verdict under options says what a plan with that engine and these options would come to. */
static void verdicts_take_options(void **state)
{
    (void)state;
    mica_problem *p;
    mica_verdict v;
    const mica_options none = {.workspace_limit = MICA_NO_WORKSPACE, .nondeterministic = true};
    int refused = 0, taken = 0;
    assert_int_equal(mica_problem_from_text("conv x=f32:2x16x28x28:nhwc w=f32:16x16x3x3:nhwc "
                                            "pad=1x1",
                                            &p),
                     MICA_OK);
    for (int i = 0; mica_problem_verdict(ctx, p, i, &v) == MICA_OK; i++) {
        if (v.status != MICA_OK) continue;
        mica_plan *plan, *small = NULL;
        mica_options o = {.engine = v.engine, .nondeterministic = true};
        assert_int_equal(mica_plan_problem(ctx, p, &o, &plan), MICA_OK);
        o.workspace_limit = MICA_NO_WORKSPACE;
        mica_status status = mica_plan_problem(ctx, p, &o, &small);
        assert_int_equal(mica_problem_verdict_with(ctx, p, &none, i, &v), MICA_OK);
        assert_int_equal(v.status, status);
        taken += v.status == MICA_OK;
        if (v.status != MICA_OK) {
            char want[80];
            snprintf(want, sizeof want, "workspace of %zu bytes > limit of 0",
                     mica_plan_workspace(plan));
            assert_string_equal(v.reason, want);
            refused++;
        }
        mica_plan_destroy(plan);
        mica_plan_destroy(small);
    }
    assert_true(refused > 0 && taken > 0);
    /* The engine that was asked for, and why not the others; those that refuse say their own. */
    const mica_options named = {.engine = "ref"}, wrong = {.workspace_limit = -7};
    int asked = 0;
    for (int i = 0; mica_problem_verdict_with(ctx, p, &named, i, &v) == MICA_OK; i++) {
        if (!strcmp(v.engine, "ref")) assert_int_equal(v.status, MICA_OK);
        if (strcmp(v.engine, "ref") != 0) assert_int_equal(v.status, MICA_UNSUPPORTED);
        asked += !strcmp(v.reason, "another engine was asked for");
    }
    assert_true(asked > 0);
    /* One that is only taken by name is judged as though it were named. */
    bool fft = false;
    for (int i = 0; mica_problem_verdict_with(ctx, p, NULL, i, &v) == MICA_OK; i++)
        fft |= !strcmp(v.engine, "fft") && v.status == MICA_OK && v.by_name;
    assert_true(fft);
    assert_int_equal(mica_problem_verdict_with(ctx, p, &wrong, 0, &v), MICA_INVALID);
    assert_int_equal(mica_problem_verdict_with(ctx, p, NULL, 1000, &v), MICA_INVALID);
    assert_int_equal(mica_problem_verdict_with(ctx, NULL, NULL, 0, &v), MICA_INVALID);
    mica_problem_destroy(p);
}

/* What plan.h says of NULL, of mica_malloc and of pointers. */
static void alignments(void **state)
{
    (void)state;
    mica_context *c, *chosen;
    mica_device_info by_null, by_name;
    mica_plan *plan;
    assert_int_equal(mica_context_create(NULL, &c), MICA_OK);
    assert_int_equal(mica_context_create("auto", &chosen), MICA_OK);
    assert_int_equal(mica_context_info(c, &by_null), MICA_OK);
    assert_int_equal(mica_context_info(chosen, &by_name), MICA_OK);
    assert_string_equal(by_null.name, by_name.name);
    mica_context_destroy(c);
    mica_context_destroy(chosen);
    assert_int_equal(mica_context_create("cpu", &c), MICA_OK);
    static const int64_t sizes[] = {0, 1, 255, 257, 4097, (4 << 20) - 1, 5 << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        void *memory = NULL;
        assert_int_equal(mica_malloc(c, sizes[i], &memory), MICA_OK);
        assert_non_null(memory);
        assert_int_equal((uintptr_t)memory % 256, 0);
        mica_free(c, memory);
    }
    /* An element's own alignment is enough, less is refused. */
    static const struct {
        const char *line;
        size_t bytes;
    } types[] = {{"activation act=relu x=f64:3", 8},
                 {"activation act=relu x=f32:3", 4},
                 {"activation act=relu x=bf16:3", 2},
                 {"transform x=u8:3", 1}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        _Alignas(64) char x[64] = {0}, y[64] = {0};
        assert_int_equal(mica_plan_from_text(c, types[i].line, NULL, &plan), MICA_OK);
        mica_run run = {.args = {x + types[i].bytes, y + types[i].bytes}};
        assert_int_equal(mica_plan_run(plan, &run), MICA_OK);
        run.args[0] = x + types[i].bytes / 2;
        assert_int_equal(mica_plan_run(plan, &run), types[i].bytes > 1 ? MICA_INVALID : MICA_OK);
        if (types[i].bytes > 1) assert_non_null(strstr(mica_error(), "-byte alignment"));
        mica_plan_destroy(plan);
    }
    mica_context_destroy(c);
}

/* What an engine leaves out of its table: it takes everything, and is as fast as it says. */
static void engines_that_say_little(void **state)
{
    (void)state;
    const mica_op *op = mica_op_find("transform");
    const mica_device_info device = {.copy_gbps = 100};
    mica_transform_desc d = {.x = mica_tensor_packed(MICA_F32, 1, (int64_t[]){1000000})}, full;
    mica_why why;
    assert_int_equal(mica_op_resolve(op, &d, sizeof d, &full, &why), MICA_OK);
    const double roofline = mica_roofline_ms(op, &full, &device);
    assert_true(roofline > 0);
    const mica_engine silent = {.name = "silent"}, plain = {.name = "plain", .reference = true};
    const mica_engine stated = {.name = "stated", .reached = 0.5, .start_ms = 3};
    assert_int_equal(mica_engine_accepts(&silent, &full, &device, &why), MICA_OK);
    assert_true(mica_engine_predict(&stated, op, &full, &device) == 3 + roofline / 0.5);
    assert_true(mica_engine_predict(&silent, op, &full, &device) > 9 * roofline);
    assert_true(mica_engine_predict(&plain, op, &full, &device) >
                50 * mica_engine_predict(&silent, op, &full, &device));
}

/* What operations may have at most. */
static void operations_fit(void **state)
{
    (void)state;
    for (int i = 0; i < mica_op_count; i++) {
        assert_in_range(mica_ops[i]->arg_count, 1, MICA_MAX_ARGS);
        assert_in_range(mica_ops[i]->desc_size, 1, MICA_MAX_DESC);
        assert_in_range(mica_ops[i]->scalar_count, 0, MICA_MAX_SCALARS);
        assert_in_range(mica_ops[i]->field_count, 1, 64);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_are_canonical),
        cmocka_unit_test(bad_lines_name_the_value_and_the_rule),
        cmocka_unit_test(null_pointers_are_statuses),
        cmocka_unit_test(unknown_devices_are_refused),
        cmocka_unit_test(run_checks_pointers),
        cmocka_unit_test(runs_of_any_size),
        cmocka_unit_test(in_place_needs_equal_tensors),
        cmocka_unit_test(zero_size_runs_do_nothing),
        cmocka_unit_test(offline_devices_plan_but_do_not_run),
        cmocka_unit_test(engines_can_be_named),
        cmocka_unit_test(verdicts_take_options),
        cmocka_unit_test(engines_that_say_little),
        cmocka_unit_test(operations_fit),
        cmocka_unit_test(alignments),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
