/* SPDX-License-Identifier: Apache-2.0
 * `mica cache`: the disk cache of compiled kernels. */
#include "lines.h"
#include "bench/table.h"

#include <stdlib.h>
#include <string.h>

typedef struct cache {
    cli_options options;
    bool all;
} cache;

static const struct argp_option options[] = {
    {"all", 'a', NULL, 0, "warm: every accepting engine, not only the planner's choice", 0}, {0}};
static const char doc[] = "Shows, fills, packs, unpacks, prunes or clears the cache of compiled "
                          "kernels."
                          "\vExamples:\n"
                          "  mica cache show\n"
                          "  mica cache warm --device sm_90a model.txt\n"
                          "  mica cache pack kernels.mica     all of it into one file ...\n"
                          "  mica cache unpack kernels.mica   ... and into the cache elsewhere\n"
                          "  mica cache prune 100000000       keep at most so many bytes\n"
                          "  mica cache clear\n";

static error_t parse(int key, char *arg, struct argp_state *state)
{
    cache *c = state->input;
    (void)arg;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &c->options;
        return 0;
    case 'a':
        c->all = true;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static int show(void)
{
    mica_disk_cache_info c;
    if (mica_disk_cache(&c) != MICA_OK) {
        cli_say("%s", mica_error());
        return CLI_MISMATCH;
    }
    if (!*c.path) {
        printf("no disk cache: %s\n", c.reason);
        return CLI_OK;
    }
    printf("%s\n%s, %s, at most %lld\n", c.path, cli_count(c.entries, "entry"),
           cli_count(c.bytes, "byte"), (long long)c.limit_bytes);
    return CLI_OK;
}

static int prune(int64_t keep)
{
    mica_status status = mica_disk_cache_prune(keep);
    if (status == MICA_OK) return show();
    cli_say("%s", mica_error());
    return cli_exit_code(status);
}

static int move(const char *path, const char *verb,
                mica_status (*move_entries)(const char *path, int64_t *entries))
{
    int64_t entries = 0;
    mica_status status = move_entries(path, &entries);
    if (status != MICA_OK) {
        cli_say("%s", mica_error());
        return cli_exit_code(status);
    }
    printf("%s %s %s\n", cli_count(entries, "entry"), verb, path);
    return CLI_OK;
}

/* ---- warm ---- */

static int plan_one(mica_context *context, const mica_problem *problem, const char *engine,
                    const cli_line *line)
{
    mica_options o = {.engine = engine, .nondeterministic = engine != NULL, .packed = line->packed};
    mica_plan *plan;
    mica_status status = mica_plan_problem(context, problem, &o, &plan);
    mica_plan_destroy(plan);
    if (status == MICA_OK) return CLI_OK;
    cli_say("%s: %s", line->text, mica_error());
    return cli_exit_code(status);
}

static int warm_line(const cache *c, mica_context *context, cli_lines *lines, const cli_line *line)
{
    mica_problem *problem = cli_line_problem(lines, line);
    mica_verdict v;
    int code = CLI_OK;
    if (!problem) return CLI_USAGE;
    if (!c->all) code = plan_one(context, problem, NULL, line);
    for (int i = 0; c->all && mica_problem_verdict(context, problem, i, &v) == MICA_OK; i++)
        if (v.status == MICA_OK) code = cli_worse(code, plan_one(context, problem, v.engine, line));
    mica_problem_destroy(problem);
    return code;
}

static int warm(const cache *c)
{
    mica_context *context;
    mica_device_info device;
    mica_stats stats = {0};
    cli_lines lines;
    cli_progress progress;
    int code = cli_context(&c->options, &context, &device);
    if (code != CLI_OK) return code;
    cli_lines_read(&lines, c->options.args + 1, c->options.arg_count - 1);
    cli_progress_begin(&progress, lines.count, c->options.quiet);
    size_t done = 0;
    for (; done < lines.count && !cli_stopped(); done++) {
        cli_progress_step(&progress, done, lines.items[done].text);
        code = cli_worse(code, warm_line(c, context, &lines, &lines.items[done]));
    }
    cli_progress_clear(&progress);
    if (!lines.count) cli_say("no problem line was given");
    if (lines.errors || !lines.count) code = cli_worse(code, CLI_USAGE);
    mica_context_stats(context, &stats);
    if (done < lines.count) {
        printf("interrupted; so far: ");
        code = cli_worse(code, CLI_MISMATCH);
    }
    printf("%s, %s compiled, %lld found on disk (%s)\n", cli_count((long long)done, "problem"),
           cli_count(stats.kernel_compiles, "kernel"), (long long)stats.kernel_hits, device.name);
    cli_lines_free(&lines);
    mica_context_destroy(context);
    return code;
}

static int run(const cache *c)
{
    const char *action = c->options.arg_count ? c->options.args[0] : "show";
    int more = c->options.arg_count - 1;
    if (!strcmp(action, "show") && more <= 0) return show();
    if (!strcmp(action, "clear") && more == 0) return prune(0);
    if (!strcmp(action, "warm") && more > 0) return warm(c);
    if (!strcmp(action, "pack") && more == 1)
        return move(c->options.args[1], "packed into", mica_disk_cache_pack);
    if (!strcmp(action, "unpack") && more == 1)
        return move(c->options.args[1], "unpacked from", mica_disk_cache_unpack);
    if (!strcmp(action, "prune") && more == 1) {
        char *end;
        long long keep = strtoll(c->options.args[1], &end, 10);
        if (*end == 0 && end != c->options.args[1] && keep >= 0) return prune(keep);
        cli_say("prune %s: a number of bytes is needed", c->options.args[1]);
        return CLI_USAGE;
    }
    cli_say("known are show, warm FILE..., pack FILE, unpack FILE, prune BYTES and clear");
    return CLI_USAGE;
}

int cmd_cache(int argc, char **argv)
{
    cache c = {0};
    cli_parse(argc, argv, "cache", options, parse,
              "show|warm FILE...|pack FILE|unpack FILE|prune BYTES|clear", doc, &c);
    int code = run(&c);
    cli_options_free(&c.options);
    return code;
}
