"""No pass removes, adds or moves a step that enters or leaves a lossy placement."""

from __future__ import annotations

from unittest import mock

import attrs
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spmdir.core.errors import ParseError
from spmdir.core.mesh import Mesh
from spmdir.dialects import ir
from spmdir.dialects.collectives import Collective
from spmdir.passes.fuse_collectives import REWRITES, FuseCollectivesPass
from spmdir.pipeline.pipeline import run_passes
from spmdir.reshard.plan import plan_reshard
from spmdir.rewrites.rewrite_files import read_rewrites
from spmdir.rewrites.rewrite_text import find_lossy_fault, parse_rewrites
from spmdir.rewrites.trace import Attempt
from spmdir.simulator.simulate import run_single, simulate
from tests.placements.lossy_placements import coarse

MESH = Mesh({"a": 2, "b": 3})
CHAINS = (
    ("<a: S(0)>", "<a: CoarseRows>"),
    ("<a: S(0)>", "<a: Coarse>"),
    ("<>", "<a: Coarse>"),
    ("<b: S(0)>", "<b: CoarseRows>"),
    ("<b: S(1), a: S(0)>", "<b: S(1), a: CoarseRows>"),
    ("<a: P(sum)>", "<a: CoarseSum>"),
    ("<a: P(sum), b: S(1)>", "<a: CoarseSum, b: S(1)>"),
)
"""A sharding, and one that a lossy placement has in its place; from P(sum) nothing is lost before it is left."""
LOCAL = ("aten.relu(%{})", "aten.neg(%{})", "aten.add.Tensor(%{}, %x)", "aten.maximum(%{}, %{})", "aten.t(%{})")


def lossy_steps(text: str) -> list[str]:
    """Return the lossy steps of a program, each with the name of its operand, as a sorted list."""
    module = ir.parse(text)
    mesh = ir.mesh(module)
    steps = [(op, op.step(mesh)) for op in ir.main_function(module).body.block.ops if isinstance(op, Collective)]
    return sorted(f"{step.source} -> {step.target}" for _, step in steps if step.is_lossy(mesh))


@st.composite
def lowered(draw: st.DrawFn) -> str:
    """Return a program of reshards to and from lossy placements and local ops, after lower-reshard.

    Partial sums are made by products, so that all sums are of integers.
    """
    lines, value, shape = ["%p0 = aten.mm(%x, %y) : tensor<6x6xf64>"], "p0", "6x6"
    for number in range(draw(st.integers(1, 4))):
        before, lossy = draw(st.sampled_from(CHAINS))
        after = draw(st.sampled_from(("<a: S(0)>", "<>", "<b: S(1)>", "<a: S(1), b: S(0)>", "<a: R, b: S(0)>")))
        if "P(sum)" not in before:
            lines.append(f"%c{number} = spmd.constraint %{value} : tensor<{shape}xf64> {before}")
            value = f"c{number}"
        lines.append(f"%l{number} = spmd.constraint %{value} : tensor<{shape}xf64> {lossy}")
        lines.append(f"%r{number} = spmd.constraint %l{number} : tensor<{shape}xf64> {after}")
        op = draw(st.sampled_from(LOCAL)).replace("{}", f"r{number}")
        lines.append(f"%f{number} = {op} : tensor<{shape}xf64>")
        value = f"f{number}"
        if draw(st.booleans()):
            lines.append(f"%m{number} = aten.mm(%{value}, %y) : tensor<{shape}xf64>")
            value = f"m{number}"
    given = draw(st.sampled_from(("a: S(1)", "a: S(0)", "b: S(1)", "b: S(0), a: S(1)")))
    argument = "tensor<6x6xf64> {spmd.sharding = #spmd.sharding<@mesh, %s>}"
    body = "\n  ".join(lines)
    other = draw(st.sampled_from(("a: S(0)", "b: S(1)", "a: S(1)")))
    text = f"""spmd.mesh @mesh <a = 2, b = 3>
func.func @main(%x: {argument % given}, %y: {argument % other}) -> (tensor<6x6xf64>, tensor<6x6xf64>) {{
  {body}
  return %{value}, %r0 : tensor<6x6xf64>, tensor<6x6xf64>
}}
"""
    return ir.print_ir(run_passes(ir.parse(text), "propagate,insert-reshard,lower-reshard"))


