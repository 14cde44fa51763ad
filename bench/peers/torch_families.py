# SPDX-License-Identifier: Apache-2.0
"""PyTorch's equivalents of reductions, expressions, losses, softmax's variants, random numbers and numbers in few bits.
Each takes a line's fields and its tensors by name, puts into the inputs what the operation is defined for, and gives a
callable. That gives its results by the names of mica's, so that both can be compared; Drawn are those that are random."""

import math

import torch
import torch.nn.functional as F

from torch_expressions import translate

E8M0 = getattr(torch, "float8_e8m0fnu", None)
SMALL = (torch.float8_e4m3fn, torch.float8_e5m2)


class Drawn:
    """Random numbers: another generator's agree in their distribution."""

    def __init__(self, tensor):
        self.tensor = tensor


def numbers(fields, name, separator):
    return [int(v) for v in fields[name].split(separator)] if name in fields else []


def positive(tensor):
    """Inputs become positive, in place."""
    tensor.copy_(tensor.float().abs() + 0.1)


def typed(value, like):
    return value if value.dtype == like.dtype else value.to(like.dtype)


def placed(value, target):
    """With the type and the strides that are asked for: no view of an input, no other order in memory."""
    if value.dtype != target.dtype or value.stride() != target.stride():
        return target.copy_(value)
    return value


def refuse(fields, *names):
    foreign = sorted(set(names) & set(fields))
    if foreign:
        raise NotImplementedError(", ".join(foreign))


# ---- expressions ----

FILLS = [lambda v: v, lambda v: v.abs() + 0.1, torch.sigmoid, lambda v: v.abs() + 1.1, lambda v: -v.abs() - 0.1]


def choose_fill(evaluate, inputs):
    """The first fill by which the fewest of some thousand values are no numbers; it is put into the inputs in place."""
    def misses(fill):
        sample = {name: typed(fill(torch.randn(4096, device=t.device)), t) if t.is_floating_point()
                  else torch.randint(0, 2, (4096,), device=t.device).to(t.dtype) for name, t in inputs.items()}
        return sum(int((~torch.isfinite(v.double())).sum()) for v in evaluate(sample))
    best = min(range(len(FILLS)), key=lambda i: (misses(FILLS[i]), i))
    for t in inputs.values():
        if t.is_floating_point() and best:
            t.copy_(FILLS[best](t.float()))


def operands(fields, t, evaluate_names, result):
    """Values by name: tensors, scalars, places along the dimensions of the results."""
    values = {}
    for name in evaluate_names:
        if name[0] == "s":
            values[name] = 1.0
        elif name[0] == "i":
            d = int(name[1:])
            places = torch.arange(result.shape[d], device=result.device)
            values[name] = places.view([-1] + [1] * (result.dim() - 1 - d))
        else:
            values[name] = t[name]
    return values


def compiled(call):
    """Anew for each line: PyTorch gives up compiling one that it has seen in too many forms."""
    torch._dynamo.reset()
    return torch.compile(call, dynamic=False)


def pointwise(fields, t, compile_it=False):
    names, evaluate = translate(fields["expr"])
    results = sorted(n for n in t if n[0] == ("d" if fields.get("pass") == "bwd" else "y") and n[:2] != "dx")
    inputs = {n: t[n] for n in names if n in t}
    plain = {n: 1.0 for n in names if n[0] == "s"}
    if not any(n[0] == "i" for n in names):
        choose_fill(lambda sample: evaluate(**(plain | sample)), inputs)
    values = operands(fields, t, names, t[results[0]])
    if compile_it:
        evaluate = compiled(evaluate)
    if fields.get("pass") != "bwd":
        targets = [t[n] for n in results]
        return lambda: dict(zip(results, map(placed, evaluate(**values), targets)))
    wanted = sorted(n for n in t if n[:2] == "dx")
    leaves = {n: t[n[1:]].detach().requires_grad_() for n in wanted}
    if compile_it:
        import torch._functorch.config as functorch
        functorch.donated_buffer = False
    with torch.enable_grad():
        made = evaluate(**(values | {n[1:]: v for n, v in leaves.items()}))
    upstream = [typed(t[n], y).expand_as(y) for n, y in zip(results, made)]

    def gradients():
        found = torch.autograd.grad(made, list(leaves.values()), upstream, retain_graph=True, allow_unused=True)
        return {n: v for n, v in zip(wanted, found) if v is not None}
    return gradients


# ---- reductions ----

def one_axis(axes, rank):
    if len(axes) > 1 and len(axes) != rank:
        raise NotImplementedError("positions and products over some of the dimensions")
    return axes[0] if len(axes) == 1 else None


def reduction(kind, x, axes, keep, correction, p):
    every = axes or list(range(x.dim()))
    if kind in ("sum", "mean"):
        return lambda x: getattr(torch, kind)(x, every, keep)
    if kind in ("max", "min"):
        return lambda x: (torch.amax if kind == "max" else torch.amin)(x, every, keep)
    if kind in ("amax", "norm1", "norm2", "norm"):
        order = {"amax": math.inf, "norm1": 1, "norm2": 2, "norm": p}[kind]
        return lambda x: torch.linalg.vector_norm(x, order, every, keep)
    if kind in ("any", "all"):
        return lambda x: getattr(torch, kind)(x, every, keep)
    if kind == "count":
        return lambda x: torch.count_nonzero(x, every)
    if kind == "logsumexp":
        return lambda x: torch.logsumexp(x, every, keep)
    if kind in ("var", "std"):
        return lambda x: getattr(torch, kind)(x, every, correction=correction, keepdim=keep)
    axis = one_axis(axes, x.dim())
    if kind == "prod":
        return lambda x: torch.prod(x) if axis is None else torch.prod(x, axis, keep)
    return lambda x: getattr(torch, kind)(x, axis, keep)


