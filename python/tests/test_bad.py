# SPDX-License-Identifier: Apache-2.0
"""What goes wrong around a library: wrong devices, forks, other interpreters, interrupts, threads, objects
that die in any order. Exceptions with the value and the rule, never a crash. What could end the process is
tried in one of its own. GPUs are played by the emulator."""

import gc
import os
import pathlib
import signal
import subprocess
import sys
import threading
import unittest

import numpy as np

import mica

BUILD = pathlib.Path(os.environ["MICA_BUILD"])
EMULATOR = BUILD / "emu" / "libcuda.so.1"


def child(program, emulated=False, python=sys.executable, timeout=300, **options):
    environment = dict(os.environ)
    if emulated:
        environment.update(MICA_CUDA_DRIVER=str(EMULATOR), MICA_NVRTC=str(BUILD / "emu" / "libnvrtc.so.13"),
                           MICA_CACHE_DIR=str(BUILD / "emu" / "cache"), FAKE_SMS="4")
    return subprocess.run([python, "-c", program], env=environment, timeout=timeout, capture_output=True, text=True, **options)


class Errors(unittest.TestCase):
    def test_carry_status_and_rule_and_are_pythons_own(self):
        self.assertTrue(issubclass(mica.Invalid, ValueError) and issubclass(mica.Invalid, mica.Error))
        self.assertTrue(issubclass(mica.Unsupported, NotImplementedError))
        self.assertTrue(issubclass(mica.OutOfMemory, MemoryError))
        self.assertTrue(issubclass(mica.ForkedProcess, RuntimeError))
        with self.assertRaises(mica.Invalid) as caught:
            mica.plan("gemm a=f32:2x3 b=f32:4x5")
        self.assertEqual(caught.exception.status, "MICA_INVALID")
        self.assertRegex(caught.exception.rule, "3.*4")
        self.assertEqual(str(caught.exception), caught.exception.rule)

    def test_memory_that_is_not_there(self):
        with self.assertRaises(mica.OutOfMemory):
            mica.Context("cpu").empty("f32:1048576x1048576x64")
        with self.assertRaises(mica.Error):
            mica.Context("cpu").empty("f32:1048576x1048576x1048576x1048576")

    def test_no_such_device(self):
        for name in ("cpu:1", "tpu", "", "cuda:x"):
            with self.assertRaises(mica.Error):
                mica.Context(name)
        with self.assertRaises(TypeError):
            mica.softmax(np.zeros((2, 2), np.float32), context=3)


class Lives(unittest.TestCase):
    def test_a_plan_outlives_its_context(self):
        context = mica.Context("cpu")
        plan = mica.plan("softmax x=f32:2x3", context=context)
        array = context.empty("f32:2x3")
        context.close()
        context.close()
        x = np.ones((2, 3), np.float32)
        plan.run(x)
        mica.transform(x, y=array)
        self.assertEqual(array.tolist(), [[1, 1, 1]] * 2)
        for call in (lambda: mica.plan("softmax x=f32:2x3", context=context), lambda: context.empty("f32:1"),
                     lambda: context.info, lambda: mica.softmax(x, context=context)):
            with self.assertRaisesRegex(mica.Invalid, "closed"):
                call()

    def test_cycles_are_collected_in_any_order(self):
        class Node:
            pass

        for order in range(6):
            node = Node()
            made = [mica.Context("cpu")]
            made.append(mica.plan("conv x=f32:1x8x9x9 w=f32:8x8x3x3", context=made[0]))
            made.append(made[0].empty("f32:10"))
            made.append(made[1].prepare(made[0].empty("f32:1x8x9x9"), made[0].empty("f32:8x8x3x3")))
            made[3]()
            node.held = made[order % 4:] + made[:order % 4]
            node.self = node
            made[0].node = node
            del node, made
            gc.collect()

    def test_end_of_the_process_in_any_order(self):
        found = child("""
import mica, numpy as np, atexit
context = mica.Context("cpu")
x = np.ones((2, 3), np.float32)
plan = mica.plan("softmax x=f32:2x3", context=context)
run = plan.prepare(x)
class Late:
    def __del__(self):
        try:
            run()
        except Exception:
            pass
late = Late()
late.self = late
atexit.register(lambda: plan.run(x))
array = context.empty("f32:5")
print("done")
""")
        self.assertEqual((found.returncode, found.stdout), (0, "done\n"), found.stderr)

    def test_threads_share_operators_and_plans(self):
        x = np.random.default_rng(0).standard_normal((4, 8, 12, 12)).astype(np.float32)
        w = np.random.default_rng(1).standard_normal((8, 8, 3, 3)).astype(np.float32)
        plan = mica.plan("conv", x, w, pad=(1, 1), options={"engine": "fft"})
        expected = plan.run(x, w)
        wrong = []

        def work(seed):
            for i in range(10):
                if not np.array_equal(plan.run(x, w), expected):
                    wrong.append("plan")
                a = np.full((2, seed + 1), i, np.float32)
                if not np.array_equal(mica.transform(a, alpha=2), 2 * a):
                    wrong.append("operator")

        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(wrong, [])


