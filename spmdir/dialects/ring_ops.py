"""Ops of local forms: rotations of local tensors around a ring of ranks, and ops on states of packed placements.

The ops occur only after localize, so their types are local.
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
from spmdir.core.placement.packed import PackedPlacement, find_packed_placement
from spmdir.core.placement.tensor import TensorMeta
from spmdir.dialects.attributes import DYNAMIC, meta_of, pending_type, type_of
from spmdir.dialects.collectives import check_waited
from spmdir.dialects.stage import is_local
from spmdir.dialects.value_op import ValueOp


class LocalFormOp(ValueOp):
    """Base class of the ops that occur only in local forms."""

    traits = traits_def(Pure())

    def check(self, mesh: Mesh | None) -> None:
        super().check(mesh)
        if mesh is None or not is_local(self.parent_op()):
            raise ShardingError(
                "operates on the tensors of one rank, but the function has global tensors; expected it only "
                "after localize: run localize, or remove the op"
            )
        self.check_form(mesh)

    def check_argument_names(self, *expected_names: str) -> None:
        """Raise VerifyException if an argument is not in `expected_names`."""
        for name in self.argument:
            if name not in expected_names:
                raise VerifyException(f"has the unknown argument '{name}'; expected only {', '.join(expected_names)}")

    def check_form(self, mesh: Mesh) -> None:
        """Raise SpmdirError unless the operands, arguments and results are valid for the op."""
        raise NotImplementedError

    def check_value_counts(self, operands: int, results: int) -> None:
        """Raise VerifyException unless the op has this many operands and results."""
        if (len(self.operands), len(self.results)) != (operands, results):
            raise VerifyException(
                f"has {len(self.operands)} operands and {len(self.results)} results; expected {operands} and {results}"
            )

    def check_result_types(self, expected_metas: tuple[TensorMeta | None, ...]) -> None:
        """Raise VerifyException unless the results have the types `expected_metas`; a DYNAMIC size equals any size."""
        for result_meta, expected_meta in zip(self.metas, expected_metas, strict=True):
            if result_meta is None or expected_meta is None or not _are_equal(result_meta, expected_meta):
                raise VerifyException(f"returns {result_meta}; expected {expected_meta}")

    @property
    def operand_metas(self) -> tuple[TensorMeta | None, ...]:
        """Return the types of the operands."""
        return tuple(meta_of(operand.type) for operand in self.operands)


def check_axes(axes: Any, mesh: Mesh) -> None:
    """Raise SpmdirError unless `axes` is a list of mesh axes, each once."""
    if not isinstance(axes, tuple) or not axes or not all(isinstance(axis, str) for axis in axes):
        raise VerifyException("expected the axes as a list of names, as in `on [dp, tp]`")
    for axis in axes:
        mesh.require(str(axis))
    if len(set(axes)) < len(axes):
        raise VerifyException(f"has the axes [{', '.join(map(str, axes))}]; expected each axis once")


def _are_equal(left: TensorMeta, right: TensorMeta) -> bool:
    """Return whether two types are equal, where a DYNAMIC size equals any size."""
    if left.dtype != right.dtype or left.rank != right.rank:
        return False
    sizes = zip(left.shape, right.shape, strict=True)
    return all(left_size == right_size or DYNAMIC in (left_size, right_size) for left_size, right_size in sizes)


class RotationOp(LocalFormOp):
    """Base class of the ops that send each rank's tensor to another rank of its ring."""

    PARENTHESISED: ClassVar[bool] = False
    CLAUSES: ClassVar = (("on", "axes"), ("steps", "steps"))
    IS_START: ClassVar[bool] = False
    """Whether the op only starts to send: its result is pending, and `spmd.wait` returns the tensor."""

    @property
    def axes(self) -> tuple[str, ...]:
        """Return the mesh axes along which the ranks are in a ring, major first."""
        return tuple(map(str, self.argument["axes"]))  # type: ignore  # verified

    @property
    def pairs(self) -> Sequence[tuple[SSAValue, SSAValue]]:
        """Return (operand, result), as `Collective.pairs` does."""
        return [(self.operands[0], self.results[0])]

    @property
    def steps(self) -> int:
        """Return the distance in the ring between sender and receiver, in ranks."""
        return self.argument.get("steps", 1)  # type: ignore  # verified

    def sent(self, mesh: Mesh) -> int:
        """Return the bytes that the busiest rank sends."""
        meta, count = meta_of(self.operands[0].type), mesh.group_size(self.axes)
        assert meta is not None  # verified
        sizes: tuple[int, ...] = self.argument.get("largest", meta.shape)  # type: ignore  # verified
        return math.prod(sizes) * meta.dtype.itemsize if self.steps % count else 0

    def check_form(self, mesh: Mesh) -> None:
        """Raise SpmdirError unless operand and result have one type, and the arguments are valid.

        `largest` is required if a size of the type is DYNAMIC.
        """
        self.check_value_counts(1, 1)
        self.check_argument_names("axes", "steps", "largest")
        argument = self.argument
        axes, steps = argument.get("axes"), argument.get("steps", 1)
        check_axes(axes, mesh)
        if type(steps) is not int or steps < 1:
            raise VerifyException(f"has steps {steps!r}; expected an integer of at least 1")
        self.check_result_types(self.operand_metas)
        meta, largest = self.metas[0], argument.get("largest")
        assert meta is not None  # its type is that of the operand
        is_shape = isinstance(largest, tuple) and all(type(size) is int and size >= 0 for size in largest)
        if (DYNAMIC in meta.shape or largest is not None) and not (is_shape and len(largest) == meta.rank):  # type: ignore
            raise VerifyException(
                f"has largest {largest!r}; expected {meta.rank} sizes: those of the largest local tensor"
            )


