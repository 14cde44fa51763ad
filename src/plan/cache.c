/* SPDX-License-Identifier: Apache-2.0
 * Caches of plans: of a context, shared by its threads, bounded in bytes, least recently used out
 * first. */
#include "plan/context.h"
#include "base/memory.h"

#define XXH_INLINE_ALL
#include <string.h>
#include <xxhash.h>

uint64_t mica_plan_key_hash(const void *key, size_t bytes)
{
    return XXH3_64bits(key, bytes);
}

static mica_cache_entry **bucket(mica_plan_cache *c, uint64_t hash)
{
    return &c->buckets[hash % MICA_CACHE_BUCKETS];
}

static mica_cache_entry *lookup(mica_plan_cache *c, const void *key, size_t bytes, uint64_t hash)
{
    for (mica_cache_entry *e = *bucket(c, hash); e; e = e->next_in_bucket)
        if (e->hash == hash && e->key_bytes == bytes && !memcmp(e->key, key, bytes)) return e;
    return NULL;
}

static void unlink_age(mica_plan_cache *c, mica_cache_entry *e)
{
    *(e->newer ? &e->newer->older : &c->newest) = e->older;
    *(e->older ? &e->older->newer : &c->oldest) = e->newer;
}

static void link_newest(mica_plan_cache *c, mica_cache_entry *e)
{
    e->newer = NULL;
    e->older = c->newest;
    *(c->newest ? &c->newest->newer : &c->oldest) = e;
    c->newest = e;
}

/* Of the cache; it goes in front of what was taken out before. */
static mica_cache_entry *take_out(mica_plan_cache *c, mica_cache_entry *e, mica_cache_entry *others)
{
    mica_cache_entry **at = bucket(c, e->hash);
    while (*at != e) at = &(*at)->next_in_bucket;
    *at = e->next_in_bucket;
    unlink_age(c, e);
    c->bytes -= e->bytes;
    c->count--;
    e->next_in_bucket = others;
    return e;
}

static mica_cache_entry *shrink(mica_plan_cache *c, int64_t limit)
{
    mica_cache_entry *gone = NULL;
    while (c->oldest && c->bytes > limit) gone = take_out(c, c->oldest, gone);
    return gone;
}

/* Without the mutex: memory of a device is given back when what runs there has ended. */
static void forget(mica_cache_entry *gone)
{
    while (gone) {
        mica_cache_entry *e = gone;
        gone = e->next_in_bucket;
        e->kind->release(e->value);
        mica_release(e->key);
        mica_release(e);
    }
}

void *mica_plan_cache_find(mica_plan_cache *c, const void *key, size_t bytes, uint64_t hash)
{
    pthread_mutex_lock(&c->mutex);
    mica_cache_entry *e = lookup(c, key, bytes, hash);
    void *value = NULL;
    if (e) {
        if (c->newest != e) {
            unlink_age(c, e);
            link_newest(c, e);
        }
        value = e->value;
        e->kind->retain(value);
    }
    *(e ? &c->hits : &c->misses) += 1;
    pthread_mutex_unlock(&c->mutex);
    return value;
}

void mica_plan_cache_add(mica_plan_cache *c, const void *key, size_t bytes, uint64_t hash,
                         const mica_cached *kind, void *value)
{
    mica_cache_entry *e = mica_alloc(sizeof *e);
    void *copy = e ? mica_alloc(bytes) : NULL;
    if (!copy) {
        mica_release(e);
        return;
    }
    memcpy(copy, key, bytes);
    const int64_t held = (int64_t)(sizeof *e + bytes + kind->bytes(value));
    *e = (mica_cache_entry){
        .hash = hash, .kind = kind, .value = value, .bytes = held, .key_bytes = bytes, .key = copy};
    mica_cache_entry *gone = NULL;
    pthread_mutex_lock(&c->mutex);
    if (held > c->limit || lookup(c, key, bytes, hash)) {
        /* Too large to keep, or another thread was faster. */
        mica_release(copy);
        mica_release(e);
    } else {
        kind->retain(value);
        e->next_in_bucket = *bucket(c, hash);
        *bucket(c, hash) = e;
        link_newest(c, e);
        c->bytes += held;
        c->count++;
        gone = shrink(c, c->limit);
    }
    pthread_mutex_unlock(&c->mutex);
    forget(gone);
}

void mica_plan_cache_limit(mica_plan_cache *c, int64_t bytes)
{
    pthread_mutex_lock(&c->mutex);
    c->limit = bytes;
    mica_cache_entry *gone = shrink(c, bytes);
    pthread_mutex_unlock(&c->mutex);
    forget(gone);
}

void mica_plan_cache_empty(mica_plan_cache *c)
{
    pthread_mutex_lock(&c->mutex);
    mica_cache_entry *gone = shrink(c, 0);
    pthread_mutex_unlock(&c->mutex);
    forget(gone);
}
