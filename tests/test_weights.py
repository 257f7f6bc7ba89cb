"""Lazy state dicts: order statistics, checks, digests and types."""

from __future__ import annotations

import time
from threading import Barrier, BrokenBarrierError, Event, Lock

import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import StateDict, weights
from harness.errors import BrokenCheckpoint, IncompatibleWeights
from harness.weights import Lazy, Spec, order, threads
from tests.mistakes import mistake

pytestmark = pytest.mark.usefixtures("two_threads")

HALVES = [torch.float16, torch.bfloat16]

few = settings(max_examples=80, deadline=None, derandomize=True, database=None)


def values(state: StateDict) -> dict[str, object]:
    return {name: state[name].tolist() for name in state}


def counted(state: StateDict, read: list[str]) -> Lazy:
    """The state, noting each name that is read."""
    return Lazy(weights.specs(state), lambda name: read.append(name) or state[name])


# Order statistics --------------------------------------------------------------------------

HUGE = float(np.finfo(np.float32).max)
TINY = float(np.finfo(np.float32).smallest_subnormal)
NORMAL = float(np.finfo(np.float32).tiny)
#: zeros of both signs, denormals, the edges of the two counting passes, ties
EDGES = [0.0, -0.0, TINY, -TINY, 2 * TINY, NORMAL, -NORMAL, 1.0, -1.0, HUGE, -HUGE]
EDGES += [float(np.uint32(word).view(np.float32)) for word in (0xFFFF, 0x10000, 0x3F80FFFF)]
floats = st.one_of(
    st.sampled_from(EDGES), st.floats(width=32, allow_nan=False, allow_infinity=False)
)


def smallest(entries: np.ndarray, rank: int) -> float:
    return float(np.partition(np.abs(entries), rank - 1)[rank - 1])


@few
@given(st.lists(st.lists(floats, max_size=12), min_size=1, max_size=4).filter(any))
def test_smallest_magnitude_agrees_with_numpy_at_every_rank(parts: list[list[float]]) -> None:
    state = {f"t{i}": torch.tensor(part, dtype=torch.float32) for i, part in enumerate(parts)}
    entries = np.concatenate([np.array(part, dtype=np.float32) for part in parts])
    found = [weights.smallest_magnitude(state, rank + 1) for rank in range(len(entries))]
    assert found == np.sort(np.abs(entries)).tolist()
    assert not np.signbit(found).any()


