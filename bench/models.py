#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""models [--models NAMES] [--modes curves,eager,compile] [--results FILE] [--limit S]: ResNet-50 and ConvNeXt-T of
torchvision, ViT-B/16 of timm and a Llama of transformers at their own sizes on a GPU, with random weights, as they are and
after mica.torch.replace (ResNet-50: and fuse), bf16.

curves: the losses of some steps on pictures and words that have something to learn, from the same parameters on the same
batches, beside the model as it is in f32. eager, compile: a training step's time, without and with torch.compile on both
sides, in turn, medians of rounds; the most memory that a step takes. profile: which kernels take a step's time, on stderr;
only when asked for.

Each model has a process of its own. They compile side by side; times are taken of one after the other, when all are
ready or --limit has passed. What fails is said, and the others go on. --results: JSON lines. --tiny: sizes for a CPU,
to try the program."""

import argparse
import json
import math
import pathlib
import queue
import statistics
import subprocess
import sys
import threading
import time
import traceback

ROOT = pathlib.Path(__file__).resolve().parents[1]
MODES = "curves", "eager", "compile", "profile"
START = time.monotonic()


# ---- the models, and what replace() is told of their own classes ----


class Case:
    """sizes: of the batch when time is taken, of curves and of both for a CPU."""

    weights = None  # a type for the parameters, where autocast does not choose
    channels_last = fused = False
    batch, curve, tiny = 256, 64, 2
    lr, rule = 3e-4, "AdamW"

    def __init__(self, tiny):
        self.small = tiny
        if tiny:
            self.batch = self.curve = self.tiny

    def forwards(self):
        return {}

    def images(self, count, seed, device):
        """Ten patterns under noise."""
        import torch

        size = 64 if self.small and self.channels_last else 32 if self.small else 224
        generator = torch.Generator(device).manual_seed(0)
        patterns = torch.randn(10, 3, 8, 8, generator=generator, device=device)
        generator.manual_seed(seed)
        labels = torch.randint(10, (count,), generator=generator, device=device)
        x = torch.nn.functional.interpolate(patterns[labels], size=(size, size))
        x = x + torch.randn(x.shape, generator=generator, device=device)
        return x.contiguous(memory_format=torch.channels_last) if self.channels_last else x, labels

    data = images

    def output(self, model, x):
        return model(x)


class ResNet50(Case):
    fused = True  # mica.torch.fuse: batch norms with the addition and the ReLU behind them
    channels_last, batch, lr, rule = True, 256, 0.01, "SGD"

    def make(self):
        import torchvision

        return torchvision.models.resnet50(num_classes=1000)


class ConvNeXt(Case):
    channels_last = True

    def make(self):
        import torchvision

        return torchvision.models.convnext_tiny(stochastic_depth_prob=0.0)

    def forwards(self):
        from torchvision.models.convnext import LayerNorm2d

        import mica.torch as M

        def norm(self, x):
            y = M.layer_norm(x.permute(0, 2, 3, 1), self.normalized_shape, self.weight, self.bias, self.eps)
            return y.permute(0, 3, 1, 2)

        return {LayerNorm2d: norm}


class ViT(Case):
    lr = 1e-4  # at three times that the loss has a spike where any two curves part

    def make(self):
        import timm

        if self.small:
            return timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2)
        return timm.create_model("vit_base_patch16_224")

    def forwards(self):
        from timm.layers import LayerNorm
        from timm.layers.attention import Attention
        from torch import nn

        import mica.torch as M

        def attention(self, x, attn_mask=None, is_causal=False):
            b, s, _ = x.shape
            q, k, v = self.qkv(x).reshape(b, s, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4).unbind(0)
            y = M.scaled_dot_product_attention(self.q_norm(q), self.k_norm(k), v, attn_mask, is_causal=is_causal)
            return self.proj_drop(self.proj(self.norm(y.transpose(1, 2).reshape(b, s, -1))))

        return {LayerNorm: nn.LayerNorm, Attention: attention}


class Llama(Case):
    """Two layers of Llama-3-8B's sizes, 4096 words, a short vocabulary."""

    weights, batch, curve, tiny, lr = "bfloat16", 1, 1, 1, 1e-4
    layers = 2

    def make(self):
        from transformers import LlamaConfig, LlamaForCausalLM

        sizes = dict(hidden_size=4096, intermediate_size=14336, num_attention_heads=32, num_key_value_heads=8, vocab_size=8192)
        if self.small:
            sizes = dict(hidden_size=64, intermediate_size=96, num_attention_heads=4, num_key_value_heads=2, vocab_size=64)
        return LlamaForCausalLM(LlamaConfig(**sizes, num_hidden_layers=self.layers, max_position_embeddings=8192, use_cache=False))

    def data(self, count, seed, device):
        """Each word is the one before it times 3, plus a number of the sequence's own."""
        import torch

        length, words = (16, 64) if self.small else (4096, 8192)
        generator = torch.Generator(device).manual_seed(seed)
        word, plus = torch.randint(words, (2, count), generator=generator, device=device)
        found = [word]
        for _ in range(length):
            found.append((found[-1] * 3 + plus) % 61)
        found = torch.stack(found, 1)
        return found[:, :-1].contiguous(), found[:, 1:].reshape(-1)

    def output(self, model, x):
        return model(input_ids=x).logits.flatten(0, 1).float()

    def forwards(self):
        from torch import nn
        from transformers.activations import ACT2FN
        from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRMSNorm

        import mica.torch as M

        def norm(self, x):
            return M.rms_norm(x, self.weight.shape, self.weight, self.variance_epsilon)

        def attention(self, hidden_states, position_embeddings=None, attention_mask=None, past_key_values=None, **_):
            b, s, _ = hidden_states.shape
            q, k, v = (f(hidden_states).view(b, s, -1, self.head_dim).transpose(1, 2)
                       for f in (self.q_proj, self.k_proj, self.v_proj))
            q, k = M.rope(q, k)
            y = M.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.scaling, enable_gqa=True)
            return self.o_proj(y.transpose(1, 2).reshape(b, s, -1)), None

        return {LlamaRMSNorm: norm, LlamaAttention: attention, type(ACT2FN["silu"]): nn.SiLU}


