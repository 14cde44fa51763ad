/* SPDX-License-Identifier: Apache-2.0
 * Tensors: shapes, strides, text, checks. */
#include "base/tensor.h"
#include "base/text.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

static void pack(mica_tensor *t)
{
    int64_t stride = 1;
    t->strided = 0;
    for (int i = t->rank - 1; i >= 0; i--) {
        t->strides[i] = stride;
        /* A size of 0 still gives the strides a sane value; overflow is found by the span. */
        if (__builtin_mul_overflow(stride, t->dims[i] > 1 ? t->dims[i] : 1, &stride))
            stride = INT64_MAX;
    }
}

static void pack_channels_last(mica_tensor *t)
{
    int64_t stride = t->dims[1] > 1 ? t->dims[1] : 1;
    t->strides[1] = 1;
    t->strided = 0;
    for (int i = t->rank - 1; i >= 0; i--) {
        if (i == 1) continue;
        t->strides[i] = stride;
        if (__builtin_mul_overflow(stride, t->dims[i] > 1 ? t->dims[i] : 1, &stride))
            stride = INT64_MAX;
    }
}

/* Logical B x H x S x D, in memory B x S x H x D. */
static void pack_bshd(mica_tensor *t)
{
    int64_t *d = t->dims, *s = t->strides;
    mica_tensor swapped = {.rank = 4, .dims = {d[0], d[2], d[1], d[3]}};
    pack(&swapped);
    memcpy(s, swapped.strides, 4 * sizeof *s);
    t->strided = 0;
    s[1] = swapped.strides[2];
    s[2] = swapped.strides[1];
}

static mica_tensor shaped(mica_dtype dtype, int rank, const int64_t *dims)
{
    mica_tensor t = {.dtype = dtype, .rank = rank};
    if (rank > 0 && rank <= MICA_MAX_RANK) memcpy(t.dims, dims, (size_t)rank * sizeof *dims);
    return t;
}

mica_tensor mica_tensor_packed(mica_dtype dtype, int rank, const int64_t *dims)
{
    mica_tensor t = shaped(dtype, rank, dims);
    if (rank > 0 && rank <= MICA_MAX_RANK) pack(&t);
    return t;
}

mica_tensor mica_tensor_channels_last(mica_dtype dtype, int rank, const int64_t *dims)
{
    mica_tensor t = shaped(dtype, rank, dims);
    if (rank == 1) pack(&t);
    if (rank > 1 && rank <= MICA_MAX_RANK) pack_channels_last(&t);
    return t;
}

void mica_tensor_default_strides(mica_tensor *t)
{
    bool zero = true;
    for (int i = 0; i < t->rank; i++) zero &= t->strides[i] == 0;
    int64_t count = mica_tensor_count(t);
    t->strided = t->strided && zero && count != 0 && count != 1;
    if (zero && !t->strided) pack(t);
}

/* Whether dimension i lies inside j. At equal strides one of length 1 does: what lies around a
 * longer one is further apart. One channel of a channels-last image has the stride of its columns.
 */
static bool is_inside(const mica_tensor *t, int i, int j)
{
    int64_t a = llabs(t->strides[i]), b = llabs(t->strides[j]);
    return a < b || (a == b && t->dims[i] == 1 && t->dims[j] > 1);
}

void mica_tensor_strides_like(mica_tensor *t, const mica_tensor *like)
{
    if (t->rank != like->rank) {
        pack(t);
        return;
    }
    /* Insertion sort of the dimensions by the model, fastest first; ties: the later one. */
    int order[MICA_MAX_RANK];
    for (int n = 0; n < t->rank; n++) {
        int dim = t->rank - 1 - n, j = n;
        while (j > 0 && is_inside(like, dim, order[j - 1])) {
            order[j] = order[j - 1];
            j--;
        }
        order[j] = dim;
    }
    int64_t stride = 1;
    t->strided = 0;
    for (int i = 0; i < t->rank; i++) {
        t->strides[order[i]] = stride;
        int64_t dim = t->dims[order[i]];
        if (__builtin_mul_overflow(stride, dim > 1 ? dim : 1, &stride)) stride = INT64_MAX;
    }
}

int64_t mica_tensor_count(const mica_tensor *t)
{
    int64_t n = 1;
    bool overflow = false, empty = false;
    for (int i = 0; i < t->rank; i++) {
        if (t->dims[i] == 0) empty = true;
        overflow |= __builtin_mul_overflow(n, t->dims[i], &n);
    }
    return empty ? 0 : overflow ? -1 : n;
}

