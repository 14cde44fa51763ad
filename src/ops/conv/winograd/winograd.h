/* SPDX-License-Identifier: Apache-2.0
 * Convolutions as Winograd's filtering sees them, and their division into chunks of tiles. */
#ifndef MICA_OPS_CONV_WINOGRAD_WINOGRAD_H
#define MICA_OPS_CONV_WINOGRAD_WINOGRAD_H

#include "ops/conv/conv.h"
#include "mica/gemm.h"

enum { CONV_WINOGRAD_TAPS = 3 };
enum { KNOB_TILE, KNOB_CHUNKS };

typedef struct conv_winograd_problem {
    mica_conv_geometry g;
    mica_conv_roles roles;
    bool wgrad, dgrad;
    int read, other;  /* run arguments: the image with a halo; the result, in wgrad its gradient */
    int64_t from, to; /* channels of both */
    const mica_conv_strides *read_at, *other_at;
    const long long *read_size, *other_size;
    /* The fast dimension of planes of points is channels, else tiles; to: of the filter's. */
    bool read_by_channel, other_by_channel, filter_by_to;
} conv_winograd_problem;

/* What a config makes of it. */
typedef struct conv_winograd_division {
    int tile, points;
    int64_t across, down, tiles; /* of all images */
    int64_t chunks, each;        /* tiles of a chunk */
    size_t read_bytes, other_bytes, filter_bytes;
    mica_gemm_desc gemm;
} conv_winograd_division;

void conv_winograd_make(const mica_conv_desc *d, conv_winograd_problem *p);
mica_status conv_winograd_accepts(const mica_conv_desc *d, mica_why *why);
void conv_winograd_divide(const conv_winograd_problem *p, int tile, int64_t chunks,
                          conv_winograd_division *d);
/* Configs with tiles of one size; returns how many. */
int conv_winograd_chunkings(const conv_winograd_problem *p, const mica_device_info *device,
                            int tile, mica_config *out);

#endif
