"""`shard_module`: a module to train on the ranks of a mesh, with parameters that torch's optimizers update."""

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
from spmdir.runtime.earlier_optimizers import warn_of_earlier_optimizers
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
from spmdir.runtime.local_sums import Reduction
from spmdir.runtime.module_checks import check_forward_call, check_initialized
from spmdir.runtime.open_dims import OpenDim, check_dims, fixed_dims, open_dims, sizes_by_argument, sizes_left_open
from spmdir.runtime.parallel_options import ChosenOptions, ParallelOptions
from spmdir.runtime.rank_programs import Localize, RankPrograms, bind_open_sizes
from spmdir.runtime.ranks import Ranks
from spmdir.runtime.rehearsal import Rehearsal, rehearse_module
from spmdir.runtime.same_forward import ForwardFacts
from spmdir.runtime.set_up import SetUp, set_up
from spmdir.runtime.sharded_module import Runner, guards_of, places_requiring_grad, sharded_copy, unsharded_copy
from spmdir.runtime.signature import Argument, read_signature
from spmdir.runtime.variants import Places, Structure, Variant, shapes_of
from spmdir.torch_interop import pytree
from spmdir.torch_interop.elementwise_dtensor import elementwise

NOTHING: Mapping[str, Sharding] = MappingProxyType({})
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
    """Return a module like `model` whose parameters and buffers are DTensors, laid out by `plan`, to train as usual.

    Its forward and backward are partitioned together. Calls take global inputs, equal on all ranks, and return
    replicated outputs; `loss.backward()` leaves in each parameter a gradient with its layout. Every rank calls this
    with equal arguments, and calls the module and the backward together with the others.

    Python's cyclic garbage collector is off while it runs, and while a call compiles a program of its own: the forward,
    then on fake tensors, and TorchDynamo run without it. Training steps run with it.

    Args:
        model: what to train, with equal values on all ranks. It is left as it is, and may be dropped. What is on the
            meta device stays there, as shards, until `materialize` or a file gives it values, of which no rank ever
            holds all.
        mesh: a Mesh, or a torch DeviceMesh with names, which is then `device_mesh` too.
        plan: as for `placement.sharding_plan`: a recipe such as "fsdp*tp", or name or glob of a parameter, buffer or
            input → its sharding; inputs go by the names of the forward's arguments, and by `arg0`, `arg1`, … . What is
            not named is left to the compiler.
        example_inputs, example_kwargs: the arguments of a call, with global shapes. Calls that are built otherwise, or
            have other numbers, compile programs of their own; so do calls after a change of state that the forward
            reads.
        options: the others, by name: see `ParallelOptions`.

    Raises:
        SpmdirError: there is no process group, or it has another size than the mesh; the module cannot be captured or
            partitioned; the forward changes state other than buffers; ranks would run different programs, or begin with
            different values.

    Example:
        >>> model = spmdir.shard_module(model, mesh, {"*.weight": "dp: S(0)", "arg*": "dp: S(0)"}, (x, y))
        >>> optimizer = torch.optim.AdamW(model.parameters())
        >>> model(x, y).backward()
        >>> optimizer.step()
    """
    support_anomaly_detection()
    chosen = ChosenOptions.of(options)
    given = {"model": model, "mesh": mesh, "plan": plan, "example_inputs": example_inputs}
    setup = set_up("shard_module", mesh, chosen, lambda: _check_arguments(given, example_kwargs))
    dynamic_shapes, local_inputs = chosen.dynamic_shapes, chosen.local_inputs
    with setup.group.checked("the plan of the module"):
        _check_model(model)
        warn_of_earlier_optimizers(model)
        named = resolve(plan, model, setup.mesh).updated_with(ShardingPlan(out_shardings=_tuple(chosen.out_shardings)))
        check_forward_call(model, tuple(example_inputs), example_kwargs or {})
        call = bound_arguments(model, tuple(example_inputs), example_kwargs or {})
        arguments = arguments_by_name(model, call)
        check_dims(dynamic_shapes, arguments)
        known_sizes = sizes_by_argument(dynamic_shapes, arguments)
        dims = open_dims(known_sizes, arguments)
        fixed = () if local_inputs else fixed_dims(dims)
        first_sizes = sizes_left_open(known_sizes, arguments, fixed) if fixed else dynamic_shapes

    issued: set[str] = set()

    def decided(
        captured: nn.Module,
        what: str,
        call: tuple[Any, Any],
        sizes: Any,
        layouts: Mapping[str, Sharding] = NOTHING,
        gradients: Mapping[str, Sharding] = NOTHING,
        asked: Places | None = None,
        outputs: Mapping[str, ShardingLike | None] | None = None,
    ) -> _Decided:
        explicit = named.updated_with(ShardingPlan(layouts))
        rehearsal, facts = _agreed_forward(
            captured,
            call,
            explicit,
            setup,
            what,
            {
                "missing_rule": chosen.missing_rule,
                "dynamic_shapes": sizes,
                "inputs with gradients": asked and sorted(asked),
            },
        )
        found: list[_Decided] = []

        def first() -> str:
            joint = capture_joint(captured, *call, setup.device, named, asked, sizes, rehearsal)
            say("importing the program")
            plan = explicit
            if outputs is not None:
                plan = attrs.evolve(explicit, out_shardings=tuple(map(outputs.get, joint.call.output_names)))
            module = import_joint(joint, setup.mesh, plan, setup.pipeline, chosen.missing_rule, local_inputs, gradients)
            source, own = ir.print_ir(module, debuginfo=True), setup.deciding(module)
            with own.pipeline.rules:
                decided = decide(module, own.pipeline, chosen.cache, type(model).__name__)
                text = ir.print_ir(decided, debuginfo=True)
            found.append(_Decided.of(joint.call, rehearsal, text, source, own, decided))
            return json.dumps(found[0].data(call))

        with warnings_issued(issued=issued):
            text = setup.group.from_first(what, first, facts)
        return found[0] if found else _Decided.read(json.loads(text), rehearsal, call, setup)

    first = decided(model, "the capture of the module", call, first_sizes)
    with setup.group.checked("lowering") as status:
        program = first.program()
        status |= program.placements
        tensors = dict((*model.named_parameters(), *model.named_buffers()))
        originals = {a.name: tensors[a.name] for a in program.state_arguments}
        initial = initial_state(program.state_arguments, originals, setup, status)
    with setup.group.reporting():
        ranks = setup.connected()
        programs = first.connected(program, ranks, dims)
        initial.take_first(ranks)
        tensors = {a.name: _dtensor(a, initial.shards[a.name], ranks) for a in program.state_arguments}
    layouts = {a.name: a.sharding for a in program.state_arguments}
    reduction = Reduction({a.name: a for a in program.state_arguments}, program.input_axes, setup.pipeline, ranks)
    wanted = dict(zip(first.call.output_names, named.out_shardings or (), strict=False))
    names = leaf_names(model, *call)
    leaves, spec = pytree.tree_flatten((call[0], dict(call[1])))
    shaped = shapes_of(call, None, names)
    shapes = {
        name: leaf.shape
        for name, leaf in zip(names, pytree.tree_leaves(shaped), strict=True)
        if isinstance(leaf, Tensor)
    }

    @collector_paused()
    def compiled(
        sharded: nn.Module, structure: Structure, is_unreduced: bool, asked: Places, given: tuple[Any, Any]
    ) -> Variant:
        unreduced = {name: reduction.unreduced_sharding(name) for name in layouts} if is_unreduced else NOTHING
        plain = unsharded_copy(sharded)
        with setup.group.reporting():
            examples = next((variant.examples for variant in runner.variants.of_structure(structure)), None)
            if examples is None:
                examples = shapes_of(given, shapes if local_inputs else None, leaf_names(plain, *given))
            arguments = arguments_by_name(plain, examples)
            sizes = sizes_left_open(known_sizes, arguments, structure.fixed)
        found = decided(plain, "another program of the module", examples, sizes, layouts, unreduced, asked, wanted)
        with setup.group.checked("lowering") as status:
            program = found.program()
            status |= program.placements
        guards = guards_of(sharded, found.rehearsal, setup.device)
        return Variant(structure, is_unreduced, asked, guards, found.connected(program, ranks, dims), examples)

    placements = {name: tensor.placements for name, tensor in tensors.items()}
    runner = Runner(ranks, placements, reduction, NO_SIZES if local_inputs else known_sizes, compiled)
    sharded = sharded_copy(model, tensors, runner)
    guards = guards_of(sharded, first.rehearsal, setup.device)
    structure = Structure.of(leaves, spec, fixed)
    runner.variants.add(Variant(structure, False, places_requiring_grad(leaves), guards, programs, shaped))
    return sharded


