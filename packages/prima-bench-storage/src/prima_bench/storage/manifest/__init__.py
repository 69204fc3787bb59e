"""A version of a dataset as one document that pins all its files; where it is hosted, and how it gets there."""
