"""Problems: a solution once opened, and how predictions are read and aligned to it, one family of tasks per file."""
