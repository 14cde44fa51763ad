/* SPDX-License-Identifier: Apache-2.0
 * Plans on the CPU: problem lines, refusals, pointer checks, cache, records, faults, threads, fork.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "mica/mica.h"
#include "base/memory.h"
#include "plan/context.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static mica_context *ctx;

static int open_context(void **state)
{
    (void)state;
    return mica_context_create("cpu", &ctx) != MICA_OK;
}

static int close_context(void **state)
{
    (void)state;
    mica_context_destroy(ctx);
    return 0;
}

static mica_plan *plan_of(const char *line)
{
    mica_plan *plan;
    if (mica_plan_from_text(ctx, line, NULL, &plan) != MICA_OK) fail_msg("%s", mica_error());
    return plan;
}

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

static void records_choose(void **state)
{
    (void)state;
    const char *line = "activation act=tanh x=f32:33";
    char path[] = "/tmp/mica-records-XXXXXX";
    int fd = mkstemp(path);
    close(fd);
    mica_plan *plan;
    mica_options recorded = {.mode = MICA_MODE_RECORDED},
                 measure = {.mode = MICA_MODE_MEASURE, .measure_ms = 20};
    assert_int_equal(mica_plan_from_text(ctx, line, &recorded, &plan), MICA_NOT_FOUND);
    mica_context_keep_disturbed(ctx, true); /* other tests run beside it */
    assert_int_equal(mica_plan_from_text(ctx, line, &measure, &plan), MICA_OK);
    mica_plan_destroy(plan);
    assert_int_equal(mica_context_save_records(ctx, path), MICA_OK);
    mica_context *other;
    assert_int_equal(mica_context_create("cpu", &other), MICA_OK);
    assert_int_equal(mica_context_load_records(other, path), MICA_OK);
    assert_int_equal(mica_plan_from_text(other, line, &recorded, &plan), MICA_OK);
    assert_string_equal(mica_plan_engine(plan), "cpu");
    assert_true(mica_plan_measured(plan) > 0);
    mica_plan_destroy(plan);
    /* Bad lines are named and passed over. */
    FILE *f = fopen(path, "a");
    fprintf(f, "only | three | columns\n# a comment\na | b | c | d | x | e\n");
    fclose(f);
    assert_int_equal(mica_context_load_records(other, path), MICA_INVALID);
    assert_non_null(strstr(mica_error(), ":4:"));
    assert_int_equal(mica_context_load_records(other, "/nonexistent/records"), MICA_IO);
    mica_context_destroy(other);
    unlink(path);
}

/* A file that holds `text`, with this device's model for each @. */
static void write_records(const char *path, const char *text)
{
    mica_device_info info;
    mica_context_info(ctx, &info);
    FILE *f = fopen(path, "w");
    for (; *text; text++)
        if (*text == '@')
            fputs(info.model, f);
        else
            fputc(*text, f);
    fclose(f);
}

/* The engine that `line` gets from a fresh context with these records, by the mode: "" without a
 * plan. */
static const char *engine_by(const char *path, const char *line, mica_mode mode, mica_status loaded)
{
    static const char *const known[] = {"cpu", "ref", "onednn", "compose"};
    mica_context *c;
    mica_plan *plan;
    mica_options o = {.mode = mode};
    assert_int_equal(mica_context_create("cpu", &c), MICA_OK);
    assert_int_equal(mica_context_load_records(c, path), loaded);
    mica_status status = mica_plan_from_text(c, line, &o, &plan);
    const char *engine = "";
    for (size_t i = 0; status == MICA_OK && i < sizeof known / sizeof *known; i++)
        if (!strcmp(mica_plan_engine(plan), known[i])) engine = known[i];
    if (status != MICA_OK) assert_int_equal(status, MICA_NOT_FOUND);
    assert_true((status == MICA_OK) == (*engine != 0));
    mica_plan_destroy(plan);
    mica_context_destroy(c);
    return engine;
}

/* Records of other devices, other problems, engines and configs that do not exist: never an error,
 * never a choice. */
