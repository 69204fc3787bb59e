"""Metrics of pseudobulks: predicted and true expression of each perturbation, summed over its cells."""
