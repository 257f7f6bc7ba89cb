"""What chance makes of scores: pure functions of numbers."""
