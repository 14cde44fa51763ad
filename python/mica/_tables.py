# SPDX-License-Identifier: Apache-2.0
"""What the library says of its operations: fields, arguments, scalars. Nothing here or elsewhere in the
package names an operation."""

import keyword
import operator
from ctypes import c_char_p, c_double, c_void_p, sizeof

from ._errors import Invalid, check
from ._library import abi, byref, lib, names, text_of
from ._tensor import Tensor


def nearest(name, known):
    import difflib

    found = difflib.get_close_matches(name, known, 1)
    return found[0] if found else None


def python_name(name):
    """Words of the language get an underscore: pass_."""
    return name + "_" if keyword.iskeyword(name) else name


class Field:
    """A field of a descriptor."""

    __slots__ = ("name", "python", "type", "values", "default", "doc")

    def __init__(self, info, default):
        self.name = info.name.decode()
        self.python = python_name(self.name)
        self.type = info.type.decode()
        self.doc = info.doc.decode()
        self.default = default
        self.values = []
        while info.spellings and info.spellings[len(self.values)] is not None:
            self.values.append(info.spellings[len(self.values)].decode())

    def _refuse(self, value, rule):
        raise Invalid(f"{self.name}={value!r}: {rule}")

    def _number(self, value):
        try:
            return repr(float(value)) if self.type == "float" else str(operator.index(value))
        except (TypeError, ValueError, OverflowError):
            self._refuse(value, f"it is a{'n' * (self.type == 'int')} {self.type}")

    def _spelling(self, value):
        if isinstance(value, str) and value in self.values and value:
            return value
        if not isinstance(value, (str, bool)):
            try:
                at = operator.index(value)
                if self.of_numbers:
                    return str(at) if str(at) in self.values else self._refuse(value, f"known are {self.spellings}")
                if 0 <= at < len(self.values) and self.values[at]:
                    return self.values[at]
            except TypeError:
                pass
        self._refuse(value, f"known are {self.spellings}")

    @property
    def spellings(self):
        return ", ".join(v for v in self.values if v)

    @property
    def of_numbers(self):
        """Its values are spelled as numbers, reduce's axes: a number means its spelling, not its place."""
        return self.type == "list" and all(v.lstrip("-").isdigit() for v in self.values if v)

    def text(self, value):
        """A value as a problem line has it."""
        if self.type == "tensor":
            if isinstance(value, str):
                value = Tensor(value)
            if not isinstance(value, Tensor):
                raise Invalid(f"{self.name} is of type {type(value).__name__}; it is an array (of NumPy, PyTorch, ...), or a "
                              "description such as \"f32:2x3\"")
            return value.text(self.name)
        if self.type == "enum":
            return self._spelling(value)
        if self.type == "flag":
            if value not in (True, False):
                self._refuse(value, "it is True or False")
            return str(int(value))
        if self.type in ("int", "float"):
            return self._number(value)
        if self.type == "text":
            if not isinstance(value, str) or not value or value.split() != [value]:
                self._refuse(value, "it is a text without spaces")
            return value
        if isinstance(value, str) or not hasattr(value, "__iter__"):
            example = "('bias', 'relu')" if self.type == "list" else "(1, 1), one number for each axis"
            self._refuse(value, f"it is a list: {example}")
        if self.type == "axes":
            return "x".join(self._axis(v) for v in value)
        return ",".join(self._spelling(v) for v in value)

    def _axis(self, value):
        try:
            return str(operator.index(value))
        except TypeError:
            self._refuse(value, "it is an integer")

    def python_default(self):
        """What a signature shows: the value where it is one, else None."""
        if self.type == "enum" and self.default in self.values:
            return self.default
        if self.type == "flag":
            return False
        if self.type in ("int", "float"):
            try:
                return int(self.default) if self.type == "int" else float(self.default)
            except ValueError:
                pass
        return None

    def annotation(self):
        return {"tensor": "Array | Tensor | str", "enum": "str", "flag": "bool", "int": "int", "float": "float",
                "axes": "Sequence[int]", "list": "Sequence[int]" if self.of_numbers else "Sequence[str]",
                "text": "str"}[self.type]


