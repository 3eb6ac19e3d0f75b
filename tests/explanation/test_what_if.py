"""What would differ is what a program with these annotations is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import spmdir
from spmdir.core.errors import SpmdirError
from spmdir.core.placement.standard import S
from spmdir.explanation.excerpt import excerpt
from spmdir.explanation.explanation_results import percent_text
from spmdir.passes.mesh_search import MeshSearch
from spmdir.tools import spmd
from tests.explanation.test_explain import MLP, decided

WITHOUT_W1 = MLP.replace("dp: ?, tp: S(1)", "dp: ?, tp: ?")


def test_a_dropped_annotation_gives_what_the_text_without_it_does() -> None:
    difference = spmdir.report.what_if(spmdir.parse(MLP), drop_annotations=["%w1"])
    (before, was), (after, now) = decided(MLP), decided(WITHOUT_W1)
    assert (difference.before.objective, difference.after.objective) == pytest.approx((was, now), rel=1e-9)
    for figures, module in ((difference.before, before), (difference.after, after)):
        report = spmdir.report.comm_report(module)
        assert (figures.wire_bytes, figures.count) == (report.wire_bytes, report.count)
        assert figures.peak_bytes == spmdir.report.memory_report(module).peak_bytes
    assert difference == spmdir.report.diff(before, after)


def test_a_pipeline_that_only_decides_is_partitioned_as_the_standard_one_does() -> None:
    standard = spmdir.report.what_if(spmdir.parse(MLP), drop_annotations=["%w1"])
    assert str(spmdir.report.what_if(spmdir.parse(MLP), drop_annotations=["%w1"], pipeline="propagate")) == str(
        standard
    )


def test_a_sharding_of_an_argument_takes_the_place_of_its_own_on_the_axes_that_it_lists() -> None:
    difference = spmdir.report.what_if(spmdir.parse(MLP), {"%w1": "tp: S(0)"})
    now = decided(MLP.replace("dp: ?, tp: S(1)", "dp: ?, tp: S(0)"))[1]
    assert difference.after.objective == pytest.approx(now, rel=1e-9)
    assert str(difference.after.shardings["%w1"]) == "tp: S(0)"


@pytest.mark.parametrize(
    ("asked", "name"),
    [({"%h": "dp: S(1)"}, "%h"), ({"layers.0.up": {"dp": "S(1)"}}, "%h"), ({"layers.*.up": "tp: R"}, "")],
)
def test_a_sharding_of_what_an_op_makes_holds_for_its_users(asked: dict[str, Any], name: str) -> None:
    difference = spmdir.report.what_if(spmdir.parse(MLP), asked)
    before, after = difference.before.objective, difference.after.objective
    assert before is not None and after is not None and after > before and difference.changed
    if name == "%h":
        line = "  %g = spmd.constraint %h : tensor<4096x4096xf32> <dp: S(1), tp: ?>\n  %a = aten.gelu(%g)"
        assert difference.after.objective == pytest.approx(
            decided(MLP.replace("  %a = aten.gelu(%h)", line))[1], rel=1e-9
        )


def test_a_glob_of_names_is_about_all_values_of_one_module_and_a_module_about_its_last() -> None:
    text = MLP.replace('"layers.0.up"', '"layers.0"').replace('"layers.0.down"', '"layers.0"')
    one, every = (spmdir.report.what_if(spmdir.parse(text), forbid={at: "dp: S(0)"}) for at in ("layers.0", "%[hay]"))
    left = [[name for name in ("%h", "%a", "%y") if d.after.shardings[name]["dp"] == S(0)] for d in (one, every)]
    assert "%y" not in left[0] and left[1] == []


def test_what_is_forbidden_is_not_decided() -> None:
    forbidden = {"%w2": "tp: S(0)"}
    difference = spmdir.report.what_if(spmdir.parse(MLP), forbid=forbidden)
    assert (str(difference.before.shardings["%w2"]), str(difference.after.shardings["%w2"])) == ("tp: S(0)", "")
    with pytest.raises(
        spmdir.SpmdirError,
        match="all placements of %x on axis 'dp' are forbidden; expected at least one that is allowed",
    ):
        spmdir.report.what_if(spmdir.parse(MLP), forbid={"%x": "dp: S(0)"})


def test_what_is_not_decided_is_forbidden_without_another_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MeshSearch, "again", None)  # whose decision may be another one that takes as long
    for placed in ("tp: S(1)", "dp: S(9)"):
        difference = spmdir.report.what_if(spmdir.parse(MLP), forbid={"%w2": placed})
        assert difference.before == difference.after
        assert repr(difference).endswith("all shardings and collectives are equal")


def test_equal_programs_do_not_differ_whatever_their_stage_and_the_order_of_their_lines() -> None:
    decisions, _ = decided(MLP)
    lowered = spmdir.run_passes(spmdir.parse(spmdir.print_ir(decisions)), "insert-reshard,lower-reshard")
    difference = spmdir.report.diff(decisions, lowered)
    assert not difference.changed and difference.before.count == 1
    assert str(difference).endswith("all shardings and collectives are equal")
    localized = spmdir.run_passes(spmdir.parse(spmdir.print_ir(decisions)), "insert-reshard,lower-reshard,localize")
    difference = spmdir.report.diff(decisions, localized)
    assert str(difference).endswith("all shardings and collectives are equal") and "objective" not in str(difference)


def test_what_is_returned_otherwise_and_another_mesh_differ() -> None:
    text = """spmd.mesh @mesh <dp = 2>
