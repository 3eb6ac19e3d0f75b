"""The Hypothesis profiles of all property tests and fuzzers: importing this module loads `spmdir`.

With `spmdir` examples depend on the test alone, so a run gives the same result on every machine, however busy. With
`pytest --hypothesis-profile=spmdir-explore` each run draws others, `--hypothesis-seed=7` the same others again, and a
failing test prints the `@reproduce_failure` that repeats it.
"""

from hypothesis import HealthCheck, settings

EXPLORE = "spmdir-explore"

settings.register_profile(
    "spmdir", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(EXPLORE, settings.get_profile("spmdir"), derandomize=False, print_blob=True)
settings.load_profile("spmdir")
