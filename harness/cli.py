"""The command line: parse, call the library, print. Results to stdout, progress to stderr."""

from __future__ import annotations

import errno
import json
import re
import shutil
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from harness.errors import BadOption, BadRecipe, CellsFailed, HarnessError
from harness.text import plain
from harness.types import Progress

if TYPE_CHECKING:
    from harness.evaluation.records import Record
    from harness.merging.plan import Plan
    from harness.merging.recipes import Recipe

app = typer.Typer(
    name="harness",
    help="Is this merge good, and if its score is low, is it the encoder or only the head?",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

ClickError: Any = typer.BadParameter.__mro__[2]
"""The root of click's errors, in the click that typer uses: newer ones carry their own copy."""

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM)
"""What the system says where it does not let a library write: no fault of this program."""

DataDir = Annotated[
    Path | None, typer.Option("--data-dir", help="Local data: DIR/<suite>/<task>/<split>.parquet.")
]
PresetOption = Annotated[
    Literal["procrustes", "regmean", "rotation", "ft-classifier"] | None,
    typer.Option("--preset", help="Compute as the code of a paper does."),
]


def _load_plugins(folders: list[Path] | None) -> list[Path] | None:
    from harness.registry import load_plugins

    for folder in folders or []:
        load_plugins(folder)
    return folders


