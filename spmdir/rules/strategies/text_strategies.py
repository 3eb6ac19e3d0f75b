"""Instantiate strategies written as text on one call: evaluate their placements, and find their sharded factors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from spmdir.core.errors import Location, RuleError, SpmdirError
from spmdir.core.limits import RING
from spmdir.core.placement.base import placement_type
from spmdir.core.placement.shards import ShardPlacement, shard_lengths
from spmdir.core.placement.standard import Placement, R, Shard
from spmdir.core.placement.tensor import TensorMeta
from spmdir.core.placement.text import field_types
from spmdir.rules.language.expressions import evaluate
from spmdir.rules.language.syntax_tree import Expression, Name, PlacementTerm, Statement, TextStrategy
from spmdir.rules.shapes.factor import Dims
from spmdir.rules.shapes.instance import RuleInstance
from spmdir.rules.strategies.divisibility import text_conflict, too_few_elements
from spmdir.rules.strategies.obstacle import Dropped, Obstacle
from spmdir.rules.strategies.plugin_placements import can_shard, with_dim
from spmdir.rules.strategies.strategy import ShardCounts, Strategy


class NotApplicable(Exception):
    """A strategy of the op does not apply to the call.

    Attributes:
        reason: why it does not apply.
    """

    def __init__(self, message: str, *values: object, location: Location | None = None):
        super().__init__(message)
        self.reason = Obstacle(message, values, location)


def text_strategies(
    rule: RuleInstance,
    count: int,
    sharded: ShardCounts,
    texts: Iterable[TextStrategy],
    shards: Sequence[ShardPlacement],
) -> Iterator[Strategy | Dropped]:
    """Yield the strategies of `texts` on this call for an axis of `count` ranks, or reasons why they do not apply.

    Args:
        sharded: how other axes shard factors.
        shards: the plug-in placements that `shard(…)` may mean, in addition to S.

    Raises:
        RuleError: the call has fewer results than the op.
    """
    result_count, expected_count = len(rule.call.results), len(rule.rule.results)
    for text in texts:
        if result_count < expected_count and not rule.rule.result_list:
            raise RuleError(f"{rule.name}: found {result_count} results; expected {expected_count}")
        any_shard = (Shard(0), *(shard for shard in shards if not shard.is_routed))
        for placement in any_shard if _has_any_shard(text) else (None,):
            try:
                yield _strategy(rule, count, sharded, text, placement)
            except NotApplicable as error:
                yield Dropped(rule, text, None, error.reason)
            except RuleError as error:  # an expression has no value on this call, but may have one on others
                yield Dropped(rule, text, None, Obstacle("{}", (error.message,), error.location or text.location))


def _has_any_shard(text: TextStrategy) -> bool:
    """Return whether the strategy has a term `shard(…)`, which stands for S and for each plug-in placement."""
    return any(term.is_any_shard for term in (*text.operands, *text.results))


def _strategy(
    rule: RuleInstance, count: int, sharded: ShardCounts, text: TextStrategy, any_shard: ShardPlacement | None
) -> Strategy:
    """Return the strategy `text` on the call of `rule`, for an axis of `count` ranks.

    Args:
        sharded: how other axes shard factors.
        any_shard: the placement that `shard(…)` means; None if the text does not have it.

    Raises:
        NotApplicable: a condition does not hold, or a placement does not fit its tensor or the other axes.
    """
    _check_conditions(rule, text)
    reader = _Reader(rule, count, any_shard)
    operands, results = reader.operands(text), reader.results(text)
    is_routed = any(placement.is_routed for placement in (*operands, *results))
    reader.check_local_form(text, sharded, is_routed)
    # Several axes may use one text if it is routed or has a result with its own local type, such as a packed state.
    is_repeatable = is_routed or any(placement.has_own_type for placement in results)
    is_same_on_sub_axes = is_repeatable and all(placement.splits for placement in (*operands, *results))
    factors = tuple(reader.factors)
    if conflict := text_conflict(rule, factors, text, sharded, is_same_on_sub_axes):
        raise NotApplicable("{}", conflict)
    rewrite = "local" if text.body else None
    return Strategy(operands, results, factors, rewrite, tuple(reader.factors.values()), text)


def _check_conditions(rule: RuleInstance, text: TextStrategy) -> None:
    """Raise NotApplicable if a `when` clause of `text` does not hold for the call of `rule`."""
    for condition in text.conditions:
        if not evaluate(condition, rule.scope):
            raise NotApplicable(
                "its `when` does not hold", location=getattr(condition, "location", None) or text.location
            )


class _Reader:
    """Reads the placements of one strategy on one call.

    Attributes:
        factors: sharded factor → its placement, with `dim` 0.
        dimensions: (factors, size, placement) of each sharded dimension.
    """

    def __init__(self, rule: RuleInstance, count: int, any_shard: ShardPlacement | None):
        self.rule, self.count, self.any_shard = rule, count, any_shard
        self.factors: dict[int, Placement] = {}
        self.dimensions: dict[tuple[tuple[int, ...], int, Placement], None] = {}

    def operands(self, text: TextStrategy) -> tuple[Placement, ...]:
        """Return the placements of the operands of the call; R for operands that `text` does not name."""
        rule = self.rule
        operands: list[Placement] = [R] * len(rule.call.operands)
        for parameter, term in zip(rule.rule.tensors, text.operands, strict=False):
            for index in rule.binding.operands(parameter.name):
                operands[index] = self.placement(term, rule.call.operands[index], rule.operand_dims[index])
        return tuple(operands)

    def results(self, text: TextStrategy) -> tuple[Placement, ...]:
        """Return the placements of the results of the call; R for results that are no tensors."""
        rule = self.rule
        terms = text.results * len(rule.call.results) if rule.rule.result_list else text.results
        return tuple(
            R if meta is None else self.placement(term, meta, dims or ())
            for term, meta, dims in zip(terms, rule.call.results, rule.result_dims, strict=True)
        )

    def check_local_form(self, text: TextStrategy, sharded: ShardCounts, is_routed: bool) -> None:
        """Check that the local form of `text`, if it has one, can run on the shards of all ranks.

        The body of a ring skips empty blocks, and any rank may have no routed rows. Other local forms require that no
        shard is empty.
        """
        rings = [statement for statement in text.body if statement.ring]
        for ring in rings:
            self.check_ring(ring, sharded)
        if text.body and not rings and not is_routed:
            self.check_nonempty(sharded)

    def placement(self, term: PlacementTerm, meta: TensorMeta, dims: Dims) -> Placement:
        """Return the placement that `term` denotes on a tensor, and record the factors that it shards.

        Args:
            meta: the type of the tensor.
            dims: the factors of each dimension of the tensor.

        Raises:
            NotApplicable: the placement does not fit the tensor, or a factor has another placement in another tensor.
        """
        placement = self._read(term, meta, dims)
        if not placement.supports(meta.dtype):
            raise NotApplicable("{} does not support {}", placement, meta.dtype)
        try:
            placement.check(meta.shape, self.count)
        except SpmdirError as error:
            raise NotApplicable("{}", error.message) from None
        if isinstance(placement, ShardPlacement):
            factors = [factor for factor in dims[placement.dim] if self.rule.factors[factor].size != 1]
            size, factor_placement = meta.shape[placement.dim], with_dim(placement, 0)
            if size <= 1:
                raise NotApplicable("dimension {} has fewer than 2 elements", placement.dim)
            self.dimensions[tuple(factors), size, factor_placement] = None
            for factor in factors:
                recorded = self.factors.setdefault(factor, factor_placement)
                # A dimension of several factors is sharded as one, so its placement is not that of each factor.
                is_same = recorded == factor_placement or (recorded.is_routed and placement.is_routed)
                if not is_same and len(factors) == 1:
                    raise NotApplicable("factor '{}' has two placements", self.rule.factors[factor].name)
        return placement

    def check_nonempty(self, sharded: ShardCounts) -> None:
        """Raise NotApplicable if a rank would have an empty shard, which local forms do not support.

        A dimension of several factors is sharded as one: 8 heads of 2 groups on 4 ranks are 2 heads for each rank.
        """
        for factors, size, placement in self.dimensions:
            assert isinstance(placement, ShardPlacement)
            if not can_shard(placement, size, self.count):
                raise NotApplicable("the placement cannot shard {1} elements over {0} ranks", self.count, size)
            # The other axes may shard the dimension by another placement.
            outer_count = max(map(sharded.of, factors), default=1)
            outer_placement = (
                placement if outer_count == 1 or can_shard(placement, size, outer_count) else Shard(placement.dim)
            )
            if not all(shard_lengths(((outer_placement, outer_count), (placement, self.count)), size)):
                raise NotApplicable("{}", too_few_elements(size, self.count * outer_count, 1))

    def check_ring(self, ring: Statement, sharded: ShardCounts) -> None:
        """Raise RuleError if the factor of `ring` is not sharded, NotApplicable if the ring has too many ranks."""
        for factor in self.rule.layout.refer(ring.ring or ""):
            if factor not in self.factors:
                names = ", ".join(self.rule.factors[sharded_factor].name for sharded_factor in self.factors)
                location = ring.location  # the error itself is located at the op
                raise RuleError(
                    f"{location}: the ring is over '{ring.ring}', which the strategy does not shard; "
                    f"expected one of {names}"
                )
            ranks = self.count * sharded.of(factor)
            if ranks > RING.most:
                raise NotApplicable(
                    "its ring has {} ranks; expected at most {}", ranks, RING.most, location=ring.location
                )

    def _read(self, term: PlacementTerm, meta: TensorMeta, dims: Dims) -> Placement:
        """Return the placement that `term` denotes on a tensor of type `meta`; NotApplicable if it has no value.

        Fields of the placement that `term` omits have their defaults.
        """
        if term.is_any_shard:
            assert self.any_shard is not None
            return with_dim(self.any_shard, self._dimension(term, term.fields[0], meta, dims))
        placement_class = placement_type(term.name)
        values = {}  # field of the placement → its value
        for (name, field_type), field in zip(field_types(placement_class).items(), term.fields, strict=False):
            is_dim = name == "dim" and issubclass(placement_class, ShardPlacement)
            values[name] = self._dimension(term, field, meta, dims) if is_dim else self._value(term, field, field_type)
        try:
            return placement_class(**values)
        except (TypeError, ValueError) as error:
            raise NotApplicable("{}", error.args[0] if error.args else error) from None
        except SpmdirError as error:
            raise NotApplicable("{}", error.message, location=term.location) from None

    def _dimension(self, term: PlacementTerm, field: Expression, meta: TensorMeta, dims: Dims) -> int:
        """Return the dimension that `field` denotes: that of a factor, or a number, which may count from the end.

        Raises:
            NotApplicable: the tensor has no such dimension.
        """
        if isinstance(field, Name) and (factor := self.rule.layout.named.get(field.name)) is not None:
            matching = [dim for dim, factors in enumerate(dims) if factor in factors]
            if not matching:
                raise NotApplicable("no dimension of {} is '{}'", list(meta.shape), field.name, location=term.location)
            return matching[0]
        value = evaluate(field, self.rule.scope)
        # An argument such as `dim` may be a list of one dimension.
        value = value[0] if isinstance(value, tuple) and len(value) == 1 else value
        if not isinstance(value, int) or isinstance(value, bool):
            raise NotApplicable("{} is not a dimension; expected an integer", value)
        if not -meta.rank <= value < meta.rank:
            raise NotApplicable("a tensor of rank {} has no dimension {}", meta.rank, value, location=term.location)
        return value % meta.rank

    def _value(self, term: PlacementTerm, field: Expression, field_type: type) -> object:
        """Return the value of a field of a placement.

        In a field of text, a name is an argument of the call, else the text itself. A whole float becomes an integer if
        the field requires one.
        """
        if field_type is str and isinstance(field, Name):
            return self.rule.binding.arguments.get(field.name, field.name)
        value = evaluate(field, self.rule.scope)
        if field_type is int and isinstance(value, float) and value.is_integer():
            return int(value)
        return value
