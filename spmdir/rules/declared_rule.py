"""The rule of a local map: its strategies are the shardings that the call itself declares.

    in_shardings = ["dp: S(0), tp: S(1)", "tp: S(0)"], out_shardings = ["dp: S(0), tp: P(sum)"]

has three strategies: replicated; (S(0), R) -> (S(0)), from `dp`; and (S(1), S(0)) -> (P(sum)), from `tp`. `propagate`
uses on each axis the strategy of this axis.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from spmdir.core.errors import Location
from spmdir.core.placement.call import Call
from spmdir.core.placement.declaration import (
    FLOPS,
    IN_SHARDINGS,
    LITERALS,
    MODULE,
    OPERANDS,
    OUT_SHARDINGS,
    Declaration,
    declaration,
    work_elements,
)
from spmdir.core.placement.shards import ShardPlacement
from spmdir.core.placement.standard import Placement, Shard
from spmdir.core.placement.tensor import TensorMeta
from spmdir.rules.language.binding import bind
from spmdir.rules.language.syntax_tree import Parameter, Result, Rule, Term
from spmdir.rules.op_rule import OpRule, Rules
from spmdir.rules.shapes.call_reader import scope_of
from spmdir.rules.shapes.factor import Dims, Factor
from spmdir.rules.shapes.layout import Layout
from spmdir.rules.strategies.obstacle import Dropped
from spmdir.rules.strategies.plugin_placements import PluginPlacements, with_dim
from spmdir.rules.strategies.strategy import ShardCounts, Strategy

_LOCATION = Location("local_map", 1, 1)
_ANY_DIMS = (Term("variadic", ("",), _LOCATION),)
_LITERALS = (LITERALS, IN_SHARDINGS, OUT_SHARDINGS, MODULE, FLOPS, "wanted")


class DeclaredRule(OpRule):
    """The rule of a local map on one call. Each dimension of each tensor is a separate factor."""

    @cached_property
    def declared(self) -> Declaration:
        """The shardings that the call declares."""
        return declaration(self.call.argument, len(self.call.operands), len(self.call.results))

    @cached_property
    def flops(self) -> float:  # type: ignore[override]
        """The floating-point operations of the function, on the tensors of this call."""
        per_element = self.argument(FLOPS) or 0.0
        return per_element * work_elements(self.declared, (*self.call.operands, *self.call.results))

    def _list(self, count: int, sharded: ShardCounts, plugins: PluginPlacements) -> Iterator[Strategy | Dropped]:
        """Yield the replicated strategy, then that of each axis of the declaration; equal ones once."""
        yield self._replicated
        metas = (*self.call.operands, *self.call.results)
        for placements in dict.fromkeys(
            tuple(sharding[axis] for sharding in self.declared.all) for axis in self.declared.axes
        ):
            if all(_fits(*pair) for pair in zip(placements, metas, strict=True)):
                yield self._strategy(placements)

    def _strategy(self, placements: tuple[Placement, ...]) -> Strategy:
        """Return the strategy with these placements of the operands, then of the results.

        It shards the factor of each dimension that a placement shards. For example, (S(0), R) of operands [d0, d1] and
        [d2] shards d0.
        """
        operand_count = len(self.call.operands)
        placement_of_factor: dict[int, Placement] = {}
        for placement, dims in zip(placements, (*self.operand_dims, *self.result_dims), strict=True):
            if isinstance(placement, ShardPlacement) and dims is not None:
                (factor,) = dims[placement.dim]
                placement_of_factor[factor] = with_dim(placement, 0)
        has_only_s = all(placement == Shard(0) for placement in placement_of_factor.values())
        factor_placements = () if has_only_s else tuple(placement_of_factor.values())
        return Strategy(
            placements[:operand_count],
            placements[operand_count:],
            tuple(placement_of_factor),
            factor_placements=factor_placements,
        )


def declared_rule(call: Call, rules: Rules) -> DeclaredRule:
    """Return the rule of a local map on `call`: each dimension of each tensor is an unsharded factor.

    The only strategies are the declared shardings of the call.

    Raises:
        RuleError: the call has an argument that local maps do not have.
    """
    parameters = (
        Parameter(OPERANDS, _ANY_DIMS, True, False, None, _LOCATION),
        *(Parameter(name, None, False, False, None, _LOCATION) for name in _LITERALS),
    )
    rule = Rule(call.name, parameters, (Result(_ANY_DIMS, None, _LOCATION),), True, (), _LOCATION)
    binding = bind(rule, call.slots, call.structure is None, call.argument)
    factors: list[Factor] = []

    def dims_of(meta: TensorMeta | None) -> Dims:
        """Return the dimensions of a tensor, each with a new factor."""
        first_factor = len(factors)
        factors.extend(
            Factor(f"d{first_factor + dim}", size, "unsharded") for dim, size in enumerate(meta.shape if meta else ())
        )
        return tuple((factor,) for factor in range(first_factor, len(factors)))

    operand_dims = tuple(map(dims_of, call.operands))
    result_dims = tuple(map(dims_of, call.results))
    layout = Layout(
        rule,
        binding,
        call.operands,
        names=tuple(factor.name for factor in factors),
        sizes=tuple(factor.size for factor in factors),
        unsharded=frozenset(),
        operand_dims=operand_dims,
        result_dims=result_dims,
        shape_arguments=(),
        windows={},
        paddings=(),
        halo_bytes={},
        named={},
        variadic={},
        separated={},
    )
    return DeclaredRule(rule, call, binding, layout, scope_of(call, binding, layout), tuple(factors), (), rules)


def _fits(placement: Placement, meta: TensorMeta | None) -> bool:
    """Return whether a tensor has the dimension that a placement shards; True for other placements."""
    return placement.dim is None or (meta is not None and placement.dim < meta.rank)
