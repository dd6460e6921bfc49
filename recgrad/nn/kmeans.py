"""k-means by Lloyd's rounds: faiss where it is installed, else the same computation in torch.

Both begin with the same points, drawn by Mersenne Twister from the seed, so they differ by rounding alone:

    a(x) = argminₖ ‖x − cₖ‖²    (spherical: argmaxₖ ⟨x, cₖ⟩),     cₖ = mean of the x with a(x) = k

A centroid without points takes half of another one's: both become c·(1 ± 1/1024), the signs by turns.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from recgrad.limits import Count, Size, keep_limits

logger = logging.getLogger(__name__)

Floats = npt.NDArray[np.float32]

REDO_STEP = 15486557
"""What the seed of a further start is larger by, and that of the points that are taken of many."""
SPLIT = 1 / 1024
_CHUNK_SCORES = 1 << 24


@keep_limits
@dataclass(frozen=True)
class KMeansSettings:
    """Settings of k-means; the defaults are faiss's.

    Attributes:
        niter: rounds.
        nredo: starts, of which the best is kept.
        seed: of the points that are taken and begun with.
        max_points_per_centroid: of more points, so many are drawn.
        min_points_per_centroid: a warning is logged for fewer.
        spherical: centroids have length 1.
        verbose: log every round.
    """

    niter: Count = 25
    nredo: Count = 1
    seed: Size = 1234
    max_points_per_centroid: Count = 256
    min_points_per_centroid: Size = 39
    spherical: bool = False
    verbose: bool = False


def kmeans(points: Tensor, k: int, settings: KMeansSettings | None = None, *, faiss: bool = True) -> Tensor:
    """The centroids of points, [k, dim].

    Args:
        points: float32 [points, dim], k of them at least.
        k: centroids.
        settings: of the rounds.
        faiss: use faiss where it is installed.
    """
    settings = settings or KMeansSettings()
    if len(points) < k:
        raise ValueError(f"k-means of {k:,} centroids needs at least as many points, got {len(points):,}")
    own = points.detach().to("cpu", torch.float32).contiguous()
    if not own.isfinite().all():
        raise ValueError("k-means needs finite points")
    if len(own) < k * settings.min_points_per_centroid:
        logger.warning(
            "k-means: %d points for %d centroids, fewer than min_points_per_centroid %d for each",
            len(own),
            k,
            settings.min_points_per_centroid,
        )
    library = _faiss() if faiss else None
    found = _by_faiss(library, own, k, settings) if library is not None else _by_torch(own, k, settings)
    return found.to(points.device)


def residual_kmeans(
    points: Tensor, sizes: tuple[int, ...], settings: KMeansSettings | None = None, *, normalize: bool = False
) -> list[Tensor]:
    """The centroids of points, of what they leave over, and so on: one codebook for each size."""
    rest, codebooks = points.detach().float(), []
    for size in sizes:
        if normalize:
            rest = torch.nn.functional.normalize(rest, dim=1)
        codebook = kmeans(rest, size, settings)
        codebooks.append(codebook)
        rest = rest - codebook[nearest_rows(rest, codebook)]
    return codebooks


def nearest_rows(points: Tensor, centroids: Tensor, *, spherical: bool = False) -> Tensor:
    """The number of the nearest centroid of each point, int64 [points], in chunks."""
    rows = max(1, _CHUNK_SCORES // max(len(centroids), 1))
    found = [_scores(part, centroids, spherical).argmin(1) for part in torch.split(points, rows)]
    return torch.cat(found) if found else torch.zeros(0, dtype=torch.int64)


def _scores(points: Tensor, centroids: Tensor, spherical: bool) -> Tensor:
    """What is least for the nearest centroid: ‖c‖² − 2⟨x, c⟩, or −⟨x, c⟩."""
    products = points @ centroids.T
    return -products if spherical else centroids.square().sum(1) - 2 * products


def _faiss() -> Any:
    try:
        import faiss
    except ImportError:
        return None
    return faiss


def _by_faiss(library: Any, points: Tensor, k: int, settings: KMeansSettings) -> Tensor:
    library.omp_set_num_threads(torch.get_num_threads())
    trained = library.Kmeans(
        points.shape[1],
        k,
        niter=settings.niter,
        nredo=settings.nredo,
        seed=settings.seed,
        max_points_per_centroid=settings.max_points_per_centroid,
        min_points_per_centroid=1,  # said here, in the log
        spherical=settings.spherical,
        verbose=settings.verbose,
    )
    trained.train(points.numpy())
    return torch.from_numpy(np.array(trained.centroids))


def _by_torch(points: Tensor, k: int, settings: KMeansSettings) -> Tensor:
    most = k * settings.max_points_per_centroid
    if len(points) > most:
        points = points[torch.from_numpy(first_permuted(len(points), most, settings.seed))]
    if len(points) == k:
        return points.clone()
    best, least = points[:k], np.inf
    for start in range(settings.nredo):
        first = first_permuted(len(points), k, settings.seed + 1 + start * REDO_STEP)
        centroids, error = _rounds(points, points[torch.from_numpy(first)].clone(), settings)
        if error < least:
            best, least = centroids, error
    return best


def _rounds(points: Tensor, centroids: Tensor, settings: KMeansSettings) -> tuple[Tensor, float]:
    """The centroids after all rounds, and Σ‖x − c‖² (spherical: −Σ⟨x, c⟩) before the last update."""
    error = 0.0
    if settings.spherical:
        centroids = torch.nn.functional.normalize(centroids, dim=1)
    for number in range(settings.niter):
        chosen = nearest_rows(points, centroids, spherical=settings.spherical)
        taken = centroids[chosen]
        gaps = -(points * taken).sum() if settings.spherical else (points - taken).square().sum()
        error = float(gaps)
        counts = torch.bincount(chosen, minlength=len(centroids))
        sums = torch.zeros_like(centroids).index_add_(0, chosen, points)
        centroids = sums / counts.clamp(min=1).unsqueeze(1)
        _split_empty(centroids.numpy(), counts.numpy(), len(points))
        if settings.spherical:
            centroids = torch.nn.functional.normalize(centroids, dim=1)
        if settings.verbose:
            logger.info("k-means: round %d, error %.6g", number + 1, error)
    return centroids, error


def _split_empty(centroids: Floats, counts: npt.NDArray[np.int64], points: int) -> None:
    """Give every centroid without points half of another one, drawn by how many points that has."""
    empty = np.flatnonzero(counts == 0)
    if not len(empty):
        return
    draws = np.random.RandomState(1234)
    signs = np.where(np.arange(centroids.shape[1]) % 2 == 0, np.float32(SPLIT), np.float32(-SPLIT))
    k = len(centroids)
    for one in empty:
        other = 0
        while _unit(draws) >= (counts[other] - 1.0) / (points - k):
            other = (other + 1) % k
        centroids[one] = centroids[other] * (1 + signs)
        centroids[other] *= 1 - signs
        counts[one] = counts[other] // 2
        counts[other] -= counts[one]


def _unit(draws: np.random.RandomState) -> float:
    return float(np.float32(int(draws.randint(0, 1 << 32, dtype=np.uint32)) / np.float32(0xFFFFFFFF)))


def first_permuted(n: int, count: int, seed: int) -> npt.NDArray[np.int64]:
    """The first numbers of a permutation of 0 … n − 1, shuffled from the front by Mersenne Twister."""
    draws = np.random.RandomState(seed & 0xFFFFFFFF)
    steps = min(count, n - 1)
    words = draws.randint(0, 1 << 32, size=steps, dtype=np.uint32).astype(np.int64)
    others = (np.arange(steps) + words % (n - np.arange(steps))).tolist()
    order = np.arange(n).tolist()
    for i, other in enumerate(others):
        order[i], order[other] = order[other], order[i]
    return np.array(order[:count], np.int64)
