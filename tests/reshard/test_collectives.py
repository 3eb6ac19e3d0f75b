"""The table of collectives, and collectives of plug-ins: found by the loader, planned, lowered and simulated."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch

import spmdir
from spmdir.core.errors import ShardingError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import TRAITS
from spmdir.core.placement.sharding import Sharding
from spmdir.dialects import ir
from spmdir.dialects.attributes import print_type
from spmdir.dialects.collectives import collective_class, collective_ops
from spmdir.dialects.spmd import Spmd
from spmdir.plugins import load_plugin
from spmdir.reshard import collectives as table
from spmdir.reshard.collective_spec import DIM, ON, CollectiveSpec
from spmdir.reshard.steps import make_step

SCATTER = CollectiveSpec(
    name="scatter", summary="", clauses=(ON, DIM), before="replicated", after="shard", lower=lambda site, x: x
)


@pytest.fixture(autouse=True)
def own_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "_SPECS", dict(table._SPECS))  # pyright: ignore[reportPrivateUsage]


def test_each_shipped_collective_has_a_spec_a_class_in_the_dialect_and_an_emitter() -> None:
    names = {spec.name for spec in table.SHIPPED}
    starts = {f"{spec.name}_start" for spec in table.SHIPPED if spec.may_be_async}
    assert all(callable(spec.emitter) for spec in table.SHIPPED)
    assert {f"spmd.{name}" for name in names | starts} == {op.name for op in collective_ops(table.SHIPPED)}
    assert set(collective_ops(table.SHIPPED)) <= set(Spmd.operations)
    for spec in table.SHIPPED:
        assert spec.names_axes == (ON in spec.clauses) == (spec.before in TRAITS and spec.after in TRAITS)


PERMUTE, EXCHANGE = (attrs.evolve(table.collective(name), name=f"my_{name}") for name in ("permute", "exchange"))

WRONG = [
    (attrs.evolve(SCATTER, name="slice"), "collective 'slice' is declared by spmdir.reshard.collectives and by mine"),
    (attrs.evolve(SCATTER, name="scatter_start"), "is named 'scatter_start', as the op that starts 'scatter' is"),
    (attrs.evolve(SCATTER, name="my scatter"), "is named 'my scatter'; expected an identifier"),
    (attrs.evolve(SCATTER, before="pending"), "goes from 'pending' to 'shard'; expected two of replicated, shard"),
    (attrs.evolve(SCATTER, clauses=(DIM,)), "from replicated to shard has the clauses DIM; it needs ON, DIM"),
    (attrs.evolve(SCATTER, before="shard"), "from shard to shard has the clauses ON, DIM; it needs ON, FROM, TO"),
    (attrs.evolve(SCATTER, before="partial"), "from partial to shard has the clauses ON, DIM; it needs ON, DIM, OP"),
    (attrs.evolve(SCATTER, clauses=()), "from replicated to shard has the clauses none; it needs ON, DIM"),
    (attrs.evolve(SCATTER, moves="rows"), "moves 'rows'; expected axes, edge, shards, elements"),
    (attrs.evolve(SCATTER, axes=lambda *_: ()), "moves the axes that its text names, and has a function `axes`"),
    (attrs.evolve(PERMUTE, check=None), "moves shards; expected both `check` and `axes`"),
    (attrs.evolve(PERMUTE, axes=None), "moves shards; expected both `check` and `axes`"),
    (attrs.evolve(PERMUTE, moves="elements"), "moves elements, and has no `loads`"),
    (attrs.evolve(EXCHANGE, moves="shards"), "moves shards; only 'elements' and 'axes' have `loads`"),
    (attrs.evolve(PERMUTE, moves="edge"), "moves along an edge, which has the cost; leave `traffic` out"),
    (attrs.evolve(SCATTER, lower=None), "has no `lower`"),
]


@pytest.mark.parametrize(("spec", "message"), WRONG)
def test_a_spec_that_is_not_complete_is_an_error(spec: CollectiveSpec, message: str) -> None:
    with pytest.raises(ShardingError, match=re.escape(message)):
        table.register_collectives([spec], "mine")


def test_a_collective_of_a_plug_in_with_the_name_of_another_op_of_the_dialect_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN_OP.replace('"from_root"', '"reshard"'))
    with pytest.raises(ShardingError, match=r"'reshard' has the name of another op, spmd\.reshard; rename it"):
        load_plugin(str(tmp_path / "mine.py"))


def test_a_file_that_is_run_again_replaces_its_collective_and_another_file_may_not() -> None:
    again = attrs.evolve(SCATTER, summary="again")
    for spec in (SCATTER, SCATTER, again):
        table.register_collectives([spec], "mine")
    assert table.collective("scatter") is again
    with pytest.raises(ShardingError, match="collective 'scatter' is declared by mine and by yours"):
        table.register_collectives([SCATTER], "yours")


CHEAP = """
from spmdir.reshard.collective_spec import ON, OP, CollectiveSpec, Traffic, ring

