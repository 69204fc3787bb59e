"""Metrics for predicted classes: hard labels, class probabilities or logits against one true class a row."""
