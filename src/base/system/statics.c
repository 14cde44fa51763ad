/* SPDX-License-Identifier: Apache-2.0
 * Static objects of a C++ library, kept until the process is gone. What such a library makes when a
 * function is first called it destroys at exit, while other threads still use it. It asks the C
 * library for that through one entry of its table of functions, which is set to one that does
 * nothing: an object that is not registered is not destroyed. */
#define _GNU_SOURCE
#include "base/system/library.h"

#include <dlfcn.h>
#include <link.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int register_nothing(void (*destroy)(void *), void *object, void *library)
{
    (void)destroy, (void)object, (void)library;
    return 0;
}

/* What the dynamic section says; addresses are relative in some C libraries, and absolute in
 * others. */
typedef struct tables {
    const ElfW(Rela) * slots[2]; /* of calls; of what calls without a jump in between */
    size_t slot_count[2];
    const ElfW(Sym) * symbols;
    const char *names;
} tables;

static const void *address(const struct link_map *map, ElfW(Addr) at)
{
    return (const void *)(at < map->l_addr ? map->l_addr + at : at);
}

static bool find_tables(const struct link_map *map, tables *t)
{
    bool with_addends = false;
    *t = (tables){0};
    for (const ElfW(Dyn) *d = map->l_ld; d->d_tag != DT_NULL; d++) {
        const void *table = address(map, d->d_un.d_ptr);
        size_t count = d->d_un.d_val / sizeof(ElfW(Rela));
        if (d->d_tag == DT_JMPREL) t->slots[0] = table;
        if (d->d_tag == DT_PLTRELSZ) t->slot_count[0] = count;
        if (d->d_tag == DT_RELA) t->slots[1] = table;
        if (d->d_tag == DT_RELASZ) t->slot_count[1] = count;
        if (d->d_tag == DT_SYMTAB) t->symbols = table;
        if (d->d_tag == DT_STRTAB) t->names = table;
        if (d->d_tag == DT_PLTREL) with_addends = d->d_un.d_val == DT_RELA;
    }
    return t->symbols && t->names && with_addends;
}

typedef struct protection {
    ElfW(Addr) base, from, to;
} protection;

static int find_protection(struct dl_phdr_info *info, size_t size, void *user)
{
    protection *p = user;
    (void)size;
    if (info->dlpi_addr != p->base) return 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *h = &info->dlpi_phdr[i];
        if (h->p_type != PT_GNU_RELRO) continue;
        p->from = info->dlpi_addr + h->p_vaddr;
        p->to = p->from + h->p_memsz;
    }
    return 1;
}

/* The page is made writable where the loader has protected it, and protected again. */
static bool set_entry(const struct link_map *map, ElfW(Addr) at)
{
    int (*volatile * entry)(void (*)(void *), void *, void *) = (void *)at;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    void *start = (void *)(at & ~(ElfW(Addr))(page - 1));
    protection p = {.base = map->l_addr};
    dl_iterate_phdr(find_protection, &p);
    bool closed = at >= p.from && at < p.to;
    if (closed && mprotect(start, page, PROT_READ | PROT_WRITE) != 0) return false;
    *entry = register_nothing;
    if (closed) (void)mprotect(start, page, PROT_READ);
    return true;
}

static bool set_entries(const struct link_map *map, const tables *t, int which)
{
    bool set = false;
    for (size_t i = 0; t->slots[which] && i < t->slot_count[which]; i++) {
        const ElfW(Rela) *r = &t->slots[which][i];
        size_t symbol = sizeof(ElfW(Addr)) == 8 ? ELF64_R_SYM(r->r_info) : ELF32_R_SYM(r->r_info);
        if (symbol && !strcmp(t->names + t->symbols[symbol].st_name, "__cxa_atexit"))
            set |= set_entry(map, map->l_addr + r->r_offset);
    }
    return set;
}

bool mica_library_keep_statics(void *library)
{
    struct link_map *map;
    tables t;
    if (dlinfo(library, RTLD_DI_LINKMAP, &map) != 0 || !find_tables(map, &t)) return false;
    bool calls = set_entries(map, &t, 0), pointers = set_entries(map, &t, 1);
    return calls || pointers;
}
