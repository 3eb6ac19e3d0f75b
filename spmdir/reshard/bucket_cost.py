"""The cost of a bucket: one message with the bytes of all members, with the copies that pack and unpack it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs

from spmdir.core.mesh import Mesh
from spmdir.core.placement.tensor import TensorMeta
from spmdir.reshard.cost import Terms, add_terms, node_count, step_sizes, step_terms, terms
from spmdir.reshard.steps import Step
from spmdir.reshard.topology import Topology
from spmdir.reshard.traffic import Sizes


def added_bucket_seconds(step: Step, meta: TensorMeta, mesh: Mesh, topology: Topology) -> float:
    """Return the added seconds of packing and unpacking for `step`, if it joins a bucket of two equal members."""
    both = collective_terms((step, step), (meta, meta), mesh, topology)
    alone = collective_terms((step,), (meta,), mesh, topology)
    return (both.copies + both.launches) / 2 - alone.copies - alone.launches


def collective_terms(steps: Sequence[Step], metas: Sequence[TensorMeta], mesh: Mesh, topology: Topology) -> Terms:
    """Return the terms of the time of one step, or of a bucket of several steps of one kind on the same axes.

    A bucket is one message. One more kernel packs all members into it, after the packing that each needs alone. Results
    of reductions are views of the received buffer. Other results are copied out of it. A measured time is for one
    tensor, so the copies of a bucket are added to it.

    Args:
        steps: the steps of the members.
        metas: the global types of their tensors.
    """
    if len(steps) == 1:
        return step_terms(steps[0], metas[0].shape, metas[0].dtype.itemsize, mesh, topology)
    traffic = steps[0].spec.traffic
    member_sizes = [
        step_sizes(step, meta.shape, meta.dtype.itemsize, mesh) for step, meta in zip(steps, metas, strict=True)
    ]
    names = ("source", "target", "chunk", "moved")
    source, target, chunk, moved = (
        math.fsum(getattr(sizes_of_one, name) for sizes_of_one in member_sizes) for name in names
    )
    if steps[0].spec.loads is not None:  # elements that stay on their rank are not in the message
        source = target = moved
    packed = [traffic.packed(sizes_of_one) for sizes_of_one in member_sizes]
    unpacked = [
        traffic.copied(sizes_of_one) - before for sizes_of_one, before in zip(member_sizes, packed, strict=True)
    ]
    before, after, kernels = source + math.fsum(packed), 0.0, 1 + sum(map(bool, packed))
    if steps[0].spec.is_copied_apart:
        after, kernels = after + target, kernels + len(member_sizes)
    if steps[0].spec.arrives_in_parts:
        unpacking_kernels = sum(
            traffic.kernels(sizes_of_one) - bool(before)
            for sizes_of_one, before in zip(member_sizes, packed, strict=True)
        )
        after, kernels = after + math.fsum(unpacked), kernels + unpacking_kernels
    bucket_traffic = attrs.evolve(
        traffic, packed=lambda _: before, copied=lambda _: before + after, kernels=lambda _: kernels
    )
    crossing = (
        None
        if member_sizes[0].crossing is None
        else math.fsum(sizes_of_one.crossing or 0.0 for sizes_of_one in member_sizes)
    )
    sizes = Sizes(member_sizes[0].group, source, target, chunk, moved=moved, crossing=crossing)
    bucket_terms = terms(bucket_traffic, sizes, node_count(steps[0].axes, mesh), topology)
    if not bucket_terms.measured:
        return bucket_terms
    modelled = attrs.evolve(topology, costs=None)  # tables measure collectives of one tensor
    both = collective_terms(steps, metas, mesh, modelled)
    alone = add_terms(
        [collective_terms((step,), (meta,), mesh, modelled) for step, meta in zip(steps, metas, strict=True)]
    )
    extra = {name: max(0.0, getattr(both, name) - getattr(alone, name)) for name in ("copies", "launches", "packing")}
    return attrs.evolve(bucket_terms, **extra)
