"""The embedded suite: five small tasks of text and two of images, generated from a fixed seed.

Sentences tell what people do, well or badly, and leave undone. The tasks ask for the topic of a
sentence, how well it went, in which of two sentences it went better, which topics are mentioned,
and which words say who did what. All tasks share all words, so experts of different tasks pull the
same weights in different directions; in most tasks the rest of the sentence decides whether a word
counts ("wanted to", "never", "barely").

An image has two figures on noise that differ in shape, colour and size. Its tasks ask for the shape
or the colour of the larger one.
"""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from harness import Hyperparameters, Row, Task, task
from harness.rng import rng

T = TypeVar("T")
Coordinates: TypeAlias = "npt.NDArray[Any]"
Make = Callable[[np.random.Generator, int], Row]

SEED = 0
USUAL = Hyperparameters(learning_rate=3e-4, epochs=3, batch_size=32, max_length=32)
SIZES = {"train": 2000, "test": 500}
TESTED = 5
"""One text in this many is a test row. Its checksum decides, so no text is in both splits."""
NOISE = 0.08
"""The share of labels that are drawn at random."""
UNSAID = 0.25
"""The share of rows in which the label of one theme is missing."""


class Action(NamedTuple):
    """A verb in its plain and past form, and whether it is a success (1) or a failure (-1)."""

    plain: str
    past: str
    worth: int


class Theme(NamedTuple):
    """The words of one part of the world."""

    people: tuple[str, ...]
    actions: tuple[Action, ...]
    things: tuple[str, ...]


class Story(NamedTuple):
    """A sentence, the theme of the action in it, and how well it went, from -2 to 2.

    `who` acts, `thing` is acted on, and `themes` are all themes that have a word in the sentence.
    """

    text: str
    theme: str
    outcome: float
    who: str
    thing: str
    themes: frozenset[str]


def theme(people: str, good: str, bad: str, things: str) -> Theme:
    """The theme of these words; an action is written as `plain/past` forms of its verb."""
    verbs = [(verb, 1) for verb in good.split()] + [(verb, -1) for verb in bad.split()]
    parts = [(*verb.partition("/"), worth) for verb, worth in verbs]
    actions = tuple(Action(plain, past, worth) for plain, _, past, worth in parts)
    return Theme(tuple(people.split()), actions, tuple(things.split()))


THEMES = {
    "food": theme(
        "baker cook waiter butcher farmer",
        "cook/cooked savour/savoured",
        "burn/burned spill/spilled",
        "bread soup cake candy pasta steak rice salad cheese stew",
    ),
    "music": theme(
        "singer drummer pianist composer dancer",
        "perform/performed tune/tuned",
        "mangle/mangled drown/drowned",
        "song violin rhythm hymn opera choir waltz guitar lute flute",
    ),
    "sport": theme(
        "runner goalkeeper coach boxer referee",
        "win/won catch/caught",
        "lose/lost fumble/fumbled",
        "ball race match trophy javelin league relay serve derby puck",
    ),
    "travel": theme(
        "pilot sailor tourist driver guide",
        "reach/reached board/boarded",
        "miss/missed wreck/wrecked",
        "ship plane bus train taxi ferry harbour airport coast island",
    ),
}
TOPICS = tuple(THEMES)
VERDICTS = ("first", "second")
ROLES = ("WHO", "DONE")
TAGS = ("O", *(f"{prefix}-{role}" for role in ROLES for prefix in "BI"))
DEGREES = {
    1: {"barely": 0.5, "nicely": 1.0, "superbly": 1.5},
    -1: {"slightly": 0.5, "sadly": 1.0, "terribly": 1.5},
}
"""How much a success or a failure counts."""
SHORT = "the {who} {how} {past} the {thing}"
LONG = (
    "the {who} wanted to {undone} the {other} but {how} {past} the {thing}",
    "the {who} {how} {past} the {thing} but forgot to {undone} the {other}",
    "the {who} never {unpast} the {other} but {how} {past} the {thing}",
)
UNDONE = -0.5
"""The worth of an action left undone, as a factor of the worth of the same action done."""
GAP = 1.5
"""The least difference of outcomes between the sentences of a comparison."""


def pick(random: np.random.Generator, values: Sequence[T]) -> T:
    """A random value, by `random()` alone: numpy may change the streams of its other methods."""
    return values[int(random.random() * len(values))]


