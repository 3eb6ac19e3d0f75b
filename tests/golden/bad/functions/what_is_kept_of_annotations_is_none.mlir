// RUN: spmd-opt %s --split-input-file --verify-diagnostics
spmd.mesh @mesh <tp = 2>

// expected-error@below {{spmd.given is "x"; expected, as propagate writes it, {"%x" = {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}}}}
func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> attributes {spmd.given = "x"} {
  return %x : tensor<4xf32>
}

// -----

spmd.mesh @mesh <tp = 2>

// expected-error@below {{spmd.given of '%x' is {spmd.name = "x"}; expected, as propagate writes it}}
func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> attributes {spmd.given = {"%x" = {spmd.name = "x"}}} {
  return %x : tensor<4xf32>
}

// -----

spmd.mesh @mesh <tp = 2>

// expected-error@below {{'func.func': axis 'dp' is not in mesh @mesh <tp = 2>; expected one of tp}}
func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> attributes {spmd.given = {"%x" = {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}}} {
  return %x : tensor<4xf32>
}
