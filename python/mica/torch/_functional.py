# SPDX-License-Identifier: Apache-2.0
"""Functions with the signatures of torch.nn.functional, on the library's operators. Under autocast products
take the type that it asks for; norms, softmax and losses take f32, as PyTorch's own do."""

import functools
import math

import torch

from .._formulas import statistics
from ._formulas import Arrays, _call
from ._library import THEIRS, plain, site

_WIDE = {torch.float64: "f64"}


def _stat(x):
    return _WIDE.get(x.dtype, "f32")


def _autocast(*tensors):
    """Tensors in autocast's type, where it is on."""
    if not torch._C._is_any_autocast_enabled():
        return tensors
    device = tensors[0].device.type
    if not torch.is_autocast_enabled(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    return tuple(t.to(dtype) if t is not None and t.is_floating_point() and t.dtype != torch.float64 else t for t in tensors)


def _autocast_wide(t):
    return t.float() if torch.is_autocast_enabled(t.device.type) and t.dtype in (torch.float16, torch.bfloat16) else t


def _axes(value, rank):
    return [int(value)] * rank if isinstance(value, int) else [int(v) for v in value] * (rank if len(value) == 1 else 1)


def _given(values, nothing):
    """A list, or None where it says what leaving it out says."""
    return None if all(v == nothing for v in values) else values


# ---- convolution and linear ----


def _hashable(value):
    return tuple(value) if isinstance(value, list) else value


def _conv_fields(window, stride, padding, dilation, groups, transposed, output_padding, bias):
    """window: its sizes, or how many there are, where the fields do not depend on them."""
    rank = window if isinstance(window, int) else len(window)
    stride, dilation = _axes(stride, rank), _axes(dilation, rank)
    extra = None
    if padding == "valid":
        pad = [0] * rank
    elif padding == "same":
        total = [d * (n - 1) for d, n in zip(dilation, window)]
        pad, extra = [t // 2 for t in total], _given([t % 2 for t in total], 0)
    else:
        pad = _axes(padding, rank)
    fields = {"epilogue": ["bias"] if bias else None, "stride": _given(stride, 1), "pad": _given(pad, 0), "pad_extra": extra,
              "dilation": _given(dilation, 1), "groups": None if groups == 1 else groups, "transposed": transposed or None,
              "output_pad": _given(_axes(output_padding, rank), 0)}
    return tuple((n, _hashable(v)) for n, v in fields.items() if v is not None)


@functools.lru_cache(4096)
def _conv_site(*key):
    return site("conv", ("x", "w", "bias") if key[-1] else ("x", "w"), _conv_fields(*key))


def _conv(x, w, bias, stride, padding, dilation, groups, transposed=False, output_padding=0):
    x, w, bias = _autocast(x, w, bias)
    batched = x.dim() == w.dim()
    if not batched:
        x = x.unsqueeze(0)
    window = w.shape[2:] if padding == "same" else w.dim() - 2
    key = window, stride, padding, dilation, groups, transposed, output_padding, bias is not None
    if torch.compiler.is_compiling():  # which sees through the memory of sites, and warns of it
        y, = _call("conv", x=x, w=w, bias=bias, **dict(_conv_fields(*key)))
    else:
        try:
            run = _conv_site(*key)
        except TypeError:  # lists, or sizes that a trace has not made numbers
            window = window if isinstance(window, int) else tuple(map(int, window))
            run = _conv_site(window, *map(_hashable, key[1:]))
        y, = run(x, w) if bias is None else run(x, w, bias)
    return y if batched else y.squeeze(0)


def conv(input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
    """F.conv1d, conv2d and conv3d, by the rank of the weight."""
    return _conv(input, weight, bias, stride, padding, dilation, groups)


def conv_transpose(input, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1):
    """F.conv_transpose1d, 2d and 3d."""
    return _conv(input, weight, bias, stride, padding, dilation, groups, True, output_padding)


def linear(input, weight, bias=None):
    """F.linear."""
    input, weight, bias = _autocast(input, weight, bias)
    flat = input.dim() == 2
    a = input if flat else input.reshape(math.prod(input.shape[:-1]), input.shape[-1])
    c, = _call("gemm", a=a, b=weight.t(), bias=bias, epilogue=None if bias is None else ["bias"])
    return c if flat else c.reshape(*input.shape[:-1], weight.shape[0])


def matmul(a, b):
    """torch.matmul of matrices, batched and broadcast."""
    a, b = _autocast(a, b)
    return _call("gemm", a=a, b=b)[0]


# ---- norms ----


def _norm(x, kind, scale, bias, eps, **fields):
    stat = statistics(Arrays, x, {"kind": kind, **fields})
    described = {"rstd": stat} if kind == "rms" else {"mean": stat, "rstd": stat}
    return _call("norm", x=x, kind=kind, scale=scale, bias=bias, eps=eps, described=described, **fields)


def layer_norm(input, normalized_shape, weight=None, bias=None, eps=1e-5):
    """F.layer_norm."""
    input = _autocast_wide(input)
    axes = len(normalized_shape)
    return _norm(input, "layer", weight, bias, eps, axes=None if axes == 1 else axes)[0]


def rms_norm(input, normalized_shape, weight=None, eps=None):
    """F.rms_norm."""
    axes = len(normalized_shape)
    eps = torch.finfo(input.dtype).eps if eps is None else eps
    return _norm(input, "rms", weight, None, eps, axes=None if axes == 1 else axes)[0]


def group_norm(input, num_groups, weight=None, bias=None, eps=1e-5):
    """F.group_norm."""
    return _norm(_autocast_wide(input), "group", weight, bias, eps, groups=num_groups)[0]


def batch_norm(input, running_mean, running_var, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5, *, act=None,
               residual=None):
    """F.batch_norm. Running statistics are updated as there. residual is added behind it, act follows: one pass instead
    of three."""
    more = {"act": act, "residual": residual}
    if not training:
        return _call("norm", x=input, kind="batch", mode="infer", scale=weight, bias=bias, eps=eps,
                     running_mean=running_mean, running_var=running_var, **more)[0]
    count = input.numel() // max(input.shape[1] if input.dim() > 1 else 1, 1)
    # Operators change nothing in place; where nobody listens this one may.
    if (running_mean is not None and 0 < momentum <= 1 and count > 1 and plain((input, running_mean, running_var))
            and running_mean.dtype == running_var.dtype == THEIRS[_stat(input)]):
        return _norm(input, "batch", weight, bias, eps, running_mean=running_mean, running_var=running_var, momentum=momentum,
                     **more)[0]
    y, mean, rstd = _norm(input, "batch", weight, bias, eps, **more)
    if running_mean is not None:
        with torch.no_grad():
            variance = (rstd.double().pow(-2) - eps).clamp(min=0) * (count / max(count - 1, 1))
            running_mean.lerp_(mean.to(running_mean.dtype), momentum)
            running_var.lerp_(variance.to(running_var.dtype), momentum)
    return y


def instance_norm(input, running_mean=None, running_var=None, weight=None, bias=None, use_input_stats=True, momentum=0.1,
                  eps=1e-5):
    """F.instance_norm of the input's own statistics."""
    if not use_input_stats or running_mean is not None:
        raise NotImplementedError("instance_norm with running statistics")
    return _norm(_autocast_wide(input), "instance", weight, bias, eps)[0]


# ---- softmax, activations, pooling, losses ----


def _softmax(x, dim, **fields):
    if x.dim() == 0:  # a number has no axis
        return _call("softmax", x=x.reshape(1), axis=0, **fields)[0].reshape(())
    return _call("softmax", x=x, axis=dim, **fields)[0]


def softmax(input, dim, dtype=None):
    """F.softmax."""
    x = input.to(dtype) if dtype is not None else _autocast_wide(input)
    return _softmax(x, dim)


def log_softmax(input, dim, dtype=None):
    """F.log_softmax."""
    x = input.to(dtype) if dtype is not None else _autocast_wide(input)
    return _softmax(x, dim, log=True)


def activation(input, act, a=None, b=None):
    """One of the library's functions: "relu", "gelu", "silu", ... (help(mica.activation) lists them)."""
    return _call("activation", x=input, act=act, act_a=a, act_b=b)[0]


def _pool_fields(x, kernel_size, stride, padding, dilation, ceil_mode):
    rank = x.dim() - 2
    window = _axes(kernel_size, rank)
    stride = window if stride is None or stride == [] else _axes(stride, rank)
    return {"window": window, "stride": stride, "pad": _given(_axes(padding, rank), 0),
            "dilation": _given(_axes(dilation, rank), 1), "ceil": ceil_mode or None}


def max_pool(input, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False):
    """F.max_pool1d, 2d and 3d of batches."""
    y, indices = _call("pool", x=input, described={"indices": "s64"},
                       **_pool_fields(input, kernel_size, stride, padding, dilation, ceil_mode))
    return (y, indices) if return_indices else y


def avg_pool(input, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True, divisor_override=None):
    """F.avg_pool1d, 2d and 3d of batches."""
    return _call("pool", x=input, mode="avg" if count_include_pad else "avg_valid", divisor=divisor_override,
                 **_pool_fields(input, kernel_size, stride, padding, 1, ceil_mode))[0]


def lp_pool(input, norm_type, kernel_size, stride=None, ceil_mode=False):
    """F.lp_pool1d, 2d and 3d of batches: sums of powers of x, so that odd ones of negative numbers cancel. Powers that are no
    whole numbers are those of |x|, and gradients 0, where PyTorch has NaN."""
    whole = float(norm_type).is_integer()
    return _call("pool", x=input, mode="lp", p=float(norm_type), signed_powers=whole or None, rescale=ceil_mode or None,
                 **_pool_fields(input, kernel_size, stride, 0, 1, ceil_mode))[0]


def max_unpool(input, indices, kernel_size, stride=None, padding=0, output_size=None):
    """F.max_unpool1d, 2d and 3d of batches. Of equal indices the last one's value stays, on every device and in each run;
    indices outside are left out."""
    rank = input.dim() - 2
    window = _axes(kernel_size, rank)
    stride = window if stride is None or stride == [] else _axes(stride, rank)
    sizes = [(n - 1) * s - 2 * p + w for n, s, p, w in zip(input.shape[2:], stride, _axes(padding, rank), window)]
    if output_size is not None:
        sizes = [int(n) for n in output_size][-rank:]
    from ._library import _OURS

    y = ":".join((_OURS[input.dtype], "x".join(map(str, (*input.shape[:2], *sizes)))))
    return _call("max_unpool", x=input, indices=indices, described={"y": y})[0]


def fractional_max_pool(input, kernel_size, output_size=None, output_ratio=None, return_indices=False, _random_samples=None):
    """F.fractional_max_pool2d and 3d of batches, and one of 1 axis. Samples are in PyTorch's order; without them they are drawn
    as PyTorch draws them."""
    from ._library import _OURS

    rank = input.dim() - 2
    if (output_size is None) == (output_ratio is None):
        raise ValueError("either output_size or output_ratio")
    if output_size is None:
        ratio = [output_ratio] * rank if isinstance(output_ratio, float) else list(output_ratio)
        output_size = [int(n * r) for n, r in zip(input.shape[2:], ratio)]
    sizes, samples = _axes(output_size, rank), _random_samples
    if samples is None:
        samples = torch.rand(*input.shape[:2], rank, dtype=input.dtype, device=input.device)
    if rank == 2:
        samples = samples.flip(-1)
    y = ":".join((_OURS[input.dtype], "x".join(map(str, (*input.shape[:2], *sizes)))))
    y, indices = _call("pool", x=input, samples=samples, window=_axes(kernel_size, rank), described={"y": y, "indices": "s64"})
    return (y, indices) if return_indices else y


def adaptive_avg_pool(input, output_size):
    """F.adaptive_avg_pool1d, 2d and 3d of batches."""
    rank = input.dim() - 2
    sizes = [output_size] * rank if not isinstance(output_size, (list, tuple)) else list(output_size)
    sizes = [input.shape[2 + i] if n is None else n for i, n in enumerate(sizes)]
    if sizes == [1] * rank:
        return _call("pool", x=input, mode="avg")[0]
    from ._library import _OURS

    shape = "x".join(str(int(n)) for n in (*input.shape[:2], *sizes))
    return _call("pool", x=input, mode="avg", adaptive=True, described={"y": f"{_OURS[input.dtype]}:{shape}"})[0]


_MODES = {"nearest": ("nearest", 0), "nearest-exact": ("nearest", 0), "linear": ("linear", 1), "bilinear": ("linear", 2),
          "trilinear": ("linear", 3), "bicubic": ("cubic", 2), "area": ("area", 0)}


def interpolate(input, size=None, scale_factor=None, mode="nearest", align_corners=None, recompute_scale_factor=None,
                antialias=False):
    """F.interpolate. The weights are those of f64, rounded once, and elements whose weight is 0 are not read. A scale that leaves
    a size as it is enters the coordinates, too: PyTorch copies in some modes and numbers of dimensions."""
    rank = input.dim() - 2
    ours, axes = _MODES[mode]
    if axes and axes != rank:
        raise ValueError(f"mode={mode!r} is of {axes + 2} dimensions, the input has {input.dim()}")
    if (size is None) == (scale_factor is None):
        raise ValueError("either size or scale_factor")
    if align_corners is not None and not axes:
        raise ValueError(f"align_corners is given, mode={mode!r} has no corners")
    if antialias and align_corners:
        raise NotImplementedError("antialias with align_corners: PyTorch's coordinates do not meet the corners")
    fields = {"mode": ours, "antialias": antialias or None}
    if align_corners:
        fields["coordinates"] = "align_corners"
    if ours == "nearest":
        exact = mode == "nearest-exact"
        fields.update({"nearest": "round_prefer_ceil"} if exact else {"nearest": "floor", "coordinates": "asymmetric"})
    if scale_factor is not None:
        factors = [float(f) for f in (scale_factor if isinstance(scale_factor, (list, tuple)) else [scale_factor] * rank)]
        size = [int(math.floor(float(n) * f)) for n, f in zip(input.shape[2:], factors)]
        if not recompute_scale_factor and ours != "area" and not align_corners:
            fields.update(zip(("scale_d", "scale_h", "scale_w")[3 - rank:], factors))
    elif not isinstance(size, (list, tuple)):
        size = [size] * rank
    from ._library import _OURS

    shape = "x".join(str(int(n)) for n in (*input.shape[:2], *size))
    order = ""
    if rank > 1 and not input.is_contiguous() and input.is_contiguous(
            memory_format=torch.channels_last if rank == 2 else torch.channels_last_3d):
        order = ":nhwc" if rank == 2 else ":ndhwc"
    return _call("resize", x=input, described={"y": f"{_OURS[input.dtype]}:{shape}{order}"}, **fields)[0]


def _windows(kernel_size, dilation, padding, stride):
    asked = {"kernel": kernel_size, "dilation": dilation, "pad": padding, "stride": stride}
    return {n: list(v) if isinstance(v, (list, tuple)) else [v] * 2 for n, v in asked.items()}


def unfold(input, kernel_size, dilation=1, padding=0, stride=1):
    """F.unfold, of images with a batch or without."""
    lone = input.dim() == 3
    fields = _windows(kernel_size, dilation, padding, stride)
    y = _call("im2col", x=input.unsqueeze(0) if lone else input, **fields)[0]
    return y.squeeze(0) if lone else y


def fold(input, output_size, kernel_size, dilation=1, padding=0, stride=1):
    """F.fold, of columns with a batch or without. The sums of a 16-bit type are rounded once."""
    from ._library import _OURS

    if input.dim() not in (2, 3):
        raise ValueError(f"the input has {input.dim()} dimensions, columns have 2, with a batch 3")
    lone = input.dim() == 2
    fields = _windows(kernel_size, dilation, padding, stride)
    size = output_size if isinstance(output_size, (list, tuple)) else [output_size] * 2
    dy = input.unsqueeze(0) if lone else input
    window = math.prod(fields["kernel"])
    if window < 1 or dy.shape[1] % window:
        raise ValueError(f"the input has {dy.shape[1]} rows, no multiple of the {window} elements of a window")
    dx = f"{_OURS[input.dtype]}:{'x'.join(str(int(n)) for n in (dy.shape[0], dy.shape[1] // window, *size))}"
    x = _call("im2col", dy=dy, pass_="bwd", described={"dx": dx}, **fields)[0]
    return x.squeeze(0) if lone else x


def local_response_norm(input, size, alpha=1e-4, beta=0.75, k=1.0):
    """F.local_response_norm of batches with channels."""
    if input.dim() < 3:
        raise ValueError(f"the input has {input.dim()} dimensions, at least 3 are needed")
    return _call("lrn", x=input, size=size, alpha=alpha, beta=beta, k=k, extra="before")[0]


def _entropy(x, target, weight, reduction, **fields):
    """Of x without a batch too, whose only row is one of a batch."""
    dtype, device, lone = x.dtype, x.device.type, x.dim() == 1
    x, goal = (t.unsqueeze(0) if lone else t for t in (_autocast_wide(x), target))
    goal = {"target": goal, "targets": "probabilities"} if target.is_floating_point() else {"labels": goal}
    loss, = _call("cross_entropy", x=x, weight=weight, reduction=reduction, **goal, **fields)
    loss = loss if torch.is_autocast_enabled(device) else loss.to(dtype)
    return loss.reshape(()) if lone or reduction != "none" else loss


def cross_entropy(input, target, weight=None, ignore_index=-100, reduction="mean", label_smoothing=0.0):
    """F.cross_entropy, of class numbers or of probabilities."""
    if not target.is_floating_point():
        ignored = {"ignore": True, "ignore_index": ignore_index}
    elif ignore_index >= 0:
        raise ValueError(f"cross_entropy: ignore_index={ignore_index} is for class numbers, the target has probabilities")
    else:
        ignored = {}
    return _entropy(input, target, weight, reduction, smoothing=label_smoothing or None, **ignored)


def nll_loss(input, target, weight=None, ignore_index=-100, reduction="mean"):
    """F.nll_loss."""
    return _entropy(input, target, weight, reduction, input="log_probs", ignore=True, ignore_index=ignore_index)


def ctc_loss(log_probs, targets, input_lengths, target_lengths, blank=0, reduction="mean", zero_infinity=False):
    """F.ctc_loss. Labels and lengths are not looked at: what is out of range makes its sequence's loss NaN."""
    dtype, device, lone = log_probs.dtype, log_probs.device, log_probs.dim() == 2
    x = _autocast_wide(log_probs)
    x, labels = (x.unsqueeze(1), targets.reshape(1, -1)) if lone else (x, targets)
    steps, counts = (torch.as_tensor(n, device=device).reshape(-1) for n in (input_lengths, target_lengths))
    loss, = _call("ctc_loss", x=x, labels=labels, label_lengths=counts, input_lengths=steps, input="log_probs", blank=blank,
                  reduction=reduction, zero_infinity=zero_infinity)
    loss = loss if torch.is_autocast_enabled(device.type) else loss.to(dtype)
    return loss.reshape(()) if lone or reduction != "none" else loss


# ---- recurrent nets ----


def _recurrent(cell, input, weights, hx, cx, lengths, bias, **fields):
    """y, hy, and cy of an lstm. input: steps x sequences x inputs; weights: of each layer and direction w_ih, w_hh, with
    bias b_ih, b_hh, and with projection w_hr, as nn.LSTM has them; each call puts them into one buffer. Dropout draws
    from PyTorch's generator, by the library's own random numbers: not the same elements as PyTorch drops."""
    from ._library import _OURS

    each = 2 + 2 * bool(bias) + bool(fields.get("projection"))
    vectors = (2, 3) if bias else ()
    matrices, biases = ([w for i, w in enumerate(weights) if (i % each in vectors) == second] for second in (False, True))
    flat = torch.cat([w.reshape(-1) for w in (*matrices, *biases)])
    states = {n: t for n, t in (("hx", hx), ("cx", cx)) if t is not None}
    tensors = (input, flat, *states.values())
    input, flat, *begins = _autocast(*tensors)
    wants = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
    dtype, kept = _OURS[input.dtype], {"lstm": ("gates", "cells"), "gru": ("gates",)}.get(cell, ())
    described = dict.fromkeys(("hy", "cy") if cell == "lstm" else ("hy",), dtype)
    if wants:
        described |= {**dict.fromkeys(kept, _stat(input)), "states": dtype}
        if fields.get("projection"):
            described["inner"] = dtype
    if lengths is not None:
        states["lengths"] = lengths
    states |= zip(states, begins)
    if fields.get("dropout") and fields.get("layers", 1) > 1:
        states["rng"] = torch.stack([torch.randint(2**62, (), device=input.device),
                                     torch.zeros((), dtype=torch.int64, device=input.device)])
    return _call("rnn", x=input, w=flat, cell=cell, bias=None if bias else "none", described=described, **states,
                 **{n: v for n, v in fields.items() if v})[:3 if cell == "lstm" else 2]


# ---- embedding ----


def embedding(input, weight, padding_idx=None, max_norm=None, norm_type=2.0, scale_grad_by_freq=False, sparse=False):
    """F.embedding. An index outside of the table has a row of zeros, and no part in the gradient; PyTorch raises."""
    for name, value in (("max_norm", max_norm), ("scale_grad_by_freq", scale_grad_by_freq), ("sparse", sparse)):
        if value:
            raise NotImplementedError(f"embedding with {name}")
    padding = {} if padding_idx is None else {"padding": True, "padding_idx": padding_idx % weight.shape[0]}
    return _call("gather", x=weight, index=input, **padding)[0]


# ---- attention ----


def scaled_dot_product_attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None,
                                 enable_gqa=False):
    """F.scaled_dot_product_attention. Any leading dimensions; a mask of bool or numbers, broadcast. Dropout draws
    from PyTorch's generator, by the library's own random numbers: not the same elements as PyTorch drops."""
    if attn_mask is not None and is_causal:
        raise ValueError("scaled_dot_product_attention: attn_mask and is_causal exclude each other")
    if not enable_gqa and query.dim() > 2 and query.shape[-3] != key.shape[-3]:
        raise ValueError(f"{query.shape[-3]} heads of the query and {key.shape[-3]} of the key without enable_gqa")
    query, key, value = _autocast(query, key, value)
    lead = query.shape[:-3]

    def four(t):
        if t.dim() == 4:
            return t
        return t.reshape(-1, *t.shape[-3:]) if t.dim() > 4 else t.reshape((1,) * (4 - t.dim()) + tuple(t.shape))

    q, k, v = four(query), four(key), four(value)
    mask = bias = rng = None
    if attn_mask is not None:
        m = four(attn_mask.expand(*lead, *attn_mask.shape[-3:]) if attn_mask.dim() > 4 else attn_mask)
        mask, bias = (m, None) if m.dtype == torch.bool else (None, m)
    if dropout_p:
        rng = torch.stack([torch.randint(2**62, (), device=q.device), torch.zeros((), dtype=torch.int64, device=q.device)])
    out, _ = _call("attention", q=q, k=k, v=v, mask=mask, bias=bias, rng=rng, scale=scale, dropout=dropout_p or None,
                   causal="top_left" if is_causal else None, described={"lse": _stat(q)})
    return out.reshape(*query.shape[:-1], value.shape[-1])


def rope(q, k=None, positions=None, pairing="half", theta=10000.0, rotary_dim=None, cos=None, sin=None):
    """Rotary position embedding of q and k, B x H x S x D each."""
    found = _call("rope", q=q, k=k, positions=positions, pairing=pairing, theta=theta, rotary_dim=rotary_dim, cos=cos, sin=sin)
    return found[0] if k is None else tuple(found)
