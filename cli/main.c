/* SPDX-License-Identifier: Apache-2.0
 * mica, the command: a table of subcommands. */
#include "cli.h"

#include <string.h>

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *doc;
} commands[] = {
    {"info", cmd_info, "what was found here: devices, libraries, caches, environment"},
    {"list", cmd_list, "operations, their fields, arguments and engines"},
    {"demo", cmd_demo, "train a network that reads digits, and write a report"},
    {"check", cmd_check, "run problems on every engine and compare with the reference"},
    {"bench", cmd_bench, "time problems on every engine"},
    {"tune", cmd_tune, "measure engines and keep the choice in a record file"},
    {"explain", cmd_explain, "why which engine runs a problem, and what it needs"},
    {"cache", cmd_cache, "show, fill, pack, prune or clear the cache of compiled kernels"},
};
enum { COMMANDS = sizeof commands / sizeof *commands };

/* ---- the command line ---- */

static void usage(FILE *out)
{
    fprintf(out, "Usage: mica COMMAND [OPTION...] [FILE...] [PROBLEM LINE]\n\n");
    for (int i = 0; i < COMMANDS; i++)
        fprintf(out, "  %-8s %s\n", commands[i].name, commands[i].doc);
    fprintf(out, "\nExamples:\n"
                 "  mica check gemm a=f32:64x32 b=f32:32x48\n"
                 "  mica explain --device sm_90a conv x=bf16:8x64x56x56:nhwc "
                 "w=bf16:64x64x3x3:nhwc pad=1x1\n"
                 "  mica bench tests/cases/softmax.txt\n\n"
                 "`mica COMMAND --help` shows a command's options.\n"
                 "Exit codes: 0 ok, 1 mismatch or failure, 2 usage, 3 unsupported, 4 device "
                 "lost.\n");
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        usage(stderr);
        return CLI_USAGE;
    }
    const char *name = argv[1];
    if (!strcmp(name, "--help") || !strcmp(name, "-h") || !strcmp(name, "help")) {
        usage(stdout);
        return CLI_OK;
    }
    if (!strcmp(name, "--version") || !strcmp(name, "-V")) {
        printf("mica %s\n", mica_version());
        return CLI_OK;
    }
    cli_catch_interrupts();
    for (int i = 0; i < COMMANDS; i++) {
        if (strcmp(commands[i].name, name) != 0) continue;
        int code = commands[i].run(argc - 1, argv + 1);
        if (fflush(stdout) != 0 || ferror(stdout)) {
            cli_say("standard output could not be written");
            code = cli_worse(code, CLI_USAGE);
        }
        return code;
    }
    cli_say("\"%s\" is no command; `mica --help` shows them", name);
    return CLI_USAGE;
}
