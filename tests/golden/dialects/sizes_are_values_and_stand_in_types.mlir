// RUN: spmd-opt %s
spmd.mesh @mesh <dp = 2>

spmd.sizes {s0 = 8 in 2..64, s1 = 6 in 0.., s0 % 4 == 0, s1 <= s0, 2 * s1 != s0 + 1}

func.func @f(%x: tensor<8x20xf32, #spmd.dims<s0,  s1 * 2 + s0 >> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) -> (tensor<8x20xf32, #spmd.dims<s0, 2*s1 + s0>>, tensor<8xf32, #spmd.dims<max(s0, 2)>>) {
  %n = aten.sym_size.int(%x, 0) : !spmd.size<s0, dp>
  %m = aten.sym_size.int(%x, -1) : !spmd.size<s0 + s1 + s1>
  %numel = aten.sym_numel(%x) : !spmd.size<s0*(2*s1 + s0), dp>
  %s1 = spmd.size() : !spmd.size<s1>
  %sum = operator.add(%n, %s1) : !spmd.size<s1 + s0, dp>
  %difference = operator.sub(%m, 3) : !spmd.size<2*s1 + s0 - 3>
  %half = operator.floordiv(%sum, 2) : !spmd.size<(s0 + s1) // 2, dp>
  %rest = operator.mod(%n, %s1) : !spmd.size<s0 % s1, dp>
  %most = torch.sym_max(%n, %s1) : !spmd.size<max(s1, s0), dp>
  %root = math.sqrt(%n) : !spmd.size<sqrt(s0)>
  %scale = operator.truediv(1.0, %root) : !spmd.size<1.0 / sqrt(s0)>
  %y = aten.view(%x) {size = [%n, %m]} : tensor<[s0]x[2*s1 + s0]xf32> <dp: S(0)>
  %z = aten.mul.Tensor(%y) {other = %scale} : tensor<[s0]x[2*s1 + s0]xf32> <dp: S(0)>
  %c = aten.full() {fill_value = 1.0, size = [%most]} : tensor<[max(s0, 2)]xf32>
  return %z, %c : tensor<8x20xf32, #spmd.dims<s0, 2*s1 + s0>>, tensor<8xf32, #spmd.dims<max(s0, 2)>>
}

// | spmd.mesh @mesh <dp = 2>
// |
// | spmd.sizes {s0 = 8 in 2..64, s1 = 6 in 0.., s0 % 4 == 0, s0 >= s1, 2*s1 != s0 + 1}
// |
// | func.func @f(%x: tensor<8x20xf32, #spmd.dims<s0, s0 + 2*s1>> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) -> (tensor<8x20xf32, #spmd.dims<s0, s0 + 2*s1>>, tensor<8xf32, #spmd.dims<max(2, s0)>>) {
// |   %n = aten.sym_size.int(%x, 0) : !spmd.size<s0, dp>
// |   %m = aten.sym_size.int(%x, -1) : !spmd.size<s0 + 2*s1>
// |   %numel = aten.sym_numel(%x) : !spmd.size<s0*s0 + 2*s0*s1, dp>
// |   %s1 = spmd.size() : !spmd.size<s1>
// |   %sum = operator.add(%n, %s1) : !spmd.size<s0 + s1, dp>
// |   %difference = operator.sub(%m, 3) : !spmd.size<s0 + 2*s1 - 3>
// |   %half = operator.floordiv(%sum, 2) : !spmd.size<(s0 + s1) // 2, dp>
// |   %rest = operator.mod(%n, %s1) : !spmd.size<s0 % s1, dp>
// |   %most = torch.sym_max(%n, %s1) : !spmd.size<max(s0, s1), dp>
// |   %root = math.sqrt(%n) : !spmd.size<sqrt(s0)>
// |   %scale = operator.truediv(1.0, %root) : !spmd.size<1.0 / sqrt(s0)>
// |   %y = aten.view(%x) {size = [%n, %m]} : tensor<[s0]x[s0 + 2*s1]xf32> <dp: S(0)>
// |   %z = aten.mul.Tensor(%y) {other = %scale} : tensor<[s0]x[s0 + 2*s1]xf32> <dp: S(0)>
// |   %c = aten.full() {fill_value = 1.0, size = [%most]} : tensor<[max(2, s0)]xf32>
// |   return %z, %c : tensor<8x20xf32, #spmd.dims<s0, s0 + 2*s1>>, tensor<8xf32, #spmd.dims<max(2, s0)>>
// | }
