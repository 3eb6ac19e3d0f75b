"""Linear algebra and Fourier transforms."""

from __future__ import annotations

import torch

from spmdir.checking.rules.samples.sample import Sample, c, f, sample


def _definite(*batch: int, size: int = 3) -> torch.Tensor:
    """Return positive definite matrices."""
    matrix = f(*batch, size, size)
    return matrix @ matrix.mT + size * torch.eye(size, dtype=matrix.dtype)


def _triangular(*batch: int, size: int = 3) -> torch.Tensor:
    """Return invertible lower triangular matrices."""
    return (f(*batch, size, size) + 3 * torch.eye(size, dtype=torch.float64)).tril()


def samples() -> list[Sample]:
    """Return calls of decompositions, solvers and Fourier transforms."""
    square, tall, definite, low = f(5, 3, 3), f(5, 4, 3), _definite(5), _triangular(5)
    factored, pivots, _ = torch.linalg.lu_factor_ex(square)
    packed, ldl_pivots, _ = torch.linalg.ldl_factor_ex(definite)
    reflectors, tau = torch.geqrf(tall)
    return [
        *(sample(op, square) for op in ("_linalg_det", "_linalg_slogdet", "linalg_inv_ex", "linalg_matrix_exp")),
        *(sample(op, f(3, 3)) for op in ("_linalg_det", "linalg_inv_ex")),
        *(sample(op, c(4, 3, 3)) for op in ("_linalg_slogdet", "linalg_inv_ex")),
        *(sample(op, definite) for op in ("cholesky", "linalg_cholesky_ex", "linalg_ldl_factor_ex", "_linalg_eigh")),
        *(sample(op, square) for op in ("linalg_lu", "linalg_lu_factor_ex", "linalg_eig", "_linalg_eigvals")),
        *(sample(op, tall) for op in ("linalg_qr", "geqrf", "_linalg_svd", "linalg_lu_factor_ex")),
        sample("cholesky_inverse", low),
        sample("linalg_qr", tall, mode="r"),
        sample("linalg_qr", f(4, 6, 3, 4), mode="complete"),
        sample("_linalg_eigh", definite, compute_v=False),
        sample("_linalg_svd", tall, compute_uv=False),
        sample("_linalg_svd", f(6, 3, 4), full_matrices=True),
        sample("linalg_householder_product", reflectors, tau),
        sample("ormqr", reflectors, tau, f(5, 4, 2)),
        sample("lu_unpack", factored, pivots),
        sample("lu_unpack", factored, pivots, unpack_pivots=False),
        sample("_linalg_solve_ex", square, f(5, 3, 2)),
        sample("_linalg_solve_ex", square, f(5, 2, 3), left=False),
        sample("_linalg_solve_ex", f(3, 3), f(3)),
        sample("_linalg_solve_ex", f(1, 3, 3), f(5, 3, 2)),
        sample("linalg_solve_triangular", low, f(5, 3, 4), upper=False),
        sample("linalg_solve_triangular", low, f(5, 4, 3), upper=False, left=False),
        sample("triangular_solve", f(5, 3, 4), low, upper=False),
        sample("cholesky_solve", f(5, 3, 4), low),
        sample("linalg_lu_solve", factored, pivots, f(5, 3, 4)),
        sample("linalg_lu_solve", factored, pivots, f(5, 4, 3), left=False),
        sample("linalg_ldl_solve", packed, ldl_pivots, f(5, 3, 4)),
        *(sample("_fft_c2c", c(5, 4, 6), dim=(1,), normalization=n, forward=forward)
          for n, forward in ((0, True), (2, False))),
        sample("_fft_r2c", f(5, 4, 6), dim=(0, 2), normalization=0, onesided=True),
        sample("_fft_r2c", f(5, 4), dim=(1,), normalization=0, onesided=False),
        sample("_fft_c2r", c(5, 4), dim=(1,), normalization=0, last_dim_size=6),
        sample("_fft_c2r", c(5, 4), dim=(1,), normalization=2, last_dim_size=4),
    ]  # fmt: skip
