/* SPDX-License-Identifier: Apache-2.0
 * Static objects that a library makes in calls are kept to the end of the process
 * (src/base/system/statics.c); no others, nor anything else of it, are touched. */
#define _GNU_SOURCE
#include "base/system/library.h"
#include "../fake/help.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <cmocka.h>

#include <sys/wait.h>

static const char *const files[] = {"statics-now.so", "statics-lazy.so"};

typedef void make_fn(int to, char what);
typedef void register_fn(int to);

static void *open_fake(const char *file)
{
    char path[1024];
    snprintf(path, sizeof path, "%s", getenv("MICA_CUDA_DRIVER"));
    snprintf(strrchr(path, '/'), 64, "/%s", file);
    void *library = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
    if (!library) fail_msg("%s", dlerror());
    return library;
}

static void make(void *library, int to, char what)
{
    make_fn *fn;
    help_find(library, "statics_make", &fn);
    fn(to, what);
}

/* What objects say that are destroyed when a process ends that does this with a pipe. */
static void assert_destroyed(const char *want, void (*process)(int to, int which), int which)
{
    int pipes[2], status;
    char said[16] = "";
    assert_int_equal(pipe(pipes), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        process(pipes[1], which);
        exit(42);
    }
    close(pipes[1]);
    size_t count = 0;
    for (ssize_t n; (n = read(pipes[0], said + count, sizeof said - 1 - count)) > 0;)
        count += (size_t)n;
    close(pipes[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 42);
    assert_string_equal(said, want);
}

static void leave_alone(int to, int which)
{
    make(open_fake(files[which]), to, 'm');
}

static void keep(int to, int which)
{
    register_fn *loaded;
    void *library = open_fake(files[which]);
    help_find(library, "statics_register", &loaded);
    loaded(to);
    if (!mica_library_keep_statics(library)) _exit(1);
    make(library, to, 'm');
}

/* Of two libraries one; the other one had been asked before, so that its entry is filled. */
static void keep_one(int to, int which)
{
    void *kept = open_fake(files[which]), *other = open_fake(files[1 - which]);
    make(kept, to, 'f');
    if (!mica_library_keep_statics(kept)) _exit(1);
    make(kept, to, 'm');
    make(other, to, 'o');
}

static void what_calls_make_is_kept(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        assert_destroyed("m", leave_alone, i);
        assert_destroyed("l", keep, i);
        /* 'f' was registered before, and is the same object as 'm' by then */
        assert_destroyed("om", keep_one, i);
    }
}

/* Lines of the process's map that name the file. */
static void read_map(const char *file, char *text, size_t size)
{
    char line[512];
    FILE *f = fopen("/proc/self/maps", "r");
    assert_non_null(f);
    *text = 0;
    while (fgets(line, sizeof line, f))
        if (strstr(line, file)) strncat(text, line, size - strlen(text) - 1);
    fclose(f);
}

static void pages_are_protected_as_before(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        static char before[4096], after[4096];
        void *library = open_fake(files[i]);
        read_map(files[i], before, sizeof before);
        assert_non_null(strstr(before, "r--p"));
        assert_true(mica_library_keep_statics(library));
        assert_true(mica_library_keep_statics(library)); /* once more, as another copy would */
        read_map(files[i], after, sizeof after);
        assert_string_equal(after, before);
    }
}

static void a_library_that_has_none_is_left_as_it_is(void **state)
{
    (void)state;
    void *library = dlopen("libm.so.6", RTLD_LAZY);
    if (!library) skip();
    assert_false(mica_library_keep_statics(library));
    dlclose(library);
}

int main(void)
{
    help_fakes();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_calls_make_is_kept),
        cmocka_unit_test(pages_are_protected_as_before),
        cmocka_unit_test(a_library_that_has_none_is_left_as_it_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
