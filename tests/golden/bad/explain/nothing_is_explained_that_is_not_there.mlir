// RUN: not spmd explain %s %wx
spmd.mesh @mesh <tp = 4>

func.func @f(%w: tensor<8xf32>) -> tensor<8xf32> {
  return %w : tensor<8xf32>
}

// ! error: no value matches '%wx'; expected the name of a value before propagate, such as %mm, a line such as model.py:12, the path of a module, or a glob; did you mean '%w'?
