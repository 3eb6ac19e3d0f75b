// RUN: spmd-opt %s --verify-diagnostics
// expected-error@+1 {{mesh @mesh has no axis 'xx'; expected one of dp}}
spmd.mesh @mesh <dp = 2> intra [xx]
