#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Values of the element functions as mpmath 1.3.0 has them, at 60 digits, for tests/unit/test_judges.c:

    tests/judges/functions.py > tests/judges/functions.h

Random arguments from a fixed seed and some edges; each function is written out here again, from its
definition, not from src/ops/pointwise/functions.def."""
import random

import mpmath as mp

if mp.__version__ != "1.3.0":
    raise SystemExit(f"mpmath is {mp.__version__}, the numbers are those of 1.3.0")
mp.mp.dps = 60
one, half = mp.mpf(1), mp.mpf(1) / 2
ndtr = lambda x: mp.erfc(-x / mp.sqrt(2)) / 2
sigmoid = lambda x: 1 / (1 + mp.exp(-x))
softplus = lambda x: mp.log1p(mp.exp(x))
unit = lambda x: min(max(x, mp.mpf(0)), one)

# name: (domain, function); domains are ranges of arguments, a number of them by the functions' arity
ALL, POSITIVE, SMALL, UNIT = (-20, 20), (0.01, 50), (-3, 3), (-0.99, 0.99)
FUNCTIONS = {
    "add": ([ALL, ALL], lambda a, b: a + b), "sub": ([ALL, ALL], lambda a, b: a - b),
    "mul": ([ALL, ALL], lambda a, b: a * b), "div": ([ALL, POSITIVE], lambda a, b: a / b),
    "fma": ([ALL, ALL, ALL], lambda a, b, c: a * b + c), "addcmul": ([ALL, ALL, ALL], lambda a, b, c: a + b * c),
    "cube": ([ALL], lambda a: a**3), "square": ([ALL], lambda a: a * a), "recip": ([POSITIVE], lambda a: 1 / a),
    "sqrt": ([POSITIVE], mp.sqrt), "rsqrt": ([POSITIVE], lambda a: 1 / mp.sqrt(a)),
    "cbrt": ([ALL], lambda a: mp.sign(a) * mp.cbrt(abs(a))),
    "floordiv": ([ALL, POSITIVE], lambda a, b: mp.floor(a / b)),
    "rem": ([ALL, POSITIVE], lambda a, b: a - b * mp.floor(a / b)),
    "fmod": ([ALL, POSITIVE], lambda a, b: mp.sign(a) * (abs(a) - b * mp.floor(abs(a) / b))),
    "lerp": ([ALL, ALL, (0, 1)], lambda a, b, c: a + c * (b - a)),
    "exp": ([ALL], mp.exp), "exp2": ([ALL], lambda a: mp.mpf(2)**a), "exp10": ([ALL], lambda a: mp.mpf(10)**a),
    "expm1": ([SMALL], mp.expm1), "log": ([POSITIVE], mp.log), "log2": ([POSITIVE], lambda a: mp.log(a) / mp.log(2)),
    "log10": ([POSITIVE], mp.log10), "log1p": ([UNIT], mp.log1p), "pow": ([POSITIVE, SMALL], mp.power),
    "xlogy": ([ALL, POSITIVE], lambda a, b: a * mp.log(b)), "xlog1py": ([ALL, UNIT], lambda a, b: a * mp.log1p(b)),
    "entr": ([POSITIVE], lambda a: -a * mp.log(a)),
    "logaddexp": ([ALL, ALL], lambda a, b: mp.log(mp.exp(a) + mp.exp(b))),
    "logaddexp2": ([ALL, ALL], lambda a, b: mp.log(mp.mpf(2)**a + mp.mpf(2)**b) / mp.log(2)),
    "logit": ([(0.01, 0.99)], lambda a: mp.log(a / (1 - a))),
    "sin": ([ALL], mp.sin), "cos": ([ALL], mp.cos), "tan": ([SMALL], mp.tan), "sec": ([SMALL], mp.sec),
    "csc": ([(0.1, 3)], mp.csc), "cot": ([(0.1, 3)], mp.cot), "asin": ([UNIT], mp.asin), "acos": ([UNIT], mp.acos),
    "atan": ([ALL], mp.atan), "atan2": ([ALL, ALL], mp.atan2), "hypot": ([ALL, ALL], mp.hypot),
    "sinh": ([SMALL], mp.sinh), "cosh": ([SMALL], mp.cosh), "tanh": ([SMALL], mp.tanh), "sech": ([SMALL], mp.sech),
    "csch": ([(0.1, 3)], mp.csch), "coth": ([(0.1, 3)], mp.coth), "asinh": ([ALL], mp.asinh),
    "acosh": ([(1.01, 50)], mp.acosh), "atanh": ([UNIT], mp.atanh), "sinpi": ([ALL], mp.sinpi),
    "cospi": ([ALL], mp.cospi), "sinc": ([ALL], mp.sincpi), "erf": ([SMALL], mp.erf), "erfc": ([SMALL], mp.erfc),
    "ndtr": ([(-8, 8)], ndtr), "lgamma": ([(0.1, 40)], lambda a: mp.log(abs(mp.gamma(a)))),
    "gamma": ([(-3.9, 20)], mp.gamma), "digamma": ([(-3.9, 40)], mp.digamma),
    "j0": ([ALL], lambda a: mp.besselj(0, a)), "j1": ([ALL], lambda a: mp.besselj(1, a)),
    "hard_sigmoid": ([ALL], lambda a: unit(a / 6 + half)), "hard_swish": ([ALL], lambda a: a * unit(a / 6 + half)),
    "sigmoid": ([ALL], sigmoid), "logsigmoid": ([ALL], lambda a: mp.log(sigmoid(a))), "softplus": ([ALL], softplus),
    "silu": ([ALL], lambda a: a * sigmoid(a)), "quick_gelu": ([SMALL], lambda a: a * sigmoid(mp.mpf("1.702") * a)),
    "gelu": ([(-8, 8)], lambda a: a * ndtr(a)),
    "gelu_tanh": ([SMALL], lambda a: a / 2 * (1 + mp.tanh(mp.sqrt(2 / mp.pi) * (a + mp.mpf("0.044715") * a**3)))),
    "mish": ([ALL], lambda a: a * mp.tanh(softplus(a))), "softsign": ([ALL], lambda a: a / (1 + abs(a))),
    "selu": ([SMALL], lambda a: mp.mpf("1.0507009873554804934193349852946") *
             (a if a > 0 else mp.mpf("1.6732632423543772848170429916717") * mp.expm1(a))),
    "elu": ([SMALL, SMALL], lambda a, b: a if a > 0 else b * mp.expm1(a)),
    "leaky_relu": ([ALL, UNIT], lambda a, b: a if a > 0 else b * a),
    "squared_relu": ([ALL], lambda a: max(a, mp.mpf(0))**2), "sqdiff": ([ALL, ALL], lambda a, b: (a - b)**2),
    "copysign": ([ALL, ALL], lambda a, b: abs(a) * (1 if b >= 0 else -1)),
    "fdim": ([ALL, ALL], lambda a, b: max(a - b, mp.mpf(0))),
    "frac": ([ALL], lambda a: a - mp.sign(a) * mp.floor(abs(a))), "floor": ([ALL], mp.floor), "ceil": ([ALL], mp.ceil),
    "round": ([ALL], mp.nint), "max": ([ALL, ALL], max), "min": ([ALL, ALL], min),
    "soft_shrink": ([ALL, (0.5, 2)], lambda a, b: a - b if a > b else a + b if a < -b else mp.mpf(0)),
    "identity": ([ALL], lambda a: a),
    "clip": ([ALL, SMALL, SMALL], lambda a, b, c: min(max(a, b), c)),
    "softplus_beta": ([ALL, (0.25, 3)], lambda a, b: mp.log1p(mp.exp(b * a)) / b),
    "hard_tanh": ([SMALL], lambda a: min(max(a, -one), one)), "relu6": ([ALL], lambda a: min(max(a, mp.mpf(0)), 6 * one)),
    "relu": ([ALL], lambda a: max(a, mp.mpf(0))),
}
EDGES = [2.0**-40, -(2.0**-30), 0.5, 1.0, -1.0, 2.5]


def arguments(domains, rng):
    for edge in EDGES:
        if all(low <= edge <= high for low, high in domains[:1]):
            yield [edge] + [rng.uniform(*domain) for domain in domains[1:]]
    for _ in range(10):
        yield [rng.uniform(*domain) for domain in domains]


def main():
    rng = random.Random(41)
    print("/* SPDX-License-Identifier: Apache-2.0")
    print(" * Written by tests/judges/functions.py with mpmath 1.3.0: name, arguments, value. */")
    for name, (domains, function) in FUNCTIONS.items():
        for args in arguments(domains, rng):
            try:
                want = float(function(*(mp.mpf(v) for v in args)))
            except (ValueError, ZeroDivisionError):
                continue
            args = (args + [0.0, 0.0])[:3]
            print("{" + ", ".join([f'"{name}"'] + [float.hex(v) for v in args + [want]]) + "},")


if __name__ == "__main__":
    main()
