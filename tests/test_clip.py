"""CLIP: an encoder of images, with the projection of its base, under a head made of texts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import harness
from harness import weights
from harness.checkpoints.bases import encoder_digests
from harness.checkpoints.build import build_model
from harness.checkpoints.open import open_checkpoint
from harness.checkpoints.text_heads import read_heads, templates_of, with_missing_parts
from harness.cli import main
from harness.data.rows import load_rows
from harness.errors import (
    BadOption,
    BadRecipe,
    BrokenCheckpoint,
    IncompatibleWeights,
    MissingHead,
    OutputExists,
)
from harness.passes.features import forward
from harness.passes.placement import CPU, Placement
from harness.passes.prepared import prepare
from tests.clips import PROJECTION, clip, expert
from tests.conftest import registries_kept, resumes
from tests.images import FILE, colours, folders
from tests.mistakes import mistake, refused
from tests.resampled import read_records

pytest.importorskip("PIL.Image")
pytestmark = [
    pytest.mark.usefixtures("as_found"),
    pytest.mark.filterwarnings("ignore:.* was fitted to fewer rows"),
    pytest.mark.filterwarnings("ignore:.* fewer than examples"),
]
BARE, PREFIX = "embeddings.class_embedding", "vision_model.embeddings.class_embedding"


def run(*words: object) -> None:
    assert main([str(word) for word in words]) == 0


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole CLIP, experts in every published form, two tasks and a head for each."""
    root = tmp_path_factory.mktemp("clip")
    base = clip(root / "base")
    expert(root / "a", base, seed=1)
    expert(root / "b", base, seed=2, prefix=False)
    expert(root / "own-a", base, seed=1, own=True)
    expert(root / "own-b", base, seed=2, own=True)
    colours(root)
    folders(root / "second", "train", 30, seed=5)
    folders(root / "second", "test", 12, seed=6)
    (root / "second.yaml").write_text("image: picture\nfiles: second\n")
    with pytest.MonkeyPatch.context() as patch, registries_kept():
        patch.chdir(root)
        for task in ("colours", "second"):
            command = ["heads", "clip", "--base", "base", "--task", f"{task}.yaml"]
            run(*command, "--out", f"heads/{task}", "--template", "{class}")
    return root


def merged(made: Path, out: Path, *experts: str, base: str | None = "base") -> Path:
    tasks = f"{made / 'colours.yaml'},{made / 'second.yaml'}"
    given = () if base is None else ("--base", made / base)
    run("merge", *(made / one for one in experts), *given, "--heads-from", made / "heads",
        "--tasks", tasks, "--merger", "ties" if base else "average", "--out", out)  # fmt: skip
    return out


def whole(folder: Path) -> Any:
    """Transformers' own model of images and texts, in float64."""
    from transformers import CLIPModel

    return CLIPModel.from_pretrained(folder).double().eval()


