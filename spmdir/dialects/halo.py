"""Ops that exchange borders: what a window that slides over a divided dimension needs of the neighbours' blocks.

They stand in local forms alone, so after localize: their types are those of one rank.
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
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.values import global_shape, sharding_of

FILLS: dict[str, float] = {"zero": 0.0, "lowest": float("-inf")}
"""What stands beyond the first and the last block."""


class BorderOp(ValueOp):
    """Base of both: one tensor in, one out, whose dimension `dim` differs by `before + after` elements."""

    PARENTHESISED: ClassVar[bool] = False
    traits = traits_def(Pure())
    GROWS: ClassVar[int]

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes that divide the dimension, major first."""
        return tuple(map(str, self.argument["axes"]))  # type: ignore  # verified

    def sent(self, mesh: Mesh) -> int:
        """Bytes that the busiest rank sends: both borders, or the larger one of two ranks that have one each."""
        argument: Any = self.argument
        meta, count = meta_of(self.operands[0].type), mesh.group_size(self.axes)
        if meta is None or count == 1:
            return 0
        borders = argument["before"], argument["after"]
        sizes = [size for dim, size in enumerate(_largest(self.operands[0], mesh)) if dim != argument["dim"]]
        return (sum(borders) if count > 2 else max(borders)) * math.prod(sizes) * meta.dtype.itemsize

    def check(self, mesh: Mesh | None) -> None:
        super().check(mesh)
        function = self.parent_op()
        if mesh is None or function is None or "spmd.local" not in function.attributes:
            raise ShardingError("exchanges borders of what ranks hold; only a function after localize has such ops")
        metas = [meta_of(value.type) for value in (*self.operands, *self.results)]
        if len(self.operands) != 1 or len(self.results) != 1 or None in metas:
            raise VerifyException("takes one tensor and gives one")
        source, target = metas
        argument: dict[str, Any] = self.argument
        axes = argument.get("axes")
        if not isinstance(axes, tuple) or not axes or not all(isinstance(axis, str) for axis in axes):
            raise VerifyException("expected the axes as a list of names, as in `on [dp, tp]`")
        for axis in axes:
            mesh.require(axis)
        for name in ("dim", "before", "after"):
            if type(argument.get(name)) is not int or argument[name] < 0:
                raise VerifyException(f"expected `{name}` with a number from 0 on, found {argument.get(name)!r}")
        if argument.get("fill", "zero") not in FILLS:
            raise VerifyException(f"is filled with {argument['fill']!r}; expected {' or '.join(FILLS)}")
        assert source is not None and target is not None
        shape, dim = list(source.shape), argument["dim"]
        if dim >= len(shape):
            raise VerifyException(f"has no dimension {dim}; its operand has {len(shape)}")
        if shape[dim] != DYNAMIC:
            shape[dim] += self.GROWS * (argument["before"] + argument["after"])
        if list(target.shape) != shape or source.dtype != target.dtype:
            found, expected = (["?" if n == DYNAMIC else n for n in sizes] for sizes in (target.shape, shape))
            raise VerifyException(f"gives {found} of {target.dtype}; expected {expected} of {source.dtype}")


@irdl_op_definition
class HaloOp(BorderOp):
    """`halo %x on [tp] dim 2 before 1 after 1 fill zero`: a block and the elements beside it in its neighbours' blocks.

    Beyond the first and the last block stands what `fill` says.
    """

    name = "spmd.halo"
    GROWS: ClassVar[int] = 1
    CLAUSES: ClassVar = (("on", "axes"), ("dim", "dim"), ("before", "before"), ("after", "after"), ("fill", "fill"))


@irdl_op_definition
class FoldOp(BorderOp):
    """`fold %y on [tp] dim 2 before 1 after 1`: the elements at the ends are added to the neighbours' own.

    The reverse of halo: what is beyond the first and the last block goes.
    """

    name = "spmd.fold"
    GROWS: ClassVar[int] = -1
    CLAUSES: ClassVar = (("on", "axes"), ("dim", "dim"), ("before", "before"), ("after", "after"))


BORDER_OPS: dict[str, type[BorderOp]] = {op.name: op for op in (HaloOp, FoldOp)}
"""Name → class."""


def _largest(value: SSAValue, mesh: Mesh) -> tuple[int, ...]:
    """The shape of `value` on the first rank, which holds most.

    Where ranks differ, a value inside a local form does not tell its sizes; those that it passes on to or takes from a
    value which does are known, and others count as 1.
    """
    sharding = sharding_of(value)
    if sharding is not None:
        return sharding.local_shape(global_shape(value, mesh), mesh, mesh.coordinate(0))
    meta = meta_of(value.type)
    shape = meta.shape if meta else ()
    folds = [use.operation for use in value.uses if isinstance(use.operation, FoldOp)]
    if DYNAMIC not in shape or not (folds or isinstance(value.owner, HaloOp)):
        return tuple(1 if size == DYNAMIC else size for size in shape)
    known = _largest(value.owner.operands[0] if isinstance(value.owner, HaloOp) else folds[0].results[0], mesh)
    return tuple(other if size == DYNAMIC else size for size, other in zip(shape, known, strict=True))