Plugins = Annotated[
    list[Path] | None,
    typer.Option(
        "--plugins",
        help="A folder of Python files with your own tasks, protocols or methods.",
        callback=_load_plugins,
        is_eager=True,
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Replace what an earlier run wrote there.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; the exit status.

    0: done; 2: bad input, found before work started; 3: some cells failed, all others are saved.
    """
    given = (sys.argv[1:] if argv is None else argv) or ["--help"]
    arguments = [_dashes(word) for word in given]
    with warnings.catch_warnings():
        warnings.showwarning = _warn
        try:
            status = app(arguments, prog_name="harness", standalone_mode=False)
            return status if isinstance(status, int) else 0
        except HarnessError as error:
            print(f"harness: {_one_line(error)}", file=sys.stderr)
            return 3 if isinstance(error, CellsFailed) else 2
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            print(f"harness: {_one_line(error)}", file=sys.stderr)
            return 2
        except ClickError as error:
            print(f"harness: {_one_line(error.format_message())}", file=sys.stderr)
            return 2
        except (typer.Abort, KeyboardInterrupt):
            print("harness: interrupted", file=sys.stderr)
            return 130


def _dashes(word: str) -> str:
    """`--batch_size=8` as `--batch-size=8`: both spellings are accepted."""
    flag, equals, value = word.partition("=")
    return flag.replace("_", "-") + equals + value if flag.startswith("--") else word


def _one_line(error: object) -> str:
    return plain(" ".join(str(error).split()))


def _warn(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    if issubclass(category, UserWarning):
        print(f"harness: warning: {_one_line(message)}", file=sys.stderr)


def _split(text: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def _methods(text: str | None) -> tuple[str, ...]:
    """`current,ft-classifier:epochs=3,learning_rate=1e-3` as two methods, options and all."""
    return tuple(re.split(r",(?=[\w.-]+(?::|,|$))(?![\w.-]+=)", text)) if text else ()


@contextmanager
def _bars() -> Iterator[Progress]:
    """A progress bar on stderr for everything that is counted under a name of its own."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as Bars

    columns = TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn()
    shown = Bars(*columns, TimeRemainingColumn(), console=Console(stderr=True))
    known: dict[str, Any] = {}

    def advance(what: str, done: int, total: int) -> None:
        if not known:
            shown.start()
        if what not in known:
            known[what] = shown.add_task(plain(what), total=total)
        # what is told again was read from the cache: an expert teaches several models
        if not shown.tasks[known[what]].finished:
            shown.advance(known[what], done)

    try:
        yield advance
    except BaseException:
        shown.live.transient = True  # the error alone stays on the screen
        shown.live.stop()
        raise
    if known:
        shown.stop()


# Commands ----------------------------------------------------------------------------------


@app.command()
def finetune(
    base: Annotated[str, typer.Option(help="The pretrained checkpoint: a folder or a Hub id.")],
    out: Annotated[Path, typer.Option(help="The expert's folder.")],
    task: Annotated[
        str | None, typer.Option(help="The task, as `harness list tasks` names it.")
    ] = None,
    tasks: Annotated[
        str | None, typer.Option(help="T1,T2,...: one encoder for all, a head for each.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Orders the data, drops units.")] = 0,
    head_seed: Annotated[
        int | None, typer.Option(help="Initialises the head (default: the seed).")
    ] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Default: the task's.")] = None,
    epochs: Annotated[float | None, typer.Option(help="Default: the task's.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Default: the task's.")] = None,
    warmup: Annotated[float | None, typer.Option(help="Share of the steps.")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="Default: the task's.")] = None,
    max_length: Annotated[int | None, typer.Option(help="Tokens. Default: the task's.")] = None,
    limit: Annotated[int | None, typer.Option(help="Use the first N rows of each split.")] = None,
    bf16: Annotated[bool, typer.Option("--bf16", help="Train in mixed bfloat16.")] = False,
    preset: PresetOption = None,
    force: Force = False,
    data_dir: DataDir = None,
    plugins: Plugins = None,
) -> None:
    """Fine-tune a base on a task, or on several together; an interrupted run resumes when it is
    called again."""
    from harness.checkpoints.provenance import EXPERT_FILE
    from harness.files import read_json
    from harness.training.finetune import finetune as run

    overrides: dict[str, Any] = {
        "learning_rate": learning_rate,
        "epochs": epochs,
        "batch_size": batch_size,
        "warmup": warmup,
        "weight_decay": weight_decay,
        "max_length": max_length,
    }
    run(
        base,
        task,
        tasks=_split(tasks),
        out=out,
        seed=seed,
        head_seed=head_seed,
        data_dir=data_dir,
        limit=limit,
        bf16=bf16,
        preset=preset,
        force=force,
        **overrides,
    )
    record = read_json(out / EXPERT_FILE, "what was just written")
    for split, score in record["scores"].items():
        parts = ", ".join(f"{name} {100 * value:.1f}" for name, value in score["parts"].items())
        print(f"wrote {out}: {split} {parts} ({score['rows']} rows)")


@app.command()
def merge(
    experts: Annotated[list[str], typer.Argument(help="Folders or Hub ids, or one recipe.yaml.")],
    out: Annotated[Path, typer.Option(help="The merged folder.")],
    base: Annotated[str | None, typer.Option(help="The checkpoint they were tuned from.")] = None,
    merger: Annotated[str | None, typer.Option(help="NAME[:key=value,...]")] = None,
    premerge: Annotated[
        list[str] | None, typer.Option(help="NAME[:key=value,...]; repeat for several.")
    ] = None,
    postmerge: Annotated[
        list[str] | None, typer.Option(help="NAME[:key=value,...], after the merger; repeat.")
    ] = None,
    heads: Annotated[
        Literal["auto", "merge", "average", "keep"] | None,
        typer.Option(help="What becomes of them."),
    ] = None,
    tasks: Annotated[str | None, typer.Option(help="T1,T2,...: one each, or one for all.")] = None,
    seed: Annotated[int | None, typer.Option(help="For methods that draw numbers.")] = None,
    statistics: Annotated[
        list[str] | None,
        typer.Option(help="F1,F2,...: what `harness statistics` wrote, one for each expert."),
    ] = None,
    tune: Annotated[
        str | None, typer.Option(help="OPTION=FIRST:LAST:STEP: try all, keep the best.")
    ] = None,
    tune_on: Annotated[
        str | None,
        typer.Option(help="T1@SPLIT,...: where candidates are scored. Default: @heldout10."),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="Where statistics and candidates are run.")
    ] = None,
    preset: PresetOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check headers, write nothing.")
    ] = False,
    force: Force = False,
    allow_pickle: Annotated[
        bool, typer.Option("--allow-pickle", help="Read pickles, as weights only.")
    ] = False,
    data_dir: DataDir = None,
    plugins: Plugins = None,
) -> None:
    """Merge experts into one folder that transformers loads."""
    from harness.merging.merge import merge as run

    flags = {
        "base": base,
        "merger": merger,
        "premerge": premerge or None,
        "postmerge": postmerge or None,
        "heads": heads,
        "tasks": _split(tasks) or None,
        "seed": seed,
        "statistics": tuple(part for given in statistics or () for part in _split(given)) or None,
        "tune": tune,
        "tune_on": _split(tune_on) or None,
        "device": device,
        "preset": preset,
        "data_dir": str(data_dir) if data_dir else None,
    }
    recipe = _recipe(experts, flags)
    if dry_run:
        found = run(recipe, out=out, force=force, dry_run=True, allow_pickle=allow_pickle)
        print(_described(found))
        print(f"would write {out}; only headers were read")
        return
    with _bars() as advance:
        found = run(recipe, out=out, force=force, allow_pickle=allow_pickle, progress=advance)
    print(_described(found))
    print(f"wrote {out}")


