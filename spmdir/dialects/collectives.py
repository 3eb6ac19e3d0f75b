"""The ops of collectives, each verifying its own transition. They name mesh axes, never ranks or groups.

The class of an op is made of the spec of its collective, see `spmdir.reshard.collectives`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from functools import cache
from typing import Any, ClassVar, Self

from xdsl.ir import Attribute, Operation, SSAValue
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
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.values import global_shape, global_type, sharding_of
from spmdir.dialects.verification import mesh_of
from spmdir.reshard.clause import STANDARD_ARGUMENTS, START, STREAM, Clause
from spmdir.reshard.collective_spec import CollectiveSpec
from spmdir.reshard.collectives import collective, collectives
from spmdir.reshard.edge_state import StepState, step_states
from spmdir.reshard.steps import Step, make_step, transition


class SpmdOp(ValueOp):
    """Base of the ops that take one tensor and give one, or several and as many."""

    PARENTHESISED: ClassVar[bool] = False
    traits = traits_def(Pure())

    @property
    def may_take_several(self) -> bool:
        """Whether the op may do several tensors at once; each result is that of the operand at its place."""
        return False

    def check_counts(self) -> None:
        operands, results = len(self.operands), len(self.results)
        if (operands, results) != (1, 1) and not (self.may_take_several and operands == results > 1):
            self.check_states()
        super().check_counts()

    def check_states(self) -> None:
        """Raise VerifyException for other numbers of operands and results: the op keeps no state."""
        found = f"{len(self.operands)} operands and {len(self.results)} results"
        raise VerifyException(f"has {found}; expected {'as many of each' if self.may_take_several else 'one each'}")

    @property
    def pairs(self) -> Sequence[tuple[SSAValue, SSAValue]]:
        """Return each tensor that the op takes, states left out, with what it becomes."""
        pairs = list(zip(self._operands, self.results, strict=False))
        return pairs if self.may_take_several else pairs[:1]

    def check(self, mesh: Mesh | None) -> None:
        super().check(mesh)
        for source, target in self.pairs:
            before, after = global_type(source, mesh), global_type(target, mesh)
            if before is None or after is None:
                raise VerifyException("works on tensors alone")
            if before.dtype != after.dtype:
                raise VerifyException(f"changes the element type from {before.dtype} to {after.dtype}")
            if before.shape != after.shape:
                raise VerifyException(f"changes the global shape from {list(before.shape)} to {list(after.shape)}")

    @property
    def source(self) -> Sharding | None:
        """The sharding of the operand; None where undecided."""
        return sharding_of(self.operands[0])

    @property
    def target(self) -> Sharding | None:
        """The sharding of the result; None where undecided."""
        return self.shardings[0]


class Collective(SpmdOp):
    """Base of the ops that take a tensor from one sharding to another; the result's sharding must be the legal one.

    What each declares is its `SPEC`, from which follow the clauses of its text, its accessors and its verifier. One
    that takes several tensors is a bucket: it does to each what it would do to it alone, with one message for all.
    Members are packed in the order of the operands. A clause of a dimension is one number for all members, or a list.
    """

    SPEC: ClassVar[CollectiveSpec]
    IS_START: ClassVar[bool] = False
    """Whether the op only starts the collective: its result is pending, and `spmd.wait` gives the tensor."""

    @property
    def spec(self) -> CollectiveSpec:
        """What the collective declares."""
        return self.SPEC

    @property
    def axes(self) -> tuple[str, ...]:
        """The mesh axes that it names; none if its shardings say it all."""
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
        """The reduction that is done (all_reduce, reduce_scatter) or left to be done (partition)."""
        return self._argument("reduction")

    @property
    def stream(self) -> str | None:
        """The communicator that a start runs on; None for the one of its axes."""
        return self._argument(STREAM.argument)

    @staticmethod
    def message_of(step: Step) -> tuple[tuple[str, ...], str | None]:
        """Return what members of one message have in common besides their element type: axes, and the reduction."""
        reduced = sorted({op for end in (step.source, step.target) for _, op in end.partial})
        return step.axes, step.reduction if step.spec.names_axes else ", ".join(reduced) or None

    @property
    def may_repeat(self) -> bool:
        """Whether it gives the same bits of the same operand, in any company: it keeps no states, and does no sums over
        ranks, whose terms may come in another order."""
        return self.spec.moves != "edge" and (self.spec.is_local or self.reduction is None)

    @property
    def may_take_several(self) -> bool:
        return self.spec.may_be_bucketed

    def _argument(self, name: str) -> Any:
        given: Any = self.properties.get("arguments")
        for key, value in given.data if given is not None else ():
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
        **given: Any,
    ) -> Self:
        """Return this collective of `value`, its result laid out as the collective makes it.

        Args:
            value: a tensor that has a sharding.
            sharding: of the result, for collectives that name no axes, and for placements other than `S`.
            mesh: that of the module; looked up around `value` if None.
            given: the arguments, by the names of the accessors: axes, dim, to_dim, reduction.

        Raises:
            ShardingError: `value` has no sharding, or the collective is not legal on it.
        """
        source, meta = sharding_of(value), meta_of(value.type)
        around = value.owner if isinstance(value.owner, Operation) else value.owner.parent_op()
        mesh = mesh or (mesh_of(around) if around is not None else None)
        if source is None or meta is None or mesh is None:
            lacking = "sharding" if source is None else "tensor type" if meta is None else "mesh in its module"
            raise ShardingError(
                f"{cls.name} is built on a value without a {lacking}; "
                "expected a tensor that has a sharding, in a module "
                "with a mesh: run propagate before"
            )
        step = make_step(cls.SPEC.name, source, mesh, global_shape(value, mesh), target=sharding, **given)
        return cls.of_step(step, value, location)

    @classmethod
    def of_step(
        cls,
        step: Step,
        value: SSAValue,
        location: Any = None,
        states: Sequence[SSAValue] = (),
    ) -> Self:
        """Return the op that does or starts `step`, one of this collective, on `value`; its result is as long as that.

        Args:
            states: what the ranks keep for it, by `step_states`; the op gives the new one after its result.
        """
        if not states:
            return cls.bucket([step], [value], location)
        arguments = _arguments(cls.SPEC, [step])
        shardings = [step.target, *map(sharding_of, states)]
        metas = [meta_of(held.type) for held in (value, *states)]
        return cls.build_op([value, *states], metas, arguments, shardings, location=location)  # type: ignore

    @classmethod
    def result_type(cls, meta: TensorMeta | None) -> Attribute:
        return pending_type(meta) if cls.IS_START and meta else type_of(meta)

    @classmethod
    def bucket(
        cls, steps: Sequence[Step], values: Sequence[SSAValue], location: Any = None, stream: str | None = None
    ) -> Self:
        """Return the op that does or starts `steps`, of this collective, on `values` at once.

        Args:
            steps: of one kind, on the same axes and with one reduction.
            stream: of a start: its communicator; None for the one of its axes.
        """
        arguments = _arguments(cls.SPEC, steps, stream)
        metas = [meta_of(value.type) for value in values]
        return cls.build_op(values, metas, arguments, [step.target for step in steps], location=location)  # type: ignore

    @classmethod
    def joined(cls, ops: Sequence[Collective], mesh: Mesh) -> Self:
        """Return the op that does at once what `ops` do: collectives of this kind on the same axes, with one reduction.

        Its operands and results are theirs, in order, with the same types.
        """
        steps = [step for op in ops for step in op.steps(mesh)]
        results = [result for op in ops for result in op.results]
        of = tuple(entry for op in ops for entry in (op.of.data if op.of else (None,) * len(op.results)))
        return cls.create(
            operands=[operand for op in ops for operand in op.operands],
            result_types=[result.type for result in results],
            properties={
                "arguments": ArgumentsAttr(_arguments(cls.SPEC, steps)),
                "sharding": shardings_attr(tuple(step.target for step in steps)),
                **({"of": ShapesAttr(of)} if any(of) else {}),
            },
            location=ops[0].location,
        )

    def likeness(self, mesh: Mesh) -> Hashable:
        """Return what decides its steps, and the types that it does them to: equal for collectives that do the same."""
        given: Any = self.properties.get("arguments")
        ends = tuple([(global_type(one, mesh), sharding_of(one), sharding_of(other)) for one, other in self.pairs])
        return type(self), None if given is None else given.data, ends

    def step(self, mesh: Mesh) -> Step:
        """Return the step that it does; the planner never plans those of some collectives, such as broadcast.

        Raises:
            ShardingError: the operand or the result has no sharding.
        """
        return self.steps(mesh)[0]

    def steps(self, mesh: Mesh) -> tuple[Step, ...]:
        """Return the step that it does to each tensor that it takes.

        Raises:
            ShardingError: an operand or a result has no sharding.
        """
        return tuple([self._step(index, pair, mesh) for index, pair in enumerate(self.pairs)])

    def _step(self, index: int, pair: tuple[SSAValue, SSAValue], mesh: Mesh) -> Step:
        (source, target), spec = map(sharding_of, pair), self.spec
        if source is None or target is None:
            raise ShardingError(f"{self.name} needs the shardings of its operand and of its result; {self._lacking()}")
        axes = self.axes if spec.names_axes else spec.group_axes(source, target, mesh)
        given = self.given(index)
        dim, to_dim, reduction = (given.get(name) for name in STANDARD_ARGUMENTS[1:])
        others = tuple((name, value) for name, value in given.items() if name not in STANDARD_ARGUMENTS)
        return Step(spec.name, axes, source, target, dim, to_dim, reduction, others)

    def states(self, mesh: Mesh) -> tuple[StepState, ...]:
        """Return what the ranks keep for it: its operands but the first, and its results but the first."""
        meta = global_type(self.operands[0], mesh)
        assert meta is not None  # it is verified
        return step_states(self.step(mesh), meta, mesh)

    def check_states(self) -> None:
        if self.spec.moves != "edge" or len(self.operands) != len(self.results):
            super().check_states()

    def _check_states(self, mesh: Mesh) -> None:
        expected = [(state.name, state.meta, state.sharding) for state in self.states(mesh)]
        for what, values in (("takes", self.operands[1:]), ("gives", self.results[1:])):
            if len(values) != len(expected):
                names = ", ".join(name for name, _, _ in expected) or "none"
                raise VerifyException(f"{what} {len(values)} states; expected those of its edge: {names}")
            for value, (name, meta, sharding) in zip(values, expected, strict=True):
                found = global_type(value, mesh)
                if (found, sharding_of(value)) != (meta, sharding):
                    raise VerifyException(
                        f"{what} the state '{name}' as {found} <{sharding_of(value)}>; expected {meta} <{sharding}>"
                    )

    def _lacking(self) -> str:
        which, value = ("operand", self.operands[0]) if self.source is None else ("result", self.results[0])
        return f"found none on the {which} {text_name(value)}, write it behind its own type: `tensor<8xf32> <dp: S(0)>`"

    def given(self, index: int) -> dict[str, Any]:
        """Return the arguments that the transition of member `index` has."""
        argument, found = self.argument, {}
        for clause in self.spec.clauses:
            if clause.argument in argument:
                value: Any = argument[clause.argument]
                is_list = clause.kind == "dim" and isinstance(value, tuple)
                found[clause.argument] = value[index] if is_list else value
        return found

    def check(self, mesh: Mesh | None) -> None:
        super().check(mesh)
        if mesh is None or self.source is None or self.target is None:
            raise VerifyException(
                "a collective needs the shardings of its operand and of its result; "
                + ("found no mesh, declare one: `spmd.mesh @mesh <…>`" if mesh is None else self._lacking())
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
        count = len(self.pairs)
        if clause.kind == "dim" and isinstance(value, tuple) and count > 1:
            if len(value) != count or not all(map(clause.holds, value)):
                raise VerifyException(
                    f"says {clause.keyword} {list(value)} of {count} tensors; expected one number, or one for each"
                )
        elif not clause.holds(value):
            raise VerifyException(f"expected {clause.expected}, found {value!r}")

    def _check_transition(self, index: int, value: SSAValue, result: SSAValue, mesh: Mesh) -> None:
        source, target = sharding_of(value), sharding_of(result)
        if source is None or target is None:
            raise VerifyException(f"member {index} of the bucket has no sharding before it or after it; write both")
        shape = global_shape(value, mesh)
        legal = transition(self.spec.name, source, mesh, shape, target=target, **self.given(index))
        if legal != target:
            raise ShardingError(f"{self.name} of <{source}> gives <{legal}>, found <{target}>")

    def _check_members(self, mesh: Mesh) -> None:
        held = [sharding for pair in self.pairs for sharding in map(sharding_of, pair)]
        if len(self.pairs) > 1 and any(sharding is not None and sharding.has_lossy for sharding in held):
            raise ShardingError("joins values of which one loses precision on its way; such a value goes by itself")
        found = dict.fromkeys(meta.dtype for value, _ in self.pairs if (meta := meta_of(value.type)) is not None)
        if len(found) > 1:
            raise VerifyException(
                f"takes tensors of element types {', '.join(map(str, found))}; a message has one: make a bucket of each"
            )
        if len(self.pairs) > 1 and not self.spec.names_axes:
            sent = dict.fromkeys(map(self.message_of, self.steps(mesh)))
            if len(sent) > 1:
                told = " and ".join(f"[{', '.join(axes)}]{f' by {op}' if op else ''}" for axes, op in sent)
                raise VerifyException(f"joins members on {told}; a message is on one group: make a bucket of each")

    def _check_stream(self, mesh: Mesh) -> None:
        name = self.stream
        if name is not None and not (self.IS_START and isinstance(name, str) and name.isidentifier()):
            raise VerifyException(f"runs on stream {name!r}; expected a name, as in `stream prefetch`, and on a start")
        if name in mesh.axis_names:
            raise VerifyException(f"runs on stream '{name}', that of mesh axis '{name}'; expected another name")

    def _check_pending(self) -> None:
        """Raise VerifyException unless results that are pending are waited for, once, and no others are pending."""
        for _, result in self.pairs:
            type_ = result.type
            if isinstance(type_, PendingType) is not self.IS_START:
                expected = type_.tensor if isinstance(type_, PendingType) else self.result_type(meta_of(type_))
                raise VerifyException(f"gives {print_type(type_)}; expected {print_type(expected)}")
        if self.IS_START:
            check_waited(self)

    def _check_rank(self, clause: Clause, mesh: Mesh) -> None:
        rank, ranks = self.argument[clause.argument], mesh.group_size(self.step(mesh).axes)
        if isinstance(rank, int) and rank >= ranks:
            raise VerifyException(f"has {clause.keyword} {rank} in groups of {ranks}; expected 0 to {ranks - 1}")


def _one_or_all(values: Sequence[int | None]) -> int | tuple[int | None, ...] | None:
    """Return what a clause says of several members: one number if they are alike."""
    return values[0] if len(set(values)) == 1 else tuple(values)


def _arguments(spec: CollectiveSpec, steps: Sequence[Step], stream: str | None = None) -> tuple[tuple[str, Any], ...]:
    """Return the arguments of the op that does `steps`, sorted by name."""
    first = steps[0]
    given = {
        "axes": first.axes if spec.names_axes else None,
        "dim": _one_or_all([step.dim for step in steps]),
        "to_dim": _one_or_all([step.to_dim for step in steps]),
        "reduction": first.reduction,
        STREAM.argument: stream,
        **dict(first.others),
    }
    return tuple(sorted((name, argument) for name, argument in given.items() if argument is not None))


@cache
def _class_of(spec: CollectiveSpec, starts: bool = False) -> type[Collective]:
    """Return the class of the ops that do a collective, or of those that start it."""
    name, summary = (spec.name + START, f"Starts: {spec.summary}") if starts else (spec.name, spec.summary)
    title = "".join(map(str.capitalize, name.split("_"))) + "Op"
    made: Any = type(title, (Collective,), {"name": f"spmd.{name}", "__doc__": summary})
    made = irdl_op_definition(made)
    clauses = (*spec.clauses, STREAM) if starts else spec.clauses
    made.SPEC, made.CLAUSES = spec, tuple((clause.keyword, clause.argument) for clause in clauses)
    made.IS_START = starts
    return made


def collective_ops(specs: Iterable[CollectiveSpec]) -> list[type[Collective]]:
    """Return the classes of the ops that do or start these collectives."""
    return [_class_of(spec, starts) for spec in specs for starts in (False, True)[: 1 + spec.may_be_async]]


@irdl_op_definition
class WaitOp(SpmdOp):
    """`wait %x`: what a collective or a copy to or from the host has started to make, all of it."""

    name = "spmd.wait"

    @property
    def may_take_several(self) -> bool:
        return True

    @property
    def start(self) -> Operation:
        """Return what is waited for."""
        owner = self.operands[0].owner
        assert isinstance(owner, Operation)  # verified
        return owner

    def check_operands(self) -> None:
        for operand in self.operands:
            if not isinstance(operand.type, PendingType):
                raise VerifyException(
                    f"waits for {print_type(operand.type)}, which is there; "
                    "expected what a start of a collective gives, as `spmd.all_gather_start`"
                )
        owner = self.operands[0].owner
        if not isinstance(owner, Operation) or tuple(owner.results) != tuple(self.operands):
            raise VerifyException("waits for other values than one start gives; expected all of them, in their order")

    def check(self, mesh: Mesh | None) -> None:
        super().check(mesh)
        for operand, result in self.pairs:
            if isinstance(result.type, PendingType):
                raise VerifyException(f"gives {print_type(result.type)}; expected a tensor, which is there")
            if isinstance(result.type, HostType) is not isinstance(operand.type.tensor, HostType):  # type: ignore
                raise VerifyException(f"waits for {print_type(operand.type)} and gives {print_type(result.type)}")
            source, target = sharding_of(operand), sharding_of(result)
            if source != target:
                raise ShardingError(f"wait keeps the sharding <{source}>, found <{target}>")


def check_waited(start: Operation) -> None:
    """Raise VerifyException unless one `spmd.wait` waits for what `start` has started."""
    waits = {use.operation: None for result in start.results for use in result.uses}
    found = sum(isinstance(user, WaitOp) for user in waits)
    if found != 1:
        raise VerifyException(f"is waited for {found} times; expected one `spmd.wait`")


def find_collective(name: str) -> type[Collective] | None:
    """Return the class of the op `name`, such as `spmd.all_gather_start`, if a collective of the table has it."""
    known = collective_ops(collectives()) if name.startswith("spmd.") else ()
    return next((kind for kind in known if kind.name == name), None)


def collective_class(name: str, starts: bool = False) -> type[Collective]:
    """Return the class of the op that does or starts a collective, of spmdir or of a plug-in.

    Raises:
        ShardingError: there is no such collective.
    """
    return _class_of(collective(name), starts)


def build_collective(step: Step, value: SSAValue, location: Any, states: Sequence[SSAValue] = ()) -> Collective:
    """Return the op that does `step` on `value`, with `states` that ranks keep; its result has the type of `value`."""
    return collective_class(step.kind).of_step(step, value, location, states=states)
