/* SPDX-License-Identifier: Apache-2.0
 * A library that has its objects destroyed at exit, as one of C++ has: one that there is when it
 * has been loaded, and one that a call makes. */
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

int __cxa_atexit(void (*destroy)(void *), void *object, void *library);
extern void *__dso_handle;
EXPORT void statics_make(int to, char what);
EXPORT void statics_register(int to);

static struct {
    int to;
    char what;
} made, loaded = {-1, 'l'};

static void destroy_made(void *object)
{
    (void)object;
    (void)!write(made.to, &made.what, 1);
}

static void destroy_loaded(void *object)
{
    (void)object;
    if (loaded.to >= 0) (void)!write(loaded.to, &loaded.what, 1);
}

__attribute__((constructor)) static void load(void)
{
    (void)__cxa_atexit(destroy_loaded, NULL, &__dso_handle);
}

/* Where the object that there is says that it is destroyed. */
void statics_register(int to)
{
    loaded.to = to;
}

void statics_make(int to, char what)
{
    made.to = to;
    made.what = what;
    (void)__cxa_atexit(destroy_made, NULL, &__dso_handle);
}
