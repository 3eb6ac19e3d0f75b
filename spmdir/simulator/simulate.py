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
from spmdir.dialects.sizes import open_sizes
from spmdir.dialects.stage import is_local
from spmdir.dialects.values import function_attrs, global_type, is_given, sharding_of, signature_kind, signature_name
from spmdir.lowering.emit import emit, measured_step
from spmdir.lowering.process_groups import symbolic_group
from spmdir.pipeline.finish import bind_sizes, inline_calls, localize
from spmdir.pipeline.pipeline import PIPELINE, Pipeline, as_pipeline
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
    """Return what the program computes when all ranks of its mesh run it, simulated in one process.

    Args:
        module: at any stage after import; the passes that it still needs are run on a copy.
        inputs: global tensors, in the order of the user inputs or by argument name.
        state_dict: parameters and buffers by their names.
        seed: of the random partial values of partial inputs, and of the random ops of the program.
        sizes: symbolic sizes that the shapes of the inputs do not tell.
        pipeline: whose remaining passes are run; the standard one if None.
        state: what ranks keep for steps from one run to the next, by name; what is not in it begins with its initial
            value, and the new values are put into it.
        interleavings: in how many random orders the ranks run it again, each going on by itself, so that collectives
            are in flight; all must give the same.

    Returns: the outputs, flat and in order, as global tensors or literals; then the new values of what is mutated.

    Raises:
        LimitError: the mesh has more ranks than a simulation takes.
        SpmdirError: the module cannot be lowered; an input is missing or has the wrong shape; an op fails; ranks
            issue different collectives, disagree on a replicated value, or wait for each other for ever.

    Example:
        >>> (y,) = spmdir.simulate(module, [x], model.state_dict())
    """
    declared = ir.mesh_op(module)
    SIMULATED.check(declared.mesh.world_size, location_of(declared))
    pipeline = as_pipeline(pipeline)
    with pipeline.rules:
        module = localize(sized(module, inputs, state_dict or {}, sizes, pipeline), pipeline)
        return _simulated(module, inputs, state_dict or {}, seed, {} if state is None else state, interleavings)


def _simulated(
    module: ModuleOp,
    inputs: Inputs,
    state_dict: Mapping[str, torch.Tensor],
    seed: int,
    state: dict[str, torch.Tensor],
    interleavings: int = 0,
    measuring: Measuring | None = None,
) -> list[Any]:
    """Run every rank's program of a localized module in lock step, and reassemble the outputs.

    Args:
        measuring: measures the lossy steps, whose exact results are taken; if None, they are done as they are.
    """
    mesh, function = ir.mesh(module), ir.main_function(module)
    noise = random_like(torch.Generator().manual_seed(seed))
    held = [
        _distributed(value, tensor, mesh, noise)
        for value, tensor in bind_inputs(function, mesh, inputs, state_dict, state)
    ]
    programs = []
    for rank in range(mesh.world_size):
        say("lowering the program of rank {} of {}", rank, mesh.world_size)
        programs.append(emit(function, mesh, rank, symbolic_group, measured=measuring is not None))
    for program in programs:
        _follow(program, held)
    inputs_of = [[pieces[rank] for pieces in held] for rank in range(mesh.world_size)]
    steps = {measured_step: measuring.step} if measuring is not None else {}
    returned = run_lockstep(programs, inputs_of, mesh, seed, steps)
    check_orders(returned, programs, inputs_of, mesh, seed, interleavings)
    results = []
    for index, value in enumerate(ir.terminator(function).operands):
        try:
            shards = [outputs[index] for outputs in returned]
            exact = measuring.exact.get(started_value(value)) if measuring is not None else None
            results.append(_collected(shards, value, mesh) if exact is None else exact)
        except SpmdirError as error:
            raise error.at(_place(value), f"result {index}") from None
    kept = [index for index in range(len(results)) if signature_kind(function, "res_attrs", index) == "state"]
    state.update((signature_name(function, "res_attrs", index), results[index]) for index in kept)
    return arrange_outputs(function, results)


