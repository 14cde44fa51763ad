# SPDX-License-Identifier: Apache-2.0
"""Arrays of other libraries: strides, types, read-only ones, DLPack of both kinds, array interfaces,
buffers; what does not fit is refused with the value and the rule."""

import array
import ctypes
import unittest

import numpy as np

import mica


def double(a, **options):
    return mica.transform(a, alpha=2, **options)


class NumPy(unittest.TestCase):
    def test_strides_are_taken_as_they_are(self):
        base = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
        for a in (base, base.T, base[::2, 1:, ::-1], base[::-1, ::-1, ::-2], np.broadcast_to(base[:, :1], (3, 4, 5)),
                  base[1:2, :, 3]):
            np.testing.assert_array_equal(double(a), 2 * a)

    def test_strides_of_nothing_but_zero(self):
        one = np.array([3], np.float32)
        for shape in ((2, 3), (2, 1, 3), (7,)):
            np.testing.assert_array_equal(double(np.broadcast_to(one, shape)), np.full(shape, 6, np.float32))
        with self.assertRaisesRegex(mica.Invalid, "y"):
            double(np.zeros((2, 3), np.float32), out=np.lib.stride_tricks.as_strided(one, (2, 3), (0, 0)))

    def test_types(self):
        for dtype in (np.float64, np.float32, np.float16, np.int8, np.uint8, np.int32, np.int64, np.uint32):
            a = np.arange(7).astype(dtype)
            found = double(a)
            self.assertEqual(found.dtype, dtype)
            np.testing.assert_array_equal(found, 2 * a)
        for dtype in (np.int16, np.uint16, np.uint64, np.longdouble, "datetime64[s]", object, "U3", "f4,i4"):
            with self.assertRaisesRegex(mica.Invalid, "x has elements of type .*; mica takes float64"):
                double(np.zeros(2, dtype))
        with self.assertRaisesRegex(mica.Invalid, "byte order"):
            double(np.zeros(2, ">f4"))

    def test_types_that_do_not_fit_the_operation(self):
        with self.assertRaisesRegex(mica.Invalid, "w is"):
            mica.conv(np.zeros((1, 1, 4, 4), np.float32), np.zeros((1, 1, 1, 1)))
        with self.assertRaisesRegex(mica.Invalid, "labels is"):
            mica.cross_entropy(np.zeros((2, 3), np.float32), np.zeros(2, np.float32))

    def test_read_only_inputs_are_inputs_and_no_outputs(self):
        a = np.arange(4, dtype=np.float32)
        a.flags.writeable = False
        np.testing.assert_array_equal(double(a), 2 * a)
        with self.assertRaisesRegex(mica.Invalid, "y is written, and is a read-only array"):
            double(np.zeros(4, np.float32), out=a)
        out = np.zeros(4, np.float32)
        double(a, out=out)
        out.flags.writeable = False  # its kind is known by now
        with self.assertRaisesRegex(mica.Invalid, "read-only"):
            double(a, out=out)
        with self.assertRaisesRegex(mica.Invalid, "p is written, and is a read-only"):
            mica.optim(a, np.zeros(4, np.float32))
        plan = mica.plan("transform", a)
        with self.assertRaisesRegex(mica.Invalid, "read-only"):
            plan.run(a, out=out)
        with self.assertRaisesRegex(mica.Invalid, "read-only"):
            plan.prepare(a, out=out)

    def test_outputs_that_alias(self):
        a = np.zeros((4, 4), np.float32)
        shared = np.lib.stride_tricks.as_strided(np.zeros(8, np.float32), (4, 4), (4, 4))
        with self.assertRaisesRegex(mica.Invalid, "y"):
            double(a, out=shared)
        with self.assertRaisesRegex(mica.Invalid, "y"):
            double(a, out=np.lib.stride_tricks.as_strided(np.zeros(8, np.float32), (4, 4), (0, 4)))
        whole = np.zeros(20, np.float32)
        with self.assertRaisesRegex(mica.Invalid, "overlaps"):
            double(whole[:16], out=whole[4:])
        with self.assertRaisesRegex(mica.Invalid, "overlaps"):
            mica.activation(whole[:16], y=whole[2:18])
        mica.activation(whole, y=whole)  # that one is allowed

    def test_outputs_of_another_shape_or_type(self):
        a = np.zeros((4, 4), np.float32)
        for wrong in (np.zeros((4, 5), np.float32), np.zeros(16, np.float32)):
            with self.assertRaises(mica.Invalid):
                double(a, out=wrong)
        with self.assertRaisesRegex(mica.Invalid, "no result"):
            double(a, out={"z": a})
        with self.assertRaisesRegex(mica.Invalid, "2 arrays"):
            double(a, out=[a, a])
        with self.assertRaisesRegex(TypeError, "twice"):
            double(a, out=a, y=a)

    def test_strides_that_are_no_multiple_of_the_element(self):
        a = np.ndarray((3,), np.float32, np.zeros(20, np.uint8), strides=(5,))
        with self.assertRaisesRegex(mica.Invalid, "5 bytes"):
            double(a)

    def test_elements_that_are_not_aligned(self):
        a = np.ndarray((3,), np.float32, np.zeros(20, np.uint8), 1)
        with self.assertRaisesRegex(mica.Invalid, "alignment"):
            double(a)

    def test_too_many_dimensions(self):
        with self.assertRaisesRegex(mica.Invalid, "9 dimensions, at most 8"):
            double(np.zeros((1,) * 9, np.float32))

    def test_subclasses_and_what_is_no_array(self):
        a = np.array([[1.0, 2.0]], np.float32).view(np.recarray)
        np.testing.assert_array_equal(double(a), [[2, 4]])
        for wrong in (3, 3.5, [1.0], object(), print):
            with self.assertRaises((mica.Invalid, TypeError)):
                double(wrong)

    def test_calls_that_look_alike_do_not_mix(self):
        a = np.arange(12, dtype=np.float32).reshape(3, 4)
        for _ in range(3):
            np.testing.assert_allclose(mica.softmax(a, axis=0).sum(0), 1, rtol=1e-6)
            np.testing.assert_allclose(mica.softmax(a, axis=1).sum(1), 1, rtol=1e-6)
            self.assertEqual(mica.transform(a, y="f64").dtype, np.float64)
            self.assertEqual(mica.transform(a).dtype, np.float32)
            self.assertEqual(mica.transform(a.view(np.int32)).dtype, np.int32)