def reduce(fields, t):
    kind, x, backward = fields.get("kind", "sum"), t["x"], fields.get("pass") == "bwd"
    call = reduction(kind, x, numbers(fields, "axes", ","), fields.get("keepdims") == "1",
                     float(fields.get("correction", 0)), float(fields.get("p", 2)))
    if kind == "prod" and x.is_floating_point():
        x.copy_(1 + x.float() / 4096)  # neither 0 nor infinity at the end
    if "map" in fields:
        names, evaluate = translate(fields["map"])
        values = {n: x if n == "x0" else t[n] for n in names}
        return lambda: {"y": typed(call(evaluate(**values)[0]), t["y"])}
    if backward:
        leaf = x.detach().requires_grad_()
        with torch.enable_grad():
            y = call(leaf)
        dy = typed(t["dy"], y).view_as(y)
        return lambda: {"dx": torch.autograd.grad(y, leaf, dy, retain_graph=True)[0]}
    if x.dtype in SMALL:
        return lambda: {"y": typed(call(x.float()), t["y"])}
    return lambda: {"y": typed(call(x), t["y"])}


# ---- losses ----

def probabilities(tensor):
    tensor.copy_(torch.sigmoid(tensor.float()))


def signs(tensor):
    tensor.copy_(torch.randint(0, 2, tensor.shape, device=tensor.device) * 2 - 1)


def log_probabilities(tensor):
    tensor.copy_(torch.log_softmax(tensor.float(), -1))


# Which inputs hold what.
DOMAINS = {"bce": {"x": probabilities, "target": probabilities}, "bce_logits": {"target": probabilities},
           "kl_div": {"x": log_probabilities, "target": probabilities}, "hinge_embedding": {"target": signs},
           "margin_ranking": {"target": signs}, "soft_margin": {"target": signs}, "poisson_nll": {"target": positive},
           "gaussian_nll": {"other": positive}, "multilabel_soft_margin": {"target": probabilities},
           "cosine_embedding": {"target": signs}}


