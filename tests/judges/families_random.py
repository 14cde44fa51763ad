#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""families_random.py [--count N] [--seed S] [OPERATION...]: problems at random, N of each operation, beside PyTorch's (values
and gradients) and, where the package is there, ONNX Runtime's.

Pooling (maxima with indices, averages, norms, fractional), max unpooling, local response normalisation, recurrent nets and
CTC loss beside PyTorch; RoI align, non-maximum suppression and deformable convolution beside ONNX Runtime. Resizing and
sampling have scripts of their own (resize_random.py, random_grids.py). What differs has to have a name below, a place where
the other side is known to compute something else; how many problems have it is printed. Fails where a difference has none."""
import argparse
import collections
import copy
import random
import sys

import numpy as np
import torch
import torch.nn.functional as F

import mica
import mica.torch as M

try:
    import onnx
    import onnxruntime
except ImportError:
    onnxruntime = None

NAMES = {
    "power of a negative": "lp: PyTorch's powers that are no whole numbers are NaN of numbers below 0; here they are those of |x|",
    "gradient of no number": "lp: a root of a negative sum is NaN on both sides, the gradient is NaN where PyTorch makes it so",
    "no alignment": "ctc: the gradient of an infinite loss is NaN here; PyTorch's has numbers in steps that no path reaches",
    "not taken": "ONNX Runtime has no kernel for it",
}
BOUND = {torch.float64: (1e-10, 1e-10), torch.float32: (2e-4, 2e-5)}  # relative, absolute


class Differs(Exception):
    pass


def same(name, ours, theirs, bound=None):
    relative, absolute = bound or BOUND[theirs.dtype]
    if ours.shape != theirs.shape or not torch.allclose(ours, theirs, relative, absolute, equal_nan=True):
        error = (ours.double() - theirs.double()).abs().nan_to_num(float("inf")).max() if ours.shape == theirs.shape else "shape"
        raise Differs(f"{name}: {error}")


def numbers(draw, *shape, dtype):
    """In another order in memory as often as not."""
    x = torch.randn(*shape, dtype=dtype)
    order = list(range(len(shape)))
    if draw.random() < 0.5:
        draw.shuffle(order)
    back = sorted(range(len(order)), key=order.__getitem__)
    return x.permute(order).contiguous().permute(back).requires_grad_()


def gradients(results, inputs):
    """Of the results' products with numbers that both sides get."""
    state = torch.get_rng_state()
    found = []
    for made in results:
        torch.set_rng_state(state)
        total = sum((y * torch.randn(y.shape, dtype=y.dtype)).sum() for y in made)
        found.append(torch.autograd.grad(total, inputs, allow_unused=True, retain_graph=True))
    return list(zip(*found))


def kinds(draw):
    return draw.choice((torch.float64, torch.float32))


def image(draw, axes, dtype, least=1):
    return numbers(draw, draw.randint(1, 3), draw.choice((1, 2, 3, 5, 8, 17)),
                   *(draw.randint(least, (30, 14, 9)[axes - 1]) for _ in range(axes)), dtype=dtype)


# ---- beside PyTorch: a name of NAMES, or None ----


