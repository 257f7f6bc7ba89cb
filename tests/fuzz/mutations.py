"""Ways to spoil a file: of any bytes, of JSON and of YAML; and what is no file at all."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

import yaml

Spoil: TypeAlias = Callable[[bytes, Random], bytes]
"""The bytes of a valid file and a source of chance -> those of a mutant."""
Place: TypeAlias = Callable[[Path], None]
"""What puts something that is no file of bytes in the place of a file."""

HERE = "@@here@@"
"""Stands where a raw text goes that no writer of JSON or YAML would write."""

# Bytes -------------------------------------------------------------------------------------


def flip(content: bytes, random: Random) -> bytes:
    """A few bits turned over."""
    found = bytearray(content)
    for _ in range(random.choice((1, 1, 2, 8, 64)) if found else 0):
        found[random.randrange(len(found))] ^= 1 << random.randrange(8)
    return bytes(found)


def truncate(content: bytes, random: Random) -> bytes:
    return content[: random.randrange(len(content) + 1)]


def cut_out(content: bytes, random: Random) -> bytes:
    start, end = _span(content, random)
    return content[:start] + content[end:]


def repeat(content: bytes, random: Random) -> bytes:
    start, end = _span(content, random)
    return content[:end] + content[start:end] * random.choice((1, 2, 50)) + content[end:]


def put_in(content: bytes, random: Random) -> bytes:
    """Bytes that no text has, in the middle of it."""
    odd = random.choice(
        (b"\x00", b"\x00" * 64, b"\xff\xfe", b"\xed\xa0\x80", b"\xc3\x28", b"\xef\xbb\xbf", b"\r",
         b"\x1b[31m", "\u2028\u202e\u0085".encode(), b"\xf4\x90\x80\x80", b'"', b"\\", b"}" * 9)
    )  # fmt: skip
    start, _ = _span(content, random)
    start = random.choice((0, start, len(content)))
    return content[:start] + odd + content[start:]


def empty(content: bytes, random: Random) -> bytes:
    return random.choice((b"", b"\n", b" ", b"\x00", b"\xef\xbb\xbf"))


def noise(content: bytes, random: Random) -> bytes:
    return random.randbytes(random.choice((1, 7, 8, 9, 100, 5000)))


def recoded(content: bytes, random: Random) -> bytes:
    """The same text in another encoding, or with other ends of lines."""
    text = content.decode("utf-8", "replace")
    code = random.choice(("utf-16", "utf-32", "utf-8-sig", "crlf"))
    return text.replace("\n", "\r\n").encode() if code == "crlf" else text.encode(code)


def twice(content: bytes, random: Random) -> bytes:
    return content * random.choice((2, 3))


def huge(content: bytes, random: Random) -> bytes:
    """A megabyte more, of the very file or of blanks.

    More rows than that take longer than a command may, with nothing at fault.
    """
    more = random.choice((content or b" ", b" ", b"a", b"[", b"\n"))
    return content + more * (2**20 // len(more))


ANY: Sequence[Spoil] = (flip, truncate, cut_out, repeat, put_in, empty, noise, recoded, twice, huge)


def _span(content: bytes, random: Random) -> tuple[int, int]:
    start = random.randrange(len(content) + 1)
    return start, min(len(content), start + random.choice((1, 2, 8, 30, 300)))


# What is no file of bytes ------------------------------------------------------------------


def missing(path: Path) -> None:
    path.unlink()


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def dangling(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


def pipe(path: Path) -> None:
    """Whoever opens it waits for somebody who writes."""
    path.unlink()
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def sparse(path: Path) -> None:
    """A file of a terabyte that holds nothing."""
    path.unlink()
    with path.open("wb") as file:
        file.truncate(2**40)


PLACES: Sequence[Place] = (missing, folder, loop, dangling, pipe, endless, sparse)

# JSON --------------------------------------------------------------------------------------

RAW = (
    "null", "true", "false", "0", "-1", "1", "2", "45", "0.5", "-0.0", "1e308", "-1e308", "1e400",
    "NaN", "Infinity", "-Infinity", "1000000000", "9007199254740993", "2147483648", "-2147483649",
    "4294967296", "18446744073709551616", "1" + "0" * 40, "1" + "0" * 5000, '""', '" "', '"0"',
    '"1"', '"x"', '"\\ud800"', '"\\udfff\\ud800"', '"\\u0000"', '"a\\u0000b"', '"a\\nb"', '"/"',
    '".."', '"../../../etc/passwd"', '"/dev/zero"', '"~"', '"\\u202e"', '"é"', '"None"', '"nan"',
    '"1e308"', '"' + "x" * 5000 + '"', "[]", "{}", "[[]]", "[null]", '["x"]', "[0]", "[1, 2, 3]",
    '{"x": 1}', '{"": {}}', '{"0": "x"}', '[{"x": [1]}]', "[" * 60 + "]" * 60,
    "[" * 70 + "]" * 70, "[" * 990 + "]" * 990, "[" * 200_000, "[" * 100_000 + "]" * 100_000,
    '{"x":' * 300 + "1" + "}" * 300, "[" + "0," * 20_000 + "0]",
    "{" + ", ".join(f'"k{i}": {i}' for i in range(5000)) + "}",
)  # fmt: skip
"""Values that a file may say in place of any other."""


def json_value(content: bytes, random: Random) -> bytes:
    """Another value at some place."""
    return _changed(content, random, _replace)


def json_shape(content: bytes, random: Random) -> bytes:
    """A key or an entry less, more, twice, called otherwise, or in another's place."""
    return _changed(content, random, random.choice((_drop, _add, _rename, _double, _swap, _wrap)))


