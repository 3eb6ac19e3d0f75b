"""Collect the factors of one call while its patterns are matched."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from spmdir.core.placement.call import Call
from spmdir.core.placement.tensor import TensorMeta
from spmdir.rules.language.binding import Binding
from spmdir.rules.language.syntax_tree import Pattern, Rule
from spmdir.rules.shapes.call_reader import CallReader
from spmdir.rules.shapes.factor import Dims
from spmdir.rules.shapes.layout import Layout
from spmdir.rules.shapes.window_geometry import Window


class LayoutBuilder(CallReader):
    """Collects the factors of one call. It has the attributes of `Layout` and those below.

    Attributes:
        results: the types of the results; None if they are to be inferred.
        extents: name of a factor that no operand has → its size.
        open_groups: (factors, size, description of the tensor) of each group such as `(h g)` that was matched since
            `_solve_groups` last ran.
        operand: the operand whose dimensions a map computes; None for a result.
    """

    def __init__(
        self,
        rule: Rule,
        call: Call,
        binding: Binding,
        results: tuple[TensorMeta | None, ...] | None,
        extents: Mapping[str, int],
    ):
        self.rule, self.binding, self.operands = rule, binding, call.operands
        self.results, self.extents = results, extents
        self.names: list[str] = []
        self.sizes: list[int | None] = []
        self.unsharded: set[int] = set()
        self.operand_dims: list[Dims] = [()] * len(call.operands)
        self.result_dims: list[Dims | None] = []
        self.shape_arguments: list[str] = []
        self.windows: dict[int, Window | None] = {}
        self.paddings: tuple[int, ...] = ()
        self.halo_bytes: dict[int, int] = {}
        self.named: dict[str, int] = {}
        self.variadic: dict[str, list[int]] = {}
        self.separated: dict[str, dict[int, list[int]]] = {}
        self.open_groups: list[tuple[tuple[int, ...], int, str]] = []
        self.operand: int | None = None
        if results is not None and not rule.result_list and len(results) > len(rule.results):
            self.fail(
                f"found {len(results)} results; expected at most {len(rule.results)}, as the rule lists: remove "
                "the others"
            )

    def finish(self) -> Layout:
        """Return the layout; RuleError if the size of a factor is unknown."""
        if None in self.sizes:
            self.fail(
                f"neither an operand nor a clause gives the size of {self.names[self.sizes.index(None)]}; "
                "expected one that does: add a `sizes` clause to the rule"
            )
        return Layout(
            self.rule, self.binding, self.operands, tuple(self.names), tuple(size or 0 for size in self.sizes),
            frozenset(self.unsharded), tuple(self.operand_dims), tuple(self.result_dims), tuple(self.shape_arguments),
            self.windows, self.paddings, self.halo_bytes, self.named,
            {name: tuple(factors) for name, factors in self.variadic.items()},
            {
                argument: {position: tuple(factors) for position, factors in factors_of_position.items()}
                for argument, factors_of_position in self.separated.items()
            },
        )  # fmt: skip

    # Results.

    def result_shape(self, index: int = 0) -> tuple[int, ...] | None:
        """Return the shape of result `index`; None if it is absent or to be inferred."""
        meta = self.results[index] if self.results and index < len(self.results) else None
        return None if meta is None else meta.shape

    def result_pattern(self, index: int) -> Pattern:
        """Return the pattern of result `index`; the results of a list share one."""
        return self.rule.results[0 if self.rule.result_list else index].pattern

    def same_rank(self, dims: Dims, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return `shape`; RuleError unless it has as many dimensions as `dims`."""
        if len(dims) != len(shape):
            self.fail(f"the result has rank {len(shape)}; expected {len(dims)}: correct its type")
        return shape

    # Factors.

    def factor(self, name: str, size: int | None, unsharded: bool = False) -> int:
        """Add a factor and return its number.

        Args:
            size: the number of elements; None if it is not known yet.
            unsharded: whether no rule may shard it.
        """
        self.names.append(name)
        self.sizes.append(size)
        if unsharded:
            self.unsharded.add(len(self.sizes) - 1)
        return len(self.sizes) - 1

    def named_factor(self, name: str) -> int:
        """Return the factor `name` of the rule; add it if it is new."""
        if name not in self.named:
            self.named[name] = self.factor(name, self.extents.get(name))
        return self.named[name]

    def letter(self, name: str, size: int, equation: str | None) -> int:
        """Return the factor of an einsum letter; add it with this size if it is new.

        Args:
            equation: the argument with the equation, if no result has the letter. Then `~equation` in clauses refers to
                the factor. None if a result has it.
        """
        if name not in self.named:
            self.named[name] = self.factor(name, size)
            if equation is not None:  # a letter has no position in a dimension, so a unique number is the key
                self.separated.setdefault(equation, {})[len(self.sizes)] = [self.named[name]]
        return self.named[name]

    def separate_factor(self, argument: str, position: int, size: int) -> int:
        """Return the factor of `~argument` with this size at `position`; add it if it is new.

        If tensors have several sizes there, each size has a factor, and none of these may be sharded. For example, if
        `argument` is dim = 1, tensors of shapes [4, 2] and [4, 3] have the factors `~dim` of 2 and `~dim1` of 3.

        Args:
            position: the index of a variadic dimension.
        """
        factors = self.separated.setdefault(argument, {}).setdefault(position, [])
        for factor in factors:
            if self.sizes[factor] == size:
                return factor
        factors.append(self.factor(f"~{argument}" + (f"{len(factors)}" if factors else ""), size))
        if len(factors) > 1:
            self.keep_unsharded(factors)
        return factors[-1]

    def separate(self, argument: str, position: int, factors: Iterable[int]) -> None:
        """Let `~argument` refer to `factors` at `position`. They are unsharded unless a clause allows more."""
        self.separated.setdefault(argument, {}).setdefault(position, []).extend(factors)

    def keep_unsharded(self, factors: Iterable[int]) -> None:
        """Forbid sharding `factors`."""
        self.unsharded.update(factors)

    # Dimensions.

    def set_dims(self, name: str, dims: Dims) -> None:
        """Replace the dimensions of the operand of parameter `name`."""
        self.operand_dims[self.binding.operands(name)[0]] = dims

    def split(self, factor: int, new_factors: tuple[int, ...]) -> None:
        """Replace `factor` by `new_factors` in each dimension of which it is the only factor."""

        def replaced(dims: Dims) -> Dims:
            return tuple(new_factors if factors == (factor,) else factors for factors in dims)

        self.operand_dims = [replaced(dims) for dims in self.operand_dims]
        self.result_dims = [None if dims is None else replaced(dims) for dims in self.result_dims]
