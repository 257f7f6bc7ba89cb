"""Tables of our boards beside the numbers that papers print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import differences
import pandas
from frames import (
    BASE,
    EXPERTS,
    GROUPS,
    PROTOCOLS,
    board,
    each_task,
    means,
    number,
    table,
    task_of,
)

from harness.files import read_yaml

PAPERS = Path(__file__).parent.parent / "harness/studies/papers"


class Beside(NamedTuple):
    """A column of a comparison: a board under a protocol, and the mean of some columns of a paper's
    table. `premerge` is the stage before the mergers of both, `tasks` those of the board that count
    (none: all), and `suffix` ends the names of the mergers in the paper's table."""

    board: str
    protocol: str
    paper: str
    table: int
    columns: tuple[str, ...]
    premerge: str = ""
    tasks: tuple[str, ...] = ()
    suffix: str = ""


def beside(place: Path, columns: Mapping[str, Beside], rows: Mapping[str, str]) -> str:
    """Means over the tasks of boards, with a paper's numbers in brackets.

    `rows` maps our names of rows to the paper's.
    """
    cells: dict[str, list[str]] = {row: [] for row in rows}
    for one in columns.values():
        paper = PAPERS / f"{one.paper}.yaml"
        theirs = pandas.DataFrame(read_yaml(paper, "its tables")["tables"][one.table]["values"])
        theirs = theirs if {*one.columns} <= {*theirs.columns} else theirs.T
        frame = board(place, one.board)
        if one.tasks:
            frame = frame[frame.task.map(task_of).isin(one.tasks)]
        merged = frame.role == "merged"
        frame = frame[~merged | ((frame.premerge == one.premerge) & (frame.postmerge == ""))]
        frame = frame.assign(name=frame.name.where(~merged, frame.merger.str.partition(":")[0]))
        ours = means(frame, PROTOCOLS[one.protocol])
        for row, named in rows.items():
            called = named if row in (EXPERTS, BASE) else named + one.suffix
            cell = number(ours[row])
            if called in theirs.index:  # a paper need not have all mergers in all tables
                cell += f" ({number(theirs.loc[called, [*one.columns]].mean())})"
            cells[row].append(cell)
    return table(
        ["", *columns],
        ([row if row in (EXPERTS, BASE) else f"`{row}`", *cells[row]] for row in rows),
    )


def experts(place: Path, boards: Sequence[str], theirs: Mapping[str, float], said: str) -> str:
    """Experts under their own heads on each task, by base; below, published scores of another."""
    frames = {differences.base_of(place, name): board(place, name) for name in boards}
    own = {base: each_task(of, PROTOCOLS["Current"]).loc[EXPERTS] for base, of in frames.items()}
    rows = [[base, *map(number, scores)] for base, scores in own.items()]
    tasks = [*map(task_of, next(iter(own.values())).index)]
    shown = [number(theirs[task]) if task in theirs else "" for task in tasks]
    return table(["", *tasks], [*rows, [said, *shown]])


PUBLISHED: Mapping[str, tuple[Sequence[str], Mapping[str, float], str]] = {
    "experts-topics": (
        GROUPS["topics"],
        {
            "ag_news": 95.2,
            "dbpedia_14": 99.3,
            "yahoo_answers_topics": 77.6,
            "yelp_review_full": 70.6,
        },
        "BERT-base, all rows",
    ),
    "experts-glue": (
        GROUPS["glue"],
        {"mnli": 81.5, "mrpc": 85.6, "qnli": 88.2, "qqp": 87.8, "sst2": 90.4},
        "DistilBERT, all rows",
    ),
}
"""Published accuracies by table: of BERT-base, pretrained further on the texts, Sun et al. 2019,
arXiv:1905.05583 (BERT-ITPT-FiT); of DistilBERT, the model card of distilbert-base-cased."""


