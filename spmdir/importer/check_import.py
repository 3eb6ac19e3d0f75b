"""Compare the results of the original graph and of the imported program for the same random inputs, on one device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import torch
from torch import Tensor, fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp

from spmdir.core.errors import CheckError, SpmdirError
from spmdir.dialects import ir
from spmdir.dialects.values import signature_kind, signature_name
from spmdir.importer.liveness import without_dead_code
from spmdir.importer.locations import node_location
from spmdir.importer.program import Input, Program, plain_tensor
from spmdir.importer.read_exported import MUTATIONS
from spmdir.importer.torch_errors import torch_errors
from spmdir.torch_interop import pytree
from spmdir.torch_interop.fake_tensors import FakeTensor
from spmdir.torch_interop.symbolic_numbers import is_open

SEED = 0
"""The seed of the inputs and of the random ops of both programs."""

_TOLERANCE_EXPONENT = 0.6
"""If ops are decomposed, results may differ by eps**0.6 times the largest element: 7e-5 for f32."""


@attrs.frozen
class Original:
    """The inputs and results of a run of the original graph.

    Attributes:
        inputs: the user's tensors, in order.
        state: parameters, buffers and constants by name.
        outputs: the flat outputs.
        new_values: name of an argument that the graph writes to → its value after the run.
    """

    inputs: list[Tensor]
    state: dict[str, Tensor]
    outputs: list[Any]
    new_values: dict[str, Tensor]


@attrs.frozen
class Comparison:
    """The difference of a result of the imported program from that of the original graph.

    Attributes:
        label: the result, as `output 0`.
        error: the largest difference of an element, divided by the largest element of the result.
        tolerance: the largest accepted error.
    """

    label: str
    error: float
    tolerance: float

    def __str__(self) -> str:
        return f"{self.label}: max relative error {self.error:.1e}, tolerance {self.tolerance:.0e}"


@torch.no_grad()
def run_original(source: Any, program: Program, example_inputs: Sequence[Any] | None) -> Original:
    """Run the graph that the user passed to `import_fx` on random inputs.

    Integer and boolean inputs have the values of the example inputs, or are random 0 and 1 if there are none.
    Parameters, buffers and constants have their values. The run works on copies, so writes do not change the model.

    Args:
        source: the ExportedProgram or GraphModule.
        program: the `Program` that was read from `source`.

    Raises:
        SpmdirError: a tensor of the graph has no values.
        UnsupportedError: the graph does not run.
    """
    is_exported = isinstance(source, ExportedProgram)
    module: fx.GraphModule = source.graph_module if is_exported else source
    nodes = module.graph.find_nodes(op="placeholder")
    if is_exported:
        names, is_user_input, state = _read_exported_inputs(source)
        examples = pytree.tree_leaves(source.example_inputs, is_leaf=_is_none) if source.example_inputs else []
    else:
        names, is_user_input, state = _read_traced_inputs(program, len(nodes))
        examples = pytree.tree_leaves(tuple(example_inputs or ()), is_leaf=_is_none)
    if len(examples) != sum(is_user_input):  # such as no examples at all; then inputs are random
        examples = [None] * sum(is_user_input)
    remaining_examples, generator = iter(examples), torch.Generator().manual_seed(SEED)
    values = []
    for node, name, is_input in zip(nodes, names, is_user_input, strict=True):
        if is_input:
            values.append(_random_value(node, next(remaining_examples), generator))
        else:
            values.append(_require_values(name, state[name]))
    values_by_name = {name: value for name, value in zip(names, values, strict=True) if isinstance(value, Tensor)}
    copies = pytree.tree_map_only(Tensor, torch.clone, values)
    with torch_errors("the original graph does not run on random inputs"), torch.random.fork_rng():
        torch.manual_seed(SEED)
        returned = fx.Interpreter(without_dead_code(module)).run(*copies, enable_io_processing=False)
    outputs = pytree.tree_leaves(returned, is_leaf=_is_none)
    # Writes in place changed the copies. An ExportedProgram also returns new values, before the user outputs.
    new_values = {
        name: copy
        for name, copy in zip(names, copies, strict=True)
        if isinstance(copy, Tensor) and not _is_bitwise_equal(copy, values_by_name[name])
    }
    if is_exported:
        user_outputs = []
        for spec, value in zip(source.graph_signature.output_specs, outputs, strict=True):
            if spec.kind in MUTATIONS:
                new_values[str(spec.target)] = value
            elif spec.kind != OutputKind.TOKEN:
                user_outputs.append(value)
        outputs = user_outputs
    inputs = [
        value for value, is_input in zip(values, is_user_input, strict=True) if is_input and isinstance(value, Tensor)
    ]
    state_tensors = {name: _require_values(name, value) for name, value in state.items() if isinstance(value, Tensor)}
    return Original(inputs, state_tensors, outputs, new_values)


def _read_exported_inputs(source: ExportedProgram) -> tuple[list[str], list[bool], dict[str, Any]]:
    """Return (name of each placeholder, whether each is a user input, name → value of the other placeholders)."""
    specs: Any = source.graph_signature.input_specs
    tokens = {spec.arg.name: torch.empty(0) for spec in specs if spec.kind == InputKind.TOKEN}
    names = [spec.target or spec.arg.name for spec in specs]
    is_user_input = [spec.kind == InputKind.USER_INPUT for spec in specs]
    return names, is_user_input, {**tokens, **source.constants, **source.state_dict}


def _read_traced_inputs(program: Program, count: int) -> tuple[list[str], list[bool], dict[str, Any]]:
    """Return the same as `_read_exported_inputs` for a graph of make_fx with `count` placeholders.

    All its placeholders are user inputs. They are the last `count` of `program.inputs`, after the tensors that the
    graph reads as attributes.
    """
    state = {
        entry.names[0]: entry.value
        for entry in program.inputs
        if entry.kind != "input" and isinstance(entry.value, Tensor)
    }
    user_inputs: list[Input] = program.inputs[len(program.inputs) - count :]
    return [entry.names[0] for entry in user_inputs], [True] * count, state


@torch.no_grad()
def check_import(module: ModuleOp, original: Original, program: Program, is_exact: bool) -> list[Comparison]:
    """Compare the results of `module` with those of the original graph.

    Args:
        is_exact: whether each bit must be equal, except in NaNs; otherwise results may round differently.

    Raises:
        CheckError: an output or the new value of an argument differs.
    """
    from spmdir.simulator.simulate import run_single

    results = run_single(module, original.inputs, original.state, SEED)
    count = len(original.outputs)
    comparisons = [
        _compare(f"output {index}", value, expected, is_exact, program.outputs[index].value)
        for index, (value, expected) in enumerate(zip(results[:count], original.outputs, strict=True))
    ]
    # Results after the outputs are new values. Also compare those of arguments that only one of the two graphs changes;
    # in the other graph, the argument keeps its value of `before`.
    mutations = dict(zip(_mutation_names(module), results[count:], strict=True))
    entries = {entry.names[0]: entry for entry in program.inputs}
    before = {**original.state, **dict(zip(_input_names(module), original.inputs, strict=True))}
    for name in [*original.new_values, *(name for name in mutations if name not in original.new_values)]:
        expected = original.new_values.get(name, before.get(name))
        value = mutations.get(name, before.get(name))
        node = entries[name].node if name in entries else None
        comparisons.append(_compare(f"the new value of '{name}'", value, expected, is_exact, node))
    return comparisons


def _compare(label: str, actual: Any, expected: Any, is_exact: bool, node: Any) -> Comparison:
    """Compare one result of the imported program, `actual`, with that of the graph, `expected`.

    Args:
        label: the result, for errors.
        is_exact: whether all bits must be equal. Otherwise, floating-point results may differ by the tolerance.
        node: the node of the result; errors have its location.

    Raises:
        CheckError: the results differ.
    """
    location = node_location(node) if isinstance(node, fx.Node) else None
    if not isinstance(expected, Tensor) or not isinstance(actual, Tensor):
        if actual != expected:
            raise CheckError(
                f"{label} is {actual!r} in the imported program; expected {expected!r}, as in the graph: "
                "please report this bug of the importer with the graph",
                location,
            )
        return Comparison(label, 0.0, 0.0)
    kinds = [f"{list(value.shape)} of {str(value.dtype).removeprefix('torch.')}" for value in (actual, expected)]
    if kinds[0] != kinds[1]:
        raise CheckError(
            f"{label} is {kinds[0]} in the imported program; expected {kinds[1]}, as in the graph: please "
            "report this bug of the importer with the graph",
            location,
        )
    is_rounded = not is_exact and (expected.is_floating_point() or expected.is_complex())
    tolerance = torch.finfo(expected.dtype).eps ** _TOLERANCE_EXPONENT if is_rounded else 0.0
    if _is_bitwise_equal(actual, expected):
        return Comparison(label, 0.0, tolerance)
    actual, expected = plain_tensor(actual), plain_tensor(expected)
    wide = torch.complex128 if expected.is_complex() else torch.float64
    # A NaN on one side only is an infinite difference. Equal infinities, whose difference is NaN, are set to 0 below.
    difference = (actual.to(wide) - expected.to(wide)).abs().nan_to_num(torch.inf)
    difference[(actual == expected) | (actual.isnan() & expected.isnan())] = 0
    largest = float(difference.max())
    scale = float(expected.to(wide).abs().nan_to_num(0, 0).max())  # the largest finite element
    if is_rounded and largest <= tolerance * scale:
        return Comparison(label, largest / scale if scale else 0.0, tolerance)
    raise CheckError(
        f"{label} differs between the graph and the imported program, by up to {largest:.3g}; expected "
        "equal values: please report this bug of the importer with the graph",
        location,
    )


def _is_bitwise_equal(left: Tensor, right: Tensor) -> bool:
    """Return whether two tensors have the same elements, including the signs of zeros. All NaNs are equal."""
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    left, right = plain_tensor(left), plain_tensor(right)
    if left.is_complex():
        return _is_bitwise_equal(torch.view_as_real(left), torch.view_as_real(right))
    if not left.is_floating_point():
        return torch.equal(left, right)
    left, right = left.double(), right.double()
    same = (left == right) & (left.signbit() == right.signbit())
    return bool((same | (left.isnan() & right.isnan())).all())


def _mutation_names(module: ModuleOp) -> list[str]:
    """Return the names of the arguments whose new values the program returns."""
    function = ir.main_function(module)
    return _signature_names(function, "res_attrs", "mutation", len(function.function_type.outputs))


def _input_names(module: ModuleOp) -> list[str]:
    """Return the names of the user's inputs."""
    function = ir.main_function(module)
    return _signature_names(function, "arg_attrs", "input", len(function.args))


