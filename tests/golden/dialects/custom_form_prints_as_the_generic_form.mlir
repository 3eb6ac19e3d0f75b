// RUN: spmd-opt %s --print-op-generic

spmd.mesh @mesh <dp = 2>

func.func @f(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = aten.sum.dim_IntList(%x) {dim = [0], keepdim = true} : tensor<8xf32> <dp: S(0)> needs (<>)
  return %0 : tensor<8xf32>
}

// | "builtin.module"() ({
// |   "spmd.mesh"() <{sym_name = "mesh", mesh = #spmd.mesh<@mesh, dp = 2>}> : () -> ()
// |   "func.func"() <{sym_name = "f", function_type = (tensor<8xf32>) -> tensor<8xf32>}> ({
// |   ^bb0(%x: tensor<8xf32>):
// |     %0 = "aten.sum.dim_IntList"(%x) <{arguments = #spmd.arguments<{dim = [0], keepdim = true}>, sharding = #spmd.shardings<@mesh, <dp: S(0)>>, needs = #spmd.shardings<@mesh, <>>}> : (tensor<8xf32>) -> tensor<8xf32>
// |     "func.return"(%0) : (tensor<8xf32>) -> ()
// |   }) : () -> ()
// | }) : () -> ()