static void records_of_others(void **state)
{
    (void)state;
    const char *line = "activation act=tanh x=f32:33";
    static const struct {
        const char *text, *recorded, *estimate;
        mica_status loaded;
    } rows[] = {
        {"activation act=tanh x=f32:33 | @ | ref | | 0.5 | mica 9.9\n", "ref", "ref", MICA_OK},
        {"activation act=tanh x=f32:33 | NVIDIA H200 | ref | | 0.5 | mica 0.1.0\n", "", "cpu",
         MICA_OK},
        {"activation act=relu x=f32:33 | @ | ref | | 0.5 | mica 0.1.0\n", "", "cpu", MICA_OK},
        {"activation act=tanh x=f32:33 | @ | sm_120 | | 0.5 | mica 0.1.0\n", "", "cpu", MICA_OK},
        {"activation act=tanh x=f32:33 | @ | cuda | | 0.5 | mica 0.1.0\n", "", "cpu", MICA_OK},
        {"activation act=tanh x=f32:33 | @ | ref | tile=7 | 0.5 | mica 0.1.0\n", "", "cpu",
         MICA_OK},
        {"activation act=tanh x=f32:33 ; workspace=0 | @ | ref | | 0.5 | x\n", "", "cpu", MICA_OK},
        {"activation act=tanh x=f32:33 | @ | ref | | -1 | mica 0.1.0\n", "", "cpu", MICA_INVALID},
        {"activation act=tanh x=f32:33 | @ | ref | | nan | mica 0.1.0\n", "", "cpu", MICA_INVALID},
        {"activation act=tanh x=f32:33 | @ | | | 1 | mica 0.1.0\n", "", "cpu", MICA_INVALID},
        {"|||||\n||||||||||\n|\n\n  \n# | | | | |\n", "", "cpu", MICA_INVALID},
        {"gemm | @ | ref | | 1 | x\nactivation act=tanh x=f32:33|@|ref||1|", "ref", "ref", MICA_OK},
    };
    char path[] = "/tmp/mica-records-XXXXXX";
    close(mkstemp(path));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        write_records(path, rows[i].text);
        assert_string_equal(engine_by(path, line, MICA_MODE_RECORDED, rows[i].loaded),
                            rows[i].recorded);
        assert_string_equal(engine_by(path, line, MICA_MODE_ESTIMATE, rows[i].loaded),
                            rows[i].estimate);
        assert_string_equal(engine_by(path, line, MICA_MODE_MODEL, rows[i].loaded), "cpu");
    }
    unlink(path);
}

/* A name longer than any engine's is cut when it is read, and then is nobody's. */
static void records_of_any_length(void **state)
{
    (void)state;
    char path[] = "/tmp/mica-records-XXXXXX", text[20000];
    close(mkstemp(path));
    int n = snprintf(text, sizeof text, "activation act=tanh x=f32:33 | @ | ");
    memset(text + n, 'e', 9000);
    n += 9000;
    n += snprintf(text + n, sizeof text - (size_t)n, " | ");
    memset(text + n, 'c', 9000);
    n += 9000;
    snprintf(text + n, sizeof text - (size_t)n, " | 1 | mica\n");
    write_records(path, text);
    assert_string_equal(
        engine_by(path, "activation act=tanh x=f32:33", MICA_MODE_RECORDED, MICA_OK), "");
    unlink(path);
}

static void add_tensor(mica_text *line, const char *name, int rank, const char *last)
{
    mica_text_add(line, " %s=f32:1", name);
    for (int i = 1; i < rank; i++) mica_text_add(line, "x1");
    for (int i = 1; i < rank; i++) mica_text_add(line, "%c222222222222222222", i > 1 ? 'x' : ':');
    mica_text_add(line, "%c%s", rank > 1 ? 'x' : ':', last);
}

