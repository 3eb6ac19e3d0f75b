"""Trace, import and decide a model or a step for `parallelize`: for the examples, and again for other calls."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Container, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import attrs
import torch
from torch import Tensor, nn
from xdsl.dialects.builtin import ModuleOp

from spmdir.core.placement.sharding import ShardingLike
from spmdir.core.placement.sharding_plan import ShardingPlan
from spmdir.core.progress import say
from spmdir.dialects import ir
from spmdir.dialects.size_ops import open_sizes
from spmdir.importer.importer import import_fx
from spmdir.pipeline.remaining_passes import localize
from spmdir.plans.activations import constrained_activations
from spmdir.plans.resolve import PlanLike, plan_for
from spmdir.runtime.call_guards import CallGuards
from spmdir.runtime.capture import Capture, Convention, capture_model, capture_step
from spmdir.runtime.digests import text_digest
from spmdir.runtime.dry_run import dry_run_loss, dry_run_step
from spmdir.runtime.dynamic_dims import (
    DynamicDim,
    Fixed,
    check_dims,
    drop_fixed_dims,
    find_dynamic_dims,
    fixed_dims,
    sizes_by_argument,
)
from spmdir.runtime.model_copies import copy_model
from spmdir.runtime.per_rank_sizes import allow_different_sizes
from spmdir.runtime.pipelined_parallel import StagePrograms
from spmdir.runtime.rank_programs import RankGraph, RankPrograms, bind_open_sizes, lower_rank_graph
from spmdir.runtime.ranks import Ranks
from spmdir.runtime.set_up import SetUp
from spmdir.runtime.signature import Argument, Signature, annotate_updates, read_signature
from spmdir.runtime.traces import Trace
from spmdir.runtime.training import TrainingStep
from spmdir.torch_interop import pytree


@attrs.frozen(eq=False)
class Traceable:
    """A module, or a step with its initial state.

    Attributes:
        program: the module, or a function `step(state, *args) → (outputs, new state)`.
        state: the initial state of a step; None for a module.
    """

    program: Any
    state: Any = None

    def capture(self, args: tuple[Any, ...], device: torch.device, dynamic_shapes: Any) -> Capture:
        """Return the trace for example arguments.

        Raises:
            UnsupportedError: torch cannot trace the program, or it changes Python state.
        """
        if self.state is None:
            return capture_model(self.program, args, dynamic_shapes)
        if isinstance(self.program, TrainingStep):
            function = self.program.micro_step
            dry_run = dry_run_loss(self.program.model, self.program.loss, args, device)
        else:
            function = self.program
            dry_run = dry_run_step(function, self.state, args, device)
        capture = capture_step(function, self.state, args, device, dynamic_shapes)
        dry_run.caches.remove_fakes()
        return attrs.evolve(capture, dry_run=dry_run)

    def name_arguments(self, args: tuple[Any, ...]) -> dict[str, Any]:
        """Return name → argument of a call: the parameters of a forward; for a step `arg0`, `arg1`, … ."""
        if self.state is not None:
            return {f"arg{index}": value for index, value in enumerate(args)}
        bound = inspect.signature(type(self.program).forward).bind(self.program, *args)
        return dict(list(bound.arguments.items())[1:])

    def make_later(self, names_on_ranks: Container[str]) -> Callable[[], Traceable]:
        """Return a function that returns this object for a later trace, without keeping the values of tensors on ranks.

        If the caller has deleted the module by then, a copy replaces it.

        Args:
            names_on_ranks: the names of tensors whose shards the ranks keep. Values of other tensors, such as a table
                that became a constant, are kept.
        """
        state = pytree.tree_map_only(Tensor, lambda tensor: torch.empty_like(tensor, device="meta"), self.state)
        if not isinstance(self.program, nn.Module):
            return partial(Traceable, self.program, state)
        reference, copy = weakref.ref(self.program), _without_values(self.program, names_on_ranks)

        def make_copy() -> Traceable:
            """Return a `Traceable` of the caller's module if it still exists, else of the copy."""
            program = reference()
            return Traceable(copy if program is None else program, state)

        return make_copy


