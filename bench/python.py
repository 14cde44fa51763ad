#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""python [--device cuda] [--json FILE]: what a call from Python costs beside the work itself: microseconds of the least of
many rounds. Needs NumPy; PyTorch's own conv2d beside it where that is installed. The convolution has an empty batch: nothing
is left of it but the call. On a GPU its batch is one image of 8 x 8 too: a kernel is started, and not waited for."""

import argparse
import json
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


def on_the_cpu():
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
    return rows


def on_a_gpu(device):
    import torch

    from mica import torch as M

    def enqueued(function):
        """Of 100 calls, so that the queue does not fill; what they enqueued is waited for between the rounds."""
        best = float("inf")
        for _ in range(200):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(100):
                function()
            best = min(best, time.perf_counter() - start)
        return best / 100 * 1e6

    rows = []
    for batch in 0, 1:
        x, w = torch.zeros(batch, 8, 8, 8, device=device), torch.zeros(8, 8, 3, 3, device=device)
        plan = mica.plan("conv", x, w)
        run = plan.prepare(x, w)
        gx, gw = x.clone().requires_grad_(), w.clone().requires_grad_()
        calls = {"mica.conv of tensors": lambda: mica.conv(x, w), "plan.run(x, w)": lambda: plan.run(x, w),
                 "prepared()": run, "mica.torch.conv": lambda: M.conv(x, w),
                 "torch.nn.functional.conv2d": lambda: torch.nn.functional.conv2d(x, w),
                 "mica.torch.conv, gradients wanted": lambda: M.conv(gx, gw),
                 "torch.nn.functional.conv2d, gradients wanted": lambda: torch.nn.functional.conv2d(gx, gw)}
        rows += [(f"{name}, batch {batch}, us", enqueued(call)) for name, call in calls.items()]
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json")
    options = parser.parse_args()
    rows = on_the_cpu() if options.device == "cpu" else on_a_gpu(options.device)
    for name, value in rows:
        print(f"{value:8.2f}  {name}")
    if options.json:
        with open(options.json, "w") as file:
            json.dump(dict(rows), file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
