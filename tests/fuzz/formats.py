"""Ways to spoil a file of one kind: safetensors, rows, tokenizers, configurations."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from tests.fuzz.mutations import ANY, JSON, RAW, Spoil, json_value

# safetensors -------------------------------------------------------------------------------


def header(content: bytes, random: Random) -> bytes:
    """Another header before the same tensors."""
    text, body = _parted(content)
    return _joined(random.choice((*JSON, *ANY[:6]))(text, random), body)


def header_field(content: bytes, random: Random) -> bytes:
    """A tensor of another type, shape or place."""
    text, body = _parted(content)
    tree = json.loads(text)
    name = random.choice([key for key in tree if key != "__metadata__"])
    entry = tree[name]
    kind = random.choice(("dtype", "shape", "data_offsets", "name", "same place"))
    if kind == "dtype":
        entry["dtype"] = random.choice(
            ("F16", "BF16", "F64", "I64", "I32", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "C64", "F4",
             "U16", "U64", "f32", "X", "")
        )  # fmt: skip
    elif kind == "shape":
        entry["shape"] = random.choice(
            ([], [0], [1], [-1], [2**62, 4], [2**63], [10**9, 10**9], entry["shape"] * 2,
             entry["shape"][::-1], [1.5], ["4"], None, [1] * 70)
        )  # fmt: skip
    elif kind == "data_offsets":
        start, end = entry["data_offsets"]
        entry["data_offsets"] = random.choice(
            ([0, 2**63], [end, start], [start + 4, end + 4], [start], [], [0, 0], [-4, 0],
             [start, end + 2**40], [start, end - 1])
        )  # fmt: skip
    elif kind == "name":
        odd = ("", "\ud800", "x" * 5000, "../x", "a.b.c.d", "classifier.weight.weight", "\x00", "é")
        tree[random.choice(odd)] = tree.pop(name)
    else:
        other = random.choice([key for key in tree if key != "__metadata__"])
        tree[name] = tree[other]
    return _joined(json.dumps(tree).encode(), body)


def header_length(content: bytes, random: Random) -> bytes:
    """Another number of bytes for the header than it has."""
    length = random.choice((0, 1, 7, 2**31, 2**40, 2**63, 2**64 - 1, 100_000_001, len(content)))
    return length.to_bytes(8, "little") + content[8:]


def values(content: bytes, random: Random) -> bytes:
    """Entries that are NaN, infinite, huge or tiny, anywhere or everywhere."""
    text, body = _parted(content)
    odd = random.choice(
        (b"\x00\x00\xc0\x7f", b"\x00\x00\x80\x7f", b"\x00\x00\x80\xff", b"\xff\xff\x7f\x7f",
         b"\x01\x00\x00\x00", b"\x00\x00\x00\x80", b"\x99\x76\x96\x7e", b"\x01\x00\x80\x7f")
    )  # fmt: skip
    if random.random() < 0.3:
        return _joined(text, odd * (len(body) // 4))
    start = 4 * random.randrange(max(1, len(body) // 4))
    return _joined(text, body[:start] + odd + body[start + 4 :])


SAFETENSORS: Sequence[Spoil] = (header, header_field, header_field, header_length, values, values)


def description(content: bytes, random: Random) -> bytes:
    """A file of statistics that says something else of itself."""
    text, body = _parted(content)
    tree = json.loads(text)
    key = "merging-harness"
    said = tree["__metadata__"][key].encode()
    spoilt = random.choice((*JSON, *JSON, *ANY[:6]))(said, random)
    tree["__metadata__"][key] = spoilt.decode("utf-8", "replace")
    return _joined(json.dumps(tree).encode("utf-8", "surrogatepass"), body)


def _parted(content: bytes) -> tuple[bytes, bytes]:
    end = 8 + int.from_bytes(content[:8], "little")
    return content[8:end].rstrip(), content[end:]


def _joined(text: bytes, body: bytes) -> bytes:
    return len(text).to_bytes(8, "little") + text + body


# Rows --------------------------------------------------------------------------------------


def column(content: bytes, random: Random) -> bytes:
    """A Parquet file with a column of another type, or with other values in it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(io.BytesIO(content))
    name = random.choice(("sentence1", "sentence2", "label", "label"))
    rows = len(table)
    array = random.choice(_columns(pa))(rows)
    table = table.set_column(table.schema.get_field_index(name), name, array)
    return _parquet(table)


