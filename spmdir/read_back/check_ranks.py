"""`check_ranks`: compare the program that ranks run with the program of one device.

An imported program is type-checked, so its ranks compute what its ops compute on one device, up to rounding. The
ops are then compared with those of the reference. An output that is the same expression of the inputs is proved equal.
For other outputs, both programs run on random inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
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
from spmdir.dialects.values import is_call_input, signature_name
from spmdir.importer.importer import import_fx
from spmdir.simulator.output_error import relative_error, tolerance_of
from spmdir.simulator.simulate import run_single, simulate
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
        ShardingError: the programs have other numbers or shapes of inputs or outputs.
        SpmdirError: a program cannot run.

    Example:
        >>> print(spmdir.check_ranks(module, make_fx(one_device)(x, w1, w2)))
    """
    mesh = ir.mesh(module)
    single = reference if isinstance(reference, ModuleOp) else import_fx(reference, mesh, missing_rule="warn")
    function, other = ir.main_function(module), ir.main_function(single)
    _check_types("input", list(function.args), list(other.args), function)
    results, expected = list(ir.terminator(function).operands), list(ir.terminator(other).operands)
    _check_types("output", results, expected, function)
    keys: dict[object, int] = {}
    pairs = list(zip(_expressions(function, results, keys), _expressions(other, expected, keys), strict=True))
    proved = tuple(index for index, (key, expected_key) in enumerate(pairs) if key == expected_key)
    if len(proved) == len(pairs):
        return RankComparison(proved, (), None)
    tensors = list(inputs) if inputs is not None else _random_inputs(function, seed)
    actual = simulate(module, *_arguments(function, tensors))
    wanted = run_single(single, *_arguments(other, tensors))
    tested = []
    for index in (index for index in range(len(pairs)) if index not in proved):
        error = relative_error(actual[index], wanted[index])
        if not error <= tolerance_of(actual[index]):
            difference = _difference(index, error, module, single, tensors)
            return RankComparison(proved, tuple(tested), difference)
        tested.append((index, error))
    return RankComparison(proved, tuple(tested), None)


def _outputs(indices: Sequence[int]) -> str:
    noun = "output" if len(indices) == 1 else "outputs"
    return f"{noun} {', '.join(map(str, indices))}"


def _check_types(noun: str, values: Sequence[SSAValue], expected: Sequence[SSAValue], function: FuncOp) -> None:
    """Raise ShardingError unless both programs have as many values, of equal global shapes."""
    if len(values) != len(expected):
        raise ShardingError(
            f"the ranks have {len(values)} {noun}s; the reference has {len(expected)}: trace both with the same {noun}s"
        )
    for index, (value, other) in enumerate(zip(values, expected, strict=True)):
        meta, wanted = meta_of(value.type), meta_of(other.type)
        if meta is None or wanted is None or meta.shape != wanted.shape:
            raise ShardingError(
                f"{noun} {index} of the ranks is tensor<{meta}>; in the reference it is tensor<{wanted}>: "
                "correct the shardings of the inputs, or the collectives before this output",
                location_of(value.owner if isinstance(value.owner, Operation) else function),
            )


def _expressions(function: FuncOp, results: Sequence[SSAValue], keys: dict[object, int]) -> list[int]:
    """Return a number for each result. Equal numbers are equal expressions of the inputs.

    Collectives are left out, because each returns its operand in another sharding. A view of a view is one view.

    Args:
        keys: expression → its number, shared by the programs that are compared.
    """
    numbers: dict[SSAValue, int] = {}
    sources: dict[int, int] = {}  # the number of a view → that of its source

    def number(key: object) -> int:
        return keys.setdefault(key, len(keys))

    for index, argument in enumerate(function.args):
        numbers[argument] = number(("input", index))
    for op in function.body.block.ops:
        if not isinstance(op, ValueOp):
            continue
        operands = [numbers[operand] for operand in op.operands]
        if isinstance(op, SpmdOp) and not isinstance(op, ConstantOp):
            numbers.update(zip(op.results, operands, strict=True))
            continue
        arguments = repr(sorted(op.argument.items()))
        for index, result in enumerate(op.results):
            meta = meta_of(result.type)
            if op.name in _VIEWS:
                source = sources.get(operands[0], operands[0])
                shape = meta_of(op.operands[0].type)
                numbers[result] = operands[0] if shape == meta else number(("view", source, meta))
                sources.setdefault(numbers[result], source)
                continue
            inputs = sorted(operands) if op.name in _COMMUTATIVE and "alpha" not in op.argument else operands
            structure = repr(op.structure.data) if op.structure else ""
            numbers[result] = number((op.name, tuple(inputs), arguments, structure, index, meta))
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


