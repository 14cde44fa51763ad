# SPDX-License-Identifier: Apache-2.0
"""replace(model): modules whose operation the library has get a forward of its own. The module stays: its
parameters, buffers, name, hooks and state dict do not change."""

import operator
import types

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from . import _functional as F
from . import _losses as L
from ._attention import multi_head


def _conv(self, input):
    return F._conv(input, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


def _conv_transpose(self, input, output_size=None):
    padding = self.output_padding
    if output_size is not None:
        rank = self.weight.dim() - 2
        padding = self._output_padding(input, output_size, self.stride, self.padding, self.kernel_size, rank, self.dilation)
    return F._conv(input, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups, True, padding)


def _linear(self, input):
    return F.linear(input, self.weight, self.bias)


def _layer_norm(self, input):
    return F.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)


def _rms_norm(self, input):
    return F.rms_norm(input, self.normalized_shape, self.weight, self.eps)


def _group_norm(self, input):
    return F.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)


def _batch_norm(self, input, residual=None, act=None):
    self._check_input_dim(input)
    training = self.training or self.running_mean is None
    if self.training and self.num_batches_tracked is not None:
        self.num_batches_tracked.add_(1)
    momentum = 1.0 / float(self.num_batches_tracked) if self.momentum is None and self.training else self.momentum
    return F.batch_norm(input, self.running_mean, self.running_var, self.weight, self.bias, training, momentum, self.eps,
                        act=act, residual=residual)


def _batch_norm_relu(self, input, residual=None):
    if residual is not None and (residual.shape, residual.dtype) != (input.shape, input.dtype):
        return F.activation(_batch_norm(self, input) + residual, "relu")
    return _batch_norm(self, input, residual, "relu")


def _instance_norm(self, input):
    self._check_input_dim(input)
    lone = input.dim() == self._get_no_batch_dim()
    y = F.instance_norm(input.unsqueeze(0) if lone else input, None, None, self.weight, self.bias, eps=self.eps)
    return y.squeeze(0) if lone else y


def _embedding(self, input):
    return F.embedding(input, self.weight, self.padding_idx)


def _max_pool(self, input):
    return F.max_pool(input, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode, self.return_indices)


def _avg_pool(self, input):
    return F.avg_pool(input, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad,
                      getattr(self, "divisor_override", None))


def _lp_pool(self, input):
    return F.lp_pool(input, self.norm_type, self.kernel_size, self.stride, self.ceil_mode)


def _max_unpool(self, input, indices, output_size=None):
    return F.max_unpool(input, indices, self.kernel_size, self.stride, self.padding, output_size)


def _fractional_max_pool(self, input):
    return F.fractional_max_pool(input, self.kernel_size, self.output_size, self.output_ratio, self.return_indices,
                                 self._random_samples)


def _fold(self, input):
    return F.fold(input, self.output_size, self.kernel_size, self.dilation, self.padding, self.stride)


def _unfold(self, input):
    return F.unfold(input, self.kernel_size, self.dilation, self.padding, self.stride)


def _adaptive_avg_pool(self, input):
    return F.adaptive_avg_pool(input, self.output_size)


def _local_response_norm(self, input):
    return F.local_response_norm(input, self.size, self.alpha, self.beta, self.k)


def _upsample(self, input):
    return F.interpolate(input, self.size, self.scale_factor, self.mode, self.align_corners, self.recompute_scale_factor)


def _softmax(self, input):
    return F.softmax(input, self.dim)


def _log_softmax(self, input):
    return F.log_softmax(input, self.dim)


def _cross_entropy(self, input, target):
    return F.cross_entropy(input, target, self.weight, self.ignore_index, self.reduction, self.label_smoothing)


def _nll(self, input, target):
    return F.nll_loss(input, target, self.weight, self.ignore_index, self.reduction)


def _ctc(self, log_probs, targets, input_lengths, target_lengths):
    return F.ctc_loss(log_probs, targets, input_lengths, target_lengths, self.blank, self.reduction, self.zero_infinity)


