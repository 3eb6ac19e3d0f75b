"""Random programs in torch, on random meshes with random shardings, against eager on one device."""

from __future__ import annotations

import itertools
import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import torch
import torch.nn.functional as F
from hypothesis import assume
from hypothesis import strategies as st
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

import spmdir
from spmdir.core.errors import SpmdirError
from spmdir.dialects import ir
from spmdir.dialects.values import signature_kind, signature_name
from tests.fuzz.batch import Kind, Wrong
from tests.fuzz.compare import difference
from tests.fuzz.statements import FAMILIES

MESHES = ("dp = 2", "dp = 3", "dp = 2, tp = 2", "dp = 2, tp = 3", "dp = 2, tp = 2, pp = 2")
MESHES = (*MESHES, "dp = 1, tp = 4", "dp = 4, tp = 1", "dp = 1", "dp = 1, tp = 1")
SIZES = (4, 2, 3, 1, 5, 6, 8, 0)
TYPES = ("float64", "float32", "bfloat16", "float16")
NAMES = "abc"
SCALARS = ("2", "0.5", "-1.5", "0", "1", "-3")
STATEMENTS, TRIES = 12, 5
LARGEST = 1e4
"""Values beyond it are not used further: their sums round too much to tell what is wrong."""
_PLACEHOLDER = re.compile(r"\{([a-zA-Z]+)(\d?)([=@]?)\}")
_CLASSES: dict[str, Callable[[Tensor], bool]] = {
    "f": Tensor.is_floating_point,
    "g": lambda t: t.is_floating_point() and t.is_contiguous(),
    "n": lambda t: t.dtype != torch.bool and not t.is_complex(),
    "i": lambda t: t.dtype == torch.int64,
    "b": lambda t: t.dtype == torch.bool,
    "c": Tensor.is_complex,
    "x": lambda t: True,
}


