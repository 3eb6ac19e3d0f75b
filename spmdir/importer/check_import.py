"""The original graph and the imported program, run on one device on the same random inputs and compared."""

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
"""Of the inputs, and of the random ops of both programs."""

_ROUNDED = 0.6
"""Where ops are replaced by others, results may differ by eps to this power of the largest element: f32 7e-5."""


@attrs.frozen
class Original:
    """What the original graph computes.

    Attributes:
        inputs: the user's tensors that it got, in order.
        state: parameters, buffers and constants by name.
        outputs: flat.
        changed: name of an argument → its value afterwards.
    """

    inputs: list[Tensor]
    state: dict[str, Tensor]
    outputs: list[Any]
    changed: dict[str, Tensor]


@attrs.frozen
class Comparison:
    """How far a result of the imported program is from that of the original graph.

    Attributes:
        what: the result, as `output 0`.
        error: the largest difference of an element over the largest element of the result.
        tolerance: up to which errors are accepted.
    """

    what: str
    error: float
    tolerance: float

    def __str__(self) -> str:
        return f"{self.what}: max relative error {self.error:.1e}, tolerance {self.tolerance:.0e}"


@torch.no_grad()
def run_original(source: Any, program: Program, example_inputs: Sequence[Any] | None) -> Original:
    """Run what was given to `import_fx` on random inputs.

    Integers and truth values are those of the examples where there are any, and else 0 and 1.

    Raises:
        UnsupportedError: a tensor of the graph has no values, or the graph does not run.
    """
    exported = isinstance(source, ExportedProgram)
    module: fx.GraphModule = source.graph_module if exported else source
    nodes = module.graph.find_nodes(op="placeholder")
    if exported:
        specs = source.graph_signature.input_specs
        tokens = {spec.arg.name: torch.empty(0) for spec in specs if spec.kind == InputKind.TOKEN}
        state = {**tokens, **source.constants, **source.state_dict}
        names = [spec.target or spec.arg.name for spec in specs]
        user = [spec.kind == InputKind.USER_INPUT for spec in specs]
        examples = pytree.tree_leaves(source.example_inputs, is_leaf=_is_none) if source.example_inputs else []
    else:
        state = {e.names[0]: e.value for e in program.inputs if e.kind != "input" and isinstance(e.value, Tensor)}
        entries: list[Input] = program.inputs[len(program.inputs) - len(nodes) :]
        names, user = [entry.names[0] for entry in entries], [True] * len(nodes)
        examples = pytree.tree_leaves(tuple(example_inputs or ()), is_leaf=_is_none)
    examples = examples if len(examples) == sum(user) else [None] * sum(user)
    following, generator = iter(examples), torch.Generator().manual_seed(SEED)
    values = [
        _random(node, next(following), generator) if is_input else _known(name, state[name])
        for node, name, is_input in zip(nodes, names, user, strict=True)
    ]
    given = {name: value for name, value in zip(names, values, strict=True) if isinstance(value, Tensor)}
    copies = pytree.tree_map_only(Tensor, torch.clone, values)
    with torch_errors("the original graph does not run on random inputs"), torch.random.fork_rng():
        torch.manual_seed(SEED)
        returned = fx.Interpreter(without_dead_code(module)).run(*copies, enable_io_processing=False)
    outputs = pytree.tree_leaves(returned, is_leaf=_is_none)
    changed = {
        name: copy
        for name, copy in zip(names, copies, strict=True)
        if isinstance(copy, Tensor) and not _equal(copy, given[name])
    }
    if exported:
        kinds = [(spec.kind, spec.target) for spec in source.graph_signature.output_specs]
        changed |= {str(t): v for (kind, t), v in zip(kinds, outputs, strict=True) if kind in MUTATIONS}
        skipped = (*MUTATIONS, OutputKind.TOKEN)
        outputs = [v for (kind, _), v in zip(kinds, outputs, strict=True) if kind not in skipped]
    inputs = [v for v, is_input in zip(values, user, strict=True) if is_input and isinstance(v, Tensor)]
    known = {name: _known(name, value) for name, value in state.items() if isinstance(value, Tensor)}
    return Original(inputs, known, outputs, changed)


