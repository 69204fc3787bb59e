"""An interrupt that cannot get lost.

Python raises it wherever the program happens to be. Inside a library that, say while it is loaded, passes over every
exception, it would be passed over too, and the work would go on. So it is remembered, and raised again at the next
step.
"""

import signal
from types import FrameType

_received = False


def remember() -> None:
    """From now on remember an interrupt, unless the program was started so that it ignores them."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _receive)


def heed() -> None:
    """Raise KeyboardInterrupt if one was received."""
    if _received:
        raise KeyboardInterrupt


def _receive(number: int, frame: FrameType | None) -> None:
    global _received
    _received = True
    raise KeyboardInterrupt
