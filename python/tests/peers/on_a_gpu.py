# SPDX-License-Identifier: Apache-2.0
"""mica on a GPU beside PyTorch, CuPy and JAX: streams, CUDA graphs, allocators, autocast, torch.compile, DLPack. It needs a
GPU and is run by bench/python_cuda.sh."""

import subprocess
import sys
import unittest

import torch
import torch.nn.functional as F
from torch import nn

import mica
import mica.torch as M

torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False


def randn(*shape, dtype=torch.float32, grad=False):
    return torch.randn(*shape, device="cuda", dtype=dtype, requires_grad=grad)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
                                  nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.GroupNorm(2, 16), nn.GELU(),
                                  nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(16), nn.Linear(16, 8))

    def forward(self, x):
        return self.body(x)


class Streams(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)

    def test_runs_on_the_current_one(self):
        """What waits on a stream is waited for: a long sleep, then the input is written, then read."""
        w = randn(16, 16, 3, 3)
        M.conv(randn(4, 16, 32, 32), w)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            x = torch.zeros(4, 16, 32, 32, device="cuda")
            torch.cuda._sleep(100_000_000)
            x.normal_()
            y = M.conv(x, w)
            plan = mica.plan("conv", x, w)
            z = plan.run(x, w)
        torch.cuda.current_stream().wait_stream(side)
        torch.testing.assert_close(y, F.conv2d(x, w), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(z, y, rtol=0, atol=0)

    def test_backward_runs_on_the_forward_ones(self):
        side = torch.cuda.Stream()
        x, w = randn(4, 8, 16, 16, grad=True), randn(8, 8, 3, 3, grad=True)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(50_000_000)
            y = M.conv(x * 2, w)
        torch.cuda.current_stream().wait_stream(side)
        found = torch.autograd.grad((y * y).sum(), (x, w))
        y = F.conv2d(x * 2, w)
        torch.testing.assert_close(found, torch.autograd.grad((y * y).sum(), (x, w)), rtol=1e-3, atol=1e-2)

    def test_a_stream_by_address(self):
        side = torch.cuda.Stream()
        x = randn(64, 64)
        torch.cuda.synchronize()
        y = mica.softmax(x, axis=1, stream=side.cuda_stream)
        side.synchronize()
        torch.testing.assert_close(y, torch.softmax(x, 1))


class Graphs(unittest.TestCase):
    def test_a_training_step_is_captured(self):
        torch.manual_seed(0)
        nets = [Net().cuda(), Net().cuda()]
        nets[1].load_state_dict(nets[0].state_dict())
        M.replace(nets[1])
        x, labels = randn(8, 3, 32, 32), torch.randint(8, (8,), device="cuda")
        optimisers = [torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9) for net in nets]

        def step(i):
            optimisers[i].zero_grad(set_to_none=False)
            loss = (F.cross_entropy, M.cross_entropy)[i](nets[i](x), labels)
            loss.backward()
            optimisers[i].step()
            return loss

        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(3):
                step(1)
        side.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = step(1)
        for _ in range(3):
            step(0)
        for _ in range(5):
            x.copy_(randn(8, 3, 32, 32))
            graph.replay()
            torch.testing.assert_close(loss, step(0), rtol=2e-3, atol=2e-3)

    def test_attention_and_products_are_captured(self):
        q, k, v = (randn(2, 8, 128, 64, dtype=torch.bfloat16, grad=True) for _ in range(3))
        w = randn(64, 64, dtype=torch.bfloat16, grad=True)

        def step():
            y = M.linear(M.scaled_dot_product_attention(*M.rope(q, k), v, is_causal=True), w)
            return (y, *torch.autograd.grad(y.float().square().sum(), (q, k, v, w)))

        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            expected = [t.clone() for t in step()]
        side.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = step()
        for t in found:
            t.zero_()
        graph.replay()
        for a, b in zip(found, expected):
            torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2 * b.abs().max().item())

    def test_compiled_with_graphs(self):
        torch.manual_seed(0)
        net = Net().cuda().eval()
        x = randn(8, 3, 32, 32)
        expected = net(x)
        M.replace(net)
        compiled = torch.compile(net, mode="reduce-overhead", fullgraph=True)
        with torch.no_grad():
            for _ in range(4):
                torch.testing.assert_close(compiled(x).clone(), expected, rtol=1e-3, atol=1e-3)


class Compiled(unittest.TestCase):
    def test_training(self):
        torch.manual_seed(0)
        nets = [Net().cuda(), Net().cuda()]
        nets[1].load_state_dict(nets[0].state_dict())
        M.replace(nets[1])
        x, labels = randn(8, 3, 32, 32).contiguous(memory_format=torch.channels_last), torch.randint(8, (8,), device="cuda")
        results = []
        for net in (nets[0], torch.compile(nets[1], fullgraph=True)):
            loss = F.cross_entropy(net(x), labels)
            loss.backward()
            results.append(loss.detach())
        torch.testing.assert_close(*results, rtol=1e-3, atol=1e-3)
        for (name, a), b in zip(nets[0].named_parameters(), nets[1].parameters()):
            with self.subTest(name):
                torch.testing.assert_close(b.grad, a.grad, rtol=2e-3, atol=2e-3 * max(1, a.grad.abs().max().item()))

    def test_autocast(self):
        x, w = randn(2, 3, 8, 8), randn(4, 3, 3, 3)
        with torch.autocast("cuda", torch.bfloat16):
            self.assertEqual(M.conv(x, w).dtype, torch.bfloat16)
            self.assertEqual(M.linear(x, randn(5, 8)).dtype, torch.bfloat16)
            self.assertEqual(M.softmax(x.bfloat16(), 1).dtype, torch.float32)
        self.assertEqual(M.conv(x, w).dtype, torch.float32)


