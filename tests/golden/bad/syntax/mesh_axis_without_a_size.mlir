// RUN: spmd-opt %s --verify-diagnostics

// expected-error@+1 {{found 'dp', expected an axis: `name = size`}}
spmd.mesh @mesh <dp>
