# SPDX-License-Identifier: Apache-2.0
"""Plans: an operation of given types and sizes, with an engine chosen and ready to run."""

from __future__ import annotations

import threading
from collections import namedtuple
from ctypes import addressof, c_double, c_size_t, c_void_p, sizeof

from . import _arrays
from ._context import as_context, default_context
from ._errors import Invalid, check, fail
from ._library import abi, byref, lib, text_of
from ._tables import options_struct, table_of
from ._tensor import Tensor

_run = lib.mica_plan_run
_WORD = sizeof(c_size_t)
# mica_run as words. These are the only lines that know how it is laid out: ctypes does.
_ARGS = abi.mica_run.args.offset // _WORD
_SCALARS = abi.mica_run.scalars.offset // _WORD
_WORKSPACE = abi.mica_run.workspace.offset // _WORD
_STREAM = abi.mica_run.stream.offset // _WORD
_WORDS = sizeof(abi.mica_run) // _WORD
_NOWHERE = _WORDS  # one more, for pointers that the pass does not use
_SIZE = abi.mica_run.size.offset // _WORD if hasattr(abi.mica_run, "size") else None
_Words = c_size_t * (_WORDS + 1)
_Scalars = c_double * abi.MICA_MAX_SCALARS


class _Run:
    """A mica_run to be filled in."""

    __slots__ = ("words", "address", "scalars")

    def __init__(self, defaults):
        self.words = _Words()
        self.address = addressof(self.words)
        self.scalars = _Scalars(*defaults)
        if _SIZE is not None:
            self.words[_SIZE] = sizeof(abi.mica_run)
        if defaults:
            self.words[_SCALARS] = addressof(self.scalars)


class Arg:
    """An argument of a plan."""

    __slots__ = ("name", "index", "dir", "optional", "alias", "tensor")

    def __init__(self, name, index, info, names):
        self.name = name
        self.index = index
        self.dir = {abi.MICA_UNUSED: "-", abi.MICA_IN: "in", abi.MICA_OUT: "out", abi.MICA_INOUT: "inout"}[info.dir]
        self.optional = info.optional
        self.alias = names[info.alias] if info.alias >= 0 else None
        self.tensor = Tensor.of(info.tensor) if info.dir != abi.MICA_UNUSED else None

    def __repr__(self):
        return f"<{self.name} {self.dir} {self.tensor!r}>"


def _made_interruptible(make):
    """Runs it in a thread and waits: Ctrl-C is answered at once, not after the seconds that a measurement
    takes. What the thread makes then is given back when it is ready; the process waits for it at its end."""
    outcome = []
    ended = threading.Event()

    def work():
        try:
            outcome.append((make(), None))
        except BaseException as error:  # handed over, whatever it is
            outcome.append((None, error))
        ended.set()

    # Thread.join is not for this: interrupted, CPython 3.11 takes the thread for ended (bpo-45274), and the
    # process ends under it.
    threading.Thread(target=work, name="mica measures").start()
    while not ended.wait(0.1):
        pass
    made, error = outcome[0]
    if error is not None:
        raise error
    return made


class _Handle:
    """A plan of the library, given back with this object."""

    __slots__ = ("value",)

    def __init__(self, context, line, options):
        self.value = None
        handle = c_void_p()
        check(lib.mica_plan_from_text(context._open(), line.encode(), byref(options), byref(handle)))
        self.value = handle.value

    def __del__(self, destroy=lib.mica_plan_destroy):
        if self.value:
            destroy(self.value)
            self.value = None


