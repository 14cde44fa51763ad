#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""cudnn_torch.py FRONT [GROUP...] [--json FILE] [--steps N]: unmodified PyTorch on a GPU with its own cuDNN, and with FRONT
(build/front/libcudnn.so.9) preloaded in its place.

Groups: conv norm rnn ctc grid attention graph networks; each has a process of its own, once with either library. Of modules
the results and gradients are compared, of networks the losses of some training steps, with as many steps from another seed
of the original for a measure; of both the time. That the preloaded one was at work is said by its own counters.
--json: a list with a row for each case, of which cudnn_page.py makes tables."""

import argparse
import ctypes
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

GROUPS = "conv", "norm", "rnn", "ctc", "grid", "attention", "graph", "networks"


# ---- modules: each case is a function that gives tensors ----


def leaf(torch, *shape, dtype=None, seed=0, last=False, scale=1.0):
    t = torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale
    t = t.to("cuda", dtype or torch.float32)
    if last:
        t = t.to(memory_format=torch.channels_last if len(shape) == 4 else torch.channels_last_3d)
    return t.requires_grad_()


def with_gradients(torch, result, leaves):
    dy = torch.randn(result.shape, generator=torch.Generator().manual_seed(99)).to(result)
    return [result, *torch.autograd.grad(result, leaves, dy)]


def conv_cases(torch):
    f = torch.nn.functional
    types = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "f64": torch.float64}

    def case(call, x, w, name="f16", bias=True, last=False, **more):
        dtype = types[name]

        def run():
            leaves = [leaf(torch, *x, dtype=dtype, seed=1, last=last), leaf(torch, *w, dtype=dtype, seed=2, scale=0.1, last=last)]
            count = w[1] * more.get("groups", 1) if "transpose" in call.__name__ else w[0]
            if bias:
                leaves.append(leaf(torch, count, dtype=dtype, seed=3))
            return with_gradients(torch, call(*leaves, **more), leaves)

        return run

    for name in types:
        yield f"conv2d 3x3 {name} NCHW", case(f.conv2d, (8, 64, 28, 28), (64, 64, 3, 3), name, padding=1)
    for name in "f32", "f16", "bf16":
        yield f"conv2d 3x3 stride 2 {name} NHWC", case(f.conv2d, (8, 64, 29, 31), (96, 64, 3, 3), name, padding=1, stride=2, last=True)
    yield "conv2d 1x1 bf16 NHWC", case(f.conv2d, (8, 64, 28, 28), (256, 64, 1, 1), "bf16", last=True)
    yield "conv2d 7x7 of 3 channels f32", case(f.conv2d, (4, 3, 64, 64), (64, 3, 7, 7), "f32", stride=2, padding=3)
    yield "conv2d 8 groups f16", case(f.conv2d, (8, 64, 28, 28), (64, 8, 3, 3), padding=1, groups=8)
    yield "conv2d depthwise f16 NHWC", case(f.conv2d, (8, 64, 28, 28), (64, 1, 3, 3), padding=1, groups=64, last=True)
    yield "conv2d depthwise f32", case(f.conv2d, (8, 64, 28, 28), (64, 1, 3, 3), "f32", padding=1, groups=64)
    yield "conv2d dilation 2, odd channels f16", case(f.conv2d, (3, 19, 23, 17), (7, 19, 3, 5), padding=2, dilation=2)
    yield "conv2d no bias f32", case(f.conv2d, (2, 16, 9, 11), (24, 16, 2, 3), "f32", bias=False)
    yield "conv1d bf16", case(f.conv1d, (8, 64, 100), (64, 64, 5), "bf16", padding=2)
    yield "conv3d f16", case(f.conv3d, (2, 16, 9, 14, 14), (32, 16, 3, 3, 3), padding=1)
    yield "conv3d f32 NDHWC", case(f.conv3d, (2, 16, 9, 14, 14), (32, 16, 3, 3, 3), "f32", padding=1, last=True)
    yield "conv_transpose2d bf16 2 groups", case(f.conv_transpose2d, (4, 32, 14, 14), (32, 8, 4, 4), "bf16", stride=2, padding=1, groups=2)
    yield "conv_transpose3d f32", case(f.conv_transpose3d, (2, 8, 5, 6, 7), (8, 12, 3, 3, 3), "f32", stride=2)

    def fused(add):
        def run():
            x, w = leaf(torch, 8, 64, 14, 14, dtype=torch.float16, seed=1), leaf(torch, 64, 64, 3, 3, dtype=torch.float16, seed=2, scale=0.1)
            b, z = leaf(torch, 64, dtype=torch.float16, seed=3), leaf(torch, 8, 64, 14, 14, dtype=torch.float16, seed=4)
            with torch.no_grad():
                if add:
                    return [torch.cudnn_convolution_add_relu(x, w, z, 0.5, b, (1, 1), (1, 1), (1, 1), 1)]
                return [torch.cudnn_convolution_relu(x, w, b, (1, 1), (1, 1), (1, 1), 1)]

        return run

    yield "cudnn_convolution_relu f16", fused(False)
    yield "cudnn_convolution_add_relu f16", fused(True)

    def flagged(**flags):
        def run():
            with torch.backends.cudnn.flags(**flags):
                return case(f.conv2d, (8, 64, 30, 30), (64, 64, 3, 3), "bf16", padding=1, last=True)()

        return run

    yield "conv2d benchmark=True", flagged(enabled=True, benchmark=True)
    yield "conv2d deterministic=True", flagged(enabled=True, deterministic=True)

    def double_backward():
        x, w = leaf(torch, 2, 8, 9, 9, seed=1), leaf(torch, 8, 8, 3, 3, seed=2)
        (dx,) = torch.autograd.grad(f.conv2d(x, w).square().sum(), x, create_graph=True)
        return list(torch.autograd.grad(dx.square().sum(), [x, w]))

    yield "conv2d gradient of a gradient f32", double_backward


def norm_cases(torch):
    def case(shape, dtype, last=False, train=True, momentum=0.1):
        def run():
            m = {4: torch.nn.BatchNorm2d, 5: torch.nn.BatchNorm3d}[len(shape)](shape[1], momentum=momentum).cuda()
            m.train(train)
            x = leaf(torch, *shape, dtype=dtype, seed=5, last=last)
            with torch.autocast("cuda", enabled=dtype == torch.float16):
                y = m(x)
            got = with_gradients(torch, y, [x, *m.parameters()]) if train else [y]
            return [*got, m.running_mean, m.running_var]

        return run

    for name, dtype in ("f32", torch.float32), ("f16", torch.float16):
        for last in False, True:
            yield f"BatchNorm2d {name} {'NHWC' if last else 'NCHW'}", case((8, 64, 28, 28), dtype, last)
    yield "BatchNorm3d f32", case((2, 16, 5, 9, 9), torch.float32)
    yield "BatchNorm2d cumulative f32", case((8, 13, 7, 9), torch.float32, momentum=None)
    yield "BatchNorm2d eval f32", case((8, 64, 28, 28), torch.float32, train=False)


def rnn_cases(torch):
    def case(kind, dtype=torch.float32, packed=False, inputs=48, train=True, **more):
        def run():
            torch.manual_seed(3)
            m = getattr(torch.nn, kind)(inputs, more.pop("hidden", 64), **more).to("cuda", dtype)
            m.train(train)
            x = leaf(torch, 12, 6, inputs, dtype=dtype, seed=6)
            given = x if not more.get("batch_first") else x.transpose(0, 1).contiguous()
            if packed:
                given = torch.nn.utils.rnn.pack_padded_sequence(given, [12, 9, 9, 5, 2, 1], batch_first=bool(more.get("batch_first")))
            y, state = m(given)
            y = y.data if packed else y
            states = state if isinstance(state, tuple) else (state,)
            if not train:
                return [y, *states]
            loss = (y * torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(y)).sum() + sum(s.sum() for s in states)
            return [y, *states, *torch.autograd.grad(loss, [x, *m.parameters()])]

        return run

    for kind in "LSTM", "GRU", "RNN":
        for name, dtype in ("f32", torch.float32), ("f16", torch.float16), ("bf16", torch.bfloat16), ("f64", torch.float64):
            yield f"{kind} {name}", case(kind, dtype)
        yield f"{kind} 2 layers both ways f32", case(kind, num_layers=2, bidirectional=True)
    yield "RNN relu f32", case("RNN", nonlinearity="relu")
    yield "LSTM packed f32", case("LSTM", packed=True)
    yield "GRU packed both ways f32", case("GRU", packed=True, bidirectional=True)
    yield "LSTM batch first, no bias f32", case("LSTM", batch_first=True, bias=False)
    yield "LSTM projection f32", case("LSTM", proj_size=24)
    yield "LSTM hidden 512 f16", case("LSTM", torch.float16, hidden=512, inputs=128)
    yield "LSTM eval f16", case("LSTM", torch.float16, train=False)


def ctc_cases(torch):
    def case(lengths):
        def run():
            x = leaf(torch, 50, 4, 20, seed=7)
            targets = torch.randint(1, 20, (sum(lengths),), generator=torch.Generator().manual_seed(1), dtype=torch.int32)
            loss = torch.nn.functional.ctc_loss(x.log_softmax(2), targets, torch.full((4,), 50, dtype=torch.int32),
                                                torch.tensor(lengths, dtype=torch.int32), reduction="none")
            return with_gradients(torch, loss, [x])

        return run

    yield "ctc_loss", case([10, 12, 7, 1])
    yield "ctc_loss of as long targets", case([20, 20, 20, 20])


def grid_cases(torch):
    f = torch.nn.functional

    def run():
        theta, x = leaf(torch, 4, 2, 3, seed=8), leaf(torch, 4, 8, 17, 19, seed=9)
        grid = f.affine_grid(theta, (4, 8, 13, 11), align_corners=True)
        return with_gradients(torch, f.grid_sample(x, grid, align_corners=True), [x, theta])

    yield "affine_grid, grid_sample", run


def attention_cases(torch):
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def case(dtype=torch.bfloat16, heads=8, kv=8, sq=128, sk=128, d=64, bshd=False, mask=False, train=True, **more):
        def run():
            def one(h, s, seed):
                t = leaf(torch, *((2, s, h, d) if bshd else (2, h, s, d)), dtype=dtype, seed=seed)
                return t, t.transpose(1, 2) if bshd else t

            q, k, v = one(heads, sq, 1), one(kv, sk, 2), one(kv, sk, 3)
            if mask:
                more["attn_mask"] = (torch.rand(2, heads, sq, sk, generator=torch.Generator().manual_seed(4)) > 0.3).cuda()
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                y = torch.nn.functional.scaled_dot_product_attention(q[1], k[1], v[1], enable_gqa=kv != heads, **more)
            return with_gradients(torch, y, [q[0], k[0], v[0]]) if train else [y.detach()]

        return run

    yield "attention bf16", case()
    yield "attention f16, forward only", case(torch.float16, train=False)
    yield "attention f16 300 keys", case(torch.float16, sq=512, sk=300)
    yield "attention bf16 causal", case(is_causal=True)
    yield "attention bf16 causal BSHD", case(is_causal=True, bshd=True)
    yield "attention f16 8 query heads of 2", case(torch.float16, kv=2)
    yield "attention bf16 causal 8 of 2", case(kv=2, is_causal=True)
    yield "attention bf16 mask", case(mask=True)
    yield "attention bf16 one query", case(sq=1, train=False)
    yield "attention bf16 128 columns", case(d=128, sq=257, sk=257, is_causal=True)


def graph_cases(torch):
    def run():
        m = torch.nn.Sequential(torch.nn.Conv2d(16, 32, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(32, 8, 1)).cuda().half()
        torch.nn.init.constant_(m[0].bias, 0.25)
        for p in m.parameters():
            with torch.no_grad():
                p.copy_(torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())) * 0.1)
        x = torch.randn(4, 16, 20, 20, generator=torch.Generator().manual_seed(1)).cuda().half()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side), torch.no_grad():
            for _ in range(3):
                m(x)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(graph):
            y = m(x)
        x.mul_(-1)
        graph.replay()
        return [y]

    yield "captured in a CUDA graph", run


# ---- networks ----


def networks(torch):
    """Names, and what makes a network, its loss by the number of the batch and a learning rate at which curves are smooth."""
    import torchvision

    f = torch.nn.functional

    def pictures(make, size, batch=32, classes=10, dense=False):
        def build():
            m = make().cuda().to(memory_format=torch.channels_last)

            def loss(seed):
                g = torch.Generator(device="cuda").manual_seed(seed)
                labels = torch.randint(classes, (batch,), device="cuda", generator=g)
                x = torch.randn(batch, 3, size, size, device="cuda", generator=g) + (labels.float() / classes * 4 - 2)[:, None, None, None]
                with torch.autocast("cuda", torch.bfloat16):
                    y = m(x.contiguous(memory_format=torch.channels_last))
                if dense:
                    y = y["out"]
                    labels = labels[:, None, None].expand(batch, size, size)
                return f.cross_entropy(y.float(), labels)

            return m, loss, 0.002

        return build

    def speech():
        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.embed, self.lstm = torch.nn.Embedding(1000, 256), torch.nn.LSTM(256, 512, 2, batch_first=True)
                self.head = torch.nn.Linear(512, 1000)

            def forward(self, t):
                return self.head(self.lstm(self.embed(t))[0])

        m = Net().cuda()

        def loss(seed):
            g = torch.Generator(device="cuda").manual_seed(seed)
            t = torch.randint(1000, (32, 1), device="cuda", generator=g) + torch.arange(65, device="cuda") * 7
            t %= 1000
            return f.cross_entropy(m(t[:, :-1]).flatten(0, 1), t[:, 1:].flatten())

        return m, loss, 1.0

    def of(name, **more):
        return lambda: getattr(torchvision.models, name)(num_classes=10, **more)

    yield "ResNet-18", pictures(of("resnet18"), 96)
    yield "ResNet-50", pictures(of("resnet50"), 128)
    yield "EfficientNet-B0", pictures(of("efficientnet_b0", dropout=0.0, stochastic_depth_prob=0.0), 96)
    yield "ConvNeXt-T", pictures(of("convnext_tiny", stochastic_depth_prob=0.0), 96)
    yield "ViT-B/16", pictures(of("vit_b_16", image_size=96), 96)
    yield "FCN-ResNet-50", pictures(lambda: torchvision.models.segmentation.fcn_resnet50(weights=None, weights_backbone=None, num_classes=10), 96,
                                    batch=8, dense=True)
    yield "LSTM language model", speech


def train(torch, build, steps, seed):
    torch.manual_seed(seed)
    m, loss_of, rate = build()
    optimizer = torch.optim.SGD(m.parameters(), lr=rate, momentum=0.9)
    losses, times = [], []
    for step in range(steps):
        torch.cuda.synchronize()
        start = time.perf_counter()
        optimizer.zero_grad()
        loss = loss_of(step)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        times.append((time.perf_counter() - start) * 1e3)
    return losses, times


# ---- a process of one group ----


def said(error):
    """The exception, and what the library said last on this thread."""
    last = ctypes.create_string_buffer(400)
    ctypes.CDLL("libcudnn.so.9").cudnnGetLastErrorString(last, ctypes.c_size_t(len(last)))
    return f"{type(error).__name__}: {error}"[:600] + f" ({last.value.decode()})"


def child(group, path, steps, original):
    import torch

    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    results = {"version": torch.backends.cudnn.version(), "cases": {}}
    if group == "networks":
        for name, build in networks(torch):
            start = time.perf_counter()
            try:
                losses, times = train(torch, build, steps, 1)
                row = {"losses": losses, "ms": statistics.median(times[len(times) // 2:]), "first_ms": times[0]}
                if original:
                    row["other"] = train(torch, build, steps, 2)[0]
            except Exception as error:
                row = {"error": said(error)}
            torch.cuda.empty_cache()
            print(f"  {name}: {time.perf_counter() - start:.1f} s {row.get('error', '')[:200]}", flush=True)
            results["cases"][name] = row
    else:
        for name, run in globals()[f"{group}_cases"](torch):
            try:
                got = [t.detach().double().cpu() for t in run()]
                again = [t.detach().double().cpu() for t in run()]
                torch.cuda.synchronize()
                row = {"got": got, "repeats": all(torch.equal(a, b) for a, b in zip(got, again))}
            except Exception as error:
                row = {"error": said(error)}
            results["cases"][name] = row
    if not original:
        for name in "calls", "served":
            counter = getattr(ctypes.CDLL(None), f"mica_cudnn_{name}")
            counter.argtypes, counter.restype = [ctypes.c_char_p], ctypes.c_int64
            results[name] = counter(None)
    torch.save(results, path)


# ---- both, and what they differ by ----


def distance(theirs, ours):
    """The largest of all tensors' norm of the difference over the norm."""
    worst = 0.0
    for a, b in zip(theirs, ours, strict=True):
        if a.shape != b.shape:
            return float("inf")
        worst = max(worst, float((a - b).norm() / max(float(a.norm()), 1e-30)))
    return worst


