"""The ops of collectives. A collective names mesh axes, never ranks or groups, and verifies its own transition.

Op classes are generated from `CollectiveSpec`: see `spmdir.reshard.collectives`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from functools import cache
from typing import Any, ClassVar, Self

from xdsl.ir import Attribute, BlockArgument, Operation, SSAValue
from xdsl.irdl import irdl_op_definition, traits_def
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from spmdir.core.errors import ShardingError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding
from spmdir.core.placement.tensor import TensorMeta
from spmdir.dialects.attributes import (
    ArgumentsAttr,
    HostType,
    PendingType,
    ShapesAttr,
    meta_of,
    pending_type,
    print_type,
    shardings_attr,
    type_of,
)
from spmdir.dialects.names import text_name
from spmdir.dialects.sharding_checks import mesh_of
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.values import global_shape, global_type, sharding_of
from spmdir.reshard.clause import STANDARD_ARGUMENTS, START, STREAM, Clause
from spmdir.reshard.collective_spec import CollectiveSpec
from spmdir.reshard.collectives import collective, collectives
from spmdir.reshard.edge_state import StepState, step_states
from spmdir.reshard.steps import Step, make_step, transition


class SpmdOp(ValueOp):
    """Base class of the ops with one operand and one result, or with several of each."""

    PARENTHESISED: ClassVar[bool] = False
    traits = traits_def(Pure())

    @property
    def may_take_several(self) -> bool:
        """Whether the op may have several operands; result i then belongs to operand i."""
        return False

    def check_counts(self) -> None:
        """Raise SpmdirError or VerifyException unless the op is well formed.

        It must have one operand and one result, or several pairs if it may take several. Other numbers are accepted
        only for edge states, see `check_states`.
        """
        operands, results = len(self.operands), len(self.results)
        if (operands, results) != (1, 1) and not (self.may_take_several and operands == results > 1):
            self.check_states()
        super().check_counts()

    def check_states(self) -> None:
        """Raise VerifyException for the numbers of operands and results; overridden by ops with states."""
        counts = f"{len(self.operands)} operands and {len(self.results)} results"
        raise VerifyException(f"has {counts}; expected {'equal numbers' if self.may_take_several else 'one of each'}")

    @property
    def pairs(self) -> Sequence[tuple[SSAValue, SSAValue]]:
        """Return (operand, result) of each tensor, without states."""
        pairs = list(zip(self._operands, self.results, strict=False))
        return pairs if self.may_take_several else pairs[:1]

    def check(self, mesh: Mesh | None) -> None:
        """Raise VerifyException unless each result has the global type of its operand. Edge states are not compared."""
        super().check(mesh)
        for source, target in self.pairs:
            operand_type, result_type = global_type(source, mesh), global_type(target, mesh)
            if operand_type is None or result_type is None:
                raise VerifyException("has an operand or result that is not a tensor; expected tensors")
            if operand_type.dtype != result_type.dtype:
                raise VerifyException(
                    f"changes the element type from {operand_type.dtype} to {result_type.dtype}; expected one element "
                    "type: cast with aten._to_copy"
                )
            if operand_type.shape != result_type.shape:
                raise VerifyException(
                    f"changes the global shape from {list(operand_type.shape)} to {list(result_type.shape)}; expected "
                    "one global shape: correct the result type"
                )

    @property
    def source(self) -> Sharding | None:
        """The sharding of the operand; None where undecided."""
        return sharding_of(self.operands[0])

    @property
    def target(self) -> Sharding | None:
        """The sharding of the result; None where undecided."""
        return self.shardings[0]


class Collective(SpmdOp):
    """Base class of the ops that change the sharding of a tensor; the op determines the sharding of its result.

    `SPEC` declares the collective, and determines the clauses, the accessors and the verifier of the op. An op with
    several operands is a bucket: it sends all members in one message, packed in the order of the operands. A clause for
    a dimension is one number for all members, or a list with one number per member.
    """

    SPEC: ClassVar[CollectiveSpec]
    IS_START: ClassVar[bool] = False
    """Whether the op only starts the collective: its result is pending."""

    @property
    def spec(self) -> CollectiveSpec:
        """The declaration of the collective."""
        return self.SPEC

    @property
    def axes(self) -> tuple[str, ...]:
        """The mesh axes in its text; () if its shardings determine them."""
        return self._argument("axes") or ()

    @property
    def dim(self) -> int | None:
        """The dimension that is sharded (slice, reduce_scatter) or gathered (all_gather, all_to_all)."""
        return self._argument("dim")

    @property
    def to_dim(self) -> int | None:
        """The dimension that all_to_all shards."""
        return self._argument("to_dim")

    @property
    def reduction(self) -> str | None:
        """The reduction that the op performs (all_reduce, reduce_scatter) or leaves to be done (partition)."""
        return self._argument("reduction")

    @property
    def stream(self) -> str | None:
        """The stream of a start; None for the default stream of its axes."""
        return self._argument(STREAM.argument)

    @staticmethod
    def message_of(step: Step) -> tuple[tuple[str, ...], str | None]:
        """Return (axes, reduction) of a step. All members of a message must have the same, and one element type.

        The reduction is that of the step. If the shardings determine the axes of the collective, it is the reductions
        of their partial placements, joined by commas. None if there is no reduction.
        """
        reductions = sorted({op for sharding in (step.source, step.target) for _, op in sharding.partial})
        return step.axes, step.reduction if step.spec.names_axes else ", ".join(reductions) or None

    @property
    def may_repeat(self) -> bool:
        """Whether repeating the op, alone or in a bucket, gives bitwise equal results.

        It must keep no states and must not reduce, because the order of the terms may differ.
        """
        return self.spec.moves != "edge" and (self.spec.is_local or self.reduction is None)

    @property
    def may_take_several(self) -> bool:
        return self.spec.may_be_bucketed

    def _argument(self, name: str) -> Any:
        """Return a literal argument; None if it is absent. A search of the pairs is faster than building a dict."""
        arguments: Any = self.properties.get("arguments")
        for key, value in arguments.data if arguments is not None else ():
            if key == name:
                return value
        return None

    @classmethod
    def build(  # type: ignore[override]  # xDSL's takes operands and properties, as `create` does
        cls,
        value: SSAValue,
        *,
        sharding: Sharding | None = None,
        mesh: Mesh | None = None,
        location: Any = None,
        **arguments: Any,
    ) -> Self:
        """Build this collective with operand `value`; the sharding of the result follows from it.

        Args:
            value: a tensor that has a sharding.
            sharding: of the result, for collectives without axes in their text, and for placements other than `S`.
            mesh: the mesh of the module; if None, it is looked up from `value`.
            arguments: the arguments, with the names of the accessors: axes, dim, to_dim, reduction.

        Raises:
            ShardingError: `value` has no sharding, or the collective is not legal on it.
        """
        source, meta = sharding_of(value), meta_of(value.type)
        parent = value.owner if isinstance(value.owner, Operation) else value.owner.parent_op()
        mesh = mesh or (mesh_of(parent) if parent is not None else None)
        if source is None or meta is None or mesh is None:
            lacking = "sharding" if source is None else "tensor type" if meta is None else "mesh in its module"
            raise ShardingError(
                f"the operand of {cls.name} has no {lacking}; expected a tensor with a sharding, in a module "
                "with a mesh: run propagate first"
            )
        step = make_step(cls.SPEC.name, source, mesh, global_shape(value, mesh), target=sharding, **arguments)
        return cls.of_step(step, value, location)

    @classmethod
    def of_step(
        cls,
        step: Step,
        value: SSAValue,
        location: Any = None,
        states: Sequence[SSAValue] = (),
    ) -> Self:
        """Build the op that performs or starts a `step` of this collective on `value`.

        Args:
            states: the edge states of the step (`step_states`); the op returns the new ones after its result.
        """
        if not states:
            return cls.bucket([step], [value], location)
        arguments = _arguments(cls.SPEC, [step])
        shardings = [step.target, *map(sharding_of, states)]
        metas = [meta_of(tensor.type) for tensor in (value, *states)]
        return cls.build_op([value, *states], metas, arguments, shardings, location=location)  # type: ignore

    @classmethod
    def result_type(cls, meta: TensorMeta | None) -> Attribute:
        return pending_type(meta) if cls.IS_START and meta else type_of(meta)

    @classmethod
    def bucket(
        cls, steps: Sequence[Step], values: Sequence[SSAValue], location: Any = None, stream: str | None = None
    ) -> Self:
        """Build the op that performs or starts `steps` of this collective on `values`, in one message.

        Args:
            steps: one step per value, of one kind, on the same axes and with the same reduction.
            stream: the stream of a start; None for the default stream of its axes.
        """
        arguments = _arguments(cls.SPEC, steps, stream)
        metas = [meta_of(value.type) for value in values]
        return cls.build_op(values, metas, arguments, [step.target for step in steps], location=location)  # type: ignore

    @classmethod
    def joined(cls, ops: Sequence[Collective], mesh: Mesh) -> Self:
        """Build the bucket of `ops`, which are collectives of this kind on the same axes with the same reduction.

        Its operands and results are those of `ops`, in order, with the same types.
        """
        steps = [step for op in ops for step in op.steps(mesh)]
        results = [result for op in ops for result in op.results]
        # An op without the attribute `of` has no global shape for any of its results.
        global_shapes = tuple(entry for op in ops for entry in (op.of.data if op.of else (None,) * len(op.results)))
        return cls.create(
            operands=[operand for op in ops for operand in op.operands],
            result_types=[result.type for result in results],
            properties={
                "arguments": ArgumentsAttr(_arguments(cls.SPEC, steps)),
                "sharding": shardings_attr(tuple(step.target for step in steps)),
                **({"of": ShapesAttr(global_shapes)} if any(global_shapes) else {}),
            },
            location=ops[0].location,
        )

    def likeness(self, mesh: Mesh) -> Hashable:
        """Return a key that is equal for collectives with the same steps on tensors of the same types."""
        arguments: Any = self.properties.get("arguments")
        types_and_shardings = tuple(
            [(global_type(operand, mesh), sharding_of(operand), sharding_of(result)) for operand, result in self.pairs]
        )
        return type(self), None if arguments is None else arguments.data, types_and_shardings

    def step(self, mesh: Mesh) -> Step:
        """Return the step that the op performs on its first operand.

        Raises:
            ShardingError: the operand or the result has no sharding.
        """
        return self.steps(mesh)[0]

    def steps(self, mesh: Mesh) -> tuple[Step, ...]:
        """Return the step that the op performs on each operand, without states.

        Raises:
            ShardingError: an operand or a result has no sharding.
        """
        return tuple([self._step(index, pair, mesh) for index, pair in enumerate(self.pairs)])

    def _step(self, index: int, pair: tuple[SSAValue, SSAValue], mesh: Mesh) -> Step:
        """Return the step of member `index`, whose operand and result are `pair`."""
        (source, target), spec = map(sharding_of, pair), self.spec
        if source is None or target is None:
            raise ShardingError(
                f"{self.name} requires the shardings of its operand and of its result; {self._missing_sharding()}"
            )
        axes = self.axes if spec.names_axes else spec.group_axes(source, target, mesh)
        arguments = self.member_arguments(index)
        # The first of STANDARD_ARGUMENTS is `axes`.
        dim, to_dim, reduction = (arguments.get(name) for name in STANDARD_ARGUMENTS[1:])
        other_arguments = tuple((name, value) for name, value in arguments.items() if name not in STANDARD_ARGUMENTS)
        return Step(spec.name, axes, source, target, dim, to_dim, reduction, other_arguments)

    def states(self, mesh: Mesh) -> tuple[StepState, ...]:
        """Return the edge states of the op: all operands and results after the first."""
        meta = global_type(self.operands[0], mesh)
        assert meta is not None  # it is verified
        return step_states(self.step(mesh), meta, mesh)

    def check_states(self) -> None:
        """Raise VerifyException unless the op is a step of an edge, which takes and returns equally many states."""
        if self.spec.moves != "edge" or len(self.operands) != len(self.results):
            super().check_states()

    def _check_states(self, mesh: Mesh) -> None:
        """Raise VerifyException unless the op takes and returns the edge states that its edge declares."""
        expected = [(state.name, state.meta, state.sharding) for state in self.states(mesh)]
        for verb, values in (("takes", self.operands[1:]), ("returns", self.results[1:])):
            if len(values) != len(expected):
                names = ", ".join(name for name, _, _ in expected) or "none"
                raise VerifyException(
                    f"{verb} {len(values)} states; expected {names}, which its edge declares: list exactly these"
                )
            for value, (name, meta, sharding) in zip(values, expected, strict=True):
                state_type = global_type(value, mesh)
                if (state_type, sharding_of(value)) != (meta, sharding):
                    raise VerifyException(
                        f"{verb} the state '{name}' as {state_type} <{sharding_of(value)}>; expected {meta} "
                        f"<{sharding}>"
                    )

    def _missing_sharding(self) -> str:
        """Return the part of an error that names the value without a sharding, and where to write it."""
        role, value = ("operand", self.operands[0]) if self.source is None else ("result", self.results[0])
        advice = "write it after its type, as in `tensor<8xf32> <dp: S(0)>`"
        if isinstance(value, BlockArgument):
            form = "%x: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}"
            advice = f"annotate the argument, as in `{form}`"
        return f"the {role} {text_name(value)} has none: {advice}"

    def member_arguments(self, index: int) -> dict[str, Any]:
        """Return the arguments of the transition of member `index` of this collective, which may be a bucket.

        For example, the members of a bucket with the dims [0, 1] have the arguments {dim: 0} and {dim: 1}.
        """
        argument, arguments = self.argument, {}
        for clause in self.spec.clauses:
            if clause.argument in argument:
                value: Any = argument[clause.argument]
                is_list = clause.kind == "dim" and isinstance(value, tuple)
                arguments[clause.argument] = value[index] if is_list else value
        return arguments

    def check(self, mesh: Mesh | None) -> None:
        """Raise SpmdirError or VerifyException unless clauses are valid and each result follows from its operand."""
        super().check(mesh)
        if mesh is None or self.source is None or self.target is None:
            raise VerifyException(
                "a collective requires the shardings of its operand and of its result; "
                + (
                    "found no mesh: declare one, as in `spmd.mesh @mesh <dp = 2>`"
                    if mesh is None
                    else self._missing_sharding()
                )
            )
        argument = self.argument
        for clause in self.spec.clauses:
            if clause.argument in argument:
                self._check_clause(clause, argument[clause.argument])
        for axis in self.axes:
            mesh.require(axis)
        self._check_pending()
        self._check_stream(mesh)
        self._check_members(mesh)
        for index, (value, result) in enumerate(self.pairs):
            self._check_transition(index, value, result, mesh)
        if self.spec.moves == "edge":
            self._check_states(mesh)
        for clause in self.spec.clauses:
            if clause.kind == "rank" and clause.argument in argument:
                self._check_rank(clause, mesh)

    def _check_clause(self, clause: Clause, value: Any) -> None:
        """Raise VerifyException unless `value` is valid for the clause: one value, or a list with one per member."""
        count = len(self.pairs)
        if clause.kind == "dim" and isinstance(value, tuple) and count > 1:
            if len(value) != count or not all(map(clause.holds, value)):
                raise VerifyException(
                    f"has {clause.keyword} {list(value)} for {count} tensors; expected one number, or one "
                    "for each tensor"
                )
        elif not clause.holds(value):
            raise VerifyException(f"has {clause.keyword} {value!r}; expected {clause.expected}")

    def _check_transition(self, index: int, value: SSAValue, result: SSAValue, mesh: Mesh) -> None:
        """Raise ShardingError unless the result of a member has the sharding that the collective produces."""
        source, target = sharding_of(value), sharding_of(result)
        if source is None or target is None:
            raise VerifyException(
                f"operand or result {index} of the bucket has no sharding; expected one for each member: add both"
            )
        shape = global_shape(value, mesh)
        legal = transition(self.spec.name, source, mesh, shape, target=target, **self.member_arguments(index))
        if legal != target:
            raise ShardingError(
                f"the result of {self.name} of <{source}> has the sharding <{target}>; expected <{legal}>: correct the "
                "sharding, or add a reshard"
            )

    def _check_members(self, mesh: Mesh) -> None:
        """Raise SpmdirError unless one message can carry all members: one element type, one group, no lossy steps."""
        shardings = [sharding for pair in self.pairs for sharding in map(sharding_of, pair)]
        if len(self.pairs) > 1 and any(sharding is not None and sharding.has_lossy for sharding in shardings):
            raise ShardingError(
                "a bucket has a member with a lossy placement; expected exact placements only: send that "
                "member in a separate collective"
            )
        dtypes = dict.fromkeys(meta.dtype for value, _ in self.pairs if (meta := meta_of(value.type)) is not None)
        if len(dtypes) > 1:
            raise VerifyException(
                f"a bucket has members of element types {', '.join(map(str, dtypes))}; expected one element "
                "type: use one bucket for each element type"
            )
        if len(self.pairs) > 1 and not self.spec.names_axes:
            groups = dict.fromkeys(map(self.message_of, self.steps(mesh)))
            if len(groups) > 1:
                group_texts = " and ".join(f"[{', '.join(axes)}]{f' by {op}' if op else ''}" for axes, op in groups)
                raise VerifyException(
                    f"a bucket has members on {group_texts}; expected one group: use one bucket for each group"
                )

    def _check_stream(self, mesh: Mesh) -> None:
        """Raise VerifyException unless the stream is a name, only on a start, and not that of a mesh axis."""
        name = self.stream
        if name is not None and not (self.IS_START and isinstance(name, str) and name.isidentifier()):
            raise VerifyException(
                f"has stream {name!r}; expected a name, as in `stream prefetch`, on an op that starts a collective"
            )
        if name in mesh.axis_names:
            raise VerifyException(
                f"has stream '{name}', which is also the name of a mesh axis; expected a name that no axis has: "
                "rename the stream"
            )

    def _check_pending(self) -> None:
        """Check the result types: `!spmd.pending` for a start, whose results `spmd.wait` must take; else tensors.

        Raises:
            VerifyException: a result has the other type, or a result of a start is not waited for exactly once.
        """
        for _, result in self.pairs:
            type_ = result.type
            if isinstance(type_, PendingType) is not self.IS_START:
                expected = type_.tensor if isinstance(type_, PendingType) else self.result_type(meta_of(type_))
                raise VerifyException(f"has the result type {print_type(type_)}; expected {print_type(expected)}")
        if self.IS_START:
            check_waited(self)

    def _check_rank(self, clause: Clause, mesh: Mesh) -> None:
        """Raise VerifyException if the rank in a clause such as `root 3` is not in the groups of the collective."""
        rank, ranks = self.argument[clause.argument], mesh.group_size(self.step(mesh).axes)
        if isinstance(rank, int) and rank >= ranks:
            raise VerifyException(f"has {clause.keyword} {rank} in groups of {ranks}; expected 0 to {ranks - 1}")


def _one_or_all(values: Sequence[int | None]) -> int | tuple[int | None, ...] | None:
    """Return one number if all values are equal, else all of them."""
    return values[0] if len(set(values)) == 1 else tuple(values)


def _arguments(spec: CollectiveSpec, steps: Sequence[Step], stream: str | None = None) -> tuple[tuple[str, Any], ...]:
    """Return the arguments of the op that performs `steps`, sorted by name."""
    first_step = steps[0]
    arguments = {
        "axes": first_step.axes if spec.names_axes else None,
        "dim": _one_or_all([step.dim for step in steps]),
        "to_dim": _one_or_all([step.to_dim for step in steps]),
        "reduction": first_step.reduction,
        STREAM.argument: stream,
        **dict(first_step.extra_arguments),
    }
    return tuple(sorted((name, argument) for name, argument in arguments.items() if argument is not None))


@cache
def _class_of(spec: CollectiveSpec, starts: bool = False) -> type[Collective]:
    """Return the op class of a collective, or of its start."""
    name, summary = (spec.name + START, f"Starts: {spec.summary}") if starts else (spec.name, spec.summary)
    title = "".join(map(str.capitalize, name.split("_"))) + "Op"
    op_class: Any = type(title, (Collective,), {"name": f"spmd.{name}", "__doc__": summary})
    op_class = irdl_op_definition(op_class)
    clauses = (*spec.clauses, STREAM) if starts else spec.clauses
    op_class.SPEC, op_class.CLAUSES = spec, tuple((clause.keyword, clause.argument) for clause in clauses)
    op_class.IS_START = starts
    return op_class


def collective_ops(specs: Iterable[CollectiveSpec]) -> list[type[Collective]]:
    """Return the op classes of these collectives and of their starts."""
    return [_class_of(spec, starts) for spec in specs for starts in ((False, True) if spec.may_be_async else (False,))]


@irdl_op_definition
class WaitOp(SpmdOp):
    """`wait %x`: wait for a started collective or copy, and return all of its tensors."""

    name = "spmd.wait"

    @property
    def may_take_several(self) -> bool:
        return True

    @property
    def start(self) -> Operation:
        """Return the op that started the collective or copy."""
        owner = self.operands[0].owner
        assert isinstance(owner, Operation)  # verified
        return owner

    def check_operands(self) -> None:
        """Raise VerifyException unless the operands are all results of one start, in order."""
        for operand in self.operands:
            if not isinstance(operand.type, PendingType):
                raise VerifyException(
                    f"operand {text_name(operand)} is {print_type(operand.type)}, which is not pending; "
                    "expected the result of a `*_start` op, such as `spmd.all_gather_start`"
                )
        owner = self.operands[0].owner
        if not isinstance(owner, Operation) or tuple(owner.results) != tuple(self.operands):
            raise VerifyException(
                "has operands other than the results of one `*_start` op; expected all results of one "
                "`*_start` op, in order"
            )

    def check(self, mesh: Mesh | None) -> None:
        """Raise SpmdirError or VerifyException unless each result is the tensor that its pending operand contains."""
        super().check(mesh)
        for operand, result in self.pairs:
            if isinstance(result.type, PendingType):
                raise VerifyException(
                    f"has the result type {print_type(result.type)}; expected the type of the operand "
                    "without `!spmd.pending`"
                )
            if isinstance(result.type, HostType) is not isinstance(operand.type.tensor, HostType):  # type: ignore
                raise VerifyException(
                    f"has an operand {print_type(operand.type)} and a result {print_type(result.type)}; expected one "
                    "type, apart from `!spmd.pending`"
                )
            source, target = sharding_of(operand), sharding_of(result)
            if source != target:
                raise ShardingError(
                    f"the operand of `spmd.wait` is <{source}> and the result <{target}>; expected one "
                    "sharding: correct that of the result"
                )


def check_waited(start: Operation) -> None:
    """Raise VerifyException unless the results of `start` are used by exactly one `spmd.wait`."""
    waits = {use.operation: None for result in start.results for use in result.uses}
    wait_count = sum(isinstance(user, WaitOp) for user in waits)
    if wait_count != 1:
        raise VerifyException(
            f"has {wait_count} `spmd.wait` ops; expected exactly one: add the wait, or remove the others"
        )


def find_collective(name: str) -> type[Collective] | None:
    """Return the class of a collective op such as `spmd.all_gather_start`; None if there is none of this name."""
    classes = collective_ops(collectives()) if name.startswith("spmd.") else ()
    return next((kind for kind in classes if kind.name == name), None)


def collective_class(name: str, starts: bool = False) -> type[Collective]:
    """Return the op class of a collective, or of its start; also for plug-ins.

    Raises:
        ShardingError: there is no such collective.
    """
    return _class_of(collective(name), starts)


def build_collective(step: Step, value: SSAValue, location: Any, states: Sequence[SSAValue] = ()) -> Collective:
    """Build the op that performs `step` on `value`, with edge `states`. The result has the type of `value`."""
    return collective_class(step.kind).of_step(step, value, location, states=states)
