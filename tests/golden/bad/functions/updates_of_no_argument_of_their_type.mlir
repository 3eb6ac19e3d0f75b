// RUN: spmd-opt %s --split-input-file --verify-diagnostics

// expected-error@+1 {{result 0 has spmd.kind = "update" and the name 'y'; expected the name of an argument of the same type, which the caller overwrites with the result}}
func.func @f(%x: tensor<8x8xf32>) -> (tensor<8x8xf32> {spmd.kind = "update", spmd.name = "y"}) {
  return %x : tensor<8x8xf32>
}

// -----

// expected-error@+1 {{result 0 has spmd.kind = "update" and the name 'y'; expected the name of an argument of the same type, which the caller overwrites with the result}}
func.func @f(%x: tensor<8x8xf32>, %y: tensor<8xf32>) -> (tensor<8x8xf32> {spmd.kind = "update", spmd.name = "y"}) {
  return %x : tensor<8x8xf32>
}
