"""Rows of images: how they are stored, what is decoded, and what a model sees."""

from __future__ import annotations

import io
import json
import shutil
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch

import harness
from harness import weights
from harness.checkpoints.align import check_architecture
from harness.checkpoints.build import check_ready
from harness.checkpoints.open import open_checkpoint
from harness.checkpoints.processor import open_image_processor, pixels
from harness.data.images import FORMATS, StoredImage, decoded, opened
from harness.data.rows import load_rows, take
from harness.errors import BadData, BadOption, BadRecipe, BrokenCheckpoint, IncompatibleWeights
from harness.inspecting.show import report, show
from harness.passes.features import encode, forward, model_key
from harness.passes.placement import CPU
from harness.passes.prepared import prepare
from harness.types import Rows
from tests.conftest import model, real_folder
from tests.images import (
    COLOURS,
    PROCESSING,
    colours,
    encoded,
    folders,
    parquet,
    pictures,
    png,
    vit,
)
from tests.mistakes import mistake, refused

PIL = pytest.importorskip("PIL.Image")
pytestmark = pytest.mark.usefixtures("as_found")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return vit(tmp_path_factory.mktemp("vit") / "expert")


def own(root: Path, text: str = "image: picture\nlabel: colour\nfiles: data\n") -> harness.Task:
    (root / "own.yaml").write_text(text)
    return harness.TASKS[str(root / "own.yaml")]


# Where images lie ----------------------------------------------------------------------------


def test_all_ways_to_store_images_are_the_same_rows(tmp_path: Path) -> None:
    """Bytes in a struct, bytes alone, paths beside a table, and a folder for each class."""
    made = pictures(6, seed=3)
    data, names = [encoded(one) for one, _ in made], [COLOURS[label] for _, label in made]
    found: dict[str, Rows] = {}
    for way in ("struct", "binary", "paths", "csv", "jsonl", "folder"):
        root = tmp_path / way
        (root / "data" / "files").mkdir(parents=True)
        paths = [f"files/{place}.png" for place in range(6)]
        for path, content in zip(paths, data, strict=True):
            (root / "data" / path).write_bytes(content)
        train = root / "data" / "train.parquet"
        if way == "struct":
            parquet(train, 6, seed=3)
        elif way in ("binary", "paths"):
            values = data if way == "binary" else paths
            pyarrow.parquet.write_table(pyarrow.table({"picture": values, "colour": names}), train)
        elif way == "csv":
            lines = ["picture,colour", *map(",".join, zip(paths, names, strict=True))]
            train.with_suffix(".csv").write_text("\n".join(lines))
        elif way == "jsonl":
            rows = [{"picture": p, "colour": n} for p, n in zip(paths, names, strict=True)]
            train.with_suffix(".jsonl").write_text("\n".join(map(json.dumps, rows)))
        else:
            folders(root / "data", "train", 6, seed=3)
        found[way] = load_rows(own(root), "train")
    for way, rows in found.items():
        order = [0, 3, 1, 4, 2, 5] if way == "folder" else range(6)  # classes in turn
        assert rows.images is not None
        assert [rows.images(row).data for row in range(6)] == [data[row] for row in order], way
        assert [rows.task.labels[int(one)] for one in rows.labels] == [names[row] for row in order]
    assert len({rows.digest for way, rows in found.items() if way != "folder"}) == 1


def test_taken_rows_keep_their_images_and_their_numbers(tmp_path: Path) -> None:
    parquet(tmp_path / "data" / "train.parquet", 9)
    rows = load_rows(own(tmp_path), "train")
    few = take(take(rows, [7, 2, 5]), [2, 0])
    assert rows.images is not None
    assert few.images is not None
    for place, row in enumerate((5, 7)):
        assert few.images(place) == rows.images(row)
        assert few.images(place).where == f"row {row + 1} of own@train"
    assert few.digest != rows.digest


def test_another_byte_is_another_digest(tmp_path: Path) -> None:
    for name, seed in {"one": 1, "two": 2}.items():
        parquet(tmp_path / name / "data" / "train.parquet", 6, seed=seed)
    first, second = (load_rows(own(tmp_path / one), "train") for one in ("one", "two"))
    assert first.digest != second.digest
    np.testing.assert_array_equal(first.labels, second.labels)


