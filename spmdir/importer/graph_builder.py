"""The nodes of a functional fx graph → ops of the IR."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from functools import cache, lru_cache
from typing import Any

import attrs
import torch
from torch import Tensor, fx
from xdsl.ir import Operation, SSAValue

from spmdir.core.admitted_ops import STATISTICS
from spmdir.core.dtype import I1, UI8, DType
from spmdir.core.errors import Location, SpmdirError, UnsupportedError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import as_sharding
from spmdir.core.placement.tensor import TensorMeta
from spmdir.core.symbolic.expressions import Number, apply, is_symbolic
from spmdir.dialects.aten import op_class
from spmdir.dialects.attributes import meta_of, sizes_of
from spmdir.dialects.names import keep_name
from spmdir.dialects.reshard_ops import ConstraintOp
from spmdir.dialects.size_ops import FUNCTIONS, SIZE_OPS, SizeOfOp, SizeValues, SymSizeOp
from spmdir.dialects.spmd import ConstantOp
from spmdir.importer.admitted_nodes import reject_numbers, require_admitted_node
from spmdir.importer.canonicalize import REWRITES
from spmdir.importer.decompose import decomposed, has_rule
from spmdir.importer.fx_arguments import Bound, OpSignature, bind, dtype_of, op_name, signature
from spmdir.importer.liveness import live
from spmdir.importer.locations import location_attribute, node_location
from spmdir.importer.program import is_small, plain_tensor
from spmdir.importer.running_statistics import writes_statistics
from spmdir.importer.symbolic_sizes import SymbolTable, numbers
from spmdir.importer.torch_errors import torch_errors
from spmdir.rules.rule_set import default
from spmdir.torch_interop.bits import flat_bytes
from spmdir.torch_interop.ops import HigherOrderOperator, OpOverload, schema_of
from spmdir.torch_interop.schemas import is_mutable, is_random, reason_against
from spmdir.torch_interop.symbolic_numbers import is_open

INLINED = frozenset({"wrap_with_set_grad_enabled", "tag_activation_checkpoint", "invoke_subgraph"})
"""Higher-order ops that only say how to run their graph; its nodes are imported in their place."""

STATIC_UNLESS: dict[str, Callable[[Bound, fx.Node], bool]] = {
    "aten.index.Tensor": lambda call, _: any(meta_of(mask.type).dtype in (I1, UI8) for mask in call.operands[1:]),  # type: ignore
    "aten.repeat_interleave.Tensor": lambda call, _: call.arguments.get("output_size") is None,
    "aten.one_hot": lambda call, _: "num_classes" not in call.arguments,
    "aten._ctc_loss": lambda _, node: False,
    # The second result is a table for the gradient alone, which reads as much of it as there is.
    "aten._ctc_loss.Tensor": lambda _, node: False,
    # There are no residuals where the matrix has not full rank.
    "aten.linalg_lstsq": lambda _, node: _uses_result(node, 1),
}
"""Ops that torch tags as having data-dependent shapes → whether this call has them."""


def _uses_result(node: fx.Node, index: int) -> bool:
    """Return whether something uses result `index` of a node of several results."""
    return any(user.target is not operator.getitem or (user.args[1] == index and user.users) for user in node.users)


_LITERALS = (int, float, bool, str, type(None))
_COPY = torch.ops.aten.copy_.default
_CONSTRAIN = "spmdir.constrain"


class GraphBuilder:
    """Builds the ops of one function.

    Attributes:
        ops: what was built, in order.
        mutations: placeholder → the value that the graph copies into it.
        is_exact: whether no op is replaced by others, which may round in another way.
    """

    def __init__(
        self, mesh: Mesh, symbols: SymbolTable, arguments: Iterable[SSAValue] = (), missing_rule: str = "warn"
    ):
        self.mesh = mesh
        self.rules = default()
        self.missing_rule = missing_rule
        self.symbols = symbols
        self.ops: list[Operation] = []
        self._sizes = SizeValues(arguments, symbols.hint, self.ops.append)
        self.mutations: dict[fx.Node, SSAValue] = {}
        self.is_exact = True
        self._scalars: dict[tuple[Any, ...], Any] = {}

    def run(self, graph: fx.Graph, values: dict[fx.Node, Any]) -> Any:
        """Build the live nodes of `graph`; what it returns, with values for nodes.

        Args:
            values: node → SSA value, literal, or tuple of these; given for the placeholders.

        Raises:
            UnsupportedError: a node that the IR cannot say.
        """
        needed = live(graph)
        for node in graph.nodes:
            if node in needed and node not in values and node.op != "output":
                values[node] = self._value(node, graph, values)
        returned = next(node for node in reversed(graph.nodes) if node.op == "output")
        return _resolve(returned.args[0], values)

    def _value(self, node: fx.Node, graph: fx.Graph, values: dict[fx.Node, Any]) -> Any:
        if node.op == "get_attr":
            return self._attribute(node, graph)
        if node.op != "call_function":
            raise UnsupportedError(
                f"node '{node.name}' is a {node.op} of '{node.target}'; expected calls of torch ops: "
                "trace with torch.export or make_fx instead of symbolic_trace",
                node_location(node),
            )
        target: Any = node.target
        if is_open(node.meta.get("val")):
            return self._number(node, values)
        if target is operator.getitem:
            return self._item(node, values)
        if not isinstance(target, OpOverload):
            is_higher = isinstance(target, HigherOrderOperator)
            return self._inlined(node, values) if is_higher else _computed(node, values)
        args = [_resolve(argument, values) for argument in node.args]
        kwargs = {name: _resolve(value, values) for name, value in node.kwargs.items()}
        if target is _COPY and isinstance(node.args[0], fx.Node) and node.args[0].op == "placeholder":
            self.mutations[node.args[0]] = args[1]
            return args[1]
        callee = _callee(target)
        decomposition = None if has_rule(callee.name, self.rules) else self._decomposition(node)
        if decomposition is not None:
            self.is_exact = False
            graph, given = decomposition
            inputs = [inner for inner in graph.nodes if inner.op == "placeholder"]
            return self.run(graph, {inner: values[entry] for inner, entry in zip(inputs, given, strict=True)})
        return self._call(node, callee, args, kwargs)

    def _decomposition(self, node: fx.Node) -> tuple[fx.Graph, list[fx.Node]] | None:
        """Return the ops in the place of one that has no rule; None if it runs replicated."""
        name, place = op_name(node.target), node_location(node)
        if name == _CONSTRAIN or reason_against(node.target):
            return None
        decomposition = decomposed(node, self.rules)
        if decomposition is None and self.missing_rule == "error":
            raise UnsupportedError(
                f"'{node.name}' calls {name}, which has no rule and consists of no ops that have one; "
                "give it a rule with spmdir.rules.using_rules, or let it run replicated with missing_rule='warn'",
                place,
            )
        return decomposition

    def _number(self, node: fx.Node, values: dict[fx.Node, Any]) -> Number:
        """Return what a node computes of sizes; an op says so."""
        place, target = node_location(node), node.target
        if isinstance(node.meta["val"], torch.SymBool):
            raise UnsupportedError(
                f"'{node.name}' compares sizes, and more than an assertion uses it; expected one course for all sizes",
                place,
            )
        arguments = [_resolve(argument, values) for argument in node.args]
        if isinstance(target, OpOverload):
            _check_data_dependence(node, target, place)
        name = _function_name(target)
        measured = arguments[0] if arguments and isinstance(arguments[0], SSAValue) else None
        if name == SymSizeOp.name and measured is not None:
            size: Number = sizes_of(measured.type)[arguments[1]]
        elif name in FUNCTIONS and numbers(arguments):
            size = apply(FUNCTIONS[name], *arguments)
        else:
            size = self.symbols.number(node.meta["val"], f"'{node.name}'", place)
            name = name if name in SIZE_OPS and measured is not None else SizeOfOp.name
        if is_symbolic(size) and size not in self._sizes.values:
            given = [self._sizes.value(a) if is_symbolic(a) else a for a in arguments] if name != SizeOfOp.name else []
            op = SIZE_OPS[name].make(given, size, self.symbols.hint(size), location_attribute(node))
            self._sizes.values[size] = self._append(op, node)[0]
        return size

    def _attribute(self, node: fx.Node, graph: fx.Graph) -> Any:
        value: Any = graph.owning_module
        for part in str(node.target).split("."):
            value = getattr(value, part)
        if isinstance(value, Tensor):
            return self.constant(node, value)
        return value

    def constant(self, node: fx.Node, value: Tensor) -> SSAValue:
        """Return a `spmd.constant` of the tensor that `node` stands for."""
        if not is_small(value):
            raise UnsupportedError(
                f"'{node.name}' holds a tensor that is too large for a constant", node_location(node)
            )
        meta = tensor_meta(value, node, self.symbols, node_location(node))
        data = bytes(flat_bytes(plain_tensor(value)).tolist()).hex()
        op = ConstantOp.build_op([], [meta], (("value", data),), location=location_attribute(node))
        return self._append(op, node)[0]

    def _item(self, node: fx.Node, values: dict[fx.Node, Any]) -> Any:
        source, index = (_resolve(argument, values) for argument in node.args)
        if not isinstance(source, tuple):
            raise UnsupportedError(
                f"'{node.name}' takes item {index} of '{node.args[0]}', which is not a tuple; expected an op such as "
                "aten.select: trace the graph with torch.export or make_fx",
                node_location(node),
            )
        value = source[index]
        if isinstance(value, SSAValue):
            keep_name(value, node.name)
        return value

    def _inlined(self, node: fx.Node, values: dict[fx.Node, Any]) -> Any:
        name = getattr(node.target, "__name__", str(node.target))
        arguments = [_resolve(argument, values) for argument in node.args]
        body = next((argument for argument in arguments if isinstance(argument, fx.GraphModule)), None)
        if name not in INLINED or body is None:
            raise UnsupportedError(
                f"node '{node.name}' calls the higher-order op {name}; expected straight-line code: "
                "replace control flow and compiled regions by torch ops before tracing",
                node_location(node),
            )
        inputs = [inner for inner in body.graph.nodes if inner.op == "placeholder"]
        return self.run(body.graph, dict(zip(inputs, arguments[-len(inputs) :] if inputs else [], strict=True)))

    def _call(self, node: fx.Node, callee: _Callee, args: list[Any], kwargs: dict[str, Any]) -> Any:
        place, name = node_location(node), callee.name
        if callee.needs_checks:
            _check_call(node, node.target, place)
        if "val" not in node.meta:
            raise UnsupportedError(f"node '{node.name}' has no shape (no meta['val']); trace the graph again", place)
        result = node.meta["val"]
        if result is None and callee.gives_tensors:
            raise UnsupportedError(f"'{node.name}' calls {name}, which gives no dense tensor", place)
        if type(result) in _LITERALS:
            return result
        if callee.needs_checks and name not in REWRITES and name != _CONSTRAIN:
            require_admitted_node(node)
        leaves = result if isinstance(result, (tuple, list)) else (result,)
        metas = tuple(
            [tensor_meta(leaf, node, self.symbols, place) if isinstance(leaf, Tensor) else None for leaf in leaves]
        )
        call = bind(callee.signature, args, kwargs, metas, place)
        if name == _CONSTRAIN:
            return self._constraint(node, call, place)
        if name in STATIC_UNLESS and STATIC_UNLESS[name](call, node):
            raise _data_dependent(node, name, place)
        if name in REWRITES:
            source = call.operands[0] if call.operands else None
            rewritten = REWRITES[name](call, node)
            if rewritten is None:
                return source
            call = rewritten
        given, sizes = self._sizes.operands(tuple(sorted(call.arguments.items())))
        scalar = _is_of_scalars(call, node.target)
        said = (call.name, *call.operands, *sizes, repr(given), metas)
        if scalar and said in self._scalars:
            return self._scalars[said]
        op = op_class(call.name).build_op(
            [*call.operands, *sizes],
            call.results,
            given,
            structure=call.structure,
            location=location_attribute(node),
        )
        results = self._append(op, node)
        if isinstance(result, (tuple, list)):
            return tuple(r if meta else leaf for r, meta, leaf in zip(results, metas, leaves, strict=True))
        if scalar:
            self._scalars[said] = results[0]
        return results[0]

    def _constraint(self, node: fx.Node, call: Bound, place: Location | None) -> SSAValue:
        try:
            sharding = as_sharding(call.arguments["sharding"], self.mesh)
        except SpmdirError as error:
            raise error.at(place, f"constraint '{node.name}'") from None
        op = ConstraintOp.build(call.operands[0], sharding, location_attribute(node))
        return self._append(op, node)[0]

    def _append(self, op: Operation, node: fx.Node) -> Any:
        self.ops.append(op)
        if len(op.results) == 1:
            keep_name(op.results[0], node.name)
        else:
            for index, result in enumerate(op.results):
                keep_name(result, f"{node.name}_{index}")
        return op.results


def _is_of_scalars(call: Bound, target: Any) -> bool:
    """Return whether a call computes one 0-d tensor of 0-d tensors, so that the same call gives the same again.

    Optimizers compute what they share, such as a rate that depends on the count of steps, for each parameter.
    """
    metas = [meta_of(operand.type) for operand in call.operands]
    is_scalar = bool(metas) and all(meta is not None and meta.rank == 0 for meta in (*metas, *call.results))
    return is_scalar and len(call.results) == 1 and not is_random(target)


def _function_name(target: Any) -> str:
    """Return the name of a function of numbers in the IR, as `operator.mul`."""
    if isinstance(target, OpOverload):
        return op_name(target)
    module = getattr(target, "__module__", "").removeprefix("_") or ""
    return f"{module}.{getattr(target, '__name__', target)}"


def _resolve(argument: Any, values: dict[fx.Node, Any]) -> Any:
    if isinstance(argument, fx.Node):
        return values[argument]
    if type(argument) in _LITERALS:
        return argument
    if isinstance(argument, (list, tuple)):
        return tuple(_resolve(entry, values) for entry in argument)
    if isinstance(argument, dict):
        return {key: _resolve(entry, values) for key, entry in argument.items()}
    return argument


def _computed(node: fx.Node, values: dict[fx.Node, Any]) -> Any:
    """Return a Python function of numbers, such as `operator.mul` on sizes."""
    target: Any = node.target
    value = node.meta.get("val")
    arguments = _resolve(node.args, values)
    if getattr(target, "__module__", "") in ("_operator", "math", "torch") and type(value) in _LITERALS[:-1]:
        return value
    if getattr(target, "__module__", "") == "_operator" and all(isinstance(a, (int, float)) for a in arguments):
        with torch_errors(f"'{node.name}' does not run on {arguments}", node):
            return target(*arguments)
    name = getattr(target, "__name__", str(target))
    raise UnsupportedError(
        f"node '{node.name}' calls the Python function {name}; expected torch ops: "
        "trace with torch.export or make_fx instead of symbolic_trace",
        node_location(node),
    )


_DATA_DEPENDENT = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)


@attrs.frozen
class _Callee:
    """What is known of an op of torch, whatever it is called on.

    Attributes:
        needs_checks: whether a call of it may be one that no program has.
        gives_tensors: whether results are tensors.
    """

    name: str
    signature: OpSignature
    needs_checks: bool
    gives_tensors: bool


@cache
def _callee(target: Any) -> _Callee:
    name = op_name(target)
    is_odd = is_mutable(target) or name in STATISTICS or bool(reason_against(target))
    is_odd = is_odd or any(tag in target.tags for tag in _DATA_DEPENDENT)
    gives_tensors = any("Tensor" in str(returned.type) for returned in schema_of(target).returns)
    return _Callee(name, signature(target), is_odd, gives_tensors)


def _check_call(node: fx.Node, target: Any, place: Location | None) -> None:
    """Raise UnsupportedError if `node` writes to an argument, or what it gives depends on data as the IR cannot say."""
    if is_mutable(target):
        require_admitted_node(node)
    if writes_statistics(target, node.args, node.kwargs):
        raise UnsupportedError(
            f"'{node.name}' calls {op_name(target)}, which writes running statistics that its schema does not "
            "declare; expected batch_norm, or a norm with track_running_stats=False",
            place,
        )
    _check_data_dependence(node, target, place)


def _check_data_dependence(node: fx.Node, target: Any, place: Location | None) -> None:
    reject_numbers((node,))
    name = op_name(target)
    if torch.Tag.dynamic_output_shape in target.tags and name not in STATIC_UNLESS:
        raise _data_dependent(node, name, place)


def _data_dependent(node: fx.Node, name: str, place: Location | None) -> UnsupportedError:
    return UnsupportedError(
        f"'{node.name}' calls {name}, whose result's shape depends on data; "
        "use an op of fixed shape, such as torch.where with a mask",
        place,
    )


def tensor_meta(value: Tensor, node: fx.Node, symbols: SymbolTable, place: Location | None = None) -> TensorMeta:
    """Return shape and element type of what a node, at `place`, computes.

    Raises:
        UnsupportedError: a size depends on data, or the IR has no such tensors.
    """
    shape = value.shape
    if value.layout != torch.strided or value.is_quantized:
        raise UnsupportedError(f"'{node.name}' has layout {value.layout}; expected a dense tensor", place)
    dtype = dtype_of(value.dtype, f"'{node.name}'", place)
    if any(map(is_open, shape)):
        return symbols.meta(value, dtype, f"'{node.name}'", place)
    return _meta(shape, dtype)


@lru_cache(maxsize=65536)
def _meta(shape: Any, dtype: DType) -> TensorMeta:
    return TensorMeta(tuple(shape), dtype)
