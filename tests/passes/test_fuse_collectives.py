"""Rewrites of collectives change how values are held and never what they are, and never send more."""

from __future__ import annotations

import contextlib
import itertools
import re
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from xdsl.dialects.builtin import ModuleOp

from spmdir.analysis.type_check import match
from spmdir.core.errors import ParseError, ShardingError, SpmdirError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding
from spmdir.core.placement.standard import Partial, Shard
from spmdir.core.placement.tensor import TensorMeta
from spmdir.dialects import ir
from spmdir.dialects.aten import op_class
from spmdir.dialects.stage import write_stage
from spmdir.passes.fuse_collectives import REWRITES, FuseCollectivesPass
from spmdir.pipeline.pipeline import run_passes
from spmdir.report.communication import comm_report
from spmdir.report.memory import memory_report
from spmdir.reshard.collectives import PLANNED
from spmdir.reshard.steps import Step, make_step
from spmdir.rewrites.benefit import RewriteCost
from spmdir.rewrites.rewrite_conditions import RewriteCondition
from spmdir.rewrites.rewrite_files import read_rewrites
from spmdir.rewrites.rewrite_text import parse_rewrites
from spmdir.rewrites.terms import Collective, Function, Value
from spmdir.rewrites.trace import Attempt
from spmdir.rules.rule_set import default
from spmdir.simulator.simulate import simulate
from spmdir.tools.golden import read_golden

GOLDEN = Path(__file__).parents[1] / "golden" / "fuse-collectives"
PARTS = [
    (f"{path.stem}-{number}", part)
    for path in sorted(GOLDEN.glob("*.mlir"))
    for number, part in enumerate(read_golden(path.read_text(), str(path)).sources)
]


def inputs_of(module: ModuleOp) -> list[torch.Tensor]:
    """Random global inputs, the same for programs with the same arguments."""
    generator = torch.Generator().manual_seed(0)
    dtypes = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16}
    tensors = []
    for argument in ir.main_function(module).args:
        shape, dtype = argument.type.get_shape(), str(argument.type.element_type)  # type: ignore
        tensors.append(torch.randn(shape, generator=generator, dtype=torch.float64).to(dtypes[dtype]))
    return tensors


def check_sound(text: str, options: str = "") -> bool:
    """Assert that fusing keeps outputs and types and sends no more; whether it changed anything."""
    before, after = ir.parse(text), ir.parse(text)
    for function in (*ir.functions(before), *ir.functions(after)):
        write_stage(function, "lowered")  # so that partial results stay partial in reports
    run_passes(after, f"fuse-collectives{options},verify-spmd{{before-reshard}}")
    ir.parse(ir.print_ir(after))
    old, new = comm_report(before), comm_report(after)
    assert new.wire_bytes <= old.wire_bytes * (1 + 1e-9)
    assert (new.wire_bytes, new.count) <= (old.wire_bytes * (1 + 1e-9), old.count)
    changed = ir.print_ir(before) != ir.print_ir(after)
    if changed:
        inputs = inputs_of(before)
        outputs = zip(simulate(before, inputs), simulate(after, inputs), strict=True)
        for one, other in outputs:
            torch.testing.assert_close(one, other, rtol=2e-2 if one.dtype == torch.bfloat16 else 1e-4, atol=1e-4)
    return changed


@pytest.mark.parametrize("text", [part for _, part in PARTS], ids=[name for name, _ in PARTS])
def test_every_golden_program_computes_the_same_after_all_rewrites(text: str) -> None:
    check_sound(text)


OTHERS = [part for name, part in PARTS if name.startswith("other-collectives")]


@pytest.mark.parametrize("text", OTHERS)
def test_rewrites_of_other_collectives_compute_the_same(text: str) -> None:
    check_sound(text, f"{{rewrites={GOLDEN / 'other-collectives.rewrites'}}}")


def test_every_rewrite_has_a_golden_file_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    for rewrite in read_rewrites(REWRITES):
        parts = [part for name, part in PARTS if name.rpartition("-")[0] == rewrite.name]
        fired = [_fires(part, rewrite.name) for part in parts]
        assert fired[:1] == [True], rewrite.name
        assert fired[-1:] == [False], rewrite.name


def _fires(text: str, name: str) -> bool:
    module = ir.parse(text)
    before = ir.print_ir(module)
    return ir.print_ir(run_passes(module, f"fuse-collectives{{only={name}}}")) != before


