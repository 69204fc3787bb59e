"""Metrics of predicted responses to perturbations; one file for each metric or close family."""
