"""A shipped collective that is registered again under another name behaves alike: nothing goes by its name."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from pathlib import Path

import attrs
import numpy as np
import pytest
import torch

import spmdir
from spmdir.core.dtype import F32
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import parse_sharding
from spmdir.core.placement.tensor import TensorMeta
from spmdir.dialects import ir
from spmdir.dialects.collectives import collective_class
from spmdir.dialects.spmd import find_spmd_op
from spmdir.reshard import collectives as table
from spmdir.reshard.plan import least_seconds
from spmdir.reshard.topology import TOPOLOGIES
from spmdir.search.joint_placements import JointPlacements
from spmdir.search.placement_catalogue import catalogue
from spmdir.search.step_times import StepTimes
from spmdir.tools.command import run_in_process
from spmdir.tools.golden import check_files, golden_files

GOLDEN = Path(__file__).parents[1] / "golden"
FOLDERS = (
    "bad/collectives", "bucket", "localize", "reorder", "schedule", "split-async", "split-matmul", "timeline",
)  # fmt: skip
"""The golden files of passes that handle collectives without going by rewrites, which name them."""

COPIES = {spec.name: f"{spec.name[:-1]}x" for spec in table.SHIPPED}
"""Name of a collective → that of its copy: as long, so that tables have the same columns."""

CASES = {
    "slice": ("", "on [a] dim 1", "a: S(1)"),
    "partition": ("", "on [a] op sum", "a: P(sum)"),
    "all_gather": ("a: S(1)", "on [a] dim 1", ""),
    "all_to_all": ("a: S(1)", "on [a] from 1 to 0", "a: S(0)"),
    "all_reduce": ("a: P(sum)", "on [a] op sum", ""),
    "reduce_scatter": ("a: P(sum)", "on [a] dim 1 op sum", "a: S(1)"),
    "broadcast": ("", "on [a]", ""),
    "permute": ("a: S(0), b: S(1)", "", "b: S(0), a: S(1)"),
    "exchange": ("a: S(0), b: S(1)", "", "a: P(sum), b: S(0)"),
    "two_round_exchange": ("a: Cyclic(0, 2), b: P(avg)", "", "a: S(0), b: S(0)"),
    "rearrange": ("a: S(0)", "", "a: P(sum)"),
    "convert": ("a: Quantised", "", "a: S(0)"),
}
"""Name → sharding before, clauses, and sharding after."""

MESH = Mesh({"a": 2, "b": 2, "c": 2})
PROGRAM = """
spmd.mesh @mesh <a = 2, b = 2, c = 2>
func.func @f(%x: tensor<6x10xf32> {SOURCE}, %y: tensor<6x10xf32> {SOURCE}, %v: tensor<10x10xf32> {REPLICATED})
    -> (tensor<6x10xf32> {RESULT}, tensor<6x10xf32> {RESULT}, tensor<10x10xf32>) {
  %0 = aten.mm(%v, %v) : tensor<10x10xf32> <>
  %1 = spmd.NAME %x CLAUSES : tensor<6x10xf32> <TARGET>
  %2 = spmd.NAME %y CLAUSES : tensor<6x10xf32> <TARGET>
  %3 = aten.mm(%0, %v) : tensor<10x10xf32> <>
  return %1, %2, %3 : tensor<6x10xf32>, tensor<6x10xf32>, tensor<10x10xf32>
}
"""


@pytest.fixture(autouse=True)
def copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "_SPECS", dict(table._SPECS))  # pyright: ignore[reportPrivateUsage]
    table.register_collectives([attrs.evolve(spec, name=COPIES[spec.name]) for spec in table.SHIPPED], "copies")


def named_back(text: object) -> str:
    """Return a text in which copies have the names of the collectives."""
    for name, copied in COPIES.items():
        text = re.sub(rf"(?<![a-z_]){copied}(?![a-z])", name, str(text))
    return str(text)


def program(kind: str, name: str, target: str | None = None) -> str:
    source, clauses, made = CASES[kind]
    words = {"NAME": name, "CLAUSES": clauses, "TARGET": made if target is None else target}
    for word, sharding in (("SOURCE", source), ("REPLICATED", ""), ("RESULT", made)):
        words[word] = f"spmd.sharding = #spmd.sharding<@mesh{', ' if sharding else ''}{sharding}>"
    return re.sub("|".join(words), lambda match: words[match[0]], PROGRAM)


@pytest.mark.parametrize("kind", CASES)
def test_renamed_collectives(kind: str) -> None:
    values = [torch.randn(6, 10), torch.randn(6, 10), torch.randn(10, 10)]
    found = []
    for name in (kind, COPIES[kind]):
        torch.manual_seed(0)
        module = ir.parse(program(kind, name))
        scheduled = spmdir.run_passes(module.clone(), "localize,schedule")
        with pytest.raises(spmdir.SpmdirError) as error:
            ir.parse(program(kind, name, "b: P(max), a: P(avg)"))
        texts = [
            ir.print_ir(scheduled),
            spmdir.report.comm_report(module),
            spmdir.report.cost_table(module, by=("op", "axis")),
            spmdir.report.memory_report(scheduled),
            spmdir.report.schedule_report(scheduled),
            spmdir.report.schedule_report(scheduled).timeline(),
            *(spmdir.lower_to_fx(scheduled, rank).code for rank in range(MESH.world_size)),
            error.value,
            vars(collective_class(name))["CLAUSES"],
            find_spmd_op(f"spmd.{name}").__doc__,
        ]
        assert name in str(error.value)
        found.append(([named_back(text) for text in texts], spmdir.simulate(scheduled, values)))
    (texts, outputs), (other_texts, other_outputs) = found
    assert texts == other_texts
    assert all(map(torch.equal, outputs, other_outputs))


def test_the_planner_and_the_search_choose_and_price_copies_as_they_do_the_collectives() -> None:
    copied = tuple(table.collective(COPIES[spec.name]) for spec in table.PLANNED)
    chosen: set[str] = set()
    for kind, (source, _, target) in CASES.items():
        for topology in map(TOPOLOGIES.__getitem__, ("flat", "h100x8", "cpu-gloo")):
            sides = parse_sharding(source), parse_sharding(target)
            plans, bounds = zip(
                *(
                    (
                        spmdir.plan_reshard((1024, 16), "f32", *sides, MESH, topology, collectives=known),
                        least_seconds((1024, 16), 4, *sides, MESH, topology, known),
                    )
                    for known in (table.PLANNED, copied)
                ),
                strict=True,
            )
            assert named_back(plans[1]) == str(plans[0]), kind
            assert plans[1].seconds == plans[0].seconds and bounds[1] == bounds[0]
            chosen |= {step.kind for step in plans[1].steps}
    assert {spec.name for spec in copied} <= chosen
    placements = JointPlacements(MESH, MESH.axis_names, catalogue(2, ()))
    for placed in itertools.product(range(3), repeat=3):
        placements.number(placed, (0, 1, 2))
    numbers = np.arange(len(placements.all))
    times = [
        StepTimes(MESH, placements, known, TOPOLOGIES["h100x8"]).table(TensorMeta((1024, 16), F32), numbers)
        for known in (table.PLANNED, copied)
    ]
    assert (times[0] == times[1]).all() and np.isfinite(times[0]).all()


def renamed(text: str) -> str:
    """Return a text in which collectives, also those that expected errors name, have the names of their copies."""

    def line_of(line: str) -> str:
        dialect = r"(spmd\.)?" if line.lstrip().startswith("//") else r"(spmd\.)"
        pattern = rf"(?<![\w`.]){dialect}({'|'.join(COPIES)})(?=_start|\b)"
        return re.sub(pattern, lambda match: (match[1] or "") + COPIES[match[2]], line)

    return "\n".join(map(line_of, text.split("\n")))


def run_renamed(command: Sequence[str], text: str) -> tuple[int, str, str]:
    status, output, errors = run_in_process(command, renamed(text))
    return status, named_back(output), named_back(errors)


@pytest.mark.parametrize("folder", FOLDERS)
def test_golden_files_hold_of_copies(folder: str) -> None:
    files = [file for file in golden_files([str(GOLDEN / folder)]) if renamed(text := Path(file).read_text()) != text]
    assert len(files) > 2
    assert list(check_files(files, run_renamed, None)) == []