class Plan:
    """An operation of given types and sizes with an engine chosen. Immutable; threads may share it.

    workspace     bytes that a run needs; run() brings them
    args          what it reads and writes, by name, with tensors as inferred"""

    workspace: int
    args: dict[str, Any]

    def __init__(self, table, line, context, options):
        self._table = table
        self._context = context
        if options.mode == abi.MICA_MODE_MEASURE:
            self._owner = _made_interruptible(lambda: _Handle(context, line, options))
        else:
            self._owner = _Handle(context, line, options)
        self._handle = handle = self._owner.value
        names = [a.python for a in table.args[0]]
        info = abi.mica_arg_info()
        self.args = {}
        for index, name in enumerate(names):
            check(lib.mica_plan_arg(handle, index, byref(info)))
            self.args[name] = Arg(name, index, info, names)
        self.workspace = lib.mica_plan_workspace(handle)
        self.packed = {names[i] for i in range(len(names)) if options.packed >> i & 1}
        self._runs = []
        self._outputs = [a for a in self.args.values() if a.dir == "out"]
        if not self._outputs:  # all that it does is done in place
            self._outputs = [a for a in self.args.values() if a.dir == "inout"]
        self._bound = {}

    @property
    def op(self) -> str:
        """The operation's name."""
        return self._table.name

    @property
    def context(self) -> Context:
        """The context that it was made of."""
        return self._context

    @property
    def line(self) -> str:
        """The problem in one line, defaults left out."""
        return text_of(lib.mica_plan_describe, self._handle)

    @property
    def engine(self) -> str:
        """The engine that was chosen."""
        return lib.mica_plan_engine(self._handle).decode()

    @property
    def config(self) -> str:
        """The engine's choice in text; "" where it has none."""
        return lib.mica_plan_config(self._handle).decode()

    @property
    def predicted_ms(self) -> float:
        """What the cost model expects."""
        return lib.mica_plan_predicted(self._handle)

    @property
    def measured_ms(self) -> float:
        """What its record or the measurement that chose it says; 0: none did."""
        return lib.mica_plan_measured(self._handle)

    @property
    def disturbed(self) -> str:
        """Why a measurement that was asked for did not choose it; else ""."""
        return lib.mica_plan_disturbed(self._handle).decode()

    @property
    def pending(self) -> str:
        """Why a prompt plan does not have the engine that was chosen: it is being compiled, or could not be; else
        ""."""
        return lib.mica_plan_pending(self._handle).decode()

    def wait(self) -> None:
        """Waits until nothing is being compiled for a prompt plan; an error where it stays with what stands in."""
        check(lib.mica_plan_await(self._handle))

    @property
    def contract(self) -> dict[str, Any]:
        """How its engine rounds: the numeric contract, and phi."""
        struct, phi = abi.mica_contract(), c_double()
        check(lib.mica_plan_contract(self._handle, byref(struct), byref(phi)))
        return {**{name: getattr(struct, name) for name, *_ in struct._fields_}, "phi": phi.value}

    def explain(self) -> Explanation:
        """Every engine with what keeps it out, and what was chosen; a notebook shows it as tables."""
        from ._explain import Explanation

        return Explanation(self.line, self._context, self)

    def __repr__(self):
        config = f" ({self.config})" if self.config else ""
        return f"<mica.Plan {self.line!r} by {self.engine}{config} on {self._context.name}>"

    # ---- running ----

    def run(self, *arrays: Any, stream: int | None = None, out: Any = None, **named: Any) -> Any:
        """Runs it once, on arrays by place or name, and returns its results as the operator would; those
        that are not given are allocated. plan.run(prepared) runs what prepare() gave."""
        if len(arrays) == 1 and type(arrays[0]) is Prepared:
            return arrays[0]()
        key, pointers, held, values, scalars = [], [], [], {}, {}
        for name, value in self._named(arrays, named, out).items():
            if name in self._table.scalars:
                scalars[name] = value
                continue
            if value is None:
                continue
            k, pointer, kind, array = _arrays.look(value)
            key.append((name, k))
            pointers.append(pointer)
            held.append(array)
            values[name] = (value, kind, array)
        beta = float(scalars.get("beta", 0)) != 0
        key = (tuple(key), beta)
        bound = self._bound.get(key)
        if bound is None:
            bound = Bound(self, values, beta)
            if len(self._bound) >= 64:
                self._bound.clear()
            self._bound[key] = bound
        return bound(pointers, held, [value for value, _, _ in values.values()], scalars, stream)

    def _named(self, arrays, named, out):
        table = self._table
        if len(arrays) > len(table.positional):
            raise TypeError(f"{table.python} has {len(table.positional)} arguments by place, not {len(arrays)}")
        given = dict(zip(table.positional, arrays))
        for name, value in named.items():
            if name in given:
                raise TypeError(f"{name} is given twice")
            if name not in self.args and name not in table.scalars:
                raise table.unknown(name)
            given[name] = value
        if out is None:
            return given
        if "out" in self.args and not isinstance(out, (list, tuple, dict)):
            return {**given, "out": out}  # an argument of that name
        given.update(outputs_by_name(table, self._outputs, out, given))
        return given

    def prepare(self, *arrays: Any, stream: int | None = None, out: Any = None, **named: Any) -> Prepared:
        """A run with all its arrays bound: calling it costs least. The arrays are held; their memory is
        read and written at each call. It owns its workspace: no two threads may run it at once."""
        scalars = {n: v for n, v in named.items() if n in self._table.scalars}
        arrays = self._named(arrays, {n: v for n, v in named.items() if n not in scalars}, out)
        values = {n: (v, *_arrays.look(v)[2:]) for n, v in arrays.items() if v is not None}
        beta = float(scalars.get("beta", 0)) != 0
        return Prepared(Bound(self, values, beta), values, scalars, stream)

    # ---- arguments that stay the same ----

    def pack(self, arg: str, array: Any, stream: int | None = None) -> Array:
        """The argument (one that options={"packed": [arg]} named) in the layout of this plan's engine: a
        mica.Array of bytes, to be given to run() in its place."""
        if arg not in self.packed:
            raise Invalid(f"{arg} is not one that this plan gets packed: options={{'packed': [{arg!r}]}}")
        _, pointer, kind, held = _arrays.look(array)
        _fits(self, self.args[arg], kind.tensor(held), kind.device(held))
        index = self.args[arg].index
        packed = self._context.empty(Tensor("u8", (lib.mica_plan_packed_bytes(self._handle, index),)))
        check(lib.mica_plan_pack(self._handle, index, pointer, packed.pointer, stream))
        return packed


