/* SPDX-License-Identifier: Apache-2.0
 * Parts of filter gradients. */
#include "ops/conv/cuda/conv_parts.h"

enum { BLOCK = 256, MOST_SPLITS = 256 };

bool conv_parts_possible(const mica_conv_desc *d)
{
    return mica_conv_roles_of(d).wgrad && mica_tensor_is_dense(&d->w);
}

int conv_parts_choose(int64_t blocks, int64_t wanted, int64_t terms, int64_t least)
{
    int64_t splits = blocks > 0 ? wanted / blocks : 1, most = terms / least;
    if (splits > most) splits = most;
    if (splits > MOST_SPLITS) splits = MOST_SPLITS;
    return splits > 1 ? (int)splits : 1;
}

mica_status conv_parts_build(mica_plan *plan, int splits, mica_dtype sums, conv_parts *parts)
{
    const mica_tensor *w = &((const mica_conv_desc *)plan->desc)->w;
    int64_t first, count = mica_tensor_count(w), blocks = (count + BLOCK - 1) / BLOCK;
    if (splits <= 1) return MICA_OK;
    if (blocks > INT32_MAX)
        return mica_fail(MICA_UNSUPPORTED, "the filter has %lld elements in blocks of %d",
                         (long long)count, BLOCK);
    mica_tensor_span(w, &first);
    parts->lowest = first / (mica_dtype_bits(w->dtype) / 8);
    parts->sum_bytes = mica_dtype_bits(sums) / 8;
    parts->args.count = count;
    parts->args.splits = splits;
    parts->grid = (mica_grid){.grid = {(unsigned)blocks}, .block = {BLOCK}};
    size_t bytes = (size_t)count * (size_t)parts->sum_bytes * (size_t)splits;
    MICA_TRY(mica_book(plan, "parts", bytes, &parts->offset));
    char text[256];
    mica_text p = {text, sizeof text, 0};
    mica_prologue_int(&p, "BLOCK", BLOCK);
    mica_prologue_type(&p, "out_t", w->dtype);
    mica_prologue_type(&p, "acc_t", sums);
    mica_kernel_spec spec = {"ops/conv/cuda/conv_parts.cu", "conv_parts", text, 0};
    return mica_plan_add_kernel(plan, &spec, &parts->kernel);
}

void *conv_parts_base(const conv_parts *parts, const mica_run *run)
{
    return (char *)mica_at(run, parts->offset) - parts->lowest * parts->sum_bytes;
}

conv_operands conv_parts_operands(const mica_plan *plan, const conv_parts *parts,
                                  const mica_conv_roles *roles, int64_t f_base, const mica_run *run)
{
    bool split = parts->kernel != NULL;
    const mica_conv_desc *d = plan->desc;
    int64_t at = f_base * (split ? parts->sum_bytes : mica_dtype_bits(d->w.dtype) / 8);
    void *out = split ? conv_parts_base(parts, run) : run->args[roles->out];
    const void *other = run->args[roles->other];
    return (conv_operands){.image = run->args[roles->image],
                           .other = roles->wgrad ? other : (const char *)other + at,
                           .out = roles->wgrad ? (char *)out + at : out,
                           .alpha = split ? 1 : mica_run_scalar(plan, run, MICA_CONV_ALPHA),
                           .beta = split ? 0 : mica_run_scalar(plan, run, MICA_CONV_BETA)};
}

mica_status conv_parts_run(const mica_plan *plan, const conv_parts *parts, const mica_run *run)
{
    if (!parts->kernel) return MICA_OK;
    conv_parts_args a = parts->args;
    const mica_tensor *w = &((const mica_conv_desc *)plan->desc)->w;
    a.parts = mica_at(run, parts->offset);
    a.out = (char *)run->args[MICA_CONV_W] + parts->lowest * (mica_dtype_bits(w->dtype) / 8);
    a.alpha = mica_run_scalar(plan, run, MICA_CONV_ALPHA);
    a.beta = mica_run_scalar(plan, run, MICA_CONV_BETA);
    return mica_kernel_launch(parts->kernel, &parts->grid, run->stream, &a);
}
