"""What a costly stage makes is computed once, kept on disk while the merge lasts, and then gone."""

from __future__ import annotations

import errno
import tempfile
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import harness
from harness import Choice, Recipe, StateDict, merge, weights
from harness.cli import main
from harness.errors import BrokenPlugin, CannotWrite
from harness.files import nameless
from harness.merging import spool as keeping
from harness.merging.plan import plan
from harness.merging.spool import Spool
from harness.unfinished import is_unfinished
from tests.mistakes import mistake
from tests.toys import TOY, registered

Minis = Callable[[str], dict[str, Path]]


class Watched:
    """Pre-merging methods that halve task vectors, and what was computed of them."""

    def __init__(self) -> None:
        self.computed: Counter[tuple[int, str]] = Counter()
        self.order: list[tuple[int, str]] = []
        self.fail_after: int | None = None
        self.failure: BaseException = KeyboardInterrupt()
        self.seen: list[list[str]] = []
        self.beside: Path | None = None

    def __call__(self, experts: Sequence[StateDict], base: StateDict) -> list[StateDict]:
        """Experts whose task vectors are halved."""

        def one(place: int, expert: StateDict) -> StateDict:
            def fn(name: str, weight: torch.Tensor) -> torch.Tensor:
                self.computed[place, name] += 1
                self.order.append((place, name))
                if self.beside is not None:
                    self.seen.append(sorted(path.name for path in self.beside.iterdir()))
                if self.fail_after is not None and len(self.order) > self.fail_after:
                    raise self.failure
                return weight if name not in base else base[name] + (weight - base[name]) / 2

            return weights.each_named(fn, expert)

        return [one(place, expert) for place, expert in enumerate(experts)]


@pytest.fixture
def watched(as_found: None) -> Iterator[dict[str, Watched]]:
    """`halves`, which is costly, and `cheap`, which is the same and is not."""
    made = {"halves": Watched(), "cheap": Watched()}
    harness.premerge("halves", costly=True)(made["halves"].__call__)
    harness.premerge("cheap")(made["cheap"].__call__)
    with registered(TOY):
        yield made


def recipe(found: dict[str, Path], premerge: str, merger: str = "ties", **more: Any) -> Recipe:
    experts = (str(found["a"]), str(found["b"]))
    return Recipe(
        experts=experts, base=str(found["base"]), premerge=(premerge,), merger=merger, **more
    )


def tensors(out: Path) -> dict[str, torch.Tensor]:
    return load_file(out / "model.safetensors")


@pytest.mark.parametrize("family", ["bert", "deberta-v2"])
def test_each_tensor_is_computed_once_however_often_it_is_read(
    family: str, watched: dict[str, Watched], minis: Minis, tmp_path: Path
) -> None:
    found = minis(family)
    for name in watched:
        merge(recipe(found, name), out=tmp_path / name)
    assert set(watched["halves"].computed.values()) == {1}
    assert max(watched["cheap"].computed.values()) > 1  # the trimming of TIES reads them all first
    assert watched["halves"].computed.keys() == watched["cheap"].computed.keys()
    costly, cheap = (tensors(tmp_path / name) for name in ("halves", "cheap"))
    for name, tensor in cheap.items():
        assert torch.equal(costly[name], tensor), name


def test_those_of_all_experts_are_computed_together(
    watched: dict[str, Watched], minis: Minis, tmp_path: Path
) -> None:
    """They share a decomposition, of which a method holds the last."""
    merge(recipe(minis("bert"), "halves"), out=tmp_path / "out")
    order = watched["halves"].order
    names = [name for _, name in order[::2]]
    assert order == [(place, name) for name in names for place in (0, 1)]


def test_candidates_share_what_was_computed(
    watched: dict[str, Watched], minis: Minis, tmp_path: Path
) -> None:
    asked = recipe(
        minis("bert"), "halves", "task_arithmetic", tasks=("toy/pairs",), tune="scale=0.1:0.5:0.2"
    )
    merge(asked, out=tmp_path / "out")
    assert set(watched["halves"].computed.values()) == {1}


def test_statistics_are_of_what_is_kept(
    watched: dict[str, Watched], minis: Minis, tmp_path: Path
) -> None:
    methods = {"merger": "regmean:examples=4", "tasks": ("toy/pairs",)}
    for name in watched:
        merge(recipe(minis("bert"), name, **methods), out=tmp_path / name)
    assert set(watched["halves"].computed.values()) == {1}
    costly, cheap = (tensors(tmp_path / name) for name in ("halves", "cheap"))
    assert all(torch.equal(costly[name], tensor) for name, tensor in cheap.items())


def test_a_second_costly_stage_reads_the_first_off_the_disk(
    watched: dict[str, Watched], minis: Minis, tmp_path: Path
) -> None:
    twice = Recipe(
        experts=tuple(str(minis("bert")[name]) for name in ("a", "b")),
        base=str(minis("bert")["base"]),
        premerge=("halves", "cheap", "halves"),
        merger="ties",
    )
    merge(twice, out=tmp_path / "out")
    assert set(watched["halves"].computed.values()) == {2}  # one for each of the two stages


