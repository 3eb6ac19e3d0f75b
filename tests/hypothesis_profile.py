"""The Hypothesis profile of all property tests and fuzzers: importing this module loads it.

Examples depend on the test alone, so a run gives the same result on every machine, however busy. To explore others:
`pytest --hypothesis-seed=SEED`.
"""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "spmdir", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("spmdir")
