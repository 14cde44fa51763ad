/* SPDX-License-Identifier: Apache-2.0
 * `mica cudnn`: programs that were made for cuDNN, with mica's libcudnn.so.9 in its place. */
#define _GNU_SOURCE
#include "cli.h"

#include <argp.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct cudnn {
    const char *library, *log, *action;
    char **command; /* the program and its arguments; NULL: none */
} cudnn;

static const struct argp_option options[] = {
    {"library", 'l', "FILE", 0, "this libcudnn.so.9; default: the one beside this tool", 0},
    {"log", 'o', "FILE", 0,
     "where the calls are counted when the program ends, and failures told; default: stderr", 0},
    {0}};
static const char doc[] =
    "Runs a program that uses cuDNN with mica's libcudnn.so.9 loaded before NVIDIA's (LD_PRELOAD), "
    "or shows where that lies. When it ends, the calls that ran on mica are counted."
    "\vExamples:\n"
    "  mica cudnn run python3 train.py --epochs 3\n"
    "  mica cudnn run --log calls.txt ./a.out\n"
    "  LD_PRELOAD=$(mica cudnn path) ./a.out\n";

static error_t parse(int key, char *arg, struct argp_state *state)
{
    cudnn *c = state->input;
    switch (key) {
    case 'l':
        c->library = arg;
        return 0;
    case 'o':
        c->log = arg;
        return 0;
    case ARGP_KEY_ARG:
        if (!c->action) {
            c->action = arg;
            return 0;
        }
        /* What follows the program is its own. */
        c->command = state->argv + state->next - 1;
        state->next = state->argc;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* The file beside the tool: in a build, or where both are installed (MICA_LIBRARY_FOLDER is CMake's
 * folder of libraries). NULL: neither is there. */
static char *beside(void)
{
    static const char *const places[] = {"front/libcudnn.so.9",
                                         "../" MICA_LIBRARY_FOLDER "/mica/libcudnn.so.9"};
    char tool[4096];
    const ssize_t length = readlink("/proc/self/exe", tool, sizeof tool - 1);
    if (length < 0) return NULL;
    tool[length] = 0;
    char *name = strrchr(tool, '/');
    if (name) *name = 0;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        char *path = cli_format("%s/%s", tool, places[i]);
        char *whole = realpath(path, NULL);
        free(path);
        if (whole) return whole;
    }
    return NULL;
}

static char *find_library(const cudnn *c)
{
    char *path = c->library ? realpath(c->library, NULL) : beside();
    if (path) return path;
    if (c->library)
        cli_say("%s: %s", c->library, strerror(errno));
    else
        cli_say("there is no libcudnn.so.9 beside this tool: build it with "
                "-DMICA_CUDNN_FRONT=ON, or name it with --library");
    return NULL;
}

/* Puts the library before what is preloaded already. Returns only if the program cannot be run. */
static int run(const cudnn *c, const char *library)
{
    const char *others = getenv("LD_PRELOAD");
    char *all =
        others && *others ? cli_format("%s:%s", library, others) : cli_format("%s", library);
    setenv("LD_PRELOAD", all, 1);
    setenv("MICA_CUDNN_LOG", c->log ? c->log : "stderr", c->log != NULL);
    free(all);
    execvp(c->command[0], c->command);
    cli_say("%s: %s", c->command[0], strerror(errno));
    return CLI_USAGE;
}

int cmd_cudnn(int argc, char **argv)
{
    const struct argp argp = {
        .options = options, .parser = parse, .args_doc = "run PROGRAM...\npath", .doc = doc};
    cudnn c = {0};
    char name[] = "mica cudnn";
    argp_err_exit_status = CLI_USAGE;
    argv[0] = name;
    argp_parse(&argp, argc, argv, ARGP_IN_ORDER, NULL, &c);
    argv[0] = NULL;
    const bool runs = c.action && !strcmp(c.action, "run");
    if ((!runs && !(c.action && !strcmp(c.action, "path"))) || runs != (c.command != NULL)) {
        cli_say("known are run PROGRAM [ARGUMENT...], and path");
        return CLI_USAGE;
    }
    if (c.log && !runs) {
        cli_say("--log is of run: path runs nothing");
        return CLI_USAGE;
    }
    char *library = find_library(&c);
    if (!library) return CLI_UNSUPPORTED;
    int code = CLI_OK;
    if (runs)
        code = run(&c, library);
    else
        printf("%s\n", library);
    free(library);
    return code;
}