def judge(group, name, theirs, ours):
    row = {"group": group, "case": name}
    for who, side in ("original", theirs), ("mica", ours):
        row[who] = side["error"] if "error" in side else "ran"
    if row["original"] == row["mica"] == "ran":
        if group == "networks":
            apart = [abs(a - b) for a, b in zip(theirs["losses"], ours["losses"])]
            seeds = [abs(a - b) for a, b in zip(theirs["losses"], theirs["other"])]
            row |= {"apart": sum(apart) / len(apart), "seeds_apart": sum(seeds) / len(seeds), "first": ours["losses"][0],
                    "last": ours["losses"][-1], "original_last": theirs["losses"][-1], "original_ms": theirs["ms"], "mica_ms": ours["ms"],
                    "ratio": theirs["ms"] / ours["ms"], "original_first_ms": theirs["first_ms"], "mica_first_ms": ours["first_ms"]}
        else:
            row |= {"distance": distance(theirs["got"], ours["got"]), "repeats": ours["repeats"]}
    return row


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("front")
    p.add_argument("groups", nargs="*", default=GROUPS)
    p.add_argument("--json")
    p.add_argument("--steps", type=int, default=50)
    p.add_argument("--limit", type=float, default=300, help="seconds for a group with one library")
    p.add_argument("--commit", default="")
    p.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    given = p.parse_args()
    if given.child:
        child(given.child[0], given.child[1], given.steps, given.front == "original")
        return
    import torch

    rows, bad = [], 0
    with tempfile.TemporaryDirectory() as work:
        for group in given.groups:
            sides = []
            for front in "original", str(pathlib.Path(given.front).resolve()):
                environment = dict(os.environ)
                if front != "original":
                    environment["LD_PRELOAD"] = front
                path = f"{work}/{len(sides)}"
                try:
                    code = subprocess.run([sys.executable, __file__, front, "--child", group, path, "--steps", str(given.steps)],
                                          env=environment, timeout=given.limit).returncode
                except subprocess.TimeoutExpired:
                    code = f"no end within {given.limit:.0f} s"
                sides.append(torch.load(path) if code == 0 else {"cases": {}, "ended": code})
            theirs, ours = sides
            print(f"{group}: cuDNN {theirs.get('version')}, preloaded {ours.get('version')}, "
                  f"{ours.get('served')} of {ours.get('calls')} calls ran on mica", flush=True)
            for name in theirs["cases"] | ours["cases"]:
                gone = {"error": f"the process ended with {ours.get('ended', theirs.get('ended'))}"}
                row = judge(group, name, theirs["cases"].get(name, gone), ours["cases"].get(name, gone))
                row |= {"calls": ours.get("calls"), "served": ours.get("served"), "commit": given.commit,
                        "device": torch.cuda.get_device_name(), "torch": torch.__version__, "cudnn": theirs.get("version")}
                rows.append(row)
                said = f"{row['distance']:.1e}" if "distance" in row else \
                    f"{row['apart']:.4f} apart ({row['seeds_apart']:.4f} for two seeds), ratio {row['ratio']:.2f}" if "apart" in row else \
                    f"original: {row['original'][:90]}; mica: {row['mica'][:250]}"
                bad += row["mica"] != "ran" and row["original"] == "ran"
                print(f"  {name}: {said}", flush=True)
    if given.json:
        pathlib.Path(given.json).write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")
    print(f"{len(rows)} cases, {bad} that ran with the original and not with mica")
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