INPUTS = [torch.randint(-2, 3, (6, 6), generator=torch.Generator().manual_seed(seed)).double() for seed in (0, 1)]


@settings(max_examples=60)
@given(lowered())
def test_rewrites_keep_every_lossy_step_and_the_numbers_to_the_bit(text: str) -> None:
    module = run_passes(ir.parse(text), "fuse-collectives,verify-spmd{before-reshard}")
    after = ir.print_ir(module)
    assert lossy_steps(after) == lossy_steps(text)
    for found, right in zip(simulate(module, INPUTS), simulate(ir.parse(text), INPUTS), strict=True):
        assert torch.equal(found, right)


@settings(max_examples=20)
@given(lowered())
def test_the_engine_refuses_by_itself_what_exact_excludes(text: str) -> None:
    """Rewrites state that they need exact steps; where one does not, the engine refuses it."""
    stated = read_rewrites(REWRITES)
    silent = [attrs.evolve(rewrite, is_exact=False) for rewrite in stated]
    found = []
    for rewrites in (stated, silent):
        with mock.patch("spmdir.passes.fuse_collectives.read_rewrites", lambda path, known=rewrites: known):
            found.append(ir.print_ir(run_passes(ir.parse(text), "fuse-collectives")))
    assert found[0] == found[1]


@pytest.mark.parametrize("rewrite", read_rewrites(REWRITES), ids=lambda rewrite: rewrite.name)
def test_each_rewrite_says_exact_if_and_only_if_a_step_of_any_placement_changes_its_place(rewrite) -> None:
    assert (find_lossy_fault(attrs.evolve(rewrite, is_exact=False)) is not None) == rewrite.is_exact


SLICED = """spmd.mesh @mesh <tp = 2>
func.func @main(%x: tensor<8x6xf64> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<8x6xf64> {
  %s = spmd.slice %x on [tp] dim 0 : tensor<8x6xf64> <tp: PLACEMENT>
  %y = spmd.all_gather %s on [tp] dim 0 : tensor<8x6xf64> <>
  return %y : tensor<8x6xf64>
}
"""


@pytest.mark.parametrize(("placement", "applied"), [("S(0)", True), ("CoarseShard(0)", False)])
def test_a_rewrite_without_exact_keeps_lossy_steps_that_name_axes(placement: str, applied: bool) -> None:
    attempts: list[Attempt] = []
    module = ir.parse(SLICED.replace("PLACEMENT", placement))
    FuseCollectivesPass(only=("gather-of-slice",)).run(ir.context(), module, attempts.append)
    (attempt,) = attempts
    assert attempt.applied is applied
    if not applied:
        assert attempt.reasons == (f"does not keep the lossy step all_gather from <tp: {placement}> to <>",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ab: convert (convert x) => x", "convert may be lossy"),
        ("ab: slice (convert x) on A dim d => convert x", "convert may be lossy"),
        ("ab: slice x on A dim d => slice (convert x) on A dim d", "convert may be lossy"),
        ("ab: f(permute x, ...) => permute f(x, ...)", "permute may be lossy"),
    ],
)
def test_a_rewrite_that_changes_a_step_of_any_placement_and_does_not_say_exact_is_an_error(
    text: str, message: str
) -> None:
    with pytest.raises(ParseError, match=message):
        parse_rewrites(text)
    assert parse_rewrites(f"{text} when exact")[0].is_exact


@pytest.mark.parametrize("side", ["slice (convert x) on A dim d", "convert f(x, ...)", "convert (slice x on A dim d)"])
def test_a_rewrite_that_leaves_a_step_of_any_placement_alone_needs_no_exact(side: str) -> None:
    assert not parse_rewrites(f"ab: {side} => {side}")[0].is_exact


PLANS = {
    ("b: S(0)", "a: CoarseRows"): ["S(0) -> CoarseRows on [a]"],
    ("b: S(0)", "a: Coarse"): ["R -> Coarse on [a]"],
    ("b: CoarseRows", "a: CoarseRows"): ["CoarseRows -> R on [b]", "S(0) -> CoarseRows on [a]"],
    ("a: CoarseRows", "a: S(1)"): ["CoarseRows -> S(0) on [a]"],
    ("a: CoarseRows, b: S(1)", "a: CoarseRows"): [],
    ("a: CoarseRows, b: S(0)", "a: CoarseRows"): ["CoarseRows -> S(0) on [a]", "S(0) -> CoarseRows on [a]"],
}
"""Two shardings, and the lossy steps of the plan between them; where a placement blocks its axis there is no other."""


