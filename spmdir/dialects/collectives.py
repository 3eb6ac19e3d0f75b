"""The ops of collectives, each verifying its own transition. They name mesh axes, never ranks or groups.

What a collective is stands in its spec, see `spmdir.reshard.collectives`; from it the class of its op is made, for one
of a plug-in when a text first names it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, ClassVar, Self

from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.irdl import irdl_op_definition, traits_def
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from spmdir.core.errors import ShardingError
from spmdir.core.mesh import Mesh
from spmdir.core.sharding import Sharding
from spmdir.core.tensor import TensorMeta
from spmdir.dialects.attributes import PendingType, meta_of, pending_type, print_type, type_of
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.values import global_shape, global_type, sharding_of
from spmdir.dialects.verification import mesh_of
from spmdir.reshard.collective_spec import STANDARD_ARGUMENTS, START, Clause, CollectiveSpec
from spmdir.reshard.collectives import SHIPPED, collective, collectives
from spmdir.reshard.edge_state import StepState, step_state
from spmdir.reshard.steps import Step, make_step, transition


class SpmdOp(ValueOp):
    """Base of the ops that take one tensor and give one."""

    PARENTHESISED: ClassVar[bool] = False
    traits = traits_def(Pure())

    def check_counts(self) -> None:
        if len(self.operands) != 1 or len(self.results) != 1:
            self.check_states()
        super().check_counts()

    def check_states(self) -> None:
        """Raise VerifyException for more than one operand and one result: the op keeps no state."""
        found = f"{len(self.operands)} operands and {len(self.results)} results"
        raise VerifyException(f"has {found}; expected one each")

    def check(self, mesh: Mesh | None) -> None:
        super().check(mesh)
        source, target = self.operands[0], self.results[0]
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

    What each declares is its `SPEC`, from which follow the clauses of its text, its accessors and its verifier.
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

    def _argument(self, name: str) -> Any:
        given: Any = self.properties.get("arguments")
        return next((value for key, value in given.data if key == name), None) if given is not None else None

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
            states: what the ranks keep for it, by `step_state`; the op gives the new one after its result.
        """
        given = {
            "axes": step.axes if cls.SPEC.names_axes else None,
            "dim": step.dim,
            "to_dim": step.to_dim,
            "reduction": step.reduction,
            **dict(step.others),
        }
        arguments = tuple(sorted((name, argument) for name, argument in given.items() if argument is not None))
        shardings = [step.target, *map(sharding_of, states)]
        metas = [meta_of(held.type) for held in (value, *states)]
        return cls.build_op([value, *states], metas, arguments, shardings, location=location)  # type: ignore

    @classmethod
    def result_type(cls, meta: TensorMeta | None) -> Attribute:
        return pending_type(meta) if cls.IS_START and meta else type_of(meta)

    def step(self, mesh: Mesh) -> Step:
        """Return the step that it does; the planner never plans those of some collectives, such as broadcast.

        Raises:
            ShardingError: the operand or the result has no sharding.
        """
        source, target, spec = self.source, self.target, self.spec
        if source is None or target is None:
            raise ShardingError(f"{self.name} needs the shardings of its operand and of its result; {self._lacking()}")
        axes = self.axes if spec.axes is None else spec.axes(source, target, mesh)
        others = tuple((name, value) for name, value in self._given().items() if name not in STANDARD_ARGUMENTS)
        return Step(spec.name, axes, source, target, self.dim, self.to_dim, self.reduction, others)

    def states(self, mesh: Mesh) -> tuple[StepState, ...]:
        """Return what the ranks keep for it: its operands but the first, and its results but the first."""
        meta = global_type(self.operands[0], mesh)
        assert meta is not None  # it is verified
        return step_state(self.step(mesh), meta, mesh)

    def check_states(self) -> None:
        if self.spec.traffic is not None or len(self.operands) != len(self.results):
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
        which = "operand" if self.source is None else "result"
        return f"found none on the {which}, write it behind its type: `<dp: S(0)>`"

    def _given(self) -> dict[str, Any]:
        """Return the arguments that a transition has."""
        names = {clause.argument for clause in self.spec.clauses}
        return {name: value for name, value in self.argument.items() if name in names}

    def check(self, mesh: Mesh | None) -> None:
        super().check(mesh)
        if mesh is None or self.source is None or self.target is None:
            raise VerifyException(
                "a collective needs the shardings of its operand and of its result; "
                + ("found no mesh, declare one: `spmd.mesh @mesh <…>`" if mesh is None else self._lacking())
            )
        argument = self.argument
        for clause in self.spec.clauses:
            if clause.argument in argument and not clause.holds(argument[clause.argument]):
                raise VerifyException(f"expected {clause.expected}, found {argument[clause.argument]!r}")
        for axis in self.axes:
            mesh.require(axis)
        self._check_pending()
        shape, given = global_shape(self.operands[0], mesh), self._given()
        legal = transition(self.spec.name, self.source, mesh, shape, target=self.target, **given)
        if legal != self.target:
            raise ShardingError(f"{self.name} of <{self.source}> gives <{legal}>, found <{self.target}>")
        if self.spec.traffic is None:
            self._check_states(mesh)
        for clause in self.spec.clauses:
            if clause.kind == "rank" and clause.argument in argument:
                self._check_rank(clause, mesh)

    def _check_pending(self) -> None:
        """Raise VerifyException unless a result that is pending is waited for, once, and no other is pending."""
        type_ = self.results[0].type
        if isinstance(type_, PendingType) is not self.IS_START:
            expected = type_.tensor if isinstance(type_, PendingType) else self.result_type(meta_of(type_))
            raise VerifyException(f"gives {print_type(type_)}; expected {print_type(expected)}")
        waits = sum(isinstance(use.operation, WaitOp) for use in self.results[0].uses)
        if self.IS_START and waits != 1:
            raise VerifyException(f"is waited for {waits} times; expected one `spmd.wait`")

    def _check_rank(self, clause: Clause, mesh: Mesh) -> None:
        rank, ranks = self.argument[clause.argument], mesh.group_size(self.step(mesh).axes)
        if isinstance(rank, int) and rank >= ranks:
            raise VerifyException(f"has {clause.keyword} {rank} in groups of {ranks}; expected 0 to {ranks - 1}")


