"""Fuzzers: random programs, edited IR, malformed text, special values and ranks that differ."""
