"""Whether a method has its properties, and is as good as its recorded baseline."""
