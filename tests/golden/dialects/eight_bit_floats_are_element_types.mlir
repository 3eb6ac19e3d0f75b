// RUN: spmd-opt %s

func.func @f(%x: tensor<8xf32>) -> tensor<8xf8E5M2> {
  %0 = aten._to_copy(%x) {dtype = f8E4M3FN} : tensor<8xf8E4M3FN>
  %1 = aten._to_copy(%0) {dtype = f8E5M2} : tensor<8xf8E5M2>
  return %1 : tensor<8xf8E5M2>
}

// | func.func @f(%x: tensor<8xf32>) -> tensor<8xf8E5M2> {
// |   %0 = aten._to_copy(%x) {dtype = f8E4M3FN} : tensor<8xf8E4M3FN>
// |   %1 = aten._to_copy(%0) {dtype = f8E5M2} : tensor<8xf8E5M2>
// |   return %1 : tensor<8xf8E5M2>
// | }
