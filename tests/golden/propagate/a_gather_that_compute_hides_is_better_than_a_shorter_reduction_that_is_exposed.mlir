// RUN: spmd-opt %s --propagate="overlap=schedule remarks" --expand --insert-reshard --lower-reshard --localize --schedule | spmd report - --view timeline
// One after the other, the all-reduce of %2 takes less time than the gather of %w and the whole product.
spmd.mesh @mesh <tp = 4>

func.func @f(%a: tensor<4096x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh>},
             %b: tensor<4096x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh>},
             %p: tensor<512x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh>},
             %w: tensor<4096x1024xbf16> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> (tensor<512x1024xbf16> {spmd.sharding = #spmd.sharding<@mesh>}) {
  %0 = aten.mm(%a, %b) : tensor<4096x4096xbf16> <>
  %1 = aten.mm(%p, %0) : tensor<512x4096xbf16> <>
  %2 = aten.mm(%1, %w) : tensor<512x1024xbf16>
  return %2 : tensor<512x1024xbf16>
}

// | spmd.mesh @mesh <tp = 4>
// |
// | func.func @f(%a: tensor<4096x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh>},
// |              %b: tensor<4096x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh>},
// |              %p: tensor<512x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh>},
// |              %w: tensor<1024x1024xbf16> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> (tensor<512x1024xbf16> {spmd.sharding = #spmd.sharding<@mesh>}) attributes {spmd.stage = "scheduled", spmd.decided_by = "propagate{overlap=schedule}", spmd.objective = 0.00029353150099999998 : f64} {
// |   %w.start = spmd.all_gather_start %w on [tp] dim 0 : !spmd.pending<tensor<4096x1024xbf16>> <>
// |   %0 = aten.mm(%a, %b) : tensor<4096x4096xbf16> <>
// |   %1 = aten.mm(%p, %0) : tensor<512x4096xbf16> <>
// |   %w.reshard = spmd.wait %w.start : tensor<4096x1024xbf16> <>
// |   %2 = aten.mm(%1, %w.reshard) : tensor<512x1024xbf16> <>
// |   return %2 : tensor<512x1024xbf16>
// | }
// ! %s:5:1: remark: a step takes 0.2355 ms scheduled, and 0.2549 ms with the decision of overlap=none
// ! %s:5:1: remark: searched in at most 100 turns: axes tp: 4 turns, near its own bound
// $ spmd report - --view timeline
// | start us  end us  stream   op                         live
// |      0.0    36.1  tp       %w.start all_gather_start
// |      0.0   200.5  compute  %0 aten.mm                 115.3 MB
// |    200.5   227.3  compute  %1 aten.mm                 119.5 MB
// |    227.3   235.5  compute  %2 aten.mm                 87.03 MB
