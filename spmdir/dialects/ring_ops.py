"""Ops of rings: local tensors that go from rank to rank, and the states that packed placements combine.

They occur only in local forms, so after localize: their types are those of one rank.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import attrs
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import irdl_op_definition, traits_def
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from spmdir.core.errors import ShardingError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.call import Local
from spmdir.core.placement.packed import PackedPlacement, joint_placement
from spmdir.core.placement.tensor import TensorMeta
from spmdir.dialects.attributes import DYNAMIC, meta_of, pending_type, type_of
from spmdir.dialects.collectives import check_waited
from spmdir.dialects.stage import is_local
from spmdir.dialects.value_op import ValueOp


class LocalFormOp(ValueOp):
    """Base of the ops that stand only in local forms."""

    traits = traits_def(Pure())

    def check(self, mesh: Mesh | None) -> None:
        super().check(mesh)
        if mesh is None or not is_local(self.parent_op()):
            raise ShardingError("is about the tensors of one rank; only a function after localize has such ops")
        self.check_form(mesh)

    def require_known(self, *known: str) -> None:
        """Raise VerifyException for an argument that is not in `known`."""
        for name in self.argument:
            if name not in known:
                raise VerifyException(f"has no argument '{name}'; expected {', '.join(known)} alone")

    def check_form(self, mesh: Mesh) -> None:
        """Raise SpmdirError unless operands, arguments and results are what the op takes and gives."""
        raise NotImplementedError

    def require(self, operands: int, results: int) -> None:
        """Raise VerifyException unless the op has as many operands and results."""
        if (len(self.operands), len(self.results)) != (operands, results):
            raise VerifyException(
                f"takes {len(self.operands)} tensors and gives {len(self.results)}; expected {operands} and {results}"
            )

    def expect(self, metas: tuple[TensorMeta | None, ...]) -> None:
        """Raise VerifyException unless the results have the types `metas`, as far as sizes are known on both sides."""
        for found, expected in zip(self.metas, metas, strict=True):
            if found is None or expected is None or not _agree(found, expected):
                raise VerifyException(f"gives {found}; expected {expected}")

    @property
    def given(self) -> tuple[TensorMeta | None, ...]:
        """Return the types of the operands."""
        return tuple(meta_of(operand.type) for operand in self.operands)


def check_axes(axes: Any, mesh: Mesh) -> None:
    """Raise SpmdirError unless `axes` is a list of mesh axes, each once."""
    if not isinstance(axes, tuple) or not axes or not all(isinstance(axis, str) for axis in axes):
        raise VerifyException("expected the axes as a list of names, as in `on [dp, tp]`")
    for axis in axes:
        mesh.require(str(axis))
    if len(set(axes)) < len(axes):
        raise VerifyException(f"goes along [{', '.join(map(str, axes))}]; expected each axis once")


def _agree(found: TensorMeta, expected: TensorMeta) -> bool:
    sizes = zip(found.shape, expected.shape, strict=False)
    same = all(a == b or DYNAMIC in (a, b) for a, b in sizes)
    return found.dtype == expected.dtype and found.rank == expected.rank and same


class RotationOp(LocalFormOp):
    """Base of the ops that send each rank's tensor to another of its ring."""

    PARENTHESISED: ClassVar[bool] = False
    CLAUSES: ClassVar = (("on", "axes"), ("steps", "steps"))
    IS_START: ClassVar[bool] = False
    """Whether the op only starts to send: its result is pending, and `spmd.wait` gives the tensor."""

    @property
    def axes(self) -> tuple[str, ...]:
        """Return the mesh axes along which the ranks are in a ring, major first."""
        return tuple(map(str, self.argument["axes"]))  # type: ignore  # verified

    @property
    def pairs(self) -> Sequence[tuple[SSAValue, SSAValue]]:
        """Return the tensor that it takes with what it becomes, as of other collectives."""
        return [(self.operands[0], self.results[0])]

    @property
    def steps(self) -> int:
        """Return how many ranks on a tensor goes."""
        return self.argument.get("steps", 1)  # type: ignore  # verified

    def sent(self, mesh: Mesh) -> int:
        """Return the bytes that the busiest rank sends."""
        meta, count = meta_of(self.operands[0].type), mesh.group_size(self.axes)
        assert meta is not None  # verified
        sizes: tuple[int, ...] = self.argument.get("largest", meta.shape)  # type: ignore  # verified
        return math.prod(sizes) * meta.dtype.itemsize if self.steps % count else 0

    def check_form(self, mesh: Mesh) -> None:
        self.require(1, 1)
        self.require_known("axes", "steps", "largest")
        argument = self.argument
        axes, steps = argument.get("axes"), argument.get("steps", 1)
        check_axes(axes, mesh)
        if type(steps) is not int or steps < 1:
            raise VerifyException(f"goes {steps!r} steps; expected a number from 1 on")
        self.expect(self.given)
        meta, largest = self.metas[0], argument.get("largest")
        assert meta is not None  # it is the operand's
        sized = isinstance(largest, tuple) and all(type(size) is int and size >= 0 for size in largest)
        if (DYNAMIC in meta.shape or largest is not None) and not (sized and len(largest) == meta.rank):  # type: ignore
            raise VerifyException(f"has the largest sizes {largest!r}; expected {meta.rank} numbers")


@irdl_op_definition
class RotateOp(RotationOp):
    """`rotate %x on [cp] steps 1`: each rank's tensor goes `steps` ranks on along the axes, major first, and round.

    All ranks of a group have tensors of one shape. Without `steps` it is one. Where other axes shard the tensor
    unevenly, `largest` lists the sizes on the rank with the largest.
    """

    name = "spmd.rotate"


