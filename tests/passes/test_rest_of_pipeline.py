"""What a module still needs of a pipeline: the passes that have run on it do not run again, and no other is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from spmdir.dialects import ir
from spmdir.passes.executed import executed
from spmdir.passes.finish import localized
from spmdir.passes.pipeline import Pipeline, run_passes

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
"""What runs always before localize, for whatever was written by hand."""


@pytest.fixture
def mine(tmp_path: Path) -> str:
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return str(path)


@pytest.mark.parametrize("program", [SILENT, SENDING], ids=["silent", "sending"])
@pytest.mark.parametrize(
    ("pipeline", "first", "then"),
    [
        (f"propagate,{RESHARD},mine,localize", f"propagate,{RESHARD},mine", f"{RESHARD},localize"),
        (f"propagate,{RESHARD},mine,localize", f"propagate,{RESHARD}", f"{RESHARD},mine,localize"),
        (f"propagate,mine,{RESHARD},localize", "propagate", f"mine,{RESHARD},localize"),
        (f"propagate,{RESHARD},mine,localize", "propagate,mine", f"{RESHARD},localize"),
        (
            f"propagate,{RESHARD},fuse-collectives,localize",
            f"propagate,{RESHARD}",
            f"{RESHARD},fuse-collectives,localize",
        ),
        (f"mine,propagate,{RESHARD},localize", "mine", f"propagate,{RESHARD},localize"),
        (f"mine,propagate,mine,{RESHARD},localize", "mine,propagate", f"mine,{RESHARD},localize"),
        (f"mine,propagate,{RESHARD},localize", "propagate", f"{RESHARD},localize"),
        (f"propagate,{RESHARD},localize,mine", f"propagate,{RESHARD},localize", "mine"),
        (f"propagate,{RESHARD},localize,mine", f"propagate,{RESHARD},localize,mine", ""),
        ("mine,localize", f"propagate,{RESHARD}", "mine,localize"),
        ("propagate", "", f"propagate,{RESHARD},localize"),
        ("propagate,mine,localize", "", f"propagate,{RESHARD},mine,localize"),
        ("propagate,insert-reshard,mine", "", f"propagate,{RESHARD},mine,localize"),
    ],
)
def test_each_pass_of_a_pipeline_runs_once(program: str, pipeline: str, first: str, then: str, mine: str) -> None:
    module = run_passes(ir.parse(program), Pipeline(first, plugins=[mine]))
    before = executed(module)
    found = executed(localized(module, Pipeline(pipeline, plugins=[mine])))
    assert ",".join(found[len(before) :]) == then


def test_a_program_whose_decisions_are_taken_away_is_decided_again(mine: str) -> None:
    pipeline = Pipeline(f"inline,propagate,mine,{RESHARD},localize", plugins=[mine])
    module = run_passes(ir.parse(SENDING), pipeline.before("insert-reshard"))
    for op in ir.main_function(module).body.block.ops:
        op.properties.pop("sharding", None)
    assert executed(localized(module, pipeline))[3:] == ("propagate", "mine", *RESHARD.split(","), "localize")


def test_a_program_that_was_read_is_finished_from_the_stage_that_it_is_at(mine: str) -> None:
    module = run_passes(ir.parse(SENDING), f"propagate,{RESHARD}")
    pipeline = Pipeline(f"propagate,{RESHARD},mine,localize", plugins=[mine])
    assert ",".join(executed(localized(ir.parse(ir.print_ir(module)), pipeline))) == f"{RESHARD},localize"


def test_what_has_run_is_no_part_of_the_text() -> None:
    module = ir.parse(SENDING)
    text = ir.print_ir(module)
    assert ir.print_ir(run_passes(module, "inline")) == text
