// RUN: spmd-opt %s --verify-diagnostics

// expected-error@+1 {{hello}}
hello world