def _recurrent(self, input, hx=None):
    """Batches, single sequences and packed ones, as PyTorch's modules take them."""
    cell = {"LSTM": "lstm", "GRU": "gru"}.get(self.mode, getattr(self, "nonlinearity", None))
    packed = isinstance(input, PackedSequence)
    x, lengths = pad_packed_sequence(input, self.batch_first) if packed else (input, None)
    lone = x.dim() == 2
    if lone:
        x = x.unsqueeze(1)
    elif self.batch_first:
        x = x.transpose(0, 1)
    h, c = hx if cell == "lstm" and hx is not None else (hx, None)
    if lone and h is not None:
        h, c = h.unsqueeze(1), None if c is None else c.unsqueeze(1)
    y, *last = F._recurrent(cell, x, self._flat_weights, h, c, None if lengths is None else lengths.to(x.device), self.bias,
                           hidden=self.hidden_size, layers=self.num_layers, bidirectional=self.bidirectional,
                           projection=getattr(self, "proj_size", 0), dropout=float(self.dropout) if self.training else 0)
    if lone:
        y, last = y.squeeze(1), [s.squeeze(1) for s in last]
    elif self.batch_first:
        y = y.transpose(0, 1)
    if packed:
        y = pack_padded_sequence(y, lengths, self.batch_first, enforce_sorted=input.sorted_indices is None)
    return y, tuple(last) if cell == "lstm" else last[0]


def _loss(function, *fields):
    """function: takes what the module's forward does, then the module's fields by their names."""

    def forward(self, *inputs):
        return function(*inputs, **{n: getattr(self, n) for n in (*fields, "reduction")})

    return forward


def _linear_cross_entropy(self, input, target):
    return L.linear_cross_entropy(input, self.linear.weight, target, reduction=self.reduction, ignore_index=self.ignore_index,
                                  label_smoothing=self.label_smoothing)


def _act(name, a=None):
    def forward(self, input):
        return F.activation(input, name if isinstance(name, str) else name(self), None if a is None else a(self))

    return forward


