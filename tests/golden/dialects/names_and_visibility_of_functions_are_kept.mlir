// RUN: spmd-opt %s

func.func private @"a b"(%x: tensor<8xf32>, %y: tensor<8xf32>) -> tensor<8xf32> {
  return %x : tensor<8xf32>
}

func.func @é() {
  return
}

// | func.func private @"a b"(%x: tensor<8xf32>,
// |                        %y: tensor<8xf32>) -> tensor<8xf32> {
// |   return %x : tensor<8xf32>
// | }
// |
// | func.func @"\C3\A9"() {
// |   return
// | }
