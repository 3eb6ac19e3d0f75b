"""`check_ranks`: compare the program that ranks run with the program of one device.

An imported program is type-checked, so its ranks compute what its ops compute on one device, up to rounding. The
ops are then compared with those of the reference. An output that is the same expression of the inputs is proved equal.
For other outputs, both programs run on random inputs.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor, fx
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, FunctionType, ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from spmdir.core.arguments import SEED, accepts, instance
from spmdir.core.errors import CheckError, ShardingError
from spmdir.dialects import ir
from spmdir.dialects.arguments import MODULE
from spmdir.dialects.attributes import meta_of
from spmdir.dialects.collectives import SpmdOp
from spmdir.dialects.locations import location_of
from spmdir.dialects.spmd import ConstantOp
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.values import is_call_input, sharding_of, signature_name
from spmdir.importer.importer import import_fx
from spmdir.read_back.global_builder import all_producers_of
from spmdir.read_back.moved_elements import is_move
from spmdir.simulator.output_error import relative_error, tolerance_of
from spmdir.simulator.simulate import run_single, simulate
from spmdir.simulator.value_check import find_difference, terms_of
from spmdir.torch_interop.dtypes import TORCH_DTYPES

_VIEWS = frozenset({"aten.view", "aten._unsafe_view", "aten.reshape"})
_COMMUTATIVE = frozenset({"aten.add.Tensor", "aten.mul.Tensor"})


@attrs.frozen
class RankComparison:
    """The result of `check_ranks`.

    Attributes:
        proved: the outputs that are the same expression of the inputs in both programs.
        tested: (output, largest difference relative to its largest element) of the outputs that were equal in a run.
        difference: the first output that differs, and the first op whose result occurs nowhere in the reference; None
            if all outputs are equal.
    """

    proved: tuple[int, ...]
    tested: tuple[tuple[int, float], ...]
    difference: CheckError | None

    @property
    def is_equal(self) -> bool:
        """Return whether all outputs are equal."""
        return self.difference is None

    def __str__(self) -> str:
        """Return the verdict in one line: the difference, or how the equality of each output is known."""
        if self.difference is not None:
            return f"different: {self.difference}"
        parts = []
        if self.proved:
            parts.append(f"proved for {_outputs(self.proved)}: the same expression of the inputs")
        if self.tested:
            worst = max(error for _, error in self.tested)
            tested = _outputs([index for index, _ in self.tested])
            parts.append(f"tested for {tested} on random inputs: largest relative difference {worst:.1e}")
        return "equal: " + "; ".join(parts)


@accepts(
    module=MODULE,
    inputs=instance(list, tuple, expected="a list of global tensors").optional,
    seed=SEED,
)
@torch.no_grad()
def check_ranks(
    module: ModuleOp,
    reference: fx.GraphModule | torch.export.ExportedProgram | ModuleOp,
    inputs: Sequence[Tensor] | None = None,
    seed: int = 0,
) -> RankComparison:
    """Compare an imported program of ranks with the program of one device.

    Args:
        module: the result of `import_ranks`.
        reference: the same function on global tensors: a graph, or a module of the IR. Its inputs and outputs have the
            order of those of `module`.
        inputs: global tensors to run both programs on, such as valid token ids. By default, floating-point inputs are
            random numbers in f64, and others are random zeros and ones.
        seed: the seed of the random inputs.

    Raises:
        ShardingError: the programs have different numbers or shapes of inputs or outputs.
        SpmdirError: a program cannot run.

    Example:
        >>> print(spmdir.check_ranks(module, make_fx(one_device)(x, w1, w2)))
    """
    mesh = ir.mesh(module)
    reference_module = reference if isinstance(reference, ModuleOp) else import_fx(reference, mesh, missing_rule="warn")
    function, reference_function = ir.main_function(module), ir.main_function(reference_module)
    _check_types("input", list(function.args), list(reference_function.args), function)
    results, expected = list(ir.terminator(function).operands), list(ir.terminator(reference_function).operands)
    _check_types("output", results, expected, function)
    known_expressions: dict[object, int] = {}
    numbers = _value_numbers(function, results, known_expressions)
    expected_numbers = _value_numbers(reference_function, expected, known_expressions)
    proved = tuple(index for index in range(len(results)) if numbers[index] == expected_numbers[index])
    if len(proved) == len(results):
        return RankComparison(proved, (), None)
    tensors = list(inputs) if inputs is not None else _random_inputs(function, seed)
    outputs = simulate(module, *_arguments(function, tensors))
    expected_outputs = run_single(reference_module, *_arguments(reference_function, tensors))
    tested = []
    for index in range(len(results)):
        if index in proved:
            continue
        error = relative_error(outputs[index], expected_outputs[index])
        is_equal = error <= tolerance_of(outputs[index])
        if not is_equal and _is_rounding(
            outputs[index], expected_outputs[index], expected[index], reference_module, tensors
        ):
            error = 0.0
        elif not is_equal:
            difference = _explain_difference(index, error, module, reference_module, tensors)
            return RankComparison(proved, tuple(tested), difference)
        tested.append((index, error))
    return RankComparison(proved, tuple(tested), None)


def _outputs(indices: Sequence[int]) -> str:
    """Return indices of outputs as text: `output 0`, or `outputs 0, 2`."""
    noun = "output" if len(indices) == 1 else "outputs"
    return f"{noun} {', '.join(map(str, indices))}"


def _check_types(noun: str, values: Sequence[SSAValue], expected: Sequence[SSAValue], function: FuncOp) -> None:
    """Raise ShardingError unless both programs have as many values, of equal global shapes."""
    if len(values) != len(expected):
        raise ShardingError(
            f"the ranks have {len(values)} {noun}s; the reference has {len(expected)}: trace both with the same {noun}s"
        )
    for index, (value, expected_value) in enumerate(zip(values, expected, strict=True)):
        meta, required = meta_of(value.type), meta_of(expected_value.type)
        if meta is None or required is None or meta.shape != required.shape:
            source = f", the result of '{value.owner.name}'," if isinstance(value.owner, Operation) else ""
            raise ShardingError(
                f"{noun} {index} of the ranks{source} is tensor<{meta}>; expected tensor<{required}>, as in "
                "the reference: correct the shardings of the inputs, or the collectives before this output",
                location_of(value.owner if isinstance(value.owner, Operation) else function),
            )


def _value_numbers(function: FuncOp, results: Sequence[SSAValue], known_expressions: dict[object, int]) -> list[int]:
    """Return the value number of each result. Values with equal numbers are the same expression of the inputs.

    A collective has the number of its operand, because it changes only the sharding. A view of a view has the number of
    one view. Example:

        ranks                       number        one device             number
        x, w                        0, 1          x, w                   0, 1
        mm(x, w)                    2             mm(x, w)               2
        spmd.all_reduce             2             relu                   3
        relu                        3

    Source: value numbering (Alpern, Wegman and Zadeck, Detecting equality of variables in programs, 1988).

    Args:
        known_expressions: expression → its number, shared by the two programs that are compared. Updated.
    """
    numbers: dict[SSAValue, int] = {}
    view_sources: dict[int, int] = {}  # number of a view → number of the first value of its chain of views

    def number_of(expression: object) -> int:
        """Return the number of an expression: the earlier one if it is known, else the next."""
        return known_expressions.setdefault(expression, len(known_expressions))

    for index, argument in enumerate(function.args):
        numbers[argument] = number_of(("input", index))
    for op in function.body.block.ops:
        if not isinstance(op, ValueOp):
            continue
        operands = [numbers[operand] for operand in op.operands]
        is_collective = isinstance(op, SpmdOp) and not isinstance(op, ConstantOp)
        if is_collective:
            numbers.update(zip(op.results, operands, strict=True))
            continue
        arguments = repr(sorted(op.argument.items()))
        structure = repr(op.structure.data) if op.structure else ""
        is_symmetric = op.name in _COMMUTATIVE and "alpha" not in op.argument
        inputs = tuple(sorted(operands) if is_symmetric else operands)
        for index, result in enumerate(op.results):
            meta = meta_of(result.type)
            if op.name not in _VIEWS:
                numbers[result] = number_of((op.name, inputs, arguments, structure, index, meta))
                continue
            source = view_sources.get(operands[0], operands[0])
            has_same_type = meta_of(op.operands[0].type) == meta
            numbers[result] = operands[0] if has_same_type else number_of(("view", source, meta))
            view_sources.setdefault(numbers[result], source)
    return [numbers[result] for result in results]


def _random_inputs(function: FuncOp, seed: int) -> list[Tensor]:
    """Return a global tensor for each argument: random f64 numbers, or random zeros and ones of another type."""
    generator = torch.Generator().manual_seed(seed)
    tensors = []
    for argument in function.args:
        meta = meta_of(argument.type)
        assert meta is not None  # arguments are tensors
        dtype = TORCH_DTYPES[meta.dtype]
        if dtype.is_floating_point:
            tensors.append(torch.randn(meta.shape, generator=generator, dtype=torch.float64))
        else:
            tensors.append(torch.randint(0, 2, meta.shape, generator=generator).to(dtype))
    return tensors


def _arguments(function: FuncOp, tensors: Sequence[Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return (inputs by name, parameters and buffers by name) of a call of a program."""
    inputs: dict[str, Tensor] = {}
    state: dict[str, Tensor] = {}
    for index, tensor in enumerate(tensors):
        values = inputs if is_call_input(function, index) else state
        values[signature_name(function, "arg_attrs", index)] = tensor
    return inputs, state


