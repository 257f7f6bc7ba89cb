"""Every method, with the options that take another way, and what comes of it on a device."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from harness.checking import toys
from harness.merging.providers import ReadyProvider
from harness.merging.stages import Stage
from harness.methods import needs_of, resolved_options
from harness.options import parse_choice
from harness.registry import STAGES
from harness.types import StateDict

OPTIONS = {
    "merger": [
        "adamerging:density=0.2,by=task", "breadcrumbs:per=row", "iso:variant=common_and_task",
        "linear:weights=1:2:1", "pcb:inter=pairwise", "ties:trim=tensor,combine=sum",
        "ties:combine=max", "tsv:others=zero,keep=0.001,at_least=0", "wudi:solver=adam",
    ],
    "premerge": [
        "activation_matching:pearson=true", "dare:strategy=magnitude", "permutation:heads=true",
        "permutation:residual=true", "permutation:cycle_consistent=true,heads=true",
        "procrustes:reference=both_ends", "procrustes:orientation=out,rotate_bias=true",
        "procrustes:matrix_set=all_2d,variant=fixed_reference", "rotation:proper=true,scaling=true",
    ],
    "postmerge": [],
}  # fmt: skip
"""Options with which a method takes another way than by default."""
CASES = [(stage, text) for stage in OPTIONS for text in (*STAGES[stage], *OPTIONS[stage])]


def run(stage: str, text: str, device: torch.device) -> Sequence[StateDict]:
    choice = parse_choice(text)
    entry = STAGES[stage][choice.name]
    needs = [one.name for one in needs_of(entry)]
    family = toys.family(2 if choice.name == "slerp" else 3, needs)
    providers = tuple(ReadyProvider(one, family.needs[one.name]) for one in needs_of(entry))
    made = Stage(entry, resolved_options(entry, choice), providers, device=device).run(
        *([family.experts[0]] if stage == "postmerge" else []), family.experts, family.base
    )
    states = made if stage == "premerge" else [made]
    return [{name: state[name] for name in state} for state in states]