/* A problem whose line is longer than most, and ends with `last`. */
static void long_line(char *buffer, size_t size, const char *last)
{
    static const struct {
        const char *name;
        int rank;
    } tensors[] = {{"q", 3},  {"k", 3},  {"v", 3},  {"wq", 2}, {"wk", 2},  {"wv", 2},
                   {"wo", 2}, {"bq", 1}, {"bk", 1}, {"bv", 1}, {"bo", 1},  {"out", 3},
                   {"qh", 4}, {"kh", 4}, {"vh", 4}, {"oh", 4}, {"lse", 3}, {"bias", 4}};
    const size_t count = sizeof tensors / sizeof *tensors;
    mica_text line = {buffer, size, 0};
    mica_text_add(&line, "mha");
    for (size_t i = 0; i < count; i++)
        add_tensor(&line, tensors[i].name, tensors[i].rank,
                   i + 1 < count ? "222222222222222222" : last);
    assert_true(line.length > 1024 && line.length < size);
}

/* The keys of records are whole lines, however long. */
static void records_of_long_problems(void **state)
{
    (void)state;
    char path[] = "/tmp/mica-records-XXXXXX", line[2048], other[2048], text[2200], written[4096];
    close(mkstemp(path));
    long_line(line, sizeof line, "222222222222222222");
    long_line(other, sizeof other, "222222222222222223");
    snprintf(text, sizeof text, "%s | @ | ref | | 0.5 | mica\n", line);
    write_records(path, text);
    assert_string_equal(engine_by(path, line, MICA_MODE_RECORDED, MICA_OK), "ref");
    assert_string_equal(engine_by(path, other, MICA_MODE_RECORDED, MICA_OK), "");
    /* And so they are written. */
    mica_context *c;
    mica_plan *plan;
    mica_options measure = {.mode = MICA_MODE_MEASURE, .measure_ms = 1};
    assert_int_equal(mica_context_create("cpu", &c), MICA_OK);
    assert_int_equal(mica_context_keep_disturbed(c, true), MICA_OK);
    assert_int_equal(mica_plan_from_text(c, other, &measure, &plan), MICA_OK);
    mica_plan_destroy(plan);
    unlink(path);
    assert_int_equal(mica_context_save_records(c, path), MICA_OK);
    mica_context_destroy(c);
    FILE *f = fopen(path, "r");
    assert_non_null(fgets(written, sizeof written, f));
    fclose(f);
    assert_memory_equal(written, other, strlen(other));
    assert_memory_equal(written + strlen(other), " | ", 3);
    unlink(path);
}

static void constants_on_record(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        mica_status loaded;
        bool taken;
    } rows[] = {
        {"constants | @ | fit | copy_gbps=7 f32_tflops=0.5 bf16_tflops=2 | 0 | x\n", MICA_OK, true},
        {"constants | other | fit | copy_gbps=7 f32_tflops=0.5 bf16_tflops=2 | 0 | x\n", MICA_OK,
         false},
        {"constants | @ | guess | copy_gbps=7 f32_tflops=0.5 bf16_tflops=2 | 0 | x\n", MICA_OK,
         false},
        {"constants | @ | fit | copy_gbps=7 f32_tflops=0.5 | 0 | x\n", MICA_INVALID, false},
        {"constants | @ | fit | copy_gbps=7 f32_tflops=-1 bf16_tflops=2 | 0 | x\n", MICA_INVALID,
         false},
        {"constants | @ | fit | copy_gbps=0 f32_tflops=1 bf16_tflops=2 | 0 | x\n", MICA_INVALID,
         false},
        {"constants | @ | fit | copy_gbps=inf f32_tflops=1 bf16_tflops=2 | 0 | x\n", MICA_INVALID,
         false},
        {"constants | @ | fit | copy_gbps=7x f32_tflops=1 bf16_tflops=2 | 0 | x\n", MICA_INVALID,
         false},
        {"constants | @ | fit | copy_gbps=7 f32_tflops=1 bf16_tflops=2 more | 0 | x\n",
         MICA_INVALID, false},
        {"constants | @ | fit | | 0 | x\n", MICA_INVALID, false},
    };
    char path[] = "/tmp/mica-records-XXXXXX";
    close(mkstemp(path));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        mica_context *c;
        mica_device_info before, after;
        write_records(path, rows[i].text);
        assert_int_equal(mica_context_create("cpu", &c), MICA_OK);
        mica_context_info(c, &before);
        assert_int_equal(mica_context_load_records(c, path), rows[i].loaded);
        mica_context_info(c, &after);
        bool taken = after.copy_gbps == 7 && after.f32_tflops == 0.5 && after.bf16_tflops == 2;
        assert_int_equal(taken, rows[i].taken);
        if (!taken) assert_memory_equal(&before, &after, sizeof after);
        mica_context_destroy(c);
    }
    unlink(path);
}

