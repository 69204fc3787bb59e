"""The prima-bench command line: the only layer that prints, and the writer of the documentation's cards."""
