# SPDX-License-Identifier: Apache-2.0
"""Gradients: which pass of the library gives which, for array libraries that differentiate. An operation without a
formula here has none.

FORMULAS has them by operation; in them arrays stands for the library of arrays: its call(name, described, scalars, **fields)
-> results and names(name, described, **fields) of such a call, text(array),
cast(array, type) and dtype(array), ours. Its arrays have what those of NumPy and of PyTorch have in common."""

import copy
from functools import partial

from ._library import abi
from ._tables import operations, table_of


def _nothing(arrays, given):
    return {}


class Formula:
    """saved(arrays, given, scalars, described, results)   -> arrays to keep, others
    backward(arrays, kept, others, gradients, needed)   -> gradients by name of input
    wants(arrays, given)                                -> descriptions of results that the gradient needs

    Results and their gradients are mappings by name. inputs: the names of inputs that have a gradient; results: those of
    results that one comes through, the others (statistics, places, masks) carry none. passes: the formulas of further
    passes, where these have one. What is asked beyond is refused, here for all formulas: no gradient is left out in
    silence."""

    def __init__(self, name, saved, backward, inputs, results, wants=_nothing, passes=()):
        self.name, self.saved, self._backward, self.wants = name, saved, backward, wants
        self.inputs, self.results, self.passes = frozenset(inputs), frozenset(results), dict(passes)

    def of(self, arrays):
        """The formula for one library of arrays."""
        found = copy.copy(self)
        found.saved, found.backward = partial(self.saved, arrays), partial(self.backward, arrays)
        found.wants = partial(self.wants, arrays)
        found.passes = {n: f.of(arrays) for n, f in self.passes.items()}
        return found

    def of_pass(self, table, given):
        """The formula of the pass that is called; None: it has none."""
        asked = given.get("pass_")
        return self if asked in (None, table.passes[0]) else self.passes.get(asked)

    def known(self, needed):
        """Refuses inputs whose gradient is asked for and that have none."""
        for name in needed:
            if name not in self.inputs:
                raise NotImplementedError(f"mica::{self.name}: no gradient for {name}; of its inputs {', '.join(sorted(self.inputs))} "
                                          f"have one: detach {name}, which is a constant then")

    def backward(self, arrays, kept, others, gradients, needed):
        found = self._backward(arrays, kept, others, gradients, needed)
        for name in needed:
            if found.get(name) is None:
                raise NotImplementedError(f"mica::{self.name}: no gradient for {name} in this call")
        return found


def _refuse(name, given, *fields):
    for field in fields:
        if given.get(field) is not None:
            raise NotImplementedError(f"mica::{name}: no gradient with {field}")


def _only_bias(name, given, scalars):
    if list(given.get("epilogue") or []) not in ([], ["bias"]):
        raise NotImplementedError(f"mica::{name}: no gradient through epilogue={given['epilogue']}; 'bias' alone has one")
    if scalars.get("alpha", 1) != 1:
        raise NotImplementedError(f"mica::{name}: no gradient with alpha={scalars['alpha']}")


def _no_scaling(name, scalars):
    if scalars.get("alpha", 1) != 1 or scalars.get("beta", 0) != 0:
        raise NotImplementedError(f"mica::{name}: no gradient with alpha or beta")


def _summed_to(arrays, t, shape, dtype):
    """The gradient of something that was broadcast."""
    while t.ndim > len(shape):
        t = t.sum(0)
    for d, size in enumerate(shape):
        if size == 1 and t.shape[d] != 1:
            t = t.sum(d, keepdims=True)
    return arrays.cast(t, dtype)


# ---- convolution ----

_CONV = ("pad", "pad_extra", "stride", "dilation", "output_pad", "groups", "transposed", "flip", "compute")


def _conv_saved(arrays, given, scalars, described, results):
    _only_bias("conv", given, scalars)
    bias = given.get("bias")
    return (given["x"], given["w"]), ({n: given.get(n) for n in _CONV}, None if bias is None else bias.dtype)


