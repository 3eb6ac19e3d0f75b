"""The table of collectives, and collectives of plug-ins: found by the loader, planned, lowered and simulated."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from attrs import evolve

import spmdir
from spmdir.core.errors import Location, PluginError, ShardingError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import TRAITS
from spmdir.core.placement.sharding import Sharding, parse_sharding
from spmdir.dialects import ir
from spmdir.dialects.attributes import print_type
from spmdir.dialects.collectives import collective_class, collective_ops
from spmdir.dialects.spmd import Spmd
from spmdir.plugins import load_plugin
from spmdir.reshard import collectives as table
from spmdir.reshard.clause import DIM, ON, Clause
from spmdir.reshard.collective_spec import CollectiveSpec
from spmdir.reshard.plan_edges import is_legal
from spmdir.reshard.steps import Step, make_step
from spmdir.reshard.traffic import Traffic

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

TRAFFIC = Traffic()
BAD_DIM = {"keyword": "dim", "argument": "dim", "kind": "name"}

WRONG: list[tuple[Callable[[], object], str]] = [
    (lambda: evolve(SCATTER, name="slice"), "collective 'slice' is declared by spmdir.reshard.collectives and by mine"),
    (lambda: evolve(SCATTER, name="scatter_start"), "'scatter_start' has the name of the op that starts 'scatter'"),
    (lambda: evolve(SCATTER, name="my scatter"), "'my scatter' is 'my scatter' of type str; expected a name of"),
    (lambda: evolve(SCATTER, name=5), "`name` of CollectiveSpec is 5 of type int; expected a name of"),
    (lambda: evolve(SCATTER, summary="one\ntwo"), "is 'one\\ntwo' of type str; expected one sentence, on one line"),
    (lambda: evolve(SCATTER, before="pending"), "has the traits 'pending' and 'shard'; expected `before` and"),
    (lambda: evolve(SCATTER, before=["shard"]), "is ['shard'] of type list; expected one of replicated, shard"),
    (lambda: evolve(SCATTER, clauses=(DIM,)), "from replicated to shard has the clauses DIM; expected ON, DIM among"),
    (lambda: evolve(SCATTER, before="shard"), "to shard has the clauses ON, DIM; expected ON, FROM, TO among"),
    (lambda: evolve(SCATTER, before="partial"), "to shard has the clauses ON, DIM; expected ON, DIM, OP among"),
    (lambda: evolve(SCATTER, clauses=()), "from replicated to shard has the clauses none; expected ON, DIM"),
    (lambda: evolve(SCATTER, clauses=(ON, DIM, DIM)), "has the clauses ON, DIM, DIM; expected different"),
    (lambda: evolve(SCATTER, clauses=("on",)), "is ('on',) of type tuple; expected a tuple of clauses"),
    (lambda: Clause("k", "k", "zz"), "`kind` of Clause is 'zz' of type str; expected one of axes, dim, "),
    (lambda: Clause("a b", "k", "flag"), "`keyword` of Clause is 'a b' of type str; expected a name of"),
    (lambda: Clause(**BAD_DIM), "has argument 'dim' of kind 'name'; expected 'dim', the kind of this argument"),
    (lambda: evolve(SCATTER, moves="rows"), "is 'rows' of type str; expected one of axes, edge, shards, elements"),
    (lambda: evolve(SCATTER, moves=["axes"]), "is ['axes'] of type list; expected one of axes, edge"),
    (lambda: evolve(SCATTER, axes=lambda *_: ()), "moves 'axes', and has a function `axes`"),
    (lambda: evolve(SCATTER, check=lambda *_: ()), "moves 'axes', and has a function `check`"),
    (lambda: evolve(PERMUTE, check=None), "moves shards; expected both `check` and `axes`"),
    (lambda: evolve(PERMUTE, axes=None), "moves shards; expected both `check` and `axes`"),
    (lambda: evolve(PERMUTE, axes=lambda mesh: ()), "is a function of (mesh); expected a function of (source, target"),
    (lambda: evolve(PERMUTE, clauses=(ON,)), "moves shards, and has the clause ON; leave the clause out"),
    (lambda: evolve(PERMUTE, moves="elements"), "moves elements, and has no `loads`"),
    (lambda: evolve(EXCHANGE, moves="shards"), "moves shards; only 'elements' and 'axes' have `loads`"),
    (lambda: evolve(EXCHANGE, loads=[]), "`loads` of CollectiveSpec 'my_exchange' is [] of type list; expected a func"),
    (lambda: evolve(EXCHANGE, if_local="all_gather"), "is 'all_gather'; expected the name of a collective that sends"),
    (lambda: evolve(EXCHANGE, if_local="nowhere"), "is 'nowhere'; expected the name of a collective that sends"),
    (lambda: evolve(PERMUTE, moves="edge"), "moves along an edge, which declares its cost; leave `traffic` out"),
    (lambda: evolve(SCATTER, lower=None), "is None of type NoneType; expected a function of (site, operand), or 'mod"),
    (lambda: evolve(SCATTER, lower=lambda x: x), "`lower` of CollectiveSpec 'scatter' is a function of (x); expected"),
    (lambda: evolve(SCATTER, traffic=None), "is None of type NoneType; expected its cost, as a Traffic"),
    (lambda: evolve(SCATTER, buffers=("sending",)), "is ('sending',) of type tuple; expected names of sent, packed"),
    (lambda: evolve(SCATTER, buffers=5), "is 5 of type int; expected names of sent, packed"),
    (lambda: evolve(SCATTER, buffers=("result", "sent")), "allocates result, sent; expected different"),
    (lambda: evolve(SCATTER, may_be_async="no"), "is 'no' of type str; expected True or False"),
    (lambda: evolve(SCATTER, executed={"swap": len}), "is {'swap': <built-in function len>} of type dict; expected a"),
    (lambda: evolve(SCATTER, executed={"a.b.c": 5}), "`executed['a.b.c']` of CollectiveSpec 'scatter' is 5 of type"),
    (lambda: evolve(TRAFFIC, wire=5), "`wire` of Traffic is 5 of type int; expected a function of (sizes)"),
    (lambda: evolve(TRAFFIC, crossing=lambda ranks: 1), "is a function of (ranks); expected a function of (ranks,"),
    (lambda: evolve(TRAFFIC, rounds=0), "`rounds` of Traffic is 0 of type int; expected an integer from 1 on"),
    (lambda: evolve(TRAFFIC, passes="a"), "`passes` of Traffic is 'a' of type str; expected an integer from 0"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "message"), WRONG)
def test_a_wrong_spec_is_an_error_at_its_line(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ShardingError, match=re.escape(message)) as caught:
        table.register_collectives([make()], "mine")
    assert caught.value.location == Location(__file__, make.__code__.co_firstlineno, 1)


def test_two_collectives_of_one_name_in_a_file_are_an_error_at_the_second(tmp_path: Path) -> None:
    path = tmp_path / "twice.py"
    path.write_text(f"{CHEAP}\nAGAIN = attrs.evolve(CHEAP)\n".replace("\nfrom", "\nimport attrs\nfrom", 1))
    with pytest.raises(ShardingError, match="collective 'cheap_all_reduce' is declared twice by") as caught:
        load_plugin(str(path))
    assert str(caught.value).startswith(f"{path}:{len(path.read_text().splitlines())}:1: ")


FAILING = [
    ("wire=lambda sizes: 1 / 0", r"`wire` of Traffic 'cheap_all_reduce' fails for \(.*: ZeroDivisionError"),
    ("wire=lambda sizes: float('nan')", "`wire` of .* returns nan of type float for .*; expected a finite number"),
    ("wire=lambda sizes: float('inf')", "`wire` of .* returns inf of type float"),
    ("wire=lambda sizes: -1.0", r"`wire` of .* returns -1\.0 of type float"),
    ("wire=lambda sizes: 'a'", "`wire` of .* returns 'a' of type str"),
    ("wire=lambda sizes: 1, kernels=lambda sizes: None", "`kernels` of .* returns None .*; expected an integer"),
    ("wire=lambda sizes: exit(3)", "`wire` of .* fails .*: SystemExit: 3"),
]


@pytest.mark.parametrize(("fields", "message"), FAILING)
def test_a_cost_that_fails_is_an_error_at_its_line(tmp_path: Path, fields: str, message: str) -> None:
    path = tmp_path / "cheap.py"
    path.write_text(CHEAP.replace("wire=lambda sizes: sizes.source / 100", fields))
    with pytest.raises(PluginError, match=message) as caught:
        spmdir.run_passes(ir.parse(PARTIAL), spmdir.Pipeline("propagate,insert-reshard,lower-reshard", plugins=[path]))
    assert caught.value.location == Location(str(path), 12, 1)


EMITTERS = [
    ("lambda site, x: 1 / 0", "`lower` of CollectiveSpec 'cheap_all_reduce' fails .*: ZeroDivisionError"),
    ("lambda site, x: exit(3)", "`lower` of .* fails .*: SystemExit"),
    ("lambda site, x: x", "`lower` of .* returns x of type Node .*; expected a Message"),
    ("lambda site, x: None", "`lower` of .* returns None of type NoneType .*; expected a Message"),
    ("lambda site, x: here(None)", "`x` of Message is None of type NoneType; expected a node of the graph"),
    ("lambda site, x: Message(x, lambda y: None)", "`finish` of Message returns None .*; expected a node of the graph"),
    ("lambda site, x: Message(x, lambda y: 1 / 0)", "`finish` of Message fails .*: ZeroDivisionError"),
    ("lambda site, x: Message(x, lambda: x)", r"`finish` of Message is a function of \(\); expected a function of"),
    ("'math:sqrt'", r"`lower` of .* is a function of \(x, /\); expected a function of \(site, operand\)"),
    ("'math:pi'", "`lower` of .* is 3.14.* of type float; expected a function"),
    ("'..a:b'", r"cannot import the emitter '\.\.a:b' of collective '.*': TypeError"),
]


@pytest.mark.parametrize(("emitter", "message"), EMITTERS)
def test_an_emitter_that_fails_is_an_error_at_its_line(tmp_path: Path, emitter: str, message: str) -> None:
    path = tmp_path / "cheap.py"
    text = f"from spmdir.lowering.site import Message, here{CHEAP}"
    path.write_text(text.replace("lambda site, x: x", emitter))
    pipeline = spmdir.Pipeline("propagate,insert-reshard,lower-reshard", plugins=[path])
    with pytest.raises(spmdir.SpmdirError, match=message) as caught:
        spmdir.simulate(spmdir.run_passes(ir.parse(PARTIAL), pipeline), [torch.ones(64)])
    assert caught.value.location is not None


STEPS = [
    ("axes=lambda *_: 5", "`axes` of CollectiveSpec 'my_permute' returns 5 .*; expected a tuple of names of mesh axes"),
    ("axes=lambda *_: ('zz',)", r"`axes` of CollectiveSpec 'my_permute' gives \['zz'\]: axis 'zz' is not in mesh"),
    (
        "moves='elements', check=lambda *_: None, loads=lambda *_: 5",
        "`loads` of CollectiveSpec 'my_permute' returns 5 .*; expected a list with a dict",
    ),
    (
        "moves='elements', check=lambda *_: None, loads=lambda *_: [{0: 1}]",
        r"`loads` of .* returns \[\{0: 1\}\] .*; expected a list",
    ),
]


@pytest.mark.parametrize(("fields", "message"), STEPS)
def test_a_step_whose_functions_fail_is_an_error_at_its_line(tmp_path: Path, fields: str, message: str) -> None:
    path = tmp_path / "permute.py"
    path.write_text(
        "import attrs\nfrom spmdir.reshard.collectives import collective\n"
        f"MINE = attrs.evolve(collective('permute'), name='my_permute', {fields})\n"
    )
    collectives = spmdir.Pipeline("", plugins=[path]).collectives
    with pytest.raises(PluginError, match=message) as caught:
        spmdir.plan_reshard((10, 6), "f32", "b: S(1)", "a: S(1)", MESH, collectives=collectives)
    assert caught.value.location == Location(str(path), 3, 1)


def test_a_check_that_fails_is_an_error_and_not_an_illegal_step() -> None:
    def check(*_: object) -> None:
        raise ZeroDivisionError("of the plug-in")

    table.register_collectives([evolve(PERMUTE, check=check)], "mine")
    source, target = parse_sharding("b: S(1)"), parse_sharding("a: S(1)")
    with pytest.raises(PluginError, match=r"`check` of .* fails .*: ZeroDivisionError: of the"):
        make_step("my_permute", source, MESH, (8, 8), target=target)
    step = Step("my_permute", ("a", "b"), source, target)
    with pytest.raises(PluginError, match="`check` of CollectiveSpec 'my_permute' fails"):
        is_legal(step, MESH, (8, 8))


MESH = Mesh({"a": 2, "b": 4})


def test_a_collective_of_a_plug_in_with_the_name_of_another_op_of_the_dialect_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN_OP.replace('"from_root"', '"reshard"'))
    with pytest.raises(ShardingError, match=r"the op spmd\.reshard already has the name of collective 'reshard'"):
        load_plugin(str(tmp_path / "mine.py"))


def test_a_file_that_is_run_again_replaces_its_collective_and_another_file_may_not() -> None:
    again = attrs.evolve(SCATTER, summary="again")
    for spec in (SCATTER, SCATTER, again):
        table.register_collectives([spec], "mine")
    assert table.collective("scatter") is again
    with pytest.raises(ShardingError, match="collective 'scatter' is declared by mine and by yours"):
        table.register_collectives([SCATTER], "yours")


CHEAP = """
from spmdir.reshard.clause import ON, OP
from spmdir.reshard.collective_spec import CollectiveSpec
from spmdir.reshard.traffic import Traffic, ring

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
    with pytest.raises(ShardingError, match="requires the innermost axes"):
        collective_class("all_gather").build(gather.operands[0], axes=("dp",), dim=0)