@pytest.mark.parametrize("kind", [spec.name for spec in PLANNED if spec.names_axes])
def test_a_second_run_changes_nothing(kind: str) -> None:
    for name, text in PARTS:
        if f"spmd.{kind}" in text:
            once = ir.print_ir(run_passes(ir.parse(text), "fuse-collectives"))
            assert ir.print_ir(run_passes(ir.parse(once), "fuse-collectives")) == once, name


@pytest.mark.parametrize(("memory", "gathers"), [("none", 2), ("auto", 2), ("3MB", 2), ("2MB", 3), ("least", 3)])
def test_a_program_that_would_not_fit_is_not_made(memory: str, gathers: int) -> None:
    text = PARTS[[name for name, _ in PARTS].index("what-fits-the-memory-is-gathered-once-0")][1]
    fused = run_passes(ir.parse(text), f"fuse-collectives{{memory={memory}}}")
    assert ir.print_ir(fused).count("= spmd.all_gather") == gathers
    if gathers == 3:
        assert memory_report(fused).peak_bytes == memory_report(ir.parse(text)).peak_bytes


class Program:
    """A random well-typed program, grown op by op."""

    OPS = (
        ("aten.relu", 1, ()), ("aten.neg", 1, ()), ("aten.exp", 1, ()), ("aten.add.Tensor", 2, (("alpha", 2),)),
        ("aten.mul.Tensor", 2, ()), ("aten.maximum", 2, ()), ("aten.t", 1, ()), ("aten.sum.dim_IntList", 1, None),
    )  # fmt: skip

    def __init__(self, mesh: Mesh):
        self.mesh, self.lines, self.arguments = mesh, [], []
        self.values: list[tuple[str, TensorMeta, Sharding]] = []

    def value(self, meta: TensorMeta, sharding: Sharding) -> str:
        self.values.append((f"v{len(self.values)}", meta, sharding))
        return self.values[-1][0]

    def argument(self, meta: TensorMeta, sharding: Sharding) -> None:
        text = f"{{spmd.sharding = #spmd.sharding<@mesh{', ' if sharding.entries else ''}{sharding}>}}"
        self.arguments.append(f"%{self.value(meta, sharding)}: tensor<{meta}> {text}")

    def steps(self, number: int) -> list[Step]:
        """Return the collectives that are legal on a value."""
        _, meta, held = self.values[number]
        legal = []
        lists = [axes for size in (1, 2) for axes in itertools.permutations(self.mesh.axis_names, size)]
        for kind, axes, dim in itertools.product(
            [spec.name for spec in PLANNED if spec.names_axes], lists, range(meta.rank)
        ):
            op = next((op for axis, op in held.partial if axis in axes), "sum")
            with contextlib.suppress(ShardingError):
                legal.append(
                    make_step(kind, held, self.mesh, meta.shape, axes=axes, dim=dim, to_dim=1 - dim, reduction=op)
                )
        return legal

    def collective(self, number: int, step: Step) -> None:
        name, meta, _ = self.values[number]
        words = {
            "all_to_all": f"from {step.dim} to {step.to_dim}",
            "all_reduce": f"op {step.reduction}",
            "partition": f"op {step.reduction}",
            "reduce_scatter": f"dim {step.dim} op {step.reduction}",
        }.get(step.kind, f"dim {step.dim}")
        tail = f"on [{', '.join(step.axes)}] {words} : tensor<{meta}> <{step.target}>"
        self.lines.append(f"%{self.value(meta, step.target)} = spmd.{step.kind} %{name} {tail}")

    def local(self, op: tuple, numbers: list[int]) -> None:
        name, count, arguments = op
        chosen = [self.values[number] for number in numbers[:count]]
        metas = [meta for _, meta, _ in chosen]
        if len({meta.shape for meta in metas}) > 1 or (
            name in ("aten.t", "aten.sum.dim_IntList") and metas[0].rank != 2
        ):
            return
        given = (("dim", (1,)),) if arguments is None else arguments
        shape = {"aten.t": metas[0].shape[::-1], "aten.sum.dim_IntList": metas[0].shape[:1]}.get(name, metas[0].shape)
        result = TensorMeta(shape, metas[0].dtype)
        held = [sharding for _, _, sharding in chosen]
        sharding = _inferred(name, metas, given, result, held, self.mesh)
        if sharding is None:
            return
        made = self.value(result, sharding)
        words = "".join(f"{key} = {list(v) if isinstance(v, tuple) else v}" for key, v in given)
        names = ", ".join(f"%{value}" for value, _, _ in chosen)
        clause = f" {{{words}}}" if words else ""
        self.lines.append(f"%{made} = {name}({names}){clause} : tensor<{result}> <{sharding}>")

    def text(self, outputs: list[int], copies: int = 1) -> str:
        """Return the program, its ops as often as `copies` on the same arguments."""
        names = [self.values[number] for number in outputs] * copies
        types = ", ".join(f"tensor<{meta}>" for _, meta, _ in names)
        lines = [self._copied(line, copy) for copy in range(copies) for line in self.lines]
        results = [self._copied(f"%v{number}", copy) for copy in range(copies) for number in outputs]
        body = "\n  ".join([*lines, f"return {', '.join(results)} : {types}"])
        return (
            f"spmd.mesh @mesh {self.mesh}\nfunc.func @main({', '.join(self.arguments)}) -> ({types}) {{\n  {body}\n}}\n"
        )

    def _copied(self, line: str, copy: int) -> str:
        def renamed(found: re.Match[str]) -> str:
            return found[0] if not copy or int(found[1]) < len(self.arguments) else f"%w{found[1]}x{copy}"

        return re.sub(r"%v(\d+)", renamed, line)


