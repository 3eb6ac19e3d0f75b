// RUN: --split-input-file

spmd.mesh @a <dp = 2>
// -----
spmd.mesh @b <tp = 2>

// | spmd.mesh @a <dp = 2>
// | // -----
// | spmd.mesh @b <tp = 2>
