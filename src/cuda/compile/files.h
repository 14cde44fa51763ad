/* SPDX-License-Identifier: Apache-2.0
 * The system calls of the disk cache: retried when interrupted, and failing on demand in tests
 * (MICA_FAULT_FILE). They set errno as the calls do. */
#ifndef MICA_CUDA_COMPILE_FILES_H
#define MICA_CUDA_COMPILE_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

int mica_mkdir(const char *path); /* mode 0700 */
int mica_open_at(int directory, const char *name, int flags, mode_t mode);
int mica_stat_fd(int fd, struct stat *st);
bool mica_read_all(int fd, void *data, size_t bytes);
bool mica_write_all(int fd, const void *data, size_t bytes);
int mica_sync_fd(int fd);
int mica_link_fd(int fd, int directory, const char *name);
int mica_rename_at(int directory, const char *from, const char *to);
int mica_unlink_at(int directory, const char *name);
/* Locks one byte for this open file, or gives it back. *busy: another open file has it. */
bool mica_lock_byte(int fd, int64_t at, bool hold, bool *busy);

#endif
