# SPDX-License-Identifier: Apache-2.0
"""Expressions of the family pointwise as PyTorch's functions: translate("gelu(x0+x1)*x2", names) is a callable that
evaluates them eagerly, equal terms once. Functions that PyTorch has under another name, or as two of its own, stand in
NAMES; formulas without a name there are spelt out from src/ops/pointwise/functions.def."""

import math
import os
import re

import torch
import torch.nn.functional as F

TABLE = os.path.join(os.path.dirname(__file__), "../../src/ops/pointwise/functions.def")
TOKEN = re.compile(r"\s*(?:(\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?)|([A-Za-z_]\w*)|"
                   r"(\|\||&&|==|!=|<=|>=|<<|>>|[-+*/%<>&|^!~(),;]))")
CONSTANTS = {"pi": math.pi, "e": math.e, "inf": math.inf, "nan": math.nan}
TYPES = {"f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "s8": torch.int8,
         "u8": torch.uint8, "s32": torch.int32, "s64": torch.int64, "bool": torch.bool}


def truth(a):
    return a if a.dtype == torch.bool else a != 0


def number(a):
    """What a function of PyTorch's takes as a number alone."""
    if torch.is_tensor(a) and a.dim() == 0 and a.device.type == "cpu":
        return a.item()
    return None


def with_number(call, spelt_out):
    """call where the last argument is a number, else its formula."""
    return lambda a, b: spelt_out(a, b) if number(b) is None else call(a, number(b))


def clamp(a, b, c):
    if number(b) is None or number(c) is None:
        return torch.where(a < b, b, torch.minimum(a, c))  # where b is above c, too
    return torch.clamp(a, number(b), number(c))


def threshold(a, b, c):
    if number(b) is None or number(c) is None:
        return torch.where(a > b, a, c)
    return F.threshold(a, number(b), number(c))


NAMES = {
    "recip": torch.reciprocal, "cube": lambda a: torch.pow(a, 3), "floordiv": torch.floor_divide, "rem": torch.remainder,
    "fdim": lambda a, b: torch.clamp(a - b, min=0), "sqdiff": lambda a, b: torch.square(a - b),
    "fma": lambda a, b, c: torch.addcmul(c, a, b), "min": torch.minimum, "max": torch.maximum,
    "absmax": lambda a, b: torch.where(a.abs() > b.abs(), a, b), "absmin": lambda a, b: torch.where(a.abs() < b.abs(), a, b),
    "clamp": clamp, "clip": lambda a, b, c: torch.minimum(torch.maximum(a, b), c), "identity": lambda a: a,
    "exp10": lambda a: torch.pow(10.0, a),
    "sec": lambda a: torch.reciprocal(torch.cos(a)), "csc": lambda a: torch.reciprocal(torch.sin(a)),
    "cot": lambda a: torch.reciprocal(torch.tan(a)), "sech": lambda a: torch.reciprocal(torch.cosh(a)),
    "csch": lambda a: torch.reciprocal(torch.sinh(a)), "coth": lambda a: torch.reciprocal(torch.tanh(a)),
    "sinpi": lambda a: torch.sin(a * math.pi), "cospi": lambda a: torch.cos(a * math.pi),
    "j0": torch.special.bessel_j0, "j1": torch.special.bessel_j1,
    "hard_tanh": F.hardtanh, "hard_sigmoid": F.hardsigmoid, "hard_swish": F.hardswish,
    "squared_relu": lambda a: torch.square(F.relu(a)), "quick_gelu": lambda a: a * torch.sigmoid(1.702 * a),
    "gelu_tanh": lambda a: F.gelu(a, approximate="tanh"),
    "leaky_relu": with_number(F.leaky_relu, lambda a, b: torch.where(a > 0, a, a * b)),
    "prelu": lambda a, b: torch.where(a > 0, a, a * b),
    "elu": with_number(F.elu, lambda a, b: torch.where(a > 0, a, b * torch.expm1(a))),
    "celu": with_number(F.celu, lambda a, b: torch.where(a > 0, a, b * torch.expm1(a / b))),
    "softplus_beta": with_number(F.softplus, lambda a, b: F.softplus(a * b) / b), "threshold": threshold,
    "hard_shrink": with_number(F.hardshrink, lambda a, b: torch.where(a.abs() <= b, 0, a)),
    "soft_shrink": with_number(F.softshrink, lambda a, b: torch.where(a > b, a - b, torch.where(a < -b, a + b, 0))),
    "where": lambda a, b, c: torch.where(truth(a), b, c), "land": torch.logical_and, "lor": torch.logical_or,
    "lxor": torch.logical_xor, "lnot": torch.logical_not, "nan_to_num": lambda a, b: torch.where(torch.isnan(a), b, a),
    "band": torch.bitwise_and, "bor": torch.bitwise_or, "bxor": torch.bitwise_xor, "bnot": torch.bitwise_not,
    "shl": torch.bitwise_left_shift, "shr": torch.bitwise_right_shift, "swish": lambda a, b: a * torch.sigmoid(a * b),
    # None: there is none, or one for something else by that name.
    "gamma": None, "cbrt": None, "round_away": None, "popcount": None, "glu": lambda a, b: a * torch.sigmoid(b), "kl_div": None, "huber": None,
}
ARITHMETIC = ("+", "-", "*", "/")
BINARY = [{"||": "lor"}, {"&&": "land"}, {"|": "bor"}, {"^": "bxor"}, {"&": "band"}, {"==": "eq", "!=": "ne"},
          {"<": "lt", "<=": "le", ">": "gt", ">=": "ge"}, {"<<": "shl", ">>": "shr"}, {"+": "+", "-": "-"},
          {"*": "*", "/": "/", "%": "rem"}]


