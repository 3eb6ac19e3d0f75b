// RUN: spmd-opt %s --propagate --verify-diagnostics
// expected-error@-1 {{the module has 2 functions; expected one, or one that is called @main or is not private}}

spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f() {
  return
}
func.func @g() {
  return
}
