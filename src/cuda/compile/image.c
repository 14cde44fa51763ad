/* SPDX-License-Identifier: Apache-2.0
 * Where a cubin comes from: this process, the disk, or the compiler. */
#include "cuda/compile/image.h"
#include "base/format.h"
#include "cuda/compile/claim.h"
#include "cuda/compile/nvrtc.h"
#include "cuda/compile/program.h"
#include "base/log.h"
#include "base/memory.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static mica_image *images;

/* ---- keys ---- */

static mica_status describe(const mica_image_request *r, mica_text *head, size_t size)
{
    const mica_kernel_spec *spec = r->spec;
    mica_text_add(head, "entry %s\ntarget %s\n%s", spec->entry, r->target, r->compiler);
    if (head->length < size) return MICA_OK;
    return mica_fail(MICA_INTERNAL, "%s: the name of kernel %s is too long", spec->file,
                     spec->entry);
}

/* Each part with its end, so that none can pass for another's. */
static void add_text(mica_blake2b *b, const char *text)
{
    mica_blake2b_add(b, text, strlen(text) + 1);
}

/* The disk cache's entry that holds the identity of the compiler which last filled it. */
static void compiler_key(mica_cache_key *key)
{
    static const char text[] = "compiler\n";
    key->text = text;
    key->bytes = sizeof text - 1;
    mica_blake2b b;
    mica_blake2b_start(&b, MICA_DIGEST_BYTES);
    mica_blake2b_add(&b, key->text, key->bytes);
    mica_blake2b_end(&b, key->digest);
}

/* Once in a process: a cache that is shipped then works where nothing can compile. */
static void remember_compiler(const char *identity)
{
    static atomic_flag done = ATOMIC_FLAG_INIT;
    mica_cache_key key;
    if (atomic_flag_test_and_set(&done)) return;
    compiler_key(&key);
    mica_cache_write(&key, identity, strlen(identity));
}

static bool recall_compiler(char *identity, size_t size)
{
    mica_cache_key key;
    void *blob;
    size_t bytes;
    compiler_key(&key);
    if (!mica_cache_read(&key, &blob, &bytes)) return false;
    bool fits = bytes > 0 && bytes < size;
    if (fits) memcpy(identity, blob, bytes);
    identity[fits ? bytes : 0] = 0;
    mica_release(blob);
    return fits;
}

static mica_status find_compiler(char *identity, size_t size)
{
    mica_text text = {identity, size, 0};
    mica_status status = mica_nvrtc_load();
    if (status == MICA_OK)
        mica_nvrtc_identity(&text);
    else if (status != MICA_NO_COMPILER || !recall_compiler(identity, size))
        return status;
    if (text.length < size) return MICA_OK;
    return mica_fail(MICA_INTERNAL, "the compiler's identity has %zu characters", text.length);
}

mica_status mica_image_prepare(const mica_kernel_spec *spec, const char *target,
                               mica_image_request *request)
{
    char head[512];
    mica_text text = {head, sizeof head, 0};
    unsigned char source[MICA_DIGEST_BYTES];
    *request = (mica_image_request){.spec = spec, .target = target};
    MICA_TRY(find_compiler(request->compiler, sizeof request->compiler));
    MICA_TRY(mica_program_digest(spec->file, source));
    MICA_TRY(describe(request, &text, sizeof head));
    mica_blake2b b;
    mica_blake2b_start(&b, MICA_DIGEST_BYTES);
    mica_blake2b_add(&b, source, sizeof source);
    add_text(&b, head);
    add_text(&b, spec->file);
    add_text(&b, spec->prologue ? spec->prologue : "");
    mica_blake2b_end(&b, request->digest);
    return MICA_OK;
}

/* What a kernel is made from: the whole text, and the key of its entry on disk, which holds that
 * text too. */
typedef struct recipe {
    const mica_image_request *request;
    char *program, *key_text;
    mica_cache_key key;
} recipe;