def _inferred(name, metas, arguments, result, held, mesh) -> Sharding | None:
    call = op_class(name).build_op([], [result], arguments).call()
    call = type(call)(name, tuple(metas), arguments, (result,))
    rule = default().instantiate(call)
    assert rule is not None
    entries = []
    for axis in dict.fromkeys(axis for sharding in held for axis, _ in sharding.entries):
        wanted = tuple(sharding[axis] for sharding in held)
        row = next((row for row in rule.strategies(mesh.sizes[axis]) if row.operands == wanted), None)
        if row is None:
            return None
        entries.append((axis, row.results[0]))
    try:
        sharding = Sharding(entries)
        sharding.check(mesh, result.rank)
        match(rule, held, [sharding], mesh)
    except ShardingError:
        return None
    return sharding


@st.composite
def programs(draw: st.DrawFn, copies: int = 1) -> str:
    sizes = draw(st.sampled_from([(2,), (3,), (2, 2), (3, 2), (2, 3)]))
    mesh = Mesh(dict(zip("ab", sizes, strict=False)))
    program = Program(mesh)
    shape = tuple(draw(st.lists(st.integers(1, 7), min_size=2, max_size=2)))
    placements = [Partial("sum"), Partial("max"), Shard(0), Shard(1), None]
    for _ in range(draw(st.integers(1, 2))):
        chosen = [(axis, draw(st.sampled_from(placements))) for axis in mesh.axis_names]
        sharding = Sharding([(axis, placement) for axis, placement in chosen if placement])
        try:
            sharding.check(mesh, 2)
        except ShardingError:
            sharding = Sharding()
        program.argument(TensorMeta(shape, "f64"), sharding)
    for _ in range(draw(st.integers(2, 9))):
        last = len(program.values) - 1
        if draw(st.integers(0, 2)):
            number = draw(st.sampled_from([last, last, draw(st.integers(0, last))]))
            if steps := program.steps(number):
                program.collective(number, draw(st.sampled_from(steps)))
        else:
            program.local(draw(st.sampled_from(Program.OPS)), [last, draw(st.integers(0, last))])
    last = len(program.values) - 1
    return program.text(sorted({last, draw(st.integers(0, last))}), copies)


@settings(max_examples=60)
@given(programs())
def test_random_programs_compute_the_same_after_all_rewrites(text: str) -> None:
    check_sound(text)