class Views(unittest.TestCase):
    def test_bf16_without_a_library_that_has_it(self):
        a = np.array([0x3F80, 0x4000], np.uint16)  # 1 and 2
        out = np.zeros(2, np.uint16)
        self.assertIs(double(mica.view(a, "bf16"), out=mica.view(out, "bf16")), out)
        self.assertEqual(out.tolist(), [0x4000, 0x4080])
        np.testing.assert_array_equal(mica.transform(mica.view(a, "bf16"), y="f32"), [1, 2])
        f8 = np.array([0x38], np.uint8)
        np.testing.assert_array_equal(mica.transform(mica.view(f8, "e4m3"), y="f32"), [1])

    def test_elements_of_four_bits_are_halves_of_bytes(self):
        x = np.array([[1, 2, 3, -4, 5, 6.4, -7, 0.3], [0, 0, 0, 0, 0, 0, 0, 14]], np.float32)
        y, scale = mica.quantize(x, y="s4", pass_="amax", block=(1, 8))
        self.assertEqual((y.dtype, y.tolist()), (np.uint8, [[0x21, 0xC3, 0x65, 0x09], [0, 0, 0, 0x70]]))
        self.assertEqual(scale.tolist(), [[1], [2]])
        back = mica.dequantize(mica.view(y, "s4"), scale=scale)
        self.assertEqual(back.tolist(), [[1, 2, 3, -4, 5, 6, -7, 0], [0] * 7 + [14]])
        out = np.full((2, 4), 255, np.uint8)
        self.assertIs(mica.quantize(x, scale=scale, out=mica.view(out, "s4")), out)
        self.assertEqual(out.tolist(), y.tolist())
        with self.assertRaisesRegex(mica.Invalid, "neighbours along the last dimension"):
            mica.view(y[:, ::2], "s4")
        with self.assertRaisesRegex(mica.Invalid, "neighbours along the last dimension"):
            mica.view(x, "u4")
        with self.assertRaisesRegex(mica.Invalid, "must be even"):
            mica.quantize(x[:, :7], y="s4", scale=scale[:1])

    def test_codes_by_chance_have_the_mean_of_what_they_are_of(self):
        x = np.full((64, 64), 0.25, np.float32)
        scale, rng = np.ones((1, 1), np.float32), np.array([3, 1], np.int64)
        y = mica.quantize(x, y="s8", scale=scale, rounding="stochastic", rng=rng)
        self.assertEqual(set(y.ravel().tolist()), {0, 1})
        self.assertLess(abs(y.mean() - 0.25), 0.035)  # five standard deviations
        np.testing.assert_array_equal(mica.quantize(x[8:], y="s8", scale=scale, rounding="stochastic", rng=rng, first=512), y[8:])

    def test_quantised_and_back(self):
        x = np.array([[0.4, 1.6, 300, -300]], np.float32)
        scale = np.array([[2]], np.float32)
        self.assertEqual(mica.fake_quantize(x, scale=scale).tolist(), [[0, 2, 254, -256]])
        dx = mica.fake_quantize(x, dy=np.ones_like(x), scale=scale, pass_="bwd", low=-10, high=10)
        self.assertEqual(dx.tolist(), [[1, 1, 0, 0]])

    def test_blocks_of_bytes(self):
        x = np.arange(-127, 129, 8).astype(np.float32)
        y = mica.quantize_blocks(np.stack([x, 2 * x]), format="q8_0")
        self.assertEqual((y.dtype, y.shape), (np.uint8, (2, 34)))
        self.assertEqual(y[:, :2].tolist(), [[0, 0x3C], [0, 0x40]])
        self.assertEqual(y[1, 2:].view(np.int8).tolist(), x.tolist())
        np.testing.assert_array_equal(mica.dequantize_blocks(y, format="q8_0"), [x, 2 * x])
        codes, scale = np.full(64, 0xF7, np.uint8), np.array([2, 3], np.float32)
        back = mica.dequantize_blocks(codes, format="nf4", scale=scale)
        self.assertEqual(back.tolist(), [2, 0] * 32 + [3, 0] * 32)
        with self.assertRaisesRegex(mica.Invalid, "rows of x are 64 bytes, a block of q4_k is 144"):
            mica.dequantize_blocks(codes, format="q4_k")

    def test_products_with_quantised_weights(self):
        x = np.array([[1, 2, -1, 0], [0, 1, 1, 3]], np.float32)
        codes = np.array([[0x21, 0x43], [0xF0, 0x0F]], np.uint8)  # 1 2 3 4, 0 15 15 0
        scales, zeros = np.array([[1, 2], [0.5, 1]], np.float32), np.array([[1, 0], [1, 2]], np.float32)
        w = np.array([[0, 1, 6, 8], [-0.5, 7, 13, -2]], np.float32)
        y = mica.quantized_gemm(x, mica.view(codes, "u4"), scales=scales, zeros=zeros, group=2)
        np.testing.assert_array_equal(y, x @ w.T)
        y = mica.quantized_gemm(x[:, :2], w[:, 2:].astype(np.int8), scales=np.array([[2], [1]], np.float32),
                                bias=np.array([1, -1], np.float32), alpha=3)
        np.testing.assert_array_equal(y, 3 * x[:, :2] @ (w[:, 2:] * [[2], [1]]).T + [1, -1])
        v = np.arange(-127, 129, 8).astype(np.float32)
        blocks = mica.quantize_blocks(np.stack([v, 2 * v]), format="q8_0")
        y = mica.quantized_gemm(np.ones((1, 32), np.float32), blocks, format="q8_0")
        np.testing.assert_array_equal(y, [[v.sum(), 2 * v.sum()]])
        with self.assertRaisesRegex(mica.Invalid, "K is 31, a block of q8_0 is 32 elements"):
            mica.quantized_gemm(np.ones((1, 31), np.float32), blocks, format="q8_0")

    def test_weights_of_checkpoints(self):
        k, n, groups = 64, 16, 2
        at = np.arange(k * n, dtype=np.uint32).reshape(k, n)
        codes, zeros = at * 7 % 16, at[:groups] * 5 % 16
        scales = (at[:groups] % 11 / 8 + 0.5).astype(np.float16)

        def packed(v):  # along the last dimension, the first in the lowest bits
            return sum(v[:, i::8] << np.uint32(4 * i) for i in range(8)).astype(np.uint32).view(np.int32)

        words = dict(qweight=np.ascontiguousarray(packed(codes.T).T), scales=scales, qzeros=packed((zeros - 1) % 16))
        expected = (codes.astype(int) - np.repeat(zeros, 32, 0).astype(int)).astype(np.float16) * np.repeat(scales, 32, 0)
        np.testing.assert_array_equal(mica.dequantize_weights(**words), expected)
        w, w_scales, w_zeros = mica.repack_weights(**words)
        y = mica.quantized_gemm(np.eye(k, dtype=np.float32), mica.view(w, "u4"), scales=w_scales,
                                zeros=mica.view(w_zeros, "u4"), group=32)
        np.testing.assert_array_equal(y, expected)
        one = dict(qweight=words["qweight"], scales=scales[:1], qzeros=words["qzeros"][:1], format="gptq_v2")
        w, w_scales, w_zeros = mica.repack_weights(**one, w_zeros="f16")
        y = mica.quantized_gemm(np.eye(k, dtype=np.float32), mica.view(w, "u4"), scales=w_scales, zeros=w_zeros, y="f16")
        np.testing.assert_array_equal(y, mica.dequantize_weights(**one))
        with self.assertRaisesRegex(mica.Invalid, "bits is 8, of awq it must be 4"):
            mica.repack_weights(words["qweight"], format="awq", bits=8)

    def test_tokens_of_logits(self):
        x = np.array([[1, 3, 2, 3], [0, 9, -9, 0]], np.float32)
        self.assertEqual(mica.sample(x, temperature=0).tolist(), [1, 1])
        drawn = [mica.sample(x, top_k=2, seed=seed) for seed in range(20)]
        self.assertEqual({int(tokens[0]) for tokens in drawn}, {1, 3})
        self.assertEqual({int(tokens[1]) for tokens in drawn}, {1})
        mask = np.array([[0b1000], [0b100]], np.uint32)
        self.assertEqual(mica.sample(x, mask=mask).tolist(), [3, 2])
        with self.assertRaisesRegex(mica.Invalid, "x has rank 1"):
            mica.sample(x[0])

    def test_results_that_numpy_has_no_type_for(self):
        try:
            import ml_dtypes
        except ImportError:
            with self.assertRaisesRegex(mica.Invalid, "ml_dtypes; or give the result"):
                mica.transform(np.zeros(2, np.float32), y="bf16")
        else:
            found = mica.transform(np.ones(2, np.float32), y="bf16")
            self.assertEqual(found.dtype, ml_dtypes.bfloat16)
            np.testing.assert_array_equal(double(found).astype(np.float32), [2, 2])
            self.assertEqual(mica.transform(np.ones(2, np.float32), y="e5m2").dtype, ml_dtypes.float8_e5m2)

    def test_of_another_size(self):
        with self.assertRaisesRegex(mica.Invalid, "16 bits .*f32, which has 32"):
            mica.view(np.zeros(2, np.uint16), "f32")
        with self.assertRaisesRegex(mica.Invalid, "no data type"):
            mica.view(np.zeros(2, np.uint16), "f17")
        with self.assertRaises(TypeError):
            mica.view(3, "f32")

    def test_read_only_stays_so(self):
        a = np.zeros(2, np.uint16)
        a.flags.writeable = False
        with self.assertRaisesRegex(mica.Invalid, "read-only"):
            double(mica.view(np.zeros(2, np.uint16), "bf16"), out=mica.view(a, "bf16"))


