"""Build ops of the IR from the nodes of a functional fx graph."""

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
from spmdir.core.placement.declaration import is_local_map
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
from spmdir.importer.decompose import decompose_node, has_rule
from spmdir.importer.fx_arguments import BoundCall, OpSignature, bind_arguments, convert_dtype, op_name, op_signature
from spmdir.importer.liveness import find_live_nodes
from spmdir.importer.local_cost import with_cost
from spmdir.importer.locations import location_attribute, node_location
from spmdir.importer.program import CONSTANT_BYTES, is_small, plain_tensor
from spmdir.importer.running_statistics import writes_statistics
from spmdir.importer.symbolic_sizes import SymbolTable, are_numbers
from spmdir.importer.torch_errors import torch_errors
from spmdir.rules.rule_set import default
from spmdir.torch_interop.bits import flat_bytes
from spmdir.torch_interop.ops import HigherOrderOperator, OpOverload, schema_of
from spmdir.torch_interop.schemas import is_mutable, is_random, reason_against
from spmdir.torch_interop.symbolic_numbers import is_open

INLINED = frozenset({"wrap_with_set_grad_enabled", "tag_activation_checkpoint", "invoke_subgraph"})
"""Higher-order ops that compute the results of their inner graph. The nodes of the graph replace them."""

DATA_DEPENDENT_IF: dict[str, Callable[[BoundCall, fx.Node], bool]] = {
    "aten.index.Tensor": lambda call, _: any(meta_of(mask.type).dtype in (I1, UI8) for mask in call.operands[1:]),  # type: ignore
    "aten.repeat_interleave.Tensor": lambda call, _: call.arguments.get("output_size") is None,
    "aten.one_hot": lambda call, _: "num_classes" not in call.arguments,
    "aten._ctc_loss": lambda _, node: False,
    # The second result is a table for the gradient, which accepts any size of it.
    "aten._ctc_loss.Tensor": lambda _, node: False,
    # The residuals are empty if the matrix does not have full rank.
    "aten.linalg_lstsq": lambda _, node: _uses_result(node, 1),
}
"""Op that torch tags as `dynamic_output_shape` → whether the shapes of a call of it depend on data."""


def _uses_result(node: fx.Node, index: int) -> bool:
    """Return whether result `index` of a node with several results has users."""
    return any(user.target is not operator.getitem or (user.args[1] == index and user.users) for user in node.users)


_LITERALS = (int, float, bool, str, type(None))
_COPY = torch.ops.aten.copy_.default
_CONSTRAIN = "spmdir.constrain"


