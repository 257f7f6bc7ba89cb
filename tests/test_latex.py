"""The LaTeX of boards is read by a strict reader of one's own, and typeset where there is a TeX."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import Record
from harness.reporting.boards.board import board_of
from harness.reporting.boards.latex import COMMANDS as DEFINED
from harness.reporting.boards.leaderboard import rendered
from harness.reporting.lines import lines_of
from harness.text import tex
from tests.test_board_formats import HOSTILE, full, hostile, merges, pairs, texts
from tests.test_boards import LEADERBOARDS, MRPC, RTE, one_task, record, two_tasks

#: of LaTeX itself and of booktabs, no others
RULES = {r"\toprule", r"\midrule", r"\bottomrule"}
COMMANDS = RULES | {r"\centering", r"\caption", r"\textbf", r"\scriptsize", r"\pm", r"\boardnote"}
COMMANDS |= {rf"\text{name}" for name in ("backslash", "asciitilde", "asciicircum")}
COMMANDS |= {r"\textless", r"\textgreater", r"\textbar"}
TOKEN = re.compile(
    r"(?P<environment>\\(?P<end>begin|end)\{(?P<name>\w+)\}(\{(?P<columns>[lr]+)\})?)"
    r"|(?P<fit>\\boardfit\{(?=\\begin\{tabular\}))"
    r"|(?P<span>\\multicolumn\{(?P<width>\d+)\}\{c\})"
    r"|(?P<row>\\\\)|(?P<command>\\[A-Za-z]+)|(?P<escaped>\\.)|(?P<special>[{}$&#~^_%])"
    r"|(?P<text>[^\\{}$&#~^_%]+)"
)


class Reader:
    """Reads a text from its first sign to its last, and raises AssertionError where TeX would stop,
    or read what is not meant."""

    def __init__(self, text: str) -> None:
        self.open: list[str] = []
        self.columns = self.cells = 0
        self.begun = False
        self.tables = 0
        lines = [line for line in text.splitlines() if not line.startswith("%")]
        body = "\n".join(line for line in lines if line not in DEFINED)
        at = 0
        while at < len(body):
            found = TOKEN.match(body, at)
            assert found, body[at : at + 20]
            at = found.end()
            getattr(self, str(found.lastgroup and self.kind(found)))(found, body[at:].lstrip())
        assert not self.open

    @staticmethod
    def kind(found: re.Match[str]) -> str:
        kinds = ("environment", "fit", "span", "row", "command", "escaped", "special", "text")
        return next(name for name in kinds if found[name] is not None)

    @property
    def inside(self) -> str:
        return self.open[-1] if self.open else ""

    def environment(self, found: re.Match[str], _: str) -> None:
        name = found["name"]
        if found["end"] == "begin":
            assert (self.inside, name) in {("", "table"), ("fit", "tabular")}
            assert (name == "tabular") == bool(found["columns"])
            self.open.append(name)
            self.columns, self.cells, self.begun = len(found["columns"] or ""), 1, False
            self.tables += name == "table"
        else:
            assert self.inside == name
            assert not self.begun, "a row has no end"
            self.open.pop()

    def fit(self, _: re.Match[str], __: str) -> None:
        assert self.inside == "table"
        self.open.append("fit")

    def span(self, found: re.Match[str], rest: str) -> None:
        assert self.inside == "tabular"
        assert rest.startswith("{")
        self.cells += int(found["width"]) - 1
        self.begun = True

    def row(self, _: re.Match[str], rest: str) -> None:
        assert self.inside == "tabular"
        assert self.cells == self.columns, f"{self.cells} cells in {self.columns} columns"
        assert not rest.startswith(("[", "*")), "an argument of the end of a row"
        self.cells, self.begun = 1, False

    def command(self, found: re.Match[str], rest: str) -> None:
        command = found[0]
        assert command in COMMANDS, command
        if command in RULES:
            assert self.inside == "tabular"
            assert not self.begun
            assert not rest.startswith("[")
        elif command in (r"\centering", r"\caption", r"\boardnote"):
            assert self.inside == "table"
        elif command == r"\pm":
            assert self.inside == "$"
        else:
            self.words("x")
            assert command == r"\scriptsize" or rest.startswith("{")

    def escaped(self, found: re.Match[str], _: str) -> None:
        assert found[0][1] in "&%$#_{}", found[0]
        self.words("x")

    def special(self, found: re.Match[str], _: str) -> None:
        sign = found[0]
        assert sign not in "#~%", sign
        if sign == "&":
            assert self.inside == "tabular", "a column inside of a group"
            self.cells, self.begun = self.cells + 1, True
        elif sign in "_^":
            assert "$" in self.open, sign
        elif sign == "{" or (sign == "$" and self.inside != "$"):
            self.begun |= self.inside == "tabular"
            self.open.append(sign)
        else:
            assert self.inside in (("{", "fit") if sign == "}" else "$")
            self.open.pop()

    def text(self, found: re.Match[str], _: str) -> None:
        self.words(found[0])

    def words(self, text: str) -> None:
        """Text stands in a cell or in a caption."""
        if text.strip():
            assert "[" not in text or self.inside != "tabular"
            assert self.inside in ("tabular", "{", "$"), text
            self.begun |= self.inside == "tabular"


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


@pytest.mark.parametrize(
    "records", [full, pairs, two_tasks, one_task, in_and_out, hostile, odd_names]
)
def test_latex_is_what_tex_can_read(records: Callable[[], list[Record]]) -> None:
    assert Reader(texts(records())["board.tex"]).tables


@pytest.mark.parametrize(
    "path", sorted(LEADERBOARDS.glob("*/board.tex")), ids=lambda p: p.parent.name
)
def test_committed_latex_is_what_tex_can_read(path: Path) -> None:
    assert Reader(path.read_text(encoding="utf-8")).tables


PAPER = r"""\documentclass{article}
\usepackage{booktabs,graphicx}
\usepackage[T1]{fontenc}
\begin{document}
\input{board}
\end{document}
"""


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no pdflatex is installed")
@pytest.mark.parametrize("records", [full, in_and_out, hostile, odd_names])
def test_latex_is_what_tex_reads(records: Callable[[], list[Record]], tmp_path: Path) -> None:
    (tmp_path / "board.tex").write_text(texts(records())["board.tex"], encoding="utf-8")
    (tmp_path / "paper.tex").write_text(PAPER, encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]


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
    Reader(two_rows)
    assert meant in two_rows
    with pytest.raises(AssertionError):
        Reader(two_rows.replace(meant, wrong))


def test_every_sign_of_ascii_is_text() -> None:
    for sign in map(chr, range(32, 127)):
        Reader(WHOLE.replace(r"c\_d", tex(f"{sign}c{sign}")))


def test_no_two_signs_are_drawn_as_one() -> None:
    assert tex("a--b---c") == "a-{}-b-{}-{}-c"
    assert tex("``a'' !`?`,,") == "`{}`a'{}' !{}`?{}`,{},"
    assert tex("a-b, c's") == "a-b, c's"


def test_a_board_has_each_layout_of_the_papers() -> None:
    """Each of two protocols by itself, methods by protocols, and the domains of each."""
    lines = [*lines_of(("0.json", one) for one in in_and_out())]
    assert Reader(rendered(board_of(lines), Path())["board.tex"]).tables == 2 + 1 + 2
