# SPDX-License-Identifier: Apache-2.0
"""The handlers that XLA calls for mica.jax, called as XLA does, without it: by its C structs. What a call frame brings
that is wrong, more plans than are kept, many threads, and a device that is not there."""

import ctypes
import os
import pathlib
import subprocess
import sys
import threading
import unittest
from ctypes import CFUNCTYPE, POINTER, byref, c_char_p, c_int, c_int32, c_int64, c_size_t, c_uint32, c_void_p, sizeof

import mica  # noqa: F401 (loads the library that the handlers need)
from mica._errors import check
from mica._library import HERE, lib

EXECUTE, F32, F64, S32, ARRAY, STRING = 3, 11, 12, 4, 1, 4
native = ctypes.CDLL(os.path.join(HERE, "lib", "libmica_xla.so"))


class Struct(ctypes.Structure):
    """Each begins with its size and a list of extensions."""

    def __init__(self, *values, **named):
        super().__init__(sizeof(type(self)), None, *values, **named)


def struct(name, *fields):
    return type(name, (Struct,), {"_fields_": [("size", c_size_t), ("extension", c_void_p), *fields]})


Buffer = struct("Buffer", ("dtype", c_int), ("data", c_void_p), ("rank", c_int64), ("dims", POINTER(c_int64)))
List = struct("List", ("count", c_int64), ("types", POINTER(c_int)), ("at", POINTER(c_void_p)))
Attributes = struct("Attributes", ("count", c_int64), ("types", POINTER(c_int)), ("names", POINTER(c_void_p)), ("at", POINTER(c_void_p)))
Version = struct("Version", ("major", c_int), ("minor", c_int))
Failure = struct("Failure", ("message", c_char_p), ("code", c_int))
Ordinal = struct("Ordinal", ("execution", c_void_p), ("ordinal", c_int32))
Stream = struct("Stream", ("execution", c_void_p), ("stream", c_void_p))
Memory = struct("Memory", ("execution", c_void_p), ("bytes", c_size_t), ("alignment", c_size_t), ("data", c_void_p))
Freed = struct("Freed", ("execution", c_void_p), ("bytes", c_size_t), ("data", c_void_p))
FUNCTIONS = ["error_create", "error_message", "error_destroy", "handler_register", "stream_get", "type_register", "context_get",
             "state_set", "state_get", "memory_allocate", "memory_free", "pool_schedule", "pool_threads", "future_create",
             "future_set", "future_fail", "run_id", "device_ordinal"]
Api = struct("Api", ("version", Version), ("internal", c_void_p), *((name, c_void_p) for name in FUNCTIONS))
Frame = struct("Frame", ("api", POINTER(Api)), ("execution", c_void_p), ("stage", c_int), ("operands", List), ("results", List),
               ("attributes", Attributes))


class Text(ctypes.Structure):
    _fields_ = [("at", c_char_p), ("length", c_size_t)]


class Array(ctypes.Structure):
    _fields_ = [("dtype", c_int), ("count", c_size_t), ("at", c_void_p)]


class Extension(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("type", c_int), ("next", c_void_p), ("metadata", c_void_p)]


class Metadata(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("version", Version), ("traits", c_uint32)]


failures = threading.local()


@CFUNCTYPE(c_void_p, POINTER(Failure))
def error_create(given):
    failures.last = given.contents.code, given.contents.message.decode()
    return 1


@CFUNCTYPE(c_void_p, POINTER(Ordinal))
def device_ordinal(given):
    given.contents.ordinal = failures.ordinal
    return None


@CFUNCTYPE(c_void_p, POINTER(Stream))
def stream_get(given):
    given.contents.stream = 1
    return None


def api(size=sizeof(Api)):
    made = Api(version=Version(0, 3))
    made.size = size
    for name, function in (("error_create", error_create), ("device_ordinal", device_ordinal), ("stream_get", stream_get)):
        setattr(made, name, ctypes.cast(function, c_void_p))
    return made


def pointers(values):
    return (c_void_p * len(values))(*(ctypes.addressof(v) for v in values))


