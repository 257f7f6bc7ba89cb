"""A run -> records: what a `Run` names is opened, checked and evaluated, cell by cell.

The steps, file by file: `run` (all settings, a value); `task_split` (protocols with their options);
`resolve` (models are opened, then their tasks and heads found: an `OpenedModel`); `cells` (rows and
draws, a `TaskSplit` for each task; the rows of the table on it, an `EvaluatedModel` each; a `Cell`
for each of these and each protocol, which knows the path of its record); `evaluate` (existing
records are read, and the models of all other cells are checked, so that bad input is refused before
any forward pass); `reader` (features for protocols, one pass over the same rows for all); and the
predictions of the protocol are scored and recorded.
"""
