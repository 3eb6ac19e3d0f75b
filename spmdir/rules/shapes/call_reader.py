"""Look up operands and arguments of a call by the parameters of a rule, and factors by references."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from spmdir.core.errors import RuleError
from spmdir.core.placement.call import Call, Local
from spmdir.core.placement.tensor import TensorMeta
from spmdir.rules.language.binding import Binding
from spmdir.rules.language.scope import Scope
from spmdir.rules.language.syntax_tree import Rule
from spmdir.rules.shapes.factor import Dims


class CallReader:
    """The base of `Layout` and `LayoutBuilder`.

    Attributes:
        rule, binding, operands: the rule, the bound parameters and the operand types of the call.
        sizes: the size of each factor; None while it is unknown.
        operand_dims: for each operand, the factors of its dimensions.
        named: name of a factor in the rule → the factor.
        variadic: name of variadic dimensions → their factors.
        separated: argument → position → the factors of `~argument` in the dimension there.
    """

    rule: Rule
    binding: Binding
    operands: tuple[TensorMeta, ...]
    sizes: Sequence[int | None]
    operand_dims: Sequence[Dims]
    named: Mapping[str, int]
    variadic: Mapping[str, Sequence[int]]
    separated: Mapping[str, Mapping[int, Sequence[int]]]

    def fail(self, message: str) -> NoReturn:
        """Raise RuleError with the name of the op and `message`."""
        raise RuleError(f"{self.rule.op}: {message}")

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of the operand of parameter `name`."""
        return self.operands[self.binding.operands(name)[0]].shape

    def dims(self, name: str) -> Dims:
        """Return the dimensions of the operand of parameter `name`."""
        return self.operand_dims[self.binding.operands(name)[0]]

    def argument(self, name: str) -> Any:
        """Return the value of literal argument `name`; None if it is absent."""
        return self.binding.arguments.get(name)

    def integers(self, name: str) -> tuple[int, ...]:
        """Return the numbers in literal argument `name`; RuleError if it is absent."""
        value = self.argument(name)
        listed = (value,) if isinstance(value, int) else value
        if not isinstance(listed, tuple) or not all(isinstance(number, int) for number in listed):
            from spmdir.core.placement.literals import print_literal  # imported for errors only, to load faster

            self.fail(f"argument '{name}' is {'missing' if value is None else print_literal(value)}; expected integers")
        return listed

    def integer(self, name: str) -> int:
        """Return the number in literal argument `name`; RuleError if it is absent or not one integer."""
        numbers = self.integers(name)
        if len(numbers) != 1:
            self.fail(f"argument '{name}' is {list(numbers)}; expected one integer")
        return numbers[0]

    def dimensions(self, argument: str, rank: int) -> tuple[int, ...]:
        """Return the dimensions, from 0 to `rank` - 1, that literal `argument` selects.

        As in torch, -1 and 0 select the only dimension of a scalar, which counts as one of rank 1.

        Raises:
            RuleError: the argument is absent, a dimension is out of range, or one is selected twice.
        """
        listed = self.integers(argument)
        for dim in listed:
            if not -max(rank, 1) <= dim < max(rank, 1):
                bound = max(rank, 1)
                self.fail(
                    f"argument '{argument}' selects dimension {dim} of a tensor of rank {rank}; "
                    f"expected {-bound} to {bound - 1}"
                )
        dims = tuple(dim % max(rank, 1) for dim in listed)
        if len(set(dims)) != len(dims):
            self.fail(f"argument '{argument}' selects a dimension twice: {list(listed)}; expected each dimension once")
        return dims

    def dimension(self, argument: str, rank: int) -> int:
        """Return the dimension, from 0 to `rank` - 1, that literal `argument` selects."""
        dims = self.dimensions(argument, rank)
        if len(dims) != 1:
            self.fail(f"argument '{argument}' is {list(dims)}; expected one dimension")
        return dims[0]

    def positions(self, argument: str, rank: int) -> tuple[int, ...]:
        """Return the dimensions that literal `argument` selects; all if it is absent, none or empty."""
        if self.argument(argument) in (None, ()):
            return tuple(range(rank))
        return self.dimensions(argument, rank)[:rank]

    def refer(self, reference: str) -> tuple[int, ...]:
        """Return the factors that a reference in a clause names; () if there are none.

        - `k` is the factor k of a pattern, and `*b` are the factors of the variadic dimensions `*b`.
        - `dim`, a literal argument, are the factors of the variadic dimensions that the argument selects.
        - `~dim` are the factors that are separate because of argument dim, such as those of a sliced dimension.
        - `^shape` are the last variadic factors, as many as the argument shape has numbers.
        """
        if reference.startswith("*"):
            return tuple(self.variadic.get(reference[1:], ()))
        if reference.startswith("~"):
            separated_factors = self.separated.get(reference[1:], {}).values()
            return tuple(factor for factors in separated_factors for factor in factors)
        if reference.startswith("^"):
            factors = self.variadic.get(self._variadic_of(reference[1:]), ())
            return tuple(factors[len(factors) - len(self.integers(reference[1:])) :])
        if reference in self.named:
            return (self.named[reference],)
        parameter = self.rule.parameter(reference)
        if parameter is not None and not parameter.is_tensor:
            factors = self.variadic.get(self._variadic_of(reference), ())
            return tuple(factors[position] for position in self.positions(reference, len(factors)))
        return ()

    def _variadic_of(self, argument: str) -> str:
        """Return the name of the variadic dimensions among which `argument` selects, such as "b" for `*b-dim`.

        If no term has the argument, it is that of the first variadic term of the rule; "" if there is none.
        """
        patterns = [*(parameter.pattern or () for parameter in self.rule.tensors)]
        patterns += [result.pattern for result in self.rule.results]
        variadic_terms = [term for pattern in patterns for term in pattern if term.kind == "variadic"]
        matching_terms = [term for term in variadic_terms if term.argument == argument] or variadic_terms
        return matching_terms[0].names[0] if matching_terms else ""

    @property
    def separate_factors(self) -> tuple[int, ...]:
        """The factors of all `~argument` references."""
        return tuple(
            factor for positions in self.separated.values() for factors in positions.values() for factor in factors
        )


def scope_of(call: Call, binding: Binding, reader: CallReader | None) -> Scope:
    """Return the scope of expressions that do not depend on the rank; without factors if `reader` is None."""

    def unsharded_factors(reference: str) -> tuple[Local, ...]:
        """Return the whole factors of `reference` as shards that no axis shards."""
        assert reader is not None
        return tuple(Local("shard", reader.sizes[factor] or 0, ()) for factor in reader.refer(reference))

    def dims_with(tensor: str, references: tuple[str, ...]) -> tuple[int, ...]:
        """Return the dimensions of operand `tensor` that have a factor of `references`."""
        assert reader is not None
        referred_factors = {factor for reference in references for factor in reader.refer(reference)}
        dims = enumerate(reader.dims(tensor))
        return tuple(dim for dim, factors in dims if referred_factors.intersection(factors))

    return Scope(binding, call.operands, call.results, unsharded_factors, dims_with)
