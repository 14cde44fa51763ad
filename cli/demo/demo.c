/* SPDX-License-Identifier: Apache-2.0
 * mica demo: a small convolutional network learns to read handwritten digits through mica's plans.
 */
#include "cli.h"
#include "demo/digits.h"
#include "demo/net.h"
#include "demo/report.h"
#include "bench/table.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OPT_EPOCHS = 600, OPT_BATCH, OPT_SEED, OPT_DATA, OPT_REPORT, OPT_REQUIRE };

static const struct argp_option options[] = {
    {"epochs", OPT_EPOCHS, "N", 0, "passes over the training digits (default 20)", 0},
    {"batch", OPT_BATCH, "N", 0, "images per step (default 64)", 0},
    {"seed", OPT_SEED, "N", 0, "of the split, the start and the order (default 1)", 0},
    {"data", OPT_DATA, "FILE", 0,
     "CSV of 64 grey levels 0-16 and a label per line instead of the "
     "built-in digits",
     0},
    {"report", OPT_REPORT, "FILE", 0, "HTML report (default mica-demo.html; none: no report)", 0},
    {"require", OPT_REQUIRE, "PERCENT", 0,
     "exit with 1 below that held-out accuracy (default 97 on the "
     "built-in digits)",
     0},
    {0}};

typedef struct demo {
    cli_options common;
    int epochs, batch;
    uint64_t seed;
    const char *data_path, *report_path;
    double require;
    digits data;
    net network;
    report report;
    int *order;
    float *batch_pixels;
    int32_t *batch_labels;
    float *probabilities;
    int step, steps;
} demo;

