"""`parallelize`, the front door to real ranks: capture, import, passes, lowering, and the sharding of state."""

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
from spmdir.plans.resolve import PlanLike
from spmdir.runtime.capture import Capture
from spmdir.runtime.initial_state import initial_state
from spmdir.runtime.module_checks import check_forward_call, check_initialized
from spmdir.runtime.open_dims import Fixed
from spmdir.runtime.parallel import Parallel
from spmdir.runtime.parallel_options import ChosenOptions, ParallelOptions
from spmdir.runtime.rank_state import EdgeStateShard, RankState, allocate_meta, initial_edge_states
from spmdir.runtime.ranks import Ranks
from spmdir.runtime.room import no_values_error
from spmdir.runtime.set_up import set_up
from spmdir.runtime.signature import Argument, Signature
from spmdir.runtime.traces import Traced, Traces
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
    """Partition a model or a training step; every rank calls this with equal arguments and gets its part.

    Each rank keeps only its shards of parameters, buffers and state: once the caller lets go of the originals, no
    rank holds a full copy of what is sharded. Originals must be equal on all ranks, so seed before making them,
    which is compared, or give `sync_state`; they may be on the CPU whatever the ranks run on. What is on the meta
    device gets its values afterwards, by `materialize` or from a file, and no rank ever holds all of it.

    Args:
        model: a module, whose forward is run; or, with `state`, a function `step(state, *args) → (outputs,
            new_state)` of tensor ops, as `training_step` makes.
        mesh: a Mesh, or a torch DeviceMesh with names, which is then `device_mesh` too.
        plan: as for `placement.sharding_plan`: a recipe such as "fsdp*tp", a dict as for `import_fx`, and others; what
            is not named is left to the compiler. Leaves of the state are named by their path, and `input:N` counts
            them before the arguments; `input:*` is all arguments. Recipes and styles of a step are about `step.model`.
        example_inputs: positional arguments with global shapes; numbers among them become constants.
        state: the pytree of tensors that a step begins with.
        options: the others, by name: see `ParallelOptions`.

    Returns: this rank's part, called as the model, or as the step without its state.

    Raises:
        SpmdirError: there is no process group, or it has another size than the mesh; the program cannot be traced
            or partitioned, or changes Python state; ranks would run different programs, or begin with different
            values. All ranks raise what one of them raises, and where one does not come within the timeout of the
            process group.

    Example:
        >>> parallel = spmdir.parallelize(model, mesh, {"up.weight": "tp: S(0)", "down.weight": "tp: S(1)"}, (x,))
        >>> y = parallel(x)
    """
    chosen = ChosenOptions.of(options)
    given = {"model": model, "mesh": mesh, "plan": plan, "example_inputs": example_inputs}
    setup = set_up("parallelize", mesh, chosen, lambda: _check_arguments(given, state))
    step = model if isinstance(model, TrainingStep) else None
    tracing = Tracing(
        setup=setup,
        shardings=plan,
        out_shardings=chosen.out_shardings,
        missing_rule=chosen.missing_rule,
        dynamic_shapes=chosen.dynamic_shapes,
    )
    traceable = Traceable(model, state)
    with setup.group.checked("the arguments of parallelize"):
        if isinstance(model, nn.Module):
            check_initialized(model)
            check_forward_call(model, tuple(example_inputs), {})
        micro = step.cut(tuple(example_inputs))[0] if step else tuple(example_inputs)
        tracing.check_dims(traceable, micro)
        fixed = tracing.fixed(traceable, micro)
    decided = tracing.trace("the capture of the program", traceable, micro, fixed)
    with setup.group.checked("lowering") as status:
        signature, program = decided.lower_examples()
        status |= program.agreement
        originals = _originals(decided.capture, signature)
        initial = initial_state(signature.state_arguments, originals, setup, status)
        kept = initial_edge_states(program.module, setup.mesh, setup.rank, setup.device)
        _check_kept(kept, step, bool(decided.examples or fixed), decided.module)
        own = RankState(
            shards=allocate_meta(initial.shards, setup.device),
            edge_states=kept,
            unset={name for name, tensor in originals.items() if tensor.is_meta},
            rates={name: originals[name].item() for name in (step.rates() if step else ())},
        )
    with setup.group.reporting():
        ranks = setup.connected()
        first = decided.connect(signature, program, ranks, traceable)
        initial.take_first(ranks)
    return Parallel(
        ranks=ranks,
        traces=_traces(tracing, traceable, fixed, first, ranks),
        state=own,
        tied=_further_names(decided.capture, originals),
        step=step,
    )


