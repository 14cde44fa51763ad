#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""random_grids.py [--count N] [--seed S]: grid_sample and affine_grid beside PyTorch 2.15.0 on problems at random.

Every mode, padding, alignment and type, two and three axes, any order in memory; grids inside, on borders and centres, far
beside, of one place only. Values and both gradients must agree. Coordinates that are no numbers are compared, too, but for
what DEVIATIONS names: there it must differ as said. `make test-grids` runs it on the CPU."""
import argparse
import random
import sys

import numpy as np
import torch
import torch.nn.functional as F

import mica

TORCH = "2.15.0"
TYPES = {"f64": (torch.float64, 1e-11), "f32": (torch.float32, 2e-5)}
# Forward, bilinear, zeros beside x: what PyTorch's kernels for CPUs have and those for GPUs have not.
DEVIATIONS = {("bilinear", "zeros"): "NaN of a coordinate that is not finite; 0 here, as nothing is read"}


def chosen(*what):
    return random.choice(what)


def coordinates(size, align, count):
    """Of -1 to 1, by the elements that they mean."""
    kind = chosen("inside", "inside", "borders", "beside", "one")
    if kind == "one":
        at = np.full(count, random.uniform(0, size - 1))
    elif kind == "borders":
        at = np.random.choice([-0.5, 0, size - 1, size - 0.5, -1.25, 1 / 3], count)
    else:
        reach = 0.4 if kind == "inside" else 3 * size
        at = np.random.uniform(-reach, size - 1 + reach, count)
    return 2 * at / max(size - 1, 1) - 1 if align else (2 * at + 1) / size - 1


def ordered(array):
    """The same in another order in memory."""
    if chosen(0, 1):
        return array
    axes = list(range(array.ndim))
    random.shuffle(axes)
    return np.ascontiguousarray(array.transpose(axes)).transpose(np.argsort(axes))


def agrees(name, ours, theirs, bound, scale, what):
    theirs = theirs.detach().numpy()
    error = np.abs(ours.astype(np.float64) - theirs)
    if ours.shape != theirs.shape or not np.all((error <= bound * scale) | (np.isnan(ours) & np.isnan(theirs))):
        sys.exit(f"{what}: {name} differs by {np.nanmax(error):.3g}, allowed are {bound * scale:.3g}")


def sampled(number):
    axes, mode, padding = chosen(2, 2, 3), chosen("bilinear", "nearest", "bicubic"), chosen("zeros", "border", "reflection")
    mode = "bilinear" if axes == 3 and mode == "bicubic" else mode
    align, kind = chosen(False, True), chosen("f64", "f32" if mode != "nearest" else "f64")
    n, c = random.randint(1, 3), chosen(1, 2, 3, 5, 8, 20)
    sizes, out = [random.randint(1 if align is False else 2, 9) for _ in range(axes)], [random.randint(1, 8) for _ in range(axes)]
    what = f"{number}: axes={axes} {mode} {padding} align={align} {kind} n={n} c={c} sizes={sizes} out={out}"
    dtype, bound = TYPES[kind]
    count = n * int(np.prod(out))
    x = np.random.standard_normal((n, c, *sizes))
    grid = np.stack([coordinates(sizes[axes - 1 - i], align, count) for i in range(axes)], -1).reshape(n, *out, axes)
    dy = np.random.standard_normal((n, c, *out))
    tensors = [torch.tensor(v, dtype=dtype) for v in (x, grid, dy)]
    x, grid, dy = (ordered(t.numpy()) for t in tensors)
    tensors[0].requires_grad_(), tensors[1].requires_grad_()
    y = F.grid_sample(tensors[0], tensors[1], mode, padding, align)
    y.backward(tensors[2])
    fields = dict(mode=mode, padding=padding, align_corners=align)
    agrees("y", mica.grid_sample(x, grid, **fields), y, bound, 8, what)
    shape = lambda array: f"{kind}:" + "x".join(map(str, array.shape))
    dx, dgrid = mica.grid_sample(x=x, grid=grid, dy=dy, dx=shape(x), dgrid=shape(grid), pass_="bwd", **fields)
    agrees("dx", dx, tensors[0].grad, bound, 8 * count, what)
    if kind == "f64":
        smooth = smooth_places(grid, sizes, align)
        ours, theirs = np.where(smooth, dgrid, 0), torch.where(torch.tensor(smooth), tensors[1].grad, 0)
        agrees("dgrid", ours, theirs, bound, 100 * c, what)


def smooth_places(grid, sizes, align):
    """Not within rounding of an element's centre or of a border, where a derivative jumps."""
    size = np.array(sizes[::-1], np.float64)
    u = (grid + 1) / 2 * (size - 1) if align else ((grid + 1) * size - 1) / 2
    near = (np.abs(u - np.rint(u)) < 1e-9) | (np.abs(u * 2 - np.rint(u * 2)) < 1e-9)
    return np.broadcast_to(~near.any(-1, keepdims=True), grid.shape)


def not_finite():
    x = np.random.standard_normal((1, 2, 4, 5)).astype(np.float32)
    grid = np.zeros((1, 1, 4, 2), np.float32)
    grid[0, 0, :3, 0] = np.nan, np.inf, -np.inf
    seen = set()
    for mode in ("bilinear", "nearest", "bicubic"):
        for padding in ("zeros", "border", "reflection"):
            ours = mica.grid_sample(x, grid, mode=mode, padding=padding)
            theirs = F.grid_sample(torch.tensor(x), torch.tensor(grid), mode, padding, False).numpy()
            same = np.allclose(ours, theirs, atol=1e-5, equal_nan=True)
            if same == ((mode, padding) in DEVIATIONS):
                sys.exit(f"{mode}, {padding}: coordinates that are not finite {'agree' if same else 'differ'}:\n{ours}\n{theirs}")
            if not same:
                seen.add((mode, padding))
    for which in sorted(seen):
        print(f"deviation, {', '.join(which)}: {DEVIATIONS[which]}")


def mapped(number):
    axes, align, n = chosen(2, 3), chosen(False, True), random.randint(1, 4)
    out = [random.randint(1, 9) for _ in range(axes)]
    theta = torch.randn(n, axes, axes + 1, dtype=torch.float64, requires_grad=True)
    grid = F.affine_grid(theta, [n, 1, *out], align)
    dgrid = torch.randn_like(grid)
    grid.backward(dgrid)
    what = f"{number}: affine_grid n={n} out={out} align={align}"
    shape = "f64:" + "x".join(map(str, grid.shape))
    agrees("grid", mica.affine_grid(ordered(theta.detach().numpy()), grid=shape, align_corners=align), grid, 1e-13, 8, what)
    dtheta = mica.affine_grid(dgrid=ordered(dgrid.numpy()), pass_="bwd", align_corners=align)
    agrees("dtheta", dtheta, theta.grad, 1e-13, 8 * grid.numel(), what)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    if torch.__version__.split("+")[0] != TORCH:
        sys.exit(f"torch is {torch.__version__}, the judge is {TORCH}")
    random.seed(given.seed), np.random.seed(given.seed), torch.manual_seed(given.seed)
    not_finite()
    for number in range(given.count):
        (mapped if number % 6 == 5 else sampled)(number)
    print(f"{given.count} problems at random agree with PyTorch {TORCH}")


main()