BESIDE = ("device", "data_dir")
"""Flags that a recipe leaves to the machine it is used on."""


def _recipe(experts: Sequence[str], flags: Mapping[str, Any]) -> Recipe:
    """The recipe in the one file given in place of experts, or the one that the flags make.

    Flags may stand beside a file where it cannot say the same: a configuration of mergekit's says
    models and a method and nothing else.
    """
    from harness.merging.recipes import Recipe, recipe_and_fields
    from harness.values import validated

    given = {name: value for name, value in flags.items() if value is not None}
    if len(experts) > 1 or Path(experts[0]).suffix not in (".yaml", ".yml", ".json"):
        return validated(Recipe, {"experts": experts, **given}, "merge")
    recipe, says = recipe_and_fields(experts[0])
    if both := [name for name in given if name not in BESIDE and name in says]:
        flag = both[0].replace("_", "-")
        raise BadRecipe(
            f"--{flag} and the recipe {experts[0]} both say what to merge; "
            "expected one of them: write it into the recipe"
        )
    return validated(Recipe, {**dict(recipe), **given}, "merge")


def _described(found: Plan) -> str:
    from harness.merging.plan import short_method
    from harness.weights import size

    tasks = found.tasks or ("task unknown",) * len(found.experts)
    lines = [f"method   {short_method(found.recipe)}", f"heads    {found.recipe.heads}"]
    if found.base is not None:
        lines.append(f"base     {found.base.source}")
    lines += [f"expert   {e.source} ({t})" for e, t in zip(found.experts, tasks, strict=True)]
    if found.recipe.tune is not None and found.judge is not None:
        lines.append(f"tuned    {found.recipe.tune} on {', '.join(found.judge.splits)}")
    told = zip(found.recipe.premerge, found.measured, strict=False)
    for choice, one in told:
        lines.append(f"{choice.name:<8} {', '.join([*one.changes, f'{one.seconds:.1f} s'])}")
    entries, megabytes = size(found.state) / 1e6, found.size / 1e6
    lines.append(
        f"weights  {len(found.state)} tensors, {entries:.1f} M entries, {megabytes:.1f} MB"
    )
    return "\n".join(lines)


@app.command()
def statistics(
    expert: Annotated[str, typer.Argument(help="The expert: a folder or a Hub id.")],
    task: Annotated[str, typer.Option(help="The task whose training rows it is run on.")],
    out: Annotated[Path, typer.Option(help="The file: FILE.safetensors.")],
    merger: Annotated[
        str | None, typer.Option(help="Which merger they are for, with its options: regmean.")
    ] = None,
    need: Annotated[
        str | None, typer.Option(help="NAME[:key=value,...]: a need by itself, of any method.")
    ] = None,
    preset: PresetOption = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, ...")] = "auto",
    allow_pickle: Annotated[
        bool, typer.Option("--allow-pickle", help="Read pickles, as weights only.")
    ] = False,
    data_dir: DataDir = None,
    plugins: Plugins = None,
) -> None:
    """Write what a method asks of an expert's data, to hand over instead of the data."""
    from harness.passes.statistics import statistic

    with _bars() as advance:
        found = statistic(
            expert,
            task=task,
            out=out,
            merger=merger,
            need=need,
            preset=preset,
            data_dir=data_dir,
            device=device,
            allow_pickle=allow_pickle,
            progress=advance,
        )
    shown = ", ".join(f"{name}={value}" for name, value in found.options.items())
    print(f"{found.need} of {expert} on {found.task}: {shown}")
    print(f"wrote {out}: {len(found.tensors)} weights, {out.stat().st_size / 1e6:.1f} MB")


