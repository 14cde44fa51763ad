# SPDX-License-Identifier: Apache-2.0
"""Arrays of other libraries, as they are: where their element 0 lies, type, sizes, strides, device.

look(array) gives (key, pointer, kind, array). The key holds all that a plan depends on, in whatever
form is cheapest to get; `kind` answers the rest when the key is new. Nothing is copied and no library
is imported that the caller has not imported already.

    NumPy, PyTorch, CuPy, JAX      by what they offer themselves: the shortest way
    __dlpack__                     anything else, versioned or not
    __cuda_array_interface__, __array_interface__, the buffer protocol (bytearray, array.array)
    mica.view(array, "bf16")       elements of another type of the same size"""

from __future__ import annotations

import ctypes
import sys
from ctypes import POINTER, byref, c_char_p, c_int, c_int32, c_int64, c_size_t, c_ssize_t, c_uint8, c_uint16, c_uint32
from ctypes import c_uint64, c_void_p, py_object

from ._errors import Invalid, check
from ._library import lib
from ._tensor import Tensor, dtype_bits

# What NumPy, ml_dtypes, PyTorch, CuPy and JAX call the types that the library has.
_NAMES = {
    "float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16", "float8_e4m3fn": "e4m3",
    "float8_e5m2": "e5m2", "float8_e8m0fnu": "e8m0", "int8": "s8", "uint8": "u8", "int32": "s32", "int64": "s64", "uint32": "u32",
    "bool": "bool", "complex64": "c32", "complex128": "c64",
}
_FOREIGN = {ours: theirs for theirs, ours in _NAMES.items()}


def _our_dtype(name):
    try:
        return _NAMES[name]
    except KeyError:
        raise Invalid(f"elements of type {name}; mica takes {', '.join(_NAMES)}") from None


def _seen_as(dtype, name, itemsize):
    """dtype, if elements called `name` may be seen as such."""
    if dtype not in dtype_bits:
        raise Invalid(f"{dtype!r} is no data type")
    if dtype_bits[dtype] != 8 * itemsize:
        raise Invalid(f"elements of {8 * itemsize} bits ({name}) are none of {dtype}, which has {dtype_bits[dtype]}")
    return dtype


def _retyped(tensor, dtype):
    if not dtype:
        return tensor
    return Tensor(_seen_as(dtype, tensor.dtype, dtype_bits[tensor.dtype] / 8), tensor.shape, tensor.strides)


def _in_nibbles(tensor, dtype):
    """Bytes as elements of four bits, two to a byte along the last dimension."""
    if dtype_bits[tensor.dtype] != 8 or not tensor.shape or (tensor.strides[-1] != 1 and tensor.shape[-1] > 1):
        raise Invalid(f"{tensor.text('the array')} as {dtype}: it takes bytes that are neighbours along the last dimension")
    return Tensor(dtype, tensor.shape[:-1] + (2 * tensor.shape[-1],), tuple(2 * s for s in tensor.strides[:-1]) + (1,))