# By class: the forward, and what keeps a module of the class from having it ("" or why).
_FORWARDS = {
    nn.Conv1d: _conv, nn.Conv2d: _conv, nn.Conv3d: _conv, nn.ConvTranspose1d: _conv_transpose,
    nn.ConvTranspose2d: _conv_transpose, nn.ConvTranspose3d: _conv_transpose, nn.Linear: _linear,
    nn.modules.linear.NonDynamicallyQuantizableLinear: _linear,
    nn.LayerNorm: _layer_norm, nn.GroupNorm: _group_norm, nn.BatchNorm1d: _batch_norm, nn.BatchNorm2d: _batch_norm,
    nn.BatchNorm3d: _batch_norm, nn.MaxPool1d: _max_pool, nn.MaxPool2d: _max_pool, nn.MaxPool3d: _max_pool,
    nn.AvgPool1d: _avg_pool, nn.AvgPool2d: _avg_pool, nn.AvgPool3d: _avg_pool,
    nn.LPPool1d: _lp_pool, nn.LPPool2d: _lp_pool, nn.LPPool3d: _lp_pool,
    nn.FractionalMaxPool2d: _fractional_max_pool, nn.FractionalMaxPool3d: _fractional_max_pool,
    nn.MaxUnpool1d: _max_unpool, nn.MaxUnpool2d: _max_unpool, nn.MaxUnpool3d: _max_unpool, nn.Fold: _fold, nn.Unfold: _unfold,
    nn.AdaptiveAvgPool1d: _adaptive_avg_pool, nn.AdaptiveAvgPool2d: _adaptive_avg_pool,
    nn.AdaptiveAvgPool3d: _adaptive_avg_pool, nn.LocalResponseNorm: _local_response_norm,
    nn.Upsample: _upsample, nn.UpsamplingNearest2d: _upsample,
    nn.UpsamplingBilinear2d: _upsample, nn.Softmax: _softmax, nn.LogSoftmax: _log_softmax, nn.CTCLoss: _ctc,
    nn.CrossEntropyLoss: _cross_entropy, nn.NLLLoss: _nll, nn.ReLU: _act("relu"), nn.SiLU: _act("silu"),
    nn.Sigmoid: _act("sigmoid"),
    nn.Tanh: _act("tanh"), nn.ELU: _act("elu", lambda m: m.alpha), nn.SELU: _act("selu"), nn.Mish: _act("mish"),
    nn.LeakyReLU: _act("leaky_relu", lambda m: m.negative_slope), nn.Hardswish: _act("hard_swish"),
    nn.Hardsigmoid: _act("hard_sigmoid"), nn.ReLU6: _act("relu6"), nn.Softsign: _act("softsign"),
    nn.MSELoss: _loss(L.mse_loss), nn.L1Loss: _loss(L.l1_loss), nn.SmoothL1Loss: _loss(L.smooth_l1_loss, "beta"),
    nn.HuberLoss: _loss(L.huber_loss, "delta"), nn.BCELoss: _loss(L.binary_cross_entropy, "weight"),
    nn.BCEWithLogitsLoss: _loss(L.binary_cross_entropy_with_logits, "weight", "pos_weight"),
    nn.KLDivLoss: _loss(L.kl_div, "log_target"), nn.HingeEmbeddingLoss: _loss(L.hinge_embedding_loss, "margin"),
    nn.SoftMarginLoss: _loss(L.soft_margin_loss), nn.MarginRankingLoss: _loss(L.margin_ranking_loss, "margin"),
    nn.PoissonNLLLoss: _loss(L.poisson_nll_loss, "log_input", "full", "eps"),
    nn.GaussianNLLLoss: _loss(L.gaussian_nll_loss, "full", "eps"),
    nn.MultiLabelSoftMarginLoss: _loss(L.multilabel_soft_margin_loss, "weight"),
    nn.CosineEmbeddingLoss: _loss(L.cosine_embedding_loss, "margin"),
    nn.TripletMarginLoss: _loss(L.triplet_margin_loss, "margin", "p", "eps", "swap"),
    nn.MultiMarginLoss: _loss(L.multi_margin_loss, "p", "margin", "weight"), nn.MultiLabelMarginLoss: _loss(L.multilabel_margin_loss),
    nn.InstanceNorm1d: _instance_norm, nn.InstanceNorm2d: _instance_norm, nn.InstanceNorm3d: _instance_norm,
    nn.Embedding: _embedding, nn.MultiheadAttention: multi_head, nn.RNN: _recurrent, nn.LSTM: _recurrent, nn.GRU: _recurrent,
    nn.GELU: _act(lambda m: "gelu_tanh" if m.approximate == "tanh" else "gelu"),
}
# Of losses: what mica has above 0 alone.
_ABOVE_ZERO = {nn.HuberLoss: ("delta",), nn.HingeEmbeddingLoss: ("margin",), nn.PoissonNLLLoss: ("eps",), nn.GaussianNLLLoss: ("eps",),
               nn.TripletMarginLoss: ("margin", "eps"), nn.MultiMarginLoss: ("margin",)}
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_RELU = (torch.relu, torch.relu_, torch.nn.functional.relu, "relu", "relu_")
_ADD = (operator.add, operator.iadd, torch.add, "add", "add_")
if hasattr(nn, "RMSNorm"):
    _FORWARDS[nn.RMSNorm] = _rms_norm
if hasattr(nn, "LinearCrossEntropyLoss"):
    _FORWARDS[nn.LinearCrossEntropyLoss] = _linear_cross_entropy
_NOTHING_TO_DO = (nn.Identity, nn.Dropout, nn.Flatten, nn.Unflatten)


def _why_not(module):
    if getattr(module, "padding_mode", "zeros") != "zeros":
        return f"padding_mode={module.padding_mode!r}; mica pads with zeros"
    if (getattr(module, "divisor_override", None) or 1) < 1:
        return f"divisor_override={module.divisor_override}"
    if isinstance(module, (nn.Softmax, nn.LogSoftmax)) and module.dim is None:
        return "dim=None"
    if isinstance(module, (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)) and module.track_running_stats:
        return "running statistics"
    if type(module).__name__ == "LinearCrossEntropyLoss":
        for name, value in ("bias", module.linear.bias), ("weight", module.weight), ("out_features", module.out_features or None):
            if value is not None:
                return name
    if isinstance(module, nn.MultiheadAttention) and (module.bias_k is not None or module.add_zero_attn):
        return "add_bias_kv" if module.bias_k is not None else "add_zero_attn"
    for name in "max_norm", "scale_grad_by_freq", "sparse":
        if isinstance(module, nn.Embedding) and getattr(module, name):
            return name
    for name in _ABOVE_ZERO.get(type(module), ()):
        if not getattr(module, name) > 0:
            return f"{name}={getattr(module, name)}"
    return ""


