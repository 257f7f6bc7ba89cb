"""The script that measures a GPU: small, and on the processor."""

from __future__ import annotations

import json
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "gpu.py"


def test_the_script_runs_without_a_gpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(SCRIPT.parent)
    spec = spec_from_file_location("gpu_script", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = module_from_spec(spec)
    spec.loader.exec_module(script)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    script.main(["--out", str(tmp_path / "gpu.json"), "--repeats", "1"])
    assert "There is no GPU" in capsys.readouterr().out
    found = json.loads((tmp_path / "gpu.json").read_text())
    bounds = {"float32": 1e-5, "bfloat16": 0.1, "float16": 0.02}
    for part, unit in (("encoding", "tokens"), ("images", "images")):
        assert {row["dtype"] for row in found[part]} == {*bounds}
        assert all(row[f"{unit} a second"] > 0 for row in found[part])
        assert all(row["of the peak"] > 0 for row in found[part])
        assert all(row["far"] < bounds[row["dtype"]] for row in found[part])
        assert all(row["far"] > 1e-4 for row in found[part] if row["dtype"] != "float32")
    assert {row["dtype"] for row in found["stacked"]} == {*bounds}
    assert all(row["far"] < bounds[row["dtype"]] for row in found["stacked"])
    assert all(row["device, s"] > 0 for row in found["merging"])
    arithmetic = {row["arithmetic"] for row in found["merging"]}
    turned = {"polar factors", "Procrustes"}
    assert arithmetic == {"average", "TIES", "RegMean", "TSV", "Fisher", *turned}