func.func @f(%x: tensor<8x4xf32> {spmd.sharding = #spmd.sharding<@mesh>})
    -> (tensor<8x4xf32> {spmd.sharding = #spmd.sharding<@mesh>}) {
  %a = aten.relu(%x) : tensor<8x4xf32> <>
  return %a : tensor<8x4xf32>
}
"""
    sharded = "<@mesh, dp: S(0)>}) {".join(text.rsplit("<@mesh>}) {", 1))
    difference = spmdir.report.diff(spmdir.parse(text), spmdir.parse(sharded))
    assert list(difference.changed.values()) == [("result 0",)] and "result 0  <>      <dp: S(0)>" in str(difference)
    difference = spmdir.report.diff(spmdir.parse(text), spmdir.parse(text.replace("dp = 2", "dp = 4")))
    assert not difference.changed and "mesh    @mesh <dp = 2>  @mesh <dp = 4>" in str(difference)


@pytest.mark.parametrize("layer", ["layers.", "h"])
def test_equal_layers_are_one_row(layer: str) -> None:
    layers = "\n".join(
        f'  %a.{at} = aten.mm(%{f"a.{at - 1}" if at else "x"}, %w) : tensor<64x64xf32> loc("{layer}{at}"("m.py":1:1))'
        for at in range(4)
    )
    head = (
        "spmd.mesh @mesh <tp = 2>\nfunc.func @f(%x: tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}"
    )
    text = f"{head}, %w: tensor<64x64xf32>) -> tensor<64x64xf32> {{\n{layers}\n  return %a.3 : tensor<64x64xf32>\n}}\n"
    difference = spmdir.report.what_if(spmdir.parse(text), forbid={"%a.?": "tp: S(0)"})
    rows = {names: (was, now) for (_, was, now), names in difference.changed.items()}
    assert rows[("%a.0", "%a.1", "%a.2", "%a.3")] == ("<tp: S(0)>", "<>")
    assert f"\n{layer}{{0-1}}  x 2 " in str(difference)


def test_layers_as_functions_differ_in_nothing_though_their_values_have_other_names() -> None:
    layers = "\n".join(
        f"""  %m{at} = aten.mm(%d{at - 1}, %layers.{at}.w) : tensor<64x64xf32> loc("layers.{at}"("m.py":1:1))
  %b{at} = aten.gelu(%m{at}) : tensor<64x64xf32> loc("layers.{at}"("m.py":2:1))
  %c{at} = aten.softmax.int(%b{at}) {{dim = 1}} : tensor<64x64xf32> loc("layers.{at}"("m.py":3:1))
  %d{at} = aten.relu(%c{at}) : tensor<64x64xf32> loc("layers.{at}"("m.py":4:1))"""
        for at in range(3)
    ).replace("%d-1", "%x")
    arguments = ", ".join(f"%{name}: tensor<64x64xf32>" for name in ("x", "layers.0.w", "layers.1.w", "layers.2.w"))
    text = f"spmd.mesh @mesh <tp = 2>\nfunc.func @f({arguments}) -> tensor<64x64xf32> {{\n{layers}\n"
    whole = spmdir.parse(text + "  return %d2 : tensor<64x64xf32>\n}\n")
    outlined = spmdir.run_passes(whole, "outline-layers")
    assert "func.call" in spmdir.print_ir(outlined)
    one, other = (spmdir.run_passes(module, "propagate") for module in (whole, outlined))
    assert str(spmdir.report.diff(one, other)).endswith("all shardings and collectives are equal")
    asked = spmdir.report.what_if(outlined, {"%w": "tp: S(0)"})  # as the function names that of the first layer
    assert asked.changed and str(asked) == str(spmdir.report.what_if(whole, {"%layers.0.w": "tp: S(0)"}))


def test_a_constraint_says_what_it_takes_where_nothing_is_sent() -> None:
    found = spmdir.report.what_if(spmdir.parse(MLP), {"%w2": "tp: R", "%y": "tp: S(1)"})
    (one,) = found.constraints
    assert (one.name, str(one.for_users)) == ("%y", "dp: S(0), tp: S(1)") and "constraints" in str(found)
    assert not spmdir.report.what_if(spmdir.parse(MLP), {"%w1": "tp: S(0)"}).constraints


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"drop_annotations": ["%z"]}, "no value matches '%z'"),
        ({"drop_annotations": ["%w2", "%h"]}, "'%w2' has no annotation to drop; expected an annotated argument"),
        ({"shardings": {"%h": "ep: S(0)"}}, "'ep'"),
        ({"shardings": {"%x": "dp: S(7)"}}, "dimension 7"),
    ],
)
def test_a_change_that_cannot_be_is_an_error(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(spmdir.SpmdirError, match=message):
        spmdir.report.what_if(spmdir.parse(MLP), **changes)


def test_the_tools_print_what_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given, before, after = (tmp_path / name for name in ("given.mlir", "before.mlir", "after.mlir"))
    for path, text in ((before, MLP), (after, WITHOUT_W1)):
        path.write_text(spmdir.print_ir(decided(text)[0], debuginfo=True))
    given.write_text(MLP)
    assert spmd.main(["diff", str(before), str(after)]) == 0
    found = capsys.readouterr().out
    assert spmd.main(["explain", str(given), "--drop-annotation", "%w1"]) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith(("%", "sent"))] == [
        line.split() for line in found.splitlines() if line.startswith(("%", "sent"))
    ]
    assert spmd.main(["explain", str(given), "--set", "%w1"]) == 1
    assert "invalid change '%w1'; expected 'PLACE = SHARDING', as in" in capsys.readouterr().err
    assert spmd.main(["diff", str(given), str(after)]) == 1
    assert (
        "the program has values without a sharding; expected a sharding for each value: run propagate on it first"
        in capsys.readouterr().err
    )
    assert spmd.main(["diff", "-", "-"]) == 1
    assert "both programs are `-`" in capsys.readouterr().err


def test_a_module_is_what_its_forward_gives_not_what_its_parts_and_gradients_are() -> None:
    gradient = '  %dw = aten.mm(%at, %y) : tensor<4096x1024xf32> loc("layers.0.down"("models/mlp.py":5:1))\n'
    transposed = '  %at = aten.t(%a) : tensor<4096x4096xf32> loc("layers.0.down"("models/mlp.py":5:1))\n'
    text = MLP.replace(
        "-> tensor<4096x1024xf32> {", '-> (tensor<4096x1024xf32>, tensor<4096x1024xf32> {spmd.name = "grad.w2"}) {'
    )
    text = text.replace(
        "  return %y : tensor<4096x1024xf32>",
        f"{transposed}{gradient}  return %y, %dw : tensor<4096x1024xf32>, tensor<4096x1024xf32>",
    )
    whole, last = (spmdir.report.what_if(spmdir.parse(text), {at: "dp: S(1)"}) for at in ("layers.*", "%y"))
    assert whole == last


@pytest.mark.parametrize(
    ("text", "at", "said"),
    [
        (
            re.sub(r" loc\(.*\)\n", "\n", MLP),
            "layers.0.up",
            "no module paths or lines of a model's source; print them with",
        ),
        (MLP, "layers.0.upp", "did you mean 'layers.0.up'?"),
        (MLP, "%hh", "did you mean '%h'?"),
    ],
)
def test_a_question_about_nothing_says_what_there_is(text: str, at: str, said: str) -> None:
    for ask in (lambda module: spmdir.report.what_if(module, {at: "dp: R"}), lambda module: excerpt(module, [at])):
        with pytest.raises(SpmdirError, match=re.escape(said)):
            ask(spmdir.parse(text))


def test_a_number_that_is_rounded_to_nothing_has_no_minus() -> None:
    assert (percent_text(3.0, 2.9999), percent_text(3.0, 2.7)) == ("+0.0 %", "-10.0 %")