@pytest.mark.real
def test_real_images_are_tasks() -> None:
    assert harness.TASKS["vision/cifar10"].image == "img"
    assert harness.TASKS["vision/mnist"].labels == tuple("0123456789")
    folder = real_folder()
    if not (folder / "vision" / "cifar10").is_dir():
        pytest.skip(f"no real images at {folder}")
    rows = load_rows(harness.TASKS["vision/cifar10"], "test", folder=folder, limit=20)
    assert rows.images is not None
    assert {decoded(rows.images(row)).size for row in range(20)} == {(32, 32)}


# What is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ([b"x", None], ["row 2"]),
        (["../secret.png"], ["row 1", "../secret.png"]),
        (["/etc/hostname"], ["row 1", "/etc/hostname"]),
        (["none.png"], ["row 1", "none.png"]),
        (["a\0b"], ["row 1", "expected a file below"]),
        (["loop.png"], ["row 1", "loop.png", "cannot be read"]),
        ([1.5], ["double", "picture"]),
        ([{"path": 3}], ["struct<path", "picture"]),
        ([{"bytes": [3]}], ["struct<bytes", "picture"]),
    ],
    ids=["none", "outside", "absolute", "missing", "null", "loop", "numbers", "path", "lists"],
)
def test_what_is_no_stored_image_is_one_line(
    values: list[Any], named: list[str], tmp_path: Path
) -> None:
    (tmp_path / "secret.png").write_bytes(b"secret")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "loop.png").symlink_to(tmp_path / "data" / "loop.png")
    table = pyarrow.table({"picture": values, "colour": ["red", "green"][: len(values)]})
    pyarrow.parquet.write_table(table, tmp_path / "data" / "train.parquet")
    text = "image: picture\nlabel: colour\nlabels: [red, green]\nfiles: data\n"
    with mistake(BadData, *named):
        load_rows(own(tmp_path, text), "train")


@pytest.mark.parametrize(
    "text",
    [
        "image: picture\ntext: body\nlabel: colour\nlabels: [a, b]\nfiles: data\n",
        "label: colour\nlabels: [a, b]\nfiles: data\n",
        "kind: tagging\nimage: picture\nlabel: colour\nlabels: [O, B-X]\nfiles: data\n",
    ],
    ids=["both", "neither", "tagging"],
)
def test_a_row_is_of_one_modality(text: str, tmp_path: Path) -> None:
    parquet(tmp_path / "data" / "train.parquet", 6)
    with mistake(BadData, "own"):
        own(tmp_path, text)


def test_images_outside_of_classes_are_one_line(tmp_path: Path) -> None:
    folders(tmp_path / "data", "train", 6)
    (tmp_path / "data" / "train" / "stray.png").write_bytes(encoded(pictures(1)[0][0]))
    with mistake(BadData, tmp_path / "data" / "train", "stray.png"):
        load_rows(own(tmp_path), "train")


def test_links_in_a_folder_of_images_are_told_as_links(tmp_path: Path) -> None:
    folders(tmp_path / "data", "train", 6)
    link = tmp_path / "data" / "train" / "red" / "link.png"
    link.symlink_to(tmp_path / "none.png")
    with mistake(BadData, link, "a link to nothing"):
        load_rows(own(tmp_path), "train")
    (tmp_path / "none.png").write_bytes(b"secret")
    with mistake(BadData, "'red/link.png'", "a link leads out"):
        load_rows(own(tmp_path), "train")


def test_a_class_without_images_is_told(tmp_path: Path) -> None:
    folders(tmp_path / "data", "train", 6)
    (tmp_path / "data" / "train" / "violet").mkdir()
    with pytest.warns(UserWarning, match="no images of violet"):
        rows = load_rows(own(tmp_path), "train")
    assert "violet" not in rows.task.labels


def test_classes_without_a_split_are_told_where_they_go(tmp_path: Path) -> None:
    folders(tmp_path, "data", 6)
    with mistake(BadData, "data/train with a folder for each class"):
        own(tmp_path)


