"""Messages that a schedule shares: parameters and gradients are sent, rather than activations, as ring collectives."""

from __future__ import annotations

import attrs
from xdsl.dialects.builtin import ModuleOp

import spmdir
from spmdir.analysis.propagation.build_problem import build_problem
from spmdir.core.mesh import Mesh
from spmdir.dialects.ir import main_function
from spmdir.pipeline.pipeline import SCHEDULED, Pipeline
from spmdir.reshard.collective_spec import CollectiveSpec
from spmdir.reshard.collectives import collective
from spmdir.reshard.topology import find_topology
from spmdir.search.shared_messages import Dependence, counted_fractions, shared_values

LAYER = """spmd.mesh @mesh <dp = 4>

func.func @f(%x: tensor<512x64xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>},
             %q: tensor<64x128xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>},
             %k: tensor<64x128xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>},
             %v: tensor<64x128xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>})
    -> (tensor<512x128xf32>, tensor<64x128xf32> {spmd.sharding = #spmd.sharding<@mesh>}) {
  %0 = aten.mm(%x, %q) : tensor<512x128xf32>
  %1 = aten.mm(%x, %k) : tensor<512x128xf32>
  %2 = aten.mm(%x, %v) : tensor<512x128xf32>
  %3 = aten.add.Tensor(%0, %1) : tensor<512x128xf32>
  %4 = aten.add.Tensor(%3, %2) : tensor<512x128xf32>
  %t = aten.t(%x) : tensor<64x512xf32>
  %g = aten.mm(%t, %4) : tensor<64x128xf32>
  return %4, %g : tensor<512x128xf32>, tensor<64x128xf32>
}
"""
"""Three sharded weights of one activation, and a gradient that is returned whole."""


def messages(passes: str, program: str = LAYER) -> list[tuple[str, int]]:
    """Return the kind of each message, and of how many values it is."""
    module: ModuleOp = spmdir.run_passes(spmdir.parse(program), Pipeline(passes, topology="cpu-gloo"))
    ops = main_function(module).body.block.ops
    return [(op.name, len(op.operands)) for op in ops if op.name.endswith("_start")]


def test_weights_that_share_a_message_are_gathered_rather_than_activations() -> None:
    assert messages(SCHEDULED) == [("spmd.all_gather_start", 3), ("spmd.all_reduce_start", 1)]
    assert messages(SCHEDULED.replace("propagate{overlap=messages}", "propagate"))[0] == ("spmd.all_gather_start", 1)


def test_gradients_are_reduced_by_the_plan_that_sends_least() -> None:
    plain = SCHEDULED.replace("propagate{overlap=messages}", "propagate")
    assert messages(SCHEDULED)[-1] == ("spmd.all_reduce_start", 1)
    assert messages(plain)[-1] == ("spmd.exchange_start", 1)


def test_a_program_is_lowered_by_what_it_was_decided_for() -> None:
    decided = spmdir.run_passes(spmdir.parse(LAYER), Pipeline("propagate{overlap=messages}", topology="cpu-gloo"))
    read = spmdir.parse(spmdir.print_ir(decided))
    lowered = spmdir.run_passes(read, Pipeline("insert-reshard,lower-reshard", topology="cpu-gloo"))
    assert "all_reduce" in spmdir.print_ir(lowered) and "exchange" not in spmdir.print_ir(lowered)


def test_arguments_and_what_no_product_depends_on_share_messages() -> None:
    uses = [
        Dependence((), ("x", "w"), is_input=True, is_contraction=False),
        Dependence(("w",), ("t",), is_input=False, is_contraction=False),
        Dependence(("x", "t"), ("h",), is_input=False, is_contraction=True),
        Dependence(("h",), ("a",), is_input=False, is_contraction=False),
        Dependence(("a", "t"), ("y",), is_input=False, is_contraction=True),
        Dependence(("y", "w"), ("updated",), is_input=False, is_contraction=False),
    ]
    assert shared_values(uses) == {"x", "w", "t", "y", "updated"}


def test_the_quickest_gather_says_what_counts_of_a_shared_message() -> None:
    function = main_function(spmdir.parse(LAYER))
    with Pipeline("").rules as rules:
        _, problem = build_problem(function, Mesh({"dp": 4}), rules, find_topology("cpu-gloo"))
    gather = collective("all_gather")
    one_hop, slow = (
        attrs.evolve(gather, name=name, traffic=attrs.evolve(gather.traffic, passes=passes, rounds=rounds))
        for name, passes, rounds in (("one_hop", 0, 1), ("slow", 1, 9))
    )

    def parts(*collectives: CollectiveSpec) -> tuple[float, ...]:
        return counted_fractions(attrs.evolve(problem, collectives=collectives))

    assert parts(gather)[1] < parts(one_hop)[1] < 1  # of %q
    assert parts(gather, one_hop) == parts(one_hop)
    assert parts(gather, slow) == parts(slow, gather) == parts(gather)


EMBEDDING = """spmd.mesh @mesh <dp = 4>

func.func @f(%dy: tensor<512x1024xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>},
             %tokens: tensor<512xi64> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>},
             %w: tensor<1024x64xf32> {spmd.sharding = #spmd.sharding<@mesh>})
    -> (tensor<1024x64xf32> {spmd.sharding = #spmd.sharding<@mesh>}) {
  %dx = aten.mm(%dy, %w) : tensor<512x64xf32>
  %g = aten.embedding_dense_backward(%dx, %tokens) \
{num_weights = 1024, padding_idx = -1, scale_grad_by_freq = false} : tensor<1024x64xf32>
  return %g : tensor<1024x64xf32>
}
"""
"""The gradient of an embedding, of an activation that takes less to gather than the gradient to reduce."""


def test_the_gradient_of_an_embedding_is_reduced_like_others_rather_than_made_of_a_gathered_activation() -> None:
    assert {kind for kind, _ in messages(SCHEDULED, EMBEDDING)} == {"spmd.all_reduce_start"}
