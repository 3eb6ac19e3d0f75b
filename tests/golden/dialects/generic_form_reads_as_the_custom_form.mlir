// RUN: spmd-opt %s

"builtin.module"() ({
  "spmd.mesh"() <{sym_name = "mesh", mesh = #spmd.mesh<@mesh, dp = 2>}> : () -> ()
  func.func @f(%x: tensor<8xf32>) -> tensor<8xf32> {
    %0 = "aten.relu"(%x) : (tensor<8xf32>) -> tensor<8xf32>
    return %0 : tensor<8xf32>
  }
}) : () -> ()

// | spmd.mesh @mesh <dp = 2>
// |
// | func.func @f(%x: tensor<8xf32>) -> tensor<8xf32> {
// |   %0 = aten.relu(%x) : tensor<8xf32>
// |   return %0 : tensor<8xf32>
// | }