@attrs.frozen
class Input:
    """An argument: seeded random values of a shape and type, and its sharding, which may be left open."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    sharding: str | None

    def value(self, seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed * 31 + ord(self.name))
        dtype = getattr(torch, self.dtype)
        if dtype == torch.bool:
            return torch.rand(self.shape, generator=generator) > 0.5
        if not dtype.is_floating_point and not dtype.is_complex:
            return torch.randint(0, 5, self.shape, generator=generator).to(dtype)
        wide = torch.complex128 if dtype.is_complex else torch.float64
        return torch.randn(self.shape, generator=generator, dtype=wide).to(dtype)


@attrs.frozen
class Program:
    """A case; `scale` is the largest value that it meets on one device."""

    mesh: str
    inputs: tuple[Input, ...]
    source: str
    tracer: str
    out_sharding: str | None
    seed: int
    scale: float

    @property
    def axes(self) -> dict[str, int]:
        return {axis.strip(): int(size) for axis, size in (part.split("=") for part in self.mesh.split(","))}

    def without_axes_of_one_rank(self) -> Program:
        """Return the same program on a mesh without its axes of one rank, unless these are all."""
        axes = {axis: size for axis, size in self.axes.items() if size > 1}
        if not axes or axes == self.axes:
            return self

        def kept(sharding: str | None) -> str | None:
            entries = [] if sharding is None else re.findall(r"(\w+): (.*?)(?=, \w+: |$)", sharding)
            return None if sharding is None else ", ".join(f"{a}: {p}" for a, p in entries if a in axes)

        mesh = ", ".join(f"{axis} = {size}" for axis, size in axes.items())
        inputs = tuple(attrs.evolve(entry, sharding=kept(entry.sharding)) for entry in self.inputs)
        return attrs.evolve(self, mesh=mesh, inputs=inputs, out_sharding=kept(self.out_sharding))

    def function(self) -> Callable[..., list[Tensor]]:
        namespace: dict[str, Any] = {"torch": torch, "F": F, "math": math, "spmdir": spmdir}
        exec(self.source, namespace)
        return namespace["program"]

    def values(self) -> list[Tensor]:
        return [entry.value(self.seed) for entry in self.inputs]

    def __str__(self) -> str:
        lines = [f"mesh {self.mesh}; {self.tracer}; seed {self.seed}; first output {self.out_sharding}"]
        lines += [f"{i.name}: {i.dtype} {list(i.shape)} <{i.sharding}>" for i in self.inputs]
        return "\n".join([*lines, self.source])


def check(program: Program) -> str | None:
    """Partition and simulate the program; raises Wrong where the numbers are not those of eager, or where a mesh axis
    of one rank is why the program is rejected."""
    passes = "propagate,insert-reshard,lower-reshard,fuse-collectives,verify-spmd"
    try:
        compare(program, passes)
    except SpmdirError as error:
        smaller = program.without_axes_of_one_rank()
        if smaller == program:
            raise
        compare(smaller, passes)
        raise Wrong(f"rejected on {program.mesh}, accepted on {smaller.mesh}: {error}") from error
    return None


def compare(program: Program, passes: str, is_read_back: bool = False) -> None:
    """Run passes over the program and simulate it; raises Wrong where the numbers are not those of eager.

    Args:
        is_read_back: whether what the passes leave is printed and parsed before it is simulated.
    """
    mesh = spmdir.Mesh(program.axes)
    function, values = program.function(), program.values()
    shardings = {f"input:{n}": entry.sharding for n, entry in enumerate(program.inputs) if entry.sharding is not None}
    traced = _traced(program.tracer, function, values)
    count = len(eager(program, program.values())[0])
    outputs = [program.out_sharding, *[None] * (count - 1)] if program.out_sharding is not None else None
    checked = program.seed == 0  # before views are folded, for what then rounds otherwise may decide a comparison
    module = spmdir.import_fx(
        traced,
        mesh,
        shardings,
        out_shardings=outputs,
        example_inputs=program.values(),
        fold_views=not checked,
        check=checked,
    )
    # Where latencies cost nothing, ops as small as these are sharded too.
    pipeline = spmdir.Pipeline("fold-views," * checked + passes, topology="flat")
    module = spmdir.run_passes(module, pipeline)
    module = spmdir.parse(spmdir.print_ir(module)) if is_read_back else module
    results = spmdir.simulate(module, program.values(), seed=program.seed, pipeline=pipeline)
    changed = dict(zip(_mutated(module, program), results[count:], strict=True))
    _compare(program, results[:count], changed)


def _compare(program: Program, found: Sequence[Tensor], changed: Mapping[str, Tensor]) -> None:
    """Raise Wrong unless outputs, and by name the new values of inputs that are written, are those of eager."""
    expected, written = eager(program, program.values())
    pairs = [(f"output {i}", *pair) for i, pair in enumerate(zip(found, expected, strict=True))]
    originals = dict(zip((i.name for i in program.inputs), program.values(), strict=True))
    pairs += [(f"written {name}", changed.get(name, originals[name]), value) for name, value in written.items()]

    def again(values: list[Tensor]) -> list[Tensor]:
        outputs, mutated = eager(program, values)
        return [*outputs, *mutated.values()]

    fault = difference(pairs, program.scale, program.source, program.values(), again)
    if fault:
        raise Wrong(fault)


def _mutated(module: Any, program: Program) -> list[str]:
    """Return the names in `program` of the inputs that the module's last results are the new values of."""
    function = ir.main_function(module)
    names = [signature_name(function, "arg_attrs", n) for n in range(len(function.args))]
    place = {name: entry.name for name, entry in zip(names, program.inputs, strict=False)}
    results = range(len(function.function_type.outputs.data))
    mutated = [n for n in results if signature_kind(function, "res_attrs", n) == "mutation"]
    return [place[signature_name(function, "res_attrs", n)] for n in mutated]


def _traced(tracer: str, function: Callable[..., Any], values: Sequence[Tensor]) -> Any:
    try:
        return exported(function, values) if tracer == "export" else make_fx(function)(*values)
    except Exception as error:
        raise SpmdirError(f"torch's {tracer} fails: {type(error).__name__}") from None


def exported(function: Callable[..., Any], values: Sequence[Tensor]) -> Any:
    class Model(torch.nn.Module):
        def forward(self, *inputs: Tensor) -> Any:
            return function(*inputs)

    return torch.export.export(Model(), tuple(values))


