# SPDX-License-Identifier: Apache-2.0
"""The operators: one function for each operation of the library, made of its table."""

from . import _arrays
from ._context import as_context, default_context
from ._errors import Invalid
from ._library import abi
from ._plan import Bound, Plan, describe, outputs_by_name
from ._tables import options_key, options_struct

_MOST = 1024  # calls of different kinds that are remembered; plans have a bounded cache of their own


def make(table):
    """The operator of a table. A call whose types, sizes and options were seen before finds its plan by
    them and has nothing left to do but pointers."""
    positional, tensors, scalar_names = table.positional, table.tensors, frozenset(table.scalars)
    lookers, looker = _arrays._lookers, _arrays.looker
    cache = {}
    most = len(positional)

    def operator(*args, **kwargs):
        key, pointers, held, values, scalars, stream = [], [], [], [], None, None
        if len(args) > most:
            raise TypeError(f"{table.python}() takes {most} arguments by place, {len(args)} were given")
        for value in args:
            look = lookers.get(type(value)) or looker(value)
            if look is None:
                key.append(value)
            else:
                k, pointer, _, array = look(value)
                key.append(k)
                pointers.append(pointer)
                held.append(array)
                values.append(value)
        for name, value in kwargs.items():
            if value is None:
                continue
            if name in tensors:
                key.append(name)
                look = lookers.get(type(value)) or looker(value)
                if look is None:
                    if isinstance(value, (list, tuple, dict)) and name == "out":
                        return operator(*args, **spread(args, kwargs))
                    key.append(value)
                else:
                    k, pointer, _, array = look(value)
                    key.append(k)
                    pointers.append(pointer)
                    held.append(array)
                    values.append(value)
            elif name in scalar_names:
                if scalars is None:
                    scalars = {}
                scalars[name] = value
            elif name == "stream":
                stream = value
            elif name == "out":
                look = lookers.get(type(value)) or looker(value)
                if look is None:
                    return operator(*args, **spread(args, kwargs))
                k, pointer, _, array = look(value)
                key += ("out", k)
                pointers.append(pointer)
                held.append(array)
                values.append(value)
            else:
                key.append(name)
                kind = type(value)
                key.append(tuple(value) if kind is list else options_key(value) if name == "options" else value)
        beta = scalars is not None and scalars.get("beta", 0) != 0
        key.append(beta)
        key = tuple(key)
        try:
            bound = cache.get(key)
        except TypeError:
            bound = None
            key = None
        if bound is None:
            bound = bind(args, kwargs, beta)
            if len(cache) >= _MOST:
                cache.clear()
            if key is not None:
                cache[key] = bound
        return bound(pointers, held, values, scalars, stream)

    def outputs(given):
        """Arguments that this pass writes."""
        args = table.args[table.pass_number(given.get("pass_"))]
        found = [a for a in args if a.dir == abi.MICA_OUT]
        return found or [a for a in args if a.dir == abi.MICA_INOUT]

    def spread(args, kwargs):
        """out= as names of results."""
        given = dict(kwargs)
        out = given.pop("out")
        known = {**dict(zip(positional, args)), **given}
        given.update(outputs_by_name(table, outputs(given), out, known))
        return given

    def bind(args, kwargs, beta):
        given = dict(zip(positional, args))
        context = options = None
        first = None
        if "out" in kwargs and "out" not in table.field:
            first = outputs({**given, **kwargs})[0].python
        for name, value in kwargs.items():
            if value is None or name in scalar_names:
                continue
            if name == "out" and first:
                if kwargs.get(first) is not None or given.get(first) is not None:
                    raise TypeError(f"{first} is given twice, in out too")
                given[first] = value
                continue
            if name in given:
                raise TypeError(f"{table.python}() got {name} by place and by name")
            if name == "context":
                context = as_context(value)
            elif name == "options":
                options = value
            elif name != "stream":
                given[name] = value
        given = {name: value for name, value in given.items() if value is not None}
        for name in given:
            if name not in table.field:
                raise table.unknown(name)
        line, device = describe(table, given)
        if device is None:
            raise Invalid(f"{table.python}: no array was given, only descriptions; mica.plan takes these")
        if context is None:
            context = default_context(device)
        arrays = {}
        for name, value in given.items():
            if name in tensors:
                look = looker(value)
                if look is not None:
                    arrays[name] = (value, *look(value)[2:])
        plan = Plan(table, line, context, options_struct(table, options))
        return Bound(plan, arrays, beta)

    operator.__name__ = operator.__qualname__ = table.python
    operator.__module__ = "mica"
    operator.__doc__ = table.docstring()
    operator.__signature__ = table.signature()
    operator._mica_table = table
    operator._mica_bind = bind
    return operator