def _explain_difference(
    index: int, error: float, module: ModuleOp, reference: ModuleOp, tensors: Sequence[Tensor]
) -> CheckError:
    """Return the error of an output that differs, located at the first op with a result that the reference lacks.

    If the output is a multiple of the expected one, the error contains the factor.

    Args:
        index: the position of the output.
        error: its relative error.
        tensors: the inputs of both programs.
    """
    message = f"output {index} differs from the reference, relative to its largest element by {error:.1e}"
    function = ir.main_function(module)
    end, reference_end = ir.terminator(function), ir.terminator(ir.main_function(reference))
    tensor_of = _run_all_values(module, tensors)
    reference_tensor_of = _run_all_values(reference, tensors)
    output = end.operands[index]
    factor = _factor(tensor_of[output], reference_tensor_of[reference_end.operands[index]])
    if factor is not None:
        message += f": it is {factor:.6g} times the reference"
    producer = output.owner
    producers = {producer, *all_producers_of(producer)} if isinstance(producer, Operation) else set()
    op, op_factor = _first_difference(function, producers, tensor_of, list(reference_tensor_of.values()))
    if op is None:
        return CheckError(message, location_of(end))
    if op_factor is not None:
        return CheckError(
            f"{message}. The first result that is a multiple of a value of the reference is that of '{op.name}': it is "
            f"{op_factor:.6g} times the value; expected equal scaling: check sums against averages, and divisions by "
            "the number of ranks or elements",
            location_of(op),
        )
    return CheckError(
        f"{message}. The first op with a result that the reference does not have is '{op.name}'; expected an op of the "
        "reference, with the same arguments",
        location_of(op),
    )


