# SPDX-License-Identifier: Apache-2.0
"""The library's formulas (mica._formulas) as PyTorch's gradients."""

from .._formulas import FORMULAS
from ._library import _OURS, autograd, call, operators, text


class Arrays:
    """What the formulas ask of PyTorch."""

    text = staticmethod(text)

    @staticmethod
    def call(name, described=(), scalars=(), **fields):
        return call(name, {n: v for n, v in fields.items() if v is not None},
                    {n: v for n, v in dict(described).items() if v is not None}, dict(scalars))

    @staticmethod
    def names(name, described=(), **fields):
        given = {n: v for n, v in fields.items() if v is not None}
        return [n for n, _ in operators[name].results(given, dict(described))]

    @staticmethod
    def cast(t, dtype):
        return t.to(dtype)

    @staticmethod
    def dtype(t):
        return _OURS.get(t.dtype)


_call = Arrays.call

for _name in operators:
    autograd(_name, FORMULAS[_name].of(Arrays) if _name in FORMULAS else None)