int64_t mica_tensor_span(const mica_tensor *t, int64_t *first)
{
    int64_t low = 0, high = 0;
    if (first) *first = 0;
    if (mica_tensor_count(t) == 0) return 0;
    for (int i = 0; i < t->rank; i++) {
        int64_t reach;
        if (__builtin_mul_overflow(t->dims[i] - 1, t->strides[i], &reach)) return -1;
        int64_t *end = reach < 0 ? &low : &high;
        if (__builtin_add_overflow(*end, reach, end)) return -1;
    }
    int bits = mica_dtype_bits(t->dtype);
    int64_t elements, total_bits;
    if (__builtin_sub_overflow(high, low, &elements) || elements == INT64_MAX) return -1;
    if (__builtin_mul_overflow(elements + 1, (int64_t)bits, &total_bits)) return -1;
    if (first) *first = low * bits / 8;
    return (total_bits - 1) / 8 + 1;
}

/* ---- predicates ---- */

bool mica_tensor_equal(const mica_tensor *a, const mica_tensor *b)
{
    if (a->dtype != b->dtype || a->rank != b->rank) return false;
    for (int i = 0; i < a->rank; i++) {
        if (a->dims[i] != b->dims[i]) return false;
        if (a->dims[i] != 1 && a->strides[i] != b->strides[i]) return false;
    }
    return true;
}

bool mica_tensor_is_packed(const mica_tensor *t)
{
    int64_t stride = 1;
    for (int i = t->rank - 1; i >= 0; i--) {
        if (t->dims[i] != 1 && t->strides[i] != stride) return false;
        stride *= t->dims[i] > 1 ? t->dims[i] : 1;
    }
    return true;
}

bool mica_tensor_is_channels_last(const mica_tensor *t)
{
    if (t->rank < 2) return mica_tensor_is_packed(t);
    mica_tensor c = *t;
    pack_channels_last(&c);
    return mica_tensor_equal(t, &c);
}

/* Dimensions of size > 1 sorted by stride; returns their number. */
static int sorted_dims(const mica_tensor *t, int *order)
{
    int n = 0;
    for (int i = 0; i < t->rank; i++) {
        if (t->dims[i] == 1) continue;
        int j = n++;
        while (j > 0 && llabs(t->strides[order[j - 1]]) > llabs(t->strides[i])) {
            order[j] = order[j - 1];
            j--;
        }
        order[j] = i;
    }
    return n;
}

bool mica_tensor_is_dense(const mica_tensor *t)
{
    int order[MICA_MAX_RANK], n = sorted_dims(t, order);
    int64_t stride = 1;
    for (int i = 0; i < n; i++) {
        if (t->strides[order[i]] != stride) return false;
        stride *= t->dims[order[i]];
    }
    return true;
}

/* Sufficient test: sorted by stride, each dimension steps past all that the faster ones reach. */
static bool elements_are_apart(const mica_tensor *t)
{
    int order[MICA_MAX_RANK], n = sorted_dims(t, order);
    int64_t reach = 0;
    for (int i = 0; i < n; i++) {
        int64_t step = llabs(t->strides[order[i]]);
        if (step <= reach) return false;
        reach += step * (t->dims[order[i]] - 1);
    }
    return true;
}

mica_status mica_tensor_check(const mica_tensor *t, const char *name, bool output, mica_why *why)
{
    if (mica_dtype_bits(t->dtype) == 0)
        return mica_invalid(why, "%s: %d is no data type", name, (int)t->dtype);
    if (t->rank < 0 || t->rank > MICA_MAX_RANK)
        return mica_invalid(why, "%s: rank is %d, 0 to %d are legal", name, t->rank, MICA_MAX_RANK);
    for (int i = 0; i < t->rank; i++)
        if (t->dims[i] < 0)
            return mica_invalid(why, "%s: dimension %d is %lld, it may not be negative", name, i,
                                (long long)t->dims[i]);
    /* Strides of 0 could describe more than any memory holds, and so could what stands beside a
     * size of 0, which counts as 1 here; below this, engines may multiply counts by small numbers
     * without asking. */
    mica_tensor full = *t;
    for (int i = 0; i < t->rank; i++)
        if (full.dims[i] == 0) full.dims[i] = 1;
    if (mica_tensor_count(&full) < 0)
        return mica_invalid(why, "%s: the number of elements does not fit 63 bits", name);
    for (int i = 0; i < t->rank; i++)
        if (t->dims[i] > MICA_MOST_ELEMENTS)
            return mica_invalid(why, "%s: dimension %d is %lld, at most 2^48 are legal", name, i,
                                (long long)t->dims[i]);
    if (mica_tensor_count(&full) > MICA_MOST_ELEMENTS)
        return mica_invalid(why, "%s: %lld elements, at most 2^48 are legal%s", name,
                            (long long)mica_tensor_count(&full),
                            mica_tensor_count(t) ? "" : ", a size of 0 counting as 1");
    int64_t first;
    if (mica_tensor_span(&full, &first) < 0)
        return mica_invalid(why, "%s: the strides span more bytes than fit 63 bits", name);
    if (output && mica_tensor_count(t) > 0 && !elements_are_apart(t))
        return mica_invalid(why, "%s: the strides of an output let elements share memory", name);
    return MICA_OK;
}

