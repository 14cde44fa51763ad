/* SPDX-License-Identifier: Apache-2.0
 * Pointwise operations of more than one dimension: a block has a tile of TILE_ROWS elements along the last
 * by TILE_COLS along another, so that positions in it take no division. Operands that run along the other
 * one (ACROSS, bit k: operand k) pass through shared memory: there they are read and written along their
 * own, ACROSS_VECTOR elements at once. Further constant: OUTER, the dimensions that count tiles; those of
 * the tile follow them in the layout, the last behind the other. */
#pragma once

static_assert(TILE_ROWS % VECTOR == 0 && TILE_COLS % ACROSS_VECTOR == 0, "vectors end with tiles");

template <int K> struct tile_of {
    typedef operand_type<K> type;
    static constexpr int SIZE = (int)sizeof(type);
    /* An odd number of 4-byte words: neighbouring rows lie in neighbouring banks. */
    static constexpr int PITCH = SIZE < 4 ? ((TILE_COLS * SIZE + 3) / 4 | 1) * 4 / SIZE : TILE_COLS | 1;
    static constexpr int BEGIN = tile_of<K - 1>::END;
    static constexpr int END = BEGIN + (ACROSS >> K & 1 ? (TILE_ROWS * PITCH * SIZE + 15) / 16 * 16 : 0);
};
template <> struct tile_of<-1> {
    static constexpr int END = 0;
};
constexpr int TILE_BYTES = tile_of<OPERANDS - 1>::END;

template <int K> POINTWISE operand_type<K> *element_of(unsigned char *memory, int row, int col)
{
    return (operand_type<K> *)(memory + tile_of<K>::BEGIN) + row * tile_of<K>::PITCH + col;
}

template <int K> POINTWISE void load_column(const tile_spot &spot, real *v)
{
    const operand_type<K> *from = element_of<K>(spot.memory, spot.row, spot.col);
#pragma unroll
    for (int i = 0; i < VECTOR; i++) v[i] = widen<real>(from[i * tile_of<K>::PITCH]);
}

template <int K> POINTWISE void store_column(const tile_spot &spot, const real *v)
{
    operand_type<K> *to = element_of<K>(spot.memory, spot.row, spot.col);
#pragma unroll
    for (int i = 0; i < VECTOR; i++) to[i * tile_of<K>::PITCH] = narrow<operand_type<K>>(v[i]);
}

/* ---- between memory and tiles ---- */

struct tile_place {
    long long at[PLACES];
    int rows, cols; /* that there are from here on, at most the tile */
};

POINTWISE tile_place find_tile(const mica_pointwise_args &a)
{
    const long long *dims = a.layout.dims + OUTER;
    const unsigned col_tiles = (unsigned)((dims[0] + TILE_COLS - 1) / TILE_COLS);
    const unsigned row_tiles = (unsigned)((dims[1] + TILE_ROWS - 1) / TILE_ROWS);
    const unsigned rest = blockIdx.x / row_tiles, outer = rest / col_tiles;
    const long long row = (long long)(blockIdx.x - rest * row_tiles) * TILE_ROWS;
    const long long col = (long long)(rest - outer * col_tiles) * TILE_COLS;
    tile_place t;
    layout_offsets<PLACES>(a.layout, outer, t.at);
#pragma unroll
    for (int p = 0; p < PLACES; p++)
        t.at[p] += col * a.layout.strides[p][OUTER] + row * a.layout.strides[p][OUTER + 1];
    t.rows = dims[1] - row < TILE_ROWS ? (int)(dims[1] - row) : TILE_ROWS;
    t.cols = dims[0] - col < TILE_COLS ? (int)(dims[0] - col) : TILE_COLS;
    return t;
}

/* A tile's accesses by this thread; begin(step, row, col). */
constexpr int ACCESSES = TILE_ROWS * TILE_COLS / ACROSS_VECTOR, STEPS = (ACCESSES + BLOCK - 1) / BLOCK;
constexpr int BATCH = STEPS < 8 ? STEPS : 8; /* in flight */

template <int K> POINTWISE operand_type<K> *address_of(const mica_pointwise_args &a, const tile_place &t, int row, int col)
{
    const long long *strides = a.layout.strides[PLACE[K]] + OUTER;
    return (operand_type<K> *)a.at[K] + t.at[PLACE[K]] + col * strides[0] + row * strides[1];
}

POINTWISE bool find_access(const tile_place &t, int step, int &row, int &col)
{
    const int i = step * BLOCK + (int)threadIdx.x, e = i * ACROSS_VECTOR;
    row = e / TILE_COLS, col = e % TILE_COLS;
    return i < ACCESSES && row < t.rows && col < t.cols;
}

