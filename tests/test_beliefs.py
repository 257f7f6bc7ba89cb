"""What folders say of a model's base and task is held to what is typed, and to one another."""

from __future__ import annotations

import itertools
import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import harness
from harness import Recipe, Run, Task
from harness.checkpoints.bases import encoder_digests
from harness.checkpoints.families.family import Unit
from harness.checkpoints.open import open_checkpoint
from harness.cli import main
from harness.errors import BadRecipe, BrokenCheckpoint, IncompatibleWeights
from tests.conftest import FAST, WORDS, model
from tests.mistakes import mistake, refused
from tests.toys import MOODS, TAGS, known

NAMES = ("no", "yes")
CURRENT = (harness.Choice("current"),)
LEARNS: dict[str, Any] = {**FAST, "learning_rate": 1e-2}
SHORT: dict[str, Any] = {**FAST, "epochs": 1, "limit": 16}


def rows(turned: bool) -> Callable[[str], list[dict[str, Any]]]:
    """Rows whose first word says the label; of the other task, the other one."""

    def made(split: str) -> list[dict[str, Any]]:
        numbers = np.random.default_rng([len(split), 3])
        found = []
        for index in range(120 if split == "train" else 24):
            side = WORDS[:5] if (index % 2 == 1) != turned else WORDS[5:10]
            text = " ".join([*numbers.choice(side, 3), *numbers.choice(WORDS[10:], 2)])
            found.append({"text": text, "label": index % 2})
        return found

    return made


def task(name: str, turned: bool) -> Task:
    return Task(
        name=name,
        kind="classification",
        text=("text",),
        label="label",
        labels=NAMES,
        metrics=("accuracy",),
        splits={"test": "test"},
        reported="test",
        generate=rows(turned),
    )


FIRST, OTHER = task("toy/first", False), task("toy/other", True)
tasks = known(FIRST, OTHER, TAGS, MOODS, scope="module")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two bases and one that is the first without its pooler, and experts of them."""
    root = tmp_path_factory.mktemp("trained")
    model(root / "base", seed=0)
    model(root / "other-base", seed=9)
    without_pooler(root / "base", root / "bare")
    for name, base, of, seed, how in (
        ("a", "base", FIRST, 0, LEARNS),
        ("b", "base", FIRST, 1, LEARNS),
        ("t", "base", OTHER, 2, LEARNS),
        ("far", "other-base", FIRST, 3, SHORT),
        ("bare-a", "bare", FIRST, 0, SHORT),
        ("bare-b", "bare", FIRST, 1, SHORT),
        ("tagger", "base", TAGS, 0, SHORT),
    ):
        harness.finetune(root / base, of.name, out=root / name, **{**how, "seed": seed})
    return root


def without_pooler(source: Path, out: Path) -> Path:
    return changed(source, out, lambda s: {n: t for n, t in s.items() if "pooler" not in n})


def changed(source: Path, out: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Path:
    """A copy of a model with other tensors."""
    shutil.copytree(source, out)
    state = change(load_file(out / "model.safetensors"))
    save_file(
        {name: tensor.contiguous() for name, tensor in state.items()},
        out / "model.safetensors",
        metadata={"format": "pt"},
    )
    return unlisted(out)


def unlisted(folder: Path) -> Path:
    """The folder with an expert.json that lists no files, as those of before and one's own."""
    if (folder / "expert.json").is_file():
        left = {key: value for key, value in said(folder).items() if key != "files"}
        (folder / "expert.json").write_text(json.dumps(left))
    return folder


def said(folder: Path, name: str = "expert.json") -> Any:
    return json.loads((folder / name).read_text())


def merged(root: Path, out: Path, *experts: str, **values: Any) -> Path:
    if "base" in values:
        values["base"] = str(root / values["base"])
    harness.merge(Recipe(experts=tuple(str(root / one) for one in experts), **values), out=out)
    return out


def scores(where: Path, folder: Path, **values: Any) -> dict[tuple[str, str], float]:
    """Accuracy by role and task."""
    run = Run(
        model=str(folder), protocols=CURRENT, device="cpu", output=str(where / "records"), **values
    )
    return {(one.role, one.task): one.scores[0].value for one in harness.evaluate(run)}


