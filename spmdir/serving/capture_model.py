"""Capture a causal language model as programs that share parameters and caches: `@decode`, and a prefill per length.

Hugging Face models call a registered attention function. That of this module writes the new keys and values into
caches and attends to them, so models need no change. Each function takes `ids` and `positions` [sequences, tokens] and
returns the next token of each sequence; see `spmdir.torch_interop.cache_ops` for positions. Prompts are padded on the
left with position -1, so the last token of each row is the last one of its prompt. A prefill also takes `rows`, the row
of the caches of each sequence; in `@decode`, sequence i has row i. With pages, all functions take `table` [sequences,
pages of a sequence] instead. The other inputs specify for each sequence how its token is chosen; see
`spmdir.torch_interop.sampling_ops`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import attrs
import torch
from torch import Tensor, nn
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, StringAttr, i64

import spmdir.torch_interop.cache_ops  # registers torch.ops.cache
import spmdir.torch_interop.sampling_ops  # noqa: F401  # registers torch.ops.sampling
from spmdir.core.arguments import INTEGER, accepts, instance
from spmdir.core.errors import SpmdirError, UnsupportedError, shown
from spmdir.core.mesh import MESH, Mesh, as_mesh
from spmdir.core.placement.sharding import Sharding, ShardingLike
from spmdir.core.placement.sharding_plan import ShardingPlan, as_plan
from spmdir.core.progress import say
from spmdir.dialects import ir
from spmdir.dialects.caches import CALLS
from spmdir.importer.importer import import_program
from spmdir.importer.torch_errors import torch_errors
from spmdir.serving.scheduler import DECODE, PREFILL
from spmdir.serving.supported_models import check_attention, check_model, text_config
from spmdir.serving.trace_call import trace_call
from spmdir.torch_interop.grouped_products import TracedGroupedProducts
from spmdir.torch_interop.modules import with_module

_ATTENTION = "spmdir_cache"
_STEP = "spmdir_step"


@accepts(
    model=instance(nn.Module, expected="a causal language model of Hugging Face transformers"),
    mesh=MESH,
    batch=INTEGER,
    max_length=INTEGER,
    prompt_lengths=instance(list, tuple, expected="a list of numbers of tokens"),
    max_top_k=INTEGER,
    new_tokens=INTEGER.optional,
    pages=INTEGER.optional,
    page_rows=INTEGER,
)
def capture(
    model: nn.Module,
    mesh: Mesh,
    plan: Mapping[str, ShardingLike | None] | ShardingPlan | str | None = None,
    *,
    batch: int,
    max_length: int,
    prompt_lengths: Sequence[int] = (32, 256),
    max_top_k: int = 64,
    new_tokens: int | None = None,
    pages: int | None = None,
    page_rows: int = 16,
) -> ModuleOp:
    """Return the programs of a causal language model, with caches as written arguments.

    Args:
        model: the model, on the CPU and in eval mode. It does not change.
        mesh: the mesh to partition the programs for.
        plan: as for `import_fx`, by the parameter names of the model; caches are `caches.0.keys`, `caches.0.values`, …
        batch: the number of sequences that the caches hold.
        max_length: the largest number of tokens of a sequence, with its prompt.
        prompt_lengths: the lengths to which prompts are padded. A function `@prefill_L` is captured for each length;
            longer prompts are prefilled in parts.
        max_top_k: the largest number of tokens from which `top_k` and `top_p` draw. Ranks exchange as many numbers.
        new_tokens: the expected number of new tokens of a request, by which the decision weighs `decode` and prefills;
            half of `max_length` if None.
        pages: the number of pages of a cache, which sequences share; None for one page of `max_length` rows for each of
            `batch` sequences.
        page_rows: the number of rows of a page, a divisor of `max_length`; without `pages`, it has no effect.

    Returns:
        A module with the functions `decode` and `prefill_L`. Arguments with equal names are shared.

    Raises:
        SpmdirError: a size is not positive, the model has fewer positions than `max_length`, its layers are not causal
            attention through registered functions, or it cannot be exported or imported.

    Example:
        >>> module = spmdir.serving.capture(model, spmdir.Mesh({"tp": 4}), batch=8, max_length=2048)
    """
    mesh = as_mesh(mesh)
    if new_tokens is None:
        new_tokens = max(max_length // 2, 1)
    lengths = _check_sizes(batch, max_length, prompt_lengths, max_top_k, new_tokens)
    check_model(model, max_length)
    shape, columns = (batch, max_length), 0
    if pages is not None:
        shape, columns = (pages, page_rows), _count_columns(pages, page_rows, max_length)
    serving = _with_caches(model, shape)
    serving.max_top_k = max_top_k  # type: ignore[assignment]
    modules = {}
    with torch.no_grad(), _attention(serving, _attend):
        for name, count, length in [(DECODE, batch, 1), *((f"{PREFILL}{length}", 1, length) for length in lengths)]:
            say("capturing {}", name)
            inputs = {key: torch.zeros(count, length, dtype=torch.int64) for key in ("ids", "positions")}
            if columns:
                inputs["table"] = torch.zeros(count, columns, dtype=torch.int64)
            elif name != DECODE:
                inputs["rows"] = torch.zeros(count, dtype=torch.int64)
            for key in ("temperatures", "top_k", "top_p", "seeds"):
                is_integer = key in ("top_k", "seeds")
                inputs[key] = torch.zeros(count, dtype=torch.int64 if is_integer else torch.float32)
            program = trace_call(serving, inputs, name)
            modules[name] = import_program(program, mesh, as_plan(plan, mesh), [Sharding((), mesh.name)], "warn")
    # While each of `batch` requests per length is prefilled once, the decode steps serve all rows together.
    calls = {name: new_tokens * len(lengths) if name == DECODE else batch for name in modules}
    return _join(modules, calls)


def _check_sizes(
    batch: int, max_length: int, prompt_lengths: Sequence[int], max_top_k: int, new_tokens: int
) -> list[int]:
    """Return the prompt lengths in ascending order, at most `max_length`; raise SpmdirError if a size is invalid."""
    for name, value, sizes in (
        ("batch", batch, [batch]),
        ("max_length", max_length, [max_length]),
        ("prompt_lengths", prompt_lengths, prompt_lengths),
        ("max_top_k", max_top_k, [max_top_k]),
        ("new_tokens", new_tokens, [new_tokens]),
    ):
        if not sizes or any(type(size) is not int or size < 1 for size in sizes):
            raise SpmdirError(f"{name} is {shown(value)}; expected a list of positive integers, as in [1, 16]")
    return sorted({min(length, max_length) for length in prompt_lengths})


def _count_columns(pages: int, page_rows: int, max_length: int) -> int:
    """Return the number of pages of the longest sequence; raise SpmdirError for invalid numbers of pages and rows."""
    if type(page_rows) is not int or page_rows < 1 or max_length % page_rows:
        raise SpmdirError(f"page_rows is {shown(page_rows)}; expected a divisor of max_length, {max_length}")
    columns = max_length // page_rows
    if type(pages) is not int or pages < columns:
        raise SpmdirError(
            f"pages is {shown(pages)}; expected at least {columns}, the pages of a sequence of {max_length} tokens"
        )
    return columns


@attrs.frozen(eq=False)
class _Step:
    """The arguments of the attention function in one call.

    Attributes:
        caches: the caches of each layer.
        positions, table: the places of the new tokens, see `cache_ops`.
        versions: name of a cache → its last version.
    """

    caches: nn.ModuleList
    positions: Tensor
    table: Tensor | None
    versions: dict[str, Tensor] = attrs.field(factory=dict)


class _Caches(nn.Module):
    """The caches of one layer."""

    keys: Tensor
    values: Tensor

    def __init__(self, shape: tuple[int, int], keys: Tensor, values: Tensor):
        """Make empty caches with pages and rows of `shape`."""
        super().__init__()
        for name, rows in (("keys", keys), ("values", values)):  # [sequences, heads, tokens, size of a head]
            cache = torch.zeros(*shape, rows.shape[1], rows.shape[3], dtype=rows.dtype, device=rows.device)
            self.register_buffer(name, cache)


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Write the new keys and values into the caches of a layer, and attend to the caches: an attention function.

    Args:
        module: the attention layer.
        query, key, value: [sequences, heads, tokens, size of a head].
        kwargs: further arguments of the layer, among them the `_Step`.
    """
    step: _Step = kwargs.pop(_STEP)
    layer = check_attention(module, attention_mask, kwargs)
    versions = []
    for cache, rows in (("keys", key), ("values", value)):
        name = f"caches.{layer}.{cache}"
        last = step.versions.get(name, getattr(step.caches[layer], cache))
        step.versions[name] = torch.ops.cache.write(last, rows.transpose(1, 2), step.positions, step.table)
        versions.append(step.versions[name])
    window = sliding_window or 0
    return torch.ops.cache.attend(query.transpose(1, 2), *versions, step.positions, step.table, scaling, window), None


