"""The `spmd` dialect: the mesh, constraints, reshards, and the collectives, each verifying its own transition.

Collectives name mesh axes, never ranks or groups.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import Any, ClassVar

from xdsl.dialects.builtin import ArrayAttr, IntegerAttr, StringAttr, SymbolNameConstraint, i64
from xdsl.ir import Dialect, Operation, OpResult
from xdsl.irdl import IRDLOperation, irdl_op_definition, opt_prop_def, prop_def, traits_def
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import SymbolOpInterface
from xdsl.utils.exceptions import VerifyException

from spmdir.dialects.attributes import (
    DYNAMIC,
    ArgumentsAttr,
    ShapesAttr,
    ShardingAttr,
    ShardingsAttr,
    StructureAttr,
    meta_of,
    print_type,
    type_of,
)
from spmdir.dialects.borders import FoldOp, HaloOp
from spmdir.dialects.brackets import take_balanced
from spmdir.dialects.size_types import SizesAttr, SizeType
from spmdir.dialects.value_op import ValueOp, check_pieces, check_sharding
from spmdir.errors import ShardingError, SpmdirError, did_you_mean
from spmdir.mesh import Mesh
from spmdir.placement import Placement
from spmdir.planner.steps import refinement, transition
from spmdir.sharding import Sharding

_AXIS = re.compile(r"\s*([A-Za-z_]\w*)\s*=\s*(\d{1,18})\s*")


@irdl_op_definition
class MeshOp(IRDLOperation):
    """`spmd.mesh @mesh <dp = 2, tp = 4> intra [tp]`: the device mesh of the module, outermost axis first.

    `intra` lists the axes whose ranks sit inside one node; all do if it is left out.
    """

    name = "spmd.mesh"
    sym_name = prop_def(SymbolNameConstraint())
    axis_names = prop_def(ArrayAttr[StringAttr])
    axis_sizes = prop_def(ArrayAttr[IntegerAttr])
    intra_node = opt_prop_def(ArrayAttr[StringAttr])
    traits = traits_def(SymbolOpInterface())

    @classmethod
    def of(cls, mesh: Mesh) -> MeshOp:
        """The op that declares `mesh`."""
        properties = {
            "sym_name": StringAttr(mesh.name),
            "axis_names": ArrayAttr([StringAttr(axis) for axis, _ in mesh.axes]),
            "axis_sizes": ArrayAttr([IntegerAttr(size, i64) for _, size in mesh.axes]),
        }
        if mesh.intra_node is not None:
            properties["intra_node"] = ArrayAttr([StringAttr(axis) for axis in mesh.intra_node])
        return cls.create(properties=properties)

    @property
    def mesh(self) -> Mesh:
        """The declared mesh."""
        names = [name.data for name in self.axis_names]
        sizes = [size.value.data for size in self.axis_sizes]
        intra = None if self.intra_node is None else tuple(name.data for name in self.intra_node)
        return _mesh(tuple(zip(names, sizes, strict=True)), self.sym_name.data, intra)

    def verify_(self) -> None:
        if len(self.axis_names) != len(self.axis_sizes):
            raise VerifyException(f"has {len(self.axis_names)} axis names for {len(self.axis_sizes)} sizes")
        try:
            _ = self.mesh
        except SpmdirError as error:
            raise VerifyException(error.message) from None

    @classmethod
    def parse(cls, parser: Parser) -> MeshOp:
        name = parser.parse_symbol_name().data
        text, start = take_balanced(parser)
        axes = []
        for part in filter(str.strip, text[1:-1].split(",")):
            match = _AXIS.fullmatch(part)
            if match is None:
                parser.raise_error(f"found '{part.strip()}', expected an axis: `name = size`", start, start + len(text))
            axes.append((match[1], int(match[2])))
        intra = None
        if parser.parse_optional_keyword("intra"):
            listed = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parser.parse_identifier)
            intra = tuple(listed)
        try:
            return cls.of(Mesh(tuple(axes), name, intra))
        except SpmdirError as error:
            parser.raise_error(error.message, start, start + len(text))

    def print(self, printer: Printer) -> None:
        printer.print_string(f" @{self.sym_name.data} {self.mesh}")
        if self.intra_node is not None:
            printer.print_string(f" intra [{', '.join(name.data for name in self.intra_node)}]")


@lru_cache
def _mesh(axes: tuple[tuple[str, int], ...], name: str, intra_node: tuple[str, ...] | None) -> Mesh:
    return Mesh(axes, name, intra_node)


class SpmdOp(ValueOp):
    """Base of the ops that take one tensor and give one."""

    PARENTHESISED: ClassVar[bool] = False

    def check_counts(self) -> None:
        if len(self.operands) != 1 or len(self.results) != 1:
            found = f"{len(self.operands)} operands and {len(self.results)} results"
            raise VerifyException(f"has {found}; expected one each")
        super().check_counts()

    def check(self, mesh: Mesh | None) -> None:
        super().check(mesh)
        source, target = self.operands[0], self.results[0]
        before, after = meta_of(source.type), meta_of(target.type)
        if before is None or after is None:
            raise VerifyException("works on tensors alone")
        if before.dtype != after.dtype:
            raise VerifyException(f"changes the element type from {before.dtype} to {after.dtype}")
        shape, given = global_shape(source, mesh), global_shape(target, mesh)
        if shape != given:
            raise VerifyException(f"changes the global shape from {list(shape)} to {list(given)}")

    @property
    def source(self) -> Sharding | None:
        """The sharding of the operand; None where undecided."""
        return sharding_of(self.operands[0])

    @property
    def target(self) -> Sharding | None:
        """The sharding of the result; None where undecided."""
        return self.shardings[0]


class Collective(SpmdOp):
    """Base of the ops that move from one sharding to another; the result's sharding must be the legal one."""

    def check(self, mesh: Mesh | None) -> None:
        super().check(mesh)
        if mesh is None or self.source is None or self.target is None:
            raise VerifyException("a collective needs the shardings of its operand and of its result")
        argument = self.argument
        axes = argument.get("axes", ())
        if not isinstance(axes, tuple) or not all(isinstance(axis, str) for axis in axes):
            raise VerifyException("expected the axes as a list of names, as in `on [dp, tp]`")
        for axis in axes:
            mesh.require(str(axis))
        for name in ("dim", "to_dim"):
            if type(argument.get(name, 0)) is not int:
                raise VerifyException(f"expected a number for the dimension, found {argument[name]!r}")
        if argument.get("asynchronous") and not all(isinstance(use.operation, WaitOp) for use in self.results[0].uses):
            raise VerifyException("is async, so its result may only be given to spmd.wait")
        self.check_transition(mesh, argument, global_shape(self.operands[0], mesh))

    def check_transition(self, mesh: Mesh, argument: dict[str, Any], shape: tuple[int, ...]) -> None:
        """Raise ShardingError unless operand and result shardings are this collective's transition."""
        assert self.source is not None and self.target is not None
        legal = transition(
            self.name.removeprefix("spmd."),
            self.source,
            mesh,
            shape,
            axes=argument.get("axes", ()),
            dim=argument.get("dim"),
            to_dim=argument.get("to_dim"),
            op=argument.get("op"),
            target=self.target,
        )
        if legal != self.target:
            raise ShardingError(f"{self.name} of <{self.source}> gives <{legal}>, found <{self.target}>")


