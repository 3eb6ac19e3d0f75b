"""The guards of a program without variants: a call after a change of state is an error."""

from __future__ import annotations

import weakref
from typing import Any

import attrs
import torch
from torch import nn

from spmdir.core.errors import UnsupportedError
from spmdir.runtime.dry_run import DryRun
from spmdir.runtime.guards import GRAD_MODE, Guards
from spmdir.runtime.state_walk import StateWalk
from spmdir.runtime.training import TrainingStep


@attrs.frozen(eq=False)
class CallGuards:
    """The guards of a program, and the objects from which it was traced: `_roots` has (name in errors, object) pairs.

    References to models are weak: a model is freed when the caller deletes it. After that, only globals, classes and
    settings are compared.
    """

    _guards: Guards
    _roots: tuple[tuple[str, Any], ...]

    @classmethod
    def of(cls, dry_run: DryRun, traced: Any, device: torch.device) -> CallGuards:
        """Return the guards for the present state of a model, a step of `training_step` or another function.

        Args:
            dry_run: the dry run of `traced`.
            traced: the model or step.
            device: the device whose settings are guarded.

        Raises:
            UnsupportedError: a value of the state differs at each read.
        """
        is_step = isinstance(traced, TrainingStep)
        roots = {"model": traced.model, "loss": traced.loss} if is_step else {_root_name(traced): traced}
        fixed = (GRAD_MODE,) if is_step else ()  # a step enables gradients itself
        weak_roots = tuple(
            (name, weakref.ref(root) if isinstance(root, nn.Module) else root) for name, root in roots.items()
        )
        walk = StateWalk(dry_run.code, roots, caches=frozenset(dry_run.caches.dicts))
        return cls(Guards.of(walk, dry_run.code, roots, device, fixed).check_now(*roots.values()), weak_roots)

    def check(self) -> None:
        """Raise UnsupportedError if state that the trace read has changed."""
        roots = [root() if isinstance(root, weakref.ref) else root for _, root in self._roots]
        change = self._guards.find_change(*roots)
        if change is None:
            return
        raise UnsupportedError(
            f"the state that the program was traced with has changed: {change}; expected that state in each "
            "call: change it back, or call parallelize again. For programs of several states, parallelize "
            "copies of the model, such as copy.deepcopy(model)"
        )


def _root_name(traced: Any) -> str:
    """Return the name of a traced object in errors: `model` or `step`."""
    return "model" if isinstance(traced, nn.Module) else "step"
