"""What goes round a ring has one shape on all ranks, or is known to be sharded along the ring."""

from __future__ import annotations

from pathlib import Path

import pytest

from spmdir.tools.command import run_in_process

HEAD = """aten.mm: (S(m), S(k)) -> (S(m))
    local
    out = aten.new_zeros(self, [size(m), size(n)])
"""
BLOCK = "aten.mm(aten.index_select(self, 1, positions(k)), mat2)"


def localized(tmp_path: Path, body: str, columns: int = 5) -> tuple[int, str, str]:
    """Localize a product of matrices with the local form `body`; 2 ranks have 4 and 3 of `k`, and 3 of `m`."""
    (tmp_path / "own.rules").write_text(HEAD + body + "    return out\n")
    rows = "{spmd.sharding = #spmd.sharding<@mesh, a: S(0)>}"
    types = f"tensor<7x{columns}xf32>", f"tensor<6x{columns}xf32>"
    (tmp_path / "in.mlir").write_text(
        f"""spmd.mesh @mesh <a = 2>
func.func @f(%x: tensor<6x7xf32> {rows}, %y: {types[0]} {rows}) -> ({types[1]} {rows}) {{
  %0 = aten.mm(%x, %y) : {types[1]} <a: S(0)>
  return %0 : {types[1]}
}}
"""
    )
    argv = [str(tmp_path / "in.mlir"), "--load-plugin", str(tmp_path / "own.rules"), "--localize"]
    return run_in_process(["spmd-opt", *argv], "")


@pytest.mark.parametrize("rotated", ["mat2", "mat2 twice"])
def test_what_is_sharded_along_the_ring_is_sent_as_long_as_the_longest(tmp_path: Path, rotated: str) -> None:
    part = BLOCK.replace("mat2", rotated.split()[-1])
    ring = f"    ring k: {rotated}\n        out = aten.add.Tensor(out, {part})\n"
    body = "    twice = aten.add.Tensor(mat2, mat2)\n" + ring
    status, out, err = localized(tmp_path, body)
    assert (status, err) == (0, "")
    assert [line for line in out.splitlines() if "spmd.rotate" in line and "tensor<4x5xf32>" not in line] == []


@pytest.mark.parametrize("ring", ["ring k: self mat2", "ring m: mat2"])
def test_an_operand_that_the_strategy_does_not_shard_along_the_ring_is_an_error(tmp_path: Path, ring: str) -> None:
    status, _, err = localized(tmp_path, f"    {ring}\n        out = aten.add.Tensor(out, {BLOCK})\n")
    assert status == 1
    assert "own.rules:4:5: error: " in err and "the strategy does not shard it by the factor of the ring" in err


@pytest.mark.parametrize(
    ("body", "columns", "found"),
    [
        # That a row of the block is as long as one of an operand on one rank tells nothing.
        ("    y = aten.select.int(mat2, 1, 0)\n    ring k: mat2 y\n", 4, "4xf32 or 3xf32"),
        ("    twice = aten.cat([mat2, mat2])\n    ring k: twice\n", 5, "8x5xf32 or 6x5xf32"),
    ],
)  # fmt: skip
def test_what_ranks_have_in_other_shapes_is_an_error_at_the_ring(
    tmp_path: Path, body: str, columns: int, found: str
) -> None:
    used = "y" if " y\n" in body else "twice"
    status, _, err = localized(tmp_path, f"{body}        out = aten.add.Tensor(out, aten.sum({used}))\n", columns)
    assert status == 1
    assert f"own.rules:{3 + body.count(chr(10))}:5: error: " in err
    assert f"ranks send tensors of different types round the ring: {found}; " in err