def _agreed_forward(
    model: nn.Module, call: tuple[Any, Any], plan: ShardingPlan, setup: SetUp, what: str, options: Mapping[str, Any]
) -> tuple[Rehearsal, Callable[[], None]]:
    """Rehearse a forward on each rank; return it, and what checks that it is that of the first rank.

    The first rank rehearses for all whether a second call does the same.

    Args:
        options: of the capture by name, which ranks compare.

    Raises:
        SpmdirError: the forward changes Python state; on all ranks.
    """
    with setup.group.checked(what):
        is_first = setup.group.index == 0
        rehearsal = rehearse_module(model, *call, setup.device, is_recorded=True, is_repeated=is_first)
        facts = ForwardFacts.of(model, call, plan, rehearsal, setup.device, options)
    text = setup.group.from_first(what, lambda: json.dumps(dict(facts.texts)))
    numbers = (setup.group.numbers[0], setup.group.numbers[setup.group.index])
    return rehearsal, lambda: facts.check(json.loads(text), numbers)


@attrs.frozen(eq=False)
class _Decided:
    """A decided module with its gradients.

    Attributes:
        call: how it is called.
        text: of the decided program.
        source: its text before it was decided.
        setup: what it was decided by.
        sizes: of the examples.
        parts: the program of a rank for the examples.
        outline: the signature with symbolic sizes, as `JointParts.outline`.
    """

    call: JointCall
    rehearsal: Rehearsal
    text: str
    source: str
    setup: SetUp
    sizes: Mapping[str, int]
    parts: JointParts
    outline: ModuleOp

    @classmethod
    def of(
        cls, call: JointCall, rehearsal: Rehearsal, text: str, source: str, setup: SetUp, module: ModuleOp
    ) -> _Decided:
        """Return a module that this rank has decided, lowered."""
        sizes = open_sizes(module).hints
        with setup.pipeline.rules:
            example = bind_open_sizes(module, sizes, setup.pipeline)
            parts = JointParts.of(example, partial(localize, pipeline=setup.pipeline), call, setup.pipeline)
            return cls(call, rehearsal, text, source, setup, sizes, parts, outline(module))

    def data(self, call: tuple[Any, Any]) -> dict[str, Any]:
        """Return it in a form that JSON has, for ranks whose `call` is built alike."""
        kept: dict[str, Any] = {"text": self.text, "source": self.source, "sizes": dict(self.sizes)}
        kept |= {"call": self.call.data(), "parts": self.parts.data(), "outline": ir.print_ir(self.outline)}
        known = call_convention(call, self.rehearsal.output).out_spec
        if known != self.call.convention.out_spec:
            kept["returned"] = pytree.treespec_dumps(self.call.convention.out_spec)
        return kept

    @classmethod
    def read(cls, data: Mapping[str, Any], rehearsal: Rehearsal, call: tuple[Any, Any], setup: SetUp) -> _Decided:
        """Return what another rank has given the data of."""
        convention = call_convention(call, rehearsal.output)
        if "returned" in data:
            convention = attrs.evolve(convention, out_spec=pytree.treespec_loads(data["returned"]))
        own = setup
        with setup.pipeline.rules:
            if data["sizes"]:
                own = setup.deciding(ir.read_printed(data["source"]))
            whole = ir.read_printed(data["outline"])
        parts = JointParts.read(data["parts"], own.pipeline)
        joint = JointCall.of(data["call"], convention)
        return cls(joint, rehearsal, data["text"], data["source"], own, data["sizes"], parts, whole)

    def program(self) -> JointProgram:
        """Return the program of this rank for the examples."""
        with self.setup.pipeline.rules:
            return joint_program(self.parts, self.call, self.setup.rank, self.setup.device)

    def connected(self, program: JointProgram, ranks: Ranks, dims: Sequence[OpenDim]) -> RankPrograms[JointProgram]:
        """Return the programs of this rank, of which `program` is that for the examples; all ranks call this alike."""
        program.connect(ranks)
        known = tuple(self.sizes.items())
        signature = read_signature(ir.main_function(self.outline), self.call.returned)
        return RankPrograms(
            read_module=self._read,
            pipeline=self.setup.pipeline,
            inputs=[argument for argument in signature.inputs if not argument.is_tangent],
            examples=known,
            is_step=False,
            source=self.source,
            dims=dims,
            ranks=ranks,
            lower=self._lowered,
            programs={known: program},
        )

    def _read(self) -> ModuleOp:
        return ir.read_printed(self.text)  # on all ranks, so that they name values alike

    def _lowered(self, module: ModuleOp, localize: Localize) -> JointProgram:
        parts = JointParts.of(module, localize, self.call, self.setup.pipeline)
        return joint_program(parts, self.call, self.setup.rank, self.setup.device)


