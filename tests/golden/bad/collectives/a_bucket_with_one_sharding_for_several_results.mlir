// RUN: spmd-opt %s --verify-diagnostics
// Each result has its sharding behind its type, as those of other ops do.
spmd.mesh @mesh <fsdp = 4>

func.func @f(%x: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>},
             %y: tensor<4xf32> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}) -> tensor<8xf32> {
  // expected-error@+1 {{a collective requires the shardings of its operand and of its result; the result %a has none: write it after its type, as in `tensor<8xf32> <dp: S(0)>`}}
  %a, %b = spmd.all_gather %x, %y on [fsdp] dim 0 : tensor<8xf32>, tensor<4xf32> <>
  return %a : tensor<8xf32>
}
