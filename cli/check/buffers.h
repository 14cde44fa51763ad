/* SPDX-License-Identifier: Apache-2.0
 * Memory of one argument under test: fences on both sides, poison in every byte that is not an
 * element, an image of what it was before the run and of what it is afterwards. */
#ifndef MICA_CLI_CHECK_BUFFERS_H
#define MICA_CLI_CHECK_BUFFERS_H

#include "cli.h"

enum { CLI_FENCE = 4096 };

/* Bytes [from, to) of the images. */
typedef struct cli_window {
    int64_t from, to;
} cli_window;

typedef struct cli_buffer {
    mica_tensor tensor; /* dtype MICA_NONE: plain bytes (workspace) */
    mica_dir dir;
    int64_t span, first;    /* as of mica_tensor_span */
    int64_t low;            /* of the lowest element in the images: fence + shift */
    int64_t bytes;          /* of the allocation */
    unsigned char *content; /* span bytes: the elements a run begins with; NULL: poison */
    unsigned char *before, *after;
    void *memory;
    /* What of the memory is looked at: all of it, or, where a few elements lie far apart, their
     * surroundings and the places where an offset cut to 31 or 32 bits would lead. The images are
     * as long as the memory, but only the windows take room. */
    cli_window *windows;
    int64_t window_count;
} cli_buffer;

/* Allocates for a tensor, or for `bytes` plain bytes if tensor is NULL. */
mica_status cli_buffer_init(cli_buffer *buffer, mica_context *context, const mica_tensor *tensor,
                            int64_t bytes, mica_dir dir);
void cli_buffer_free(cli_buffer *buffer, mica_context *context);
/* Sets the elements that runs begin with; NULL: none, poison. */
mica_status cli_buffer_content(cli_buffer *buffer, const double *values);
/* Poisons everything, places the elements `shift` bytes behind the aligned position, uploads. */
mica_status cli_buffer_prepare(cli_buffer *buffer, mica_context *context, int poison,
                               int64_t shift);
mica_status cli_buffer_fetch(cli_buffer *buffer, mica_context *context);
/* Packing has filled the fetched bytes: they are what runs begin with. What it wrote outside them
 * still shows as a change. */
void cli_buffer_packed(cli_buffer *buffer);
/* Pointers to element 0: on the device, and in the images. */
void *cli_buffer_pointer(const cli_buffer *buffer);
void *cli_buffer_before(const cli_buffer *buffer);
void *cli_buffer_after(const cli_buffer *buffer);
/* Whether every byte that the run had no right to change is as before: all of an input, all but
 * the elements of an output, the fences of a workspace. If not, says what in `text`. */
bool cli_buffer_intact(const cli_buffer *buffer, const char *name, char *text, size_t size);
/* Copies what the windows show of the span; both point to its lowest byte. */
void cli_buffer_copy(const cli_buffer *buffer, unsigned char *to, const unsigned char *from);
/* Whether the elements after the run have the bits of `kept`, a copy of the span. */
bool cli_buffer_repeats(const cli_buffer *buffer, const unsigned char *kept);
/* Zeroed memory that takes room where it is touched only; NULL if the address space is full. */
unsigned char *cli_map(int64_t bytes);
void cli_unmap(void *memory, int64_t bytes);
/* Copies the bits of the elements, and nothing between them; both point to the lowest element. */
void cli_copy_elements(const mica_tensor *tensor, int64_t first, unsigned char *to,
                       const unsigned char *from);

#endif
