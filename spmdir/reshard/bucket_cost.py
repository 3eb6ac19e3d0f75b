"""What a collective of several tensors costs: one message of all their bytes, packed before and taken apart after."""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs

from spmdir.core.mesh import Mesh
from spmdir.core.placement.tensor import TensorMeta
from spmdir.reshard.cost import Terms, in_turn, node_count, step_sizes, step_terms, terms
from spmdir.reshard.steps import Step
from spmdir.reshard.topology import Topology
from spmdir.reshard.traffic import Sizes


def joining_seconds(step: Step, meta: TensorMeta, mesh: Mesh, topology: Topology) -> float:
    """Return for how much longer a rank works on `step` if it is one of two of a message: packing and unpacking."""
    both = collective_terms((step, step), (meta, meta), mesh, topology)
    alone = collective_terms((step,), (meta,), mesh, topology)
    return (both.copies + both.launches) / 2 - alone.copies - alone.launches


def collective_terms(steps: Sequence[Step], metas: Sequence[TensorMeta], mesh: Mesh, topology: Topology) -> Terms:
    """Return what the time of a collective is made of that does one step, or several of one kind on the same axes.

    Several go as one message. Each is packed into it, which takes a kernel, after what it packs anyway. Sums are views
    of what arrives; of others each result is copied out of it, which is what unpacks it. A measured time is that of one
    tensor, so the copies for several come on top of it.

    Args:
        metas: the global types of the tensors.
    """
    if len(steps) == 1:
        return step_terms(steps[0], metas[0].shape, metas[0].dtype.itemsize, mesh, topology)
    traffic = steps[0].spec.traffic
    each = [step_sizes(step, meta.shape, meta.dtype.itemsize, mesh) for step, meta in zip(steps, metas, strict=True)]
    names = ("source", "target", "chunk", "moved")
    source, target, chunk, moved = (math.fsum(getattr(one, name) for one in each) for name in names)
    if steps[0].spec.loads is not None:  # what stays is no part of the message
        source = target = moved
    packed = [traffic.packed(one) for one in each]
    unpacked = [traffic.copied(one) - before for one, before in zip(each, packed, strict=True)]
    before, after, kernels = source + math.fsum(packed), 0.0, 1 + sum(map(bool, packed))
    if steps[0].spec.is_copied_apart:
        after, kernels = after + target, kernels + len(each)
    if steps[0].spec.arrives_in_parts:
        own = sum(traffic.kernels(one) - bool(before) for one, before in zip(each, packed, strict=True))
        after, kernels = after + math.fsum(unpacked), kernels + own
    joint = attrs.evolve(traffic, packed=lambda _: before, copied=lambda _: before + after, kernels=lambda _: kernels)
    crossing = None if each[0].crossing is None else math.fsum(one.crossing or 0.0 for one in each)
    sizes = Sizes(each[0].group, source, target, chunk, moved=moved, crossing=crossing)
    found = terms(joint, sizes, node_count(steps[0].axes, mesh), topology)
    if not found.measured:
        return found
    modelled = attrs.evolve(topology, costs=None)  # tables measure collectives of one tensor
    both = collective_terms(steps, metas, mesh, modelled)
    alone = in_turn(
        [collective_terms((step,), (meta,), mesh, modelled) for step, meta in zip(steps, metas, strict=True)]
    )
    more = {name: max(0.0, getattr(both, name) - getattr(alone, name)) for name in ("copies", "launches", "packing")}
    return attrs.evolve(found, **more)
