# SPDX-License-Identifier: Apache-2.0
"""What an ONNX node is in problem lines: a rule for each operator, from attributes to fields.

A rule gets a Node and returns its results in order (None: not compared). It may look at an input where ONNX has
what is a field here (axes, pads, a scalar), take memory for another shape, order or type of the same size, repeat a
dimension, and make constants; whatever is computed of values is computed by node.run, that is by mica. An operator may have
several rules, all of which must give what onnx says; a rule that does not fit says so by Missing.

MISSING says of the other operators, in a clause, why there is none."""
import math

import numpy as np

RULES, MISSING = {}, {}


class Missing(Exception):
    """What cannot be said in problem lines, and why."""


def rule(*names):
    def add(function):
        for name in names:
            RULES.setdefault(name, []).append(function)
        return function

    return add


def need(condition, why):
    if not condition:
        raise Missing(why)


def number(value):
    """A number as an expression has it: with a point or an exponent where it is real."""
    value = float(value)
    return {math.inf: "inf", -math.inf: "-inf"}.get(value, "nan" if value != value else repr(value))


def scalar(x):
    return np.asarray(x).reshape(-1)[0].item()


def integers(x):
    return [int(v) for v in np.asarray(x).reshape(-1)]


TYPES = {"float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16", "float8_e4m3fn": "e4m3",
         "float8_e5m2": "e5m2", "int8": "s8", "uint8": "u8", "int32": "s32", "int64": "s64", "uint32": "u32",
         "bool": "bool"}
REALS = ("f64", "f32", "f16", "bf16")
SMALL = {"int4": "4 bits", "uint4": "4 bits", "int2": "2 bits", "uint2": "2 bits", "float4_e2m1fn": "4 bits",
         "int16": "16-bit integers", "uint16": "16-bit integers", "uint64": "u64", "float8_e4m3fnuz": "fnuz types",
         "float8_e5m2fnuz": "fnuz types", "float8_e8m0fnu": "e8m0 as a type of its own", "object": "text",
         "complex64": "complex numbers", "complex128": "complex numbers"}


HALF_BYTES = {"int4": "s4", "uint4": "u4", "float4_e2m1fn": "e2m1"}  # of quantize and dequantize alone


def type_of(x, more={}):
    name = np.asarray(x).dtype.name
    if name.startswith("str"):
        name = "object"
    if name in more:
        return more[name]
    need(name in TYPES, "no " + SMALL.get(name, name))
    return TYPES[name]


def described(kind, shape):
    return f"{kind}:{'x'.join(map(str, shape)) or 1}"


# ---- element by element ----

def expression(node, text, *xs, kind=None):
    """Of these types, or kind: the result's."""
    shape = np.broadcast_shapes(*(np.shape(x) for x in xs))
    return node.run("pointwise", expr=text, **{f"x{i}": x for i, x in enumerate(xs)},
                    **({"y0": described(kind, shape)} if kind else {})).reshape(shape)


def elementwise(text):
    def compute(node):
        return [expression(node, text(node) if callable(text) else text, *node.inputs)]

    return compute


for name, text in {
    "Abs": "abs(x0)", "Acos": "acos(x0)", "Acosh": "acosh(x0)", "Asin": "asin(x0)", "Asinh": "asinh(x0)",
    "Atan": "atan(x0)", "Atanh": "atanh(x0)", "Ceil": "ceil(x0)", "Cos": "cos(x0)", "Cosh": "cosh(x0)", "Erf": "erf(x0)",
    "Exp": "exp(x0)", "Floor": "floor(x0)", "HardSwish": "hard_swish(x0)", "IsNaN": "isnan(x0)", "Log": "log(x0)",
    "Mish": "mish(x0)", "Neg": "-x0", "Not": "!x0", "Reciprocal": "recip(x0)", "Relu": "relu(x0)", "Round": "round(x0)",
    "Sigmoid": "sigmoid(x0)", "Sign": "sign(x0)", "Sin": "sin(x0)", "Sinh": "sinh(x0)", "Softplus": "softplus(x0)",
    "Softsign": "softsign(x0)", "Sqrt": "sqrt(x0)", "Tan": "tan(x0)", "Tanh": "tanh(x0)", "BitwiseNot": "~x0",
    "Add": "x0+x1", "Sub": "x0-x1", "Mul": "x0*x1", "And": "x0&&x1", "Or": "x0||x1", "Xor": "lxor(x0,x1)",
    "BitwiseAnd": "x0&x1", "BitwiseOr": "x0|x1", "BitwiseXor": "x0^x1", "Equal": "x0==x1", "Greater": "x0>x1",
    "GreaterOrEqual": "x0>=x1", "Less": "x0<x1", "LessOrEqual": "x0<=x1", "Where": "where(x0,x1,x2)",
    "PRelu": "prelu(x0,x1)",
    "Elu": lambda n: f"elu(x0,{number(n('alpha', 1.0))})",
    "Celu": lambda n: f"celu(x0,{number(n('alpha', 1.0))})",
    "LeakyRelu": lambda n: f"leaky_relu(x0,{number(n('alpha', 0.01))})",
    "Selu": lambda n: f"{number(n('gamma', 1.0507009873554805))}*elu(x0,{number(n('alpha', 1.6732632423543772))})",
    "HardSigmoid": lambda n: f"clamp({number(n('alpha', 0.2))}*x0+{number(n('beta', 0.5))},0.0,1.0)",
    "ThresholdedRelu": lambda n: f"threshold(x0,{number(n('alpha', 1.0))},0.0)",
    "Shrink": lambda n: "where(x0<-L,x0+B,where(x0>L,x0-B,0.0))".replace("L", number(n("lambd", 0.5))).replace(
        "B", number(n("bias", 0.0))),
    "Swish": lambda n: f"swish(x0,{number(n('alpha', 1.0))})",
    "SwiGLU": lambda n: f"swish(x0,{number(n('alpha', 1.0))})*x1",
    "Gelu": lambda n: "gelu_tanh(x0)" if n("approximate", b"none") == b"tanh" else "gelu(x0)",
    "BitShift": lambda n: "x0<<x1" if n("direction") == b"LEFT" else "x0>>x1",
    "Mod": lambda n: "fmod(x0,x1)" if n("fmod", 0) else "rem(x0,x1)",
    "Max": lambda n: folded("max({},{})", n), "Min": lambda n: folded("min({},{})", n),
    "Sum": lambda n: folded("{}+{}", n),
    "Mean": lambda n: f"({folded('{}+{}', n)})/{len(n.inputs)}.0",
    "Binarizer": lambda n: f"where(x0>{number(n('threshold', 0.0))},1.0,0.0)",
}.items():
    rule(name)(elementwise(text))


def folded(form, node):
    text = "x0"
    for i in range(1, len(node.inputs)):
        text = form.format(text, f"x{i}")
    return text


@rule("IsInf")
def isinf(node):
    both = node("detect_negative", 1), node("detect_positive", 1)
    return [expression(node, {(1, 1): "isinf(x0)", (1, 0): "isneginf(x0)", (0, 1): "isposinf(x0)"}[both], *node.inputs)]


@rule("Div")
def div(node):
    kind = type_of(node.inputs[0])
    if kind in REALS:
        return [expression(node, "x0/x1", *node.inputs)]
    if kind == "s64":  # towards 0: what is left then divides
        return [expression(node, "floordiv(x0-fmod(x0,x1),x1)", *node.inputs)]
    return [expression(node, f"{kind}(x0/x1)", *node.inputs)]  # a cast is towards 0, as the quotient


