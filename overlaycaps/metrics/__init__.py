"""Scores of multi-label predictions, and intervals for them; numpy only."""