class GraphBuilder:
    """Builds the ops of one function.

    Args:
        symbols: the symbols of the sizes in the graph.
        arguments: the arguments of the function, whose shapes define symbolic sizes.
        missing_rule: what to do with an op without a rule and without a decomposition: "error" rejects it, and "warn"
            builds it, to run replicated.

    Attributes:
        ops: the ops, in order.
        mutations: placeholder → the value that the graph copies into it.
        is_exact: whether no op was decomposed. Decompositions may round differently.
        rules: the sharding rules; an op without a rule is decomposed if possible.
        _sizes: the SSA values of symbolic sizes.
        _scalars: key of a call on 0-d tensors → its result, so that equal calls are built once.
    """

    def __init__(
        self, mesh: Mesh, symbols: SymbolTable, arguments: Iterable[SSAValue] = (), missing_rule: str = "warn"
    ):
        self.mesh = mesh
        self.rules = default()
        self.missing_rule = missing_rule
        self.symbols = symbols
        self.ops: list[Operation] = []
        self._sizes = SizeValues(arguments, symbols.evaluate_hint, self.ops.append)
        self.mutations: dict[fx.Node, SSAValue] = {}
        self.is_exact = True
        self._scalars: dict[tuple[Any, ...], Any] = {}

    def build(self, graph: fx.Graph, values: dict[fx.Node, Any]) -> Any:
        """Build the live nodes of `graph`, and return its outputs with a value in place of each node.

        Args:
            values: node → SSA value, literal, or tuple of these. It has the placeholders; the other nodes are added.

        Raises:
            UnsupportedError: the IR cannot express a node.
        """
        live_nodes = find_live_nodes(graph)
        for node in graph.nodes:
            if node in live_nodes and node not in values and node.op != "output":
                values[node] = self._build_node(node, graph, values)
        output = next(node for node in reversed(graph.nodes) if node.op == "output")
        return _substitute(output.args[0], values)

    def _build_node(self, node: fx.Node, graph: fx.Graph, values: dict[fx.Node, Any]) -> Any:
        """Build the ops of one node, and return its result: an SSA value, a number, or a tuple of these."""
        if node.op == "get_attr":
            return self._read_attribute(node, graph)
        if node.op != "call_function":
            raise UnsupportedError(
                f"node '{node.name}' is a {node.op} of '{node.target}'; expected calls of torch ops: "
                "trace with torch.export or make_fx instead of symbolic_trace",
                node_location(node),
            )
        target: Any = node.target
        if is_open(node.meta.get("val")):
            return self._build_size(node, values)
        if target is operator.getitem:
            return self._get_item(node, values)
        if not isinstance(target, OpOverload):
            is_higher_order = isinstance(target, HigherOrderOperator)
            return self._inline_graph(node, values) if is_higher_order else _evaluate_python_call(node, values)
        args = [_substitute(argument, values) for argument in node.args]
        kwargs = {name: _substitute(value, values) for name, value in node.kwargs.items()}
        if target is _COPY and isinstance(node.args[0], fx.Node) and node.args[0].op == "placeholder":
            self.mutations[node.args[0]] = args[1]
            return args[1]
        callee = _describe_callee(target)
        decomposition = None if has_rule(callee.name, self.rules) else self._decompose_call(node)
        if decomposition is not None:
            self.is_exact = False
            graph, input_nodes = decomposition
            placeholders = graph.find_nodes(op="placeholder")
            arguments = [values[input_node] for input_node in input_nodes]
            return self.build(graph, dict(zip(placeholders, arguments, strict=True)))
        return self._build_call(node, callee, args, kwargs)

    def _decompose_call(self, node: fx.Node) -> tuple[fx.Graph, list[fx.Node]] | None:
        """Return (graph, its inputs) to replace a call that has no rule; None to build the call as one op.

        Raises:
            UnsupportedError: there is no decomposition, and `missing_rule` is "error".
        """
        name, location = op_name(node.target), node_location(node)
        if name == _CONSTRAIN or reason_against(node.target):
            return None
        decomposition = decompose_node(node, self.rules)
        if decomposition is None and self.missing_rule == "error":
            raise UnsupportedError(
                f"'{node.name}' calls {name}, which has no rule and no decomposition into ops with rules; "
                "expected an op with a rule: add one with spmdir.rules.using_rules, or run the op "
                "replicated with missing_rule='warn'",
                location,
            )
        return decomposition

    def _build_size(self, node: fx.Node, values: dict[fx.Node, Any]) -> Number:
        """Return the number that a node computes from sizes, and append an op for it if it is symbolic."""
        location, target = node_location(node), node.target
        if isinstance(node.meta["val"], torch.SymBool):
            raise UnsupportedError(
                f"'{node.name}' compares symbolic sizes, and its result is used outside of assertions; "
                "expected a program without branches on sizes: trace it with a fixed size, or remove the "
                "branch",
                location,
            )
        arguments = [_substitute(argument, values) for argument in node.args]
        if isinstance(target, OpOverload):
            _check_data_dependence(node, target, location)
        name = _function_name(target)
        tensor = arguments[0] if arguments and isinstance(arguments[0], SSAValue) else None
        if name == SymSizeOp.name and tensor is not None:
            size: Number = sizes_of(tensor.type)[arguments[1]]
        elif name in FUNCTIONS and are_numbers(arguments):  # such as operator.mul
            size = apply(FUNCTIONS[name], *arguments)
        else:
            # Either the number of elements of a tensor, or a function that the IR lacks. The trace has the result as an
            # expression. For such a function, the IR gets an op without operands that returns this expression.
            size = self.symbols.convert(node.meta["val"], f"'{node.name}'", location)
            if name not in SIZE_OPS or tensor is None:
                name, arguments = SizeOfOp.name, []
        if is_symbolic(size) and size not in self._sizes.values:
            operands = [self._sizes.value(number) if is_symbolic(number) else number for number in arguments]
            op = SIZE_OPS[name].make(operands, size, self.symbols.evaluate_hint(size), location_attribute(node))
            self._sizes.values[size] = self._append(op, node)[0]
        return size

    def _read_attribute(self, node: fx.Node, graph: fx.Graph) -> Any:
        """Return the attribute of a module that a `get_attr` node reads; a tensor becomes a constant."""
        value: Any = graph.owning_module
        for part in str(node.target).split("."):
            value = getattr(value, part)
        if isinstance(value, Tensor):
            return self.build_constant(node, value)
        return value

    def build_constant(self, node: fx.Node, value: Tensor) -> SSAValue:
        """Return the result of a new `spmd.constant` with the tensor `value` of `node`."""
        if not is_small(value):
            raise UnsupportedError(
                f"'{node.name}' is a constant tensor of more than {CONSTANT_BYTES >> 20} MiB, or without "
                "values in memory; expected a small constant with values: register it as a buffer, or pass "
                "it as an input",
                node_location(node),
            )
        meta = tensor_meta(value, node, self.symbols, node_location(node))
        data = bytes(flat_bytes(plain_tensor(value)).tolist()).hex()
        op = ConstantOp.build_op([], [meta], (("value", data),), location=location_attribute(node))
        return self._append(op, node)[0]

    def _get_item(self, node: fx.Node, values: dict[fx.Node, Any]) -> Any:
        """Return the item of the results of an op that an `operator.getitem` node takes, and name it after the node."""
        source, index = (_substitute(argument, values) for argument in node.args)
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

    def _inline_graph(self, node: fx.Node, values: dict[fx.Node, Any]) -> Any:
        """Build the ops of the inner graph of a higher-order op in place of the op; its last arguments are the inputs.

        `wrap_with_set_grad_enabled(True, body, x)` becomes the ops of `body` on `x`.
        """
        name = getattr(node.target, "__name__", str(node.target))
        arguments = [_substitute(argument, values) for argument in node.args]
        body = next((argument for argument in arguments if isinstance(argument, fx.GraphModule)), None)
        if name not in INLINED or body is None:
            raise UnsupportedError(
                f"node '{node.name}' calls the higher-order op {name}; expected a graph of torch ops: "
                "replace control flow and compiled regions before tracing",
                node_location(node),
            )
        placeholders = body.graph.find_nodes(op="placeholder")
        inputs = arguments[len(arguments) - len(placeholders) :]
        return self.build(body.graph, dict(zip(placeholders, inputs, strict=True)))

    def _build_call(self, node: fx.Node, callee: _Callee, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Build the op of a call, after its rewrite by `REWRITES`, and return its result; a tuple for several results.

        A call that the rewrite replaces by its operand builds no op. A call on 0-d tensors that equals an earlier call
        returns the result of the earlier call.

        Args:
            args: the positional arguments, with a value in place of each node.
            kwargs: the keyword arguments, likewise.
        """
        location, name = node_location(node), callee.name
        if callee.needs_checks:
            _check_call(node, node.target, location)
        if "val" not in node.meta:
            raise UnsupportedError(
                f"node '{node.name}' has no meta['val']; expected an example value with a shape: trace the graph again",
                location,
            )
        result = node.meta["val"]
        if result is None and callee.returns_tensors:
            raise UnsupportedError(
                f"'{node.name}' calls {name}, whose result is not a dense tensor; expected dense tensors: "
                "use an op that returns one, or convert the result with to_dense() before",
                location,
            )
        if type(result) in _LITERALS:
            return result
        if callee.needs_checks and name not in REWRITES and name != _CONSTRAIN:
            require_admitted_node(node)
        leaves = result if isinstance(result, (tuple, list)) else (result,)
        metas = tuple(
            [tensor_meta(leaf, node, self.symbols, location) if isinstance(leaf, Tensor) else None for leaf in leaves]
        )
        call = bind_arguments(callee.signature, args, kwargs, metas, location)
        if name == _CONSTRAIN:
            return self._build_constraint(node, call, location)
        if is_local_map(name):
            operand_metas = [meta for operand in call.operands if (meta := meta_of(operand.type)) is not None]
            arguments = with_cost(node.target, operand_metas, metas, call.arguments, self.mesh)
            call = attrs.evolve(call, arguments=arguments)
        if name in DATA_DEPENDENT_IF and DATA_DEPENDENT_IF[name](call, node):
            raise _data_dependence_error(node, name, location)
        if name in REWRITES:
            source = call.operands[0] if call.operands else None
            rewritten = REWRITES[name](call, node)
            if rewritten is None:
                return source
            call = rewritten
        attributes, sizes = self._sizes.operands(tuple(sorted(call.arguments.items())))
        is_scalar_call = _is_scalar_call(call, node.target)
        call_key = (call.name, *call.operands, *sizes, repr(attributes), metas)
        if is_scalar_call and call_key in self._scalars:
            return self._scalars[call_key]
        op = op_class(call.name).build_op(
            [*call.operands, *sizes],
            call.results,
            attributes,
            structure=call.structure,
            location=location_attribute(node),
        )
        results = self._append(op, node)
        if isinstance(result, (tuple, list)):
            return tuple(value if meta else leaf for value, meta, leaf in zip(results, metas, leaves, strict=True))
        if is_scalar_call:
            self._scalars[call_key] = results[0]
        return results[0]

    def _build_constraint(self, node: fx.Node, call: BoundCall, location: Location | None) -> SSAValue:
        """Build the `spmd.constraint` of a call of `spmdir.constrain`, and return its result."""
        try:
            sharding = as_sharding(call.arguments["sharding"], self.mesh)
        except SpmdirError as error:
            raise error.at(location, f"constraint '{node.name}'") from None
        op = ConstraintOp.build(call.operands[0], sharding, location_attribute(node))
        return self._append(op, node)[0]

    def _append(self, op: Operation, node: fx.Node) -> Any:
        """Append an op, name its results after `node` (`mm`, or `topk_0` and `topk_1`), and return them."""
        self.ops.append(op)
        if len(op.results) == 1:
            keep_name(op.results[0], node.name)
        else:
            for index, result in enumerate(op.results):
                keep_name(result, f"{node.name}_{index}")
        return op.results


def _is_scalar_call(call: BoundCall, target: Any) -> bool:
    """Return whether a call computes one 0-d tensor from 0-d tensors, without random numbers.

    Equal calls of this kind are merged: optimizers repeat them for each parameter, as for the bias correction of Adam.
    """
    metas = [meta_of(operand.type) for operand in call.operands]
    is_scalar = bool(metas) and all(meta is not None and meta.rank == 0 for meta in (*metas, *call.results))
    return is_scalar and len(call.results) == 1 and not is_random(target)


def _function_name(target: Any) -> str:
    """Return the name in the IR of a function on numbers: the op name of an overload, else such as `operator.mul`."""
    if isinstance(target, OpOverload):
        return op_name(target)
    module = getattr(target, "__module__", "").removeprefix("_") or ""
    return f"{module}.{getattr(target, '__name__', target)}"


def _substitute(argument: Any, values: dict[fx.Node, Any]) -> Any:
    """Return `argument` with the value of each node in place of the node."""
    if isinstance(argument, fx.Node):
        return values[argument]
    if type(argument) in _LITERALS:
        return argument
    if isinstance(argument, (list, tuple)):
        return tuple(_substitute(entry, values) for entry in argument)
    if isinstance(argument, dict):
        return {key: _substitute(entry, values) for key, entry in argument.items()}
    return argument


def _evaluate_python_call(node: fx.Node, values: dict[fx.Node, Any]) -> Any:
    """Return the result of a Python function on numbers, such as `operator.mul`.

    Raises:
        UnsupportedError: the function fails, or is not one of Python's operators, `math` or `torch` on numbers.
    """
    target: Any = node.target
    value = node.meta.get("val")
    arguments = _substitute(node.args, values)
    module = getattr(target, "__module__", "")
    if module in ("_operator", "math", "torch") and type(value) in (int, float, bool, str):
        return value
    if module == "_operator" and all(isinstance(argument, (int, float)) for argument in arguments):
        with torch_errors(f"'{node.name}' cannot be evaluated on {arguments}", node):
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
    """The properties of a torch op that are the same for all calls of it.

    Attributes:
        needs_checks: whether some calls of the op are rejected.
        returns_tensors: whether some results are tensors.
    """

    name: str
    signature: OpSignature
    needs_checks: bool
    returns_tensors: bool


@cache
def _describe_callee(target: Any) -> _Callee:
    """Return the properties of an op; they are computed once, because a program calls few ops many times."""
    name = op_name(target)
    needs_checks = is_mutable(target) or name in STATISTICS or bool(reason_against(target))
    needs_checks = needs_checks or any(tag in target.tags for tag in _DATA_DEPENDENT)
    returns_tensors = any("Tensor" in str(returned.type) for returned in schema_of(target).returns)
    return _Callee(name, op_signature(target), needs_checks, returns_tensors)


def _check_call(node: fx.Node, target: Any, location: Location | None) -> None:
    """Raise UnsupportedError if programs may not contain the call `node` of the op `target`.

    Such a call writes to an argument or to running statistics, reads a number out of a tensor, or has results whose
    shapes depend on data.
    """
    if is_mutable(target):
        require_admitted_node(node)
    if writes_statistics(target, node.args, node.kwargs):
        raise UnsupportedError(
            f"'{node.name}' calls {op_name(target)}, which writes running statistics without declaring it in its "
            "schema; expected batch_norm, or a norm with track_running_stats=False",
            location,
        )
    _check_data_dependence(node, target, location)


def _check_data_dependence(node: fx.Node, target: Any, location: Location | None) -> None:
    """Raise UnsupportedError if shapes of results depend on data, as those of `aten.nonzero`.

    Ops of `DATA_DEPENDENT_IF` pass: their shapes depend on data only for some arguments, which are not known here.
    """
    reject_numbers((node,))
    name = op_name(target)
    if torch.Tag.dynamic_output_shape in target.tags and name not in DATA_DEPENDENT_IF:
        raise _data_dependence_error(node, name, location)


def _data_dependence_error(node: fx.Node, name: str, location: Location | None) -> UnsupportedError:
    """Return the error of a call of the op `name` whose result has a shape that depends on data."""
    return UnsupportedError(
        f"'{node.name}' calls {name}, whose result has a shape that depends on data; expected a shape that "
        "depends only on input shapes: use an op of fixed shape, such as torch.where with a mask",
        location,
    )


def tensor_meta(value: Tensor, node: fx.Node, symbols: SymbolTable, location: Location | None = None) -> TensorMeta:
    """Return the shape and element type of `value`, a result of `node`.

    Raises:
        UnsupportedError: a size depends on data, or the tensor is not dense, or its element type is not supported.
    """
    shape = value.shape
    if value.layout != torch.strided or value.is_quantized:
        raise UnsupportedError(f"'{node.name}' has layout {value.layout}; expected a dense tensor", location)
    dtype = convert_dtype(value.dtype, f"'{node.name}'", location)
    if any(map(is_open, shape)):
        return symbols.tensor_meta(value, dtype, f"'{node.name}'", location)
    return _cached_meta(shape, dtype)


@lru_cache(maxsize=65536)
def _cached_meta(shape: Any, dtype: DType) -> TensorMeta:
    """Return the `TensorMeta` of fixed sizes. Calls with equal arguments return the same object."""
    return TensorMeta(tuple(shape), dtype)
