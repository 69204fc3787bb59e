"""States: what an evaluation holds, in a file, so that it goes on elsewhere or later.

``container`` writes and reads named arrays under a digest, ``records`` says what a state says of itself, ``rows`` turns
rows into arrays and back, ``holdings`` is what an evaluation holds of them, ``reopening`` leads from a state to an
evaluation that asks the same.
"""