def _conv_backward(arrays, saved, others, gradients, needed):
    (x, w), (fields, bias), g, found = saved, others, gradients["y"], {}
    if "x" in needed:
        found["x"], = arrays.call("conv", pass_="dgrad", w=w, y=g, described={"x": arrays.text(x)}, **fields)
    if "w" in needed:
        found["w"], = arrays.call("conv", pass_="wgrad", x=x, y=g, described={"w": arrays.text(w)}, **fields)
    if "bias" in needed:
        found["bias"] = arrays.cast(g.sum(tuple(d for d in range(g.ndim) if d != 1)), bias)
    return found


_DEFORM = ("pad", "pad_extra", "stride", "dilation", "groups", "offset_groups")
_DEFORM_DATA = {"x": "dx", "offset": "doffset", "mask": "dmask"}
_DEFORM_FILTER = {"w": "dw", "bias": "dbias"}


def _deform_conv_saved(arrays, given, scalars, described, results):
    bias = given.get("bias")
    return ([given.get(n) for n in ("x", "w", "offset", "mask")],
            ({n: given[n] for n in _DEFORM if given.get(n) is not None}, None if bias is None else arrays.text(bias)))


def _deform_conv_backward(arrays, saved, others, gradients, needed):
    (x, w, offset, mask), (fields, bias), found = saved, others, {}
    told = {"x": x, "offset": offset, "mask": mask, "dy": gradients["y"], **fields}
    shapes = {"x": x, "offset": offset, "mask": mask}
    wanted = [n for n in _DEFORM_DATA if n in needed]
    if wanted:
        described = {_DEFORM_DATA[n]: arrays.text(shapes[n]) for n in wanted}
        found.update(zip(wanted, arrays.call("deform_conv", pass_="dgrad", w=w, described=described, **told)))
    wanted = [n for n in _DEFORM_FILTER if n in needed]
    if wanted:
        described = {"dw": arrays.text(w), **({"dbias": bias} if "bias" in needed else {})}
        made = dict(zip(described, arrays.call("deform_conv", pass_="wgrad", described=described, **told)))
        found.update({n: made[_DEFORM_FILTER[n]] for n in wanted})
    return found


# ---- products ----


def _gemm_saved(arrays, given, scalars, described, results):
    _only_bias("gemm", given, scalars)
    _refuse("gemm", given, "gate", "scale_a", "scale_b", "scale_c")
    bias = given.get("bias")
    return (given["a"], given["b"]), (None if bias is None else bias.dtype)


def _gemm_backward(arrays, saved, bias, gradients, needed):
    (a, b), g, found = saved, gradients["c"], {}
    if "a" in needed:
        found["a"] = _summed_to(arrays, arrays.call("gemm", a=g, b=b.swapaxes(-1, -2))[0], a.shape, a.dtype)
    if "b" in needed:
        found["b"] = _summed_to(arrays, arrays.call("gemm", a=a.swapaxes(-1, -2), b=g)[0], b.shape, b.dtype)
    if "bias" in needed:
        found["bias"] = arrays.cast(g.reshape(-1, g.shape[-1]).sum(0), bias)
    return found


# ---- norms ----

_NORM = ("kind", "mode", "axes", "groups", "eps", "act", "act_a", "act_b")


def _saved_statistics(fields):
    if fields.get("mode") == "infer":
        return "running_mean", "running_var"
    return ("rstd",) if fields.get("kind") == "rms" else ("mean", "rstd")


def _norm_saved(arrays, given, scalars, described, results):
    _refuse("norm", given, "sum")
    if given.get("kind") in (None, "layer", "rms"):
        _refuse("norm", given, "residual")
    fields = {n: given.get(n) for n in _NORM}
    if given.get("mode") == "infer":
        stats = (given["running_mean"], given["running_var"])
    elif all(n in results for n in _saved_statistics(given)):
        stats = [results[n] for n in _saved_statistics(given)]
    else:
        raise NotImplementedError("mica::norm: the gradient needs mean and rstd: described=['mean=f32', 'rstd=f32']")
    residual, act = given.get("residual"), given.get("act")
    dresidual = None if residual is None else (arrays.text(residual), residual.dtype)
    # Behind an activation the sum is made again, for which alone the residual is read.
    keep = (given["x"], given.get("scale"), given.get("bias"), residual if act not in (None, "identity") else None, *stats)
    return keep, (fields, dresidual)


