# SPDX-License-Identifier: Apache-2.0
"""mica for JAX: every operation of the library as a function of JAX's arrays, under jit, grad and vmap.

    import mica.jax as J
    y = J.conv(x, w, pad=(1, 1), epilogue=["bias"], bias=b)
    loss = lambda x: J.norm(x, scale=g).sum()
    jax.jit(jax.grad(loss))(x)
    p, m, v = J.optim(p, grad, m=m, v=v, rule="adamw", lr=lr, step=step)

Arguments are those of mica's own functions (help(mica.conv)), without out, context, stream and options: JAX has its
memory and devices. What an operation changes in place comes back as a result, in the same memory where the argument is
donated. Scalars of the run (alpha, lr, step) may be traced."""

from .._tables import operations
from ._ffi import function

__all__ = list(operations)


def __getattr__(name):
    if name in __all__:
        globals()[name] = found = function(name)
        return found
    raise AttributeError(f"module 'mica.jax' has no attribute {name!r}")


def __dir__():
    return sorted(__all__)
