// RUN: spmd-opt %s --verify-diagnostics

// expected-error@+1 {{Unexpected character: '}}
'hello'