def _first_difference(
    function: FuncOp, producers: Container[Operation], actual: Mapping[SSAValue, Tensor], known: Sequence[Tensor]
) -> tuple[Operation | None, float | None]:
    """Return (op, factor) of the first result that is `factor` times a value of the reference.

    Without such a result, the op is the first whose result the reference does not have, and the factor is None. Partial
    values are skipped, because a rank may scale its summands. A single element is a multiple of any other.
    """
    # `equal` has the values that the reference has too, and those that were compared already: ops on these values are
    # compared in turn, so that only the first difference on each path counts.
    equal: set[SSAValue] = set(function.args)
    missing: Operation | None = None
    for op in function.body.block.ops:
        is_reached = isinstance(op, ValueOp) and all(operand in equal for operand in op.operands)
        for value in op.results:
            factors = [_factor(actual[value], tensor) for tensor in known] if value in actual else []
            known_factors = [factor for factor in factors if factor is not None]
            if any(abs(factor - 1) < 1e-6 for factor in known_factors):
                equal.add(value)
            elif is_reached:
                equal.add(value)
                sharding = sharding_of(value)
                is_partial = sharding is not None and any(p.trait == "partial" for _, p in sharding.entries)
                if op not in producers or is_partial:
                    continue
                if known_factors and actual[value].numel() > 1:
                    return op, known_factors[0]
                missing = missing or op
    return missing, None


