"""The ops `reshard` and `constraint`, and the patterns that fold chains of reshards."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from xdsl.dialects.builtin import UNKNOWN_LOC
from xdsl.ir import Operation, OpResult, SSAValue
from xdsl.irdl import irdl_op_definition, traits_def
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern
from xdsl.traits import HasCanonicalizationPatternsTrait
from xdsl.utils.exceptions import VerifyException

from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding
from spmdir.dialects.attributes import shardings_attr
from spmdir.dialects.collectives import Collective, SpmdOp, WaitOp


class LayoutOp(SpmdOp):
    """Base class of the ops that return their operand in another sharding."""

    @classmethod
    def build(cls, value: SSAValue, sharding: Sharding, location: Any = None) -> Self:  # type: ignore[override]
        """Build the op with operand `value`; the result has the same type and `sharding`."""
        return cls.create(
            operands=[value],
            result_types=[value.type],
            properties={"sharding": shardings_attr((sharding,))},
            location=location or UNKNOWN_LOC,
        )

    @property
    def has_lossy(self) -> bool:
        """Return whether the operand or the result has a lossy placement."""
        return has_lossy(self.source) or has_lossy(self.target)

    def check(self, mesh: Mesh | None) -> None:
        super().check(mesh)
        if self.target is None:
            raise VerifyException(
                f"has no sharding; expected that of its result: write it, as in `{self.name} %x : "
                "tensor<8x4xf32> <dp: S(0)>`"
            )


class ReshardPatterns(HasCanonicalizationPatternsTrait):
    """The canonicalization patterns of reshards."""

    @classmethod
    def get_canonicalization_patterns(cls) -> tuple[RewritePattern, ...]:
        return FoldReshardToOwnSharding(), FoldReshardOfReshard()


@irdl_op_definition
class ReshardOp(LayoutOp):
    """`reshard %x : tensor<…> <dp: S(0)>`: the same value in another sharding; lower-reshard picks the collectives."""

    name = "spmd.reshard"
    traits = traits_def(ReshardPatterns())


@irdl_op_definition
class ConstraintOp(LayoutOp):
    """`constraint %x : tensor<…> <dp: S(0), tp: ?>`: a user annotation; `?` leaves an axis to the compiler."""

    name = "spmd.constraint"
    MAY_BE_OPEN: ClassVar = True


FORMS = (Collective, WaitOp, LayoutOp)
"""The ops that return their operands in another sharding or memory."""


def unresharded(value: SSAValue) -> SSAValue:
    """Follow `value` back through reshards, constraints, collectives and waits, and return the first operand."""
    while isinstance(value, OpResult) and isinstance(value.op, FORMS):
        value = value.op.operands[value.index]
    return value


class FoldReshardToOwnSharding(RewritePattern):
    """`reshard (x: A) A  ==>  x`."""

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter) -> None:
        if isinstance(op, ReshardOp) and op.source is not None and op.source == op.target:
            rewriter.replace(op, (), [op.operands[0]])


class FoldReshardOfReshard(RewritePattern):
    """`reshard (reshard x B) C  ==>  reshard x C`, if the inner reshard has no other user and is not lossy."""

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter) -> None:
        inner_reshard = op.operands[0].owner
        if not isinstance(op, ReshardOp) or not isinstance(inner_reshard, ReshardOp) or inner_reshard.target is None:
            return
        if inner_reshard.results[0].has_one_use() and not inner_reshard.has_lossy:
            op.operands[0] = inner_reshard.operands[0]
            rewriter.notify_op_modified(op)


def has_lossy(sharding: Sharding | None) -> bool:
    """Return whether `sharding` has a lossy placement; False if it is not decided."""
    return sharding is not None and sharding.has_lossy
