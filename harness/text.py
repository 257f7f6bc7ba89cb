"""Text for display: names chosen by others (of models, say) made harmless, numbers, tables."""

from __future__ import annotations

import difflib
import re
import textwrap
import unicodedata
from collections.abc import Collection, Sequence
from decimal import ROUND_HALF_UP, Context, Decimal, localcontext
from itertools import islice

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""First characters of a cell that a spreadsheet takes for a formula."""


def plain(text: object) -> str:
    """The text in one line, with control characters escaped, which a terminal would obey."""
    text = str(text)
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(_shown, text))


def breaks(name: str) -> list[str]:
    """The parts of a model's name, after each of which a line may end."""
    return re.split(r"(?<=[_,:\[+])", plain(name))


def _shown(sign: str) -> str:
    # C: control and format characters (bidirectional ones too), surrogates; Zl, Zp: line separators
    kind = unicodedata.category(sign)
    hidden = kind.startswith("C") or kind in ("Zl", "Zp")
    return sign.encode("unicode_escape").decode("ascii") if hidden else sign


def wrapped(text: str, columns: int | None, *, indent: str = "", further: str = "") -> str:
    """The text wrapped between words to lines of so many columns; None: one line.

    `indent` begins the first line and `further` the others.
    """
    if columns is None:
        return indent + text
    return textwrap.fill(
        text,
        columns,
        initial_indent=indent,
        subsequent_indent=further,
        break_long_words=False,
        break_on_hyphens=False,
    )


def aligned(
    rows: Sequence[Sequence[str]], heads: Sequence[str], form: str = "simple", texts: int = 1
) -> str:
    """A table of texts in tabulate's format `form`: the first `texts` columns are aligned to the
    left, the others to the right."""
    from tabulate import tabulate

    sides = ["left"] * texts + ["right"] * (len(heads) - texts)
    return tabulate(rows, heads, tablefmt=form, disable_numparse=True, colalign=sides)


MAX_NAMES, MAX_NAME_LENGTH = 10, 60
"""The most names shown of a list, and characters of each: a name may be a text from the data."""


def few(names: Collection[str]) -> str:
    """The names or, of more than eleven, the first ten and the number of others."""
    rest = len(names) - MAX_NAMES
    shown = islice(names, MAX_NAMES) if rest > 1 else names
    listed = ", ".join(shortened(name, MAX_NAME_LENGTH) for name in shown)
    return f"{listed} and {rest} others" if rest > 1 else listed


def counted(count: int | str, thing: str) -> str:
    """`1 row`, `5 rows`, `all rows`."""
    return f"{count} {thing}{'' if count == 1 else 's'}"


def is_whole_number(text: str) -> bool:
    """Whether a text is a whole number of at most 18 digits; Python refuses thousands of them."""
    return re.fullmatch("[0-9]{1,18}", text) is not None


def last_part(source: str) -> str:
    """The last part of a path or Hub id: the name of a folder, or of a model on the Hub."""
    return source.rstrip("/").rpartition("/")[2]


def hint(name: str, known: Collection[str], first: str = "") -> str:
    """A hint for an unknown name: the nearest known name or, if none is near, `first` and known
    names (of more than ten, the nearest first)."""
    if near := difflib.get_close_matches(name, known, n=1):
        return f"did you mean '{near[0]}'?"
    if len(known) > MAX_NAMES:
        known = difflib.get_close_matches(name, known, n=len(known), cutoff=0)
    return f"{first}known: {few(known) or 'none'}"


def first_line(error: BaseException) -> str:
    """The first line of a library's error message; its type if the message is empty."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def shortened(text: str, room: int) -> str:
    """The text, without its middle if it is longer than `room`: names may differ at either end.

    By hand: 'sentiment/reviews-of-books' in 15 is 'sentim...-books'.
    """
    if len(text) <= room:
        return text
    ends = max(room - len(GAP), 2)
    return f"{text[: (ends + 1) // 2]}{GAP}{text[-(ends // 2) :]}"


GAP = "..."


_BY_HAND = Context(rounding=ROUND_HALF_UP)


def number(value: float, form: str = ".3g") -> str:
    """The number in a format; a number that rounds to zero has no sign.

    With fixed decimals, halves are rounded away from zero, as by hand, after rounding to six
    decimals against floating-point noise: with one decimal, a mean of 51.949999999999996 is 52.0.
    """
    if not form.endswith("f"):
        return _unsigned_zero(f"{value:{form}}")
    with localcontext(_BY_HAND):
        return _unsigned_zero(f"{Decimal(f'{value:.6f}'):{form}}")


def _unsigned_zero(text: str) -> str:
    return text.lstrip("+-") if float(text) == 0 else text


def points(value: float, sign: str = "") -> str:
    """Points with one decimal, as everywhere; `sign` is "+" for a difference."""
    return number(value, f"{sign}.1f")


_MARKDOWN = re.compile(r"[\\|*`~]|(?<!\w)_|_(?!\w)|:(?=//)|(?<=www)\.")


def markdown(text: object) -> str:
    """The text escaped for a cell of a Markdown table: no column, link, emphasis or HTML."""
    shown = _MARKDOWN.sub(lambda mark: f"\\{mark[0]}", plain(text)).replace("](", "]\\(")
    return shown.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


_TEX = {sign: f"\\{sign}" for sign in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    "[": "{[}",  # after the end of a row, it would open an argument
    "]": "{]}",
    "*": "{*}",  # there, an argument too
}
_LIGATURES = ("--", "''", "``", ",,", "?`", "!`")
"""Pairs of characters that TeX would draw as a single other one."""


def tex(text: object) -> str:
    """The text escaped for LaTeX: no command, column, comment or argument."""
    shown = plain(text)
    return "".join(
        _TEX.get(sign, sign) + ("{}" if sign + after in _LIGATURES else "")
        for sign, after in zip(shown, f"{shown[1:]} ", strict=False)
    )


def csv_cell(text: object) -> str:
    """The text as a cell of a CSV file, which no spreadsheet takes for a formula."""
    shown = plain(text)
    return f"'{shown}" if shown.startswith(_FORMULA) else shown
