"""Several results of one op that only mean something together, as the parts of a state that ranks combine.

The output of attention over some of the keys is one: it counts as much as its logarithm of a sum of exponentials says.
A joint placement says how two states become one. Tensors are used by their methods alone, as in `base.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from spmdir.core.errors import ShardingError, wrong_argument
from spmdir.core.placement.base import Placement, placement_class
from spmdir.core.placement.text import print_placement

State = Sequence[Any]
"""The tensors of a state, one a part."""


class JointPlacement(Placement):
    """A placement of the results of an op that are the `parts` of one state; its first field, `part`, is which one.

    States form a commutative monoid: `combine` is associative and commutative, and `identity` is neutral, so that
    ranks may combine theirs in any order. `identity`, `combine` and `finish` are torch ops, which are traced once, so
    they cannot branch on values. A local form of a rule calls them by the name of the class, as in
    `state = Attended.combine(state, (out, lse))`; they are called with part 0 then.

    Attributes:
        parts: what the parts are called, in the order of the op's results.
        part: the number of the part that this value is.
    """

    trait: ClassVar[str] = "other"
    parts: ClassVar[tuple[str, ...]] = ()
    part: int

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.part, int):
            raise wrong_argument("part", self.part, f"a number from 0 to {len(self.parts) - 1}")
        if not 0 <= self.part < len(self.parts):
            # It has no hash yet, by which texts are remembered.
            text = print_placement.__wrapped__(self)
            raise ShardingError(f"{text} is no part of ({', '.join(self.parts)}); expected 0 to {len(self.parts) - 1}")

    def identity(self, *like: Any) -> State:
        """Return the state that leaves any other as it is, its parts of the shapes and element types of `like`."""
        raise NotImplementedError(f"{type(self).__name__} does not say what is neutral; give it an `identity`")

    def combine(self, left: State, right: State) -> State:
        """Return the state of two states, of the shapes and element types of `left`."""
        raise NotImplementedError(f"{type(self).__name__} does not say how states combine; give it a `combine`")

    def finish(self, state: State) -> Sequence[Any]:
        """Return the results of the op, of the state of all ranks: by default its parts as they are."""
        return state


def joint_placement(name: str) -> JointPlacement:
    """Return part 0 of the joint placement whose texts begin with `name`, on which its methods are called.

    Raises:
        ShardingError: there is none, or it has further fields without defaults.
    """
    kind = placement_class(name)
    if kind is None or not issubclass(kind, JointPlacement):
        found = f"'{name}' is a placement of another kind" if kind else f"no placement is named '{name}'"
        raise ShardingError(f"{found}; expected the name of a JointPlacement, whose class is declared before")
    try:
        return kind(0)  # type: ignore[call-arg]
    except TypeError as error:
        raise ShardingError(f"'{name}' is called with part 0 alone: {error}; give its other fields defaults") from None
