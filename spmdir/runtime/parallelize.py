"""`parallelize`: capture, import, decide and lower a model or a training step, and shard its state over ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from xdsl.dialects.builtin import ModuleOp

from spmdir.core.arguments import EXAMPLES, accepts, check_kinds
from spmdir.core.errors import SpmdirError, UnsupportedError
from spmdir.core.mesh import MESH, Mesh
from spmdir.dialects import ir
from spmdir.dialects.locations import location_of
from spmdir.plans.resolve import PlanLike, plan_for
from spmdir.runtime.capture import Capture
from spmdir.runtime.dynamic_dims import Fixed
from spmdir.runtime.initial_state import initial_state
from spmdir.runtime.meta_tensors import no_values_error
from spmdir.runtime.module_checks import check_forward_call, check_initialized
from spmdir.runtime.parallel import Parallel
from spmdir.runtime.parallel_options import ChosenOptions, ParallelOptions
from spmdir.runtime.parallelize_stages import check_stages, parallelize_stages
from spmdir.runtime.rank_state import EdgeStateShard, RankState, allocate_meta, initial_edge_states
from spmdir.runtime.ranks import Ranks
from spmdir.runtime.set_up import set_up
from spmdir.runtime.signature import Argument, Signature
from spmdir.runtime.traces import Trace, Traces, trace_again
from spmdir.runtime.tracing import Traceable, Tracing
from spmdir.runtime.training import TrainingStep
from spmdir.torch_interop.tied_names import tied_names


@accepts()
def parallelize(
    model: nn.Module | Callable[..., Any],
    mesh: Mesh | DeviceMesh,
    plan: PlanLike = None,
    example_inputs: Sequence[Any] = (),
    *,
    state: Any = None,
    **options: Unpack[ParallelOptions],
) -> Parallel:
    """Partition a model or a training step over the ranks of a mesh, and return the program of this rank.

    All ranks call this function with equal arguments. Each rank keeps only its shards of parameters, buffers and state.
    After the caller has deleted the original tensors, no rank has a full copy of a sharded tensor. The original tensors
    may be on the CPU, and must be equal on all ranks: seed the generator before you make them, or pass `sync_state`.
    The ranks compare them. Tensors on the meta device get their values afterwards, from `materialize` or a checkpoint;
    no rank ever holds a full copy of such a tensor.

    Args:
        model: a module, of which the forward is partitioned. With `state`, a function `step(state, *args) → (outputs,
            new_state)` of tensor ops, such as `training_step` returns.
        mesh: a Mesh, or a torch DeviceMesh with names, which then also serves as `device_mesh`.
        plan: a plan as for `placement.sharding_plan`: a recipe such as "fsdp*tp", a dict as for `import_fx`, and
            others. A recipe such as "pp*fsdp" cuts a training step into stages, and each rank keeps the state of its
            stages. The compiler decides the shardings that the plan omits. Leaves of the state have their path as name.
            `input:N` counts them before the arguments, and `input:*` means all arguments. For a step, recipes and
            styles refer to `step.model`.
        example_inputs: positional arguments with global shapes. Numbers among them become constants.
        state: the initial state of a step, a pytree of tensors.
        options: further keyword arguments: see `ParallelOptions`.

    Returns: the program of this rank. Call it like the model, or like the step without its state.

    Raises:
        SpmdirError: there is no process group, or its size differs from that of the mesh; the program cannot be traced
            or partitioned, or changes Python state; ranks would run different programs, or start with different values.
            If one rank raises, or does not arrive within the timeout of the process group, all ranks raise.

    Example:
        >>> parallel = spmdir.parallelize(model, mesh, {"up.weight": "tp: S(0)", "down.weight": "tp: S(1)"}, (x,))
        >>> y = parallel(x)
    """
    chosen = ChosenOptions.of(options)
    to_check = {"model": model, "mesh": mesh, "plan": plan, "example_inputs": example_inputs}
    setup = set_up("parallelize", mesh, chosen, lambda: _check_arguments(to_check, state))
    step = model if isinstance(model, TrainingStep) else None
    traceable = Traceable(model, state)
    with setup.group.check_agreement("the arguments of parallelize"):
        if isinstance(model, nn.Module):
            check_initialized(model)
            check_forward_call(model, tuple(example_inputs), {})
        explicit_plan, _ = plan_for(plan, model, setup.mesh)
        pipeline = explicit_plan.pipeline
        if pipeline is not None:
            check_stages(model, pipeline, setup.mesh, chosen)
        tracing = Tracing(
            setup=setup if pipeline is None else setup.for_stages(pipeline),
            shardings=explicit_plan,
            out_shardings=chosen.out_shardings,
            missing_rule=chosen.missing_rule,
            dynamic_shapes=chosen.dynamic_shapes,
        )
        micro_batch = step.split_batch(tuple(example_inputs))[0] if step else tuple(example_inputs)
        tracing.check_dims(traceable, micro_batch)
        fixed = tracing.find_fixed_dims(traceable, micro_batch)
    decided = tracing.trace("the capture of the program", traceable, micro_batch, fixed)
    if pipeline is not None:
        signature = decided.signature()
        originals = _originals(decided.capture, signature)
        tied = _tied_names(decided.capture, originals)
        return parallelize_stages(setup, pipeline, decided, traceable, signature, originals, tied)
    with setup.group.check_agreement("lowering") as status:
        signature, program = decided.lower_examples()
        status |= program.agreement
        originals = _originals(decided.capture, signature)
        initial = initial_state(signature.state_arguments, originals, setup, status)
        edge_states = initial_edge_states(program.module, setup.mesh, setup.rank, setup.device)
        _check_edge_states(edge_states, decided.module, has_open_sizes=bool(decided.examples or fixed), step=step)
        rank_state = RankState(
            shards=allocate_meta(initial.shards, setup.device),
            edge_states=edge_states,
            unset={name for name, tensor in originals.items() if tensor.is_meta},
            rates={name: originals[name].item() for name in (step.rates() if step else ())},
        )
    with setup.group.report_errors():
        ranks = setup.connect_ranks()
        first = decided.connect(signature, program, ranks, traceable)
        initial.copy_from_first_rank(ranks)
    return Parallel(
        ranks=ranks,
        traces=_traces(tracing, traceable, fixed, first, ranks),
        state=rank_state,
        tied=_tied_names(decided.capture, originals),
        step=step,
    )


def _traces(tracing: Tracing, traceable: Traceable, fixed: Fixed, first: Trace, ranks: Ranks) -> Traces:
    """Return the traces of a program: the trace `first`, and a function that traces it again for other sizes.

    Without dynamic shapes, and with local inputs, there is only the first trace.

    Args:
        fixed: the dynamic dimensions that are numbers in the trace `first`, which is that of the examples.
    """
    if tracing.dynamic_shapes is None or ranks.local_inputs:
        return Traces(first, lambda args: fixed, trace_again, {fixed: first})
    shared_names = _shared_names(traceable, first.signature)
    layouts = {
        argument.name: argument.sharding
        for argument in first.signature.state_arguments
        if argument.name in shared_names
    }
    copy_traceable = traceable.make_later(layouts)

    def trace(fixed: Fixed, args: tuple[Any, ...]) -> Trace:
        """Trace the program again, with the present layouts of the state. Other tensors are constants of this trace."""
        traced_again = copy_traceable()
        decided = tracing.trace("another program", traced_again, args, fixed, layouts)
        with tracing.setup.group.check_agreement("lowering") as status:
            signature, program = decided.lower_examples()
            status |= program.agreement
            for argument in signature.state_arguments:
                if layouts.get(argument.name, argument.sharding) != argument.sharding:
                    raise UnsupportedError(
                        f"calls with {_describe_sizes(fixed)} require <{argument.sharding}> of '{argument.name}', but "
                        f"the program for the examples requires <{layouts[argument.name]}>; expected one sharding for "
                        "all sizes: give it in the plan"
                    )
            edge_states = initial_edge_states(program.module, ranks.mesh, ranks.index, ranks.device)
            _check_edge_states(edge_states, decided.module, has_open_sizes=True)
            constants = [argument for argument in signature.state_arguments if argument.name not in layouts]
            originals = {argument.name: decided.capture.tensors[argument.name] for argument in constants}
            if missing := [name for name, tensor in originals.items() if tensor.is_meta]:
                raise no_values_error(missing[0])
            initial = initial_state(constants, originals, tracing.setup, status)
        with tracing.setup.group.report_errors():
            traced = decided.connect(signature, program, ranks, traced_again, initial.shards)
            initial.copy_from_first_rank(ranks)
        return traced

    return Traces(first, lambda args: tracing.find_fixed_dims(copy_traceable(), args), trace, {fixed: first})


def _describe_sizes(fixed: Fixed) -> str:
    """Return fixed dimensions as text: `a size of 1 in dimension 0 of 'x'`."""
    return ", ".join(f"a size of {size} in dimension {dim} of '{argument}'" for argument, dim, size in fixed)


def _shared_names(traceable: Traceable, signature: Signature) -> frozenset[str]:
    """Return the names of the tensors that all traces of a program share: the state of a step or model.

    Other tensors, such as a table that the code creates, are constants of one trace.
    """
    if traceable.state is not None:
        return frozenset(leaf.name for leaf in signature.state if isinstance(leaf, Argument))
    model = traceable.program
    named = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    return frozenset(name for name, _ in named)


def _check_edge_states(
    edge_states: Mapping[str, EdgeStateShard],
    module: ModuleOp,
    *,
    has_open_sizes: bool,
    step: TrainingStep | None = None,
) -> None:
    """Raise UnsupportedError if a program with edge states has several micro-batches or symbolic sizes.

    Args:
        edge_states: the edge states of the program; if empty, nothing is checked.
        module: the program, for the location of the error.
        has_open_sizes: whether the program has symbolic sizes, or other traces for other sizes.
        step: the training step; None for a model or another step.
    """
    if not edge_states:
        return
    name, location = next(iter(edge_states)), location_of(ir.main_function(module))
    if step and step.micro_batches > 1:
        raise UnsupportedError(
            f"the program keeps the state '{name}' between steps, which micro-batches cannot share; expected "
            "accumulate=1, or a placement without state",
            location,
        )
    if has_open_sizes:
        raise UnsupportedError(
            f"the program keeps the state '{name}' between steps, and its shape depends on symbolic sizes; expected "
            "fixed shapes: omit dynamic_shapes, or use a placement without state",
            location,
        )


_KINDS = {"mesh": MESH, "example_inputs": EXAMPLES}


def _check_arguments(arguments: Mapping[str, Any], state: Any) -> None:
    """Raise SpmdirError if an argument of `parallelize` has the wrong type, or a step has no state."""
    check_kinds(_KINDS, arguments, tuple(arguments))
    if state is None and not isinstance(arguments["model"], nn.Module):
        raise SpmdirError(
            f"cannot parallelize a {type(arguments['model']).__name__}; expected an nn.Module, or a function "
            "step(state, *args) → (outputs, new_state) and its initial state: pass state="
        )


def _originals(capture: Capture, signature: Signature) -> dict[str, Tensor]:
    """Return name → unsharded tensor, for the arguments that ranks keep between calls."""
    leaves = zip(signature.state, capture.state, strict=True)
    tensor_of_leaf = {leaf.name: tensor for leaf, tensor in leaves if isinstance(leaf, Argument)}
    originals = {}
    for argument in signature.state_arguments:
        name = argument.name
        originals[name] = tensor_of_leaf[name] if name in tensor_of_leaf else capture.tensors[name]
    return originals


def _tied_names(capture: Capture, originals: Mapping[str, Tensor]) -> dict[str, str]:
    """Return further name of a tied parameter → its name in the program.

    Args:
        originals: the tensors of the program, by name; it has one name of each group of tied tensors.
    """
    result: dict[str, str] = {}
    for names in tied_names(capture.tensors.items()):
        for name in names:
            if name in originals:
                result |= {alias: name for alias in names if alias != name}
    return result
