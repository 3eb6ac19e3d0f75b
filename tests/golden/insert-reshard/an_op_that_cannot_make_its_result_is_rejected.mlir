// RUN: spmd-opt %s --split-input-file --verify-diagnostics --insert-reshard
spmd.mesh @mesh <tp = 4>

func.func @f(%x: tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<64x64xf32> {
  // expected-error@+1 {{'aten.flip': no strategy of its rule gives (S(0)) on axis 'tp'; expected placements that a strategy gives: give the op such a sharding, and reshard the result}}
  %0 = aten.flip(%x) {dims = [0]} : tensor<64x64xf32> <tp: S(0)>
  return %0 : tensor<64x64xf32>
}
// -----
spmd.mesh @mesh <tp = 4>

func.func @f(%x: tensor<64x64xf32>) -> tensor<64x64xf32> {
  // expected-error@+1 {{an operand of 'aten.cos' has no sharding; expected one for each operand: run propagate first}}
  %0 = aten.cos(%x) : tensor<64x64xf32> <tp: S(0)>
  return %0 : tensor<64x64xf32>
}
// -----
spmd.mesh @mesh <tp = 4>

func.func @f(%x: tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<64x64xf32> {
  // expected-error@+1 {{'aten.cos' has a result without a sharding; expected a sharding for each result: run propagate first}}
  %0 = aten.cos(%x) : tensor<64x64xf32>
  return %0 : tensor<64x64xf32>
}
// -----
spmd.mesh @mesh <tp = 4>

func.func @f(%x: tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<64x64xf32> {
  // expected-error@+1 {{'spmd.constraint' leaves an axis open; expected a placement on each axis: run propagate first}}
  %0 = spmd.constraint %x : tensor<64x64xf32> <tp: ?>
  return %0 : tensor<64x64xf32>
}