template <int K, bool WHOLE>
POINTWISE void read_tile(const mica_pointwise_args &a, const tile_place &t, unsigned char *memory)
{
    typedef operand_type<K> T;
    constexpr bool WORDS = sizeof(T) < 4 && sizeof(T) * ACROSS_VECTOR >= 4;
    constexpr int GRAIN = WORDS ? 4 / (int)sizeof(T) : 1;
    int row, col;
#pragma unroll
    for (int first = 0; first < STEPS; first += BATCH) {
        lanes<T, ACROSS_VECTOR> raw[BATCH];
#pragma unroll
        for (int j = 0; j < BATCH; j++)
            if (find_access(t, first + j, row, col))
                raw[j] = fetch<ACROSS_VECTOR>((const T *)address_of<K>(a, t, row, col), WHOLE);
#pragma unroll
        for (int j = 0; j < BATCH; j++)
            if (find_access(t, first + j, row, col)) {
                T *to = element_of<K>(memory, row, col), e[ACROSS_VECTOR];
                memcpy(e, raw[j].words, sizeof e);
#pragma unroll
                for (int k = 0; k < ACROSS_VECTOR; k += GRAIN) store_vector<GRAIN>(to + k, e + k);
            }
    }
}

template <int K, bool WHOLE>
POINTWISE void write_tile(const mica_pointwise_args &a, const tile_place &t, unsigned char *memory)
{
    typedef operand_type<K> T;
    constexpr bool WORDS = sizeof(T) < 4 && sizeof(T) * ACROSS_VECTOR >= 4;
    constexpr int GRAIN = WORDS ? 4 / (int)sizeof(T) : 1;
    int row, col;
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
        if (!find_access(t, step, row, col)) continue;
        T *to = address_of<K>(a, t, row, col), e[ACROSS_VECTOR];
        const T *from = element_of<K>(memory, row, col);
#pragma unroll
        for (int k = 0; k < ACROSS_VECTOR; k += GRAIN) load_vector<GRAIN>(from + k, e + k);
        if (WHOLE) {
            store_vector<ACROSS_VECTOR>(to, e);
        } else {
#pragma unroll
            for (int k = 0; k < ACROSS_VECTOR; k++) to[k] = e[k];
        }
    }
}

template <int K, bool WHOLE>
POINTWISE void read_tiles(const mica_pointwise_args &a, const tile_place &t, unsigned char *memory)
{
    if constexpr (K < OPERANDS) {
        if constexpr (ACROSS >> K & 1)
            if (READ >> K & 1 || (SCALES && a.beta != 0)) read_tile<K, WHOLE>(a, t, memory);
        read_tiles<K + 1, WHOLE>(a, t, memory);
    }
}

template <int K, bool WHOLE>
POINTWISE void write_tiles(const mica_pointwise_args &a, const tile_place &t, unsigned char *memory)
{
    if constexpr (K < OPERANDS) {
        if constexpr (ACROSS & WRITTEN & 1 << K) write_tile<K, WHOLE>(a, t, memory);
        write_tiles<K + 1, WHOLE>(a, t, memory);
    }
}

/* One memory for both kinds of vectors. */
POINTWISE unsigned char *tile_memory()
{
    __shared__ __align__(16) unsigned char memory[TILE_BYTES ? TILE_BYTES : 16];
    return memory;
}

/* All of a tile is read before any of it is written where that passes through shared memory; else each
 * vector. */
template <bool WHOLE> POINTWISE void take_vectors(const mica_pointwise_args &a)
{
    unsigned char *memory = tile_memory();
    constexpr int PER_ROW = TILE_ROWS / VECTOR, VECTORS = PER_ROW * TILE_COLS;
    const tile_place t = find_tile(a);
    if constexpr (ACROSS) {
        read_tiles<0, WHOLE>(a, t, memory);
        __syncthreads();
    }
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < VECTORS; i += BLOCK) {
        const int row = i % PER_ROW * VECTOR, col = i / PER_ROW;
        if (row >= t.rows || col >= t.cols) continue;
        long long at[PLACES];
#pragma unroll
        for (int p = 0; p < PLACES; p++)
            at[p] = t.at[p] + col * a.layout.strides[p][OUTER] + row * a.layout.strides[p][OUTER + 1];
        take_vector<WHOLE>(a, at, VECTOR, tile_spot{memory, row, col});
    }
    if constexpr (ACROSS & WRITTEN) {
        __syncthreads();
        write_tiles<0, WHOLE>(a, t, memory);
    }
}