@torch.no_grad()
def measure_errors(
    module: ModuleOp,
    inputs: Inputs,
    state_dict: Mapping[str, torch.Tensor] | None = None,
    seed: int = 0,
    pipeline: Pipeline | str | None = None,
) -> MeasuredRun:
    """Return what the program computes if its lossy steps are exact, and how far these steps are off.

    Arguments and errors are those of `simulate`.
    """
    pipeline = as_pipeline(pipeline)
    with pipeline.rules:
        module = localize(module, pipeline)
        mesh, ops = ir.mesh(module), [*ir.main_function(module).body.block.ops]
        measuring = Measuring(mesh, random_like(torch.Generator().manual_seed(seed)), ops)
        outputs = _simulated(module, inputs, state_dict or {}, seed, {}, measuring=measuring)
    return MeasuredRun(outputs, measuring.errors, frozenset(measuring.used))


@torch.no_grad()
def run_single(
    module: ModuleOp,
    inputs: Inputs,
    state_dict: Mapping[str, torch.Tensor] | None = None,
    seed: int = 0,
    sizes: Mapping[str, int] | None = None,
) -> list[Any]:
    """Return what the program computes on one device: shardings are ignored, reshards and collectives do nothing.

    Arguments, result and errors are those of `simulate`.

    Raises:
        UnsupportedError: the module is localized already.
    """
    module = inline_calls(sized(module, inputs, state_dict or {}, sizes, as_pipeline(None)))
    function = ir.main_function(module)
    if is_local(function):
        raise UnsupportedError(
            "a localized module is no program of one device any more; give the module from before localize",
            location_of(function),
        )
    mesh = ir.mesh(module)
    alone = Mesh(tuple((axis, 1) for axis in mesh.axis_names), mesh.name)
    tensors = [tensor for _, tensor in bind_inputs(function, alone, inputs, state_dict or {})]
    program = emit(function, alone, 0, symbolic_group, ignore_shardings=True)
    _follow(program, [tensors])
    return arrange_outputs(function, list(run_alone(program, tensors, seed)))


def sized(
    module: ModuleOp,
    inputs: Inputs,
    state_dict: Mapping[str, torch.Tensor],
    sizes: Mapping[str, int] | None,
    pipeline: Pipeline,
) -> ModuleOp:
    """Return `module` with its symbolic sizes bound to those of its inputs.

    Raises:
        SpmdirError: sizes contradict each other, are unknown, or none that the program was traced for.
    """
    declared = open_sizes(module)
    if not declared.symbols and not sizes:
        return module
    require_type("sizes", sizes, (Mapping, type(None)), "a dict of numbers by name, as in {'s0': 8}")
    known = dict(sizes or {})
    named = [
        (name, sizes_of(value.type), tensor)
        for value, name, tensor in match_inputs(ir.main_function(module), inputs, state_dict)
    ]
    solve_shapes(known, named)
    if not sizes:
        places = size_places((name, shape) for name, shape, _ in named)
        said = {size: f"dimension {dim} of argument '{name}'" for size, (name, dim) in places.items()}
        declared.check(known, said)
    return bind_sizes(module, known, pipeline)


def solve_shapes(known: dict[str, int], named: Sequence[tuple[str, tuple[int | Size, ...], Any]]) -> None:
    """Add to `known` the sizes that (name, symbolic shape, tensor) triples tell.

    Raises:
        SpmdirError: sizes contradict each other.
    """
    sized_ones = [(name, shape, tensor) for name, shape, tensor in named if any(map(is_symbolic, shape))]
    for _ in range(2):  # a product tells a size when the other factors are known
        for name, shape, tensor in sized_ones:
            if not isinstance(tensor, torch.Tensor) or tensor.dim() != len(shape):
                raise SpmdirError(f"'{name}' is {_kind(tensor)}; expected a tensor of {len(shape)} dimensions")
            solve(known, shape, tuple(tensor.shape), f"'{name}'")


def _kind(value: Any) -> str:
    return f"of {value.dim()} dimensions" if isinstance(value, torch.Tensor) else type(value).__name__