def eager(program: Program, values: Sequence[Tensor]) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Return the outputs on one device, and what all inputs are afterwards."""
    torch.manual_seed(program.seed)
    outputs = program.function()(*values)
    return [*outputs], dict(zip((i.name for i in program.inputs), values, strict=True))


@st.composite
def programs(draw: st.DrawFn, families: Sequence[str] = ()) -> Program:
    """Return a program of up to 12 statements of a few families; `families` are always among them."""
    mesh = draw(st.sampled_from(MESHES))
    axes = Program(mesh, (), "", "", None, 0, 1.0).axes
    sizes = draw(st.lists(st.sampled_from(SIZES), min_size=1, max_size=3))
    kinds = draw(st.sampled_from(("float64", "float64", "float64", "float32", "bfloat16", "float16")))
    ranks = st.sampled_from((2, 3, 1, 2, 3, 2, 0))
    shapes = ranks.flatmap(lambda rank: st.tuples(*[st.sampled_from(sizes)] * rank))
    inputs = [Input("a", draw(shapes), kinds, None)]
    for name in NAMES[1 : draw(st.integers(1, len(NAMES)))]:
        dtype = draw(st.sampled_from((kinds, kinds, "int64", "bool", "complex128", "float8_e4m3fn", "float32")))
        inputs.append(Input(name, draw(st.sampled_from([inputs[0].shape]) | shapes), dtype, None))
    inputs = [attrs.evolve(i, sharding=draw(st.none() | shardings(axes, i) | shardings(axes, i))) for i in inputs]
    seed = draw(st.integers(0, 3))
    drawn = st.lists(st.sampled_from(sorted(FAMILIES)), min_size=1, max_size=4, unique=True)
    families = dict.fromkeys((*families, *draw(drawn)))
    gradients = draw(st.sampled_from((False, False, True))) and any(i.dtype in TYPES for i in inputs)
    body = Body({i.name: i.value(seed) for i in inputs}, seed)
    if gradients:
        # Of a leaf, no part may be written.
        for entry in [i for i in inputs if i.dtype in TYPES]:
            body.add(f"{entry.name}_ = {entry.name}.detach().requires_grad_(); {entry.name} = {entry.name}_ * 1")
    templates = st.sampled_from([t for family in families for t in FAMILIES[family]])
    for _ in range(STATEMENTS):
        # 0 is what shrinking tries, so it leaves the statement out.
        for _ in range(draw(st.integers(0, TRIES))):
            line = filled(draw, draw(templates), body.tensors())
            if line and body.add(line[1:] if line.startswith("!") else f"v{body.count} = {line}"):
                break
    assume(body.lines)
    source = finish(draw, body, [i.name for i in inputs if gradients and i.dtype in TYPES])
    tracer = "make_fx" if gradients or draw(st.sampled_from(range(12))) != 7 else "export"
    program = Program(mesh, tuple(inputs), source, tracer, None, seed, body.scale)
    outputs = _runs(program)
    assume(outputs is not None)
    if outputs and outputs[0].dim() and draw(st.booleans()):
        axis = draw(st.sampled_from([*axes]))
        program = attrs.evolve(program, out_sharding=f"{axis}: {draw(st.sampled_from(('S(0)', 'R', 'S(0)')))}")
    return program


def _runs(program: Program) -> list[Tensor] | None:
    """Return what it gives on one device; None where torch itself fails, as autograd does of what has been written
    since."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return eager(program, program.values())[0]
    except Exception:
        return None


