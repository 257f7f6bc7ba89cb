"""Pure: an inspection -> the text that the command prints."""

from __future__ import annotations

from harness.inspecting.comparison import Measure, WeightComparison, available_measures
from harness.inspecting.inspection import Inspection, Pair, remarks
from harness.text import aligned, number, plain, wrapped

WIDTH = 80
SHORT = {"attention output": "attn.\noutput", "convolution": "conv."}


def report(inspection: Inspection, columns: int | None = None) -> str:
    """The models by number, a line for each pair, tables of layers x roles, and remarks."""
    wide = columns or WIDTH
    measures = available_measures(with_base=inspection.base is not None)
    parts = [_models(inspection), _pairs(inspection)]
    if len(inspection.pairs) == 1:
        # absolute distances grow with the size of a matrix: they are in the JSON only
        (pair,) = inspection.pairs
        parts += [_layers(pair, one, wide) for one in measures if one.name != "distance"]
        parts += [wrapped(plain(text), wide) for text in _units(pair)]
    else:
        parts.append("Layers are shown for two models only; for more, see --json or --out.")
    parts += [wrapped(plain(text), wide) for text in (*_left_out(inspection), *remarks(inspection))]
    return "\n\n".join(parts)


def _models(inspection: Inspection) -> str:
    lines = [f"{at}  {plain(one.name)}" for at, one in enumerate(inspection.models, start=1)]
    if inspection.base:
        lines.append(f"base  {plain(inspection.base.name)}")
    return "\n".join(lines)


def _pairs(inspection: Inspection) -> str:
    headers = ["pair", "distance", "relative"]
    if inspection.base:
        headers += ["norms", "ratio", "cosine", "signs\nshared"]
    headers.append("units\nkept")
    rows = []
    for pair in inspection.pairs:
        one = pair.whole
        row = [_numbers(inspection, pair), _shown(one.distance), _shown(one.relative)]
        if inspection.base:
            row += [", ".join(map(_shown, one.task_vector_norms)), _shown(one.ratio)]
            row += [_shown(one.cosine, ".3f"), _shown(one.agreement, ".3f")]
        rows.append([*row, _shown(pair.share_in_place)])
    said = "norms, ratio, cosine and signs are of the task vectors; " if inspection.base else ""
    how = f"distances are without heads; relative: to the norm; {said}units: matched to themselves"
    return f"{aligned(rows, headers)}\n\n{wrapped(plain(how), WIDTH)}"


def _shown(value: float | None, form: str = ".3g") -> str:
    return "" if value is None else number(value, form)


def _numbers(inspection: Inspection, pair: Pair) -> str:
    return ", ".join(str(inspection.models.index(one) + 1) for one in (pair.first, pair.second))


def _layers(pair: Pair, measure: Measure, wide: int) -> str:
    """The table of a measure: layers x roles, and below it the roles outside of layers."""
    roles = pair.roles(in_layers=True)

    def cell(one: WeightComparison | None) -> str:
        return "" if one is None else _shown(getattr(one, measure.name), measure.form)

    within = {**{str(layer): [layer] for layer in pair.layers}, "all": pair.layers}
    rows = [
        [called, *(cell(pair.sum_over(layers, role)) for role in (*roles, None))]
        for called, layers in within.items()
    ]
    headers = ["layer", *(SHORT.get(role, role) for role in roles), "all"]
    outside = {role: cell(pair.sum_over([None], role)) for role in pair.roles(in_layers=False)}
    title = measure.title.format(first=pair.first.name, second=pair.second.name)
    lines = [wrapped(plain(title), wide), ""]
    if pair.layers:
        lines.append(aligned(rows, headers))
    if any(outside.values()):
        lines.append(f"outside  {', '.join(f'{k} {v}' for k, v in outside.items() if v)}")
    return "\n".join(lines)


def _units(pair: Pair) -> list[str]:
    """A line on feed-forward units, if the family has a table that names them."""
    some = {layer: one for layer, one in pair.units.items() if one.kept < one.units}
    moved = [f"all but {a.units - a.kept} of {a.units} in layer {of}" for of, a in some.items()]
    every = "all, in every layer" if not moved else ", ".join(moved)
    return [f"Feed-forward units matched to themselves: {every}."] if pair.units else []


def _left_out(inspection: Inspection) -> list[str]:
    """Lines on the tensors that are left out, one for all pairs that leave out the same."""
    pairs: dict[tuple[str, ...], list[str]] = {}
    for pair in inspection.pairs:
        names = tuple(name.partition(" ")[0] for name in pair.left_out)
        pairs.setdefault(names, []).append(_numbers(inspection, pair).replace(", ", " and "))
    pairs.pop((), None)
    why = "as shapes differ or one lacks them"
    return [f"Left out of {'; '.join(of)}, {why}: {', '.join(n)}." for n, of in pairs.items()]