def _columns(pa: Any) -> Sequence[Callable[[int], Any]]:
    from datetime import date, datetime, timedelta
    from decimal import Decimal

    def of(kind: Any, *values: Any) -> Callable[[int], Any]:
        return lambda rows: pa.array([values[i % len(values)] for i in range(rows)], kind)

    return (
        of(pa.null(), None), of(pa.bool_(), True, False), of(pa.bool_(), None, True),
        of(pa.int8(), -1, 0), of(pa.int64(), 2**62, 0), of(pa.uint64(), 2**64 - 1),
        of(pa.float16(), 0.0, 1.0), of(pa.float64(), float("nan"), 1.0), of(pa.float64(), 0.5),
        of(pa.float64(), float("inf")), of(pa.float64(), 1e308, 1.0), of(pa.string(), None, "0"),
        of(pa.string(), "0", "1"), of(pa.string(), "entailment", "not_entailment"),
        of(pa.string(), ""), of(pa.large_string(), "\u202e", "word1\x00"),
        of(pa.string(), "x" * 100_000), of(pa.string(), " "), of(pa.string(), "word1 " * 3000),
        of(pa.binary(), b"\xff\xfe", b"0"), of(pa.date32(), date(2001, 1, 1)),
        of(pa.timestamp("ns", "Mars/Base"), datetime(2001, 1, 1)),
        of(pa.duration("s"), timedelta(1)), of(pa.decimal128(5, 2), Decimal("1.00")),
        of(pa.list_(pa.int64()), [1, 2], None), of(pa.list_(pa.string()), ["a"], []),
        of(pa.struct([("x", pa.int64())]), {"x": 1}),
        of(pa.map_(pa.string(), pa.int64()), [("k", 1)]),
        of(pa.list_(pa.list_(pa.float32())), [[1.0]]), of(pa.time32("s"), 5),
        lambda rows: pa.array(["a", "b"] * rows).slice(0, rows).dictionary_encode(),
        lambda rows: pa.array([2**70 % 7] * rows, pa.int64()).cast(pa.decimal256(40, 0)),
    )  # fmt: skip


