/* SPDX-License-Identifier: Apache-2.0
 * Padding: tables, inference, checks, the map. */
#include "mica/pad.h"
#include "ops/index/index.h"

extern const mica_op mica_op_pad;

static const char *const passes[] = {"fwd", "bwd", NULL};
static const char *const modes[] = {"constant", "reflect", "edge", "wrap", NULL};
static const int borders[] = {MICA_INDEX_NONE, MICA_INDEX_REFLECT, MICA_INDEX_EDGE,
                              MICA_INDEX_WRAP};

#define FIELD(member, kind, ...) MICA_FIELD(mica_pad_desc, member, kind, __VA_ARGS__)
static const mica_field fields[] = {
    FIELD(pass, ENUM, .spellings = passes, .doc = "forward, or gradient of x"),
    FIELD(mode, ENUM, .spellings = modes, .doc = "what stands where there is nothing of x"),
    FIELD(x, TENSOR, .zero = "needed", .doc = "fwd: input"),
    FIELD(y, TENSOR, .zero = "inferred", .doc = "fwd: output, packed"),
    FIELD(dy, TENSOR, .zero = "inferred", .doc = "bwd: gradient of y"),
    FIELD(dx, TENSOR, .zero = "needed", .doc = "bwd: gradient of x"),
    FIELD(before, AXES, .count = MICA_MAX_RANK, .zero = "none",
          .doc = "elements added before each dimension; negative: taken away"),
    FIELD(after, AXES, .count = MICA_MAX_RANK, .zero = "none", .doc = "the same behind it"),
};

static const mica_tensor *inner_of(const mica_pad_desc *d)
{
    return d->pass == MICA_PAD_FWD ? &d->x : &d->dx;
}

static mica_tensor padded(const void *desc)
{
    const mica_pad_desc *d = desc;
    const mica_tensor *inner = inner_of(d);
    mica_tensor outer = {.dtype = inner->dtype, .rank = inner->rank};
    for (int i = 0; i < inner->rank; i++)
        outer.dims[i] = inner->dims[i] + d->before[i] + d->after[i];
    mica_tensor_default_strides(&outer);
    return outer;
}

#define ARG(member)   #member, offsetof(mica_pad_desc, member)
#define PADDED(inner) .same = inner, .like = "the padded " inner, .shape = padded
static const mica_arg args[] = {
    [MICA_PAD_X] = {ARG(x), {MICA_IN, MICA_UNUSED}, .need = {MICA_NEEDED}},
    [MICA_PAD_Y] = {ARG(y), {MICA_OUT, MICA_UNUSED}, .need = {MICA_INFERRED}, PADDED("x")},
    [MICA_PAD_DY] = {ARG(dy), {MICA_UNUSED, MICA_IN}, .need = {0, MICA_INFERRED}, PADDED("dx")},
    [MICA_PAD_DX] = {ARG(dx), {MICA_UNUSED, MICA_OUT}, .need = {0, MICA_NEEDED}},
};

static const mica_scalar scalars[] = {{"value", 0}};

static mica_status infer(void *desc, mica_why *why)
{
    mica_pad_desc *d = desc;
    const bool fwd = d->pass == MICA_PAD_FWD;
    const mica_tensor *inner = inner_of(d);
    for (int i = 0; i < MICA_MAX_RANK; i++) {
        const int64_t both[] = {d->before[i], d->after[i]};
        for (int k = 0; k < 2; k++)
            if (both[k] > MICA_MOST_ELEMENTS || both[k] < -MICA_MOST_ELEMENTS ||
                (i >= inner->rank && both[k]))
                return mica_invalid(why, "%s[%d] is %lld, %s has %d dimensions of at most 2^48",
                                    k ? "after" : "before", i, (long long)both[k], fwd ? "x" : "dx",
                                    inner->rank);
    }
    return MICA_OK;
}

static mica_status check(const void *desc, mica_why *why)
{
    const mica_pad_desc *d = desc;
    const mica_tensor *inner = inner_of(d);
    for (int i = 0; i < inner->rank; i++)
        if (inner->dims[i] == 0 && d->before[i] + d->after[i] > 0 && d->mode != MICA_PAD_CONSTANT)
            return mica_invalid(why, "dimension %d is 0, mode=%s needs an element", i,
                                modes[d->mode]);
    return MICA_OK;
}

static void maps(const void *desc, mica_index_set *set)
{
    const mica_pad_desc *d = desc;
    const bool fwd = d->pass == MICA_PAD_FWD;
    const mica_tensor *inner = inner_of(d);
    mica_index_map *m = &set->map[set->count++];
    *m = mica_index_between(fwd ? MICA_INDEX_COPY : MICA_INDEX_FOLD, fwd ? MICA_PAD_Y : MICA_PAD_DY,
                            fwd ? &d->y : &d->dy, fwd ? MICA_PAD_X : MICA_PAD_DX, inner);
    for (int i = 0; i < inner->rank; i++) {
        mica_index_dim *a = &m->at[i];
        if (!d->before[i] && !d->after[i]) continue;
        a->border = borders[d->mode];
        a->start = -d->before[i];
        a->across = inner->dims[i];
    }
}

/* Of the elements behind one of dx. */
static int64_t terms(const void *desc)
{
    const mica_pad_desc *d = desc;
    int64_t n = 1;
    for (int i = 0; i < d->dx.rank && d->mode != MICA_PAD_CONSTANT; i++)
        if (d->before[i] || d->after[i]) n *= d->dy.dims[i] > 1 ? d->dy.dims[i] : 1;
    return n;
}

const mica_op mica_op_pad = {
    .name = "pad",
    .doc = "elements added around a tensor, or taken away, and its gradient",
    .desc_size = sizeof(mica_pad_desc),
    .fields = fields,
    .field_count = sizeof fields / sizeof *fields,
    .args = args,
    .arg_count = sizeof args / sizeof *args,
    .scalars = scalars,
    .scalar_count = sizeof scalars / sizeof *scalars,
    .infer = infer,
    .check = check,
    .terms = terms,
    .exact = mica_index_exact,
    .index = &(const mica_index){.maps = maps},
    .engines = mica_index_engines,
};
