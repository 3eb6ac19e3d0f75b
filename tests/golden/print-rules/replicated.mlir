// RUN: spmd-opt %s --print-rules
spmd.mesh @mesh <dp = 2>

func.func @main(%x: tensor<16x8xf32>) -> tensor<5x2xi64> {
  %0 = aten.nonzero(%x) : tensor<5x2xi64>
  return %0 : tensor<5x2xi64>
}

// | spmd.mesh @mesh <dp = 2>
// |
// | func.func @main(%x: tensor<16x8xf32>) -> tensor<5x2xi64> {
// |   %0 = aten.nonzero(%x) : tensor<5x2xi64> attributes {spmd.rule = "replicated: the number of results depends on the data"}
// |   return %0 : tensor<5x2xi64>
// | }
