#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a call from Python costs beside the work itself: microseconds of the least of many rounds. Needs NumPy; PyTorch's
own conv2d beside it where that is installed. The convolution has an empty batch: nothing is left of it but the call."""

import subprocess
import sys
import time

import numpy as np

import mica


def least(function, number=500, rounds=400):
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(number):
            function()
        best = min(best, time.perf_counter() - start)
    return best / number * 1e6


def imports(package):
    """Of the processor, so that other programs do not count."""
    program = f"import time; t = time.process_time(); import {package}; print((time.process_time() - t) * 1e3)"
    return min(float(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout)
               for _ in range(15))


def main():
    x, w, b = np.zeros((0, 8, 8, 8), np.float32), np.zeros((8, 8, 3, 3), np.float32), np.zeros(8, np.float32)
    y = mica.conv(x, w)
    plan = mica.plan("conv", x, w)
    run = plan.prepare(x, w)
    rows = [("import mica, ms", imports("mica")), ("import numpy, ms", imports("numpy")),
            ("mica.conv(x, w), us", least(lambda: mica.conv(x, w))),
            ("mica.conv(x, w, out=y), us", least(lambda: mica.conv(x, w, out=y))),
            ('mica.conv(x, w, pad=(1, 1), epilogue=["bias", "relu"], bias=b), us',
             least(lambda: mica.conv(x, w, pad=(1, 1), epilogue=["bias", "relu"], bias=b))),
            ("plan.run(x, w), us", least(lambda: plan.run(x, w))), ("plan.run(prepared), us", least(lambda: plan.run(run))),
            ("prepared(), us", least(run))]
    try:
        import torch
    except ImportError:
        torch = None
    if torch:
        from mica import torch as M

        torch.set_num_threads(1)
        tx, tw = torch.from_numpy(x), torch.from_numpy(w)
        rows += [("mica.conv of tensors, us", least(lambda: mica.conv(tx, tw))),
                 ("mica.torch.conv, us", least(lambda: M.conv(tx, tw), 100)),
                 ("torch.nn.functional.conv2d, us", least(lambda: torch.nn.functional.conv2d(tx, tw)))]
    for name, value in rows:
        print(f"{value:8.2f}  {name}")


if __name__ == "__main__":
    main()