@rule("Pow")
def power(node):
    base, exponent = node.inputs
    kinds = type_of(base), type_of(exponent)
    if kinds[0] in REALS:
        return [expression(node, "pow(x0,x1)", base, exponent, kind=kinds[0])]
    if kinds[0] == "s64":
        return [expression(node, "s64(round(pow(x0,x1)))", base, exponent)]
    return [expression(node, f"{kinds[0]}(pow(x0,x1))", base, exponent)]


@rule("Clip")
def clip(node):
    x, low, high = (list(node.inputs) + [None, None])[:3]
    xs, text = [x], "x0"
    for form, bound in (("max({},x{})", low), ("min({},x{})", high)):
        if bound is not None:
            text = form.format(text, len(xs))
            xs.append(bound)
    return [expression(node, text, *xs)]


@rule("Clip")
def clip_activation(node):
    x, low, high = (list(node.inputs) + [None, None])[:3]
    need(type_of(x) in REALS, "activation takes reals")
    return [node.run("activation", act="clip", x=x, act_a=-math.inf if low is None else scalar(low),
                     act_b=math.inf if high is None else scalar(high))]


def activation(name, **parameters):
    def compute(node):
        need(type_of(node.inputs[0]) in REALS, "activation takes reals")
        return [node.run("activation", act=name, x=node.inputs[0],
                         **{field: node(attribute, default) for field, (attribute, default) in parameters.items()})]

    return compute


for name, act, parameters in (
        ("Relu", "relu", {}), ("Sigmoid", "sigmoid", {}), ("Tanh", "tanh", {}), ("Softplus", "softplus", {}),
        ("Softsign", "softsign", {}), ("Mish", "mish", {}), ("HardSwish", "hard_swish", {}),
        ("Elu", "elu", {"act_a": ("alpha", 1.0)}), ("LeakyRelu", "leaky_relu", {"act_a": ("alpha", 0.01)})):
    rule(name)(activation(act, **parameters))


@rule("Gelu")
def gelu(node):
    return activation("gelu_tanh" if node("approximate", b"none") == b"tanh" else "gelu")(node)


@rule("Cast", "CastLike")
def cast(node):
    x = node.inputs[0]
    to = type_of(node.expected[0])
    need(node("saturate", 1) or to not in ("e4m3", "e5m2"), "saturate=0: a type of 8 bits saturates")
    kind = type_of(x)
    if to == "bool" or kind == "bool" or to in REALS:
        return [node.convert(x, to)]
    if to in ("e4m3", "e5m2"):  # the largest finite value takes what is above it, infinities as well; NaN stays
        most = 448.0 if to == "e4m3" else 57344.0
        return [expression(node, f"clamp(x0,{-most},{most})", x, kind=to)]
    return [expression(node, f"{to}(x0)", x)]


@rule("BitCast")
def bitcast(node):
    x, to = node.inputs[0], node.expected[0].dtype
    return [copy(node, x.view(to))]


# ---- whole numbers for reals ----

def blocks(scale, x, axis, size):
    """The scale, or zero point, of each element: broadcast along the other axes, repeated by blocks."""
    scale = np.asarray(scale)
    if scale.size == 1:
        return scale.reshape((1,) * x.ndim)
    axis %= x.ndim
    if scale.ndim == 1:
        return scale.reshape([-1 if i == axis else 1 for i in range(x.ndim)])
    return np.repeat(scale, size, axis=axis)[tuple(slice(0, n) for n in x.shape)]


@rule("QuantizeLinear")
def quantize(node):
    x, scale, zero = (list(node.inputs) + [None])[:3]
    to = type_of(node.expected[0])
    axis, size = node("axis", 1), node("block_size", 0)
    xs = [x, blocks(scale, x, axis, size)]
    if to in ("e4m3", "e5m2"):
        need(node("saturate", 1), "saturate=0: a type of 8 bits saturates")
        most = 448.0 if to == "e4m3" else 57344.0
        return [expression(node, f"clamp(x0/x1,{-most},{most})", *xs, kind=to)]
    quotient = expression(node, "x0/x1", *xs)  # rounded to its type before it is rounded to an integer
    if zero is None:
        return [expression(node, f"{to}(round(x0))", quotient)]
    return [expression(node, f"{to}(round(x0)+f32(x1))", quotient, blocks(zero, x, axis, size))]


@rule("DequantizeLinear")
def dequantize(node):
    x, scale, zero = (list(node.inputs) + [None])[:3]
    axis, size, to = node("axis", 1), node("block_size", 0), type_of(node.expected[0])
    type_of(x)
    xs = [x, blocks(scale, x, axis, size)]
    if zero is None:
        return [expression(node, "f32(x0)*x1", *xs, kind=to)]
    return [expression(node, "(f32(x0)-f32(x2))*x1", *xs, blocks(zero, x, axis, size), kind=to)]


def in_blocks(node, x, scale, zero):
    """Fields of quantize and dequantize: the scale with the rank of x."""
    axis, size = node("axis", 1), node("block_size", 0)
    fields = {}
    for name, value in (("scale", scale), ("zero", zero)):
        if value is None:
            continue
        if value.size > 1 and value.ndim == 1 and x.ndim > 1:
            value = value.reshape([-1 if i == axis % x.ndim else 1 for i in range(x.ndim)])
        fields[name] = value
    if size:
        fields["block"] = [size if i == axis % x.ndim else 1 for i in range(x.ndim)]
    return fields


def codes_zero(zero):
    """A zero point of a floating-point type is 0, and not given."""
    if zero is None or type_of(zero, HALF_BYTES) not in ("e4m3", "e5m2", "e2m1"):
        return zero
    need(not np.asarray(zero).astype(np.float32).any(), "a zero point of floating-point codes")
    return None


@rule("QuantizeLinear")
def quantize_family(node):
    x, scale, zero = (list(node.inputs) + [None])[:3]
    to = type_of(node.expected[0], HALF_BYTES)
    need(node("saturate", 1) or to not in ("e4m3", "e5m2"), "saturate=0: a type of 8 bits saturates")
    return [node.run("quantize", x=x, y=described(to, x.shape), **in_blocks(node, x, scale, codes_zero(zero)))]


@rule("DequantizeLinear")
def dequantize_family(node):
    x, scale, zero = (list(node.inputs) + [None])[:3]
    to = type_of(node.expected[0])
    return [node.run("dequantize", x=x, y=described(to, x.shape), **in_blocks(node, x, scale, codes_zero(zero)))]


@rule("DynamicQuantizeLinear")
def dynamic_quantize_family(node):
    x, = node.inputs
    y, scale, zero = node.run("quantize", ["y", "scale", "zero"], x=x, y=described("u8", x.shape), pass_="minmax")
    return [y, scale.reshape(()), zero.reshape(())]


@rule("DynamicQuantizeLinear")
def dynamic_quantize(node):
    x = node.inputs[0]
    high = node.run("reduce", kind="max", x=x)
    low = node.run("reduce", kind="min", x=x)
    scale = expression(node, "(max(x0,0.0)-min(x1,0.0))/255.0", high, low)
    zero = expression(node, "u8(round(clamp(-min(x0,0.0)/x1,0.0,255.0)))", low, scale)
    return [expression(node, "u8(round(x0)+f32(x1))", expression(node, "x0/x1", x, scale), zero), scale.reshape(()), zero.reshape(())]


