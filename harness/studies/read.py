"""Shell: a study from its YAML, a file or one that is shipped, with full paths."""

from __future__ import annotations

import os
import re
import warnings
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from harness.checkpoints.open import local_folder
from harness.errors import BadRecipe
from harness.files import Loader, read_yaml
from harness.options import parse_choice
from harness.registry import MERGERS, METRICS, POSTMERGE, PREMERGE, PROTOCOLS, STAGES, TASKS, YAML
from harness.studies.study import (
    MAX_COMBINATIONS,
    NONE,
    REFERENCES,
    Flags,
    Names,
    Study,
    as_list,
    choice_of,
)
from harness.text import hint
from harness.values import validated

DESIGNS = Path(__file__).parent / "designs"
"""The folder of shipped studies (designs), one YAML each, found by name."""
PAPERS = Path(__file__).parent / "papers"
"""The folder of printed numbers, one YAML for each design that repeats tables of a paper."""


class OnAsAWord(Loader):
    """Reads `on`, a field of studies, as text, not as true: only true and false are booleans."""


OnAsAWord.yaml_implicit_resolvers = {
    letter: [one for one in resolvers if letter in "tTfF" or not one[0].endswith(":bool")]
    for letter, resolvers in Loader.yaml_implicit_resolvers.items()
}


def read_study(
    file: str | Path,
    out: Path | None = None,
    *,
    base: tuple[str, ...] = (),
    limit: int | None = None,
    seeds: int | None = None,
    epochs: int | None = None,
) -> Study:
    """The study in a YAML file, or the design of that name, with full paths.

    Paths are relative to the file or, if they begin with `$OUT/`, to the study's folder `out`
    (default: its name). `base`, `epochs` and `limit` replace the study's own; `seeds` is the number
    of seeds: the study's come first, then the smallest others. Raises BadRecipe naming the file and
    the field. No name in a file imports code.
    """
    path = _file_of(file)
    values = _read(path)
    if isinstance(values.get("experts"), list):  # folders of one set
        name = values.get("study")
        values["experts"] = {"folders": {name if isinstance(name, str) else "": values["experts"]}}
    study: Study = validated(Study, values, str(path))
    study = study.but(base=tuple(_model(name, Path(name), "--base") for name in base) or study.base)
    study = _placed(study, path, out or Path(study.study), with_base=not base)
    _check_names(study, str(path))
    experts, replaced = study.experts, {} if epochs is None else {"epochs": epochs}
    for name, number in (("seeds", seeds), ("epochs", epochs)):
        if number is not None and experts.folders:  # it may be meant for another study
            message = (
                f"{study.study}: --{name} is for experts that a study trains, and these are folders"
            )
            warnings.warn(f"{message}: it changes nothing", stacklevel=2)
    trained: dict[str, Any] = {
        "finetune": {**experts.finetune, **replaced},
        "by_task": {task: {**flags, **replaced} for task, flags in experts.by_task.items()},
    }
    if seeds is not None:
        if seeds > MAX_COMBINATIONS:
            raise BadRecipe(f"--seeds is {seeds:,}, expected {MAX_COMBINATIONS:,} at most")
        more = (seed for seed in range(2 * seeds) if seed not in experts.seeds)
        trained["seeds"] = (*experts.seeds, *more)[:seeds]
    limit = study.limit if limit is None else limit
    return study.but(limit=limit, experts=experts.but(**trained))


def _file_of(file: str | Path) -> Path:
    """The file of a study: as it is named, or the one of that name in `designs`."""
    path = Path(file)
    if path.suffix in YAML or path.is_file():
        return path
    named = DESIGNS / f"{file}{YAML[0]}"
    if not named.is_file():
        known = ", ".join(sorted(design.stem for design in DESIGNS.glob(f"*{YAML[0]}"))) or "none"
        raise BadRecipe(
            f"no study is called '{file}'; expected a file {YAML[0]}, or one of {known}"
        )
    return named


def reads_results(file: str) -> bool:
    """Whether a study's file names folders that another study makes, of experts or merges."""
    return bool(re.search("/(experts|merged)/", str(_read(_file_of(file)))))


def _read(path: Path) -> dict[str, Any]:
    what = "a study: study, experts, mergers, ..."
    return read_yaml(path, what, error=BadRecipe, loader=OnAsAWord)


