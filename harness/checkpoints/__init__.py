"""A folder or a Hub id -> a Checkpoint: its tensors, configuration, tokenizer and provenance."""
