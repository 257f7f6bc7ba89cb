"""The jinja2 templates of boards."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from harness.text import breaks, markdown, plain, points, tex, wrapped

if TYPE_CHECKING:
    from jinja2 import Environment, Template

HERE = Path(__file__).parent
FILTERS = {one.__name__: one for one in (breaks, markdown, plain, points, tex, wrapped)}


def source(name: str) -> str:
    """The text of a file in this folder."""
    return HERE.joinpath(name).read_text(encoding="utf-8")


@cache
def template(name: str) -> Template:
    """The template of the file NAME.jinja; values are escaped in templates of HTML only."""
    return environment().get_template(f"{name}.jinja")


def environment() -> Environment:
    """The jinja2 environment of this folder, with filters for texts."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    env = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=lambda name: ".html" in str(name),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    env.filters.update(FILTERS)
    # the data of a page are a tenth smaller without spaces
    env.policies["json.dumps_kwargs"] = {"sort_keys": True, "separators": (",", ":")}
    return env
