// RUN: spmd-opt %s --verify-diagnostics

// expected-error@+1 {{names an axis twice: dp, dp}}
spmd.mesh @mesh <dp = 2, dp = 4>
