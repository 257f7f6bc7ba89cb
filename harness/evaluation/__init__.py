"""A run -> records: what a `Run` names is opened, checked and evaluated, cell by cell.

The way of a run, file by file: `run` (what was typed, a value); `task_split` (protocols with their
options); `resolve` (models are opened, then their tasks are told, then their heads are read: an
`OpenedModel`); `cells` (rows and draws, a `TaskSplit` for each task; on each of them the rows of
the table, an `EvaluatedModel` each; every pair under every protocol is a `Cell`, whose record's
path is known now); `evaluate` (records that are there are read back, and the models of all other
cells are checked: here bad input ends, before any forward pass); `reader` (features for a
protocol, of one pass over the same rows); and the protocol's predictions are scored and recorded.
"""
