/* SPDX-License-Identifier: Apache-2.0
 * `mica info`: what was looked for and found here. */
#include "json.h"
#include "bench/table.h"

#include <string.h>

typedef struct info {
    cli_options options;
    bool env;
} info;

enum { KEY_ENV = 0x100 };
static const struct argp_option options[] = {
    {"env", KEY_ENV, NULL, 0, "environment variables, their values and effects", 0}, {0}};
static const char doc[] =
    "Shows versions, devices, libraries looked for and found, the kernel cache "
    "and, with --env, the environment."
    "\vExamples:\n"
    "  mica info\n"
    "  mica info --env\n"
    "  mica info --json -\n";

static error_t parse(int key, char *arg, struct argp_state *state)
{
    info *i = state->input;
    (void)arg;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &i->options;
        return 0;
    case KEY_ENV:
        i->env = true;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* Devices to show: that of --device, or the CPU and every GPU. Returns how many are there. */
enum { MAX_DEVICES = 65 };
static int find_devices(const info *i, mica_device_info *devices)
{
    int count = 0;
    for (int n = -1; count < MAX_DEVICES; n++) {
        char name[32] = "cpu";
        mica_context *context;
        if (n >= 0) snprintf(name, sizeof name, "cuda:%d", n);
        if (mica_context_create(i->options.device ? i->options.device : name, &context) != MICA_OK)
            break;
        if (mica_context_info(context, &devices[count]) == MICA_OK) count++;
        mica_context_destroy(context);
        if (i->options.device) break;
    }
    return count;
}

/* A MICA_DEVICE that is none is reported by whoever asks for "auto"; here nobody does. */
static void check_wanted(void)
{
    const char *name, *value, *effect;
    mica_context *context = NULL;
    for (int n = 0; mica_env_info(n, &name, &value, &effect) == MICA_OK; n++)
        if (!strcmp(name, "MICA_DEVICE") && value &&
            mica_context_create("auto", &context) != MICA_OK)
            cli_say("%s", mica_error());
    mica_context_destroy(context);
}

/* ---- text ---- */

static void show_devices(const mica_device_info *devices, int count)
{
    cli_table t;
    cli_table_begin(&t, "device|model|>units|>memory GiB|>cache MiB|>GB/s|>f32 TF|>16-bit TF|");
    for (int i = 0; i < count; i++) {
        const mica_device_info *d = &devices[i];
        cli_cell(&t, "%s", d->name);
        cli_cell(&t, "%s", d->model);
        cli_cell(&t, "%d", d->units);
        cli_cell(&t, "%.1f", (double)d->memory_bytes / 0x1p30);
        cli_cell(&t, "%.1f", (double)d->cache_bytes / 0x1p20);
        cli_cell(&t, "%.4g", d->copy_gbps);
        cli_cell(&t, "%.4g", d->f32_tflops);
        cli_cell(&t, "%.4g", d->bf16_tflops);
        cli_cell(&t, "%s", d->offline ? "offline: plans only" : "");
    }
    cli_table_print(&t, stdout);
    cli_table_end(&t);
    printf("(rates are the cost model's)\n");
}

static void show_rows(void)
{
    cli_table t;
    const char *key, *value;
    cli_table_begin(&t, "what|found");
    for (int i = 0; mica_info(i, &key, &value) == MICA_OK; i++) {
        cli_cell(&t, "%s", key);
        cli_cell(&t, "%s", value);
    }
    cli_table_print(&t, stdout);
    cli_table_end(&t);
}

static void show_cache(void)
{
    mica_disk_cache_info c;
    if (mica_disk_cache(&c) != MICA_OK) return;
    if (*c.path)
        printf("kernel cache: %s, %s, %.1f of %.0f MiB\n", c.path, cli_count(c.entries, "entry"),
               (double)c.bytes / 0x1p20, (double)c.limit_bytes / 0x1p20);
    else
        printf("kernel cache: none, %s\n", c.reason);
}

static void show_env(void)
{
    cli_table t;
    const char *name, *value, *effect;
    cli_table_begin(&t, "variable|value|effect");
    for (int i = 0; mica_env_info(i, &name, &value, &effect) == MICA_OK; i++) {
        cli_cell(&t, "%s", name);
        cli_cell(&t, "%s", value ? value : "(unset)");
        cli_cell(&t, "%s", effect);
    }
    cli_table_print(&t, stdout);
    cli_table_end(&t);
    printf("NO_COLOR, if set, turns the colours of this tool off.\n");
}

/* ---- JSON ---- */

static json_t *json_devices(const mica_device_info *devices, int count)
{
    json_t *list = json_array();
    for (int i = 0; i < count; i++) {
        const mica_device_info *d = &devices[i];
        json_array_append_new(
            list, json_pack("{ss ss sb sb si si sI sI sI sf sf sf}", "name", d->name, "model",
                            d->model, "cuda", d->cuda ? 1 : 0, "offline", d->offline ? 1 : 0,
                            "arch", d->arch, "units", d->units, "memory_bytes",
                            (json_int_t)d->memory_bytes, "cache_bytes", (json_int_t)d->cache_bytes,
                            "shared_bytes", (json_int_t)d->shared_bytes, "copy_gbps", d->copy_gbps,
                            "f32_tflops", d->f32_tflops, "bf16_tflops", d->bf16_tflops));
    }
    return list;
}

static int to_json(const info *i, const mica_device_info *devices, int count)
{
    FILE *f = cli_json_open(i->options.json);
    const char *key, *value, *effect;
    mica_disk_cache_info c = {0};
    json_t *found = json_object(), *env = json_object();
    if (!f) return CLI_USAGE;
    for (int n = 0; mica_info(n, &key, &value) == MICA_OK; n++)
        json_object_set_new(found, key, json_string(value));
    for (int n = 0; mica_env_info(n, &key, &value, &effect) == MICA_OK; n++)
        json_object_set_new(env, key, value ? json_string(value) : json_null());
    mica_disk_cache(&c);
    cli_json_line(f, json_pack("{ss so so so s{ss ss sI sI sI}}", "version", mica_version(),
                               "devices", json_devices(devices, count), "found", found,
                               "environment", env, "cache", "path", c.path, "reason", c.reason,
                               "entries", (json_int_t)c.entries, "bytes", (json_int_t)c.bytes,
                               "limit_bytes", (json_int_t)c.limit_bytes));
    cli_json_close(f);
    return CLI_OK;
}

int cmd_info(int argc, char **argv)
{
    info i = {0};
    mica_device_info devices[MAX_DEVICES];
    int code = CLI_OK;
    cli_parse(argc, argv, "info", options, parse, "", doc, &i);
    int count = find_devices(&i, devices);
    if (!i.options.device) check_wanted();
    if (i.options.device && !count) {
        cli_say("device %s: %s", i.options.device, mica_error());
        code = CLI_UNSUPPORTED;
    } else if (i.options.json) {
        code = to_json(&i, devices, count);
    } else if (i.env) {
        show_env();
    } else {
        printf("mica %s\n\n", mica_version());
        show_devices(devices, count);
        printf("\n");
        show_rows();
        printf("\n");
        show_cache();
    }
    cli_options_free(&i.options);
    return code;
}
