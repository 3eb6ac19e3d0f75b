// RUN: spmd-opt %s --split-input-file --verify-diagnostics
spmd.mesh @mesh <dp = 2, tp = 4>

// Two communicators of the same ranks: one rank may run the first one first, another rank the second.
func.func @f(%x: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}, %y: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) {
  %0 = spmd.all_gather_start %x on [dp] dim 0 stream first : !spmd.pending<tensor<8xf32>> <>
  // expected-error@+1 {{'spmd.all_gather_start' on [dp] stream second starts while %0 on [dp] stream first is in flight; their groups share ranks, so they may deadlock; expected them one after the other: wait for %0 first, or run both on one stream}}
  %1 = spmd.all_gather_start %y on [dp] dim 0 stream second : !spmd.pending<tensor<8xf32>> <>
  %2 = spmd.wait %0 : tensor<8xf32> <>
  %3 = spmd.wait %1 : tensor<8xf32> <>
  return
}
// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// Groups over dp and tp hold those over dp.
func.func @f(%x: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}, %y: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: P(sum), tp: P(sum)>}) {
  %0 = spmd.all_gather_start %x on [dp] dim 0 : !spmd.pending<tensor<8xf32>> <>
  // expected-error@+1 {{'spmd.all_reduce' on [dp, tp] starts while %0 on [dp] is in flight; their groups share ranks, so they may deadlock; expected them one after the other: wait for %0 first, or run both on one stream}}
  %1 = spmd.all_reduce %y on [dp, tp] op sum : tensor<8xf32> <>
  %2 = spmd.wait %0 : tensor<8xf32> <>
  return
}
// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// A stream is a communicator, so it has one group.
func.func @f(%x: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}, %y: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) {
  %0 = spmd.all_gather_start %x on [dp] dim 0 stream both : !spmd.pending<tensor<8xf32>> <>
  // expected-error@+1 {{'spmd.all_gather_start' uses stream 'both' over [tp], and an earlier collective uses it over [dp]; expected one group for each stream: give one of them another stream}}
  %1 = spmd.all_gather_start %y on [tp] dim 0 stream both : !spmd.pending<tensor<8xf32>> <>
  %2 = spmd.wait %0 : tensor<8xf32> <>
  %3 = spmd.wait %1 : tensor<8xf32> <>
  return
}
// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// Schedules and timelines would take it for the stream of the axis, which has other ranks.
func.func @f(%x: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) {
  // expected-error@+1 {{has stream 'tp', which is also the name of a mesh axis; expected a name that no axis has: rename the stream}}
  %0 = spmd.all_gather_start %x on [dp] dim 0 stream tp : !spmd.pending<tensor<8xf32>> <>
  %1 = spmd.wait %0 : tensor<8xf32> <>
  return
}
