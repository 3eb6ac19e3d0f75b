"""Strategies written as text on one call: their placements with numbers for names, and the factors that they shard."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from spmdir.core.errors import Location, RuleError, SpmdirError
from spmdir.core.limits import RING
from spmdir.core.placement.base import ShardPlacement, placement_type, shard_lengths
from spmdir.core.placement.standard import Placement, R, Shard
from spmdir.core.placement.tensor import TensorMeta
from spmdir.core.placement.text import field_types
from spmdir.rules.language.expressions import evaluate
from spmdir.rules.language.syntax_tree import Expression, Name, PlacementTerm, Statement, TextStrategy
from spmdir.rules.shapes.factor import Dims
from spmdir.rules.shapes.instance import RuleInstance
from spmdir.rules.strategies.divisibility import amiss_beside, too_small
from spmdir.rules.strategies.obstacle import Dropped, Obstacle
from spmdir.rules.strategies.plugin_placements import at, suits
from spmdir.rules.strategies.strategy import ShardCounts, Strategy


class NotOfThisCall(Exception):
    """A strategy is not one of a call, though it fits the op.

    Attributes:
        reason: why.
    """

    def __init__(self, message: str, *values: object, at: Location | None = None):
        super().__init__(message)
        self.reason = Obstacle(message, values, at)


def text_strategies(
    rule: RuleInstance,
    count: int,
    sharded: ShardCounts,
    texts: Iterable[TextStrategy],
    shards: Sequence[ShardPlacement],
) -> Iterator[Strategy | Dropped]:
    """Yield the strategies of `texts` on this call for an axis of `count` ranks.

    Args:
        sharded: how other axes shard factors.
        shards: the plug-ins that `shard(…)` may stand for beside S.
    """
    for text in texts:
        for placement in (Shard(0), *shards) if _has_any_shard(text) else (None,):
            try:
                yield _strategy(rule, count, sharded, text, placement)
            except NotOfThisCall as error:
                yield Dropped(rule, text, None, error.reason)
            except RuleError as error:  # an expression has no value on this call, though it may have on others
                yield Dropped(rule, text, None, Obstacle("{}", (error.message,), error.location or text.location))


def _has_any_shard(text: TextStrategy) -> bool:
    return any(term.is_any_shard for term in (*text.operands, *text.results))


def _strategy(
    rule: RuleInstance, count: int, sharded: ShardCounts, text: TextStrategy, placement: ShardPlacement | None
) -> Strategy:
    for condition in text.conditions:
        if not evaluate(condition, rule.scope):
            raise NotOfThisCall("its `when` does not hold", at=getattr(condition, "location", None) or text.location)
    reader = _Reader(rule, count, placement)
    operands: list[Placement] = [R] * len(rule.call.operands)
    for parameter, term in zip(rule.rule.tensors, text.operands, strict=False):
        for i in rule.binding.operands(parameter.name):
            operands[i] = reader.placement(term, rule.call.operands[i], rule.operand_dims[i])
    terms = text.results * len(rule.call.results) if rule.rule.result_list else text.results
    results = [
        R if meta is None else reader.placement(term, meta, dims or ())
        for term, meta, dims in zip(terms, rule.call.results, rule.result_dims, strict=True)
    ]
    factors = tuple(reader.factors)
    rings = [statement for statement in text.body if statement.ring]
    for ring in rings:
        reader.check_ring(ring, sharded)
    if text.body and not rings:
        reader.check_nonempty(sharded)  # a ring leaves out what there is nothing of
    splits = any(p.has_own_type for p in results) and all(p.splits for p in (*operands, *results))
    if amiss := amiss_beside(rule, factors, text, sharded, splits):
        raise NotOfThisCall("{}", amiss)
    rewrite = "local" if text.body else None
    return Strategy(tuple(operands), tuple(results), factors, rewrite, tuple(reader.factors.values()), text)


class _Reader:
    """Reads the placements of one strategy on one call.

    Attributes:
        factors: those that are sharded → by which placement, of dimension 0.
        dimensions: (its factors, its size, by which placement) of each dimension that is sharded.
    """

    def __init__(self, rule: RuleInstance, count: int, any_shard: ShardPlacement | None):
        self.rule, self.count, self.any_shard = rule, count, any_shard
        self.factors: dict[int, Placement] = {}
        self.dimensions: dict[tuple[tuple[int, ...], int, Placement], None] = {}

    def placement(self, term: PlacementTerm, meta: TensorMeta, dims: Dims) -> Placement:
        placement = self._read(term, meta, dims)
        if not placement.supports(meta.dtype):
            raise NotOfThisCall("{} does not support {}", placement, meta.dtype)
        try:
            placement.check(meta.shape, self.count)
        except SpmdirError as error:
            raise NotOfThisCall("{}", error.message) from None
        if isinstance(placement, ShardPlacement):
            made_of = [factor for factor in dims[placement.dim] if self.rule.factors[factor].size != 1]
            if meta.shape[placement.dim] <= 1:
                raise NotOfThisCall("dimension {} has fewer than 2 elements", placement.dim)
            self.dimensions[tuple(made_of), meta.shape[placement.dim], at(placement, 0)] = None
            for factor in made_of:
                if self.factors.setdefault(factor, at(placement, 0)) != at(placement, 0) and len(made_of) == 1:
                    raise NotOfThisCall("factor '{}' is sharded in two ways", self.rule.factors[factor].name)
        return placement

    def check_nonempty(self, sharded: ShardCounts) -> None:
        """Raise NotOfThisCall where a rank would have nothing of a dimension, for which local forms are not made.

        A dimension of several factors is sharded as one: 8 heads of 2 groups go to 4 ranks, 2 heads each.
        """
        for factors, size, placement in self.dimensions:
            assert isinstance(placement, ShardPlacement)
            if not suits(placement, size, self.count):
                raise NotOfThisCall("{} ranks cannot shard {} elements so", self.count, size)
            outer = max(map(sharded.of, factors), default=1)  # ranks of other axes, which may shard it in another way
            first = placement if outer == 1 or suits(placement, size, outer) else Shard(placement.dim)
            if not all(shard_lengths(((first, outer), (placement, self.count)), size)):
                raise NotOfThisCall("{}", too_small(size, self.count * outer, 1))

    def check_ring(self, ring: Statement, sharded: ShardCounts) -> None:
        """Raise RuleError unless the strategy shards what `ring` is over, NotOfThisCall if its ranks are too many."""
        for factor in self.rule.layout.refer(ring.ring or ""):
            if factor not in self.factors:
                names = ", ".join(self.rule.factors[one].name for one in self.factors)
                where = ring.location  # the error itself is located at the op
                raise RuleError(
                    f"{where}: a ring of '{ring.ring}', and the strategy shards {names}; expected one of these"
                )
            ranks = self.count * sharded.of(factor)
            if ranks > RING.most:
                raise NotOfThisCall("its ring has {} ranks; expected at most {}", ranks, RING.most, at=ring.location)

    def _read(self, term: PlacementTerm, meta: TensorMeta, dims: Dims) -> Placement:
        if term.is_any_shard:
            assert self.any_shard is not None
            return at(self.any_shard, self._dimension(term, term.fields[0], meta, dims))
        kind = placement_type(term.name)
        values = {}
        for (name, of), field in zip(field_types(kind).items(), term.fields, strict=False):
            is_dim = name == "dim" and issubclass(kind, ShardPlacement)
            values[name] = self._dimension(term, field, meta, dims) if is_dim else self._value(term, field, of)
        try:
            return kind(**values)
        except (TypeError, ValueError) as error:
            raise NotOfThisCall("{}", error.args[0] if error.args else error) from None
        except SpmdirError as error:
            raise NotOfThisCall("{}", error.message, at=term.location) from None

    def _dimension(self, term: PlacementTerm, field: Expression, meta: TensorMeta, dims: Dims) -> int:
        """Return the dimension that `field` means: that of a factor, or a number, which may be negative."""
        if isinstance(field, Name) and (factor := self.rule.layout.named.get(field.name)) is not None:
            found = [dim for dim, made_of in enumerate(dims) if factor in made_of]
            if not found:
                raise NotOfThisCall("no dimension of {} is '{}'", list(meta.shape), field.name, at=term.location)
            return found[0]
        value = evaluate(field, self.rule.scope)
        value = value[0] if isinstance(value, tuple) and len(value) == 1 else value
        if not isinstance(value, int) or isinstance(value, bool):
            raise NotOfThisCall("its dimension is {}, which is not one", value)
        if not -meta.rank <= value < meta.rank:
            raise NotOfThisCall("a tensor of rank {} has no dimension {}", meta.rank, value, at=term.location)
        return value % meta.rank

    def _value(self, term: PlacementTerm, field: Expression, of: type) -> object:
        """Return the value of a field of type `of`."""
        if of is str and isinstance(field, Name):
            return self.rule.binding.arguments.get(field.name, field.name)
        value = evaluate(field, self.rule.scope)
        if of is int and isinstance(value, float) and value.is_integer():
            return int(value)
        return value