@irdl_op_definition
class RotateStartOp(RotationOp):
    """`rotate_start %x on [cp]`: starts what `rotate` does; `spmd.wait` gives what the rank receives."""

    name = "spmd.rotate_start"
    IS_START: ClassVar[bool] = True

    @classmethod
    def result_type(cls, meta: TensorMeta | None) -> Attribute:
        return pending_type(meta) if meta else type_of(meta)

    def check_form(self, mesh: Mesh) -> None:
        super().check_form(mesh)
        check_waited(self)


@irdl_op_definition
class AssembleOp(LocalFormOp):
    """`assemble(%x, %y, %z) {axes = ["cp"], dim = 0}`: the blocks of all ranks of a ring, joined in the order of ranks.

    The first operand is the block of the rank itself, each further one that of the rank before.
    """

    name = "spmd.assemble"

    @property
    def axes(self) -> tuple[str, ...]:
        """Return the mesh axes along which the ranks are in a ring, major first."""
        return tuple(map(str, self.argument["axes"]))  # type: ignore  # verified

    @property
    def dim(self) -> int:
        """Return the dimension along which the blocks are joined."""
        return self.argument["dim"]  # type: ignore  # verified

    def check_form(self, mesh: Mesh) -> None:
        self.require_known("axes", "dim")
        dim = self.argument.get("dim")
        check_axes(self.argument.get("axes"), mesh)
        count, first = mesh.group_size(self.axes), self.given[0] if self.given else None
        self.require(count, 1)
        if first is None or type(dim) is not int or not 0 <= dim < first.rank:
            raise VerifyException(f"joins along dimension {dim!r}; expected one of {first}")
        if any(meta is None or not _agree(meta, first) for meta in self.given):
            raise VerifyException(f"joins {', '.join(map(str, self.given))}; expected blocks of one type")
        size = first.shape[dim]
        joined = DYNAMIC if size == DYNAMIC else size * count
        self.expect((TensorMeta((*first.shape[:dim], joined, *first.shape[dim + 1 :]), first.dtype),))


@irdl_op_definition
class ChooseOp(LocalFormOp):
    """`choose(%new, %old) {when = reaches(…)}`: the first where the rank's own number is not 0, else the second.

    What a rank does not choose it does not compute.
    """

    name = "spmd.choose"

    def check_form(self, mesh: Mesh) -> None:
        self.require(2, 1)
        self.require_known("when")
        when = self.argument.get("when")
        if not isinstance(when, Local) or when.kind == "shard":
            found = when if isinstance(when, Local) else repr(when)
            raise VerifyException(f"chooses by {found}; expected a rank's own number, as in `size(8, cp)`")
        for axis in when.all_axes:
            mesh.require(axis)
        new, old = self.given
        if new is None or old is None or not _agree(new, old):
            raise VerifyException(f"chooses between {new} and {old}; expected tensors of one type")
        self.expect((old,))


class StateOp(LocalFormOp):
    """Base of the ops on states of a packed placement, whose name `by` says."""

    METHOD: ClassVar[str]

    @property
    def placement(self) -> PackedPlacement:
        """Return the packed placement."""
        return joint_placement(str(self.argument["by"]))

    def check_form(self, mesh: Mesh) -> None:
        self.require_known("by")
        by = self.argument.get("by")
        if not isinstance(by, str):
            raise VerifyException('expected the name of a packed placement, as in `{by = "Attended"}`')
        self.check_state(len(joint_placement(by).parts))

    def check_state(self, parts: int) -> None:
        """Raise VerifyException unless the op is one of states of as many parts."""
        raise NotImplementedError


@irdl_op_definition
class IdentityOp(StateOp):
    """`identity(%a, %b) {by = "Attended"}`: the state that leaves others as they are, its parts like the operands."""

    name = "spmd.identity"
    METHOD: ClassVar[str] = "identity"

    def check_state(self, parts: int) -> None:
        self.require(parts, parts)
        self.expect(self.given)


@irdl_op_definition
class CombineOp(StateOp):
    """`combine(%a, %b, %c, %d) {by = "Attended"}`: the state of two, whose parts follow one another."""

    name = "spmd.combine"
    METHOD: ClassVar[str] = "combine"

    def check_state(self, parts: int) -> None:
        self.require(2 * parts, parts)
        for left, right in zip(self.given[:parts], self.given[parts:], strict=True):
            if left is None or right is None or not _agree(left, attrs.evolve(right, dtype=left.dtype)):
                raise VerifyException(f"combines a part {left} with {right}; expected states of the same shapes")
        self.expect(self.given[:parts])


@irdl_op_definition
class FinishOp(StateOp):
    """`finish(%a, %b) {by = "Attended"}`: the results of the op, of the state of all ranks."""

    name = "spmd.finish"
    METHOD: ClassVar[str] = "finish"

    def check_state(self, parts: int) -> None:
        self.require(parts, len(self.placement.results) or parts)


@irdl_op_definition
class PackOp(StateOp):
    """`pack(%a, %b) {by = "Attended"}`: a state as one tensor, which is what a rank holds of a packed placement."""

    name = "spmd.pack"
    METHOD: ClassVar[str] = "pack"

    def check_state(self, parts: int) -> None:
        self.require(parts, 1)
        if any(meta is None or DYNAMIC in meta.shape for meta in self.given):
            return
        types = [(meta.shape, meta.dtype) for meta in self.given if meta is not None]
        self.expect((TensorMeta(*self.placement.packed_type(types)),))


RING_CLASSES: dict[str, type[LocalFormOp]] = {
    op.name: op for op in (RotateOp, RotateStartOp, AssembleOp, ChooseOp, IdentityOp, CombineOp, FinishOp, PackOp)
}
"""Name of an op → its class."""