CASES = {"resnet50": ResNet50, "convnext": ConvNeXt, "vit": ViT, "llama": Llama}


# ---- one model's process ----


def made(case, device, weights):
    import torch

    with torch.device(device):
        model = case.make()
    return model.to(**({"memory_format": torch.channels_last} if case.channels_last else {}),
                    **({"dtype": getattr(torch, weights)} if weights else {})).train()


def described_model(case, device, weights):
    import torch
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    with unset_fake_temporarily():
        try:
            model = made(case, "meta", weights)
        except RuntimeError:  # some compute with numbers while they are made
            model = made(case, "cpu", weights)
    for module in model.modules():
        for kind, wrap in ((module._parameters, torch.nn.Parameter), (module._buffers, lambda t: t)):
            for name, t in kind.items():
                if t is not None:
                    kind[name] = wrap(torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=device))
    return model


class Training:
    """A model with its optimiser, and a step."""

    def __init__(self, case, device, swap, autocast=True, weights=None, described=False):
        """described: tensors that are none, for the fake mode around this."""
        import torch

        import mica.torch as M

        torch.manual_seed(0)
        model = described_model(case, device, weights) if described else made(case, device, weights)
        self.report = M.replace(model, case.forwards()) if swap else None
        if swap and case.fused:
            M.fuse(model)
        self.case, self.device, self.model, self.run = case, device, model, model
        self.loss = M.cross_entropy if swap else torch.nn.functional.cross_entropy
        self.cast = torch.autocast(torch.device(device).type, torch.bfloat16, enabled=autocast and not weights)
        options = {"momentum": 0.9} if case.rule == "SGD" else {}
        if not described:
            self.optimiser = getattr(torch.optim, case.rule)(model.parameters(), lr=case.lr, fused=True, **options)

    def backward(self, x, labels):
        with self.cast:
            loss = self.loss(self.case.output(self.run, x), labels)
        loss.backward()
        return loss

    def step(self, x, labels):
        self.optimiser.zero_grad(set_to_none=True)
        loss = self.backward(x, labels)
        self.optimiser.step()
        return loss