def call(handler, operands, results, interface=None, **attributes):
    """Calls it; returns None, or (code, message). operands, results: ctypes arrays of float."""
    keep = [interface or api()]

    def buffers(arrays):
        made = [Buffer(F32 if a._type_ is ctypes.c_float else F64, ctypes.addressof(a), 1, (c_int64 * 1)(len(a))) for a in arrays]
        keep.extend(made)
        return List(len(made), (c_int * len(made))(*[1] * len(made)), ctypes.cast(pointers(made), POINTER(c_void_p)))

    names, values, types = [], [], []
    for name, value in sorted(attributes.items()):
        names.append(Text(name.encode(), len(name)))
        if isinstance(value, str):
            values.append(Text(value.encode(), len(value.encode())))
        else:
            values.append(Array({c_int32: S32, ctypes.c_double: F64}[value._type_], len(value), ctypes.addressof(value)))
        types.append(STRING if isinstance(value, str) else ARRAY)
    keep += [names, values]
    frame = Frame(ctypes.pointer(keep[0]), None, EXECUTE, buffers(operands), buffers(results),
                  Attributes(len(names), (c_int * len(names))(*types), ctypes.cast(pointers(names), POINTER(c_void_p)),
                             ctypes.cast(pointers(values), POINTER(c_void_p))))
    handler.restype = c_void_p
    return failures.last if handler(byref(frame)) else None


def floats(*values):
    return (ctypes.c_float * len(values))(*values)


def places(*values):
    return (c_int32 * len(values))(*values)


class Handlers(unittest.TestCase):
    def softmax(self, n):
        x, y = floats(*[0.0] * n), floats(*[9.0] * n)
        self.assertIsNone(call(native.mica_xla_cpu, [x], [y], line=f"softmax x=f32:{n}", places=places(0, 1)))
        self.assertAlmostEqual(y[n - 1], 1 / n, 6)

    def test_say_their_version(self):
        for handler in (native.mica_xla_cpu, native.mica_xla_cpu_instantiate, native.mica_xla_cuda):
            metadata = Metadata(sizeof(Metadata), Version(7, 7), 7)
            extension = Extension(24, 1, None, ctypes.addressof(metadata))
            interface = api()
            frame = Frame(ctypes.pointer(interface), None, EXECUTE, List(), List(), Attributes())
            frame.extension = ctypes.addressof(extension)
            handler.restype = c_void_p
            self.assertIsNone(handler(byref(frame)))
            self.assertEqual((metadata.version.major, metadata.version.minor, metadata.traits), (0, 3, 0))

    def test_run(self):
        self.softmax(4)
        x, y = floats(1, 2, 3), floats(0, 0, 0)
        two = (ctypes.c_double * 2)(2.0, 0.0)
        line = "transform x=f32:3 y=f32:3"
        self.assertIsNone(call(native.mica_xla_cpu, [x], [y], line=line, places=places(0, 1), scalars=two))
        self.assertEqual(list(y), [2, 4, 6])
        for number in (floats(3), (ctypes.c_double * 1)(3)):  # a scalar that the program computes
            self.assertIsNone(call(native.mica_xla_cpu, [x, number], [y], line=line, places=places(0, -1, 1), scalars=two))
            self.assertEqual(list(y), [3, 6, 9])

    def test_refuse(self):
        x, y = floats(1, 2), floats(0, 0)
        for handler in (native.mica_xla_cpu, native.mica_xla_cpu_instantiate):
            code, message = call(handler, [x], [y], line="sofmax x=f32:2", places=places(0, 1))
            self.assertEqual(code, 3)
            self.assertRegex(message, "MICA_INVALID: .*sofmax")
            code, message = call(handler, [x], [y], line="softmax x=f32:2")
            self.assertEqual((code, message), (3, "mica: the call is of another version of mica.jax"))
        for wrong in ((0,), (0, 1, 2), (0, 99), (0, -1)):
            code, _ = call(native.mica_xla_cpu, [x], [y], line="softmax x=f32:2", places=places(*wrong))
            self.assertEqual(code, 13)
        two = (ctypes.c_double * 2)(2.0, 0.0)
        code, message = call(native.mica_xla_cpu, [x], [y], line="optim p=f32:2 grad=f32:2 rule=sgd", places=places(0, 0), scalars=two)
        self.assertEqual((code, message), (13, "mica: what is changed in place lies at two places"))
        self.assertEqual(list(y), [0, 0])

    def test_forget_plans_that_nobody_runs(self):
        for n in range(2, 1300):
            self.assertIsNone(call(native.mica_xla_cpu_instantiate, [], [], line=f"softmax x=f32:{n}", places=places(0, 1)))
        self.softmax(2)
        self.softmax(1299)

    def test_on_many_threads(self):
        wrong = []

        def work():
            try:
                for n in range(2, 200):
                    self.softmax(n)
            except AssertionError as error:
                wrong.append(error)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])

    def test_a_device_that_is_not_there(self):
        x, y = floats(1, 2), floats(0, 0)
        failures.ordinal = 63
        code, message = call(native.mica_xla_cuda, [x], [y], line="softmax x=f32:2", places=places(0, 1))
        self.assertEqual(code, 9, message)
        self.assertRegex(message, "MICA_NO_DEVICE")
        failures.ordinal = 64
        code, message = call(native.mica_xla_cuda, [x], [y], line="softmax x=f32:2", places=places(0, 1))
        self.assertEqual(code, 12)
        code, message = call(native.mica_xla_cuda, [x], [y], interface=api(Api.device_ordinal.offset), line="softmax x=f32:2",
                             places=places(0, 1))
        self.assertEqual((code, message), (12, "mica: this jaxlib does not say on which device a call runs"))


