"""The stage of a program, and the steps of a pipeline that it still needs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp

from spmdir.dialects import ir
from spmdir.dialects.stage import STAGES, is_at_least, write_stage
from spmdir.dialects.stage_inference import stage_of
from spmdir.pipeline.options import load_pass
from spmdir.pipeline.pass_table import PASSES
from spmdir.pipeline.pipeline import PARTITIONING, SCHEDULED, STANDARD, Pipeline, run_passes
from spmdir.pipeline.remaining_passes import add_reshard_passes, remaining_passes

DOCS = Path(__file__).parents[2] / "docs"

MINE = """\
from dataclasses import dataclass
from xdsl.passes import ModulePass

@dataclass(frozen=True)
class MyPass(ModulePass):
    \"\"\"Does nothing.\"\"\"

    name = "mine"

    def apply(self, ctx, op):
        pass
"""

PROGRAM = """
spmd.mesh @mesh <tp = 2>

func.func @f(%x: tensor<4x4xf32> {{spmd.sharding = #spmd.sharding<@mesh, {0}>}})
    -> (tensor<4x4xf32> {{spmd.sharding = #spmd.sharding<@mesh, {1}>}}) {{
  %y = aten.relu(%x) : tensor<4x4xf32>
  return %y : tensor<4x4xf32>
}}
"""

SILENT = PROGRAM.format("tp: S(0)", "tp: S(0)")
"""A program without collectives, which looks the same from propagate on until it is localized."""
SENDING = PROGRAM.format("tp: S(0)", "")

RESHARD = "insert-reshard,lower-reshard"


@pytest.fixture
def mine(tmp_path: Path) -> str:
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return str(path)


@pytest.mark.parametrize("through_text", [False, True])
@pytest.mark.parametrize("program", [SILENT, SENDING], ids=["silent", "sending"])
@pytest.mark.parametrize(
    ("pipeline", "first", "then"),
    [
        (f"propagate,{RESHARD},mine,localize", f"propagate,{RESHARD},mine", "localize"),
        (f"propagate,{RESHARD},mine,localize", f"propagate,{RESHARD}", "mine,localize"),
        (f"propagate,mine,{RESHARD},localize", "propagate", f"mine,{RESHARD},localize"),
        (f"propagate,{RESHARD},mine,localize", "propagate,mine", f"{RESHARD},localize"),
        (f"propagate,mine,{RESHARD},mine,localize", f"propagate,mine,{RESHARD}", "mine,localize"),
        (f"propagate,mine,{RESHARD},mine,localize", f"propagate,mine,{RESHARD},mine", "localize"),
        (f"propagate,expand,{RESHARD},localize", "propagate", f"expand,{RESHARD},localize"),
        (f"propagate,{RESHARD},fuse-collectives,localize", f"propagate,{RESHARD}", "fuse-collectives,localize"),
        (f"propagate,{RESHARD},fuse-collectives,localize", "propagate", f"{RESHARD},fuse-collectives,localize"),
        (f"mine,propagate,{RESHARD},localize", "mine", f"propagate,{RESHARD},localize"),
        (f"mine,propagate,mine,{RESHARD},localize", "mine,propagate", f"mine,{RESHARD},localize"),
        (f"mine,propagate,{RESHARD},localize", "propagate", f"{RESHARD},localize"),
        (f"propagate,{RESHARD},localize,mine", f"propagate,{RESHARD},localize", "mine"),
        (f"propagate,{RESHARD},localize,mine", f"propagate,{RESHARD},localize,mine", ""),
        (f"propagate,{RESHARD},localize,schedule", f"propagate,{RESHARD},localize", "schedule"),
        (f"propagate,{RESHARD},localize,schedule", f"propagate,{RESHARD},localize,schedule", ""),
        ("mine,localize", f"propagate,{RESHARD}", "mine,localize"),
        ("propagate", "", f"propagate,{RESHARD}"),
        ("propagate,mine,localize", "", f"propagate,{RESHARD},mine,localize"),
        ("propagate,insert-reshard,mine", "", f"propagate,{RESHARD},mine"),
    ],
)
def test_a_pipeline_continues_after_the_stage_of_the_program(
    program: str, pipeline: str, first: str, then: str, through_text: bool, mine: str
) -> None:
    module = run_passes(ir.parse(program), Pipeline(first, plugins=[mine]))
    if through_text:
        module = ir.parse(ir.print_ir(module))
    assert (
        str(remaining_passes(add_reshard_passes(Pipeline(pipeline, plugins=[mine])), ir.main_function(module))) == then
    )


def test_a_program_that_is_decided_again_is_at_the_stage_decided(mine: str) -> None:
    pipeline = Pipeline(f"inline,propagate,mine,{RESHARD},localize", plugins=[mine])
    module = run_passes(ir.parse(SILENT), pipeline.before("localize"))
    run_passes(module, "propagate")
    assert str(remaining_passes(pipeline, ir.main_function(module))) == f"mine,{RESHARD},localize"


@pytest.mark.parametrize(
    ("body", "stage"),
    [
        ("%y = aten.relu(%x) : tensor<4x4xf32>", "imported"),
        ("%y = aten.relu(%x) : tensor<4x4xf32> <tp: S(0)> needs (<tp: S(0)>)", "decided"),
        ("%y = aten.relu(%x) : tensor<4x4xf32> <tp: S(0)>", "decided"),
        ("%y = spmd.reshard %x : tensor<4x4xf32> <tp: S(0)>", "resharded"),
        ("%y = spmd.slice %x on [tp] dim 0 : tensor<4x4xf32> <tp: S(0)>", "lowered"),
    ],
)
def test_a_program_without_a_stage_is_at_the_one_that_its_ops_show(body: str, stage: str) -> None:
    module = ir.parse(f"""
spmd.mesh @mesh <tp = 2>

func.func @f(%x: tensor<4x4xf32> {{spmd.sharding = #spmd.sharding<@mesh>}})
    -> (tensor<4x4xf32> {{spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}}) {{
  {body}
  return %y : tensor<4x4xf32>
}}
""")
    assert stage_of(ir.main_function(module)) == stage


def test_collectives_that_are_written_by_hand_stay_as_they_are() -> None:
    module = ir.parse("""
spmd.mesh @mesh <tp = 2>

func.func @f(%x: tensor<4x4xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>})
    -> (tensor<4x4xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) {
  %r = spmd.all_reduce %x on [tp] op sum : tensor<4x4xf32> <>
  %y = spmd.slice %r on [tp] dim 0 : tensor<4x4xf32> <tp: S(0)>
  return %y : tensor<4x4xf32>
}
""")
    assert str(remaining_passes(Pipeline(), ir.main_function(module))) == "localize"
    write_stage(ir.main_function(module), "lowered")
    assert str(remaining_passes(Pipeline(), ir.main_function(module))) == "fuse-collectives,localize"


def test_the_pages_list_the_passes_that_produce_each_stage_and_the_standard_pipeline() -> None:
    page = (DOCS / "ir.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| [^|]* \| ([^|]*) \|$", page, re.MULTILINE))
    produced = {stage: [name for name in PASSES if _produced(name) == stage] for stage in STAGES[1:]}
    assert {stage: re.findall(r"`([\w-]+)`", rows[stage]) for stage in STAGES[1:]} == produced
    standard = re.search(r"^\| standard \| ([^|]*) \|", (DOCS / "passes.md").read_text(), re.MULTILINE)
    assert standard is not None
    assert re.findall(r"`([\w-]+)`", standard[1]) == [step.name for step in Pipeline().steps]


def test_the_page_of_passes_lists_them_in_the_order_of_the_table() -> None:
    page = (DOCS / "passes.md").read_text().partition("## Usage")[0]
    assert re.findall(r"^\| \[?`([\w-]+)`", page, re.MULTILINE) == list(PASSES)


def test_the_diagram_of_the_readme_is_the_scheduled_pipeline() -> None:
    diagram = (DOCS.parent / "README.md").read_text().partition("program of one rank ──")[0]
    names = re.findall(r"^   │  ([\w-]+) ", diagram, re.MULTILINE)
    assert names == ["import_fx", *(step.name for step in Pipeline(SCHEDULED).steps)]


def _produced(name: str) -> str | None:
    return getattr(load_pass(name), "produces", None)


@pytest.mark.parametrize("pipeline", [STANDARD, SCHEDULED, f"inline,fold-views,propagate,bind-sizes,{PARTITIONING}"])
def test_each_pass_of_a_pipeline_gets_the_stage_that_it_requires(pipeline: str) -> None:
    stage = "imported"
    for step in Pipeline(pipeline).made():
        assert is_at_least(stage, getattr(step, "requires", "imported")), step.name
        stage = getattr(step, "produces", None) or stage


@pytest.mark.parametrize("given", [None, "lowered"])
def test_reshards_beside_collectives_that_are_written_by_hand_are_lowered(given: str | None) -> None:
    module = ir.parse("""
spmd.mesh @mesh <tp = 2>

func.func @f(%x: tensor<4x4xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<4x4xf32> {
  %g = spmd.all_gather %x on [tp] dim 0 : tensor<4x4xf32> <>
  %t = spmd.slice %g on [tp] dim 1 : tensor<4x4xf32> <tp: S(1)>
  %y = aten.sum.dim_IntList(%t) {dim = [1], keepdim = true} : tensor<4x1xf32> <tp: P(sum)>
  %z = aten.mul.Tensor(%x, %y) : tensor<4x4xf32> <tp: S(0)>
  return %z : tensor<4x4xf32>
}
""")
    function = ir.main_function(module)
    if given is not None:
        write_stage(function, given)
    assert stage_of(run_and_read(module, "insert-reshard")) == "resharded"
    assert stage_of(run_and_read(module, "lower-reshard")) == "lowered"


def run_and_read(module: ModuleOp, name: str) -> FuncOp:
    """Run a pass on a module, and return the function that its text is read as."""
    return ir.main_function(ir.parse(ir.print_ir(run_passes(module, name))))