class Memory(unittest.TestCase):
    def test_does_not_grow(self):
        x, w = randn(8, 32, 32, 32, grad=True), randn(32, 32, 3, 3, grad=True)
        used = []
        for _ in range(6):
            M.conv(x, w).sum().backward()
            x.grad = w.grad = None
            used.append(torch.cuda.memory_allocated())
        self.assertEqual(used[-1], used[1])

    def test_workspace_is_pytorchs(self):
        """Nothing of it is left when the call is over, and a stream's memory is not another's."""
        q = randn(1, 8, 512, 64, dtype=torch.bfloat16)
        M.scaled_dot_product_attention(q, q, q)
        before = torch.cuda.memory_allocated()
        for _ in range(3):
            M.scaled_dot_product_attention(q, q, q)
        self.assertEqual(torch.cuda.memory_allocated(), before)

    def test_tensors_on_two_devices_are_refused(self):
        with self.assertRaisesRegex(mica.Invalid, "w is on cpu, x on cuda:0"):
            M.conv(randn(1, 3, 8, 8), torch.randn(4, 3, 3, 3))
        if torch.cuda.device_count() > 1:
            with self.assertRaisesRegex(mica.Invalid, "w is on cuda:1, x on cuda:0"):
                M.conv(randn(1, 3, 8, 8), torch.randn(4, 3, 3, 3, device="cuda:1"))
            x = torch.randn(1, 3, 8, 8, device="cuda:1")
            w = torch.randn(4, 3, 3, 3, device="cuda:1")
            torch.testing.assert_close(M.conv(x, w), F.conv2d(x, w), rtol=1e-4, atol=1e-4)


class Optimisers(unittest.TestCase):
    def test_step_as_pytorchs(self):
        for mine, theirs, options in ((M.SGD, torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}), (M.AdamW, torch.optim.AdamW, {"lr": 0.1})):
            a = nn.Parameter(randn(64, 33))
            b = nn.Parameter(a.detach().clone())
            first, second = mine([a], **options), theirs([b], **options)
            for _ in range(5):
                a.grad = b.grad = randn(64, 33)
                first.step(), second.step()
                torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


class Foreign(unittest.TestCase):
    """Arrays of others on the GPU."""

    def test_cupy(self):
        import cupy

        x = cupy.random.default_rng(0).standard_normal((64, 33), dtype=cupy.float32)
        found = mica.softmax(x, axis=1)
        self.assertIsInstance(found, cupy.ndarray)
        expected = cupy.exp(x) / cupy.exp(x).sum(1, keepdims=True)
        cupy.testing.assert_allclose(found, expected, rtol=1e-5)
        for view in (x.T, x[::2, 1:], x[::-1]):
            cupy.testing.assert_allclose(mica.transform(view, alpha=2), 2 * view)
        out = cupy.empty_like(x)
        self.assertIs(mica.transform(x, alpha=2, out=out), out)
        cupy.testing.assert_allclose(out, 2 * x)
        with cupy.cuda.Stream(non_blocking=True) as stream:
            y = x * 3
            z = mica.transform(y, alpha=2)
        stream.synchronize()
        cupy.testing.assert_allclose(z, 6 * x)
        with self.assertRaisesRegex(mica.Invalid, "overlaps"):
            mica.transform(x.ravel()[:64], out=x.ravel()[1:65])

    def test_dlpack_and_the_cuda_array_interface(self):
        class ByDLPack:
            def __init__(self, t):
                self.keep = t

            def __dlpack__(self, **options):
                return self.keep.__dlpack__(**options)

            def __dlpack_device__(self):
                return self.keep.__dlpack_device__()

        class ByInterface:
            def __init__(self, t):
                self.keep, self.__cuda_array_interface__ = t, t.__cuda_array_interface__

        x = randn(5, 7)
        for wrap in ByDLPack, ByInterface:
            found = mica.transform(wrap(x), alpha=2)
            self.assertEqual(type(found), mica.Array)
            torch.cuda.synchronize()
            torch.testing.assert_close(torch.as_tensor(found, device="cuda"), 2 * x)
            out = torch.zeros(5, 7, device="cuda")
            mica.transform(x, alpha=3, out=wrap(out))
            torch.testing.assert_close(out, 3 * x)
        half = randn(4).bfloat16()
        torch.cuda.synchronize()
        torch.testing.assert_close(torch.as_tensor(mica.transform(ByDLPack(half), y="f32"), device="cuda"), half.float())

    def test_pinned_memory_is_the_cpus(self):
        x = torch.randn(5, 7).pin_memory()
        torch.testing.assert_close(mica.transform(x, alpha=2), 2 * x)

    def test_types(self):
        for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int32, torch.int64):
            x = torch.arange(12, device="cuda").reshape(3, 4).to(dtype)
            for t in (x, x.t(), x[::2, 1:]):
                with self.subTest(dtype=dtype, strides=t.stride()):
                    self.assertTrue(torch.equal(mica.transform(t, alpha=2), t * 2))

    def test_a_fork_says_so(self):
        program = """
import torch, mica, mica.torch as M, os
x = torch.randn(4, 4, device="cuda")
M.softmax(x, 1)
pid = os.fork()
if pid == 0:
    try:
        mica.Context("cuda:0")
    except mica.ForkedProcess:
        os._exit(7)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
        found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        self.assertEqual(found.stdout, "7\n", found.stderr)


if __name__ == "__main__":
    unittest.main()
