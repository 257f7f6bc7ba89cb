"""Lines -> boards: one small module for each format, and `leaderboard`, which writes them all."""
