// RUN: spmd-opt %s --propagate=certify
spmd.mesh @mesh <tp = 4>

// The axis is split as the annotations say, and the bound is for decisions on that mesh.
func.func @f(%x: tensor<512x512xf32> {spmd.sharding = #spmd.sharding<@mesh, tp(1)2: S(0)>}) -> (tensor<512x512xf32> {spmd.sharding = #spmd.sharding<@mesh, tp(1)2: S(0)>}) {
  %0 = aten.exp(%x) : tensor<512x512xf32>
  return %0 : tensor<512x512xf32>
}

// | spmd.mesh @mesh <tp = 4>
// |
// | func.func @f(%x: tensor<512x512xf32> {spmd.sharding = #spmd.sharding<@mesh, tp(1)2: S(0)>}) -> (tensor<512x512xf32> {spmd.sharding = #spmd.sharding<@mesh, tp(1)2: S(0)>}) attributes {spmd.stage = "decided", spmd.certificate = {objective = 2.4695116400000001e-06 : f64, lower_bound = 2.4695116400000001e-06 : f64, floor = 2.3130077599999999e-06 : f64, mesh = "<tp(1)2 = 2, tp(2)2 = 2>"}} {
// |   %0 = aten.exp(%x) : tensor<512x512xf32> <tp(1)2: S(0)>
// |   return %0 : tensor<512x512xf32>
// | }
// ! %s:5:1: remark: objective 0.00247 ms; no decision on <tp(1)2 = 2, tp(2)2 = 2> costs less than 0.00247 ms: gap 0.00%, or 0.0% of what is above the least compute of 0.002313 ms