def _norm_backward(arrays, saved, others, gradients, needed):
    (x, scale, bias, residual, *stats), (fields, dresidual) = saved, others
    names = _saved_statistics(fields)
    described = {"dresidual": dresidual[0]} if residual is not None and "residual" in needed else {}
    results = arrays.call("norm", pass_="bwd", x=x, scale=scale, bias=bias, residual=residual, dy=gradients["y"],
                          described=described, **dict(zip(names, stats)), **fields)
    order = ["x"] + ["scale"] * (scale is not None) + ["bias"] * (bias is not None) + ["residual"] * len(described)
    found = dict(zip(order, results))
    if "residual" in needed and residual is None:  # nothing between them
        found["residual"] = arrays.cast(gradients["y"], dresidual[1])
    like = {"x": x, "scale": scale, "bias": bias}
    return {n: arrays.cast(v, like[n].dtype) if n in like else v for n, v in found.items() if n in needed}


# ---- the others ----


_SOFTMAX = ("axis", "log", "kind", "scale", "tau")


def _softmax_saved(arrays, given, scalars, described, results):
    fields, hard = {n: given.get(n) for n in _SOFTMAX}, bool(given.get("hard"))
    kept = (given["x"], given.get("rng")) if hard else (results["y"], None)
    return (*kept, given.get("mask")), (fields, hard, given["x"].dtype)


def _softmax_backward(arrays, saved, others, gradients, needed):
    (y, rng, mask), (fields, hard, dtype) = saved, others
    if hard:  # straight-through: the gradient of the soft choice, which is made again
        y, = arrays.call("softmax", x=y, mask=mask, rng=rng, **fields)
    scale = fields["scale"] if fields["scale"] is not None else 1
    if "mask" not in needed:
        found, = arrays.call("softmax", pass_="bwd", y=y, mask=mask, dy=gradients["y"], **fields)
        return {"x": arrays.cast(found, dtype)}
    found, = arrays.call("softmax", pass_="bwd", y=y, mask=mask, dy=gradients["y"], **{**fields, "scale": 1})
    return {"x": arrays.cast(found * scale, dtype), "mask": _summed_to(arrays, found, mask.shape, mask.dtype)}


_ATTENTION = ("scale", "soft_cap", "causal", "window_left", "window_right", "align", "dropout", "compute", "diagonal")
_ATTENTION_INPUTS = ("bias", "mask", "slopes", "rng", "cu_q", "cu_k", "seq_q", "seq_k")


def _attention_saved(arrays, given, scalars, described, results):
    if "lse" not in results:
        raise NotImplementedError("mica::attention: the gradient needs lse: described=['lse=f32']")
    _refuse("attention", given, "sinks", "pages", "scale_q")
    keep = [given["q"], given["k"], given["v"], results["out"], results["lse"], *(given.get(n) for n in _ATTENTION_INPUTS)]
    return keep, {n: given.get(n) for n in _ATTENTION}


def _attention_backward(arrays, saved, fields, gradients, needed):
    q, k, v, out, lse, *others = saved
    others = dict(zip(_ATTENTION_INPUTS, others))
    described = {"dbias": arrays.text(others["bias"])} if "bias" in needed else {}
    results = arrays.call("attention", pass_="bwd", q=q, k=k, v=v, out=out, lse=lse, dout=gradients["out"], **others, **fields,
                    described=described)
    return {n: r for n, r in zip(("q", "k", "v", "bias"), results) if n in needed}


# mha has two backward passes: the second one goes on from what the first one made.

_MHA_SIZES = ("heads", "kv_heads", "head_dim", "value_dim", "compute")
_MHA = (*_MHA_SIZES, "scale", "causal", "soft_cap", "window_left", "window_right", "align", "dropout", "max_q", "max_k")
_MHA_DATA, _MHA_WEIGHTS, _MHA_BIASES = ("q", "k", "v"), ("wq", "wk", "wv", "wo"), ("bq", "bk", "bv", "bo")
_MHA_SEEN = ("mask", "slopes", "bias", "sinks", "rng", "cu_q", "cu_k", "seq_q", "seq_k")
_MHA_MADE = ("qh", "kh", "vh", "oh", "lse")