class OnAGPU(unittest.TestCase):
    """Played by the emulator, in a process of its own."""

    BUILD = pathlib.Path(os.environ["MICA_BUILD"])

    @unittest.skipUnless((BUILD / "emu" / "libcuda.so.1").exists(), "no emulator was built")
    def test_workspace_is_aligned_and_given_back(self):
        environment = dict(os.environ, MICA_CUDA_DRIVER=str(self.BUILD / "emu" / "libcuda.so.1"),
                           MICA_NVRTC=str(self.BUILD / "emu" / "libnvrtc.so.13"), MICA_CACHE_DIR=str(self.BUILD / "emu" / "cache"),
                           FAKE_SMS="4")
        found = subprocess.run([sys.executable, "-B", __file__, "emulated"], env=environment, capture_output=True, text=True)
        self.assertEqual((found.returncode, found.stdout), (0, "ok\n"), found.stderr)


def emulated():
    import mica

    context, line = mica.Context("cuda:0"), "scan x=f32:2x70000 axis=1"
    plan = mica.plan(line, context=context)
    assert plan.workspace, plan
    given, returned = {}, []

    @CFUNCTYPE(c_void_p, POINTER(Memory))
    def allocate(asked):
        """As XLA does: no more than 16 bytes of alignment, and nothing that anybody takes back."""
        asked = asked.contents
        if asked.alignment > 16:
            return 1
        block = context.empty(f"u8:{asked.bytes + 16}")
        asked.data = block.pointer + 16
        given[asked.data] = block, asked.bytes
        return None

    @CFUNCTYPE(c_void_p, POINTER(Freed))
    def free(what):
        assert given[what.contents.data][1] == what.contents.bytes
        returned.append(what.contents.data)
        return None

    @CFUNCTYPE(c_void_p, POINTER(Stream))
    def default_stream(given):
        given.contents.stream = None
        return None

    interface = api()
    for name, function in (("memory_allocate", allocate), ("memory_free", free), ("stream_get", default_stream)):
        setattr(interface, name, ctypes.cast(function, c_void_p))
    failures.ordinal, failures.last = 0, None
    x, y = context.empty("f32:2x70000"), context.empty("f32:2x70000")
    ones = (ctypes.c_float * 140000)(*[1.0] * 140000)
    check(lib.mica_upload(context._handle, x.pointer, ones, sizeof(ones), None))

    def at(array):
        return (ctypes.c_float * 140000).from_address(array.pointer)

    for _ in range(3):
        found = call(native.mica_xla_cuda, [at(x)], [at(y)], interface=interface, line=line,
                     places=places(plan.args["x"].index, plan.args["y"].index))
        assert found is None, found
    context.synchronize()
    assert len(given) == 3 and sorted(given) == sorted(returned), (given, returned)
    assert y.tolist() == [list(range(1, 70001))] * 2
    print("ok")


if __name__ == "__main__":
    if sys.argv[1:] == ["emulated"]:
        emulated()
    else:
        unittest.main()
