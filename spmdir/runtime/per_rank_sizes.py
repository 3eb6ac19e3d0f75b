"""Programs of ranks whose local inputs have different sizes, such as a shorter last batch or a longer padding.

Each rank lowers the program as if all ranks had its sizes. For example, of two ranks, one has 3 rows and assumes a
batch of 6, and the other has 4 and assumes a batch of 8. So a mean over the batch is the mean of the means of ranks, as
with FSDP2.

The messages of the two programs must fit together. A gradient of a weight has the same shape on both ranks. A gathered
output does not. So the messages that depend on sizes are found, by lowering the program for other sizes. Ranks compare
only these messages in each call. All programs follow the schedule of one program, the *reference*, whose sizes are
those of the examples.
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
from spmdir.dialects.size_ops import open_sizes
from spmdir.dialects.values import sharding_of, signature_kind
from spmdir.pipeline.pipeline import Pipeline, Step, run_passes
from spmdir.pipeline.remaining_passes import bind_sizes, inline_layers, remaining_passes
from spmdir.runtime.agreement import RankGroup
from spmdir.runtime.follow_schedule import RankMessage, follow_schedule, messages, name_values
from spmdir.runtime.ranks import Ranks
from spmdir.runtime.signature import Argument
from spmdir.transforms.per_rank_batch import BatchSizes, keep_own_values

_FACTORS = (2, 3, 5, 7, Fraction(1, 2), Fraction(1, 3))
"""Factors for sizes, to find the messages that depend on them."""

_DISTANCES = (1, -1, 2, -2, 3, -3)
"""Differences of shard sizes, used if no multiple of the sizes is in their range."""


def allow_different_sizes(pipeline: Pipeline, imported: ModuleOp) -> Pipeline:
    """Return a pipeline that decides an imported program for ranks with different sizes.

    Along the axes of the batch, values with symbolic sizes must not be sent, because their sizes differ between ranks.
    Without the option, the search may gather token ids, if a reduction of the embedding's gradient is more expensive.
    """
    function = ir.main_function(imported)
    inputs = [value for value in function.args if signature_kind(function, "arg_attrs", value.index) == "input"]
    axes = batch_axes((value.type, sharding_of(value)) for value in inputs)
    return pipeline.with_option("propagate", "apart", ",".join(axes)) if axes else pipeline


def batch_axes(inputs: Iterable[tuple[Attribute, Sharding | None]]) -> tuple[str, ...]:
    """Return the mesh axes that shard the first dimension of any input with symbolic sizes.

    Args:
        inputs: (type, sharding) of each input.
    """
    shardings = [sharding for type_, sharding in inputs if is_sized(type_) and sharding is not None]
    return tuple(dict.fromkeys(axis for sharding in shardings for axis in sharding.dim_axes(0)))


@attrs.define(eq=False, slots=False, kw_only=True)
class PerRankSizes:
    """Makes the programs of ranks with different sizes from one decided program.

    Attributes:
        module: the decided program with its symbolic sizes.
        pipeline: the pipeline of the program.
        inputs: the arguments that a call passes.
        is_step: whether the program updates a state with its results. Then its means are of the global batch.
    """

    module: ModuleOp
    pipeline: Pipeline
    inputs: Sequence[Argument]
    ranks: Ranks
    is_step: bool

    def global_shape(self, argument: Argument, tensor: Tensor) -> tuple[int, ...]:
        """Return the global shape of an input if all ranks had shards like `tensor`. Fixed sizes do not change."""
        if tensor.dim() != len(argument.sizes):
            return tuple(tensor.shape)
        return tuple(
            length * self._shards(argument, dim) if is_symbolic(size) else int(size)  # type: ignore
            for dim, (size, length) in enumerate(zip(argument.sizes, tensor.shape, strict=True))
        )

    def _shards(self, argument: Argument, dim: int) -> int:
        """Return the number of shards of a dimension of an argument."""
        return self.ranks.mesh.group_size(argument.sharding.dim_axes(dim))

    def localize(self, module: ModuleOp) -> ModuleOp:
        """Return the program of a rank of `module`, a program without symbolic sizes, in the schedule of the reference.

        Raises:
            UnsupportedError: the program cannot run together with programs of other sizes.
        """
        program = self._localize_with_own_batch(module)
        follow_schedule(program, self.reference, self.pipeline)
        pairs = zip(messages(self.reference), messages(program), strict=False)
        for index, (reference_message, message) in enumerate(pairs):
            may_differ = index in self._size_dependent_indices and message.description == reference_message.description
            if message != reference_message and not may_differ:
                raise UnsupportedError(
                    f"{message.description} depends on the local sizes, but not for the example inputs; "
                    "expected inputs of equal size on all ranks: pad or regroup the batch"
                )
        return program

    def size_dependent_messages(self, program: ModuleOp) -> list[RankMessage]:
        """Return the messages of a program of this rank that depend on sizes."""
        all_messages = messages(program)
        return [all_messages[index] for index in sorted(self._size_dependent_indices)]

    def compare_messages(self, sent: Sequence[RankMessage], tensors: Sequence[Tensor]) -> None:
        """Compare the messages of a call that depend on sizes with those of the ranks that also send these messages.

        Args:
            sent: the messages of this rank that depend on sizes; if empty, nothing is compared.
            tensors: the inputs of the call.

        Raises:
            DivergenceError: on all of these ranks, if the messages differ.
        """
        if not sent:
            return
        with (
            self.ranks.group.report_errors(),
            self._size_dependent_group.check_agreement("a call with local sizes") as status,
        ):
            mesh, index = self.ranks.mesh, self.ranks.index
            # A message has several groups along its axes: each group compares separately.
            status["messages"] = {
                f"{message.description}#{min(mesh.group(index, message.axes))}": message.form for message in sent
            }
            status["lengths"] = {
                f"dimension {dim} of '{argument.name}'": tensor.shape[dim]
                for argument, tensor in zip(self.inputs, tensors, strict=True)
                for dim, size in enumerate(argument.sizes)
                if is_symbolic(size)
            }

    @cached_property
    def _size_dependent_group(self) -> RankGroup:
        """The ranks with which this rank exchanges messages that depend on sizes."""
        sent = messages(self.reference)
        axes = {axis for index in self._size_dependent_indices for axis in sent[index].axes}
        return self.ranks.group_along(axes)

    @cached_property
    def _rounded_examples(self) -> dict[str, int]:
        """The sizes of the example arguments, rounded up to multiples of the numbers of shards.

        If the program does not admit the rounded sizes, these are the sizes of the examples.
        """
        declared = open_sizes(self.module)
        rounded_sizes = {}
        for name, size in declared.hints.items():
            count = self._shard_counts[name]
            rounded_sizes[name] = -(-size // count) * count  # rounded up
        return rounded_sizes if _are_admitted(declared, rounded_sizes) else declared.hints

    @cached_property
    def _shard_counts(self) -> dict[str, int]:
        """Name of a symbolic size → a number that is divisible by the shard counts of all dimensions of this size."""
        counts = dict.fromkeys(open_sizes(self.module).hints, 1)
        for argument in self.inputs:
            for dim, size in enumerate(argument.sizes):
                if is_symbolic(size) and len(names := symbols(size)) == 1:
                    counts[names[0]] = math.lcm(counts[names[0]], self._shards(argument, dim))
        return counts

    @cached_property
    def reference(self) -> ModuleOp:
        """The program of a rank for the example sizes. All programs follow its schedule."""
        module = self._localize_with_own_batch(self._bind_sizes(self._rounded_examples))
        return run_passes(module, remaining_passes(self.pipeline, ir.main_function(module)))

    @cached_property
    def _size_dependent_indices(self) -> frozenset[int]:
        """The positions of the messages of the reference that depend on sizes."""

        def like_reference(module: ModuleOp) -> ModuleOp:
            """Return the program of a rank, in the schedule of the reference."""
            program = self._localize_with_own_batch(module)
            follow_schedule(program, self.reference, self.pipeline)
            return program

        return self._find_size_dependent(messages(self.reference), like_reference)

    @cached_property
    def _separate_axes(self) -> tuple[str, ...]:
        """The axes of the batch along which each rank computes with a separate batch.

        If the program exchanges parts of the batch along an axis, as for a sequence, the ranks of this axis share one
        batch. Such exchanges are the messages that change with the size of the batch, except for messages whose results
        are only returned. If it is unknown which values depend on the size of the batch, all ranks share one.
        """
        if self._batch_sizes is None:
            return ()
        plain_messages = messages(self._localize_plain(self._bind_sizes(self._rounded_examples)))
        dependent_indices = self._find_size_dependent(plain_messages, self._localize_plain)
        shared_axes = {
            axis
            for index in dependent_indices
            if not plain_messages[index].is_returned
            for axis in plain_messages[index].axes
        }
        sized_arguments = [argument for argument in self.inputs if any(map(is_symbolic, argument.sizes))]
        axes = dict.fromkeys(axis for argument in sized_arguments for axis in argument.sharding.dim_axes(0))
        return tuple(axis for axis in axes if axis not in shared_axes)

    def _localize_with_own_batch(self, module: ModuleOp) -> ModuleOp:
        """Return the program of a rank, before scheduling. Along `_separate_axes`, each rank has a batch of its own."""
        program = self._localize_plain(module)
        if self._separate_axes and self._batch_sizes is not None:
            keep_own_values(program, self._separate_axes, self._batch_sizes, reduces_alone=not self.is_step)
            name_values(program)
        return program

    @cached_property
    def _batch_sizes(self) -> BatchSizes | None:
        """The values of a rank's program that depend on the size of the batch; None if the size cannot vary.

        The program is lowered for two sizes, and the values with equal names are compared. For the local batches 3 and
        6, a value of shape (3, 5) in one and (6, 5) in the other depends on the size in dimension 0. A value of equal
        shapes whose op has other arguments, such as a factor 1/3 and 1/6, is a number that depends on it.
        """
        batch_sizes = [size for argument in self.inputs for size in argument.sizes[:1] if is_symbolic(size)]
        names = {name for size in batch_sizes for name in symbols(size)}
        if not names:
            return BatchSizes({})
        other_program = next(self._try_other_sizes([*names], self._localize_plain), None)
        if other_program is None:
            return None
        program = self._localize_plain(self._bind_sizes(self._rounded_examples))
        dims: dict[str, set[int]] = {}
        number_names: set[str] = set()
        for tensor, other_tensor in zip(_iterate_tensors(program), _iterate_tensors(other_program), strict=False):
            (name, shape, arguments), (_, other_shape, other_arguments) = tensor, other_tensor
            size_pairs = enumerate(zip(shape, other_shape, strict=False))
            dims[name] = {dim for dim, (size, other_size) in size_pairs if size != other_size}
            if arguments != other_arguments and not dims[name]:
                number_names.add(name)
        return BatchSizes(dims, number_names)

    def _localize_plain(self, module: ModuleOp) -> ModuleOp:
        """Return the program of a rank before scheduling, for a module without symbolic sizes."""
        module = inline_layers(module).clone()
        needed = remaining_passes(self.pipeline, ir.main_function(module)).before("localize")
        run_passes(module, needed.with_steps((*needed.steps, Step("localize"))))
        name_values(module)
        return module

    def _bind_sizes(self, sizes: Mapping[str, int]) -> ModuleOp:
        """Return the decided program with numbers in place of its symbolic sizes."""
        return bind_sizes(self.module, sizes, self.pipeline)

    def _find_size_dependent(
        self, expected: Sequence[RankMessage], localize: Callable[[ModuleOp], ModuleOp]
    ) -> frozenset[int]:
        """Return the positions of the messages whose form changes with sizes.

        The program is lowered for other sizes, and its messages are compared with `expected` one by one. If a size
        cannot vary, or another size leads to other messages, these are all positions.

        Args:
            expected: the messages of the program for the example sizes.
            localize: makes the program of a rank.
        """
        names = list(self._rounded_examples)
        program_of_all = next(self._try_other_sizes(names, localize), None)
        # If all sizes can change together, one program shows all dependences.
        programs = (
            [program_of_all]
            if program_of_all
            else [next(self._try_other_sizes([name], localize), None) for name in names]
        )
        dependent_indices: set[int] = set()
        for module in programs:
            other_messages = messages(module) if module is not None else []
            if [message.description for message in other_messages] != [message.description for message in expected]:
                return frozenset(range(len(expected)))
            for index, (message, other_message) in enumerate(zip(expected, other_messages, strict=True)):
                if message != other_message:
                    dependent_indices.add(index)
        return frozenset(dependent_indices)

    def _try_other_sizes(self, names: Sequence[str], localize: Callable[[ModuleOp], ModuleOp]) -> Iterator[ModuleOp]:
        """Yield the programs of a rank in which the sizes of these names differ from the examples.

        Sizes that the program does not admit, or that cannot be lowered, are skipped.
        """
        declared = open_sizes(self.module)
        for changed in self._other_sizes(names):
            sizes = {**self._rounded_examples, **changed}
            if _are_admitted(declared, sizes):
                with suppress(SpmdirError):
                    yield localize(self._bind_sizes(sizes))

    def _other_sizes(self, names: Sequence[str]) -> Iterator[dict[str, int]]:
        """Yield name → other size for the sizes of these names, such that all ranks have equal shards.

        A batch of 6 in 2 shards is tried as 12, 18, 30, …, then as 8, 4, 10, …
        """
        examples = {name: self._rounded_examples[name] for name in names}
        for factor in _FACTORS:
            sizes = {name: size * factor for name, size in examples.items()}
            if all(size % self._shard_counts[name] == 0 for name, size in sizes.items()):
                yield {name: int(size) for name, size in sizes.items()}
        for distance in _DISTANCES:
            sizes = {name: size + distance * self._shard_counts[name] for name, size in examples.items()}
            if min(sizes.values()) > 0:
                yield sizes


def _iterate_tensors(module: ModuleOp) -> Iterator[tuple[str, tuple[int, ...], Attribute | None]]:
    """Yield (name, shape, arguments of the producer) of each tensor of a program."""
    function = ir.main_function(module)
    for value in (*function.args, *(result for op in function.body.block.ops for result in op.results)):
        meta = meta_of(value.type)
        if meta is not None:
            producer = value.owner if isinstance(value.owner, Operation) else None
            yield text_name(value), meta.shape, producer.properties.get("arguments") if producer else None


def _are_admitted(declared: Sizes, sizes: Mapping[str, int]) -> bool:
    """Return whether `sizes` satisfy the ranges and conditions of the declared symbolic sizes."""
    try:
        declared.check(sizes)
    except SpmdirError:
        return False
    return True
