# SPDX-License-Identifier: Apache-2.0
"""Optimisers with the arguments and the state of torch.optim's, so that their state dicts are exchanged."""

import torch

import mica


def _local(t):
    """A rank's own part of a tensor that several hold; others are their own."""
    return t.to_local() if hasattr(t, "to_local") else t


class _Optimizer(torch.optim.Optimizer):
    def _options(self, group):
        raise NotImplementedError

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                if p.grad.is_sparse:
                    raise RuntimeError("mica's optimisers take no sparse gradients")
                self._step(p.detach(), p.grad.detach(), self.state[p], group)  # of FSDP's parameters: the rank's part
        return loss


class SGD(_Optimizer):
    """torch.optim.SGD."""

    def __init__(self, params, lr=1e-3, momentum=0.0, dampening=0.0, weight_decay=0.0, nesterov=False, *, maximize=False):
        super().__init__(params, dict(lr=lr, momentum=momentum, dampening=dampening, weight_decay=weight_decay,
                                      nesterov=nesterov, maximize=maximize))

    @staticmethod
    def _step(p, grad, state, group):
        options = {n: group[n] for n in ("momentum", "dampening", "weight_decay") if group[n]}
        options.update({n: True for n in ("nesterov", "maximize") if group[n]})
        step = 2
        if group["momentum"]:
            if state.get("momentum_buffer") is None:
                state["momentum_buffer"], step = torch.zeros_like(p), 1
            options["m"] = _local(state["momentum_buffer"])
        mica.optim(_local(p), _local(grad), rule="sgd", lr=float(group["lr"]), step=step, **options)


class Adam(_Optimizer):
    """torch.optim.Adam, without amsgrad."""

    rule = "adam"

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, *, maximize=False):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, maximize=maximize))

    def _step(self, p, grad, state, group):
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(p), torch.zeros_like(p)
        state["step"] += 1
        options = {"maximize": True} if group["maximize"] else {}
        if group["weight_decay"]:
            options["weight_decay"] = group["weight_decay"]
        mica.optim(_local(p), _local(grad), m=_local(state["exp_avg"]), v=_local(state["exp_avg_sq"]), rule=self.rule,
                   lr=float(group["lr"]), step=float(state["step"]), beta1=group["betas"][0], beta2=group["betas"][1], eps=group["eps"], **options)


class AdamW(Adam):
    """torch.optim.AdamW, without amsgrad."""

    rule = "adamw"

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2, *, maximize=False):
        super().__init__(params, lr, betas, eps, weight_decay, maximize=maximize)
