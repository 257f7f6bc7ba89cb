"""Pure: an inspection -> the text that the command prints."""

from __future__ import annotations

from harness.inspecting.comparison import Measure, WeightComparison, available_measures
from harness.inspecting.inspection import Inspection, Pair, numbers_of, remarks
from harness.text import aligned, number, plain, wrapped

WIDTH = 80
SHORT = {"attention output": "attn.\noutput", "convolution": "conv."}


def report(inspection: Inspection, columns: int | None = None) -> str:
    """The models by number, a line for each pair, tables of layers x roles, and remarks."""
    width = columns or WIDTH
    measures = available_measures(with_base=inspection.base is not None)
    parts = [_models(inspection), _pairs(inspection)]
    texts = [*_left_out(inspection), *remarks(inspection)]
    if len(inspection.pairs) == 1:
        # absolute distances grow with the size of a matrix: they are in the JSON only
        (pair,) = inspection.pairs
        parts += [
            _layers(pair, measure, width) for measure in measures if measure.name != "distance"
        ]
        texts = [*_units(pair), *texts]
    else:
        parts.append("Layers are shown for two models only; for more, see --json or --out.")
    return "\n\n".join([*parts, *(wrapped(plain(text), width) for text in texts)])


def _models(inspection: Inspection) -> str:
    lines = [f"{n}  {plain(model.name)}" for n, model in enumerate(inspection.models, start=1)]
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
        whole = pair.whole
        both = ", ".join(numbers_of(inspection, pair))
        row = [both, _shown(whole.distance), _shown(whole.relative)]
        if inspection.base:
            row += [", ".join(map(_shown, whole.task_vector_norms)), _shown(whole.ratio)]
            row += [_shown(whole.cosine, ".3f"), _shown(whole.agreement, ".3f")]
        rows.append([*row, _shown(pair.share_in_place)])
    vectors = "norms, ratio, cosine and signs are of the task vectors; " if inspection.base else ""
    legend = (
        f"distances are without heads; relative: to the norm; {vectors}units: matched to themselves"
    )
    return f"{aligned(rows, headers)}\n\n{wrapped(plain(legend), WIDTH)}"


def _shown(value: float | None, form: str = ".3g") -> str:
    return "" if value is None else number(value, form)


def _layers(pair: Pair, measure: Measure, width: int) -> str:
    """The table of a measure: layers x roles, and below it the roles outside of layers."""
    roles = pair.roles(in_layers=True)

    def cell(comparison: WeightComparison | None) -> str:
        return "" if comparison is None else _shown(getattr(comparison, measure.name), measure.form)

    within = {**{str(layer): [layer] for layer in pair.layers}, "all": pair.layers}
    rows = [
        [label, *(cell(pair.sum_over(layers, role)) for role in (*roles, None))]
        for label, layers in within.items()
    ]
    headers = ["layer", *(SHORT.get(role, role) for role in roles), "all"]
    outside = {role: cell(pair.sum_over([None], role)) for role in pair.roles(in_layers=False)}
    title = measure.title.format(first=pair.first.name, second=pair.second.name)
    lines = [wrapped(plain(title), width), ""]
    if pair.layers:
        lines.append(aligned(rows, headers))
    if any(outside.values()):
        lines.append(f"outside  {', '.join(f'{k} {v}' for k, v in outside.items() if v)}")
    return "\n".join(lines)


def _units(pair: Pair) -> list[str]:
    """A line on feed-forward units, if the family has a table that names them."""
    moved = [
        f"all but {counts.units - counts.kept} of {counts.units} in layer {layer}"
        for layer, counts in pair.units.items()
        if counts.kept < counts.units
    ]
    text = ", ".join(moved) or "all, in every layer"
    return [f"Feed-forward units matched to themselves: {text}."] if pair.units else []


def _left_out(inspection: Inspection) -> list[str]:
    """Lines on the tensors that are left out, one for all pairs that leave out the same."""
    pairs: dict[tuple[str, ...], list[str]] = {}
    for pair in inspection.pairs:
        names = tuple(name.partition(" ")[0] for name in pair.left_out)
        pairs.setdefault(names, []).append(" and ".join(numbers_of(inspection, pair)))
    pairs.pop((), None)
    why = "as shapes differ or one lacks them"
    return [f"Left out of {'; '.join(group)}, {why}: {', '.join(n)}." for n, group in pairs.items()]
