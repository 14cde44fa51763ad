/* SPDX-License-Identifier: Apache-2.0
 * exit() while other threads plan and run, by every engine of the CPU: the process ends with its
 * status, not by a signal. */
#include "guest.h"

#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST = 64, THREADS = 3 };
static char *lines[MOST], *engines[MOST];
static int line_count;
static atomic_int busy;

static void collect(mica_context *context, guest_case *c)
{
    (void)context;
    if (line_count == MOST) return;
    lines[line_count] = strdup(c->line);
    engines[line_count++] = strdup(c->engine);
}

static void *work(void *user)
{
    mica_context *context = guest_context("cpu");
    for (int i = (int)(intptr_t)user;; i++) {
        guest_case c = {.line = lines[i % line_count]};
        snprintf(c.engine, sizeof c.engine, "%s", engines[i % line_count]);
        if (mica_problem_from_text(c.line, &c.problem) != MICA_OK) continue;
        guest_open(&c);
        (void)guest_run(context, &c);
        guest_close(&c);
        mica_problem_destroy(c.problem);
        atomic_fetch_add(&busy, 1);
    }
    return NULL;
}

static void child(int turn)
{
    pthread_t thread;
    for (intptr_t i = 0; i < THREADS; i++)
        if (pthread_create(&thread, NULL, work, (void *)(turn + 7 * i)) != 0) _exit(98);
    /* within the first calls, some milliseconds later, or when each line has been run */
    while (turn % 4 == 3 && atomic_load(&busy) < (THREADS + 1) * line_count) usleep(100);
    usleep((unsigned)(turn * 379 % (turn % 4 ? 40000 : 1000)));
    exit(42);
}

/* The children are fresh: nothing of the library was used before they are forked. */
int main(int argc, char **argv)
{
    const char *only = argc > 1 ? argv[1] : NULL;
    const char *given = getenv("GUEST_TIMES");
    int times = given ? atoi(given) : 200, failed = 0, pipes[2];
    /* lines are collected in a process of their own, since that opens the library */
    if (pipe(pipes) != 0) return 99;
    if (fork() == 0) {
        mica_context *context = guest_context("cpu");
        guest_each(context, 6, 1e5, only, collect);
        for (int i = 0; i < line_count; i++) dprintf(pipes[1], "%s\t%s\n", engines[i], lines[i]);
        _exit(0);
    }
    close(pipes[1]);
    FILE *f = fdopen(pipes[0], "r");
    char row[2048];
    while (f && fgets(row, sizeof row, f) && line_count < MOST) {
        row[strcspn(row, "\n")] = 0;
        char *tab = strchr(row, '\t');
        if (!tab) continue;
        *tab = 0;
        engines[line_count] = strdup(row);
        lines[line_count++] = strdup(tab + 1);
    }
    wait(NULL);
    printf("%d lines\n", line_count);
    if (!line_count) return only ? 77 : 1; /* no such engine on this machine */
    fflush(stdout);
    for (int i = 0; i < times; i++) {
        int status;
        pid_t pid = fork();
        if (pid == 0) child(i);
        waitpid(pid, &status, 0);
        if (WIFEXITED(status) && WEXITSTATUS(status) == 42) continue;
        printf("exit %d: status 0x%x\n", i, (unsigned)status);
        fflush(stdout);
        failed++;
    }
    printf("%d of %d failed\n", failed, times);
    return failed != 0;
}
