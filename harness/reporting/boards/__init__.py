"""Lines -> boards: a small module for each format, and `leaderboard`, which writes all formats."""
