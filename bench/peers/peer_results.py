# SPDX-License-Identifier: Apache-2.0
"""Whether a peer computes what mica does: not how exactly (mica check says that), but that it is the same function."""

import torch

from torch_families import Drawn

SAMPLE = 1 << 20
# Relative to the value, or to a usual one where it is small; of 16 bits a few roundings after another.
WITHIN = {torch.float32: 1e-4, torch.bfloat16: 2**-5, torch.float16: 2**-8}
STRAY = 1e-3  # the share of values that may be further away: roundings to few bits, near poles


def sample(tensor):
    flat = tensor.reshape(-1)
    return flat[::max(1, flat.numel() // SAMPLE)]


def by_value(ours, theirs, within):
    a, b = ours.double(), theirs.double()
    magnitude = b.abs()[torch.isfinite(b) & (b != 0)]
    usual = magnitude.median() if magnitude.numel() else 0
    if magnitude.numel():  # where most cancel, what is left of them is roundings of the others
        usual = max(usual, magnitude.square().mean().sqrt() / 100)
    near = (a - b).abs() <= within * (b.abs() + usual)
    return near | (a == b) | (torch.isnan(a) & torch.isnan(b))


def moments(ours, theirs):
    """Mean and spread of random numbers: whether they agree by a twentieth."""
    a, b = ours.double(), theirs.double()
    spread = b.std()
    return bool((a.mean() - b.mean()).abs() <= 0.05 * spread + 1e-9 and (a.std() - spread).abs() <= 0.05 * spread + 1e-9)


def difference(ours, theirs, within):
    drawn = isinstance(theirs, Drawn)
    theirs = theirs.tensor if drawn else theirs
    if ours.numel() != theirs.numel():
        return f"{theirs.numel()} elements, not {ours.numel()}"
    if not ours.numel():
        return ""
    ours, theirs = sample(ours), sample(theirs)
    if drawn:
        return "" if ours.numel() < 100000 or moments(ours, theirs) else "another distribution"
    if ours.element_size() == 1:  # codes: to the bit
        same = ours.view(torch.uint8) == theirs.to(ours.dtype).view(torch.uint8)
    else:
        same = by_value(ours, theirs, within)
    wrong = 1 - same.double().mean().item()
    return f"{100 * wrong:.3g} % of the values differ" if wrong > STRAY else ""


def differences(ours, given):
    """ours: mica's tensors by name; given: the peer's results by those names. "" if they agree."""
    within = max([WITHIN.get(tensor.dtype, 1e-6) for tensor in ours.values()])  # PyTorch rounds terms to the type of theirs
    found = [(name, difference(ours[name], value, within)) for name, value in given.items()]
    return "; ".join(f"{name}: {why}" for name, why in found if why)