/* What is measured holds at once, is saved, and holds in the next context. */
static void constants_are_measured(void **state)
{
    (void)state;
    char path[] = "/tmp/mica-records-XXXXXX";
    close(mkstemp(path));
    mica_context *c, *next;
    mica_device_info before, fitted, loaded;
    assert_int_equal(mica_context_fit(NULL), MICA_INVALID);
    assert_int_equal(mica_context_create("cpu", &c), MICA_OK);
    mica_context_info(c, &before);
    mica_context_keep_disturbed(c, true);
    assert_int_equal(mica_context_fit(c), MICA_OK);
    mica_context_info(c, &fitted);
    assert_true(fitted.copy_gbps > 0 && fitted.f32_tflops > 0);
    assert_true(fitted.f32_tflops == fitted.bf16_tflops);
    assert_true(fitted.copy_gbps != before.copy_gbps || fitted.f32_tflops != before.f32_tflops);
    assert_int_equal(mica_context_save_records(c, path), MICA_OK);
    assert_int_equal(mica_context_create("cpu", &next), MICA_OK);
    assert_int_equal(mica_context_load_records(next, path), MICA_OK);
    mica_context_info(next, &loaded);
    assert_memory_equal(&fitted, &loaded, sizeof loaded);
    mica_context_destroy(next);
    mica_context_destroy(c);
    unlink(path);
}

/* ---- cache ---- */

static void cache_is_shared_and_bounded(void **state)
{
    (void)state;
    mica_context *c;
    mica_stats stats;
    assert_int_equal(mica_context_create("cpu", &c), MICA_OK);
    mica_context_cache_limit(c, 64 << 10);
    for (int i = 0; i < 2000; i++) {
        char line[64];
        mica_plan *plan;
        snprintf(line, sizeof line, "activation x=f32:%d", i % 1000 + 1);
        assert_int_equal(mica_plan_from_text(c, line, NULL, &plan), MICA_OK);
        mica_plan_destroy(plan);
        mica_context_stats(c, &stats);
        assert_true(stats.plan_bytes <= 64 << 10);
    }
    assert_true(stats.plans > 2 && stats.plans < 1000);
    int64_t hits = stats.plan_hits;
    mica_plan *a, *b;
    mica_activation_desc d = {.act = MICA_ACT_RELU,
                              .x = {.dtype = MICA_F32, .rank = 1, .dims = {999999}}};
    assert_int_equal(mica_activation_plan(c, &d, NULL, &a), MICA_OK);
    assert_int_equal(mica_activation_plan(c, &d, NULL, &b), MICA_OK);
    assert_ptr_equal(a, b);
    mica_context_stats(c, &stats);
    assert_int_equal(stats.plan_hits, hits + 1);
    /* The determinism flag and the workspace limit are part of the key. */
    mica_plan *e;
    mica_options o = {.nondeterministic = true};
    assert_int_equal(mica_activation_plan(c, &d, &o, &e), MICA_OK);
    assert_ptr_not_equal(a, e);
    mica_plan_destroy(e);
    mica_plan_destroy(a);
    mica_plan_destroy(b);
    mica_context_destroy(c);
}

static void plans_outlive_their_context(void **state)
{
    (void)state;
    mica_context *c;
    mica_plan *plan;
    float x[4] = {-1, 1, -2, 2}, y[4];
    assert_int_equal(mica_context_create("cpu", &c), MICA_OK);
    assert_int_equal(mica_plan_from_text(c, "activation act=relu x=f32:4", NULL, &plan), MICA_OK);
    mica_context_destroy(c);
    assert_int_equal(mica_plan_run(plan, &(mica_run){.args = {x, y}}), MICA_OK);
    assert_true(y[0] == 0 && y[3] == 2);
    mica_plan_destroy(plan);
}

/* ---- faults: the n-th allocation fails, once and for ever ---- */

