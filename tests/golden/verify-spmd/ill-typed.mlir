// RUN: spmd-opt %s --split-input-file --verify-diagnostics --verify-spmd
spmd.mesh @mesh <dp = 2, tp = 4>

func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>},
                %w: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>},
                %v: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh>})
    -> (tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) {
  // expected-error@+1 {{on axis 'tp' (S(1), S(0)) -> (R) is not a strategy of this op: the results are (R) but these operands give (P(sum))}}
  %a = aten.mm(%x, %w) : tensor<16x8xf32> <>
  // expected-error@+1 {{operand 1 (mat2) is R but the nearest strategy requires S(0): reshard the operands, or correct the shardings; it accepts (R, R) -> (R)}}
  %b = aten.mm(%x, %v) : tensor<16x8xf32> <tp: P(sum)>
  return %b : tensor<16x8xf32>
}
// -----
spmd.mesh @mesh <dp = 2, tp = 4>

func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) -> tensor<16x8xf32> {
  // expected-error@+1 {{operand 0 (self) is P(sum) but the nearest strategy requires}}
  %a = aten.relu(%x) : tensor<16x8xf32> <tp: P(sum)>
  // expected-error@+1 {{result 0 is a partial value, <tp: P(sum)>; expected a reduced value: run insert-reshard}}
  return %a : tensor<16x8xf32>
}
// -----
spmd.mesh @mesh <dp = 2, tp = 4>

func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(0)>},
                %y: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0), dp: S(0)>}) -> tensor<16x8xf32> {
  // expected-error@+1 {{the axes of factor 'd0' nest as ['dp', 'tp'] in one tensor and as ['tp', 'dp'] in another; expected the same order in both: reorder the axes of one tensor}}
  %a = aten.mul.Tensor(%x, %y) : tensor<16x8xf32> <dp: S(0), tp: S(0)>
  return %a : tensor<16x8xf32>
}
// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// expected-error@+1 {{argument 0 has no sharding; expected a sharding without open axes: run propagate first}}
func.func @main(%x: tensor<16x8xf32>) -> tensor<16x8xf32> {
  // expected-error@+1 {{'aten.relu' has values without a sharding; expected a sharding for each value: run propagate first}}
  %a = aten.relu(%x) : tensor<16x8xf32>
  return %a : tensor<16x8xf32>
}
// -----
spmd.mesh @mesh <dp = 2>

func.func @main(%x: tensor<16xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: P(max)>})
    -> (tensor<16xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) {
  %y = spmd.reshard %x : tensor<16xf32> <dp: P(sum)>
  // expected-error@+1 {{result 0 has the sharding <dp: P(sum)>; expected <dp: S(0)>, which the function declares: run insert-reshard}}
  return %y : tensor<16xf32>
}
// -----
spmd.mesh @mesh <dp = 2>

func.func @main() -> tensor<4xui8> {
  // expected-error@+1 {{a constant has the sharding <dp: S(0)>; expected <>, since each rank has the whole constant: reshard its result instead}}
  %y = spmd.constant value "00010203" : tensor<4xui8> <dp: S(0)>
  return %y : tensor<4xui8>
}
