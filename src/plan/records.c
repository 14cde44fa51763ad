/* SPDX-License-Identifier: Apache-2.0
 * Tuning records: problem | device | engine | config | milliseconds | versions, one line each. They
 * store a choice, never a plan: what they name is rebuilt and rechecked. */
#define _GNU_SOURCE
#include "plan/context.h"
#include "base/format.h"
#include "base/memory.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

extern const char mica_shipped_records[];

static void free_record(mica_record *r)
{
    mica_release(r->problem);
    mica_release(r->device);
    mica_release(r->engine);
    mica_release(r->config);
}

/* ---- look-up: by a hash of problem and device ---- */

static int slot_of(const mica_records *rs, const char *problem, const char *device)
{
    uint64_t hash =
        XXH3_64bits_withSeed(device, strlen(device), XXH3_64bits(problem, strlen(problem)));
    return (int)(hash & (uint64_t)(rs->capacity - 1));
}

static void link_record(mica_records *rs, int i)
{
    int *slot = &rs->slots[slot_of(rs, rs->list[i].problem, rs->list[i].device)];
    rs->list[i].before = *slot;
    *slot = i;
}

static mica_status grow(mica_records *rs)
{
    int capacity = rs->capacity ? 2 * rs->capacity : 64;
    mica_record *list = mica_grow(rs->list, (size_t)capacity * sizeof *list);
    if (!list) return mica_fail_memory((size_t)capacity * sizeof *list);
    rs->list = list;
    int *slots = mica_grow(rs->slots, (size_t)capacity * sizeof *slots);
    if (!slots) return mica_fail_memory((size_t)capacity * sizeof *slots);
    rs->slots = slots;
    rs->capacity = capacity;
    for (int i = 0; i < capacity; i++) slots[i] = -1;
    for (int i = 0; i < rs->count; i++) link_record(rs, i);
    return MICA_OK;
}

static mica_status add(mica_records *rs, const char *problem, const char *device,
                       const char *engine, const char *config, double ms)
{
    if (rs->count == rs->capacity) MICA_TRY(grow(rs));
    mica_record r = {.problem = mica_copy_text(problem),
                     .device = mica_copy_text(device),
                     .engine = mica_copy_text(engine),
                     .config = mica_copy_text(config),
                     .ms = ms};
    if (!r.problem || !r.device || !r.engine || !r.config) {
        free_record(&r);
        return mica_fail_memory(strlen(problem));
    }
    rs->list[rs->count] = r;
    link_record(rs, rs->count++);
    return MICA_OK;
}

mica_status mica_records_add(mica_records *rs, const char *problem, const char *device,
                             const char *engine, const char *config, double ms, bool fresh)
{
    pthread_mutex_lock(&rs->mutex);
    mica_status status = add(rs, problem, device, engine, config, ms);
    if (status == MICA_OK) rs->list[rs->count - 1].fresh = fresh;
    pthread_mutex_unlock(&rs->mutex);
    return status;
}

bool mica_records_find(mica_records *rs, const char *problem, const char *device, bool shipped,
                       mica_choice *choice)
{
    bool found = false;
    pthread_mutex_lock(&rs->mutex);
    int i = rs->count ? rs->slots[slot_of(rs, problem, device)] : -1;
    for (; i >= 0 && !found; i = rs->list[i].before) {
        const mica_record *r = &rs->list[i];
        if (r->shipped && !shipped) continue;
        if (strcmp(r->problem, problem) != 0 || strcmp(r->device, device) != 0) continue;
        snprintf(choice->engine, sizeof choice->engine, "%s", r->engine);
        snprintf(choice->config, sizeof choice->config, "%s", r->config);
        choice->ms = r->ms;
        found = true;
    }
    pthread_mutex_unlock(&rs->mutex);
    return found;
}

void mica_records_free(mica_records *rs)
{
    for (int i = 0; i < rs->count; i++) free_record(&rs->list[i]);
    mica_release(rs->list);
    mica_release(rs->slots);
    rs->list = NULL;
    rs->slots = NULL;
    rs->count = rs->capacity = 0;
}

/* ---- files ---- */

static char *trim(char *s)
{
    s += strspn(s, " \t");
    size_t n = strlen(s);
    while (n && strchr(" \t\r\n", s[n - 1])) s[--n] = 0;
    return s;
}

