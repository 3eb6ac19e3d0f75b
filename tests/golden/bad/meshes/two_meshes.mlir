// RUN: spmd-opt %s --verify-diagnostics

spmd.mesh @mesh <dp = 2, tp = 4>
// expected-error@+1 {{declares 2 meshes}}
spmd.mesh @other <x = 2>
