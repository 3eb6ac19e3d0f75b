// RUN: spmd-opt %s --split-input-file --verify-diagnostics

// expected-error@+1 {{mesh @me sh has an invalid name}}
spmd.mesh @"me sh" <dp = 2>

// -----

// expected-error@+1 {{found 'a b = 2', expected an axis: `name = size`}}
"spmd.mesh"() <{sym_name = "mesh", mesh = #spmd.mesh<@mesh, a b = 2>}> : () -> ()

// -----

// expected-error@+1 {{'spmd.mesh': property 'sym_name' expected in operation 'spmd.mesh'}}
"spmd.mesh"() : () -> ()
