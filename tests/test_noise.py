"""What the rounding of features may change: 3e-7 of noise, as another batch or processor makes it.

A fit that ends early, or takes full steps of rounding, makes other predictions of the same model.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import harness
from harness import Draw, Encoded, Features, Head, Run, Teacher
from harness.errors import BrokenRecord
from harness.evaluation.records import identity
from harness.kinds import KINDS
from harness.options import resolve
from harness.passes import features
from harness.reporting.boards.board import board_of
from harness.reporting.lines import lines_of
from harness.types import Array
from tests.conftest import model
from tests.mistakes import mistake
from tests.toys import THREE, registered

NOISE = 3e-7
WIDTH, CLASSES, POOL, TEST = 64, 4, 240, 1500
#: protocol -> the largest share of predictions that noise may change: of the model, and of one that
#: is its teacher but for rounding, where a fit by Adam has no gradient but that of rounding
BOUNDS: dict[str, tuple[float, float]] = {
    "current": (0, 0),
    "knn": (0, 0),
    "knn:rule=vote": (0, 0),
    "knn:rule=centroid": (0, 0),
    "linear-probe": (0, 0),
    "linear-probe:penalty=0.01": (0, 0),
    "fresh-head": (0, 0),
    "probe": (0, 0),
    "probe:transform=affine": (0, 0),
    "probe:fit=gradient": (0.01, 0),
    "probe:fit=gradient,transform=affine": (0.01, 0),
    "probe:fit=gradient,distance=l1": (0.04, 0),
    "ft-classifier": (0.01, 0.02),
    "surgery:steps=300": (0.02, 0.01),
}


def encoded(*, same: bool, noise: int | None = None) -> Encoded:
    """Features of unlike size, as hidden states have them, and of an expert."""
    random = np.random.default_rng(0)
    scale = np.exp(1.5 * random.normal(size=WIDTH))
    means = random.normal(size=(CLASSES, WIDTH))
    labels = np.arange(POOL + TEST) % CLASSES
    x = scale * (0.3 * means[labels] + random.normal(size=(POOL + TEST, WIDTH)))
    taught = x if same else x @ (np.eye(WIDTH) + 0.05 * random.normal(size=(WIDTH, WIDTH)))
    head = Head((means / scale).astype(np.float32), random.normal(size=CLASSES).astype(np.float32))

    def read(values: Any) -> Array:
        moved = values if noise is None else values + NOISE * others.normal(size=values.shape)
        return np.asarray(moved, dtype=np.float32)

    others = np.random.default_rng(noise)
    ours, theirs = read(x), read(taught[:POOL])
    logits = (ours @ head.weight.T + head.bias).astype(np.float32)
    of_class = [np.flatnonzero(labels[:POOL] == one) for one in range(CLASSES)]
    draws = tuple(
        Draw(shots, 0, tuple(tuple(one[:shots].tolist()) for one in of_class)) for shots in (5, 50)
    )
    outputs = theirs.astype(float) @ head.weight.T.astype(float) + head.bias
    return Encoded(
        "toy/noise",
        KINDS["classification"],
        CLASSES,
        Features(ours[POOL:], logits[POOL:], labels[POOL:].astype(float)),
        head,
        Features(ours[:POOL], logits[:POOL], labels[:POOL].astype(float)),
        draws,
        KINDS["classification"].target([outputs]),
        teachers=(Teacher(theirs, head),),
    )


def changed(protocol: str, *, same: bool) -> float:
    """The largest share of predictions of a draw that noise changes."""
    choice = harness.parse_choice(protocol)
    function = harness.PROTOCOLS[choice.name].function
    options = resolve("protocol", choice, function)
    first, *others = (
        function(encoded(same=same, noise=noise), **options) for noise in (None, 1, 2)
    )
    shares = [
        (one.values != other.values).mean()
        for moved in others
        for one, other in zip(first, moved, strict=True)
    ]
    return float(max(shares))


@pytest.mark.parametrize("same", [False, True])
@pytest.mark.parametrize("protocol", BOUNDS)
def test_noise_changes_no_more_predictions_than_this(protocol: str, same: bool) -> None:
    share = changed(protocol, same=same)
    assert share <= BOUNDS[protocol][same], share


@contextmanager
def nudged(seed: int) -> Iterator[None]:
    """Features of every forward pass with noise."""
    once, numbers = features.one_pass, np.random.default_rng(seed)

    def moved(*given: Any, **asked: Any) -> Any:
        read, logits, seen = once(*given, **asked)
        noise = (NOISE * numbers.normal(size=x.shape) for x in read)
        return (
            [x + one.astype(np.float32) for x, one in zip(read, noise, strict=True)],
            logits,
            seen,
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(features, "one_pass", moved)
        yield


def test_a_linear_probe_ends_at_the_minimum_and_its_record_says_how_near(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through evaluate; one of before, which ended at 1e-4, is another record."""
    folder = model(tmp_path / "m", list(THREE.labels), initializer_range=0.5)
    told: list[list[float]] = []
    with registered(THREE):
        for seed in (0, 1):
            monkeypatch.setenv("HARNESS_CACHE_DIR", str(tmp_path / f"cache{seed}"))
            with nudged(seed):
                records = harness.evaluate(
                    Run(
                        model=str(folder),
                        tasks=(THREE.name,),
                        protocols=(harness.parse_choice("linear-probe:penalty=0.001"),),
                        shots=(5, "all"),
                        output=str(tmp_path / f"out{seed}"),
                        device="cpu",
                    )
                )
            (record,) = records
            told.append([one.value for one in record.scores])
    assert told[0] == told[1]
    assert record.options["tolerance"] == 1e-10
    values = record.model_dump(mode="json")
    before = {**values, "options": {"penalty": 0.001}}
    assert identity(before) != identity(values)
    asked = {**values, "options": {**values["options"], "tolerance": 1e-4}}
    assert identity(before) == identity(asked)
    earlier = record.model_copy(update={"options": before["options"]})
    lines = [*lines_of((str(place), one) for place, one in enumerate((record, earlier)))]
    with mistake(BrokenRecord, "0.0001 1e-10"):
        board_of(lines)