def test_every_image_that_cannot_be_read_is_shown(tmp_path: Path) -> None:
    """Before somebody trains on them: the first row, too, which is shown as it is read."""
    folders(tmp_path / "data", "train", 6)
    files = sorted((tmp_path / "data" / "train").rglob("*.png"))
    whole = files[0].read_bytes()
    files[0].write_bytes(b"text")
    files[3].write_bytes(whole[: len(whole) // 2])
    own(tmp_path)
    shown = show(str(tmp_path / "own.yaml"))
    broken = shown["splits"]["train"]["broken_images"]
    assert [[name in said for name in (files[0].name, files[3].name)] for said in broken] == [
        [True, False],
        [False, True],
    ]
    assert "is no whole image" in report(shown)
    wrong = vit(tmp_path / "wrong", image_size=12)
    with mistake(BrokenCheckpoint, wrong, "crop_size"):
        show(str(tmp_path / "own.yaml"), model=wrong)


def test_hidden_files_are_passed_over(tmp_path: Path) -> None:
    """A Mac leaves `._1.png`, which is no image, and others leave `.thumbnails`, no class."""
    folders(tmp_path / "data", "train", 6)
    plain = load_rows(own(tmp_path), "train")
    (tmp_path / "data" / "train" / "red" / "._1.png").write_bytes(b"no image")
    (tmp_path / "data" / "train" / ".thumbnails").mkdir()
    (tmp_path / "data" / "train" / ".thumbnails" / "1.png").write_bytes(b"no image")
    assert load_rows(own(tmp_path), "train").digest == plain.digest


def test_an_image_with_a_path_is_called_by_it(tmp_path: Path) -> None:
    folders(tmp_path / "data", "train", 6)
    (tmp_path / "data" / "train" / "green" / "spoiled.png").write_bytes(b"no image")
    images = load_rows(own(tmp_path), "train").images
    assert images is not None
    with mistake(BadData, "own@train 'green/spoiled.png' image"):
        for place in range(7):
            decoded(images(place))


def test_a_link_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    folders(tmp_path / "data", "train", 6)
    (tmp_path / "secret.png").write_bytes(encoded(pictures(1)[0][0]))
    (tmp_path / "data" / "train" / "red" / "link.png").symlink_to(tmp_path / "secret.png")
    with mistake(BadData, "link.png"):
        load_rows(own(tmp_path), "train")


def test_a_class_that_is_a_link_is_one_line(tmp_path: Path) -> None:
    """It would be no class, and its rows would be missing."""
    folders(tmp_path / "data", "train", 6)
    (tmp_path / "data" / "train" / "red").rename(tmp_path / "red")
    (tmp_path / "data" / "train" / "red").symlink_to(tmp_path / "red")
    with mistake(BadData, "train/red link expected a folder"):
        load_rows(own(tmp_path), "train")


def test_files_that_do_not_end_like_images_are_told_of(tmp_path: Path) -> None:
    folders(tmp_path / "data", "train", 6)
    red = tmp_path / "data" / "train" / "red"
    plain = load_rows(own(tmp_path), "train")
    (tmp_path / "data" / "train" / "metadata.csv").write_text("of the whole folder, and no image")
    for number, path in enumerate([*red.iterdir()]):  # a JPEG may end so, whatever is in it
        path.rename(path.with_suffix((".jfif", ".JPE")[number % 2]))
    assert {*load_rows(own(tmp_path), "train").texts} == {*plain.texts}
    next(red.iterdir()).rename(red / "one.heic")
    with pytest.warns(UserWarning, match=r"^files below .*train are ignored: 1, 'one.heic' first"):
        assert len(load_rows(own(tmp_path), "train")) == len(plain) - 1


def test_a_pattern_names_a_folder_for_each_split(tmp_path: Path) -> None:
    for split in ("train", "test"):
        folders(tmp_path / "data", split, 6)
    named = own(tmp_path, "image: picture\nfiles: 'data/{split}'\n")
    plain = own(tmp_path)
    assert load_rows(named, "test").digest == load_rows(plain, "test").digest


def test_a_folder_that_has_no_rows_is_told_how_images_lie(tmp_path: Path) -> None:
    with mistake(BadData, "vision/mnist", "train.parquet", "train/CLASS/IMAGE"):
        load_rows(harness.TASKS["vision/mnist"], "train", folder=tmp_path)


def test_a_name_of_a_file_that_is_none_of_a_task_is_told_with_the_way_out(tmp_path: Path) -> None:
    folders(tmp_path / "data", "train", 6)
    file = tmp_path / "my own.yaml"
    file.write_text("image: picture\nfiles: data\n")
    with mistake(BadData, file, "'my own'", "letters", "name: NAME"):
        harness.TASKS[str(file)]
    file.write_text("image: picture\nfiles: data\nname: mine\n")
    assert harness.TASKS[str(file)].name == "mine"


def test_several_labels_of_an_image_have_a_column_each(tmp_path: Path) -> None:
    """As those of a text, if no column is named."""
    made = [encoded(one) for one, _ in pictures(4)]
    table = {"picture": made, "r": [1, 0, 1, 0], "g": [0, 0, 1, 1]}
    (tmp_path / "data").mkdir()
    pyarrow.parquet.write_table(pyarrow.table(table), tmp_path / "data" / "train.parquet")
    told = "kind: multilabel\nimage: picture\nlabels: [r, g]\nfiles: data\n"
    rows = load_rows(own(tmp_path, told), "train")
    assert rows.labels.tolist() == [[1, 0], [0, 0], [1, 1], [0, 1]]


# Decoding ------------------------------------------------------------------------------------


def stored(image: Any, kind: str = "PNG", **options: Any) -> StoredImage:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return StoredImage(file.getvalue(), "row 7 of x@test")


def test_every_kind_of_image_becomes_rgb() -> None:
    """By hand: what each pixel should be."""
    deep = PIL.fromarray(np.array([[0, 257 * 100, 65535]], dtype=np.uint16))
    palette = PIL.new("P", (3, 1))
    palette.putpalette([10, 20, 30, 40, 50, 60])
    cases: dict[str, tuple[StoredImage, list[Any]]] = {
        "gray": (stored(PIL.new("L", (3, 1), 7)), [7, 7, 7]),
        "one bit": (stored(PIL.new("1", (3, 1), 1)), [255, 255, 255]),
        "16 bits": (stored(deep), [0, 0, 0]),
        "palette": (stored(palette), [10, 20, 30]),
        "palette, clear": (stored(palette, transparency=b"\0\1"), [10, 20, 30]),
        "alpha": (stored(PIL.new("RGBA", (3, 1), (1, 2, 3, 0))), [1, 2, 3]),
        **{
            f"cmyk, {kind}": (stored(PIL.new("CMYK", (3, 1), (0, 255, 255, 0)), kind), [255, 0, 0])
            for kind in ("TIFF", "JPEG")
        },
        **{
            f"animated, {kind}": (
                stored(
                    PIL.new("RGB", (3, 1), (255, 0, 0)),
                    kind,
                    save_all=True,
                    append_images=[PIL.new("RGB", (3, 1), (0, 0, 255))],
                    **options,
                ),
                [255, 0, 0],
            )
            for kind, options in {"GIF": {}, "PNG": {}, "WEBP": {"lossless": True}}.items()
        },
        "16 bits, colours": (
            StoredImage(png(3, 1, [2**8 * 100 + 255, 128, 2**16 - 1] * 3), "row 7 of x@test"),
            [100, 0, 255],
        ),
    }
    for name, (one, first) in cases.items():
        image = decoded(one)
        assert (image.mode, image.size) == ("RGB", (3, 1)), name
        np.testing.assert_array_equal(np.asarray(image)[0, 0], first, name)
    np.testing.assert_array_equal(np.asarray(decoded(stored(deep)))[0, :, 0], [0, 100, 255])


def test_an_image_is_turned_as_its_camera_says() -> None:
    exif = PIL.Exif()
    exif[0x0112] = 6
    assert decoded(stored(PIL.new("RGB", (5, 3)), "JPEG", exif=exif)).size == (3, 5)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_broken_image_is_one_line_with_its_row(kind: str) -> None:
    whole = stored(PIL.fromarray(pictures(1, side=64)[0][0]), kind)
    for data in (b"", b"no image", whole.data[:20], whole.data[: len(whole.data) // 2]):
        with mistake(BadData, "row 7 of x@test"):
            decoded(StoredImage(data, whole.where))


def test_formats_that_run_programs_are_not_read() -> None:
    script = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\nshowpage\n"
    with mistake(BadData, "row 7 of x@test"):
        decoded(StoredImage(script, "row 7 of x@test"))


@pytest.mark.parametrize("share", [1.5, 3], ids=["warned of by Pillow", "refused by Pillow"])
def test_an_image_that_is_too_large_is_refused(
    share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a pixel of it is decoded."""
    monkeypatch.setattr(PIL, "MAX_IMAGE_PIXELS", 1000)
    with mistake(BadData, "row 7 of x@test", "1000"):
        opened(stored(PIL.new("L", (1000, round(share)))) if share > 2 else stored(
            PIL.new("L", (500, 3))
        ))  # fmt: skip


def test_a_text_that_bursts_is_refused() -> None:
    text = b"zTXta\0\0" + zlib.compress(bytes(2**24))
    with mistake(BadData, "row 7 of x@test"):
        opened(StoredImage(png(1, 1, [0, 0, 0], text), "row 7 of x@test"))


# A model on images -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Rows:
    root = tmp_path_factory.mktemp("rows")
    path = parquet(root / "test.parquet", 11, seed=4)
    task = harness.Task(
        "toy/colours",
        kind="classification",
        text=(),
        image="picture",
        label="colour",
        labels=COLOURS,
        metrics=("accuracy",),
        splits={"test": "test"},
        reported="test",
        files={"test": str(path)},
    )
    return load_rows(task, "test")


def test_features_agree_with_transformers_in_float64(base: Path, rows: Rows) -> None:
    from transformers import AutoModelForImageClassification
    from transformers.models.auto.image_processing_auto import AutoImageProcessor

    plain = AutoModelForImageClassification.from_pretrained(base).double().eval()
    processor = AutoImageProcessor.from_pretrained(base, backend="pil")
    assert rows.images is not None
    images = [PIL.open(io.BytesIO(rows.images(row).data)) for row in range(len(rows))]
    values = processor(images=images, return_tensors="pt")["pixel_values"].double()
    with torch.no_grad():
        hidden = plain.vit(values).last_hidden_state[:, 0]
        expected = plain(values).logits
    x, logits, seen = forward(open_checkpoint(base), rows, max_length=1, placement=CPU)
    assert seen.all()
    np.testing.assert_allclose(x, hidden.numpy(), rtol=0, atol=1e-5)
    np.testing.assert_allclose(logits, expected.numpy(), rtol=0, atol=1e-5)
    assert np.ptp(logits, axis=0).min() > 0.01


def test_features_do_not_depend_on_the_batch_or_the_order(base: Path, rows: Rows) -> None:
    checkpoint, order = open_checkpoint(base), [4, 0, 10, 6]
    x = forward(checkpoint, rows, max_length=1, placement=CPU)[0]
    few = forward(checkpoint, take(rows, order), max_length=1, batch_size=3, placement=CPU)[0]
    np.testing.assert_allclose(few, x[order], rtol=0, atol=1e-5)


def test_images_are_decoded_by_the_batch(
    base: Path, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[int] = []
    true = decoded
    monkeypatch.setattr("harness.passes.prepared.decoded", lambda one: held.append(1) or true(one))
    prepared = prepare(open_checkpoint(base), rows, 1)
    assert not held
    batch = prepared.batch([3, 1], CPU)
    assert len(held) == 2
    assert batch["pixel_values"].shape == (2, 3, 8, 8)


def test_the_key_of_features_has_processor_and_decoder(
    base: Path, rows: Rows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Path(shutil.copytree(base, tmp_path / "other"))
    changed = {**PROCESSING, "image_mean": [0.4, 0.5, 0.5]}
    (other / "preprocessor_config.json").write_text(json.dumps(changed))
    first, second = open_checkpoint(base), open_checkpoint(other)
    digest = weights.digest(first.weights)
    assert digest == weights.digest(second.weights)
    before = model_key(first, digest)
    assert before != model_key(second, digest)
    plain, moved = (
        encode(one, rows, digest=digest, columns=(0, 1, 2), max_length=1, placement=CPU).logits
        for one in (first, second)
    )
    assert np.abs(plain - moved).max() > 1e-3
    monkeypatch.setattr("PIL.__version__", "0.0")
    assert before != model_key(first, digest)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"size": {"height": 16, "width": 16}}, ["16, 16", "8, 8"]),
        ({"size": {"height": 10**6, "width": 10**6}}, ["1000000"]),
        ({"image_mean": [0.5]}, ["image processor"]),
        ({"auto_map": {"AutoImageProcessor": "x.Y"}}, ["auto_map"]),
        ({"image_std": [0, 1, 1]}, ["image processor", "image_std"]),
        ({"image_mean": [float("nan")] * 3}, ["image processor", "NaN"]),
        ({"rescale_factor": 1e39}, ["image processor", "infinite"]),
    ],
    ids=["size", "huge", "mean", "code", "deviation", "nan", "factor"],
)
def test_a_processor_that_does_not_fit_is_one_line(
    base: Path, change: dict[str, Any], named: list[str], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(base, tmp_path / "odd"))
    (folder / "preprocessor_config.json").write_text(json.dumps({**PROCESSING, **change}))
    with mistake(BrokenCheckpoint, *named):
        check_ready(open_checkpoint(folder))


def test_a_size_that_is_no_whole_number_is_one_line(base: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(base, tmp_path / "odd"))
    said = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**said, "image_size": 8.0}))
    with mistake(BrokenCheckpoint, folder, "image_size"):
        check_ready(open_checkpoint(folder))


def test_a_model_without_processor_is_one_line(base: Path, rows: Rows, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(base, tmp_path / "bare"))
    (folder / "preprocessor_config.json").unlink()
    with mistake(BrokenCheckpoint, folder, "preprocessor_config.json"):
        check_ready(open_checkpoint(folder))
    with mistake(BrokenCheckpoint, folder, "preprocessor_config.json"):
        prepare(open_checkpoint(folder), rows, 1)


@pytest.mark.parametrize("key", ["image_mean", "image_std", "resample", "size", "rescale_factor"])
def test_models_that_see_an_image_differently_do_not_go_together(
    base: Path, key: str, tmp_path: Path
) -> None:
    others = {"resample": 3, "size": {"height": 9, "width": 9}, "rescale_factor": 1.0}
    other = Path(shutil.copytree(base, tmp_path / "other"))
    changed = {**PROCESSING, key: others.get(key, [0.1, 0.2, 0.3])}
    (other / "preprocessor_config.json").write_text(json.dumps(changed))
    with mistake(IncompatibleWeights, other, key, base):
        check_architecture([open_checkpoint(base), open_checkpoint(other)])


def test_models_that_say_the_same_otherwise_go_together(base: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(base, tmp_path / "other"))
    said = {**PROCESSING, "size": 8, "feature_extractor_type": "ViTFeatureExtractor"}
    for key in ("do_rescale", "image_processor_type"):
        said.pop(key)
    (other / "preprocessor_config.json").write_text(json.dumps(said))
    check_architecture([open_checkpoint(base), open_checkpoint(other)])


@pytest.mark.parametrize(
    "said",
    [
        {"default_to_square": True, "device": None, "input_data_format": None},
        {"do_convert_rgb": True, "return_tensors": None, "disable_grouping": None},
        {"image_processor_type": "ViTImageProcessorFast", "do_center_crop": False},
        {"do_center_crop": None, "crop_size": {"height": 3, "width": 3}},
    ],
    ids=["square", "rgb", "fast", "no crop"],
)
def test_what_nothing_is_done_by_is_no_difference(
    base: Path, said: dict[str, Any], tmp_path: Path
) -> None:
    """Other releases of transformers write it: the pixels are the same, to the bit."""
    other = Path(shutil.copytree(base, tmp_path / "other"))
    (other / "preprocessor_config.json").write_text(json.dumps({**PROCESSING, **said}))
    check_architecture([open_checkpoint(base), open_checkpoint(other)])
    image = PIL.new("RGB", (5, 7), (9, 90, 200))
    seen = [pixels(open_image_processor(one), [image], one) for one in (base, other)]
    assert torch.equal(*seen)


def test_processors_of_the_same_keys_may_make_other_pixels(base: Path, tmp_path: Path) -> None:
    """Levit's resizes to 256 / 224 of what it says before it crops."""
    said = {**PROCESSING, "size": {"shortest_edge": 8}, "do_center_crop": True}
    said["crop_size"] = {"height": 8, "width": 8}
    for name, kind in (("one", "CLIPImageProcessor"), ("other", "LevitImageProcessor")):
        folder = Path(shutil.copytree(base, tmp_path / name))
        text = json.dumps({**said, "image_processor_type": kind})
        (folder / "preprocessor_config.json").write_text(text)
    with mistake(IncompatibleWeights, tmp_path / "other", "other pixels", tmp_path / "one"):
        check_architecture([open_checkpoint(tmp_path / one) for one in ("one", "other")])


def test_a_merge_has_the_processor_of_whoever_has_one(base: Path, tmp_path: Path) -> None:
    bare = Path(shutil.copytree(base, tmp_path / "bare"))
    (bare / "preprocessor_config.json").unlink()
    for number, experts in enumerate(([bare, base], [bare, bare])):
        out = tmp_path / str(number)
        recipe = {"experts": [*map(str, experts)], "base": str(base), "merger": "average"}
        harness.merge(harness.Recipe(**recipe), out=out)
        kept = (out / "preprocessor_config.json").read_text()
        assert kept == (base / "preprocessor_config.json").read_text()


def test_a_model_of_gray_images_is_refused_for_that(base: Path, tmp_path: Path) -> None:
    folder = vit(tmp_path / "gray", num_channels=1)
    with mistake(BrokenCheckpoint, folder, "1 channels", "RGB"):
        check_ready(open_checkpoint(folder))


def test_text_and_images_are_told_apart(base: Path, rows: Rows, tmp_path: Path) -> None:
    bert = open_checkpoint(model(tmp_path / "bert", list(COLOURS)))
    with mistake(BadRecipe, tmp_path / "bert", "text", "toy/colours", "images"):
        prepare(bert, rows, 1)
    texts = replace(rows.task, image="", text=("text",), name="toy/text")
    words = Rows(texts, "test", (("a",),) * len(rows), rows.labels, "")
    with mistake(BadRecipe, base, "images", "toy/text", "text"):
        prepare(open_checkpoint(base), words, 16)


def test_without_pillow_one_line_says_what_to_install(
    base: Path, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    monkeypatch.setitem(__import__("sys").modules, "PIL.Image", None)
    with mistake(BadRecipe, "Pillow", "merging-harness[vision]"):
        prepare(open_checkpoint(base), rows, 1)


def test_show_says_what_images_are_and_nothing_of_lengths(base: Path, tmp_path: Path) -> None:
    shown = show(colours(tmp_path), model=base)
    said = report(shown)
    assert "12 x 10 PNG, RGB" in said
    for word in ("tokens", "words", "cut off", "median"):
        assert word not in said


def test_images_are_shown_with_a_model_of_images(base: Path, tmp_path: Path) -> None:
    task, text = colours(tmp_path), model(tmp_path / "text")
    with mistake(BadRecipe, text, "model of text", "colours", "are images"):
        show(task, model=text)
    for given in (base, None):
        with mistake(BadOption, "max_length is in tokens", "images", "leave it out"):
            show(task, model=given, max_length=4)


def test_a_cosine_of_images_is_refused_in_their_words(base: Path, tmp_path: Path) -> None:
    expert = vit(tmp_path / "e", near=base)
    asked = ["evaluate", "--model", expert, "--tasks", colours(tmp_path), "--protocols", "cosine"]
    refused([*asked, "--output-path", tmp_path / "out"], BadOption, "a classification of images")
