"""``python -m prima_bench.cli`` is the ``prima-bench`` command, as ``torchrun -m prima_bench.cli`` starts it."""

from prima_bench.cli.main import run

if __name__ == "__main__":
    run()