def lines_of(case, device):
    """The problem lines of a step, from tensors that are only described."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    from mica.torch import _library

    found, results = {}, _library.Operator.results

    def noted(self, given, described):
        import torch

        text = {n: _library.Tensor(_library.text(_library._readable(v), n)) if isinstance(v, torch.Tensor) else v
                for n, v in given.items()}
        found[self.table.line({**text, **described})] = None
        return results(self, given, described)

    _library.Operator.results = noted
    try:
        with FakeTensorMode():
            training = Training(case, device, True, weights=case.weights, described=True)
            x, labels = case.data(case.batch, 1, device)
            training.backward(x, labels)
    finally:
        _library.Operator.results = results
    return list(found)


PLAN = """
import sys, mica
context = mica.Context(sys.argv[1])
for line in sys.stdin:
    try:
        mica.plan(line.strip(), context=context)
    except mica.Error as error:
        print(line.strip(), error, file=sys.stderr)
"""


def compile_kernels(lines, device, count):
    """Kernels go to the cache on disk, by several processes, before the first step waits for each in turn."""
    workers = [subprocess.Popen([sys.executable, "-c", PLAN, device], stdin=subprocess.PIPE, text=True) for _ in range(count)]
    for i, worker in enumerate(workers):
        worker.stdin.write("".join(line + "\n" for line in lines[i::count]))
        worker.stdin.close()
    for worker in workers:
        worker.wait()


class Child:
    def __init__(self, name, options):
        import torch

        self.torch, self.name, self.options, self.device = torch, name, options, options.device
        self.case = CASES[name](options.tiny)
        self.gpu = torch.device(self.device).type == "cuda"
        torch.backends.cudnn.benchmark = True

    def tell(self, **row):
        print(json.dumps({"model": self.name, **row}), flush=True)

    def say(self, what):
        print(f"{time.monotonic() - START:6.1f} s  {self.name}: {what}", file=sys.stderr, flush=True)

    def attempt(self, what, function):
        try:
            return function()
        except Exception as error:
            traceback.print_exc()
            self.tell(failed=what, why=f"{type(error).__name__}: {str(error).splitlines()[0][:300] if str(error) else ''}")

    def empty(self):
        if self.gpu:
            import gc

            gc.collect()
            self.torch.cuda.synchronize()
            self.torch.cuda.empty_cache()

    def kernels(self):
        lines = lines_of(self.case, self.device)
        self.say(f"{len(lines)} problems in a step")
        if self.gpu:
            compile_kernels(lines, "cuda:0", self.options.workers)
            self.say("kernels are compiled")

    def curves(self):
        found = {}
        for engine, dtype, swap in (("peer/torch", "f32", False), ("peer/torch", "bf16", False), ("mica.torch", "bf16", True)):
            training = Training(self.case, self.device, swap, autocast=dtype == "bf16")
            losses = [training.step(*self.case.data(self.case.curve, 1 + i, self.device)).detach() for i in range(self.options.steps)]
            losses = [v.item() for v in losses]
            found[engine, dtype] = losses
            self.tell(mode="curves", engine=engine, dtype=dtype, batch=self.case.curve, loss=losses,
                      **({"replaced": len(training.report.replaced), "left": training.report.left} if swap else {}))
            del training
            self.empty()
        self.say("curves are made")

    def prepare(self):
        """Both models, every kernel loaded, everything compiled."""
        self.pairs, self.x = {}, self.case.data(self.case.batch, 1, self.device)
        pair = []
        for swap in False, True:
            if self.gpu:
                before = self.torch.cuda.memory_allocated()
            training = Training(self.case, self.device, swap, weights=self.case.weights)
            for _ in range(2):
                training.step(*self.x)
            if self.gpu:
                self.torch.cuda.synchronize()
                self.torch.cuda.reset_peak_memory_stats()
                training.step(*self.x)
                self.torch.cuda.synchronize()
                self.tell(memory=self.torch.cuda.max_memory_allocated() - before, engine=("peer/torch", "mica.torch")[swap])
            training.optimiser.zero_grad(set_to_none=True)
            pair.append(training)
            self.empty()
        if "eager" in self.options.modes:
            self.pairs["eager"] = [t.step for t in pair]
        self.pair = pair
        self.say("steps have run")

    def compiled(self):
        steps = []
        for training in self.pair:
            run = self.torch.compile(training.model, dynamic=False)

            def step(x, labels, training=training, run=run):
                training.run = run
                try:
                    return training.step(x, labels)
                finally:
                    training.run = training.model

            for _ in range(2):
                step(*self.x)
            training.optimiser.zero_grad(set_to_none=True)
            self.empty()
            self.say("torch.compile is ready for one")
            steps.append(step)
        self.pairs["compile"] = steps

    def time(self, step, count):
        if self.gpu:
            start, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for _ in range(count):
                step(*self.x)
            end.record()
            end.synchronize()
            return start.elapsed_time(end) / count
        start = time.perf_counter()
        for _ in range(count):
            step(*self.x)
        return (time.perf_counter() - start) * 1e3 / count

    def measure(self, mode, steps):
        for step in steps:
            self.time(step, 2)
        once = max(self.time(step, 1) for step in steps)
        rounds = 7
        count = max(1, min(20, math.ceil(self.options.seconds * 1e3 / (2 * rounds * once))))
        found = [[], []]
        for _ in range(rounds):
            for times, step in zip(found, steps):
                times.append(self.time(step, count))
        theirs, ours = map(statistics.median, found)
        ratios = sorted(a / b for a, b in zip(*found))
        self.tell(mode=mode, batch=self.case.batch, theirs_ms=theirs, ours_ms=ours, ratio=theirs / ours, least=ratios[0],
                  most=ratios[-1], rounds=rounds, steps=count)

    def profile(self):
        from torch.profiler import ProfilerActivity, profile

        for engine, training in zip(("peer/torch", "mica.torch"), self.pair):
            training.step(*self.x)
            self.torch.cuda.synchronize()
            start = time.perf_counter()
            training.step(*self.x)
            host = time.perf_counter() - start
            self.torch.cuda.synchronize()
            whole = time.perf_counter() - start
            with profile(activities=[ProfilerActivity.CUDA]) as found:
                training.step(*self.x)
                self.torch.cuda.synchronize()
            events = sorted(found.key_averages(), key=lambda e: -e.self_device_time_total)
            busy = sum(e.self_device_time_total for e in events) / 1e3
            text = [f"{self.name} {engine}: {busy:.2f} ms of kernels, {host * 1e3:.2f} ms until all were started, {whole * 1e3:.2f} ms"]
            text += [f"{e.self_device_time_total / 1e3:9.3f} ms {e.count:5} {e.key[:110]}" for e in events[:28]]
            print("\n".join(text), file=sys.stderr, flush=True)
            self.tell(mode="profile", engine=engine, busy_ms=busy, host_ms=host * 1e3, step_ms=whole * 1e3,
                      kernels={e.key[:110]: [e.self_device_time_total / 1e3, e.count] for e in events[:28]})

    def main(self):
        modes = self.options.modes
        self.attempt("kernels", self.kernels)
        if "curves" in modes:
            self.attempt("curves", self.curves)
        timed = {"eager", "compile", "profile"} & set(modes)
        if timed:
            self.pairs = {}
            self.attempt("steps", self.prepare)
            if "compile" in timed and hasattr(self, "pair"):
                self.attempt("compile", self.compiled)
            self.tell(ready=True)
            sys.stdin.readline()
            if "profile" in modes and hasattr(self, "pair"):
                self.attempt("profile", self.profile)
            for mode, steps in self.pairs.items():
                self.attempt(mode, lambda mode=mode, steps=steps: self.measure(mode, steps))
        self.tell(ended=True)


# ---- all of them ----


class Process:
    def __init__(self, name):
        command = [sys.executable, __file__, *sys.argv[1:], "--child", name]
        self.name, self.ready, self.ended, self.rows = name, False, False, []
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.lines = queue.Queue()
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def take(self, until, word):
        """Rows until one has the word, or the time has come."""
        while not getattr(self, word) and not self.ended:
            try:
                line = self.lines.get(timeout=max(0.01, until - time.monotonic()))
            except queue.Empty:
                return
            if line is None:
                self.ended = True
                return
            try:
                row = json.loads(line)
            except ValueError:
                print(line, end="", file=sys.stderr)
                continue
            self.ready |= row.get("ready", False)
            self.ended |= row.get("ended", False)
            if not {"ready", "ended"} & set(row):
                self.rows.append(row)

    def failed(self, why):
        self.rows.append({"model": self.name, "failed": "process", "why": why})


def apart(one, two):
    """The largest distance, as a part of the loss at the start: it falls by orders of magnitude."""
    return max(abs(a - b) for a, b in zip(one, two)) / two[0]


def table(rows):
    text = ["| model | step | batch | original, ms | replaced, ms | ratio (least, most) |", "|---|---|---|---|---|---|"]
    for r in rows:
        if "ratio" in r:
            text.append(f"| {r['model']} | {r['mode']} | {r['batch']} | {r['theirs_ms']:.2f} | {r['ours_ms']:.2f} "
                        f"| {r['ratio']:.3f} ({r['least']:.3f}, {r['most']:.3f}) |")
    text += ["", "| model | replaced, left | loss, first and last step | original bf16 from f32 | replaced bf16 from f32 | memory, GiB: original, replaced |",
             "|---|---|---|---|---|---|"]
    for name in dict.fromkeys(r["model"] for r in rows):
        mine = [r for r in rows if r["model"] == name]
        curves = {(r["engine"], r["dtype"]): r for r in mine if r.get("mode") == "curves"}
        memory = [f"{r['memory'] / 2**30:.1f}" for r in mine if "memory" in r]
        if len(curves) == 3:
            exact, theirs, ours = curves.values()
            text.append(f"| {name} | {ours['replaced']}, {len(ours['left'])} | {ours['loss'][0]:.3f}, {ours['loss'][-1]:.3f} "
                        f"| {apart(theirs['loss'], exact['loss']):.1e} | {apart(ours['loss'], exact['loss']):.1e} | {', '.join(memory)} |")
        elif memory:
            text.append(f"| {name} | | | | | {', '.join(memory)} |")
    text += [f"FAILED {r['model']} {r['failed']}: {r['why']}" for r in rows if "failed" in r]
    return "\n".join(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(CASES))
    parser.add_argument("--modes", default="curves,eager,compile")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=5, help="of each timing")
    parser.add_argument("--limit", type=float, default=170, help="seconds after which nobody is waited for")
    parser.add_argument("--workers", type=int, default=4, help="processes that compile kernels, for each model")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--results", type=pathlib.Path)
    parser.add_argument("--lines", action="store_true", help="only say the problems of a step, as lines")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.modes = options.modes.split(",")
    for given, known in ((options.modes, MODES), (options.models.split(","), CASES)):
        if set(given) - set(known):
            parser.error(f"{', '.join(set(given) - set(known))}: known are {', '.join(known)}")
    if options.lines:
        for name in options.models.split(","):
            print("\n".join(lines_of(CASES[name](options.tiny), options.device)))
        return 0
    if options.child:
        Child(options.child, options).main()
        return 0

    import torch

    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    gpu = torch.device(options.device).type == "cuda"
    about = {"set": "models", "commit": commit, "device": torch.cuda.get_device_name() if gpu else "CPU", "torch": torch.__version__}
    running = [Process(name) for name in options.models.split(",")]
    deadline = time.monotonic() + options.limit
    try:
        for process in running:
            process.take(deadline, "ready")
        for process in running:
            if process.ready and not process.ended:
                process.process.stdin.write("go\n")
                process.process.stdin.flush()
                process.take(time.monotonic() + 12 * options.seconds + 20, "ended")
            if not process.ended:
                process.failed("not ready in time")
                process.process.kill()  # so that it does not disturb the others
            elif process.process.wait(30):
                process.failed(f"ended with {process.process.returncode}")
    finally:
        for process in running:
            if process.process.poll() is None:
                process.process.kill()
    rows = [{**about, **row} for process in running for row in process.rows]
    if options.results:
        options.results.write_text("".join(json.dumps(row) + "\n" for row in rows))
    print(table(rows))
    return int(any("failed" in row for row in rows))


if __name__ == "__main__":
    sys.exit(main())