def said_by_clip(folder: Path, images: torch.Tensor, texts: list[str]) -> torch.Tensor:
    """What CLIP itself says of images and texts, in float64, [images, texts]."""
    from transformers import CLIPTokenizer

    inputs = CLIPTokenizer.from_pretrained(folder)(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        found: torch.Tensor = whole(folder)(pixel_values=images, **inputs).logits_per_image
    return found


# One model ------------------------------------------------------------------------------------


def test_a_model_in_all_spellings_is_one(made: Path, tmp_path: Path) -> None:
    base, bare = made / "base", expert(tmp_path / "bare", made / "base", seed=1, prefix=False)
    assert BARE in load_file(bare / FILE)
    first, second = open_checkpoint(made / "a"), open_checkpoint(bare)
    assert PREFIX in first.weights
    assert not first.stored_names
    assert second.stored_names
    assert weights.digest(first.weights) == weights.digest(second.weights)
    # a base is the encoder that experts are stored as, and more
    opened, state = open_checkpoint(base), load_file(base / FILE)
    assert {*opened.weights} == {*first.weights, PROJECTION}
    save_file({n: state[n] for n in first.weights}, tmp_path / "bare" / FILE)
    alone = encoder_digests(open_checkpoint(bare))
    assert alone.items() < encoder_digests(opened).items()


def test_what_transformers_writes_is_what_is_made_here(made: Path, tmp_path: Path) -> None:
    """A new encoder of its present release has no prefix, and one that it loaded has it."""
    from transformers import CLIPVisionModel

    loaded = CLIPVisionModel.from_pretrained(made / "base")
    loaded.save_pretrained(tmp_path / "loaded")
    fresh = CLIPVisionModel(loaded.config)
    fresh.load_state_dict(loaded.state_dict())
    fresh.save_pretrained(tmp_path / "fresh")
    names = [{*load_file(tmp_path / one / FILE)} for one in ("loaded", "fresh")]
    assert (PREFIX in names[0], BARE in names[1]) == (True, True)
    found = [open_checkpoint(tmp_path / one) for one in ("loaded", "fresh")]
    assert weights.digest(found[0].weights) == weights.digest(found[1].weights)


@pytest.mark.parametrize(
    ("experts", "base", "name"),
    [
        ("a b", "base", PREFIX),
        ("b a", "base", PREFIX),
        ("own-a own-b", None, PREFIX),
        ("own-a own-b", "bare", BARE),
    ],
)
def test_a_merge_is_written_as_its_base_is(
    made: Path, experts: str, base: str | None, name: str, tmp_path: Path
) -> None:
    if base == "bare":  # as the newest transformers writes a new encoder, without a projection
        place, state = (
            expert(tmp_path / base, made / "base", seed=0),
            load_file(made / "base" / FILE),
        )
        front = "vision_model."
        bare = {n.removeprefix(front): t for n, t in state.items() if n.startswith(front)}
        save_file(bare, place / FILE, metadata={"format": "pt"})
        for root in (tmp_path, *(made / one for one in experts.split())):
            shutil.copy(made / "base" / "preprocessor_config.json", root)
        base = str(place)
    out = merged(made, tmp_path / "out", *experts.split(), base=base)
    tensors = load_file(out / FILE)
    assert name in tensors
    said = json.loads((out / "merge.json").read_text())
    assert said["digest"] == weights.digest(open_checkpoint(out).weights)


# What it says ---------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["its number", "2, as in older configurations"])
def test_logits_are_those_of_clip_itself(made: Path, end: str, tmp_path: Path) -> None:
    """In float64, of one template; and features are of length 1."""
    base = made / "base"
    if end != "its number":
        base = clip(tmp_path / "older", eos_token_id=2)
    run("heads", "clip", "--base", base, "--task", made / "colours.yaml", "--out",
        tmp_path / "head", "--template", "a photo of some {class} to see")  # fmt: skip
    opened = open_checkpoint(base)
    checkpoint = with_missing_parts(
        opened, opened, "colours", read_heads(tmp_path / "head", opened)
    )
    model = build_model(checkpoint.config, checkpoint.weights, "here").double()
    rows = load_rows(harness.TASKS[str(made / "colours.yaml")], "test")
    images = prepare(checkpoint, rows, 1).make(range(12))["pixel_values"].double()
    texts = [f"a photo of some {name} to see" for name in checkpoint.labels or ()]
    expected = said_by_clip(base, images, texts)
    with torch.no_grad():
        found = model(pixel_values=images).logits
    # the head is stored in float32, and exp(logit_scale) is 14
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    assert expected.std(dim=0).min() > 1e-3
    x, logits, _ = forward(checkpoint, rows, max_length=1, placement=CPU)
    np.testing.assert_allclose(np.linalg.norm(x, axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(logits[:12], expected.numpy(), atol=1e-4)
    half = Placement(device="cpu", dtype="bfloat16")
    near = forward(checkpoint, rows, max_length=1, placement=half)[0]
    np.testing.assert_allclose(np.linalg.norm(near, axis=1), 1, atol=1e-6)
    assert 1e-5 < np.abs(near - x).max() < 2**-4


def test_of_several_templates_the_mean_direction_counts(made: Path, tmp_path: Path) -> None:
    from transformers import CLIPTokenizer

    templates = ["a {class}", "the {class} to see", "{class}: of the photos"]
    given = [word for one in templates for word in ("--template", one)]
    base, out = made / "base", tmp_path / "head"
    run("heads", "clip", "--base", base, "--task", made / "colours.yaml", "--out", out, *given)
    model, split = whole(base), CLIPTokenizer.from_pretrained(base)
    for row, name in zip(
        load_file(out / FILE)["classifier.weight"], ("blue", "green", "red"), strict=True
    ):
        inputs = split([one.replace("{class}", name) for one in templates],
                       padding=True, return_tensors="pt")  # fmt: skip
        with torch.no_grad():
            found = model.text_projection(model.text_model(**inputs).pooler_output)
            found = (found / found.norm(dim=1, keepdim=True)).mean(dim=0)
            expected = model.logit_scale.exp() * found / found.norm()
        torch.testing.assert_close(row.double(), expected, rtol=0, atol=1e-5)
    said = json.loads((out / "config.json").read_text())["text_head"]
    assert said["templates"] == templates
    assert said["classes"] == ["blue", "green", "red"]


def test_templates_lie_beside_the_tasks() -> None:
    import tasks

    place = Path(tasks.__path__[0]) / "templates.json"
    known = json.loads(place.read_text())
    assert len(known) == 9
    assert all(name.startswith("vision/") for name in known)
    assert all("{class}" in one for several in known.values() for one in several)
    assert {name.partition("/")[2]: len({*one}) for name, one in known.items()} == {
        "cifar10": 18,
        "mnist": 1,
        "svhn": 1,
        "eurosat": 3,
        "gtsrb": 3,
        "dtd": 8,
        "resisc45": 18,
        "sun397": 2,
        "stanford_cars": 8,
    }
    assert templates_of(harness.TASKS["vision/mnist"]) == known["vision/mnist"]
    assert templates_of(harness.TASKS["glue/sst2"]) == ["a photo of a {class}."]


# Through the doors ----------------------------------------------------------------------------


PROTOCOLS = {*harness.PROTOCOLS} - {"cosine"}
"""All but the one of two texts."""


def test_experts_and_heads_are_merged_and_read(made: Path, tmp_path: Path) -> None:
    out = merged(made, tmp_path / "merged", "a", "b")
    said = json.loads((out / "merge.json").read_text())
    assert said["projection"] == "base"
    assert said["heads"] == "keep"
    for task in ("colours", "second"):
        kept, given = (root / "heads" / task for root in (out, made))
        assert load_file(kept / FILE)["classifier.weight"].equal(
            load_file(given / FILE)["classifier.weight"]
        )
        assert json.loads((kept / "config.json").read_text())["text_head"]["task"] == task
    base = load_file(made / "base" / FILE)
    assert load_file(out / FILE)[PROJECTION].equal(base[PROJECTION])
    run("evaluate", "--model", out, "--protocols", ",".join(PROTOCOLS), "--shots", 2,
        "--draws", 2, "--output-path", tmp_path / "records")  # fmt: skip
    found = read_records([tmp_path / "records"])
    assert {one.protocol for one in found} == PROTOCOLS
    current = {
        (one.task.partition("@")[0], one.role): one.scores[0].value
        for one in found
        if one.protocol == "current"
    }
    assert len({*current.values()}) > 3
    # the experts and the base, as transformers reads them
    from transformers import CLIPModel

    for role, folder, task in (
        ("expert", "a", "colours"),
        ("expert", "b", "second"),
        ("base", "base", "colours"),
        ("base", "base", "second"),
    ):
        model = CLIPModel.from_pretrained(made / "base")
        state = open_checkpoint(made / folder).weights
        model.load_state_dict(dict(state), strict=False)
        rows = load_rows(harness.TASKS[str(made / f"{task}.yaml")], "test")
        pixels = prepare(open_checkpoint(made / "base"), rows, 1).make(range(len(rows)))
        with torch.no_grad():
            embeddings = model.visual_projection(model.vision_model(**pixels).pooler_output)
        head = load_file(made / "heads" / task / FILE)["classifier.weight"]
        labels = (embeddings @ head.T).argmax(1).numpy()
        assert current[task, role] == pytest.approx(np.mean(labels == rows.labels)), (role, task)


def test_a_base_or_an_expert_is_read_alone(made: Path, tmp_path: Path) -> None:
    task = made / "colours.yaml"
    for model, base in (("base", ()), ("b", ("--base", made / "base"))):
        run("evaluate", "--model", made / model, *base, "--heads-from", made / "heads", "--tasks",
            task, "--protocols", "current", "--output-path", tmp_path / model)  # fmt: skip
    alone = read_records([tmp_path / "base"])
    beside = [one for one in read_records([tmp_path / "b"]) if one.role == "base"]
    assert len(alone) == len(beside) == 1
    assert alone[0].predictions == beside[0].predictions


def test_experts_of_one_task_share_its_head(made: Path, tmp_path: Path) -> None:
    task, out = made / "colours.yaml", tmp_path / "merged"
    run("merge", made / "a", made / "b", "--base", made / "base", "--heads-from", made / "heads",
        "--tasks", task, "--merger", "ties", "--out", out)  # fmt: skip
    head = load_file(made / "heads" / "colours" / FILE)["classifier.weight"]
    torch.testing.assert_close(load_file(out / FILE)["classifier.weight"], head)
    run("evaluate", "--model", out, "--protocols", "current", "--output-path", tmp_path / "r")
    assert {one.role for one in read_records([tmp_path / "r"])} > {"merged", "base", "expert"}


def test_projections_of_experts_are_merged(made: Path, tmp_path: Path) -> None:
    out = merged(made, tmp_path / "merged", "own-a", "own-b", base=None)
    states = [load_file(made / one / FILE)[PROJECTION] for one in ("own-a", "own-b")]
    torch.testing.assert_close(load_file(out / FILE)[PROJECTION], sum(states) / 2)
    assert json.loads((out / "merge.json").read_text())["projection"] == "own"
    base = load_file(made / "base" / FILE)[PROJECTION]
    for place, second in enumerate(("own-b", "b")):  # one that has none has the base's
        out = merged(made, tmp_path / str(place), "own-a", second)
        assert json.loads((out / "merge.json").read_text())["projection"] == "own"
        assert not load_file(out / FILE)[PROJECTION].equal(base)


@pytest.mark.parametrize("merger", ["fisher", "regmean", "regmean_plus_plus", "adamerging:steps=2"])
def test_statistics_are_computed_under_the_given_heads(
    made: Path, merger: str, tmp_path: Path
) -> None:
    tasks = f"{made / 'colours.yaml'},{made / 'second.yaml'}"
    run("merge", made / "a", made / "b", "--base", made / "base", "--heads-from", made / "heads",
        "--tasks", tasks, "--merger", merger, "--out", tmp_path / "out")  # fmt: skip
    base = load_file(made / "base" / FILE)[PROJECTION]
    torch.testing.assert_close(load_file(tmp_path / "out" / FILE)[PROJECTION], base)


def test_a_statistic_of_an_expert_alone_is_that_of_a_merge(made: Path, tmp_path: Path) -> None:
    files = []
    for model, task in (("a", "colours"), ("b", "second")):
        files.append(str(tmp_path / f"{model}.safetensors"))
        run("statistics", made / model, "--base", made / "base", "--heads-from", made / "heads",
            "--task", made / f"{task}.yaml", "--out", files[-1])  # fmt: skip
    tasks = f"{made / 'colours.yaml'},{made / 'second.yaml'}"
    command = ["merge", made / "a", made / "b", "--base", made / "base", "--heads-from",
               made / "heads", "--tasks", tasks, "--merger", "regmean"]  # fmt: skip
    run(*command, "--out", tmp_path / "own")
    run(*command, "--statistics", ",".join(files), "--out", tmp_path / "files")
    digests = [weights.digest(open_checkpoint(tmp_path / n).weights) for n in ("own", "files")]
    assert digests[0] == digests[1]


def test_an_interrupted_run_resumes(made: Path, tmp_path: Path) -> None:
    task, few = str(made / "colours.yaml"), {"epochs": 2, "limit": 16, "progress": False}
    resumes(lambda out: harness.finetune(made / "base", task, out=out, **few), tmp_path)


def test_finetuning_leaves_head_and_projection_as_they_are(made: Path, tmp_path: Path) -> None:
    out = tmp_path / "tuned"
    run("finetune", "--base", made / "base", "--task", made / "colours.yaml", "--out", out,
        "--learning-rate", 0.01, "--epochs", 6, "--batch-size", 8)  # fmt: skip
    run("heads", "clip", "--base", made / "base", "--task", made / "colours.yaml", "--out",
        tmp_path / "head")  # fmt: skip
    tuned, base = load_file(out / FILE), load_file(made / "base" / FILE)
    assert tuned[PROJECTION].equal(base[PROJECTION])
    head = load_file(tmp_path / "head" / FILE)["classifier.weight"]
    assert tuned["classifier.weight"].equal(head)
    assert not any(tuned[n].equal(base[n]) for n in tuned if n.endswith("q_proj.weight"))
    said = json.loads((out / "config.json").read_text())
    assert said["text_head"]["task"] == "colours"
    (score,) = json.loads((out / "expert.json").read_text())["scores"].values()
    assert score["value"] > 0.6
    run("evaluate", "--model", out, "--protocols", "current", "--output-path", tmp_path / "r")
    (record,) = read_records([tmp_path / "r"])
    assert record.scores[0].value > 0.6


def test_older_files_are_the_same_base(made: Path, tmp_path: Path) -> None:
    """With positions as buffers, and a configuration said twice, as older releases wrote them."""
    older = Path(shutil.copytree(made / "base", tmp_path / "older"))
    state = load_file(older / FILE)
    places = {f"{tower}_model.embeddings.position_ids": torch.arange(5)[None]
              for tower in ("vision", "text")}  # fmt: skip
    save_file({**state, **places}, older / FILE, metadata={"format": "pt"})
    said = json.loads((older / "config.json").read_text())
    for tower in ("vision", "text"):
        said[f"{tower}_config_dict"] = said[f"{tower}_config"]
        said[f"{tower}_config"] = {**said[f"{tower}_config"], "bad_words_ids": None}
    (older / "config.json").write_text(json.dumps(said))
    run("heads", "clip", "--base", older, "--task", made / "colours.yaml", "--out",
        tmp_path / "heads", "--template", "{class}")  # fmt: skip
    heads = [load_file(root / FILE)["classifier.weight"]
             for root in (tmp_path / "heads", made / "heads" / "colours")]  # fmt: skip
    assert heads[0].equal(heads[1])
    out = []
    for place in (older, made / "base"):
        out.append(merged(made, tmp_path / f"m{len(out)}", "a", "b", base=str(place)))
    assert len({weights.digest(open_checkpoint(one).weights) for one in out}) == 1


def test_transformers_loads_a_merge(made: Path, tmp_path: Path) -> None:
    from transformers import CLIPVisionModelWithProjection

    out = merged(made, tmp_path / "merged", "a", "b")
    plain = CLIPVisionModelWithProjection.from_pretrained(out)
    state = load_file(out / FILE)
    assert all(p.equal(state[name]) for name, p in plain.named_parameters())
    said = json.loads((out / "config.json").read_text())
    assert said["architectures"] == ["CLIPVisionModelWithProjection"]
    assert "text_head" not in said


# What is refused ------------------------------------------------------------------------------


def test_bad_input_is_one_line(made: Path, tmp_path: Path) -> None:
    base, task, out = made / "base", made / "colours.yaml", tmp_path / "out"
    tasks = f"{task},{made / 'second.yaml'}"
    merge = ["merge", made / "a", made / "b", "--out", out]
    at = ["--heads-from", made / "heads"]
    refused([*merge, "--tasks", tasks, *at], BrokenCheckpoint, made / "a", PROJECTION, "--base")
    refused([*merge, "--tasks", tasks, "--base", base], MissingHead, "colours", "--heads-from")
    refused([*merge, "--base", base, *at], MissingHead, made / "a", "--tasks")
    refused([*merge, "--tasks", tasks, "--base", base, "--heads-from", made / "data"],
            BadRecipe, made / "data", "harness heads")  # fmt: skip
    refused(["finetune", "--base", base, "--task", task, "--out", out, *at],
            BadRecipe, made / "heads", "no --heads-from", "its own texts")  # fmt: skip
    head = ["heads", "clip", "--task", task, "--out", out]
    refused([*head, "--base", made / "a"], BrokenCheckpoint, made / "a", "whole CLIP")
    refused([*head, "--base", base, "--template", "a photo"], BadOption, "a photo", "{class}")
    (tmp_path / "several.yaml").write_text(
        f"kind: multilabel\nimage: picture\nlabel: c\nlabels: [r, g]\nfiles: {made / 'data'}\n"
    )
    several = ["heads", "clip", "--task", tmp_path / "several.yaml", "--base", base, "--out", out]
    refused(several, BadRecipe, "several", "multilabel", "classes")
    refused(["heads", "clip", "--task", "embedded/topic", "--base", base, "--out", out],
            BadRecipe, base, "text")  # fmt: skip
    refused(["heads", "clip", "--task", task, "--base", base, "--out", made / "a"],
            OutputExists, made / "a")  # fmt: skip
    assert not out.exists()


def test_heads_of_another_base_or_changed_are_refused(made: Path, tmp_path: Path) -> None:
    other = clip(tmp_path / "other", seed=7)
    opened = open_checkpoint(other)
    with mistake(BadRecipe, made / "heads" / "colours", other):
        read_heads(made / "heads", opened)
    heads = Path(shutil.copytree(made / "heads", tmp_path / "heads"))
    file = heads / "second" / FILE
    state = load_file(file)
    save_file({name: 2 * tensor for name, tensor in state.items()}, file)
    with mistake(BrokenCheckpoint, file, "changed"):
        read_heads(heads, None)
    shutil.rmtree(heads / "second")
    file = heads / "colours" / "config.json"
    whole, said = file.read_text(), json.loads(file.read_text())
    labels = dict(zip(said["id2label"], [*said["id2label"].values()][::-1], strict=True))
    file.write_text(json.dumps({**said, "id2label": labels}))
    with mistake(BrokenCheckpoint, file, "changed"):
        read_heads(heads, None)
    file.write_text(whole)
    shutil.move(heads / "colours" / FILE, tmp_path / FILE)
    (heads / "colours" / FILE).symlink_to(tmp_path / FILE)
    with mistake(BrokenCheckpoint, heads / "colours" / FILE, "changed"):
        read_heads(heads, None)
    (heads / "colours" / FILE).unlink()
    with mistake(BrokenCheckpoint, heads / "colours" / FILE, "changed"):
        read_heads(heads, None)
    shutil.move(tmp_path / FILE, heads / "colours" / FILE)
    shutil.copytree(heads / "colours", heads / "again")
    with mistake(BadRecipe, heads, "two heads"):
        read_heads(heads, None)


def test_heads_are_for_models_that_read_texts_alike(made: Path, tmp_path: Path) -> None:
    """A model of another size may have as wide an embedding, so shapes alone do not tell."""
    task = f"{made / 'colours.yaml'}@test"
    evaluate = ["evaluate", "--heads-from", made / "heads", "--tasks", task]
    evaluate += ["--protocols", "current", "--output-path", tmp_path / "records"]
    for changed in ("text_projection.weight", "logit_scale", PROJECTION):
        model = Path(shutil.copytree(made / "base", tmp_path / changed))
        state = load_file(model / FILE)
        save_file({**state, changed: state[changed] * 2}, model / FILE, metadata={"format": "pt"})
        with mistake(BadRecipe, made / "heads", model):
            read_heads(made / "heads", open_checkpoint(model))
        if changed == PROJECTION:  # a whole CLIP whose encoder of images was fine-tuned
            run(*evaluate, "--model", model)
        else:
            refused([*evaluate, "--model", model], BadRecipe, made / "heads", model, "--base")
            run(*evaluate, "--model", model, "--base", made / "base")


ODD_TEXTS: dict[str, dict[str, Any]] = {
    "a million layers": {"num_hidden_layers": 10**6},
    "two ends": {"eos_token_id": [1, 2]},
    "none": {"eos_token_id": None},
    "heads": {"num_attention_heads": -2},
}
ODD_SCALES: dict[str, torch.Tensor] = {
    "NaN": torch.tensor(float("nan")),
    "overflow": torch.tensor(1e4),
    "three": torch.zeros(3),
}


@pytest.mark.parametrize("what", [*ODD_TEXTS, *ODD_SCALES])
def test_texts_that_cannot_be_read_are_one_line(made: Path, what: str, tmp_path: Path) -> None:
    base = Path(shutil.copytree(made / "base", tmp_path / "base"))
    said, state = json.loads((base / "config.json").read_text()), load_file(base / FILE)
    said["text_config"] |= ODD_TEXTS.get(what, {})
    state["logit_scale"] = ODD_SCALES.get(what, state["logit_scale"])
    (base / "config.json").write_text(json.dumps(said))
    save_file(state, base / FILE, metadata={"format": "pt"})
    command = ["heads", "clip", "--base", base, "--task", made / "colours.yaml"]
    refused([*command, "--out", tmp_path / "out"], BrokenCheckpoint, base)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("part", [{"vision_config": 3}, {"vision_config": [1]}], ids=str)
def test_an_encoder_without_a_configuration_is_one_line(
    made: Path, part: dict[str, Any], tmp_path: Path
) -> None:
    base = Path(shutil.copytree(made / "base", tmp_path / "base"))
    said = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps({**said, **part}))
    with mistake(BrokenCheckpoint, base, "vision_config"):
        open_checkpoint(base)


@pytest.mark.parametrize("what", ["no text tower", "no scale", "no end", "too many tokens"])
def test_a_base_that_makes_no_texts_is_one_line(made: Path, what: str, tmp_path: Path) -> None:
    base = Path(shutil.copytree(made / "base", tmp_path / "base"))
    state = load_file(base / FILE)
    if what == "no text tower":
        state = {n: t for n, t in state.items() if "text_model.encoder.layers.1" not in n}
    if what == "no scale":
        state.pop("logit_scale")
    said = json.loads((base / "config.json").read_text())
    if what == "no end":
        said["text_config"]["eos_token_id"] = 5
    if what == "too many tokens":
        said["text_config"]["vocab_size"] = 300
        name = "text_model.embeddings.token_embedding.weight"
        state[name] = state[name][:300].clone()
    (base / "config.json").write_text(json.dumps(said))
    save_file(state, base / FILE, metadata={"format": "pt"})
    command = ["heads", "clip", "--base", base, "--task", made / "colours.yaml"]
    refused([*command, "--out", tmp_path / "out"], BrokenCheckpoint, base)
    assert not (tmp_path / "out").exists()


def test_an_encoder_of_another_size_is_refused(made: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(made / "b", tmp_path / "other"))
    said = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**said, "hidden_act": "gelu"}))
    tasks = f"{made / 'colours.yaml'},{made / 'second.yaml'}"
    refused(["merge", made / "a", other, "--base", made / "base", "--heads-from", made / "heads",
             "--tasks", tasks, "--out", tmp_path / "out"],
            IncompatibleWeights, other, "hidden_act")  # fmt: skip
