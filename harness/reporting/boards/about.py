"""Pure: a board -> sentences on its models and data, and on its main finding."""

from __future__ import annotations

from collections import Counter

from harness.reporting.boards.board import Board
from harness.reporting.grid import short_task
from harness.reporting.names import CONSTANT
from harness.reporting.sentences import rendered, span
from harness.reporting.verdict import experts_and_bases, mean_score
from harness.text import few, last_part, plain, points


def about(board: Board) -> dict[str, str]:
    """Facts of a board by name: base, experts, test rows, merges, tasks, any half precision."""
    merges = board.scores.models("merged")
    made_of = [line for row in merges for line in board.scores.lines_of_row[row]]
    bases = [line.base for line in made_of] + [
        line.model for line in board.lines if line.role == "base"
    ]
    rows = {line.rows for line in board.tasks.values()}
    least, most = min(rows), max(rows)
    experts = _experts(board)
    return {
        "base": plain(", ".join(filter(None, dict.fromkeys(map(last_part, bases))))),
        "experts": experts,
        "sets of experts": str(board.sets) if experts else "",
        "test rows": f"{least:,}" if least == most else f"{least:,} to {most:,}",
        "merges": str(len(merges)),
        "tasks": str(len(board.tasks)),
        "models ran in": " and ".join(sorted({line.half for line in board.lines} - {""})),
    }


def summary(board: Board) -> dict[str, str]:
    """The entry of a board on the page over boards: its facts, its tasks by name, its finding."""
    tasks = few([short_task(task, board.scores.tasks) for task in board.tasks])
    return {**about(board), "tasks": plain(tasks), "finding": _finding(board)}


def about_text(board: Board) -> str:
    """The facts of `about` in one line, and the tasks with experts below the best constant."""
    facts = {name: value for name, value in about(board).items() if value}
    text = "; ".join(f"{name}: {value}" for name, value in facts.items())
    return f"{text[:1].upper()}{text[1:]}.{rendered('low_experts', _low_experts(board))}"


def _low_experts(board: Board) -> dict[str, tuple[float, float]]:
    """By task with experts below the best constant: their mean score, and the constant's."""
    low = {}
    for task, lines in experts_and_bases(board.lines).items():
        experts = [line for line in lines if line.role == "expert"]
        constant = board.tasks[task].majority if task in board.tasks else None
        if experts and constant is not None and mean_score(experts) < constant:
            low[short_task(task, board.scores.tasks)] = mean_score(experts), constant
    return low


def _experts(board: Board) -> str:
    """How many experts were merged, and whether they are scored on the board's tasks."""
    experts = {
        (line.task, line.set, line.digest)
        for line in board.lines
        if line.role == "expert" and line.task in board.tasks
    }
    counts = sorted({*Counter(expert[:2] for expert in experts).values()})
    if not counts:
        merged = {(line.set, digest) for line in board.lines for _, digest in line.experts}
        most = max(Counter(number for number, _ in merged).values(), default=0)
        trained_on = {task for line in board.lines for task, *_ in line.trained}
        others = trained_on and trained_on.isdisjoint(line.name for line in board.lines)
        return f"{most}, {'of other tasks' if others else 'not scored'}" if most else ""
    count = span((counts[0], counts[-1]))
    return f"{'one' if count == '1' else count} of each task"


def _finding(board: Board) -> str:
    """Which merge is first: by credit or, without credits, by its mean under the first setting."""
    if board.credits:
        return plain(board.credits.finding[0])
    setting, column = board.scores.settings[0], board.scores.columns[-1]
    best = board.best.get((setting, column))
    if best is None:
        return ""
    if not best:
        return plain(f"Under {setting} no merge scores more than the {CONSTANT} prediction.")
    under = board.under(setting)
    means = {row: cells[-1].cell.mean for row, cells in under if row in best and cells[-1]}
    first = max(means, key=means.__getitem__)  # the first of equal ones
    others = len(best) - 1
    more = f"; {others} more do not differ significantly from it" if others else ""
    return plain(f"Under {setting} {first} scores highest with {points(means[first])}{more}.")