JSON: Sequence[Spoil] = (json_value, json_value, json_value, json_shape, json_shape)


def _changed(content: bytes, random: Random, change: Callable[..., str | None]) -> bytes:
    tree = json.loads(content)
    raw = change(tree, random)
    text = json.dumps(tree if raw != "@whole" else HERE, indent=random.choice((None, 2)))
    if raw == "@whole":
        raw = random.choice(RAW)
    return text.replace(json.dumps(HERE), raw or "null").encode("utf-8", "surrogatepass")


def _spot(tree: Any, random: Random) -> tuple[Any, Any] | None:
    """A container and a key of it, any depth as likely as another."""
    at: tuple[Any, Any] | None = None
    while isinstance(tree, dict | list) and tree:
        key = random.choice(list(tree)) if isinstance(tree, dict) else random.randrange(len(tree))
        at, tree = (tree, key), tree[key]
        if random.random() < 0.3:
            break
    return at


def _replace(tree: Any, random: Random) -> str:
    at = _spot(tree, random)
    if at is None or random.random() < 0.01:
        return "@whole"
    at[0][at[1]] = HERE
    return random.choice(RAW)


def _drop(tree: Any, random: Random) -> None:
    if at := _spot(tree, random):
        del at[0][at[1]]


def _add(tree: Any, random: Random) -> str:
    if at := _spot(tree, random):
        if isinstance(at[0], dict):
            odd = ("", "x", "auto_map", "\ud800", "__class__", "0", "name", "model", "type", "..")
            at[0][random.choice(odd)] = HERE
        else:
            at[0].insert(at[1], HERE)
    return random.choice(RAW)


def _rename(tree: Any, random: Random) -> None:
    at = _spot(tree, random)
    if at and isinstance(at[0], dict):
        key = random.choice((at[1].upper(), at[1] + " ", "", "\ud800", "\x00", "x" * 3000, "-1"))
        at[0][key] = at[0].pop(at[1])


def _double(tree: Any, random: Random) -> str:
    """The same key twice: readers differ in which they take."""
    at = _spot(tree, random)
    if at is None or not isinstance(at[0], dict):
        return "null"
    first = json.dumps(at[0][at[1]])
    at[0][at[1]] = HERE
    return f"{first}, {json.dumps(at[1])}: {random.choice(RAW)}"


def _swap(tree: Any, random: Random) -> None:
    one, other = _spot(tree, random), _spot(tree, random)
    if one and other:
        value = json.loads(json.dumps(one[0][one[1]]))
        one[0][one[1]] = json.loads(json.dumps(other[0][other[1]]))
        other[0][other[1]] = value


def _wrap(tree: Any, random: Random) -> None:
    """A value inside of a list or an object, as whoever mistakes the format writes it."""
    if at := _spot(tree, random):
        value = at[0][at[1]]
        at[0][at[1]] = random.choice(([value], {"value": value}, [[value]], str(value)))


# YAML --------------------------------------------------------------------------------------

