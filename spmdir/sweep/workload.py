"""Workloads: the models that a sweep plans for, with a batch of any size and a reduced number of layers.

A model with 80 equal layers is never captured as a whole. Two programs with fewer layers are priced, and their
difference is the cost of further layers. In a model whose layers alternate between two kinds, a period has two layers:

    layers               0 dense | 1 sparse  2 dense | 3 sparse  4 dense | …
    first                1, because layer 0 has no counterpart in the periods
    period               2
    traced               7: three periods
    depths               7 and 17: three and eight periods
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from spmdir.core.errors import SpmdirError, UnsupportedError, shown
from spmdir.core.plugin_code import plugin_failure
from spmdir.core.text_file import read_text_file
from spmdir.plugins import load_module

MOST_LAYERS = 1024
"""The largest number of layers of a model."""

PERIODS = 3
"""The number of periods of layers in a traced program. The middle one can be repeated."""

FURTHER_LAYERS = 9
"""The least number of layers by which the two programs that are priced differ."""

DEFAULT_SEQUENCE = 4096
"""The largest sequence length that is used by default."""


@attrs.frozen
class TrainingCase:
    """A model, its loss and a batch: arguments of `training_step`, on the meta device."""

    model: nn.Module
    loss: Callable[..., Tensor]
    batch: tuple[Any, ...]


@attrs.frozen
class LayerPattern:
    """The number of layers of a model, and how they repeat.

    Attributes:
        count: the number of layers.
        first: the number of layers before the first period.
        period: the number of layers of one period; the remaining layers are a whole number of periods.
    """

    count: int
    first: int
    period: int

    @property
    def traced(self) -> int:
        """The number of layers of the traced program: three periods, or the whole model if it is short."""
        depth = self.first + PERIODS * self.period
        return depth if depth <= self.count else self.count

    @property
    def depths(self) -> tuple[int, int] | tuple[int]:
        """The numbers of layers of the programs that are priced: two, or the whole model if it is short.

        The larger program has at least `FURTHER_LAYERS` more layers, in whole periods.
        """
        upper = self.traced + math.ceil(FURTHER_LAYERS / self.period) * self.period
        return (self.traced, upper) if upper < self.count else (self.count,)


def layers_of(kinds: Sequence[Hashable]) -> LayerPattern:
    """Return how the layers of a model repeat: the pattern with the fewest layers to price.

    For each length of a period, the longest part at the end of the model that repeats with this period is found.

    Args:
        kinds: the kind of each layer.

    Example:
        >>> layers_of(["dense", "sparse", "sparse", "sparse"])
        LayerPattern(count=4, first=1, period=1)
    """
    count = len(kinds)
    candidates = [LayerPattern(count, count - 1, 1)]
    for period in range(1, count // 2 + 1):
        first = count - period
        while first > 0 and kinds[first - 1] == kinds[first - 1 + period]:
            first -= 1
        incomplete = (count - first) % period
        candidates.append(LayerPattern(count, first + incomplete, period))
    return min(candidates, key=lambda layers: (layers.first + PERIODS * layers.period, layers.period))


class Workload(ABC):
    """A model of any depth, with a batch of any number of samples.

    Attributes:
        name: the name of the model in reports.
        sequence: the tokens of a sample; 1 if samples have no tokens.
    """

    name: str
    sequence: int

    @property
    @abstractmethod
    def layers(self) -> LayerPattern | None:
        """The layers of the model; None if its depth cannot be changed."""

    @property
    def samples(self) -> int | None:
        """The only batch size of the model; None if it has several."""
        return None

    def model(self) -> nn.Module:
        """Return the model with all layers, on the meta device."""
        return self.case(1, None).model

    @abstractmethod
    def case(self, samples: int, depth: int | None) -> TrainingCase:
        """Return the model with `depth` layers, or with all layers if None, and a batch of `samples` samples."""


@attrs.frozen(slots=False)
class ConfiguredModel(Workload):
    """A causal language model of transformers, from its `config.json`.

    Attributes:
        name: the name of the model in reports.
        config: the content of the file, a JSON object.
        sequence: the number of tokens of a sample.
    """

    name: str
    config: str
    sequence: int

    @classmethod
    def read(cls, path: str, sequence: int | None = None) -> ConfiguredModel:
        """Read a `config.json`.

        Args:
            sequence: the number of tokens of a sample; by default, what the model supports, at most 4096.

        Raises:
            SpmdirError: the file is not the configuration of a model that transformers knows.
        """
        text = read_text_file(path, f"the configuration {path}")
        try:
            config = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise SpmdirError(
                f"{path} is not JSON: {error}; expected the config.json of a model: correct the path"
            ) from None
        kind = config.get("model_type") if isinstance(config, dict) else None
        if not isinstance(kind, str):
            raise SpmdirError(f"{path} has no model_type; expected the config.json of a model of transformers")
        workload = cls(Path(path).stem if Path(path).stem != "config" else kind, text, sequence or 1)
        longest = getattr(workload.configuration(None), "max_position_embeddings", None) or DEFAULT_SEQUENCE
        return attrs.evolve(workload, sequence=sequence or min(longest, DEFAULT_SEQUENCE))

    def configuration(self, depth: int | None) -> Any:
        """Return the configuration of transformers for a number of layers; None leaves the number unchanged.

        Raises:
            SpmdirError: transformers is not installed, or cannot read the configuration.
        """
        if importlib.util.find_spec("transformers") is None:
            raise SpmdirError(
                "the package transformers is missing; expected it for a config.json: run pip install transformers"
            )
        from transformers import AutoConfig

        content = json.loads(self.config)
        kind = content.pop("model_type")
        content.pop("auto_map", None)  # code of the author, which transformers would run
        with library_errors(f"transformers cannot read the configuration of '{self.name}'"):
            config = AutoConfig.for_model(kind, **content)
            count = getattr(config, "num_hidden_layers", 0)
            if not isinstance(count, int) or not 0 <= count <= MOST_LAYERS:
                raise SpmdirError(
                    f"num_hidden_layers of '{self.name}' is {shown(count)}; expected an integer from 0 to "
                    f"{MOST_LAYERS}: correct config.json"
                )
            if depth is not None and count:
                lists_of_layers = {
                    key: value for key, value in vars(config).items() if isinstance(value, list) and len(value) == count
                }
                config.num_hidden_layers = depth
                for key, value in lists_of_layers.items():
                    setattr(config, key, value[:depth])
        config.use_cache = False
        return config

    @cached_property
    def layers(self) -> LayerPattern | None:
        """How the layers repeat; None if the model does not have `num_hidden_layers` layers in a list.

        Two layers are of one kind if their parameters have equal shapes and their entries in the lists of the
        configuration, such as `layer_types`, are equal.
        """
        config = self.configuration(None)
        count = getattr(config, "num_hidden_layers", 0)
        layers = layers_in(self._model(config))
        if not count or len(layers) != count:
            return None
        lists_of_layers = [value for value in vars(config).values() if isinstance(value, list) and len(value) == count]
        kinds = [
            (_shape_key(layer), *(repr(entries[index]) for entries in lists_of_layers))
            for index, layer in enumerate(layers)
        ]
        return layers_of(kinds)

    def _model(self, config: Any) -> nn.Module:
        """Return the language model of a configuration, on the meta device."""
        from transformers import AutoModelForCausalLM

        with library_errors(f"transformers cannot build '{self.name}'"), torch.device("meta"):
            # Dropout is off, because kernels on CPUs have none, and the memory of masks would be wrong.
            return AutoModelForCausalLM.from_config(config).eval()

    def case(self, samples: int, depth: int | None) -> TrainingCase:
        tokens = torch.zeros(samples, self.sequence, dtype=torch.long, device="meta")
        return TrainingCase(self._model(self.configuration(depth)), _language_loss, (tokens,))


def _language_loss(model: nn.Module, tokens: Tensor) -> Tensor:
    return model(input_ids=tokens, labels=tokens).loss


@attrs.frozen(slots=False)
class PythonModel(Workload):
    """A model that a Python function builds: `build(samples) → (model, loss, batch)`.

    If the function has a parameter `layers`, its default is the number of layers, and all layers are equal.

    Attributes:
        name: `file.py:function` or `package.module:function`.
        sequence: the number of tokens of a sample.
        source: the content of the file; empty for a module of a package.
    """

    name: str
    sequence: int = 1
    source: str = attrs.field(default="", repr=False)

    @classmethod
    def read(cls, name: str, sequence: int | None = None) -> PythonModel:
        """Return the model that `name` builds. The file is executed when the model is built.

        Raises:
            SpmdirError: the file cannot be read.
        """
        path = name.rpartition(":")[0]
        source = read_text_file(path, f"the model {path}") if path.endswith(".py") else ""
        return cls(name, sequence or 1, source)

    @property
    def _function(self) -> Callable[..., Any]:
        """The function that `name` refers to."""
        path, _, name = self.name.rpartition(":")
        with library_errors(f"cannot import '{path}'"):
            module = load_module(path) if path.endswith(".py") else importlib.import_module(path)
        function = getattr(module, name, None)
        if not callable(function):
            raise SpmdirError(f"'{path}' has no function '{name}'; expected FILE.py:FUNCTION: correct the name")
        return function

    @cached_property
    def layers(self) -> LayerPattern | None:
        """How the layers repeat: all are equal. None if the function has no parameter `layers`."""
        parameter = inspect.signature(self._function).parameters.get("layers")
        if parameter is None:
            return None
        if not isinstance(parameter.default, int) or not 0 < parameter.default <= MOST_LAYERS:
            raise SpmdirError(
                f"the parameter layers of {self.name} has the default {shown(parameter.default)}; expected the number "
                f"of layers, from 1 to {MOST_LAYERS}"
            )
        return LayerPattern(parameter.default, 0, 1)

    def case(self, samples: int, depth: int | None) -> TrainingCase:
        """Return the result of the function for `samples`, and for `depth` layers if it is not None."""
        arguments = {} if depth is None else {"layers": depth}
        with library_errors(f"{self.name} failed"), torch.device("meta"):
            result = self._function(samples, **arguments)
        if not (isinstance(result, tuple) and len(result) == 3 and isinstance(result[0], nn.Module)):
            raise SpmdirError(f"{self.name} returns {shown(result)}; expected a tuple (model, loss, batch)")
        model, loss, batch = result
        return TrainingCase(model, loss, batch if isinstance(batch, tuple) else (batch,))


@contextmanager
def library_errors(problem: str) -> Iterator[None]:
    """Report any exception of a library or of the user's file as a SpmdirError."""
    try:
        yield
    except SpmdirError:
        raise
    except Exception as error:
        raise plugin_failure(error) or UnsupportedError(f"{problem}: {type(error).__name__}: {error}") from None


def _shape_key(layer: nn.Module) -> Hashable:
    """Return the names and shapes of the parameters of a layer."""
    return tuple((name, tuple(parameter.shape)) for name, parameter in layer.named_parameters())


def layers_in(model: nn.Module) -> list[nn.Module]:
    """Return the layers of a model: the entries of its longest `nn.ModuleList`."""
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    return list(max(lists, key=len, default=[]))
