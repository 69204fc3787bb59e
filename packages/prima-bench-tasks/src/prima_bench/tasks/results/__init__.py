"""Results: what an evaluation leaves behind.

``schema`` is the typed result, ``checks`` says what its parts owe each other, ``assemble`` makes it of the kernel's
scores, ``digest`` has its digests, ``files`` reads and writes, ``text`` and ``html`` show it, ``leaderboard`` ranks
several. Nothing here computes a score.
"""