class Processes(unittest.TestCase):
    def test_fork_on_the_cpu(self):
        found = child("""
import mica, numpy as np, os
x = np.ones((64, 64), np.float32)
mica.gemm(x, x)
pid = os.fork()
if pid == 0:
    y = mica.gemm(x, x, options={"engine": "ref"})
    os._exit(0 if y[0, 0] == 64 else 1)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
""")
        self.assertEqual(found.stdout, "0\n", found.stderr)

    @unittest.skipUnless(EMULATOR.exists(), "no emulator was built")
    def test_fork_after_cuda(self):
        found = child("""
import mica, os
context = mica.Context("cuda:0")
a = context.empty("f32:4")
plan = mica.plan("softmax x=f32:4", context=context)
pid = os.fork()
if pid == 0:
    names = []
    for call in (lambda: plan.run(a), lambda: mica.Context("cuda:0"), lambda: context.empty("f32:4"), lambda: a.tolist(),
                 context.synchronize, context.health):
        try:
            call()
            names.append("nothing")
        except mica.Error as error:
            names.append(error.status)
    print(sorted(set(names)), flush=True)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
""", emulated=True)
        self.assertEqual(found.stdout, "['MICA_FORKED_PROCESS']\n0\n", found.stderr)

    @unittest.skipUnless(EMULATOR.exists(), "no emulator was built")
    def test_devices(self):
        found = child("""
import mica, numpy as np
from mica._library import lib
gpu = mica.Context("cuda:0")
a = gpu.empty("f32:2x3")
host = np.arange(6, dtype=np.float32).reshape(2, 3)
def refused(call, words):
    try:
        call()
    except mica.Invalid as error:
        assert words in str(error), error
    else:
        raise AssertionError(words)
refused(lambda: mica.transform(host, y=a), "y is on cuda:0, x on cpu")
refused(lambda: mica.transform(a, context="cpu"), "x is on cuda:0, the plan runs on cpu")
refused(lambda: mica.plan("transform x=f32:2x3", context="cpu").run(a), "x is on cuda:0")
class Foreign:  # an array of nobody we know, on the GPU
    def __init__(self, stream):
        self.__cuda_array_interface__ = dict(a.__cuda_array_interface__, stream=stream)
lib.mica_upload(gpu._handle, a.pointer, host.ctypes.data, host.nbytes, None)
for array in (a, Foreign(None), Foreign(1)):
    found = mica.transform(array, alpha=2)
    assert type(found) is mica.Array and found.device == "cuda:0", found
    assert found.tolist() == (2 * host).tolist(), found.tolist()
assert mica.plan("transform", a).context.name == "cuda:0"
assert not hasattr(a, "__array_interface__")
x, w = gpu.empty("f32:1x4x6x6"), gpu.empty("f32:4x4x3x3")
plan = mica.plan("conv", x, w, pad=(1, 1))
plan.prepare(x, w)()
gpu.synchronize()
print("ok")
""", emulated=True)
        self.assertEqual((found.returncode, found.stdout), (0, "ok\n"), found.stderr)

    def test_a_second_interpreter(self):
        """Where ctypes may be loaded there, it works; else it is an ImportError. The process goes on."""
        found = child("""
import sys
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
import mica
program = '''
try:
    import mica, array
    assert mica.transform(array.array("f", [1]), alpha=2).tolist() == [2]
except ImportError:
    pass
'''
for _ in range(2):
    other = interpreters.create()
    interpreters.run_string(other, program)
    interpreters.destroy(other)
import array
print(mica.transform(array.array("f", [1]), alpha=2).tolist())
""")
        self.assertEqual((found.returncode, found.stdout), (0, "[2.0]\n"), found.stderr)

    def test_interrupt_in_a_long_measurement(self):
        """Answered at once, not after the seconds that were asked for; what follows works."""
        program = """
import mica, sys, time, threading, os, signal
line = "conv x=f32:8x64x56x56 w=f32:64x64x3x3 pad=1x1"
threading.Timer(0.7, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
start = time.monotonic()
try:
    mica.tune([line] * 100, context="cpu", measure_ms=5000, records=sys.argv[1] if len(sys.argv) > 1 else None)
    print("it ended")
except KeyboardInterrupt:
    print("interrupted", time.monotonic() - start < 4.5)
print(mica.plan("softmax x=f32:2x3", context="cpu").op)
"""
        found = child(program)
        self.assertEqual((found.returncode, found.stdout), (0, "interrupted True\nsoftmax\n"), found.stderr)

    def test_signals_are_the_programs_own(self):
        self.assertIs(signal.getsignal(signal.SIGINT), signal.default_int_handler)


class Tuning(unittest.TestCase):
    def test_records_and_progress(self):
        found = child("""
import mica, tempfile, os
context = mica.Context("cpu")
with tempfile.TemporaryDirectory() as folder:
    file = os.path.join(folder, "records")
    plans = mica.tune(["gemm a=f32:64x64 b=f32:64x64", "softmax x=f32:8x8"], context=context, measure_ms=50,
                      records=file, progress=True)
    assert [p.op for p in plans] == ["gemm", "softmax"]
    mica.Context("cpu").load_records(file) if os.path.exists(file) else None
    try:
        mica.Context("cpu").load_records(os.path.join(folder, "none"))
    except OSError as error:
        print(error.status)
""")
        self.assertEqual((found.returncode, found.stdout), (0, "MICA_IO\n"), found.stderr)
        self.assertTrue("1/2" in found.stderr or "problem" in found.stderr, found.stderr)


if __name__ == "__main__":
    unittest.main()
