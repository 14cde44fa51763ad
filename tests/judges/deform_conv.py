#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Deformable convolutions and their gradients as torchvision 0.29.2 has them, for tests/unit/test_deform_conv.c:

    pip install torch==2.15.0 torchvision==0.29.2
    tests/judges/deform_conv.py > tests/judges/deform_conv.h
    PYTHONPATH=build/python tests/judges/deform_conv.py --compare 300 [cuda]

torchvision.ops.deform_conv2d and its autograd in f64, which finite differences confirm here: strides, padding, dilation,
groups of both kinds, with and without mask and bias; places on elements, between them, at -1, at the last element and
beside. Of small filters and few channels, so that the numbers stay few. --compare runs mica.torch and torchvision on that
many configurations drawn at random, in f64 and f32, and says what differs by more than 100 units in the last place of the
greatest number of a tensor; bit for bit again on a second run."""
import argparse
import random

import torch
import torchvision
from torchvision.ops import deform_conv2d

if torchvision.__version__.split("+")[0] != "0.29.2":
    raise SystemExit(f"torchvision is {torchvision.__version__}, the numbers are those of 0.29.2")

# K, groups, offset groups, R x S, stride, pad, dilation, mask, bias; x is 1 x 4 x 4 x 4
ROWS = [(2, 1, 1, (2, 2), (1, 1), (0, 0), (1, 1), 0, 0), (2, 1, 1, (2, 2), (1, 1), (1, 1), (1, 1), 1, 1),
        (4, 2, 2, (1, 2), (1, 2), (0, 1), (1, 1), 1, 0), (4, 4, 4, (2, 1), (2, 1), (1, 0), (2, 1), 1, 1),
        (2, 2, 1, (2, 2), (2, 2), (1, 2), (1, 2), 0, 1), (3, 1, 2, (1, 1), (1, 1), (0, 0), (1, 1), 1, 0)]


def problem(row, sizes, generator, dtype, device, edges=True):
    """x, w, offset, mask or None, bias or None."""
    outputs, groups, offset_groups, taps, stride, pad, dilation, mask, bias = row
    n, c, *size = sizes
    out = [(size[i] + 2 * pad[i] - dilation[i] * (taps[i] - 1) - 1) // stride[i] + 1 for i in range(2)]
    number = offset_groups * taps[0] * taps[1]
    new = lambda *dims: torch.randn(dims, generator=generator, dtype=torch.float64)
    offset = 1.5 * new(n, 2 * number, *out)
    if edges:  # every third: a whole number
        flat = offset.view(-1)
        flat[::3] = flat[::3].round()
    tensors = (new(n, c, *size), new(outputs, c // groups, *taps), offset, new(n, number, *out) if mask else None,
               new(outputs) if bias else None)
    return [t if t is None else t.to(device, dtype).requires_grad_() for t in tensors]


def judge(row, tensors):
    x, w, offset, mask, bias = tensors
    return deform_conv2d(x, offset, w, bias, row[4], row[5], row[6], mask)


def gradients(y, tensors, dy):
    given = [t for t in tensors if t is not None]
    found = iter(torch.autograd.grad(y, given, dy))
    return [None if t is None else next(found) for t in tensors]


def confirm(row, generator):
    """By finite differences, at places between elements."""
    tensors = problem(row, (1, 4, 3, 4), generator, torch.float64, "cpu", edges=False)
    given = [t for t in tensors if t is not None]
    fill = lambda some: [None if t is None else next(some) for t in tensors]
    assert torch.autograd.gradcheck(lambda *some: judge(row, fill(iter(some))), given, eps=1e-7, atol=1e-5)


def numbers(t, most):
    values = [] if t is None else t.detach().flatten().tolist()
    assert len(values) <= most, (len(values), most)
    return "{" + ", ".join(repr(v) for v in values) + "}" if values else "{0}"


def write():
    print("/* SPDX-License-Identifier: Apache-2.0\n * Written by tests/judges/deform_conv.py with torchvision 0.29.2: a line; x, w, "
          "offset, mask, bias, dy, y, dx,\n * dw, doffset, dmask, dbias. */\n/* clang-format off */")
    generator = torch.Generator().manual_seed(7)
    for row in ROWS:
        confirm(row, generator)
        tensors = problem(row, (1, 4, 4, 4), generator, torch.float64, "cpu")
        outputs, groups, offset_groups, taps, stride, pad, dilation, mask, bias = row
        y = judge(row, tensors)
        dy = torch.randn(y.shape, generator=generator, dtype=torch.float64)
        dx, dw, doffset, dmask, dbias = gradients(y, tensors, dy)
        pair = lambda p: f"{p[0]}x{p[1]}"
        print(f'{{"stride={pair(stride)} pad={pair(pad)} dilation={pair(dilation)} groups={groups} offset_groups={offset_groups}",')
        print(f'    "{outputs}x{4 // groups}x{pair(taps)}", {mask}, {bias}, {y.numel()}, {tensors[2].numel()},')
        print("    " + ",\n    ".join(numbers(t, 1024) for t in (*tensors, dy, y, dx, dw, doffset, dmask, dbias)) + "},")


def compare(count, device):
    import mica.torch  # registers operators

    worst, failed = 0, 0
    draw, generator = random.Random(1), torch.Generator().manual_seed(1)
    for i in range(count):
        dtype = draw.choice((torch.float64, torch.float32))
        groups, offset_groups = draw.choice((1, 1, 2, 4)), draw.choice((1, 1, 2, 4))
        taps = draw.choice(((1, 1), (1, 3), (2, 2), (3, 3)))
        axes = lambda low, high: (draw.randint(low, high), draw.randint(low, high))
        row = (4 * draw.randint(1, 4), groups, offset_groups, taps, axes(1, 3), axes(0, 2), axes(1, 2), draw.randint(0, 1),
               draw.randint(0, 1))
        sizes = (draw.randint(1, 3), 4 * draw.randint(1, 5), draw.randint(5, 12), draw.randint(5, 80))
        tensors = problem(row, sizes, generator, dtype, device)
        last = draw.randint(0, 1)
        want = judge(row, tensors)
        dy = torch.randn(want.shape, generator=generator, dtype=torch.float64).to(device, dtype)
        wanted = [want, *gradients(want, tensors, dy)]
        if last:
            tensors = [t if t is None or t.ndim < 4 else t.detach().contiguous(memory_format=torch.channels_last).requires_grad_()
                       for t in tensors]
        x, w, offset, mask, bias = tensors
        runs = []
        for _ in range(2):
            y, = torch.ops.mica.deform_conv(x, w, offset=offset, mask=mask, bias=bias, stride=row[4], pad=row[5], dilation=row[6],
                                            groups=groups, offset_groups=offset_groups)
            runs.append([y, *gradients(y, tensors, dy)])
        unit = torch.finfo(dtype).eps
        for name, a, b, c in zip(("y", "dx", "dw", "doffset", "dmask", "dbias"), runs[0], runs[1], wanted):
            if c is None:
                continue
            error = ((a - c).abs().max() / (c.abs().max().clamp(min=1) * unit)).item() if c.numel() else 0
            worst = max(worst, error)
            if error > 100 or not torch.equal(a, b):
                failed += 1
                print(f"{name}: {error:.3g} units, same bits {torch.equal(a, b)}: {sizes} {row} {dtype}")
    print(f"{count} configurations, {failed} results differ, by {worst:.3g} units at most")
    raise SystemExit(failed > 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compare", type=int, metavar="N")
    parser.add_argument("device", nargs="?", default="cpu")
    asked = parser.parse_args()
    compare(asked.compare, asked.device) if asked.compare else write()