def _in_bytes(tensor):
    """What holds a result: that of four bits is bytes, half as many along the last dimension."""
    if dtype_bits[tensor.dtype] >= 8:
        return tensor
    shape, strides = tensor.shape, tensor.strides
    if not shape or shape[-1] % 2 or (strides[-1] != 1 and shape[-1] > 1) or any(s % 2 for s in strides[:-1]):
        raise Invalid(f"{tensor.text('the result')}: elements of four bits are returned as bytes, two in each along the last "
                      f'dimension, which must be even; or give memory yourself, out=mica.view(bytes, "{tensor.dtype}")')
    return Tensor("u8", shape[:-1] + (shape[-1] // 2,), tuple(s // 2 for s in strides[:-1]) + (1,))


def _elements(strides, itemsize):
    for step in strides:
        if step % itemsize:
            raise Invalid(f"a stride of {step} bytes is no multiple of the element's {itemsize}")
    return tuple(step // itemsize for step in strides)


class View:
    """Memory of somebody else, described; keep: what has to live as long."""

    __slots__ = ("pointer", "tensor", "device", "readonly", "keep", "like", "stream", "result")

    def __init__(self, pointer, tensor, device, readonly, keep, like, stream=None, result=None):
        self.pointer = pointer
        self.tensor = tensor
        self.device = device
        self.readonly = readonly  # "" or why
        self.keep = keep
        self.like = like  # the kind that makes results beside it
        self.stream = stream
        self.result = result  # what a caller gets back who passed this as an output


class _Viewed:
    """The kind of whatever became a View."""

    def tensor(self, view, seen_as=None):
        return _retyped(view.tensor, seen_as)

    def device(self, view):
        return view.device

    def readonly(self, view):
        return view.readonly

    def stream(self, view):
        return view.stream

    def allocator(self, tensor, view):
        return view.like.allocator(tensor, view)

    def finisher(self, view):
        return view.like.finisher(view)


_viewed = _Viewed()


def _look_at_view(view):
    like = view.like
    return (view.tensor, view.device, type(getattr(like, "kind", like))), view.pointer, _viewed, view


# ---- NumPy, and CuPy, which looks the same ----


class _NumPy:
    def finisher(self, a):
        return None

    def __init__(self, module):
        self.np = module
        self.dtypes = {}
        self.pointer = self._pointer()

    def _pointer(self):
        """The quickest way to element 0. An array's first member is that pointer, as NumPy's C API says;
        where that does not hold (another Python), its own dictionary has it, ten times as slowly."""
        offset = object.__basicsize__

        def slow(a):
            return a.__array_interface__["data"][0]

        def quick(a, at=c_size_t.from_address):
            return at(id(a) + offset).value

        probe = self.np.zeros(3)[1:]
        return quick if sys.implementation.name == "cpython" and quick(probe) == slow(probe) else slow

    def tensor(self, a, seen_as=None):
        dtype = a.dtype
        if not dtype.isnative:
            raise Invalid(f"elements of type {dtype.str}, in the other byte order: astype(dtype.newbyteorder('='))")
        ours = _seen_as(seen_as, dtype.name, dtype.itemsize) if seen_as else _our_dtype(dtype.name)
        return Tensor(ours, a.shape, _elements(a.strides, dtype.itemsize))

    def device(self, a):
        return "cpu"

    def readonly(self, a):
        return "" if a.flags.writeable else "a read-only array"

    def stream(self, a):
        return None

    def dtype(self, name):
        try:
            return self.dtypes[name]
        except KeyError:
            pass
        foreign = _FOREIGN.get(name)
        if foreign is None:
            raise Invalid(f"{self.np.__name__} has no type for {name}")
        try:
            made = self.np.dtype(foreign)
        except TypeError:
            try:
                import ml_dtypes
            except ImportError:
                raise Invalid(
                    f"a result of type {name}: NumPy has no such type without the package ml_dtypes; or give "
                    f'the result yourself, out=mica.view(numpy.empty(..., "uint{dtype_bits[name]}"), "{name}")'
                ) from None
            made = self.np.dtype(getattr(ml_dtypes, foreign))
        self.dtypes[name] = made
        return made

    def allocator(self, tensor, like):
        tensor = _in_bytes(tensor)
        dtype = self.dtype(tensor.dtype)
        np, shape = self.np, tensor.shape
        if tensor == Tensor(tensor.dtype, shape):
            empty = np.empty
            return (lambda: empty(shape, dtype)), self.pointer
        span, first = tensor._span()
        strides = tuple(step * dtype.itemsize for step in tensor.strides)
        return (lambda: np.ndarray(shape, dtype, np.empty(max(span, 1), np.uint8), -first, strides)), self.pointer

    def look(self):
        kind, pointer = self, self.pointer
        return lambda a: ((a.dtype, a.shape, a.strides), pointer(a), kind, a)


class _CuPy(_NumPy):
    def _pointer(self):
        return lambda a: a.data.ptr

    def device(self, a):
        return f"cuda:{a.device.id}"

    def readonly(self, a):
        return ""

    def stream(self, a):
        return self.np.cuda.get_current_stream().ptr

    def allocator(self, tensor, like):
        tensor = _in_bytes(tensor)
        dtype, np, shape = self.dtype(tensor.dtype), self.np, tensor.shape
        span, first = tensor._span()
        strides = tuple(step * dtype.itemsize for step in tensor.strides)

        def allocate():
            base = np.empty(max(span, 1), np.uint8)
            return np.ndarray(shape, dtype, base.data + -first, strides)

        return allocate, self.pointer

    def look(self):
        kind = self
        return lambda a: ((a.dtype, a.shape, a.strides, a.device.id), a.data.ptr, kind, a)


# ---- PyTorch ----


class _Torch:
    def finisher(self, t):
        return None

    def __init__(self, module):
        self.torch = module

    def tensor(self, t, seen_as=None):
        name = str(t.dtype)[6:]
        ours = _seen_as(seen_as, name, t.element_size()) if seen_as else _our_dtype(name)
        return Tensor(ours, tuple(t.shape), tuple(t.stride()))

    def device(self, t):
        device = t.device
        if device.type not in ("cpu", "cuda"):
            raise Invalid(f"a tensor on {device}; mica runs on cpu and cuda")
        return f"cuda:{device.index or 0}" if device.type == "cuda" else "cpu"

    def readonly(self, t):
        return ""

    def stream(self, t):
        return self.torch.cuda.current_stream(t.device).cuda_stream if t.is_cuda else None

    def allocator(self, tensor, t):
        tensor = _in_bytes(tensor)
        dtype = getattr(self.torch, _FOREIGN[tensor.dtype], None) if tensor.dtype in _FOREIGN else None
        if dtype is None:
            raise Invalid(f"this PyTorch has no type for {tensor.dtype}")
        if any(step < 0 for step in tensor.strides):
            raise Invalid("PyTorch has no tensors of negative strides")
        shape, strides, device = tensor.shape, tensor.strides, t.device
        empty_strided = self.torch.empty_strided  # which PyTorch finds its arguments of sooner than empty's
        return (lambda: empty_strided(shape, strides, dtype=dtype, device=device)), self.torch.Tensor.data_ptr

    def workspace(self, size, t):
        """Workspace on a GPU: from PyTorch's own allocator, which knows streams and graph captures."""
        empty, uint8, device = self.torch.empty, self.torch.uint8, t.device
        return lambda: empty(size, dtype=uint8, device=device)

    def look(self):
        kind, torch = self, self.torch
        grad_enabled, strided = torch.is_grad_enabled, torch.strided
        plain = (torch.Tensor, torch.nn.Parameter)

        def look(t):
            if t.layout is not strided:
                raise Invalid(f"a tensor of layout {t.layout}; mica takes strided ones")
            if t.requires_grad and grad_enabled():
                raise Invalid("a tensor that requires grad: use mica.torch, whose operators have one, or t.detach()")
            if t.is_neg() or t.is_conj():
                t = t.resolve_conj().resolve_neg()
            return (t.dtype, t.shape, t.stride(), t.device), t.data_ptr(), kind, t

        def subclass(t):
            if type(t) not in plain and type(t).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
                raise Invalid(f"a {type(t).__name__}, which has no memory of its own: use mica.torch")
            return look(t)

        return look, subclass


# ---- JAX: arrays are immutable, so results are made beside and handed over ----


class _Jax:
    def finisher(self, a):
        return self.jax.device_put

    def __init__(self, module):
        self.jax = module

    def tensor(self, a, seen_as=None):
        ours = _seen_as(seen_as, a.dtype.name, a.dtype.itemsize) if seen_as else _our_dtype(a.dtype.name)
        return Tensor(ours, tuple(a.shape), Tensor("f32", a.shape).strides)

    def device(self, a):
        device = next(iter(a.devices()))
        if len(a.devices()) != 1 or device.platform not in ("cpu", "gpu", "cuda"):
            raise Invalid(f"a JAX array on {sorted(map(str, a.devices()))}; mica takes one CPU or CUDA device")
        return "cpu" if device.platform == "cpu" else f"cuda:{device.local_hardware_id}"

    def readonly(self, a):
        return "a JAX array, and these are immutable"

    def stream(self, a):
        return None

    def allocator(self, tensor, a):
        device = next(iter(a.devices()))
        if device.platform != "cpu":
            raise Invalid("results on JAX's GPUs: use mica.jax")
        import numpy

        return numpy_kind(numpy).allocator(Tensor(tensor.dtype, tensor.shape), None)

    def look(self):
        kind = self

        def look(a):
            a = a.block_until_ready()
            return (a.dtype, a.shape, tuple(a.devices())), a.unsafe_buffer_pointer(), kind, a

        return look


# ---- DLPack ----


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p), ("device_type", c_int32), ("device_id", c_int32), ("ndim", c_int32), ("code", c_uint8),
        ("bits", c_uint8), ("lanes", c_uint16), ("shape", POINTER(c_int64)), ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


class _DLManagedVersioned(ctypes.Structure):
    _fields_ = [
        ("major", c_uint32), ("minor", c_uint32), ("context", c_void_p), ("deleter", c_void_p), ("flags", c_uint64),
        ("tensor", _DLTensor),
    ]


# (type code, bits) of DLPack: signed 0, unsigned 1, float 2, bfloat 4, complex 5, bool 6, 8-bit floats 10, 12 and 14.
_DLPACK = {
    (0, 8): "s8", (0, 32): "s32", (0, 64): "s64", (1, 8): "u8", (1, 32): "u32", (2, 16): "f16", (2, 32): "f32",
    (2, 64): "f64", (4, 16): "bf16", (5, 64): "c32", (5, 128): "c64", (6, 8): "bool", (10, 8): "e4m3",
    (12, 8): "e5m2", (14, 8): "e8m0",
}
_CPU, _CUDA, _CUDA_HOST, _CUDA_MANAGED = 1, 2, 3, 13
_READ_ONLY = 1

_capsule_name = ctypes.pythonapi.PyCapsule_GetName
_capsule_name.restype, _capsule_name.argtypes = c_char_p, [py_object]
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype, _capsule_pointer.argtypes = c_void_p, [py_object, c_char_p]


def _dlpack_device(a):
    kind, number = a.__dlpack_device__()
    kind = int(kind)
    if kind in (_CPU, _CUDA_HOST):
        return "cpu"
    if kind in (_CUDA, _CUDA_MANAGED):
        return f"cuda:{number}"
    raise Invalid(f"an array on DLPack's device type {kind}; mica takes 1 (CPU), 2 (CUDA), 3 and 13 (its host memory)")


def _from_dlpack(a):
    device = _dlpack_device(a)
    # The stream that will read it: 1 is CUDA's legacy default one, which is mica's where none is named.
    options = {} if device == "cpu" else {"stream": 1}
    try:
        capsule = a.__dlpack__(max_version=(1, 0), **options)
    except TypeError:
        capsule = a.__dlpack__(**options)
    name = _capsule_name(capsule)
    if name == b"dltensor_versioned":
        managed = _DLManagedVersioned.from_address(_capsule_pointer(capsule, name))
        if managed.major != 1:
            raise Invalid(f"DLPack {managed.major}.{managed.minor}; mica reads 1.x and what was before")
        t, readonly = managed.tensor, "a read-only array" if managed.flags & _READ_ONLY else ""
    elif name == b"dltensor":
        t = _DLTensor.from_address(_capsule_pointer(capsule, name))
        readonly = "an array of DLPack before 1.0, which cannot say whether it may be written"
    else:
        raise Invalid(f"{type(a).__name__}.__dlpack__ gave a capsule called {name!r}")
    dtype = _DLPACK.get((t.code, t.bits)) if t.lanes == 1 else None
    if dtype is None:
        raise Invalid(f"elements of DLPack's type code {t.code} with {t.bits} bits and {t.lanes} lanes")
    shape = tuple(t.shape[: t.ndim]) if t.ndim else ()
    strides = tuple(t.strides[: t.ndim]) if t.ndim and t.strides else Tensor("f32", shape).strides
    # The capsule is not consumed: while it lives, so does the memory; it gives it back itself.
    return View((t.data or 0) + t.byte_offset, Tensor(dtype, shape, strides), device, readonly, capsule,
                _own, result=a)


# ---- array interfaces and buffers ----

_TYPESTR = {
    "f8": "f64", "f4": "f32", "f2": "f16", "i1": "s8", "u1": "u8", "i4": "s32", "i8": "s64", "u4": "u32", "b1": "bool",
    "c8": "c32", "c16": "c64",
}


def _typestr(text):
    if text[:1] == (">" if sys.byteorder == "little" else "<"):
        raise Invalid(f"elements of type {text}, in the other byte order")
    if text[1:] not in _TYPESTR:
        raise Invalid(f"elements of type {text}; mica takes {', '.join(_TYPESTR)}, others by mica.view")
    return _TYPESTR[text[1:]]


def _from_interface(a, interface, device, result):
    if interface.get("mask") is not None:
        raise Invalid("an array with a mask")
    dtype = _typestr(interface["typestr"])
    shape = tuple(interface["shape"])
    strides = interface.get("strides")
    strides = Tensor("f32", shape).strides if strides is None else _elements(strides, dtype_bits[dtype] // 8)
    data = interface.get("data")
    if not isinstance(data, tuple):
        raise Invalid(f"an array interface whose data is {type(data).__name__}, not (address, read-only)")
    stream = interface.get("stream")
    if stream == 1:  # the legacy default stream, for which a run has 0
        stream = None
    return View(data[0] or 0, Tensor(dtype, shape, strides), device, "a read-only array" if data[1] else "",
                a, _own, stream=stream, result=result)


class _Buffer(ctypes.Structure):
    _fields_ = [
        ("buf", c_void_p), ("obj", py_object), ("len", c_ssize_t), ("itemsize", c_ssize_t), ("readonly", c_int),
        ("ndim", c_int), ("format", c_char_p), ("shape", POINTER(c_ssize_t)), ("strides", POINTER(c_ssize_t)),
        ("suboffsets", POINTER(c_ssize_t)), ("internal", c_void_p),
    ]


_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.restype, _get_buffer.argtypes = c_int, [py_object, c_void_p, c_int]
_release_buffer = ctypes.pythonapi.PyBuffer_Release
_release_buffer.restype, _release_buffer.argtypes = None, [c_void_p]
_STRIDES_AND_FORMAT = 0x18 | 0x04  # PyBUF_STRIDES | PyBUF_FORMAT
_FORMATS = {"d": "f64", "f": "f32", "e": "f16", "b": "s8", "B": "u8", "i": "s32", "I": "u32", "q": "s64", "l": "s64",
            "?": "bool", "c": "u8"}


class _Held:
    """A buffer that is given back when nobody needs it any more."""

    def __init__(self, a):
        self.buffer = _Buffer()
        self.held = False
        _get_buffer(a, byref(self.buffer), _STRIDES_AND_FORMAT)
        self.held = True

    def __del__(self, release=_release_buffer, byref=byref):
        if self.held:
            self.held = False
            release(byref(self.buffer))


def _from_buffer(a):
    held = _Held(a)
    b = held.buffer
    code = (b.format or b"B").decode()
    dtype = _FORMATS.get(code.lstrip("@=<") if sys.byteorder == "little" else code.lstrip("@="))
    if dtype is None or b.itemsize * 8 != dtype_bits[dtype]:
        raise Invalid(f"a buffer of format {code!r}; mica takes {', '.join(_FORMATS)}")
    shape = tuple(b.shape[: b.ndim])
    return View(b.buf or 0, Tensor(dtype, shape, _elements(b.strides[: b.ndim], b.itemsize)), "cpu",
                "a read-only buffer" if b.readonly else "", held, _own, result=a)


# ---- memory of our own, for callers without a library of arrays ----


class Array:
    """An array of memory that mica allocated; NumPy, PyTorch and CuPy take it as it is
    (numpy.asarray(a)). Types they lack show as unsigned integers."""

    def __init__(self, tensor: Tensor | str, context: Context) -> None:
        self.tensor = tensor if isinstance(tensor, Tensor) else Tensor(tensor)
        self.context = context
        self.device = context.name
        span, first = self.tensor._span()
        memory = c_void_p()
        self._memory = None
        check(lib.mica_malloc(context._handle, span, byref(memory)))
        self._memory = memory.value
        self.pointer = self._memory - first
        context._keep()

    @property
    def dtype(self) -> str:
        return self.tensor.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tensor.shape

    @property
    def strides(self) -> tuple[int, ...]:
        return self.tensor.strides

    def _interface(self):
        bits = dtype_bits[self.dtype]
        code = next((c for c, name in _TYPESTR.items() if name == self.dtype), f"u{bits // 8}")
        return {
            "version": 3, "typestr": ("|" if bits == 8 else "<") + code, "shape": self.shape,
            "strides": tuple(step * bits // 8 for step in self.strides), "data": (self.pointer, False),
        }

    def __getattr__(self, name):
        # Only the interface of the place where it lies is there: others look for the attribute.
        if name == "__array_interface__" and self.device == "cpu":
            return self._interface()
        if name == "__cuda_array_interface__" and self.device.startswith("cuda"):
            return dict(self._interface(), stream=None)
        raise AttributeError(f"a mica.Array on {self.__dict__.get('device')} has no {name}")

    def tolist(self) -> Any:
        """Its values as nested lists of numbers."""
        span, first = self.tensor._span()
        raw = ctypes.create_string_buffer(max(span, 1))
        check(lib.mica_download(self.context._handle, raw, self.pointer + first, span, None))
        values = (ctypes.c_double * max(self.tensor.count, 1))()
        check(lib.mica_tensor_load(byref(self.tensor._struct()), ctypes.addressof(raw) - first, values))
        flat = iter(values[: self.tensor.count])

        def nest(shape):
            if not shape:
                return next(flat)
            return [nest(shape[1:]) for _ in range(shape[0])]

        return nest(self.shape)

    def __repr__(self):
        return f"mica.Array({self.tensor!r}, {self.device!r})"

    def __del__(self):
        if getattr(self, "_memory", None):
            self.context._free(self._memory)
            self._memory = None


def _own_pointer(a):
    return a.pointer


class _Own:
    def finisher(self, a):
        return None

    def tensor(self, a, seen_as=None):
        return _retyped(a.tensor, seen_as)

    def device(self, a):
        return a.device

    def readonly(self, a):
        return ""

    def stream(self, a):
        return None

    def allocator(self, tensor, like):
        from ._context import default_context

        context = like.context if isinstance(like, Array) else default_context(like.device)
        return (lambda: Array(tensor, context)), _own_pointer


_own = _Own()


def _look_at_own(a):
    return (a.tensor, a.device, Array), a.pointer, _own, a


def view(array: Any, dtype: str) -> Any:
    """The array with its elements taken as those of another type of the same size: 16-bit integers as
    "bf16", bytes as "e4m3"; and bytes as "s4", "u4" or "e2m1", two elements each along the last dimension, the
    first in the low half. No copy; an operator whose output it is returns the array itself."""
    _, pointer, kind, a = look(array)
    device = kind.device(a)
    if dtype_bits.get(str(dtype), 8) < 8:
        tensor = _in_nibbles(kind.tensor(a), str(dtype))
    else:
        tensor = kind.tensor(a, str(dtype))
    return View(pointer, tensor, device, kind.readonly(a), a, _Like(kind, a), kind.stream(a), array)


class _Like:
    """Makes results with the library of an array that is seen through a view."""

    def __init__(self, kind, array):
        self.kind, self.array = kind, array

    def allocator(self, tensor, view):
        return self.kind.allocator(tensor, self.array)

    def finisher(self, view):
        return self.kind.finisher(self.array)


# ---- which is which ----

_lookers = {View: _look_at_view, Array: _look_at_own}
_kinds = {}


def numpy_kind(module):
    if "numpy" not in _kinds:
        _kinds["numpy"] = _NumPy(module)
    return _kinds["numpy"]


def _find(cls):
    """How arrays of this class are looked at; None: not an array of a library known by name."""
    for base in cls.__mro__:
        name = f"{base.__module__.partition('.')[0]}.{base.__name__}"
        if name == "numpy.ndarray":
            return numpy_kind(sys.modules["numpy"]).look()
        if name == "numpy.generic":  # a number, which has no memory that one could point to
            array, look_at = sys.modules["numpy"].asarray, numpy_kind(sys.modules["numpy"]).look()
            return lambda a: look_at(array(a))
        if name == "torch.Tensor":
            look_exactly, look_carefully = _Torch(sys.modules["torch"]).look()
            return look_exactly if cls.__name__ in ("Tensor", "Parameter") else look_carefully
        if name == "cupy.ndarray":
            return _CuPy(sys.modules["cupy"]).look()
        if name in ("jaxlib.ArrayImpl", "jax.ArrayImpl"):
            return _Jax(sys.modules["jax"]).look()
    return None


def _generic(a):
    cls = type(a)
    if hasattr(cls, "__dlpack__") and hasattr(cls, "__dlpack_device__"):
        return _look_at_view(_from_dlpack(a))
    interface = getattr(a, "__cuda_array_interface__", None)
    if interface is not None:
        return _look_at_view(_from_interface(a, interface, cuda_device(interface), a))
    interface = getattr(a, "__array_interface__", None)
    if interface is not None:
        return _look_at_view(_from_interface(a, interface, "cpu", a))
    return _look_at_view(_from_buffer(a))


def cuda_device(interface):
    # The interface does not say which GPU: that of the context in use, by default the first.
    return f"cuda:{interface.get('device_id', 0)}"


def looker(value):
    """How to look at this value, or None if it is no array. Remembered by its class."""
    cls = type(value)
    found = _lookers.get(cls)
    if found is not None:
        return found
    found = _find(cls)
    if found is None:
        if isinstance(value, (str, int, float, list, tuple, dict, Tensor)) or value is None:
            return None
        arrays = any(hasattr(value, n) for n in ("__dlpack__", "__array_interface__", "__cuda_array_interface__"))
        if not arrays:
            try:
                memoryview(value).release()
            except TypeError:
                return None
        found = _generic
    if len(_lookers) > 256:  # classes that a program makes without end
        _lookers.clear()
        _lookers.update({View: _look_at_view, Array: _look_at_own})
    _lookers[cls] = found
    return found


def look(array):
    found = looker(array)
    if found is None:
        raise TypeError(f"a {type(array).__name__} is no array: it has neither __dlpack__ nor an array interface")
    return found(array)