class Argument:
    """An argument of a run, in one pass."""

    __slots__ = ("index", "name", "python", "dir", "optional", "alias")

    def __init__(self, index, info):
        self.index = index
        self.name = info.name.decode()
        self.python = python_name(self.name)
        self.dir = info.dir
        self.optional = info.optional
        self.alias = info.alias


class Table:
    """All of that of one operation."""

    def __init__(self, name):
        self.name = name
        self.python = python_name(name)
        encoded = name.encode()
        self.doc = lib.mica_op_doc(encoded).decode()
        self.fields = []
        info = abi.mica_field_info()
        while lib.mica_op_field(encoded, len(self.fields), byref(info)) == 0:
            default = text_of(lib.mica_op_default, encoded, len(self.fields))
            self.fields.append(Field(info, default))
        self.field = {f.python: f for f in self.fields}
        self.passes = self.fields[0].values if self.fields and self.fields[0].name == "pass" else [""]
        self.args = [self._arguments(encoded, i) for i in range(len(self.passes))]
        self.arg_index = {a.python: a.index for a in self.args[0]}
        self.scalars, self.scalar_defaults = [], []
        scalar, value = c_char_p(), c_double()
        while lib.mica_op_scalar(encoded, len(self.scalars), byref(scalar), byref(value)) == 0:
            self.scalars.append(scalar.value.decode())
            self.scalar_defaults.append(value.value)
        self.tensors = {f.python for f in self.fields if f.type == "tensor"}
        # By place: what the first pass reads, as far as nothing else comes between; of an operation that begins
        # with its result (random), what comes behind that.
        self.positional = []
        for a in self.args[0]:
            if a.dir in (abi.MICA_IN, abi.MICA_INOUT):
                self.positional.append(a.python)
            elif self.positional:
                break

    @staticmethod
    def _arguments(name, number):
        found = []
        info = abi.mica_arg_info()
        while lib.mica_op_arg(name, len(found), number, byref(info)) == 0:
            found.append(Argument(len(found), info))
        return found

    def pass_number(self, value):
        if value is None or len(self.passes) == 1:
            return 0
        return self.passes.index(self.fields[0].text(value))

    def unknown(self, name):
        known = list(self.field) + self.scalars
        near = nearest(name, known) or nearest(name + "_", known)
        hint = f"; did you mean {near}?" if near else f"; help(mica.{self.python}) lists them"
        return TypeError(f"{self.python}() has no argument {name!r}{hint}")

    def line(self, given):
        """The problem line of these values; those that are None are left out."""
        parts = [self.name]
        for name, value in given.items():
            field = self.field.get(name)
            if field is None:
                raise self.unknown(name)
            if value is None:
                continue
            text = field.text(value)
            if text or field.type not in ("list", "axes"):
                parts.append(f"{field.name}={text}")
        return " ".join(parts)

    # ---- what help() shows ----

    def signature(self):
        from inspect import Parameter, Signature

        parameters = []
        for name in self.positional:
            parameters.append(Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, default=None,
                                        annotation=self.field[name].annotation()))
        for field in self.fields:
            if field.python not in self.positional:
                parameters.append(Parameter(field.python, Parameter.KEYWORD_ONLY, default=field.python_default(),
                                            annotation=field.annotation()))
        for name, value in zip(self.scalars, self.scalar_defaults):
            parameters.append(Parameter(name, Parameter.KEYWORD_ONLY, default=value, annotation="float"))
        for name, annotation in COMMON.items():
            if name not in self.field:
                parameters.append(Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=annotation))
        return Signature(parameters)

    def docstring(self):
        text = [self.doc[:1].upper() + self.doc[1:] + ".", ""]
        width = max(len(f.python) for f in self.fields)
        for f in self.fields:
            values = f" ({', '.join(v for v in f.values if v)})" if f.values else ""
            default = "" if f.default == "needed" else f" Default: {f.default}."
            needed = " Needed." if f.default == "needed" else ""
            text.append(f"{f.python:{width}}  {f.doc}{values}.{needed}{default}")
        marks = {abi.MICA_UNUSED: "-", abi.MICA_IN: "in", abi.MICA_OUT: "out", abi.MICA_INOUT: "in, out"}
        text += ["", "arguments" + (" by pass: " + ", ".join(self.passes) if len(self.passes) > 1 else "")]
        for row in zip(*self.args):
            text.append(f"    {row[0].python:{width}}  {' / '.join(marks[a.dir] for a in row)}")
        for name, value in zip(self.scalars, self.scalar_defaults):
            text.append(f"    {name:{width}}  a number of each run, default {value:g}")
        text += ["", "Returns the results of the pass that are not inputs too: one array, or a named tuple of",
                 "them. Each may be given (out=, or by its name) and is allocated otherwise; a result that is",
                 "only made when asked for is asked for by its type: lse=\"f32\". include/mica/*.h has the rest."]
        return "\n".join(text)


