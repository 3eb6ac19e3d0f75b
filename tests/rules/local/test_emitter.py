"""Statements that some ranks alone run, and the errors of statements of local forms, at their lines."""

from __future__ import annotations

from pathlib import Path

import pytest
from xdsl.dialects.builtin import ModuleOp

import spmdir
from spmdir.core.errors import SpmdirError
from spmdir.lowering.emit import lower_to_fx

OP = "aten._scaled_dot_product_flash_attention_for_cpu"
FORM = f"""
{OP}: (R, S(2), S(2)) -> (P(sum), P(sum))
    local
    out = aten.add.Tensor(query, aten.sum.dim_IntList(key, [2], true))
    lse = aten.select.int(out, 3, 0)
    ring s: value
        unused = aten.neg(value)
    BODY
    return out, lse
"""
PROGRAM = f"""
spmd.mesh @mesh <a = 4>
func.func @f(%q: tensor<1x2x4x8xf32> {{spmd.sharding = #spmd.sharding<@mesh>}},
             %k: tensor<1x2x5x8xf32> {{spmd.sharding = #spmd.sharding<@mesh, a: S(2)>}}) -> (tensor<1x2x4x8xf32> {{spmd.sharding = #spmd.sharding<@mesh>}}) {{
  %0, %1 = {OP}(%q, %k, %k) : tensor<1x2x4x8xf32> <a: P(sum)>, tensor<1x2x4xf32> <a: P(sum)>
  return %0 : tensor<1x2x4x8xf32>
}}
"""  # noqa: E501


def localized(folder: Path, body: str) -> ModuleOp:
    """Return the program with `body` in the local form; on the last rank, which has no key, `size(s)` is 0."""
    file = folder / "form.rules"
    file.write_text(FORM.replace("BODY", body.replace("\n", "\n    ")))
    pipeline = spmdir.Pipeline("propagate,insert-reshard,lower-reshard,localize", plugins=[str(file)])
    return spmdir.run_passes(spmdir.parse(PROGRAM), pipeline)


@pytest.mark.parametrize(("body", "message"), [
    (
        "out = aten.rand_like(out) if size(s)",
        r"form.rules:8.*aten.rand_like draws random numbers `if` size\(.*\), which differs between ranks, so their "
        r"generators would diverge; expected draws on all ranks: draw them in a statement without `if`",
    ),
    ("state = (out, lse)\none, two, three = state", "'one, two, three' has 3 names for 2 values"),
    ("state = (out, lse, lse)\nout, lse = state", "form.rules:9.*'out, lse' has 2 names for 3 values;"),
    ("one, two = aten.neg(out)", "form.rules:8.*'one, two' has 2 names for 1 values;"),
    (
        "part = aten.slice.Tensor(query, 2, 0, size(s) * size(s))",
        r"form.rules:8.*that differ between ranks cannot be combined as size.* \* size.*; expected one such value",
    ),
])  # fmt: skip
def test_errors_of_statements_have_their_lines(tmp_path: Path, body: str, message: str) -> None:
    with pytest.raises(SpmdirError, match=message):
        localized(tmp_path, body)


def test_all_ranks_draw_the_random_numbers_that_some_use(tmp_path: Path) -> None:
    module = localized(tmp_path, "noise = aten.rand_like(out)\nout = aten.add.Tensor(out, noise) if size(s)")
    for rank in range(4):
        targets = [str(node.target) for node in lower_to_fx(module, rank=rank).graph.nodes]
        assert targets.count("aten.rand_like.default") == 1
        assert targets.count("aten.add.Tensor") == (2 if rank < 3 else 1)
