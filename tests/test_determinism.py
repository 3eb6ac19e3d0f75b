"""The same text out of every stage, whatever the seed of Python's hashes."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PASSES = "propagate,insert-reshard,verify-spmd,lower-reshard,fuse-collectives,localize"

PARTITION = f"""
import sys
from spmdir.dialects import ir
from spmdir.pipeline.pipeline import run_passes
from spmdir.report.communication import comm_report

for text in sys.stdin.read().split("// -----\\n")[:-1]:
    print(ir.print_ir(run_passes(ir.parse(text), "print-rules")))
    module = run_passes(ir.parse(text), "{PASSES}", after=lambda name, current: print(name, ir.print_ir(current())))
    print(comm_report(module))
assert "torch" not in sys.modules
"""
IMPORT = """
import spmdir
from tests.models import plans, zoo

mesh = spmdir.Mesh({"dp": 2, "tp": 2})
exported, _ = zoo.forward_program("llama")
graph, _, _ = zoo.training_graph("mlp", "adamw")
for program, model in ((exported, "llama"), (graph, "mlp")):
    module = spmdir.import_fx(program, mesh, plans.plan(model, "fsdp_tensor_parallel"))
    print(spmdir.print_ir(module), end="// -----\\n")
"""


def outputs(program: str, seeds: range, text: str = "") -> list[str]:
    """What `program` prints under each hash seed, with `text` on its stdin; two run at a time."""

    def output(seed: int) -> str:
        settings = {"PYTHONHASHSEED": str(seed), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-c", program],
            input=text, capture_output=True, text=True, cwd=ROOT, env={**os.environ, **settings}, timeout=600,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(output, seeds))


@pytest.fixture(scope="module")
def imported() -> list[str]:
    """The text of two imported programs, under each of two hash seeds."""
    return outputs(IMPORT, range(1, 3))


@pytest.mark.xdist_group("determinism")
def test_an_import_gives_the_same_text(imported: list[str]) -> None:
    assert imported[0] == imported[1]


@pytest.mark.xdist_group("determinism")
def test_all_passes_rules_and_the_report_give_the_same_text(imported: list[str]) -> None:
    found = outputs(PARTITION, range(3), imported[0])
    assert len(found) == 3
    assert set(found) == {found[0]}
    assert all(found[0].count(f"\n{name} ") == 2 for name in PASSES.split(","))