mica_status mica_tensor_same_dims(const mica_tensor *a, const char *a_name, const mica_tensor *b,
                                  const char *b_name, mica_why *why)
{
    if (a->rank != b->rank)
        return mica_invalid(why, "%s has rank %d, %s has %d; they must agree", a_name, a->rank,
                            b_name, b->rank);
    for (int i = 0; i < a->rank; i++)
        if (a->dims[i] != b->dims[i])
            return mica_invalid(why, "dimension %d of %s is %lld, of %s %lld; they must agree", i,
                                a_name, (long long)a->dims[i], b_name, (long long)b->dims[i]);
    return MICA_OK;
}

/* ---- text ---- */

static const char *read_number(const char *s, int64_t *value)
{
    bool negative = *s == '-';
    if (negative) s++;
    if (!isdigit((unsigned char)*s)) return NULL;
    int64_t v = 0;
    for (; isdigit((unsigned char)*s); s++)
        if (__builtin_mul_overflow(v, (int64_t)10, &v) ||
            __builtin_add_overflow(v, (int64_t)(*s - '0'), &v))
            return NULL;
    *value = negative ? -v : v;
    return s;
}

/* "2x3x4" up to `end` ('\0' or ':'); returns the count, -1 for bad text. */
static int read_numbers(const char **text, int64_t *values)
{
    const char *s = *text;
    int n = 0;
    if (*s != '\0' && *s != ':') {
        do {
            if (n == MICA_MAX_RANK) return -1;
            s = read_number(n ? s + 1 : s, &values[n]);
            if (!s) return -1;
            n++;
        } while (*s == 'x');
    }
    *text = s;
    return *s == '\0' || *s == ':' ? n : -1;
}

static bool read_layout(const char *layout, mica_tensor *t)
{
    static const char *const packed[] = {"nchw", "ncdhw", "ncw", "nc"};
    static const char *const last[] = {"nhwc", "ndhwc", "nwc"};
    for (size_t i = 0; i < sizeof packed / sizeof *packed; i++)
        if (!strcmp(layout, packed[i])) {
            pack(t);
            return true;
        }
    for (size_t i = 0; i < sizeof last / sizeof *last; i++)
        if (!strcmp(layout, last[i]) && t->rank >= 2) {
            pack_channels_last(t);
            return true;
        }
    if (!strcmp(layout, "bshd") && t->rank == 4) {
        pack_bshd(t);
        return true;
    }
    if (!strcmp(layout, "t") && t->rank >= 2) {
        int64_t *d = t->dims, *s = t->strides;
        int r = t->rank;
        int64_t rows = d[r - 2], cols = d[r - 1];
        d[r - 2] = cols, d[r - 1] = rows;
        pack(t);
        int64_t fast = s[r - 1], slow = s[r - 2];
        d[r - 2] = rows, d[r - 1] = cols;
        s[r - 2] = fast, s[r - 1] = slow;
        return true;
    }
    return false;
}

static mica_status bad_text(const char *text, const char *rule)
{
    return mica_fail(MICA_INVALID, "tensor \"%.80s\": %s", text, rule);
}

static mica_status bad_type(const char *text)
{
    char list[160];
    mica_text types = {list, sizeof list, 0};
    mica_dtype_list(&types, false);
    return mica_fail(MICA_INVALID,
                     "tensor \"%.60s\": it must start with a data type and a colon; known are %s",
                     text, list);
}