class Buffers(unittest.TestCase):
    def test_without_any_library(self):
        a = array.array("f", range(6))
        found = double(a)
        self.assertIs(type(found), mica.Array)
        self.assertEqual(found.tolist(), [0, 2, 4, 6, 8, 10])
        self.assertEqual(double(found).tolist(), [0, 4, 8, 12, 16, 20])
        np.testing.assert_array_equal(np.asarray(found), 2 * np.arange(6))
        out = array.array("f", range(6))
        self.assertIs(double(a, out=out), out)
        self.assertEqual(out[5], 10)

    def test_read_only_and_odd_ones(self):
        self.assertEqual(double(b"\1\2").tolist(), [2, 4])
        with self.assertRaisesRegex(mica.Invalid, "read-only buffer"):
            double(bytearray(2), out=b"\0\0")
        with self.assertRaisesRegex(mica.Invalid, "format 'h'"):
            double(array.array("h", [1]))
        whole = memoryview(bytearray(range(8)))
        self.assertEqual(double(whole[::-2]).tolist(), [14, 10, 6, 2])

    def test_are_given_back(self):
        a = bytearray(4)
        double(a)
        a.extend(b"1234")  # refused while somebody holds the buffer

    def test_arrays_of_earlier_calls_are_not_kept(self):
        import weakref

        a = np.zeros(1000, np.float32)
        gone = weakref.ref(a)
        double(a)
        mica.plan("transform", a).run(a)
        del a
        self.assertIsNone(gone())

    def test_memory_of_ones_own(self):
        context = mica.Context("cpu")
        a = context.empty("bf16:2x3")
        mica.transform(np.arange(6, dtype=np.float32).reshape(2, 3), y=a)
        self.assertEqual(a.tolist(), [[0, 1, 2], [3, 4, 5]])
        self.assertEqual(np.asarray(a).dtype, np.uint16)
        self.assertFalse(hasattr(a, "__cuda_array_interface__"))


