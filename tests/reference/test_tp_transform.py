"""What PyTorch's tensor-parallel transformation of exported programs promised; the rest is in
`tests/runtime/test_tensor_parallel.py`. docs/reference-systems.md numbers its capabilities."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Node

import spmdir
from tests.models import zoo
from tests.runtime.test_tensor_parallel import LLAMA, X, ranks_of, run_together


class Branches(nn.Module):
    """A sharded hidden value, and what is done with it."""

    def __init__(self, branches: Callable[[Tensor], Any]):
        super().__init__()
        self.up, self.branches = nn.Linear(8, 16), branches

    def forward(self, x: Tensor) -> Any:
        return self.branches(self.up(x))


def collectives(program: torch.export.ExportedProgram) -> list[Node]:
    def is_collective(node: Node) -> bool:
        return "_c10d_functional" in str(node.target) and "wait_tensor" not in str(node.target)

    return [node for node in program.graph.nodes if is_collective(node)]


def transformed(branches: Callable[[Tensor], Any]) -> list[torch.export.ExportedProgram]:
    """Return the programs of all ranks, after they gave what the program gives."""
    exported = torch.export.export(Branches(branches), (X,))
    programs = ranks_of(exported, {"up": "colwise"})
    expected = torch.utils._pytree.tree_leaves(exported.module()(X))
    with torch.no_grad():
        for found in run_together(programs, (X,), {}):
            for leaf, wanted in zip(found, expected, strict=True):
                torch.testing.assert_close(leaf, wanted)
    return programs


def test_results_of_an_op_have_shardings_of_their_own():
    """Item 6: values are sharded where indices are, and the parts of a split are sharded alike."""
    transformed(lambda h: h.sort(0))
    transformed(lambda h: [part.relu() for part in h.split([2, 3, 1])])


def test_one_gather_serves_every_user():
    """The hole of a reshard for each consumer."""
    for program in transformed(lambda h: (h.softmax(1).cumsum(1), h.softmax(1).cumprod(1), h.sort(1)[0])):
        assert Counter(str(node.target) for node in collectives(program)) == {
            "_c10d_functional.all_gather_into_tensor.default": 1
        }


def test_calls_that_differ_in_their_sizes_alone_are_told_apart():
    """The hole of cache keys without sizes."""
    transformed(lambda h: (h.view(6, 4, 4).sum(1), h.view(6, 2, 8).sum(1), h.view(6, 16, 1).sum(1)))


def test_values_are_of_local_shape_and_outputs_replicated():
    """Items 8 and 11."""
    program = transformed(lambda h: h.relu())[0]
    shapes = {str(n.target): tuple(n.meta["val"].shape) for n in program.graph.nodes if n.op == "call_function"}
    assert shapes["aten.linear.default"] == (6, 4)
    (output,) = next(node for node in program.graph.nodes if node.op == "output").args[0]
    assert tuple(output.meta["val"].shape) == (6, 16)
    program.graph.lint()


def test_llama_sends_no_more_than_two_reductions_a_layer_and_a_gather_of_the_logits():
    """Megatron's plan: the reductions of the attention's and the perceptron's outputs. All heads are sharded.

    A hundredth more is let pass: gathering the scales of a norm costs less than every rank computing all of them.
    """
    exported, (ids,) = zoo.forward_program("llama", torch.float32, 2, 8)
    mesh = spmdir.Mesh({"tp": 2})
    module = spmdir.import_fx(exported, mesh, {"*": "", **_weights()}, out_shardings=[""])
    spmdir.run_passes(module, "propagate{topology=flat},insert-reshard,lower-reshard,fuse-collectives")
    head = next(tensor for name, tensor in exported.state_dict.items() if name.endswith("lm_head.weight"))
    layers = sum("o_proj" in name for name in exported.state_dict)
    (vocabulary, width), share = head.shape, 1 / 2
    reduced, gathered = 2 * share * ids.numel() * width * 4, share * ids.numel() * vocabulary * 4
    assert layers == 2
    assert spmdir.report.comm_report(module).wire_bytes <= 1.01 * (2 * layers * reduced + gathered)


def _weights() -> dict[str, object]:
    places = {"colwise": "tp: S(0)", "rowwise": "tp: S(1)"}
    return {f"{layer}.weight": places[style] for layer, style in LLAMA.items()}