def _mha_saved(arrays, given, scalars, described, results):
    if scalars.get("beta", 0) != 0:
        raise NotImplementedError("mica::mha: no gradient with beta")
    keep = {**given, **results}
    biases = {n: arrays.text(given[n]) for n in _MHA_BIASES if n in given}
    return [keep.get(n) for n in _MHA_DATA + _MHA_WEIGHTS + _MHA_SEEN + _MHA_MADE], ({n: given.get(n) for n in _MHA}, biases)


def _mha_backward(arrays, saved, others, gradients, needed):
    fields, biases = others
    kept = dict(zip(_MHA_DATA + _MHA_WEIGHTS + _MHA_SEEN + _MHA_MADE, saved))
    asked = {n: arrays.text(kept[n]) for n in _MHA_DATA}
    asked.update({"d" + n: arrays.text(kept[n]) for n in ("bias", "sinks") if n in needed})
    results = arrays.call("mha", pass_="bwd_data", out=gradients["out"], described=asked, **fields,
                          **{n: kept[n] for n in _MHA_WEIGHTS + _MHA_SEEN + _MHA_MADE})
    made = dict(zip((*_MHA_DATA, "doh", "dqh", "dkh", "dvh", *(n for n in ("dbias", "dsinks") if n in asked)), results))
    found = {n: made["d" + n if n in ("bias", "sinks") else n] for n in needed if n in (*_MHA_DATA, "bias", "sinks")}
    if len(found) < len(needed):
        asked = {**{n: arrays.text(kept[n]) for n in _MHA_WEIGHTS}, **biases}
        results = arrays.call("mha", pass_="bwd_weights", out=gradients["out"], oh=kept["oh"], described=asked,
                              **{n: kept[n] for n in _MHA_DATA}, **{n: made[n] for n in ("dqh", "dkh", "dvh")},
                              **{n: fields[n] for n in _MHA_SIZES})
        found.update({n: r for n, r in zip(asked, results) if n in needed})
    return found


# Recurrent nets: likewise. What the forward pass keeps for it is asked for by the states.

_RNN = ("cell", "hidden", "layers", "bidirectional", "bias", "compute", "reset_before", "projection", "clip", "clip_low",
        "clip_high", "clip_nan", "skip_input", "dropout")
_RNN_KEPT = ("gates", "cells", "states", "inner")


def _rnn_saved(arrays, given, scalars, described, results):
    if given.get("clip") == "gates":
        raise NotImplementedError("mica::rnn: no gradient with clip=gates")
    missing = [n for n in _rnn_wants(arrays, given) if n not in results]
    if missing:
        raise NotImplementedError(f"mica::rnn: the gradient needs what steps leave: described={missing}, with their types")
    begins = {n: arrays.text(given[n]) for n in ("hx", "cx") if given.get(n) is not None}
    return ([given["x"], given["w"], given.get("lengths"), given.get("rng"), given.get("peepholes"), *(results.get(n) for n in _RNN_KEPT)],
            ({n: given.get(n) for n in _RNN}, begins))


def _rnn_backward(arrays, saved, others, gradients, needed):
    fields, begins = others
    x, w, lengths, rng, peepholes, *kept = saved
    kept = {n: a for n, a in zip(_RNN_KEPT, kept) if a is not None}
    inner = {n: kept.pop(n) for n in ("inner",) if n in kept}
    weights = {"w": arrays.text(w)}
    if peepholes is not None:
        kept["peepholes"] = peepholes
        inner["cells"], weights["peepholes"] = kept["cells"], arrays.text(peepholes)
    if rng is not None:
        kept["rng"] = inner["rng"] = rng
    asked = {"x": arrays.text(x), **{n: t for n, t in begins.items() if n in needed}}
    told = {n: g for n, g in gradients.items() if n in ("y", "hy", "cy") and g is not None}
    if lengths is not None:
        told["lengths"] = lengths
    results = arrays.call("rnn", pass_="bwd_data", w=w, described=asked, **told, **kept, **fields)
    found = dict(zip((*asked, "dz"), results))
    if "w" in needed or "peepholes" in needed:
        found |= zip(weights, arrays.call("rnn", pass_="bwd_weights", x=x, states=kept["states"], dz=found["dz"], **inner,
                                          described=weights, **fields))
    return {n: found[n] for n in needed if n in found}


