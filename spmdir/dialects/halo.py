"""The ops that exchange halos, for convolutions and pools over a sharded dimension.

The ops occur only in local forms after localize, so their types are local.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

from xdsl.ir import SSAValue
from xdsl.irdl import irdl_op_definition, traits_def
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from spmdir.core.errors import ShardingError
from spmdir.core.mesh import Mesh
from spmdir.dialects.attributes import DYNAMIC, meta_of
from spmdir.dialects.stage import is_local
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.values import global_type, sharding_of

FILLS: dict[str, float] = {"zero": 0.0, "lowest": float("-inf")}
"""Name of a fill → the elements beyond the first and the last chunk."""


class HaloExchangeOp(ValueOp):
    """Base class of the halo ops. They change the size of dimension `dim` by `before + after` elements."""

    PARENTHESISED: ClassVar[bool] = False
    traits = traits_def(Pure())
    GROWS: ClassVar[int]
    """1 if the op adds the halos to its operand, -1 if it removes them."""

    @property
    def axes(self) -> tuple[str, ...]:
        """Return the mesh axes that shard the dimension, major first."""
        return tuple(map(str, self.argument["axes"]))  # type: ignore  # verified

    @property
    def dim(self) -> int:
        """Return the dimension that the windows slide over."""
        return self._number("dim")

    @property
    def before(self) -> int:
        """Return the length of the halo that belongs to the previous chunk, in elements of `dim`."""
        return self._number("before")

    @property
    def after(self) -> int:
        """Return the length of the halo that belongs to the following chunk, in elements of `dim`."""
        return self._number("after")

    @property
    def fill(self) -> str:
        """Return the fill before the first and after the last chunk, a key of FILLS."""
        return str(self.argument.get("fill", "zero"))

    def _number(self, name: str) -> int:
        """Return an argument that is a number."""
        return self.argument[name]  # type: ignore  # verified

    def sent(self, mesh: Mesh) -> int:
        """Return the bytes that the busiest rank sends: both halos, or the larger one if there are two ranks."""
        meta, count = meta_of(self.operands[0].type), mesh.group_size(self.axes)
        if meta is None or count == 1:
            return 0
        sent_length = self.before + self.after if count > 2 else max(self.before, self.after)
        shape = _largest_local_shape(self.operands[0], mesh)
        other_sizes = [size for dim, size in enumerate(shape) if dim != self.dim]
        return sent_length * math.prod(other_sizes) * meta.dtype.itemsize

    def check(self, mesh: Mesh | None) -> None:
        """Raise SpmdirError unless the arguments are valid, and the halos are the difference of operand and result."""
        super().check(mesh)
        function = self.parent_op()
        if mesh is None or not is_local(function):
            raise ShardingError(
                "exchanges halos of local tensors in a function of global tensors; expected a function "
                "after localize: run localize, or remove the op"
            )
        metas = [meta_of(value.type) for value in (*self.operands, *self.results)]
        if len(self.operands) != 1 or len(self.results) != 1 or None in metas:
            raise VerifyException("has other operands or results; expected one tensor as operand and one as result")
        source, target = metas
        argument: dict[str, Any] = self.argument
        axes = argument.get("axes")
        if not isinstance(axes, tuple) or not axes or not all(isinstance(axis, str) for axis in axes):
            raise VerifyException("expected the axes as a list of names, as in `on [dp, tp]`")
        for axis in axes:
            mesh.require(axis)
        for name in ("dim", "before", "after"):
            if type(argument.get(name)) is not int or argument[name] < 0:
                raise VerifyException(f"expected `{name}` with a number of at least 0, found {argument.get(name)!r}")
        if argument.get("fill", "zero") not in FILLS:
            raise VerifyException(f"has the fill {argument['fill']!r}; expected {' or '.join(FILLS)}")
        assert source is not None and target is not None
        shape = list(source.shape)
        if self.dim >= len(shape):
            raise VerifyException(f"has dim {self.dim}; expected one of the {len(shape)} dimensions of its operand")
        if shape[self.dim] != DYNAMIC:
            shape[self.dim] += self.GROWS * (self.before + self.after)
        if list(target.shape) != shape or source.dtype != target.dtype:
            result_shape = ["?" if size == DYNAMIC else size for size in target.shape]
            expected = ["?" if size == DYNAMIC else size for size in shape]
            raise VerifyException(
                f"has a result of shape {result_shape} and {target.dtype}; expected {expected} and {source.dtype}"
            )


@irdl_op_definition
class HaloOp(HaloExchangeOp):
    """`halo %x on [tp] dim 2 before 1 after 1 fill zero`: a chunk between its neighbours' halos.

    `fill` is the halo before the first and after the last chunk.
    """

    name = "spmd.halo"
    GROWS: ClassVar[int] = 1
    CLAUSES: ClassVar = (("on", "axes"), ("dim", "dim"), ("before", "before"), ("after", "after"), ("fill", "fill"))


@irdl_op_definition
class HaloReduceOp(HaloExchangeOp):
    """`halo_reduce %y on [tp] dim 2 before 1 after 1`: the halos are removed and added to the neighbours' chunks.

    The transpose of halo; the halos beyond the first and the last chunk are dropped.
    """

    name = "spmd.halo_reduce"
    GROWS: ClassVar[int] = -1
    CLAUSES: ClassVar = (("on", "axes"), ("dim", "dim"), ("before", "before"), ("after", "after"))


HALO_CLASSES: dict[str, type[HaloExchangeOp]] = {op.name: op for op in (HaloOp, HaloReduceOp)}
"""Name of an op → its class."""


def _largest_local_shape(value: SSAValue, mesh: Mesh) -> tuple[int, ...]:
    """Return the local shape of `value` on the first rank, whose chunks are the longest.

    A size that differs between ranks is missing in the type of a value in a local form. The operand of a halo and the
    result of a halo-reduce have the same size, so it is read from them. Without such an op, the size counts as 1.
    """
    sharding = sharding_of(value)
    if sharding is not None:
        global_meta = global_type(value, mesh)
        assert global_meta is not None  # a tensor
        return sharding.local_type(global_meta, mesh, mesh.coordinate(0)).shape
    meta = meta_of(value.type)
    shape = meta.shape if meta else ()
    reduces = [use.operation for use in value.uses if isinstance(use.operation, HaloReduceOp)]
    if DYNAMIC not in shape or not (reduces or isinstance(value.owner, HaloOp)):
        return tuple(1 if size == DYNAMIC else size for size in shape)
    reference_value = value.owner.operands[0] if isinstance(value.owner, HaloOp) else reduces[0].results[0]
    reference = _largest_local_shape(reference_value, mesh)
    return tuple(known_size if size == DYNAMIC else size for size, known_size in zip(shape, reference, strict=True))
