/* SPDX-License-Identifier: Apache-2.0
 * A claim is a lock on one byte of the file .lock in the cache's directory, the byte that the key's
 * digest names: nothing is written, nothing is left over, and the system ends it with the process,
 * however that ends. It belongs to the open file, not to the process (F_OFD_SETLK), so threads
 * claim as processes do. Who holds one claims no other, so nobody waits in a circle. */
#define _GNU_SOURCE
#include "cuda/compile/claim.h"
#include "cuda/compile/entries.h"
#include "cuda/compile/files.h"
#include "base/log.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

static atomic_int patience_ms = 60000;

void mica_claim_patience(int ms)
{
    atomic_store(&patience_ms, ms);
}

/* Locks over a network may wait for a server that is gone. */
static bool is_remote(int directory)
{
    static const unsigned nfs = 0x6969, smb2 = 0xfe534d42, cifs = 0xff534d42;
    struct statfs fs;
    if (fstatfs(directory, &fs) != 0) return true;
    unsigned type = (unsigned)fs.f_type;
    return type == nfs || type == smb2 || type == cifs;
}

static int open_lock(void)
{
    char path[512], reason[160];
    int directory = mica_cache_open(true, path, reason);
    if (directory < 0) return -1;
    int flags = O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK;
    int fd = is_remote(directory) ? -1 : mica_open_at(directory, ".lock", flags, 0600);
    close(directory);
    return fd;
}

static int64_t byte_of(const mica_cache_key *key)
{
    uint64_t at = 0;
    memcpy(&at, key->digest, sizeof at);
    return (int64_t)(at >> 2); /* and one more byte is still an offset */
}

static void pause_between(double waited)
{
    double seconds = 1e-3 + waited / 16; /* some per cent late at most */
    if (seconds > 0.02) seconds = 0.02;
    nanosleep(&(struct timespec){.tv_nsec = (long)(1e9 * seconds)}, NULL);
}

bool mica_claim_take(const mica_cache_key *key, const char *what, mica_claim *claim)
{
    *claim = (mica_claim){open_lock(), byte_of(key)};
    double start = mica_seconds(), waited = 0;
    bool busy = false, said = false, held = false;
    while (claim->fd >= 0 && 1e3 * waited <= atomic_load(&patience_ms)) {
        held = mica_lock_byte(claim->fd, claim->at, true, &busy);
        if (held || !busy) break;
        if (!said) mica_log(MICA_LOG_INFO, "%s: another process compiles it; waiting", what);
        said = true;
        pause_between(waited);
        waited = mica_seconds() - start;
    }
    if (held) return true;
    if (busy)
        mica_log(MICA_LOG_WARN, "%s: another process compiles it since %.0f s; compiled here, too",
                 what, waited);
    if (claim->fd >= 0) close(claim->fd);
    claim->fd = -1;
    return false;
}

/* Closing does not end it where a forked child has the file open as well. */
void mica_claim_end(mica_claim *claim)
{
    bool busy;
    if (claim->fd < 0) return;
    mica_lock_byte(claim->fd, claim->at, false, &busy);
    close(claim->fd);
    claim->fd = -1;
}