def _without_values(model: nn.Module, names: Container[str]) -> nn.Module:
    """Return a copy of a module in which parameters and buffers with these names are on the meta device."""
    memo: dict[int, Any] = {}
    named = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    for name, tensor in named:
        if name in names:
            meta = torch.empty_like(tensor, device="meta")
            memo[id(tensor)] = nn.Parameter(meta, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else meta
    return copy_model(model, memo)


@attrs.frozen(eq=False, kw_only=True)
class Tracing:
    """Traces, imports and decides a program with the options of `parallelize`."""

    setup: SetUp
    shardings: PlanLike
    out_shardings: Sequence[ShardingLike | None] | None
    missing_rule: Literal["warn", "error"]
    dynamic_shapes: Any

    def dims(self, traceable: Traceable, args: tuple[Any, ...]) -> list[DynamicDim]:
        """Return the dynamic dimensions of a call."""
        if self.dynamic_shapes is None:
            return []
        named = traceable.name_arguments(args)
        return find_dynamic_dims(sizes_by_argument(self.dynamic_shapes, named), named)

    def check_dims(self, traceable: Traceable, args: tuple[Any, ...]) -> None:
        """Raise ShardingError if `dynamic_shapes` names an argument or a dimension that the example inputs lack."""
        check_dims(self.dynamic_shapes, traceable.name_arguments(args))

    def find_fixed_dims(self, traceable: Traceable, args: tuple[Any, ...]) -> Fixed:
        """Return the dynamic dimensions that are numbers in the program of a call.

        With local inputs, sizes may differ between ranks, which then cannot trace together: the result is empty.

        Raises:
            ShardingError: a size is not in the range of its Dim, or dimensions of one Dim have different sizes.
        """
        return () if self.setup.local_inputs else fixed_dims(self.dims(traceable, args))

    def trace(
        self,
        operation: str,
        traceable: Traceable,
        args: tuple[Any, ...],
        fixed: Fixed = (),
        layouts: Mapping[str, ShardingLike] | None = None,
    ) -> Decided:
        """Return the decided program for example arguments; all ranks must call this.

        Args:
            operation: the name of this operation in errors.
            fixed: the dynamic dimensions that are numbers in this trace.
            layouts: name → sharding of a tensor of the state, as earlier traces have it; None for the first trace.
        """
        setup = self.setup
        with setup.group.check_agreement(operation) as status:
            sizes = self._remaining_dynamic_shapes(traceable, args, fixed) if fixed else self.dynamic_shapes
            plan, constrained_model = plan_for(self.shardings, traceable.program, setup.mesh)
            say("tracing the program")
            with constrained_activations(constrained_model, plan):
                capture = traceable.capture(args, setup.device, sizes)
            plan = plan.updated_with(ShardingPlan(layouts or {}))
            plan = plan.with_inputs(len(capture.state), len(capture.convention.examples))
            out_shardings = capture.result_shardings(
                plan.out_shardings if self.out_shardings is None else self.out_shardings
            )
            say("importing the program")
            with setup.pipeline.rules:
                module = import_fx(
                    capture.program, setup.mesh, plan, out_shardings=out_shardings, missing_rule=self.missing_rule
                )
            annotate_updates(module, capture, whole_inputs=not setup.local_inputs)
            examples = open_sizes(module).hints
            if setup.local_inputs and examples:
                setup = attrs.evolve(setup, pipeline=allow_different_sizes(setup.pipeline, module))
            status |= {"sizes": examples, "program": text_digest(ir.print_ir(module))}
            source = ir.print_ir(module, debuginfo=True)
        module = setup.decide_once(module, traceable.program)
        return Decided(setup, capture, module, source, examples, self.dims(traceable, args))

    def _remaining_dynamic_shapes(self, traceable: Traceable, args: tuple[Any, ...], fixed: Fixed) -> Any:
        """Return `dynamic_shapes` without the dimensions that are `fixed`."""
        named = traceable.name_arguments(args)
        remaining = drop_fixed_dims(sizes_by_argument(self.dynamic_shapes, named), named, fixed)
        is_step = traceable.state is not None
        return tuple(remaining.values()) if is_step and remaining is not None else remaining


@attrs.frozen(eq=False)
class Decided:
    """A trace with decided shardings.

    Attributes:
        setup: the settings of the decision.
        capture: the trace.
        module: the decided program.
        source: the text of the undecided program.
        examples: name → value of each symbolic size for the example arguments.
        dims: the dynamic dimensions of the example arguments.
    """

    setup: SetUp
    capture: Capture
    module: ModuleOp
    source: str
    examples: Mapping[str, int]
    dims: Sequence[DynamicDim]

    def signature(self) -> Signature:
        """Return the signature of the program."""
        with self.setup.pipeline.rules:
            return read_signature(ir.main_function(self.module), len(self.capture.outputs), self.capture.state)

    def lower_examples(self) -> tuple[Signature, RankGraph]:
        """Return (signature, program of this rank for the example arguments)."""
        say("lowering the program")
        pipeline, signature = self.setup.pipeline, self.signature()
        with pipeline.rules:
            return signature, self._lower(
                bind_open_sizes(self.module, self.examples, pipeline), partial(localize, pipeline=pipeline)
            )

    def connect(
        self,
        signature: Signature,
        program: RankGraph | StagePrograms,
        ranks: Ranks,
        traceable: Traceable,
        constants: Mapping[str, Tensor] | None = None,
    ) -> Trace:
        """Return the trace with a program of this rank that is ready to run; all ranks must call this.

        Args:
            signature, program: the results of `lower_examples`.
            traceable: the traced program.
            constants: name → shard of each tensor that only this trace has.
        """
        program.connect(ranks)
        example_sizes = tuple(self.examples.items())
        assert self.capture.dry_run is not None  # captures of models and of steps have one
        programs: Any = RankPrograms(
            read_module=lambda: self.module if example_sizes else program.module,
            pipeline=self.setup.pipeline,
            inputs=_named_inputs(signature.inputs, self.capture.convention),
            examples=example_sizes,
            is_step=traceable.state is not None,
            source=self.source,
            dims=self.dims,
            ranks=ranks,
            lower=self._lower,
            programs={example_sizes: program},
        )
        guards = CallGuards.of(self.capture.dry_run, traceable.program, self.setup.device)
        return Trace(
            programs=programs,
            signature=signature,
            convention=self.capture.convention,
            guards=guards,
            constants=constants or {},
        )

    @property
    def _lower(self) -> Callable[..., RankGraph]:
        """The function (module, localize) → program of this rank."""
        return partial(lower_rank_graph, pipeline=self.setup.pipeline, rank=self.setup.rank, device=self.setup.device)


def _named_inputs(inputs: Sequence[Argument], convention: Convention) -> list[Argument]:
    """Return the inputs with their names in errors: for a step `arg0`, `arg1`, …, as make_fx does not name them."""
    if convention.state_spec is None:
        return list(inputs)
    pairs = zip(convention.tensor_indices, inputs, strict=True)
    return [attrs.evolve(argument, name=f"arg{index}") for index, argument in pairs]
