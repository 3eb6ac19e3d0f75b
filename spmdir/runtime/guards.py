"""Guards: what a trace read beside its tensors, compared at each call of the program that was made of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs
import torch

from spmdir.runtime.executed_code import ExecutedCode
from spmdir.runtime.python_state import PythonState, python_state

_GRAD_MODE = frozenset({"is_grad_enabled", "requires_grad", "grad_fn", "is_leaf"})

_SETTINGS: Mapping[str, tuple[frozenset[str], Callable[[], Any]]] = {
    "torch.get_default_dtype()": (frozenset(), torch.get_default_dtype),
    "torch.get_default_device()": (frozenset(), torch.get_default_device),
    "torch.is_grad_enabled()": (_GRAD_MODE, torch.is_grad_enabled),
    "torch.is_inference_mode_enabled()": (
        frozenset({"is_inference_mode_enabled", "is_inference"}),
        torch.is_inference_mode_enabled,
    ),
    "torch.are_deterministic_algorithms_enabled()": (
        frozenset({"are_deterministic_algorithms_enabled"}),
        torch.are_deterministic_algorithms_enabled,
    ),
    "os.environ": (frozenset({"environ", "getenv"}), lambda: dict(os.environ)),
}
"""Settings of the process → (names by which code reads them, none if every program depends on them; how to read)."""


def reads_grad_mode(code: ExecutedCode) -> bool:
    """Return whether the code may do something else under `torch.no_grad`."""
    return bool(code.users_names & _GRAD_MODE)


@attrs.frozen(eq=False)
class Guards:
    """What a trace read beside its tensors.

    Attributes:
        facts: path → text of the value that was read, such as `model.config.k` → `1.0`: plain data, equal on all ranks.
    """

    facts: Mapping[str, str]
    _state: PythonState = attrs.field(alias="state")
    _settings: Mapping[str, Any] = attrs.field(alias="settings")
    _code: ExecutedCode = attrs.field(alias="code")
    _device: torch.device = attrs.field(alias="device")
    _options: Mapping[str, Any] = attrs.field(alias="options")

    @classmethod
    def of(
        cls,
        code: ExecutedCode,
        roots: Mapping[str, Any],
        device: torch.device,
        *,
        tensors: bool = True,
        omitted: Iterable[str] = (),
        caches: Iterable[str] = (),
        fixed: Iterable[str] = (),
    ) -> Guards:
        """Return the guards of a trace that executed `code`, for the present state.

        Args:
            device: whose autocast a trace depends on.
            tensors, omitted, caches: as for `python_state`.
            fixed: settings that the program sets itself.
        """
        options = {"tensors": tensors, "omitted": tuple(omitted), "caches": tuple(caches)}
        settings = _settings([name for name in _names_of(code) if name not in fixed], device)
        state = python_state(code, roots, **options)
        texts = {name: _setting_text(value) for name, value in settings.items()}
        return cls({**state.facts, **texts}, state, settings, code, device, options)

    def hold(self, *roots: Any) -> bool:
        """Return whether nothing that was read has changed; `roots` are those of `of`, None for one that is gone."""
        return self._state.holds(*roots) and _settings(self._settings, self._device) == self._settings

    def changes(self, roots: Mapping[str, Any]) -> list[str]:
        """Return a text for each fact that no longer holds: `model.config.k was 1.0 and is 2.0`."""
        present = python_state(self._code, {n: root for n, root in roots.items() if root is not None}, **self._options)
        texts = [] if None in roots.values() else self._state.changes_to(present)
        settings = _settings(self._settings, self._device)
        return texts + [
            f"{name} was {_setting_text(value)} and is {_setting_text(settings[name])}"
            for name, value in self._settings.items()
            if settings[name] != value
        ]


def setting_facts(code: ExecutedCode, device: torch.device) -> dict[str, str]:
    """Return the settings of the process that a program of `code` depends on, as text."""
    return {name: _setting_text(value) for name, value in _settings(_names_of(code), device).items()}


def _names_of(code: ExecutedCode) -> list[str]:
    """Return the settings that a program of `code` depends on, in an order that is the same in all processes."""
    return [name for name, (used, _) in _SETTINGS.items() if not used or used & code.users_names]


def _settings(names: Iterable[str], device: torch.device) -> dict[str, Any]:
    is_cast = torch.is_autocast_enabled(device.type)
    autocast = torch.get_autocast_dtype(device.type) if is_cast else None
    settings = {name: _SETTINGS[name][1]() for name in names if name != "torch.autocast"}
    return {**settings, "torch.autocast": autocast}


def _setting_text(value: Any) -> str:
    return f"{len(value)} variables" if isinstance(value, dict) else str(value)
