// RUN: spmd-opt %s --split-input-file --verify-diagnostics

// expected-error@+1 {{'s0 = 8' is not a declaration of a size; expected one, as in s0 = 8 in 2..64}}
spmd.sizes {s0 = 8}

// -----

// expected-error@+1 {{no size is declared; expected a declaration, as in s0 = 8 in 2..64}}
spmd.sizes {}

// -----

// expected-error@+1 {{expected sizes, as in `spmd.sizes {s0 = 8 in 2..64}`}}
spmd.sizes <s0 = 8>

// -----

// expected-error@+1 {{size 's0' is declared twice}}
spmd.sizes {s0 = 8 in 2.., s0 = 9 in 2..}
