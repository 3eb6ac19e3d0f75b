"""The base class of all tensor ops: operands, literal arguments, and a sharding for each result.

    %0, %1 = NAME(%x, [%a, none]) {dim = 1} : tensor<4x8xf32> <dp: S(0)>, none needs (<dp: S(0)>, <>) of [10, 8], none

`needs` lists the shardings that the op requires of its operands, if their own differ. `propagate` writes it, and
`insert-reshard` removes it. After localize, `of` lists the global shapes of results whose size differs between ranks.
The attributes that passes set on an op follow last, as `attributes {name = attribute}`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, ClassVar

from xdsl.dialects.builtin import UNKNOWN_LOC, TensorType
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import IRDLOperation, opt_prop_def, var_operand_def, var_result_def
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from spmdir.core.errors import ShardingError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.call import Call, Literal, Local, SizeOperand, Structure, with_sizes
from spmdir.core.placement.literals import LiteralError
from spmdir.core.placement.sharding import Sharding
from spmdir.core.placement.tensor import TensorMeta
from spmdir.dialects.attributes import (
    DYNAMIC,
    ArgumentsAttr,
    HostType,
    PendingType,
    ShapesAttr,
    ShardingsAttr,
    StructureAttr,
    global_meta,
    meta_of,
    print_type,
    shardings_attr,
    type_of,
)
from spmdir.dialects.op_parser import (
    BARE_OPERANDS,
    OPERANDS,
    parse_operands,
    parse_tail,
    replace_size_operands,
    tail_end,
)
from spmdir.dialects.op_printer import print_operands, print_tail, print_with_sizes
from spmdir.dialects.parser_declarations import declared_hints, declared_mesh
from spmdir.dialects.sharding_checks import check_decided, check_sharding, check_shards, mesh_of
from spmdir.dialects.size_types import SizeType
from spmdir.dialects.stage import is_local


class ValueOp(IRDLOperation):
    """Base class of the tensor ops of `aten`, other torch libraries and `spmd`."""

    inputs = var_operand_def()
    outputs = var_result_def()
    arguments = opt_prop_def(ArgumentsAttr)
    structure = opt_prop_def(StructureAttr)
    sharding = opt_prop_def(ShardingsAttr)
    needs = opt_prop_def(ShardingsAttr)
    of = opt_prop_def(ShapesAttr)

    CLAUSES: ClassVar[tuple[tuple[str, str], ...]] = ()
    """(keyword, argument) pairs that the custom form prints instead of `{…}`, in order."""
    PARENTHESISED: ClassVar[bool] = True
    """Whether operands print as `(…)`."""
    MAY_BE_OPEN: ClassVar[bool] = False
    """Whether the sharding may leave an axis to the compiler."""

    @property
    def tensors(self) -> Sequence[SSAValue]:
        """Return the operands without sizes, which come last."""
        operands = self._operands
        count = len(operands)
        while count and type(operands[count - 1]._type) is SizeType:
            count -= 1
        return operands if count == len(operands) else operands[:count]

    @property
    def sizes(self) -> Sequence[SSAValue]:
        """Return the operands that are sizes; arguments refer to them."""
        return self._operands[len(self.tensors) :]

    @property
    def argument(self) -> dict[str, Literal]:
        """Return argument name → literal."""
        attribute: Any = self.properties.get("arguments")
        return dict(attribute.data) if attribute is not None else {}

    @property
    def shardings(self) -> tuple[Sharding | None, ...]:
        """Return the sharding of each result; None if it is not decided."""
        attribute: Any = self.properties.get("sharding")
        return attribute.data if attribute is not None else (None,) * len(self.results)

    @property
    def metas(self) -> tuple[TensorMeta | None, ...]:
        """Return shape and element type of each result."""
        return tuple(meta_of(result.type) for result in self.results)

    def set_shardings(self, shardings: Sequence[Sharding | None]) -> None:
        """Set the sharding of each result."""
        self.properties["sharding"] = shardings_attr(tuple(shardings))

    def call(self) -> Call:
        """Return this op as a plain value, with the examples of symbolic sizes.

        The value is memoised until the types, the arguments or the structure change.
        """
        types = [value._type for value in (*self._operands, *self.results)]
        arguments, structure = self.properties.get("arguments"), self.properties.get("structure")
        memo = getattr(self, "_call", None)
        if memo is None or memo[0] != types or memo[1] is not arguments or memo[2] is not structure:
            memo = types, arguments, structure, _interned(self._build_call())
            self._call = memo
        return memo[3]

    def _build_call(self) -> Call:
        """Return the op as a plain value, with the examples of sizes in place of size operands."""
        arguments = self.arguments.data if self.arguments else ()
        operands = self._operands
        if operands and type(operands[-1]._type) is SizeType:
            operands = self.tensors
            arguments = with_sizes(arguments, [size.type.data.hint for size in self.sizes])  # type: ignore
        return Call(
            self.name,
            tuple(meta_of(operand._type) for operand in operands),  # type: ignore  # a hot accessor
            arguments,
            self.metas,
            self.structure.data if self.structure else None,
        )

    @classmethod
    def build_op(
        cls,
        operands: Sequence[SSAValue],
        results: Sequence[TensorMeta | None],
        arguments: tuple[tuple[str, Literal], ...] = (),
        shardings: Sequence[Sharding | None] | None = None,
        structure: Structure | None = None,
        location: Any = None,
    ) -> ValueOp:
        """Return a new op, which is in no block yet.

        Args:
            results: the type of each result; None for a result that the op does not return.
            arguments: (name, literal) pairs, sorted by name.
            shardings: one entry for each result; None if no sharding is decided.
            structure: how the operands fill tensor arguments; None if each operand is one argument.
            location: the location; unknown if None.
        """
        properties: dict[str, Attribute] = {}
        if arguments:
            properties["arguments"] = ArgumentsAttr(arguments)
        if structure is not None:
            properties["structure"] = StructureAttr(structure)
        if shardings is not None:
            properties["sharding"] = shardings_attr(tuple(shardings))
        return cls.create(
            operands=operands,
            result_types=list(map(cls.result_type, results)),
            properties=properties,
            location=location or UNKNOWN_LOC,
        )

    @classmethod
    def result_type(cls, meta: TensorMeta | None) -> Attribute:
        """Return the type of a result; None is a result that the op does not return."""
        return type_of(meta)

    def verify(self, verify_nested_ops: bool = True) -> None:
        """Verify the op without xDSL's slower verifier, which runs only if the op may violate xDSL's definition.

        This is so if the op has regions or successors, ends its block, or has a property of another class.
        """
        is_plain = (
            not self.regions and not self.successors and self.parent is not None and self.parent.last_op is not self
        )
        if is_plain and all(type(value) is _ATTRIBUTE_CLASSES.get(name) for name, value in self.properties.items()):
            self.check_admitted()
            self.check_counts()
        else:
            super().verify(verify_nested_ops)

    def verify_(self) -> None:
        self.check_admitted()
        self.check_counts()

    def check_admitted(self) -> None:
        """Raise SpmdirError if no program may have this op."""

    def check_counts(self) -> None:
        """Raise SpmdirError or VerifyException unless the op is well formed.

        Each property must have one entry for each value, and the operands and shardings must be valid.
        """
        for name, attribute, count, noun in (
            ("sharding", self.sharding, len(self.results), "result"),
            ("needs", self.needs, len(self.tensors) if self.needs else 0, "operand"),
            ("of", self.of, len(self.results), "result"),
        ):
            if attribute is not None and len(attribute.data) != count:
                raise VerifyException(
                    f"`{name}` has {len(attribute.data)} entries for {count} {noun}s; expected one for each {noun}"
                )
        self.check_operands()
        self.check(mesh_of(self.parent_op() or self))

    def check(self, mesh: Mesh | None) -> None:
        """Raise SpmdirError unless the shardings fit the mesh and the shapes. Subclasses add their own checks."""
        self.check_numbers(mesh)
        local = is_local(self.parent_op())
        for operand, need in zip(self.tensors, self.needs.data, strict=True) if self.needs else ():
            if need is not None:
                check_sharding(need, mesh, meta_of(operand.type), local)
                check_decided(need)
        global_shapes = self.of.data if self.of else (None,) * len(self.results)
        for result, sharding, shape in zip(self.results, self.shardings, global_shapes, strict=True):
            meta = meta_of(result.type)
            if meta is None and result.type != type_of(None):
                raise VerifyException(
                    f"has the result type {result.type}; expected a tensor of a known element type, or none"
                )
            if meta is not None and (shape is not None or DYNAMIC in meta.shape):
                check_shards(meta, shape, sharding, mesh)
            if sharding is None:
                continue
            check_sharding(sharding, mesh, meta and global_meta(shape, meta), local)
            if not self.MAY_BE_OPEN:
                check_decided(sharding)

    def check_operands(self) -> None:
        """Raise VerifyException unless the operands are tensors, followed by sizes that the arguments refer to."""
        arguments: Any = self.properties.get("arguments")
        has_only_tensors = all(type(operand._type) is TensorType for operand in self._operands)
        if has_only_tensors and (arguments is None or not _has_size_operand(arguments)):
            return
        for index, operand in enumerate(self.tensors):
            if type(operand._type) is not TensorType:
                how_to_get_tensor = _HOW_TO_GET_TENSOR.get(type(operand._type), "")
                raise VerifyException(
                    f"operand {index} is {print_type(operand._type)}; expected a tensor{how_to_get_tensor}"
                )
        count = len(self.sizes)
        indices = _size_operands(tuple(value for _, value in arguments.data) if arguments else ())
        if indices != set(range(count)):
            shown = ", ".join(f"%{index}" for index in sorted(indices)) or "none"
            raise VerifyException(
                f"has {count} size operands, but its arguments refer to {shown}; expected a reference to "
                "each: add the missing ones, or remove operands"
            )

    def check_numbers(self, mesh: Mesh | None) -> None:
        """Raise SpmdirError for a `Local` argument before localize, or one whose axes are not in the mesh."""
        for _, value in self.arguments.data if self.arguments else ():
            for number in value if isinstance(value, tuple) else (value,):
                for axis in number.all_axes if isinstance(number, Local) else ():
                    function = self.parent_op()
                    if mesh is None or not is_local(function):
                        raise ShardingError(
                            f"{number} depends on the rank, but the function has global tensors; expected "
                            "it only after localize: write a number that is equal on all ranks"
                        )
                    mesh.require(axis)

    def print(self, printer: Printer) -> None:
        """Print the op after its name: operands, arguments, types and shardings, and attributes that passes set."""
        tensors: Sequence[SSAValue] = self._operands
        sizes: Sequence[SSAValue] = ()
        if tensors and type(tensors[-1]._type) is SizeType:
            tensors, sizes = self.tensors, self.sizes
        if self.PARENTHESISED:
            printer.print_string("(")
            print_operands(printer, iter(tensors), self.structure.data if self.structure else (1,) * len(tensors))
            printer.print_string(")")
        elif tensors:
            printer.print_string(" ")
            printer.print_list(tensors, printer.print_ssa_value)
        tail = print_tail(self.CLAUSES, *map(self.properties.get, _TAIL_PROPERTIES), self.result_types)  # type: ignore
        print_with_sizes(printer, tail, sizes) if sizes else printer.print_string(tail)
        if self.attributes:
            printer.print_string(" attributes ")
            printer.print_attr_dict(self.attributes)

    @classmethod
    def parse(cls, parser: Parser) -> ValueOp:
        return cls.parse_from(parser, parser.pos)

    @classmethod
    def parse_from(cls, parser: Parser, start: int) -> ValueOp:
        """Return the op whose name ends at `start` of the parser's text, and move the parser to its end.

        Operands must be defined before. A malformed op is an error of the parser.
        """
        text = parser.lexer.input.content
        pattern = OPERANDS if cls.PARENTHESISED else BARE_OPERANDS
        match = pattern.match(text, start)
        if match is None:
            parser.raise_error(
                f"expected the operands of {cls.name} in parentheses, as in {cls.name}(%x, %y)", start, start + 1
            )
        operands, structure = parse_operands(parser, match[1], match.start(1))
        end = tail_end(text, match.end())
        tail = text[match.end() : end]
        if "%" in tail:
            tail, sizes = replace_size_operands(parser, tail, match.end())
            if sizes:
                operands += sizes
        try:
            properties, types = parse_tail(cls.CLAUSES, tail, declared_mesh(parser), declared_hints(parser))
        except LiteralError as error:
            parser.raise_error(str(error), match.end() + error.offset, match.end() + error.offset + 1)
        parser._resume_from(end)  # pyright: ignore[reportPrivateUsage]
        if structure is not None:
            properties = {**properties, "structure": StructureAttr(structure)}
        has_attributes = text.startswith("attributes", parser.pos)
        attributes = parser.parse_optional_attr_dict_with_keyword() if has_attributes else None
        return cls.create(
            operands=operands,
            result_types=types,
            properties=properties,
            attributes=attributes.data if attributes else {},
        )


@lru_cache(maxsize=65536)
def _interned(call: Call) -> Call:
    """Return one object for equal calls. Dictionaries compare keys by identity first, so look-ups are faster."""
    return call


_ATTRIBUTE_CLASSES: dict[str, type[Attribute]] = {
    "arguments": ArgumentsAttr,
    "structure": StructureAttr,
    "sharding": ShardingsAttr,
    "needs": ShardingsAttr,
    "of": ShapesAttr,
}


_HOW_TO_GET_TENSOR: dict[type[Attribute], str] = {
    PendingType: "; wait for it: `spmd.wait`",
    HostType: "; bring it back: `spmd.reload`",
}
"""Type of a value that is not a tensor yet → how to get the tensor, for messages."""


DECIDED = ("sharding", "needs")
"""The properties of an op that propagate writes. Ops that differ only in these compute the same values."""


_TAIL_PROPERTIES = ("arguments", "sharding", "needs", "of")


def _has_size_operand(arguments: ArgumentsAttr) -> bool:
    """Return whether an argument, or an entry of a list argument, is a size operand."""
    return any(
        type(value) is SizeOperand or (type(value) is tuple and any(type(entry) is SizeOperand for entry in value))
        for _, value in arguments.data
    )


def _size_operands(value: Any) -> set[int]:
    """Return the indices of the size operands in a literal."""
    if isinstance(value, SizeOperand):
        return {value.index}
    return set().union(*map(_size_operands, value)) if isinstance(value, tuple) else set()
