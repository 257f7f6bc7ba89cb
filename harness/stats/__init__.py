"""Pure: the uncertainty of scores and their differences: intervals, tests and ranks."""