def deed(random: np.random.Generator, themes: Sequence[str]) -> tuple[str, Action, str]:
    """A theme, with an action and a thing of it."""
    theme = pick(random, themes)
    return theme, pick(random, THEMES[theme].actions), pick(random, THEMES[theme].things)


def story(random: np.random.Generator) -> Story:
    """A story. The person is often, the action left undone always, of another theme."""
    done, act, thing = deed(random, TOPICS)
    undone, left, other = deed(random, [theme for theme in TOPICS if theme != done])
    long = random.random() < 0.6
    home = done if random.random() < 0.4 else pick(random, TOPICS)
    how, degree = pick(random, tuple(DEGREES[act.worth].items()))
    template = pick(random, LONG) if long else SHORT
    who = pick(random, THEMES[home].people)
    words = {"who": who, "how": how, "past": act.past, "thing": thing, "other": other}
    text = template.format(**words, undone=left.plain, unpast=left.past)
    outcome = degree * act.worth + long * UNDONE * left.worth
    themes = frozenset({home, done, *([undone] if long else [])})
    return Story(text, done, outcome, who, thing, themes)


def noisy(random: np.random.Generator, label: int, classes: int) -> int:
    """The label or, with probability `NOISE`, a random one: no model can reach a perfect score."""
    return int(random.random() * classes) if random.random() < NOISE else label


def topic(random: np.random.Generator, label: int) -> Row:
    """A sentence and the theme of what was done, not of what was left undone."""
    told = story(random)
    while told.theme != TOPICS[label]:
        told = story(random)
    return {"sentence": told.text, "label": noisy(random, label, len(TOPICS))}


def outcome(random: np.random.Generator, _: int) -> Row:
    """A sentence and how well it went, from about -2.5 to 2.5."""
    told = story(random)
    return {"sentence": told.text, "score": round(told.outcome + random.random() - 0.5, 2)}


def comparison(random: np.random.Generator, label: int) -> Row:
    """Two sentences and in which of them it went better."""
    worse = better = story(random)
    while better.outcome - worse.outcome < GAP:
        worse, better = sorted((story(random), story(random)), key=lambda told: told.outcome)
    first, second = (better, worse) if VERDICTS[label] == "first" else (worse, better)
    return {
        "sentence1": first.text,
        "sentence2": second.text,
        "label": noisy(random, label, len(VERDICTS)),
    }


def names(random: np.random.Generator, _: int) -> Row:
    """The words of a sentence, with tags on who acts and on what it is done to.

    Each span has two words, article and noun; things of actions left undone have none. Noise gives
    a span another role, or removes it.
    """
    told = story(random)
    words = told.text.split()
    tags = ["O"] * len(words)
    for role, noun in enumerate((told.who, told.thing)):
        place, said = words.index(noun), noisy(random, role, len(ROLES) + 1)
        if said < len(ROLES):
            tags[place - 1 : place + 1] = [f"B-{ROLES[said]}", f"I-{ROLES[said]}"]
    return {"words": words, "tags": tags}


def mentions(random: np.random.Generator, _: int) -> Row:
    """A sentence and, for each theme, whether a person, an action or a thing of it is mentioned.

    In some rows the label of one theme is missing.
    """
    told = story(random)
    said: list[int | None] = [noisy(random, int(theme in told.themes), 2) for theme in TOPICS]
    if random.random() < UNSAID:
        said[pick(random, range(len(TOPICS)))] = None
    return {"sentence": told.text, "themes": said}


def rows_of(name: str, make: Make, text: Sequence[str], classes: int) -> Callable[[str], list[Row]]:
    """A function from a split to its rows, made for each of so many classes in turn."""

    @cache
    def generate(split: str) -> list[Row]:
        random = rng(SEED, "embedded", name, split)
        rows: dict[str, Row] = {}
        while len(rows) < SIZES[split]:
            row = make(random, len(rows) % classes)
            # words joined by spaces: the same sentence of any task is in the same split
            parts = (row[column] for column in text)
            key = "\n".join(part if isinstance(part, str) else " ".join(part) for part in parts)
            if (zlib.crc32(key.encode()) % TESTED == 0) == (split == "test"):
                rows.setdefault(key, row)
        return list(rows.values())

    return generate


