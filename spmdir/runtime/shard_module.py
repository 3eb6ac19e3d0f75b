"""`shard_module`: partition the forward and backward of a module whose parameters torch's optimizers update."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Unpack

import attrs
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from xdsl.dialects.builtin import ModuleOp

from spmdir.core.arguments import EXAMPLES, accepts, check_kinds, instance, keyed
from spmdir.core.errors import SpmdirError, UnsupportedError, warnings_issued
from spmdir.core.garbage_collector import collector_paused
from spmdir.core.mesh import MESH, Mesh
from spmdir.core.placement.sharding import Sharding, ShardingLike
from spmdir.core.placement.sharding_plan import ShardingPlan
from spmdir.core.progress import say
from spmdir.dialects import ir
from spmdir.dialects.size_ops import open_sizes
from spmdir.pipeline.remaining_passes import localize
from spmdir.plans.resolve import PlanLike, resolve
from spmdir.runtime.anomaly import support_anomaly_detection
from spmdir.runtime.decision import decide
from spmdir.runtime.dry_run import DryRun, dry_run_module
from spmdir.runtime.dynamic_dims import (
    DynamicDim,
    check_dims,
    drop_fixed_dims,
    find_dynamic_dims,
    fixed_dims,
    sizes_by_argument,
)
from spmdir.runtime.earlier_optimizers import warn_about_earlier_optimizers
from spmdir.runtime.forward_comparison import ForwardFacts
from spmdir.runtime.initial_state import initial_state
from spmdir.runtime.joint_call import JointCall
from spmdir.runtime.joint_capture import (
    arguments_by_name,
    bound_arguments,
    call_convention,
    capture_joint,
    leaf_names,
)
from spmdir.runtime.joint_parts import JointParts, outline
from spmdir.runtime.joint_program import JointProgram, import_joint, joint_program
from spmdir.runtime.local_state import LocalShard, as_dtensor
from spmdir.runtime.module_checks import check_forward_call, check_initialized
from spmdir.runtime.parallel_options import ChosenOptions, ParallelOptions
from spmdir.runtime.rank_programs import Localize, RankPrograms, bind_open_sizes
from spmdir.runtime.ranks import Ranks
from spmdir.runtime.set_up import SetUp, set_up
from spmdir.runtime.sharded_module import Runner, guards_of, places_requiring_grad, sharded_copy, unsharded_copy
from spmdir.runtime.signature import Argument, read_signature
from spmdir.runtime.unreduced_gradients import Reduction
from spmdir.runtime.variants import Places, Structure, Variant, shapes_of
from spmdir.torch_interop import pytree
from spmdir.torch_interop.elementwise_dtensor import elementwise

NO_SHARDINGS: Mapping[str, Sharding] = MappingProxyType({})
NO_SIZES: Mapping[str, Any] = MappingProxyType({})


@accepts()
@collector_paused()
def shard_module(
    model: nn.Module,
    mesh: Mesh | DeviceMesh,
    plan: PlanLike = None,
    example_inputs: Sequence[Any] = (),
    *,
    example_kwargs: Mapping[str, Any] | None = None,
    **options: Unpack[ParallelOptions],
) -> nn.Module:
    """Return a copy of `model` with DTensor parameters and buffers, sharded according to `plan`, for a training loop.

    The forward and the backward are partitioned together. Calls take global inputs, equal on all ranks, and return
    replicated outputs. `loss.backward()` gives each parameter a gradient with the same sharding. All ranks call this
    function with equal arguments. All ranks must also call the module and the backward.

    Python's cyclic garbage collector is off during this function, and during calls that compile a new program. These
    calls run the forward on fake tensors, and TorchDynamo. All other calls run with the collector.

    Args:
        model: the model to train, with equal values on all ranks. It does not change, and can be deleted afterwards.
            Shards of tensors on the meta device stay on the meta device until `materialize` or a checkpoint gives them
            values. No rank ever holds a full copy of such a tensor.
        mesh: a Mesh, or a torch DeviceMesh with names, which then also serves as `device_mesh`.
        plan: a plan as for `placement.sharding_plan`: a recipe such as "fsdp*tp", or a dict with the name or glob of a
            parameter, buffer or input → its sharding. Inputs have the names of the arguments of the forward, and also
            `arg0`, `arg1`, … . The compiler decides the shardings that the plan omits.
        example_inputs, example_kwargs: the arguments of a call, with global shapes. A call whose arguments have another
            structure or other numbers compiles a new program. So does a call after a change of state that the forward
            reads.
        options: further keyword arguments: see `ParallelOptions`.

    Raises:
        SpmdirError: there is no process group, or its size differs from that of the mesh; the module cannot be captured
            or partitioned; the forward changes state other than buffers; ranks would run different programs, or start
            with different values.

    Example:
        >>> model = spmdir.shard_module(model, mesh, {"*.weight": "dp: S(0)", "arg*": "dp: S(0)"}, (x, y))
        >>> optimizer = torch.optim.AdamW(model.parameters())
        >>> model(x, y).backward()
        >>> optimizer.step()
    """
    support_anomaly_detection()
    chosen = ChosenOptions.of(options)
    to_check = {"model": model, "mesh": mesh, "plan": plan, "example_inputs": example_inputs}
    setup = set_up("shard_module", mesh, chosen, lambda: _check_arguments(to_check, example_kwargs))
    dynamic_shapes, local_inputs = chosen.dynamic_shapes, chosen.local_inputs
    with setup.group.check_agreement("the plan of the module"):
        _check_model(model)
        warn_about_earlier_optimizers(model)
        user_plan = resolve(plan, model, setup.mesh).updated_with(
            ShardingPlan(out_shardings=_as_tuple(chosen.out_shardings))
        )
        if user_plan.pipeline is not None:
            raise UnsupportedError(
                f"the plan cuts the model into stages along '{user_plan.pipeline.axis}', but each call of a sharded "
                "module runs all of the model; expected training_step(…, accumulate=N) and parallelize, which run the "
                "forwards and backwards of all micro-batches in the order of a schedule"
            )
        check_forward_call(model, tuple(example_inputs), example_kwargs or {})
        call = bound_arguments(model, tuple(example_inputs), example_kwargs or {})
        arguments = arguments_by_name(model, call)
        check_dims(dynamic_shapes, arguments)
        size_specs = sizes_by_argument(dynamic_shapes, arguments)
        dims = find_dynamic_dims(size_specs, arguments)
        fixed = () if local_inputs else fixed_dims(dims)
        example_sizes = drop_fixed_dims(size_specs, arguments, fixed) if fixed else dynamic_shapes

    issued_warnings: set[str] = set()

    def decide_module(
        captured: nn.Module,
        operation: str,
        call: tuple[Any, Any],
        sizes: Any,
        layouts: Mapping[str, Sharding] = NO_SHARDINGS,
        gradients: Mapping[str, Sharding] = NO_SHARDINGS,
        differentiated: Places | None = None,
        outputs: Mapping[str, ShardingLike | None] | None = None,
    ) -> _DecidedModule:
        """Return the decided program of a call. The first rank captures and decides it, and the others read its text.

        All ranks must call this. Their forwards are compared first.

        Args:
            captured: the module to trace; it does not change.
            operation: the name of this compilation in errors, such as "another program of the module".
            call: the bound arguments of the call.
            sizes: `dynamic_shapes` without the dimensions that are numbers in this program.
            layouts: name of a parameter or buffer → its present sharding.
            gradients: name of a parameter → sharding of its gradient, if that of the parameter does not apply.
            differentiated: the indices of the inputs with a gradient; by default, those that require one.
            outputs: name of a leaf of the output → its sharding; None to use those of the plan, in order.
        """
        explicit_plan = user_plan.updated_with(ShardingPlan(layouts))
        dry_run, check_forward = _dry_run_forward(
            captured,
            call,
            explicit_plan,
            setup,
            operation,
            {
                "missing_rule": chosen.missing_rule,
                "dynamic_shapes": sizes,
                "inputs with gradients": differentiated and sorted(differentiated),
            },
        )
        on_first_rank: list[_DecidedModule] = []

        def decide_on_first() -> str:
            """Capture, import and decide the module; return the result as JSON for the other ranks."""
            joint = capture_joint(captured, *call, setup.device, user_plan, differentiated, sizes, dry_run)
            say("importing the program")
            plan = explicit_plan
            if outputs is not None:
                plan = attrs.evolve(explicit_plan, out_shardings=tuple(map(outputs.get, joint.call.output_names)))
            module = import_joint(joint, setup.mesh, plan, setup.pipeline, chosen.missing_rule, local_inputs, gradients)
            source, decision_setup = ir.print_ir(module, debuginfo=True), setup.for_decision_of(module)
            with decision_setup.pipeline.rules:
                decided = decide(module, decision_setup.pipeline, chosen.cache, type(model).__name__)
                text = ir.print_ir(decided, debuginfo=True)
            on_first_rank.append(_DecidedModule.of(joint.call, dry_run, text, source, decision_setup, decided))
            return json.dumps(on_first_rank[0].data(call))

        with warnings_issued(issued=issued_warnings):
            text = setup.group.broadcast_text(operation, decide_on_first, check_forward)
        return on_first_rank[0] if on_first_rank else _DecidedModule.read(json.loads(text), dry_run, call, setup)

    decided_example = decide_module(model, "the capture of the module", call, example_sizes)
    with setup.group.check_agreement("lowering") as status:
        program = decided_example.lower_examples()
        status |= program.placements
        tensors = dict((*model.named_parameters(), *model.named_buffers()))
        originals = {argument.name: tensors[argument.name] for argument in program.state_arguments}
        initial = initial_state(program.state_arguments, originals, setup, status)
    with setup.group.report_errors():
        ranks = setup.connect_ranks()
        programs = decided_example.make_rank_programs(program, ranks, dims)
        initial.copy_from_first_rank(ranks)
        state_arguments = {argument.name: argument for argument in program.state_arguments}
        tensors = {
            name: _as_dtensor(argument, initial.shards[name], ranks) for name, argument in state_arguments.items()
        }
    layouts = {name: argument.sharding for name, argument in state_arguments.items()}
    reduction = Reduction(state_arguments, program.input_axes, setup.pipeline, ranks)
    output_shardings = dict(zip(decided_example.call.output_names, user_plan.out_shardings or (), strict=False))
    names = leaf_names(model, *call)
    leaves, spec = pytree.tree_flatten((call[0], dict(call[1])))
    meta_call = shapes_of(call, None, names)
    global_shapes = {
        name: leaf.shape
        for name, leaf in zip(names, pytree.tree_leaves(meta_call), strict=True)
        if isinstance(leaf, Tensor)
    }

    @collector_paused()
    def compile_variant(
        sharded: nn.Module, structure: Structure, is_unreduced: bool, differentiated: Places, call: tuple[Any, Any]
    ) -> Variant:
        """Return the compiled program of a call that no earlier variant serves; all ranks must call this.

        Args:
            sharded: the module that `shard_module` returned, with its present state.
            structure: the structure of `call`.
            is_unreduced: whether gradients stay partial sums along the axes that shard the inputs, to be reduced later.
            differentiated: the indices of the inputs with a gradient.
            call: the bound arguments of the call; parts of them with `local_inputs`.
        """
        unreduced = {name: reduction.unreduced_sharding(name) for name in layouts} if is_unreduced else NO_SHARDINGS
        plain = unsharded_copy(sharded)
        with setup.group.report_errors():
            examples = next((variant.examples for variant in runner.variants.of_structure(structure)), None)
            if examples is None:
                examples = shapes_of(call, global_shapes if local_inputs else None, leaf_names(plain, *call))
            arguments = arguments_by_name(plain, examples)
            sizes = drop_fixed_dims(size_specs, arguments, structure.fixed)
        operation = "another program of the module"
        decided = decide_module(plain, operation, examples, sizes, layouts, unreduced, differentiated, output_shardings)
        with setup.group.check_agreement("lowering") as status:
            program = decided.lower_examples()
            status |= program.placements
        guards = guards_of(sharded, decided.dry_run, setup.device)
        programs = decided.make_rank_programs(program, ranks, dims)
        return Variant(structure, is_unreduced, differentiated, guards, programs, examples)

    placements = {name: tensor.placements for name, tensor in tensors.items()}
    runner = Runner(ranks, placements, reduction, NO_SIZES if local_inputs else size_specs, compile_variant)
    sharded = sharded_copy(model, tensors, runner)
    guards = guards_of(sharded, decided_example.dry_run, setup.device)
    structure = Structure.of(leaves, spec, fixed)
    runner.variants.add(Variant(structure, False, places_requiring_grad(leaves), guards, programs, meta_call))
    return sharded


def _dry_run_forward(
    model: nn.Module,
    call: tuple[Any, Any],
    plan: ShardingPlan,
    setup: SetUp,
    operation: str,
    options: Mapping[str, Any],
) -> tuple[DryRun, Callable[[], None]]:
    """Run a forward on fake tensors, on each rank.

    The first rank runs it twice, to check that all calls run the same ops.

    Returns: (the dry run, a function that compares it with that of the first rank). The function raises DivergenceError
    if they differ.

    Args:
        operation: the name of this step in errors.
        options: name → option of the capture; ranks must have equal options.

    Raises:
        SpmdirError: on all ranks, if the forward changes Python state.
    """
    with setup.group.check_agreement(operation):
        is_first = setup.group.index == 0
        dry_run = dry_run_module(model, *call, setup.device, is_recorded=True, is_repeated=is_first)
        facts = ForwardFacts.of(model, call, plan, dry_run, setup.device, options)
    text = setup.group.broadcast_text(operation, lambda: json.dumps(dict(facts.texts)))
    numbers = (setup.group.numbers[0], setup.group.numbers[setup.group.index])  # of the first rank and this one
    return dry_run, lambda: facts.check(json.loads(text), numbers)


@attrs.frozen(eq=False)
class _DecidedModule:
    """A decided program of the forward and backward of a module.

    Attributes:
        call: the calling convention.
        dry_run: the Python effects of the forward.
        text: the text of the decided program.
        source: the text of the imported program.
        setup: the settings of the decision.
        sizes: name of a symbolic size → its value for the examples.
        parts: the program of a rank for the examples.
        outline: the signature with symbolic sizes, as `JointParts.outline`.
    """

    call: JointCall
    dry_run: DryRun
    text: str
    source: str
    setup: SetUp
    sizes: Mapping[str, int]
    parts: JointParts
    outline: ModuleOp

    @classmethod
    def of(
        cls, call: JointCall, dry_run: DryRun, text: str, source: str, setup: SetUp, module: ModuleOp
    ) -> _DecidedModule:
        """Lower `module`, which this rank has decided."""
        sizes = open_sizes(module).hints
        with setup.pipeline.rules:
            example = bind_open_sizes(module, sizes, setup.pipeline)
            parts = JointParts.of(example, partial(localize, pipeline=setup.pipeline), call, setup.pipeline)
            return cls(call, dry_run, text, source, setup, sizes, parts, outline(module))

    def data(self, call: tuple[Any, Any]) -> dict[str, Any]:
        """Return the fields as JSON data, for ranks whose `call` has the same structure."""
        data: dict[str, Any] = {"text": self.text, "source": self.source, "sizes": dict(self.sizes)}
        data |= {"call": self.call.data(), "parts": self.parts.data(), "outline": ir.print_ir(self.outline)}
        # Each rank knows the structure of the output of its dry run, so only another structure is sent.
        dry_run_spec = call_convention(call, self.dry_run.output).out_spec
        if dry_run_spec != self.call.convention.out_spec:
            data["returned"] = pytree.treespec_dumps(self.call.convention.out_spec)
        return data

    @classmethod
    def read(cls, data: Mapping[str, Any], dry_run: DryRun, call: tuple[Any, Any], setup: SetUp) -> _DecidedModule:
        """Return the module for the result of `data` on another rank."""
        convention = call_convention(call, dry_run.output)
        if "returned" in data:
            convention = attrs.evolve(convention, out_spec=pytree.treespec_loads(data["returned"]))
        decision_setup = setup
        with setup.pipeline.rules:
            if data["sizes"]:
                decision_setup = setup.for_decision_of(ir.read_printed(data["source"]))
            outline = ir.read_printed(data["outline"])
        parts = JointParts.read(data["parts"], decision_setup.pipeline)
        joint_call = JointCall.of(data["call"], convention)
        return cls(joint_call, dry_run, data["text"], data["source"], decision_setup, data["sizes"], parts, outline)

    def lower_examples(self) -> JointProgram:
        """Lower the program of this rank for the examples."""
        with self.setup.pipeline.rules:
            return joint_program(self.parts, self.call, self.setup.rank, self.setup.device)

    def make_rank_programs(
        self, program: JointProgram, ranks: Ranks, dims: Sequence[DynamicDim]
    ) -> RankPrograms[JointProgram]:
        """Return the programs of this rank. All ranks must call this.

        Args:
            program: the program for the examples.
        """
        program.connect(ranks)
        example_sizes = tuple(self.sizes.items())
        signature = read_signature(ir.main_function(self.outline), self.call.returned)
        return RankPrograms(
            read_module=self._read_module,
            pipeline=self.setup.pipeline,
            inputs=[argument for argument in signature.inputs if not argument.is_tangent],
            examples=example_sizes,
            is_step=False,
            source=self.source,
            dims=dims,
            ranks=ranks,
            lower=self._lower,
            programs={example_sizes: program},
        )

    def _read_module(self) -> ModuleOp:
        """Return the decided program from its text, so names of values are equal on all ranks."""
        return ir.read_printed(self.text)

    def _lower(self, module: ModuleOp, localize: Localize) -> JointProgram:
        """Return the program of this rank for a module without symbolic sizes."""
        parts = JointParts.of(module, localize, self.call, self.setup.pipeline)
        return joint_program(parts, self.call, self.setup.rank, self.setup.device)


def _as_tuple(shardings: Sequence[ShardingLike | None] | None) -> tuple[ShardingLike | None, ...] | None:
    """Return the shardings as a tuple, which plans contain; None for None."""
    return None if shardings is None else tuple(shardings)


def _as_dtensor(argument: Argument, shard: Tensor, ranks: Ranks) -> Any:
    """Return the shard of a parameter or buffer as a DTensor; raise UnsupportedError if no DTensor can represent it."""
    dtensor = as_dtensor(argument.name, shard, argument.sharding, argument.meta.shape, ranks.mesh, ranks.device_mesh)
    if isinstance(dtensor, LocalShard):
        raise UnsupportedError(
            f"'{argument.name}' has the sharding <{argument.sharding}>, which no DTensor can have; expected "
            "R, P or S: give it another sharding in the plan, such as S(dim)"
        )
    return elementwise(dtensor)


_KINDS = {
    "model": instance(nn.Module, expected="an nn.Module"),
    "mesh": MESH,
    "example_inputs": EXAMPLES,
    "example_kwargs": keyed("a dict of arguments by name").optional,
}


def _check_arguments(arguments: Mapping[str, Any], example_kwargs: Any) -> None:
    """Raise SpmdirError if an argument of `shard_module` has the wrong type, or there are no example inputs."""
    check_kinds(_KINDS, {**arguments, "example_kwargs": example_kwargs}, tuple(arguments))
    if not arguments["example_inputs"] and not example_kwargs:
        raise SpmdirError(
            "the call has no example inputs; expected the arguments of a forward, with global shapes: pass "
            "example_inputs or example_kwargs"
        )


def _check_model(model: nn.Module) -> None:
    """Raise SpmdirError if a tensor has no shape yet, or UnsupportedError if `forward` is set on the object."""
    check_initialized(model)
    if "forward" in vars(model):
        raise UnsupportedError(
            f"model.forward is an attribute of the {type(model).__name__}, which would replace the sharded "
            "forward; expected a method of the class: define forward in the class, or assign it after "
            "shard_module"
        )