RAW_YAML = (
    "!!python/object/apply:os.system ['true']", "!!python/name:os.system", "!!python/tuple [a, b]",
    "!!binary aGVsbG8=", "!!binary '*'", "!!set {a, b}", "!!omap [a: 1]", "!!pairs [a: 1]",
    "!!omap x", "!!set [a]", "!!pairs {a: 1}", "!!timestamp 2001-01-01", "!!timestamp x", "!!int x",
    "!!int ''", "!!int [1]", "!!float x", "!!float ''", "!!bool maybe", "!!null x", "!!str [1]",
    "!!map [1]", "!!seq {a: 1}", "!!merge x", "!!value x", "!!str", "!!int", "!!float", "!!foo x",
    "!foo {a: 1}", "! x", "!<tag:x> y", "!<", "2001-01-01", "2001-13-45", "2001-01-01T99:99:99Z",
    "0b", "0x", "0o17", "1_000", "_", "190:20:30", "190:20:30.5", ".inf", "-.inf", ".nan", "1e3",
    "1e500", "~", "=", "<<", "yes", "off", "*nowhere", "&x [*x]", "&x {x: *x}", "&x {*x : 1}",
    "&x [&y [*x, *y]]", "{<<: 1}", "{<<: [1]}", "{<<: *x}", "&m {<<: *m}", "{<<: &n {<<: *n}}",
    "{? [a] : b}", "{? {a: 1} : b}", "{[a, b]: c}", "{null: x}", "{1: x}", "{1.5: x, true: y}",
    "{2001-01-01: x}", "{a: 1, a: 2}", "|\n  block", ">-\n  folded", "'\\0'", '"\\x00"',
    '"\\ud800"', '"\\uD83D"', '"\\U0011FFFF"', "`x", "@x", "%x", "\tx", "a: b: c", "- - - x",
    "? ? x", "[", "{", "]", "[" * 40 + "]" * 40, "[" * 300 + "]" * 300, "[" * 5000 + "]" * 5000,
    "{a: " * 200 + "1" + "}" * 200, "- " * 2000 + "x", "[" + "0, " * 30_000 + "0]",
    "[&a [x,x,x,x,x,x,x,x,x], &b [*a,*a,*a,*a,*a,*a,*a,*a,*a], &c [*b,*b,*b,*b,*b,*b,*b,*b,*b], "
    "&d [*c,*c,*c,*c,*c,*c,*c,*c,*c], &e [*d,*d,*d,*d,*d,*d,*d,*d,*d], "
    "&f [*e,*e,*e,*e,*e,*e,*e,*e,*e], &g [*f,*f,*f,*f,*f,*f,*f,*f,*f]]",
    "1" + "0" * 5000, "0x" + "f" * 8000, "9" * 30 + ":59", "x" * 2000, "[&x , *x ]",
    "\x07", "\x85", "\ufeff", "\u2028", "...", "---", "# only a comment",
)  # fmt: skip


def yaml_value(content: bytes, random: Random) -> bytes:
    """Another value at some place, of what JSON or only YAML can say."""
    return _changed_yaml(content, random, _replace)


def yaml_shape(content: bytes, random: Random) -> bytes:
    return _changed_yaml(content, random, random.choice((_drop, _add, _rename, _swap, _wrap)))


def yaml_text(content: bytes, random: Random) -> bytes:
    """Something before, after or in the middle of the lines."""
    lines = content.decode().splitlines()
    odd = random.choice(
        (*RAW_YAML, "%YAML 9.9", "%TAG ! tag:x,2000:", "--- !!map", "---\na: 1", "? x\n: y",
         "  - x", "\t- x", "a: &x 1\nb: *x", "<<: {experts: [a]}", "experts: *e", "- x", "x",
         ":", "? :")
    )  # fmt: skip
    lines.insert(random.randrange(len(lines) + 1), odd)
    return ("\n".join(lines) + "\n").encode("utf-8", "surrogatepass")


YAML: Sequence[Spoil] = (yaml_value, yaml_value, yaml_shape, yaml_text)


def _changed_yaml(content: bytes, random: Random, change: Callable[..., str | None]) -> bytes:
    tree = yaml.safe_load(content)
    raw = change(tree, random)
    whole = raw == "@whole"
    if raw is not None:
        raw = random.choice((*RAW_YAML, *RAW_YAML, *RAW))
    flow = random.choice((None, False, True))
    text = yaml.safe_dump(HERE if whole else tree, default_flow_style=flow, sort_keys=False)
    return text.replace(f"'{HERE}'", raw or "~").encode("utf-8", "surrogatepass")
