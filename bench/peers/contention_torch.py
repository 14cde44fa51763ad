#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""mica and PyTorch in one process, each with an OpenMP runtime of its own whose threads spin after
a call: milliseconds of a call of each when it runs by itself, and of one of each in turn. The two
must not take more than their sum by much.

    taskset -c 0,1 bench/peers/contention_torch.py build/libmica.so
"""
import ctypes
import statistics
import sys
import time

import torch

ROUNDS, SECONDS = 7, 0.3


class Run(ctypes.Structure):
    _fields_ = [("args", ctypes.c_void_p * 32), ("scalars", ctypes.c_void_p),
                ("workspace", ctypes.c_void_p), ("stream", ctypes.c_void_p)]


mica = ctypes.CDLL(sys.argv[1])
mica.mica_plan_workspace.restype = ctypes.c_size_t
mica.mica_error.restype = ctypes.c_char_p


def must(status):
    if status:
        sys.exit(mica.mica_error().decode())


def planned(context, line, *tensors):
    """A function that runs the line on the tensors."""
    plan, run = ctypes.c_void_p(), Run()
    must(mica.mica_plan_from_text(context, line.encode(), None, ctypes.byref(plan)))
    for i, tensor in enumerate(tensors):
        run.args[i] = tensor.data_ptr()
    memory = torch.empty(mica.mica_plan_workspace(plan) + 256, dtype=torch.uint8)
    run.workspace = (memory.data_ptr() + 255) // 256 * 256
    run.keep = memory, tensors
    return lambda: must(mica.mica_plan_run(plan, ctypes.byref(run)))


def call_ms(function):
    start, calls = time.perf_counter(), 0
    while True:
        function()
        calls += 1
        seconds = time.perf_counter() - start
        if seconds > SECONDS:
            return 1e3 * seconds / calls


def measure(name, ours, theirs):
    def both():
        ours()
        theirs()
    times = {"mica": ours, "torch": theirs, "in turn": both}
    found = {key: [] for key in times}
    for _ in range(ROUNDS):
        for key, function in times.items():
            found[key].append(call_ms(function))
            time.sleep(0.05)  # all threads have stopped spinning
    ms = {key: statistics.median(values) for key, values in found.items()}
    print(f"{name}: " + ", ".join(f"{key} {value:.4f} ms" for key, value in ms.items()) +
          f"; {ms['in turn'] / (ms['mica'] + ms['torch']):.2f} times their sum", flush=True)


def main():
    context = ctypes.c_void_p()
    must(mica.mica_context_create(b"cpu", ctypes.byref(context)))
    x, y = torch.randn(128, 1000), torch.empty(128, 1000)
    measure("softmax", planned(context, "softmax x=f32:128x1000 axis=1", x, y),
            lambda: torch.softmax(x, 1))
    image, taps = torch.randn(16, 32, 28, 28), torch.randn(32, 32, 3, 3)
    line = "conv x=f32:16x32x28x28 w=f32:32x32x3x3 pad=1x1"
    measure("conv", planned(context, line, image, taps, torch.empty(16, 32, 28, 28)),
            lambda: torch.nn.functional.conv2d(image, taps, padding=1))


with torch.no_grad():
    main()