static mica_status whole_life(void)
{
    mica_context *c;
    mica_plan *plan;
    mica_problem *problem;
    float x[6] = {-1, 2, -3, 4, -5, 6}, y[6];
    mica_status status = mica_context_create("cpu", &c);
    if (status != MICA_OK) return status;
    status = mica_plan_from_text(c, "activation act=relu x=f32:6", NULL, &plan);
    if (status == MICA_OK) {
        status = mica_plan_run(plan, &(mica_run){.args = {x, y}});
        mica_plan_destroy(plan);
    }
    if (status == MICA_OK) status = mica_problem_from_text("activation x=f32:6", &problem);
    if (status == MICA_OK) {
        void *args[MICA_MAX_ARGS] = {x, y};
        status = mica_problem_reference(problem, args, NULL, NULL);
        mica_problem_destroy(problem);
    }
    mica_context_destroy(c);
    return status;
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    for (int persistent = 0; persistent < 2; persistent++) {
        int failures = 0;
        for (long n = 1;; n++) {
            mica_fault_set(MICA_FAULT_ALLOC, n, persistent);
            mica_status status = whole_life();
            long seen = mica_fault_count(MICA_FAULT_ALLOC);
            mica_fault_set(MICA_FAULT_ALLOC, 0, false);
            if (seen < n) {
                assert_int_equal(status, MICA_OK);
                break;
            }
            /* The cache may forgo an entry; anything else reports it. */
            if (status != MICA_OK) {
                assert_int_equal(status, MICA_OUT_OF_MEMORY);
                failures++;
            }
            assert_int_equal(whole_life(), MICA_OK);
        }
        assert_true(failures >= 4);
    }
}

/* ---- threads and fork ---- */

static void *hammer(void *seed)
{
    unsigned r = (unsigned)(uintptr_t)seed;
    for (int i = 0; i < 3000; i++) {
        char line[64];
        mica_plan *plan;
        float x[40], y[40];
        r = r * 1103515245u + 12345u;
        int n = 1 + (int)(r >> 16) % 40;
        for (int k = 0; k < n; k++) x[k] = (float)(k - 20);
        snprintf(line, sizeof line, "activation act=relu x=f32:%d", n);
        if (mica_plan_from_text(ctx, line, NULL, &plan) != MICA_OK) return (void *)1;
        if (mica_plan_run(plan, &(mica_run){.args = {x, y}}) != MICA_OK) return (void *)1;
        for (int k = 0; k < n; k++)
            if (y[k] != (x[k] > 0 ? x[k] : 0)) return (void *)1;
        mica_plan_destroy(plan);
        if (i % 500 == 0) mica_context_cache_limit(ctx, (int64_t)(r % 100000));
    }
    return NULL;
}

static void threads_share_a_context(void **state)
{
    (void)state;
    pthread_t threads[4];
    for (uintptr_t i = 0; i < 4; i++) pthread_create(&threads[i], NULL, hammer, (void *)(i + 1));
    for (int i = 0; i < 4; i++) {
        void *result;
        pthread_join(threads[i], &result);
        assert_null(result);
    }
    mica_context_cache_limit(ctx, 64 << 20);
}