def centred(node, x, zero, axis=None):
    """x - zero as a real: both have 8 bits, so that sums of products are exact in f32 below 2^24."""
    if zero is None:
        return expression(node, "f32(x0)", x)
    zero = np.asarray(zero)
    if zero.size > 1:
        zero = zero.reshape([-1 if i == axis else 1 for i in range(x.ndim)])
    return expression(node, "f32(x0)-f32(x1)", x, zero)


def vector_of(x):
    return None if x is None else np.asarray(x).reshape(-1)


@rule("MatMulInteger")
def matmul_integer(node):
    a, b, zero_a, zero_b = (list(node.inputs) + [None, None])[:4]
    if a.ndim == 2 and b.ndim == 2:
        return [node.run("integer_gemm", a=a, b=b, zero_a=vector_of(zero_a), zero_b=vector_of(zero_b))]
    product = matmul_of(node, centred(node, a, zero_a, a.ndim - 2), centred(node, b, zero_b, b.ndim - 1))
    return [expression(node, "s32(round(x0))", product)]


@rule("QLinearMatMul")
def qlinear_matmul(node):
    a, scale_a, zero_a, b, scale_b, zero_b, scale, zero = node.inputs
    if a.ndim == 2 and b.ndim == 2 and np.asarray(scale).dtype == np.float32:
        zeros = dict(zero_a=vector_of(zero_a), zero_b=vector_of(zero_b), zero_y=vector_of(zero))
        scales = dict(scale_a=vector_of(scale_a), scale_b=vector_of(scale_b), scale_y=vector_of(scale))
        return [node.run("integer_gemm", a=a, b=b, y=type_of(zero), **zeros, **scales)]
    product = matmul_of(node, centred(node, a, zero_a, a.ndim - 2), centred(node, b, zero_b, b.ndim - 1))
    to = type_of(zero)
    return [expression(node, f"{to}(round(x0*(f32(x1)*f32(x2)/f32(x3)))+f32(x4))", product, scale_a, scale_b, scale, zero)]


@rule("ConvInteger")
def conv_integer(node):
    x, w, zero_x, zero_w = (list(node.inputs) + [None, None])[:4]
    y = conv_of(node, centred(node, x, zero_x), centred(node, w, zero_w, 0), None)
    return [expression(node, "s32(round(x0))", y)]


@rule("QLinearConv")
def qlinear_conv(node):
    x, scale_x, zero_x, w, scale_w, zero_w, scale, zero, bias = (list(node.inputs) + [None])[:9]
    y = conv_of(node, centred(node, x, zero_x), centred(node, w, zero_w, 0), bias)
    to = type_of(zero)
    channels = np.asarray(scale_w).reshape(-1, *(1,) * (y.ndim - 2))
    return [expression(node, f"{to}(round(x0*(x1*x2/x3))+f32(x4))", y, scale_x, channels, scale, zero)]


# ---- products ----

def matmul_of(node, a, b):
    squeeze = []
    if a.ndim == 1:
        a = a[None]
        squeeze.append(-2)
    if b.ndim == 1:
        b = b[:, None]
        squeeze.append(-1)
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    flat = [np.broadcast_to(x, batch + x.shape[-2:]).reshape((-1,) + x.shape[-2:]) if batch else x for x in (a, b)]
    c = node.run("gemm", a=flat[0], b=flat[1])
    return np.squeeze(c.reshape(batch + c.shape[-2:]), tuple(squeeze))


@rule("MatMul")
def matmul(node):
    need(type_of(node.inputs[0]) in REALS, "gemm takes reals and integers of 8 bits")
    return [matmul_of(node, *node.inputs)]


@rule("Gemm")
def gemm(node):
    a, b, c = (list(node.inputs) + [None])[:3]
    need(type_of(a) in REALS, "gemm takes reals and integers of 8 bits")
    a = a.T if node("transA", 0) else a
    b = b.T if node("transB", 0) else b
    given = {"a": a, "b": b, "alpha": node("alpha", 1.0)}
    if c is not None:
        given["beta"] = node("beta", 1.0)
        given["c"] = np.array(np.broadcast_to(c, (a.shape[0], b.shape[1])))
    return [node.run("gemm", **given)]


@rule("Gemm")
def gemm_epilogue(node):
    a, b, c = (list(node.inputs) + [None])[:3]
    need(c is not None and node("beta", 1.0) == 1, "an epilogue adds c as it is")
    need(type_of(a) in REALS, "gemm takes reals and integers of 8 bits")
    a = a.T if node("transA", 0) else a
    b = b.T if node("transB", 0) else b
    return [node.run("gemm", a=a, b=b, alpha=node("alpha", 1.0), epilogue=["residual"],
                     residual=np.broadcast_to(c, (a.shape[0], b.shape[1])))]


@rule("Einsum")
def einsum(node):
    """Of one operand a permutation or a sum, of two a batched product."""
    left, _, right = node("equation").decode().replace(" ", "").partition("->")
    need("." not in left and right + left != left, "an ellipsis, or a result that is left open")
    terms = left.split(",")
    need(all(len(set(t)) == len(t) for t in terms), "a diagonal")
    need(type_of(node.inputs[0]) in REALS, "gemm takes reals and integers of 8 bits")
    if len(terms) == 1:
        x, = node.inputs
        gone = [i for i, letter in enumerate(terms[0]) if letter not in right]
        if gone:
            x = node.run("reduce", kind="sum", x=x, axes=gone)
        letters = [letter for letter in terms[0] if letter in right]
        if not letters:
            return [x.reshape(())]
        return [node.run("transform", x=x, perm=[letters.index(letter) for letter in right])]
    need(len(terms) == 2, "three operands")
    (a, b), (ta, tb) = node.inputs, terms
    sizes = {letter: n for t, x in zip(terms, node.inputs) for letter, n in zip(t, x.shape)}
    inner = [s for s in ta if s in tb and s not in right]
    batch = [s for s in right if s in ta and s in tb]
    rows = [s for s in ta if s not in tb]
    cols = [s for s in tb if s not in ta]
    need(all(s in right for s in rows + cols), "a sum over an operand of its own")
    count = lambda letters: math.prod(sizes[s] for s in letters)
    a = a.transpose([ta.index(s) for s in batch + rows + inner]).reshape(count(batch), count(rows), count(inner))
    b = b.transpose([tb.index(s) for s in batch + inner + cols]).reshape(count(batch), count(inner), count(cols))
    c = node.run("gemm", a=a, b=b).reshape([sizes[s] for s in batch + rows + cols] or [1])
    if not right:
        return [c.reshape(())]
    return [node.run("transform", x=c, perm=[(batch + rows + cols).index(s) for s in right])]


# ---- convolutions and windows ----

