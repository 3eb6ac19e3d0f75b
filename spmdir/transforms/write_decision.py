"""Write a search result into the IR: the sharding of each value, and the shardings that ops require of operands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, SSAValue

from spmdir.analysis.propagation.build_problem import Maker
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding
from spmdir.core.placement.standard import R
from spmdir.dialects.attributes import sharding_attr, shardings_attr
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.values import function_attrs
from spmdir.rules import OpRule
from spmdir.search.nesting import Nested
from spmdir.search.problem import Problem


def annotate(
    function: FuncOp,
    problem: Problem,
    makers: Sequence[Maker],
    rules: Sequence[OpRule | None],
    nested: Nested,
) -> None:
    """Give every value of `function` its sharding, and every op its attribute `needs`.

    Args:
        makers: for each node of `problem`, its source in the function.
        rules: for each node, the rule if it is a torch op.
        nested: the solution of `problem`.
    """
    decided: dict[str, dict[int, Sharding]] = {"arg_attrs": {}, "res_attrs": {}}
    for node, maker, rule, needed in zip(problem.nodes, makers, rules, nested.needed, strict=True):
        produced = [nested.produced[value] for value in node.results]
        if isinstance(maker, int):
            decided["res_attrs"][maker] = needed[0]
        elif isinstance(maker, SSAValue):
            decided["arg_attrs"][maker.index] = produced[0]  # type: ignore  # a block argument
        else:
            current = [nested.produced[value] for value in node.operands]
            required = _without_unread(rule, produced, needed, current) if rule else needed
            _annotate_op(maker, produced, required, current)
    for which, shardings in decided.items():
        _write(function, which, shardings)


def _annotate_op(
    op: ValueOp, produced: Sequence[Sharding], needed: Sequence[Sharding], current: Sequence[Sharding]
) -> None:
    """Write the shardings of the results of an op, and its `needs`.

    Args:
        produced: the shardings of its results.
        needed, current: for each operand, the sharding that the op requires, and the sharding of the operand.
    """
    op.set_shardings([sharding if meta else None for sharding, meta in zip(produced, op.metas, strict=True)])
    needs = tuple([None if need == sharding else need for need, sharding in zip(needed, current, strict=True)])
    if any(need is not None for need in needs):
        op.properties["needs"] = shardings_attr(needs)
    else:
        op.properties.pop("needs", None)


def _without_unread(
    rule: OpRule, produced: Sequence[Sharding], needed: Sequence[Sharding], current: Sequence[Sharding]
) -> list[Sharding]:
    """Return `needed`, but leave operands partial whose elements the op does not read, such as that of `new_zeros`.

    Then the op does not wait for the reduction of the operand. If another user needs the reduction, both choices have
    one price, so the search may have chosen the reduced operand.

    Args:
        produced, needed, current: as in `_annotate_op`.
    """
    relaxed = list(needed)
    for index in rule.ignored_operands:
        reduced = current[index]
        for axis, _ in current[index].partial:
            if all(sharding[axis] == R for sharding in (*produced, *needed)):
                reduced = reduced.replace(axis, R)
        if reduced == needed[index]:
            relaxed[index] = current[index]
    return relaxed


def user_annotations(function: FuncOp, maker: Maker, mesh: Mesh) -> list[Sharding]:
    """Return the user annotations of the source of a node, over the axes of `mesh`. Call it before `annotate`."""
    if isinstance(maker, int):
        annotations = [_annotation(function, "res_attrs", maker)]
    elif isinstance(maker, SSAValue):
        annotations = [_annotation(function, "arg_attrs", maker.index)]  # type: ignore  # a block argument
    else:
        annotations = maker.shardings
    return [sharding.refined(mesh) for sharding in annotations if sharding is not None]


def _annotation(function: FuncOp, which: str, index: int) -> Sharding | None:
    """Return the sharding of an argument (`which` is `arg_attrs`) or a result (`res_attrs`); None if it has none."""
    attribute = function_attrs(function, which, index).get("spmd.sharding")
    return attribute.data if attribute else None


def _write(function: FuncOp, which: str, shardings: Mapping[int, Sharding]) -> None:
    """Write the shardings of all arguments (`arg_attrs`) or results (`res_attrs`) into the signature.

    `spmd.like` of results is removed: the decided sharding replaces it.
    """
    entries: list[DictionaryAttr] = []
    for index in range(len(shardings)):
        attrs: dict[str, Attribute] = function_attrs(function, which, index)
        attrs["spmd.sharding"] = sharding_attr(shardings[index])
        attrs.pop("spmd.like", None)
        entries.append(DictionaryAttr(attrs))
    function.properties[which] = ArrayAttr(entries)
