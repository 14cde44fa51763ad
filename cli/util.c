/* SPDX-License-Identifier: Apache-2.0
 * Errors, memory and interruption, as every command handles them. */
#define _GNU_SOURCE
#include "cli.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void cli_say(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fputs("mica: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
}

int cli_exit_code(mica_status status)
{
    switch (status) {
    case MICA_OK:
        return CLI_OK;
    case MICA_INVALID:
    case MICA_IO:
    case MICA_NOT_FOUND:
        return CLI_USAGE;
    case MICA_UNSUPPORTED:
    case MICA_NO_DEVICE:
    case MICA_NO_COMPILER:
    case MICA_OUT_OF_MEMORY:
    case MICA_OUT_OF_DEVICE_MEMORY:
        return CLI_UNSUPPORTED;
    case MICA_DEVICE_LOST:
        return CLI_DEVICE_LOST;
    default:
        return CLI_MISMATCH;
    }
}

int cli_worse(int a, int b)
{
    static const int rank[] = {[CLI_OK] = 0,
                               [CLI_UNSUPPORTED] = 1,
                               [CLI_USAGE] = 2,
                               [CLI_MISMATCH] = 3,
                               [CLI_DEVICE_LOST] = 4};
    return rank[a] > rank[b] ? a : b;
}

void *cli_alloc(size_t bytes)
{
    return cli_grow(NULL, bytes);
}

void *cli_grow(void *memory, size_t bytes)
{
    void *p = realloc(memory, bytes ? bytes : 1);
    if (!p) {
        cli_say("out of memory (%zu bytes)", bytes);
        exit(CLI_UNSUPPORTED);
    }
    return p;
}

char *cli_format(const char *format, ...)
{
    va_list args;
    char *text;
    va_start(args, format);
    int length = vasprintf(&text, format, args);
    va_end(args);
    if (length < 0) {
        cli_say("out of memory");
        exit(CLI_UNSUPPORTED);
    }
    return text;
}

/* The next of a few buffers, so that a message may have several. */
enum { SHORT_TEXT = 64 };
static char *short_text(void)
{
    static _Thread_local char texts[4][SHORT_TEXT];
    static _Thread_local unsigned next;
    return texts[next++ % 4];
}

const char *cli_count(long long n, const char *one)
{
    char *text = short_text();
    size_t stem = strlen(one);
    bool ies = n != 1 && stem > 1 && one[stem - 1] == 'y';
    snprintf(text, SHORT_TEXT, "%lld %.*s%s", n, (int)(stem - ies), one,
             n == 1 ? ""
             : ies  ? "ies"
                    : "s");
    return text;
}

const char *cli_duration(double seconds)
{
    static const struct {
        const char *unit;
        double from, seconds;
    } units[] = {{"years", 3e7, 31557600},
                 {"days", 172800, 86400},
                 {"hours", 7200, 3600},
                 {"minutes", 120, 60},
                 {"s", 0, 1}};
    char *text = short_text();
    size_t i = 0;
    while (i + 1 < sizeof units / sizeof *units && seconds < units[i].from) i++;
    snprintf(text, SHORT_TEXT, "%.3g %s", seconds / units[i].seconds, units[i].unit);
    return text;
}

char *cli_problem_text(const mica_problem *problem)
{
    int length = mica_problem_text(problem, NULL, 0);
    char *text = cli_alloc((size_t)length + 1);
    mica_problem_text(problem, text, (size_t)length + 1);
    return text;
}

/* ---- names and files ---- */

/* Letters to change, add or leave out to make one word of the other (Levenshtein). */
static int distance(const char *a, const char *b)
{
    enum { MOST = 16 };
    int row[MOST + 1], width = (int)strlen(b);
    if (width > MOST) return MOST;
    for (int j = 0; j <= width; j++) row[j] = j;
    for (int i = 1; *a; a++, i++) {
        int corner = row[0];
        row[0] = i;
        for (int j = 1; j <= width; j++) {
            int best = corner + (*a != b[j - 1]);
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            corner = row[j];
            row[j] = best;
        }
    }
    return row[width];
}

const char *cli_nearest(const char *name, const char *const *names, int n)
{
    int best = 3, at = -1;
    for (int i = 0; i < n; i++)
        if (distance(name, names[i]) < best) best = distance(name, names[at = i]);
    return at < 0 ? NULL : names[at];
}

bool cli_can_write(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *folder = slash ? cli_format("%.*s", (int)(slash - path) + 1, path) : cli_format(".");
    struct stat st;
    bool there = stat(path, &st) == 0;
    errno = there && S_ISDIR(st.st_mode) ? EISDIR : 0;
    if (!errno && access(there ? path : folder, W_OK) == 0) errno = 0;
    int error = errno;
    if (error) cli_say("%s: %s", path, strerror(error));
    free(folder);
    return error == 0;
}

static bool output_failed;

void cli_output_lost(const char *path, int error)
{
    output_failed = true;
    cli_say("%s: writing failed, what follows is missing: %s", path, strerror(error));
}

bool cli_output_failed(void)
{
    return output_failed;
}

/* ---- interruption ---- */

static volatile sig_atomic_t stopped;

static void on_interrupt(int signal_number)
{
    (void)signal_number;
    stopped = 1;
}

bool cli_stopped(void)
{
    return stopped;
}

void cli_catch_interrupts(void)
{
    struct sigaction action = {.sa_handler = on_interrupt};
    action.sa_flags = (int)SA_RESETHAND; /* the second Ctrl-C kills */
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    signal(SIGXFSZ, SIG_IGN); /* a file that may not grow is an error as a full disk is */
}
