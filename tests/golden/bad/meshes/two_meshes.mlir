// RUN: spmd-opt %s --verify-diagnostics

spmd.mesh @mesh <dp = 2, tp = 4>
// expected-error@+1 {{the module declares 2 meshes; expected one: remove the others}}
spmd.mesh @other <x = 2>
