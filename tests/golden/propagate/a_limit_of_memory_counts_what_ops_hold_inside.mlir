// RUN: spmd-opt %s --propagate="memory=14144" | spmd report - --view memory
// The decision that is fastest within the limit by its values alone holds 23.59 kB with what a slice of a sharded dimension
// holds inside.
spmd.mesh @mesh <a = 4, b = 2>

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

// | spmd.mesh @mesh <a = 4, b = 2>
// |
// | func.func @main(%x: tensor<4x256xf64> {spmd.sharding = #spmd.sharding<@mesh, b: S(1)>},
// |                 %w: tensor<4x4xf64> {spmd.kind = "parameter", spmd.sharding = #spmd.sharding<@mesh, a: S(0)>}) -> (tensor<256x4xf64> {spmd.sharding = #spmd.sharding<@mesh, b: S(0), a: S(1)>}) attributes {spmd.stage = "decided", spmd.decided_by = "propagate{memory=14144}"} {
// |   %0 = aten.mm(%w, %x) : tensor<4x256xf64> <a: S(0), b: S(1)>
// |   %1 = aten.t(%0) : tensor<256x4xf64> <b: S(0), a: S(1)>
// |   %2 = spmd.constraint %1 : tensor<256x4xf64> <b: S(0), a: S(1)>
// |   %3 = aten.cumsum(%1) {dim = 0} : tensor<256x4xf64> <b: S(0), a: S(1)>
// |   %4 = aten.mul.Tensor(%3, %3) : tensor<256x4xf64> <b: S(0), a: S(1)>
// |   %5 = aten.slice.Tensor(%0) {dim = 0, start = 1} : tensor<3x256xf64> <b: S(1), a: P(sum)>
// |   %6 = aten.mul.Tensor(%2, %4) : tensor<256x4xf64> <b: S(0), a: S(1)>
// |   return %6 : tensor<256x4xf64>
// | }
// $ spmd report - --view memory
// | peak of live memory of a rank 12.32 kB, at %5
// |   parameters                 32 B
// |   inputs                 4.096 kB
// |   activations            8.195 kB
// | largest
// |   x                  4.096 kB  inputs
// |   %_5.index_select   3.072 kB  activations
// |   %5                 3.072 kB  activations
// |   %0                 1.024 kB  activations
// |   %4                 1.024 kB  activations
// |   w                      32 B  parameters
// |   %_5.lt                  3 B  activations
