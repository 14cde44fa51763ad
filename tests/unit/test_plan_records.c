/* SPDX-License-Identifier: Apache-2.0
 * Records choose plans, and constants of the model are on record. */
#include "plan.h"
#include "plan/context.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(records_choose),        cmocka_unit_test(records_of_others),
        cmocka_unit_test(records_of_any_length), cmocka_unit_test(records_of_long_problems),
        cmocka_unit_test(constants_on_record),   cmocka_unit_test(constants_are_measured),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
