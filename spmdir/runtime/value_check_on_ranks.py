"""Compare every value that this rank computes with one device, and name the first op on any rank that differs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import torch.distributed as dist
from torch import Tensor
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue

from spmdir.core.errors import UnsupportedError
from spmdir.dialects import ir
from spmdir.dialects.values import is_call_input, sharding_of, signature_name
from spmdir.lowering.emit import lower_to_fx
from spmdir.lowering.process_groups import device_groups
from spmdir.pipeline.pipeline import Pipeline
from spmdir.runtime.rank_calls import run_rank
from spmdir.runtime.ranks import Ranks
from spmdir.simulator.distribution import local_tensor
from spmdir.simulator.simulate import run_single
from spmdir.simulator.value_check import ValueDifference, find_difference, returning_all_values, terms_of
from spmdir.torch_interop.group_registry import resolve_group
from spmdir.torch_interop.schemas import is_random


def check_values_on_ranks(
    module: ModuleOp, pipeline: Pipeline, ranks: Ranks, shards: Sequence[Tensor], whole: Mapping[str, Tensor]
) -> int:
    """Run a program on the ranks, and once whole on each rank, and return how many values this rank compared.

    Partial values are not compared, because no rank has the whole value.

    Args:
        module: the program before localize.
        shards: the arguments of this rank.
        whole: the arguments by name, whole.

    Raises:
        UnsupportedError: the program draws random numbers.
        SpmdirError: an argument or a value differs on a rank; about the first value in program order, on all ranks.
    """
    copy, values, _ = returning_all_values(module, pipeline)
    arguments = list(ir.main_function(copy).args)
    graph = lower_to_fx(copy, ranks.index, pipeline=pipeline).to(ranks.device)
    if any(is_random(node.target) for node in graph.graph.nodes):
        raise UnsupportedError(
            "the program draws random numbers, so its values cannot be compared with one device; expected "
            "a deterministic program: check it without dropout, as with model.eval()"
        )
    attrs.evolve(ranks, compile=None).connect(graph)
    # Clones, because the program may write to its arguments.
    local_values = [*shards, *run_rank(graph, [shard.clone() for shard in shards], ranks)]
    tensors = {name: _of_first_rank(tensor, ranks) for name, tensor in whole.items()}
    references = [*tensors.values(), *run_single(copy, *_by_source(copy, tensors))]
    checked = [*arguments, *values]
    reference_of = dict(zip(checked, references, strict=True))
    first_difference: tuple[int, ValueDifference] | None = None
    compared = 0
    for index, (value, local, reference) in enumerate(zip(checked, local_values, references, strict=True)):
        expected = _expected_shard(value, reference, ranks)
        if expected is None or first_difference is not None:
            continue
        compared += 1
        terms = [reference_of[operand] for operand in terms_of(value) if operand in reference_of]
        difference = find_difference(local, expected, terms)
        first_difference = None if difference is None else (index, difference)
    _raise_first(checked, first_difference, ranks)
    return compared


def _of_first_rank(tensor: Tensor, ranks: Ranks) -> Tensor:
    """Return a tensor with the values that it has on the first rank. Ranks may have different copies of a shard."""
    tensor = tensor.detach().to(ranks.device, copy=True).contiguous()
    dist.broadcast(tensor, ranks.group.numbers[0], _group(ranks))
    return tensor


def _group(ranks: Ranks) -> Any:
    """Return the process group of all ranks of the mesh."""
    return resolve_group(device_groups(ranks.mesh, ranks.device_mesh)(ranks.mesh.axis_names))


def _by_source(module: ModuleOp, tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return (inputs by name, parameters and buffers by name) from the arguments of a call, in function order."""
    function = ir.main_function(module)
    inputs: dict[str, Tensor] = {}
    state: dict[str, Tensor] = {}
    for index, tensor in enumerate(tensors.values()):
        source = inputs if is_call_input(function, index) else state
        source[signature_name(function, "arg_attrs", index)] = tensor
    return inputs, state


def _expected_shard(value: SSAValue, reference: Tensor, ranks: Ranks) -> Tensor | None:
    """Return the shard of this rank of a value of one device; None for a partial value."""
    sharding = sharding_of(value)
    if sharding is None:
        return reference
    if any(placement.trait not in ("shard", "replicated") for _, placement in sharding.entries):
        return None
    return local_tensor(reference, sharding, ranks.mesh, ranks.index)


def _raise_first(
    checked: Sequence[SSAValue], first_difference: tuple[int, ValueDifference] | None, ranks: Ranks
) -> None:
    """Raise SpmdirError on all ranks about the first value that differs on any of them.

    Args:
        checked: the compared values, in program order.
        first_difference: (index in `checked`, difference) of the first value that differs on this rank; None if all
            are equal.
    """
    group = _group(ranks)
    differences: list[tuple[int, ValueDifference] | None] = [None] * dist.get_world_size(group)
    dist.all_gather_object(differences, first_difference, group)
    differing_values = [(entry[0], rank, entry[1]) for rank, entry in enumerate(differences) if entry is not None]
    if not differing_values:
        return
    index, _, difference = min(differing_values, key=lambda entry: entry[:2])
    differing = [rank for other_index, rank, _ in differing_values if other_index == index]
    raise difference.error(checked[index], f" on rank{'s' * (len(differing) > 1)} {', '.join(map(str, differing))}")