@pytest.fixture
def mean(as_found: None) -> Counter[str]:
    """How often each tensor of a merger, the mean, is computed."""
    computed: Counter[str] = Counter()

    @harness.merger("mean", breaks=("copies",))
    def mean(experts: Sequence[StateDict], base: StateDict, *, share: float = 0.5) -> StateDict:
        def fn(name: str, origin: torch.Tensor, *tuned: torch.Tensor) -> torch.Tensor:
            computed[name] += 1
            return origin + share * sum(weight - origin for weight in tuned)

        return weights.each_named(fn, base, *experts)

    return computed


@pytest.mark.parametrize(
    ("postmerge", "keeps"),
    [("lines", True), ("lines:alpha=0.5", False), ("lines:alpha=0.5 lines", True), ("svc", False)],
)
def test_what_is_read_twice_after_the_merger_is_computed_once(
    postmerge: str, keeps: bool, mean: Counter[str], minis: Minis, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The norms of LiNeS are those of all tensors, before the first of them can be scaled."""
    files = []
    monkeypatch.setattr(keeping, "nameless", lambda out: files.append(out) or nameless(out))
    found = minis("bert")
    stages = tuple(postmerge.split())
    experts = (str(found["a"]), str(found["b"]))
    asked = Recipe(experts=experts, base=str(found["base"]), merger="mean", postmerge=stages)
    done = merge(asked, out=tmp_path / "out")
    assert {*mean.values()} == {1}
    assert bool(files) == keeps
    plain = merge(asked.model_copy(update={"postmerge": ()}), out=tmp_path / "plain")
    body = {name: plain.merged[name] for name in plain.merged}
    whole: StateDict = body
    for stage in done.postmerge_stages:
        whole = stage.run(whole, done.merger_inputs, done.base_state)
    written = tensors(tmp_path / "out")
    assert all(torch.equal(written[name], whole[name]) for name in body)
    assert not all(torch.equal(written[name], body[name]) for name in body)


def test_what_is_read_twice_of_candidates_is_on_disk_one_by_one(
    mean: Counter[str], minis: Minis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep over a hundred values has not the room for a hundred models."""
    made: list[BinaryIO] = []
    open_at_once = []

    def counted(out: Path) -> BinaryIO:
        made.append(nameless(out))
        open_at_once.append(sum(not file.closed for file in made))
        return made[-1]

    monkeypatch.setattr(keeping, "nameless", counted)
    asked = recipe(minis("bert"), "dare", "mean", tasks=("toy/pairs",), tune="share=0.1:0.5:0.2")
    with registered(TOY):
        merge(asked.model_copy(update={"postmerge": (Choice("lines"),)}), out=tmp_path / "out")
    assert set(mean.values()) == {4}, "once for each of three candidates and once to be written"
    assert open_at_once == [1, 1, 1, 1]


def test_a_dry_run_computes_nothing(
    watched: dict[str, Watched], minis: Minis, tmp_path: Path
) -> None:
    merge(recipe(minis("bert"), "halves"), out=tmp_path / "out", dry_run=True)
    assert not watched["halves"].computed


def test_afterwards_the_plan_still_computes(
    watched: dict[str, Watched], minis: Minis, tmp_path: Path
) -> None:
    done = merge(recipe(minis("bert"), "halves"), out=tmp_path / "out")
    written = tensors(tmp_path / "out")
    assert all(torch.equal(done.state[name], tensor) for name, tensor in written.items())
    bare = plan(recipe(minis("bert"), "halves"))
    assert all(torch.equal(bare.state[name], tensor) for name, tensor in written.items())


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), RuntimeError("broken")])
def test_nothing_is_left_behind(
    failure: BaseException,
    watched: dict[str, Watched],
    minis: Minis,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nor is there anything to see, so nothing is left of a process that is killed either."""
    files = []
    made = keeping.nameless
    monkeypatch.setattr(keeping, "nameless", lambda out: files.append(made(out)) or files[-1])
    room = tmp_path / "room"
    room.mkdir()
    halves = watched["halves"]
    halves.beside, halves.fail_after, halves.failure = room, 20, failure
    # what a method of somebody else raises is told as such
    with pytest.raises((KeyboardInterrupt, BrokenPlugin)):
        merge(recipe(minis("bert"), "halves"), out=room / "out")
    seen = {name for names in halves.seen for name in names}
    assert all(is_unfinished(room / name, room / "out") for name in seen)
    assert not list(room.iterdir())
    assert len(files) == 1
    assert files[0].closed


def test_a_full_disk_is_one_line(
    watched: dict[str, Watched], minis: Minis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    class Full(tempfile.SpooledTemporaryFile[bytes]):
        def write(self, _: Any) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(keeping, "nameless", lambda out: Full())
    with mistake(CannotWrite, tmp_path / "out", "No space left"):
        merge(recipe(minis("bert"), "halves"), out=tmp_path / "out")
    found = minis("bert")
    flags = ["--premerge", "halves", "--merger", "ties", "--base", str(found["base"])]
    capsys.readouterr()  # of making the experts
    assert main(["merge", str(found["a"]), str(found["b"]), *flags, "--out", str(tmp_path / "o")])
    assert capsys.readouterr().err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_it_lies_on_the_disk_of_the_output(
    watched: dict[str, Watched], minis: Minis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = []
    made = tempfile.TemporaryFile
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda dir: places.append(dir) or made(dir=dir))
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere" / "out")
    merge(recipe(minis("bert"), "halves"), out=tmp_path / "link")
    assert places[-1] == tmp_path / "elsewhere"  # before, places are tried that may refuse files


# The states by themselves ------------------------------------------------------------------


ODD = {
    "scalar": torch.tensor(3.5),
    "none": torch.empty(0, 3),
    "bytes": torch.arange(7, dtype=torch.uint8),
    "half": torch.randn(5, 3, generator=torch.Generator().manual_seed(0)).bfloat16(),
    "double": torch.randn(9, generator=torch.Generator().manual_seed(1)).double(),
    "turned": torch.arange(12.0).view(3, 4).mT,
    "long": torch.arange(300_000.0),
}


def test_every_type_and_shape_comes_back_as_it_was(tmp_path: Path) -> None:
    with Spool(tmp_path / "out") as kept:
        (state,) = kept.states([ODD])
        for name, tensor in ODD.items():
            for _ in range(2):
                have = state[name]
                assert have.dtype == tensor.dtype
                assert torch.equal(have, tensor)
        assert weights.specs(state) == weights.specs(ODD)


def test_what_is_written_to_a_tensor_reaches_no_other(tmp_path: Path) -> None:
    with Spool(tmp_path / "out") as kept:
        (state,) = kept.states([ODD])
        state["long"].fill_(7)
        held = state["double"]
        assert torch.equal(state["long"], ODD["long"])
    assert torch.equal(held, ODD["double"])  # also when the file is closed


def test_experts_of_unlike_heads(tmp_path: Path) -> None:
    made = [{"w": torch.ones(2), "head": torch.ones(2, 3)}, {"w": torch.zeros(2)},
            {"w": torch.zeros(2), "head": torch.ones(4, 3)}]  # fmt: skip
    with Spool(tmp_path / "out") as kept:
        first, second, third = kept.states(made)
        assert first["head"].shape == (2, 3)
        assert third["head"].shape == (4, 3)
        assert "head" not in second


def test_many_threads_compute_a_tensor_once(tmp_path: Path) -> None:
    counted: Counter[str] = Counter()
    names = [str(number) for number in range(40)]

    def compute(name: str) -> torch.Tensor:
        counted[name] += 1
        return torch.full((2000,), float(name))

    known = {name: weights.Spec((2000,), torch.float32) for name in names}
    with Spool(tmp_path / "out") as kept, ThreadPoolExecutor(8) as pool:
        (state,) = kept.states([weights.Lazy(known, compute)])
        found = list(pool.map(lambda name: state[name].numpy().copy(), names * 8))
    assert counted == dict.fromkeys(names, 1)
    for name, array in zip(names * 8, found, strict=True):
        assert np.array_equal(array, np.full(2000, float(name), dtype=np.float32))


def test_it_is_computed_with_all_cores_whoever_asks(tmp_path: Path) -> None:
    """A merger reads a large tensor of every expert in a thread of one core each."""
    cores: list[int] = []
    threads = torch.get_num_threads()
    torch.set_num_threads(2)

    def compute(_: str) -> torch.Tensor:
        cores.append(torch.get_num_threads())
        return torch.zeros(4)

    known = {"w": weights.Spec((4,), torch.float32), "v": weights.Spec((4,), torch.float32)}
    try:
        with Spool(tmp_path / "out") as kept:
            (state,) = kept.states([weights.Lazy(known, compute)])
            weights.spread(lambda name: state[name], ["w", "v"])
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert cores == [2, 2]


def test_one_tensor_is_in_memory_at_a_time(tmp_path: Path) -> None:
    alive, most = 0, 0

    def let_go() -> None:
        nonlocal alive
        alive -= 1

    def compute(_: str) -> torch.Tensor:
        nonlocal alive, most
        array = np.zeros(4, dtype=np.float32)
        weakref.finalize(array, let_go)
        alive += 1
        most = max(most, alive)
        return torch.from_numpy(array)

    known = {"w": weights.Spec((4,), torch.float32)}
    with Spool(tmp_path / "out") as kept:
        states = kept.states([weights.Lazy(known, compute) for _ in range(5)])
        held = [state["w"] for state in states]
    assert len(held) == 5
    assert most <= 2