def classes(target, x, whole):
    """Labels of rows; of lists a third of their length, which -1 ends."""
    target.copy_(torch.randint(0, x.shape[-1], target.shape, device=target.device))
    if not whole:
        target[..., (x.shape[-1] + 2) // 3:] = -1


def loss_call(kind, fields, t):
    options = {"reduction": fields.get("reduction", "mean")}
    margin, weight, target, other = float(fields.get("margin", 0)), t.get("weight"), t["target"], t.get("other")
    eps, full = float(fields.get("eps", 1e-8 if kind == "poisson_nll" else 1e-6)), fields.get("full") == "1"
    beta = float(fields.get("beta", 1))
    if kind in ("mse", "l1", "smooth_l1", "hinge_embedding", "margin_ranking", "soft_margin", "cosine_embedding"):
        refuse(fields, "weight")
    weights = {} if weight is None else {"weight": weight}
    table = {
        "mse": lambda x: F.mse_loss(x, target, **options), "l1": lambda x: F.l1_loss(x, target, **options),
        "smooth_l1": lambda x: F.smooth_l1_loss(x, target, beta=beta, **options),
        "huber": lambda x: F.huber_loss(x, target, delta=beta, **weights, **options),
        "bce": lambda x: F.binary_cross_entropy(x, target, **weights, **options),
        "bce_logits": lambda x: F.binary_cross_entropy_with_logits(x, target, pos_weight=t.get("pos_weight"), **weights,
                                                                   **options),
        "kl_div": lambda x: F.kl_div(x, target, log_target=fields.get("log_target") == "1", **options),
        "hinge_embedding": lambda x: F.hinge_embedding_loss(x, target, margin=margin or 1.0, **options),
        "margin_ranking": lambda x: F.margin_ranking_loss(x, other, target, margin=margin, **options),
        "soft_margin": lambda x: F.soft_margin_loss(x, target, **options),
        "poisson_nll": lambda x: F.poisson_nll_loss(x, target, log_input=fields.get("rates") != "1", full=full, eps=eps,
                                                    **options),
        "gaussian_nll": lambda x: F.gaussian_nll_loss(x, target, other, full=full, eps=eps, **options),
        "multilabel_soft_margin": lambda x: F.multilabel_soft_margin_loss(x, target, **weights, **options),
        "cosine_embedding": lambda x: F.cosine_embedding_loss(x, other, target, margin=margin, **options),
        "triplet_margin": lambda x: F.triplet_margin_loss(x, target, other, margin=margin or 1.0,
                                                          p=float(fields.get("p", 2)), eps=eps,
                                                          swap=fields.get("swap") == "1", **options),
        "multi_margin": lambda x: F.multi_margin_loss(x, target, p=int(fields.get("p", 1)), margin=margin or 1.0, **weights,
                                                      **options),
        "multilabel_margin": lambda x: F.multilabel_margin_loss(x, target, **options)}
    return table[kind]


def loss(fields, t):
    kind = fields.get("kind", "mse")
    refuse(fields, "dtarget", "dother")
    for name, fill in DOMAINS.get(kind, {}).items():
        fill(t[name])
    if kind in ("multi_margin", "multilabel_margin"):
        classes(t["target"], t["x"], kind == "multi_margin")
    if kind == "multilabel_margin":
        refuse(fields, "p", "margin")
    if fields.get("rates") == "1":
        positive(t["x"])
    if fields.get("log_target") == "1":
        log_probabilities(t["target"])
    call = loss_call(kind, fields, t)
    if fields.get("pass") != "bwd":
        return lambda: {"y": call(t["x"])}
    x = t["x"].detach().requires_grad_()
    with torch.enable_grad():
        y = call(x)
    dy = typed(t["dy"], y).view_as(y)
    return lambda: {"dx": torch.autograd.grad(y, x, dy, retain_graph=True)[0]}


# ---- softmax ----

def ctc_loss(fields, t):
    """Of logits with the log softmax and its gradient; backward keeps what forward has found."""
    refuse(fields, "gradient")
    x, labels, reduction = t["x"], t["labels"], fields.get("reduction", "mean")
    blank, zero = int(fields.get("blank", 0)), fields.get("zero_infinity") == "1"
    logits = fields.get("input") != "log_probs"
    steps, batch, classes = x.shape
    most = labels.shape[1] if labels.dim() == 2 else labels.numel() // batch
    counts, lengths = [most] * batch, [steps] * batch
    labels.copy_((blank + 1 + torch.randint(0, classes - 1, labels.shape, device=x.device)) % classes)
    for name, values in (("label_lengths", counts), ("input_lengths", lengths)):
        if name in t:
            t[name].copy_(torch.tensor(values))
    of_probs = (lambda v: v.log_softmax(2)) if logits else (lambda v: v)
    if fields.get("pass") != "bwd":
        return lambda: {"loss": F.ctc_loss(of_probs(x), labels, lengths, counts, blank, reduction, zero)}
    log_probs = of_probs(x)
    losses, alphas = torch.ops.aten._ctc_loss(log_probs, labels, lengths, counts, blank, zero)
    share = {"mean": 1 / (batch * max(most, 1)), "sum": 1, "none": 1}[reduction]

    def backward():
        dloss = (t["dloss"].to(x.dtype) * share).expand(batch)
        dx = torch.ops.aten._ctc_loss_backward(dloss, log_probs, labels, lengths, counts, losses, alphas, blank, zero)
        return {"dx": torch.ops.aten._log_softmax_backward_data(dx, log_probs, 2, x.dtype) if logits else dx}
    return backward


def sparsemax(z, axis):
    """As its authors' code has it: by sorting."""
    ordered = z.sort(axis, descending=True).values
    places = torch.arange(1, z.shape[axis] + 1, device=z.device, dtype=z.dtype)
    places = places.view([-1] + [1] * (z.dim() - 1 - axis % z.dim()))
    sums = ordered.cumsum(axis) - 1
    count = (ordered * places > sums).sum(axis, keepdim=True)
    return torch.clamp(z - sums.gather(axis, count - 1) / count, min=0)


def softmax_of(fields, t):
    kind, log, axis = fields.get("kind", "softmax"), fields.get("log") == "1", int(fields.get("axis", 0))
    scale, tau, mask = float(fields.get("scale", 1)), float(fields.get("tau", 1)), t.get("mask")

    def logits(x):
        z = x * scale if scale != 1 else x
        if mask is None:
            return z
        return z + mask if mask.is_floating_point() else z.masked_fill(mask == 0, -math.inf)
    if kind == "gumbel":
        return lambda x: F.gumbel_softmax(logits(x), tau, fields.get("hard") == "1", dim=axis)
    if kind == "sparsemax":
        return lambda x: sparsemax(logits(x).float(), axis).to(x.dtype)
    return lambda x: (torch.log_softmax if log else torch.softmax)(logits(x), axis)


def softmax(fields, t):
    kind, log, axis = fields.get("kind", "softmax"), fields.get("log") == "1", int(fields.get("axis", 0))
    if fields.get("pass") != "bwd":
        call = softmax_of(fields, t)
        if kind == "gumbel":
            return lambda: {"y": Drawn(call(t["x"]))}
        return lambda: {"y": typed(call(t["x"]), t["y"])}
    refuse(fields, "mask", "scale", "tau", "hard")
    if kind == "sparsemax":
        def gradient():
            dy = t["dy"].float()
            there = t["y"] > 0
            mean = (dy * there).sum(axis, keepdim=True) / there.sum(axis, keepdim=True)
            return {"dx": torch.where(there, dy - mean, 0).to(t["dy"].dtype)}
        t["y"].copy_(sparsemax(t["y"].float() * 4, axis))
        return gradient
    y = torch.log_softmax(t["y"].float(), axis) if log else torch.softmax(t["y"].float(), axis)
    t["y"].copy_(y)
    call = torch.ops.aten._log_softmax_backward_data if log else torch.ops.aten._softmax_backward_data
    return lambda: {"dx": call(t["dy"], t["y"], axis, t["y"].dtype)}


# ---- random numbers, dropout ----

def random(fields, t):
    kind, y = fields.get("kind", "bits"), t["y"]
    number = lambda name, default: float(fields.get(name, default))
    low, high = number("low", 0), number("high", 1)
    refuse(fields, "n", "steps")
    calls = {"uniform": lambda: y.uniform_(low, high), "normal": lambda: y.normal_(number("mean", 0), number("std", 1)),
             "exponential": lambda: y.exponential_(number("rate", 1)), "bernoulli": lambda: y.bernoulli_(number("p", 0.5)),
             "integers": lambda: y.random_(int(fields.get("from", 0)), int(fields.get("to", 0))),
             "permutation": lambda: torch.randperm(y.numel(), device=y.device, dtype=y.dtype),
             "truncated_normal": lambda: torch.nn.init.trunc_normal_(y, number("mean", 0), number("std", 1),
                                                                     number("low", -2), number("high", 2))}
    if kind == "bits":
        if y.dtype != torch.uint8:
            raise NotImplementedError("random bits of other types than u8")
        return lambda: {"y": Drawn(y.random_(0, 256))}
    return lambda: {"y": Drawn(calls[kind]())}


def dropout(fields, t):
    p = float(fields.get("p", 0.5))
    if fields.get("pass") == "bwd":
        refuse(fields, "bits", "steps")
        drawn = "mask" not in t
        mask = torch.rand(t["dy"].shape, device=t["dy"].device) >= p
        if not drawn:
            t["mask"].copy_(mask)

        def gradient():
            dx = torch.ops.aten.native_dropout_backward(t["dy"], mask, 1 / (1 - p))
            return {"dx": Drawn(dx) if drawn else dx}
        return gradient
    x = t["x"]
    if "steps" in fields:
        if numbers(fields, "steps", "x")[2:] != [0] * (x.dim() - 2):
            raise NotImplementedError("steps that PyTorch has not")
        return lambda: {"y": Drawn(F.dropout2d(x, p))}
    if "mask" in t:
        return lambda: dict(zip(("y", "mask"), map(Drawn, torch.native_dropout(x, p, True))))
    if "residual" in t:
        return lambda: {"y": Drawn(t["residual"] + F.dropout(x, p))}
    return lambda: {"y": Drawn(F.dropout(x, p))}


# ---- numbers in few bits ----

TOPS = {"e4m3": 448, "e5m2": 57344, "e2m1": 6, "s8": 127, "u8": 255, "s4": 7, "u4": 15}
RANGES = {"s8": (-128, 127), "u8": (0, 255), "s4": (-8, 7), "u4": (0, 15)}
E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6]


