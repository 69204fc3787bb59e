"""Metrics of single cells: whether predicted cells lie where true ones do, and as far apart."""
