"""Differential expression: rank-sum tests of groups of cells against a control, and false discovery rates."""
