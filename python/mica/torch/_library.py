# SPDX-License-Identifier: Apache-2.0
"""Every operation of the library as an operator of PyTorch, torch.ops.mica.NAME, made of its table: the
schema, the kernel for CPU and CUDA, and the kernel for tensors that are only described, which asks the
library what it would infer. So torch.compile, torch.export and fake tensors know shapes, types and strides
of all results without a line for any operation here.

    torch.ops.mica.conv(x, w, pad=[1, 1])                    -> [y]
    torch.ops.mica.attention(q, k, v, described=["lse=f32"]) -> [out, lse]

described: tensors of which only the description is given, as NAME=TENSOR of a problem line. Operators change
nothing in place: operations that only do so (optimiser steps, appending to a cache) are not here."""

import functools
import math
import sys

import torch

import mica
from mica._arrays import _NAMES
from mica._errors import Invalid
from mica._library import abi
from mica._tables import inferred, operations, table_of
from mica._tensor import Tensor

_library = torch.library.Library("mica", "DEF")
_OURS = {getattr(torch, theirs): ours for theirs, ours in _NAMES.items() if hasattr(torch, theirs)}
THEIRS = {ours: theirs for theirs, ours in _OURS.items()}
_SCHEMA = {"tensor": "Tensor?", "enum": "str?", "flag": "bool?", "int": "int?", "float": "float?", "axes": "int[]?",
           "list": "str[]?", "text": "str?"}


def _schema_name(name):
    return "out_" if name == "out" else name  # which a schema has its own meaning for


def text(t, name="a tensor"):
    """A tensor, real or not, as a problem line describes it. Its sizes become constants of a trace."""
    if t.dtype not in _OURS:
        raise Invalid(f"{name} has elements of type {t.dtype}; mica takes {', '.join(map(str, _OURS))}")
    shape, strides = tuple(int(n) for n in t.shape), tuple(int(n) for n in t.stride())
    return Tensor(_OURS[t.dtype], shape, strides).text(name)


def _readable(t):
    """One element that stands for all (the gradient of a sum) is what no fast engine takes: written out."""
    if t.layout is not _STRIDED or any(t.stride()) or t.numel() <= 1:
        return t
    return t.contiguous()


_STRIDED = torch.strided


def _stays_a_call(name, told=set()):
    """Tells inductor that the operator stays a call, before it finds out: PyTorch 2.11 then writes out all that the arguments
    were made of for a log, what branches twice, and behind sixteen residual blocks does not come back
    (findings/torch-inductor-writes-out-branches.sh). Elsewhere this changes nothing."""
    graph = sys.modules.get("torch._inductor.graph")
    if graph is None or name in told:
        return
    told.add(name)
    operator = getattr(torch.ops.mica, name).default
    try:
        if operator not in graph.lowerings:
            tag = graph.get_layout_constraint_tag(operator, with_default=True)
            graph.make_fallback(operator, layout_constraint=graph.tag_to_layout_constraint(tag))
    except (AttributeError, TypeError):  # a PyTorch that has other names
        pass


