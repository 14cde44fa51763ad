/* SPDX-License-Identifier: Apache-2.0
 * What the kernels of index receive, and arithmetic on indices that the CPU shares with them. */
#ifndef MICA_OPS_INDEX_ARGS_H
#define MICA_OPS_INDEX_ARGS_H

#define MICA_INDEX_RANK   8
#define MICA_INDEX_PIECES 8

/* Where a coordinate beside the other tensor points to. */
typedef enum mica_index_border {
    MICA_INDEX_INSIDE, /* none is beside it */
    MICA_INDEX_NONE,   /* nowhere */
    MICA_INDEX_EDGE,
    MICA_INDEX_REFLECT, /* at the outermost element, which does not stand twice */
    MICA_INDEX_WRAP
} mica_index_border;

typedef enum mica_index_reduce {
    MICA_INDEX_LAST, /* the last one stays */
    MICA_INDEX_ADD,
    MICA_INDEX_MUL,
    MICA_INDEX_MAX,
    MICA_INDEX_MIN
} mica_index_reduce;

/* A dimension that is walked: its elements, strides of the three tensors, and how the coordinate in
 * the other tensor follows: border(start + step c). */
typedef struct mica_index_dim {
    long long size, here, there, index;
    long long start, step;
    long long across; /* what is not walked: elements of the other tensor; folded: of this one */
    int border;
} mica_index_dim;

typedef struct mica_index_form {
    long long count; /* elements that are walked */
    int rank;
    mica_index_dim at[MICA_INDEX_RANK];
} mica_index_form;

/* One coordinate that the index tensor holds: elements and stride of its dimension. */
typedef struct mica_index_part {
    long long extent, stride;
} mica_index_part;

typedef struct mica_index_piece {
    void *here;
    const void *there; /* NULL: the value everywhere */
    long long count, first_block;
    long long size[MICA_INDEX_RANK], here_step[MICA_INDEX_RANK], there_step[MICA_INDEX_RANK];
    int rank, fits_int;
} mica_index_piece;

/* Of copies. Only a single piece has borders or indices. */
typedef struct mica_index_args {
    int pieces, whole; /* whole: all pointers are aligned for one access of a vector */
    mica_index_piece piece[MICA_INDEX_PIECES];
    mica_index_dim at[MICA_INDEX_RANK];
    const void *index;
    mica_index_part part[MICA_INDEX_RANK];
    long long part_step;
    unsigned char value[16];
} mica_index_args;

/* Of sums over all that a map brings to an element. */
typedef struct mica_index_fold_args {
    const void *here;
    void *there;
    mica_index_form form;
} mica_index_fold_args;

/* Of what an index tensor distributes: columns are walked side by side, updates one after the
 * other. */
typedef struct mica_index_combine_args {
    const void *here, *index;
    void *there;
    mica_index_form columns, updates;
    mica_index_part part[MICA_INDEX_RANK];
    long long part_step, cells, cell_tiles, skip;
} mica_index_combine_args;

static inline long long mica_index_modulo(long long i, long long n)
{
    long long r = i % n;
    return r < 0 ? r + n : r;
}

/* The coordinate among n that i means; -1: nowhere. */
static inline long long mica_index_bordered(int border, long long i, long long n)
{
    if (border == MICA_INDEX_INSIDE || (i >= 0 && i < n)) return i;
    if (border == MICA_INDEX_NONE || n == 0) return -1;
    if (border == MICA_INDEX_EDGE) return i < 0 ? 0 : n - 1;
    if (border == MICA_INDEX_WRAP) return mica_index_modulo(i, n);
    if (n == 1) return 0;
    const long long period = 2 * (n - 1), at = mica_index_modulo(i, period);
    return at < n ? at : period - at;
}

/* Coordinates c that a dimension brings to one of the other tensor: up to two progressions. */
typedef struct mica_index_sources {
    long long first[2], count[2], apart;
} mica_index_sources;

static inline long long mica_index_progression(long long first, long long apart, long long size)
{
    return first < size ? (size - 1 - first) / apart + 1 : 0;
}

/* Of coordinate i among n = d->size; d->across are the c. Borders but NONE have steps of 1. */
static inline mica_index_sources mica_index_sources_of(const mica_index_dim *d, long long i)
{
    mica_index_sources s = {{0, 0}, {0, 0}, 1};
    const long long n = d->size, size = d->across, c = i - d->start;
    if (d->border == MICA_INDEX_INSIDE) {
        s.first[0] = i, s.count[0] = 1;
    } else if (d->border == MICA_INDEX_NONE) {
        s.first[0] = c / d->step;
        s.count[0] = c % d->step == 0 && s.first[0] >= 0 && s.first[0] < size;
    } else if (d->border == MICA_INDEX_EDGE) {
        const long long from = i == 0 || c < 0 ? 0 : c, to = i == n - 1 || c >= size ? size - 1 : c;
        s.first[0] = from;
        s.count[0] = (i > 0 && c >= size) || (i < n - 1 && c < 0) || to < from ? 0 : to - from + 1;
    } else if (d->border == MICA_INDEX_WRAP || n == 1) {
        s.apart = n;
        s.first[0] = mica_index_modulo(c, n);
        s.count[0] = mica_index_progression(s.first[0], n, size);
    } else {
        s.apart = 2 * (n - 1);
        s.first[0] = mica_index_modulo(c, s.apart);
        s.first[1] = mica_index_modulo(-i - d->start, s.apart);
        s.count[0] = mica_index_progression(s.first[0], s.apart, size);
        if (s.first[1] != s.first[0])
            s.count[1] = mica_index_progression(s.first[1], s.apart, size);
    }
    return s;
}

#endif
