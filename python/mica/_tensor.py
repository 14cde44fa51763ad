# SPDX-License-Identifier: Apache-2.0
"""Descriptions of tensors: a type, sizes, and strides in elements."""

from __future__ import annotations

from ._errors import Invalid, check
from ._library import abi, byref, lib, text_of

# Names of data types by their number, and back: the library's.
dtype_names = [lib.mica_dtype_name(number).decode() for number in range(abi.MICA_DTYPE_COUNT)]
dtype_bits = {name: lib.mica_dtype_bits(number) for number, name in enumerate(dtype_names)}


class Tensor:
    """A tensor that is described and not there: Tensor("bf16:256x64x56x56:nhwc"), or
    Tensor("f32", (2, 3)), or with strides in elements, Tensor("f32", (2, 3), (1, 2)).

    Operators take it where they infer or make a result; mica.plan takes nothing else."""

    __slots__ = ("dtype", "shape", "strides")

    def __init__(self, dtype: str, shape: Sequence[int] | None = None, strides: Sequence[int] | None = None) -> None:
        if shape is None:
            read = abi.mica_tensor()
            check(lib.mica_tensor_from_text(str(dtype).encode(), byref(read)))
            self._take(read)
            return
        if dtype not in dtype_bits or dtype == dtype_names[0]:
            raise Invalid(f"{dtype!r} is no data type; known are {', '.join(dtype_names[1:])}")
        self.dtype = dtype
        self.shape = tuple(int(size) for size in shape)
        if strides is None:
            strides, step = [], 1
            for size in reversed(self.shape):
                strides.insert(0, step)
                step *= max(size, 1)
        self.strides = tuple(int(step) for step in strides)
        if len(self.strides) != len(self.shape):
            raise Invalid(f"{len(self.shape)} sizes and {len(self.strides)} strides")

    def _take(self, read):
        self.dtype = dtype_names[read.dtype]
        self.shape = tuple(read.dims[: read.rank])
        self.strides = tuple(read.strides[: read.rank])

    @classmethod
    def of(cls, struct: Any) -> Tensor:
        self = cls.__new__(cls)
        self._take(struct)
        return self

    @property
    def count(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def nbytes(self) -> int:
        """Bytes from the lowest element to past the highest, as the library counts them."""
        return self._span()[0]

    def _struct(self):
        struct = abi.mica_tensor(dtype_names.index(self.dtype), len(self.shape))
        if len(self.shape) > abi.MICA_MAX_RANK:
            raise Invalid(f"{len(self.shape)} dimensions, at most {abi.MICA_MAX_RANK} are legal")
        struct.dims[: len(self.shape)] = self.shape
        struct.strides[: len(self.shape)] = self.strides
        struct.strided = 1  # those of nothing but zero are meant, too
        return struct

    def _span(self):
        """Bytes spanned, and the offset of the lowest element from element 0."""
        from ctypes import c_int64

        first = c_int64()
        span = lib.mica_tensor_span(byref(self._struct()), byref(first))
        if span < 0:
            raise Invalid(f"{self.text('tensor')}: its span overflows")
        return span, first.value

    def text(self, name: str) -> str:
        """Its form in a problem line; name: of the field, for refusals."""
        if len(self.shape) > abi.MICA_MAX_RANK:
            raise Invalid(f"{name} has {len(self.shape)} dimensions, at most {abi.MICA_MAX_RANK} are legal")
        if not self.shape:
            return self.dtype
        return f"{self.dtype}:{'x'.join(map(str, self.shape))}:{'x'.join(map(str, self.strides))}"

    def __str__(self):
        return text_of(lib.mica_tensor_text, byref(self._struct())) if self.shape else self.dtype

    def __repr__(self):
        return f"mica.Tensor({str(self)!r})"

    def __eq__(self, other):
        return isinstance(other, Tensor) and self._key() == other._key()

    def __hash__(self):
        return hash(self._key())

    def _key(self):
        return self.dtype, self.shape, self.strides