# Bases ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("merger", ["task_arithmetic", "average"])
def test_another_base_is_refused_with_both_names_unless_it_is_meant(
    merger: str, trained: Path, tmp_path: Path
) -> None:
    command = ["merge", str(trained / "a"), str(trained / "b"), "--out", str(tmp_path / "m")]
    command += ["--merger", merger, "--base", str(trained / "other-base")]
    refused(command, BadRecipe, trained / "base", trained / "other-base", "--other-base")
    assert not (tmp_path / "m").exists()
    assert main([*command, "--other-base"]) == 0
    assert said(tmp_path / "m", "merge.json")["other_base"] is True
    assert ("base", "toy/first@test") in scores(tmp_path, tmp_path / "m")


def test_a_recipe_says_that_another_base_is_meant(trained: Path, tmp_path: Path) -> None:
    recipe = {"experts": ["a", "b"], "base": "other-base", "merger": "ties"}
    for name, more in (("no", {}), ("yes", {"other_base": True})):
        file = trained / f"{name}.yaml"
        file.write_text(json.dumps({**recipe, **more}))
        assert main(["merge", str(file), "--out", str(tmp_path / name)]) == (0 if more else 2)


FORMS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "under the prefix of a classifier": lambda s: {f"bert.{n}": t for n, t in s.items()},
    "with a head": lambda s: {**s, "cls.predictions.bias": torch.zeros(45)},
    "without a pooler": lambda s: {n: t for n, t in s.items() if "pooler" not in n},
    "with a buffer": lambda s: {**s, "embeddings.position_ids": torch.arange(40)[None]},
    "in another order": lambda s: dict(reversed(s.items())),
}


@pytest.mark.parametrize("form", FORMS)
def test_the_base_in_another_form_is_the_base(form: str, trained: Path, tmp_path: Path) -> None:
    base = changed(trained / "base", tmp_path / "form", FORMS[form])
    config = said(base, "config.json")
    config |= {"architectures": ["BertForPreTraining"], "transformers_version": "4.0.0"}
    (base / "config.json").write_text(json.dumps(config))
    experts = (str(trained / "a"), str(trained / "b"))
    recipe = Recipe(experts=experts, base=str(base), merger="task_arithmetic:scale=0.5")
    harness.merge(recipe, out=tmp_path / "m")
    digests = encoder_digests(open_checkpoint(base))
    assert digests.items() <= said(trained / "a")["base_weights"].items()
    own = merged(trained, tmp_path / "own", "a", "b", base="base")
    assert ("base", "toy/first@test") in scores(tmp_path, own, base=str(base))


def test_a_base_that_is_wider_than_it_was_published_is_the_base(tmp_path: Path) -> None:
    base = model(tmp_path / "wide")
    half = changed(base, tmp_path / "half", lambda s: {n: t.bfloat16() for n, t in s.items()})
    wide = changed(half, tmp_path / "again", lambda s: {n: t.float() for n, t in s.items()})
    known = [encoder_digests(open_checkpoint(one)) for one in (base, half, wide)]
    assert known[0] != known[1] == known[2]


@pytest.mark.parametrize("what", ["encoder", "pooler"])
def test_one_changed_number_is_another_base(what: str, trained: Path, tmp_path: Path) -> None:
    name = "pooler.dense.weight" if what == "pooler" else "encoder.layer.1.output.dense.weight"

    def change(state: dict[str, Any]) -> dict[str, Any]:
        state[name][0, 0] += 1e-3
        return state

    base = changed(trained / "base", tmp_path / "changed", change)
    with mistake(BadRecipe, trained / "a", trained / "base", base, "--other-base"):
        merged(trained, tmp_path / "m", "a", "b", base=str(base))


def test_experts_of_two_bases_are_refused_without_one(trained: Path, tmp_path: Path) -> None:
    with mistake(BadRecipe, "far other-base /a"):
        merged(trained, tmp_path / "m", "a", "far")
    with mistake(BadRecipe, "other-base"):
        merged(trained, tmp_path / "m", "a", "far", base="base")
    merged(trained, tmp_path / "meant", "a", "far", other_base=True)


def test_a_folder_that_says_nothing_may_be_of_any_base(trained: Path, tmp_path: Path) -> None:
    for name in ("a", "b", "far"):
        shutil.copytree(trained / name, tmp_path / name)
        (tmp_path / name / "expert.json").unlink()
    shutil.copytree(trained / "base", tmp_path / "base")
    with pytest.warns(UserWarning, match=f"{tmp_path / 'far'} has nothing in common with the base"):
        merged(tmp_path, tmp_path / "m", "a", "far", base="base")
    with warnings.catch_warnings():  # of its own base, and where another is meant
        warnings.simplefilter("error")
        merged(tmp_path, tmp_path / "own", "a", "b", base="base")
        merged(tmp_path, tmp_path / "meant", "a", "far", base="base", other_base=True)


