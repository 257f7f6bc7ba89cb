"""A recipe -> a folder: experts through pre-merging methods and a merger, streamed to disk."""