static void forked_children_compute_on_the_cpu(void **state)
{
    (void)state;
    enum { N = 1 << 20 };
    float *x = calloc(N, sizeof *x), *y = calloc(N, sizeof *y);
    mica_plan *plan = plan_of("activation act=relu x=f32:1048576");
    mica_run run = {.args = {x, y}};
    assert_int_equal(mica_plan_run(plan, &run), MICA_OK); /* the pool exists now */
    pid_t child = fork();
    if (child == 0) {
        x[N - 1] = 3;
        alarm(20);
        _exit(mica_plan_run(plan, &run) == MICA_OK && y[N - 1] == 3 ? 0 : 1);
    }
    int status;
    waitpid(child, &status, 0);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    mica_plan_destroy(plan);
    free(x);
    free(y);
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

/* ---- plans of many parts ---- */

enum { PARTS = 100 };

static mica_status build_parts(mica_plan *plan)
{
    mica_activation_desc d = {.act = MICA_ACT_RELU};
    mica_plan **children;
    MICA_TRY(mica_plan_state(plan, PARTS * sizeof *children, &children));
    for (int64_t i = 0; i < PARTS; i++) {
        size_t offset;
        d.x = mica_tensor_packed(MICA_F32, 1, (int64_t[]){i + 1});
        MICA_TRY(mica_book(plan, "part", (size_t)i + 1, &offset));
        MICA_TRY(
            mica_plan_child_create(plan, "activation", &d, sizeof d, NULL, &children[i], NULL));
    }
    return MICA_OK;
}

static mica_status run_parts(const mica_plan *plan, const mica_run *run)
{
    mica_plan *const *children = plan->state;
    for (int i = 0; i < PARTS; i++) {
        float *x = run->args[0], *y = run->args[1];
        size_t at = (size_t)i * PARTS;
        MICA_TRY(mica_plan_child_run(children[i], &(mica_run){.args = {x + at, y + at}}));
    }
    return MICA_OK;
}

static mica_status plan_parts(mica_plan **plan)
{
    static const mica_engine engine = {.name = "parts", .build = build_parts, .run = run_parts};
    const mica_op *op = mica_op_find("transform");
    const mica_candidate candidate = {.engine = &engine};
    mica_transform_desc d = {.x = mica_tensor_packed(MICA_F32, 1, (int64_t[]){PARTS * PARTS})};
    mica_transform_desc full;
    mica_why why;
    assert_int_equal(mica_op_resolve(op, &d, sizeof d, &full, &why), MICA_OK);
    return mica_plan_build(ctx, op, &full, &candidate, &(mica_options){0}, plan);
}

static void plans_have_any_number_of_parts(void **state)
{
    (void)state;
    static float x[PARTS * PARTS], y[PARTS * PARTS];
    mica_plan *plan;
    const char *name;
    size_t offset, bytes;
    assert_int_equal(plan_parts(&plan), MICA_OK);
    assert_int_equal(mica_plan_workspace(plan), PARTS * 256);
    for (int i = 0; i < PARTS; i++) {
        assert_int_equal(mica_plan_booking(plan, i, &name, &offset, &bytes), MICA_OK);
        assert_int_equal(offset, i * 256);
        assert_int_equal(bytes, i + 1);
    }
    assert_int_equal(mica_plan_booking(plan, PARTS, &name, &offset, &bytes), MICA_INVALID);
    for (int i = 0; i < PARTS * PARTS; i++) x[i] = (float)(i % 3);
    void *workspace = aligned_alloc(256, PARTS * 256);
    assert_int_equal(mica_plan_run(plan, &(mica_run){.args = {x, y}, .workspace = workspace}),
                     MICA_OK);
    for (int i = 0; i < PARTS; i++)
        for (int k = 0; k < PARTS; k++)
            assert_true(y[i * PARTS + k] == (k <= i ? x[i * PARTS + k] : 0));
    free(workspace);
    mica_plan_destroy(plan);
    /* Each allocation of that fails once. */
    for (long n = 1;; n++) {
        mica_fault_set(MICA_FAULT_ALLOC, n, false);
        mica_status status = plan_parts(&plan);
        bool passed = mica_fault_count(MICA_FAULT_ALLOC) >= n;
        mica_fault_set(MICA_FAULT_ALLOC, 0, false);
        if (status == MICA_OK) mica_plan_destroy(plan);
        if (!passed) break;
        if (status != MICA_OK) assert_int_equal(status, MICA_OUT_OF_MEMORY);
    }
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
        cmocka_unit_test(plans_have_any_number_of_parts),
        cmocka_unit_test(operations_fit),
        cmocka_unit_test(records_choose),
        cmocka_unit_test(records_of_others),
        cmocka_unit_test(records_of_any_length),
        cmocka_unit_test(records_of_long_problems),
        cmocka_unit_test(constants_on_record),
        cmocka_unit_test(constants_are_measured),
        cmocka_unit_test(cache_is_shared_and_bounded),
        cmocka_unit_test(plans_outlive_their_context),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(threads_share_a_context),
        cmocka_unit_test(alignments),
        cmocka_unit_test(forked_children_compute_on_the_cpu),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