def columns(content: bytes, random: Random) -> bytes:
    """A Parquet file with columns less, twice, or called otherwise, or with no rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(io.BytesIO(content))
    names = table.column_names
    kind = random.choice(("drop", "double", "rename", "none", "no rows", "one row", "order"))
    if kind == "drop":
        table = table.drop_columns(random.choice(names))
    elif kind == "double":
        table = table.append_column(random.choice(names), table.column(random.choice(names)))
    elif kind == "rename":
        odd = random.choice(("", "LABEL", "label ", "a.b", "label\x00", "é", "x" * 4000))
        table = table.rename_columns([odd if i == 2 else n for i, n in enumerate(names)])
    elif kind == "none":
        table = pa.table({})
    else:
        picked = {"no rows": [], "one row": [0], "order": list(range(len(table)))[::-1]}[kind]
        table = table.take(pa.array(picked, pa.int64()))
    return _parquet(table)


def features(content: bytes, random: Random) -> bytes:
    """A Parquet file whose metadata say other things of its columns."""
    import pyarrow.parquet as pq

    table = pq.read_table(io.BytesIO(content))
    text, number = {"dtype": "string", "_type": "Value"}, {"dtype": "int64", "_type": "Value"}
    label = {"names": ["entailment", "not_entailment"], "_type": "ClassLabel"}
    known = {"sentence1": text, "sentence2": text, "label": label, "idx": number}
    info = {"info": {"features": known}, "fingerprint": "0"}
    said = random.choice((*JSON, *JSON, *ANY[:6]))(json.dumps(info).encode(), random)
    if random.random() < 0.3:
        info["info"]["features"][random.choice(list(known))] = random.choice(ODD_FEATURES)
        said = json.dumps(info).encode()
    keys: list[dict[bytes, bytes]] = [{b"huggingface": said}, {b"pandas": said}, {said[:40]: said}]
    return _parquet(table.replace_schema_metadata(random.choice((keys[0], keys[0], *keys))))


ODD_FEATURES: Sequence[Any] = (
    {"_type": "Image"}, {"_type": "Audio"}, {"_type": "Toaster"}, {"_type": "Value"},
    {"dtype": "int7", "_type": "Value"}, {"dtype": "timestamp[x]", "_type": "Value"},
    {"names": 3, "_type": "ClassLabel"}, {"names": [1, 2], "_type": "ClassLabel"},
    {"names": ["a", "a"], "_type": "ClassLabel"}, {"num_classes": 10**9, "_type": "ClassLabel"},
    {"num_classes": -1, "_type": "ClassLabel"}, {"names": [], "_type": "ClassLabel"},
    {"names_file": "/etc/passwd", "_type": "ClassLabel"}, {"_type": "ClassLabel"},
    {"feature": {"dtype": "int64", "_type": "Value"}, "_type": "Sequence"}, {"_type": "Sequence"},
    {"_type": "Array2D", "shape": [1, -1], "dtype": "int64"}, {"_type": "Translation"},
    {"dtype": "string", "_type": "Value", "id": {"x": 1}}, [], None, "int64", 7, {},
    {"_type": "Pdf"}, {"_type": "Video"}, {"_type": "ArrayXD"}, {"_type": "__class__"},
)  # fmt: skip


def _parquet(table: Any) -> bytes:
    import pyarrow.parquet as pq

    file = io.BytesIO()
    pq.write_table(table, file)
    return file.getvalue()


PARQUET: Sequence[Spoil] = (column, column, columns, features, features)


def json_line(content: bytes, random: Random) -> bytes:
    """A line of another shape among the lines."""
    lines = content.splitlines()
    place = random.randrange(len(lines))
    odd = [raw.encode() for raw in RAW]
    lines[place] = random.choice((json_value(lines[place], random), random.choice(odd)))
    return b"\n".join(lines) + b"\n"


def every_json_line(content: bytes, random: Random) -> bytes:
    """The same change of every line."""
    seed = random.random()
    return b"\n".join(json_value(one, Random(seed)) for one in content.splitlines()) + b"\n"


JSONL: Sequence[Spoil] = (json_line, json_line, every_json_line)


def tag_line(content: bytes, random: Random) -> bytes:
    """Lines of words and tags with another word, another tag, none, or of another sentence."""
    lines = content.splitlines()
    odd = (
        b"word1", b"#word1", b"# _ B-PER", b"word1 _ B-ODD", b"word1 _ b-per", b"word1\tO",
        b"-DOCSTART- -X- O", b"", b"word1 _ I-PER", b"word1 _ B-", b"word1 _ -PER", b"word1 _ 3",
        b"w" * 100_000 + b" _ O", b"word1 " * 5000 + b"O", b"\xe2\x80\xa8 _ O",
        b"word1 _ " + b"x" * 999,
    )  # fmt: skip
    for place in random.sample(range(len(lines)), random.choice((1, 1, 5, len(lines)))):
        lines[place] = random.choice(odd)
    return b"\n".join(lines) + b"\n"


CONLL: Sequence[Spoil] = (tag_line,)


def cell(content: bytes, random: Random) -> bytes:
    """A cell, or a whole line, of another shape."""
    lines = [line.split(",") for line in content.decode().splitlines()]
    row = random.choice(lines)
    odd = random.choice(
        ("", " ", "x", "-1", "NaN", "inf", "1e308", "2001-01-01", '"', '"a', '"a"b', 'a"b', '"",""',
         "\x00", "\r", '"a\nb"', "null", "None", "true", "0x1", "1,2,3,4", "é" * 9, "9" * 400,
         "x" * 2_000_000, "\ufeff", "1.0", " 1")
    )  # fmt: skip
    if random.random() < 0.2:
        for other in lines[1:]:
            other[2 % len(other)] = odd
    else:
        row[random.randrange(len(row))] = odd
    if random.random() < 0.2:
        row.pop()
    return ("\n".join(",".join(line) for line in lines) + "\n").encode()


CSV: Sequence[Spoil] = (cell, cell)

# Tokenizers --------------------------------------------------------------------------------

ODD_MODELS: Sequence[Any] = (
    {"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "b"]]},
    {"type": "BPE", "vocab": {}, "merges": []},
    {"type": "BPE", "vocab": {"a": 0}, "merges": ["a"], "byte_fallback": True},
    {"type": "Unigram", "vocab": [], "unk_id": 5},
    {"type": "Unigram", "vocab": [["a", 0.0]], "unk_id": 0},
    {"type": "Unigram", "vocab": [["a", float("-inf")]], "unk_id": None},
    {"type": "Unigram", "vocab": ["a"]},
    {"type": "WordPiece", "vocab": {}, "unk_token": "x", "continuing_subword_prefix": "##",
     "max_input_chars_per_word": 0},
    {"type": "WordLevel", "vocab": {}, "unk_token": "[UNK]"},
    {"type": "WordLevel", "vocab": {"[UNK]": 4_000_000_000}, "unk_token": "[UNK]"},
    {"type": "WordLevel", "vocab": {"[UNK]": 45}, "unk_token": "[UNK]"},
    {"type": "WordLevel", "vocab": {"[UNK]": -1}, "unk_token": "[UNK]"},
    {"type": "WordLevel", "vocab": {"[UNK]": 1.5}, "unk_token": "[UNK]"},
    {"type": "WordLevel", "vocab": [["a", 1]], "unk_token": "a"},
    {"type": "WordLevel", "vocab": [[]], "unk_token": "a"},
    {"type": "WordLevel", "vocab": [1, 2], "unk_token": "a"},
    {"type": "Toaster"},
)  # fmt: skip
SLOW = {"Regex": "(a|aa|w|wo|wor|word)*(word|o|r|d)*(word|w|o|r|d)*$^"}
ODD_PARTS: Sequence[tuple[str, Any]] = (
    ("normalizer", {"type": "Replace", "pattern": {"Regex": "(?:x{1000}){1000}"}, "content": ""}),
    ("normalizer", {"type": "Replace", "pattern": {"Regex": "("}, "content": ""}),
    ("normalizer", {"type": "Replace", "pattern": {"Regex": ""}, "content": "word1"}),
    ("normalizer", {"type": "Replace", "pattern": SLOW, "content": "x"}),
    ("normalizer", {"type": "Replace", "pattern": {"String": ""}, "content": "xxxxxxxx"}),
    ("normalizer", {"type": "Prepend", "prepend": "w" * 100_000}),
    ("normalizer", {"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
    ("normalizer", {"type": "Precompiled", "precompiled_charsmap": "x"}),
    ("normalizer", {"type": "Sequence", "normalizers": []}),
    ("normalizer", {"type": "Strip", "strip_left": True, "strip_right": True}),
    ("pre_tokenizer", None),
    ("pre_tokenizer", {"type": "Split", "pattern": SLOW, "behavior": "Isolated", "invert": False}),
    ("pre_tokenizer", {"type": "Split", "pattern": {"String": ""}, "behavior": "Removed",
                       "invert": True}),
    ("pre_tokenizer", {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True}),
    ("post_processor", None),
    ("post_processor", {"type": "TemplateProcessing", "single": [], "pair": [],
                        "special_tokens": {}}),
    ("post_processor", {"type": "BertProcessing", "sep": ["[SEP]", 99], "cls": ["[CLS]", 98]}),
    ("post_processor", {"type": "BertProcessing", "sep": ["[SEP]", 2**31], "cls": ["x", 2]}),
    ("truncation", {"direction": "Right", "max_length": 0, "strategy": "LongestFirst",
                    "stride": 0}),
    ("truncation", {"direction": "Right", "max_length": 4, "strategy": "OnlyFirst", "stride": 9}),
    ("padding", {"strategy": {"Fixed": 10**9}, "direction": "Right", "pad_to_multiple_of": None,
                 "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"}),
    ("padding", {"strategy": "BatchLongest", "direction": "Left", "pad_to_multiple_of": 0,
                 "pad_id": 99, "pad_type_id": 9, "pad_token": ""}),
    ("added_tokens", [{"id": 2**31, "content": "word1", "special": True, "single_word": False,
                       "lstrip": False, "rstrip": False, "normalized": False}]),
    ("added_tokens", [{"id": 0, "content": "", "special": False, "single_word": True,
                       "lstrip": True, "rstrip": True, "normalized": True}]),
    ("version", "9.0"),
)  # fmt: skip


def tokenizer_part(content: bytes, random: Random) -> bytes:
    """A tokenizer.json with a part that is valid for itself, or nearly."""
    tree = json.loads(content)
    if random.random() < 0.4:
        tree["model"] = random.choice(ODD_MODELS)
    else:
        key, part = random.choice(ODD_PARTS)
        tree[key] = part
    return json.dumps(tree).encode()


def tokenizer_ids(content: bytes, random: Random) -> bytes:
    """Tokens with the numbers of others, or of none."""
    tree = json.loads(content)
    vocab = tree["model"]["vocab"]
    for word in random.sample(sorted(vocab), random.choice((1, 5, len(vocab)))):
        vocab[word] = random.choice((0, 44, 45, 46, 1000, 2**31, 2**32 - 1, 2**32, -1))
    return json.dumps(tree).encode()


def vocabulary_line(content: bytes, random: Random) -> bytes:
    """A vocab.txt with a token more, less or twice."""
    lines = content.splitlines()
    place = random.randrange(len(lines))
    kind = random.choice(("more", "less", "twice", "blank", "none special", "long", "many"))
    if kind == "more":
        lines.insert(place, b"new")
    elif kind == "less":
        del lines[place]
    elif kind == "twice":
        lines[place] = lines[0]
    elif kind == "blank":
        lines[place] = b""
    elif kind == "none special":
        lines = lines[5:]
    elif kind == "long":
        lines[place] = b"w" * 300_000
    else:
        lines += [b"new%d" % i for i in range(50_000)]
    return b"\n".join(lines) + b"\n"


# Configurations ----------------------------------------------------------------------------

NUMBERS = (
    0,
    -1,
    1,
    3,
    10**4,
    10**6,
    10**9,
    2**31,
    2**63,
    2**64,
    10**30,
    1.5,
    1e308,
    "16",
    None,
    [2],
)
SIZES = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size",
    "max_position_embeddings", "type_vocab_size", "num_labels", "chunk_size_feed_forward",
    "pad_token_id", "layer_norm_eps", "hidden_dropout_prob", "classifier_dropout",
    "initializer_range", "bos_token_id", "num_choices", "output_hidden_states",
)  # fmt: skip
FIELDS: Sequence[tuple[str, Any]] = (
    ("model_type", "gpt2"), ("model_type", "roberta"), ("model_type", "t5"), ("model_type", ""),
    ("model_type", "vit"), ("model_type", "auto"), ("model_type", "../bert"),
    ("model_type", "clip"), ("hidden_act", "toaster"), ("hidden_act", "linear"),
    ("hidden_act", {"x": 1}), ("dtype", "int8"), ("dtype", "float16"), ("torch_dtype", "float8"),
    ("dtype", {"x": "float32"}),
    ("problem_type", "multi_label_classification"), ("problem_type", "regression"),
    ("problem_type", "x"), ("id2label", {}), ("id2label", {"0": "x"}), ("id2label", None),
    ("id2label", {"0": None, "1": 7}), ("id2label", ["entailment", "not_entailment"]),
    ("id2label", {"-1": "x", "5": "y"}), ("id2label", {str(i): f"l{i}" for i in range(3000)}),
    ("id2label", {"1e9": "x"}), ("id2label", {"999999999999": "x", "0": "y"}), ("label2id", 3),
    ("label2id", {"x": "y"}), ("architectures", 3), ("architectures", ["Toaster"]),
    ("auto_map", {"AutoModel": "x.y"}), ("quantization_config", {"quant_method": "x"}),
    ("quantization_config", {"load_in_8bit": True}), ("pruned_heads", {"0": [0]}),
    ("pruned_heads", {"99": [0]}), ("is_decoder", True), ("add_cross_attention", True),
    ("is_encoder_decoder", True), ("use_cache", "x"), ("return_dict", False),
    ("use_return_dict", 1), ("output_attentions", True), ("torchscript", True),
    ("tie_word_embeddings", "x"),
    ("attn_implementation", "toaster"), ("_attn_implementation", "flash_attention_2"),
    ("_attn_implementation", "a/b"), ("attn_implementation", {"": "eager"}), ("rope_scaling", 7),
    ("position_embedding_type", "x"), ("transformers_version", 5), ("_name_or_path", ["x"]),
    ("name_or_path", 3), ("tokenizer_class", "Toaster"), ("tokenizer_class", 3),
    ("sub_configs", {}), ("attribute_map", {"hidden_size": "hidden_size"}), ("__class__", "x"),
    ("to_dict", 1), ("get_text_config", 1), ("use_bfloat16", 1), ("base_model_tp_plan", {"x": "y"}),
)  # fmt: skip


def config_field(content: bytes, random: Random) -> bytes:
    """A field that transformers knows, with a value that no trained model has."""
    tree = json.loads(content)
    for _ in range(random.choice((1, 1, 2))):
        if random.random() < 0.5:
            tree[random.choice(SIZES)] = random.choice(NUMBERS)
        else:
            key, value = random.choice(FIELDS)
            tree[key] = value
    return json.dumps(tree).encode()