def paddings(node, sizes, window, stride, dilation):
    """Elements before and after each axis."""
    mode = node("auto_pad", b"NOTSET")
    pads = node("pads", None)
    n = len(sizes)
    if mode in (b"SAME_UPPER", b"SAME_LOWER"):
        total = [max((-(-size // s) - 1) * s + (k - 1) * d + 1 - size, 0)
                 for size, k, s, d in zip(sizes, window, stride, dilation)]
        less, more = [t // 2 for t in total], [t - t // 2 for t in total]
        return (less, more) if mode == b"SAME_UPPER" else (more, less)
    pads = pads or [0] * 2 * n
    return list(pads[:n]), list(pads[n:])


def pad_fields(before, after):
    fields = {}
    if any(before) or any(after):
        fields["pad"] = before
    if before != after:
        fields["pad_extra"] = [b - a for a, b in zip(before, after)]
    return fields


def conv_of(node, x, w, bias):
    n = x.ndim - 2
    stride, dilation = list(node("strides", [1] * n)), list(node("dilations", [1] * n))
    before, after = paddings(node, x.shape[2:], w.shape[2:], stride, dilation)
    fields = pad_fields(before, after)
    if bias is not None:
        fields.update(epilogue=["bias"], bias=bias)
    return node.run("conv", x=x, w=w, stride=stride, dilation=dilation, groups=node("group", 1), **fields)


@rule("Conv")
def conv(node):
    return [conv_of(node, *(list(node.inputs) + [None])[:3])]


@rule("ConvTranspose")
def conv_transpose(node):
    x, w, bias = (list(node.inputs) + [None])[:3]
    n = x.ndim - 2
    stride, dilation = list(node("strides", [1] * n)), list(node("dilations", [1] * n))
    extra = list(node("output_padding", [0] * n))[:n]
    full = [s * (size - 1) + o + (k - 1) * d + 1
            for size, k, s, d, o in zip(x.shape[2:], w.shape[2:], stride, dilation, extra)]
    shape, mode = node("output_shape", None), node("auto_pad", b"NOTSET")
    if shape is None and mode in (b"SAME_UPPER", b"SAME_LOWER"):
        shape = [size * s for size, s in zip(x.shape[2:], stride)]
    if shape is not None:
        total = [f - s for f, s in zip(full, shape)]
        less, more = [t // 2 for t in total], [t - t // 2 for t in total]
        before, after = (less, more) if mode == b"SAME_UPPER" else (more, less)
    else:
        before, after = paddings(node, x.shape[2:], w.shape[2:], stride, dilation)
    fields = pad_fields(before, after)
    if any(extra):
        fields["output_pad"] = extra
    if bias is not None:
        fields.update(epilogue=["bias"], bias=bias)
    return [node.run("conv", transposed=True, x=x, w=w, stride=stride, dilation=dilation, groups=node("group", 1), **fields)]


@rule("CausalConvWithState")
def causal_conv(node):
    x, w, bias, past = (list(node.inputs) + [None, None])[:4]
    size = w.shape[2] - 1
    if past is None:
        past = np.zeros(x.shape[:2] + (size,), x.dtype)
    padded = node.run("concat", x0=past, x1=x, axis=2) if size else x
    fields = {"groups": x.shape[1]}
    if bias is not None:
        fields.update(epilogue=["bias"], bias=bias)
    if node("activation", b"none") in (b"silu", b"swish"):
        fields["epilogue"] = fields.get("epilogue", []) + ["silu"]
    y = node.run("conv", x=padded, w=w, **fields)
    start = padded.shape[2] - size
    state = node.run("slice", x=padded, y=described(type_of(x), x.shape[:2] + (size,)), start=[0, 0, start]) if size else past
    return [y, state]


def windows(node, x):
    """The fields of a pool: its windows, steps and padding."""
    window = list(node("kernel_shape"))
    stride, dilation = (list(node(name, [1] * len(window))) for name in ("strides", "dilations"))
    before, after = paddings(node, x.shape[2:], window, stride, dilation)
    extra = [b - a for a, b in zip(before, after)]
    return dict(window=window, stride=stride, dilation=dilation, pad=before, ceil=bool(node("ceil_mode", 0)),
                **({"pad_extra": extra} if any(extra) else {}))


@rule("AveragePool")
def average_pool(node):
    x, = node.inputs
    return [node.run("pool", mode="avg" if node("count_include_pad", 0) else "avg_valid", x=x, **windows(node, x))]


@rule("MaxPool")
def max_pool(node):
    x, = node.inputs
    need(not node("storage_order", 0) or len(node.outputs) < 2, "positions counted column by column")
    fields = dict(mode="max", x=x, **windows(node, x))
    if len(node.outputs) < 2:
        return [node.run("pool", **fields)]
    y, places = node.run("pool", indices="s32", results=("y", "indices"), **fields)
    plane = math.prod(x.shape[2:])  # ONNX counts through all planes
    first = (np.arange(x.shape[0] * x.shape[1], dtype=np.int32) * plane).reshape(x.shape[:2] + (1,) * (x.ndim - 2))
    return [y, expression(node, "x0+x1", places, first, kind="s64")]


@rule("MaxUnpool")
def max_unpool(node):
    x, places, shape = (list(node.inputs) + [None])[:3]
    window, axes = list(node("kernel_shape")), x.ndim - 2
    stride, pads = list(node("strides", [1] * axes)), list(node("pads", [0] * (2 * axes)))
    # Positions count through all planes, of this size; one that is given has zeros behind them.
    sizes = [(n - 1) * s + w - a - b for n, s, w, a, b in zip(x.shape[2:], stride, window, pads[:axes], pads[axes:])]
    total = math.prod(x.shape[:2]) * math.prod(sizes)
    y = node.run("max_unpool", x=x.reshape(1, 1, -1), indices=places.reshape(1, 1, -1), y=described(type_of(x), [1, 1, total]))
    y = y.reshape(*x.shape[:2], *sizes)
    if shape is None:
        return [y]
    after = [0, 0] + [n - m for n, m in zip(integers(shape)[2:], sizes)]
    return [node.run("pad", x=y, before=[0] * x.ndim, after=after)]


@rule("LpPool")
def lp_pool(node):
    x, = node.inputs
    return [node.run("pool", mode="lp", p=node("p", 2), x=x, **windows(node, x))]


@rule("GlobalAveragePool", "GlobalMaxPool")
def global_pool(node):
    return [node.run("pool", mode="max" if node.op == "GlobalMaxPool" else "avg", x=node.inputs[0])]


@rule("GlobalAveragePool", "GlobalMaxPool")
def global_reduce(node):
    x, = node.inputs
    return [node.run("reduce", kind="max" if node.op == "GlobalMaxPool" else "mean", x=x, axes=list(range(2, x.ndim)),
                     keepdims=True)]


@rule("LRN")
def local_response(node):
    x, = node.inputs
    return [node.run("lrn", x=x, size=node("size"), alpha=node("alpha", 1e-4), beta=node("beta", 0.75), k=node("bias", 1.0))]


# ---- normalisations ----

@rule("BatchNormalization")
def batch_norm(node):
    x, scale, bias, mean, var = node.inputs
    given = dict(kind="batch", x=x, scale=scale, bias=bias, eps=node("epsilon", 1e-5), running_mean=mean, running_var=var)
    if not node("training_mode", 0):
        return [node.run("norm", mode="infer", **given)]
    return node.run("norm", momentum=1 - node("momentum", 0.9), running_biased=True,
                    results=("y", "running_mean", "running_var"), **given)


@rule("InstanceNormalization")
def instance_norm(node):
    x, scale, bias = node.inputs
    return [node.run("norm", kind="instance", x=x, scale=scale, bias=bias, eps=node("epsilon", 1e-5))]


@rule("GroupNormalization")
def group_norm(node):
    x, scale, bias = node.inputs
    return [node.run("norm", kind="group", groups=node("num_groups"), x=x, scale=scale, bias=bias, eps=node("epsilon", 1e-5))]


@rule("LayerNormalization", "RMSNormalization")
def layer_norm(node):
    x, scale, bias = (list(node.inputs) + [None])[:3]
    axes = x.ndim - node("axis", -1) % x.ndim
    set_shape = x.shape[x.ndim - axes:]
    given = dict(x=x, axes=axes, eps=node("epsilon", 1e-5), scale=np.broadcast_to(scale, set_shape))
    if bias is not None:
        given["bias"] = np.broadcast_to(bias, set_shape)
    if node.op == "RMSNormalization":
        return [node.run("norm", kind="rms", **given)]
    if len(node.outputs) == 1:
        return [node.run("norm", **given)]
    y, mean, rstd = node.run("norm", mean="f32", rstd="f32", results=("y", "mean", "rstd"), **given)
    kept = x.shape[:x.ndim - axes] + (1,) * axes
    return [y, mean.reshape(kept), rstd.reshape(kept)]


@rule("MeanVarianceNormalization")
def mean_variance(node):
    x, = node.inputs
    axes = sorted(a % x.ndim for a in node("axes", [0, 2, 3]))
    order = [i for i in range(x.ndim) if i not in axes] + axes
    y = node.run("norm", x=x.transpose(order), axes=len(axes), eps=1e-9)  # of the variance; ONNX: of its root
    return [y.transpose(np.argsort(order))]


@rule("LpNormalization")
def lp_norm(node):
    x, = node.inputs
    length = node.run("reduce", kind=f"norm{node('p', 2)}", x=x, axes=[node("axis", -1)], keepdims=True)
    return [expression(node, "where(x1==0.0,0.0,x0/x1)", x, length)]


@rule("AffineGrid")
def affine_grid(node):
    theta, size = node.inputs
    n, _, *axes = integers(size)
    return [node.run("affine_grid", theta=theta, grid=described(type_of(theta), [n, *axes, len(axes)]),
                     align_corners=bool(node("align_corners", 0)))]


@rule("Col2Im")
def col2im(node):
    x, size, block = node.inputs
    axes = len(block)
    need(1 <= axes <= 3, "more than three axes")
    pads = list(node("pads", [0] * 2 * axes))
    before, behind = pads[:axes], pads[axes:]
    need(all(b >= a for a, b in zip(before, behind)), "padding of more before an axis than behind it")
    channels = x.shape[1] // math.prod(integers(block))
    return [node.run("im2col", pass_="bwd", dy=x, dx=described(type_of(x), [x.shape[0], channels, *integers(size)]),
                     kernel=integers(block), stride=list(node("strides", [1] * axes)), pad=before,
                     pad_extra=[b - a for a, b in zip(before, behind)], dilation=list(node("dilations", [1] * axes)))]


@rule("GridSample")
def grid_sample(node):
    x, grid = node.inputs
    mode = node("mode", b"linear").decode()
    mode = {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode)
    need(mode != "bicubic" or x.ndim == 4, "cubic sampling of more than two axes")
    need(x.ndim in (4, 5), "sampling of one axis or more than three")
    return [node.run("grid_sample", x=x, grid=grid, mode=mode, padding=node("padding_mode", b"zeros").decode(),
                     align_corners=bool(node("align_corners", 0)))]


@rule("RoiAlign")
def roi_align(node):
    x, rois, batch = node.inputs
    sampling = node("sampling_ratio", 0)
    return [node.run("roi_align", x=x, rois=rois, batch=batch, mode=node("mode", b"avg").decode(),
                     size=[node("output_height", 1), node("output_width", 1)], scale=node("spatial_scale", 1.0),
                     aligned=node("coordinate_transformation_mode", b"half_pixel") == b"half_pixel",
                     **({"sampling": sampling} if sampling else {}))]


@rule("Softmax", "LogSoftmax")
def softmax(node):
    return [node.run("softmax", x=node.inputs[0], axis=node("axis", -1), log=node.op == "LogSoftmax")]


@rule("Hardmax")
def hardmax(node):
    x, = node.inputs
    axis = node("axis", -1) % x.ndim
    place = node.run("reduce", kind="argmax", x=x, y=described("s32", result_shape(x, [axis], True)), axes=[axis], keepdims=True)
    return [expression(node, f"where(x0==i{axis},1.0,0.0)", np.broadcast_to(place, x.shape), kind=type_of(x))]


@rule("CumSum", "CumProd")
def scan(node):
    x, axis = node.inputs
    return [node.run("scan", kind="sum" if node.op == "CumSum" else "prod", x=x, y=described(type_of(x), x.shape),
                     axis=scalar(axis), exclusive=bool(node("exclusive", 0)), reverse=bool(node("reverse", 0)))]


# ---- losses ----

def entropy(node, **fields):
    x, labels, weight = (list(node.inputs) + [None])[:3]
    how, ignored = node("reduction", b"mean").decode(), node("ignore_index", None)
    if ignored is not None:
        fields |= {"ignore": True, "ignore_index": ignored}
    if weight is not None:
        fields["weight"] = weight
    loss = node.run("cross_entropy", x=x, labels=labels, loss=described(type_of(x), labels.shape if how == "none" else [1]),
                    reduction=how, **fields)
    return loss if how == "none" else loss.reshape(())


@rule("NegativeLogLikelihoodLoss")
def nll_loss(node):
    return [entropy(node, input="log_probs")]


@rule("SoftmaxCrossEntropyLoss")
def softmax_cross_entropy(node):
    if len(node.outputs) == 1:
        return [entropy(node)]
    return [entropy(node), node.run("softmax", x=node.inputs[0], axis=1, log=True)]


# ---- reductions ----

def axes_of(node, x):
    axes = node("axes", None)
    if len(node.inputs) > 1 and node.inputs[1] is not None:
        axes = integers(node.inputs[1])
    if axes is None or len(axes) == 0:
        return [] if node("noop_with_empty_axes", 0) else list(range(x.ndim))
    return list(axes)


def reduce_of(node, kind, x, front=None, behind=None):
    axes, keep = axes_of(node, node.inputs[0]), bool(node("keepdims", 1))
    if front:
        x = node.convert(expression(node, front, x), type_of(x))
    if axes:
        fields = {} if type_of(x) in REALS else {"y": described(type_of(x), result_shape(x, axes, keep))}
        y = node.run("reduce", kind=kind, x=x, axes=axes, keepdims=keep, **fields)
        if not keep and len(axes) == x.ndim:
            y = y.reshape(())
    else:
        y = node.convert(x, type_of(x))
    return [expression(node, behind, y) if behind else y]


def result_shape(x, axes, keep):
    axes = {a % x.ndim for a in axes}
    return [1 if i in axes else n for i, n in enumerate(x.shape) if keep or i not in axes]


for name, kind, front, behind in (
        ("ReduceSum", "sum", None, None), ("ReduceMean", "mean", None, None), ("ReduceProd", "prod", None, None),
        ("ReduceL1", "norm1", "abs(x0)", None), ("ReduceL2", "norm2", "abs(x0)", None),
        ("ReduceLogSumExp", "logsumexp", None, None), ("ReduceLogSum", "sum", None, "log(x0)"),
        ("ReduceSumSquare", "sum", "square(x0)", None), ("ReduceMax", "max", None, None), ("ReduceMin", "min", None, None)):
    rule(name)(lambda node, kind=kind, front=front, behind=behind: reduce_of(node, kind, node.inputs[0], front, behind))


@rule("ArgMax", "ArgMin")
def arg(node):
    x, = node.inputs
    kind, axis, keep = node.op.lower(), node("axis", 0) % x.ndim, bool(node("keepdims", 1))
    if not node("select_last_index", 0):
        return [node.run("reduce", kind=kind, x=x, axes=[axis], keepdims=keep)]
    place = node.run("reduce", kind=kind, x=np.flip(x, axis), y=described("s32", result_shape(x, [axis], keep)),
                     axes=[axis], keepdims=keep)
    return [expression(node, f"{x.shape[axis] - 1}-x0", place, kind="s64")]


# ---- elements that move ----

def moved(x):
    """16-bit integers and u64, of which no operation is there, move as a type of their size does: copies are bit for bit."""
    views = {"int16": np.float16, "uint16": np.float16, "uint64": np.int64}
    return x.view(views[x.dtype.name]) if x.dtype.name in views else x


def copy(node, x):
    type_of(moved(x))
    result = node.convert(moved(x), type_of(moved(x)))
    return result.view(x.dtype)


@rule("Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "OptionalGetElement")
def reshape(node):
    x = node.inputs[0]
    need(isinstance(x, np.ndarray) and isinstance(node.expected[0], np.ndarray), "sequences and optionals")
    return [copy(node, x.reshape(node.expected[0].shape))]


@rule("Expand")
def expand(node):
    return [copy(node, np.broadcast_to(node.inputs[0], node.expected[0].shape))]


@rule("Transpose")
def transpose(node):
    x, = node.inputs
    return [node.run("transform", x=x, perm=list(node("perm", list(range(x.ndim))[::-1])))]


@rule("DepthToSpace")
def depth_to_space(node):
    x, = node.inputs
    n, c, h, w = x.shape
    b = node("blocksize")
    if node("mode", b"DCR") == b"DCR":
        x, perm = x.reshape(n, b, b, c // b // b, h, w), [0, 3, 4, 1, 5, 2]
    else:
        x, perm = x.reshape(n, c // b // b, b, b, h, w), [0, 1, 4, 2, 5, 3]
    return [node.run("transform", x=x, perm=perm).reshape(n, c // b // b, h * b, w * b)]


@rule("SpaceToDepth")
def space_to_depth(node):
    x, = node.inputs
    n, c, h, w = x.shape
    b = node("blocksize")
    x, perm = x.reshape(n, c, h // b, b, w // b, b), [0, 3, 5, 1, 2, 4]
    if node("mode", b"DCR") == b"CRD":
        perm = [0, 1, 3, 5, 2, 4]
    return [node.run("transform", x=x, perm=perm).reshape(n, c * b * b, h // b, w // b)]


@rule("Gather", "ArrayFeatureExtractor")
def gather(node):
    x, index = node.inputs
    axis = node("axis", 0) if node.op == "Gather" else -1
    y = node.run("gather", x=x, index=np.atleast_1d(index), axis=axis, negative=True)
    return [y.reshape(node.expected[0].shape) if index.ndim == 0 else y]


@rule("GatherElements")
def gather_elements(node):
    return [node.run("gather", mode="elements", x=node.inputs[0], index=node.inputs[1], axis=node("axis", 0), negative=True)]


@rule("GatherND")
def gather_nd(node):
    return [node.run("gather", mode="nd", x=node.inputs[0], index=node.inputs[1], batch_dims=node("batch_dims", 0),
                     negative=True)]


@rule("Scatter", "ScatterElements")
def scatter_elements(node):
    x, index, u = node.inputs
    return [node.run("scatter", x=x, index=index, u=u, axis=node("axis", 0), negative=True,
                     reduction=node("reduction", b"none").decode())]


@rule("ScatterND")
def scatter_nd(node):
    x, index, u = node.inputs
    return [node.run("scatter", mode="nd", x=x, index=index, u=u, negative=True, reduction=node("reduction", b"none").decode())]


@rule("Concat")
def concat(node):
    return [node.run("concat", axis=node("axis"), **{f"x{i}": x for i, x in enumerate(node.inputs)})]


@rule("Split")
def split(node):
    x = node.inputs[0]
    kind = type_of(x)
    parts = {f"x{i}": described(kind, y.shape) for i, y in enumerate(node.expected)}
    return node.run("concat", pass_="bwd", y=x, axis=node("axis", 0), results=tuple(parts), **parts)


@rule("Slice")
def slices(node):
    x, starts, ends, axes, steps = (list(node.inputs) + [None, None])[:5]
    starts, ends = integers(starts), integers(ends)
    axes = integers(axes) if axes is not None else range(len(starts))
    steps = integers(steps) if steps is not None else [1] * len(starts)
    first, step = [0] * x.ndim, [1] * x.ndim
    for axis, start, end, by in zip(axes, starts, ends, steps):
        first[axis], _, step[axis] = slice(start, end, by).indices(x.shape[axis])
        first[axis] = min(first[axis], max(x.shape[axis] - 1, 0))  # of an empty part
    y = described(type_of(x), node.expected[0].shape)
    return [node.run("slice", x=x, y=y, start=first, step=step)]


@rule("Tile")
def tile(node):
    return [node.run("tile", x=node.inputs[0], repeats=integers(node.inputs[1]))]


@rule("Upsample")
def upsample(node):
    """Each element as often as the scale says: a dimension of 1 behind each, repeated."""
    x, scales = node.inputs
    times = [int(s) for s in scales]
    need(node("mode", b"nearest") == b"nearest" and list(scales) == times, "interpolation: no resampling yet")
    x = x.reshape([n for size in x.shape for n in (size, 1)])
    y = node.run("tile", x=x, repeats=[n for t in times for n in (1, t)])
    return [y.reshape([y.shape[i] * y.shape[i + 1] for i in range(0, y.ndim, 2)])]


@rule("Resize")
def resize(node):
    """The axes that are named, or change, behind all others."""
    x, roi, scales, sizes = (list(node.inputs) + [None] * 3)[:4]
    y = node.expected[0].shape
    axes = [a % x.ndim for a in node("axes", range(x.ndim))]
    scales = dict(zip(axes, map(float, scales))) if scales is not None and len(scales) else {}
    policy = node("keep_aspect_ratio_policy", b"stretch")
    if policy != b"stretch":
        ratios = [int(size) / x.shape[a] for a, size in zip(axes, sizes)]
        scales = dict.fromkeys(axes, min(ratios) if policy == b"not_larger" else max(ratios))
    crops = node("coordinate_transformation_mode", b"half_pixel") == b"tf_crop_and_resize"
    ends = np.reshape(roi, (2, -1)).tolist() if crops else []
    parts = {a: (ends[0][i], ends[1][i]) for i, a in enumerate(axes)} if crops else {}
    moved = [a for a in range(x.ndim)
             if x.shape[a] != y[a] or scales.get(a, 1.0) != 1 or parts.get(a, (0, 1)) != (0, 1)] or [x.ndim - 1]
    need(len(moved) <= 3, "more than three axes at once")
    others = [a for a in range(x.ndim) if a not in moved]
    order = np.argsort(others + moved)
    outer, mode = [x.shape[a] for a in others], node("mode", b"nearest").decode()
    fields = {"mode": mode, "coordinates": node("coordinate_transformation_mode", b"half_pixel").decode()}
    if mode == "nearest":
        fields["nearest"] = node("nearest_mode", b"round_prefer_floor").decode()
    else:
        fields.update(border="exclude" if node("exclude_outside", 0) else "edge", antialias=bool(node("antialias", 0)))
    if mode == "cubic":
        fields["cubic"] = node("cubic_coeff_a", -0.75)
    if crops:
        fields["extrapolation"] = node("extrapolation_value", 0.0)
    for a, name in zip(reversed(moved), "whd"):
        if a in scales:
            fields["scale_" + name] = scales[a]
        if a in parts:
            fields["from_" + name], fields["to_" + name] = parts[a]
    x = x.transpose(others + moved).reshape([math.prod(outer), 1] + [x.shape[a] for a in moved])
    result = node.run("resize", x=x, y=described(type_of(x), [len(x), 1] + [y[a] for a in moved]), **fields)
    return [result.reshape(outer + [y[a] for a in moved]).transpose(order)]


@rule("Pad")
def pad(node):
    x, pads, value, axes = (list(node.inputs) + [None, None])[:4]
    pads, n = integers(pads), len(pads) // 2
    axes = [a % x.ndim for a in integers(axes)] if axes is not None else range(x.ndim)
    before, after = [0] * x.ndim, [0] * x.ndim
    for i, axis in enumerate(axes):
        before[axis], after[axis] = pads[i], pads[i + n]
    mode = node("mode", b"constant").decode()
    return [node.run("pad", mode=mode, x=x, before=before, after=after,
                     **({"value": scalar(value)} if mode == "constant" and value is not None else {}))]


@rule("CenterCropPad")
def center_crop_pad(node):
    x, shape = node.inputs
    axes = [a % x.ndim for a in node("axes", list(range(x.ndim)))]
    before, after = [0] * x.ndim, [0] * x.ndim
    for axis, size in zip(axes, integers(shape)):
        missing = size - x.shape[axis]
        before[axis] = missing // 2 if missing > 0 else -(-missing // 2)
        after[axis] = missing - before[axis]
    return [node.run("pad", x=x, before=before, after=after)]


@rule("Trilu")
def trilu(node):
    x, k = (list(node.inputs) + [None])[:2]
    k = 0 if k is None else int(scalar(k))
    text = f"where(i{x.ndim - 1}-i{x.ndim - 2}{'>=' if node('upper', 1) else '<='}{k},x0,0)"
    return [expression(node, text, x)]


@rule("OneHot")
def one_hot(node):
    index, depth, values = node.inputs
    depth, kind = int(scalar(depth)), type_of(values)
    axis = node("axis", -1) % (index.ndim + 1)
    counted = np.arange(depth, dtype=np.int32).reshape([-1 if i == axis else 1 for i in range(index.ndim + 1)])
    index = np.expand_dims(node.convert(index, "s32"), axis)
    off, on = values[:1], values[1:]
    return [expression(node, f"where(where(x0<0,x0+{depth},x0)==x1,x2,x3)", index, counted, on, off)]


@rule("Dropout")
def dropout(node):
    x, ratio, training = (list(node.inputs) + [None, None])[:3]
    active = training is not None and scalar(training) and (0.5 if ratio is None else scalar(ratio))
    need(not active, "random numbers are each library's own")
    return [copy(node, x)] + [None] * (len(node.outputs) - 1)


# ---- attention ----

def heads_of(x, heads):
    """B x S x (H D) as B x H x S x D, without a copy."""
    return x if x.ndim == 4 else x.reshape(x.shape[:2] + (heads, -1)).transpose(0, 2, 1, 3)


@rule("Attention", "FlexAttention")
def attention(node):
    need(node("score_mod", None) is None and node("prob_mod", None) is None, "scores that a graph changes")
    q, k, v, mask, past_k, past_v, lengths = (list(node.inputs) + [None] * 4)[:7]
    flat = q.ndim == 3
    q, k, v = heads_of(q, node("q_num_heads", None)), heads_of(k, node("kv_num_heads", None)), heads_of(v, node("kv_num_heads", None))
    if past_k is not None:
        k = node.run("concat", x0=past_k, x1=k, axis=2)
        v = node.run("concat", x0=past_v, x1=v, axis=2)
    b, h, sq, d = q.shape
    sk = k.shape[2]
    fields = {}
    # ONNX's diagonal begins behind the past, or so that the last query meets the last key of its sequence.
    past = 0 if past_k is None else past_k.shape[2]
    corner = "bottom_right" if lengths is not None or past and past == sk - sq else "top_left"
    if past and corner == "top_left":
        fields["diagonal"] = past
    if node("scale", None) is not None:
        fields["scale"] = node("scale")
    if node("softcap", 0.0):
        fields["soft_cap"] = node("softcap")
    left, right = node("left_window_size", -1), 0 if node("is_causal", 0) else node("right_window_size", -1)
    if right == 0:
        fields["causal"] = corner
    elif right >= 0:  # the key of the query itself is counted here
        fields.update(window_right=right + 1, align=corner)
    if left >= 0:
        fields["window_left"] = left + 1
        if "causal" not in fields:
            fields["align"] = corner
    if lengths is not None:
        fields["seq_k"] = node.convert(lengths, "s32")
    if mask is not None:
        # ONNX: a mask that is shorter than the keys leaves the rest out
        if mask.shape[-1] < sk:
            fill = 0.0 if mask.dtype == bool else -math.inf
            mask = node.run("pad", x=mask, after=[0] * (mask.ndim - 1) + [sk - mask.shape[-1]], value=fill)
        mask = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
        mask = np.broadcast_to(mask, (b, h, sq, sk))
        fields["mask" if mask.dtype == bool else "bias"] = mask
    shown = len(node.outputs) > 3 and node.outputs[3]
    mode = node("qk_matmul_output_mode", 0) if shown else 0
    if mode >= 2:  # what softmax takes, or makes
        fields["weights" if mode == 3 else "scores"] = type_of(q)
        out, seen = node.run("attention", ["out", "weights" if mode == 3 else "scores"], q=q, k=k, v=v, **fields)
    else:
        out = node.run("attention", q=q, k=k, v=v, **fields)
    results = {"Y": out.transpose(0, 2, 1, 3).reshape(b, sq, -1) if flat else out, "present_key": k, "present_value": v}
    if shown:
        results["qk_matmul_output"] = seen if mode >= 2 else products(node, q, k)
    return [results[name] for name in ("Y", "present_key", "present_value", "qk_matmul_output")[:len(node.outputs)]
            if node.outputs[("Y", "present_key", "present_value", "qk_matmul_output").index(name)]]


def products(node, q, k):
    """Scores before mask and window."""
    (b, h, sq, d), sk = q.shape, k.shape[2]
    keys = np.repeat(k, h // k.shape[1], axis=1).reshape(b * h, sk, d)
    found = node.run("gemm", a=q.reshape(b * h, sq, d), b=keys.transpose(0, 2, 1),
                     alpha=node("scale", None) or 1 / math.sqrt(d)).reshape(b, h, sq, sk)
    cap = node("softcap", 0.0)
    return expression(node, f"{number(cap)}*tanh(x0/{number(cap)})", found) if cap else found


@rule("RotaryEmbedding")
def rotary(node):
    x, cos, sin, positions = (list(node.inputs) + [None])[:4]
    flat = x.ndim == 3
    q = heads_of(x, node("num_heads", 0))
    fields = {}
    if positions is None:  # a row of the tables for each batch item and position
        positions = np.arange(q.shape[0] * q.shape[2], dtype=np.int64).reshape(q.shape[0], q.shape[2])
        cos, sin = (t.reshape(-1, t.shape[-1]) for t in (cos, sin))
    if node("rotary_embedding_dim", 0):
        fields["rotary_dim"] = node("rotary_embedding_dim")
    y = node.run("rope", q=q, cos=cos, sin=sin, positions=positions,
                 pairing="interleaved" if node("interleaved", 0) else "half", **fields)
    return [y.transpose(0, 2, 1, 3).reshape(x.shape) if flat else y]


@rule("TensorScatter")
def tensor_scatter(node):
    cache, update, places = (list(node.inputs) + [None])[:3]
    need(node("mode", b"linear") == b"linear", "a cache that is a ring")
    need(node("axis", -2) % cache.ndim == cache.ndim - 2, "another axis than the last but one")
    whole = cache[:, None] if cache.ndim == 3 else cache
    fresh = update[:, None] if update.ndim == 3 else update
    places = np.zeros(cache.shape[0], np.int64) if places is None else places
    y = node.run("kv_append", k=fresh, k_cache=whole, seq_k=node.convert(places, "s32"), results=("k_cache",))[0]
    return [y.reshape(cache.shape)]


# ---- steps of optimisers ----

def stepped(node, states, expressions):
    """expressions of x0 = X, x1 = G, x2 ... = states; the numbers of a step are constants of the expression."""
    rate, time = scalar(node.inputs[0]), int(scalar(node.inputs[1]))
    n = (len(node.inputs) - 2) // (2 + states)
    parts = [node.inputs[2 + i * n:2 + (i + 1) * n] for i in range(2 + states)]
    found = []
    for tensors in zip(*parts):
        text = ";".join(expressions(rate, time))
        names = tuple(f"y{i}" for i in range(text.count(";") + 1))
        found.append(node.run("pointwise", expr=text, results=names, **{f"x{i}": x for i, x in enumerate(tensors)}))
    return [result[i] for i in range(len(found[0])) for result in found]


@rule("Adagrad")
def adagrad(node):
    def texts(rate, time):
        rate = rate / (1 + time * node("decay_factor", 0.0))
        g = f"({number(node('norm_coefficient', 0.0))}*x0+x1)"
        h = f"(x2+{g}*{g})"
        return f"x0-{number(rate)}*{g}/(sqrt({h})+{number(node('epsilon', 0.0))})", h

    return stepped(node, 1, texts)


@rule("Adam")
def adam(node):
    def texts(rate, time):
        a, b = node("alpha", 0.9), node("beta", 0.999)
        g = f"({number(node('norm_coefficient', 0.0))}*x0+x1)"
        v, h = f"({number(a)}*x2+{number(1 - a)}*{g})", f"({number(b)}*x3+{number(1 - b)}*{g}*{g})"
        if time > 0:
            rate = rate * math.sqrt(1 - b**time) / (1 - a**time)
        x = f"(x0-{number(rate)}*{v}/(sqrt({h})+{number(node('epsilon', 0.0))}))"
        return f"{number(1 - node('norm_coefficient_post', 0.0))}*{x}", v, h

    return stepped(node, 2, texts)


@rule("Momentum")
def momentum(node):
    def texts(rate, time):
        b = node("beta") if time > 0 else 1.0
        g = f"({number(node('norm_coefficient'))}*x0+x1)"
        v = f"({number(node('alpha'))}*x2+{number(b)}*{g})"
        step = v if node("mode") == b"standard" else f"({g}+{number(node('alpha'))}*{v})"
        return f"x0-{number(rate)}*{step}", v

    return stepped(node, 1, texts)


@rule("Momentum")
def momentum_sgd(node):
    rate, time, x, g, v = node.inputs[:5]
    need(len(node.inputs) == 5, "of one tensor")
    b = node("beta") if scalar(time) > 0 else 1.0  # a first step here would take the gradient alone, ONNX has v before
    need(node("mode") == b"standard" or b == 1, "Nesterov's step with a share of the gradient")
    return node.run("optim", rule="sgd", p=x, grad=g, m=v, momentum=node("alpha"), dampening=1 - b, nesterov=node("mode") != b"standard",
                    weight_decay=node("norm_coefficient"), lr=scalar(rate), step=2, results=("p", "m"))


# ---- recurrent nets ----

@rule("RNN", "LSTM", "GRU")
def recurrent(node):
    """Gates in the order of mica's rows; a direction backward alone as one forward of flipped steps."""
    x, w, r, b, lengths, hx, cx, peepholes = (list(node.inputs) + [None] * 8)[:8]
    cell = {1: "tanh", 4: "lstm", 3: "gru"}[w.shape[1] // r.shape[2]]
    usual = {"tanh": [b"tanh"], "lstm": [b"sigmoid", b"tanh", b"tanh"], "gru": [b"sigmoid", b"tanh"]}[cell]
    functions = [f.lower() for f in node("activations", usual * w.shape[0])]
    if functions == [b"relu"] * w.shape[0] and cell == "tanh":
        cell, functions = "relu", usual * w.shape[0]
    need(functions == usual * w.shape[0], "other activations than the usual ones")
    need(not node("input_forget", 0), "a forget gate coupled to the input gate")
    need(node("clip") is None, "clipped gates")
    need(node("direction", b"forward") != b"reverse" or lengths is None, "sequences of lengths backward alone")
    order = {"lstm": (0, 2, 3, 1), "gru": (1, 0, 2)}.get(cell, (0,))  # of i o f c and z r h

    def rows(m):  # of a direction, in their order
        parts = np.split(m, len(order))
        return np.concatenate([parts[k] for k in order])

    hidden, both = r.shape[2], w.shape[0] == 2
    flat = [rows(m).reshape(-1) for pair in zip(w, r) for m in pair]
    if b is not None:
        flat += [rows(half) for side in b for half in np.split(side, 2)]
    batched = bool(node("layout", 0))
    if batched:
        x, hx, cx = (None if a is None else np.swapaxes(a, 0, 1) for a in (x, hx, cx))
    back = node("direction", b"forward") == b"reverse"
    fields = dict(cell=cell, x=x[::-1] if back else x, hidden=hidden, w=np.concatenate(flat), bidirectional=both,
                  bias="two" if b is not None else "none", hy=type_of(x))
    fields |= {name: a for name, a in (("hx", hx), ("cx", cx), ("lengths", lengths)) if a is not None}
    if peepholes is not None:  # of i, o and f, as mica's
        fields["peepholes"] = peepholes.reshape(-1, 3, hidden)
    if cell == "gru":
        fields["reset_before"] = not node("linear_before_reset", 0)
    results = ("y", "hy") + (("cy",) if cell == "lstm" else ())
    if cell == "lstm":
        fields["cy"] = type_of(x)
    y, *states = node.run("rnn", results=results, **fields)
    y = y.reshape(y.shape[:2] + (-1, hidden))
    y = (y[::-1] if back else y).transpose((1, 0, 2, 3) if batched else (0, 2, 1, 3))
    states = [np.swapaxes(s, 0, 1) if batched else s for s in states]
    return [a for name, a in zip(node.outputs, [y, *states]) if name]


for reason, names in {
    "makes a tensor of its attributes or of sizes: nothing is computed":
        "Constant ConstantOfShape EyeLike Range Shape Size BlackmanWindow HammingWindow HannWindow MelWeightMatrix",
    "control flow of graphs, for the caller": "If Loop Scan SequenceMap",
    "sequences and optionals, for the caller":
        "SequenceInsert SplitToSequence OptionalHasElement SequenceLength",
    "text": "RegexFullMatch StringConcat StringNormalizer StringSplit TfIdfVectorizer LabelEncoder",
    "files of images, for the caller": "ImageDecoder",
    "the result's size depends on values": "Compress NonZero Unique",
    "random numbers are each library's own": "Bernoulli RandomUniformLike",
    "no sort or top-k yet": "TopK",
    "no linear attention yet": "LinearAttention",
    "no Fourier transforms yet": "DFT STFT",
    "no matrix decompositions yet": "Det",
    "parts of each row by its length are reversed: no operation takes lengths so": "ReverseSequence",
    "trees": "TreeEnsemble",
}.items():
    for name in names.split():
        MISSING[name] = reason
