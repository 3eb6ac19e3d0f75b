"""The kinds of fuzzing."""

from __future__ import annotations

from tests.fuzz.batch import Kind
from tests.fuzz.batches import BATCHES
from tests.fuzz.deletions import DELETIONS
from tests.fuzz.edited import EDITED
from tests.fuzz.element_types import TYPES
from tests.fuzz.lossy import LOSSY
from tests.fuzz.malformed import MALFORMED
from tests.fuzz.pipelines import PIPELINES
from tests.fuzz.programs import PROGRAMS
from tests.fuzz.ranks import RANKS
from tests.fuzz.routes import ROUTES
from tests.fuzz.schedules import SCHEDULES
from tests.fuzz.special import SPECIAL
from tests.fuzz.stage_orders import STAGE_ORDERS
from tests.fuzz.training import TRAINING

KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        PROGRAMS,
        PIPELINES,
        EDITED,
        MALFORMED,
        DELETIONS,
        TYPES,
        SPECIAL,
        SCHEDULES,
        ROUTES,
        STAGE_ORDERS,
        LOSSY,
        RANKS,
        TRAINING,
        BATCHES,
    )
}
