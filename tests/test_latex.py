"""The LaTeX of boards: read by a parser that knows only what a table needs, and set by a TeX."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pylatexenc import latexwalker as latex
from pylatexenc.macrospec import EnvironmentSpec, LatexContextDb, MacroSpec, SpecialsSpec

from harness import Record
from harness.reporting.boards.board import board_of
from harness.reporting.boards.latex import COMMANDS as DEFINED
from harness.reporting.boards.latex import rendered
from harness.reporting.lines import lines_of
from harness.text import tex
from tests.test_board_formats import HOSTILE, full, hostile, merges, pairs, texts
from tests.test_boards import BOARDS, MRPC, RTE, committed, one_task, record, texts_of, two_tasks

RULES = ("toprule", "midrule", "bottomrule")
#: every command that a table needs, of LaTeX, booktabs and the board, with its arguments
COMMANDS = {**dict.fromkeys(RULES, "["), "\\": "*[", "multicolumn": "{{{"}
COMMANDS |= dict.fromkeys(("centering", "scriptsize", "pm", *"&%$#_{}"), "")
COMMANDS |= dict.fromkeys(("caption", "boardfit", "boardnote", "textbf"), "{")
SIGNS = ("backslash", "asciitilde", "asciicircum", "less", "greater", "bar")
COMMANDS |= {f"text{name}": "{" for name in SIGNS}
KNOWN = LatexContextDb()
KNOWN.add_context_category(
    "board",
    macros=[MacroSpec(name, arguments) for name, arguments in COMMANDS.items()],
    environments=[EnvironmentSpec("table"), EnvironmentSpec("tabular", "{")],
    specials=[SpecialsSpec(sign) for sign in "&#~_^"],
)


def nodes(found: Iterable[Any], *inside: str) -> Iterator[tuple[Any, tuple[str, ...]]]:
    """Each part of a text, with the names of what it stands in."""
    kinds = {latex.LatexGroupNode: "{", latex.LatexMathNode: "$"}
    for node in found:
        yield node, inside
        parts = [*(getattr(node, "nodelist", None) or ())]
        if isinstance(node, latex.LatexMacroNode):
            parts = [part for part in node.nodeargd.argnlist if part is not None]
        yield from nodes(parts, *inside, name_of(node) or kinds.get(type(node), ""))


def name_of(node: Any) -> str:
    """Of a command or an environment."""
    return str(getattr(node, "macroname", "") or getattr(node, "environmentname", ""))


def read(text: str) -> int:
    """How many tables there are; AssertionError where TeX would stop, or read what is not meant."""
    lines = [line for line in text.splitlines() if not line.startswith("%")]
    body = "\n".join(line for line in lines if line not in DEFINED)
    walker = latex.LatexWalker(body, latex_context=KNOWN, tolerant_parsing=False)
    try:
        parsed = [*nodes(walker.get_latex_nodes()[0])]
    except latex.LatexWalkerParseError as error:
        raise AssertionError(str(error)) from error
    for node, inside in parsed:
        assert fits(node, inside), node.latex_verbatim()
    return sum(name_of(node) == "table" for node, _ in parsed)


def fits(node: Any, inside: tuple[str, ...]) -> bool:
    """Whether a part of a text may stand there."""
    name, in_row = name_of(node), inside[-1:] == ("tabular",)
    if isinstance(node, latex.LatexEnvironmentNode):
        return (name, inside) == ("table", ()) or (
            (name, inside) == ("tabular", ("table", "boardfit", "{")) and rows_are_whole(node)
        )
    if isinstance(node, latex.LatexMacroNode):
        of_rows = name in RULES or name == "\\"
        return name in COMMANDS and (not of_rows or (in_row and not any(node.nodeargd.argnlist)))
    if isinstance(node, latex.LatexSpecialsNode):
        return {"&": in_row, "_": "$" in inside, "^": "$" in inside}.get(node.specials_chars, False)
    if isinstance(node, latex.LatexCharsNode):
        return not node.chars.strip() or bool({"tabular", "caption", "boardnote"} & {*inside})
    return not isinstance(node, latex.LatexCommentNode)


def rows_are_whole(tabular: Any) -> bool:
    """Whether every row has as many cells as there are columns, and an end."""
    columns = len(tabular.nodeargd.argnlist[0].nodelist[0].chars)
    cells, begun = 1, False
    for node in tabular.nodelist:
        name = name_of(node)
        if name == "\\" or name in RULES:
            if begun != (name == "\\") or (begun and cells != columns):
                return False
            cells, begun = 1, False
        else:
            begun |= bool(node.latex_verbatim().strip())
            cells += getattr(node, "specials_chars", "") == "&"
            if name == "multicolumn":
                cells += int(node.nodeargd.argnlist[0].nodelist[0].chars) - 1
    return not begun


def in_and_out() -> list[Record]:
    """Tasks in and out of the domain of an expert, under two protocols."""
    return [
        *merges(0.6, 0.7),
        *merges(0.2, 0.4, task=MRPC),
        record("merged", "a", RTE, "knn", {5: [0.5, 0.6]}, method="a"),
        record("expert", "e", RTE, "current", 0.9),
        record("single", "e", MRPC, "current", 0.3),
    ]


def odd_names() -> list[Record]:
    """Names that mean something to TeX at the start of a row, of a cell and of a caption."""
    odd = (
        "*star",
        "[3pt]",
        "&",
        "%",
        r"\end{tabular}",
        "}{",
        "$x_1$",
        "~^#",
        "a\nb",
        "--",
        "\\\\*",
    )
    return [
        record("merged", name, f"{name}/{name}@x", "current", 0.5, method=f"{name}[{name}]")
        for name in (*odd, HOSTILE)
    ]


RECORDS = [full, pairs, two_tasks, one_task, in_and_out, hostile, odd_names]


@pytest.mark.parametrize("records", RECORDS)
def test_latex_is_what_tex_can_read(records: Callable[[], list[Record]]) -> None:
    assert read(texts(records())["board.tex"])


@pytest.mark.parametrize("name", ["protocols", "shots", "emotions-out"])
def test_the_latex_of_a_committed_board_is_what_tex_can_read(name: str) -> None:
    assert read(rendered(committed(name)))


PAPER = r"""\documentclass{article}
\usepackage{booktabs,graphicx}
\usepackage[T1]{fontenc}
\begin{document}
%s
\end{document}
"""
needs_tex = pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no pdflatex is installed")


def typeset(folder: Path, *boards: str) -> None:
    """The boards as a PDF; AssertionError where TeX stops, or has no sign for what is meant."""
    (folder / "paper.tex").write_text(PAPER % "\n\\clearpage\n".join(boards), encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    done = subprocess.run(command, cwd=folder, capture_output=True, check=False)
    log = (folder / "paper.log").read_text(encoding="utf-8", errors="replace")
    assert done.returncode == 0, log[-2000:]
    assert "Missing character" not in log
    assert "Overfull" not in log


@pytest.mark.tex
@needs_tex
@pytest.mark.parametrize("records", RECORDS)
def test_tex_sets_a_board(records: Callable[[], list[Record]], tmp_path: Path) -> None:
    typeset(tmp_path, texts(records())["board.tex"])


@pytest.mark.tex
@needs_tex
def test_tex_sets_all_committed_boards(tmp_path: Path) -> None:
    typeset(tmp_path, *(rendered(committed(name)) for name in BOARDS))


@pytest.mark.tex
@needs_tex
@pytest.mark.parametrize("wrong", ["c_d", "c & d", "c # d", r"{c & d}", r"\input{c}", "c^d", "}"])
def test_tex_stops_at_what_is_wrong(wrong: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        typeset(tmp_path, "\n".join([*DEFINED, WHOLE.replace(r"c\_d", wrong)]))


WHOLE = r"""\begin{table}
\caption{a}
\boardfit{\begin{tabular}{lr}
\toprule
 & \multicolumn{1}{c}{b} \\
\midrule
c\_d & \textbf{1}$_{+2}$ \\
\bottomrule
\end{tabular}}
\boardnote{e}
\end{table}
"""


@pytest.mark.fault
@pytest.mark.parametrize(
    ("meant", "wrong"),
    [
        (r"c\_d", "c_d"),
        (r"c\_d", "c & d"),
        (r"c\_d", "c # d"),
        (r"c\_d", "c % d"),
        (r"c\_d", "c ~ d"),
        (r"c\_d", "c^d"),
        (r"c\_d", "[c]"),
        (r"c\_d", "*c"),
        (r"c\_d", r"{c & d}"),
        (r"c\_d", r"\input{c}"),
        (r"{1}$", r"{1$"),
        (r"$_{+2}$", r"$_{+2}"),
        (r"c\_d & ", "c d "),
        ("{1}{c}", "{2}{c}"),
        ("{lr}", "{lrr}"),
        (r"2}$ \\", "2}$"),
        (r"\end{tabular}", ""),
        (r"\end{tabular}}", r"\end{tabular}"),
        (r"\boardfit{", "{"),
        (r"\boardnote{e}", "e"),
        (r"\end{table}", r"\end{tabular}"),
        (r"\caption{a}", "a"),
    ],
)
def test_a_reader_that_lets_everything_pass_proves_nothing(meant: str, wrong: str) -> None:
    two_rows = WHOLE.replace(r"\midrule", r"\midrule e & 1 \\")
    read(two_rows)
    assert meant in two_rows
    with pytest.raises(AssertionError):
        read(two_rows.replace(meant, wrong))


def test_every_sign_of_ascii_is_text() -> None:
    for sign in map(chr, range(32, 127)):
        read(WHOLE.replace(r"c\_d", tex(f"{sign}c{sign}")))


def test_no_two_signs_are_drawn_as_one() -> None:
    assert tex("a--b---c") == "a-{}-b-{}-{}-c"
    assert tex("``a'' !`?`,,") == "`{}`a'{}' !{}`?{}`,{},"
    assert tex("a-b, c's") == "a-b, c's"


def test_a_board_has_each_layout_of_the_papers() -> None:
    """Each of two protocols by itself, methods by protocols, and the domains of each."""
    lines = [*lines_of(("0.json", one) for one in in_and_out())]
    assert read(texts_of(board_of(lines))["board.tex"]) == 2 + 1 + 2
