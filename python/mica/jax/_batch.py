# SPDX-License-Identifier: Apache-2.0
"""What jax.vmap makes of an operation: one call of it, where the operation has dimensions for that; else a call for each
element, one after another."""

MOST = 8  # dimensions of a tensor


def _axis(fields):
    """With a dimension in front an axis that is counted from there moves by one."""
    axis = fields.get("axis", 0)
    return {**fields, "axis": axis + 1} if axis >= 0 else fields


def _axis_of_gate(fields):
    return _axis(fields) if fields.get("gated") else fields


def _same(fields):
    return fields


class Rule:
    """front: every tensor of `batched` gets the mapped dimension in front. Otherwise it becomes a part of their dimension
    0, of all of them. Tensors that are not named must not be mapped. fits(fields, names): the rule holds here."""

    def __init__(self, batched, front=False, fields=_same, fits=lambda fields, names: True):
        self.batched, self.front, self.fields, self.fits = set(batched.split()), front, fields, fits


def _only(*allowed):
    return lambda fields, names: set(names) <= set(" ".join(allowed).split())


def _no_sums(fields, names):
    """Gradients of scale and bias are sums over what would be folded."""
    return fields.get("pass_") != "bwd" or not {"scale", "bias"} & set(names)


_NORM = "x y mean rstd dy dx residual sum"
_RULES = {
    "conv": [Rule("x y", fits=lambda f, n: f.get("pass_") != "wgrad" and set(n) <= {"x", "w", "y", "bias"})],
    "gemm": [Rule("a b c", front=True, fits=_only("a b c bias"))],
    "pool": [Rule("x y indices samples")],
    "max_unpool": [Rule("x indices y dy dx")],
    "softmax": [Rule("x y dy dx", front=True, fields=_axis, fits=_only("x y dy"))],
    "activation": [Rule("x y dy dx", front=True, fields=_axis_of_gate)],
    "norm": [Rule(_NORM, front=True, fits=lambda f, n: f.get("kind") in (None, "layer", "rms") and _no_sums(f, n)),
             Rule(_NORM, fits=lambda f, n: f.get("kind") in ("instance", "group") and _no_sums(f, n)),
             Rule("x y", fits=lambda f, n: f.get("mode") == "infer" and f.get("pass_") != "bwd")],
    "attention": [Rule("q k v out lse dout dq dk dv", fits=_only("q k v out lse dout"))],
    "cross_entropy": [Rule("x labels loss dloss dx", fits=lambda f, n: f.get("reduction") == "none")],
    "rope": [Rule("q k q_out k_out", fits=_only("q k"))],
}


def rule_of(name, fields, operands, results):
    """operands: name -> (dimensions of one element, whether it is mapped); results: names. The rule, or None."""
    for rule in _RULES.get(name, ()):
        names = [*operands, *(r for r in results if r not in operands)]
        mapped = {n for n, (_, yes) in operands.items() if yes}
        ranks = [rank for n, (rank, _) in operands.items() if n in rule.batched]
        if not rule.fits(fields, names) or not mapped <= rule.batched or not set(results) <= rule.batched:
            continue
        if min(ranks) < 1 or (rule.front and max(ranks) >= MOST):
            continue
        return rule
    return None
