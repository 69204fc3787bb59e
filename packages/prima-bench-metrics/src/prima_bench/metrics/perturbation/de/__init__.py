"""Metrics of differential expression: what a rank-sum test calls on predicted and on true cells."""