@cache
def _class_of(spec: CollectiveSpec, starts: bool = False) -> type[Collective]:
    """Return the class of the ops that do a collective, or of those that start it."""
    name, summary = (spec.name + START, f"Starts: {spec.summary}") if starts else (spec.name, spec.summary)
    title = "".join(map(str.capitalize, name.split("_"))) + "Op"
    made: Any = type(title, (Collective,), {"name": f"spmd.{name}", "__doc__": summary})
    made = irdl_op_definition(made)
    made.SPEC, made.CLAUSES = spec, tuple((clause.keyword, clause.argument) for clause in spec.clauses)
    made.IS_START = starts
    return made


def _classes(specs: Iterable[CollectiveSpec]) -> dict[str, type[Collective]]:
    every = [(spec, starts) for spec in specs for starts in (False, True)[: 1 + spec.may_be_async]]
    return {spec.name + START * starts: _class_of(spec, starts) for spec, starts in every}


COLLECTIVES: dict[str, type[Collective]] = _classes(SHIPPED)
"""Name of each op that does or starts a collective of spmdir → its class."""


@irdl_op_definition
class WaitOp(SpmdOp):
    """`wait %x`: the tensor that a collective has started to make."""

    name = "spmd.wait"

    def check_operands(self) -> None:
        if not isinstance(self.operands[0].type, PendingType):
            raise VerifyException(
                f"waits for {print_type(self.operands[0].type)}, which is there; "
                "expected what a start of a collective gives, as `spmd.all_gather_start`"
            )

    def check(self, mesh: Mesh | None) -> None:
        super().check(mesh)
        if isinstance(self.results[0].type, PendingType):
            raise VerifyException(f"gives {print_type(self.results[0].type)}; expected a tensor, which is there")
        if self.source != self.target:
            raise ShardingError(f"wait keeps the sharding <{self.source}>, found <{self.target}>")


def plugin_collective(name: str) -> type[Collective] | None:
    """Return the class of the op `name`, such as `spmd.scatter`, if it is a collective of a plug-in."""
    known = _classes(spec for spec in collectives() if spec.name not in COLLECTIVES)
    return known.get(name.removeprefix("spmd."))


def collective_class(name: str, starts: bool = False) -> type[Collective]:
    """Return the class of the op that does or starts a collective, of spmdir or of a plug-in.

    Raises:
        ShardingError: there is no such collective.
    """
    return _class_of(collective(name), starts)


def build_collective(step: Step, value: SSAValue, location: Any, states: Sequence[SSAValue] = ()) -> Collective:
    """Return the op that does `step` on `value`, with `states` that ranks keep; its result has the type of `value`."""
    return collective_class(step.kind).of_step(step, value, location, states=states)
