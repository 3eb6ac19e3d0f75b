"""Trace a model or a training step as one program, and record how Python calls it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from typing import Any

import attrs
import torch
from torch import Tensor, fx, nn
from torch.export.graph_signature import OutputKind
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from spmdir.core.errors import ShardingError, SpmdirError, UnsupportedError
from spmdir.core.placement.sharding import ShardingLike
from spmdir.importer.torch_errors import torch_errors
from spmdir.importer.user_shardings import LIKE
from spmdir.runtime.dry_run import DryRun, dry_run_module, write_assignments
from spmdir.runtime.model_copies import copy_model
from spmdir.runtime.output_trees import without_unknown_outputs
from spmdir.runtime.symbolic_inputs import make_sizes_symbolic
from spmdir.torch_interop import pytree
from spmdir.torch_interop.fake_tensors import FakeTensor, FakeTensorMode
from spmdir.torch_interop.grouped_products import TracedGroupedProducts
from spmdir.torch_interop.recurrent_layers import without_onednn

_USER = (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT)
_TENSOR = "a tensor"


@attrs.frozen(eq=False)
class Convention:
    """The calling convention of a traced program: it converts between Python arguments and lists of tensors.

    Attributes:
        examples: the leaves of the example arguments. Numbers are constants of the program, and tensors are `_TENSOR`.
        in_spec: the structure of the arguments, a tuple.
        out_spec: the structure of the output.
        state_spec: the structure of the state of a step; None for a model.
    """

    examples: tuple[Any, ...]
    in_spec: pytree.TreeSpec
    out_spec: pytree.TreeSpec
    state_spec: pytree.TreeSpec | None = None

    @property
    def tensor_indices(self) -> list[int]:
        """The indices of the tensors among the leaves of the arguments."""
        return [index for index, example in enumerate(self.examples) if example == _TENSOR]

    def tensors(self, args: tuple[Any, ...]) -> list[Tensor]:
        """Return the tensors among the arguments of a call, in order.

        Raises:
            SpmdirError: the structure of the arguments differs from the examples, or a number differs.
        """
        leaves, spec = pytree.tree_flatten(args)
        if len(args) != self.in_spec.num_children:
            raise SpmdirError(
                f"found {len(args)} arguments; expected {self.in_spec.num_children}, as in example_inputs"
            )
        if spec != self.in_spec:
            raise SpmdirError(
                f"the arguments are {_outline(spec)}; expected {_outline(self.in_spec)}, "
                "as in the example arguments: for other arguments, make another program with them as examples"
            )
        for index, (leaf, example) in enumerate(zip(leaves, self.examples, strict=True)):
            if value_key(_constant_or_mark(leaf)) != value_key(example):
                raise SpmdirError(
                    f"argument {index} is {_constant_or_mark(leaf)}; expected {example}, with which the "
                    "program was traced: trace it again for another value, or pass a tensor both times"
                )
        return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


def value_key(value: Any) -> tuple[type, Any]:
    """Return the key of an argument: values with equal keys can share one program.

    In Python, 1 == 1.0 == True and 0.0 == -0.0, but their programs differ. Two NaNs are not equal, but share a program.
    """
    return type(value), repr(value) if isinstance(value, (float, complex)) else value


def _outline(spec: pytree.TreeSpec) -> str:
    """Return the structure of arguments as Python text, with `_` for each leaf."""

    @attrs.frozen
    class Leaf:
        """A leaf that prints as `_`."""

        def __repr__(self) -> str:
            return "_"

    return repr(pytree.tree_unflatten([Leaf()] * spec.num_leaves, spec))


@attrs.frozen(eq=False)
class Capture:
    """A traced program.

    Attributes:
        program: the program for `import_fx`. Its user inputs are the leaves of the state, then those of the arguments.
        convention: the calling convention.
        state: the leaves of the state of a step; empty for a model, whose state is its parameters and buffers.
        tensors: name → parameter, buffer or constant of the program.
        outputs: the leaves of the output: fx nodes and numbers. In the program, the leaves of the new state follow.
        dry_run: the state that the traced code reads and assigns; None for a part of another capture.
    """

    program: fx.GraphModule | torch.export.ExportedProgram
    convention: Convention
    state: Sequence[Any]
    tensors: Mapping[str, Tensor]
    outputs: Sequence[Any]
    dry_run: DryRun | None = None

    def result_shardings(self, out_shardings: Sequence[ShardingLike | None] | None) -> list[ShardingLike | None]:
        """Return `out_shardings` for `import_fx`: the entries for outputs, then for the new state of a step.

        A tensor whose entry is None is replicated. Each tensor of the new state has the sharding of the old.

        Raises:
            ShardingError: `out_shardings` does not have one entry for each output.
        """
        entries = [None] * len(self.outputs) if out_shardings is None else out_shardings
        if len(entries) != len(self.outputs):
            raise ShardingError(
                f"out_shardings has {len(entries)} entries; expected {len(self.outputs)}, as the program "
                "returns this many values: give one for each value, None for a replicated one"
            )
        output_entries = [
            "" if entry is None and _is_tensor(leaf) else entry
            for entry, leaf in zip(entries, self.outputs, strict=True)
        ]
        state_entries = [f"{LIKE}input:{index}" if _is_tensor(leaf) else None for index, leaf in enumerate(self.state)]
        return [*output_entries, *state_entries]


def capture_model(model: nn.Module, example_inputs: tuple[Any, ...], dynamic_shapes: Any = None) -> Capture:
    """Trace the forward of a model by torch.export, after a dry run that finds changes of Python state.

    Raises:
        UnsupportedError: torch.export rejects the model, or the forward changes state that is not in its buffers.
    """
    traced, arguments = replace_meta_tensors(model, _copy_repeated_tensors(example_inputs))
    dry_run = dry_run_module(traced, arguments, {})
    with ExitStack() as stack:
        stack.enter_context(torch_errors("the model cannot be exported"))
        stack.enter_context(write_assignments(traced, dry_run.assigned))
        stack.enter_context(without_unknown_outputs(traced, dry_run.output))
        program = torch.export.export(traced, arguments, dynamic_shapes=dynamic_shapes)
    dry_run.caches.remove_fakes()
    specs = program.graph_signature.output_specs
    outputs = [value for value, spec in zip(_graph_outputs(program.graph), specs, strict=True) if spec.kind in _USER]
    leaves, in_spec = pytree.tree_flatten(example_inputs)
    convention = Convention(tuple(map(_constant_or_mark, leaves)), in_spec, program.call_spec.out_spec)  # type: ignore
    tensors: dict[str, Any] = {**program.constants, **program.state_dict}
    # Fake tensors replaced meta tensors for the trace. Two names of one tensor must get one meta tensor.
    meta_tensors: dict[int, Any] = {
        id(value): value.to("meta") for value in tensors.values() if isinstance(value, FakeTensor)
    }
    tensors = {name: meta_tensors.get(id(value), value) for name, value in tensors.items()}
    return Capture(program, convention, [], tensors, outputs, dry_run)


def _copy_repeated_tensors(example_inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the inputs, with a copy in place of each repetition of a tensor.

    torch.export would treat two arguments with the same tensor as one.
    """
    earlier_ids: set[int] = set()

    def copy_repetition(leaf: Any) -> Any:
        """Return a copy of a tensor that occurred before; any other leaf unchanged."""
        if not _is_tensor(leaf) or id(leaf) not in earlier_ids:
            earlier_ids.add(id(leaf))
            return leaf
        return leaf.detach().clone().requires_grad_(leaf.requires_grad)

    return pytree.tree_map(copy_repetition, example_inputs)