def test_a_record_from_before_is_held_to_all_that_a_training_read(
    trained: Path, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        record = said(Path(shutil.copytree(trained / name, tmp_path / name)))
        del record["base_weights"]
        (tmp_path / name / "expert.json").write_text(json.dumps(record))
    for base in ("base", "other-base"):
        shutil.copytree(trained / base, tmp_path / base)
    merged(tmp_path, tmp_path / "m", "a", "b", base="base")
    with mistake(BadRecipe, "--other-base"):
        merged(tmp_path, tmp_path / "no", "a", "b", base="other-base")


@pytest.mark.parametrize("base", ["base", None])
def test_merges_of_merges_know_their_base(base: str | None, trained: Path, tmp_path: Path) -> None:
    given = {"base": str(trained / base)} if base else {}
    first = merged(trained, tmp_path / "first", "a", "b", **given)
    again = (str(first), str(trained / "a"))
    harness.merge(Recipe(experts=again, base=str(trained / "base")), out=tmp_path / "again")
    other = Recipe(experts=again, base=str(trained / "other-base"))
    with mistake(BadRecipe, first, trained / "other-base"):
        harness.merge(other, out=tmp_path / "no")
    apart = Recipe(experts=(str(first), str(trained / "far")))
    with mistake(BadRecipe, "--other-base"):
        harness.merge(apart, out=tmp_path / "no")


def test_an_evaluation_has_the_base_that_experts_were_made_from(
    trained: Path, tmp_path: Path
) -> None:
    plain = merged(trained, tmp_path / "m", "a", "b")
    for folder in (plain, trained / "a"):
        command = ["evaluate", "--model", str(folder), "--protocols", "current"]
        command += ["--output-path", str(tmp_path / "records"), "--device", "cpu", "--base"]
        refused([*command, str(trained / "other-base")], BadRecipe, trained / "base")
        assert main([*command, str(trained / "base")]) == 0
        assert main([*command, str(trained / "other-base"), "--other-base"]) == 0
    pair = ["inspect", str(trained / "a"), str(trained / "b"), "--base"]
    assert main([*pair, str(trained / "other-base")]) == 2
    assert main([*pair, str(trained / "other-base"), "--other-base"]) == 0


def adapter(folder: Path, base: Path, seed: int) -> Path:
    """A LoRA adapter of a base with a head, as peft lays it out."""
    folder.mkdir(parents=True)
    torch.manual_seed(seed)
    place = "base_model.model.bert.encoder.layer.0.attention.self.query"
    tensors = {
        f"{place}.lora_A.weight": torch.randn(2, 16) / 10,
        f"{place}.lora_B.weight": torch.randn(16, 2) / 10,
        "base_model.model.classifier.weight": torch.randn(2, 16),
        "base_model.model.classifier.bias": torch.zeros(2),
    }
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "task_type": "SEQ_CLS", "r": 2, "lora_alpha": 4}
    config |= {
        "base_model_name_or_path": str(base),
        "target_modules": ["layer.0.attention.self.query"],
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def test_adapters_name_their_base_too(trained: Path, tmp_path: Path) -> None:
    one = adapter(tmp_path / "one", trained / "base", 0)
    two = adapter(tmp_path / "two", trained / "other-base", 1)
    lost = adapter(tmp_path / "lost", tmp_path / "nowhere", 2)
    whole = model(tmp_path / "whole", ["LABEL_0", "LABEL_1"])
    shutil.copy(trained / "far" / "expert.json", whole)
    unlisted(whole)
    for experts, base in (
        ((one, two), None),
        ((one, whole), None),
        ((two, one), trained / "base"),
        ((lost, one), trained / "other-base"),
    ):
        recipe = Recipe(experts=tuple(map(str, experts)), base=str(base) if base else None)
        with mistake(BadRecipe, "--other-base"):
            harness.merge(recipe, out=tmp_path / "no")
    recipe = Recipe(experts=(str(one), str(lost)), base=str(trained / "base"))
    harness.merge(recipe, out=tmp_path / "m")


def test_adapters_name_their_base_by_its_id_on_the_hub(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    cached = tmp_path / "models--me--other"
    (cached / "snapshots").mkdir(parents=True)
    shutil.copytree(trained / "other-base", cached / "snapshots" / "1f")
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("1f")
    recipe = Recipe(
        experts=(
            str(adapter(tmp_path / "one", trained / "base", 0)),
            str(adapter(tmp_path / "two", Path("me/other"), 1)),
        ),
        base=str(trained / "base"),
    )
    with mistake(BadRecipe, "two models--me--other"):
        harness.merge(recipe, out=tmp_path / "no")


# Tasks ---------------------------------------------------------------------------------------


def test_tasks_that_contradict_the_folders_are_refused_with_both(
    trained: Path, tmp_path: Path
) -> None:
    command = ["merge", str(trained / "a"), str(trained / "t"), "--base", str(trained / "base")]
    command += ["--out", str(tmp_path / "m")]
    refused(
        [*command, "--tasks", "toy/other,toy/first"],
        BadRecipe,
        trained / "a",
        "toy/first toy/other --tasks --other-tasks",
    )
    assert main([*command, "--tasks", "toy/first,toy/other"]) == 0
    right = scores(tmp_path, tmp_path / "m")
    assert right["expert", "toy/first@test"] > 0.9
    assert right["expert", "toy/other@test"] > 0.9
    assert main([*command, "--force", "--tasks", "toy/other,toy/first", "--other-tasks"]) == 0
    turned = scores(tmp_path / "turned", tmp_path / "m")
    assert turned["expert", "toy/first@test"] < 0.1
    assert said(tmp_path / "m", "merge.json")["other_tasks"] is True


def test_statistics_are_of_the_task_that_the_folder_says(trained: Path, tmp_path: Path) -> None:
    out = tmp_path / "s.safetensors"
    command = ["statistics", str(trained / "a"), "--merger", "regmean:examples=8"]
    command += ["--task", "toy/other", "--device", "cpu", "--out", str(out)]
    refused(command, BadRecipe, "toy/first toy/other --task")
    assert not out.exists()
    assert main([*command, "--other-tasks"]) == 0


def said_on(capsys: pytest.CaptureFixture[str]) -> str:
    (line,) = [one for one in capsys.readouterr().err.splitlines() if one.startswith("harness:")]
    return line


# Weights -------------------------------------------------------------------------------------


def test_weights_that_were_changed_are_no_longer_those_of_the_record(
    trained: Path, tmp_path: Path
) -> None:
    merged(trained, tmp_path / "m", "a", "b")
    folders = {name: shutil.copytree(trained / name, tmp_path / name) for name in ("a", "b")}
    for folder in (tmp_path / "m", folders["a"]):
        file = folder / "model.safetensors"
        state = {name: 1.1 * tensor for name, tensor in load_file(file).items()}
        save_file(state, file, metadata={"format": "pt"})
        task = ["--task", FIRST.name, "--merger", "regmean:examples=8"]
        for command in (
            ["merge", str(folder), str(folders["b"]), "--out", str(tmp_path / "no")],
            ["evaluate", "--model", str(folder), "--output-path", str(tmp_path / "no")],
            ["statistics", str(folder), *task, "--out", str(tmp_path / "no")],
        ):
            refused(command, BrokenCheckpoint, folder)
            assert not (tmp_path / "no").exists()
    (folders["a"] / "expert.json").unlink()  # a model of its own, which is merged as it is
    recipe = Recipe(experts=(str(folders["a"]), str(folders["b"])), tasks=(FIRST.name,))
    harness.merge(recipe, out=tmp_path / "own")


def test_weights_in_other_files_are_the_same(trained: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(trained / "a", tmp_path / "a"))
    state = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    placed = {name: f"model-{1 + i % 2:05}-of-00002.safetensors" for i, name in enumerate(state)}
    for file in {*placed.values()}:
        save_file({n: t for n, t in state.items() if placed[n] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))
    assert merged(tmp_path, tmp_path / "m", "a", str(trained / "b"))
    assert scores(tmp_path, folder)["expert", "toy/first@test"] > 0.9


def test_the_order_of_tasks_does_not_say_whose_they_are_where_folders_do(
    trained: Path, tmp_path: Path
) -> None:
    plain = Path(shutil.copytree(trained / "a", tmp_path / "plain"))
    (plain / "expert.json").unlink()
    experts = (str(trained / "t"), str(trained / "a"))
    for names in itertools.permutations(("toy/first", "toy/other")):
        found = scores(tmp_path, plain, experts=experts, tasks=names)
        assert found["expert", "toy/first@test"] > 0.9
        assert found["expert", "toy/other@test"] > 0.9


def test_experts_of_none_of_the_tasks_are_refused_or_singles(trained: Path, tmp_path: Path) -> None:
    plain = Path(shutil.copytree(trained / "t", tmp_path / "plain"))
    (plain / "expert.json").unlink()
    experts = (str(trained / "a"), str(trained / "b"))
    with mistake(BadRecipe, "toy/first toy/other"):
        scores(tmp_path, plain, experts=experts, tasks=("toy/other",))
    found = scores(tmp_path, plain, experts=experts, tasks=("toy/other",), singles=True)
    assert found["single", "toy/other@test"] < 0.1
    assert found["merged", "toy/other@test"] > 0.9


def test_an_expert_is_none_on_the_task_of_another(trained: Path, tmp_path: Path) -> None:
    """Its row is no reference of a board of that task."""
    found = scores(tmp_path, trained / "a", tasks=("toy/first", "toy/other"))
    assert found["expert", "toy/first@test"] > 0.9
    assert found["single", "toy/other@test"] < 0.1
    run = Run(
        model=str(trained / "a"),
        tasks=("toy/other",),
        protocols=(harness.Choice("ft-classifier"),),
        shots=(2,),
        draws=1,
        device="cpu",
        output=str(tmp_path / "records"),
    )
    (record,) = harness.evaluate(run)
    assert (record.role, len(record.teachers)) == ("single", 1)


# Layers that a base has not --------------------------------------------------------------------

POOLER = "bert.pooler.dense.weight"


def test_a_layer_that_a_base_lacks_is_one_draw_for_all_experts(
    trained: Path, tmp_path: Path
) -> None:
    known = [said(trained / name) for name in ("bare-a", "bare-b")]
    assert known[0]["drawn"] == known[1]["drawn"]
    assert POOLER in known[0]["drawn"]
    assert known[0]["head_seed"] != known[1]["head_seed"]
    assert "drawn" not in said(trained / "a")
    first, second = (
        load_file(trained / name / "model.safetensors") for name in ("bare-a", "bare-b")
    )
    pair = [state[POOLER].flatten() for state in (first, second)]
    assert torch.cosine_similarity(*pair, dim=0) > 0.5
    out = merged(trained, tmp_path / "m", "bare-a", "bare-b", base="bare")
    assert ("base", "toy/first@test") in scores(tmp_path, out)


def test_another_base_draws_another_layer(trained: Path, tmp_path: Path) -> None:
    bare = without_pooler(trained / "other-base", tmp_path / "other")
    harness.finetune(bare, FIRST.name, out=tmp_path / "e", **SHORT)
    assert said(tmp_path / "e")["drawn"].keys() == said(trained / "bare-a")["drawn"].keys()
    assert said(tmp_path / "e")["drawn"] != said(trained / "bare-a")["drawn"]


def foreign(trained: Path, root: Path) -> Path:
    """Experts of two tasks of a base without pooler, who drew their own and recorded nothing."""
    shutil.copytree(trained / "bare", root / "bare")
    for seed, (name, labels) in enumerate({"a": NAMES, "b": NAMES, "c": "xyz"}.items(), start=1):
        model(root / name, [*labels], seed=seed, near=trained / "base")

        def redrawn(state: dict[str, Any], seed: int = seed) -> dict[str, Any]:
            one = torch.Generator().manual_seed(seed)
            return {**state, POOLER: torch.randn(16, 16, generator=one) / 50}

        state = redrawn(load_file(root / name / "model.safetensors"))
        save_file(state, root / name / "model.safetensors", metadata={"format": "pt"})
    return root


@pytest.mark.parametrize("merger", ["average", "task_arithmetic", "ties"])
def test_layers_that_experts_drew_apart_are_refused(
    merger: str, trained: Path, tmp_path: Path
) -> None:
    root = foreign(trained, tmp_path)
    command = ["merge", str(root / "a"), str(root / "b"), "--merger", merger]
    command += ["--base", str(root / "bare"), "--out", str(root / "m")]
    refused(command, IncompatibleWeights, POOLER, root / "a", root / "b")
    assert not (root / "m").exists()


def test_they_are_refused_without_a_base_as_well(trained: Path, tmp_path: Path) -> None:
    root = foreign(trained, tmp_path)
    with mistake(IncompatibleWeights, POOLER, root / "a", root / "b"):
        merged(root, root / "m", "a", "b")
    with mistake(IncompatibleWeights, POOLER, root / "a", root / "c"):
        merged(root, root / "m", "a", "c", tasks=("glue/rte", "glue/mnli"))


def test_they_are_kept_for_each_task(trained: Path, tmp_path: Path) -> None:
    root = foreign(trained, tmp_path)
    out = merged(root, root / "m", "a", "c", base="bare", tasks=("glue/rte", "glue/mnli"))
    assert POOLER not in load_file(out / "model.safetensors")
    for name, of in (("a", "glue/rte"), ("c", "glue/mnli")):
        own = load_file(root / name / "model.safetensors")[POOLER]
        kept = load_file(out / "heads" / of / "model.safetensors")[POOLER]
        assert torch.equal(own, kept)


def test_records_tell_draws_apart_that_weights_do_not(trained: Path, tmp_path: Path) -> None:
    for name in ("bare-a", "bare-b", "bare"):
        shutil.copytree(trained / name, tmp_path / name)
    record = said(tmp_path / "bare-b")
    record["drawn"][POOLER] = "another"
    (tmp_path / "bare-b" / "expert.json").write_text(json.dumps(record))
    with mistake(IncompatibleWeights, POOLER, "bare-a bare-b their records bare"):
        merged(tmp_path, tmp_path / "m", "bare-a", "bare-b", base="bare")


# A tagger and a classifier ---------------------------------------------------------------------


@pytest.mark.parametrize("family", ["bert", "roberta"])
@pytest.mark.parametrize("order", [("row", "word"), ("word", "row")])
def test_what_is_permuted_in_them_keeps_the_function_of_both(
    family: str, order: tuple[Unit, Unit], tmp_path: Path
) -> None:
    """The width of the model with the head that reads it, by one name, and the other's pooler."""
    made = {"row": ([*NAMES], FIRST.name), "word": ([*TAGS.labels], TAGS.name)}
    for seed, unit in enumerate(order):
        model(tmp_path / unit, made[unit][0], family=family, seed=seed, unit=unit)
    recipe = Recipe(
        experts=tuple(str(tmp_path / unit) for unit in order),
        tasks=tuple(made[unit][1] for unit in order),
        premerge=(harness.parse_choice("permutation:residual=true,heads=true"),),
        device="cpu",
    )
    (passage,) = harness.merge(recipe, out=tmp_path / "m").premerge_reports
    assert passage.distance is not None
    assert passage.distance[1] < 0.99 * passage.distance[0]
    assert max(one for one in passage.drift if one is not None) < 1e-5


@pytest.mark.parametrize("first", ["a", "tagger"])
@pytest.mark.parametrize("how", ["ties", "without a base", "procrustes"])
def test_a_tagger_and_a_classifier_of_one_base_merge(
    first: str, how: str, trained: Path, tmp_path: Path
) -> None:
    experts = [first, *({"a", "tagger"} - {first})]
    values: dict[str, Any] = {"base": "base", "merger": how}
    if how == "without a base":
        values = {}
    if how == "procrustes":
        values = {"premerge": ["procrustes"], "drift": False}
    out = merged(trained, tmp_path / "m", *experts, **values)
    kept = said(out, "merge.json")["kept"]
    assert kept == {"toy/first": ["bert.pooler.dense.bias", POOLER]}
    own = load_file(trained / "a" / "model.safetensors")[POOLER]
    head = load_file(out / "heads" / "toy/first" / "model.safetensors")[POOLER]
    assert how == "procrustes" or torch.equal(own, head)
    assert POOLER not in load_file(out / "model.safetensors")
    found = scores(tmp_path, out)
    assert found["expert", "toy/first@test"] > 0.9
    assert {task for role, task in found if role == "merged"} == {"toy/first@test", "toy/tags@test"}
    assert ("base" in {role for role, _ in found}) == ("base" in values)


def test_the_base_beside_them_has_its_own_pooler(trained: Path, tmp_path: Path) -> None:
    """Whichever comes first, and as beside a merge of classifiers."""
    bases = []
    for number, experts in enumerate((("a", "tagger"), ("tagger", "a"), ("a", "t"))):
        out = merged(trained, tmp_path / str(number), *experts, base="base", merger="ties")
        run = Run(
            model=str(out),
            tasks=("toy/first",),
            protocols=CURRENT,
            device="cpu",
            output=str(tmp_path / f"records-{number}"),
        )
        bases += [one.digest for one in harness.evaluate(run) if one.role == "base"]
    assert len({*bases}) == 1


def test_a_pooler_of_ones_own_and_that_of_the_base_are_not_merged(
    trained: Path, tmp_path: Path
) -> None:
    with mistake(IncompatibleWeights, POOLER, trained / "a", trained / "bare-a", trained / "base"):
        merged(trained, tmp_path / "m", "a", "bare-a", base="base")


# Labels in another order -----------------------------------------------------------------------


def turned(source: Path, out: Path, order: list[int], names: Callable[[str], str] = str) -> Path:
    """An expert whose outputs stand in another order, with their names."""
    head = ("classifier.weight", "classifier.bias")
    changed(source, out, lambda s: {n: t[order] if n in head else t for n, t in s.items()})
    config = said(out, "config.json")
    labels = [names(config["id2label"][str(place)]) for place in order]
    config["id2label"] = dict(enumerate(labels))
    config["label2id"] = {name: place for place, name in enumerate(labels)}
    (out / "config.json").write_text(json.dumps(config))
    return out


@pytest.mark.parametrize("merger", ["average", "task_arithmetic:scale=0.5", "regmean:examples=16"])
def test_labels_in_another_order_are_matched_by_name(
    merger: str, trained: Path, tmp_path: Path
) -> None:
    other = turned(trained / "b", tmp_path / "b", [1, 0], str.upper)
    outs = []
    for number, second in enumerate((trained / "b", other)):
        recipe = Recipe(
            experts=(str(trained / "a"), str(second)),
            base=str(trained / "base"),
            merger=merger,
            device="cpu",
        )
        harness.merge(recipe, out=tmp_path / str(number))
        outs.append(load_file(tmp_path / str(number) / "model.safetensors"))
    for name, tensor in outs[0].items():
        torch.testing.assert_close(tensor, outs[1][name], rtol=1e-6, atol=1e-7)
    assert scores(tmp_path, tmp_path / "1")["merged", "toy/first@test"] > 0.9
    reversed_ = Recipe(experts=(str(other), str(trained / "a")), merger="average")
    harness.merge(reversed_, out=tmp_path / "2")
    assert said(tmp_path / "2", "config.json")["id2label"] == {"0": "YES", "1": "NO"}
    assert scores(tmp_path, tmp_path / "2")["merged", "toy/first@test"] > 0.9


def test_tags_in_another_order_are_matched_by_name(trained: Path, tmp_path: Path) -> None:
    other = turned(trained / "tagger", tmp_path / "tagger", [4, 2, 0, 1, 3])
    recipe = Recipe(experts=(str(trained / "tagger"), str(other)))
    harness.merge(recipe, out=tmp_path / "m")
    found = load_file(tmp_path / "m" / "model.safetensors")
    for name, tensor in load_file(trained / "tagger" / "model.safetensors").items():
        torch.testing.assert_close(tensor, found[name])


@pytest.mark.parametrize(
    ("first", "second", "order"), [("a", "b", [1, 0]), ("tagger", "tagger", [4, 2, 0, 1, 3])]
)
def test_the_base_is_read_under_heads_in_one_order(
    first: str, second: str, order: list[int], trained: Path, tmp_path: Path
) -> None:
    """Their mean is of rows of one label, also of an expert with its labels in another order."""
    plain = Path(shutil.copytree(trained / second, tmp_path / "plain"))
    other = turned(trained / second, tmp_path / "other", order, str.upper)
    bases = []
    for expert in (plain, other):
        out = merged(trained, tmp_path / f"with-{expert.name}", first, str(expert), base="base")
        run = Run(model=str(out), protocols=CURRENT, device="cpu", output=str(tmp_path / "records"))
        bases += [one.digest for one in harness.evaluate(run) if one.role == "base"]
    assert len(bases) == 2
    assert len({*bases}) == 1


def test_heads_are_compared_by_label(trained: Path, tmp_path: Path) -> None:
    other = turned(trained / "b", tmp_path / "other", [1, 0], str.upper)
    found = harness.inspect([trained / "b", other, trained / "a"], base=trained / "base")
    same, *unlike = found.pairs
    assert all(one.apart2 == 0 for one in same.places.values())
    assert all(any(one.apart2 for one in pair.places.values()) for pair in unlike)


def test_heads_of_two_ways_to_write_entities_are_told(trained: Path, tmp_path: Path) -> None:
    """In IOB1 an I- begins most entities, in IOB2 none."""
    tagger = said(trained / "tagger")
    assert tagger["schemes"] == {TAGS.name: "IOB2"}
    other = unlisted(Path(shutil.copytree(trained / "tagger", tmp_path / "other")))
    (other / "expert.json").write_text(json.dumps({**said(other), "schemes": {TAGS.name: "IOB1"}}))
    with pytest.warns(UserWarning, match="tagger: IOB2, .*other: IOB1.* some begin with I-"):
        merged(trained, tmp_path / "m", "tagger", str(other))


def one_label_more(source: Path, out: Path) -> Path:
    """A model whose head has one more output, called `more`, that nothing was trained for."""

    def wider(state: dict[str, Any]) -> dict[str, Any]:
        head = ("classifier.weight", "classifier.bias")
        return {**state, **{n: torch.cat([state[n], state[n].mean(0, True)]) for n in head}}

    changed(source, out, wider)
    config = said(out, "config.json")
    config["id2label"] |= {str(len(config["id2label"])): "more"}
    config["label2id"] = {name: int(place) for place, name in config["id2label"].items()}
    (out / "config.json").write_text(json.dumps(config))
    (out / "expert.json").unlink()
    return out


def test_a_head_that_can_be_read_is_read_with_experts_beside_it(
    trained: Path, tmp_path: Path
) -> None:
    """A multi-label head may have more classes; it is not replaced by that of an expert."""
    harness.finetune(trained / "base", MOODS.name, out=tmp_path / "one", **SHORT)
    harness.finetune(trained / "base", MOODS.name, out=tmp_path / "two", **{**SHORT, "seed": 5})
    wide = one_label_more(tmp_path / "one", tmp_path / "wide")
    alone = scores(tmp_path, wide, tasks=(MOODS.name,))["merged", "toy/moods@test"]
    beside = {"tasks": (MOODS.name,), "experts": (str(tmp_path / "two"),)}
    found = scores(tmp_path, wide, **beside, base=str(trained / "base"))
    assert found["merged", "toy/moods@test"] == alone
    frame = harness.read_records(tmp_path / "records")
    assert {*frame["head"]} == {"own"}


def test_a_head_that_an_expert_replaces_is_named(trained: Path, tmp_path: Path) -> None:
    wide = one_label_more(trained / "a", tmp_path / "wide")
    known = {"experts": (str(trained / "b"),), "base": str(trained / "base")}
    with pytest.warns(UserWarning, match="more, not those of toy/first: .* head of .*/b"):
        scores(tmp_path, wide, tasks=(FIRST.name,), **known)
    assert {"expert", "own"} <= {*harness.read_records(tmp_path / "records")["head"]}


def test_several_labels_in_another_order_are_matched_by_name(trained: Path, tmp_path: Path) -> None:
    harness.finetune(trained / "base", MOODS.name, out=tmp_path / "one", **SHORT)
    other = turned(tmp_path / "one", tmp_path / "other", [2, 0, 1])
    harness.merge(Recipe(experts=(str(tmp_path / "one"), str(other))), out=tmp_path / "m")
    found = load_file(tmp_path / "m" / "model.safetensors")
    for name, tensor in load_file(tmp_path / "one" / "model.safetensors").items():
        torch.testing.assert_close(tensor, found[name])
    assert said(tmp_path / "m", "config.json")["id2label"]["0"] == "glad"


@pytest.mark.parametrize("merger", ["fisher:examples=8", "regmean:examples=8"])
def test_statistics_of_labels_in_another_order_are_as_good_as_the_rows(
    merger: str, trained: Path, tmp_path: Path
) -> None:
    other = turned(trained / "b", tmp_path / "b", [1, 0])
    files = []
    for expert in (trained / "a", other):
        files.append(tmp_path / f"{expert.name}.safetensors")
        harness.statistic(expert, task=FIRST.name, merger=merger, out=files[-1], device="cpu")
    digests = set()
    for number, given in enumerate(((), tuple(map(str, files)))):
        recipe = Recipe(
            experts=(str(trained / "a"), str(other)),
            merger=merger,
            statistics=given,
            device="cpu",
        )
        harness.merge(recipe, out=tmp_path / str(number))
        merge = said(tmp_path / str(number), "merge.json")
        digests.add(merge["digest"])
    assert len(digests) == 1
    assert [one["digest"] for one in merge["statistics"]] == [
        one["digest"] for one in merge["experts"]
    ]


def test_labels_of_a_base_are_matched_as_well(trained: Path, tmp_path: Path) -> None:
    outs = []
    for number, order in enumerate(([0, 1], [1, 0])):
        base = turned(trained / "a", tmp_path / f"base-{number}", order)
        recipe = Recipe(
            experts=(str(trained / "a"), str(trained / "b")),
            base=str(base),
            merger="task_arithmetic:scale=0.3",
            heads="merge",
            other_base=True,
        )
        harness.merge(recipe, out=tmp_path / str(number))
        outs.append(load_file(tmp_path / str(number) / "model.safetensors"))
    assert all(torch.equal(tensor, outs[1][name]) for name, tensor in outs[0].items())
