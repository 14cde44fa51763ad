/* SPDX-License-Identifier: Apache-2.0
 * The disk cache shared by processes: some are killed while they write, many start at once. */
#define _GNU_SOURCE
#include "cuda_cache.h"

#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

extern char **environ;

/* ---- processes ---- */

enum { KILLED_KEYS = 4 };

/* The child: writes the same few entries until it is killed, and says so before each. */
static void write_for_ever(int said)
{
    char text[128];
    unsigned char blob[BLOB];
    for (int i = 0; write(said, "x", 1) == 1; i = (i + 1) % KILLED_KEYS) {
        mica_cache_key key = make_key(text, sizeof text, i);
        make_blob(blob, BLOB, i);
        mica_cache_write(&key, blob, BLOB);
    }
}

static pid_t spawn_self(const char *task, int fd)
{
    pid_t pid;
    char name[] = "self", task_copy[16], number[16];
    snprintf(task_copy, sizeof task_copy, "%s", task);
    snprintf(number, sizeof number, "%d", fd);
    char *const argv[] = {name, task_copy, number, NULL};
    assert_int_equal(posix_spawn(&pid, "/proc/self/exe", NULL, NULL, argv, environ), 0);
    return pid;
}

static void a_writer_killed_at_any_point(void **state)
{
    (void)state;
    char text[128];
    unsigned char blob[BLOB];
    int present = 0;
    for (unsigned round = 0; round < 200; round++) {
        char said;
        int ends[2];
        assert_int_equal(pipe(ends), 0);
        pid_t pid = spawn_self("write", ends[1]);
        for (unsigned i = 0; i <= round % 5; i++) assert_int_equal(read(ends[0], &said, 1), 1);
        usleep(round * 7919 % 1000);
        kill(pid, SIGKILL);
        assert_int_equal(waitpid(pid, NULL, 0), pid);
        close(ends[0]);
        close(ends[1]);
        for (int i = 0; i < KILLED_KEYS; i++) {
            mica_cache_key key = make_key(text, sizeof text, i);
            make_blob(blob, BLOB, i);
            char path[512];
            struct stat st;
            entry_path(&key, path, sizeof path);
            bool exists = lstat(path, &st) == 0, read = reads_back(&key, blob, BLOB);
            if (exists && !read) fail_msg("round %u leaves half an entry", round);
            present += read && i > 0; /* entry 0 was there before */
        }
        if (round % 20 == 19) fresh(NULL);
    }
    printf("          %d of %d entries were there\n", present, 200 * (KILLED_KEYS - 1));
    assert_true(present > 0);
}

/* A child of the cold start: gets one kernel on an offline device and prints nothing. */
static int get_one_kernel(void)
{
    mica_cuda *cuda;
    mica_kernel *kernel;
    mica_kernel_info info;
    const mica_kernel_spec spec = {"test/one.cu", "one", "", 0};
    if (mica_cuda_open("sm_90a", &cuda) || mica_kernel_get(cuda, &spec, &kernel)) {
        fprintf(stderr, "%s\n", mica_error());
        return 1;
    }
    mica_kernel_describe(kernel, &info);
    bool sound = info.registers == 24 && info.spill_bytes == 48 && info.shared_bytes == 1024;
    mica_kernel_put(kernel);
    mica_cuda_close(cuda);
    return sound ? 0 : 2;
}

static off_t compiles_of_all_processes(void)
{
    struct stat st;
    return stat(getenv("FAKE_NVRTC_COUNT"), &st) == 0 ? st.st_size : 0;
}

/* The path of the one kernel that is there. */
static void largest_entry(char *path, size_t size)
{
    char directory[400], file[512];
    off_t most = -1;
    struct stat info;
    cache_directory(directory, sizeof directory);
    DIR *d = opendir(directory);
    assert_non_null(d);
    for (struct dirent *e = readdir(d); e; e = readdir(d)) {
        if (e->d_name[0] == '.') continue;
        snprintf(file, sizeof file, "%s/%.100s", directory, e->d_name);
        assert_int_equal(stat(file, &info), 0);
        if (info.st_size <= most) continue;
        most = info.st_size;
        snprintf(path, size, "%s", file);
    }
    closedir(d);
    assert_true(most > 0);
}

static void many_processes_start_cold_at_once(void **state)
{
    (void)state;
    enum { N = 32 };
    pid_t pid[N];
    int code;
    setenv("MICA_CACHE_BYTES", "1000000", 1); /* of the children */
    assert_int_equal(mica_cuda_cache_prune(0), MICA_OK);
    for (int i = 0; i < N; i++) pid[i] = spawn_self("kernel", -1);
    for (int i = 0; i < N; i++) {
        assert_int_equal(waitpid(pid[i], &code, 0), pid[i]);
        assert_int_equal(code, 0);
    }
    assert_in_range(compiles_of_all_processes(), 1, N);
    assert_int_equal(count_files(".tmp-"), 2); /* the kernel and the compiler's identity, no more */

    /* the next process compiles nothing */
    off_t before = compiles_of_all_processes();
    assert_int_equal(waitpid(spawn_self("kernel", -1), &code, 0) > 0 && code == 0, 1);
    assert_int_equal(compiles_of_all_processes(), before);

    /* and a damaged entry costs one compilation */
    unsigned char file[65536];
    char path[512];
    largest_entry(path, sizeof path);
    size_t bytes = load(path, file, sizeof file);
    file[bytes - 1] ^= 1;
    overwrite(path, file, bytes);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(waitpid(spawn_self("kernel", -1), &code, 0) > 0 && code == 0, 1);
        assert_int_equal(compiles_of_all_processes(), before + 1);
    }
}

static int run_all(void)
{
    const struct CMUnitTest tests[] = {
        FRESH(a_writer_killed_at_any_point),
        FRESH(many_processes_start_cold_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(int argc, char **argv)
{
    char path[512];
    if (argc > 1) prepare();
    if (argc > 1 && !strcmp(argv[1], "write")) write_for_ever(atoi(argv[2]));
    if (argc > 1) return get_one_kernel();
    begin(__FILE__);
    snprintf(path, sizeof path, "%s/compiles", help_directory);
    setenv("FAKE_NVRTC_COUNT", path, 1);
    snprintf(path, sizeof path, "%s/src/test", help_directory);
    mkdir(path, 0700);
    help_kernel("test/one.cu", "extern \"C\" __global__ void one(long long a) {}\n");
    int failed = run_all();
    help_end();
    return failed;
}