def starts(place: Path, studies: Mapping[str, str], fisher: str, theirs: Mapping[str, str]) -> str:
    """Experts of one task by what was matched before they were merged, Current Eval, from different
    initialisations and from one: the rotation paper's Table 2."""
    columns: dict[str, pandas.Series[float]] = {}
    experts, mergers = [], ("average", fisher, "regmean")
    for study, start in studies.items():
        frame = board(place, study)
        frame = frame[frame.protocol == "current"]
        merged = frame[frame.role == "merged"].set_index("premerge")
        for merger in mergers:
            of_sets = merged[merged.merger == merger].value.groupby(level=0, sort=False)
            columns[f"{start}: `{merger}`"] = of_sets.mean()
        experts += [frame[frame.role == "expert"].value.mean()] * len(mergers)
    values = pandas.DataFrame(columns)
    rows = [[EXPERTS, *map(number, experts), ""]]
    for name, of in values.iterrows():
        stages = f"`{name}`" if name else "alone"
        rows.append([stages, *map(number, of), theirs.get(str(name), "")])
    headers = ["", *values.columns, "in the paper"]
    return table(headers, rows) if theirs else table(headers[:-1], [row[:-1] for row in rows])


STARTS: Mapping[str, tuple[Mapping[str, str], str, Mapping[str, str]]] = {
    "images": (
        {
            "vision-two-starts": "different initialisations",
            "vision-one-start": "one initialisation",
        },
        "fisher:examples=256",
        {
            "": "7.6, 18.0, 14.2",
            "rotation": "10.2, 18.6, 15.3",
            "rotation:scaling=True": "10.2, 18.6, 15.4",
        },
    ),
    "texts": (
        {
            "text-two-starts": "different initialisations",
            "text-two-pretrainings": "different pre-trainings",
            "text-one-start": "one initialisation",
        },
        "fisher:estimator=empirical,examples=256",
        {},
    ),
}
"""By table: its boards, their Fisher merger, and what the paper prints, of different
initialisations and by the same three mergers (arXiv:2502.00264, Table 2)."""


ALONE = {"current": "Current", "knn": "KNN", "ft_classifier": "FT-Classifier"}
OURS = ("mnli", "mrpc", "sst2", "stsb")
"""The tasks of GLUE on the board `seeds`."""
ENTITIES = (("conll2003", "ncbi_disease"), "procrustes-3", 0, ("conll2003", "ncbi"))
"""Its tasks of entities, and where a paper has them: file, table and columns."""
BESIDE = {
    "beside-ft-classifier": (
        {
            head: Beside("protocols", head, "ft-classifier-3", 0, (said,))
            for said, head in ALONE.items()
        },
        {
            "average": "weight_averaging",
            "task_arithmetic": "task_arithmetic",
            "ties": "ties",
            BASE: "pretrained",
        },
    ),
    "beside-regmean": (
        {
            "emotions": Beside(
                "emotions", "Current", "regmean-2", 0, ("emotion.roberta_base.same_head",)
            ),
            "entities": Beside("domains", "Current", "regmean-3", 0, ("ner.roberta_base",)),
        },
        {EXPERTS: "domain_specific", "average": "simple", "fisher": "fisher", "regmean": "regmean"},
    ),
    "beside-procrustes": (
        {
            f"{told}{', after `procrustes`' * bool(stage)}": Beside(
                "seeds", "Current", paper, after, columns, stage, tasks, suffix
            )
            for told, tasks, paper, after, columns, stage, suffix in (
                ("GLUE", OURS, "procrustes-2", 0, OURS, "", ""),
                ("GLUE", OURS, "procrustes-2", 1, OURS, "procrustes", ""),
                ("entities", *ENTITIES, "", ""),
                ("entities", *ENTITIES, "procrustes", ", projected"),
            )
        },
        {
            EXPERTS: "mean",
            **{one: one for one in ("average", "task_arithmetic", "regmean", "ties")},
        },
    ),
}
