"""The property tests of `harness check` in pytest: `pytest --merger NAME`, `--premerge NAME`,
`--postmerge NAME`.

Every run of pytest loads this file, so nothing heavy is imported before one of the flags is given.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from harness.checking.battery import Battery, Finding
    from harness.checking.properties.property import Property, StageName

FLAGS: dict[StageName, str]
FLAGS = {"merger": "merging", "premerge": "pre-merging", "postmerge": "post-merging"}


def pytest_addoption(parser: pytest.Parser) -> None:
    """One flag for each stage of a merge."""
    group = parser.getgroup("harness", "properties of merging methods")
    for stage, called in FLAGS.items():
        group.addoption(
            f"--{stage}",
            dest=f"harness_{stage}",
            action="append",
            default=[],
            metavar="NAME",
            help=f"test the properties of a {called} method: NAME or module:function, with "
            "options NAME:key=value,...; may be repeated",
        )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, items: list[pytest.Item]) -> None:
    """Add a test for every property of every method that a flag names."""
    for stage in FLAGS:
        for text in session.config.getoption(f"harness_{stage}"):
            items.extend(_tests(session, stage, text))


def _tests(session: pytest.Session, stage: StageName, text: str) -> Iterator[PropertyTest]:
    from harness.checking.battery import battery
    from harness.errors import HarnessError
    from harness.options import parse_choice

    try:
        suite = battery(stage, parse_choice(text))
    except HarnessError as error:
        raise pytest.UsageError(f"--{stage} {text}: {error}") from error
    for checked in suite.properties:
        name = f"{stage} {text}[{checked.name}]"
        # a property is in no file of the user's, so the test's id is its name
        fields: Any = {"name": name, "nodeid": name, "battery": suite, "checked": checked}
        yield PropertyTest.from_parent(session, **fields)


class PropertyTest(pytest.Item):
    """One property of one method: it fails with the line that `harness check` prints."""

    def __init__(self, *, battery: Battery, checked: Property, **known: Any) -> None:
        super().__init__(**known)
        self.battery = battery
        self.checked = checked

    def runtest(self) -> None:
        """Test the property."""
        finding: Finding = self.battery.find(self.checked)
        if not finding.ok:  # without a traceback, which would only show this file
            pytest.fail(str(finding), pytrace=False)

    def reportinfo(self) -> tuple[Any, None, str]:
        """The name alone: there is no file to point at."""
        return self.path, None, self.name
