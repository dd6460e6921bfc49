"""What numba compiles with: code that is kept from run to run, under a key of all that it is made of."""

from recgrad.kernels.cache import cached_cfunc, cached_njit, is_kept

__all__ = ["cached_cfunc", "cached_njit", "is_kept"]
