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
    embedding,
    fold,
    fractional_max_pool,
    group_norm,
    instance_norm,
    interpolate,
    layer_norm,
    linear,
    local_response_norm,
    log_softmax,
    lp_pool,
    matmul,
    max_pool,
    max_unpool,
    nll_loss,
    rms_norm,
    rope,
    scaled_dot_product_attention,
    softmax,
    unfold,
)
from ._library import operators
from ._losses import (
    binary_cross_entropy,
    binary_cross_entropy_with_logits,
    cosine_embedding_loss,
    gaussian_nll_loss,
    hinge_embedding_loss,
    huber_loss,
    kl_div,
    l1_loss,
    linear_cross_entropy,
    margin_ranking_loss,
    mse_loss,
    multi_margin_loss,
    multilabel_margin_loss,
    multilabel_soft_margin_loss,
    poisson_nll_loss,
    smooth_l1_loss,
    soft_margin_loss,
    triplet_margin_loss,
)
from ._modules import Report, fuse, replace
from ._optim import SGD, Adam, AdamW

__all__ = [
    "SGD", "Adam", "AdamW", "Report", "activation", "adaptive_avg_pool", "avg_pool", "batch_norm", "binary_cross_entropy",
    "binary_cross_entropy_with_logits", "conv", "conv_transpose", "cosine_embedding_loss", "cross_entropy", "ctc_loss",
    "embedding", "fold", "fractional_max_pool", "fuse", "gaussian_nll_loss", "group_norm", "hinge_embedding_loss", "huber_loss",
    "instance_norm", "interpolate", "kl_div", "l1_loss", "layer_norm", "linear", "linear_cross_entropy", "local_response_norm",
    "log_softmax", "lp_pool", "margin_ranking_loss", "matmul", "max_pool", "max_unpool", "mse_loss", "multi_margin_loss",
    "multilabel_margin_loss", "multilabel_soft_margin_loss", "nll_loss", "operators", "poisson_nll_loss", "replace",
    "rms_norm", "rope", "scaled_dot_product_attention", "smooth_l1_loss", "soft_margin_loss", "softmax",
    "triplet_margin_loss", "unfold",
]
