"""Text that somebody else chose, as names of models are, made harmless where it is shown."""

from __future__ import annotations

import unicodedata

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def plain(text: object) -> str:
    """The text in one line without control characters, which a terminal would obey."""
    return "".join(sign if _printable(sign) else _escaped(sign) for sign in str(text))


def _printable(sign: str) -> bool:
    # C: control and format characters (bidirectional ones too), surrogates; Zl, Zp: line separators
    kind = unicodedata.category(sign)
    return not (kind.startswith("C") or kind in ("Zl", "Zp"))


def _escaped(sign: str) -> str:
    return sign.encode("unicode_escape").decode("ascii")


def number(value: float, form: str = ".3g") -> str:
    """The number as it is shown; what is rounded to zero has no sign."""
    text = f"{value:{form}}"
    return text.removeprefix("-") if float(text) == 0 else text


def markdown(text: object) -> str:
    """The text as a cell of a Markdown table: no column, link or HTML of its own."""
    shown = plain(text).replace("|", "\\|").replace("](", "]\\(")
    return shown.replace("<", "&lt;").replace(">", "&gt;")


def csv_cell(text: object) -> str:
    """The text as a cell of a spreadsheet, which takes none for a formula."""
    shown = plain(text)
    return f"'{shown}" if shown.startswith(_FORMULA) else shown
