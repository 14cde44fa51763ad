# SPDX-License-Identifier: Apache-2.0
"""mica for PyTorch: operators with gradients that torch.compile and autocast understand.

    import mica.torch as M
    y = M.conv(x, w, b, padding=1)
    y = M.scaled_dot_product_attention(q, k, v, is_causal=True)
    report = M.replace(model)             # modules that the library has, swapped; what was left, and why
    optimiser = M.AdamW(model.parameters())

Beneath are torch.ops.mica.NAME, one for each operation of the library (mica.torch.operators)."""

from . import _formulas  # noqa: F401 (registers)
from ._functional import (
    activation,
    adaptive_avg_pool,
    avg_pool,
    batch_norm,
    conv,
    conv_transpose,
    cross_entropy,
    ctc_loss,
    group_norm,
    instance_norm,
    interpolate,
    layer_norm,
    linear,
    log_softmax,
    matmul,
    max_pool,
    nll_loss,
    rms_norm,
    rope,
    scaled_dot_product_attention,
    softmax,
)
from ._library import operators
from ._modules import Report, fuse, replace
from ._optim import SGD, Adam, AdamW

__all__ = [
    "SGD", "Adam", "AdamW", "Report", "activation", "adaptive_avg_pool", "avg_pool", "batch_norm", "conv", "conv_transpose",
    "cross_entropy", "ctc_loss", "fuse", "group_norm", "instance_norm", "interpolate", "layer_norm", "linear", "log_softmax",
    "matmul", "max_pool", "nll_loss", "operators", "replace", "rms_norm", "rope", "scaled_dot_product_attention", "softmax",
]
