/* SPDX-License-Identifier: Apache-2.0
 * System calls that can be made to fail. */
#define _GNU_SOURCE
#include "cuda/compile/files.h"
#include "base/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

static bool fails(int error)
{
    if (!mica_fault_due(MICA_FAULT_FILE)) return false;
    errno = error;
    return true;
}

int mica_mkdir(const char *path)
{
    return fails(EACCES) ? -1 : mkdir(path, 0700);
}

int mica_open_at(int directory, const char *name, int flags, mode_t mode)
{
    int fd;
    if (fails(EMFILE)) return -1;
    do fd = openat(directory, name, flags, mode);
    while (fd < 0 && errno == EINTR);
    return fd;
}

int mica_stat_fd(int fd, struct stat *st)
{
    return fails(EIO) ? -1 : fstat(fd, st);
}

bool mica_read_all(int fd, void *data, size_t bytes)
{
    char *to = data;
    while (bytes > 0) {
        ssize_t n = fails(EIO) ? -1 : read(fd, to, bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        to += n;
        bytes -= (size_t)n;
    }
    return true;
}

bool mica_write_all(int fd, const void *data, size_t bytes)
{
    const char *from = data;
    while (bytes > 0) {
        ssize_t n = fails(ENOSPC) ? -1 : write(fd, from, bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        from += n;
        bytes -= (size_t)n;
    }
    return true;
}

int mica_sync_fd(int fd)
{
    return fails(EIO) ? -1 : fsync(fd);
}

int mica_link_fd(int fd, int directory, const char *name)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return fails(EIO) ? -1 : linkat(AT_FDCWD, path, directory, name, AT_SYMLINK_FOLLOW);
}

int mica_rename_at(int directory, const char *from, const char *to)
{
    return fails(EIO) ? -1 : renameat(directory, from, directory, to);
}

int mica_unlink_at(int directory, const char *name)
{
    return fails(EIO) ? -1 : unlinkat(directory, name, 0);
}

bool mica_lock_byte(int fd, int64_t at, bool hold, bool *busy)
{
    struct flock byte = {.l_type = hold ? F_WRLCK : F_UNLCK, .l_start = (off_t)at, .l_len = 1};
    *busy = false;
    if (hold && fails(ENOLCK)) return false;
    if (fcntl(fd, F_OFD_SETLK, &byte) == 0) return true;
    *busy = errno == EAGAIN || errno == EACCES || errno == EINTR;
    return false;
}