static mica_status write_recipe(const mica_image_request *request, recipe *r)
{
    char head[512];
    mica_text text = {head, sizeof head, 0};
    const mica_kernel_spec *spec = request->spec;
    *r = (recipe){.request = request};
    MICA_TRY(describe(request, &text, sizeof head));
    MICA_TRY(mica_program_text(spec->file, spec->prologue, &r->program));
    size_t program_bytes = strlen(r->program);
    r->key_text = mica_alloc(text.length + program_bytes + 1);
    if (!r->key_text) return mica_fail_memory(text.length + program_bytes + 1);
    memcpy(r->key_text, head, text.length);
    memcpy(r->key_text + text.length, r->program, program_bytes);
    r->key.text = r->key_text;
    r->key.bytes = text.length + program_bytes;
    mica_blake2b b;
    mica_blake2b_start(&b, MICA_DIGEST_BYTES);
    mica_blake2b_add(&b, r->key.text, r->key.bytes);
    mica_blake2b_end(&b, r->key.digest);
    return MICA_OK;
}

static void forget_recipe(recipe *r)
{
    mica_release(r->program);
    mica_release(r->key_text);
}

/* ---- what the compiler says ---- */

/* The number before `unit` in the text up to `end`; -1 if there is none. */
static long number_before(const char *text, const char *end, const char *unit)
{
    const char *at = strstr(text, unit);
    if (!at || at >= end) return -1;
    while (at > text && at[-1] == ' ') at--;
    while (at > text && at[-1] >= '0' && at[-1] <= '9') at--;
    return strtol(at, NULL, 10);
}

/* Reads "ptxas -v" of the one kernel. Non-inlined functions add their spills to it. */
static mica_status read_resources(const char *log, mica_image *image)
{
    char line[192];
    snprintf(line, sizeof line, "Compiling entry function '%s'", image->entry);
    const char *text = strstr(log, line);
    if (!text)
        return mica_fail(MICA_COMPILE_FAILED, "%s has no kernel extern \"C\" %s", image->file,
                         image->entry);
    const char *end = strstr(text + 1, "Compiling entry function");
    if (!end) end = text + strlen(text);
    const char *used = strstr(text, "Used ");
    if (!used || used >= end)
        return mica_fail(MICA_INTERNAL, "%s: no register count in the compiler's log", image->file);
    image->registers = (int)strtol(used + 5, NULL, 10);
    const char *used_end = used + strcspn(used, "\n");
    long shared = number_before(used, used_end, "bytes smem");
    image->shared_bytes = shared > 0 ? shared : 0;
    long local = number_before(text, end, "bytes stack frame");
    image->local_bytes = local > 0 ? (int)local : 0;
    for (const char *at = text; (at = strstr(at, "bytes spill")) && at < end; at++) {
        long bytes = number_before(at - 16 < text ? text : at - 16, end, "bytes spill");
        if (bytes > 0) image->spill_bytes += (int)bytes;
    }
    return MICA_OK;
}

/* The first line that complains. wgmma that ptxas had to serialise is announced as mere
 * information, and costs more than any warning. */
static void warn(const mica_image *image, const char *target, const char *log)
{
    const char *at = strstr(log, "Potential Performance Loss");
    if (!at) at = strstr(log, "warning");
    if (!at) return;
    while (at > log && at[-1] != '\n') at--;
    mica_log(MICA_LOG_WARN, "kernel %s %s %s: %.*s", image->file, image->entry, target,
             (int)strcspn(at, "\n"), at);
}

/* ---- entries of the disk cache: "registers spill local shared ms\n" log \0 cubin ---- */

static void write_disk(const recipe *r, const mica_image *image, const char *log)
{
    char head[160];
    int length =
        mica_format(head, sizeof head, "%d %d %d %lld %.3f\n", image->registers, image->spill_bytes,
                    image->local_bytes, (long long)image->shared_bytes, image->compile_ms);
    size_t log_bytes = strlen(log) + 1, head_bytes = (size_t)length;
    char *blob = mica_alloc(head_bytes + log_bytes + image->bytes);
    if (!blob) return;
    memcpy(blob, head, head_bytes);
    memcpy(blob + head_bytes, log, log_bytes);
    memcpy(blob + head_bytes + log_bytes, image->code, image->bytes);
    mica_cache_write(&r->key, blob, head_bytes + log_bytes + image->bytes);
    mica_release(blob);
}

