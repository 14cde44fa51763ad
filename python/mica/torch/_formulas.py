# SPDX-License-Identifier: Apache-2.0
"""Gradients: which pass of the library gives which. An operation without a formula here has none."""

from ._library import autograd, call, text


def _call(name, described=(), **fields):
    return call(name, {n: v for n, v in fields.items() if v is not None},
                {n: v for n, v in dict(described).items() if v is not None})


def _refuse(name, given, *fields):
    for field in fields:
        if given.get(field) is not None:
            raise NotImplementedError(f"mica::{name}: no gradient with {field}")


def _only_bias(name, given, scalars):
    if list(given.get("epilogue") or []) not in ([], ["bias"]):
        raise NotImplementedError(f"mica::{name}: no gradient through epilogue={given['epilogue']}; 'bias' alone has one")
    if scalars.get("alpha", 1) != 1:
        raise NotImplementedError(f"mica::{name}: no gradient with alpha={scalars['alpha']}")


def _summed_to(t, shape, dtype):
    """The gradient of something that was broadcast."""
    while t.dim() > len(shape):
        t = t.sum(0)
    for d, size in enumerate(shape):
        if size == 1 and t.shape[d] != 1:
            t = t.sum(d, keepdim=True)
    return t.to(dtype)


# ---- convolution ----

_CONV = ("pad", "pad_extra", "stride", "dilation", "output_pad", "groups", "transposed", "flip", "compute")


def _conv_saved(given, scalars, described, results):
    _only_bias("conv", given, scalars)
    bias = given.get("bias")
    return (given["x"], given["w"]), ({n: given.get(n) for n in _CONV}, None if bias is None else bias.dtype)


def _conv_backward(saved, others, gradients, needed):
    (x, w), (fields, bias), g, found = saved, others, gradients[0], {}
    if "x" in needed:
        found["x"], = _call("conv", pass_="dgrad", w=w, y=g, described={"x": text(x)}, **fields)
    if "w" in needed:
        found["w"], = _call("conv", pass_="wgrad", x=x, y=g, described={"w": text(w)}, **fields)
    if "bias" in needed:
        found["bias"] = g.sum([d for d in range(g.dim()) if d != 1]).to(bias)
    return found


# ---- products ----


def _gemm_saved(given, scalars, described, results):
    _only_bias("gemm", given, scalars)
    _refuse("gemm", given, "gate", "scale_a", "scale_b", "scale_c")
    bias = given.get("bias")
    return (given["a"], given["b"]), (None if bias is None else bias.dtype)


def _gemm_backward(saved, bias, gradients, needed):
    (a, b), g, found = saved, gradients[0], {}
    if "a" in needed:
        found["a"] = _summed_to(_call("gemm", a=g, b=b.transpose(-1, -2))[0], a.shape, a.dtype)
    if "b" in needed:
        found["b"] = _summed_to(_call("gemm", a=a.transpose(-1, -2), b=g)[0], b.shape, b.dtype)
    if "bias" in needed:
        found["bias"] = g.reshape(-1, g.shape[-1]).sum(0).to(bias)
    return found


# ---- norms ----

_NORM = ("kind", "mode", "axes", "groups", "eps", "act", "act_a", "act_b")


def _saved_statistics(fields):
    if fields.get("mode") == "infer":
        return "running_mean", "running_var"
    return ("rstd",) if fields.get("kind") == "rms" else ("mean", "rstd")


def _norm_saved(given, scalars, described, results):
    _refuse("norm", given, "residual", "running_var" if given.get("mode") != "infer" else "sum")
    fields = {n: given.get(n) for n in _NORM}
    if given.get("mode") == "infer":
        stats = (given["running_mean"], given["running_var"])
    elif len(results) == len(_saved_statistics(given)) + 1:
        stats = results[1:]
    else:
        raise NotImplementedError("mica::norm: the gradient needs mean and rstd: described=['mean=f32', 'rstd=f32']")
    return (given["x"], given.get("scale"), given.get("bias"), *stats), fields


def _norm_backward(saved, fields, gradients, needed):
    x, scale, bias, *stats = saved
    names = _saved_statistics(fields)
    results = _call("norm", pass_="bwd", x=x, scale=scale, bias=bias, dy=gradients[0], **dict(zip(names, stats)), **fields)
    order = ["x"] + ["scale"] * (scale is not None) + ["bias"] * (bias is not None)
    found = dict(zip(order, results))
    return {n: v.to({"x": x, "scale": scale, "bias": bias}[n].dtype) for n, v in found.items() if n in needed}


