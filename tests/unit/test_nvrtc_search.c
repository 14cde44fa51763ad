/* SPDX-License-Identifier: Apache-2.0
 * Where NVRTC is looked for: trees like those of toolkits, pip and conda, with the stand-in in
 * them. The environment is read once in a process: each search is a child's. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include "cuda/compile/nvrtc_search.h"
#include "fake/help.h"

#include <cmocka.h>

#include <link.h>
#include <sys/wait.h>

static char fake[512], tree[256];
static char opened[1024], looked_at[4096];

static const char *in_tree(const char *path)
{
    static char full[4][1024];
    static int next;
    char *text = full[next++ % 4];
    snprintf(text, sizeof full[0], "%s/%s", tree, path);
    return text;
}

/* The file's folders, too. */
static const char *make_folders(const char *path)
{
    const char *full = in_tree(path);
    char part[1024];
    for (const char *slash = strchr(full + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        snprintf(part, sizeof part, "%.*s", (int)(slash - full), full);
        mkdir(part, 0755);
    }
    return full;
}

static void put(const char *path)
{
    assert_int_equal(symlink(fake, make_folders(path)), 0);
}

static void put_program(const char *path)
{
    help_write(make_folders(path), "", 0);
    assert_int_equal(chmod(in_tree(path), 0755), 0);
}

/* Names and values; a value that does not begin with "=" lies in the tree. Ends with NULL. */
static void search(const char *const *environment)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        static const char *const known[] = {"HOME", "CUDA_HOME", "CUDA_PATH", "VIRTUAL_ENV",
                                            "CONDA_PREFIX"};
        for (size_t i = 0; i < sizeof known / sizeof *known; i++) unsetenv(known[i]);
        setenv("PATH", "/nosuch", 1);
        for (; *environment; environment += 2)
            setenv(environment[0],
                   *environment[1] == '=' ? environment[1] + 1 : in_tree(environment[1]), 1);
        char text[4096] = "";
        mica_text looked = {text, sizeof text, 0};
        void *library = mica_nvrtc_search(in_tree("local"), &looked);
        struct link_map *map = NULL;
        if (library) dlinfo(library, RTLD_DI_LINKMAP, &map);
        char answer[sizeof text + sizeof opened];
        int length = snprintf(answer, sizeof answer, "%s%c%s", map ? map->l_name : "", 0, text);
        _exit(write(ends[1], answer, (size_t)length + 1) == length + 1 ? 0 : 1);
    }
    char answer[sizeof opened + sizeof looked_at] = "";
    size_t length = 0;
    ssize_t n;
    close(ends[1]);
    while ((n = read(ends[0], answer + length, sizeof answer - 1 - length)) > 0)
        length += (size_t)n;
    close(ends[0]);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_true(strlen(answer) < sizeof opened);
    snprintf(opened, sizeof opened, "%.*s", (int)sizeof opened - 1, answer);
    snprintf(looked_at, sizeof looked_at, "%.*s", (int)sizeof looked_at - 1,
             answer + strlen(answer) + 1);
}

#define SEARCH(...) search((const char *const[]){__VA_ARGS__, NULL})
#define FOUND(path) assert_string_equal(opened, in_tree(path))

static int new_tree(void **state)
{
    (void)state;
    snprintf(tree, sizeof tree, "/tmp/mica-test-nvrtc-XXXXXX");
    return mkdtemp(tree) && chmod(tree, 0755) == 0 ? 0 : -1;
}

static int remove_tree(void **state)
{
    (void)state;
    help_remove_tree(tree);
    return 0;
}

static void toolkits_are_found(void **state)
{
    (void)state;
    put("cuda/lib64/libnvrtc.so.12");
    put("other/targets/x86_64-linux/lib/libnvrtc.so.13");
    SEARCH("CUDA_HOME", "cuda");
    FOUND("cuda/lib64/libnvrtc.so.12");
    SEARCH("CUDA_PATH", "other");
    FOUND("other/targets/x86_64-linux/lib/libnvrtc.so.13");
    SEARCH("CUDA_HOME", "cuda", "CUDA_PATH", "other");
    FOUND("cuda/lib64/libnvrtc.so.12");
    put("cuda/lib64/libnvrtc.so.13");
    SEARCH("CUDA_HOME", "cuda");
    FOUND("cuda/lib64/libnvrtc.so.13");
}

static void the_newest_toolkit_of_the_system_comes_last(void **state)
{
    (void)state;
    put("local/cuda-9.2/lib64/libnvrtc.so.12");
    put("local/cuda-12.9/lib64/libnvrtc.so.12");
    SEARCH("HOME", "home");
    FOUND("local/cuda-12.9/lib64/libnvrtc.so.12");
    put("local/cuda/lib64/libnvrtc.so.12");
    SEARCH("HOME", "home");
    FOUND("local/cuda/lib64/libnvrtc.so.12");
    put("home/.local/lib/python3.11/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12");
    SEARCH("HOME", "home");
    FOUND("home/.local/lib/python3.11/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12");
}

