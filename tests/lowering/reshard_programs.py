"""Many reshards in one program, each of an input of its own, and what every rank makes of them."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import torch
from xdsl.dialects.builtin import ModuleOp

from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding
from spmdir.dialects.ir import parse
from spmdir.lowering.emit import lower_to_fx
from spmdir.pipeline.pipeline import run_passes
from spmdir.simulator.distribution import collect, distribute
from spmdir.simulator.lockstep import run_lockstep


@attrs.frozen
class Reshard:
    """One value that goes from one sharding to another."""

    source: Sharding
    target: Sharding
    shape: tuple[int, ...]
    dtype: str = "f64"

    @property
    def type(self) -> str:
        return f"tensor<{'x'.join([*map(str, self.shape), self.dtype])}>"


def text(mesh: Mesh, reshards: Sequence[Reshard]) -> str:
    """The program: argument i becomes result i."""
    arguments = [f"%x{i}: {r.type} {_attribute(r.source)}" for i, r in enumerate(reshards)]
    lines = [f"  %y{i} = spmd.reshard %x{i} : {r.type} <{r.target}>" for i, r in enumerate(reshards)]
    results = [f"{r.type} {_attribute(r.target)}" for r in reshards]
    returned = ", ".join(f"%y{i}" for i in range(len(reshards)))
    return (
        f"spmd.mesh @mesh {mesh}\n\nfunc.func @main({', '.join(arguments)}) -> ({', '.join(results)}) {{\n"
        + "\n".join(lines)
        + f"\n  return {returned} : {', '.join(r.type for r in reshards)}\n}}\n"
    )


def _attribute(sharding: Sharding) -> str:
    return f"{{spmd.sharding = #spmd.sharding<@mesh{', ' if sharding.entries else ''}{sharding}>}}"


def localized(mesh: Mesh, reshards: Sequence[Reshard]) -> ModuleOp:
    """The program of a rank, with the plan of each reshard as it is, not fused with others.

    Plans of fewest bytes are the ones with most kinds of steps.
    """
    return run_passes(parse(text(mesh, reshards)), "lower-reshard{topology=flat},localize")


def pieces_of(mesh: Mesh, reshard: Reshard, value: torch.Tensor) -> list[torch.Tensor]:
    """What each rank holds before; whole numbers hide a partial sum, so that sums are exact."""
    return distribute(value, reshard.source, mesh, lambda tensor: torch.randint_like(tensor, -9, 9))


def simulated(
    mesh: Mesh, reshards: Sequence[Reshard], values: Sequence[torch.Tensor]
) -> list[tuple[torch.Tensor, ...]]:
    """For every reshard, what each rank holds of its value afterwards."""
    return moved(
        mesh, reshards, [pieces_of(mesh, reshard, value) for reshard, value in zip(reshards, values, strict=True)]
    )


def moved(
    mesh: Mesh, reshards: Sequence[Reshard], held: Sequence[Sequence[torch.Tensor]]
) -> list[tuple[torch.Tensor, ...]]:
    """For every reshard, what each rank holds afterwards of what the ranks `held`."""
    module = localized(mesh, reshards)
    programs = [lower_to_fx(module, rank) for rank in range(mesh.world_size)]
    given = [[shards[rank] for shards in held] for rank in range(mesh.world_size)]
    return list(zip(*run_lockstep(programs, given, mesh), strict=True))


def assert_kept(mesh: Mesh, reshard: Reshard, value: torch.Tensor, found: Sequence[torch.Tensor]) -> None:
    """What the ranks hold is `value` as the reshard's target says, to the bit where nothing is partial."""
    where = f"<{reshard.source}> -> <{reshard.target}> of {reshard.type} on {mesh}"
    for rank, shard in enumerate(found):
        assert shard.dtype == value.dtype, where
        assert shard.shape == reshard.target.local_shape(reshard.shape, mesh, mesh.coordinate(rank)), where
    if reshard.target.partial:
        assert torch.equal(collect(found, reshard.target, mesh, value.shape), value), where
        return
    for shard, wanted in zip(found, distribute(value, reshard.target, mesh, torch.zeros_like), strict=True):
        assert torch.equal(bits(shard), bits(wanted)), where


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor."""
    return tensor.contiguous().flatten().view(torch.uint8)
