"""Search over the vectors of items, and what lists of items are worth: NumPy and kernels, no torch."""