def _difference(index: int, error: float, module: ModuleOp, single: ModuleOp, tensors: Sequence[Tensor]) -> CheckError:
    """Return the error of an output that differs, at the first op whose result occurs nowhere in the reference."""
    message = f"output {index} differs from the reference, relative to its largest element by {error:.1e}"
    function = ir.main_function(module)
    end = ir.terminator(function)
    actual = _all_values(module, tensors)
    known = _all_values(single, tensors)
    wanted = dict(known)[ir.terminator(ir.main_function(single)).operands[index]]
    factor, producer = _factor(dict(actual)[end.operands[index]], wanted), end.operands[index].owner
    if factor is not None:
        return CheckError(
            f"{message}: it is {factor:.6g} times the reference; expected equal scaling: check sums against averages, "
            "and divisions by the number of ranks or elements",
            location_of(producer) if isinstance(producer, Operation) else None,
        )
    producers = _producers(end.operands[index])
    equal: set[SSAValue] = set(function.args)
    for value, tensor in actual:
        if value in equal or value.owner not in producers:
            continue
        op = value.owner
        if any(_factor(tensor, other) is not None for _, other in known):
            equal.add(value)
        elif isinstance(op, ValueOp) and all(operand in equal for operand in op.operands):
            return CheckError(
                f"{message}. The first op with a result that the reference does not have is '{op.name}'; expected an "
                "op of the reference, with the same arguments",
                location_of(op),
            )
    return CheckError(message, location_of(end))


def _producers(value: SSAValue) -> set[Operation]:
    """Return the ops that a value depends on."""
    producers: set[Operation] = set()
    remaining = [value]
    while remaining:
        op = remaining.pop().owner
        if isinstance(op, Operation) and op not in producers:
            producers.add(op)
            remaining += op.operands
    return producers


def _factor(tensor: Tensor, other: Tensor) -> float | None:
    """Return the number by which `tensor` is a multiple of `other`, in any shape; None if it is none, or 0."""
    if tensor.numel() != other.numel() or tensor.dtype != other.dtype or not tensor.numel():
        return None
    tensor, other = tensor.flatten(), other.flatten()
    if not tensor.is_floating_point():
        return 1.0 if torch.equal(tensor, other) else None
    scale = float(other.square().sum())
    factor = float((tensor * other).sum()) / scale if scale else 0.0
    return factor if factor and relative_error(tensor, other * factor) <= tolerance_of(tensor) else None


def _all_values(module: ModuleOp, tensors: Sequence[Tensor]) -> list[tuple[SSAValue, Tensor]]:
    """Return each value of a program with its tensor on one device."""
    function, copy = ir.main_function(module), module.clone()
    changed = ir.main_function(copy)
    values = _tensors(function)
    returned = ReturnOp(*_tensors(changed))
    end = ir.terminator(changed)
    Rewriter.insert_op(returned, InsertPoint.before(end))
    Rewriter.erase_op(end)
    changed.function_type = FunctionType.from_lists(list(changed.function_type.inputs), returned.operand_types)
    changed.res_attrs = ArrayAttr([DictionaryAttr({})] * len(returned.operands))
    outputs: list[Any] = run_single(copy, *_arguments(function, tensors))
    return list(zip(values, outputs, strict=True))


def _tensors(function: FuncOp) -> list[SSAValue]:
    """Return the arguments and the results of all ops of a function that are tensors."""
    values = [*function.args, *(result for op in function.body.block.ops for result in op.results)]
    return [value for value in values if meta_of(value.type) is not None]
