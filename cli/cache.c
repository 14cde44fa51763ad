/* SPDX-License-Identifier: Apache-2.0
 * `mica cache`: the disk cache of compiled kernels. */
#define _GNU_SOURCE
#include "lines.h"
#include "bench/table.h"

#include <errno.h>
#include <ftw.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct cache {
    cli_options options;
    bool all;
    const char *archs;
} cache;

enum { KEY_ARCH = 256 };

static const struct argp_option options[] = {
    {"all", 'a', NULL, 0, "warm, build: every accepting engine, not only the planner's choice", 0},
    {"arch", KEY_ARCH, "LIST", 0,
     "build: offline devices, separated by commas; default sm_80,sm_89,sm_90a", 0},
    {0}};
static const char doc[] = "Shows, fills, packs, unpacks, prunes or clears the cache of compiled "
                          "kernels, or builds a pack of its own."
                          "\vExamples:\n"
                          "  mica cache show\n"
                          "  mica cache warm --device sm_90a model.txt\n"
                          "  mica cache pack kernels.mica     all of it into one file ...\n"
                          "  mica cache unpack kernels.mica   ... and into the cache elsewhere\n"
                          "  mica cache build kernels.mica packs/common.txt\n"
                          "  mica cache prune 100000000       keep at most so many bytes\n"
                          "  mica cache clear\n";

static error_t parse(int key, char *arg, struct argp_state *state)
{
    cache *c = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &c->options;
        return 0;
    case 'a':
        c->all = true;
        return 0;
    case KEY_ARCH:
        c->archs = arg;
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

/* ---- build: a pack of nothing but what the lines need ---- */

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st, (void)type, (void)ftw;
    return remove(path);
}

/* This tool again, with a cache of its own, which a process chooses when it begins. */
static int run_self(char *const *argv)
{
    static char self[] = "/proc/self/exe";
    int status = 0;
    pid_t pid;
    fflush(stdout);
    if (posix_spawn(&pid, self, NULL, NULL, argv, environ) != 0 ||
        waitpid(pid, &status, 0) != pid) {
        cli_say("this program could not be started once more: %s", strerror(errno));
        return CLI_MISMATCH;
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : CLI_MISMATCH;
}

static int warm_arch(const cache *c, char *arch)
{
    static char mica[] = "mica", command[] = "cache", action[] = "warm", device[] = "--device",
                all[] = "--all", quiet[] = "--quiet";
    const int lines = c->options.arg_count - 2;
    char **argv = calloc((size_t)lines + 8, sizeof *argv);
    int n = 0;
    if (!argv) return CLI_UNSUPPORTED;
    argv[n++] = mica;
    argv[n++] = command;
    argv[n++] = device;
    argv[n++] = arch;
    if (c->all) argv[n++] = all;
    if (c->options.quiet) argv[n++] = quiet;
    argv[n++] = action;
    for (int i = 0; i < lines; i++) argv[n++] = c->options.args[i + 2];
    int code = run_self(argv);
    free(argv);
    return code;
}

static int warm_archs(const cache *c)
{
    char archs[256];
    int code = CLI_OK;
    if ((size_t)snprintf(archs, sizeof archs, "%s", c->archs ? c->archs : "sm_80,sm_89,sm_90a") >=
        sizeof archs) {
        cli_say("--arch has more than %zu characters", sizeof archs - 1);
        return CLI_USAGE;
    }
    for (char *rest, *name = strtok_r(archs, ",", &rest); name && code == CLI_OK && !cli_stopped();
         name = strtok_r(NULL, ",", &rest)) {
        if (!strncmp(name, "sm_", 3)) {
            code = warm_arch(c, name);
            continue;
        }
        cli_say("--arch %s: an offline device is needed, as sm_90a", name);
        code = CLI_USAGE;
    }
    return code;
}

/* A pack lacks nothing that it was asked for, or is not made. */
static int build(const cache *c)
{
    static char mica[] = "mica", command[] = "cache", action[] = "pack";
    char *pack[] = {mica, command, action, c->options.args[1], NULL};
    char folder[] = P_tmpdir "/mica-pack-XXXXXX";
    if (!mkdtemp(folder) || setenv("MICA_CACHE_DIR", folder, 1) != 0) {
        cli_say("%s: %s", folder, strerror(errno));
        return CLI_MISMATCH;
    }
    int code = warm_archs(c);
    if (code == CLI_OK) code = run_self(pack);
    nftw(folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    return code;
}

static int run(const cache *c)
{
    const char *action = c->options.arg_count ? c->options.args[0] : "show";
    int more = c->options.arg_count - 1;
    if (!strcmp(action, "show") && more <= 0) return show();
    if (!strcmp(action, "clear") && more == 0) return prune(0);
    if (!strcmp(action, "warm") && more > 0) return warm(c);
    if (!strcmp(action, "build") && more > 1) return build(c);
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
    cli_say(
        "known are show, warm FILE..., pack FILE, unpack FILE, build FILE FILE..., prune BYTES and "
        "clear");
    return CLI_USAGE;
}

int cmd_cache(int argc, char **argv)
{
    cache c = {0};
    cli_parse(argc, argv, "cache", options, parse,
              "show|warm FILE...|pack FILE|unpack FILE|build FILE FILE...|prune BYTES|clear", doc,
              &c);
    int code = run(&c);
    cli_options_free(&c.options);
    return code;
}
