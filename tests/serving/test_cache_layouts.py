"""No collective of a served model sends a cache, whatever its layout, and writes are in place."""

from __future__ import annotations

import math

import pytest
import torch

import spmdir
from spmdir.dialects import ir
from spmdir.dialects.attributes import meta_of
from spmdir.dialects.collectives import Collective
from spmdir.lowering.emit import lower_to_fx
from spmdir.lowering.in_place import write_caches_in_place
from spmdir.pipeline.pipeline import PARTITIONING
from spmdir.serving.capture_model import capture
from spmdir.serving.programs import program_of
from spmdir.torch_interop.dtypes import TORCH_DTYPES
from tests.serving.models import make_model
from tests.serving.test_capture_model import ONE_LAYER

MAX_LENGTH = 1024

LAYOUTS = {
    "heads": ({"tp": 2}, "tp: S(2)"),
    "rows": ({"tp": 2}, "tp: S(1)"),
    "sequences": ({"tp": 2}, "tp: S(0)"),
    "copies of heads": ({"tp": 4}, "tp(1)2: S(2)"),
    "sequences and heads": ({"dp": 2, "tp": 2}, "dp: S(0), tp: S(2)"),
}
"""Name → axes of the mesh, and the sharding of the caches."""


def sent_elements(module) -> list[int]:
    """Return the number of elements of each operand and result of the collectives of a program of one rank."""
    collectives = [op for op in ir.main_function(module).body.block.ops if isinstance(op, Collective)]
    values = [value for op in collectives for value in (*op.operands, *op.results)]
    return [math.prod(meta_of(value.type).shape) for value in values]


FEWER = {"Mixtral": ["rows", "copies of heads"], "DeepseekV3": ["rows", "copies of heads"]}
"""Model → the layouts that are tested, since its capture takes longer."""


@pytest.mark.parametrize("name", ["Llama", *ONE_LAYER])
def test_no_collective_sends_a_cache(name):
    model = make_model(name, **ONE_LAYER.get(name, {"num_hidden_layers": 1}))
    if name == "GPT2":
        model.config.n_positions = MAX_LENGTH
    for layout in FEWER.get(name, LAYOUTS):
        axes, sharding = LAYOUTS[layout]
        module = capture(
            model, spmdir.Mesh(axes), {"caches.*": sharding}, batch=2, max_length=MAX_LENGTH, prompt_lengths=[4]
        )
        spmdir.run_passes(module, "inline,propagate{topology=flat}")
        for program in ("decode", "prefill_4"):
            rank = spmdir.run_passes(program_of(module, program), PARTITIONING)
            # A shard of a cache has 8192 elements or more. Parameters and activations have at most 2048.
            assert max(sent_elements(rank), default=0) <= 2048, (layout, program)


def test_a_token_is_written_into_the_memory_of_the_cache():
    module = capture(make_model("Llama"), spmdir.Mesh({"tp": 1}), batch=2, max_length=8, prompt_lengths=[4])
    spmdir.run_passes(module, "inline,propagate")
    decode = program_of(module, "decode")
    metas = [meta_of(value.type) for value in ir.main_function(decode).args]
    tensors = [torch.zeros(meta.shape, dtype=TORCH_DTYPES[meta.dtype]) for meta in metas]
    graph = lower_to_fx(decode, 0)
    write_caches_in_place(graph)
    graph.recompile()
    _, *caches = graph(*tensors)
    places = {tensor.data_ptr() for tensor in tensors}
    assert len(caches) == 4 and all(cache.data_ptr() in places for cache in caches)
    targets = [str(node.target) for node in graph.graph.nodes]
    assert targets.count("cache.write_.default") == 4
    assert not any("write.default" in target or "clone" in target for target in targets)