static error_t parse(int key, char *text, struct argp_state *state)
{
    demo *d = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &d->common;
        return 0;
    case OPT_EPOCHS:
        d->epochs = (int)fmin(cli_number(state, "epochs", text, 1), REPORT_EPOCHS);
        return 0;
    case OPT_BATCH:
        d->batch = (int)fmin(cli_number(state, "batch", text, 2), 1 << 20);
        return 0;
    case OPT_SEED:
        d->seed = (uint64_t)cli_number(state, "seed", text, 0);
        return 0;
    case OPT_DATA:
        d->data_path = text;
        return 0;
    case OPT_REPORT:
        d->report_path = text;
        return 0;
    case OPT_REQUIRE:
        d->require = cli_number(state, "require", text, 0);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* ---- training ---- */

static mica_status load_batch(demo *d, int first)
{
    net *n = &d->network;
    int64_t pixel_bytes = 0, label_bytes = 0;
    void *x = net_buffer(n, "x", &pixel_bytes), *labels = net_buffer(n, "labels", &label_bytes);
    for (int i = 0; i < n->batch; i++) {
        int row = d->order[first + i];
        memcpy(d->batch_pixels + (size_t)i * DIGIT_PIXELS,
               d->data.pixels + (size_t)row * DIGIT_PIXELS, DIGIT_PIXELS * sizeof(float));
        d->batch_labels[i] = d->data.labels[row];
    }
    mica_status status = mica_upload(n->context, x, d->batch_pixels, pixel_bytes, NULL);
    if (status != MICA_OK) return status;
    return mica_upload(n->context, labels, d->batch_labels, label_bytes, NULL);
}

static void shuffle(demo *d, int epoch)
{
    int trained = d->data.count - d->data.held_out;
    for (int i = trained - 1; i > 0; i--) {
        uint64_t bits = digits_random(d->seed + 77, (uint64_t)epoch * 1000003u + (uint64_t)i);
        int j = (int)(bits % (uint64_t)(i + 1)), swap = d->order[i];
        d->order[i] = d->order[j];
        d->order[j] = swap;
    }
}

#define PEAK_RATE 3e-3

/* Warm up over one epoch, then a cosine to zero. */
static double learning_rate(const demo *d)
{
    double warm = d->steps / (double)d->epochs, at = d->step / (double)d->steps;
    return PEAK_RATE * fmin(1, d->step / warm) * 0.5 * (1 + cos(3.141592653589793 * at));
}

static mica_status train_epoch(demo *d, int epoch, cli_progress *bar)
{
    net *n = &d->network;
    int trained = d->data.count - d->data.held_out, batches = trained / n->batch;
    double sum = 0;
    shuffle(d, epoch);
    for (int b = 0; b < batches && !cli_stopped(); b++) {
        float loss;
        mica_status status = load_batch(d, b * n->batch);
        d->step++;
        if (status == MICA_OK) status = net_train(n, learning_rate(d), d->step);
        if (status == MICA_OK)
            status =
                mica_download(n->context, &loss, net_buffer(n, "loss", NULL), sizeof loss, NULL);
        if (status != MICA_OK) return status;
        sum += (double)loss;
        char what[96];
        snprintf(what, sizeof what, "epoch %d/%d  loss %.4f  held-out %.2f %%", epoch + 1,
                 d->epochs, sum / (b + 1), epoch ? 100 * d->report.accuracy[epoch - 1] : 0.0);
        cli_progress_step(bar, (size_t)d->step, what);
    }
    d->report.loss[epoch] = sum / batches;
    return MICA_OK;
}

static mica_status test_epoch(demo *d, int epoch)
{
    net *n = &d->network;
    int64_t bytes = 0;
    mica_status status = net_test(n);
    void *y = net_buffer(n, "test.y", &bytes);
    if (status == MICA_OK) status = mica_download(n->context, d->probabilities, y, bytes, NULL);
    int right = 0, first = d->data.count - d->data.held_out;
    for (int i = 0; i < d->data.held_out; i++)
        right +=
            report_best(d->probabilities + (size_t)i * DIGIT_CLASSES) == d->data.labels[first + i];
    d->report.accuracy[epoch] = right / (double)d->data.held_out;
    return status;
}

static mica_status train(demo *d)
{
    cli_progress bar;
    bool lines = !isatty(STDERR_FILENO) && !d->common.quiet;
    double start = cli_seconds();
    mica_status status = MICA_OK;
    cli_progress_begin(&bar, (size_t)d->steps, d->common.quiet);
    for (int epoch = 0; epoch < d->epochs && status == MICA_OK; epoch++) {
        status = train_epoch(d, epoch, &bar);
        if (status != MICA_OK || cli_stopped()) break;
        status = test_epoch(d, epoch);
        d->report.epochs = epoch + 1;
        if (lines)
            fprintf(stderr, "epoch %2d/%d  loss %.4f  held-out %.2f %%\n", epoch + 1, d->epochs,
                    d->report.loss[epoch], 100 * d->report.accuracy[epoch]);
    }
    cli_progress_clear(&bar);
    d->report.seconds = cli_seconds() - start;
    return status;
}

/* ---- what is shown ---- */

static void print_plans(const net *n)
{
    cli_table t;
    cli_table_begin(&t, "step|engine|>us|problem");
    for (int i = 0; i < n->count[NET_TRAIN]; i++) {
        const net_step *s = &n->steps[NET_TRAIN][i];
        cli_cell(&t, "%s", s->name);
        cli_cell(&t, "%s", mica_plan_engine(s->plan));
        cli_cell(&t, "%.1f", 1e3 * s->ms);
        cli_cell(&t, "%s", s->line);
    }
    cli_table_print(&t, stdout);
    cli_table_end(&t);
}

static mica_status set_up(demo *d, mica_context *context)
{
    double start = cli_seconds();
    size_t trained = (size_t)(d->data.count - d->data.held_out);
    mica_status status = net_create(&d->network, context, d->batch, d->data.held_out, d->seed);
    if (status != MICA_OK) return status;
    d->report.setup_seconds = cli_seconds() - start;
    d->order = cli_alloc(trained * sizeof *d->order);
    for (size_t i = 0; i < trained; i++) d->order[i] = (int)i;
    d->batch_pixels = cli_alloc((size_t)d->batch * DIGIT_PIXELS * sizeof(float));
    d->batch_labels = cli_alloc((size_t)d->batch * sizeof(int32_t));
    d->probabilities = cli_alloc((size_t)d->data.held_out * DIGIT_CLASSES * sizeof(float));
    d->steps = d->epochs * (int)(trained / (size_t)d->batch);
    const float *held_out = d->data.pixels + trained * DIGIT_PIXELS;
    return mica_upload(context, net_buffer(&d->network, "test.x", NULL), held_out,
                       (int64_t)d->data.held_out * DIGIT_PIXELS * 4, NULL);
}

/* An argument as a shell reads it back; appended to the command, which the caller frees. */
static char *with_argument(char *command, const char *option, const char *value)
{
    static const char plain[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./:+-";
    char *longer = cli_format("%s %s", command, option);
    free(command);
    if (*value && value[strspn(value, plain)] == 0) {
        command = cli_format("%s %s", longer, value);
    } else {
        command = cli_format("%s '", longer);
        for (const char *s = value; *s; s++) {
            char *more =
                *s == '\'' ? cli_format("%s'\\''", command) : cli_format("%s%c", command, *s);
            free(command);
            command = more;
        }
        char *closed = cli_format("%s'", command);
        free(command);
        command = closed;
    }
    free(longer);
    return command;
}

/* The command that gives the same figures on a machine like this; the caller frees. */
static char *repeating_command(const demo *d)
{
    const mica_device_info *device = &d->report.device;
    char number[32];
    char *command = device->cuda ? cli_format("mica demo")
                                 : cli_format("OMP_NUM_THREADS=%d mica demo", device->units);
    command = with_argument(command, "--device", device->name);
    snprintf(number, sizeof number, "%llu", (unsigned long long)d->seed);
    command = with_argument(command, "--seed", number);
    snprintf(number, sizeof number, "%d", d->epochs);
    command = with_argument(command, "--epochs", number);
    snprintf(number, sizeof number, "%d", d->batch);
    command = with_argument(command, "--batch", number);
    if (d->data_path) command = with_argument(command, "--data", d->data_path);
    return command;
}

static int finish(demo *d)
{
    int epochs = d->report.epochs;
    if (epochs == 0) {
        cli_say("stopped before the first epoch ended");
        return CLI_MISMATCH;
    }
    double accuracy = 100 * d->report.accuracy[epochs - 1];
    if (!d->common.quiet) print_plans(&d->network);
    printf("%d of %d held-out digits read correctly: %.2f %% after %s in %.1f s on %s\n",
           (int)lround(accuracy / 100 * d->data.held_out), d->data.held_out, accuracy,
           cli_count(epochs, "epoch"), d->report.seconds, d->report.device.model);
    d->report.network = &d->network;
    d->report.data = &d->data;
    d->report.probabilities = d->probabilities;
    d->report.seed = d->seed;
    d->report.peak_rate = PEAK_RATE;
    if (strcmp(d->report_path, "none") != 0) {
        char *command = repeating_command(d);
        d->report.command = command;
        bool written = report_write(&d->report, d->report_path);
        free(command);
        if (!written) return CLI_USAGE;
        printf("report: %s\n", d->report_path);
    }
    if (accuracy >= d->require) return CLI_OK;
    cli_say("%.2f %% is below the %.2f %% that are required", accuracy, d->require);
    return CLI_MISMATCH;
}

static int run(demo *d, mica_context *context)
{
    mica_status status = set_up(d, context);
    if (status == MICA_OK && !d->common.quiet)
        printf("%d digits to learn from, %d held out; %d plans on %s (%s) made in %.0f ms\n",
               d->data.count - d->data.held_out, d->data.held_out,
               d->network.count[NET_TRAIN] + d->network.count[NET_TEST], d->report.device.name,
               d->report.device.model, 1e3 * d->report.setup_seconds);
    fflush(stdout);
    if (status == MICA_OK) status = train(d);
    if (status == MICA_OK) status = net_time(&d->network, NET_TRAIN);
    if (status == MICA_OK) return finish(d);
    cli_say("%s: %s", mica_status_name(status), mica_error());
    return cli_exit_code(status);
}

int cmd_demo(int argc, char **argv)
{
    demo d = {.epochs = 20, .batch = 64, .seed = 1, .report_path = "mica-demo.html", .require = -1};
    cli_parse(argc, argv, "demo", options, parse, "",
              "Trains a small convolutional network on handwritten digits, forward and backward "
              "through plans, tests it on a fifth of them that it never saw, and writes a report.",
              &d);
    cli_catch_interrupts();
    if (d.require < 0) d.require = d.data_path || d.epochs < 10 ? 0 : 97;
    if (strcmp(d.report_path, "none") != 0 && !cli_can_write(d.report_path)) return CLI_USAGE;
    if (!digits_read(&d.data, d.data_path, d.seed)) return CLI_USAGE;
    int code = CLI_USAGE;
    mica_context *context = NULL;
    if (d.batch > d.data.count - d.data.held_out)
        cli_say("--batch %d: there are %d digits to learn from", d.batch,
                d.data.count - d.data.held_out);
    else
        code = cli_context(&d.common, &context, &d.report.device);
    if (context) {
        code = run(&d, context);
        net_destroy(&d.network);
    }
    mica_context_destroy(context);
    digits_free(&d.data);
    free(d.order);
    free(d.batch_pixels);
    free(d.batch_labels);
    free(d.probabilities);
    cli_options_free(&d.common);
    return code;
}