COMMON = {
    "out": "Array | Sequence[Array | None] | Mapping[str, Array]",
    "context": "Context | str",
    "stream": "int",
    "options": "Mapping[str, object]",
}

operations = names(lib.mica_op_name)
_tables = {}


def table_of(op):
    """The table of an operation, read when it is first asked for."""
    found = _tables.get(op)
    if found is None:
        if op not in operations:
            near = nearest(op, operations)
            raise Invalid(f"{op!r} is no operation; "
                          + (f"did you mean {near}?" if near else f"known are {', '.join(operations)}"))
        found = _tables[op] = Table(op)
    return found


def uses_of(word):
    """Where a word that is no operation is one that a field takes: what to write for gelu, or argmax."""
    for op in operations:
        for field in table_of(op).fields:
            if field.type == "enum" and word in field.values and word != field.default:
                yield f'mica.{python_name(op)}(..., {field.python}="{word}")'


def inferred(table, given, directions=(abi.MICA_OUT,)):
    """What the library infers of a description: (argument's name, tensor) for those that the pass writes."""
    problem, info, found = c_void_p(), abi.mica_arg_info(), []
    check(lib.mica_problem_from_text(table.line(given).encode(), byref(problem)))
    try:
        for arg in table.args[0]:
            check(lib.mica_problem_arg(problem, arg.index, byref(info)))
            if info.dir in directions:
                found.append((arg.python, Tensor.of(info.tensor)))
    finally:
        lib.mica_problem_destroy(problem)
    return found


def options_struct(table, options):
    """mica_options of a mapping. packed is a list of arguments' names."""
    struct = abi.mica_options()
    struct.size = sizeof(struct)
    known = [name for name, *_ in abi.mica_options._fields_ if name != "size"]
    for name, value in dict(options or {}).items():
        if name not in known:
            raise TypeError(f"no option {name!r}; known are {', '.join(known)}")
        if value is None:
            continue
        if name == "mode":
            modes = {m[len("MICA_MODE_"):].lower(): v for m, v in vars(abi).items() if m.startswith("MICA_MODE_")}
            if value not in modes:
                raise Invalid(f"mode={value!r}: known are {', '.join(modes)}")
            value = modes[value]
        elif name == "packed":
            bits = 0
            for arg in value:
                if arg not in table.arg_index:
                    raise Invalid(f"packed: {table.name} has no argument {arg!r}")
                bits |= 1 << table.arg_index[arg]
            value = bits
        elif isinstance(value, str):
            value = value.encode()
        try:
            setattr(struct, name, value)
        except TypeError as error:
            raise Invalid(f"{name}={value!r}: {error}") from None
    return struct


def options_key(options):
    if not options:
        return None
    return tuple(sorted((n, tuple(v) if isinstance(v, (list, set)) else v) for n, v in dict(options).items()))
