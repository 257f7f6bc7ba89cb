"""Writes the tables of README.md, docs/what-we-found.md and docs/papers, and the numbers in their
sentences (claims.py).

    python leaderboards/tables.py [FOLDER]

A table stands between `<!-- NAME -->` and `<!-- end -->`. Its numbers come from the boards or
records in FOLDER (default: `leaderboards`), so that pages always agree with them. With another
folder the pages are written to FOLDER/README.md and FOLDER/docs.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import claims
import differences
import pandas
from frames import (
    BASE,
    BOARDS,
    EXPERTS,
    GROUPS,
    OTHER_BASES,
    OUT_OF_DOMAIN,
    PROTOCOLS,
    SETTINGS,
    TUNED,
    board,
    means,
    number,
    outside,
    table,
    task_of,
)
from papers import BESIDE, PUBLISHED, STARTS, beside, experts, starts

from harness import HarnessError
from harness.files import write_text
from harness.reporting.boards.credit_table import view
from harness.reporting.difference import Difference
from harness.types import ALL

HERE = Path(__file__).parent
CONSTANT = "best constant"
SHOTS = 5
COUNTS = ("1", "5", "10", "50", ALL)
END = "end"
MERGERS = ("average", "task_arithmetic", "ties", "fisher", "regmean")
ON_OTHER_BOARDS = ("orthogonal probe, test rows", "Surgery", "Surgery, test rows")
FITTED_TO_TEST_ROWS = ("orthogonal probe, test rows", "Surgery, test rows")
FOLDERS = {
    "distilbert-cased": "distilbert-base-cased",
    "granite-30m": "granite-embedding-30m-english",
    "minilm-l3": "paraphrase-MiniLM-L3-v2",
    "mpnet": "all-mpnet-base-v2",
}
"""Names of bases whose folders have another name in the records of `pairs`."""
TRANSFORMS = ("scaling", "orthogonal", "similarity", "euclidean", "linear", "invertible", "affine")


def by_column(frame: pandas.DataFrame, first: str, columns: Mapping[str, Mapping[str, str]]) -> str:
    """A table with a row for every name: experts, merges in the order of the first column, base."""
    values = pandas.DataFrame({head: means(frame, column) for head, column in columns.items()})
    merges = values.drop([EXPERTS, BASE]).sort_values(next(iter(columns)))
    ordered = pandas.concat([values.loc[[EXPERTS]], merges, values.loc[[BASE]]])
    rows = ([str(name), *map(number, row)] for name, row in ordered.iterrows())
    return table([first, *columns], rows)


# The tables --------------------------------------------------------------------------------


def protocols(place: Path) -> str:
    """Mean accuracy over five tasks by protocol, with 5 shots: FT-Classifier, Tables 2 and 3."""
    return by_column(board(place, "protocols"), "", PROTOCOLS)


def transforms(place: Path) -> str:
    """Mean accuracy over five tasks by the transform of a probe: FT-Classifier, Figure 4."""
    read = {"protocol": "probe", "with rows": "test"}
    columns = {"Current": PROTOCOLS["Current"]}
    columns |= {transform: {**read, "with transform": transform} for transform in TRANSFORMS}
    return by_column(board(place, "protocols"), "", columns)


def shots(place: Path) -> str:
    """Mean accuracy by the number of rows for adaptation: FT-Classifier, Figures 2 and 5."""
    frame = board(place, "shots")
    frame["shots"] = frame["shots"].map(lambda count: f"{count:.0f}".replace("inf", ALL))
    tuned = {"protocol": "ft-classifier", "with variant": "clean", "with rows": "shots"}
    probe = {"protocol": "linear-probe", "with features": "last_linear"}
    hidden = {**probe, "with features": "mean_masked"}
    columns = {"Current": PROTOCOLS["Current"]}
    columns |= {f"tuned head, {count}": {**tuned, "shots": count} for count in COUNTS}
    columns["tuned head, test rows"] = {"protocol": "ft-classifier", "with rows": "test"}
    for name, where in (("linear probe", probe), ("linear probe of hidden states", hidden)):
        columns |= {f"{name}, {count}": {**where, "shots": count} for count in ("5", ALL)}
    return by_column(frame, "", columns)


def by_protocol(place: Path, name: str, *left_out: str) -> str:
    """Means over the tasks of a board by protocol, with 5 shots, and those of the best constant."""
    columns = {head: column for head, column in PROTOCOLS.items() if head not in left_out}
    frame = board(place, name)
    read = frame.role.isin(["expert", "base", "merged"]) & frame.shots.isin([0, SHOTS])
    scores = by_column(frame[read & (frame.premerge == "")], "", columns)
    constant = frame[frame.role == "merged"].groupby("task").majority.first().astype(float).mean()
    return f"{scores}\n| {' | '.join([CONSTANT, *[number(constant)] * len(columns)])} |"


def credit(place: Path, name: str = "protocols") -> str:
    """The merges of a board by credit, with their places under Current Eval."""
    rows = []
    for bar in view(differences.credited(place, name), "")["bars"]:
        scores = bar["scores"]
        marks = "".join(f" {sign}{bar[way]}" for sign, way in SIGNS if bar[way])
        current = f"{bar['current_place']}{marks}"
        shown = [
            scores["Current Eval"],
            current,
            scores["tuned head"],
            bar["in_full"],
            bar["range"],
        ]
        rows.append([bar["place"], f"`{bar['called']}`", *shown])
    constant = claims.constant(place, name)
    rows.append(["", CONSTANT, constant, "", constant, "", ""])
    both = ["Current Eval", "place, Current Eval"]
    return table(["place", "merge", *both, "tuned head", "credit", "by task"], rows)


def called(place: Path, name: str) -> str:
    """The setting and the base of a board, to name it in tables."""
    return f"{BOARDS.get(name) or OUT_OF_DOMAIN[name]}, {differences.base_of(place, name)}"


def overview(place: Path) -> str:
    """A row for each board: scores of the average, the most credit, pairs in opposite orders."""
    rows = []
    for name in BOARDS:
        tuned = [claims.mean(place, name, row, "ft-classifier") for row in ("average", "base")]
        experts = claims.mean(place, name, differences.experts_of(place, name), "current")
        pairs = claims.pairs(place, name)
        rows.append(
            [
                f"[{called(place, name)}](../leaderboards/{name}/board.md)",
                experts,
                claims.mean(place, name, "average", "current"),
                *tuned,
                claims.part(place, name, "average"),
                claims.first(place, name),
                "no pair" if pairs == "none" else f"{claims.reversed(place, name)} of {pairs}",
            ]
        )
    heads = ["", "experts", "average, Current Eval", "average, tuned head", "base, tuned head"]
    heads += ["the head's share of the loss", "most credit", "pairs reversed"]
    return table(heads, rows)


def by_task(place: Path, name: str) -> str:
    """Current Eval by task, in the mean over sets of experts: experts, their ensemble, merges
    without stages, base, best constant. Bold: the best merges, and any not significantly behind."""
    known = differences.known(place, name)
    at = known.scores.headlines["current"]
    alone = {known.joint_names.get(one.method, one.method) for one in known.lines
             if one.role == "merged" and not one.premerge}  # fmt: skip
    merges = {row: known.row(row, at)[: len(known.tasks)] for row in known.scores.rows}
    rows = []
    for row, cells in merges.items():
        of = known.scores.line_of_row.get(row)
        if of is None or of.role != "merged" or row in alone:
            shown = [f"**{text}**" if one and one.best else text for one in cells
                     for text in [number(one.cell.mean) if one else ""]]  # fmt: skip
            rows.append([f"`{row}`" if row in alone else row, *shown])
    return table(["", *map(task_of, known.tasks)], rows)


def stages_by_task(place: Path, name: str) -> str:
    """What each stage before a merger changes on each task, in points; bold if significant, by Holm
    over the changes on a task under a protocol."""
    known = differences.known(place, name)
    rows = []
    for protocol, called in PROTOCOL_NAMES.items():
        for method, changes in differences.by_stage(place, name, protocol).items():
            rows.append([f"{called}: `{method}`", *map(change, changes.values())])
    return table(["", *map(task_of, known.tasks)], rows)


def change(one: Difference) -> str:
    text = number(one.points, "+")
    return f"**{text}**" if one.significant else text


def foretold(place: Path) -> str:
    """Correlations of norms and cosines of task vectors with losses, on each base."""
    boards = GROUPS["topics"]
    rows = [
        [f"{told}, {said}", *(claims.foretells(place, name, column, at) for name in boards)]
        for at, told in PROTOCOL_NAMES.items()
        for column, said in (("norm", "norm"), ("cosine", "cosine"))
    ]
    return table(["", *(differences.base_of(place, name) for name in boards)], rows)


def bases(place: Path, boards: Sequence[str]) -> str:
    """Credit of the mergers on each base."""
    return _credits(place, {name: differences.base_of(place, name) for name in boards})


def settings(place: Path) -> str:
    """Credit of the mergers in each setting."""
    heads = {
        name: f"{told} ({differences.base_of(place, name)})" for name, told in SETTINGS.items()
    }
    return _credits(place, heads)


def _credits(place: Path, boards: Mapping[str, str]) -> str:
    """Credit of the mergers that all boards have, in the order of their mean place, below scores of
    experts, of the base under a tuned head and of the best constant."""
    alone = (
        claims.mean(place, one, differences.experts_of(place, one), "current") for one in boards
    )
    under = (claims.mean(place, one, "base", "ft-classifier") for one in boards)
    rows = [["experts", *alone], ["base under a tuned head", *under]]
    credits = {name: differences.plain(place, name, "credit") for name in boards}
    places = pandas.DataFrame(credits).dropna().rank(ascending=False).mean(axis=1)
    rows.append([CONSTANT, *(claims.constant(place, one) for one in boards)])
    for row in places.sort_values(kind="stable").index:
        each = (claims.credit(place, name, row) for name in boards)
        rows.append([f"`{row}`", *(one.replace("95 % CI ", "") for one in each)])
    return table(["", *boards.values()], rows)


def pairs(place: Path) -> str:
    """Credit of every merge of a pair of experts on each of several bases, in the order of the mean
    place."""
    boards = differences.pairs_of_bases()
    credits = pandas.DataFrame(
        {base: differences.credits_of(board) for base, board in boards.items()}
    )
    first = {base: board.credits.merges[0] for base, board in boards.items() if board.credits}
    rows = [
        [told, *(number(getattr(first[base], name)) for base in credits)]
        for told, name in (("experts", "experts"), ("base under a tuned head", "base"))
    ]
    for row in credits.rank(ascending=False).mean(axis=1).sort_values(kind="stable").index:
        each = ("" if pandas.isna(one) else f"{100 * one:.0f} %" for one in credits.loc[row])
        rows.append([f"`{row}`", *each])
    return table(["", *(FOLDERS.get(base, base) for base in credits)], rows)


def fresh(place: Path) -> str:
    """Merges under a head tuned on few rows without labels, and under a fresh head trained on many
    rows with labels, in the order of the latter."""
    name = new = "fresh-head"  # the board, and the protocol
    merges = [one.name for one in differences.credited(place, name).merges]
    merges.sort(key=lambda row: -float(claims.mean(place, name, row, new)))

    def cells(row: str) -> list[str]:
        own, tuned, fresh = (
            claims.mean(place, name, row, at) for at in ("current", "ft-classifier", new)
        )
        if row not in merges:
            return [row, own, tuned, "", fresh, ""]
        credits = claims.credit(place, name, row), claims.credit_under(place, name, row, new)
        first, second = (one.replace("95 % CI ", "") for one in credits)
        return [f"`{row}`", own, tuned, first, fresh, second]

    rows = map(cells, (differences.experts_of(place, name), *merges, "base"))
    return table(["", "Current Eval", "tuned head", "credit", "fresh head", "credit"], rows)


def options(place: Path, name: str) -> str:
    """Mergers with an option chosen on held-out rows by Current Eval, and with its default."""
    rows = []
    for row, (chosen, values) in differences.chosen(place, name).items():
        cells = [f"`{row}`", ", ".join(values)]
        for protocol in ("current", "ft-classifier"):
            cells.append(claims.mean(place, name, row, protocol))
            cells.append(claims.gap(place, name, chosen, row, protocol))
        cells += [claims.credit(place, name, one) for one in (row, chosen)]
        rows.append([one.replace("95 % CI ", "") for one in cells])
    under = ("Current Eval", "chosen less default", "tuned head", "chosen less default")
    return table(["", "chosen", *under, "credit, default", "credit, chosen"], rows)


HEADS = (
    "average",
    "task_arithmetic",
    "ties",
    "fisher:estimator=empirical,examples=256",
    "regmean:examples=256",
)


def heads(place: Path) -> str:
    """Macro F1 with experts whose heads started alike, or differently: RegMean, Table 2."""
    boards, rows = ("emotions", "emotions-heads"), []
    for row in ("expert of the task", *HEADS, "base"):
        cells = [f"`{row}`" if row in HEADS else row]
        for protocol in ("current", "ft-classifier"):
            cells += [claims.mean(place, name, row, protocol) for name in boards]
            cells.append(claims.trained_otherwise(place, *boards[::-1], row, protocol))
        rows.append([one.replace("95 % CI ", "") for one in cells])
    under = ("Current Eval", "tuned head")
    told = [f"{one}: {said}" for one in under for said in ("shared", "separate", "difference")]
    return table(["", *told], rows)


def references(place: Path) -> str:
    """What `procrustes` changes on each task under a tuned head, by its reference."""
    rows, tasks = [], [*differences.known(place, "domains").tasks]
    turns = {
        "news": ("domains", "procrustes["),
        "Wikipedia": ("reference", "procrustes["),
        "the base": ("reference", "procrustes:reference=base["),
    }
    for turned_to, (name, stage) in turns.items():
        for method, changes in differences.by_stage(place, name, "ft-classifier").items():
            if method.startswith(stage):
                merger = method.removeprefix(stage).removesuffix("]")
                shown = [change(changes[task]) for task in tasks]
                rows.append([turned_to, f"`{merger}`", *shown])
    return table(["reference", "", *map(task_of, tasks)], rows)


SIGNS = (("▼", "low"), ("▲", "high"))
"""▼ counts merges that Current Eval wrongly puts above a merge, ▲ those wrongly below it."""


def stages(place: Path, stage: str) -> str:
    """What a stage before mergers changes on each board that has it, in points, with half of the
    interval; bold if significant."""
    each = {
        (called(place, name), told): differences.changes_of(place, name, stage, protocol)
        for name in BOARDS
        for protocol, told in PROTOCOL_NAMES.items()
    }
    mergers = list(dict.fromkeys(merger for found in each.values() for merger in found))
    rows = [
        [*told, *(claims.staging(found[one]) if one in found else "" for one in mergers)]
        for told, found in each.items()
        if found
    ]
    return table(["", "", *(f"`{one}`" for one in mergers)], rows)


def leads(place: Path) -> str:
    """Differences between RegMean, Fisher and the average on each board, in points, with half of
    the interval; bold if significant."""
    rows = [
        [called(place, name), PROTOCOL_NAMES[at], *map(claims.staging, found.values())]
        for (name, at), found in differences.led(place).items()
    ]
    return table(["", "", *(f"{one} less {other}" for one, other in differences.LED)], rows)


PROTOCOL_NAMES = {"current": "Current Eval", "ft-classifier": "tuned head"}


def foreign(place: Path) -> str:
    """Macro F1 over corpora that no expert was trained on, mean over sets: RegMean, Table 3."""
    values = board(place, "emotions-out").groupby(["role", "name"]).value.mean()
    singles, merges = outside(place)
    columns = {
        "average single": number(singles.mean()),
        "the four singles": ", ".join(map(number, singles)),
        "ensemble": number(values["ensemble"].mean()),
        **{f"`{one}`": number(merges[one]) for one in (*MERGERS, "wudi") if one in merges},
        "base": number(values["base"].mean()),
    }
    return table(["", *columns], [["macro F1", *columns.values()]])


TABLES: Mapping[str, Callable[[Path], str]] = {
    "credit": credit,
    "overview": overview,
    "protocols": protocols,
    "transforms": transforms,
    "shots": shots,
    "seeds": lambda place: by_task(place, "seeds"),
    "seeds-stages": lambda place: stages_by_task(place, "seeds"),
    "references": references,
    "domains-protocols": lambda place: by_protocol(place, "domains", *ON_OTHER_BOARDS),
    "emotions-out": foreign,
    "heads": heads,
    "leads": leads,
    "fresh": fresh,
    **{f"options-{one}": partial(options, name=f"{one}-tuned") for one in TUNED},
    "foretold": foretold,
    **{f"bases-{one}": partial(bases, boards=GROUPS[one]) for one in OTHER_BASES},
    "pairs": pairs,
    "settings": settings,
    **{
        name: partial(experts, boards=boards, theirs=theirs, said=said)
        for name, (boards, theirs, said) in PUBLISHED.items()
    },
    **{
        name: partial(starts, studies=studies, fisher=fisher, theirs=theirs)
        for name, (studies, fisher, theirs) in STARTS.items()
    },
    "images-protocols": lambda place: by_protocol(place, "vision", *FITTED_TO_TEST_ROWS),
    **{name: partial(beside, columns=of, rows=rows) for name, (of, rows) in BESIDE.items()},
    **{f"credit-{name}": partial(credit, name=name) for name in BOARDS},
    **{f"stages-{stage}": partial(stages, stage=stage) for stage in ("procrustes", "dare")},
}


ROOT = HERE.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", DOCS / "what-we-found.md", *sorted((DOCS / "papers").glob("*.md"))]


def written(path: Path, place: Path = HERE) -> str:
    """The text of a page with its tables and numbers computed from the boards in a folder."""
    text = path.read_text(encoding="utf-8")
    for name in re.findall(r"(?m)^<!-- (\S+) -->$", text):
        if name == END:
            continue
        before, start, rest = text.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition(f"<!-- {END} -->")
        if name not in TABLES or not end:
            raise SystemExit(f"{path}: no table is '{name}', or no '<!-- {END} -->' ends it")
        text = f"{before}{start}{TABLES[name](place)}\n{end}{after}"
    return claims.said(text, place)


if __name__ == "__main__":
    place = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    try:
        texts = {one: written(one, place) for one in PAGES}
    except HarnessError as error:
        sys.exit(f"{error}, as leaderboards/pages.py writes them")
    except FileNotFoundError as error:
        sys.exit(f"{error.filename} is missing; expected what leaderboards/pages.py writes")
    for one, text in texts.items():
        write_text(one if place == HERE else place / one.relative_to(ROOT), text)
