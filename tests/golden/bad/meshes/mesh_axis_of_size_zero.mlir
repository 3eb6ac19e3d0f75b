// RUN: spmd-opt %s --verify-diagnostics

// expected-error@+1 {{mesh axis 'dp' has size 0; expected a size of at least 1}}
spmd.mesh @mesh <dp = 0>