def bind_inputs(
    function: FuncOp,
    mesh: Mesh,
    inputs: Inputs,
    state_dict: Mapping[str, torch.Tensor],
    state: Mapping[str, torch.Tensor] | None = None,
) -> list[tuple[SSAValue, torch.Tensor]]:
    """Each argument of the function with its global tensor; what ranks keep for steps is in `state`, or initial.

    Raises:
        SpmdirError: one is missing, left over, has the wrong shape or kind of element type, or is written to and shares
            memory with another.
    """
    found: list[tuple[SSAValue, torch.Tensor]] = []
    named: dict[str, torch.Tensor] = {}
    held = initial_states(function, mesh)
    for value, name, tensor in match_inputs(function, inputs, state_dict, {**held, **(state or {})}):
        meta = global_type(value, mesh)
        assert meta is not None  # arguments are tensors
        check_tensor(name, tensor, meta.shape, meta.dtype)
        found.append((value, tensor))
        named[name] = tensor
    results = range(len(function.function_type.outputs.data))
    written = [i for i in results if signature_kind(function, "res_attrs", i) == "mutation"]
    check_memory(named, (signature_name(function, "res_attrs", index) for index in written))
    return found


def check_memory(tensors: Mapping[str, torch.Tensor], written: Iterable[str]) -> None:
    """Raise SpmdirError if a tensor that is written to has elements in common with another: the trace knew of none."""
    for name in written:
        layout = layout_of(tensors[name]) if name in tensors else None
        for other, tensor in tensors.items():
            shared = layout_of(tensor) if other != name and layout else None
            if layout and shared and shared.storage == layout.storage and layout.meets(shared):
                raise SpmdirError(
                    f"'{name}', which the program writes to, shares memory with '{other}'; expected tensors apart, "
                    "as in the trace: pass a clone"
                )


def initial_states(function: FuncOp, mesh: Mesh) -> dict[str, torch.Tensor]:
    """Return name → what ranks begin with, as global tensors, of what they keep for steps."""
    found: dict[str, torch.Tensor] = {}
    for value in function.args:
        said, meta = function_attrs(function, "arg_attrs", value.index).get("spmd.state"), global_type(value, mesh)
        if said is not None and meta is not None:
            name = signature_name(function, "arg_attrs", value.index)
            found[name] = _INITIAL[said.data](meta.shape, TORCH_DTYPES[meta.dtype])
    return found


def _random(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)


_INITIAL: dict[str, Callable[[tuple[int, ...], torch.dtype], torch.Tensor]] = {
    "zeros": lambda shape, dtype: torch.zeros((), dtype=dtype).expand(shape),
    "ones": lambda shape, dtype: torch.ones((), dtype=dtype).expand(shape),
    "random": _random,
}
"""What a state begins with → (shape, element type) → the tensor; the same on every run and rank."""


def match_inputs(
    function: FuncOp,
    inputs: Inputs,
    state_dict: Mapping[str, torch.Tensor],
    state: Mapping[str, torch.Tensor] | None = None,
) -> Iterator[tuple[SSAValue, str, Any]]:
    """Each argument of the function with its name and what is given for it.

    Raises:
        SpmdirError: one is missing or left over.
    """
    users = [value for value in function.args if is_given(function, value.index)]
    names = {value: signature_name(function, "arg_attrs", value.index) for value in function.args}
    require_type("inputs", inputs, (list, tuple, Mapping), "a list of tensors, or a dict by name")
    if isinstance(inputs, Mapping):
        keyed("a dict of tensors by the names of inputs").check("inputs", inputs)
        given = dict(inputs)
    elif len(inputs) == len(users):
        given = {names[value]: tensor for value, tensor in zip(users, inputs, strict=True)}
    else:
        raise SpmdirError(
            f"{len(inputs)} inputs given; the program takes {len(users)}: {_list(names[v] for v in users)}"
        )
    for value in function.args:
        source, what = (given, "input") if value in users else (state_dict, "state_dict")
        if signature_kind(function, "arg_attrs", value.index) == "state":
            source, what = state or {}, "state"
        name = names[value]
        if name not in source:
            raise SpmdirError(f"no '{name}' in {what}; it has {_list(source)}{did_you_mean(name, source)}")
        yield value, name, source[name]
    extra = [name for name in given if name not in {names[value] for value in users}]
    if extra:
        known = [names[value] for value in users]
        raise SpmdirError(
            f"the program has no input '{extra[0]}'; it takes {_list(known)}{did_you_mean(extra[0], known)}"
        )