def _tuple(given: Sequence[ShardingLike | None] | None) -> tuple[ShardingLike | None, ...] | None:
    return None if given is None else tuple(given)


def _dtensor(argument: Argument, shard: Tensor, ranks: Ranks) -> Any:
    made = as_dtensor(argument.name, shard, argument.sharding, argument.meta.shape, ranks.mesh, ranks.device_mesh)
    if isinstance(made, LocalShard):
        raise UnsupportedError(
            f"'{argument.name}' is laid out as <{argument.sharding}>, which a DTensor cannot hold; name another layout "
            "for it in the plan, such as S(dim)"
        )
    return elementwise(made)


_KINDS = {
    "model": instance(nn.Module, expected="a nn.Module"),
    "mesh": MESH,
    "example_inputs": EXAMPLES,
    "example_kwargs": keyed("a dict of arguments by name").optional,
}


def _check_arguments(given: Mapping[str, Any], example_kwargs: Any) -> None:
    check_kinds(_KINDS, {**given, "example_kwargs": example_kwargs}, tuple(given))
    if not given["example_inputs"] and not example_kwargs:
        raise SpmdirError(
            "there are no example inputs; give example_inputs, the positional arguments of a call with global shapes, "
            "or example_kwargs"
        )


def _check_model(model: nn.Module) -> None:
    check_initialized(model)
    if "forward" in vars(model):
        raise UnsupportedError(
            f"the {type(model).__name__} has a model.forward of its own, which would run instead of the sharded "
            "one; shard the model first, or put the forward into its class"
        )
