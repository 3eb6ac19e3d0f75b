from spmdir.dialects import ir
from spmdir.pipeline.pipeline import run_passes

TEXT = """
spmd.mesh @mesh <a = 2>
func.func @main(%dy: tensor<4x6xf64>, %x: tensor<4x6xf64>, %mean: tensor<4x1xf64>, %rstd: tensor<4x1xf64>,
                %w: tensor<6xf64>, %b: tensor<6xf64>) -> tensor<4x6xf64> {
  %dx, %dw, %db = aten.native_layer_norm_backward(%dy, %x, %mean, %rstd, %w, %b) \
{normalized_shape = [6], output_mask = [true, false, false]} : tensor<4x6xf64>, none, none
  return %dx : tensor<4x6xf64>
}
"""


def test_results_that_are_not_there_go_through_every_pass():
    module = ir.parse(TEXT)
    pipeline = "propagate,insert-reshard,verify-spmd,lower-reshard,fuse-collectives,localize"
    run_passes(module, pipeline, verify_each=True)
    assert ir.print_ir(ir.parse(ir.print_ir(module))) == ir.print_ir(module)
