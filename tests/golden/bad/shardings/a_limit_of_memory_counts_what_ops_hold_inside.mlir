// RUN: spmd-opt %s --propagate="memory=14144" --verify-diagnostics
spmd.mesh @mesh <a = 4, b = 2>

// expected-error@+1 {{a rank holds 23.59 kB at once as decided, with what ops hold inside; expected at most 14.14 kB}}
func.func @main(%x: tensor<4x256xf64>, %w: tensor<4x4xf64> {spmd.kind = "parameter"}) -> (tensor<256x4xf64>) {
  %0 = aten.mm(%w, %x) : tensor<4x256xf64>
  %1 = aten.t(%0) : tensor<256x4xf64>
  %2 = spmd.constraint %1 : tensor<256x4xf64> <a: S(1), b: S(0)>
  %3 = aten.cumsum(%1) {dim = 0} : tensor<256x4xf64>
  %4 = aten.mul.Tensor(%3, %3) : tensor<256x4xf64>
  %5 = aten.slice.Tensor(%0) {dim = 0, start = 1} : tensor<3x256xf64>
  %6 = aten.mul.Tensor(%2, %4) : tensor<256x4xf64>
  return %6 : tensor<256x4xf64>
}
