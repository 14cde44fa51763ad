/* SPDX-License-Identifier: Apache-2.0
 * mica, the command: a table of subcommands. */
#include "cli.h"

#include <string.h>

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *doc;
    const char *makes; /* the environment's variable that names a file which it writes */
} commands[] = {
    {"info", cmd_info, "what was found here: devices, libraries, caches, environment", NULL},
    {"list", cmd_list, "operations, their fields, arguments and engines", NULL},
    {"demo", cmd_demo, "train a network that reads digits, and write a report", NULL},
    {"check", cmd_check, "run problems on every engine and compare with the reference", NULL},
    {"bench", cmd_bench, "time problems on every engine", NULL},
    {"tune", cmd_tune, "measure engines and keep the choice in a record file", "MICA_RECORDS"},
    {"explain", cmd_explain, "why which engine runs a problem, and what it needs", NULL},
    {"cache", cmd_cache, "show, fill, pack, prune or clear the cache of compiled kernels", NULL},
    {"cudnn", cmd_cudnn, "run a program of cuDNN's with mica in its place", NULL},
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

/* The command of that name, or COMMANDS. */
static int find(const char *name)
{
    int i = 0;
    while (i < COMMANDS && strcmp(commands[i].name, name) != 0) i++;
    return i;
}

static int unknown(const char *name)
{
    const char *names[COMMANDS];
    for (int i = 0; i < COMMANDS; i++) names[i] = commands[i].name;
    const char *nearest = cli_nearest(name, names, COMMANDS);
    if (nearest)
        cli_say("\"%s\" is no command; was `mica %s' meant?", name, nearest);
    else
        cli_say("\"%s\" is no command; `mica --help' shows them", name);
    return CLI_USAGE;
}

/* Variables whose values mean nothing; not one whose file the command itself makes. */
static void report_environment(const char *makes)
{
    const char *name, *value, *effect;
    for (int i = 0; mica_env_info(i, &name, &value, &effect) == MICA_OK; i++)
        if (mica_env_problem(i) && !(makes && !strcmp(makes, name)))
            cli_say("%s", mica_env_problem(i));
}

static int run(int command, int argc, char **argv)
{
    cli_catch_interrupts();
    report_environment(commands[command].makes);
    int code = commands[command].run(argc, argv);
    if (cli_output_failed()) code = cli_worse(code, CLI_USAGE);
    if (fflush(stdout) == 0 && !ferror(stdout)) return code;
    cli_say("standard output could not be written");
    return cli_worse(code, CLI_USAGE);
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        usage(stderr);
        return CLI_USAGE;
    }
    const char *name = argv[1];
    bool help = !strcmp(name, "help");
    if (!strcmp(name, "--help") || !strcmp(name, "-h") || (help && argc == 2)) {
        usage(stdout);
        return CLI_OK;
    }
    if (!strcmp(name, "--version") || !strcmp(name, "-V")) {
        printf("mica %s\n", mica_version());
        return CLI_OK;
    }
    char option[] = "--help", *asked[] = {argv[1], option, NULL};
    int command = find(help ? argv[2] : name);
    if (command == COMMANDS) return unknown(help ? argv[2] : name);
    return help ? run(command, 2, asked) : run(command, argc - 1, argv + 1);
}