def _signature_names(function: FuncOp, attrs_name: str, kind: str, count: int) -> list[str]:
    """Return the names of the arguments (or results) of a function that have one kind.

    Args:
        attrs_name: "arg_attrs" for arguments, "res_attrs" for results.
        kind: such as "input" or "mutation".
        count: the number of all arguments (or results).
    """
    indices = [index for index in range(count) if signature_kind(function, attrs_name, index) == kind]
    return [signature_name(function, attrs_name, index) for index in indices]


def _random_value(node: fx.Node, example: Any, generator: torch.Generator) -> Any:
    """Return a value for the input `node`.

    A floating-point input gets random numbers. Any other tensor is the example if it has values, else random 0 and 1.
    An input that is not a tensor is the example, else the traced value.
    """
    value = node.meta.get("val")
    if not isinstance(value, Tensor):
        return example if example is not None else _hint(value)
    sizes = [_hint(size) for size in value.shape]
    if value.is_floating_point() or value.is_complex():
        wide = torch.complex128 if value.is_complex() else torch.float64
        return torch.randn(sizes, generator=generator, dtype=wide).to(value.dtype)
    if isinstance(example, Tensor) and not _lacks_values(example):
        return example
    return torch.randint(0, 2, sizes, generator=generator).to(value.dtype)


def _hint(value: Any) -> Any:
    """Return the example of a symbolic size; other values unchanged."""
    return value.node.hint if is_open(value) else value


def _require_values(name: str, value: Any) -> Tensor:
    """Return a tensor of the graph; raise SpmdirError if it has no values."""
    if not isinstance(value, Tensor) or _lacks_values(value):
        raise SpmdirError(
            f"cannot check the graph, because '{name}' has no values; expected a tensor on a device other "
            "than meta: initialise it first"
        )
    return value.detach()


def _lacks_values(value: Tensor) -> bool:
    """Return whether a tensor has only a shape, as meta and fake tensors do."""
    return value.is_meta or isinstance(value, FakeTensor)


def _is_none(value: object) -> bool:
    """Return whether a value is None, which counts as a leaf of a pytree here."""
    return value is None