def formulas():
    with open(TABLE) as file:
        return {name: (int(arity), text) for name, arity, text in re.findall(
            r'^FORMULA\((\w+), (\d), (.*), "[^"]*"\)$', file.read(), re.MULTILINE)}


class Parser:
    """Trees of tuples: ("number", v), ("name", n), (function or operator, argument, ...)."""

    def __init__(self, text):
        self.tokens, at, text = [], 0, text.strip()
        while at < len(text):
            match = TOKEN.match(text, at)
            if not match:
                raise ValueError(f"{text!r}: column {at + 1}")
            self.tokens.append(match.groups())
            at = match.end()
        self.at = 0

    def sign(self):
        return self.tokens[self.at][2] if self.at < len(self.tokens) else None

    def take(self, sign):
        if self.sign() != sign:
            raise ValueError(f"{sign} is missing at token {self.at + 1}")
        self.at += 1

    def binary(self, level=0):
        if level == len(BINARY):
            return self.unary()
        left = self.binary(level + 1)
        while self.sign() in BINARY[level]:
            name = BINARY[level][self.sign()]
            self.at += 1
            left = (name, left, self.binary(level + 1))
        return left

    def unary(self):
        sign = self.sign()
        if sign in ("-", "!", "~"):
            self.at += 1
            of = self.unary()
            if sign == "-" and of[0] == "number":
                return "number", -of[1]
            return {"-": "neg", "!": "lnot", "~": "bnot"}[sign], of
        if sign == "(":
            self.at += 1
            inside = self.binary()
            self.take(")")
            return inside
        value, name, _ = self.tokens[self.at]
        self.at += 1
        if value is not None:
            return "number", int(value) if value.isdigit() else float(value)
        if self.sign() != "(":
            return ("number", CONSTANTS[name]) if name in CONSTANTS else ("name", name)
        arguments = []
        while self.sign() in ("(", ","):
            self.at += 1
            arguments.append(self.binary())
        self.take(")")
        return name, *arguments

    def all(self):
        found = [self.binary()]
        while self.sign() == ";":
            self.at += 1
            found.append(self.binary())
        if self.at != len(self.tokens):
            raise ValueError(f"token {self.at + 1} is one too many")
        return found


def replace(tree, by):
    if tree[0] == "name":
        return by.get(tree[1], tree)
    return tree if tree[0] == "number" else (tree[0], *(replace(t, by) for t in tree[1:]))


def function(name):
    """PyTorch's function of that name; None: there is none."""
    if name in TYPES:
        return lambda a: a.to(TYPES[name])
    if name in NAMES:
        return NAMES[name]
    for place in (torch, torch.special, F):
        if hasattr(place, name):
            return getattr(place, name)
    return None


def spelt_out(tree, known):
    """Formulas that PyTorch has no function of become what they are short for."""
    if tree[0] in ("number", "name"):
        return tree
    tree = (tree[0], *(spelt_out(t, known) for t in tree[1:]))
    if tree[0] in ARITHMETIC or function(tree[0]):
        return tree
    if tree[0] not in known:
        raise NotImplementedError(f"{tree[0]} is no function of PyTorch's")
    return spelt_out(replace(Parser(known[tree[0]][1]).all()[0], dict(zip("abc", tree[1:]))), known)


def leaves(tree):
    if tree[0] == "name":
        return {tree[1]}
    return set() if tree[0] == "number" else set().union(*map(leaves, tree[1:]))


def steps(trees):
    """[(function, numbers of earlier steps)] in which each different term stands once, and the results' numbers."""
    order, seen = [], {}

    def add(tree):
        if tree not in seen:
            inputs = [add(t) for t in tree[1:]] if tree[0] not in ("number", "name") else tree[1:]
            seen[tree] = len(order)
            order.append((tree[0], *inputs))
        return seen[tree]
    return order, [add(tree) for tree in trees]


def source(order, results):
    """A function's text, as a user would write it, a line for each step, and what it refers to."""
    names = sorted({inputs[0] for kind, *inputs in order if kind == "name"})
    text, scope, operand, argument = [f"def chain({', '.join(names)}):"], {}, [], []
    for at, (kind, *inputs) in enumerate(order):
        if kind == "number":
            scope[f"c{at}"] = torch.tensor(inputs[0], dtype=torch.int64 if isinstance(inputs[0], int) else torch.float64)
            operand.append(f"float('{inputs[0]}')" if not math.isfinite(inputs[0]) else f"({inputs[0]!r})")
            argument.append(f"c{at}")
            continue
        if kind == "name":
            operand.append(inputs[0])
        elif kind in ARITHMETIC:
            text.append(f"    v{at} = {operand[inputs[0]]} {kind} {operand[inputs[1]]}")
            operand.append(f"v{at}")
        else:
            scope[f"f{at}"] = function(kind)
            text.append(f"    v{at} = f{at}({', '.join(argument[i] for i in inputs)})")
            operand.append(f"v{at}")
        argument.append(operand[at])
    text.append(f"    return [{', '.join(argument[i] for i in results)}]")
    return "\n".join(text), scope


def translate(text):
    """The names in the expressions, and a function of them that gives the expressions' values."""
    known = formulas()
    trees = [spelt_out(tree, known) for tree in Parser(text).all()]
    text, scope = source(*steps(trees))
    exec(text, scope)
    return set().union(*map(leaves, trees)), scope["chain"]