def blocks(dims, scales):
    """The shape in which each dimension is two: blocks, and what is in one."""
    if len(scales) != len(dims):
        if math.prod(scales) != 1:
            raise NotImplementedError("scales of another rank")
        scales = [1] * len(dims)
    if any(n % b for n, b in zip(dims, scales)):
        raise NotImplementedError("blocks that do not divide a dimension")
    return [v for n, b in zip(dims, scales) for v in (b, n // b)], [v for b in scales for v in (b, 1)]


def power_of_two(codes):
    """What a scale of e8m0 is, from its byte."""
    return (codes.view(torch.uint8).int() << 23).view(torch.float32)


def scale_values(t):
    scale = t["scale"]
    value = power_of_two(scale) if scale.dtype == E8M0 else scale.float()
    return value * t["global_scale"] if "global_scale" in t else value


def pack(codes):
    """Two to a byte, the first in the low half."""
    return codes[..., ::2] | (codes[..., 1::2] << 4)


def unpack(data):
    return torch.stack((data & 15, data >> 4), -1).flatten(-2)


def encode(v, kind, zero):
    """Rounded, saturated, as stored."""
    if kind in ("e4m3", "e5m2"):
        return v.clamp(-TOPS[kind], TOPS[kind]).to(SMALL[kind == "e5m2"])
    if kind == "e2m1":
        middles = torch.tensor([(a + b) / 2 for a, b in zip(E2M1, E2M1[1:])], device=v.device)
        middles[1::2] = torch.nextafter(middles[1::2], torch.zeros_like(middles[1::2]))  # those go up, to even codes
        return pack(torch.bucketize(v.abs(), middles).to(torch.uint8) | (torch.signbit(v).to(torch.uint8) << 3))
    low, high = RANGES[kind]
    v = torch.round(v)
    v = (v if zero is None else v + zero).clamp(low, high)
    if kind in ("s8", "u8"):
        return v.to(torch.int8 if kind == "s8" else torch.uint8)
    return pack(v.to(torch.int8).view(torch.uint8) & 15)


def quantize(fields, t):
    refuse(fields, "rounding")
    x, kind, mode = t["x"], fields["y"].split(":")[0], fields.get("pass", "given")
    dims = list(x.shape)
    shape, narrow = blocks(dims, list(t["scale"].shape))
    inside = list(range(1, len(shape), 2))
    scale_type = t["scale"].dtype
    if "global_scale" in t:
        t["global_scale"].fill_(0.01)
    if mode == "given" and scale_type != E8M0:
        positive(t["scale"])
    # Tensors: PyTorch multiplies by the reciprocal of a number.
    top = torch.tensor(float(TOPS[kind]), device=x.device)
    if mode == "minmax" and kind not in RANGES:
        raise NotImplementedError("minmax of floats")
    width = torch.tensor(float(RANGES[kind][1] - RANGES[kind][0]) if kind in RANGES else 0, device=x.device)

    if "zero" in t and kind in ("s4", "u4"):
        refuse(fields, "zero")  # of half a byte each

    def given():
        zero = t["zero"].float().view(narrow).expand(shape).reshape(dims) if "zero" in t else None
        return {"y": encode((x.float().view(shape) / scale_values(t).view(narrow)).view(dims), kind, zero)}

    def amax():
        most = x.view(shape).abs().amax(inside, True).float()
        if scale_type == E8M0:
            power = torch.floor(torch.log2(most)) - math.floor(math.log2(TOPS[kind]))
            codes = (power + 127).clamp(0, 254).to(torch.uint8)
            scale = codes.view(E8M0)
            value = torch.exp2(codes.float() - 127)
        else:
            scale = most / top
            if "global_scale" in t:
                scale = scale / t["global_scale"]
            scale = scale.clamp(max=448).to(scale_type) if scale_type in SMALL else scale.to(scale_type)
            value = scale.float() * t["global_scale"] if "global_scale" in t else scale.float()
        y = encode((x.float().view(shape) / value).view(dims), kind, None)
        return {"y": y, "scale": scale.view(t["scale"].shape)}

    def minmax():
        low, high = x.view(shape).amin(inside, True).float(), x.view(shape).amax(inside, True).float()
        low, high = low.clamp(max=0), high.clamp(min=0)
        scale = ((high - low) / width).to(scale_type)
        zero = (RANGES[kind][0] + torch.round(-low / scale.float())).clamp(*RANGES[kind]).view(t["scale"].shape)
        y = encode((x.float().view(shape) / scale.float()).view(dims), kind,
                   zero.view(narrow).expand(shape).reshape(dims))
        return {"y": y, "scale": scale.view(t["scale"].shape),
                "zero": encode(zero, kind, None).view(t["zero"].shape)}
    return {"given": given, "amax": amax, "minmax": minmax}[mode]


def fake_quantize(fields, t):
    """Of a tensor, and of a dimension's channels."""
    x, kind = t["x"], fields.get("type", "s8")
    if kind not in RANGES:
        raise NotImplementedError("types of floats")
    low, high = (int(fields.get(n, v)) for n, v in zip(("low", "high"), RANGES[kind]))
    positive(t["scale"])
    along = [d for d, n in enumerate(t["scale"].shape) if n > 1]
    if len(along) > 1 or "block" in fields and along and t["scale"].shape[along[0]] != x.shape[along[0]]:
        raise NotImplementedError("blocks")
    if "zero" in t:
        t["zero"].fill_(3)
    scale, zero = t["scale"].view(-1), torch.full([t["scale"].numel()], 3 if "zero" in t else 0, dtype=torch.int32, device=x.device)
    if fields.get("rule") != "product":
        scale.copy_(torch.exp2(torch.floor(torch.log2(scale))))  # whose reciprocals are exact
    leaf = x.detach().requires_grad_("dy" in t)

    def call():
        with torch.set_grad_enabled("dy" in t):
            if along:
                y = torch.fake_quantize_per_channel_affine(leaf, scale, zero, along[0], low, high)
            else:
                y = torch.fake_quantize_per_tensor_affine(leaf, scale, zero, low, high)
        return {"dx": torch.autograd.grad(y, leaf, t["dy"])[0]} if "dy" in t else {"y": y}
    return call


def code_values(kind, x):
    if kind == "e2m1":
        return torch.tensor(E2M1 + [-v for v in E2M1], device=x.device)[unpack(x).int()]
    if kind in ("s4", "u4"):
        codes = unpack(x).to(torch.int8)
        return (codes - ((codes & 8) << 1) if kind == "s4" else codes).float()
    return x.float()


def dequantize(fields, t):
    x, kind, y = t["x"], fields["x"].split(":")[0], t["y"]
    shape, narrow = blocks(list(y.shape), list(t["scale"].shape))
    if "global_scale" in t:
        t["global_scale"].fill_(0.01)
    if t["scale"].dtype == E8M0:
        t["scale"].view(torch.uint8).copy_(torch.randint(120, 134, t["scale"].shape, device=y.device))
    else:
        positive(t["scale"])

    def read():
        v = code_values(kind, x).view(shape)
        if "zero" in t:
            v = v - code_values(kind, t["zero"]).view(narrow)
        return {"y": (v * scale_values(t).view(narrow)).view(y.shape).to(y.dtype)}
    return read


# ---- mixtures of experts ----

def moe_route(fields, t):
    """As models write it: scores, topk of them or of the best groups, gather."""
    refuse(fields, "daux", "dz")
    x, k, scale = t["logits"], int(fields.get("k", 1)), float(fields.get("scale", 1))
    groups, sigmoid = int(fields.get("groups", 1)), fields.get("score") == "sigmoid"
    kept = int(fields.get("topk_groups", groups))
    renormalise = fields.get("renormalise", "0") == "1"

    def chosen(compared):
        if kept < groups:
            grouped = compared.view(len(x), groups, -1)
            two = fields.get("group_score", "sum2") == "sum2"
            worth = grouped.topk(2, -1).values.sum(-1) if two else grouped.amax(-1)
            mask = torch.zeros_like(worth).scatter(1, worth.topk(kept, -1, sorted=False).indices, 1).bool()
            compared = grouped.masked_fill(~mask[..., None], -math.inf).view(x.shape)
        return compared.topk(k, -1).indices

    def weighted(x, scores, indices):
        if renormalise and not sigmoid:
            return x.gather(1, indices).float().softmax(-1) * scale
        w = scores.gather(1, indices)
        return (w / (w.sum(-1, keepdim=True) + 1e-20) if renormalise else w) * scale

    def scored(x):
        return x.float().sigmoid() if sigmoid else x.float().softmax(-1)

    if fields.get("pass") == "bwd":
        indices = t["indices"].copy_(torch.rand(x.shape, device=x.device).topk(k, -1).indices).long()

        def backward():
            with torch.enable_grad():
                leaf = x.detach().requires_grad_()
                weights = weighted(leaf, scored(leaf), indices)
                return {"dlogits": torch.autograd.grad(weights, leaf, t["dweights"].float())[0]}
        return backward

    def forward():
        scores = scored(x)
        indices = chosen(scores + t["bias"] if "bias" in t else scores)
        results = {"indices": indices.int(), "weights": weighted(x, scores, indices)}
        if "counts" in t or "aux" in t:
            counts = torch.bincount(indices.flatten(), minlength=x.shape[1])
            results["counts"] = counts.int()
        if "aux" in t:
            results["aux"] = (counts / len(x) * scores.mean(0)).sum().view(1) * x.shape[1]
        if "z" in t:
            results["z"] = x.float().logsumexp(-1).square().mean().view(1)
        return results
    return forward


def moe_permute(fields, t):
    """A stable sort, a count and index_select; without padding."""
    refuse(fields, "align", "capacity")
    experts, k = int(fields["experts"]), t["indices"].shape[1]
    t["indices"].copy_(torch.randint(0, experts, t["indices"].shape, device=t["indices"].device))

    def sort():
        flat = t["indices"].flatten()
        rows = torch.argsort(flat, stable=True)
        counts = torch.bincount(flat, minlength=experts)
        results = {"offsets": torch.cat([counts.new_zeros(1), counts.cumsum(0)]).int(), "rows": rows.int()}
        places = torch.empty_like(rows).scatter_(0, rows, torch.arange(len(rows), device=rows.device))
        results["places"] = places.view(t["indices"].shape).int()
        if "x" in t:
            results["y"] = t["x"].index_select(0, rows // k)
        return results
    return sort


def moe_unpermute(fields, t):
    """index_select, a product and a sum over slots; gradients: index_select and row products."""
    places, x = t["places"], t["x"]
    tokens, k = places.shape
    places.copy_(torch.randperm(len(x), device=x.device)[:tokens * k].view(tokens, k))
    flat = places.flatten().long()
    weights = t["weights"].float().view(-1, 1) if "weights" in t else None
    if fields.get("pass") == "bwd":
        if len(x) != tokens * k:
            raise NotImplementedError("rows without a choice")
        t["rows"].copy_(torch.argsort(flat))
        order = t["rows"].long()

        def backward():
            rows = t["dy"].index_select(0, order // k)
            results = {"dx": rows if weights is None else (rows * weights.index_select(0, order)).to(x.dtype)}
            if "dweights" in t:
                made = x.index_select(0, flat).view(tokens, k, -1).float()
                results["dweights"] = (made * t["dy"][:, None].float()).sum(-1)
            return results
        return backward

    def forward():
        made = x.index_select(0, flat)
        scaled = made if weights is None else made * weights
        return {"y": scaled.view(tokens, k, -1).sum(1, dtype=torch.float32).to(x.dtype)}
    return forward


ACTIVATIONS = {"identity": lambda v: v, "relu": F.relu, "silu": F.silu, "gelu": F.gelu, "sigmoid": torch.sigmoid,
               "gelu_tanh": lambda v: F.gelu(v, approximate="tanh"), "squared_relu": lambda v: F.relu(v).square()}


def grouped(a, w, offsets, counts):
    """The rows of each expert by its matrix (outputs x inputs): one product of groups, where PyTorch has it for a's type
    and device, else an expert after the other."""
    if a.is_cuda and a.dtype == torch.bfloat16:
        return torch._grouped_mm(a, w.transpose(1, 2), offs=offsets)
    return torch.cat([F.linear(rows, m) for rows, m in zip(a.split(counts), w)])


def read_weights(fields, t, which):
    """w1, w2 or w3 in few bits as x's type has them."""
    w, scales, zeros = t[f"w{which}"], t[f"scales{which}"], f"zeros{which}"
    kind, dims = (part for part in fields[f"w{which}"].split(":")[:2])
    dims = [int(n) for n in dims.split("x")]
    if scales.dtype == E8M0:
        scales.view(torch.uint8).copy_(torch.randint(120, 134, scales.shape, device=scales.device))
    else:
        scales.copy_((torch.rand(scales.shape, device=scales.device) + 0.5) / (16 * dims[2] ** 0.5))
    shape, narrow = blocks(dims, list(scales.shape))
    v = code_values(kind, w).view(shape)
    if zeros in t:
        v = v - (code_values(kind, t[zeros]) if fields[zeros].split(":")[0] == kind else t[zeros].float()).view(narrow)
    return (v * scale_values({"scale": scales}).view(narrow)).view(dims).to(t["x"].dtype)


def as_e4m3(rows):
    """What blocks of 128 of a row are with a scale of their largest magnitude, in the type of the rows."""
    parts = []
    for part in rows.split(128, -1):
        scale = part.abs().amax(-1, keepdim=True).float() / 448
        codes = (part.float() / scale.clamp_min(1e-38)).clamp(-448, 448).to(torch.float8_e4m3fn)
        parts.append((codes.float() * scale).to(rows.dtype))
    return torch.cat(parts, -1)


def moe(fields, t):
    """Scores, topk, argsort, index_select, grouped products, index_add: as models with grouped_mm write it. Weights in
    few bits were read before: what a model costs that does not keep them so."""
    if "scales1" in t:
        t = {**t, **{f"w{n}": read_weights(fields, t, n) for n in (1, 2, 3) if f"w{n}" in t}}
    entering = as_e4m3 if fields.get("activations") == "e4m3" else lambda rows: rows
    refuse(fields, "b1", "b2", "b3", "capacity", "groups", "score_bias", "act_a", "act_b")
    if fields.get("act", "identity") not in ACTIVATIONS:
        raise NotImplementedError(f"act={fields['act']}")
    backward, x, experts = fields.get("pass") == "bwd", t["x"], len(t["w1"])
    act, k = ACTIVATIONS[fields.get("act", "identity")], t["indices"].shape[1] if "indices" in t else int(fields.get("k", 1))
    if "hidden" in t and not backward:
        raise NotImplementedError("hidden")
    if "indices" in t:
        t["indices"].copy_(torch.rand(len(x), experts, device=x.device).topk(k, -1).indices)
        positive(t["weights"])
    if "logits" in t:
        skew = torch.arange(1, experts + 1, device=x.device).log()
        t["logits"].copy_(torch.randn(t["logits"].shape, device=x.device) - skew)
    names = [n for n in ("x", "w1", "w2", "w3", "weights", "logits", "router") if n in t and (n == "x" or "d" + n in t)]

    def routed(v):
        if "indices" in v:
            return v["indices"].long(), v["weights"].float()
        logits = (v["logits"] if "logits" in v else F.linear(v["x"], v["router"])).float()
        scores = logits.sigmoid() if fields.get("score") == "sigmoid" else logits.softmax(-1)
        weights, indices = scores.topk(k, -1)
        if fields.get("renormalise") == "1":
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return indices, weights * float(fields.get("scale", 1))

    def layer(v):
        indices, weights = routed(v)
        order = torch.argsort(indices.flatten(), stable=True)
        counts = torch.bincount(indices.flatten(), minlength=experts)
        offsets = counts.cumsum(0).int()
        each = None if x.is_cuda and x.dtype == torch.bfloat16 else counts.tolist()
        rows = entering(v["x"].index_select(0, order // k))
        u = grouped(rows, v["w1"], offsets, each)
        if fields.get("gated") == "1":
            gate, up = (u, grouped(rows, v["w3"], offsets, each)) if "w3" in v else u.chunk(2, -1)
            h = act(gate) * up
        else:
            h = act(u)
        made = grouped(entering(h), v["w2"], offsets, each) * weights.flatten().index_select(0, order)[:, None]
        return x.new_zeros(len(x), made.shape[1], dtype=torch.float32 if x.dtype != torch.float64 else x.dtype).index_add(
            0, order // k, made.to(torch.float32 if x.dtype != torch.float64 else x.dtype)).to(x.dtype)

    def hidden(v):
        indices, _ = routed(v)
        order = torch.argsort(indices.flatten(), stable=True)
        counts = torch.bincount(indices.flatten(), minlength=experts)
        each = counts.tolist()
        rows = v["x"].index_select(0, order // k)
        return torch.cat([grouped(rows, v[n], counts.cumsum(0).int(), each) for n in ("w1", "w3") if n in v], -1)

    if not backward:
        return lambda: {"y": layer(t)}
    if "hidden" in t:
        t["hidden"].copy_(hidden(t))
    # What a training step of PyTorch pays for the gradients alone: its graph is kept.
    leaves = {**t, **{n: t[n].detach().requires_grad_() for n in names}}
    with torch.enable_grad():
        y = layer(leaves)

    def gradients():
        found = torch.autograd.grad(y, [leaves[n] for n in names], t["dy"].to(y.dtype), retain_graph=True)
        return {"d" + n: g for n, g in zip(names, found)}
    return gradients


# ---- recurrent nets ----

def rnn(fields, t):
    """A module with the line's weights, so that cuDNN has them in one piece; sequences are packed by nobody here."""
    refuse(fields, "reset_before", "lengths", "states", "clip", "skip_input", "dropout")
    if fields.get("pass", "fwd") != "fwd" or fields.get("bias", "two") == "one":
        raise NotImplementedError("gradients, or one bias")
    cell = fields.get("cell", "tanh")
    kind = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}.get(cell, torch.nn.RNN)
    more = {"nonlinearity": cell} if kind is torch.nn.RNN else {}
    if "projection" in fields:
        more["proj_size"] = int(fields["projection"])
    net = kind(t["x"].shape[2], int(fields["hidden"]), int(fields.get("layers", 1)), bias="bias" not in fields,
               bidirectional=fields.get("bidirectional") == "1", device=t["x"].device, dtype=t["x"].dtype, **more).eval()
    t["w"].mul_(int(fields["hidden"]) ** -0.5)
    parameters = list(net.named_parameters())
    at = 0
    for biases in (False, True):  # all matrices, then all biases
        for name, parameter in parameters:
            if name.startswith("bias") == biases:
                parameter.data.copy_(t["w"][at:at + parameter.numel()].view_as(parameter))
                at += parameter.numel()
    names = ["y", "hy"] + ["cy"] * (cell == "lstm")
    states = tuple(t[name] for name in ("hx", "cx") if name in t)
    start = None if not states else states if cell == "lstm" else states[0]

    @torch.no_grad()
    def call():
        y, last = net(t["x"], start)
        return {name: value for name, value in zip(names, (y, *(last if cell == "lstm" else [last]))) if name in t}

    return call


def resize(fields, t):
    mode, coordinates = fields.get("mode", "nearest"), fields.get("coordinates", "half_pixel")
    rounding, rank = fields.get("nearest", "round_prefer_floor"), t["x"].dim() - 2
    names = {("nearest", "asymmetric", "floor"): "nearest", ("nearest", "half_pixel", "round_prefer_ceil"): "nearest-exact",
             ("linear", coordinates, rounding): ("linear", "bilinear", "trilinear")[rank - 1],
             ("cubic", coordinates, rounding): "bicubic", ("area", coordinates, rounding): "area"}
    name = names.get((mode, coordinates, rounding))
    if name is None or mode in ("linear", "cubic") and coordinates not in ("half_pixel", "align_corners"):
        raise NotImplementedError("coordinates or rounding that PyTorch has not")
    if {"border", "cubic"} & set(fields) or mode == "cubic" and rank != 2:
        raise NotImplementedError("borders and coefficients, cubic but of images")
    options = {"mode": name, "size": list(t["y"].shape[2:])}
    if mode in ("linear", "cubic"):
        options.update(align_corners=coordinates == "align_corners", antialias=fields.get("antialias") == "1")
    if fields.get("pass") != "bwd":
        return lambda: {"y": F.interpolate(t["x"], **options)}
    x = torch.empty_like(t["x"]).requires_grad_()  # keeps the strides
    y = F.interpolate(x, **options)
    return lambda: {"x": torch.autograd.grad(y, x, t["y"], retain_graph=True)[0]}


def quantized_gemm(fields, t):
    """The product of x's type with weights that were read before: what a model costs that does not quantise them."""
    refuse(fields, "format", "alpha")
    x, w, y, kind = t["x"], t["w"], t["y"], fields["w"].split(":")[0]
    scales, grouped_rows = t["scales"], "ends" in t
    if scales.dtype == E8M0:
        scales.view(torch.uint8).copy_(torch.randint(120, 134, scales.shape, device=x.device))
    else:
        positive(scales)
    dims = ([len(t["ends"])] if grouped_rows else []) + [y.shape[1], x.shape[1]]
    shape, narrow = blocks(dims, list(scales.shape))
    v = code_values(kind, w).view(shape)
    if "zeros" in t:
        v = v - (code_values(kind, t["zeros"]) if fields["zeros"].split(":")[0] == kind else t["zeros"].float()).view(narrow)
    weights = (v * scale_values({"scale": scales}).view(narrow)).view(dims).to(x.dtype)
    if grouped_rows:
        refuse(fields, "bias")
        counts = [len(part) for part in torch.arange(len(x)).tensor_split(dims[0])]
        t["ends"].copy_(torch.tensor(counts).cumsum(0))
        return lambda: {"y": typed(grouped(x, weights, t["ends"].int(), counts), y)}
    bias = t["bias"].to(x.dtype) if "bias" in t else None
    return lambda: {"y": typed(F.linear(x, weights, bias), y)}


# ---- tokens ----

def sample(fields, t):
    """As serving does it: the first k, or all sorted, cut by their cumulated probabilities, and drawn from."""
    refuse(fields, "input", "mask", "bias", "counts", "prompt", "min_p", "min_ps", "top_ks", "top_ps", "temperatures",
           "seeds", "offsets", "logprob")
    x, temperature = t["x"], float(fields.get("temperature", 1))
    k, p = int(fields.get("top_k", 0)), float(fields.get("top_p", 1))

    def draw():
        v = x.float() / temperature
        v, column = v.topk(k) if k else v.sort(-1, descending=True)
        share = v.softmax(-1)
        share = share.masked_fill(share.cumsum(-1) - share >= p, 0)
        return {"token": Drawn(column.gather(-1, share.multinomial(1)))}

    def largest():
        token = x.argmax(-1)  # of equal ones, which numbers of 16 bits have, any
        return {"token": token if x.dtype == torch.float32 else Drawn(token)}
    return draw if temperature else largest


# ---- a linear layer's cross-entropy ----

def linear_cross_entropy(fields, t):
    """With the logits in memory, as F.cross_entropy has them."""
    refuse(fields, "lse")
    labels = t["labels"].long()
    options = dict(reduction=fields.get("reduction", "mean"), label_smoothing=float(fields.get("smoothing", 0)))
    if fields.get("ignore") == "1":
        options["ignore_index"] = int(fields.get("ignore_index", 0))
    wanted = [n for n in ("x", "w") if "d" + n in fields]
    leaves = {n: t[n].detach().requires_grad_(n in wanted) for n in ("x", "w")}

    def call():
        with torch.set_grad_enabled(bool(wanted)):
            loss = F.cross_entropy(leaves["x"] @ leaves["w"].T, labels, **options)
            total = loss.sum()
        results = {"loss": typed(loss.detach(), t["loss"]).view_as(t["loss"])}
        if wanted:
            gradients = torch.autograd.grad(total, [leaves[n] for n in wanted])
            results.update({"d" + n: g for n, g in zip(wanted, gradients)})
        return results
    return call


def lrn(fields, t):
    """Odd sizes alone: PyTorch's windows of even size lie on the other side."""
    size, kind = int(fields.get("size", 5)), fields.get("kind", "across")
    alpha, beta, k = (float(fields.get(n, v)) for n, v in (("alpha", 1e-4), ("beta", 0.75), ("k", 1)))
    if size % 2 == 0 or fields.get("sum") == "1" or kind != "across" and t["x"].dim() != 4:
        raise NotImplementedError("even sizes, sums, and within channels other axes than two")

    def result(x, means):
        if kind == "across":
            return F.local_response_norm(x, size, alpha, beta, k)
        centred = x if means is None else x - means
        return x * torch.pow(k + alpha * F.avg_pool2d(centred * centred, size, 1, size // 2), -beta)

    if fields.get("pass") != "bwd":
        return lambda: {"y": result(t["x"], t.get("means"))}
    wanted = {n: t[n].detach().requires_grad_() for n in ("x", "means") if n in t and (n == "x" or "dmeans" in t)}
    y = result(wanted["x"], wanted.get("means", t.get("means")))
    return lambda: dict(zip(("dx", "dmeans"), torch.autograd.grad(y, list(wanted.values()), t["dy"], retain_graph=True)))


def quantize_rows(fields, t):
    """Eager calls in f32, each a pass over memory."""
    if fields.get("act", "identity") not in ACTIVATIONS:
        raise NotImplementedError("act")
    kind, norm, made = fields["y"].split(":")[0], fields.get("norm", "none"), fields.get("pass", "given") == "amax"
    act, eps = ACTIVATIONS[fields.get("act", "identity")], float(fields.get("eps", 1e-5))
    top = torch.tensor(float(TOPS[kind]), device=t["x"].device)
    if not made:
        positive(t["scale"])

    def value(results):
        x = t["x"].float()
        if norm == "none":
            if fields.get("gated", "0") == "0":
                return act(x)
            x, gate = x.chunk(2, -1)
            return act(x) * gate
        if "residual" in t:
            x = x + t["residual"].float()
            results["sum"] = typed(x, t["sum"])
        weight, bias = (t[n].float() if n in t else None for n in ("weight", "bias"))
        if norm == "layer":
            return F.layer_norm(x, x.shape[-1:], weight, bias, eps)
        y = F.rms_norm(x, x.shape[-1:], weight, eps)
        return y if bias is None else y + bias

    def call():
        results = {}
        v = value(results)
        shape, narrow = blocks(list(v.shape), list(t["scale"].shape))
        scale = t["scale"]
        if made:
            scale = results["scale"] = (v.view(shape).abs().amax(-1) / top).view(t["scale"].shape)
        results["y"] = encode((v.view(shape) / scale.view(narrow)).view(v.shape), kind, None)
        return results

    return call


def vision():
    """torchvision's operators."""
    try:
        import torchvision  # registers them
    except ImportError:
        raise NotImplementedError("torchvision is not installed") from None
    return torchvision.ops


def deform_conv(fields, t):
    """Forward alone: torchvision's backward makes all five gradients at once, ours those that are asked for."""
    if fields.get("pass", "fwd") != "fwd" or "pad_extra" in fields:
        raise NotImplementedError("a part of the gradients, or padding that differs in front and behind")
    ops = vision()
    axes = [numbers(fields, name, "x") or [one, one] for name, one in (("stride", 1), ("pad", 0), ("dilation", 1))]
    return lambda: {"y": ops.deform_conv2d(t["x"], t["offset"], t["w"], t.get("bias"), *axes, t.get("mask"))}


def nms(fields, t):
    """Of one list, with classes or without; the boxes that are kept, of which rows behind the last are left out."""
    if t["boxes"].dim() != 2 or set(fields) - {"boxes", "scores", "classes", "iou_threshold", "selected", "count"}:
        raise NotImplementedError("several lists, limits, thresholds of scores, other formats")
    ops, threshold = vision(), float(fields.get("iou_threshold", 0))
    if "classes" in t:
        return lambda: (ops.batched_nms(t["boxes"], t["scores"], t["classes"], threshold), )
    return lambda: (ops.nms(t["boxes"], t["scores"], threshold), )


def integer_gemm(fields, t):
    """The formula in exact integers, s32 on CPUs and f64 on GPUs, which have no product of s32."""
    a, b = t["a"], t["b"]
    whole = torch.int32 if a.device.type == "cpu" else torch.float64
    kind = fields.get("y", "s32" if t["y"].dtype == torch.int32 else "f32").split(":")[0]
    for name in ("scale_a", "scale_b", "scale_y"):
        if name in t:
            positive(t[name])
    if "scale_y" in t:
        t["scale_y"].mul_(1e3)
    if "sums_b" in t:
        t["sums_b"].copy_(b.to(torch.int32).sum(0))

    def call():
        x, w = a.to(whole), b.to(whole)
        x = x - t["zero_a"].to(whole).view(-1, 1) if "zero_a" in t else x
        w = w - t["zero_b"].to(whole).view(1, -1) if "zero_b" in t else w
        v = x @ w
        if kind == "s32":
            return {"y": v.to(torch.int32)}
        v = v.double()
        v = v * t["scale_a"].view(-1, 1) if "scale_a" in t else v
        v = v * t["scale_b"].view(1, -1) if "scale_b" in t else v
        v = v + t["bias"] if "bias" in t else v
        if kind in ("s8", "u8"):
            v = v.float() / t["scale_y"] if "scale_y" in t else v.float()
            v = torch.round(v) + (t["zero_y"].float() if "zero_y" in t else 0)
            return {"y": v.clamp(*RANGES[kind]).to(t["y"].dtype)}
        return {"y": typed(v, t["y"])}
    return call


FAMILIES = dict(reduce=reduce, pointwise=pointwise, loss=loss, ctc_loss=ctc_loss, softmax=softmax,
                random=random, dropout=dropout, quantize=quantize, dequantize=dequantize, moe_route=moe_route,
                moe_permute=moe_permute, moe_unpermute=moe_unpermute, moe=moe, rnn=rnn, resize=resize, lrn=lrn,
                fake_quantize=fake_quantize, quantized_gemm=quantized_gemm, sample=sample,
                quantize_rows=quantize_rows, linear_cross_entropy=linear_cross_entropy, deform_conv=deform_conv, nms=nms,
                integer_gemm=integer_gemm)