static bool read_disk(const recipe *r, mica_image *image, bool again)
{
    void *data;
    size_t bytes;
    double start = mica_seconds();
    if (!(again ? mica_cache_read_again : mica_cache_read)(&r->key, &data, &bytes)) return false;
    char *blob = data;
    long long shared;
    char *text_end = memchr(blob, 0, bytes), *ms_end = blob;
    int at = 0;
    if (text_end &&
        sscanf(blob, "%d %d %d %lld %n", &image->registers, &image->spill_bytes,
               &image->local_bytes, &shared, &at) == 4 &&
        at > 0)
        image->compile_ms = mica_read_double(blob + at, &ms_end);
    bool sound = at > 0 && ms_end > blob + at && *ms_end == '\n';
    if (sound) {
        warn(image, r->request->target, blob);
        image->shared_bytes = shared;
        image->bytes = bytes - (size_t)(text_end + 1 - blob);
        memmove(blob, text_end + 1, image->bytes);
        image->code = blob;
        image->origin = MICA_IMAGE_FROM_DISK;
        mica_log(MICA_LOG_INFO,
                 "kernel %s %s %s from disk in %.2f ms: %d registers, %d spill bytes", image->file,
                 image->entry, r->request->target, 1e3 * (mica_seconds() - start), image->registers,
                 image->spill_bytes);
    } else {
        mica_release(blob);
    }
    return sound;
}

static mica_status compile(const recipe *r, mica_image *image)
{
    mica_cubin cubin;
    const char *target = r->request->target;
    double start = mica_seconds();
    MICA_TRY(mica_nvrtc_compile(image->file, r->program, target, &cubin));
    image->compile_ms = 1e3 * (mica_seconds() - start);
    image->code = cubin.code;
    image->bytes = cubin.bytes;
    image->origin = MICA_IMAGE_COMPILED;
    mica_status status = read_resources(cubin.log, image);
    if (status == MICA_OK) {
        mica_log(MICA_LOG_INFO,
                 "kernel %s %s %s compiled in %.1f ms: %d registers, %d spill bytes, %lld shared "
                 "bytes",
                 image->file, image->entry, target, image->compile_ms, image->registers,
                 image->spill_bytes, (long long)image->shared_bytes);
        warn(image, target, cubin.log);
        write_disk(r, image, cubin.log);
        remember_compiler(r->request->compiler);
    }
    mica_release(cubin.log);
    return status;
}

/* By one process, where several want it: the others find it on disk. */
static mica_status compile_once(const recipe *r, mica_image *image)
{
    mica_claim claim;
    char what[160];
    snprintf(what, sizeof what, "kernel %.80s %.40s %.20s", image->file, image->entry,
             r->request->target);
    bool claimed = mica_claim_take(&r->key, what, &claim);
    mica_status status = MICA_OK;
    if (!claimed || !read_disk(r, image, true)) status = compile(r, image);
    mica_claim_end(&claim);
    return status;
}

static mica_status make(const mica_image_request *request, mica_image *image)
{
    recipe r;
    mica_status status = write_recipe(request, &r);
    image->waits = status == MICA_OK && strstr(r.program, "overlap_wait();");
    if (status == MICA_OK && !read_disk(&r, image, false)) status = compile_once(&r, image);
    forget_recipe(&r);
    return status;
}

/* ---- the process's images ---- */

static void delete_image(mica_image *image)
{
    if (!image) return;
    mica_release(image->file);
    mica_release(image->entry);
    mica_release(image->prologue);
    mica_release(image->code);
    mica_release(image->error);
    mica_release(image);
}

static mica_image *new_image(const mica_image_request *request)
{
    mica_image *image = mica_alloc(sizeof *image);
    if (!image) return NULL;
    const mica_kernel_spec *spec = request->spec;
    image->file = mica_copy_text(spec->file);
    image->entry = mica_copy_text(spec->entry);
    image->prologue = mica_copy_text(spec->prologue ? spec->prologue : "");
    memcpy(image->digest, request->digest, sizeof image->digest);
    if (image->file && image->entry && image->prologue) return image;
    delete_image(image);
    return NULL;
}

static void unlink_image(mica_image *image)
{
    mica_image **at = &images;
    while (*at && *at != image) at = &(*at)->next;
    if (*at) *at = image->next;
}

static void put_locked(mica_image *image)
{
    if (--image->refs > 0) return;
    unlink_image(image);
    delete_image(image);
}

void mica_image_put(mica_image *image)
{
    if (!image) return;
    pthread_mutex_lock(&mutex);
    put_locked(image);
    pthread_mutex_unlock(&mutex);
}