_ON = ("on", "axes")


@irdl_op_definition
class AllReduceOp(Collective):
    """`all_reduce %x on [tp] op sum`: the pending reduction over the axes is done; every rank gets the result."""

    name = "spmd.all_reduce"
    CLAUSES: ClassVar = (_ON, ("op", "op"), ("async", "asynchronous"))


@irdl_op_definition
class AllGatherOp(Collective):
    """`all_gather %x on [tp] dim 0`: the innermost pieces of a dimension are put together on every rank."""

    name = "spmd.all_gather"
    CLAUSES: ClassVar = (_ON, ("dim", "dim"), ("async", "asynchronous"))


@irdl_op_definition
class ReduceScatterOp(Collective):
    """`reduce_scatter %x on [tp] dim 0 op sum`: the pending reduction is done and each rank keeps its piece."""

    name = "spmd.reduce_scatter"
    CLAUSES: ClassVar = (_ON, ("dim", "dim"), ("op", "op"), ("async", "asynchronous"))


@irdl_op_definition
class AllToAllOp(Collective):
    """`all_to_all %x on [tp] from 0 to 1`: the axes leave one dimension and divide another."""

    name = "spmd.all_to_all"
    CLAUSES: ClassVar = (_ON, ("from", "dim"), ("to", "to_dim"), ("async", "asynchronous"))


@irdl_op_definition
class PermuteOp(Collective):
    """`permute %x`: pieces move between ranks as they are."""

    name = "spmd.permute"
    CLAUSES: ClassVar = (("async", "asynchronous"),)


