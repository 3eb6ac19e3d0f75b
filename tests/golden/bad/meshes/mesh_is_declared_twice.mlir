// RUN: spmd-opt %s --verify-diagnostics

spmd.mesh @mesh <dp = 2, tp = 4>
// expected-error@+1 {{mesh}}
spmd.mesh @mesh <dp = 2, tp = 4>
