"""What `explain` says is what deciding again gives."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest
from xdsl.dialects.builtin import ModuleOp

import spmdir
from spmdir.core.input_parts import parts_of
from spmdir.explanation.decided_program import Alternative, DecidedProgram
from spmdir.explanation.explanation_results import Source
from spmdir.explanation.undecided_program import undecided_copy
from spmdir.pipeline.pipeline import Pipeline
from spmdir.reshard.topology import H100X8
from spmdir.search.restricted_node import Restricted, ends_of
from spmdir.search.solve import Search, Solution
from spmdir.tools import spmd

GOLDEN = Path(__file__).parents[1] / "golden" / "propagate"
PROGRAMS = (
    "a_softmax_over_a_sharded_dimension_is_two_small_reductions",
    "data_parallel_gradients_are_partial_over_the_batch_axis",
    "query_heads_are_sharded_where_there_are_fewer_key_heads_than_ranks",
    "two_axes_shard_one_dimension_in_either_order",
)
MLP = """
spmd.mesh @mesh <dp = 2, tp = 4>

func.func @mlp(%x: tensor<4096x1024xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: ?>},
               %w1: tensor<1024x4096xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: ?, tp: S(1)>},
               %w2: tensor<4096x1024xf32>) -> tensor<4096x1024xf32> {
  %h = aten.mm(%x, %w1) : tensor<4096x4096xf32> loc("layers.0.up"(callsite("mlp.py":3:1 at "train.py":9:1)))
  %a = aten.gelu(%h) {approximate = "none"} : tensor<4096x4096xf32> loc("layers.0"("mlp.py":4:1))
  %y = aten.mm(%a, %w2) : tensor<4096x1024xf32> loc("layers.0.down"("models/mlp.py":5:1))
  return %y : tensor<4096x1024xf32>
}
"""


def decided(text: str) -> tuple[ModuleOp, float]:
    """Return a program after propagate, and how long a step takes."""
    module = spmdir.run_passes(spmdir.parse(text), "propagate")
    seconds = spmdir.report.comm_report(module).objective
    assert seconds is not None
    return module, seconds


def only(program: DecidedProgram, node: int, axis: str, other: Alternative) -> Solution:
    """Return what is decided if a node and those alike have one strategy on an axis, that of another decision."""
    source, kept = program.problem.nodes[node].source, ends_of(other.strategies[axis][node])
    left_out = {ends_of(one) for one in source.candidates(axis, program.mesh.sizes[axis])} - {kept}
    sources = dict.fromkeys(program.equal_nodes(node), Restricted(source, axis, frozenset(left_out)))
    return program.search.again(sources, program.solution)[1]


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_next_best_strategy_is_what_deciding_with_it_gives_and_nothing_is_better(name: str) -> None:
    found = 0
    for _, part in parts_of((GOLDEN / f"{name}.mlir").read_text()):
        program = DecidedProgram(spmdir.parse(part), Pipeline())
        assert program.seconds == pytest.approx(decided(part)[1], rel=1e-12)
        for node in range(len(program.problem.nodes)):
            for axis in program.mesh.axis_names:
                other = program.decide_without_strategy(node, axis)
                if other is None:
                    continue
                assert only(program, node, axis, other).cost == pytest.approx(other.seconds, rel=1e-9)
                assert other.seconds >= program.seconds * (1 - 1e-9)
                found += 1
    assert found


def layers(count: int) -> str:
    """Return residual layers whose weights both axes shard."""
    arguments, lines, last = (
        ["%x: tensor<512x256xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: ?>}"],
        [],
        "%x",
    )
    for at in range(count):
        for name, shape, placed in (
            ("up", "256x1024", "tp: S(1), dp: S(0)"),
            ("down", "1024x256", "tp: S(0), dp: S(1)"),
        ):
            arguments.append(f"%{name}.{at}: tensor<{shape}xf32> {{spmd.sharding = #spmd.sharding<@mesh, {placed}>}}")
        lines += [
            f"%u{at} = aten.mm({last}, %up.{at}) : tensor<512x1024xf32>",
            f"%a{at} = aten.relu(%u{at}) : tensor<512x1024xf32>",
            f"%d{at} = aten.mm(%a{at}, %down.{at}) : tensor<512x256xf32>",
            f"%r{at} = aten.add.Tensor({last}, %d{at}) : tensor<512x256xf32>",
            f"%s{at} = aten._softmax(%r{at}) {{dim = -1, half_to_float = false}} : tensor<512x256xf32>",
        ]
        last = f"%s{at}"
    body = "\n".join([*lines, f"return {last} : tensor<512x256xf32>"])
    head = "spmd.mesh @mesh <dp = 2, tp = 4>\n"
    return f"{head}func.func @f({', '.join(arguments)}) -> tensor<512x256xf32> {{\n{body}\n}}\n"


def test_deciding_again_goes_on_from_what_was_decided() -> None:
    # Messages take long to start, so that one round of the search does not find the best decision.
    slow_start = attrs.evolve(
        H100X8, name="slow-start", base_latency=14e-6, intra_latency=1.9e-6, intra_bandwidth=370e9, protocols=()
    )
    program = DecidedProgram(spmdir.parse(layers(6)), Pipeline(topology=slow_start))
    search = Search(program.problem, effort=1)
    assert search.solution().cost > program.seconds * 1.01
    assert search.solution(start=program.solution).cost <= program.seconds * (1 + 1e-9)


def test_what_is_decided_without_an_annotation_is_what_the_text_without_it_gives() -> None:
    (explanation,) = spmdir.report.explain(spmdir.parse(MLP), "%a").values
    sources = {axis.choice.axis: axis.sources for axis in explanation.axes}
    assert [(one.name, one.placement) for one in sources["tp"]] == [("%w1", "tp: S(1)")]
    module, seconds = decided(MLP.replace("dp: ?, tp: S(1)", "dp: ?, tp: ?"))
    assert sources["tp"][0].seconds == pytest.approx(seconds, rel=1e-12)
    assert f"tp: {sources['tp'][0].without}" in spmdir.print_ir(module).partition("%a =")[2].partition("\n")[0]
    (source,) = sources["dp"]
    expected = decided(MLP.replace("dp: S(0), tp: ?", "dp: ?, tp: ?"))[1]
    assert source.name == "%x" and source.seconds == pytest.approx(expected, rel=1e-12)


def test_a_reshard_says_what_it_sends_and_what_both_ends_would_do_instead() -> None:
    (explanation,) = spmdir.report.explain(spmdir.parse(MLP), "y").values
    (delivery,) = explanation.deliveries
    (user,) = delivery.users
    assert (user.name, delivery.steps) == ("result 0", ("reduce_scatter on [tp] dim 0 op sum",))
    module = spmdir.run_passes(spmdir.parse(MLP), "propagate,insert-reshard,lower-reshard")
    report = spmdir.report.comm_report(module)
    assert (delivery.wire_bytes, delivery.seconds) == (report.wire_bytes, report.seconds)
    made, taken = explanation.axes[1].choice, user.choices[0]
    assert (made.axis, made.alternative) == ("tp", "(S(0), R) -> (S(0))")
    assert (taken.axis, taken.chosen, taken.alternative) == ("tp", "(S(0)) -> ()", "(S(1)) -> ()")


@pytest.mark.parametrize(
    ("at", "names"),
    [
        ("%h", ["%h"]),
        ("h", ["%h"]),
        ("%w?", ["%w1", "%w2"]),
        ("mlp.py:3", ["%h"]),
        ("train.py:9", ["%h"]),
        ("mlp.py:5", ["%y"]),
        ("layers.0.up", ["%h"]),
        ("layers.0", ["%h", "%a", "%y"]),
        ("layers.*.down", ["%y"]),
        ("%y.reshard", ["%y"]),
    ],
)
def test_a_question_names_values_lines_modules_and_globs(at: str, names: list[str]) -> None:
    found = spmdir.report.explain(spmdir.parse(MLP), at)
    assert sorted(one.name for one in found.values) == sorted(names) and not found.left_out


def test_the_values_whose_reshards_take_longest_come_first_and_the_others_are_counted() -> None:
    found = spmdir.report.explain(spmdir.parse(MLP), most=1)
    assert [one.name for one in found.values] == ["%y"] and found.left_out == 5
    assert repr(found).startswith("%y = aten.mm : ")
    assert str(found).endswith("\n\n5 more; select them by name, or raise --most")


def test_of_many_values_between_an_annotation_and_what_follows_both_ends_are_named() -> None:
    through = tuple(f"%{index}" for index in range(20))
    text = Source("%x", "dp: S(0)", through, "R", 2.0).text(1.0)
    assert ", through %0, %1, %2, %3, 12 more, %16, %17, %18, %19; without it R: objective" in text
    assert "more" not in Source("%x", "dp: S(0)", through[:9], "R", 2.0).text(1.0)


def test_the_program_is_left_as_it_is() -> None:
    module = spmdir.parse(MLP)
    spmdir.report.explain(module, "%y")
    assert spmdir.print_ir(module) == spmdir.print_ir(spmdir.parse(MLP))


@pytest.mark.parametrize(
    ("at", "pipeline", "message"),
    [
        ("%hh", None, r"no value matches '%hh'; expected .*; did you mean '%h'\?"),
        ("mpl.py:3", None, r"no value matches 'mpl\.py:3'; expected .*; did you mean 'mlp\.py'\?"),
        ("mlp.py:77", None, "no value matches 'mlp.py:77'.*; the nearest line with a value is mlp.py:5"),
        (
            "%h",
            "insert-reshard",
            "the pipeline 'insert-reshard' has no pass that decides shardings",
        ),
    ],
)
def test_what_cannot_be_explained_is_an_error(at: str, pipeline: str | None, message: str) -> None:
    with pytest.raises(spmdir.SpmdirError, match=message):
        spmdir.report.explain(spmdir.parse(MLP), at, pipeline=pipeline)


def test_the_tool_answers_several_questions_in_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mlp.mlir"
    path.write_text(MLP)
    assert spmd.main(["explain", str(path), "%h", "--at", "mlp.py:5", "--topology", "flat"]) == 0
    out = capsys.readouterr().out
    assert [line.split()[0] for line in out.splitlines() if line.startswith("%")] == ["%h", "%y"]
    assert spmd.main(["explain", str(path), "--most", "0"]) == 1
    assert "expected a number from 1 to" in capsys.readouterr().err


def test_an_op_that_reads_a_value_twice_in_one_way_uses_it_once() -> None:
    text = MLP.replace('aten.gelu(%h) {approximate = "none"}', "aten.mul.Tensor(%h, %h)")
    (explanation,) = spmdir.report.explain(spmdir.parse(text), "%h").values
    assert [user.name for one in explanation.deliveries for user in one.users] == ["%a"]


def test_a_sharding_that_no_annotation_asks_for_says_so() -> None:
    text = MLP.replace("dp: S(0), tp: ?", "dp: ?, tp: ?").replace("dp: ?, tp: S(1)", "dp: ?, tp: ?")
    (explanation,) = spmdir.report.explain(spmdir.parse(text), "%h").values
    assert not any(axis.sources for axis in explanation.axes)
    sharded = [axis for axis in explanation.axes if axis.placement != "R"]
    assert str(explanation).count("from no annotation") == len(sharded) > 0


def test_users_that_take_a_value_in_one_sharding_share_its_reshard() -> None:
    types = "tensor<4096x1024xf32>, tensor<f32>, tensor<4096x1024xf32>"
    ops = "%z = aten.sum(%y) : tensor<f32>\n  %e = aten.exp(%y) : tensor<4096x1024xf32>\n"
    text = MLP.replace("return %y : tensor<4096x1024xf32>", f"{ops}  return %y, %z, %e : {types}")
    text = text.replace("-> tensor<4096x1024xf32> {", f"-> ({types}) {{")
    (explanation,) = spmdir.report.explain(spmdir.parse(text), "%y").values
    (delivery,) = explanation.deliveries
    assert sorted(user.name for user in delivery.users) == ["%e", "%z", "result 0"]
    assert str(explanation).count("MB sent") == 1


LAYERS = """
spmd.mesh @mesh <tp = 4>