@app.command()
def check(
    stage: Annotated[Literal["merger", "premerge", "postmerge"], typer.Argument()],
    name: Annotated[str, typer.Argument(help="NAME or module:function[:key=value,...]")],
    baselines: Annotated[
        Path, typer.Option(help="Where the recorded scores of mergers are.")
    ] = Path("tests/baselines"),
    record: Annotated[
        bool, typer.Option("--record", help="Write the merger's scores there as its baseline.")
    ] = False,
    plugins: Plugins = None,
) -> int:
    """Hold a method to its laws and, a merger, to its recorded quality; exit 1 if one fails."""
    from harness.checking.battery import battery, ok
    from harness.options import parse_choice

    if record and stage != "merger":
        raise BadOption(f"--record is for mergers: a {stage} method has no baseline of its own")
    choice = parse_choice(name)
    laws = battery(stage, choice)
    findings = []
    for law in laws.laws:
        findings.append(laws.find(law))
        print(findings[-1], flush=True)
    if stage != "merger" or not ok(findings):
        return 0 if ok(findings) else 1
    from harness.checking.quality import quality

    with _bars() as advance:
        report = quality(choice, baselines=baselines, record=record, progress=advance)
    print(f"\n{report}")
    return 0 if report.ok else 1


@app.command()
def evaluate(
    model: Annotated[str, typer.Option(help="A folder that merge wrote, or any HF classifier.")],
    experts: Annotated[
        str | None, typer.Option(help="E1,E2,...: the experts, where the folder does not say.")
    ] = None,
    base: Annotated[
        str | None, typer.Option(help="The base, where the folder does not say.")
    ] = None,
    references: Annotated[
        str | None, typer.Option(help="R1,R2,...: other models to read on the same tasks.")
    ] = None,
    best_single: Annotated[
        bool, typer.Option("--best-single", help="Also choose one of several experts on heldout10.")
    ] = False,
    singles: Annotated[
        bool, typer.Option("--singles", help="Also read each expert on tasks with its labels.")
    ] = False,
    tasks: Annotated[str | None, typer.Option(help="T1,T2@split,...")] = None,
    protocols: Annotated[
        str | None, typer.Option(help="P1,P2:key=value,...; default: every protocol.")
    ] = None,
    shots: Annotated[
        str, typer.Option(help="Rows per class that a protocol adapts on.")
    ] = "1,5,10",
    metrics: Annotated[
        str | None, typer.Option(help="M1,M2,...: instead of those of the tasks.")
    ] = None,
    preset: PresetOption = None,
    draws: Annotated[int, typer.Option(help="Draws of those rows.")] = 5,
    seed: Annotated[int, typer.Option(help="The first draw's seed.")] = 0,
    labels: Annotated[
        Literal["by-name", "by-index"], typer.Option(help="by-index: trust the order of LABEL_n.")
    ] = "by-name",
    limit: Annotated[int | None, typer.Option(help="Score the first N rows only.")] = None,
    max_length: Annotated[int | None, typer.Option(help="Tokens. Default: the task's.")] = None,
    batch_size: Annotated[int, typer.Option(help="Rows per forward pass.")] = 32,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, ...")] = "auto",
    output_path: Annotated[Path, typer.Option(help="Where records are written.")] = Path("records"),
    allow_pickle: Annotated[
        bool, typer.Option("--allow-pickle", help="Read pickles, as weights only.")
    ] = False,
    data_dir: DataDir = None,
    as_json: Json = False,
    plugins: Plugins = None,
) -> None:
    """Evaluate a model and its references under the protocols; print the table and a verdict."""
    from harness.evaluation.evaluate import evaluate as run
    from harness.evaluation.run import Run
    from harness.values import validated

    values = {
        "model": model,
        "experts": _split(experts),
        "base": base,
        "references": _split(references),
        "best_single": best_single,
        "singles": singles,
        "tasks": _split(tasks),
        "protocols": _methods(protocols),
        "metrics": _split(metrics),
        "preset": preset,
        "shots": _numbers("--shots", shots),
        "draws": draws,
        "seed": seed,
        "labels": labels,
        "limit": limit,
        "max_length": max_length,
        "data_dir": str(data_dir) if data_dir else None,
        "output": str(output_path),
        "batch_size": batch_size,
        "device": device,
        "allow_pickle": allow_pickle,
    }
    asked = validated(Run, values, "evaluate")
    with _bars() as advance:
        try:
            records, failed = run(asked, progress=advance), None
        except CellsFailed as error:
            records, failed = list(error.records), error
    if as_json:
        print(json.dumps([record.model_dump(mode="json") for record in records], sort_keys=True))
    elif records:
        _print_evaluation(records, output_path)
    if failed is not None:
        raise failed


