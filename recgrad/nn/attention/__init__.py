"""Self-attention over the positions of rows of different lengths."""

from recgrad.nn.attention.jagged import jagged_attention, uses_kernels
from recgrad.nn.attention.mask import Mask
from recgrad.nn.attention.setting import Biases, Setting
from recgrad.nn.attention.time_buckets import TimeBuckets

__all__ = ["Biases", "Mask", "Setting", "TimeBuckets", "jagged_attention", "uses_kernels"]
