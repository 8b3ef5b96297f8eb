"""The code to take home: one plain file for each lesson, which imports public packages only."""
