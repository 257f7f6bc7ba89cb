"""Runs in mergekit's own environment: each argument is CONFIG=FOLDER, merged as mergekit-yaml does.

One process for many merges: importing mergekit takes longer than merging miniatures.
"""

from __future__ import annotations

import sys
from pathlib import Path

import yaml
from mergekit.config import MergeConfiguration
from mergekit.merge import run_merge
from mergekit.options import MergeOptions

for pair in sys.argv[1:]:
    config, folder = pair.split("=")
    text = Path(config).read_text(encoding="utf-8")
    asked = MergeConfiguration.model_validate(yaml.safe_load(text))
    run_merge(asked, folder, options=MergeOptions(quiet=True), config_source=text)
