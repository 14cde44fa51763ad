# SPDX-License-Identifier: Apache-2.0
"""A model of mica's modules under torchrun: two processes on the CPU (gloo), DistributedDataParallel and FSDP2. Each rank
has half of a batch; the loss is that of one process with PyTorch's own modules and all of it. And a process that dies: the
others are started anew with it, and go on from the checkpoint as if nothing had been."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

EXAMPLE = pathlib.Path(__file__).resolve().parents[3] / "examples" / "torchrun_transformer.py"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def model():
    import torch
    from torch import nn

    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 5))


def batch():
    import torch

    generator = torch.Generator().manual_seed(1)
    return torch.randn(8, 12, generator=generator), torch.randint(5, (8,), generator=generator)


def train(net, optimiser, loss, x, y, average=lambda value: value):
    curve = []
    for _ in range(10):
        optimiser.zero_grad()
        value = loss(net(x), y)
        value.backward()
        optimiser.step()
        curve.append(average(value.detach()).item())
    return curve


def worker(kind):
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F

    import mica.torch as M

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    net, (x, y) = model(), batch()
    report = M.replace(net)
    assert len(report.replaced) == 4 and not report.left, report
    if kind == "ddp":
        net = torch.nn.parallel.DistributedDataParallel(net)
    else:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (world,))
        fully_shard(net[0], mesh=mesh)
        fully_shard(net, mesh=mesh)
    optimiser = M.AdamW(net.parameters(), lr=0.05)

    def average(value):
        dist.all_reduce(value)
        return value / world

    half = slice(rank * len(x) // world, (rank + 1) * len(x) // world)
    curve = train(net, optimiser, M.cross_entropy, x[half], y[half], average)
    if rank == 0:
        alone = model()
        expected = train(alone, torch.optim.AdamW(alone.parameters(), lr=0.05), F.cross_entropy, x, y)
        torch.testing.assert_close(torch.tensor(curve), torch.tensor(expected), rtol=1e-3, atol=1e-4)
        assert curve[-1] < curve[0]
        print("curves agree")
    dist.destroy_process_group()


class Distributed(unittest.TestCase):
    def run_ranks(self, kind):
        found = subprocess.run([*TORCHRUN, __file__, kind], capture_output=True, text=True, timeout=300)
        self.assertEqual(found.returncode, 0, found.stderr[-3000:])
        self.assertIn("curves agree", found.stdout)

    def test_ddp(self):
        self.run_ranks("ddp")

    def test_fsdp2(self):
        self.run_ranks("fsdp2")


class Elastic(unittest.TestCase):
    """SIGKILL of one rank between two checkpoints, by examples/torchrun_transformer.py itself."""

    def losses(self, folder, name, *options):
        found = subprocess.run([*TORCHRUN, "--max-restarts", "1", str(EXAMPLE), "--steps", "8", "--losses", f"{folder}/{name}",
                                *options], capture_output=True, text=True, timeout=300)
        self.assertEqual(found.returncode, 0, found.stderr[-3000:])
        return json.loads(pathlib.Path(folder, name).read_text()), found

    def test_goes_on_from_the_checkpoint(self):
        with tempfile.TemporaryDirectory() as folder:
            unbroken, _ = self.losses(folder, "unbroken")
            broken, found = self.losses(folder, "broken", "--checkpoints", f"{folder}/state", "--every", "3", "--kill", "5")
            self.assertIn("exitcode: -9", found.stderr)
            self.assertIn("start 1: goes on at step 3", found.stdout)
            self.assertEqual(list(unbroken), [str(n) for n in range(8)])
            self.assertEqual(broken, unbroken)  # every bit: JSON has doubles as they are


if __name__ == "__main__":
    if "LOCAL_RANK" in os.environ:
        worker(sys.argv[1])
    else:
        unittest.main()