_POOL = ("mode", "window", "stride", "pad", "pad_extra", "dilation", "ceil", "adaptive", "divisor", "p", "signed_powers",
         "rescale")


def _pool_saved(arrays, given, scalars, described, results):
    fields = {n: given.get(n) for n in _POOL}
    if given.get("mode") in (None, "max") and "indices" not in results:
        raise NotImplementedError("mica::pool: the gradient of a maximum needs its places: described=['indices=s64']")
    if given.get("mode") == "lp":
        return [given["x"], results["y"]], (fields, arrays.text(given["x"]))
    kept = [results[n] for n in ("indices",) if n in results] + [given[n] for n in ("samples",) if given.get(n) is not None]
    return kept, (fields, arrays.text(given["x"]))


def _pool_backward(arrays, saved, others, gradients, needed):
    fields, x = others
    if fields["mode"] == "lp":
        kept = dict(zip(("input", "output"), saved))
    else:
        kept = dict(zip(("indices", "samples"), saved))
    return {"x": arrays.call("pool", pass_="bwd", y=gradients["y"], described={"x": x}, **kept, **fields)[0]}


_RESIZE = ("mode", "coordinates", "nearest", "border", "antialias", "scale_d", "scale_h", "scale_w", "cubic", "from_d",
           "from_h", "from_w", "to_d", "to_h", "to_w")


def _resize_saved(arrays, given, scalars, described, results):
    return [], ({n: given.get(n) for n in _RESIZE}, arrays.text(given["x"]))


def _resize_backward(arrays, saved, others, gradients, needed):
    fields, x = others
    return {"x": arrays.call("resize", pass_="bwd", y=gradients["y"], described={"x": x}, **fields)[0]}


_SCAN = ("kind", "axis", "exclusive", "reverse")


def _scan_kind(given):
    return given.get("kind") or "sum"


def _scan_saved(arrays, given, scalars, described, results):
    kind = _scan_kind(given)
    if kind in ("max", "min") and "index" not in results:
        raise NotImplementedError(f"mica::scan: the gradient of a {kind} needs its places: described=['index=s64']")
    keep = {"x": given["x"] if kind in ("prod", "logsumexp") else None,
            "y": results["y"] if kind == "logsumexp" else None, "index": results.get("index"), "flags": given.get("flags")}
    return list(keep.values()), ({n: given.get(n) for n in _SCAN}, list(keep), arrays.text(given["x"]))


def _scan_backward(arrays, saved, others, gradients, needed):
    fields, names, x = others
    kept = dict(zip(names, saved))
    return {"x": arrays.call("scan", pass_="bwd", dy=gradients["y"], described={"dx": x}, **kept, **fields)[0]}


def _linear_cross_entropy_saved(arrays, given, scalars, described, results):
    if given.get("reduction") == "none":
        raise NotImplementedError("mica::linear_cross_entropy: no gradient with reduction=none, whose rows have one each")
    if "dx" not in results or "dw" not in results:
        raise NotImplementedError("mica::linear_cross_entropy: the gradients are made beside the loss: described=['dx=...', 'dw=...']")
    return [results["dx"], results["dw"]], None


def _linear_cross_entropy_backward(arrays, saved, others, gradients, needed):
    return {n: saved["xw".index(n)] * arrays.cast(gradients["loss"].reshape(()), saved["xw".index(n)].dtype) for n in needed}


_ACTIVATION = ("act", "gated", "axis", "act_a", "act_b")


def _activation_saved(arrays, given, scalars, described, results):
    return (given["x"],), {n: given.get(n) for n in _ACTIVATION}


def _activation_backward(arrays, saved, fields, gradients, needed):
    found, = arrays.call("activation", pass_="bwd", x=saved[0], dy=gradients["y"], **fields)
    return {"x": arrays.cast(found, saved[0].dtype)}


_ROPE = ("pairing", "rotary_dim", "theta", "factor")
_ROPE_INPUTS = ("positions", "start", "cu", "inv_freq", "cos", "sin")


