"""Four ways to compute the nearest orthogonal matrix, on matrices that Procrustes decomposes.

python benchmarks/polar.py [--width 768] [--repeats 3] [--delta 5e-4]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator

import torch
from premerge import like_trained, moved

ACCURACY = 1e-10
"""To be reached: convergence is at least quadratic, so a change below its power 0.6 is enough."""


def by_svd(matrix: torch.Tensor) -> tuple[torch.Tensor, int]:
    """The project's own: gesdd of the QR factor."""
    from harness.weights.decompositions import polar

    return polar(matrix), 1


def iterated(
    step: Callable[[torch.Tensor], Iterator[torch.Tensor]],
) -> Callable[[torch.Tensor], tuple[torch.Tensor, int]]:
    """A way that repeats `step` until it changes almost nothing; a long matrix is reduced by QR."""

    def found(matrix: torch.Tensor) -> tuple[torch.Tensor, int]:
        basis, core = torch.linalg.qr(matrix) if len(matrix) > matrix.shape[1] else (None, matrix)
        last, count = core, 0
        for now in step(core):
            count += 1
            gone = float((now - last).norm() / now.norm())
            last = now
            if gone < ACCURACY**0.6 or count == 100:
                break
        return (last if basis is None else basis @ last), count

    return found


def newton_schulz(matrix: torch.Tensor) -> Iterator[torch.Tensor]:
    """Iterates by products alone: x (3 - x^T x) / 2."""
    now = matrix / torch.linalg.matrix_norm(matrix, 2)
    while True:
        now = 1.5 * now - 0.5 * now @ (now.mT @ now)
        yield now


def newton(matrix: torch.Tensor) -> Iterator[torch.Tensor]:
    """Iterates by inverses, scaled by norms (Higham 1986): (s x + x^-T / s) / 2."""
    now = matrix
    while True:
        back = torch.linalg.inv(now)
        norms = [
            torch.linalg.matrix_norm(one, 1) * torch.linalg.matrix_norm(one, torch.inf)
            for one in (back, now)
        ]
        scale = float(norms[0] / norms[1]) ** 0.25
        now = (scale * now + back.mT / scale) / 2
        yield now


def halley(matrix: torch.Tensor) -> Iterator[torch.Tensor]:
    """Dynamically weighted Halley iterates (QDWH, Nakatsukasa et al. 2010): QR, later Cholesky."""
    size = len(matrix)
    one = torch.eye(size, dtype=matrix.dtype)
    now = matrix / torch.linalg.matrix_norm(matrix, "fro")
    low = float(1 / torch.linalg.matrix_norm(torch.linalg.inv(now), 1) / size**0.5)
    while True:
        d = (4 * (1 - low**2) / low**4) ** (1 / 3) if low < 1 else 0.0
        a = (1 + d) ** 0.5
        a += (8 - 4 * d + 8 * (2 - low**2) / (low**2 * (1 + d) ** 0.5)) ** 0.5 / 2
        b, c = (a - 1) ** 2 / 4, a + (a - 1) ** 2 / 4 - 1
        if c > 100:
            factor = torch.linalg.qr(torch.cat([c**0.5 * now, one])).Q
            now = b / c * now + (a - b / c) / c**0.5 * factor[:size] @ factor[size:].mT
        else:
            root = torch.linalg.cholesky(one + c * now.mT @ now)
            now = b / c * now + (a - b / c) * torch.cholesky_solve(now.mT, root).mT
        low = min(1.0, low * (a + b * low**2) / (1 + c * low**2))
        yield now


WAYS = {
    "gesdd": by_svd,
    "Newton-Schulz": iterated(newton_schulz),
    "Newton, scaled": iterated(newton),
    "Halley (QDWH)": iterated(halley),
}


def compare(given: argparse.Namespace) -> None:
    """Print seconds, iterations and errors of each way."""
    numbers = torch.Generator().manual_seed(0)
    print("| shape | way | seconds | iterations | largest error |\n|---|---|---:|---:|---:|")
    for shape in ((given.width, given.width), (4 * given.width, given.width)):
        base = like_trained(torch.empty(shape), numbers).double()
        matrices = [moved(base, numbers) for _ in range(2)]
        # a product of two experts or, of long shape, the matrix itself
        matrix = matrices[0].mT @ matrices[1] if shape[0] == shape[1] else base
        expected, _ = by_svd(matrix)
        for way, find in WAYS.items():
            runs = []
            for _ in range(given.repeats):
                start = time.perf_counter()
                found, count = find(matrix)
                runs.append(time.perf_counter() - start)
            error = float((found - expected).abs().max())
            seconds = f"{statistics.median(runs):.3f}"
            print(f"| {shape[0]} x {shape[1]} | {way} | {seconds} | {count} | {error:.0e} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--repeats", type=int, default=3)
    compare(parser.parse_args())


if __name__ == "__main__":
    main()