@pytest.mark.parametrize("size", [1, 2, 1000, 100_003])
@pytest.mark.parametrize("spread", [1e-40, 1e-3, 1e30])
def test_smallest_magnitude_of_many(size: int, spread: float) -> None:
    entries = (np.random.default_rng(size).normal(size=size) * spread).astype(np.float32)
    whole = torch.from_numpy(entries)
    state = {"a": whole[: size // 3], "b": whole[size // 3 :].view(-1, 1)}
    for rank in sorted({1, max(1, size // 5), max(1, int(size * 0.8)), size}):
        assert weights.smallest_magnitude(state, rank) == smallest(entries, rank)


def test_smallest_magnitude_by_hand() -> None:
    state = {
        "scalar": torch.tensor(-3.0),
        "none": torch.zeros(0, 4),
        "turned": torch.tensor([[1.0, -5.0], [2.0, 2.0]]).T,
    }
    assert [weights.smallest_magnitude(state, rank) for rank in range(1, 6)] == [1, 2, 2, 3, 5]


def test_smallest_magnitude_of_equal_entries() -> None:
    state = {"w": torch.full((70_000,), -0.5)}
    assert {weights.smallest_magnitude(state, rank) for rank in (1, 65_537, 70_000)} == {0.5}


def test_smallest_magnitude_where_the_sample_is_wrong() -> None:
    """Zeros stand on every sampled place, so the sample says that the value is 0."""
    size = 3 << 18
    entries = torch.rand(size, generator=torch.Generator().manual_seed(0)) + 1
    entries[::3] = 0
    found = weights.smallest_magnitude({"w": entries}, size // 2)
    assert found == float(entries.sort().values[size // 2 - 1])


SPREADS = {
    "normal": lambda numbers, size: numbers.normal(size=size),
    "mostly zero": lambda numbers, size: numbers.normal(size=size) * (numbers.random(size) > 0.9),
    "few values": lambda numbers, size: numbers.integers(0, 4, size),
    "one value and noise": lambda numbers, size: np.where(
        numbers.random(size) > 0.5, 2.0, numbers.random(size)
    ),
    "sorted": lambda numbers, size: np.sort(numbers.random(size)),
    "wide": lambda numbers, size: np.exp(20 * numbers.normal(size=size)),
}


@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize("held", [order._HELD, 1e-9])
def test_smallest_magnitude_by_a_sample(
    spread: str, held: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the value is an end of the bracket, inside, or counted as more than may be held."""
    monkeypatch.setattr(order, "_SAMPLE", 100)
    monkeypatch.setattr(order, "_HELD", held)
    monkeypatch.setattr(threads, "_piece", 999)
    entries = SPREADS[spread](np.random.default_rng(0), 20_000).astype(np.float32)
    whole = torch.from_numpy(entries)
    state = {"a": whole[:7000].view(70, 100), "b": whole[7000:]}
    for rank in (1, 300, 2000, 9_999, 10_000, 16_000, 18_500, 20_000):
        assert weights.smallest_magnitude(state, rank) == smallest(entries, rank)


def test_pieces_of_every_tensor_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_piece", 2)
    first = {"a": torch.arange(5).half(), "none": torch.zeros(0), "b": torch.tensor([[5.0], [6.0]])}
    second = {name: tensor + 1 for name, tensor in reversed(first.items())}
    found = weights.in_pieces(lambda x, y: (x.tolist(), y.dtype, (y - x).tolist()), first, second)
    entries, types, differences = zip(*found, strict=True)
    assert [entry for piece in entries for entry in piece] == [0, 1, 2, 3, 4, 5, 6]
    assert set(types) == {torch.float32}
    assert {step for piece in differences for step in piece} == {1}
    assert max(map(len, entries)) == 2


def test_pieces_leave_torch_its_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_piece", 2)
    before = torch.get_num_threads()
    weights.by_piece(lambda part: part, 9)
    with pytest.raises(ZeroDivisionError):
        weights.by_piece(lambda part: 1 // 0, 9)
    assert torch.get_num_threads() == before


def test_one_thread_is_of_torch_alone(two_threads: None) -> None:
    """What is spread has all cores; each of the workers has one, for all that it calls."""
    both = Barrier(2, timeout=10)

    def work(part: int) -> tuple[int, int]:
        both.wait()  # which one worker alone would do for ever
        with weights.one_thread():
            return torch.get_num_threads(), weights.cores()

    for _ in range(2):
        with weights.one_thread():
            assert (torch.get_num_threads(), weights.cores()) == (1, 2)
            with weights.one_thread():
                assert weights.spread(work, range(2)) == [(1, 1), (1, 1)]
            assert (torch.get_num_threads(), weights.cores()) == (1, 2)
        assert (torch.get_num_threads(), weights.cores()) == (2, 2)
    with pytest.raises(ZeroDivisionError), weights.one_thread():
        weights.spread(lambda part: 1 // 0, range(2))
    assert (torch.get_num_threads(), weights.cores()) == (2, 2)


def test_cores_without_parts_help_with_the_parts_of_others(two_threads: None) -> None:
    """One part is done at once, and the other is spread: on both cores, when it is."""
    first_done = Event()

    def part_of_a_part(both: Barrier) -> bool:
        try:
            both.wait()
        except BrokenBarrierError:
            return False
        return True

    def work(part: int) -> bool:
        if part == 0:
            return first_done.set() is None
        first_done.wait(timeout=10)
        return any(  # the other core takes a moment to be done
            all(weights.spread(part_of_a_part, [Barrier(2, timeout=0.2)] * 2)) for _ in range(50)
        )

    assert weights.spread(work, range(2)) == [True, True]


def test_no_more_cores_work_than_there_are(two_threads: None) -> None:
    """However parts are spread in turn, and in order."""
    working, most, lock = [0], [0], Lock()

    def leaf(number: int) -> int:
        with lock:
            working[0] += 1
            most[0] = max(most[0], working[0])
        time.sleep(0.001)
        with lock:
            working[0] -= 1
        return number

    def branch(number: int) -> list[int]:
        return weights.spread(leaf, range(number % 4))

    for _ in range(5):
        found = weights.spread(lambda n: weights.spread(branch, range(n)), range(7))
        assert found == [[list(range(m % 4)) for m in range(n)] for n in range(7)]
    assert most[0] == 2


def test_an_error_in_a_part_of_a_part_stops_all(two_threads: None) -> None:
    with pytest.raises(ZeroDivisionError):
        weights.spread(lambda n: weights.spread(lambda part: 1 // part, range(n)), range(5))
    assert torch.get_num_threads() == 2


def test_an_error_stops_all_workers() -> None:
    seen: list[int] = []

    def fail_first(part: int) -> int:
        seen.append(part)
        time.sleep(0.002)
        return 1 // part

    with pytest.raises(ZeroDivisionError):
        weights.spread(fail_first, range(500))
    assert len(seen) < 100


def test_smallest_magnitude_of_a_difference() -> None:
    first, second = {"w": torch.tensor([1.0, -4.0, 2.5])}, {"w": torch.tensor([3.0, -3.5, 2.5])}
    found = [weights.smallest_magnitude(first, rank, minus=second) for rank in (1, 2, 3)]
    assert found == [0, 0.5, 2]


@pytest.mark.parametrize(("sample", "passes"), [(order._SAMPLE, 1), (2, 2)])
def test_smallest_magnitude_holds_one_tensor_at_a_time(
    sample: int, passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads them twice where they are too many for one sample."""
    monkeypatch.setattr(order, "_SAMPLE", sample)
    monkeypatch.setattr(order, "_HELD", 1)
    read: list[str] = []
    state = counted({"a": torch.tensor([1.0, 3.0, 5.0]), "b": torch.tensor([2.0, 4.0, 6.0])}, read)
    assert weights.smallest_magnitude(state, 2) == 2
    assert read == ["a", "b"] * passes


# Checks ------------------------------------------------------------------------------------

WEIGHT = torch.zeros(2, 3)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({}, "b has no tensor 'w', which a has; expected the same tensors in both"),
        (
            {"w": WEIGHT, "extra": WEIGHT},
            "b has a tensor 'extra' that a does not have; expected the same tensors in both",
        ),
        ({"w": torch.zeros(3, 2)}, "'w' is (3, 2) in b, expected (2, 3) as in a"),
        ({"w": torch.tensor(0.0)}, "'w' is () in b, expected (2, 3) as in a"),
        ({"w": torch.zeros(6)}, "'w' is (6,) in b, expected (2, 3) as in a"),
        ({"w": WEIGHT.int()}, "'w' is torch.int32 in b, expected torch.float32 as in a"),
    ],
)
def test_a_difference_is_named(other: StateDict, message: str) -> None:
    with pytest.raises(IncompatibleWeights) as caught:
        weights.check_same([{"w": WEIGHT}, {"w": WEIGHT}, other], ["a", "twin", "b"])
    assert str(caught.value) == message


def test_the_same_names_and_shapes_pass_whatever_order_and_precision() -> None:
    state = {"w": WEIGHT, "ids": torch.arange(2)}
    other = {"ids": torch.arange(2, dtype=torch.int32), "w": WEIGHT.half()}
    weights.check_same([state, other], ["a", "b"])
    weights.check_same([state], ["a"])


def test_checking_reads_no_tensor() -> None:
    read: list[str] = []
    state = counted({"w": WEIGHT}, read)
    weights.check_same([state, state], ["a", "b"])
    assert not read


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *HALVES])
@pytest.mark.parametrize(
    ("entry", "found"), [("nan", "NaN"), ("inf", "infinite"), ("-inf", "infinite")]
)
def test_an_entry_that_is_not_finite_is_named(entry: str, found: str, dtype: torch.dtype) -> None:
    for tensor in (torch.tensor([[1, float(entry)], [0, 2]]), torch.tensor(float(entry))):
        with mistake(BrokenCheckpoint, "layer.w there", found):
            weights.check_finite("layer.w", tensor.to(dtype), "there")
        with mistake(BrokenCheckpoint, "layer.w there", found):
            weights.finite_digest("layer.w", tensor.to(dtype), "there")


@pytest.mark.parametrize("place", [0, 6, 7, 13, 16])
def test_one_entry_anywhere_is_found(place: int) -> None:
    """Though others take the infinite part of a sum back."""
    tensor = torch.full((17,), HUGE)
    assert weights.finite_digest("w", tensor, "there") == weights.tensor_digest("w", tensor)
    tensor[place] = -float("inf")
    with mistake(BrokenCheckpoint, "w there infinite"):
        weights.finite_digest("w", tensor, "there")


def test_nan_beside_infinity_is_nan() -> None:
    tensor = torch.tensor([float("inf"), float("nan"), -float("inf")])
    with mistake(BrokenCheckpoint, "NaN"):
        weights.check_finite("w", tensor, "there")


@pytest.mark.parametrize(
    "tensor",
    [torch.tensor([HUGE, -HUGE, TINY]), torch.zeros(0), torch.arange(3), torch.tensor([True])],
    ids=["huge", "empty", "integer", "boolean"],
)
def test_finite_weights_pass(tensor: torch.Tensor) -> None:
    weights.check_finite("w", tensor, "there")
    assert weights.finite_digest("w", tensor, "there") == weights.tensor_digest("w", tensor)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *HALVES, torch.int64])
@pytest.mark.parametrize("shape", [(3, 32_000), (32_001,), (), (0, 4)], ids=str)
def test_a_digest_is_the_same_when_it_is_checked(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    tensor = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    for one in (tensor, tensor.mT if tensor.ndim == 2 else tensor):
        assert weights.finite_digest("w", one, "there") == weights.tensor_digest("w", one)


# Digests -----------------------------------------------------------------------------------


def state() -> dict[str, torch.Tensor]:
    return {
        "w": torch.arange(6, dtype=torch.float32).view(2, 3),
        "b": torch.tensor([1.0, 2.0], dtype=torch.bfloat16),
        "ids": torch.arange(4),
        "scale": torch.tensor(0.5),
        "none": torch.zeros(0, 3),
    }


def test_digest_does_not_depend_on_order_files_or_layout() -> None:
    whole = state()
    expected = weights.digest(whole)
    assert weights.digest(dict(reversed(whole.items()))) == expected
    shards = [weights.select(whole, names) for names in (["ids", "b"], ["none"], ["w", "scale"])]
    assert weights.digest(weights.union(*shards)) == expected
    parts = {name: weights.tensor_digest(name, whole[name]) for name in reversed(whole)}
    assert weights.join_digests(parts) == expected
    turned = {**whole, "w": whole["w"].T.contiguous().T}
    assert not turned["w"].is_contiguous()
    assert weights.digest(turned) == expected
    assert weights.digest({**whole, "w": torch.nn.Parameter(whole["w"])}) == expected


@pytest.mark.parametrize(
    "change",
    [
        {"w": torch.arange(6, dtype=torch.float32).view(3, 2)},
        {"w": torch.arange(6, dtype=torch.float32).view(2, 3, 1)},
        {"w": torch.arange(6, dtype=torch.float32).view(2, 3).view(torch.int32)},
        {"w": torch.arange(6, dtype=torch.float64).view(2, 3)},
        {"w": torch.arange(6, dtype=torch.float32).view(2, 3) + torch.eye(2, 3) * 1e-7},
        {"w": torch.tensor([[-0.0, 1, 2], [3, 4, 5]])},
        {"b": torch.tensor([1.0, 2.0], dtype=torch.float16)},
        {"b": torch.tensor([2.0, 1.0], dtype=torch.bfloat16)},
        {"none": torch.zeros(3, 0)},
        {"none": torch.zeros(0, 3, dtype=torch.float64)},
        {"scale": torch.tensor([0.5])},
        {"extra": torch.zeros(0)},
    ],
)
def test_digest_depends_on_type_shape_and_values(change: StateDict) -> None:
    assert weights.digest({**state(), **change}) != weights.digest(state())


def test_digest_depends_on_names() -> None:
    whole = state()
    renamed = {name.replace("w", "v"): tensor for name, tensor in whole.items()}
    assert weights.digest(renamed) != weights.digest(whole)
    twins = {"a": torch.ones(2), "b": torch.zeros(2)}
    assert weights.digest(twins) != weights.digest({"a": twins["b"], "b": twins["a"]})
    assert weights.digest({"a": twins["a"]}) != weights.digest(twins)


def test_a_digest_once_recorded_stays_the_same() -> None:
    assert weights.digest(state()) == "cbc3c21846b34c17ca0e9e2095df9e97"


# Lazy state dicts --------------------------------------------------------------------------


def test_lazy_is_a_mapping_that_computes_on_access() -> None:
    read: list[str] = []
    lazy = counted({"a": torch.tensor([1.0]), "b": torch.tensor([2.0])}, read)
    assert list(lazy) == ["a", "b"]
    assert len(lazy) == 2
    assert "a" in lazy
    assert "c" not in lazy
    assert lazy.get("c") is None
    assert weights.specs(lazy)["a"] == Spec((1,), torch.float32)
    assert not read
    assert values(lazy) == {"a": [1], "b": [2]}
    assert read == ["a", "b"]
    with pytest.raises(KeyError, match="'c'"):
        lazy["c"]


@pytest.mark.parametrize("dtype", HALVES)
def test_half_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    """The sums and differences need more bits than either half type has."""
    one = {"w": torch.tensor([1.0, 3.0]).to(dtype)}
    small = {"w": torch.tensor([2.0**-12, 2.0**-14])}
    for merged in (
        weights.each(torch.add, one, small),
        weights.each_named(lambda name, a, b: a + b, one, small),
        weights.mean([one, small], [1.0, 1.0]),
    ):
        assert weights.specs(merged) == {"w": Spec((2,), torch.float32)}
        assert merged["w"].dtype == torch.float32
        assert merged["w"].tolist() == [1 + 2.0**-12, 3 + 2.0**-14]
    (vector,) = weights.task_vectors([one], small)
    assert vector["w"].tolist() == [1 - 2.0**-12, 3 - 2.0**-14]
    assert one["w"].dtype == dtype


@pytest.mark.parametrize("dtype", HALVES)
def test_half_precision_reaches_the_function_wide(dtype: torch.dtype) -> None:
    seen: list[torch.dtype] = []

    def note(*tensors: torch.Tensor) -> torch.Tensor:
        seen.extend(tensor.dtype for tensor in tensors)
        return tensors[0].clone()

    weights.each(note, {"w": WEIGHT.to(dtype)}, {"w": WEIGHT}, {"w": WEIGHT.double()})["w"]
    assert seen == [torch.float32, torch.float32, torch.float64]


def test_each_named_gives_the_name_and_each_takes_the_first_names() -> None:
    first = {"a": torch.tensor(1.0), "b": torch.tensor(2.0)}
    more = {"b": torch.tensor(20.0), "c": torch.tensor(30.0), "a": torch.tensor(10.0)}
    assert values(weights.each(torch.add, first, more)) == {"a": 11, "b": 22}
    named = weights.each_named(lambda name, tensor: tensor * len(name), {"abc": torch.tensor(2.0)})
    assert values(named) == {"abc": 6}


def test_mean_and_total_by_hand() -> None:
    states = [{"w": torch.tensor([1.0, 2.0])}, {"w": torch.tensor([3.0, 6.0])}]
    assert values(weights.mean(states)) == {"w": [2, 4]}
    assert values(weights.mean(states, [2.0, -1.0])) == {"w": [-1, -2]}
    parts = [state["w"] for state in states]
    assert weights.total(parts).tolist() == [4, 8]
    assert weights.total(parts[:1]).data_ptr() != parts[0].data_ptr()
    assert parts[0].tolist() == [1, 2]


def test_select_is_the_part_in_the_order_asked() -> None:
    read: list[str] = []
    part = weights.select(counted(state(), read), ["scale", "w"])
    assert list(part) == ["scale", "w"]
    assert weights.specs(part)["w"] == Spec((2, 3), torch.float32)
    assert not read
    assert part["scale"].item() == 0.5
    assert read == ["scale"]
    with pytest.raises(KeyError):
        part["ids"]
    with pytest.raises(KeyError, match="absent"):
        weights.select(state(), ["absent"])


def test_union_takes_the_first_that_has_the_name() -> None:
    one = {"a": torch.tensor([1.0]), "b": torch.tensor([2.0])}
    two = {"b": torch.tensor([9, 9]), "c": torch.tensor([3.0])}
    both = weights.union(one, two)
    assert values(both) == {"a": [1], "b": [2], "c": [3]}
    assert weights.specs(both)["b"] == Spec((1,), torch.float32)
    assert values(weights.union()) == {}


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
def test_cast_like_rounds_once_to_the_type_of_the_template(dtype: torch.dtype) -> None:
    template = {"w": torch.zeros(2).to(dtype), "ids": torch.arange(2), "more": WEIGHT}
    computed = {"w": torch.tensor([1 / 3, 1e-3]), "ids": torch.arange(2)}
    cast = weights.cast_like(computed, template)
    assert weights.specs(cast) == {"w": Spec((2,), dtype), "ids": Spec((2,), torch.int64)}
    assert torch.equal(cast["w"], computed["w"].to(dtype))
    assert cast["w"].dtype == dtype


def test_floating_leaves_buffers_out() -> None:
    assert weights.floating(state()) == ["w", "b", "scale", "none"]
    assert weights.floating({"mask": torch.tensor([True]), "h": torch.zeros(1).half()}) == ["h"]


# The nearest orthogonal matrix ---------------------------------------------------------------


@pytest.mark.parametrize("shape", [(5, 5), (7, 3), (3, 7)])
def test_polar_is_that_of_scipy(shape: tuple[int, int]) -> None:
    matrix = torch.randn(*shape, dtype=torch.float64)
    side = "right" if shape[0] >= shape[1] else "left"
    expected, _ = scipy.linalg.polar(matrix.numpy(), side=side)
    assert torch.allclose(weights.polar(matrix), torch.from_numpy(expected), atol=1e-12)
    assert torch.equal(weights.polar(matrix.float()), weights.polar(matrix.float().double()))


def test_polar_by_hand() -> None:
    pairs = {((2, 0), (0, -3)): ((1, 0), (0, -1)), ((0, -5), (5, 0)): ((0, -1), (1, 0))}
    for matrix, expected in pairs.items():
        found = weights.polar(torch.tensor(matrix))
        assert torch.allclose(found, torch.tensor(expected).double(), atol=1e-15)


def test_polar_leaves_alone_what_a_matrix_says_nothing_of() -> None:
    """A stack with a zero matrix, one of rank 1, and one whose null spaces are across."""
    rank_one, across = torch.zeros(2, 3, 3, dtype=torch.float64)
    rank_one[0, 0], across[1, 0] = 4, -2
    found = weights.polar(torch.stack([torch.zeros(3, 3), rank_one, across]))
    assert torch.equal(found[0], torch.eye(3).double())
    assert torch.allclose(found[1], torch.eye(3).double(), atol=1e-15)
    assert float(found[2][1, 0]) == -1
    assert float(found[2][2, 2]) == pytest.approx(1)
    assert torch.allclose(found @ found.mT, torch.eye(3).double().expand(3, 3, 3), atol=1e-14)


def test_polar_of_a_deficient_matrix_does_not_depend_on_the_basis() -> None:
    numbers = torch.Generator().manual_seed(0)
    left, right = torch.randn(2, 6, 2, generator=numbers, dtype=torch.float64)
    matrix = left @ right.T
    found = weights.polar(matrix)
    turn = weights.polar(torch.randn(6, 6, generator=numbers))
    assert torch.allclose(turn @ found @ turn.T, weights.polar(turn @ matrix @ turn.T), atol=1e-12)


# Generators --------------------------------------------------------------------------------


def test_only_named_generators_are_seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of GPUs that a caller does not name are not restored afterwards."""
    told: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", told.append)
    drawn = []
    for devices in ((), (torch.device("cpu"),), (torch.device("cuda"),)):
        with weights.seeded(7, *devices):
            drawn.append(torch.rand(3))
    torch.manual_seed(7)
    expected = torch.rand(3)
    assert all(torch.equal(one, expected) for one in drawn)
    assert told == [7, 7]  # for the GPU that is named, and by torch.manual_seed here
