"""Programs of ranks whose local inputs have sizes of their own, as a shorter last batch or a longer padding.

Each rank lowers the program as though all ranks had its sizes: with 3 rows on one of 2 ranks, its batch has 6. A mean
over the batch is then the mean of the ranks' means, as with FSDP2. Ranks need no agreement as long as no message has a
shape that depends on sizes. If some do, ranks compare these in each call. All programs have the schedule of one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from fractions import Fraction
from functools import cached_property

import attrs
from torch import Tensor
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Attribute, Operation

from spmdir.core.errors import SpmdirError, UnsupportedError
from spmdir.core.placement.sharding import Sharding
from spmdir.core.symbolic.expressions import is_symbolic, symbols
from spmdir.core.symbolic.symbols import Sizes
from spmdir.dialects import ir
from spmdir.dialects.attributes import is_sized, meta_of
from spmdir.dialects.names import text_name
from spmdir.dialects.sizes import open_sizes
from spmdir.dialects.values import sharding_of, signature_kind
from spmdir.pipeline.finish import bind_sizes, inline_layers, remaining_passes
from spmdir.pipeline.pipeline import Pipeline, Step, run_passes
from spmdir.runtime.agreement import RankGroup
from spmdir.runtime.follow import RankMessage, follow, messages, name_values
from spmdir.runtime.ranks import Ranks
from spmdir.runtime.signature import Argument
from spmdir.transforms.own_values import BatchSizes, keep_own_values

_FACTORS = (2, 3, 5, 7, Fraction(1, 2), Fraction(1, 3))
"""What sizes are multiplied by to see which messages depend on them."""

_DISTANCES = (1, -1, 2, -2, 3, -3)
"""What is added to the shards of sizes, where no multiple of them is in the range of the sizes."""


def deciding_apart(pipeline: Pipeline, imported: ModuleOp) -> Pipeline:
    """Return a pipeline that decides an imported program for ranks with sizes of their own.

    What has symbolic sizes is not sent along the axes of the batch, as a batch of token ids would be where the gradient
    of their embedding is larger.
    """
    function = ir.main_function(imported)
    given = [value for value in function.args if signature_kind(function, "arg_attrs", value.index) == "input"]
    axes = batch_axes((value.type, sharding_of(value)) for value in given)
    return pipeline.with_option("propagate", "apart", ",".join(axes)) if axes else pipeline


def batch_axes(inputs: Iterable[tuple[Attribute, Sharding | None]]) -> tuple[str, ...]:
    """Return the axes that shard the first dimension of those inputs, by type and sharding, with symbolic sizes."""
    shardings = [sharding for type_, sharding in inputs if is_sized(type_) and sharding is not None]
    return tuple(dict.fromkeys(axis for sharding in shardings for axis in sharding.dim_axes(0)))


@attrs.define(eq=False, slots=False, kw_only=True)
class OwnSizes:
    """What ranks with sizes of their own have in common.

    Attributes:
        module: the decided program with its symbolic sizes.
        inputs: the arguments that calls give.
        is_step: whether the program updates a state by what it computes, so that its means are of the global batch.
    """

    module: ModuleOp
    pipeline: Pipeline
    inputs: Sequence[Argument]
    ranks: Ranks
    is_step: bool

    def global_shape(self, argument: Argument, tensor: Tensor) -> tuple[int, ...]:
        """Return the shape of an input if all ranks had shards like `tensor`; that of the program where it is fixed."""
        if tensor.dim() != len(argument.sizes):
            return tuple(tensor.shape)
        return tuple(
            length * self._shards(argument, dim) if is_symbolic(size) else int(size)  # type: ignore
            for dim, (size, length) in enumerate(zip(argument.sizes, tensor.shape, strict=True))
        )

    def _shards(self, argument: Argument, dim: int) -> int:
        return self.ranks.mesh.group_size(argument.sharding.dim_axes(dim))

    def localized(self, module: ModuleOp) -> ModuleOp:
        """Return the program of a rank of `module`, which has numbers for its sizes, in the schedule that all have.

        Raises:
            UnsupportedError: it would not run together with those of other sizes.
        """
        made = self._of_own_values(module)
        follow(made, self.reference, self.pipeline)
        dependent = self._dependent
        for place, (expected, found) in enumerate(zip(messages(self.reference), messages(made), strict=False)):
            if found != expected and (place not in dependent or found.what != expected.what):
                raise UnsupportedError(
                    f"{found.what} depends on the local sizes, but not for the example inputs; give all ranks inputs "
                    "of equal size"
                )
        return made

    def dependent(self, made: ModuleOp) -> list[RankMessage]:
        """Return the messages of a program of this rank that depend on sizes."""
        found = messages(made)
        return [found[place] for place in sorted(self._dependent)]

    def agree(self, sent: Sequence[RankMessage], tensors: Sequence[Tensor]) -> None:
        """Compare the messages of a call that depend on sizes, if there are any, with those of the ranks they go to.

        Raises:
            DivergenceError: on all these ranks, if they differ.
        """
        if not sent:
            return
        with self.ranks.group.reporting(), self._meeting.checked("a call with local sizes") as status:
            mesh, index = self.ranks.mesh, self.ranks.index
            # Of several groups along the axes of one message, each agrees by itself.
            status["messages"] = {f"{one.what}#{min(mesh.group(index, one.axes))}": one.form for one in sent}
            status["lengths"] = {
                f"dimension {dim} of '{argument.name}'": tensor.shape[dim]
                for argument, tensor in zip(self.inputs, tensors, strict=True)
                for dim, size in enumerate(argument.sizes)
                if is_symbolic(size)
            }

    @cached_property
    def _meeting(self) -> RankGroup:
        """The ranks that messages which depend on sizes connect with this one."""
        sent = messages(self.reference)
        axes = {axis for place in self._dependent for axis in sent[place].axes}
        return self.ranks.group_along(axes)

    @cached_property
    def _examples(self) -> dict[str, int]:
        """The sizes of the example arguments, made larger where ranks would have unequal shards of them."""
        declared = open_sizes(self.module)
        even = {name: -(-size // self._counts[name]) * self._counts[name] for name, size in declared.hints.items()}
        return even if _are_admitted(declared, even) else declared.hints

    @cached_property
    def _counts(self) -> dict[str, int]:
        """Name of a size → in how many shards ranks have it."""
        found = dict.fromkeys(open_sizes(self.module).hints, 1)
        for argument in self.inputs:
            for dim, size in enumerate(argument.sizes):
                if is_symbolic(size) and len(names := symbols(size)) == 1:
                    found[names[0]] = math.lcm(found[names[0]], self._shards(argument, dim))
        return found

    @cached_property
    def reference(self) -> ModuleOp:
        """The program of a rank for the examples, whose schedule all have."""
        module = self._of_own_values(self._bound(self._examples))
        return run_passes(module, remaining_passes(self.pipeline, ir.main_function(module)))

    @cached_property
    def _dependent(self) -> frozenset[int]:
        """The places of the messages of the reference that depend on sizes."""

        def like_reference(module: ModuleOp) -> ModuleOp:
            made = self._of_own_values(module)
            follow(made, self.reference, self.pipeline)
            return made

        return self._differing(messages(self.reference), like_reference)

    @cached_property
    def _own_axes(self) -> tuple[str, ...]:
        """The axes of the batch along which ranks compute with values of their own.

        Ranks along an axis by which the program needs parts of each other's batch, as of a sequence, have one batch. So
        have all ranks if it is not known what depends on its size.
        """
        if self._batch_sizes is None:
            return ()
        plain = messages(self._local(self._bound(self._examples)))
        places = self._differing(plain, self._local)
        needed = {axis for place in places if not plain[place].is_returned for axis in plain[place].axes}
        sized_ones = [argument for argument in self.inputs if any(map(is_symbolic, argument.sizes))]
        axes = dict.fromkeys(axis for argument in sized_ones for axis in argument.sharding.dim_axes(0))
        return tuple(axis for axis in axes if axis not in needed)

    def _of_own_values(self, module: ModuleOp) -> ModuleOp:
        """Return the program of a rank, not yet scheduled, that computes with values of its own batch."""
        made = self._local(module)
        if self._own_axes and self._batch_sizes is not None:
            keep_own_values(made, self._own_axes, self._batch_sizes, reduces_alone=not self.is_step)
            name_values(made)
        return made

    @cached_property
    def _batch_sizes(self) -> BatchSizes | None:
        """What depends on the size of the batch in the program of a rank; None if no other size can be tried."""
        batch = [size for argument in self.inputs for size in argument.sizes[:1] if is_symbolic(size)]
        names = {name for size in batch for name in symbols(size)}
        if not names:
            return BatchSizes({})
        other = next(self._tried([*names], self._local), None)
        if other is None:
            return None
        made = [list(_tensors(module)) for module in (self._local(self._bound(self._examples)), other)]
        dims: dict[str, set[int]] = {}
        numbers: set[str] = set()
        for (name, shape, arguments), (_, other_shape, other_arguments) in zip(*made, strict=False):
            pairs = enumerate(zip(shape, other_shape, strict=False))
            dims[name] = {dim for dim, (length, other_length) in pairs if length != other_length}
            if arguments != other_arguments and not dims[name]:
                numbers.add(name)
        return BatchSizes(dims, numbers)

    def _local(self, module: ModuleOp) -> ModuleOp:
        """Return the program of a rank before it is scheduled."""
        module = inline_layers(module).clone()
        needed = remaining_passes(self.pipeline, ir.main_function(module)).before("localize")
        run_passes(module, needed.with_steps((*needed.steps, Step("localize"))))
        name_values(module)
        return module

    def _bound(self, sizes: Mapping[str, int]) -> ModuleOp:
        return bind_sizes(self.module, sizes, self.pipeline)

    def _differing(self, expected: Sequence[RankMessage], localize: Callable[[ModuleOp], ModuleOp]) -> frozenset[int]:
        """Return the places of the messages that differ from those for the examples if sizes do.

        Those are all messages if no other number can be tried for a size.
        """
        names = list(self._examples)
        together = next(self._tried(names, localize), None)
        # All at once show what each by itself would.
        tried = [together] if together else [next(self._tried([name], localize), None) for name in names]
        found: set[int] = set()
        for module in tried:
            other = messages(module) if module is not None else []
            if [each.what for each in other] != [each.what for each in expected]:
                return frozenset(range(len(expected)))
            found.update(place for place, pair in enumerate(zip(expected, other, strict=True)) if pair[0] != pair[1])
        return frozenset(found)

    def _tried(self, names: Sequence[str], localize: Callable[[ModuleOp], ModuleOp]) -> Iterator[ModuleOp]:
        """Yield programs in which the sizes of these names are others than in the examples."""
        declared = open_sizes(self.module)
        for changed in self._other_sizes(names):
            sizes = {**self._examples, **changed}
            if _are_admitted(declared, sizes):
                with suppress(SpmdirError):
                    yield localize(self._bound(sizes))

    def _other_sizes(self, names: Sequence[str]) -> Iterator[dict[str, int]]:
        """Yield other numbers for the sizes of these names, of which ranks have equal shards."""
        known = {name: self._examples[name] for name in names}
        for factor in _FACTORS:
            sizes = {name: size * factor for name, size in known.items()}
            if all(size % self._counts[name] == 0 for name, size in sizes.items()):
                yield {name: int(size) for name, size in sizes.items()}
        for distance in _DISTANCES:
            sizes = {name: size + distance * self._counts[name] for name, size in known.items()}
            if min(sizes.values()) > 0:
                yield sizes


def _tensors(module: ModuleOp) -> Iterator[tuple[str, tuple[int, ...], Attribute | None]]:
    """Yield the name and the shape of each tensor of a program, and the arguments of the op that makes it."""
    function = ir.main_function(module)
    for value in (*function.args, *(result for op in function.body.block.ops for result in op.results)):
        meta = meta_of(value.type)
        if meta is not None:
            made_by = value.owner if isinstance(value.owner, Operation) else None
            yield text_name(value), meta.shape, made_by.properties.get("arguments") if made_by else None


def _are_admitted(declared: Sizes, sizes: Mapping[str, int]) -> bool:
    try:
        declared.check(sizes)
    except SpmdirError:
        return False
    return True