static void packages_of_pip_and_conda_are_found(void **state)
{
    (void)state;
    put("venv/lib/python3.9/site-packages/nvidia/cu13/lib/libnvrtc.so.13");
    put("venv/lib/python3.11/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12");
    SEARCH("VIRTUAL_ENV", "venv");
    FOUND("venv/lib/python3.9/site-packages/nvidia/cu13/lib/libnvrtc.so.13");
    put("venv/lib/python3.11/site-packages/nvidia/cu13/lib/libnvrtc.so.13");
    SEARCH("VIRTUAL_ENV", "venv");
    FOUND("venv/lib/python3.11/site-packages/nvidia/cu13/lib/libnvrtc.so.13");
    put("conda/lib/libnvrtc.so.12");
    SEARCH("CONDA_PREFIX", "conda");
    FOUND("conda/lib/libnvrtc.so.12");
    put("conda/lib/python3.13/site-packages/nvidia/cu13/lib/libnvrtc.so.13");
    SEARCH("CONDA_PREFIX", "conda");
    FOUND("conda/lib/python3.13/site-packages/nvidia/cu13/lib/libnvrtc.so.13");
    /* pip install --prefix ~/.local, on Debian */
    put("home/.local/local/lib/python3.11/dist-packages/nvidia/cu13/lib/libnvrtc.so.13");
    SEARCH("HOME", "home");
    FOUND("home/.local/local/lib/python3.11/dist-packages/nvidia/cu13/lib/libnvrtc.so.13");
}

static void packages_of_the_first_python_are_found(void **state)
{
    (void)state;
    char path[4096];
    put_program("usr/bin/python3.11");
    assert_int_equal(symlink("python3.11", in_tree("usr/bin/python3")), 0);
    put("usr/local/lib/python3.11/dist-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12");
    make_folders("empty/bin/");
    make_folders("venv/bin/");
    put_program("bin/python3");
    put_program("python3");
    snprintf(path, sizeof path, "=:bin:%s:%s", in_tree("empty/bin"), in_tree("usr/bin"));
    assert_int_equal(chdir(tree), 0);
    SEARCH("PATH", path);
    assert_int_equal(chdir("/"), 0);
    FOUND("usr/local/lib/python3.11/dist-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12");
    /* A virtual environment's python is a link to the system's. */
    assert_int_equal(symlink(in_tree("usr/bin/python3"), in_tree("venv/bin/python3")), 0);
    SEARCH("PATH", "venv/bin");
    FOUND("usr/local/lib/python3.11/dist-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12");
    put("venv/lib/python3.11/site-packages/nvidia/cu13/lib/libnvrtc.so.13");
    SEARCH("PATH", "venv/bin");
    FOUND("venv/lib/python3.11/site-packages/nvidia/cu13/lib/libnvrtc.so.13");
    /* A python that is found is the only one. */
    put_program("first/bin/python3");
    snprintf(path, sizeof path, "=%s:%s", in_tree("first/bin"), in_tree("venv/bin"));
    SEARCH("PATH", path);
    assert_string_equal(opened, "");
}

static void names_are_not_patterns(void **state)
{
    (void)state;
    put("a[b]{c,d}*/lib64/libnvrtc.so.13");
    SEARCH("CUDA_HOME", "a[b]{c,d}*");
    FOUND("a[b]{c,d}*/lib64/libnvrtc.so.13");
    put("ab/lib64/libnvrtc.so.13");
    SEARCH("CUDA_HOME", "a[bc]");
    assert_string_equal(opened, "");
}

static void relative_folders_do_not_count(void **state)
{
    (void)state;
    put("cuda/lib64/libnvrtc.so.13");
    assert_int_equal(chdir(tree), 0);
    SEARCH("CUDA_HOME", "=cuda", "VIRTUAL_ENV", "=", "HOME", "=.");
    assert_int_equal(chdir("/"), 0);
    assert_string_equal(opened, "");
}

static void what_others_may_write_is_refused(void **state)
{
    (void)state;
    put("cuda/lib64/libnvrtc.so.13");
    put("cuda/lib/libnvrtc.so.12");
    assert_int_equal(chmod(in_tree("cuda/lib64"), 0777), 0);
    SEARCH("CUDA_HOME", "cuda");
    FOUND("cuda/lib/libnvrtc.so.12");
    assert_non_null(
        strstr(looked_at, in_tree("cuda/lib64/libnvrtc.so.13: another user may change")));
    if (geteuid() != 0) return;
    assert_int_equal(chmod(in_tree("cuda/lib64"), 0755), 0);
    SEARCH("CUDA_HOME", "cuda");
    FOUND("cuda/lib64/libnvrtc.so.13");
    assert_int_equal(chown(in_tree("cuda/lib64"), 12345, 12345), 0);
    SEARCH("CUDA_HOME", "cuda");
    FOUND("cuda/lib/libnvrtc.so.12");
}

static void what_was_tried_is_told(void **state)
{
    (void)state;
    help_write(make_folders("cuda/lib64/libnvrtc.so.13"), "no library", 10);
    put_program("usr/bin/python3");
    SEARCH("CUDA_HOME", "cuda", "CUDA_PATH", "path", "VIRTUAL_ENV", "venv", "CONDA_PREFIX", "conda",
           "PATH", "usr/bin", "HOME", "home");
    assert_string_equal(opened, "");
    static const char *const roots[] = {"cuda", "path",  "venv",       "conda",
                                        "usr",  "local", "home/.local"};
    for (size_t i = 0; i < sizeof roots / sizeof *roots; i++) {
        char text[1024];
        snprintf(text, sizeof text, "; %s/", in_tree(roots[i]));
        if (!strstr(looked_at, text)) fail_msg("no %s in %s", text, looked_at);
    }
    assert_non_null(strstr(looked_at, "file too short"));
}

int main(void)
{
    help_fakes();
    snprintf(fake, sizeof fake, "%s", getenv("MICA_NVRTC"));
    dlclose(help_nvrtc); /* or it would be found under that name */
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, new_tree, remove_tree)
        TEST(toolkits_are_found),
        TEST(the_newest_toolkit_of_the_system_comes_last),
        TEST(packages_of_pip_and_conda_are_found),
        TEST(packages_of_the_first_python_are_found),
        TEST(names_are_not_patterns),
        TEST(relative_folders_do_not_count),
        TEST(what_others_may_write_is_refused),
        TEST(what_was_tried_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
