// RUN: spmd-opt %s

spmd.mesh @mesh <dp = 2>

func.func @f(%x: tensor<8xf32>, %i: tensor<8xi64>) -> tensor<8xf32> {
  %0 = aten.cat([%x, %x]) {dim = 0} : tensor<16xf32>
  %1 = aten.index.Tensor(%0, [none, %i]) : tensor<8xf32>
  %2 = aten.convolution(%1, %x, none) : tensor<8xf32>
  %3, %4 = my.pair(%2) : tensor<8xf32>, none
  %5 = my.nothing() : tensor<0xf32>
  return %3 : tensor<8xf32>
}

// | spmd.mesh @mesh <dp = 2>
// |
// | func.func @f(%x: tensor<8xf32>,
// |              %i: tensor<8xi64>) -> tensor<8xf32> {
// |   %0 = aten.cat([%x, %x]) {dim = 0} : tensor<16xf32>
// |   %1 = aten.index.Tensor(%0, [none, %i]) : tensor<8xf32>
// |   %2 = aten.convolution(%1, %x, none) : tensor<8xf32>
// |   %3, %4 = my.pair(%2) : tensor<8xf32>, none
// |   %5 = my.nothing() : tensor<0xf32>
// |   return %3 : tensor<8xf32>
// | }
