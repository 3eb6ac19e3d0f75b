"""Writes a search result into the IR: the sharding of every value, and what operands need."""

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
    """Give every value of `function` its sharding, and every op the shardings it needs its operands in.

    Args:
        makers: what each node of `problem` stands for.
        rules: the rule of each node that is a torch op.
        nested: what the search found for `problem`.
    """
    decided: dict[str, dict[int, Sharding]] = {"arg_attrs": {}, "res_attrs": {}}
    for node, maker, rule, needed in zip(problem.nodes, makers, rules, nested.needed, strict=True):
        made = [nested.produced[value] for value in node.results]
        if isinstance(maker, int):
            decided["res_attrs"][maker] = needed[0]
        elif isinstance(maker, SSAValue):
            decided["arg_attrs"][maker.index] = made[0]  # type: ignore  # a block argument
        else:
            known = [nested.produced[value] for value in node.operands]
            _annotate_op(maker, made, _without_unread(rule, made, needed, known) if rule else needed, known)
    for which, shardings in decided.items():
        _write(function, which, shardings)


def _annotate_op(op: ValueOp, made: Sequence[Sharding], needed: Sequence[Sharding], known: Sequence[Sharding]) -> None:
    op.set_shardings([sharding if meta else None for sharding, meta in zip(made, op.metas, strict=True)])
    needs = tuple([None if need == has else need for need, has in zip(needed, known, strict=True)])
    if any(need is not None for need in needs):
        op.properties["needs"] = shardings_attr(needs)
    else:
        op.properties.pop("needs", None)


def _without_unread(
    rule: OpRule, made: Sequence[Sharding], needed: Sequence[Sharding], known: Sequence[Sharding]
) -> list[Sharding]:
    """Return `needed`, with partial values that the op does not read left partial: it need not wait for the reduction.

    To the search both are the same where another user needs the reduction.
    """
    found = list(needed)
    for index in rule.ignored_operands:
        reduced = known[index]
        for axis, _ in known[index].partial:
            if all(sharding[axis] == R for sharding in (*made, *needed)):
                reduced = reduced.replace(axis, R)
        if reduced == needed[index]:
            found[index] = known[index]
    return found


def user_annotations(function: FuncOp, maker: Maker, mesh: Mesh) -> list[Sharding]:
    """Return the user annotations of what a node stands for, over the axes of `mesh`, before `annotate` is called."""
    if isinstance(maker, int):
        found = [_annotation(function, "res_attrs", maker)]
    elif isinstance(maker, SSAValue):
        found = [_annotation(function, "arg_attrs", maker.index)]  # type: ignore  # a block argument
    else:
        found = maker.shardings
    return [sharding.refined(mesh) for sharding in found if sharding is not None]


def _annotation(function: FuncOp, which: str, index: int) -> Sharding | None:
    attribute = function_attrs(function, which, index).get("spmd.sharding")
    return attribute.data if attribute else None


def _write(function: FuncOp, which: str, shardings: Mapping[int, Sharding]) -> None:
    """Write the shardings of all arguments (`arg_attrs`) or results (`res_attrs`) into the signature.

    What a result is like is said by its sharding.
    """
    entries: list[DictionaryAttr] = []
    for index in range(len(shardings)):
        attrs: dict[str, Attribute] = function_attrs(function, which, index)
        attrs["spmd.sharding"] = sharding_attr(shardings[index])
        attrs.pop("spmd.like", None)
        entries.append(DictionaryAttr(attrs))
    function.properties[which] = ArrayAttr(entries)
