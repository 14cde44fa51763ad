# SPDX-License-Identifier: Apache-2.0
"""Losses with the signatures of torch.nn.functional, on the operator `loss`. Input and target broadcast as there, without its
warning. Under autocast they take f32."""

import torch

from ._formulas import _call
from ._functional import _autocast, _autocast_wide
from ._library import text


def _loss(kind, x, target, other=None, reduction="mean", together=True, **more):
    """together: x, target and other broadcast; a field whose value is 0 or False is left out: callers know what that says."""
    dtype, device = x.dtype, x.device.type
    x, target, other = (t if t is None or not t.is_floating_point() else _autocast_wide(t) for t in (x, target, other))
    if together and x.shape != target.shape:
        x, target = torch.broadcast_tensors(x, target)
    y, = _call("loss", kind=kind, x=x, target=target, other=other, reduction=reduction,
               **{n: v for n, v in more.items() if v is not None and (isinstance(v, torch.Tensor) or v)})
    return y if torch.is_autocast_enabled(device) else y.to(dtype)


def _positive(name, value):
    """Of numbers for which the library's 0 means another default."""
    if not value > 0:
        raise NotImplementedError(f"{name}={value}: mica has those above 0")
    return float(value)


def mse_loss(input, target, reduction="mean", weight=None):
    """F.mse_loss."""
    return _loss("mse", input, target, reduction=reduction, weight=weight)


def l1_loss(input, target, reduction="mean", weight=None):
    """F.l1_loss."""
    return _loss("l1", input, target, reduction=reduction, weight=weight)


def smooth_l1_loss(input, target, reduction="mean", beta=1.0):
    """F.smooth_l1_loss; beta=0 is l1_loss."""
    if beta == 0:
        return l1_loss(input, target, reduction)
    return _loss("smooth_l1", input, target, reduction=reduction, beta=_positive("beta", beta))


def huber_loss(input, target, reduction="mean", delta=1.0, weight=None):
    """F.huber_loss."""
    return _loss("huber", input, target, reduction=reduction, beta=_positive("delta", delta), weight=weight)


def binary_cross_entropy(input, target, weight=None, reduction="mean"):
    """F.binary_cross_entropy."""
    return _loss("bce", input, target, reduction=reduction, together=False, weight=weight)


def binary_cross_entropy_with_logits(input, target, weight=None, reduction="mean", pos_weight=None):
    """F.binary_cross_entropy_with_logits."""
    return _loss("bce_logits", input, target, reduction=reduction, together=False, weight=weight, pos_weight=pos_weight)


def kl_div(input, target, reduction="mean", log_target=False):
    """F.kl_div."""
    return _loss("kl_div", input, target, reduction=reduction, log_target=log_target)


def hinge_embedding_loss(input, target, margin=1.0, reduction="mean"):
    """F.hinge_embedding_loss."""
    return _loss("hinge_embedding", input, target, reduction=reduction, margin=_positive("margin", margin))


def soft_margin_loss(input, target, reduction="mean"):
    """F.soft_margin_loss."""
    return _loss("soft_margin", input, target, reduction=reduction)


def margin_ranking_loss(input1, input2, target, margin=0.0, reduction="mean"):
    """F.margin_ranking_loss."""
    return _loss("margin_ranking", input1, target, input2, reduction, margin=float(margin))


def poisson_nll_loss(input, target, log_input=True, full=False, eps=1e-8, reduction="mean"):
    """F.poisson_nll_loss."""
    return _loss("poisson_nll", input, target, reduction=reduction, rates=not log_input, full=full, eps=_positive("eps", eps))


def gaussian_nll_loss(input, target, var, full=False, eps=1e-6, reduction="mean"):
    """F.gaussian_nll_loss of a variance for each element, for each row, or one number. It does not look for variances
    below 0: they count as eps."""
    var = torch.as_tensor(var, dtype=input.dtype, device=input.device)
    if var.dim() == input.dim() - 1 and var.shape == input.shape[:-1]:
        var = var.unsqueeze(-1)
    return _loss("gaussian_nll", input, target, var.expand(input.shape), reduction, full=full, eps=_positive("eps", eps))


def multilabel_soft_margin_loss(input, target, weight=None, reduction="mean"):
    """F.multilabel_soft_margin_loss."""
    return _loss("multilabel_soft_margin", input, target, reduction=reduction, together=False, weight=weight)


def cosine_embedding_loss(input1, input2, target, margin=0.0, reduction="mean"):
    """F.cosine_embedding_loss."""
    return _loss("cosine_embedding", input1, target, input2, reduction, together=False, margin=float(margin))


def triplet_margin_loss(anchor, positive, negative, margin=1.0, p=2.0, eps=1e-6, swap=False, reduction="mean"):
    """F.triplet_margin_loss."""
    return _loss("triplet_margin", anchor, positive, negative, reduction, margin=_positive("margin", margin), p=_positive("p", p),
                 eps=_positive("eps", eps), swap=swap)


def multi_margin_loss(input, target, p=1, margin=1.0, weight=None, reduction="mean"):
    """F.multi_margin_loss."""
    return _loss("multi_margin", input, target, reduction=reduction, together=False, p=float(p),
                 margin=_positive("margin", margin), weight=weight)


def multilabel_margin_loss(input, target, reduction="mean"):
    """F.multilabel_margin_loss."""
    return _loss("multilabel_margin", input, target, reduction=reduction, together=False)


def linear_cross_entropy(input, linear_weight, target, *, linear_bias=None, weight=None, reduction="mean", ignore_index=None,
                         label_smoothing=0.0):
    """F.linear_cross_entropy (PyTorch 2.15's) of class numbers: cross_entropy(linear(input, linear_weight), target), whose logits
    are not in memory. Where a gradient is wanted, both are made beside the loss: reduction is mean or sum then. Under
    autocast the product takes the type that it asks for."""
    for name, value in (("linear_bias", linear_bias), ("weight", weight)):
        if value is not None:
            raise NotImplementedError(f"linear_cross_entropy with {name}")
    if target.is_floating_point() or linear_weight.dim() != 2:
        raise NotImplementedError("linear_cross_entropy of probabilities" if target.is_floating_point() else
                                  f"linear_cross_entropy with a weight of {linear_weight.dim()} dimensions")
    lone, dtype = input.dim() == 1, input.dtype
    x, w = _autocast(input.unsqueeze(0) if lone else input, linear_weight)
    wants = torch.is_grad_enabled() and (x.requires_grad or w.requires_grad)
    loss = _call("linear_cross_entropy", x=x, w=w, labels=target.reshape(-1), reduction=reduction, smoothing=label_smoothing or None,
                 ignore=True, ignore_index=-100 if ignore_index is None else ignore_index,
                 described={"dx": text(x), "dw": text(w)} if wants and reduction != "none" else {})[0]
    loss = loss if torch.is_autocast_enabled(input.device.type) else loss.to(dtype)
    return loss.reshape(target.shape if reduction == "none" else ())
