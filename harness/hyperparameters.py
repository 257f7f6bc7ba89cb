"""How an expert is fine-tuned, and the values that are allowed."""

from __future__ import annotations

import math
from dataclasses import dataclass

MOST_TOKENS, MOST_ROWS, MOST_EPOCHS = 2**20, 2**20, 1e6
"""The largest maximum length, batch size and number of epochs: a larger value is a typing error."""


@dataclass(frozen=True)
class Hyperparameters:
    """How an expert of a task is fine-tuned; each task defines the values of its paper."""

    learning_rate: float = 2e-5
    epochs: float = 3.0
    batch_size: int = 32
    warmup: float = 0.0
    weight_decay: float = 0.0
    max_length: int = 128


USUAL = Hyperparameters()
"""The values of a task that defines none."""


def unfit(name: str, value: object) -> str | None:
    """What a hyperparameter of this name should be; None if the value is valid."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "a number"
    if name == "warmup":
        return None if 0 <= value <= 1 else "a share of the steps, from 0 to 1"
    if name == "weight_decay":
        return None if 0 <= value < math.inf else "a finite number, not negative"
    most = {"batch_size": MOST_ROWS, "max_length": MOST_TOKENS, "epochs": MOST_EPOCHS}
    if not 0 < value < math.inf:
        return "a finite positive number"
    if name in ("batch_size", "max_length") and value != int(value):
        return "a whole number"
    return None if value <= most.get(name, value) else f"{most[name]:.0f} at most"
