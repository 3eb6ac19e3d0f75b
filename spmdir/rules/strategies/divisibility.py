"""Which factors of a call an axis can shard, where other axes shard some already."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from spmdir.core.errors import RuleError
from spmdir.rules.instance import RuleInstance
from spmdir.rules.language.syntax_tree import Function, Statement, TextStrategy, statements, walk
from spmdir.rules.strategies.strategy import ShardCounts


def shardable(rule: RuleInstance, index: int, count: int, sharded: ShardCounts, least: int = 0) -> bool:
    """Return whether `count` ranks, and those of other axes, can shard the factor by S.

    Args:
        sharded: how other axes shard the factors.
        least: the elements that every rank must have, if the factor does not ask for more.
    """
    factor, total = rule.factors[index], count * sharded.of(index)
    if not compatible(rule, index, sharded) or not _compatible_with_plugins(rule, index, sharded):
        return False
    if any(sharded.of(f) != rule.factors[f].size for f in rule.majors.get(index, ())):
        return False
    if factor.size % total and rule.neighbours(index):
        return False
    if factor.aligned and factor.size * rule.call.operands[0].dtype.itemsize % (16 * total):
        return False
    least = max(least, factor.least_elements)
    if not least:
        return True
    shard = -(-factor.size // total)
    if index in sharded.all_axes:
        return factor.size % total == 0 and shard >= least
    return factor.size - (total - 1) * shard >= least


def compatible(rule: RuleInstance, index: int, sharded: ShardCounts) -> bool:
    """Return whether the factor can be sharded at all, by any placement, beside what other axes shard."""
    factor = rule.factors[index]
    if factor.size <= 1 or factor.kind == "unsharded":
        return False
    others = [rule.factors[f].clause for f in sharded.all_axes if f != index and f not in sharded.by_texts]
    if factor.rewrite and any(clause not in (None, factor.clause) for clause in others):
        return False
    if factor.alone and factor.clause in others:
        return False
    if sharded.by_texts and not _beside_texts(rule, index, sharded):
        return False
    return all(sum(index in factors for factors in dims) <= 1 for dims in rule.all_dims)


def _beside_texts(rule: RuleInstance, index: int, sharded: ShardCounts) -> bool:
    """Return whether the factor can be sharded as the rule says beside strategies that are written as text."""
    texts, factor = sharded.by_texts, rule.factors[index]
    if index in texts or not rule.neighbours(index).isdisjoint(texts) or factor.rewrite == "expand":
        return False
    if factor.rewrite is None:
        return True
    return not any(text.body or local_form_reads(rule, index, f) for f, text in texts.items())


def beside_others(rule: RuleInstance, factors: Collection[int], text: TextStrategy, sharded: ShardCounts) -> bool:
    """Return whether `text`, which shards `factors`, is right beside what other axes shard.

    They must be other factors, of other dimensions. At most one axis replaces the op, by a form that does not depend on
    how the others shard what they shard.
    """
    for other in sharded.all_axes:
        if other in factors or not rule.neighbours(other).isdisjoint(factors):
            return False
        declared, rewrite = sharded.by_texts.get(other), rule.factors[other].rewrite
        if declared is not None:
            if text.body and declared.body:
                return False
            rewrite = "local" if declared.body else None
            reads = any(body_reads(rule, declared.body, factor) for factor in factors)
        else:
            reads = rewrite == "local" and any(local_form_reads(rule, other, factor) for factor in factors)
        if rewrite == "expand" or (rewrite and text.body) or reads:
            return False
        if other in sharded.by_plugins and body_reads(rule, text.body, other):
            return False
    return True


def _compatible_with_plugins(rule: RuleInstance, index: int, sharded: ShardCounts) -> bool:
    """Return whether S of the factor is compatible with what other axes shard by plug-in placements."""
    others = sharded.by_plugins
    if not others:
        return True
    factor = rule.factors[index]
    if index in others and (factor.rewrite or factor.aligned or factor.least_elements or rule.neighbours(index)):
        return False
    if any(f in others for f in rule.majors.get(index, ())):
        return False
    if factor.rewrite == "expand":
        return not any(rule.factors[f].rewrite for f in others)
    return factor.rewrite is None or not any(local_form_reads(rule, index, f) for f in others)


def local_form_reads(rule: RuleInstance, index: int, other: int) -> bool:
    """Return whether the local form for factor `index` may depend on the lengths of ranks' shards of factor `other`.

    It does where there are windows, since their halos are sent, and where a function is asked about `other`.
    """
    if rule.layout.windows:
        return True
    clauses = [c for c in rule.active("local") if any(index in rule.layout.refer(name) for name in c.names)]
    return any(body_reads(rule, clause.body, other) for clause in clauses[-1:])


def body_reads(rule: RuleInstance, body: Iterable[Statement], factor: int) -> bool:
    """Return whether a function in the statements of a local form may depend on the lengths of shards of `factor`."""
    return any(
        _asks(rule, function, factor)
        for statement in statements(body)
        for value in statement.values
        for function in walk(value)
        if isinstance(function, Function)
    )


_OF_NO_SIZES = ("rank", "dtype", "given", "dims", "others", "position", "column", "floating", "integral", "half")
"""The functions whose value does not depend on the sizes of dimensions."""


def _asks(rule: RuleInstance, function: Function, factor: int) -> bool:
    if function.name in _OF_NO_SIZES:
        return False
    layout = rule.layout
    dimensions = [
        factors
        for name in function.arguments
        for i in rule.binding.operands(name)
        for factors in layout.operand_dims[i]
    ]
    if "result" in function.arguments:
        dimensions += [factors for dims in layout.result_dims for factors in dims or ()]
    return any(factor in _meant(rule, name) for name in function.arguments) or any(
        factor in factors for factors in dimensions
    )


def _meant(rule: RuleInstance, reference: str) -> tuple[int, ...]:
    """Return the factors that an argument of a function means; none if it names a number that is not a dimension."""
    try:
        return rule.layout.refer(reference)
    except RuleError:
        return ()