def arrange_outputs(function: FuncOp, results: Sequence[torch.Tensor]) -> list[Any]:
    """The flat outputs of the program, from the results of its function; mutations come last, states are left out."""
    kinds = [signature_kind(function, "res_attrs", index) for index in range(len(results))]
    spec = function.attributes.get("spmd.outputs")
    mutations = [result for result, kind in zip(results, kinds, strict=True) if kind == "mutation"]
    if not isinstance(spec, ArgumentsAttr):
        return [*(r for r, kind in zip(results, kinds, strict=True) if kind not in ("mutation", "state")), *mutations]
    entries: Any = dict(spec.data)["outputs"]
    outputs = [results[int(e[1:])] if isinstance(e, str) and e.startswith("#") else e for e in entries]
    return [*outputs, *mutations]


def check_tensor(name: str, tensor: Any, shape: tuple[int, ...], dtype: DType, wanted: str = "") -> None:
    """Raise SpmdirError unless `tensor` is one of `shape` and of the kind of element type that `dtype` is.

    Args:
        wanted: how errors call the shape; by default as the global one.
    """
    if not isinstance(tensor, torch.Tensor):
        raise SpmdirError(f"'{name}' is {type(tensor).__name__}; expected a tensor of shape {list(shape)}")
    if tensor.layout != torch.strided:
        raise SpmdirError(f"'{name}' has layout {tensor.layout}; expected a dense tensor")
    if tuple(tensor.shape) != shape:
        wanted = wanted or f"the global shape {list(shape)}"
        raise SpmdirError(f"'{name}' has shape {list(tensor.shape)}; expected {wanted}")
    expected = TORCH_DTYPES[dtype]
    # Another precision is a fair question to ask of a program; another kind of number is a mistake.
    if tensor.dtype != expected and not (tensor.is_floating_point() and expected.is_floating_point):
        raise SpmdirError(f"'{name}' has dtype {tensor.dtype}; expected {expected}")


def _distributed(value: SSAValue, tensor: torch.Tensor, mesh: Mesh, noise: Noise) -> list[torch.Tensor]:
    """What each rank holds of an argument of the program."""
    try:
        return distribute(tensor, _sharding(value, mesh), mesh, noise)
    except SpmdirError as error:
        raise error.at(location_of(value.owner.parent_op()), f"'{name_of(value) or 'an input'}'") from None  # type: ignore


def _collected(shards: Sequence[Any], value: SSAValue, mesh: Mesh) -> Any:
    """Return the global tensor of a result of the program."""
    meta, sharding, local = global_type(value, mesh), _sharding(value, mesh), meta_of(value.type)
    if meta is None or local is None:
        return collect(shards, sharding, mesh, ())
    # The inputs may be of another precision than the program, and so is the result then.
    dtype = None if local.dtype == meta.dtype else TORCH_DTYPES[meta.dtype]
    return collect(shards, sharding, mesh, meta.shape, dtype)


def _follow(program: torch.nn.Module, tensors: Sequence[Sequence[torch.Tensor]]) -> None:
    """Put the constants of a program where its inputs are."""
    devices = [tensor.device for group in tensors for tensor in group]
    if devices:
        program.to(devices[0])


def _sharding(value: SSAValue, mesh: Mesh) -> Sharding:
    return sharding_of(value) or Sharding((), mesh.name)


def _place(value: SSAValue) -> Any:
    owner = value.owner
    return location_of(owner) if hasattr(owner, "location") else None  # type: ignore


def _list(names: Any) -> str:
    names = list(names)
    return ", ".join(names[:8]) + (", …" if len(names) > 8 else "") or "nothing"