# ---- the others ----


def _softmax_saved(given, scalars, described, results):
    return (results[0],), (given.get("axis"), given.get("log"), given["x"].dtype)


def _softmax_backward(saved, others, gradients, needed):
    axis, log, dtype = others
    return {"x": _call("softmax", pass_="bwd", y=saved[0], dy=gradients[0], axis=axis, log=log)[0].to(dtype)}


_ATTENTION = ("scale", "soft_cap", "causal", "window_left", "window_right", "align", "dropout", "compute")
_ATTENTION_INPUTS = ("bias", "mask", "slopes", "rng", "cu_q", "cu_k", "seq_q", "seq_k")


def _attention_saved(given, scalars, described, results):
    if len(results) < 2:
        raise NotImplementedError("mica::attention: the gradient needs lse: described=['lse=f32']")
    _refuse("attention", given, "sinks", "pages", "scale_q")
    keep = [given["q"], given["k"], given["v"], *results[:2], *(given.get(n) for n in _ATTENTION_INPUTS)]
    return keep, {n: given.get(n) for n in _ATTENTION}


def _attention_backward(saved, fields, gradients, needed):
    q, k, v, out, lse, *others = saved
    others = dict(zip(_ATTENTION_INPUTS, others))
    described = {"dbias": text(others["bias"])} if "bias" in needed else {}
    results = _call("attention", pass_="bwd", q=q, k=k, v=v, out=out, lse=lse, dout=gradients[0], **others, **fields,
                    described=described)
    return {n: r for n, r in zip(("q", "k", "v", "bias"), results) if n in needed}


_POOL = ("mode", "window", "stride", "pad", "pad_extra", "dilation", "ceil", "adaptive")


def _pool_saved(given, scalars, described, results):
    fields = {n: given.get(n) for n in _POOL}
    if given.get("mode") in (None, "max") and len(results) < 2:
        raise NotImplementedError("mica::pool: the gradient of a maximum needs its places: described=['indices=s64']")
    return results[1:], (fields, text(given["x"]))


def _pool_backward(saved, others, gradients, needed):
    fields, x = others
    indices = saved[0] if saved else None
    return {"x": _call("pool", pass_="bwd", y=gradients[0], indices=indices, described={"x": x}, **fields)[0]}


_ACTIVATION = ("act", "gated", "axis", "act_a", "act_b")


def _activation_saved(given, scalars, described, results):
    return (given["x"],), {n: given.get(n) for n in _ACTIVATION}


def _activation_backward(saved, fields, gradients, needed):
    return {"x": _call("activation", pass_="bwd", x=saved[0], dy=gradients[0], **fields)[0].to(saved[0].dtype)}


_LOSS = ("reduction", "smoothing", "ignore", "ignore_index")


def _loss_saved(given, scalars, described, results):
    return (given["x"], given["labels"]), {n: given.get(n) for n in _LOSS}


def _loss_backward(saved, fields, gradients, needed):
    x, labels = saved
    return {"x": _call("cross_entropy", pass_="bwd", x=x, labels=labels, dloss=gradients[0], **fields)[0].to(x.dtype)}


_ROPE = ("pairing", "rotary_dim", "theta", "factor")
_ROPE_INPUTS = ("positions", "start", "cu", "inv_freq", "cos", "sin")


def _rope_saved(given, scalars, described, results):
    return [given.get(n) for n in _ROPE_INPUTS], ({n: given.get(n) for n in _ROPE}, "k" in given)


def _rope_backward(saved, others, gradients, needed):
    fields, pair = others
    k = gradients[1] if pair else None
    results = _call("rope", pass_="bwd", q=gradients[0], k=k, **dict(zip(_ROPE_INPUTS, saved)), **fields)
    return dict(zip(("q", "k"), results))


for _name, _saved, _backward in [
    ("conv", _conv_saved, _conv_backward), ("gemm", _gemm_saved, _gemm_backward), ("norm", _norm_saved, _norm_backward),
    ("softmax", _softmax_saved, _softmax_backward), ("attention", _attention_saved, _attention_backward),
    ("pool", _pool_saved, _pool_backward), ("activation", _activation_saved, _activation_backward),
    ("cross_entropy", _loss_saved, _loss_backward), ("rope", _rope_saved, _rope_backward),
]:
    autograd(_name, _saved, _backward)