def replace_meta_tensors(model: nn.Module, args: tuple[Any, ...]) -> tuple[nn.Module, tuple[Any, ...]]:
    """Return (model, arguments) to trace: copies with fake tensors if the model has tensors on the meta device.

    The fake tensors are on the device of the arguments, or on the CPU if all arguments are on the meta device. A model
    without meta tensors, and its arguments, are returned unchanged.
    """
    state = [*model.parameters(), *model.buffers()]
    if not any(tensor.is_meta for tensor in state):
        return model, args
    devices = [leaf.device for leaf in pytree.tree_leaves(args) if isinstance(leaf, Tensor)]
    device = next((device for device in devices if device.type != "meta"), torch.device("cpu"))
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        memo: dict[int, Any] = {}
        for tensor in state:
            if tensor.is_meta:
                fake = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
                is_parameter = isinstance(tensor, nn.Parameter)
                memo[id(tensor)] = nn.Parameter(fake, tensor.requires_grad) if is_parameter else fake
    return copy_model(model, memo), pytree.tree_map_only(Tensor, mode.from_tensor, args)


def capture_step(
    step: Callable[..., Any],
    state: Any,
    example_inputs: tuple[Any, ...],
    device: torch.device,
    dynamic_shapes: Any = None,
) -> Capture:
    """Return a function `step(state, *args) → (outputs, new_state)`, traced by make_fx on fake tensors of `device`.

    Raises:
        UnsupportedError: the step cannot be traced, or the structure of the new state differs from that of `state`.
    """
    from torch.fx.experimental.proxy_tensor import make_fx

    specs: list[pytree.TreeSpec] = []

    @functools.wraps(step)
    def recording_step(*args: Any) -> Any:
        """Run the step, and record the structure of its result."""
        with TracedGroupedProducts():
            result = step(*args)
        specs.append(pytree.tree_structure(result))
        return result

    is_dynamic = dynamic_shapes is not None
    environment = ShapeEnv(duck_shape=False) if is_dynamic else None
    with FakeTensorMode(allow_non_fake_inputs=True, shape_env=environment) as mode:
        fake = pytree.tree_map_only(Tensor, lambda tensor: _empty_on(tensor, device), (state, *example_inputs))
        if is_dynamic:
            fake = (fake[0], *make_sizes_symbolic(fake[1:], dynamic_shapes, mode))
    # Outside the fake mode, a factory function would use the example as the size.
    with torch_errors("the step cannot be traced"), mode if is_dynamic else nullcontext(), without_onednn():
        program = make_fx(recording_step, tracing_mode="real" if is_dynamic else "fake")(*fake)
    old_state, state_spec = pytree.tree_flatten(state)
    part_specs = specs[0].children() if specs[0].type is tuple else []
    if len(part_specs) != 2 or part_specs[1] != state_spec:
        raise UnsupportedError(
            f"the step returns {specs[0]}; expected (outputs, new_state), where new_state has the structure of state, "
            f"{state_spec}"
        )
    returned = pytree.tree_leaves(_graph_outputs(program.graph))
    outputs, new_state = returned[: part_specs[0].num_leaves], returned[part_specs[0].num_leaves :]
    _check_numbers(old_state, new_state)
    leaves, in_spec = pytree.tree_flatten(example_inputs)
    convention = Convention(tuple(map(_constant_or_mark, leaves)), in_spec, part_specs[0], state_spec)
    tensors = {name: value for name, value in vars(program).items() if isinstance(value, Tensor)}
    return Capture(program, convention, old_state, {**tensors, **program.state_dict(keep_vars=True)}, outputs)


