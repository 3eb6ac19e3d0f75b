// RUN: spmd-opt %s --verify-diagnostics

spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) {
  // expected-error@+1 {{slice requires 'tp' to be replicated; found P(sum) in <tp: P(sum)>: reshard the axis first, or use another collective}}
  %0 = spmd.slice %x on [tp] dim 1 : tensor<16x8xf32> <tp: S(1)>
  return
}