def outputs_by_name(table, outputs, out, given):
    """out= as names: one array is the first result, a list goes by order, a mapping by name."""
    names = [a.python if hasattr(a, "python") else a.name for a in outputs]
    if isinstance(out, dict):
        wrong = [name for name in out if name not in names]
        if wrong:
            raise Invalid(f"out: {wrong[0]} is no result of {table.python} here; {', '.join(names)} are")
        found = dict(out)
    else:
        listed = list(out) if isinstance(out, (list, tuple)) else [out]
        if len(listed) > len(names):
            raise Invalid(f"out: {len(listed)} arrays, {table.python} has {len(names)} results here: {', '.join(names)}")
        found = {name: value for name, value in zip(names, listed) if value is not None}
    for name in found:
        if given.get(name) is not None:
            raise TypeError(f"{name} is given twice, in out too")
    return found


def _fits(plan, arg, tensor, device):
    """Refuses an array that is not the tensor that the plan was made for, or not where it runs."""
    wanted = arg.tensor
    if device != plan._context.name:
        raise Invalid(f"{arg.name} is on {device}, the plan runs on {plan._context.name}")
    if arg.name in plan.packed:
        return
    if tensor.dtype != wanted.dtype or (tensor.shape or (1,)) != (wanted.shape or (1,)):
        raise Invalid(f"{arg.name} is {tensor!r}, the plan is for {wanted!r}")
    for size, step, other in zip(tensor.shape, tensor.strides, wanted.strides):
        if size > 1 and step != other and wanted.count:
            raise Invalid(f"{arg.name} has strides {tensor.strides}, the plan is for {wanted.strides}")