mica_status mica_tensor_from_text(const char *text, mica_tensor *tensor)
{
    if (!text || !tensor) return mica_fail(MICA_INVALID, "a NULL pointer");
    mica_tensor t = {0};
    const char *colon = strchr(text, ':');
    size_t length = colon ? (size_t)(colon - text) : strlen(text);
    for (int d = 1; d < MICA_DTYPE_COUNT; d++) {
        const char *name = mica_dtype_name((mica_dtype)d);
        if (strlen(name) == length && !strncmp(name, text, length)) t.dtype = (mica_dtype)d;
    }
    if (!t.dtype) return bad_type(text);
    const char *s = colon ? colon + 1 : text + length;
    int n = read_numbers(&s, t.dims);
    if (n < 0) return bad_text(text, "sizes are written 2x3x4, at most 8 of them");
    t.rank = n;
    for (int i = 0; i < n; i++)
        if (t.dims[i] < 0) return bad_text(text, "a size may not be negative");
    if (*s == '\0') {
        pack(&t);
    } else if (!read_layout(s + 1, &t)) {
        s++;
        n = read_numbers(&s, t.strides);
        if (n != t.rank || *s != '\0' || n == 0)
            return bad_text(
                text, "the last part is a layout (nchw, nhwc, bshd, t) or one stride per size");
        t.strided = 1;
        mica_tensor_default_strides(&t);
    }
    *tensor = t;
    return MICA_OK;
}

static void add_numbers(mica_text *text, const int64_t *values, int n)
{
    for (int i = 0; i < n; i++) mica_text_add(text, "%s%lld", i ? "x" : "", (long long)values[i]);
}

int mica_tensor_text(const mica_tensor *tensor, char *buffer, size_t size)
{
    mica_text text = {buffer, size, 0};
    mica_tensor t = *tensor;
    if (t.rank < 0 || t.rank > MICA_MAX_RANK) t.rank = 0;
    mica_tensor_default_strides(&t);
    mica_text_add(&text, "%s:", mica_dtype_name(t.dtype));
    add_numbers(&text, t.dims, t.rank);
    mica_tensor packed = t, last = t, swapped = t;
    pack(&packed);
    if (!memcmp(t.strides, packed.strides, sizeof t.strides)) return (int)text.length;
    static const char *const names[] = {"nc", "nwc", "nhwc", "ndhwc"};
    if (t.rank >= 3 && t.rank <= 5) {
        pack_channels_last(&last);
        if (!memcmp(t.strides, last.strides, sizeof t.strides)) {
            mica_text_add(&text, ":%s", names[t.rank - 2]);
            return (int)text.length;
        }
    }
    if (t.rank >= 2 && read_layout("t", &swapped) &&
        !memcmp(t.strides, swapped.strides, sizeof t.strides)) {
        mica_text_add(&text, ":t");
        return (int)text.length;
    }
    mica_tensor heads = t;
    if (t.rank == 4 && read_layout("bshd", &heads) &&
        !memcmp(t.strides, heads.strides, sizeof t.strides)) {
        mica_text_add(&text, ":bshd");
        return (int)text.length;
    }
    mica_text_add(&text, ":");
    add_numbers(&text, t.strides, t.rank);
    return (int)text.length;
}

/* ---- values ---- */

static mica_status values_ready(const mica_tensor *given, mica_tensor *t)
{
    mica_why why;
    *t = *given;
    if (t->rank >= 0 && t->rank <= MICA_MAX_RANK) mica_tensor_default_strides(t);
    if (mica_tensor_check(t, "tensor", false, &why) != MICA_OK)
        return mica_fail(MICA_INVALID, "%s", why.text);
    if (!mica_dtype_load(t->dtype))
        return mica_fail(MICA_UNSUPPORTED, "values of type %s do not fit doubles",
                         mica_dtype_name(t->dtype));
    return MICA_OK;
}

/* Calls one of load or store for every element in logical order. */
static void walk(const mica_tensor *t, mica_load_fn load, mica_store_fn store, void *data,
                 double *values)
{
    int64_t index[MICA_MAX_RANK] = {0}, offset = 0, count = mica_tensor_count(t);
    for (int64_t i = 0; i < count; i++) {
        if (load)
            values[i] = load(data, offset);
        else
            store(data, offset, values[i]);
        for (int d = t->rank - 1; d >= 0; d--) {
            offset += t->strides[d];
            if (++index[d] < t->dims[d]) break;
            offset -= t->strides[d] * t->dims[d];
            index[d] = 0;
        }
    }
}

mica_status mica_tensor_store(const mica_tensor *tensor, const double *values, void *data)
{
    mica_tensor t;
    MICA_TRY(values_ready(tensor, &t));
    walk(&t, NULL, mica_dtype_store(t.dtype), data, (double *)(uintptr_t)values);
    return MICA_OK;
}

mica_status mica_tensor_load(const mica_tensor *tensor, const void *data, double *values)
{
    mica_tensor t;
    MICA_TRY(values_ready(tensor, &t));
    walk(&t, mica_dtype_load(t.dtype), NULL, (void *)(uintptr_t)data, values);
    return MICA_OK;
}
