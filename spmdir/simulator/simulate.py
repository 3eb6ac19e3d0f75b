"""Run a partitioned program on all ranks in one process: global tensors in, global tensors out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue

from spmdir.core.arguments import COUNT, SEED, SIZES, accepts, instance, keyed
from spmdir.core.dtype import DType
from spmdir.core.errors import SpmdirError, UnsupportedError, did_you_mean, require_type
from spmdir.core.limits import SIMULATED
from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import Noise
from spmdir.core.placement.sharding import Sharding
from spmdir.core.progress import say
from spmdir.core.symbolic.expressions import Size, is_symbolic
from spmdir.core.symbolic.symbols import size_places, solve
from spmdir.dialects import ir
from spmdir.dialects.arguments import MODULE
from spmdir.dialects.attributes import ArgumentsAttr, meta_of, sizes_of
from spmdir.dialects.locations import location_of
from spmdir.dialects.names import name_of
from spmdir.dialects.size_ops import open_sizes
from spmdir.dialects.stage import is_local
from spmdir.dialects.values import (
    function_attrs,
    global_type,
    is_call_input,
    sharding_of,
    signature_kind,
    signature_name,
)
from spmdir.lowering.emit import emit, measured_step
from spmdir.lowering.process_groups import symbolic_group
from spmdir.pipeline.pipeline import PIPELINE, Pipeline, as_pipeline
from spmdir.pipeline.remaining_passes import bind_sizes, inline_calls, localize
from spmdir.simulator.distribution import collect, distribute, random_like
from spmdir.simulator.interleaved import check_orders
from spmdir.simulator.lockstep import run_alone, run_lockstep
from spmdir.simulator.measured_errors import MeasuredRun, Measuring, started_value
from spmdir.torch_interop.dtypes import TORCH_DTYPES
from spmdir.torch_interop.memory_layouts import layout_of

Inputs = Sequence[torch.Tensor] | Mapping[str, torch.Tensor]


@accepts(
    module=MODULE,
    inputs=instance(list, tuple, Mapping, expected="a list of tensors, or a dict by name"),
    state_dict=keyed("a dict of tensors by name").optional,
    seed=SEED,
    sizes=SIZES,
    pipeline=PIPELINE,
    state=instance(dict, expected="a dict of tensors by name").optional,
    interleavings=COUNT,
)
@torch.no_grad()
def simulate(
    module: ModuleOp,
    inputs: Inputs,
    state_dict: Mapping[str, torch.Tensor] | None = None,
    seed: int = 0,
    sizes: Mapping[str, int] | None = None,
    pipeline: Pipeline | str | None = None,
    state: dict[str, torch.Tensor] | None = None,
    interleavings: int = 0,
) -> list[Any]:
    """Simulate all ranks of the mesh in one process, and return the outputs of the program.

    Args:
        module: a program at any stage after import; the remaining passes run on a copy.
        inputs: global tensors, in the order of the user inputs or by argument name.
        state_dict: parameters and buffers by name.
        seed: the seed of random partial values of inputs, and of random ops.
        sizes: symbolic sizes that do not follow from the shapes of the inputs.
        pipeline: the pipeline whose remaining passes run; the standard one if None.
        state: edge states by name, kept from one run to the next. Missing states have their initial values. New values
            are written to it.
        interleavings: the number of further runs in random orders of ranks, with collectives in flight. All results
            must be equal.

    Returns: the outputs, flat and in order, as global tensors or literals; then the new values of mutated inputs.

    Raises:
        LimitError: the mesh has more ranks than a simulation takes.
        SpmdirError: the module cannot be lowered; an input is missing or has the wrong shape; an op fails; ranks
            issue different collectives, disagree on a replicated value, or deadlock.

    Example:
        >>> (y,) = spmdir.simulate(module, [x], model.state_dict())
    """
    declared = ir.mesh_op(module)
    SIMULATED.check(declared.mesh.world_size, location_of(declared))
    pipeline = as_pipeline(pipeline)
    with pipeline.rules:
        module = localize(bind_symbolic_sizes(module, inputs, state_dict or {}, sizes, pipeline), pipeline)
        return _simulate(module, inputs, state_dict or {}, seed, {} if state is None else state, interleavings)


def _simulate(
    module: ModuleOp,
    inputs: Inputs,
    state_dict: Mapping[str, torch.Tensor],
    seed: int,
    state: dict[str, torch.Tensor],
    interleavings: int = 0,
    measuring: Measuring | None = None,
) -> list[Any]:
    """Run the programs of all ranks of a localized module in lock step, and collect the outputs.

    Args:
        measuring: measures lossy steps and replaces their results by exact ones; if None, lossy steps run unchanged.
    """
    mesh, function = ir.mesh(module), ir.main_function(module)
    noise = random_like(torch.Generator().manual_seed(seed))
    local_tensors = [
        _distribute_argument(value, tensor, mesh, noise)
        for value, tensor in bind_inputs(function, mesh, inputs, state_dict, state)
    ]
    programs = []
    for rank in range(mesh.world_size):
        say("lowering the program of rank {} of {}", rank, mesh.world_size)
        programs.append(emit(function, mesh, rank, symbolic_group, measured=measuring is not None))
    for program in programs:
        _move_constants(program, local_tensors)
    inputs_of = [[pieces[rank] for pieces in local_tensors] for rank in range(mesh.world_size)]
    steps = {measured_step: measuring.step} if measuring is not None else {}
    outputs_of_rank = run_lockstep(programs, inputs_of, mesh, seed, steps)
    check_orders(outputs_of_rank, programs, inputs_of, mesh, seed, interleavings)
    results = []
    for index, value in enumerate(ir.terminator(function).operands):
        try:
            shards = [outputs[index] for outputs in outputs_of_rank]
            exact = measuring.exact.get(started_value(value)) if measuring is not None else None
            results.append(_collect_result(shards, value, mesh) if exact is None else exact)
        except SpmdirError as error:
            raise error.at(_location(value), f"result {index}") from None
    state_indices = [index for index in range(len(results)) if signature_kind(function, "res_attrs", index) == "state"]
    state.update((signature_name(function, "res_attrs", index), results[index]) for index in state_indices)
    return arrange_outputs(function, results)


@torch.no_grad()
def measure_errors(
    module: ModuleOp,
    inputs: Inputs,
    state_dict: Mapping[str, torch.Tensor] | None = None,
    seed: int = 0,
    pipeline: Pipeline | str | None = None,
) -> MeasuredRun:
    """Run the program with exact steps in place of lossy ones, and measure the errors of the lossy steps.

    Arguments and errors are those of `simulate`.
    """
    pipeline = as_pipeline(pipeline)
    with pipeline.rules:
        module = localize(module, pipeline)
        mesh, ops = ir.mesh(module), [*ir.main_function(module).body.block.ops]
        measuring = Measuring(mesh, random_like(torch.Generator().manual_seed(seed)), ops)
        outputs = _simulate(module, inputs, state_dict or {}, seed, {}, measuring=measuring)
    return MeasuredRun(outputs, measuring.errors, frozenset(measuring.used))


@torch.no_grad()
def run_single(
    module: ModuleOp,
    inputs: Inputs,
    state_dict: Mapping[str, torch.Tensor] | None = None,
    seed: int = 0,
    sizes: Mapping[str, int] | None = None,
) -> list[Any]:
    """Run the program on one device: shardings are ignored, and reshards and collectives do nothing.

    Arguments, result and errors are those of `simulate`.

    Raises:
        UnsupportedError: the module is localized.
    """
    module = inline_calls(bind_symbolic_sizes(module, inputs, state_dict or {}, sizes, as_pipeline(None)))
    function = ir.main_function(module)
    if is_local(function):
        raise UnsupportedError(
            "a localized module cannot run on one device; expected global types: pass the module before localize",
            location_of(function),
        )
    mesh = ir.mesh(module)
    single_mesh = Mesh(tuple((axis, 1) for axis in mesh.axis_names), mesh.name)
    tensors = [tensor for _, tensor in bind_inputs(function, single_mesh, inputs, state_dict or {})]
    program = emit(function, single_mesh, 0, symbolic_group, ignore_shardings=True)
    _move_constants(program, [tensors])
    return arrange_outputs(function, list(run_alone(program, tensors, seed)))


def bind_symbolic_sizes(
    module: ModuleOp,
    inputs: Inputs,
    state_dict: Mapping[str, torch.Tensor],
    sizes: Mapping[str, int] | None,
    pipeline: Pipeline,
) -> ModuleOp:
    """Return the module with numbers in place of its symbolic sizes; the module itself if it has none.

    The numbers are `sizes`, and those that follow from the shapes of the inputs.

    Raises:
        SpmdirError: sizes contradict each other, are unknown, or are outside the ranges of the traced program.
    """
    declared = open_sizes(module)
    if not declared.symbols and not sizes:
        return module
    require_type("sizes", sizes, (Mapping, type(None)), "a dict of numbers by name, as in {'s0': 8}")
    bound_sizes = dict(sizes or {})
    named_shapes = []
    for value, name, tensor in match_inputs(ir.main_function(module), inputs, state_dict):
        named_shapes.append((name, sizes_of(value.type), tensor))
    solve_shapes(bound_sizes, named_shapes)
    if not sizes:
        places = size_places((name, shape) for name, shape, _ in named_shapes)
        texts = {size: f"dimension {dim} of argument '{name}'" for size, (name, dim) in places.items()}
        declared.check(bound_sizes, texts)
    return bind_sizes(module, bound_sizes, pipeline)


def solve_shapes(bound_sizes: dict[str, int], named_shapes: Sequence[tuple[str, tuple[int | Size, ...], Any]]) -> None:
    """Add to `bound_sizes` the sizes that follow from (name, symbolic shape, tensor) triples.

    Raises:
        SpmdirError: sizes contradict each other, or a tensor has another number of dimensions.
    """
    symbolic = [(name, shape, tensor) for name, shape, tensor in named_shapes if any(map(is_symbolic, shape))]
    for _ in range(2):  # a size follows from a product if its other factors are known
        for name, shape, tensor in symbolic:
            if not isinstance(tensor, torch.Tensor) or tensor.dim() != len(shape):
                raise SpmdirError(f"'{name}' is {_describe_rank(tensor)}; expected a tensor of {len(shape)} dimensions")
            solve(bound_sizes, shape, tuple(tensor.shape), f"'{name}'")


def _describe_rank(value: Any) -> str:
    """Return the number of dimensions of a tensor, or the name of the type of another value, for errors."""
    return f"of {value.dim()} dimensions" if isinstance(value, torch.Tensor) else type(value).__name__


def bind_inputs(
    function: FuncOp,
    mesh: Mesh,
    inputs: Inputs,
    state_dict: Mapping[str, torch.Tensor],
    state: Mapping[str, torch.Tensor] | None = None,
) -> list[tuple[SSAValue, torch.Tensor]]:
    """Return each argument of the function with its global tensor. Missing edge states have their initial values.

    Raises:
        SpmdirError: an input is missing or unknown, has the wrong shape or kind of element type, or is mutated and
            shares memory with another input.
    """
    bound: list[tuple[SSAValue, torch.Tensor]] = []
    tensors: dict[str, torch.Tensor] = {}
    initial = initial_states(function, mesh)
    for value, name, tensor in match_inputs(function, inputs, state_dict, {**initial, **(state or {})}):
        meta = global_type(value, mesh)
        assert meta is not None  # arguments are tensors
        check_tensor(name, tensor, meta.shape, meta.dtype)
        bound.append((value, tensor))
        tensors[name] = tensor
    mutated = []
    for index in range(len(function.function_type.outputs.data)):
        if signature_kind(function, "res_attrs", index) == "mutation":
            mutated.append(signature_name(function, "res_attrs", index))
    check_memory(tensors, mutated)
    return bound


def check_memory(tensors: Mapping[str, torch.Tensor], mutated: Iterable[str]) -> None:
    """Raise SpmdirError if a mutated tensor shares memory with another. The trace assumed separate memory."""
    for name in mutated:
        layout = layout_of(tensors[name]) if name in tensors else None
        if layout is None:
            continue
        for other_name, tensor in tensors.items():
            other_layout = None if other_name == name else layout_of(tensor)
            if other_layout and other_layout.storage == layout.storage and layout.overlaps(other_layout):
                raise SpmdirError(
                    f"'{name}', which the program writes to, shares memory with '{other_name}'; expected separate "
                    "memory, as in the trace: pass a clone"
                )


def initial_states(function: FuncOp, mesh: Mesh) -> dict[str, torch.Tensor]:
    """Return name → the initial value of each edge state, as a global tensor."""
    states: dict[str, torch.Tensor] = {}
    for value in function.args:
        initial, meta = function_attrs(function, "arg_attrs", value.index).get("spmd.state"), global_type(value, mesh)
        if initial is not None and meta is not None:
            name = signature_name(function, "arg_attrs", value.index)
            states[name] = _INITIAL[initial.data](meta.shape, TORCH_DTYPES[meta.dtype])
    return states


def _random(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return normal random numbers with a fixed seed."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)


_INITIAL: dict[str, Callable[[tuple[int, ...], torch.dtype], torch.Tensor]] = {
    "zeros": lambda shape, dtype: torch.zeros((), dtype=dtype).expand(shape),
    "ones": lambda shape, dtype: torch.ones((), dtype=dtype).expand(shape),
    "random": _random,
}
"""Kind of initial value → function from shape and element type to the tensor, equal on each run and rank."""


def match_inputs(
    function: FuncOp,
    inputs: Inputs,
    state_dict: Mapping[str, torch.Tensor],
    state: Mapping[str, torch.Tensor] | None = None,
) -> Iterator[tuple[SSAValue, str, Any]]:
    """Yield each argument of the function with its name and its input.

    Raises:
        SpmdirError: an input is missing or unknown.
    """
    user_inputs = [value for value in function.args if is_call_input(function, value.index)]
    names = {value: signature_name(function, "arg_attrs", value.index) for value in function.args}
    require_type("inputs", inputs, (list, tuple, Mapping), "a list of tensors, or a dict by name")
    if isinstance(inputs, Mapping):
        keyed("a dict of tensors by the names of inputs").check("inputs", inputs)
        named_inputs = dict(inputs)
    elif len(inputs) == len(user_inputs):
        named_inputs = {names[value]: tensor for value, tensor in zip(user_inputs, inputs, strict=True)}
    else:
        raise SpmdirError(
            f"found {len(inputs)} inputs; expected {len(user_inputs)}: {_listed(names[value] for value in user_inputs)}"
        )
    for value in function.args:
        source, source_name = (named_inputs, "input") if value in user_inputs else (state_dict, "state_dict")
        if signature_kind(function, "arg_attrs", value.index) == "state":
            source, source_name = state or {}, "state"
        name = names[value]
        if name not in source:
            raise SpmdirError(
                f"no '{name}' in {source_name}; expected a value for each name of the program: {source_name} "
                f"has {_listed(source)}{did_you_mean(name, source)}"
            )
        yield value, name, source[name]
    unexpected = [name for name in named_inputs if name not in {names[value] for value in user_inputs}]
    if unexpected:
        input_names = [names[value] for value in user_inputs]
        raise SpmdirError(
            f"the program has no input '{unexpected[0]}'; expected "
            f"{_listed(input_names)}{did_you_mean(unexpected[0], input_names)}"
        )


def arrange_outputs(function: FuncOp, results: Sequence[torch.Tensor]) -> list[Any]:
    """Return the flat outputs of the program from the results of its function: mutations last, without edge states.

    Outputs that are not tensors are the literals of the attribute `spmd.outputs`.
    """
    kinds = [signature_kind(function, "res_attrs", index) for index in range(len(results))]
    spec = function.attributes.get("spmd.outputs")
    mutations = [result for result, kind in zip(results, kinds, strict=True) if kind == "mutation"]
    outputs: list[Any] = []
    if not isinstance(spec, ArgumentsAttr):
        outputs = [result for result, kind in zip(results, kinds, strict=True) if kind not in ("mutation", "state")]
        return [*outputs, *mutations]
    entries: Any = dict(spec.data)["outputs"]
    for entry in entries:  # `#N` is result N, and other entries are literals
        is_result = isinstance(entry, str) and entry.startswith("#")
        outputs.append(results[int(entry[1:])] if is_result else entry)
    return [*outputs, *mutations]


def check_tensor(name: str, tensor: Any, shape: tuple[int, ...], dtype: DType, wanted: str = "") -> None:
    """Raise SpmdirError unless a tensor has a shape and the same kind of element type as `dtype`.

    Args:
        wanted: the description of the shape in errors; by default as the global shape.
    """
    if not isinstance(tensor, torch.Tensor):
        raise SpmdirError(f"'{name}' is {type(tensor).__name__}; expected a tensor of shape {list(shape)}")
    if tensor.layout != torch.strided:
        raise SpmdirError(f"'{name}' has layout {tensor.layout}; expected a dense tensor: convert it with to_dense()")
    if tuple(tensor.shape) != shape:
        wanted = wanted or f"the global shape {list(shape)}"
        raise SpmdirError(f"'{name}' has shape {list(tensor.shape)}; expected {wanted}")
    expected = TORCH_DTYPES[dtype]
    # Programs may run in another precision, but not with another kind of number.
    if tensor.dtype != expected and not (tensor.is_floating_point() and expected.is_floating_point):
        raise SpmdirError(f"'{name}' has dtype {tensor.dtype}; expected {expected}")


def _distribute_argument(value: SSAValue, tensor: torch.Tensor, mesh: Mesh, noise: Noise) -> list[torch.Tensor]:
    """Return [rank], the local tensor of an argument."""
    try:
        return distribute(tensor, _sharding(value, mesh), mesh, noise)
    except SpmdirError as error:
        raise error.at(location_of(value.owner.parent_op()), f"'{name_of(value) or 'an input'}'") from None  # type: ignore


def _collect_result(shards: Sequence[Any], value: SSAValue, mesh: Mesh) -> Any:
    """Return the global tensor of a result."""
    meta, sharding, local = global_type(value, mesh), _sharding(value, mesh), meta_of(value.type)
    if meta is None or local is None:
        return collect(shards, sharding, mesh, ())
    # If the inputs have another precision than the program, so has the result.
    dtype = None if local.dtype == meta.dtype else TORCH_DTYPES[meta.dtype]
    return collect(shards, sharding, mesh, meta.shape, dtype)


def _move_constants(program: torch.nn.Module, tensors: Sequence[Sequence[torch.Tensor]]) -> None:
    """Move the constants of a program to the device of its first input; do nothing without inputs."""
    devices = [tensor.device for group in tensors for tensor in group]
    if devices:
        program.to(devices[0])


def _sharding(value: SSAValue, mesh: Mesh) -> Sharding:
    """Return the sharding of a value; replicated if it has none."""
    return sharding_of(value) or Sharding((), mesh.name)


def _location(value: SSAValue) -> Any:
    """Return the location of the op that produces a value; None for an argument."""
    owner = value.owner
    return location_of(owner) if hasattr(owner, "location") else None  # type: ignore


def _listed(names: Any) -> str:
    """Return the first eight names, with `…` if there are more; `nothing` if there are none."""
    names = list(names)
    if not names:
        return "nothing"
    return ", ".join([*names[:8], *(["…"] if len(names) > 8 else [])])