class Bound:
    """A plan with the kinds of its arrays known: what remains to be done are pointers."""

    __slots__ = ("plan", "slots", "outs", "news", "results", "make", "first", "workspace", "defaults", "scalars",
                 "needs_stream", "single")

    def __init__(self, plan, values, beta):
        """values: by name, (what was given, its kind, the array as looked at)."""
        self.plan = plan
        table = plan._table
        self.defaults = table.scalar_defaults
        self.scalars = {name: i for i, name in enumerate(table.scalars)}
        self.slots, self.outs = [], []
        place = {}
        for i, (name, (value, kind, array)) in enumerate(values.items()):
            arg = plan.args[name]
            place[name] = i
            if arg.dir == "-":
                self.slots.append(_NOWHERE)
                continue
            _fits(plan, arg, kind.tensor(array), kind.device(array))
            self.slots.append(_ARGS + arg.index)
            if arg.dir != "in":
                if array is not value and kind is not _arrays._viewed:
                    raise Invalid(f"{name} is written, and what was given is a negated or conjugated view of another")
                self.outs.append((i, kind, name))
        # The array itself is not kept: this object lives as long as calls like it may come.
        first = next(iter(values.values()))[1:] if values else None
        self.first = first[0] if first else None
        self.news, self.results = [], []
        for arg in plan.args.values():
            if arg.dir == "-" or arg.name in place:
                continue
            if arg.dir in ("in", "inout"):
                if not arg.optional and arg.tensor.count:
                    raise Invalid(f"{table.python}: {arg.name} is needed, {arg.tensor!r}"
                                  + (" (it is read and written)" if arg.dir == "inout" else ""))
                continue
            if beta:
                raise Invalid(f"{table.python}: beta is not 0, so that the old {arg.name} is read: give it")
            self.news.append(self._new(arg, first))
        for arg in plan._outputs:
            if arg.name in place:
                self.results.append((True, place[arg.name], None))
            elif arg.dir == "out":
                at = [name for *_, name in self.news].index(arg.name)
                self.results.append((False, at, first[0].finisher(first[1]) if first else None))
        names = [a.name for a in plan._outputs if a.name in place or a.dir == "out"]
        self.single = len(names) == 1
        self.make = namedtuple(f"{table.python}_results", names)._make if len(names) > 1 else None
        self.workspace = None
        self.needs_stream = plan._context.name != "cpu"
        if plan.workspace:
            if self.needs_stream and hasattr(self.first, "workspace"):
                self.workspace = self.first.workspace(plan.workspace + 256, first[1])

    def _new(self, arg, first):
        kind, array = first or (_arrays._own, self.plan._context.empty("u8:1"))
        allocate, pointer = kind.allocator(arg.tensor, array)
        return _ARGS + arg.index, allocate, pointer, arg.name

    def __call__(self, pointers, held, values, scalars, stream):
        plan = self.plan
        for i, kind, name in self.outs:
            why = kind.readonly(held[i])
            if why:
                raise Invalid(f"{plan._table.python}: {name} is written, and is {why}")
        runs = plan._runs
        try:
            run = runs.pop()
        except IndexError:
            run = _Run(self.defaults)
        words = run.words
        for slot, pointer in zip(self.slots, pointers):
            words[slot] = pointer
        made = []
        for slot, allocate, pointer, _ in self.news:
            array = allocate()
            words[slot] = pointer(array)
            made.append(array)
        if scalars:
            for name, value in scalars.items():
                run.scalars[self.scalars[name]] = value
        if self.needs_stream:
            if stream is None and held:
                stream = self.first.stream(held[0])
            words[_STREAM] = stream or 0
        space = None
        if plan.workspace:
            if self.workspace is None:
                words[_WORKSPACE] = plan._context.workspace(plan.workspace, stream)
            else:
                space = self.workspace()
                words[_WORKSPACE] = (space.data_ptr() + 255) // 256 * 256
        status = _run(plan._handle, run.address)
        if status:
            fail(status)
        if scalars:
            run.scalars[:len(self.defaults)] = self.defaults
        if len(self.slots) + len(self.news) == len(plan.args):
            runs.append(run)
        else:  # the next run may have other arguments
            for slot in self.slots:
                words[slot] = 0
            for slot, *_ in self.news:
                words[slot] = 0
            runs.append(run)
        if self.single:
            given, at, finish = self.results[0]
            if given:
                return self.result_of(values[at])
            return made[at] if finish is None else finish(made[at])
        if self.make is None:
            return None
        return self.make(
            [self.result_of(values[at]) if given else made[at] if finish is None else finish(made[at])
             for given, at, finish in self.results])

    @staticmethod
    def result_of(value):
        return value.result if type(value) is _arrays.View else value


