// RUN: spmd-opt %s --verify-diagnostics

spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) {
  // expected-error@+1 {{slice requires 'dp' to be replicated; found S(0) in <dp: S(0)>: reshard the axis first, or use another collective}}
  %0 = spmd.slice %x on [dp] dim 1 : tensor<16x8xf32> <dp: S(1)>
  return
}
