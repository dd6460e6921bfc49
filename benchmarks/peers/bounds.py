"""How fast a step could be if its matrix products were all of it, done by torch."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import median

import torch

Product = tuple[int, int, int]  # [a, b] @ [b, c]


def layer_products(rows: int, *widths: int, inputs_need_gradients: bool = True) -> list[Product]:
    """The products of an MLP's forward and backward pass."""
    products: list[Product] = []
    for place, (a, b) in enumerate(pairwise(widths)):
        products += [(rows, a, b), (b, rows, a)]
        if place or inputs_need_gradients:
            products.append((rows, b, a))
    return products


def operations(products: Sequence[Product]) -> float:
    """Floating-point operations of them."""
    return sum(2.0 * a * b * c for a, b, c in products)


def product_times(products: Sequence[Product]) -> Callable[[], float]:
    """A function that runs each product once by torch and gives their seconds.

    Operands lie as a training step has them: weights [out, in], gradients of weights from transposed ones.
    """
    prepared = []
    for a, b, c in products:
        rows_inside = b > a and b > c
        left = torch.randn(b, a).t() if rows_inside else torch.randn(a, b)
        right = torch.randn(b, c) if rows_inside or b < c else torch.randn(c, b).t()
        prepared.append((left, right, torch.empty(a, c)))

    def run() -> float:
        start = time.perf_counter()
        for left, right, out in prepared:
            torch.mm(left, right, out=out)
        return time.perf_counter() - start

    run()
    return run


def product_rate(size: int = 2048, rounds: int = 5) -> float:
    """Floating-point operations a second of torch's product of square matrices, the best of some rounds."""
    run = product_times([(size, size, size)])
    return operations([(size, size, size)]) / min(run() for _ in range(rounds))


def interleaved(functions: dict[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """The median seconds of each function, run in turn."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            times[name].append(function())
    return {name: median(of_name) for name, of_name in times.items()}
