"""A recipe -> a folder: experts through pre-merging methods and a merger, streamed to disk.

A merge is a fold over stages (`stages`): each a method with its options and the providers
(`providers`) that meet its needs. `plan` composes the merge by headers alone, `tune` chooses among
plans with a `ValidationScorer` (`validation`), `write` computes and writes. `spool` keeps on disk
what is read twice, and `premerge_report` measures what the pre-merging steps (`premerge_steps`) did
to the experts.
"""