def _factor(tensor: Tensor, reference: Tensor) -> float | None:
    """Return the factor f with `tensor` = f · `reference`, whatever their shapes; None if there is none or it is 0.

    f is the least-squares solution: the sum of `tensor` · `reference`, divided by the sum of `reference`². Tensors of
    integers are multiples only if they are equal.
    """
    if tensor.numel() != reference.numel() or tensor.dtype != reference.dtype or not tensor.numel():
        return None
    tensor, reference = tensor.flatten(), reference.flatten()
    if not tensor.is_floating_point():
        return 1.0 if torch.equal(tensor, reference) else None
    squares = float(reference.square().sum())
    factor = float((tensor * reference).sum()) / squares if squares else 0.0
    is_multiple = factor != 0 and relative_error(tensor, reference * factor) <= tolerance_of(tensor)
    return factor if is_multiple else None


def _is_rounding(actual: Tensor, wanted: Tensor, value: SSAValue, single: ModuleOp, tensors: Sequence[Tensor]) -> bool:
    """Return whether an output differs by rounding errors only, because the terms of a sum cancel.

    The gradient of the bias of keys is such a sum: it is zero up to rounding.

    Args:
        actual, wanted: the output of the ranks, and that of the reference.
        value: the output in the reference program, `single`.
        tensors: the inputs.
    """
    producer = value.owner
    while is_move(producer):
        producer = producer.operands[0].owner  # type: ignore  # a move is an op
    if not isinstance(producer, Operation):
        return False
    tensor_of = _run_all_values(single, tensors)
    terms = [tensor_of[term] for term in terms_of(producer.results[0]) if term in tensor_of]
    return find_difference(actual, wanted, terms) is None


def _run_all_values(module: ModuleOp, tensors: Sequence[Tensor]) -> dict[SSAValue, Tensor]:
    """Run a program on one device, and return the tensor of each value, in program order.

    A copy of the program runs that returns all values.
    """
    function, copy = ir.main_function(module), module.clone()
    copied_function = ir.main_function(copy)
    end = ir.terminator(copied_function)
    return_all = ReturnOp(*_tensor_values(copied_function))
    Rewriter.insert_op(return_all, InsertPoint.before(end))
    Rewriter.erase_op(end)
    input_types = list(copied_function.function_type.inputs)
    copied_function.function_type = FunctionType.from_lists(input_types, return_all.operand_types)
    copied_function.res_attrs = ArrayAttr([DictionaryAttr({})] * len(return_all.operands))
    outputs: list[Any] = run_single(copy, *_arguments(function, tensors))
    return dict(zip(_tensor_values(function), outputs, strict=True))


def _tensor_values(function: FuncOp) -> list[SSAValue]:
    """Return the arguments and the results of all ops of a function that are tensors."""
    values = [*function.args, *(result for op in function.body.block.ops for result in op.results)]
    return [value for value in values if meta_of(value.type) is not None]
