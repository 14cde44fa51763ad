/* SPDX-License-Identifier: Apache-2.0
 * The disk cache shared by processes: some are killed while they write, many start at once. */
#define _GNU_SOURCE
#include "cuda_cache.h"
#include "cuda/compile/claim.h"

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

enum { KERNELS = 12 };

static bool is_whole(const mica_kernel *kernel)
{
    mica_kernel_info info;
    mica_kernel_describe(kernel, &info);
    return info.registers == 24 && info.spill_bytes == 48 && info.shared_bytes == 1024;
}

/* A child of the cold start: gets kernels on an offline device and prints nothing. A compilation
 * takes it some milliseconds. */
static int get_kernels(int count, int compile_ms)
{
    mica_cuda *cuda;
    mica_kernel *kernels[KERNELS];
    mica_kernel_spec specs[KERNELS];
    char prologues[KERNELS][32];
    bool sound = true;
    fake_compile_ms_fn *pause;
    help_find(help_nvrtc, "fake_compile_ms", &pause);
    pause(compile_ms);
    for (int i = 0; i < count; i++) {
        snprintf(prologues[i], sizeof prologues[i], "constexpr int N = %d;\n", i);
        specs[i] = (mica_kernel_spec){"test/one.cu", "one", prologues[i], 0};
    }
    if (mica_cuda_open("sm_90a", &cuda) || mica_kernel_get_all(cuda, specs, count, kernels)) {
        fprintf(stderr, "%s\n", mica_error());
        return 1;
    }
    for (int i = 0; i < count; i++) {
        sound &= is_whole(kernels[i]);
        mica_kernel_put(kernels[i]);
    }
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

/* The cache of the next children is empty, and nothing has been compiled. */
static void start_cold(void)
{
    setenv("MICA_CACHE_BYTES", "1000000", 1); /* of the children */
    assert_int_equal(mica_cuda_cache_prune(0), MICA_OK);
    unlink(getenv("FAKE_NVRTC_COUNT"));
}

static void assert_ends(pid_t pid)
{
    int code;
    assert_int_equal(waitpid(pid, &code, 0), pid);
    assert_int_equal(code, 0);
}

static void many_processes_start_cold_at_once(void **state)
{
    (void)state;
    enum { N = 32 };
    pid_t pid[N];
    int code;
    start_cold();
    for (int i = 0; i < N; i++) pid[i] = spawn_self("kernel", 0);
    for (int i = 0; i < N; i++) assert_ends(pid[i]);
    assert_int_equal(compiles_of_all_processes(), 1);
    assert_int_equal(count_files(".tmp-"), 2); /* the kernel and the compiler's identity, no more */

    /* the next process compiles nothing */
    off_t before = compiles_of_all_processes();
    assert_int_equal(waitpid(spawn_self("kernel", 0), &code, 0) > 0 && code == 0, 1);
    assert_int_equal(compiles_of_all_processes(), before);

    /* and a damaged entry costs one compilation */
    unsigned char file[65536];
    char path[512];
    largest_entry(path, sizeof path);
    size_t bytes = load(path, file, sizeof file);
    file[bytes - 1] ^= 1;
    overwrite(path, file, bytes);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(waitpid(spawn_self("kernel", 0), &code, 0) > 0 && code == 0, 1);
        assert_int_equal(compiles_of_all_processes(), before + 1);
    }
}

/* Each kernel is compiled by one process; the others wait for it. */
static void processes_share_their_compiling(void **state)
{
    (void)state;
    enum { N = 8 };
    pid_t pid[N];
    start_cold();
    for (int i = 0; i < N; i++) pid[i] = spawn_self("kernels", 20);
    for (int i = 0; i < N; i++) assert_ends(pid[i]);
    assert_int_equal(compiles_of_all_processes(), KERNELS);
    assert_int_equal(count_files(".tmp-"), KERNELS + 1);
}

static pid_t start_endless_compile(void)
{
    start_cold();
    pid_t pid = spawn_self("kernel", 1000000);
    while (compiles_of_all_processes() == 0) usleep(1000);
    return pid;
}

/* Those who wait go on without the process that was killed, and one of them compiles. */
static void a_compiler_is_killed(void **state)
{
    (void)state;
    pid_t first = start_endless_compile(), others[4];
    for (int i = 0; i < 4; i++) others[i] = spawn_self("kernel", 1);
    usleep(50000);
    assert_int_equal(compiles_of_all_processes(), 1); /* they wait */
    kill(first, SIGKILL);
    assert_int_equal(waitpid(first, NULL, 0), first);
    for (int i = 0; i < 4; i++) assert_ends(others[i]);
    assert_int_equal(compiles_of_all_processes(), 2);
}

/* Nobody waits for ever for one that was stopped. */
static void a_compiler_is_stopped(void **state)
{
    (void)state;
    pid_t first = start_endless_compile();
    kill(first, SIGSTOP);
    assert_ends(spawn_self("impatient", 1));
    assert_int_equal(compiles_of_all_processes(), 2);
    assert_ends(spawn_self("impatient", 1)); /* what that one stored is taken at once */
    assert_int_equal(compiles_of_all_processes(), 2);
    kill(first, SIGKILL);
    assert_int_equal(waitpid(first, NULL, 0), first);
}

/* Whatever lies in the place of the file of locks, or fails, kernels are compiled. */
static void claims_that_cannot_be_made(void **state)
{
    (void)state;
    char path[512];
    cache_directory(path, sizeof path);
    strcat(path, "/.lock");
    mica_claim claim;
    assert_true(mica_claim_take(&key_0, "kernel", &claim));
    mica_claim_end(&claim);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    assert_int_equal(st.st_size, 0);
    assert_int_equal(unlink(path), 0);
    alarm(20);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_false(mica_claim_take(&key_0, "kernel", &claim));
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(symlink("elsewhere", path), 0);
    assert_false(mica_claim_take(&key_0, "kernel", &claim));
    assert_int_equal(unlink(path), 0);
    for (long n = 1, seen = 1; seen >= n; n++) {
        mica_fault_set(MICA_FAULT_FILE, n, false);
        bool taken = mica_claim_take(&key_0, "kernel", &claim);
        seen = mica_fault_count(MICA_FAULT_FILE);
        mica_fault_set(MICA_FAULT_FILE, 0, false);
        if (taken) mica_claim_end(&claim);
    }
    assert_true(mica_claim_take(&key_0, "kernel", &claim)); /* nothing kept it */
    mica_claim_end(&claim);
    alarm(0);
}

static int run_all(void)
{
    const struct CMUnitTest tests[] = {
        FRESH(a_writer_killed_at_any_point),    FRESH(many_processes_start_cold_at_once),
        FRESH(processes_share_their_compiling), FRESH(a_compiler_is_killed),
        FRESH(a_compiler_is_stopped),           FRESH(claims_that_cannot_be_made),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(int argc, char **argv)
{
    char path[512];
    if (argc > 1) prepare();
    if (argc > 1 && !strcmp(argv[1], "write")) write_for_ever(atoi(argv[2]));
    if (argc > 1) {
        help_fakes();
        if (!strcmp(argv[1], "impatient")) mica_claim_patience(100);
        return get_kernels(!strcmp(argv[1], "kernels") ? KERNELS : 1, atoi(argv[2]));
    }
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