@settings(max_examples=60)
@given(programs(copies=3))
def test_equal_parts_of_a_program_are_rewritten_as_each_is_by_itself(text: str) -> None:
    together, each = ir.parse(text), ir.parse(text)
    FuseCollectivesPass().run(ir.context(), together)
    FuseCollectivesPass().run(ir.context(), each, on_attempt=lambda _: None)  # which looks for every match
    assert ir.print_ir(together) == ir.print_ir(each)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ab: slicee x on A dim d => x", "1:5: error: unknown collective 'slicee'; expected one of slice, partition,"),
        ("ab: slice x on A => x", "1:5: error: slice has the clauses on; expected on, dim"),
        (
            "ab: slice x on A dim d => slice x on A dim e",
            "1:1: error: e is not bound; expected each variable of the right side on the left side too",
        ),
        (
            "ab: slice x on A dim d => slice x on B dim d",
            "1:1: error: B is not bound; expected each variable of the right side on the left side too",
        ),
        ("ab: x => x", "1:1: error: the left side matches every tensor"),
        ("ab: slice f(x, ...) on A dim d => x", "1:1: error: f occurs 1 times on the left and 0 on the right"),
        ("ab: permute x on A => x", "1:5: error: permute has the clauses on; expected none"),
        ("ab: wait x => x", "1:1: error: the operand of wait is not a start"),
        ("ab: slice (all_gather_start x on A dim d) on A dim d => x", "1:1: error: the operand of wait is not a start"),
        ("ab: all_gather_start x on A dim d => x", "1:1: error: the outermost op of only one side is a start"),
        (
            "ab: permute x => exchange (permute x)",
            "1:1: error: the sharding of the result of permute is undefined",
        ),
        ("ab: permute x => x when f is cheap", "1:1: error: 'f is cheap' is a condition on f, but f does not occur"),
        ("ab slice x on A dim d => x", "1:4: error: found 'slice', expected ':'"),
        ("a: slice x on A dim d => x", "1:1: error: found 'a', expected a name of two letters or more"),
        ("ab: all_reduce x on A op sum => x", "1:5: error: 'op sum' has no variable; expected a small letter"),
        (
            "ab: all_reduce x on A op r => x\n" * 2,
            "2:1: error: duplicate rewrite 'ab', first declared at my.rewrites:1:1;",
        ),
        ("ab: x => x\nac: permute x => x\nad: x => x", "3:1: error: the left side matches every tensor"),
        ("ab: slice x on A dim d => x when d = e", "1:36: error: found '=', expected '!='"),
    ],
)
def test_a_wrong_rewrite_is_located_and_says_what_was_expected(text: str, message: str) -> None:
    with pytest.raises(SpmdirError) as error:
        parse_rewrites(text, "my.rewrites")
    assert f"my.rewrites:{message}" in str(error.value)


def test_a_wrong_rewrite_of_the_user_cannot_make_a_wrong_program(tmp_path: Path) -> None:
    file = tmp_path / "my.rewrites"
    file.write_text(
        "drop-reduction: all_reduce x on A op r => x\nwrong-dim: slice x on A dim d => slice f(x, ...) on A dim d"
    )
    with pytest.raises(ParseError, match="f occurs 0 times on the left"):
        run_passes(ir.parse(PARTS[0][1]), f"fuse-collectives{{rewrites={file}}}")
    file.write_text("drop-reduction: all_reduce x on A op r => x\n")
    for _, text in PARTS:
        before = ir.print_ir(run_passes(ir.parse(text), "fuse-collectives{only=exchange-twice}"))
        module = run_passes(ir.parse(text), f"fuse-collectives{{rewrites={file} only=exchange-twice,drop-reduction}}")
        assert ir.print_ir(module) == before


SLICE_OF_F = """spmd.mesh @mesh <tp = 2>
func.func @main(%x: tensor<4xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<4xf32> {
  %f = aten.gelu(%x) : tensor<4xf32> <>
  %y = spmd.slice %f on [tp] dim 0 : tensor<4xf32> <tp: S(0)>
  return %y : tensor<4xf32>
}
"""


def test_axes_may_stand_last_in_f() -> None:
    (rewrite,) = parse_rewrites("ab: broadcast f(x, ...) on A => f(broadcast x on A, ...)")
    assert isinstance(rewrite.right, Function)
    assert rewrite.right.operand == Collective("broadcast", Value(), (("A", False),))


def test_a_collective_that_is_started_over_nothing_needs_no_wait() -> None:
    text = """spmd.mesh @mesh <tp = 2>
func.func @main(%x: tensor<4xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<4xf32> {
  %0 = spmd.broadcast %x on [tp] : tensor<4xf32> <>
  return %0 : tensor<4xf32>
}
"""
    context, module = ir.context(), ir.parse(text)
    context.rewrites += parse_rewrites("ab: broadcast x on A => wait (permute_start x) when exact")
    FuseCollectivesPass(only=("ab",)).run(context, module)
    ir.verify(module)
    assert "spmd.wait" not in ir.print_ir(module)


def test_an_unknown_condition_is_located_and_lists_the_known_ones(tmp_path: Path) -> None:
    file = tmp_path / "my.rewrites"
    file.write_text("\nmine: slice f(x, ...) on A dim d => f(slice x on A dim e, ...) when f is cheep\n")
    with pytest.raises(ParseError) as error:
        run_passes(ir.parse(SLICE_OF_F), f"fuse-collectives{{rewrites={file}}}")
    assert (
        "my.rewrites:2:71: error: unknown condition 'f is cheep'; expected f and one of is cheap, keeps dtype"
        in str(error.value)
    )
    assert "did you mean 'is cheap'?" in str(error.value)


