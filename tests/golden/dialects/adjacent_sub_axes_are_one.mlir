// RUN: spmd-opt %s

spmd.mesh @mesh <dp = 2, tp = 8>

func.func @f(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp(1)2: S(0), tp(2)2: S(0), tp(4)2: S(0), dp: S(1)>},
             %y: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp(2)2: S(0), tp(1)2: S(0), tp(4)2: ?>},
             %z: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp(4)2: S(0), tp(1)4: R>}) {
  %0 = spmd.reshard %x : tensor<16x8xf32> <tp(1)8: S(0)>
  %1 = spmd.reshard %x : tensor<16x8xf32> <tp(4)2: P(sum), tp(1)2: P(sum), tp(2)2: P(sum)>
  %2 = spmd.reshard %x : tensor<16x8xf32> <tp(4)2: P(sum), tp(1)2: P(sum)>
  %3 = spmd.reshard %x : tensor<16x8xf32> <tp(2)2: S(0), tp(4)2: S(0), tp(1)2: S(1)>
  %4 = spmd.reshard %x : tensor<16x8xf32> <tp(1)2: S(0), dp: S(0), tp(2)4: S(0)>
  %5 = spmd.all_gather %0 on [tp(2)2, tp(4)2] dim 0 : tensor<16x8xf32> <tp(1)2: S(0)>
  %6 = spmd.all_gather %0 on [tp(1)2, tp(2)4] dim 0 : tensor<16x8xf32> <>
  %7 = aten.add.Tensor(%0, %5) : tensor<16x8xf32> <tp(1)4: S(0), tp(4)2: S(0)> needs (_, <tp(1)2: S(0), tp(2)4: S(0)>)
  return
}

// | spmd.mesh @mesh <dp = 2, tp = 8>
// |
// | func.func @f(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0), dp: S(1)>},
// |              %y: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp(2)2: S(0), tp(1)2: S(0), tp(4)2: ?>},
// |              %z: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp(4)2: S(0)>}) {
// |   %0 = spmd.reshard %x : tensor<16x8xf32> <tp: S(0)>
// |   %1 = spmd.reshard %x : tensor<16x8xf32> <tp: P(sum)>
// |   %2 = spmd.reshard %x : tensor<16x8xf32> <tp(1)2: P(sum), tp(4)2: P(sum)>
// |   %3 = spmd.reshard %x : tensor<16x8xf32> <tp(2)4: S(0), tp(1)2: S(1)>
// |   %4 = spmd.reshard %x : tensor<16x8xf32> <tp(1)2: S(0), dp: S(0), tp(2)4: S(0)>
// |   %5 = spmd.all_gather %0 on [tp(2)4] dim 0 : tensor<16x8xf32> <tp(1)2: S(0)>
// |   %6 = spmd.all_gather %0 on [tp] dim 0 : tensor<16x8xf32> <>
// |   %7 = aten.add.Tensor(%0, %5) : tensor<16x8xf32> <tp: S(0)> needs (_, <tp: S(0)>)
// |   return
// | }
