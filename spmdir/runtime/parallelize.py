"""`parallelize`, the front door to real ranks: capture, import, passes, lowering, and the sharding of state."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import attrs
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from xdsl.dialects.builtin import ModuleOp

from spmdir.core.errors import SpmdirError, UnsupportedError
from spmdir.core.mesh import Mesh
from spmdir.core.progress import say
from spmdir.core.sharding import ShardingLike
from spmdir.dialects import ir
from spmdir.dialects.sizes import open_sizes
from spmdir.dialects.syntax.context import location_of
from spmdir.importer.importer import import_fx
from spmdir.passes.finish import localized
from spmdir.passes.pipeline import Pipeline
from spmdir.plans.activations import constrained_activations
from spmdir.plans.resolve import PlanLike, plan_for
from spmdir.runtime.call_guards import CallGuards
from spmdir.runtime.capture import Capture, Convention, capture_model, capture_step
from spmdir.runtime.digests import text_digest
from spmdir.runtime.initial_state import initial_state
from spmdir.runtime.own_sizes import deciding_apart
from spmdir.runtime.parallel import Parallel
from spmdir.runtime.rank_programs import RankPrograms, lowered, sized
from spmdir.runtime.rank_state import Kept, RankState, kept_for_steps, with_room
from spmdir.runtime.rehearsal import rehearse_loss, rehearse_step
from spmdir.runtime.set_up import DYNAMIC_SHAPES, set_up
from spmdir.runtime.signature import Argument, Signature, read_signature, return_whole
from spmdir.runtime.training import TrainingStep
from spmdir.torch_interop.tied_names import tied_names


def parallelize(
    model: nn.Module | Callable[..., Any],
    example_args: Sequence[Any],
    mesh: Mesh | DeviceMesh,
    shardings: PlanLike = None,
    *,
    out_shardings: Sequence[ShardingLike | None] | None = None,
    state: Any = None,
    device_mesh: DeviceMesh | None = None,
    local_inputs: bool = False,
    dynamic_shapes: Any = None,
    missing_rule: Literal["warn", "error"] = "warn",
    sync_state: bool = False,
    pipeline: Pipeline | str | None = None,
    cache: str | os.PathLike[str] | None = None,
    compile: bool | Mapping[str, Any] = False,
) -> Parallel:
    """Partition a model or a training step; every rank calls this with equal arguments and gets its part.

    Each rank keeps only its shards of parameters, buffers and state: once the caller lets go of the originals, no
    rank holds a full copy of what is sharded. Originals must be equal on all ranks, so seed before making them,
    which is compared, or give `sync_state`; they may be on the CPU whatever the ranks run on. What is on the meta
    device gets its values afterwards, by `materialize` or from a file, and no rank ever holds all of it.

    Args:
        model: a module, whose forward is run; or, with `state`, a function `step(state, *args) → (outputs,
            new_state)` of tensor ops, as `training_step` makes.
        example_args: positional arguments with global shapes; numbers among them become constants.
        mesh: a Mesh, or a torch DeviceMesh with names, which is then `device_mesh` too.
        shardings: a plan, as for `sharding_plan`: a dict as for `import_fx`, a recipe such as "fsdp*tp", and others;
            what is not named is left to the compiler. Leaves of the state are named by their path, and `input:N` counts
            them before the arguments; `input:*` is all arguments. Recipes and styles of a step are about `step.model`.
        out_shardings: one entry an output; None for one that comes back replicated. Others come back as local shards.
        state: the pytree of tensors that a step begins with.
        device_mesh: a torch DeviceMesh like `mesh`. If None, it is made over the default process group, on CUDA if
            the group has NCCL, else on the CPU.
        local_inputs: whether calls are given this rank's shards of the inputs instead of global inputs.
        dynamic_shapes: which dimensions of the arguments may have other sizes in calls, as for torch.export.export;
            of a step, one entry an argument. Shardings are decided once, for the example arguments.
        missing_rule: as for `import_fx`.
        sync_state: whether parameters, buffers and state are taken from the first rank instead of being compared.
        pipeline: what is run on the program, with its plug-ins. If None, the standard one and `schedule`, for the
            topology `cpu-gloo` where ranks run on the CPU, else for the default one. The steps up to `propagate` run
            once, on the first rank, the others on each and for each choice of sizes.
        cache: a directory in which the first rank keeps the decided program as text, and from which it takes it when
            the same program is to be decided again; made if it is not there.
        compile: whether the first call compiles this rank's program by Inductor, as `compile_program` does; a dict of
            options says that it does, and how.

    Returns: this rank's part, called as the model, or as the step without its state.

    Raises:
        SpmdirError: there is no process group, or it has another size than the mesh; the program cannot be traced
            or partitioned, or changes Python state; ranks would run different programs, or begin with different
            values. All ranks raise what one of them raises, and where one does not come within the timeout of the
            process group.

    Example:
        >>> parallel = spmdir.parallelize(model, (x,), mesh, {"up.weight": "tp: S(0)", "down.weight": "tp: S(1)"})
        >>> y = parallel(x)
    """
    setup = set_up(
        "parallelize",
        mesh,
        device_mesh=device_mesh,
        pipeline=pipeline,
        cache=cache,
        local_inputs=local_inputs,
        sync_state=sync_state,
        compile=compile,
    )
    step = model if isinstance(model, TrainingStep) else None
    with setup.group.checked("the capture of the program") as status:
        _check_arguments(model, state, example_args, dynamic_shapes)
        plan, planned = plan_for(shardings, model, setup.mesh)
        say("tracing the program")
        with constrained_activations(planned, plan):
            if isinstance(model, nn.Module) and state is None:
                capture = capture_model(model, tuple(example_args), dynamic_shapes)
            else:
                micro = step.cut(tuple(example_args))[0] if step else tuple(example_args)
                if step:
                    rehearsal = rehearse_loss(step.model, step.loss, micro, setup.device)
                else:
                    rehearsal = rehearse_step(model, state, micro, setup.device)
                capture = capture_step(step.micro_step if step else model, state, micro, setup.device, dynamic_shapes)
                rehearsal.caches.remove_fakes()
                capture = attrs.evolve(capture, rehearsal=rehearsal)
        plan = plan.with_inputs(len(capture.state), len(capture.convention.examples))
        wanted = capture.result_shardings(plan.out_shardings if out_shardings is None else out_shardings)
        say("importing the program")
        with setup.pipeline.rules:
            module = import_fx(capture.program, setup.mesh, plan, wanted, missing_rule=missing_rule)
        if not local_inputs:
            return_whole(module, capture)
        examples = open_sizes(module).hints
        if local_inputs and examples:
            setup = attrs.evolve(setup, pipeline=deciding_apart(setup.pipeline, module))
        status |= {"sizes": examples, "program": text_digest(ir.print_ir(module))}
        source = ir.print_ir(module, debuginfo=True)
    module = setup.decided(module, model)
    lower = partial(lowered, pipeline=setup.pipeline, rank=setup.rank, device=setup.device)
    with setup.group.checked("lowering") as status:
        say("lowering the program")
        with setup.pipeline.rules:
            signature = read_signature(ir.main_function(module), capture)
            program = lower(sized(module, examples, setup.pipeline), partial(localized, pipeline=setup.pipeline))
        status |= program.agreement
        originals = _originals(capture, signature)
        initial = initial_state(signature.held, originals, setup, status)
        kept = kept_for_steps(program.module, setup.mesh, setup.rank, setup.device)
        _check_kept(kept, step, examples, module)
        own = RankState(
            held=with_room(initial.shards, setup.device),
            kept=kept,
            unset={name for name, tensor in originals.items() if tensor.is_meta},
            rates={name: originals[name].item() for name in (step.rates() if step else ())},
        )
    with setup.group.reporting():
        ranks = setup.connected()
        program.connect(ranks)
        initial.take_first(ranks)
    known = tuple(examples.items())
    assert capture.rehearsal is not None  # both branches above rehearse
    guards = CallGuards.of(capture.rehearsal, model, setup.device)
    return Parallel(
        ranks=ranks,
        programs=RankPrograms(
            module=module if examples else program.module,
            pipeline=setup.pipeline,
            inputs=_named_inputs(signature.inputs, capture.convention),
            examples=known,
            is_step=state is not None,
            source=source,
            ranks=ranks,
            lower=lower,
            made={known: program},
        ),
        signature=signature,
        convention=capture.convention,
        state=own,
        tied=_further_names(capture, originals),
        step=step,
        guards=guards,
    )


def _named_inputs(inputs: Sequence[Argument], convention: Convention) -> list[Argument]:
    """Return the inputs with the names that errors have for them: `arg0`, `arg1`, … for a step, which make_fx gives no
    names."""
    if convention.state_spec is None:
        return list(inputs)
    pairs = zip(convention.tensor_places, inputs, strict=True)
    return [attrs.evolve(argument, name=f"arg{place}") for place, argument in pairs]


def _check_kept(
    kept: Mapping[str, Kept], step: TrainingStep | None, sizes: Mapping[str, int], module: ModuleOp
) -> None:
    """Raise UnsupportedError if a program keeps for its steps what micro-batches or choices of sizes cannot share."""
    if not kept:
        return
    found, where = f"the program keeps the state '{next(iter(kept))}' for a step", location_of(ir.main_function(module))
    if step and step.micro_batches > 1:
        raise UnsupportedError(
            f"{found}, which micro-batches would not share; expected accumulate=1, or a placement without state", where
        )
    if sizes:
        raise UnsupportedError(
            f"{found}, whose shape depends on symbolic sizes; expected fixed shapes: leave dynamic_shapes out, or use "
            "a placement without state",
            where,
        )


def _check_arguments(model: Any, state: Any, example_args: Any, dynamic_shapes: Any) -> None:
    if state is None and not isinstance(model, nn.Module):
        raise SpmdirError(
            f"cannot parallelize a {type(model).__name__}; expected a nn.Module, or a function "
            "step(state, *args) → (outputs, new_state) together with state="
        )
    if not isinstance(example_args, (tuple, list)):
        raise SpmdirError(f"example_args is a {type(example_args).__name__}; expected a tuple of positional arguments")
    DYNAMIC_SHAPES.check("dynamic_shapes", dynamic_shapes)


def _originals(capture: Capture, signature: Signature) -> dict[str, Tensor]:
    """Return name → the unsharded tensor, of what stays with the ranks."""
    leaves = zip(signature.state, capture.state, strict=True)
    of_state = {leaf.name: tensor for leaf, tensor in leaves if isinstance(leaf, Argument)}
    return {a.name: of_state[a.name] if a.name in of_state else capture.own[a.name] for a in signature.held}


def _further_names(capture: Capture, originals: Mapping[str, Tensor]) -> dict[str, str]:
    """Return the further names of tied parameters → the name that the program has for them."""
    ties = [names for names in tied_names(capture.own.items()) if len(names) > 1]
    return {other: name for names in ties for name in names if name in originals for other in names if other != name}