def embedded(name: str, generate: Callable[[str], list[Row]], **of: Any) -> Task:
    """Register a task of the suite; `generate` makes the rows of a split."""
    usual: dict[str, Any] = {"kind": "classification", "label": "label", "metrics": ("accuracy",)}
    usual |= {"splits": {"test": "test"}, "reported": "test", "finetune": USUAL, **of}
    return task(Task(name=f"embedded/{name}", generate=generate, **usual))


def of_text(
    name: str, make: Make, *, text: tuple[str, ...] = ("sentence",), turns: int = 1, **of: Any
) -> Task:
    """Register a task of text, whose rows are made for each of `turns` classes in turn."""
    return embedded(name, rows_of(name, make, text, turns), text=text, **{"labels": (), **of})


of_text("topic", topic, labels=TOPICS, turns=len(TOPICS))
of_text("outcome", outcome, kind="regression", label="score", metrics=("pearson", "spearman"))
PAIR = ("sentence1", "sentence2")
LONGER = replace(USUAL, max_length=40)
of_text("comparison", comparison, text=PAIR, labels=VERDICTS, turns=2, finetune=LONGER)
of_text(
    "names", names, kind="tagging", text=("words",), label="tags", labels=TAGS, metrics=("span_f1",)
)
# more steps: the base has learnt to overlook actions left undone
of_text(
    "mentions",
    mentions,
    kind="multilabel",
    label="themes",
    labels=TOPICS,
    metrics=("macro_f1",),
    finetune=replace(USUAL, learning_rate=4e-4, batch_size=8),
)


# Pictures ----------------------------------------------------------------------------------

SIDE = 16
"""Width and height of an image, in pixels."""
SHAPES: dict[str, Callable[[Coordinates, Coordinates], Coordinates]] = {
    "cross": lambda x, y: np.minimum(x, y) <= 0.3,
    "disc": lambda x, y: x**2 + y**2 <= 1,
    "ring": lambda x, y: (x**2 + y**2 <= 1) & (x**2 + y**2 >= 0.3),
    "square": lambda x, y: np.maximum(x, y) <= 0.85,
}
"""Whether a pixel is inside, by its distances from the middle in both directions, up to 1."""
COLOURS = {"blue": (0, 0, 1), "green": (0, 1, 0), "red": (1, 0, 0), "yellow": (0.7, 0.7, 0)}
LOOKS = (tuple(SHAPES), tuple(COLOURS))
RADII = ((2.0, 1.0), (5.0, 2.0))
"""The least radius, and its range above that, of the smaller and the larger figure, in pixels."""


def picture(random: np.random.Generator, looks: Sequence[tuple[str, str]]) -> bytes:
    """A PPM file with figures of these shapes and colours, the larger one last."""
    canvas = 0.4 * random.random((SIDE, SIDE, 3))
    for (shape, colour), (least, more) in zip(looks, RADII, strict=True):
        radius = least + more * random.random()
        middle = radius + (SIDE - 1 - 2 * radius) * random.random(2)
        x, y = (np.abs(np.arange(SIDE) - one) / radius for one in middle)
        inside = SHAPES[shape](x[:, None], y) & (np.maximum(x[:, None], y) <= 1)
        canvas[inside] += 0.6 * np.array(COLOURS[colour])
    return b"P6 %d %d 255\n" % (SIDE, SIDE) + (255 * canvas).astype(np.uint8).tobytes()


def looking(asked: int, name: str) -> Callable[[str], list[Row]]:
    """A function from a split to images, labelled by shape (0) or colour (1) of the larger one."""

    def drawn(random: np.random.Generator, label: int) -> Row:
        larger = [pick(random, known) for known in LOOKS]
        larger[asked] = LOOKS[asked][label]
        pairs = zip(LOOKS, larger, strict=True)
        smaller = [pick(random, [one for one in known if one != it]) for known, it in pairs]
        image = picture(random, [(smaller[0], smaller[1]), (larger[0], larger[1])])
        return {"image": image, "label": noisy(random, label, len(LOOKS[asked]))}

    @cache
    def generate(split: str) -> list[Row]:
        random = rng(SEED, "embedded", name, split)
        return [drawn(random, place % len(LOOKS[asked])) for place in range(SIZES[split])]

    return generate


for number, asked_of in enumerate(("shapes", "colours")):
    embedded(
        asked_of,
        looking(number, asked_of),
        text=(),
        image="image",
        labels=LOOKS[number],
        group="embedded-images",  # not `embedded`: a model reads text or images
        finetune=Hyperparameters(learning_rate=1e-3, epochs=3, max_length=1),
    )
