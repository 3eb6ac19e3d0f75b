"""The programs of a sharded module, one for each kind of call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
from torch import Tensor, nn

from spmdir.core.errors import UnsupportedError
from spmdir.runtime.capture import value_key
from spmdir.runtime.dynamic_dims import Fixed
from spmdir.runtime.guards import Guards
from spmdir.runtime.joint_program import JointProgram
from spmdir.runtime.rank_programs import RankPrograms
from spmdir.torch_interop import pytree

LIMIT = 32
"""Maximum number of programs for calls that differ only in guards."""

NUMBERS_LIMIT = 8
"""Maximum number of programs for calls that differ only in the values of arguments that are not tensors."""

_TENSOR = "a tensor"

Places = frozenset[int]
"""Indices of tensors among the leaves of a call."""


def _value_keys(values: Sequence[tuple[type, Any]]) -> tuple[Any, ...]:
    """Return the keys by which the values of leaves are compared."""
    return tuple(value_key(value) for _, value in values)


@attrs.frozen
class Structure:
    """The structure of the arguments of a call.

    Attributes:
        spec: the containers and their keys, in order.
        values: the type and value of each leaf; all tensors are equal.
        fixed: the dynamic dimensions that are numbers in the program of the call.
    """

    spec: pytree.TreeSpec
    values: tuple[tuple[type, Any], ...] = attrs.field(eq=_value_keys)
    fixed: Fixed = ()

    @classmethod
    def of(cls, leaves: Sequence[Any], spec: pytree.TreeSpec, fixed: Fixed = ()) -> Structure:
        """Return the structure of flattened arguments."""
        values = ((Tensor, _TENSOR) if isinstance(leaf, Tensor) else (type(leaf), leaf) for leaf in leaves)
        return cls(spec, tuple(values), fixed)

    def differing_values(self, structure: Structure) -> list[int]:
        """Return the indices of the leaves whose values differ from those of `structure`.

        The list is empty if the calls also differ in containers, fixed dimensions, or in which leaves are tensors.
        """
        if (self.spec, self.fixed) != (structure.spec, structure.fixed):
            return []
        indices = []
        for index, (leaf, other_leaf) in enumerate(zip(self.values, structure.values, strict=True)):
            (kind, value), (other_kind, other_value) = leaf, other_leaf
            if Tensor in (kind, other_kind) and leaf != other_leaf:
                return []  # a tensor in one call, a number in the other
            if value_key(value) != value_key(other_value):
                indices.append(index)
        return indices


@attrs.frozen(eq=False)
class Variant:
    """The programs for one kind of call.

    Attributes:
        structure: the structure of the arguments.
        is_unreduced: whether the programs leave the gradients of parameters unreduced.
        differentiated: the indices of the inputs that the programs compute gradients for.
        guards: the Python state that the trace read.
        programs: the programs of this rank.
        examples: the arguments of the trace, with meta tensors of global shapes.
    """

    structure: Structure
    is_unreduced: bool
    differentiated: Places
    guards: Guards
    programs: RankPrograms[JointProgram]
    examples: Any

    def serves(self, module: nn.Module, structure: Structure, is_unreduced: bool, differentiated: Places) -> bool:
        """Return whether the programs are valid for a call of `module` with these properties, see the attributes."""
        return (
            self.is_unreduced == is_unreduced
            and differentiated <= self.differentiated
            and self.structure == structure
            and self.guards.hold(module)
        )


@attrs.define(eq=False)
class Variants:
    """The variants of a module, in the order of their compilation."""

    _variants: list[Variant] = attrs.field(factory=list, init=False)
    _latest: Variant | None = attrs.field(default=None, init=False)

    def __iter__(self) -> Iterator[Variant]:
        return iter(self._variants)

    def add(self, variant: Variant) -> Variant:
        """Add a variant, and return it."""
        self._variants.append(variant)
        self._latest = variant
        return variant

    def find(
        self, module: nn.Module, structure: Structure, is_unreduced: bool, differentiated: Places
    ) -> Variant | None:
        """Return a variant that serves a call, if possible the one that ran last; None if there is none."""
        ordered = self._variants if self._latest is None else [self._latest, *self._variants]
        self._latest = next(
            (variant for variant in ordered if variant.serves(module, structure, is_unreduced, differentiated)), None
        )
        return self._latest

    def of_structure(self, structure: Structure) -> list[Variant]:
        """Return the variants for arguments of this structure, in the order of their compilation."""
        return [variant for variant in self._variants if variant.structure == structure]

    def check_limits(self, module: nn.Module, structure: Structure, is_unreduced: bool, names: Sequence[str]) -> None:
        """Raise UnsupportedError if a call needs another program and the module has the maximum number of them.

        Args:
            names: the names of the leaves of the call.
        """
        structures = [variant.structure for variant in self._variants]
        differing_indices = [index for earlier in structures for index in earlier.differing_values(structure)]
        for index in sorted(set(differing_indices)):
            values = {repr(earlier.values[index][1]) for earlier in structures if earlier.spec == structure.spec}
            if len(values) >= NUMBERS_LIMIT and not isinstance(structure.values[index][1], Tensor):
                raise UnsupportedError(
                    f"'{names[index]}' has had {len(values)} values, each of which needs a program; expected few "
                    f"values: pass it as a tensor, such as torch.tensor({structure.values[index][1]!r})"
                )
        variants_of_kind = [variant for variant in self.of_structure(structure) if variant.is_unreduced == is_unreduced]
        if len(variants_of_kind) >= LIMIT:
            change = variants_of_kind[-1].guards.find_change(module) or "the inputs that require gradients"
            raise UnsupportedError(
                f"the module has {LIMIT} programs for calls of this kind, and needs another: {change}; expected state "
                "that rarely changes: keep changing values in a buffer"
            )


def shapes_of(call: tuple[Any, Any], global_shapes: Mapping[str, tuple[int, ...]] | None, names: Sequence[str]) -> Any:
    """Return the arguments of a call with meta tensors of global shapes.

    Args:
        global_shapes: name of an input → global shape; None if the call has global inputs.
        names: the names of the leaves of the call.

    Raises:
        UnsupportedError: the global shape of an input is not known.
    """
    leaves, spec = pytree.tree_flatten((call[0], dict(call[1])))
    for index, (leaf, name) in enumerate(zip(leaves, names, strict=True)):
        if not isinstance(leaf, Tensor):
            continue
        if global_shapes is not None and name not in global_shapes:
            raise UnsupportedError(
                f"the call passes a shard '{name}', whose global shape is not known because the examples have no "
                f"'{name}'; expected an input of the examples: add it to example_inputs or example_kwargs, or pass "
                "global inputs"
            )
        shape = leaf.shape if global_shapes is None else global_shapes[name]
        leaves[index] = leaf.new_empty(shape, device="meta").requires_grad_(leaf.requires_grad)
    return pytree.tree_unflatten(leaves, spec)