static mica_status read_line(mica_records *rs, char *line, const char *path, int number)
{
    char *columns[6];
    int n = 0;
    for (char *s = line; s; n++) {
        if (n < 6) columns[n] = s;
        s = strchr(s, '|');
        if (s) *s++ = 0;
    }
    if (n != 6)
        return mica_fail(MICA_INVALID, "%s:%d: a record has 6 columns divided by |, this has %d",
                         path, number, n);
    for (int i = 0; i < 6; i++) columns[i] = trim(columns[i]);
    char *end;
    double ms = mica_read_double(columns[4], &end);
    if (end == columns[4] || *end || !(ms >= 0) || !isfinite(ms))
        return mica_fail(MICA_INVALID, "%s:%d: \"%s\" is no time in milliseconds", path, number,
                         columns[4]);
    if (!*columns[0] || !*columns[1] || !*columns[2])
        return mica_fail(MICA_INVALID, "%s:%d: problem, device and engine may not be empty", path,
                         number);
    mica_device_info unused;
    if (!strcmp(columns[0], MICA_FIT_PROBLEM) && mica_fit_parse(columns[3], &unused) != MICA_OK)
        return mica_fail(MICA_INVALID,
                         "%s:%d: \"%s\" is no \"copy_gbps=X f32_tflops=X bf16_tflops=X\" of "
                         "positive numbers",
                         path, number, columns[3]);
    return mica_records_add(rs, columns[0], columns[1], columns[2], columns[3], ms, false);
}

mica_status mica_records_load(mica_records *rs, const char *path)
{
    FILE *f = mica_fault_due(MICA_FAULT_FILE) ? NULL : fopen(path, "re");
    if (!f) return mica_fail(MICA_IO, "records: cannot read %s: %s", path, strerror(errno));
    /* Bad lines are passed over and reported; good ones are kept. */
    mica_status status = MICA_OK;
    char *line = NULL;
    size_t size = 0;
    for (int number = 1; getline(&line, &size, f) > 0; number++) {
        char *s = trim(line);
        if (*s == 0 || *s == '#') continue;
        mica_status one = read_line(rs, s, path, number);
        if (one != MICA_OK) status = one;
    }
    if (ferror(f)) status = mica_fail(MICA_IO, "records: reading %s failed", path);
    free(line);
    fclose(f);
    return status;
}

/* Several processes append to one file: each line is one write, and a lock keeps them apart where
 * the file system's appending does not (NFS). */
static bool write_all(int fd, const char *text, size_t n)
{
    while (n) {
        ssize_t written = write(fd, text, n);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) return false;
        text += written;
        n -= (size_t)written;
    }
    return true;
}

/* Whoever was interrupted left a line without an end: ours do not become part of it. */
static bool end_last_line(int fd)
{
    char last = '\n';
    off_t end = lseek(fd, 0, SEEK_END);
    if (end > 0 && pread(fd, &last, 1, end - 1) != 1) return false;
    return last == '\n' || write_all(fd, "\n", 1);
}

static size_t record_line(const mica_record *r, char *line, size_t size)
{
    return (size_t)mica_format(line, size, "%s | %s | %s | %s | %.6g | mica %s\n", r->problem,
                               r->device, r->engine, r->config, r->ms, mica_version());
}

static bool write_record(int fd, const mica_record *r)
{
    size_t length = record_line(r, NULL, 0);
    char *line = mica_alloc(length + 1);
    if (!line) return false;
    record_line(r, line, length + 1);
    bool written = write_all(fd, line, length);
    mica_release(line);
    return written;
}

static bool write_fresh(const mica_records *rs, int fd)
{
    bool locked = flock(fd, LOCK_EX) == 0; /* what has no locks is appended to all the same */
    bool written = end_last_line(fd);
    for (int i = 0; written && i < rs->count; i++)
        if (rs->list[i].fresh) written = write_record(fd, &rs->list[i]);
    if (locked) flock(fd, LOCK_UN);
    return written && !mica_fault_due(MICA_FAULT_FILE);
}

mica_status mica_records_save(mica_records *rs, const char *path)
{
    int fd = mica_fault_due(MICA_FAULT_FILE)
                 ? -1
                 : open(path, O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0) return mica_fail(MICA_IO, "records: cannot write %s: %s", path, strerror(errno));
    pthread_mutex_lock(&rs->mutex);
    bool written = write_fresh(rs, fd);
    if (close(fd) != 0) written = false;
    for (int i = 0; written && i < rs->count; i++) rs->list[i].fresh = false;
    pthread_mutex_unlock(&rs->mutex);
    if (!written) return mica_fail(MICA_IO, "records: writing %s failed", path);
    return MICA_OK;
}

/* ---- what the library brings ---- */

mica_status mica_records_ship(mica_records *rs, const char *device)
{
    mica_status status = MICA_OK;
    int number = 0;
    char *text = mica_copy_text(mica_shipped_records), *rest = text;
    if (!text) return mica_fail_memory(strlen(mica_shipped_records));
    for (char *line; (line = strsep(&rest, "\n"));) {
        number++;
        if (!*line || *line == '#' || !strstr(line, device)) continue;
        mica_status one = read_line(rs, line, "data/records.txt", number);
        if (one != MICA_OK)
            status = one;
        else
            rs->list[rs->count - 1].shipped = true;
    }
    mica_release(text);
    return status;
}