def pool(draw):
    axes, dtype = draw.randint(1, 3), kinds(draw)
    x = image(draw, axes, dtype, 3)
    window = [draw.randint(1, min(4, n)) for n in x.shape[2:]]
    stride = [draw.randint(1, 4) for _ in window]
    pad, ceil = [draw.randint(0, w // 2) for w in window], draw.random() < 0.4
    kind = draw.choice(("max", "avg", "lp", "adaptive"))
    theirs = lambda name: getattr(F, f"{name}{axes}d")
    if kind == "max":
        dilation = [draw.randint(1, 2) if (w - 1) * 2 < n else 1 for w, n in zip(window, x.shape[2:])]
        asked = (window, stride, pad, dilation, ceil, True)
        got, want = M.max_pool(x, *asked), theirs("max_pool")(x, *asked)
        same("indices", got[1].double(), want[1].double(), (0, 0))
        got, want = got[0], want[0]
    elif kind == "avg":
        asked = (window, stride, pad, ceil, draw.random() < 0.5)
        divisor = (draw.randint(1, 7),) if axes > 1 and draw.random() < 0.3 else ()
        got, want = M.avg_pool(x, *asked, *divisor), theirs("avg_pool")(x, *asked, *divisor)
    elif kind == "adaptive":
        sizes = [draw.randint(1, 9) for _ in window]
        got, want = M.adaptive_avg_pool(x, sizes), theirs("adaptive_avg_pool")(x, sizes)
    else:
        p = draw.choice((1, 2, 3, 4, 2.5))
        positive = draw.random() < 0.6
        x = (x.detach().abs() + 0.1 if positive else x.detach()).requires_grad_()
        got, want = M.lp_pool(x, p, window, stride, ceil), theirs("lp_pool")(x, p, window if axes > 1 else window[0],
                                                                            stride if axes > 1 else stride[0], ceil)
        if not positive and p == 2.5:
            return "power of a negative"
        if not bool(want.isfinite().all()):
            # powers that cancel leave few digits: the sign of the rest decides
            if bool((got.isnan() != want.isnan()).any()) or not torch.allclose(got, want, 1e-3, 1e-3, equal_nan=True):
                raise Differs("lp of sums below 0")
            return "gradient of no number"
        if not positive and p % 2:
            same("y", got, want, (1e-3, 1e-3))  # sums that cancel
            return None
    same("y", got, want)
    for a, b in gradients(((got,), (want,)), (x,)):
        same("dx", a, b)
    return None


def fractional(draw):
    axes, dtype = draw.choice((2, 3)), kinds(draw)
    x = image(draw, axes, dtype, 4)
    window = [draw.randint(1, 3) for _ in range(axes)]
    samples = torch.rand(*x.shape[:2], axes, dtype=dtype)
    if draw.random() < 0.5:
        asked = {"output_size": [draw.randint(1, n - w) for n, w in zip(x.shape[2:], window)]}
    else:
        asked = {"output_ratio": [draw.uniform(1.01 / n, (n - w + 0.9) / n) for n, w in zip(x.shape[2:], window)]}
    got, want = (pool(x, window, **asked, return_indices=True, _random_samples=samples)
                 for pool in (M.fractional_max_pool, getattr(F, f"fractional_max_pool{axes}d")))
    same("y", got[0], want[0], (0, 0))
    same("indices", got[1].double(), want[1].double(), (0, 0))
    for a, b in gradients(((got[0],), (want[0],)), (x,)):
        same("dx", a, b)
    return None


def unpool(draw):
    axes, dtype = draw.randint(1, 3), kinds(draw)
    x = image(draw, axes, dtype)
    window = [draw.randint(1, 4) for _ in range(axes)]
    stride = [draw.randint(1, 4) for _ in range(axes)]
    sizes = [max((n - 1) * s + w + draw.randint(1 - s, s - 1), 1) for n, s, w in zip(x.shape[2:], stride, window)]
    plane, windows = int(np.prod(sizes)), x[0, 0].numel()
    if windows <= plane:  # each once: of several PyTorch says nothing
        rows = [torch.randperm(plane)[:windows] for _ in range(x.shape[0] * x.shape[1])]
    else:
        return unpool(draw)
    indices = torch.stack(rows).reshape(x.shape)
    theirs = getattr(F, f"max_unpool{axes}d")
    got, want = M.max_unpool(x, indices, window, stride, 0, sizes), theirs(x, indices, window, stride, 0, sizes)
    same("y", got, want, (0, 0))
    for a, b in gradients(((got,), (want,)), (x,)):
        same("dx", a, b, (0, 0))
    return None


def lrn(draw):
    dtype = kinds(draw)
    x = image(draw, draw.randint(1, 3), dtype)
    asked = (draw.randint(1, 9), draw.choice((1e-4, 0.3, 2.0)), draw.choice((0.75, 0.5, 1.0, 0.3)), draw.choice((1.0, 2.0, 0.5)))
    got, want = M.local_response_norm(x, *asked), F.local_response_norm(x.contiguous(), *asked)
    same("y", got, want)
    for a, b in gradients(((got,), (want,)), (x,)):
        same("dx", a, b)
    return None


def rnn(draw):
    dtype, hidden, inputs = kinds(draw), draw.randint(2, 19), draw.randint(1, 17)
    kind = draw.choice((torch.nn.LSTM, torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN))
    fields = dict(num_layers=draw.randint(1, 3), bidirectional=draw.random() < 0.4, bias=draw.random() < 0.8,
                  batch_first=draw.random() < 0.4, dtype=dtype)
    if kind is torch.nn.LSTM and draw.random() < 0.4:
        fields["proj_size"] = draw.randint(1, hidden - 1)
    if kind is torch.nn.RNN:
        fields["nonlinearity"] = draw.choice(("tanh", "relu"))
    net = kind(inputs, hidden, **fields)
    steps, batch = draw.randint(1, 7), draw.randint(1, 5)
    x = torch.randn(*((batch, steps) if fields["batch_first"] else (steps, batch)), inputs, dtype=dtype, requires_grad=True)
    given, begin = x, None
    if draw.random() < 0.5:
        given = torch.nn.utils.rnn.pack_padded_sequence(x, [draw.randint(1, steps) for _ in range(batch)], fields["batch_first"],
                                                        enforce_sorted=False)
    if draw.random() < 0.6:
        rows = net.num_layers * (1 + net.bidirectional)
        begin = torch.randn(rows, batch, net.proj_size or hidden, dtype=dtype)
        begin = (begin, torch.randn(rows, batch, hidden, dtype=dtype)) if kind is torch.nn.LSTM else begin

    def flat(results):
        y, last = results
        return (y if torch.is_tensor(y) else y.data, *(last if isinstance(last, tuple) else (last,)))

    ours = torch.nn.Sequential(copy.deepcopy(net))
    if len(M.replace(ours).replaced) != 1:
        raise Differs("not replaced")
    want, got = flat(net(given, begin)), flat(ours[0](given, begin))
    for i, (a, b) in enumerate(zip(got, want)):
        same(("y", "hy", "cy")[i], a, b)
    state = torch.get_rng_state()
    found = []
    for module, results in ((ours[0], got), (net, want)):
        torch.set_rng_state(state)
        total = sum((y * torch.randn(y.shape, dtype=y.dtype)).sum() for y in results)
        found.append(torch.autograd.grad(total, [x, *module.parameters()], retain_graph=True))
    for a, b in zip(*found):
        same("gradient", a, b)
    return None


def ctc(draw):
    dtype = kinds(draw)
    steps, batch, classes, most = draw.randint(1, 30), draw.randint(1, 4), draw.randint(2, 12), draw.randint(1, 9)
    x = torch.randn(steps, batch, classes, dtype=dtype, requires_grad=True)
    blank = draw.randrange(classes)
    labels = torch.tensor([draw.choice([c for c in range(classes) if c != blank]) for _ in range(batch * most)]).reshape(batch, most)
    lengths = [draw.randint(1, steps) for _ in range(batch)], [draw.randint(0, most) for _ in range(batch)]
    if draw.random() < 0.4 and sum(lengths[1]):
        labels = torch.cat([row[:n] for row, n in zip(labels, lengths[1])])
    asked = dict(blank=blank, reduction=draw.choice(("mean", "sum", "none")), zero_infinity=draw.random() < 0.3)
    lengths = [torch.tensor(n) for n in lengths]
    got, want = (f(x.log_softmax(-1), labels, *lengths, **asked) for f in (M.ctc_loss, F.ctc_loss))
    same("loss", got, want)
    if not bool(want.isfinite().all()):
        return "no alignment"
    for a, b in gradients(((got,), (want,)), (x,)):
        same("dx", a, b)
    return None


# ---- beside ONNX Runtime ----


def beside_runtime(op, inputs, outputs, opset, **attributes):
    from onnx import TensorProto, helper

    kind = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64}
    names = [f"i{n}" if a is not None else "" for n, a in enumerate(inputs)]
    given = {name: np.ascontiguousarray(a) for name, a in zip(names, inputs) if a is not None}
    node = helper.make_node(op, names, [f"o{n}" for n in range(outputs)], **attributes)
    tensors = [helper.make_tensor_value_info(name, kind[a.dtype.name], a.shape) for name, a in given.items()]
    result = TensorProto.INT64 if op == "NonMaxSuppression" else TensorProto.FLOAT
    graph = helper.make_graph([node], op, tensors, [helper.make_tensor_value_info(f"o{n}", result, None) for n in range(outputs)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    quiet = onnxruntime.SessionOptions()
    quiet.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), quiet, providers=["CPUExecutionProvider"])
    except Exception as error:
        if "NOT_IMPLEMENTED" in str(error) or "Could not find an implementation" in str(error):
            return None
        raise
    return [torch.from_numpy(np.array(a)) for a in session.run(None, given)]


def array(draw, *shape, low=-1.0, high=1.0):
    return np.array([draw.uniform(low, high) for _ in range(int(np.prod(shape)))], np.float32).reshape(shape)


def roi_align(draw):
    n, h, w, k = draw.randint(1, 3), draw.randint(2, 12), draw.randint(2, 12), draw.randint(1, 6)
    x = array(draw, n, draw.randint(1, 5), h, w)
    corners = np.sort(array(draw, k, 2, 2, low=-2, high=float(max(h, w)) * 2 + 2), 1)
    rois, batch = corners.reshape(k, 4), np.array([draw.randrange(n) for _ in range(k)], np.int64)
    size, scale, sampling = [draw.randint(1, 5), draw.randint(1, 5)], draw.choice((1.0, 0.5, 0.25)), draw.randint(0, 3)
    aligned = draw.random() < 0.5
    want = beside_runtime("RoiAlign", [x, rois, batch], 1, 16, mode="avg", output_height=size[0], output_width=size[1],
                          sampling_ratio=sampling, spatial_scale=scale,
                          coordinate_transformation_mode="half_pixel" if aligned else "output_half_pixel")
    if want is None:
        return "not taken"
    more = {"sampling": sampling} if sampling else {}
    for engine in ("cpu", "ref"):
        y = mica.roi_align(x, rois, batch=batch, size=size, scale=scale, aligned=aligned, options={"engine": engine}, **more)
        same(engine, torch.from_numpy(np.asarray(y)), want[0], (1e-4, 1e-5))
    return None


def nms(draw):
    b, c, n = draw.randint(1, 2), draw.randint(1, 3), draw.randint(1, 40)
    center = draw.random() < 0.4
    if center:
        boxes = np.concatenate([array(draw, b, n, 2, low=0, high=10), array(draw, b, n, 2, low=0.5, high=6)], -1)
    else:
        boxes = array(draw, b, n, 4, low=0, high=10)  # corners in any order
    scores, limit = array(draw, b, c, n, low=0), draw.randint(1, n)
    iou, least = draw.choice((0.0, 0.3, 0.5, 0.7, 1.0)), draw.choice((None, 0.2, 0.5))
    inputs = [boxes, scores, np.array([limit], np.int64), np.array([iou], np.float32)]
    want = beside_runtime("NonMaxSuppression", inputs + ([np.array([least], np.float32)] if least is not None else []), 1, 11,
                          center_point_box=int(center))
    if want is None:
        return "not taken"
    more = {"score_threshold": float(np.float32(least))} if least is not None else {}
    for engine in ("cpu", "ref"):
        selected, count = mica.nms(boxes, scores, format="center" if center else "corners", limit=limit, options={"engine": engine},
                                   iou_threshold=float(np.float32(iou)), **more)
        rows = torch.from_numpy(np.asarray(selected))[: int(np.asarray(count)[0])].double()
        order = lambda t: t[np.lexsort(t.numpy().T[::-1])] if len(t) else t.reshape(0, 3)
        same(engine, order(rows), order(want[0].double()), (0, 0))
    return None


def deform_conv(draw):
    n, groups, offsets = draw.randint(1, 2), draw.choice((1, 1, 2)), draw.choice((1, 1, 2))
    c = 2 * draw.randint(1, 3)
    k, kernel = groups * draw.randint(1, 3), [draw.randint(1, 3), draw.randint(1, 3)]
    stride, dilation = [draw.randint(1, 2) for _ in kernel], [draw.randint(1, 2) for _ in kernel]
    pad = [draw.randint(0, 1) for _ in kernel]
    x = array(draw, n, c, draw.randint(6, 9), draw.randint(6, 9))
    y = [(m + 2 * p - d * (w - 1) - 1) // s + 1 for m, p, d, w, s in zip(x.shape[2:], pad, dilation, kernel, stride)]
    taps = kernel[0] * kernel[1]
    w, offset = array(draw, k, c // groups, *kernel), array(draw, n, 2 * offsets * taps, *y, low=-3, high=3)
    mask = array(draw, n, offsets * taps, *y, low=0) if draw.random() < 0.6 else None
    bias = array(draw, k) if draw.random() < 0.5 else None
    want = beside_runtime("DeformConv", [x, w, offset, bias, mask], 1, 19, kernel_shape=kernel, strides=stride,
                          dilations=dilation, pads=pad * 2, group=groups, offset_group=offsets)
    if want is None:
        return "not taken"
    more = {name: a for name, a in (("mask", mask), ("bias", bias)) if a is not None}
    for engine in ("gemm", "ref"):
        got = mica.deform_conv(x, w, offset, stride=stride, dilation=dilation, pad=pad, groups=groups, offset_groups=offsets,
                               options={"engine": engine}, **more)
        same(engine, torch.from_numpy(np.asarray(got)), want[0], (1e-4, 2e-5))
    return None


TORCH = {f.__name__: f for f in (pool, fractional, unpool, lrn, rnn, ctc)}
RUNTIME = {f.__name__: f for f in (roi_align, nms, deform_conv)}


def judge(name, problem, count, seed):
    found, wrong = collections.Counter(), []
    for number in range(count):
        draw = random.Random(f"{name} {seed} {number}")
        torch.manual_seed(draw.randrange(2**32))
        try:
            found[problem(draw)] += 1
        except Differs as difference:
            wrong.append(f"--seed {seed}, number {number}: {difference}")
    print(f"{name}: {found.pop(None, 0)} alike, {sum(found.values())} differ by name, {len(wrong)} without", flush=True)
    for key, times in found.most_common():
        print(f"  {times:4} {key}: {NAMES[key]}")
    for line in wrong[:10]:
        print("  " + line)
    return bool(wrong)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("operation", nargs="*", help=" ".join([*TORCH, *RUNTIME]))
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    unknown = set(given.operation) - set(TORCH | RUNTIME)
    if unknown:
        sys.exit(f"no operation is called {', '.join(sorted(unknown))}")
    print(f"PyTorch {torch.__version__}, " + (f"ONNX Runtime {onnxruntime.__version__}" if onnxruntime else "no ONNX Runtime: "
          f"{', '.join(RUNTIME)} are left out"))
    wanted = {**TORCH, **(RUNTIME if onnxruntime else {})}
    return any([judge(name, problem, given.count, given.seed) for name, problem in wanted.items()
                if not given.operation or name in given.operation])


if __name__ == "__main__":
    raise SystemExit(main())
