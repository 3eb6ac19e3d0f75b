// RUN: spmd-opt %s --propagate --insert-reshard --verify-diagnostics

spmd.mesh @mesh <dp = 2>

// expected-error@+1 {{insert-reshard found symbolic sizes; expected numbers: run bind-sizes first: --bind-sizes="s0=8"}}
spmd.sizes {s0 = 8 in 2..64}

func.func @f(%x: tensor<8x4xf32, #spmd.dims<s0, 4>>) -> tensor<8x4xf32, #spmd.dims<s0, 4>> {
  %0 = aten.relu(%x) : tensor<[s0]x4xf32>
  return %0 : tensor<8x4xf32, #spmd.dims<s0, 4>>
}
