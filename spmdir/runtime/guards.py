"""Guards: compare the Python state that a trace read with the present state, at each call of the traced program.

The check runs at each call, so it is generated as straight-line Python, with two lines for each guard:

    v7 = v3['k']
    if v7 is not c5 and (type(v7) is not c6 or v7 != c5): return 7, v7
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import attrs
import torch

from spmdir.core.errors import UnsupportedError
from spmdir.runtime.executed_code import EVERY, ExecutedCode
from spmdir.runtime.state_values import text_of
from spmdir.runtime.state_walk import Guard, StateWalk

GRAD_MODE = "torch.is_grad_enabled()"

_ALWAYS = frozenset({""})
"""The readers of a setting that every program reads: `_settings` adds the empty name to the names in the code."""
_SETTINGS: Mapping[str, tuple[frozenset[str], Callable[[torch.device], Any]]] = {
    "torch.get_default_dtype()": (_ALWAYS, lambda device: torch.get_default_dtype()),
    "torch.get_default_device()": (_ALWAYS, lambda device: torch.get_default_device()),
    "torch.autocast": (
        _ALWAYS,
        lambda device: torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None,
    ),
    "torch.nn.attention.sdpa_kernel": (
        _ALWAYS,
        lambda device: (
            torch.backends.cuda.flash_sdp_enabled(),
            torch.backends.cuda.mem_efficient_sdp_enabled(),
            torch.backends.cuda.math_sdp_enabled(),
            torch.backends.cuda.cudnn_sdp_enabled(),
        ),
    ),
    "torch.get_float32_matmul_precision()": (_ALWAYS, lambda device: torch.get_float32_matmul_precision()),
    GRAD_MODE: (
        frozenset({"is_grad_enabled", "requires_grad", "grad_fn", "is_leaf"}),
        lambda device: torch.is_grad_enabled(),
    ),
    "torch.is_inference_mode_enabled()": (
        frozenset({"is_inference_mode_enabled", "is_inference"}),
        lambda device: torch.is_inference_mode_enabled(),
    ),
    "torch.are_deterministic_algorithms_enabled()": (
        frozenset({"are_deterministic_algorithms_enabled"}),
        lambda device: torch.are_deterministic_algorithms_enabled(),
    ),
}
"""Setting of the process → (names of the functions and attributes that read it, function that returns it)."""

_VALUE = re.compile(r"\bx\b")
"""The present value in `Guard.differs`."""

_READERS = {id(getattr(torch, name)): name for names, _ in _SETTINGS.values() for name in names if hasattr(torch, name)}


def reads_grad_mode(code: ExecutedCode) -> bool:
    """Return whether the code may depend on `torch.no_grad`."""
    return bool(_SETTINGS[GRAD_MODE][0] & code.users_names)


def setting_facts(code: ExecutedCode, device: torch.device) -> dict[str, str]:
    """Return the settings of the process that a program of `code` depends on, as text."""
    return {name: text_of(value) for name, value in _settings(code, device).items()}


def _settings(code: ExecutedCode, device: torch.device) -> dict[str, Any]:
    """Return setting of the process → present value, for the settings that a program of `code` depends on."""
    names = _ALWAYS | code.users_names
    return {name: read(device) for name, (readers, read) in _SETTINGS.items() if readers & names}


def _variable_change(name: str, before: Any, value_now: Any) -> str:
    """Return a text for the change of an environment variable, or of the environment if `name` is EVERY."""
    return f"os.environ[{name!r}] was {before!r} and is {value_now!r}" if name != EVERY else "os.environ has changed"


@attrs.define(frozen=True, eq=False, slots=False)
class Guards:
    """The guards of a trace: the Python state that it read.

    Attributes:
        guards: the guards, in the order of the check. Those that do not depend on the roots come first.
        of_globals: the number of guards that do not depend on the roots.
        _constants: name → value of the constants in the generated check; they are its globals.
        _roots: the names of the roots, which are the parameters of the check.
    """

    guards: Sequence[Guard]
    of_globals: int
    _constants: dict[str, Any] = attrs.field(alias="constants")
    _roots: Sequence[str] = attrs.field(alias="roots")

    @classmethod
    def of(
        cls,
        walk: StateWalk,
        code: ExecutedCode,
        roots: Iterable[str],
        device: torch.device | None = None,
        fixed: Iterable[str] = (),
    ) -> Guards:
        """Return the guards of the present state: of settings, then environment variables, then the values of `walk`.

        Args:
            walk: the walk over the state that `code` reads.
            code: the executed code.
            roots: the names of the roots of the walk.
            device: the device whose autocast settings are guarded; None for guards without settings.
            fixed: settings that the program sets itself.
        """
        code.users_names.update(_READERS[key] for key in walk.library_values.keys() & _READERS.keys())
        settings = {} if device is None else _settings(code, device)
        constants, guards = {**walk.constants, "device": device}, []
        # In the generated function, read_setting0 reads a setting, setting0 is its present value, and traced_setting0
        # the value in the trace. The names for environment variables are similar.
        for number, (name, value) in enumerate(settings.items()):
            if name in fixed:
                continue
            constants |= {f"read_setting{number}": _SETTINGS[name][1], f"traced_setting{number}": value}
            read, differs = f"read_setting{number}(device)", f"x != traced_setting{number}"
            guards.append(Guard(name, text_of(value), f"setting{number}", read, differs))
        for number, name in enumerate(sorted(code.variables if device else ())):
            read_variable = os.environ.get if name != EVERY else lambda name: dict(os.environ)
            traced_value = read_variable(name)
            constants |= {f"read_environ{number}": read_variable, f"traced_environ{number}": traced_value}
            read, differs = f"read_environ{number}({name!r})", f"x != traced_environ{number}"
            explain = functools.partial(_variable_change, name, traced_value)
            path = f"os.environ[{name!r}]"
            # Variables such as RANK differ between ranks.
            guards.append(Guard(path, "a variable", f"environ{number}", read, differs, explain, is_shared=False))
        return cls([*guards, *walk.guards], len(guards) + walk.of_globals, constants, list(roots))

    @cached_property
    def facts(self) -> Mapping[str, str]:
        """Path → text of the values read, such as `model.config.k` → `1.0`; equal on all ranks with equal state."""
        return {guard.path: guard.text for guard in self.guards if guard.is_shared}

    @cached_property
    def _check(self) -> Callable[..., tuple[int, Any] | None]:
        """The generated function from the roots to (index, present value) of the first guard that fails, or None."""
        lines = [f"def check({', '.join(self._roots)}):"]
        for number, guard in enumerate(self.guards):
            if number == self.of_globals:
                lines.append(f" if {self._roots[0]} is None: return None")  # the model was freed
            lines.append(f" {guard.variable} = {guard.read}")
            differs = _VALUE.sub(guard.variable, guard.differs)
            lines.append(f" if {differs}: return {number}, {guard.variable}")
        exec("\n".join(lines), self._constants)  # only this package writes the lines; values are constants, not text
        return self._constants.pop("check")

    def hold(self, *roots: Any) -> bool:
        """Return whether all guards hold. If the first root is None, only globals and settings are checked."""
        try:
            return self._check(*roots) is None
        except Exception:  # a value is missing
            return False

    def find_change(self, *roots: Any) -> str | None:
        """Return a text for the first value that has changed, such as `model.config.k was 1.0 and is 2.0`.

        Returns None if no value has changed. If the first root is None, only globals and settings are checked.
        """
        try:
            failure = self._check(*roots)
        except Exception as error:
            frame_of_check = error.__traceback__.tb_next if error.__traceback__ else None
            line = frame_of_check.tb_lineno if frame_of_check else 2
            guard = self.guards[self._guard_at(line)]
            return f"{guard.path} was {guard.text} and is missing"
        return None if failure is None else self.guards[failure[0]].change_to(failure[1])

    def _guard_at(self, line: int) -> int:
        """Return the index of the guard at a line of the generated function.

        Line 1 is the `def`, and each guard has two lines. One line for a missing root precedes the guards of the roots.
        """
        number = (line - 2) // 2
        return number if number < self.of_globals else (line - 3) // 2

    def check_now(self, *roots: Any) -> Guards:
        """Return the guards, after a check that they hold now.

        Raises:
            UnsupportedError: a guard fails, because the value of its state differs at each read.
        """
        change = self.find_change(*roots)
        if change is None:
            return self
        raise UnsupportedError(
            f"the forward reads {change.partition(' was ')[0]}, whose value differs at each read; expected state that "
            "does not change between calls"
        )
