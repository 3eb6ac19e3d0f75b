"""The signature of a captured program: its state, inputs, outputs and updates, as arguments and results in the IR."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import attrs
from torch import Tensor
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp

from spmdir.core.errors import ShardingError
from spmdir.core.placement.sharding import Sharding
from spmdir.core.placement.tensor import TensorMeta
from spmdir.core.symbolic.expressions import Size, evaluate
from spmdir.core.symbolic.parser import parse_number
from spmdir.dialects import ir
from spmdir.dialects.attributes import meta_of, sharding_attr, sizes_of
from spmdir.dialects.values import (
    function_attrs,
    is_backward_input,
    is_call_input,
    late_buffers,
    sharding_of,
    signature_kind,
    signature_name,
)
from spmdir.runtime.capture import Capture
from spmdir.simulator.simulate import arrange_outputs

NO_SIZES: Mapping[str, int] = MappingProxyType({})
"""The sizes of a program without symbolic sizes."""


@attrs.frozen
class Argument:
    """An argument of the function.

    Attributes:
        name: the name in the IR.
        meta: the global shape and element type.
        sizes: the global shape, with symbolic sizes.
        sharding: the sharding.
        is_state: whether ranks keep it between calls. Otherwise every call passes it.
        is_tangent: whether only the backward takes it: the gradient of an output, or a buffer.
        buffer: the name of the buffer whose value at the start of the backward this is; None for other arguments.
    """

    name: str
    meta: TensorMeta
    sizes: tuple[int | Size, ...]
    sharding: Sharding
    is_state: bool
    is_tangent: bool = False
    buffer: str | None = None

    def shape(self, symbol_values: Mapping[str, int] = NO_SIZES) -> tuple[int, ...]:
        """Return the global shape for values of the symbolic sizes."""
        return tuple(evaluate(size, symbol_values) for size in self.sizes)


@attrs.frozen
class Result:
    """Result `index` of the function."""

    index: int


@attrs.frozen
class Signature:
    """The arguments and results of a function.

    Attributes:
        outputs: the leaves of the output: results, numbers and sizes.
        state: the leaves of the state of a step: arguments and numbers; empty for a model.
        updates: (argument, result) pairs; the result is the new value of the argument.
    """

    arguments: tuple[Argument, ...]
    outputs: tuple[Any, ...]
    state: tuple[Any, ...]
    updates: tuple[tuple[Argument, Result], ...]

    @property
    def state_arguments(self) -> list[Argument]:
        """The arguments that ranks keep between calls."""
        return [argument for argument in self.arguments if argument.is_state]

    @property
    def inputs(self) -> list[Argument]:
        """The arguments that every call passes."""
        return [argument for argument in self.arguments if not argument.is_state]


def read_signature(function: FuncOp, returned: int, state_leaves: Sequence[Any] = ()) -> Signature:
    """Return the signature of a function that was imported and propagated.

    Args:
        returned: the number of leaves of the output.
        state_leaves: the leaves of the state of a step; empty for a model.
    """
    # The arguments of a step are the tensors of its state, then those of the call.
    state_tensor_count = sum(isinstance(leaf, Tensor) for leaf in state_leaves)
    arguments, state_arguments, late_buffer_names = [], [], late_buffers(function)
    for value in function.args:
        name = signature_name(function, "arg_attrs", value.index)
        is_user_argument = is_call_input(function, value.index)
        meta, sharding = meta_of(value.type), sharding_of(value)
        assert meta is not None  # since it was imported
        if sharding is None:
            raise ShardingError(
                f"'{name}' has no sharding after the pipeline; expected `propagate` in it, as in "
                "'propagate,insert-reshard,lower-reshard'"
            )
        is_step_state = is_user_argument and len(state_arguments) < state_tensor_count
        arguments.append(
            Argument(
                name=name,
                meta=meta,
                sizes=sizes_of(value.type),
                sharding=sharding,
                is_state=is_step_state or not is_user_argument,
                is_tangent=is_backward_input(function, value.index),
                buffer=late_buffer_names.get(value.index),
            )
        )
        if is_step_state:
            state_arguments.append(arguments[-1])
    # The results are the outputs, the new state of a step, and the new values of arguments that change in place.
    count = len(function.function_type.outputs.data)
    results: list[Any] = arrange_outputs(function, [Result(index) for index in range(count)])  # type: ignore
    state_end = returned + len(state_leaves)
    outputs, new_state, mutations = results[:returned], results[returned:state_end], results[state_end:]
    remaining_arguments = iter(state_arguments)
    state = tuple(next(remaining_arguments) if isinstance(leaf, Tensor) else leaf for leaf in state_leaves)
    new_values = dict(_mutations(function, arguments, mutations))
    for argument, result in zip(state, new_state, strict=True):
        if argument in state_arguments:
            new_values[argument] = result  # takes precedence over an in-place change of the old state
    return Signature(tuple(arguments), tuple(map(_leaf, outputs)), state, tuple(new_values.items()))


def _leaf(value: Any) -> Any:
    """Return a leaf of the output: the number or size of a text such as `=2*s0`, or a result unchanged."""
    return parse_number(value[1:]) if isinstance(value, str) and value.startswith("=") else value


def _mutations(function: FuncOp, arguments: list[Argument], results: list[Result]) -> Iterator[tuple[Argument, Result]]:
    """Yield (argument, result that is its new value) for the further results of a function that writes to arguments."""
    argument_of_name = {argument.name: argument for argument in arguments}
    for result in results:
        yield argument_of_name[signature_name(function, "res_attrs", result.index)], result


def annotate_updates(module: ModuleOp, capture: Capture, *, whole_inputs: bool = True) -> None:
    """Annotate the results of a function that are new values of its arguments, before shardings are decided.

    - A new entry of the state gets the kind "update": the caller overwrites the old one with it.
    - The new value of an input that the program writes to is replicated, because the caller passed a global input, so
      each rank needs the whole new value.

    Args:
        capture: the trace of the module. The leaves of its state come before its inputs.
        whole_inputs: whether callers pass global inputs, not shards.
    """
    function, replicated = ir.main_function(module), sharding_attr(Sharding((), ir.mesh(module).name))
    kinds = [signature_kind(function, "arg_attrs", value.index) for value in function.args]
    input_indices = [value.index for value, kind in zip(function.args, kinds, strict=True) if kind == "input"]
    state_tensors = sum(isinstance(leaf, Tensor) for leaf in capture.state)
    state_names = {signature_name(function, "arg_attrs", index) for index in input_indices[:state_tensors]}
    input_names = {signature_name(function, "arg_attrs", index) for index in input_indices[state_tensors:]}
    new_state = _new_state(function, len(capture.outputs), capture.state)
    attributes = []
    for index in range(len(function.function_type.outputs)):
        attributes_of_result = function_attrs(function, "res_attrs", index)
        name = signature_name(function, "res_attrs", index)
        is_mutation = signature_kind(function, "res_attrs", index) == "mutation"
        if is_mutation and whole_inputs and name in input_names:
            attributes_of_result = {**attributes_of_result, "spmd.sharding": replicated}
            attributes_of_result.pop("spmd.like", None)
        elif Result(index) in new_state and name in state_names:
            attributes_of_result["spmd.kind"] = StringAttr("update")
        attributes.append(DictionaryAttr(attributes_of_result))
    function.res_attrs = ArrayAttr(attributes)


def _new_state(function: FuncOp, returned: int, state_leaves: Sequence[Any]) -> list[Any]:
    """Return the leaves of the new state of a step: results and numbers.

    Args:
        returned: the number of leaves of the output.
        state_leaves: the leaves of the old state.
    """
    count = len(function.function_type.outputs.data)
    results: list[Any] = arrange_outputs(function, [Result(index) for index in range(count)])  # type: ignore
    return results[returned : returned + len(state_leaves)]
