"""The ops of torch: one op class per name, generated on demand.

There is no list of ops here. `rules/aten/*.rules` describes how ops propagate shardings, and `core/ops.txt`
lists the ops that a program may use. The tables of `core/admitted_ops.py` determine the traits of a class:

* an admitted op is `Pure`: cse and dce may merge and erase it;
* an op that draws random numbers has a write effect: without it, later ops would draw different numbers;
* an op of another library has unknown effects, because its schema is not available without torch.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from functools import cache
from typing import Any, Self

from xdsl.ir import Operation, SSAValue
from xdsl.irdl import irdl_op_definition, traits_def
from xdsl.traits import EffectInstance, MemoryEffect, MemoryEffectKind, MemoryWriteEffect, Pure

from spmdir.core.admitted_ops import DROPOUT, FUNCTIONAL, RANDOM, STATISTICS, draws, is_admitted, why_not
from spmdir.core.errors import UnsupportedError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.call import Literal
from spmdir.core.placement.declaration import declaration, is_local_map
from spmdir.core.placement.sharding import Sharding
from spmdir.core.placement.tensor import TensorMeta
from spmdir.dialects.attributes import meta_of
from spmdir.dialects.sharding_checks import check_decided, check_sharding
from spmdir.dialects.stage import is_local
from spmdir.dialects.value_op import ValueOp


class AtenOp(ValueOp):
    """A call of a torch op; `aten.add.Tensor` is `torch.ops.aten.add.Tensor`, `default` is left out."""

    name = "aten.op"

    def __post_init__(self) -> None:
        """Leave out xDSL's search for defaults of properties, of which there are none."""

    @property
    def required_shardings(self) -> tuple[tuple[Sharding | None, ...], tuple[Sharding | None, ...]]:
        """Return the shardings that the op requires of its operands, and those of its results.

        An entry is None if the compiler decides it. The tuple of the operands is () if all its entries are None.
        """
        return (), self.shardings

    @classmethod
    def build(  # type: ignore[override]  # xDSL's takes operands and properties, as `create` does
        cls,
        operands: Sequence[SSAValue],
        results: Sequence[TensorMeta | None],
        shardings: Sequence[Sharding | None] | None = None,
        location: Any = None,
        **arguments: Literal,
    ) -> Self:
        """Build the op with `operands`, as in `op_class("aten.sum.dim_IntList").build([x], [meta], dim=(0,))`.

        Args:
            results: shape and element type of each result; None for a result that the op does not return.
            shardings: one sharding per result.
            arguments: the arguments that are not tensors, by their names in torch's schema.
        """
        literals = tuple(sorted(arguments.items()))
        return cls.build_op(operands, results, literals, shardings, location=location)  # type: ignore[return-value]


@irdl_op_definition
class LibraryOp(AtenOp):
    """An op of another library, of which only the name is known."""


@irdl_op_definition
class FunctionalOp(AtenOp):
    """An op whose results depend only on its operands and arguments."""

    traits = traits_def(Pure())


@irdl_op_definition
class RandomOp(AtenOp):
    """An op that advances the random number generator."""

    traits = traits_def(MemoryWriteEffect())


class DropoutEffect(MemoryEffect):
    """The effect of an op that draws random numbers unless its `dropout_p` is 0."""

    @classmethod
    def get_effects(cls, op: Operation) -> Set[EffectInstance]:
        """Return a write effect if the op draws random numbers, else no effects."""
        drawn = isinstance(op, AtenOp) and draws(op.name, op.argument.get("dropout_p", 0))
        return {EffectInstance(MemoryEffectKind.WRITE)} if drawn else set()


@irdl_op_definition
class DropoutOp(AtenOp):
    """An op that advances the random number generator unless its `dropout_p` is 0."""

    traits = traits_def(DropoutEffect())


class RejectedOp(LibraryOp):
    """An op that programs may not use."""

    def check_admitted(self) -> None:
        """Raise UnsupportedError with the reason why programs may not use the op."""
        raise UnsupportedError(why_not(self.name) or "")


@irdl_op_definition
class LocalMapOp(AtenOp):
    """A call of a user's function on local shards, with the shardings that its arguments declare."""

    traits = traits_def(Pure())

    @property
    def required_shardings(self) -> tuple[tuple[Sharding | None, ...], tuple[Sharding | None, ...]]:
        declared = declaration(self.argument, len(self.tensors), len(self.results))
        return declared.operands, declared.results

    def check(self, mesh: Mesh | None) -> None:
        """Raise SpmdirError unless the declared shardings are decided, and fit the mesh and the shapes."""
        super().check(mesh)
        if is_local(self.parent_op()):
            return  # the shapes are those of shards
        operands, results = self.required_shardings
        metas = [*(meta_of(operand.type) for operand in self.tensors), *self.metas]
        for sharding, meta in zip((*operands, *results), metas, strict=True):
            if sharding is not None:
                check_sharding(sharding, mesh, meta)
                check_decided(sharding)


class StatisticsOp(FunctionalOp):
    """An op with calls that write running statistics although its schema does not declare it."""

    def check_admitted(self) -> None:
        """Raise UnsupportedError if this call writes running statistics."""
        # The index of the operand with the running mean, and the Boolean argument with which the call writes it.
        index, training_argument = STATISTICS[self.name]
        slots = self.call().slots
        has_statistics = index < len(slots) and slots[index] is not None
        if has_statistics and (training_argument is None or self.argument.get(training_argument)):
            condition = f" with {training_argument} = true" if training_argument else ""
            raise UnsupportedError(
                f"writes its operand 'running_mean'{condition}; expected a functional op: omit the running statistics, "
                "or use aten._native_batch_norm_legit_functional, which returns the new statistics"
            )


@cache
def op_class(name: str) -> type[AtenOp]:
    """Return the class of a torch op such as `aten.mm`, a subclass that only sets the name."""
    return type("AtenOp", (_base(name),), {"name": name, "__doc__": f"A call of {name}."})


def _base(name: str) -> type[AtenOp]:
    """Return the base class of op `name`, which has the traits of the op."""
    if not is_admitted(name):
        return RejectedOp
    tables: tuple[tuple[Any, type[AtenOp]], ...] = (
        (STATISTICS, StatisticsOp),
        (RANDOM, RandomOp),
        (DROPOUT, DropoutOp),
    )
    if is_local_map(name):
        return LocalMapOp
    special = next((base for table, base in tables if name in table), None)
    return special or (FunctionalOp if name.partition(".")[0] in FUNCTIONAL else LibraryOp)
