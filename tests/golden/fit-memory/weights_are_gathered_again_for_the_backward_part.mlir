// RUN: spmd-opt %s --localize --fit-memory="budget=800 remarks=true" --verify-spmd | spmd report - --view timeline
spmd.mesh @mesh <fsdp = 4>

// Two layers x · w and what their backward part needs of the weights: each weight is whole when it is used, and else in shards.
func.func @step(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>},
                %w1: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>},
                %w2: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>})
    -> (tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}) {
  %w1.whole = spmd.all_gather %w1 on [fsdp] dim 0 : tensor<8x8xf32> <>
  %y = aten.mm(%x, %w1.whole) : tensor<8x8xf32> <fsdp: S(0)>
  %w2.whole = spmd.all_gather %w2 on [fsdp] dim 0 : tensor<8x8xf32> <>
  %z = aten.mm(%y, %w2.whole) : tensor<8x8xf32> <fsdp: S(0)>
  %w2.t = aten.t(%w2.whole) : tensor<8x8xf32> <>
  %dy = aten.mm(%z, %w2.t) : tensor<8x8xf32> <fsdp: S(0)>
  %w1.t = aten.t(%w1.whole) : tensor<8x8xf32> <>
  %dx = aten.mm(%dy, %w1.t) : tensor<8x8xf32> <fsdp: S(0)>
  return %dx : tensor<8x8xf32>
}

// | spmd.mesh @mesh <fsdp = 4>
// |
// | func.func @step(%x: tensor<2x8xf32> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>},
// |                 %w1: tensor<2x8xf32> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>},
// |                 %w2: tensor<2x8xf32> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}) -> (tensor<2x8xf32> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}) attributes {spmd.stage = "local"} {
// |   %w1.whole = spmd.all_gather %w1 on [fsdp] dim 0 : tensor<8x8xf32> <>
// |   %y = aten.mm(%x, %w1.whole) : tensor<2x8xf32> <fsdp: S(0)>
// |   %w2.whole = spmd.all_gather %w2 on [fsdp] dim 0 : tensor<8x8xf32> <>
// |   %z = aten.mm(%y, %w2.whole) : tensor<2x8xf32> <fsdp: S(0)>
// |   %w2.t = aten.t(%w2.whole) : tensor<8x8xf32> <>
// |   %dy = aten.mm(%z, %w2.t) : tensor<2x8xf32> <fsdp: S(0)>
// |   %w1.again = spmd.all_gather %w1 on [fsdp] dim 0 : tensor<8x8xf32> <> attributes {spmd.recomputes = "w1.whole"}
// |   %w1.t = aten.t(%w1.again) : tensor<8x8xf32> <>
// |   %dx = aten.mm(%dy, %w1.t) : tensor<2x8xf32> <fsdp: S(0)>
// |   return %dx : tensor<2x8xf32>
// | }
// ! %s:5:1: remark: a rank holds 576 B at once; gathers again 256 B in 0.008401 ms
// $ spmd report - --view timeline
// | start us  end us  stream   op                    live
// |      0.0     8.4  fsdp     %w1.whole all_gather
// |      0.0     8.4  compute  waits for %w1.whole   448 B
// |      8.4    10.4  compute  %y aten.mm            512 B
// |     10.4    18.8  fsdp     %w2.whole all_gather
// |     10.4    18.8  compute  waits for %w2.whole   512 B
// |     18.8    20.8  compute  %z aten.mm            576 B
// |     20.8    22.8  compute  %dy aten.mm           576 B
// |     22.8    31.2  fsdp     %w1.again all_gather
// |     22.8    31.2  compute  waits for %w1.again   512 B
// |     31.2    33.2  compute  %dx aten.mm           576 B