class Report:
    """What replace() or fuse() did: replaced (name -> what it was), left (name -> why)."""

    def __init__(self):
        self.replaced, self.left = {}, {}

    def __repr__(self):
        lines = [f"replaced {len(self.replaced)} modules, left {len(self.left)}"]
        lines += [f"  {name}: {why}" for name, why in self.left.items()]
        return "\n".join(lines)


def replace(model, forwards=None):
    """Gives each supported module of the model the library's forward, in place; returns a Report. The inputs of a
    module may still be refused when it runs: its types and devices are not known before.

    forwards: for classes that are not PyTorch's own, by class: a function of the module and its inputs, or the class of
    torch.nn that it does the same as.

        M.replace(model, {LlamaRMSNorm: lambda self, x: M.rms_norm(x, self.weight.shape, self.weight, self.variance_epsilon),
                          timm.layers.LayerNorm: torch.nn.LayerNorm})"""
    report, own = Report(), {}
    for kind, forward in (forwards or {}).items():
        own[kind] = _FORWARDS.get(forward, forward)
        if isinstance(own[kind], type):
            raise ValueError(f"forwards: {kind.__name__} as {forward.__name__}, which mica has not")
    for name, module in model.named_modules():
        forward = own.get(type(module)) or _FORWARDS.get(type(module))
        if forward is None:
            known = next((c.__name__ for c in _FORWARDS if isinstance(module, c)), None)
            if known:
                report.left[name] = f"{type(module).__name__}, a class derived from {known}, may do something else"
            elif not any(module.children()) and not isinstance(module, _NOTHING_TO_DO):
                report.left[name] = f"mica has no {type(module).__name__}"
            continue
        why = _why_not(module)
        if why:
            report.left[name] = f"{type(module).__name__}: {why}"
            continue
        module.forward = types.MethodType(forward, module)
        report.replaced[name] = type(module).__name__
    return report


def _only_user(node):
    return next(iter(node.users)) if len(node.users) == 1 else None


def _is_relu(node, modules):
    if node.op == "call_module":
        return type(modules[node.target]) is nn.ReLU
    return node.op in ("call_function", "call_method") and node.target in _RELU


def _summands(node):
    """Of an addition of two tensors; else none."""
    from torch.fx import Node

    if node.op not in ("call_function", "call_method") or node.target not in _ADD or node.kwargs or len(node.args) != 2:
        return ()
    return node.args if all(isinstance(a, Node) for a in node.args) else ()


def fuse(model):
    """Each batch norm of the model takes the ReLU that follows it into its own pass, and an addition between them: what
    residual networks are made of. The model stays, with its modules, parameters and state dict; its forward becomes what
    torch.fx traces of it, which control flow that depends on data forbids. After replace(); returns a Report."""
    from torch import fx

    traced, report = fx.symbolic_trace(model), Report()
    modules, graph = dict(model.named_modules()), traced.graph
    calls = [n.target for n in graph.nodes if n.op == "call_module"]
    for norm in list(graph.nodes):
        if norm.op != "call_module" or type(modules[norm.target]) not in _NORMS:
            continue
        user, residual = _only_user(norm), None
        end = user
        if user is not None and _summands(user):
            residual = next((a for a in _summands(user) if a is not norm), None)
            end = _only_user(user) if residual is not None else None
        if calls.count(norm.target) > 1 or end is None or not _is_relu(end, modules):
            report.left[norm.target] = "no ReLU follows, alone" if calls.count(norm.target) == 1 else "is called several times"
            continue
        with graph.inserting_before(end):
            fused = graph.call_module(norm.target, (*norm.args, residual), norm.kwargs)
        end.replace_all_uses_with(fused)
        for node in dict.fromkeys((end, user, norm)):  # from the last one
            graph.erase_node(node)
        module = modules[norm.target]
        module.forward = types.MethodType(_batch_norm_relu, module)
        report.replaced[norm.target] = "norm, ReLU" if residual is None else "norm, addition, ReLU"
    traced.recompile()
    model.forward = types.MethodType(type(traced).forward, model)
    return report