def _numbers(flag: str, text: str) -> tuple[int, ...]:
    if not all(part.isdigit() for part in _split(text)):
        raise BadOption(f"{flag} is '{text}', expected whole numbers separated by commas")
    return tuple(int(part) for part in _split(text))


def _width() -> int | None:
    """Columns of the terminal; None where stdout is a file or a pipe."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _print_evaluation(records: Sequence[Record], out: Path) -> None:
    from harness.reporting.grid import MAX
    from harness.reporting.table import evaluation_table
    from harness.reporting.verdict import verdicts

    table = evaluation_table(records, _width())
    print(table)
    print(f"\nValues x100, ± standard deviation over draws. {len(records)} records in {out}/.")
    if MAX in table:
        print(f"'{MAX}' is the best on these very rows: an oracle.")
    for one in verdicts(records):
        print(f"Verdict: {plain(one)}")


@app.command()
def inspect(
    models: Annotated[list[str], typer.Argument(help="Folders or Hub ids, two or more.")],
    base: Annotated[
        str | None, typer.Option(help="The checkpoint they were tuned from: task vectors, too.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The folder for inspect.json and heat maps.")
    ] = None,
    force: Force = False,
    allow_pickle: Annotated[
        bool, typer.Option("--allow-pickle", help="Read pickles, as weights only.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Compare models by layer and role: distances, task vectors, feed-forward units."""
    from harness.inspecting.inspect import inspect as run
    from harness.inspecting.inspection import as_record
    from harness.inspecting.table import report

    with _bars() as advance:
        found = run(
            models,
            base=base,
            out=out,
            force=force,
            allow_pickle=allow_pickle,
            progress=advance,
        )
    if as_json:
        print(json.dumps(as_record(found), sort_keys=True))
        return
    print(report(found, _width()))
    if out is not None:
        print(f"\nwrote {out}: inspect.json, and heat maps as PNG and SVG")


@app.command()
def leaderboard(
    records: Annotated[list[Path], typer.Argument(help="Record files, or folders of them.")],
    out: Annotated[Path, typer.Option(help="The folder for board.md and board.csv.")],
    plugins: Plugins = None,
) -> None:
    """Render the board of records: methods x tasks for every protocol, as Markdown and CSV."""
    from harness.reporting.boards import leaderboard as run

    for path in run(records, out=out):
        print(f"wrote {path}")


@app.command()
def prepare(
    tasks: Annotated[str, typer.Option(help="T1,T2,...")],
    data_dir: Annotated[Path, typer.Option(help="Where the data goes.")],
    plugins: Plugins = None,
) -> None:
    """Fetch data sets from the Hub into a local folder, for use with no network."""
    from harness.data.prepare import prepare as run

    for path in run(_split(tasks), data_dir):
        print(path)


@app.command("list")
def list_(
    what: Annotated[
        Literal["mergers", "premerge", "postmerge", "needs", "tasks", "protocols", "metrics"],
        typer.Argument(),
    ],
    as_json: Json = False,
    plugins: Plugins = None,
) -> None:
    """List what is registered: name, what it is, source, options with defaults and ranges."""
    from harness.catalogue import catalogue, rendered

    found = catalogue(what)
    print(json.dumps(found, indent=1) if as_json else rendered(found, _width()))


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Where everything is written.")] = Path("demo"),
) -> None:
    """Make a small base and experts, merge them three ways, evaluate, show table and board."""
    from harness.demo import demo as run

    run(out, _width())