@torch.no_grad()
def check_import(module: ModuleOp, original: Original, program: Program, exact: bool) -> list[Comparison]:
    """Compare what `module` computes with what the original graph does, and return how far each result is.

    Args:
        exact: whether each bit must be right, but for which NaN it is; else results may be rounded in another way.

    Raises:
        CheckError: an output or an argument that is written to differs.
    """
    from spmdir.simulator.simulate import run_single

    found = run_single(module, original.inputs, original.state, SEED)
    count = len(original.outputs)
    compared = [
        _compare(f"output {index}", value, expected, exact, program.outputs[index].value)
        for index, (value, expected) in enumerate(zip(found[:count], original.outputs, strict=True))
    ]
    new = dict(zip(_mutations(module), found[count:], strict=True))
    entries = {entry.names[0]: entry for entry in program.inputs}
    before = {**original.state, **dict(zip(_inputs(module), original.inputs, strict=True))}
    for name in [*original.changed, *(name for name in new if name not in original.changed)]:
        expected = original.changed.get(name, before.get(name))
        value = new.get(name, before.get(name))
        node = entries[name].node if name in entries else None
        compared.append(_compare(f"the new value of '{name}'", value, expected, exact, node))
    return compared


def _compare(what: str, found: Any, expected: Any, exact: bool, node: Any) -> Comparison:
    place = node_location(node) if isinstance(node, fx.Node) else None
    if not isinstance(expected, Tensor) or not isinstance(found, Tensor):
        if found != expected:
            raise CheckError(f"{what} is {found!r} in the imported program and {expected!r} in the graph", place)
        return Comparison(what, 0.0, 0.0)
    kinds = [f"{list(value.shape)} of {str(value.dtype).removeprefix('torch.')}" for value in (found, expected)]
    if kinds[0] != kinds[1]:
        raise CheckError(f"{what} is {kinds[0]} in the imported program and {kinds[1]} in the graph", place)
    is_rounded = not exact and (expected.is_floating_point() or expected.is_complex())
    tolerance = torch.finfo(expected.dtype).eps ** _ROUNDED if is_rounded else 0.0
    if _equal(found, expected):
        return Comparison(what, 0.0, tolerance)
    found, expected = plain_tensor(found), plain_tensor(expected)
    wide = torch.complex128 if expected.is_complex() else torch.float64
    difference = (found.to(wide) - expected.to(wide)).abs().nan_to_num(torch.inf)
    difference[(found == expected) | (found.isnan() & expected.isnan())] = 0
    largest = float(difference.max())
    scale = float(expected.to(wide).abs().nan_to_num(0, 0).max())
    if is_rounded and largest <= tolerance * scale:
        return Comparison(what, largest / scale if scale else 0.0, tolerance)
    raise CheckError(
        f"{what} differs between the graph and the imported program, by up to {largest:.3g}; "
        "the importer is wrong here: please report the graph",
        place,
    )


def _equal(first: Tensor, second: Tensor) -> bool:
    """Return whether two tensors have the same elements, signs of zeros included; one NaN is like another."""
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    first, second = plain_tensor(first), plain_tensor(second)
    if first.is_complex():
        return _equal(torch.view_as_real(first), torch.view_as_real(second))
    if not first.is_floating_point():
        return torch.equal(first, second)
    first, second = first.double(), second.double()
    same = (first == second) & (first.signbit() == second.signbit())
    return bool((same | (first.isnan() & second.isnan())).all())


def _mutations(module: ModuleOp) -> list[str]:
    function = ir.main_function(module)
    return _names(function, "res_attrs", "mutation", len(function.function_type.outputs))


def _inputs(module: ModuleOp) -> list[str]:
    function = ir.main_function(module)
    return _names(function, "arg_attrs", "input", len(function.args))


def _names(function: FuncOp, which: str, kind: str, count: int) -> list[str]:
    return [signature_name(function, which, i) for i in range(count) if signature_kind(function, which, i) == kind]


def _random(node: fx.Node, example: Any, generator: torch.Generator) -> Any:
    value = node.meta.get("val")
    if not isinstance(value, Tensor):
        return example if example is not None else _hint(value)
    sizes = [_hint(size) for size in value.shape]
    if value.is_floating_point() or value.is_complex():
        wide = torch.complex128 if value.is_complex() else torch.float64
        return torch.randn(sizes, generator=generator, dtype=wide).to(value.dtype)
    if isinstance(example, Tensor) and not _is_valueless(example):
        return example
    return torch.randint(0, 2, sizes, generator=generator).to(value.dtype)


def _hint(value: Any) -> Any:
    return value.node.hint if is_open(value) else value


def _known(name: str, value: Any) -> Tensor:
    if not isinstance(value, Tensor) or _is_valueless(value):
        raise SpmdirError(
            f"the graph cannot be checked: '{name}' has no values; expected a tensor on a device other than meta"
        )
    return value.detach()


def _is_valueless(value: Tensor) -> bool:
    return value.is_meta or isinstance(value, FakeTensor)


def _is_none(value: object) -> bool:
    return value is None
