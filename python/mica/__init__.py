# SPDX-License-Identifier: Apache-2.0
"""mica: deep-learning primitives for CPUs and NVIDIA GPUs.

    import mica, numpy as np
    y = mica.conv(x, w, pad=(1, 1), epilogue=["bias", "relu"], bias=b)

Each operation of the library is a function here, made of the library's own tables: help(mica.conv).
Arrays are those of NumPy, PyTorch, CuPy, JAX, or anything else with DLPack or an array interface, as
they are; results are arrays of the library that the first input came from. A call plans once for each
kind of its inputs; mica.plan gives plans as objects."""

from ._arrays import Array, view
from ._context import Context
from ._errors import Error
from ._errors import classes as _classes
from ._library import version as __version__
from ._plan import Plan, Prepared, plan
from ._tables import operations as _operations
from ._tables import python_name as _python_name
from ._tensor import Tensor
from ._tools import explain, info, tune

_own = ["Array", "Context", "Error", "Plan", "Prepared", "Tensor", "explain", "info", "operations", "plan", "tune", "view"]
for _class in _classes.values():
    globals()[_class.__name__] = _class
    _own.append(_class.__name__)
#: the operations' names in this package
operations = tuple(_python_name(name) for name in _operations)
for _name in operations:
    if _name in globals():
        raise ImportError(f"the library has an operation {_name}, which is a name of the package too")
__all__ = sorted([*_own, *operations])
del _class, _name


def __getattr__(name):
    # An operator is made when it is first asked for.
    if name not in operations:
        hint = ""
        if not name.startswith("_"):
            from ._tables import nearest, uses_of

            near = next(uses_of(name), None) or nearest(name, __all__)
            hint = f"; did you mean {near}?" if near else ""
        raise AttributeError(f"module 'mica' has no attribute {name!r}{hint}")
    from ._operators import make
    from ._tables import table_of

    made = globals()[name] = make(table_of(_operations[operations.index(name)]))
    return made


def __dir__():
    return sorted({*globals(), *operations})