def _check_names(study: Study, where: str) -> None:
    """Raise UnknownName for a name that would have to be imported, and for an unknown metric or
    method in `exclude`; BadRecipe for an unknown `paper`, and for a misspelled reference."""
    axes = [*(study.mergers or ()), *study.include]
    before = [*study.premerge, *(axis.premerge or () for axis in axes)]
    after = [*study.postmerge, *(axis.postmerge or () for axis in axes)]
    readings = study.evaluations.values()
    protocols = [*study.protocols, *(text for reading in readings for text in reading.protocols)]
    tasks = [*study.experts.tasks, *(task for reading in readings for task in reading.tasks)]
    runs = [study.evaluate, *(reading.evaluate for reading in readings)]
    for registry, names in (
        (MERGERS, [axis.merger.name for axis in axes]),
        (PREMERGE, [choice.name for stages in before for choice in stages]),
        (POSTMERGE, [choice.name for stages in after for choice in stages]),
        (PROTOCOLS, [choice_of(text).name for text in protocols]),
        (TASKS, [task.partition("@")[0] for task in tasks]),
        (METRICS, [str(name) for run in runs for name in as_list(run.get("metrics", []))]),
    ):
        for name in names:
            registry.check_name(name, where)
            if registry is METRICS:  # no recipe looks it up later
                registry[name]
    if study.paper and not (PAPERS / f"{study.paper}{YAML[0]}").is_file():
        papers = sorted(path.stem for path in PAPERS.glob(f"*{YAML[0]}"))
        found = f"paper is '{study.paper}', which is no paper's design"
        raise BadRecipe(f"{where}: {found}; {hint(study.paper, papers)}")
    for name in (name for reading in readings for name in study.references_of(reading)):
        near = get_close_matches(name.replace("_", "-"), REFERENCES, n=1, cutoff=0.8)
        if near and name not in REFERENCES:
            raise BadRecipe(
                f"{where}: references name '{name}', which is no folder; did you mean '{near[0]}'?"
            )
    # an excluded method need not be in the study, but must be registered
    for stage, text in (pair for entry in study.exclude for pair in entry.items()):
        if stage in STAGES and text != NONE:
            name = parse_choice(text).name
            STAGES[stage].check_name(name, where)
            STAGES[stage][name]


# Paths -------------------------------------------------------------------------------------


OUT = "$OUT/"
"""The beginning of a path that is relative to the study's folder."""


def _placed(study: Study, file: Path, out: Path, *, with_base: bool) -> Study:
    """The study with full paths (`with_base`: also of its bases); models may be Hub ids."""

    def path(source: str) -> Path:
        return out / source[len(OUT) :] if source.startswith(OUT) else file.parent / source

    def full(source: str) -> str:
        return str(path(source).resolve())

    def model(source: str) -> str:
        return _model(source, path(source), str(file))

    def beside(names: Names) -> Names:
        return tuple(name if name in REFERENCES else model(name) for name in names)

    def task(name: str) -> str:
        return full(name) if name.partition("@")[0].endswith(YAML) else name

    def flags(values: Flags) -> Flags:
        changed: dict[str, Any] = {k: full(v) for k, v in values.items() if k == "heads_from"}
        if "tasks" in values:
            changed["tasks"] = tuple(task(str(name)) for name in as_list(values["tasks"]))
        return {**values, **changed}

    experts, readings = study.experts, study.score_on
    return study.but(
        base=tuple(map(model, study.base)) if with_base else study.base,
        experts=experts.but(
            tasks=tuple(map(task, experts.tasks)),
            finetune=flags(experts.finetune),
            by_task={task(name): flags(values) for name, values in experts.by_task.items()},
            folders={k: tuple(map(model, v)) for k, v in experts.folders.items()},
        ),
        score_on={
            name: reading.but(
                tasks=tuple(map(task, reading.tasks)),
                references=None if reading.references is None else beside(reading.references),
            )
            for name, reading in readings.items()
        },
        references=beside(study.references),
        merge=flags(study.merge),
        evaluate=flags(study.evaluate),
    )


def _model(source: str, path: Path, where: str) -> str:
    """The full path of a folder, or a Hub id. Raises BadRecipe for a path that does not exist."""
    if path.exists():
        return str(path.resolve())
    beside = "/" in source and path.parent.is_dir()  # a folder, or a fetched Hub id
    if (
        source.startswith((".", os.sep, OUT))
        or source.count("/") > 1
        or (beside and local_folder(source) is None)
    ):
        raise BadRecipe(f"{where}: there is no {path}; expected the folder of a model, or a Hub id")
    return source
