"""Small random programs as text, with random shardings given for some of their values."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import attrs
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

import tests.hypothesis_profile  # noqa: F401  # loads the profile, for benchmarks
from spmdir.core.mesh import Mesh

Shape = tuple[int, ...]
LENGTHS = (1, 2, 3, 4, 6, 8)


@attrs.frozen
class Program:
    """A program and the shapes of its inputs, which are f64."""

    text: str
    inputs: tuple[Shape, ...]


def _type(shape: Shape) -> str:
    return f"tensor<{'x'.join([*map(str, shape), 'f64'])}>"


def _broadcast(a: Shape, b: Shape) -> Shape:
    return tuple(max(x, y) for x, y in zip(a, b, strict=True))


def _product(a: Shape, b: Shape) -> Shape:
    return (a[0], b[1])


def _flat(a: Shape) -> Shape:
    return (1, math.prod(a))


@attrs.frozen
class Op:
    """`text` with operands and result size filled in; `shape` of the result, where `fits` accepts the operands."""

    text: str
    shape: Callable[..., Shape]
    fits: Callable[..., bool] = lambda *operands: True
    arity: int = 1


def _can_broadcast(a: Shape, b: Shape) -> bool:
    return all(x == y or 1 in (x, y) for x, y in zip(a, b, strict=True))


OPS = (
    *(Op(f"aten.{name}(%{{}}, %{{}})", _broadcast, _can_broadcast, 2) for name in ("add.Tensor", "mul.Tensor")),
    *(Op("aten.mm(%{}, %{})", _product, lambda a, b: a[1] == b[0], 2) for _ in range(4)),
    Op("aten.sub.Tensor(%{}, %{}) {{alpha = 0.5}}", _broadcast, _can_broadcast, 2),
    Op("aten.cat([%{}, %{}]) {{dim = 1}}", lambda a, b: (a[0], a[1] + b[1]), lambda a, b: a[0] == b[0], 2),
    *(Op(f"aten.{name}(%{{}})", lambda a: a) for name in ("relu", "cos", "neg")),
    Op("aten.add.Scalar(%{}) {{other = 1}}", lambda a: a),
    Op("aten.mul.Scalar(%{}) {{other = -0.5}}", lambda a: a),
    Op("aten.t(%{})", lambda a: (a[1], a[0])),
    Op("aten.sum.dim_IntList(%{}) {{dim = [0], keepdim = true}}", lambda a: (1, a[1])),
    Op("aten.mean.dim(%{}) {{dim = [1], keepdim = true}}", lambda a: (a[0], 1)),
    Op("aten.amax(%{}) {{dim = [1], keepdim = true}}", lambda a: (a[0], 1)),
    Op("aten._softmax(%{}) {{dim = 0, half_to_float = false}}", lambda a: a),
    Op("aten.cumsum(%{}) {{dim = 0}}", lambda a: a),
    Op("aten.view(%{}) {{size = {size}}}", _flat),
    Op("aten.expand(%{}) {{size = {size}}}", lambda a: (a[0], 4), lambda a: a[1] == 1),
    Op("aten.slice.Tensor(%{}) {{dim = 0, start = 1}}", lambda a: (a[0] - 1, a[1]), lambda a: a[0] > 1),
)


@st.composite
def sharding(draw: st.DrawFn, mesh: Mesh, rank: int = 2, loose: Sequence[str] = ()) -> str:
    """The text of a sharding; `loose` are the placements it may have beside R and S."""
    axes = draw(st.permutations(mesh.axis_names))
    kinds = ["R", *(f"S({dim})" for dim in range(rank)), *loose]
    return ", ".join(f"{axis}: {draw(st.sampled_from(kinds))}" for axis in axes)


def _attribute(sharding: str | None) -> str:
    return "" if sharding is None else f" {{spmd.sharding = #spmd.sharding<@mesh, {sharding}>}}"


@st.composite
def programs(
    draw: st.DrawFn,
    meshes: Sequence[Mesh],
    ops: int = 8,
    lengths: Sequence[int] = LENGTHS,
    among: Sequence[Op] = OPS,
    given: Sequence[str] = ("?", "?", "P(sum)"),
    asked: Sequence[str] = ("?",),
    constraints: int = 6,
) -> Program:
    """A program of at most `ops` ops on a mesh of `meshes`, on matrices with dimensions of `lengths`.

    Args:
        among: the ops.
        given: what inputs may have beside R and S.
        asked: what constraints and results may have beside R and S.
        constraints: one op of so many is followed by a constraint.
    """
    mesh = draw(st.sampled_from(meshes))
    sizes = st.sampled_from(lengths)
    inputs = draw(st.lists(st.tuples(sizes, sizes), min_size=1, max_size=3))
    shapes: list[Shape] = [*inputs]
    lines: list[str] = []
    for _ in range(draw(st.integers(1, ops))):
        op = draw(st.sampled_from(among))
        numbers = itertools.product(range(len(shapes)), repeat=op.arity)
        choices = [operands for operands in numbers if op.fits(*(shapes[i] for i in operands))]
        if not choices:
            continue
        operands = draw(st.sampled_from(choices))
        shape = op.shape(*(shapes[i] for i in operands))
        call = op.text.format(*(f"v{i}" for i in operands), size=list(shape))
        lines.append(f"%v{len(shapes)} = {call} : {_type(shape)}")
        shapes.append(shape)
        if draw(st.integers(0, constraints - 1)) == 0:
            wanted = draw(sharding(mesh, loose=asked))
            lines.append(f"%v{len(shapes)} = spmd.constraint %v{len(shapes) - 1} : {_type(shape)} <{wanted}>")
            shapes.append(shape)
    outputs = [*draw(st.lists(st.sampled_from(range(len(shapes))), min_size=1, max_size=2)), len(shapes) - 1]
    held = [draw(st.none() | sharding(mesh, loose=given)) for _ in inputs]
    wanted = [draw(st.none() | sharding(mesh, loose=asked)) for _ in outputs]
    head = ", ".join(f"%v{i}: {_type(s)}{_attribute(h)}" for i, (s, h) in enumerate(zip(inputs, held, strict=True)))
    tail = ", ".join(_type(shapes[i]) + _attribute(w) for i, w in zip(outputs, wanted, strict=True))
    end = f"return {', '.join(f'%v{i}' for i in outputs)} : {', '.join(_type(shapes[i]) for i in outputs)}"
    body = "\n  ".join([*lines, end])
    text = f"spmd.mesh @mesh {mesh}\n\nfunc.func @main({head}) -> ({tail}) {{\n  {body}\n}}\n"
    return Program(text, tuple(inputs))


def for_each(run: Callable[[Program], None], drawn: st.SearchStrategy[Program], count: int, first: int = 0) -> None:
    """Call `run` with `count` programs, the same each time.

    Args:
        first: the seed of the random numbers.
    """
    every = settings(max_examples=count, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    seed(first)(every(given(drawn)(run)))()