class Operator:
    """One operation: its schema and kernels."""

    def __init__(self, table):
        self.table = table
        # As the function has them: what may be given by place comes first.
        self.fields = [*table.positional, *(f.python for f in table.fields if f.python not in table.positional)]
        self.first = next(a.python for a in table.args[0] if a.dir == abi.MICA_OUT)
        self.function = getattr(mica, table.python)
        self.names = self.fields + table.scalars + ["described"]
        self.scalars = list(zip(table.scalars, table.scalar_defaults))
        self.bound = {}
        parts = [f"{_SCHEMA[f.type]} {_schema_name(f.python)}=None" for f in map(table.field.get, self.fields)]
        # A schema has no infinity.
        parts += [f"float {s}={d!r}" if math.isfinite(d) else f"float? {s}=None" for s, d in self.scalars]
        _library.define(f"{table.python}({', '.join(parts)}, str[]? described=None) -> Tensor[]")
        _library.impl(table.python, self.run, "CPU")
        _library.impl(table.python, self.run, "CUDA")
        torch.library.register_fake(f"mica::{table.python}", self.infer, lib=_library)
        self.call = getattr(torch.ops.mica, table.python)

    def split(self, arguments, keywords):
        """What the kernel got, as (fields by name, scalars, descriptions)."""
        given = {n: v for n, v in zip(self.names, arguments) if v is not None}
        for name, value in keywords.items():
            if value is not None:
                given["out" if name == "out_" else name] = value
        described = dict(d.split("=", 1) for d in given.pop("described", ()))
        scalars = {}
        for name, default in self.scalars:
            value = given.pop(name, default)
            if value != default:
                scalars[name] = value
        return given, scalars, described

    def run(self, *arguments, **keywords):
        given, scalars, described = self.split(arguments, keywords)
        return self.kernel(given, described, scalars)

    def quick(self, given, described):
        """What the function returns, where plain tensors like these were seen before; None: it takes the long way."""
        key, pointers, held = [], [], []
        for name, value in given.items():
            if type(value) in _PLAIN:
                if value.layout is not _STRIDED or value.is_neg():
                    return None
                key += name, value.dtype, value.shape, value.stride(), value.device
                pointers.append(value.data_ptr())
                held.append(value)
            elif value is not None:
                key += name, tuple(value) if type(value) is list else value
        if described:
            key += described.items()
        key = tuple(key)
        try:
            bound = self.bound.get(key)
        except TypeError:  # tensors of other kinds, sizes that a trace has not made numbers
            return None
        if bound is None:
            bound = self.bound[key] = self.bind(given, described, held)
        return bound(pointers, held, held, None, None) if bound else None

    def bind(self, given, described, tensors):
        """Plans, once for tensors of a kind; False for those that go the long way."""
        if any(_readable(t) is not t or t.is_complex() for t in tensors):  # complex ones may be conjugates, unwritten
            return False
        if len(self.bound) >= 4096:
            self.bound.clear()
        given = {n: v.detach() if isinstance(v, torch.Tensor) else v for n, v in given.items()}
        return self.function._mica_bind((), {**given, **described}, False)

    def found(self, given, described, scalars):
        if not scalars and running():
            found = self.quick(given, described)
            if found is not None:
                return found
        given = {n: _readable(v) if isinstance(v, torch.Tensor) else v for n, v in given.items()}
        if not torch.is_grad_enabled():
            return self.function(**given, **described, **scalars)
        with torch.no_grad():
            return self.function(**given, **described, **scalars)

    def kernel(self, given, described, scalars):
        found = self.found(given, described, scalars)
        return list(found) if isinstance(found, tuple) else [found]

    def named(self, given, described, scalars):
        """The results by name."""
        found = self.found(given, described, scalars)
        if isinstance(found, tuple):
            return dict(zip(found._fields, found))
        if given.get("pass_") in (None, self.table.passes[0]):
            return {self.first: found}
        (name, _), = self.results(given, described)
        return {name: found}

    def results(self, given, described):
        lines = {n: Tensor(text(_readable(v), n)) if isinstance(v, torch.Tensor) else v for n, v in given.items()}
        return inferred(self.table, {**lines, **described})

    def infer(self, *arguments, **keywords):
        _stays_a_call(self.table.python)
        given, _, described = self.split(arguments, keywords)
        like = next(v for v in given.values() if isinstance(v, torch.Tensor))
        return [torch.empty_strided(t.shape, t.strides, dtype=THEIRS[t.dtype], device=like.device)
                for _, t in self.results(given, described)]


# ---- the short way ----
# The dispatcher asks some twenty questions whose answers are known where nobody listens: plain tensors, no
# tracing, no modes. Then a call costs a quarter.


def running(_modes=torch._C._len_torch_dispatch_stack, _functions=torch._C._len_torch_function_stack,
            _transforms=torch._C._functorch.peek_interpreter_stack, _trace=torch._C._get_tracing_state):
    """Whether nobody listens, here and now, in code that is not being compiled."""
    return not (_modes() or _functions() or _transforms() is not None or _trace() is not None)


def quiet():
    """Whether nobody listens, here and now."""
    return not torch.compiler.is_compiling() and running()


def plain(values):
    """Whether these tensors, here and now, are nothing but memory."""
    return quiet() and all(type(v) in _PLAIN for v in values)


_PLAIN = (torch.Tensor, torch.nn.Parameter)


class Direct(torch.autograd.Function):
    """The operator's kernel and formula, without the dispatcher between them."""

    @staticmethod
    def forward(ctx, operator, formula, names, fields, described, scalars, *tensors):
        given = dict(zip(names, tensors), **fields)
        results = operator.named(given, described, scalars)
        differentiate(ctx, operator, formula, given, scalars, described, results)
        ctx.names = names
        return tuple(results.values())

    @staticmethod
    def backward(ctx, *gradients):
        if torch.is_grad_enabled():  # create_graph: this one's gradient would be wanted
            raise NotImplementedError("mica.torch: the gradient of a gradient")
        found = gradients_of(ctx, gradients)
        return (None,) * 6 + tuple(found.get(n) for n in ctx.names)


