"""The process that counts for rule_coverage."""

from benchmarks.rule_coverage import Session
from spmdir.checking.rules.worker import serve

if __name__ == "__main__":
    serve(Session)