@irdl_op_definition
class ExchangeOp(Collective):
    """`exchange %x`: every rank gets what it lacks straight from the ranks that hold it, and reduces it if need be."""

    name = "spmd.exchange"
    CLAUSES: ClassVar = (("async", "asynchronous"),)


@irdl_op_definition
class SliceOp(Collective):
    """`slice %x on [tp] dim 0`: each rank keeps its piece of a replicated value; local."""

    name = "spmd.slice"
    CLAUSES: ClassVar = (_ON, ("dim", "dim"))


@irdl_op_definition
class PartitionOp(Collective):
    """`partition %x on [tp] op sum`: a replicated value becomes one whose reduction over the axes is pending; local."""

    name = "spmd.partition"
    CLAUSES: ClassVar = (_ON, ("op", "op"))


@irdl_op_definition
class BroadcastOp(Collective):
    """`broadcast %x on [tp]`: the value of the first rank of each group is given to all."""

    name = "spmd.broadcast"
    CLAUSES: ClassVar = (_ON, ("async", "asynchronous"))

    def check_transition(self, mesh: Mesh, argument: dict[str, Any], shape: tuple[int, ...]) -> None:
        if self.source != self.target:
            raise ShardingError(f"broadcast keeps the sharding <{self.source}>, found <{self.target}>")
        for axis in argument.get("axes", ()):
            placement = self.source.along(axis, mesh)  # type: ignore
            if placement is None or placement.trait != "replicated":
                raise ShardingError(f"broadcast over '{axis}' needs it replicated, found {placement or self.source}")


@irdl_op_definition
class WaitOp(SpmdOp):
    """`wait %x`: the result of a collective started with `async`."""

    name = "spmd.wait"

    def check(self, mesh: Mesh | None) -> None:
        super().check(mesh)
        owner = self.operands[0].owner
        if not isinstance(owner, Collective) or not owner.argument.get("asynchronous"):
            raise VerifyException("waits for a value that no `async` collective made")
        if self.source != self.target:
            raise ShardingError(f"wait keeps the sharding <{self.source}>, found <{self.target}>")


@irdl_op_definition
class ReshardOp(SpmdOp):
    """`reshard %x : tensor<…> <dp: S(0)>`: the same value in another sharding; lower-reshard picks the collectives."""

    name = "spmd.reshard"

    def check(self, mesh: Mesh | None) -> None:
        super().check(mesh)
        if self.target is None:
            raise VerifyException("a reshard needs a sharding, as in <dp: S(0)>")


@irdl_op_definition
class ConstraintOp(SpmdOp):
    """`constraint %x : tensor<…> <dp: S(0), tp: ?>`: the user's word on a value; `?` leaves an axis to the compiler."""

    name = "spmd.constraint"
    MAY_BE_OPEN: ClassVar = True

    def check(self, mesh: Mesh | None) -> None:
        super().check(mesh)
        if self.target is None:
            raise VerifyException("a constraint needs a sharding, as in <dp: S(0), tp: ?>")


@irdl_op_definition
class ConstantOp(ValueOp):
    """`constant value "…"`: a small tensor that every rank holds; the bytes in row-major order, as hexadecimal text."""

    name = "spmd.constant"
    PARENTHESISED: ClassVar = False
    CLAUSES: ClassVar = (("value", "value"),)

    def check(self, mesh: Mesh | None) -> None:
        super().check(mesh)
        meta = meta_of(self.results[0].type)
        value = self.argument.get("value")
        try:
            data = bytes.fromhex(value) if isinstance(value, str) else b""
        except ValueError:
            raise VerifyException(f"holds {value!r}, which is no hexadecimal text") from None
        if meta is None or len(data) != meta.bytes:
            raise VerifyException(f"holds {len(data)} bytes of data; its type needs {meta.bytes if meta else 0}")


@irdl_op_definition
class BucketOp(ValueOp):
    """`bucket %a, %b`: the pieces of several values, flattened and joined, so that one collective serves all."""

    name = "spmd.bucket"
    PARENTHESISED: ClassVar = False

    def check(self, mesh: Mesh | None) -> None:
        super().check(mesh)
        check_bucket(mesh, self.shardings[0], self.results[0], self.operands)
        for use in self.results[0].uses:
            _check_bucket_use(use.operation)