class _Serving:
    """The first base class of a model with caches; the second is the class of the model."""

    def forward(
        self: Any,
        ids: Tensor,
        positions: Tensor,
        rows: Tensor | None = None,
        table: Tensor | None = None,
        *,
        temperatures: Tensor,
        top_k: Tensor,
        top_p: Tensor,
        seeds: Tensor,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return (the next token of each sequence, name of a cache → its last version).

        The token is a number outside of the vocabulary if any logit of the sequence is NaN.

        Logits may be sharded over the vocabulary: each rank reduces its logits to a few candidates.
        """
        step = _Step(self.caches, positions, table if rows is None else rows.unsqueeze(1))
        outputs = super().forward(  # type: ignore[misc]  # of the model
            input_ids=ids, position_ids=positions.clamp(0), use_cache=False, logits_to_keep=1, **{_STEP: step}
        )
        logits = outputs.logits[:, -1].float()
        tokens = torch.arange(logits.shape[-1], device=logits.device)
        settings = (temperatures, top_k, top_p, seeds, positions)
        drawn = torch.ops.sampling.draw(logits, tokens, *settings, min(self.max_top_k, logits.shape[-1]))
        return torch.ops.sampling.choose(*drawn, *settings), step.versions


def _with_caches(model: nn.Module, shape: tuple[int, int]) -> nn.Module:
    """Return a copy of the model with caches of (pages, rows), which shares the parameters and modules of the model."""
    shapes = _find_rows(model)
    caches = nn.ModuleList(_Caches(shape, *shapes[layer]) for layer in sorted(shapes))
    serving = with_module(model, "caches", caches)
    serving.__class__ = type(type(model).__name__, (_Serving, type(model)), {})
    return serving


def _find_rows(model: nn.Module) -> dict[int, tuple[Tensor, Tensor]]:
    """Return layer → keys and values that its attention gets for one token: [1, heads, 1, size of a head]."""
    rows: dict[int, tuple[Tensor, Tensor]] = {}
    config, model_name = text_config(model), type(model).__name__
    layer_types = getattr(config, "layer_types", None) or []

    def record(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        scaling: float | None = None,
        sliding_window: int | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, None]:
        """Record the keys and values of a layer; return zeros in the shape of its attention. An attention function."""
        layer = check_attention(module, mask, kwargs)
        if layer_types[layer : layer + 1] == ["sliding_attention"] and sliding_window is None:
            raise UnsupportedError(
                f"layer {layer} of {model_name} has a window, but does not pass sliding_window; expected this "
                "argument of the attention function: pass it, or set layer_types to full_attention"
            )
        rows[layer] = key, value
        return query.new_zeros(*query.transpose(1, 2).shape[:3], value.shape[3]), None

    token = torch.zeros(1, 1, dtype=torch.int64)
    task = f"{model_name} cannot compute one token"
    with torch.no_grad(), _attention(model, record), torch_errors(task), TracedGroupedProducts():
        outputs = model(input_ids=token, position_ids=token, use_cache=False, logits_to_keep=1)
    if not isinstance(getattr(outputs, "logits", None), Tensor):
        raise UnsupportedError(
            f"{model_name} returns no logits; expected a causal language model: use a class such as LlamaForCausalLM"
        )
    if not rows or sorted(rows) != list(range(config.num_hidden_layers)):
        raise UnsupportedError(
            f"{model_name} calls the attention function of transformers in {len(rows)} of {config.num_hidden_layers} "
            "layers; expected a causal language model whose layers all call ALL_ATTENTION_FUNCTIONS"
        )
    return rows


@contextmanager
def _attention(model: nn.Module, function: Any) -> Iterator[None]:
    """Let the layers of a model call an attention function."""
    try:
        from transformers import AttentionInterface
    except ImportError as error:
        raise UnsupportedError(
            "the package transformers is missing; expected it for serving: run pip install transformers"
        ) from error
    config: Any = model.config
    implementation = config._attn_implementation
    AttentionInterface.register(_ATTENTION, function)
    config._attn_implementation = _ATTENTION
    try:
        yield
    finally:
        config._attn_implementation = implementation


def _join(modules: Mapping[str, ModuleOp], calls: Mapping[str, int]) -> ModuleOp:
    """Return one module with the functions of all modules, renamed to the keys of `modules`.

    The functions move into the first module, whose mesh remains.

    Args:
        calls: name → the number of calls of the function, relative to others.
    """
    joined_module = next(iter(modules.values()))
    for name, module in modules.items():
        function = ir.main_function(module)
        function.attributes[CALLS] = IntegerAttr(calls[name], i64)
        function.properties["sym_name"] = StringAttr(name)
        if module is not joined_module:
            function.detach()
            joined_module.body.block.add_op(function)
    ir.verify(joined_module)
    return joined_module
