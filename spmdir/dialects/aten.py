"""The ops of torch: one shape of op, specialised by name on demand, and the dialects that list the names.

What an op does to shardings stands in `rules/aten/*.rules`, and whether a program may name it in `core/ops.txt`;
nothing here knows any op. What the tables of `core/admission.py` say of a name becomes a trait of its class:

* an op that the table admits is `Pure`, so that cse and dce may merge and drop it;
* an op that draws random numbers has a write effect: a later one draws others if it goes;
* an op of another library has unknown effects, since its schema is not known here.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from functools import cache
from typing import Any, Self

from xdsl.ir import Operation, SSAValue
from xdsl.irdl import irdl_op_definition, traits_def
from xdsl.traits import EffectInstance, MemoryEffect, MemoryEffectKind, MemoryWriteEffect, Pure

from spmdir.core.admission import DROPOUT, LISTED, RANDOM, STATISTICS, draws, is_admitted, why_not
from spmdir.core.errors import UnsupportedError
from spmdir.core.placement.call import Literal
from spmdir.core.placement.sharding import Sharding
from spmdir.core.placement.tensor import TensorMeta
from spmdir.dialects.value_op import ValueOp


class AtenOp(ValueOp):
    """A call of a torch op; `aten.add.Tensor` is `torch.ops.aten.add.Tensor`, `default` is left out."""

    name = "aten.op"

    def __post_init__(self) -> None:
        """Leave out xDSL's search for defaults of properties, of which there are none."""

    @classmethod
    def build(  # type: ignore[override]  # xDSL's takes operands and properties, as `create` does
        cls,
        operands: Sequence[SSAValue],
        results: Sequence[TensorMeta | None],
        shardings: Sequence[Sharding | None] | None = None,
        location: Any = None,
        **arguments: Literal,
    ) -> Self:
        """Return this op of `operands`, as in `op_class("aten.sum.dim_IntList").build([x], [meta], dim=(0,))`.

        Args:
            results: shape and element type of each result, None for one that is left out.
            shardings: one a result.
            arguments: those that are not tensors, by their names in torch's schema.
        """
        given = tuple(sorted(arguments.items()))
        return cls.build_op(operands, results, given, shardings, location=location)  # type: ignore[return-value]


@irdl_op_definition
class LibraryOp(AtenOp):
    """An op of which nothing is known here but its name."""


@irdl_op_definition
class FunctionalOp(AtenOp):
    """An op whose results depend on its operands and arguments alone."""

    traits = traits_def(Pure())


@irdl_op_definition
class RandomOp(AtenOp):
    """An op that advances the stream of random numbers."""

    traits = traits_def(MemoryWriteEffect())


class DropoutEffect(MemoryEffect):
    """The effect of an op that draws random numbers unless its `dropout_p` is 0."""

    @classmethod
    def get_effects(cls, op: Operation) -> Set[EffectInstance]:
        drawn = isinstance(op, AtenOp) and draws(op.name, op.argument.get("dropout_p", 0))
        return {EffectInstance(MemoryEffectKind.WRITE)} if drawn else set()


@irdl_op_definition
class DropoutOp(AtenOp):
    """An op that advances the stream of random numbers unless its `dropout_p` is 0."""

    traits = traits_def(DropoutEffect())


class RejectedOp(LibraryOp):
    """An op that no program may name."""

    def check_admitted(self) -> None:
        raise UnsupportedError(why_not(self.name) or "")


class StatisticsOp(FunctionalOp):
    """An op that some calls of write running statistics, of which its schema says nothing."""

    def check_admitted(self) -> None:
        place, switch = STATISTICS[self.name]
        slots = self.call().slots
        given = place < len(slots) and slots[place] is not None
        if given and (switch is None or self.argument.get(switch)):
            how = f" with {switch} = true" if switch else ""
            raise UnsupportedError(
                f"writes its operand 'running_mean'{how}; expected a functional op: leave the running statistics out, "
                "or use aten._native_batch_norm_legit_functional, which gives the new ones"
            )


@cache
def op_class(name: str) -> type[AtenOp]:
    """Return the op class of a torch op, e.g. `aten.mm`: a subclass that differs in its name alone."""
    return type("AtenOp", (_base(name),), {"name": name, "__doc__": f"A call of {name}."})


def _base(name: str) -> type[AtenOp]:
    if not is_admitted(name):
        return RejectedOp
    tables: tuple[tuple[Any, type[AtenOp]], ...] = (
        (STATISTICS, StatisticsOp),
        (RANDOM, RandomOp),
        (DROPOUT, DropoutOp),
    )
    found = next((base for table, base in tables if name in table), None)
    return found or (FunctionalOp if name.partition(".")[0] in LISTED else LibraryOp)
