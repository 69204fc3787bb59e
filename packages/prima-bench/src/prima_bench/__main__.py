"""``python -m prima_bench`` is the ``prima-bench`` command."""

from prima_bench.cli.main import run

if __name__ == "__main__":
    run()
