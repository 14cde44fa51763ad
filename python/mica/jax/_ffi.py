# SPDX-License-Identifier: Apache-2.0
"""Operations of the library as calls of XLA through jax.ffi. A call is the problem line with what each operand is; its
handler (lib/libmica_xla.so, python/native/xla.c) finds the plan and runs it on XLA's buffers, without Python."""

import ctypes
import functools
import os
from collections import namedtuple

import jax
import jax.numpy as jnp
import numpy as np

from .._arrays import _FOREIGN, _NAMES
from .._errors import Invalid
from .._formulas import FORMULAS
from .._library import HERE, abi
from .._tables import inferred, table_of
from .._tensor import Tensor
from ._batch import rule_of

_TARGET = "mica"


def _register():
    file = os.path.join(HERE, "lib", "libmica_xla.so")
    try:
        native = ctypes.CDLL(file)  # libmica is loaded, so that it finds that one
    except OSError as error:
        raise ImportError(f"mica.jax needs {file}, which a wheel and a build bring: {error}") from None
    capsule = jax.ffi.pycapsule
    jax.ffi.register_ffi_target(
        _TARGET, {"instantiate": capsule(native.mica_xla_cpu_instantiate), "execute": capsule(native.mica_xla_cpu)},
        platform="cpu")
    jax.ffi.register_ffi_target(_TARGET, capsule(native.mica_xla_cuda), platform="CUDA")


_register()


def _dtype(ours):
    return jnp.dtype(_FOREIGN[ours])


def _tensor(aval, name="an array"):
    """An array, real or traced, as a problem line describes it: dense, last dimension fastest."""
    ours = _NAMES.get(jnp.dtype(aval.dtype).name)
    if ours is None:
        raise Invalid(f"{name} has elements of type {aval.dtype}; mica takes {', '.join(_NAMES)}")
    return Tensor(ours, aval.shape)


class Arrays:
    """What the formulas ask of JAX."""

    @staticmethod
    def call(name, described=(), scalars=(), **fields):
        given = {n: v for n, v in {**fields, **dict(described)}.items() if v is not None}
        found = function(name)(**given, **dict(scalars))
        return list(found) if isinstance(found, tuple) else [found]

    @staticmethod
    def names(name, described=(), **fields):
        table = table_of(name)
        given = {n: _tensor(v, n) if n in table.tensors else v for n, v in fields.items() if v is not None}
        return [n for n, _ in inferred(table, {**given, **dict(described)})]

    @staticmethod
    def text(x):
        tensor = _tensor(x)
        return ":".join([tensor.dtype] + ["x".join(map(str, tensor.shape))] * bool(tensor.shape))

    @staticmethod
    def cast(x, dtype):
        return x.astype(dtype)

    @staticmethod
    def dtype(x):
        return _NAMES.get(jnp.dtype(x.dtype).name)


# ---- a call ----


class Call(namedtuple("Call", "name names fields described scalars traced")):
    """All of a call but its arrays, in tuples, so that JAX finds again what it has traced. names: of the operands;
    fields, described, scalars: pairs; traced: scalars that are operands, after those of names."""

    @property
    def table(self):
        return table_of(self.name)

    def results(self, avals):
        """The description in full, and (name, tensor, whether in place) of the results."""
        table = self.table
        given = {n: _tensor(a, n) for n, a in zip(self.names, avals)}
        given.update(self.fields)
        given.update(self.described)
        found = inferred(table, given, (abi.MICA_OUT, abi.MICA_INOUT))
        # Another order in memory than XLA's is asked for no result.
        for name, tensor in found:
            dense = Tensor(tensor.dtype, tensor.shape)
            if tensor.strides != dense.strides and name not in self.names:
                given[name] = dense
        return given, [(n, t, n in self.names) for n, t in found]


def _run(call, *operands):
    """The custom call itself."""
    table = call.table
    arrays, numbers = operands[: len(call.names)], operands[len(call.names):]
    given, results = call.results(arrays)
    scalars = dict(zip(table.scalars, table.scalar_defaults))
    scalars.update(call.scalars)
    places = [table.arg_index[n] for n in call.names] + [-1 - table.scalars.index(n) for n in call.traced]
    places += [table.arg_index[n] for n, *_ in results]
    attributes = {"line": table.line(given), "places": np.array(places, np.int32)}
    if scalars:
        attributes["scalars"] = np.array(list(scalars.values()), np.float64)
    aliases = {call.names.index(n): i for i, (n, _, same) in enumerate(results) if same}
    shapes = [jax.ShapeDtypeStruct(t.shape, _dtype(t.dtype)) for _, t, _ in results]
    return tuple(jax.ffi.ffi_call(_TARGET, shapes, input_output_aliases=aliases, vmap_method="sequential")(
        *arrays, *numbers, **attributes))