static mica_image *find_locked(const mica_image_request *request)
{
    mica_image *image = images;
    while (image && memcmp(image->digest, request->digest, MICA_DIGEST_BYTES) != 0)
        image = image->next;
    return image;
}

mica_status mica_image_repeat(mica_status status, const char *error, const char *entry)
{
    if (error) return mica_fail(status, "%s", error);
    return mica_fail(status, "kernel %s: %s, and no memory for the reason", entry,
                     mica_status_name(status));
}

/* Another thread is building it, or did. */
static mica_status wait_locked(mica_image *image, mica_image **out)
{
    image->refs++;
    while (image->state == MICA_IMAGE_BUILDING) pthread_cond_wait(&changed, &mutex);
    if (image->state == MICA_IMAGE_READY) {
        *out = image;
        return MICA_OK;
    }
    mica_status status = mica_image_repeat(image->status, image->error, image->entry);
    put_locked(image);
    return status;
}

/* A failed image leaves the list at once, so that the next call tries again; those who wait for it
 * still hold it. */
static mica_status finish(mica_image *image, mica_status status, mica_image **out)
{
    char *error = status == MICA_OK ? NULL : mica_copy_text(mica_error());
    pthread_mutex_lock(&mutex);
    image->state = status == MICA_OK ? MICA_IMAGE_READY : MICA_IMAGE_FAILED;
    image->status = status;
    image->error = error;
    if (status == MICA_OK)
        *out = image;
    else {
        unlink_image(image);
        put_locked(image);
    }
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
    return status;
}

mica_status mica_image_get(const mica_image_request *request, mica_image **out, bool *built)
{
    *out = NULL;
    *built = false;
    mica_image *fresh = new_image(request);
    if (!fresh) return mica_fail_memory(sizeof *fresh);
    pthread_mutex_lock(&mutex);
    mica_image *known = find_locked(request);
    if (known) {
        mica_status status = wait_locked(known, out);
        pthread_mutex_unlock(&mutex);
        delete_image(fresh);
        return status;
    }
    fresh->refs = 1;
    fresh->next = images;
    images = fresh;
    pthread_mutex_unlock(&mutex);
    *built = true;
    return finish(fresh, make(request, fresh), out);
}

/* What another thread made meanwhile is as good; what it is still making is not waited for. */
static mica_image *share(mica_image *fresh)
{
    pthread_mutex_lock(&mutex);
    for (mica_image *known = images; known; known = known->next) {
        if (memcmp(known->digest, fresh->digest, MICA_DIGEST_BYTES) != 0) continue;
        const bool ready = known->state == MICA_IMAGE_READY;
        if (ready) known->refs++;
        pthread_mutex_unlock(&mutex);
        if (!ready) return fresh; /* it stays this caller's own */
        delete_image(fresh);
        return known;
    }
    fresh->next = images;
    images = fresh;
    pthread_mutex_unlock(&mutex);
    return fresh;
}

static mica_image *find_ready(const mica_image_request *request, bool *building)
{
    pthread_mutex_lock(&mutex);
    mica_image *known = find_locked(request);
    *building = known && known->state == MICA_IMAGE_BUILDING;
    if (known && !*building) known->refs++;
    pthread_mutex_unlock(&mutex);
    return *building ? NULL : known;
}

mica_status mica_image_find(const mica_image_request *request, mica_image **out, bool *built)
{
    recipe r;
    bool building;
    *built = false;
    *out = find_ready(request, &building);
    if (*out) return MICA_OK;
    if (building)
        return mica_fail(MICA_NOT_FOUND, "kernel %s is being compiled", request->spec->entry);
    mica_image *fresh = new_image(request);
    if (!fresh) return mica_fail_memory(sizeof *fresh);
    mica_status status = write_recipe(request, &r);
    fresh->waits = status == MICA_OK && strstr(r.program, "overlap_wait();");
    if (status == MICA_OK && !read_disk(&r, fresh, false))
        status = mica_fail(MICA_NOT_FOUND, "kernel %s is not compiled", request->spec->entry);
    forget_recipe(&r);
    if (status != MICA_OK) {
        delete_image(fresh);
        return status;
    }
    fresh->refs = 1;
    fresh->state = MICA_IMAGE_READY;
    *built = true;
    *out = share(fresh);
    return MICA_OK;
}