@pytest.mark.parametrize("holds", [True, False])
def test_rewrites_and_conditions_of_plug_ins_are_those_of_the_context(holds: bool) -> None:
    context = ir.context()
    context.conditions["is mine"] = RewriteCondition("is mine", lambda op, rule: op.name == "aten.gelu" and holds)
    mine = "mine: slice f(x, ...) on A dim d => f(slice x on A dim e, ...) when f is mine"
    context.rewrites += parse_rewrites(mine)
    module = ir.parse(SLICE_OF_F)
    attempts: list[Attempt] = []
    FuseCollectivesPass(only=("mine",)).run(context, module, attempts.append)
    assert ("spmd.slice %x" in ir.print_ir(module)) is holds
    (attempt,) = attempts
    assert (attempt.rewrite, attempt.root, attempt.applied) == ("mine", "%y = spmd.slice", holds)
    if holds:
        assert attempt.before is not None and attempt.after is not None
        assert attempt.before[:-1] == RewriteCost(wire_bytes=0, collectives=0, touched_bytes=16, ops=2, seconds=0)[:-1]
        assert attempt.after[:-1] == RewriteCost(wire_bytes=0, collectives=0, touched_bytes=8, ops=2, seconds=0)[:-1]
        assert 0 < attempt.after.seconds < attempt.before.seconds
    else:
        assert attempt.reasons == ("condition 'f is mine' fails for aten.gelu",)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("only=exchange-thrice", "unknown rewrite 'exchange-thrice'; expected one of slice-of-all-reduce,"),
        ("only=exchange-thrice", "did you mean 'exchange-twice'?"),
        ("rewrites=missing.rewrites", "cannot read rewrites from 'missing.rewrites'"),
    ],
)
def test_wrong_options_are_errors(options: str, message: str) -> None:
    with pytest.raises(SpmdirError) as error:
        run_passes(ir.parse(PARTS[0][1]), f"fuse-collectives{{{options}}}")
    assert message in str(error.value)


def test_every_rewrite_is_in_the_documentation() -> None:
    page = (GOLDEN.parents[2] / "docs" / "fuse-collectives.md").read_text()
    for line in REWRITES.read_text().splitlines():
        if line and not line.startswith("#"):
            name, _, equation = line.partition(":")
            assert f"{name}: {equation.strip()}\n" in page


def test_an_op_whose_operands_are_not_decided_is_left_alone() -> None:
    text = """spmd.mesh @mesh <tp = 2>
func.func @main(%y: tensor<4xf32>,
                %x: tensor<4xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) -> tensor<4xf32> {
  %a = spmd.all_reduce %x on [tp] op sum : tensor<4xf32> <>
  %b = aten.add.Tensor(%a, %y) : tensor<4xf32> <>
  %c = spmd.slice %b on [tp] dim 0 : tensor<4xf32> <tp: S(0)>
  return %c : tensor<4xf32>
}
"""
    before = ir.print_ir(ir.parse(text))
    assert ir.print_ir(run_passes(ir.parse(text), "fuse-collectives")) == before


def test_a_rewrite_with_the_name_of_a_packaged_one_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "mine.rewrites"
    file.write_text("gather-of-scatter: broadcast x on A => x\n")
    said = r"duplicate rewrite 'gather-of-scatter', first declared at .*fuse_collectives\.rewrites:"
    with pytest.raises(ParseError, match=said) as error:
        run_passes(ir.parse(PARTS[0][1]), f"fuse-collectives{{rewrites={file}}}")
    assert str(error.value.location) == f"{file}:1:1"


def test_a_reduction_that_is_omitted_matches_no_rewrite_that_names_it() -> None:
    text = """spmd.mesh @mesh <tp = 2>

func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) -> tensor<16x8xf32> {
  %a = spmd.reduce_scatter %x on [tp] dim 0 : tensor<16x8xf32> <tp: S(0)>
  %y = spmd.all_to_all %a on [tp] from 0 to 1 : tensor<16x8xf32> <tp: S(1)>
  return %y : tensor<16x8xf32>
}
"""
    assert ir.print_ir(run_passes(ir.parse(text), "fuse-collectives")) == text