@irdl_op_definition
class UnbucketOp(ValueOp):
    """`unbucket %b`: the values that a bucket joined, in order, with what was reduced in between."""

    name = "spmd.unbucket"
    PARENTHESISED: ClassVar = False

    def check(self, mesh: Mesh | None) -> None:
        super().check(mesh)
        joined = self.operands[0].owner
        while isinstance(joined, (AllReduceOp, WaitOp)):
            joined = joined.operands[0].owner
        if not isinstance(joined, BucketOp) or len(joined.operands) != len(self.results):
            raise VerifyException(f"gives {len(self.results)} values; expected those of a spmd.bucket, one for each")
        check_bucket(mesh, sharding_of(self.operands[0]), self.operands[0], self.results)
        for index, (before, after) in enumerate(zip(joined.operands, self.results, strict=True)):
            if global_shape(before, mesh) != global_shape(after, mesh) or _pieces(before) != _pieces(after):
                raise ShardingError(
                    f"result {index} is {_shown(after, mesh)}, but the bucket joined {_shown(before, mesh)}; "
                    "only a pending reduction can be done in between"
                )


def check_bucket(mesh: Mesh | None, sharding: Sharding | None, bucket: Any, members: Any) -> None:
    """Raise unless `bucket`, of `sharding`, can be the pieces of its members joined.

    It has their pending reductions and element type. Its type is 1-D; dimension 0 is divided at least by every axis
    that divides a member, so that its local length is the sum of their local sizes, and these must be even.
    """
    if mesh is None or sharding is None or not members:
        raise VerifyException("needs a mesh, shardings and at least one member")
    fine = refinement(mesh, sharding, *(held for member in members if (held := sharding_of(member))))
    axes, total = sharding.refined(fine).dim_axes(0), 0
    for member in members:
        meta, held = meta_of(member.type), sharding_of(member)
        if meta is None or held is None or held.partial != sharding.partial:
            raise ShardingError(f"members of a bucket have the pending reductions of <{sharding}>, found <{held}>")
        if meta.dtype != meta_of(bucket.type).dtype:  # type: ignore
            raise VerifyException(f"members of a bucket have its element type, found {meta.dtype}")
        for axis in (part for whole, _ in _pieces(member) for part in fine.parts(whole)):
            if axis not in axes:
                raise ShardingError(f"'{axis}' divides a member, <{held}>, so it must divide the bucket, <{sharding}>")
        shape = global_shape(member, mesh)
        for dim, size in enumerate(shape):
            if size % mesh.group_size(held.dim_axes(dim)):
                raise ShardingError(f"dimension {dim} of a bucket's member is divided unevenly: {size}")
        total += math.prod(shape) // mesh.group_size(axis for axis, _ in _pieces(member))
    expected = (total * fine.group_size(axes),)
    if global_shape(bucket, mesh) != expected:
        found = list(global_shape(bucket, mesh))
        raise VerifyException(f"a bucket of these members has the shape {list(expected)}, found {found}")


def _check_bucket_use(user: Operation) -> None:
    """A bucket is no value of the program, so that it can be reduced and taken apart, and nothing else."""
    if isinstance(user, (AllReduceOp, WaitOp)):
        for use in user.results[0].uses:
            _check_bucket_use(use.operation)
    elif not isinstance(user, UnbucketOp):
        raise VerifyException(f"is used by '{user.name}'; a bucket may only be reduced and given to spmd.unbucket")


def _pieces(value: Any) -> list[tuple[str, Placement]]:
    """The axes that divide a value, with their dimensions."""
    held = sharding_of(value)
    return [(axis, placement) for axis, placement in held.entries if placement.trait != "partial"] if held else []


def _shown(value: Any, mesh: Mesh | None) -> str:
    return f"{list(global_shape(value, mesh))} <{sharding_of(value)}>"


FUNCTION_ATTRIBUTES = ("spmd.sharding", "spmd.name", "spmd.kind", "spmd.of")
"""What the IR itself says about an argument or a result."""


FUNCTION_TEXTS: dict[str, tuple[str, ...]] = {
    "spmd.name": (),
    "spmd.kind": ("parameter", "buffer", "input", "output", "mutation"),
}
"""Attribute that is a string → what it may be; () for anything."""


def check_function(function: Any, mesh: Mesh | None) -> None:
    """Raise SpmdirError unless the body is one block, on tensors whose shardings fit the mesh."""
    if len(function.body.blocks) != 1:
        raise VerifyException(f"has {len(function.body.blocks)} blocks; expected one: a body without branches")
    if function.body.block.last_op is None:
        raise VerifyException("is empty; expected it to end in `return`")
    for which, types in (("arg_attrs", function.function_type.inputs), ("res_attrs", function.function_type.outputs)):
        place = "argument" if which == "arg_attrs" else "result"
        for index, type_ in enumerate(types):
            if meta_of(type_) is None:
                raise VerifyException(f"{place} {index} is {type_}; expected a tensor of a known element type")
            given = function_attrs(function, which, index)
            for key, attribute in given.items():
                _check_function_attribute(f"{place} {index}", key, attribute, mesh, meta_of(type_))
            if which == "arg_attrs":
                _check_argument_pieces(f"{place} {index}", given, mesh, meta_of(type_))


