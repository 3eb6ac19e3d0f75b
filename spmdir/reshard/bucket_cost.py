"""The cost of a bucket: one message with the bytes of all members, with the copies that pack and unpack it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs

from spmdir.core.mesh import Mesh
from spmdir.core.placement.tensor import TensorMeta
from spmdir.reshard.collective_spec import CollectiveSpec
from spmdir.reshard.cost import Terms, add_terms, node_count, step_sizes, step_terms, terms
from spmdir.reshard.steps import Step
from spmdir.reshard.topology import Topology
from spmdir.reshard.traffic import Sizes, Traffic


def added_bucket_seconds(step: Step, meta: TensorMeta, mesh: Mesh, topology: Topology) -> float:
    """Return the added seconds of packing and unpacking for `step`, if it joins a bucket of two equal members.

    Args:
        meta: the global type of its tensor.
    """
    bucket = collective_terms((step, step), (meta, meta), mesh, topology)
    alone = collective_terms((step,), (meta,), mesh, topology)
    return (bucket.copies + bucket.launches) / 2 - alone.copies - alone.launches


def collective_terms(steps: Sequence[Step], metas: Sequence[TensorMeta], mesh: Mesh, topology: Topology) -> Terms:
    """Return the terms of the time of one step, or of a bucket of several steps of one kind on the same axes.

    A bucket is one message. One more kernel packs all members into it, after the packing that each needs alone. Results
    of reductions are views of the received buffer. Other results are copied out of it. A measured time is for one
    tensor, so the modelled time of the additional copies of a bucket is added to it.

    Args:
        steps: the steps of the members.
        metas: the global types of their tensors.
    """
    if len(steps) == 1:
        return step_terms(steps[0], metas[0].shape, metas[0].dtype.itemsize, mesh, topology)
    member_sizes = [
        step_sizes(step, meta.shape, meta.dtype.itemsize, mesh) for step, meta in zip(steps, metas, strict=True)
    ]
    names = ("source", "target", "chunk", "moved")
    source, target, chunk, moved = (math.fsum(getattr(member, name) for member in member_sizes) for name in names)
    if steps[0].spec.loads is not None:  # elements that stay on their rank are not in the message
        source = target = moved
    crossing = None
    if member_sizes[0].crossing is not None:
        crossing = math.fsum(member.crossing or 0.0 for member in member_sizes)
    sizes = Sizes(member_sizes[0].group, source, target, chunk, moved=moved, crossing=crossing)
    bucket_traffic = _bucket_traffic(steps[0].spec, member_sizes, source, target)
    bucket_terms = terms(bucket_traffic, sizes, node_count(steps[0].axes, mesh), topology)
    if not bucket_terms.measured:
        return bucket_terms
    # Add the copies that the model has for the bucket, beyond those that it has for the members alone.
    without_table = attrs.evolve(topology, costs=None)
    modelled_bucket = collective_terms(steps, metas, mesh, without_table)
    modelled_members = add_terms(
        [collective_terms((step,), (meta,), mesh, without_table) for step, meta in zip(steps, metas, strict=True)]
    )
    added_copies = {
        name: max(0.0, getattr(modelled_bucket, name) - getattr(modelled_members, name))
        for name in ("copies", "launches", "packing")
    }
    return attrs.evolve(bucket_terms, **added_copies)


def _bucket_traffic(spec: CollectiveSpec, member_sizes: Sequence[Sizes], source: float, target: float) -> Traffic:
    """Return the traffic of a bucket, with the copies and kernels of all members.

    Args:
        source, target: the bytes of the message before and after the transfer.
    """
    traffic = spec.traffic
    # One kernel packs all members into the message, after those that pack one member each.
    packed_bytes = [traffic.packed(member) for member in member_sizes]
    bytes_before, bytes_after = source + math.fsum(packed_bytes), 0.0
    kernels = 1 + sum(map(bool, packed_bytes))
    if spec.is_copied_apart:  # one kernel for each member copies its result out of the message
        bytes_after += target
        kernels += len(member_sizes)
    if spec.arrives_in_parts:  # each member is unpacked as if it were alone
        members = list(zip(member_sizes, packed_bytes, strict=True))
        # Packing is counted above: subtract its bytes and, for each packed member, its kernel.
        bytes_after += math.fsum(traffic.copied(member) - packed for member, packed in members)
        kernels += sum(traffic.kernels(member) - bool(packed) for member, packed in members)
    return attrs.evolve(
        traffic,
        packed=lambda _: bytes_before,
        copied=lambda _: bytes_before + bytes_after,
        kernels=lambda _: kernels,
    )