CHEAP = CollectiveSpec(
    name="cheap_all_reduce",
    summary="",
    clauses=(ON, OP),
    before="partial",
    after="replicated",
    traffic=Traffic(wire=lambda sizes: sizes.source / 100, crossing=ring, passes=1),
    is_planned=True,
    lower=lambda site, x: x,
)
"""

PARTIAL = """
spmd.mesh @mesh <a = 8>
func.func @f(%x: tensor<64xf32> {spmd.sharding = #spmd.sharding<@mesh, a: P(sum)>})
    -> (tensor<64xf32> {spmd.sharding = #spmd.sharding<@mesh>}) {
  return %x : tensor<64xf32>
}
"""


def test_the_planner_chooses_a_collective_of_a_plug_in_in_the_pipelines_that_have_it(tmp_path: Path) -> None:
    path = tmp_path / "cheap.py"
    path.write_text(CHEAP)
    passes, mesh = "propagate,insert-reshard,lower-reshard", Mesh({"a": 8})
    own = spmdir.Pipeline(passes, plugins=[path])
    for pipeline, kind in ((own, "cheap_all_reduce"), (spmdir.Pipeline(passes), "all_reduce")):
        assert f"spmd.{kind} %x on [a] op sum" in ir.print_ir(spmdir.run_passes(ir.parse(PARTIAL), pipeline))
        plan = spmdir.plan_reshard((64,), "f32", "a: P", "", mesh, collectives=pipeline.collectives)
        assert str(plan) == f"{kind} on [a] op sum"
    assert str(spmdir.plan_reshard((64,), "f32", "a: P", "", mesh)) == "all_reduce on [a] op sum"


def test_what_is_known_of_a_collective_is_forgotten_when_its_file_is_run_again(tmp_path: Path) -> None:
    path, mesh = tmp_path / "cheap.py", Mesh({"a": 8})
    bytes_sent = []
    for divisor in (100, 50):
        path.write_text(CHEAP.replace("100", str(divisor)))
        collectives = spmdir.Pipeline("", plugins=[path]).collectives
        bytes_sent.append(spmdir.plan_reshard((64,), "f32", "a: P", "", mesh, collectives=collectives).wire_bytes)
    assert bytes_sent == [2.56, 5.12]


def test_steps_of_one_name_are_different_if_their_collectives_are() -> None:
    steps = []
    for summary in ("once", "again"):
        table.register_collectives([attrs.evolve(SCATTER, summary=summary)], "mine")
        steps.append(make_step("scatter", Sharding(()), Mesh({"a": 8}), (64,), axes=("a",), dim=0))
    assert steps[0] != steps[1]
    assert [step.spec.summary for step in steps] == ["once", "again"]


PROGRAM = """
spmd.mesh @mesh <dp = 2, tp = 3>
func.func @f(%x: tensor<7x4xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<7x4xf32> {
  %0 = spmd.all_gather %x on [tp] dim 0 : tensor<7x4xf32> <>
  return %0 : tensor<7x4xf32>
}
"""


def test_an_op_is_built_with_the_sharding_that_follows_and_tells_its_arguments() -> None:
    module = ir.parse(PROGRAM)
    gather: Any = next(op for op in module.walk() if isinstance(op, collective_class("all_gather")))
    assert (gather.axes, gather.dim, gather.to_dim, gather.reduction) == (("tp",), 0, None, None)
    made = collective_class("all_gather").build(gather.operands[0], axes=("tp",), dim=0)
    assert (str(made.target), made.argument, made.IS_START) == ("", {"axes": ("tp",), "dim": 0}, False)
    started = collective_class("all_gather", starts=True).build(gather.operands[0], axes=("tp",), dim=0)
    assert (str(started.target), started.argument, started.IS_START) == ("", {"axes": ("tp",), "dim": 0}, True)
    assert print_type(started.results[0].type) == "!spmd.pending<tensor<7x4xf32>>"
    scattered = collective_class("slice").build(gather.results[0], axes=("tp", "dp"), dim=1)
    assert str(scattered.target) == "tp: S(1), dp: S(1)"
    reduced = collective_class("partition").build(gather.results[0], axes=("tp",), reduction="sum")
    assert (str(reduced.target), reduced.reduction) == ("tp: P(sum)", "sum")
    with pytest.raises(ShardingError, match="needs these to be the innermost axes"):
        collective_class("all_gather").build(gather.operands[0], axes=("dp",), dim=0)


OWN_OP = """
from spmdir.reshard.collective_spec import ON, Clause, CollectiveSpec, Traffic, anywhere


def lower(site, x):
    import torch

    if not hasattr(torch.ops.tests_collectives, "from_root"):
        library = torch.library.Library("tests_collectives", "FRAGMENT")
        library.define("from_root(Tensor x, int root, str group) -> Tensor")
        globals()["library"] = library
    return site.send(
        torch.ops.tests_collectives.from_root.default, x, site.argument["root"], finish=lambda result: result
    )


FROM_ROOT = CollectiveSpec(
    name="from_root",
    summary="The value of one rank is given to all",
    clauses=(ON, Clause("root", "root", "rank")),
    before="replicated",
    after="replicated",
    traffic=Traffic(wire=lambda sizes: sizes.source, crossing=anywhere),
    may_be_async=True,
    lower=lower,
    executed={
        "tests_collectives.from_root.default": lambda calls: [
            calls[calls[0].arguments[1]].arguments[0].clone() for _ in calls
        ]
    },
)
"""


def test_a_collective_with_a_clause_and_a_torch_op_of_its_own_runs_in_the_simulator(tmp_path: Path) -> None:
    (tmp_path / "from_root.py").write_text(OWN_OP)
    load_plugin(str(tmp_path / "from_root.py"))
    text = PROGRAM.replace(
        "  return %0", "  %1 = spmd.from_root_start %0 on [tp] root 2 : !spmd.pending<tensor<7x4xf32>> <>\n"
        "  %2 = spmd.wait %1 : tensor<7x4xf32> <>\n  return %2"
    )  # fmt: skip
    module = ir.parse(text)
    assert "spmd.from_root_start %0 on [tp] root 2 :" in ir.print_ir(module)
    x = torch.randn(7, 4)
    (y,) = spmdir.simulate(module, [x])
    torch.testing.assert_close(y, x)
    with pytest.raises(spmdir.SpmdirError, match="expected the number of a rank in its group, found -1"):
        ir.parse(text.replace("root 2", "root -1"))
    with pytest.raises(spmdir.SpmdirError, match=r"<text>:5:3: .*has root 3 in groups of 3; expected 0 to 2"):
        ir.parse(text.replace("root 2", "root 3"))


def test_an_unknown_collective_is_an_error_at_the_op() -> None:
    with pytest.raises(spmdir.SpmdirError, match=r"<text>:4:3: error: 'spmd.al_gather' is no op .* --load-plugin"):
        ir.parse(PROGRAM.replace("all_gather", "al_gather"))


def test_an_emitter_that_cannot_be_imported_is_an_error_at_the_op() -> None:
    wrong = attrs.evolve(table.collective("all_gather"), name="gather_nowhere", lower="spmdir.nowhere:gather")
    table.register_collectives([wrong], "mine")
    expected = r"<text>:4:3: error: .*'gather_nowhere' is lowered by 'spmdir.nowhere:gather', .* expected a function"
    with pytest.raises(spmdir.SpmdirError, match=expected):
        spmdir.simulate(ir.parse(PROGRAM.replace("all_gather", "gather_nowhere")), [torch.randn(7, 4)])


def test_a_buffer_that_there_is_not_is_an_error() -> None:
    with pytest.raises(ShardingError, match="collective 'mine' allocates 'sending'; expected names of sent, packed"):
        attrs.evolve(SCATTER, name="mine", buffers=("sending",))


def test_a_collective_without_a_cost_is_an_error() -> None:
    with pytest.raises(ShardingError, match="collective 'scatter' has no `traffic`; expected its cost"):
        attrs.evolve(SCATTER, traffic=None)


def test_each_shipped_collective_declares_what_it_moves() -> None:
    others = {spec.name: spec.moves for spec in table.SHIPPED if spec.moves != "axes"}
    elements = dict.fromkeys(("exchange", "two_round_exchange", "rearrange"), "elements")
    assert others == {"permute": "shards", "convert": "edge", **elements}