def _rope_saved(arrays, given, scalars, described, results):
    return [given.get(n) for n in _ROPE_INPUTS], ({n: given.get(n) for n in _ROPE}, "k" in given)


def _rope_backward(arrays, saved, others, gradients, needed):
    fields, pair = others
    k = gradients["k_out"] if pair else None
    results = arrays.call("rope", pass_="bwd", q=gradients["q_out"], k=k, **dict(zip(_ROPE_INPUTS, saved)), **fields)
    return dict(zip(("q", "k"), results))


# ---- results that are only made for the gradient ----


def _statistic(dtype):
    return "f64" if dtype == "f64" else "f32"


def statistics(arrays, x, given):
    """mean or rstd of norm: one element for each set of elements that is normalised together."""
    n, c = (int(x.shape[0]), int(x.shape[1])) if x.ndim > 1 else (1, 1)
    sets = {"batch": (c,), "instance": (n, c), "group": (n, given.get("groups"))}.get(
        given.get("kind"), tuple(map(int, x.shape[: x.ndim - (given.get("axes") or 1)])))
    return ":".join([_statistic(arrays.dtype(x))] + ["x".join(map(str, sets))] * (len(sets) > 0))


def _norm_wants(arrays, given):
    if given.get("mode") == "infer":
        return {}
    return dict.fromkeys(_saved_statistics(given), statistics(arrays, given["x"], given))


def _attention_wants(arrays, given):
    return {"lse": _statistic(arrays.dtype(given["q"]))}


def _pool_wants(arrays, given):
    return {"indices": "s32"} if given.get("mode") in (None, "max") else {}


def _scan_wants(arrays, given):
    if _scan_kind(given) not in ("max", "min"):
        return {}
    return {"index": "s32" if max(given["x"].shape, default=0) < 2**31 else "s64"}


def _linear_cross_entropy_wants(arrays, given):
    return {} if given.get("reduction") == "none" else {"dx": arrays.text(given["x"]), "dw": arrays.text(given["w"])}


def _rnn_wants(arrays, given):
    dtype = arrays.dtype(given["x"])
    kept = {"lstm": ("gates", "cells"), "gru": ("gates",)}.get(given.get("cell"), ())
    if given.get("clip") == "gates":
        return {}
    inner = {"inner": dtype} if given.get("reset_before") or given.get("projection") else {}
    return {**dict.fromkeys(kept, _statistic(dtype)), "states": dtype, **inner}


# ---- by names ----


def _by_names(table):
    """The formula of an operation whose table says it all: its second pass reads dY of each result Y and writes dX of
    each input X, and reads what else it needs by its own name, results too; or, as gradients are of the same kind, it
    reads Y and writes X. None where the table does not."""
    if table.passes[:2] != ["fwd", "bwd"]:
        return None
    fwd, bwd = table.args[0], table.args[1]
    inputs, outputs = ([a.python for a in fwd if a.dir == kind] for kind in (abi.MICA_IN, abi.MICA_OUT))
    written = [a.python for a in bwd if a.dir == abi.MICA_OUT]
    read = {a.python for a in bwd if a.dir == abi.MICA_IN}
    dx = {n: "d" + n for n in inputs if "d" + n in written}
    dy = {n: "d" + n for n in outputs if "d" + n in read}
    if not dx and not dy:
        dx = {n: n for n in inputs if n in written}
        dy = {n: n for n in outputs[:1] if n in read}
    if not dx or not dy:
        return None
    # What the second pass wants and the first has not (a map that another operation made) cannot be had here.
    if any(n not in (*inputs, *outputs, *dy.values()) and "inferred" in table.field[n].default for n in read):
        return None
    kept = [n for n in (*inputs, *outputs) if n in read and n not in dy.values()]
    name = table.python

    def saved(arrays, given, scalars, described, results):
        _no_scaling(name, scalars)
        fields = {f.python: given[f.python] for f in table.fields
                  if f.type != "tensor" and f.python != "pass_" and given.get(f.python) is not None}
        return ([results.get(n, given.get(n)) for n in kept],
                (fields, scalars, {n: arrays.text(given[n]) for n in dx if given.get(n) is not None}))

    def backward(arrays, saved, others, gradients, needed):
        fields, scalars, shapes = others
        told = {**dict(zip(kept, saved)), **{dy[n]: g for n, g in gradients.items()}}
        # Which gradients are made is said by their descriptions; where these are the inputs, all are.
        asked = {dx[n]: t for n, t in shapes.items() if n in needed or dx[n] == n}
        results = arrays.call(name, pass_="bwd", described=asked, scalars=scalars, **told, **fields)
        order = [n for n in written if n in asked]
        if len(results) != len(order):  # some are made whether asked for or not
            order = arrays.names(name, pass_="bwd", described=asked, **told, **fields)
        found = dict(zip(order, results))
        return {n: found[dx[n]] for n in needed if dx.get(n) in found}

    return Formula(name, saved, backward, dx, dy)