def _check_argument_pieces(place: str, given: dict[str, Any], mesh: Mesh | None, meta: Any) -> None:
    whole, sharding = given.get("spmd.of"), given.get("spmd.sharding")
    if whole is None and DYNAMIC not in meta.shape:
        return
    if sharding is None or not isinstance(whole, ShapesAttr) or len(whole.data) != 1:
        raise ShardingError(
            f"{place} is {print_type(type_of(meta))}, whose size is open; spmd.sharding and spmd.of must tell the piece"
        )
    try:
        check_pieces(meta, whole.data[0], sharding.data, mesh)
    except ShardingError as error:
        raise ShardingError(f"{place}: {error.message}") from None


def _check_function_attribute(place: str, key: str, attribute: Any, mesh: Mesh | None, meta: Any) -> None:
    texts = FUNCTION_TEXTS.get(key)
    if texts is not None and not (isinstance(attribute, StringAttr) and (not texts or attribute.data in texts)):
        expected = " or ".join(f'"{text}"' for text in texts) or "a string"
        raise VerifyException(f"{key} of {place} is {attribute}; expected {expected}")
    if key != "spmd.sharding":
        # A misspelt sharding would be no sharding at all.
        if key not in FUNCTION_ATTRIBUTES and (hint := did_you_mean(key, ["spmd.sharding"])):
            raise VerifyException(f"{place} has an attribute '{key}'{hint}")
        return
    if not isinstance(attribute, ShardingAttr):
        raise VerifyException(f"spmd.sharding of {place} is {attribute}; expected #spmd.sharding<@mesh, dp: S(0)>")
    try:
        check_sharding(attribute.data, mesh, meta)
    except ShardingError as error:
        raise ShardingError(f"{place}: {error.message}") from None


def sharding_of(value: Any) -> Sharding | None:
    """The sharding of a value; None where undecided."""
    if type(value) is OpResult:  # told by its class, for asking what an op is an instance of is slow
        held: Any = value.op.properties.get("sharding")
        return held.data[value.index] if isinstance(held, ShardingsAttr) else None
    given = function_attrs(value.owner.parent_op(), "arg_attrs", value.index).get("spmd.sharding")
    return given.data if isinstance(given, ShardingAttr) else None


def is_local(function: Any) -> bool:
    """Whether the types of `function` are those of one rank, as localize makes them."""
    return function is not None and "spmd.local" in function.attributes


def global_shape(value: Any, mesh: Mesh | None) -> tuple[int, ...]:
    """The global shape of a value, before and after localize."""
    meta = meta_of(value.type)
    if meta is None:
        return ()
    owner = value.owner
    if not is_local(owner.parent_op()):
        return meta.shape
    if isinstance(owner, ValueOp):
        given = owner.of.data[value.index] if owner.of else None
    else:
        attribute = function_attrs(owner.parent_op(), "arg_attrs", value.index).get("spmd.of")
        given = attribute.data[0] if isinstance(attribute, ShapesAttr) else None
    sharding = sharding_of(value)
    if given is not None or sharding is None or mesh is None:
        return given or meta.shape
    return tuple(size * mesh.group_size(sharding.dim_axes(dim)) for dim, size in enumerate(meta.shape))


def function_attrs(function: Any, which: str, index: int) -> dict[str, Any]:
    """The attributes of argument (`arg_attrs`) or result (`res_attrs`) `index` of a function."""
    attrs = getattr(function, which, None)
    return dict(attrs.data[index].data) if attrs is not None and index < len(attrs.data) else {}


Spmd = Dialect(
    "spmd",
    [
        MeshOp,
        ConstantOp,
        ConstraintOp,
        ReshardOp,
        SliceOp,
        PartitionOp,
        PermuteOp,
        ExchangeOp,
        BroadcastOp,
        AllReduceOp,
        AllGatherOp,
        ReduceScatterOp,
        AllToAllOp,
        WaitOp,
        BucketOp,
        UnbucketOp,
        HaloOp,
        FoldOp,
    ],
    [ShardingAttr, ShardingsAttr, ArgumentsAttr, StructureAttr, ShapesAttr, SizeType, SizesAttr],
)
