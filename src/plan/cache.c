/* SPDX-License-Identifier: Apache-2.0
 * The plan cache: one per context, shared by its threads, bounded in bytes, least recently used out
 * first. */
#include "plan/context.h"
#include "base/memory.h"

#define XXH_INLINE_ALL
#include <string.h>
#include <xxhash.h>

static size_t key_bytes(const mica_plan_key *key)
{
    return offsetof(mica_plan_key, desc) + key->op->desc_size;
}

uint64_t mica_plan_key_hash(const mica_plan_key *key)
{
    return XXH3_64bits(key, key_bytes(key));
}

static mica_cache_entry **bucket(mica_plan_cache *c, uint64_t hash)
{
    return &c->buckets[hash % MICA_CACHE_BUCKETS];
}

static mica_cache_entry *lookup(mica_plan_cache *c, const mica_plan_key *key, uint64_t hash)
{
    size_t bytes = key_bytes(key);
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

/* With its children, which it keeps although the cache may have let go of them. */
static size_t held(const mica_plan *plan)
{
    size_t bytes = mica_plan_full(plan)->bytes;
    for (int i = 0; i < plan->child_count; i++) bytes += held(plan->children[i]);
    return bytes;
}

static int64_t entry_bytes(const mica_cache_entry *e)
{
    return (int64_t)(sizeof *e + e->key_bytes + held(e->plan));
}

static void evict(mica_plan_cache *c, mica_cache_entry *e)
{
    mica_cache_entry **at = bucket(c, e->hash);
    while (*at != e) at = &(*at)->next_in_bucket;
    *at = e->next_in_bucket;
    unlink_age(c, e);
    c->bytes -= entry_bytes(e);
    c->count--;
    mica_plan_destroy(e->plan);
    mica_release(e->key);
    mica_release(e);
}

static void shrink(mica_plan_cache *c)
{
    while (c->oldest && c->bytes > c->limit) evict(c, c->oldest);
}

mica_plan *mica_plan_cache_find(mica_plan_cache *c, const mica_plan_key *key, uint64_t hash)
{
    pthread_mutex_lock(&c->mutex);
    mica_cache_entry *e = lookup(c, key, hash);
    mica_plan *plan = NULL;
    if (e) {
        if (c->newest != e) {
            unlink_age(c, e);
            link_newest(c, e);
        }
        plan = e->plan;
        atomic_fetch_add(&mica_plan_full(plan)->references, 1);
    }
    *(e ? &c->hits : &c->misses) += 1;
    pthread_mutex_unlock(&c->mutex);
    return plan;
}

void mica_plan_cache_add(mica_plan_cache *c, const mica_plan_key *key, uint64_t hash,
                         mica_plan *plan)
{
    mica_cache_entry *e = mica_alloc(sizeof *e);
    mica_plan_key *copy = e ? mica_alloc(key_bytes(key)) : NULL;
    if (!copy) {
        mica_release(e);
        return;
    }
    memcpy(copy, key, key_bytes(key));
    *e = (mica_cache_entry){.hash = hash, .plan = plan, .key_bytes = key_bytes(key), .key = copy};
    pthread_mutex_lock(&c->mutex);
    if (entry_bytes(e) > c->limit || lookup(c, key, hash)) {
        /* Too large to keep, or another thread was faster. */
        mica_release(copy);
        mica_release(e);
    } else {
        atomic_fetch_add(&mica_plan_full(plan)->references, 1);
        e->next_in_bucket = *bucket(c, hash);
        *bucket(c, hash) = e;
        link_newest(c, e);
        c->bytes += entry_bytes(e);
        c->count++;
        shrink(c);
    }
    pthread_mutex_unlock(&c->mutex);
}

void mica_plan_cache_limit(mica_plan_cache *c, int64_t bytes)
{
    pthread_mutex_lock(&c->mutex);
    c->limit = bytes;
    shrink(c);
    pthread_mutex_unlock(&c->mutex);
}
