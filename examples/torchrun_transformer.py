#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A small language model made of mica.torch's functions, trained by several processes.

    torchrun --standalone --nproc-per-node 2 examples/torchrun_transformer.py --engine ddp
    torchrun --standalone --nproc-per-node 2 examples/torchrun_transformer.py --engine fsdp2
    torchrun --standalone --nproc-per-node 2 --max-restarts 1 examples/torchrun_transformer.py \\
        --checkpoints /tmp/run --kill 12

--checkpoints: state is saved there every few steps, and found again by processes that torchrun starts anew. --kill N:
the last rank kills itself before step N, once; the losses that follow are those of an unbroken run, bit for bit on a
CPU. --losses FILE: the loss of each step, as JSON, to compare runs by. On GPUs (one for each process, NCCL) it is the
same program; it has run on CPUs (gloo) and on two H200s."""

import argparse
import json
import os
import pathlib
import signal

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import mica.torch as M

WORDS, WIDTH, HEADS, LAYERS, LENGTH, BATCH = 29, 32, 4, 2, 16, 8


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.Parameter(torch.ones(WIDTH)), nn.Parameter(torch.ones(WIDTH))
        self.qkv, self.out = weight(3 * WIDTH, WIDTH), weight(WIDTH, WIDTH)
        self.up, self.down = weight(4 * WIDTH, WIDTH), weight(WIDTH, 4 * WIDTH)

    def forward(self, x):
        b, s, _ = x.shape
        qkv = M.linear(M.rms_norm(x, (WIDTH,), self.norm1, 1e-6), self.qkv)
        q, k, v = qkv.reshape(b, s, 3, HEADS, -1).permute(2, 0, 3, 1, 4).contiguous()
        q, k = M.rope(q, k)
        y = M.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + M.linear(y.transpose(1, 2).reshape(b, s, WIDTH), self.out)
        y = M.linear(M.rms_norm(x, (WIDTH,), self.norm2, 1e-6), self.up)
        return x + M.linear(M.activation(y, "silu"), self.down)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.Parameter(torch.ones(WIDTH)), weight(WORDS, WIDTH)

    def forward(self, words):
        x = self.words(words)
        for block in self.blocks:
            x = block(x)
        return M.linear(M.rms_norm(x, (WIDTH,), self.norm, 1e-6), self.head).clone()  # FSDP2 wants no view


def weight(rows, columns):
    return nn.Parameter(torch.randn(rows, columns) * columns**-0.5)


def batch(step):
    """Sequences that go on by a rule: each word is the one before it times 3, plus a number of the sequence's own."""
    generator = torch.Generator().manual_seed(step)
    word, plus = torch.randint(WORDS, (2, BATCH), generator=generator)
    words = [word]
    for _ in range(LENGTH):
        words.append((words[-1] * 3 + plus) % WORDS)
    return torch.stack(words, 1)


def newest(folder):
    """The newest checkpoint that is whole: its metadata is written last."""
    found = sorted(int(f.parent.name) for f in folder.glob("*/.metadata")) if folder else []
    return found[-1] if found else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=["ddp", "fsdp2"], default="ddp")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--checkpoints", type=pathlib.Path)
    parser.add_argument("--every", type=int, default=5)
    parser.add_argument("--kill", type=int)
    parser.add_argument("--losses", type=pathlib.Path)
    options = parser.parse_args()

    gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    # The agent of torchrun keeps its store when it starts processes anew, with what the dead ones left: gloo would
    # connect to their addresses. So each start has names of its own there.
    store, rank, world = next(dist.rendezvous("env://"))
    start = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    dist.init_process_group("nccl" if gpu else "gloo", store=dist.PrefixStore(f"start {start}", store), rank=rank,
                            world_size=world)

    torch.manual_seed(0)  # every rank begins with the same parameters
    model = Model().to(device)
    if options.engine == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    else:
        from torch.distributed.fsdp import fully_shard

        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    optimiser = M.AdamW(model.parameters(), lr=0.01)

    first, losses = 0, {}
    found = newest(options.checkpoints)
    if found is not None:
        parameters, moments = get_state_dict(model, optimiser)
        state = {"model": parameters, "optimiser": moments}
        dcp.load(state, checkpoint_id=options.checkpoints / str(found))
        set_state_dict(model, optimiser, model_state_dict=state["model"], optim_state_dict=state["optimiser"])
        first = found
        if rank == 0:
            print(f"start {start}: goes on at step {first}", flush=True)
            losses = json.loads((options.checkpoints / str(found) / "losses.json").read_text())

    for step in range(first, options.steps):
        if step == options.kill and rank == world - 1 and start == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        words = batch(step)[rank * BATCH // world : (rank + 1) * BATCH // world].to(device)
        loss = M.cross_entropy(model(words[:, :-1]).reshape(-1, WORDS), words[:, 1:].reshape(-1))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        mean = loss.detach()
        dist.all_reduce(mean)
        losses[str(step)] = mean.item() / world
        if options.checkpoints and (step + 1) % options.every == 0:
            parameters, moments = get_state_dict(model, optimiser)
            place = options.checkpoints / str(step + 1)
            if rank == 0:
                place.mkdir(parents=True, exist_ok=True)
                (place / "losses.json").write_text(json.dumps(losses))
            dcp.save({"model": parameters, "optimiser": moments}, checkpoint_id=place)
    if rank == 0:
        print(f"{options.engine}, {world} processes: loss {losses['0']:.4f} -> {losses[str(options.steps - 1)]:.4f}")
        if options.losses:
            options.losses.write_text(json.dumps(losses))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
