"""The keyword arguments that `parallelize` and `shard_module` share, with their documentation and checks."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

import attrs
from torch.distributed.device_mesh import DeviceMesh

from spmdir.core.arguments import DIRECTORY, FLAG, MISSING_RULE, OUT_SHARDINGS, instance, unknown_name
from spmdir.core.placement.sharding import ShardingLike
from spmdir.pipeline.pipeline import PIPELINE, Pipeline

_CHECKS = {
    "out_shardings": OUT_SHARDINGS,
    "local_inputs": FLAG,
    "dynamic_shapes": instance(
        Mapping, tuple, list, expected="dimensions by argument, as of torch.export.export"
    ).optional,
    "missing_rule": MISSING_RULE,
    "sync_state": FLAG,
    "pipeline": PIPELINE,
    "cache": DIRECTORY,
    "compile": instance(bool, Mapping, expected="True, False or a dict of Inductor's options"),
}


class ParallelOptions(TypedDict, total=False):
    """The keyword arguments of `parallelize` and `shard_module`; `torch.compile(…, backend="spmdir")` takes some.

    Attributes:
        out_shardings: one entry for each output: None for a replicated output, else the sharding of its local shards.
        device_mesh: a torch DeviceMesh with the axes of `mesh`. If None, it is made from the default process group, on
            CUDA if the group has NCCL, else on the CPU.
        local_inputs: whether calls pass this rank's shards of the inputs instead of global inputs. Then each rank has
            its own loss of sharded outputs, and gradients are those of the mean of these losses.
        dynamic_shapes: the dimensions of the arguments that may have other sizes in calls, as for torch.export.export;
            for a step, one entry for each argument. Shardings are decided once, for the example inputs. Each choice of
            sizes is lowered at its first call. Sizes 0 and 1 have separate traces and programs.
        missing_rule: as for `import_fx`.
        sync_state: whether parameters, buffers and state are copied from the first rank instead of being compared.
        pipeline: the passes to run, with their plug-ins. If None, the standard pipeline and `schedule`, for the
            topology `cpu-gloo` if ranks run on the CPU, else for the default topology. The passes up to `propagate` run
            once, on the first rank. The other passes run on each rank, for each choice of sizes.
        cache: a directory of decided programs as text, created if needed. The first rank reads the program from it, or
            decides the program and writes it.
        compile: whether the first call compiles this rank's program with Inductor, as `compile_program` does. A dict
            contains options of Inductor.
    """

    out_shardings: Sequence[ShardingLike | None] | None
    device_mesh: DeviceMesh | None
    local_inputs: bool
    dynamic_shapes: Any
    missing_rule: Literal["warn", "error"]
    sync_state: bool
    pipeline: Pipeline | str | None
    cache: str | os.PathLike[str] | None
    compile: bool | Mapping[str, Any]


@attrs.frozen(kw_only=True)
class ChosenOptions:
    """The values of all `ParallelOptions`."""

    out_shardings: Sequence[ShardingLike | None] | None = None
    device_mesh: DeviceMesh | None = None
    local_inputs: bool = False
    dynamic_shapes: Any = None
    missing_rule: Literal["warn", "error"] = "warn"
    sync_state: bool = False
    pipeline: Pipeline | str | None = None
    cache: str | os.PathLike[str] | None = None
    compile: bool | Mapping[str, Any] = False

    @classmethod
    def of(cls, options: ParallelOptions) -> ChosenOptions:
        """Return the values of all options: those in `options`, and defaults for the others.

        Raises:
            SpmdirError: an option is unknown.
        """
        check_names(options, cls.__annotations__)
        return cls(**options)

    def check(self) -> None:
        """Raise SpmdirError for a value of the wrong type."""
        for name, kind in _CHECKS.items():
            kind.check(name, getattr(self, name))

    @property
    def inductor(self) -> dict[str, Any] | None:
        """The options of Inductor; None to run graphs without it."""
        if isinstance(self.compile, bool):
            return {} if self.compile else None
        return dict(self.compile)


def check_names(options: Mapping[str, Any], known_names: Mapping[str, Any] | Sequence[str]) -> None:
    """Raise SpmdirError if a name in `options` is not in `known_names`."""
    for name in options:
        if name not in known_names:
            raise unknown_name("unknown option", name, list(known_names), ("plan", "example_kwargs"))
