// RUN: spmd-opt %s --split-input-file --verify-diagnostics

func.func @f(%x: tensor<8xf32>, %y: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error@+1 {{'aten.relu_': writes its operand 'self'; expected a functional op: use aten.relu}}
  %0 = aten.relu_(%x) : tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

func.func @f(%x: tensor<8xf32>, %y: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error@+1 {{writes its operand 'self'; expected a functional op: use aten.add.Tensor}}
  %0 = aten.add_.Tensor(%x, %y) : tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

func.func @f(%x: tensor<8xf32>, %y: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error@+1 {{writes its operand 'self'; expected a functional op: use aten.copy}}
  %0 = aten.copy_(%x, %y) : tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

func.func @f(%x: tensor<8xf32>, %y: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error@+1 {{'aten.set_.source_Tensor': writes its operand 'self'; expected a functional op}}
  %0 = aten.set_.source_Tensor(%x, %y) : tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

func.func @f(%x: tensor<8xf32>, %y: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error@+1 {{writes its operand 'out'; expected a functional op: use aten.add.Tensor}}
  %0 = aten.add.out(%x, %y, %y) : tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

func.func @f(%x: tensor<8xf32>, %y: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error@+1 {{'aten.resize_': writes its operand 'self'; expected a functional op}}
  %0 = aten.resize_(%x) {size = [8]} : tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

func.func @f(%x: tensor<8xf32>, %y: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error@+1 {{'aten.normal_': writes its operand 'self'; expected a functional op: use aten.normal_functional}}
  %0 = aten.normal_(%x) : tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

func.func @f(%x: tensor<8xf32>, %y: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error@+1 {{'aten._copy_from': writes its operand 'dst'; expected a functional op}}
  %0 = aten._copy_from(%x, %y) : tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

func.func @f(%x: tensor<8xf32>, %y: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error@+1 {{writes its operand 'weight'}}
  %0 = aten._saturate_weight_to_fp16(%x) : tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

func.func @f(%x: tensor<8xf32>, %y: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error@+1 {{'prims.copy_to': writes its operand 'a'; expected a functional op}}
  %0 = prims.copy_to(%x, %y) : tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

func.func @f(%x: tensor<8xf32>, %y: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error@+1 {{opens the file in its argument 'filename'}}
  %0 = aten.from_file() {filename = "secret.bin", shared = true, size = 8} : tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

func.func @f(%x: tensor<8xf32>, %y: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error@+1 {{opens the file in its argument 'name'}}
  %0 = debugprims.load_tensor() {name = "secret.bin"} : tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

func.func @f(%x: tensor<8xf32>, %y: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error@+1 {{communicates between ranks}}
  %0 = _c10d_functional.all_reduce(%x) {reduce_op = "sum", group_name = "0"} : tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

func.func @f(%x: tensor<8xf32>, %y: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error@+1 {{communicates between ranks}}
  %0 = symm_mem.one_shot_all_reduce(%x) {reduce_op = "sum", group_name = "0"} : tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

func.func @f(%x: tensor<8xf32>, %y: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error@+1 {{is called for its side effect}}
  %0 = profiler._record_function_enter() {name = "f"} : tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

func.func @f(%x: tensor<8xf32>, %y: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error@+1 {{'aten._print': returns no tensor; expected one or more tensors: use another op}}
  %0 = aten._print() {s = "hello"} : tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

func.func @f(%x: tensor<8xf32>, %y: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error@+1 {{'aten.item': returns no tensor; expected one or more tensors: use another op}}
  %0 = aten.item(%x) : tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

func.func @f(%x: tensor<8xf32>, %y: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error@+1 {{chooses the device or memory of a tensor}}
  %0 = aten._pin_memory(%x) : tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

func.func @f(%x: tensor<8xf32>, %y: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error@+1 {{depends on strides or storage}}
  %0 = aten._reshape_alias(%x) {size = [8], stride = [1000]} : tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

func.func @f(%x: tensor<8xf32>, %y: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error@+1 {{returns uninitialised memory}}
  %0 = prims.empty_strided() {shape = [8], strides = [1]} : tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

func.func @f(%x: tensor<8xf32>, %y: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error@+1 {{works on quantised or packed tensors}}
  %0 = aten.fbgemm_linear_fp16_weight(%x, %y, %y) : tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

func.func @f(%x: tensor<8xf32>, %y: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error@+1 {{'aten.to_sparse': works on sparse tensors; expected dense tensors: convert them first}}
  %0 = aten.to_sparse(%x) : tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

func.func @f(%x: tensor<8xf32>, %y: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error@+1 {{is not an op of torch 2.11 to 2.13; did you mean 'aten.relu'?}}
  %0 = aten.rellu(%x) : tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

func.func @f(%x: tensor<8xf32>, %y: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error@+1 {{expected one of its overloads, such as aten.add.Scalar or aten.add.Tensor}}
  %0 = aten.add(%x, %y) : tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

func.func @f(%x: tensor<8xf32>, %y: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error@+1 {{'aten.relu.default': is not an op of torch 2.11 to 2.13; did you mean 'aten.relu'?}}
  %0 = aten.relu.default(%x) : tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

func.func @f(%x: tensor<8xf32>, %y: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error@+1 {{'aten.mm.__init__': is not an op of torch 2.11 to 2.13; did you mean 'aten.mm'?}}
  %0 = aten.mm.__init__(%x) : tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

func.func @f(%x: tensor<8xf32>, %y: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error@+1 {{'aten.mm.default.decompose': is not an op of torch 2.11 to 2.13; did you mean 'aten.mm'?}}
  %0 = aten.mm.default.decompose(%x) : tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

func.func @f(%x: tensor<8xf32>, %y: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error@+1 {{'aten.__class__': is not an op of torch 2.11 to 2.13; did you mean 'aten._ctc_loss'?}}
  %0 = aten.__class__(%x) : tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

func.func @f(%x: tensor<8xf32>, %y: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error@+1 {{is not the name of an op; expected NAMESPACE.OP or NAMESPACE.OP.OVERLOAD}}
  %0 = mylib.scale.__init__(%x) : tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

func.func @f(%x: tensor<8xf32>, %y: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error@+1 {{'mylib.scale.default.decompose': is not the name of an op; expected NAMESPACE.OP or NAMESPACE.OP.OVERLOAD}}
  %0 = mylib.scale.default.decompose(%x) : tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

func.func @f(%x: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error@+1 {{'aten.relu_': writes its operand 'self'}}
  %0 = "aten.relu_"(%x) : (tensor<8xf32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

func.func @f(%x: tensor<2x3x4xf32>, %mean: tensor<3xf32>, %var: tensor<3xf32>) -> tensor<2x3x4xf32> {
  // expected-error@+1 {{'aten.batch_norm': writes its operand 'running_mean' with training = true}}
  %0 = aten.batch_norm(%x, none, none, %mean, %var) {training = true, momentum = 0.1, eps = 0.1, cudnn_enabled = false} : tensor<2x3x4xf32>
  return %0 : tensor<2x3x4xf32>
}