def differentiate(ctx, operator, formula, given, scalars, described, results):
    """What the forward pass leaves behind for gradients_of, in both ways. results: by name."""
    needed = {n for n, v in given.items() if isinstance(v, torch.Tensor) and v.requires_grad}
    table = operator.table
    ctx.mica = formula, None, list(results), needed
    if formula is None:
        raise NotImplementedError(f"mica::{table.python} has no gradient")
    formula = formula.of_pass(table, given)
    if formula is None:
        return
    formula.known(needed)
    keep, others = formula.saved(given, scalars, described, results)
    ctx.save_for_backward(*keep)
    ctx.mica = formula, (others,), list(results), needed
    ctx.mark_non_differentiable(*(r for n, r in results.items() if n not in formula.results or not r.is_floating_point()))


def gradients_of(ctx, gradients):
    """By name of input."""
    formula, others, names, needed = ctx.mica
    if others is None:
        raise NotImplementedError(f"mica::{formula.name}: the gradient of a gradient")
    gradients = {n: g for n, g in zip(names, gradients) if n in formula.results}
    return formula.backward(ctx.saved_tensors, *others, gradients, needed)


class Site:
    """Calls of an operator that differ in their tensors alone, from code that is not being compiled. Where nobody listens, no gradient is wanted and tensors
    like these were seen before, what is left of a call is pointers."""

    def __init__(self, name, names, fields, described):
        self.operator, self.name, self.names = operators[name], name, names
        self.fields, self.described = dict(fields), dict(described)
        self.bound = {}

    def __call__(self, *tensors):
        if running():
            key, pointers, gradients = [], [], torch.is_grad_enabled()
            for t in tensors:
                if type(t) not in _PLAIN or t.layout is not _STRIDED or (gradients and t.requires_grad) or t.is_neg():
                    break
                key += t.dtype, t.shape, t.stride(), t.device
                pointers.append(t.data_ptr())
            else:
                key = tuple(key)
                bound = self.bound.get(key)
                if bound is None:
                    bound = self.bind(key, tensors)
                if bound:
                    found = bound(pointers, tensors, tensors, None, None)
                    return [found] if bound.single else list(found)
        return call(self.name, {**dict(zip(self.names, tensors)), **self.fields}, self.described)

    def bind(self, key, tensors):
        if len(self.bound) >= 1024:
            self.bound.clear()
        given = {**dict(zip(self.names, tensors)), **self.fields}
        found = self.bound[key] = self.operator.bind(given, self.described, tensors)
        return found


@functools.lru_cache(4096)
def site(name, names, fields, described=()):
    """fields, described: pairs."""
    return Site(name, names, fields, described)


def call(name, given, described, scalars=()):
    """An operator on fields by name; descriptions and scalars by name. Returns the list of its results."""
    operator = operators[name]
    tensors = {n: v for n, v in given.items() if isinstance(v, torch.Tensor)}
    if not plain(tensors.values()):
        described = [f"{n}={v}" for n, v in described.items()]
        return operator.call(**{_schema_name(n): v for n, v in given.items()}, **dict(scalars),
                             described=described or None)
    if not torch.is_grad_enabled() or not any(t.requires_grad for t in tensors.values()):
        return operator.kernel(given, described, dict(scalars))
    fields = {n: v for n, v in given.items() if n not in tensors}
    return list(Direct.apply(operator, formulas[name], tuple(tensors), fields, described, dict(scalars), *tensors.values()))


def _writes_only_results(table):
    return any(a.dir == abi.MICA_OUT for a in table.args[0])


operators = {name: Operator(table_of(name)) for name in operations if _writes_only_results(table_of(name))}


formulas = dict.fromkeys(operators)  # or None: it has no gradient, and says so


def autograd(name, formula):
    """Registers a formula, which has what mica._formulas.Formula has, but for the arrays' library."""
    operator = operators[name]
    formulas[name] = formula
    order = operator.fields + operator.table.scalars + ["described"]

    def setup(ctx, inputs, output):
        given, scalars, described = operator.split(inputs, {})
        names = [n for n, _ in operator.results(given, described)]
        differentiate(ctx, operator, formula, given, scalars, described, dict(zip(names, output, strict=True)))

    def run(ctx, gradients):
        found = gradients_of(ctx, gradients)
        # Arguments at the end that were left out are none of the inputs before PyTorch 2.15.
        return tuple(found.get(n) for n in order[:len(ctx.needs_input_grad)])

    torch.library.register_autograd(f"mica::{name}", run, setup_context=setup, lib=_library)