@irdl_op_definition
class RotateOp(RotationOp):
    """`rotate %x on [cp] steps 1`: each rank sends its tensor to the rank `steps` positions later in the ring.

    The ring contains the ranks along the axes, major first. `steps` is 1 by default. All ranks of a group have tensors
    of one shape. If other axes shard the tensor unevenly, `largest` lists the sizes of the largest local tensor.
    """

    name = "spmd.rotate"


@irdl_op_definition
class RotateStartOp(RotationOp):
    """`rotate_start %x on [cp]`: start a `rotate`; `spmd.wait` returns the received tensor."""

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
    """`assemble(%x, %y, %z) {axes = ["cp"], dim = 0}`: concatenate the blocks of a ring, in the order of its ranks.

    The first operand is the block of this rank, the second the block of the previous rank, and so on.
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
        """Raise SpmdirError unless there is one block of equal type for each rank, and the result joins all of them."""
        self.check_argument_names("axes", "dim")
        dim = self.argument.get("dim")
        check_axes(self.argument.get("axes"), mesh)
        count, first_meta = mesh.group_size(self.axes), self.operand_metas[0] if self.operand_metas else None
        self.check_value_counts(count, 1)
        if first_meta is None or type(dim) is not int or not 0 <= dim < first_meta.rank:
            raise VerifyException(f"has dim {dim!r}; expected a dimension of its operands, {first_meta}")
        if any(meta is None or not _are_equal(meta, first_meta) for meta in self.operand_metas):
            raise VerifyException(
                f"has the operands {', '.join(map(str, self.operand_metas))}; expected tensors of one type"
            )
        size = first_meta.shape[dim]
        joined_size = DYNAMIC if size == DYNAMIC else size * count
        self.check_result_types(
            (TensorMeta((*first_meta.shape[:dim], joined_size, *first_meta.shape[dim + 1 :]), first_meta.dtype),)
        )


@irdl_op_definition
class ChooseOp(LocalFormOp):
    """`choose(%new, %old) {when = reaches(…)}`: the first operand on ranks where `when` is not 0, else the second.

    A rank does not compute the operand that it does not choose.
    """

    name = "spmd.choose"

    def check_form(self, mesh: Mesh) -> None:
        """Raise SpmdirError unless both operands and the result have one type, and `when` depends on the rank."""
        self.check_value_counts(2, 1)
        self.check_argument_names("when")
        when = self.argument.get("when")
        if not isinstance(when, Local) or when.kind == "shard":
            shown = when if isinstance(when, Local) else repr(when)
            raise VerifyException(
                f"has when = {shown}; expected a number that depends on the rank, as in `size(8, cp)`"
            )
        for axis in when.all_axes:
            mesh.require(axis)
        new, old = self.operand_metas
        if new is None or old is None or not _are_equal(new, old):
            raise VerifyException(f"has the operands {new} and {old}; expected tensors of one type")
        self.check_result_types((old,))


class StateOp(LocalFormOp):
    """Base class of the ops on states of the packed placement that the argument `by` names."""

    METHOD: ClassVar[str]
    """The method of the packed placement that computes the op."""

    @property
    def placement(self) -> PackedPlacement:
        """Return the packed placement."""
        return find_packed_placement(str(self.argument["by"]))

    def check_form(self, mesh: Mesh) -> None:
        """Raise SpmdirError unless `by` names a packed placement and the values are states of this placement."""
        self.check_argument_names("by")
        placement_name = self.argument.get("by")
        if not isinstance(placement_name, str):
            raise VerifyException('expected the name of a packed placement, as in `{by = "Attended"}`')
        self.check_state(len(find_packed_placement(placement_name).parts))

    def check_state(self, parts: int) -> None:
        """Raise VerifyException unless the operands and results are states with this number of parts."""
        raise NotImplementedError


@irdl_op_definition
class IdentityOp(StateOp):
    """`identity(%a, %b) {by = "Attended"}`: the neutral state of `combine`, with the types of the operands."""

    name = "spmd.identity"
    METHOD: ClassVar[str] = "identity"

    def check_state(self, parts: int) -> None:
        self.check_value_counts(parts, parts)
        self.check_result_types(self.operand_metas)


@irdl_op_definition
class CombineOp(StateOp):
    """`combine(%a, %b, %c, %d) {by = "Attended"}`: combine the states (%a, %b) and (%c, %d)."""

    name = "spmd.combine"
    METHOD: ClassVar[str] = "combine"

    def check_state(self, parts: int) -> None:
        self.check_value_counts(2 * parts, parts)
        for left, right in zip(self.operand_metas[:parts], self.operand_metas[parts:], strict=True):
            # Only shapes are compared.
            if left is None or right is None or not _are_equal(left, attrs.evolve(right, dtype=left.dtype)):
                raise VerifyException(f"combines a part {left} with {right}; expected states of the same shapes")
        self.check_result_types(self.operand_metas[:parts])


@irdl_op_definition
class FinishOp(StateOp):
    """`finish(%a, %b) {by = "Attended"}`: compute the results of the op from the combined state of all ranks."""

    name = "spmd.finish"
    METHOD: ClassVar[str] = "finish"

    def check_state(self, parts: int) -> None:
        self.check_value_counts(parts, len(self.placement.results) or parts)


@irdl_op_definition
class PackOp(StateOp):
    """`pack(%a, %b) {by = "Attended"}`: pack a state into one tensor, the local tensor of a packed placement."""

    name = "spmd.pack"
    METHOD: ClassVar[str] = "pack"

    def check_state(self, parts: int) -> None:
        self.check_value_counts(parts, 1)
        if any(meta is None or DYNAMIC in meta.shape for meta in self.operand_metas):
            return
        types = [(meta.shape, meta.dtype) for meta in self.operand_metas if meta is not None]
        self.check_result_types((TensorMeta(*self.placement.packed_type(types)),))


RING_CLASSES: dict[str, type[LocalFormOp]] = {
    op.name: op for op in (RotateOp, RotateStartOp, AssembleOp, ChooseOp, IdentityOp, CombineOp, FinishOp, PackOp)
}
"""Name of an op → its class."""
