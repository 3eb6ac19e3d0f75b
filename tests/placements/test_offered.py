"""Placements that are offered to the search where no annotation names them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import spmdir
from spmdir.core.errors import ShardingError
from spmdir.core.placement.shards import ShardPlacement

DECODED = """
import attrs
from spmdir import SpmdirError
from spmdir.placement import PackedPlacement

@attrs.frozen
class NAME(PackedPlacement):
    text = "NAME({{width}})"
    offered = {offered}
    parts = ("out", "lse")
    results = ("attention",)
    rules = '''
aten.scaled_dot_product_attention: (R, shard(s), shard(s)) -> (NAME(3))
    when dropout_p == 0 and given(attn_mask) == false and is_causal == false
    when rank(query) == 4 and last(query) == last(value)
    local
    out, lse = aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, 0, false, attn_mask, scale)
    state = (out, lse)
    return NAME.pack(state)
'''
    width: int = 3

    def check(self, shape, count):
        if len(shape) != self.width + 1:
            raise SpmdirError(f"{{self}} is of tensors of {{self.width + 1}} dimensions; found {{list(shape)}}")

    def types(self, shape, dtype):
        return ((shape, dtype), (shape[:-1], dtype))

    def slices(self, dim):
        return dim < self.width

    def identity(self, out, lse):
        return out.new_zeros(out.shape), lse.new_full(lse.shape, float("-inf"))

    def combine(self, left, right):
        (out, lse), (other, more) = left, right
        share = (more - lse).nan_to_num(0.0).sigmoid().unsqueeze(-1)
        return out + share * (other - out), lse.logaddexp(more)

    def finish(self, state):
        return state[0]

    def start(self, value):
        return value, value.new_zeros(value.shape[:-1])
"""

PROGRAM = """
spmd.mesh @mesh <cp = 4>

func.func @f(%q: tensor<2x4x1x16xf64> {spmd.sharding = #spmd.sharding<@mesh>},
             %k: tensor<2x4x512x16xf64> {spmd.sharding = #spmd.sharding<@mesh, cp: S(2)>},
             %v: tensor<2x4x512x16xf64> {spmd.sharding = #spmd.sharding<@mesh, cp: S(2)>})
    -> (tensor<2x4x1x16xf64> {spmd.sharding = #spmd.sharding<@mesh>}) {
  %0 = aten.scaled_dot_product_attention(%q, %k, %v) : tensor<2x4x1x16xf64>
  return %0 : tensor<2x4x1x16xf64>
}
"""
"""A step of decoding: one query of each head, and keys that are sharded along the sequence."""


def decided(tmp_path: Path, name: str, offered: bool) -> tuple[str, bool]:
    """Return the program of a rank, with the plug-in `name` loaded, and whether its result is right."""
    path = tmp_path / f"{name.lower()}.py"
    path.write_text(DECODED.format(offered=offered).replace("NAME", name))
    pipeline = spmdir.Pipeline(
        "propagate{topology=flat},insert-reshard,expand,lower-reshard,localize", plugins=[str(path)]
    )
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(2, 4, size, 16, generator=generator, dtype=torch.float64) for size in (1, 512, 512)]
    module = spmdir.run_passes(spmdir.parse(PROGRAM), pipeline)
    (out,) = spmdir.simulate(module, inputs, pipeline=pipeline)
    expected = torch.nn.functional.scaled_dot_product_attention(*inputs)
    return str(module), torch.allclose(out, expected, rtol=1e-10)


def test_tree_decoding_is_chosen_unasked_where_it_is_offered(tmp_path: Path):
    """One exchange of states takes the place of three all-reduces of the expanded op."""
    text, is_right = decided(tmp_path, "DecodedTree", offered=True)
    assert is_right and "DecodedTree(3)" in text and "spmd.all_reduce" not in text


def test_a_placement_that_is_not_offered_is_used_where_an_annotation_names_it(tmp_path: Path):
    text, is_right = decided(tmp_path, "NamedTree", offered=False)
    assert is_right and "NamedTree" not in text and text.count("spmd.all_reduce") == 3


def test_a_lossy_placement_cannot_be_offered():
    with pytest.raises(ShardingError, match="is `offered` and lossy; expected an exact placement"):

        class Rough(ShardPlacement):
            text = "Rough({dim})"
            offered = True
            error = spmdir.placement.ErrorBound(1 / 256)
