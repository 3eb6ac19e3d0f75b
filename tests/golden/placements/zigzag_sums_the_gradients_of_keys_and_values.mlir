// RUN: spmd-opt %s --propagate="topology=flat" --insert-reshard --lower-reshard
// Every rank has the queries of its own tokens and all keys, so the gradients of keys and values are partial sums.
spmd.mesh @mesh <cp = 4>

func.func @attention(%q: tensor<1x4x30x8xf32> {spmd.sharding = #spmd.sharding<@mesh, cp: ZigZag(2)>},
                     %k: tensor<1x1x30x8xf32> {spmd.sharding = #spmd.sharding<@mesh, cp: ZigZag(2)>},
                     %v: tensor<1x1x30x8xf32> {spmd.sharding = #spmd.sharding<@mesh, cp: ZigZag(2)>},
                     %g: tensor<1x4x30x8xf32> {spmd.sharding = #spmd.sharding<@mesh, cp: ZigZag(2)>})
    -> (tensor<1x4x30x8xf32> {spmd.sharding = #spmd.sharding<@mesh, cp: ZigZag(2)>},
        tensor<1x1x30x8xf32> {spmd.sharding = #spmd.sharding<@mesh, cp: ZigZag(2)>},
        tensor<1x1x30x8xf32> {spmd.sharding = #spmd.sharding<@mesh, cp: ZigZag(2)>}) {
  %o, %l = aten._scaled_dot_product_flash_attention_for_cpu(%q, %k, %v) {is_causal = true} : tensor<1x4x30x8xf32>, tensor<1x4x30xf32>
  %gq, %gk, %gv = aten._scaled_dot_product_flash_attention_for_cpu_backward(%g, %q, %k, %v, %o, %l) {dropout_p = 0.0, is_causal = true} : tensor<1x4x30x8xf32>, tensor<1x1x30x8xf32>, tensor<1x1x30x8xf32>
  return %gq, %gk, %gv : tensor<1x4x30x8xf32>, tensor<1x1x30x8xf32>, tensor<1x1x30x8xf32>
}

// | spmd.mesh @mesh <cp = 4>
// |
// | func.func @attention(%q: tensor<1x4x30x8xf32> {spmd.sharding = #spmd.sharding<@mesh, cp: ZigZag(2)>},
// |                      %k: tensor<1x1x30x8xf32> {spmd.sharding = #spmd.sharding<@mesh, cp: ZigZag(2)>},
// |                      %v: tensor<1x1x30x8xf32> {spmd.sharding = #spmd.sharding<@mesh, cp: ZigZag(2)>},
// |                      %g: tensor<1x4x30x8xf32> {spmd.sharding = #spmd.sharding<@mesh, cp: ZigZag(2)>}) -> (tensor<1x4x30x8xf32> {spmd.sharding = #spmd.sharding<@mesh, cp: ZigZag(2)>}, tensor<1x1x30x8xf32> {spmd.sharding = #spmd.sharding<@mesh, cp: ZigZag(2)>}, tensor<1x1x30x8xf32> {spmd.sharding = #spmd.sharding<@mesh, cp: ZigZag(2)>}) attributes {spmd.stage = "lowered", spmd.decided_by = "propagate{topology=flat}"} {
// |   %k.reshard = spmd.all_gather %k on [cp] dim 2 : tensor<1x1x30x8xf32> <>
// |   %v.reshard = spmd.all_gather %v on [cp] dim 2 : tensor<1x1x30x8xf32> <>
// |   %o, %l = aten._scaled_dot_product_flash_attention_for_cpu(%q, %k.reshard, %v.reshard) {is_causal = true} : tensor<1x4x30x8xf32> <cp: ZigZag(2)>, tensor<1x4x30xf32> <cp: ZigZag(2)>
// |   %gq, %gk, %gv = aten._scaled_dot_product_flash_attention_for_cpu_backward(%g, %q, %k.reshard, %v.reshard, %o, %l) {dropout_p = 0.0, is_causal = true} : tensor<1x4x30x8xf32> <cp: ZigZag(2)>, tensor<1x1x30x8xf32> <cp: P(sum)>, tensor<1x1x30x8xf32> <cp: P(sum)>
// |   %gk.reshard = spmd.reduce_scatter %gk on [cp] dim 2 op sum : tensor<1x1x30x8xf32> <cp: ZigZag(2)>
// |   %gv.reshard = spmd.reduce_scatter %gv on [cp] dim 2 op sum : tensor<1x1x30x8xf32> <cp: ZigZag(2)>
// |   return %gq, %gk.reshard, %gv.reshard : tensor<1x4x30x8xf32>, tensor<1x1x30x8xf32>, tensor<1x1x30x8xf32>
// | }