func.func @f(%x: tensor<4096x64xf32> {{spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}},
             %layers.0.w: tensor<64x64xf32> {{spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}},
             %layers.1.w: tensor<64x64xf32> {{spmd.sharding = #spmd.sharding<@mesh, tp: S({})>}})
             -> tensor<4096x64xf32> {{
  %0 = aten.mm(%x, %layers.0.w) : tensor<4096x64xf32> loc("layers.0"("f.py":3:1))
  %1 = aten.mm(%0, %layers.1.w) : tensor<4096x64xf32> loc("layers.1"("f.py":3:1))
  return %1 : tensor<4096x64xf32>
}}
"""


def test_ops_of_one_line_in_one_layer_are_not_taken_for_equal_ops_of_layers() -> None:
    text = """spmd.mesh @mesh <dp = 2, tp = 4>
func.func @f(%x: tensor<4096x1024xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(1)>},
             %w: tensor<1024x1024xf32>) -> (tensor<4096x1024xf32>, tensor<4096x1024xf32>) {
  %a = aten.relu(%x) : tensor<4096x1024xf32> loc("layers.0"("m.py":5:1))
  %b = aten.relu(%a) : tensor<4096x1024xf32> loc("layers.0"("m.py":5:1))
  %y = aten.mm(%a, %w) : tensor<4096x1024xf32> loc("layers.0"("m.py":6:1))
  %z = aten.mm(%b, %w) : tensor<4096x1024xf32> loc("layers.0"("m.py":6:1))
  return %y, %z : tensor<4096x1024xf32>, tensor<4096x1024xf32>
}
"""
    (found,) = spmdir.report.explain(spmdir.parse(text), "%w").values
    assert [(user.name, user.times) for one in found.deliveries for user in one.users] == [("%y", 1), ("%z", 1)]


def test_equal_values_of_layers_that_are_not_decided_as_one_are_explained_once() -> None:
    found = spmdir.report.explain(spmdir.parse(LAYERS.format(0)), "*.w")
    assert [(one.name, one.times, one.equal_values) for one in found.values] == [("%layers.0.w", 1, ("%layers.1.w",))]
    assert "\n  same decision for %layers.1.w; alternatives are those of %layers.0.w\n" in str(found)
    assert not found.left_out
    assert len(spmdir.report.explain(spmdir.parse(LAYERS.format(1)), "*.w").values) == 2


STEP = """
spmd.mesh @mesh <tp = 4>

func.func @step(%w: tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: ?>},
                %x: tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>})
                -> (tensor<f32> {spmd.name = "loss"},
                    tensor<64x64xf32> {spmd.name = "w", spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) {
  %y = aten.mul.Tensor(%x, %w) : tensor<64x64xf32>
  %loss = aten.sum(%y) : tensor<f32>
  %g = aten.mul.Tensor(%x, %y) : tensor<64x64xf32>
  %n = aten.add.Tensor(%w, %g) : tensor<64x64xf32>
  return %loss, %n : tensor<f32>, tensor<64x64xf32>
}
"""


def test_of_annotations_equally_near_that_in_the_forward_comes_first_and_results_have_names() -> None:
    (explanation,) = spmdir.report.explain(spmdir.parse(STEP), "%w").values
    (axis,) = explanation.axes
    assert [one.name for one in axis.sources] == ["%x", "new value of w (result 1)"]
    (explanation,) = spmdir.report.explain(spmdir.parse(STEP), "%loss").values
    assert [user.name for one in explanation.deliveries for user in one.users] == ["loss (result 0)"]


def test_what_is_annotated_is_so_by_nothing_else() -> None:
    (explanation,) = spmdir.report.explain(spmdir.parse(MLP), "%x").values
    assert [one.name for one in explanation.axes[0].sources] == ["%x"]


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_decided_program_that_keeps_what_was_annotated_opens_to_what_it_was(name: str) -> None:
    for _, part in parts_of((GOLDEN / f"{name}.mlir").read_text()):
        text = spmdir.print_ir(spmdir.run_passes(spmdir.parse(part), "propagate{origins=true}"))
        kept = spmdir.parse(text)
        module, _ = undecided_copy(kept, Pipeline())
        assert spmdir.print_ir(module) == spmdir.print_ir(spmdir.parse(part))
        assert not DecidedProgram(kept, Pipeline()).differing and spmdir.print_ir(kept) == text


def test_a_decided_program_is_asked_what_if_and_explained_for_the_machine_that_it_says() -> None:
    pipeline = "propagate{topology=a100x8 origins=true},expand,insert-reshard,lower-reshard,fuse-collectives,localize"
    kept = spmdir.run_passes(spmdir.parse(MLP), "propagate{topology=a100x8 origins=true}")
    assert spmdir.report.explain(kept, "%y") == spmdir.report.explain(spmdir.parse(MLP), "%y", pipeline=pipeline)
    found = spmdir.report.what_if(kept, drop_annotations=["%w1"])
    assert str(found) == str(spmdir.report.what_if(spmdir.parse(MLP), drop_annotations=["%w1"], pipeline=pipeline))


@pytest.mark.parametrize("decided_for", ["", "topology=a100x8 ", "memory=1GB "])
@pytest.mark.parametrize(
    "pipeline",
    [
        Pipeline(topology="flat"),
        Pipeline("propagate{topology=flat memory=none},expand,insert-reshard,lower-reshard{topology=flat}"),
    ],
    ids=["pipeline", "steps"],
)
def test_a_decided_program_is_not_explained_for_the_machine_of_another_pipeline(
    pipeline: Pipeline, decided_for: str
) -> None:
    deciding = f"propagate{{{decided_for}origins=true}}"
    kept = spmdir.run_passes(spmdir.parse(MLP), deciding)
    assert "flat" not in str(undecided_copy(kept, pipeline)[1])
    again, alone = DecidedProgram(kept, pipeline), DecidedProgram(spmdir.parse(MLP), Pipeline(deciding))
    assert (again.problem.topology, again.seconds) == (alone.problem.topology, alone.seconds)
    assert again.differing == ()


def test_a_decision_that_is_not_that_of_the_text_says_so() -> None:
    text = spmdir.print_ir(spmdir.run_passes(spmdir.parse(MLP), "propagate{origins=true}"))
    other = text.replace("<dp: S(0), tp: S(1)>\n", "<dp: S(0)>\n", 1)
    assert other != text
    found = spmdir.report.explain(spmdir.parse(other), "%y")
    assert found.differing == ("%h",)
    assert str(found).rpartition("\n\n")[2].startswith("decided again: %h got another sharding than in the text")


@pytest.mark.parametrize(
    "passes", ["propagate", "propagate,insert-reshard", "propagate{origins=true},insert-reshard,lower-reshard"]
)
def test_a_decided_program_that_keeps_nothing_says_which_text_to_ask(passes: str) -> None:
    decided = spmdir.run_passes(spmdir.parse(MLP.replace("dp: ?, tp: S(1)", "dp: ?, tp: S(0)")), passes)
    with pytest.raises(spmdir.SpmdirError, match="expected a program before propagate, or one decided by"):
        spmdir.report.explain(decided, "%y")