OWN_OP = """
from spmdir.reshard.clause import ON, Clause
from spmdir.reshard.collective_spec import CollectiveSpec
from spmdir.reshard.traffic import Traffic, anywhere


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
    with pytest.raises(spmdir.SpmdirError, match="has root -1; expected the number of a rank in its group"):
        ir.parse(text.replace("root 2", "root -1"))
    with pytest.raises(spmdir.SpmdirError, match=r"<text>:5:3: .*has root 3 in groups of 3; expected 0 to 2"):
        ir.parse(text.replace("root 2", "root 3"))


def test_an_unknown_collective_is_an_error_at_the_op() -> None:
    with pytest.raises(spmdir.SpmdirError, match=r"<text>:4:3: error: unknown op 'spmd.al_gather'; .* --load-plugin"):
        ir.parse(PROGRAM.replace("all_gather", "al_gather"))


def test_an_emitter_that_cannot_be_imported_is_an_error_at_the_op() -> None:
    wrong = attrs.evolve(table.collective("all_gather"), name="gather_nowhere", lower="spmdir.nowhere:gather")
    table.register_collectives([wrong], "mine")
    expected = (
        r"<text>:4:3: error: .*emitter 'spmdir.nowhere:gather' of collective 'gather_nowhere': .* expected a function"
    )
    with pytest.raises(spmdir.SpmdirError, match=expected):
        spmdir.simulate(ir.parse(PROGRAM.replace("all_gather", "gather_nowhere")), [torch.randn(7, 4)])


def test_each_shipped_collective_declares_what_it_moves() -> None:
    others = {spec.name: spec.moves for spec in table.SHIPPED if spec.moves != "axes"}
    elements = dict.fromkeys(("exchange", "two_round_exchange", "rearrange"), "elements")
    assert others == {"permute": "shards", "convert": "edge", **elements}