# ---- windows ----


def _columns(formula):
    """By names, and of sums of columns, whose gradient is the columns of theirs."""

    def saved(arrays, given, scalars, described, results):
        _no_scaling(formula.name, scalars)
        return (), ({n: v for n, v in given.items() if n not in ("pass_", "dy", "dx")}, arrays.text(given["dy"]))

    def backward(arrays, saved, others, gradients, needed):
        fields, dy = others
        return {"dy": arrays.call("im2col", x=gradients["dx"], described={"y": dy}, **fields)[0]}

    formula.passes["bwd"] = Formula(formula.name, saved, backward, ("dy",), ("dx",))
    return formula


# ---- dropout ----


def _dropout(of_x):
    """By names for x; what is added behind the dropout has the result's gradient."""

    def saved(arrays, given, scalars, described, results):
        kept, others = of_x.saved(arrays, given, scalars, described, {})  # a mask is made of rng again
        residual = given.get("residual")
        return kept, (others, None if residual is None else residual.dtype)

    def backward(arrays, saved, others, gradients, needed):
        others, dtype = others
        found = of_x.backward(arrays, saved, others, gradients, {"x"}) if "x" in needed else {}
        if "residual" in needed:
            found["residual"] = arrays.cast(gradients["y"], dtype)
        return found

    return Formula(of_x.name, saved, backward, [*of_x.inputs, "residual"], of_x.results)


FORMULAS = {f.name: f for f in (
    Formula("conv", _conv_saved, _conv_backward, ("x", "w", "bias"), ("y",)),
    Formula("deform_conv", _deform_conv_saved, _deform_conv_backward, (*_DEFORM_DATA, *_DEFORM_FILTER), ("y",)),
    Formula("gemm", _gemm_saved, _gemm_backward, ("a", "b", "bias"), ("c",)),
    Formula("norm", _norm_saved, _norm_backward, ("x", "scale", "bias", "residual"), ("y",), _norm_wants),
    Formula("softmax", _softmax_saved, _softmax_backward, ("x", "mask"), ("y",)),
    Formula("attention", _attention_saved, _attention_backward, ("q", "k", "v", "bias"), ("out",), _attention_wants),
    Formula("mha", _mha_saved, _mha_backward, (*_MHA_DATA, *_MHA_WEIGHTS, *_MHA_BIASES, "bias", "sinks"), ("out",)),
    Formula("rnn", _rnn_saved, _rnn_backward, ("x", "w", "hx", "cx", "peepholes"), ("y", "hy", "cy"), _rnn_wants),
    Formula("pool", _pool_saved, _pool_backward, ("x",), ("y",), _pool_wants),
    Formula("resize", _resize_saved, _resize_backward, ("x",), ("y",)),
    Formula("scan", _scan_saved, _scan_backward, ("x",), ("y",), _scan_wants),
    Formula("linear_cross_entropy", _linear_cross_entropy_saved, _linear_cross_entropy_backward, ("x", "w"), ("loss",),
            _linear_cross_entropy_wants),
    Formula("activation", _activation_saved, _activation_backward, ("x",), ("y",)),
    Formula("rope", _rope_saved, _rope_backward, ("q", "k"), ("q_out", "k_out")),
    _columns(_by_names(table_of("im2col"))), _dropout(_by_names(table_of("dropout"))))}
for _name in operations:
    if _name not in FORMULAS:
        _found = _by_names(table_of(_name))
        if _found:
            FORMULAS[_name] = _found
