// RUN: spmd-opt %s --verify-diagnostics

// expected-error@+1 {{unknown op 'hello'; expected an op of a dialect, of torch or of a plug-in loaded with --load-plugin}}
hello world