def _traces(tracing: Tracing, traceable: Traceable, fixed: Fixed, first: Traced, ranks: Ranks) -> Traces:
    """Return the traces of a program, of which there is the first, for calls in which `fixed` are numbers."""
    if tracing.dynamic_shapes is None or ranks.local_inputs:
        return Traces(first, lambda args: fixed, _no_trace, {fixed: first})
    is_shared = _shared_names(traceable, first.signature)
    layouts = {a.name: a.sharding for a in first.signature.state_arguments if a.name in is_shared}
    later = traceable.make_later(layouts)

    def trace(fixed: Fixed, args: tuple[Any, ...]) -> Traced:
        """Trace the program again, by the layouts that the state has; other tensors are constants of this trace."""
        again = later()
        decided = tracing.trace("another program", again, args, fixed, layouts)
        with tracing.setup.group.checked("lowering") as status:
            signature, program = decided.lower_examples()
            status |= program.agreement
            for argument in signature.state_arguments:
                if layouts.get(argument.name, argument.sharding) != argument.sharding:
                    raise UnsupportedError(
                        f"calls with {_texts(fixed)} need '{argument.name}' as <{argument.sharding}>, which the "
                        f"program for the examples has as <{layouts[argument.name]}>; expected one "
                        "layout: name it in the plan"
                    )
            _check_kept(
                initial_edge_states(program.module, ranks.mesh, ranks.index, ranks.device), None, True, decided.module
            )
            constants = [argument for argument in signature.state_arguments if argument.name not in layouts]
            originals = {argument.name: decided.capture.tensors[argument.name] for argument in constants}
            if missing := [name for name, tensor in originals.items() if tensor.is_meta]:
                raise no_values_error(missing[0])
            initial = initial_state(constants, originals, tracing.setup, status)
        with tracing.setup.group.reporting():
            traced = decided.connect(signature, program, ranks, again, initial.shards)
            initial.take_first(ranks)
        return traced

    return Traces(first, lambda args: tracing.fixed(later(), args), trace, {fixed: first})


def _no_trace(fixed: Fixed, args: tuple[Any, ...]) -> Traced:
    raise AssertionError("the sizes of a program without open dimensions do not change")


def _texts(fixed: Fixed) -> str:
    return ", ".join(f"a size of {size} in dimension {dim} of '{argument}'" for argument, dim, size in fixed)


def _shared_names(traceable: Traceable, signature: Signature) -> frozenset[str]:
    """Return the names of the tensors that all traces of a program share."""
    if traceable.state is not None:
        return frozenset(leaf.name for leaf in signature.state if isinstance(leaf, Argument))
    model = traceable.program
    named = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    return frozenset(name for name, _ in named)


def _check_kept(kept: Mapping[str, EdgeStateShard], step: TrainingStep | None, is_open: bool, module: ModuleOp) -> None:
    """Raise UnsupportedError if a program keeps for its steps what micro-batches or choices of sizes cannot share."""
    if not kept:
        return
    found, where = f"the program keeps the state '{next(iter(kept))}' for a step", location_of(ir.main_function(module))
    if step and step.micro_batches > 1:
        raise UnsupportedError(
            f"{found}, which micro-batches would not share; expected accumulate=1, or a placement without state", where
        )
    if is_open:
        raise UnsupportedError(
            f"{found}, whose shape depends on symbolic sizes; expected fixed shapes: leave dynamic_shapes out, or use "
            "a placement without state",
            where,
        )


_KINDS = {"mesh": MESH, "example_inputs": EXAMPLES}


def _check_arguments(given: Mapping[str, Any], state: Any) -> None:
    check_kinds(_KINDS, given, tuple(given))
    if state is None and not isinstance(given["model"], nn.Module):
        raise SpmdirError(
            f"cannot parallelize a {type(given['model']).__name__}; expected a nn.Module, or a function "
            "step(state, *args) → (outputs, new_state) together with state="
        )


def _originals(capture: Capture, signature: Signature) -> dict[str, Tensor]:
    """Return name → the unsharded tensor, of what stays with the ranks."""
    leaves = zip(signature.state, capture.state, strict=True)
    of_state = {leaf.name: tensor for leaf, tensor in leaves if isinstance(leaf, Argument)}
    return {
        a.name: of_state[a.name] if a.name in of_state else capture.tensors[a.name] for a in signature.state_arguments
    }


def _further_names(capture: Capture, originals: Mapping[str, Tensor]) -> dict[str, str]:
    """Return the further names of tied parameters → the name that the program has for them."""
    ties = [names for names in tied_names(capture.tensors.items()) if len(names) > 1]
    return {other: name for names in ties for name in names if name in originals for other in names if other != name}