class Body:
    """Statements that run on one device, and the values that they have made."""

    def __init__(self, inputs: Mapping[str, Tensor], seed: int):
        self.lines: list[str] = []
        self.count, self.scale = 0, 1.0
        self.names: dict[str, Any] = {"torch": torch, "F": F, "math": math, "spmdir": spmdir, **inputs}
        torch.manual_seed(seed)

    def tensors(self) -> dict[str, Tensor]:
        return {k: v for k, v in self.names.items() if isinstance(v, Tensor) and not k.endswith("_")}

    def add(self, line: str) -> bool:
        """Run `line` and keep it, unless it fails or makes what cannot be compared; what it wrote before stays."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                made = {**self.names}
                exec(line, made)
            values = [v for k, v in made.items() if isinstance(v, Tensor)]
            size = max((_size(v) for v in values), default=0.0)
            usable = size <= LARGEST and all(v.numel() <= 4096 and v.layout == torch.strided for v in values)
        except Exception:
            usable, size = False, 0.0
        if usable:
            self.names, self.count, self.scale = made, self.count + 1, max(self.scale, size)
            self.lines.append(line)
        return usable


def _size(value: Tensor) -> float:
    if not value.numel() or value.dtype == torch.bool:
        return 0.0
    if value.dtype in (torch.int64, torch.int32, torch.uint8):
        return 0.0
    largest = value.detach().to(torch.complex128 if value.is_complex() else torch.float64).abs().max().item()
    return largest if math.isfinite(largest) else math.inf


def filled(draw: st.DrawFn, template: str, tensors: Mapping[str, Tensor]) -> str | None:
    """Return the template with all placeholders drawn; None if there is no operand for one."""
    first: list[Tensor] = []
    same: dict[str, str] = {}

    def operand(kind: str, rank: int, how: str) -> str:
        names = [n for n, t in tensors.items() if _CLASSES[kind](t) and t.dim() >= rank and _fits(t, first, how)]
        if not names:
            raise LookupError
        name = names[-1 - draw(st.integers(0, len(names) - 1))]
        first.append(tensors[name])
        return name

    def text(match: re.Match[str]) -> str:
        kind, rank, how = match[1], int(match[2] or 0), match[3]
        if kind in _CLASSES:
            if how:
                return operand(kind, rank, how)
            if match[0] not in same:
                same[match[0]] = operand(kind, rank, how)
            return same[match[0]]
        of = first[0] if first else next(iter(tensors.values()))
        return str(_argument(draw, kind, of))

    try:
        return _PLACEHOLDER.sub(text, template)
    except LookupError:
        return None


def _fits(tensor: Tensor, first: list[Tensor], how: str) -> bool:
    if not how or not first:
        return True
    if tensor.is_complex() != first[0].is_complex() and how == "@":
        return False
    if how == "@":
        return tensor.dtype == first[0].dtype and tensor.dim() >= 1 and tensor.shape[-2:][0] == first[0].shape[-1]
    sizes = itertools.zip_longest(reversed(tensor.shape), reversed(first[0].shape), fillvalue=1)
    return all(a == b or 1 in (a, b) for a, b in sizes)


def _argument(draw: st.DrawFn, kind: str, of: Tensor) -> Any:
    dims = st.integers(-of.dim(), of.dim() - 1) if of.dim() else st.just(0)
    if kind == "d":
        return draw(dims)
    if kind == "D":
        return sorted(draw(st.sets(st.integers(0, max(of.dim() - 1, 0)), min_size=1))) if of.dim() else []
    if kind == "s":
        return draw(st.sampled_from(SCALARS))
    if kind == "k":
        return draw(st.integers(1, 3))
    if kind == "at":
        return draw(st.sampled_from((0, -1, "1:", "None, 0", "[1, 0]", "..., 1", "torch.tensor([0, 1])")))
    if kind == "type":
        return "torch." + draw(st.sampled_from(TYPES))
    assert kind == "size", kind
    total = of.numel()
    sizes = [[total], [-1, *of.shape[-1:]], [total, 1]]
    sizes += [[n, total // n] for n in (2, 3) if total and total % n == 0]
    return draw(st.sampled_from(sizes))


def finish(draw: st.DrawFn, body: Body, leaves: Sequence[str]) -> str:
    """Return the source of the function: its statements, what it returns, and the gradients of some of it."""
    tensors = body.tensors()
    wanted = [n for n in tensors if n.startswith("v")][-1:] or [*tensors][:1]
    wanted += draw(st.lists(st.sampled_from([*tensors]), max_size=2))
    lines, outputs = list(body.lines), ", ".join(wanted)
    graded = [n for n, t in tensors.items() if t.requires_grad and t.is_floating_point() and n.startswith("v")]
    if leaves and graded:
        loss = " + ".join(f"{name}.double().square().sum()" for name in graded[-2:])
        lines.append(f"grads = torch.autograd.grad({loss}, [{', '.join(f'{n}_' for n in leaves)}], allow_unused=True)")
        outputs += ", *[g for g in grads if g is not None]"
    detached = "[t.detach() for t in outputs]" if leaves else "outputs"
    head = ", ".join(n for n in tensors if len(n) == 1)
    return "\n    ".join([f"def program({head}):", *lines, f"outputs = [{outputs}]", f"return {detached}"])


@st.composite
def shardings(draw: st.DrawFn, axes: Mapping[str, int], of: Input) -> str:
    """Return a sharding that an input can have."""
    number = of.dtype not in ("bool", "float8_e4m3fn")
    real = number and of.dtype != "complex128"
    partial = draw(st.sampled_from((("P(sum)", "P(sum)", "Masked"), *((("P(max)",), ("P(min)",)) if real else ()))))
    texts = []
    for axis in draw(st.permutations([*axes])):
        kinds = ["R", *(f"S({d})" for d in range(len(of.shape)))] * 2
        kinds += partial if number else ()
        for dim, size in enumerate(of.shape):
            cut = draw(st.integers(0, size))
            counts = [cut, size - cut, *[0] * (axes[axis] - 2)] if axes[axis] > 1 else [size]
            kinds += [f"Cyclic({dim}, 2)", f"Strided({dim}, 2)"]
            kinds += [f"Ragged({dim}, {counts})"] if len(axes) == 1 else []
        text = draw(st.sampled_from(kinds))
        texts += [] if text == "R" else [f"{axis}: {text}"]
    return ", ".join(texts)


PROGRAMS = Kind("programs", programs(), check, examples=40, seconds=60, share=4)