# ---- vmap ----


def _with_dimension(text, rule, size):
    """A described result of one element as that of all."""
    if ":" not in text:
        return text
    tensor = Tensor(text)
    shape = (size, *tensor.shape) if rule.front else (size * tensor.shape[0], *tensor.shape[1:])
    return f"{tensor.dtype}:{'x'.join(map(str, shape))}"


def _batched(call, size, mapped, operands):
    """The call of all elements at once, or None where the operation has no dimension for that. Mapped operands have the
    dimension in front."""
    if any(mapped[len(call.names):]):
        return None
    shapes = [o.shape[1:] if m else o.shape for o, m in zip(operands, mapped)]
    avals = [jax.ShapeDtypeStruct(s, o.dtype) for s, o in zip(shapes, operands)]
    results = [n for n, *_ in call.results(avals[: len(call.names)])[1]]
    arrays = {n: (len(s), m) for n, s, m in zip(call.names, shapes, mapped)}
    rule = rule_of(call.name, dict(call.fields), arrays, results)
    if rule is None or any(n not in rule.batched for n, _ in call.described):
        return None
    whole, rank = [], max(len(s) for n, s in zip(call.names, shapes) if n in rule.batched)
    for name, o, m, shape in zip(call.names, operands, mapped, shapes):
        if name in rule.batched and rule.front:
            # Ranks of batches differ where one is broadcast; without the dimension an operand still is.
            o = o.reshape((size,) + (1,) * (rank - len(shape)) + shape) if m else o if _broadcasts(call) else _repeated(o, size)
        elif name in rule.batched:
            o = o if m else _repeated(o, size)
            o = o.reshape((size * shape[0],) + shape[1:])
        whole.append(o)
    whole += operands[len(call.names):]
    described = tuple((n, _with_dimension(t, rule, size)) for n, t in call.described)
    fields = tuple(rule.fields(dict(call.fields)).items())
    found = _raw(call._replace(fields=fields, described=described))(*whole)
    if rule.front:
        return found
    return tuple(r.reshape((size, r.shape[0] // max(size, 1)) + r.shape[1:]) for r in found)


def _broadcasts(call):
    """Whether a matrix without batches stands for all of them."""
    return "x" not in call.names and "a" in call.names


def _repeated(o, size):
    return jnp.broadcast_to(o, (size, *o.shape))


@functools.lru_cache(4096)
def _raw(call):
    """The custom call with its rule for vmap."""
    run = jax.custom_batching.custom_vmap(functools.partial(_run, call))

    @run.def_vmap
    def rule(size, mapped, *operands):
        found = _batched(call, size, mapped, operands)
        if found is None:
            def one(some):
                some = iter(some)
                return run(*(next(some) if m else o for m, o in zip(mapped, operands)))

            found = jax.lax.map(one, [o for m, o in zip(mapped, operands) if m])
        return found, (True,) * len(found)

    return run


# ---- gradients ----


@jax.tree_util.register_static
class _Static:
    """What a formula keeps beside arrays. A trace knows it by its text."""

    def __init__(self, value):
        self.value = value
        self.key = repr(value)

    def __eq__(self, other):
        return isinstance(other, _Static) and self.key == other.key

    def __hash__(self):
        return hash(self.key)


@functools.lru_cache(4096)
def _once(call):
    """The custom call inside of what is differentiated already."""
    outer = jax.custom_vjp(_raw(call))

    def forward(*operands):
        raise NotImplementedError(f"mica.jax.{call.table.python}: the gradient of a gradient")

    outer.defvjp(forward, lambda kept, gradients: None)
    return outer


@functools.lru_cache(4096)
def _differentiable(call):
    """The custom call with the library's own backward pass."""
    table, raw = call.table, _raw(call)
    outer = jax.custom_vjp(raw)

    def forward(*operands):
        if call.name not in FORMULAS:
            raise NotImplementedError(f"mica.jax.{table.python} has no gradient")
        fields = dict(call.fields)
        formula = FORMULAS[call.name].of_pass(table, fields)
        if formula is None:
            raise NotImplementedError(f"mica.jax.{table.python}: the gradient of a gradient")
        values = [o.value for o in operands]
        given = {**dict(zip(call.names, values)), **fields}
        described = {**{n: t for n, t in formula.wants(Arrays, given).items() if n not in given}, **dict(call.described)}
        full = call._replace(described=tuple(sorted(described.items())))
        names = [n for n, *_ in full.results(values[: len(call.names)])[1]]
        asked = [n for n, *_ in call.results(values[: len(call.names)])[1]]
        found = _once(full)(*values)
        if call.traced:
            raise NotImplementedError(f"mica.jax.{table.python}: no gradient with scalars that are traced")
        needed = [n for n, o in zip(call.names, operands) if o.perturbed and jnp.issubdtype(o.value.dtype, jnp.inexact)]
        formula.known(needed)
        kept, others = formula.saved(Arrays, given, dict(call.scalars), described, dict(zip(names, found, strict=True)))
        results = tuple(r for n, r in zip(names, found) if n in asked)
        return results, (list(kept), _Static((others, needed, asked)), values)

    def backward(residuals, gradients):
        kept, static, values = residuals
        others, needed, asked = static.value
        formula = FORMULAS[call.name].of_pass(table, dict(call.fields))
        arrived = {}
        for name, g in zip(asked, gradients):
            zero = isinstance(g, jax.custom_derivatives.SymbolicZero)
            if name in formula.results:
                arrived[name] = jnp.zeros(g.shape, g.dtype) if zero else g
            elif not zero and g.dtype != jax.dtypes.float0:
                raise NotImplementedError(f"mica.jax.{table.python}: no gradient comes through {name}; it does through "
                                          f"{', '.join(sorted(formula.results))}: jax.lax.stop_gradient({name})")
        found = formula.backward(Arrays, kept, others, arrived, set(needed))
        gradients = [found.get(n) for n in call.names] + [None] * len(call.traced)
        return tuple(None if g is None else g.astype(v.dtype) for g, v in zip(gradients, values))

    outer.defvjp(forward, backward, symbolic_zeros=True)
    return outer


# ---- functions ----


def _hashable(value):
    return tuple(value) if isinstance(value, (list, tuple)) else value


def _is_array(value):
    return isinstance(value, (jax.Array, np.ndarray, np.generic))


@functools.lru_cache(None)
def function(name):
    """The operation as a function of JAX's arrays."""
    table = table_of(name)

    def operator(*args, **kwargs):
        if len(args) > len(table.positional):
            raise TypeError(f"{table.python}() takes {len(table.positional)} arguments by place, {len(args)} were given")
        given = dict(zip(table.positional, args))
        for n, v in kwargs.items():
            if given.get(n) is not None:
                raise TypeError(f"{table.python}() got {n} by place and by name")
            if n not in table.field and n not in table.scalars:
                raise table.unknown(n)
            given[n] = v
        given = {n: v for n, v in given.items() if v is not None}
        arrays, fields, described, scalars, traced = {}, [], [], [], {}
        for n, v in given.items():
            if n in table.scalars:
                if _is_array(v):
                    traced[n] = jnp.asarray(v, v.dtype if v.dtype == np.float64 else np.float32)
                else:
                    scalars.append((n, float(v)))
            elif n not in table.tensors:
                fields.append((n, _hashable(v)))
            elif isinstance(v, (str, Tensor)):
                described.append((n, v if isinstance(v, str) else v.text(n)))
            elif _is_array(v):
                arrays[n] = jnp.asarray(v)
            else:
                raise Invalid(f"{table.python}: {n} is a {type(v).__name__}; it is an array, or a description as \"f32:2x3\"")
        if not arrays:
            raise Invalid(f"{table.python}: no array was given, only descriptions")
        for n, v in traced.items():
            if v.ndim:
                raise Invalid(f"{table.python}: {n} has {v.ndim} dimensions; it is a number")
        call = Call(name, tuple(arrays), tuple(fields), tuple(described), tuple(scalars), tuple(traced))
        found = _differentiable(call)(*arrays.values(), *traced.values())
        if len(found) == 1:
            return found[0]
        names = [n for n, *_ in call.results(arrays.values())[1]]
        return _results(table.python, tuple(names))(*found)

    operator.__name__ = operator.__qualname__ = table.python
    operator.__module__ = "mica.jax"
    operator.__doc__ = table.docstring()
    signature = table.signature()
    operator.__signature__ = signature.replace(parameters=[
        p for n, p in signature.parameters.items() if n in table.field or n in table.scalars])
    return operator


@functools.lru_cache(None)
def _results(name, names):
    return namedtuple(f"{name}_results", names)
