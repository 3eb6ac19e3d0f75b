// RUN: spmd-opt %s

func.func @f(%arg_0: tensor<8xf32>, %layers.1.weight: tensor<8xf32>) -> tensor<8xf32> {
  %add_12 = aten.add.Tensor(%arg_0, %layers.1.weight) : tensor<8xf32>
  %add_2 = aten.add.Tensor(%add_12, %add_12) : tensor<8xf32>
  return %add_2 : tensor<8xf32>
}

// | func.func @f(%arg_0: tensor<8xf32>,
// |              %layers.1.weight: tensor<8xf32>) -> tensor<8xf32> {
// |   %add_12 = aten.add.Tensor(%arg_0, %layers.1.weight) : tensor<8xf32>
// |   %add_2 = aten.add.Tensor(%add_12, %add_12) : tensor<8xf32>
// |   return %add_2 : tensor<8xf32>
// | }