def _empty_on(tensor: Tensor, device: torch.device) -> Tensor:
    """Return an uninitialised tensor on `device` with the type, strides and gradient flag of `tensor`."""
    empty = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
    return empty.requires_grad_(tensor.requires_grad)


def _graph_outputs(graph: fx.Graph) -> Any:
    """Return the outputs of a graph: a tree of nodes and numbers."""
    return next(node for node in reversed(graph.nodes) if node.op == "output").args[0]


def _check_numbers(old: Sequence[Any], new: Sequence[Any]) -> None:
    """Raise UnsupportedError for a number that changes between calls: in a program it would be a constant."""
    for before, after in zip(map(_constant_or_mark, old), map(_constant_or_mark, new), strict=True):
        if before != after:
            raise UnsupportedError(
                f"the step replaces {before} in the state by {after}; "
                "expected that only tensors of the state change: keep counters as 0-d tensors"
            )


def _is_tensor(leaf: Any) -> bool:
    """Return whether a leaf is a tensor, or an fx node whose value is one."""
    return isinstance(leaf, Tensor) or (isinstance(leaf, fx.Node) and isinstance(leaf.meta.get("val"), Tensor))


def _constant_or_mark(leaf: Any) -> Any:
    """Return `_TENSOR` for a tensor, and any other leaf unchanged: it is a constant of the program."""
    return _TENSOR if _is_tensor(leaf) else leaf
