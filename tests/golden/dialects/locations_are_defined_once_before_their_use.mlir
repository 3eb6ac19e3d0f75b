// RUN: spmd-opt %s --mlir-print-debuginfo
#line = loc("model.py":7:1)
#call = loc(callsite(#line at "train.py":30:1))
#up = loc("layers.0.mlp.up"(#call))

spmd.mesh @mesh <dp = 2> loc("mesh.py":1:1)

func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = aten.relu(%x) : tensor<4xf32> loc(#up)
  %1 = aten.abs(%0) : tensor<4xf32> loc(fused[#up, "layers.1"("a \"b\".py":3:1)])
  return %1 : tensor<4xf32> loc("a name alone")
}

// | #loc1 = loc("mesh.py":1:1)
// | #loc2 = loc("model.py":7:1)
// | #loc3 = loc("train.py":30:1)
// | #loc4 = loc(callsite(#loc2 at #loc3))
// | #loc5 = loc("layers.0.mlp.up"(#loc4))
// | #loc6 = loc("a \22b\22.py":3:1)
// | #loc7 = loc("layers.1"(#loc6))
// | #loc8 = loc(fused[#loc5, #loc7])
// | #loc9 = loc("a name alone")
// | #loc10 = loc("%s":8:1)
// |
// | spmd.mesh @mesh <dp = 2> loc(#loc1)
// |
// | func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {
// |   %0 = aten.relu(%x) : tensor<4xf32> loc(#loc5)
// |   %1 = aten.abs(%0) : tensor<4xf32> loc(#loc8)
// |   return %1 : tensor<4xf32> loc(#loc9)
// | } loc(#loc10)
