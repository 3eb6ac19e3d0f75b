"""The torch ops of a decided program, as `propagate` prices them: an expansion counts as the op that it replaced."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs
from xdsl.ir import Operation, SSAValue

from spmdir.analysis.local_forms import EXPANSION, ReplacedOp, read_replaced_op, value_at
from spmdir.analysis.op_seconds import ShardedType
from spmdir.analysis.type_check import rule_of
from spmdir.core.dtype import I1
from spmdir.core.errors import Location
from spmdir.core.mesh import Mesh
from spmdir.core.placement.call import Call
from spmdir.core.placement.sharding import Sharding
from spmdir.core.placement.tensor import TensorMeta
from spmdir.dialects.aten import AtenOp
from spmdir.dialects.attributes import meta_of
from spmdir.dialects.collectives import SpmdOp
from spmdir.dialects.locations import errors_at, location_of
from spmdir.dialects.names import text_name
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.values import sharding_of
from spmdir.rules import OpRule, RuleSet

ABSENT = TensorMeta((), I1)
"""The type of an omitted result of an op."""


@attrs.frozen
class TorchOp:
    """A torch op of the program, or an op that an expansion replaced.

    Attributes:
        name: its first result.
        kind: the name of the op.
        location: its location in the source.
        rule: the rule of its call; None if it has none.
        operands, results: its values; None if no op of the expansion reads or produces the value.
        needed, produced: the types of the operands and results, with needed and produced shardings.
    """

    name: str
    kind: str
    location: Location | None
    rule: OpRule | None
    operands: tuple[SSAValue | None, ...]
    results: tuple[SSAValue | None, ...]
    needed: tuple[ShardedType, ...]
    produced: tuple[ShardedType, ...]


def sharded_type(value: SSAValue) -> ShardedType:
    """Return the type and the sharding of a value of a decided program."""
    return _sharded_type(meta_of(value.type), sharding_of(value))


def _sharded_type(meta: TensorMeta | None, sharding: Sharding | None) -> ShardedType:
    """Return the pair of a type and a sharding; `ABSENT` for no type, and replicated for no sharding."""
    return (ABSENT, Sharding()) if meta is None else (meta, sharding or Sharding())


def torch_ops(ops: Sequence[ValueOp], mesh: Mesh, rules: RuleSet) -> Iterator[tuple[ValueOp, TorchOp | None]]:
    """Yield each op of a program with a TorchOp.

    The last op of an expansion has the TorchOp that the expansion replaced. The TorchOp is None for all other ops of
    the expansion, and for ops that are not torch ops.

    Raises:
        ShardingError: the attribute of an expansion is malformed; located.
    """
    complete: dict[ValueOp, TorchOp | None] = {}
    torch = [op for op in ops if isinstance(op, AtenOp)]
    for index, op in enumerate(torch):
        if op in complete:
            continue
        with errors_at(op):
            replaced = read_replaced_op(op, EXPANSION)
            members = torch[index : index + replaced.places.op_count] if replaced is not None else []
            if replaced is not None and _is_complete(members, replaced):
                complete |= dict.fromkeys(members)
                complete[members[-1]] = _replaced_op(members, replaced, mesh, rules)
                continue
        complete[op] = _single_op(op, rules)
    for op in ops:
        yield op, complete.get(op)


def _single_op(op: AtenOp, rules: RuleSet) -> TorchOp:
    """Return an op that is not part of an expansion."""
    operands, results = tuple(op.tensors), tuple(op.results)
    types = [tuple(map(sharded_type, values)) for values in (operands, results)]
    return TorchOp(text_name(results[0]), op.name, location_of(op), rule_of(op, rules), operands, results, *types)


def _is_complete(members: Sequence[AtenOp], replaced: ReplacedOp) -> bool:
    """Return whether `members` are all ops of the expansion of `replaced`, with the shardings of its results.

    A pass may have dropped an op, or a text may contain other ops.
    """
    if len(members) != replaced.places.op_count:
        return False
    operands, results = _values(members, replaced)
    for value, sharding in zip(results, replaced.result_shardings, strict=True):
        if value is not None and (sharding_of(value) or Sharding()) != sharding:
            return False
    for value, type_ in zip((*operands, *results), (*replaced.operands, *replaced.results), strict=True):
        if value is not None and value.type != type_:
            return False
    # A value inside of the expansion must not be used outside of it.
    inner_values = {value for op in members for value in op.results} - set(results)
    return all(user in members for value in inner_values for user in _users(value))


def _values(
    members: Sequence[AtenOp], replaced: ReplacedOp
) -> tuple[tuple[SSAValue | None, ...], tuple[SSAValue | None, ...]]:
    """Return the operands and the results of the op that `members` replaced; None for values that no member has."""
    operands = tuple([value_at(members, place, "operands", EXPANSION) for place in replaced.places.operands])
    return operands, tuple([value_at(members, place, "results", EXPANSION) for place in replaced.places.results])


def _users(value: SSAValue) -> Iterator[Operation]:
    """Yield the users of a value. A reshard, collective or wait is replaced by the users of its result."""
    for use in value.uses:
        if isinstance(use.operation, SpmdOp):
            yield from _users(use.operation.results[0])
        else:
            yield use.operation


def _replaced_op(members: Sequence[AtenOp], replaced: ReplacedOp, mesh: Mesh, rules: RuleSet) -> TorchOp:
    """Return the op that `members` replaced, from the attribute of the first of them.

    Raises:
        ShardingError: a sharding of `replaced` does not fit the mesh or the type.
    """
    operands, results = _values(members, replaced)
    operand_metas, result_metas = tuple(map(meta_of, replaced.operands)), tuple(map(meta_of, replaced.results))
    needed = tuple(map(_sharded_type, operand_metas, replaced.operand_shardings))
    produced = tuple(map(_sharded_type, result_metas, replaced.result_shardings))
    for meta, sharding in (*needed, *produced):
        sharding.check_shape(mesh, meta.shape, meta.dtype)
    arguments, structure = (getattr(replaced.properties.get(key), "data", None) for key in ("arguments", "structure"))
    call = Call(replaced.op, tuple([meta for meta, _ in needed]), arguments or (), result_metas, structure)
    rule = rules.instantiate(call)
    name = next((text_name(value) for value in results if value is not None), "")
    return TorchOp(
        name, replaced.op, location_of(members[0]), rule and rule.evaluated, operands, results, needed, produced
    )
