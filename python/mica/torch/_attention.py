# SPDX-License-Identifier: Apache-2.0
"""The forward of torch.nn.MultiheadAttention."""

import torch

from . import _functional as F
from ._formulas import _call
from ._library import _OURS


def _mask(attn_mask, key_padding_mask, heads):
    """One mask, B x H x Sq x Sk or what broadcasts to it; True, as in the two, is what is left out. Numbers are added."""
    if attn_mask is not None and attn_mask.dim() == 3:  # of each batch item and head
        attn_mask = attn_mask.unflatten(0, (-1, heads))
    padding = None if key_padding_mask is None else key_padding_mask[:, None, None]
    if attn_mask is None or padding is None:
        return padding if attn_mask is None else attn_mask
    if attn_mask.dtype == padding.dtype == torch.bool:
        return attn_mask | padding
    dtype = next(m.dtype for m in (attn_mask, padding) if m.dtype != torch.bool)
    a, b = (torch.zeros(m.shape, dtype=dtype, device=m.device).masked_fill(m, -torch.inf) if m.dtype == torch.bool else m
            for m in (attn_mask, padding))
    return a + b


def _project(self, query, key, value, one):
    bias = self.in_proj_bias
    if self.in_proj_weight is not None:
        if one:  # a product of all three
            return F.linear(query, self.in_proj_weight, bias).chunk(3, -1)
        weights = self.in_proj_weight.chunk(3)
    else:
        weights = self.q_proj_weight, self.k_proj_weight, self.v_proj_weight
    biases = (None,) * 3 if bias is None else bias.chunk(3)
    return [F.linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases)]


def _seen(q, k, v, mask, dropout):
    """Results and weights. What a gradient comes back to, or dropout has a part in, are products with a softmax between."""
    q, k, v = F._autocast(q, k, v)
    scale = q.shape[-1] ** -0.5
    full = None if mask is None else mask.expand(*q.shape[:3], k.shape[2])
    there = None if full is None else ~full if full.dtype == torch.bool else full.to(q.dtype)
    if dropout or torch.is_grad_enabled() and any(t.requires_grad for t in (q, k, v)):
        weights, = _call("softmax", x=F.matmul(q, k.mT), mask=there, axis=3, scale=scale)
        weights = torch.dropout(weights, dropout, True) if dropout else weights
        return F.matmul(weights, v), weights
    given = {"mask" if full.dtype == torch.bool else "bias": there} if full is not None else {}
    return _call("attention", q=q, k=k, v=v, scale=scale, described={"weights": _OURS[q.dtype]}, **given)


def multi_head(self, query, key, value, key_padding_mask=None, need_weights=True, attn_mask=None, average_attn_weights=True,
               is_causal=False):
    """nn.MultiheadAttention's. A query that attends to nothing has zeros; PyTorch has NaN where weights are asked for."""
    if is_causal and attn_mask is None:
        raise RuntimeError("is_causal is a hint about attn_mask, which is not given")
    lone, one = query.dim() == 2, key is query and value is query
    if lone:
        query, key, value = (t.unsqueeze(0) for t in (query, key, value))
        key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
    elif not self.batch_first:
        query, key, value = (t.transpose(0, 1) for t in (query, key, value))
    q, k, v = (t.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2) for t in _project(self, query, key, value, one))
    dropout, weights = self.dropout if self.training else 0.0, None
    causal = is_causal and key_padding_mask is None and not need_weights
    mask = None if causal else _mask(attn_mask, key_padding_mask, self.num_heads)
    if need_weights:
        y, weights = _seen(q, k, v, mask, dropout)
        weights = weights.mean(1) if average_attn_weights else weights
    else:
        mask = ~mask if mask is not None and mask.dtype == torch.bool else mask
        y = F.scaled_dot_product_attention(q, k, v, mask, dropout, causal)
    y = F.linear(y.transpose(1, 2).flatten(2), self.out_proj.weight, self.out_proj.bias)
    if lone:
        return y.squeeze(0), None if weights is None else weights.squeeze(0)
    return y if self.batch_first else y.transpose(0, 1), weights