class Interface:
    """Somebody's array with nothing but an array interface."""

    def __init__(self, a, **changes):
        self.keep = a
        self.__array_interface__ = {**a.__array_interface__, **changes}


class Interfaces(unittest.TestCase):
    def test_array_interface(self):
        a = np.arange(6, dtype=np.float32).reshape(2, 3)
        self.assertEqual(double(Interface(a)).tolist(), (2 * a).tolist())
        self.assertEqual(double(Interface(a.T)).tolist(), (2 * a.T).tolist())
        out = Interface(np.zeros((2, 3), np.float32))
        self.assertIs(double(a, out=out), out)
        np.testing.assert_array_equal(out.keep, 2 * a)

    def test_array_interface_that_does_not_fit(self):
        a = np.zeros(4, np.float32)
        for change, words in [({"typestr": ">f4"}, "byte order"), ({"typestr": "<i2"}, "type <i2"),
                              ({"mask": a}, "mask"), ({"data": b"123"}, "address"), ({"strides": (3,)}, "3 bytes")]:
            with self.assertRaisesRegex(mica.Invalid, words):
                double(Interface(a, **change))
        with self.assertRaisesRegex(mica.Invalid, "read-only"):
            double(a, out=Interface(a, data=(a.ctypes.data, True)))


# ---- DLPack, by hand: capsules of both kinds with whatever is in them ----

_DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype, _new_capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class Producer:
    def __init__(self, a, versioned=True, flags=0, device=(1, 0), major=1, strides=True, **changes):
        self.a, self.versioned, self.device, self.asked = a, versioned, device, []
        from mica._arrays import _DLManagedVersioned, _DLTensor

        self.shape = (ctypes.c_int64 * a.ndim)(*a.shape)
        self.strides = (ctypes.c_int64 * a.ndim)(*[s // a.itemsize for s in a.strides])
        code = {"f": 2, "i": 0, "u": 1}[a.dtype.kind]
        tensor = _DLTensor(a.ctypes.data, device[0], device[1], a.ndim, code, a.itemsize * 8, 1,
                           ctypes.cast(self.shape, ctypes.POINTER(ctypes.c_int64)),
                           ctypes.cast(self.strides, ctypes.POINTER(ctypes.c_int64)) if strides else None, 0)
        for name, value in changes.items():
            setattr(tensor, name, value)
        self.managed = _DLManagedVersioned(major, 0, None, None, flags, tensor) if versioned else tensor

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **options):
        self.asked.append(options)
        if not self.versioned and "max_version" in options:
            raise TypeError("max_version")
        return _new_capsule(ctypes.addressof(self.managed), b"dltensor_versioned" if self.versioned else b"dltensor", None)


class DLPack(unittest.TestCase):
    a = np.arange(6, dtype=np.float32).reshape(2, 3)

    def test_both_kinds(self):
        for versioned in (True, False):
            for a in (self.a, self.a.T, self.a[:, ::-1]):
                if not a.flags.c_contiguous and a.strides[1] < 0:
                    continue
                self.assertEqual(double(Producer(a, versioned)).tolist(), (2 * a).tolist())
        self.assertEqual(double(Producer(self.a, False, strides=False)).tolist(), (2 * self.a).tolist())
        self.assertEqual(double(Producer(self.a[:1], byte_offset=12)).tolist(), (2 * self.a[1:]).tolist())

    def test_stream_is_named_for_gpus_only(self):
        producer = Producer(self.a)
        double(producer)
        self.assertEqual(producer.asked, [{"max_version": (1, 0)}])

    def test_outputs(self):
        out = Producer(np.zeros((2, 3), np.float32))
        self.assertIs(double(self.a, out=out), out)
        np.testing.assert_array_equal(out.a, 2 * self.a)
        with self.assertRaisesRegex(mica.Invalid, "y is written, and is a read-only array"):
            double(self.a, out=Producer(np.zeros((2, 3), np.float32), flags=1))
        with self.assertRaisesRegex(mica.Invalid, "before 1.0"):
            double(self.a, out=Producer(np.zeros((2, 3), np.float32), False))

    def test_what_does_not_fit(self):
        for changes, words in [({"code": 3}, "type code 3"), ({"lanes": 4}, "4 lanes"), ({"bits": 16, "code": 0}, "16 bits"),
                               ({"major": 2}, "DLPack 2.0")]:
            with self.assertRaisesRegex(mica.Invalid, words):
                double(Producer(self.a, **changes))
        with self.assertRaisesRegex(mica.Invalid, "device type 4"):
            double(Producer(self.a, device=(4, 0)))

    def test_bf16_and_8_bit_floats(self):
        bits = np.array([0x3F80], np.uint16)
        found = mica.transform(Producer(bits, code=4), y="f32")
        self.assertEqual(found.tolist(), [1])
        for code, one in ((10, 0x38), (12, 0x3C)):
            found = mica.transform(Producer(np.array([one], np.uint8), code=code), y="f32")
            self.assertEqual(found.tolist(), [1])

    def test_device_of_another_kind(self):
        elsewhere = Producer(np.zeros((2, 3), np.float32), device=(2, 0))
        with self.assertRaisesRegex(mica.Invalid, "y is on cuda:0, x on cpu"):
            double(self.a, out=elsewhere)
        self.assertEqual(elsewhere.asked[0]["stream"], 1)

    def test_plan_of_another_device(self):
        try:
            plan = mica.plan("transform", self.a, context="sm_90a")
        except mica.NoCompiler as error:
            self.skipTest(str(error).split(":")[0])
        with self.assertRaisesRegex(mica.Invalid, "x is on cpu, the plan runs on"):
            plan.run(self.a)


if __name__ == "__main__":
    unittest.main()