class Prepared:
    """A run with its arrays bound; call it, as often as needed. results: what it writes."""

    __slots__ = ("results", "_plan", "_handle", "_address", "_run", "_keep")

    def __init__(self, bound, values, scalars, stream):
        plan = bound.plan
        for i, kind, name in bound.outs:
            why = kind.readonly(list(values.values())[i][2])
            if why:
                raise Invalid(f"{plan._table.python}: {name} is written, and is {why}")
        if any(finish for *_, finish in bound.results):
            raise Invalid("results of this library's arrays cannot be written again and again: give them, as NumPy's")
        run = self._run = _Run(bound.defaults)
        for slot, (_, _, array) in zip(bound.slots, values.values()):
            run.words[slot] = _arrays.look(array)[1]
        made = []
        for slot, allocate, pointer, _ in bound.news:
            made.append(allocate())
            run.words[slot] = pointer(made[-1])
        for name, value in scalars.items():
            run.scalars[bound.scalars[name]] = value
        if stream is None and values and bound.needs_stream:
            stream = bound.first.stream(next(iter(values.values()))[2])
        run.words[_STREAM] = stream or 0
        space = None
        if plan.workspace:
            from ._context import _Memory

            space = _Memory(plan._context, plan.workspace)
            run.words[_WORKSPACE] = space.pointer
        given = [value for value, _, _ in values.values()]
        found = [Bound.result_of(given[at]) if was else made[at] for was, at, _ in bound.results]
        self.results = found[0] if bound.single else bound.make(found) if bound.make else None
        self._plan, self._handle, self._address = plan, plan._handle, run.address
        self._keep = (values, made, space)

    def __call__(self, _run=_run):
        status = _run(self._handle, self._address)
        if status:
            fail(status)
        return self.results

    run = __call__

    def set(self, **scalars: float) -> None:
        """New run-time scalars, as alpha=2, from the next call on."""
        table = self._plan._table
        for name, value in scalars.items():
            if name not in table.scalars:
                raise table.unknown(name)
            self._run.scalars[table.scalars.index(name)] = value


def plan(problem: str, *arrays: Any, context: Context | str | None = None, options: Mapping[str, Any] | None = None,
         **fields: Any) -> Plan:
    """A plan of a problem line, or of an operation's name with its fields:

        mica.plan("conv x=f32:1x3x8x8 w=f32:4x3x3x3 pad=1x1")
        mica.plan("conv", x="f32:1x3x8x8", w=weights, pad=(1, 1), options={"engine": "ref"})

    context: a mica.Context or a device's name; by default that of the arrays, else "auto".
    options: mode ("estimate", "measure", "recorded", "model"), workspace_limit, engine, config,
    nondeterministic, measure_ms, packed (names of arguments), prompt."""
    if not isinstance(problem, str):
        raise TypeError(f"a problem is a line of text, not a {type(problem).__name__}")
    if not problem.split():
        raise Invalid("an empty problem line")
    table = table_of(problem.split()[0])
    if len(problem.split()) > 1:
        if fields or arrays:
            raise TypeError("a problem line has its fields in the line")
        line, device = problem, None
    else:
        if len(arrays) > len(table.positional):
            raise TypeError(f"{table.python} has {len(table.positional)} arguments by place, not {len(arrays)}")
        line, device = describe(table, {**dict(zip(table.positional, arrays)), **fields})
    if context is None:
        context = default_context(device or "auto")
    return Plan(table, line, as_context(context), options_struct(table, options))


def describe(table, given):
    """The problem line of fields some of which are arrays, and the device where these lie."""
    device, owner, described = None, None, {}
    for name, value in given.items():
        if name in table.tensors and value is not None:
            found = _arrays.looker(value)
            if found is not None:
                _, _, kind, array = found(value)
                try:
                    described[name] = kind.tensor(array)
                except Invalid as error:
                    raise Invalid(f"{table.python}: {name} has {error}") from None
                where = kind.device(array)
                if device is not None and where != device:
                    raise Invalid(f"{table.python}: {name} is on {where}, {owner} on {device}")
                device, owner = where, name
                continue
        described[name] = value
    return table.line(described), device