@pytest.mark.parametrize(("ends", "lossy"), PLANS.items())
def test_plans_enter_lossy_placements_where_the_target_has_them_alone(ends: tuple[str, str], lossy: list[str]) -> None:
    steps = [step for step in plan_reshard((6, 6), "f64", *ends, MESH).steps if step.is_lossy(MESH)]
    moved = [(step.placement_changes(MESH), step.axes) for step in steps]
    assert [f"{before} -> {after} on [{', '.join(axes)}]" for ((before, after),), axes in moved] == lossy


def constrained(*lines: str, sharding: str = "tp: S(0)") -> str:
    body = "\n  ".join(lines)
    return f"""spmd.mesh @mesh <tp = 2>
func.func @main(%x: tensor<8x6xf64> {{spmd.sharding = #spmd.sharding<@mesh, {sharding}>}}) -> tensor<8x6xf64> {{
  {body}
  return %y : tensor<8x6xf64>
}}
"""


X = torch.arange(-24.0, 24.0, dtype=torch.float64).reshape(8, 6)


@pytest.mark.parametrize("placement", ["Coarse", "CoarseRows"])
@pytest.mark.parametrize("passes", ["", "canonicalize,", "cse,dce,canonicalize,", "propagate,canonicalize,cse,"])
def test_what_follows_a_constraint_takes_the_value_that_the_placement_gives_back(placement: str, passes: str) -> None:
    text = constrained(
        f"%q = spmd.constraint %x : tensor<8x6xf64> <tp: {placement}>",
        "%y = aten.neg(%q) : tensor<8x6xf64>",
    )
    steps = "propagate,insert-reshard,canonicalize,cse,dce,lower-reshard,canonicalize,cse,dce,fuse-collectives,localize"
    module = run_passes(ir.parse(text), passes + (steps if "propagate" not in passes else steps.partition(",")[2]))
    (found,) = simulate(module, [X])
    assert torch.equal(found, -coarse(X))
    (found,) = simulate(ir.parse(text), [X])
    assert torch.equal(found, -coarse(X))
    assert torch.equal(run_single(ir.parse(text), [X])[0], -X)


def test_a_constraint_that_no_op_follows_is_remarked_on_and_makes_no_step(capsys: pytest.CaptureFixture[str]) -> None:
    text = constrained(
        "%q = spmd.constraint %x : tensor<8x6xf64> <tp: Padded(1)>",
        "%y = aten.cumsum(%q) {dim = 1} : tensor<8x6xf64> <tp: S(0)>",
    )
    module = run_passes(ir.parse(text, "in.mlir"), "propagate,insert-reshard,lower-reshard")
    assert "convert" not in ir.print_ir(module)
    said = capsys.readouterr().err
    assert said.startswith(
        "in.mlir:3:3: remark: the constraint of %x to <tp: Padded(1)> has no effect: its users need other shardings"
    )


def test_an_unused_lossy_constraint_is_remarked_on(capsys: pytest.CaptureFixture[str]) -> None:
    text = constrained(
        "%q = spmd.constraint %x : tensor<8x6xf64> <tp: CoarseRows>",
        "%y = aten.neg(%x) : tensor<8x6xf64>",
    )
    (found,) = simulate(ir.parse(text, "in.mlir"), [X])
    assert torch.equal(found, -X)
    assert "remark: the constraint of %x to <tp: CoarseRows> has no effect: nothing uses it" in capsys.readouterr().err


def test_a_constraint_that_is_followed_has_no_remark(capsys: pytest.CaptureFixture[str]) -> None:
    for placement, followed in (("Padded(1)", " <tp: Padded(1)>"), ("Coarse", "")):
        lines = (f"%q = spmd.constraint %x : tensor<8x6xf64> <tp: {placement}>", "%y = aten.neg(%q) : tensor<8x6xf64>")
        run_passes(ir.parse(constrained(lines[0], lines[1] + followed)))
    assert capsys.readouterr().err == ""
