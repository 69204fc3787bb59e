r"""Whether the ranks of a process group are all there: so that none waits for another that will never come.

Every rank that has rows to share beats: a thread writes a counter to the group's own store (that of
``torch.distributed``) every two seconds. Before rows move the ranks meet in that store, and one that waits there looks
after the others: a rank that beats is waited for, however slow it is; one that gave up, or fell silent, is named
in one error that all others raise. No collective begins before all have come, so none is left hanging.
"""

import atexit
import os
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

from prima_bench.metrics.errors import LostRankError

BEAT_SECONDS = 2.0
LOST_SECONDS = 30.0
"""How long a rank may be silent: one call of a library can keep all other threads of its process waiting."""
LOOK_SECONDS = 2.0

_HINT = (
    "Mend that rank, or leave it out, and run all of them again. Nothing that was handed in here is lost: "
    "Evaluation.save() keeps it."
)
_GAVE_UP, _SILENT, _LEFT = "gave up", "ended without a word, or cannot be reached any more", "left"


class Attendance:
    """One rank's part in looking after each other.

    Args:
        store: The default process group's store.
        rank: This rank.
        world: How many there are.
    """

    def __init__(self, store: Any, rank: int, world: int) -> None:
        # A connection of its own: others may wait in the store for long, which would keep beats waiting too.
        self._store = store.clone() if hasattr(store, "clone") else store
        self._rank, self._world = rank, world
        self._group, self._pid = dist.group.WORLD, os.getpid()
        self._trouble, self._bereft, self._mute = "", False, False
        self._heard: dict[int, tuple[bytes, float]] = {}
        self._looked = time.monotonic()
        self._met: dict[str, int] = {}
        self._stop = threading.Event()
        self._set(f"beat/{rank}", "0")
        self._thread = threading.Thread(target=self._beat, name="prima-bench-attendance", daemon=True)
        self._thread.start()
        atexit.register(self._leave)

    @property
    def current(self) -> bool:
        """Whether it belongs to the process group that is up now, in this process."""
        return self._group is dist.group.WORLD and self._pid == os.getpid()

    def trouble(self, what: str) -> None:
        """Remember what went wrong here last, for the others in case this rank ends; empty once it goes on."""
        self._trouble = what

    def look(self, group: Any = None, place: str = "") -> None:
        """Raise if another rank of a group is gone; costs nothing when the last look was a moment ago.

        Args:
            group: The process group; None for all ranks.
            place: Where they are waited for; a rank that ended well is missed there only.

        Raises:
            LostRankError: Naming the rank and why.
        """
        if time.monotonic() - self._looked >= max(LOOK_SECONDS, self._world / 32):
            self._refuse_gone(self._members(group), place)

    def meet(self, group: Any) -> None:
        """Wait until all ranks of a group have come here.

        Args:
            group: The process group; None for all ranks.

        Raises:
            LostRankError: If one of them is gone, or never came for as long as torch.distributed waits.
        """
        members = self._members(group)
        name = ",".join(map(str, members)) if len(members) < self._world else "all"
        number = self._met[name] = self._met.get(name, 0) + 1
        place, came, pause = f"meeting/{name}/{number}", time.monotonic(), 0.0005
        try:
            self._set(f"{place}/{self._rank}", "")
            if self._store.add(_key(f"{place}/here"), 1) == len(members):
                self._set(f"{place}/all", "")
            while not self._has(f"{place}/all"):
                self.look(group, place)
                if time.monotonic() - came > dist.default_pg_timeout.total_seconds():
                    self._refuse_unheard(members)
                time.sleep(pause)
                pause = min(pause * 1.5, 0.05)
        except dist.DistError as error:
            raise self._no_store() from error

    def blame(self, group: Any, error: BaseException) -> LostRankError:
        """The error for a collective that failed, once it is known which rank is to blame."""
        until = time.monotonic() + LOST_SECONDS + 2 * BEAT_SECONDS
        while time.monotonic() < until:
            try:
                self._refuse_gone(self._members(group))
            except LostRankError as found:
                return found
            time.sleep(0.1)
        return LostRankError(f"the ranks could not exchange their rows: {first_line(str(error))}", hint=_HINT)

    def _members(self, group: Any) -> Sequence[int]:
        return range(self._world) if group is None else dist.get_process_group_ranks(group)

    def _refuse_gone(self, members: Sequence[int], place: str = "") -> None:
        """Raise for the first member that gave up or fell silent, or else left although it is waited for at a place."""
        self._looked = time.monotonic()
        try:
            fate = {r: self._said(f"gone/{r}") or self._silence(r) for r in members if r != self._rank}
            away = [r for r, why in fate.items() if why == _LEFT and place and not self._has(f"{place}/{r}")]
        except dist.DistError as error:
            raise self._no_store() from error
        for rank, why in fate.items():
            if why not in ("", _LEFT):
                self._bereft = True
                raise LostRankError(f"rank {rank} {why}", rank=rank, hint=_HINT)
        for rank in away:
            self._bereft = True
            raise LostRankError(f"rank {rank} ended without coming to share its rows", rank=rank, hint=_HINT)

    def _refuse_unheard(self, members: Sequence[int]) -> None:
        for rank in members:
            if not self._has(f"beat/{rank}"):
                raise LostRankError(f"rank {rank} never came to share its rows", rank=rank, hint=_HINT)

    def _silence(self, rank: int) -> str:
        """What to say of a rank that was heard, and then no more. One with nothing to share yet does not beat."""
        beat, now = self._said(f"beat/{rank}").encode(), time.monotonic()
        last, since = self._heard.get(rank, (b"", now))
        if not beat or beat != last:
            self._heard[rank] = beat, now
        elif now - since > LOST_SECONDS:
            # The first to find it out writes it down, so that all say the same.
            return bytes(self._store.compare_set(_key(f"gone/{rank}"), "", _SILENT)).decode()
        return ""

    def _no_store(self) -> LostRankError:
        self._bereft = self._mute = True
        return LostRankError(
            "the store of the process group cannot be reached: the process that keeps it, as a rule rank 0, has ended",
            hint=_HINT,
        )

    def _set(self, name: str, value: str) -> None:
        self._store.set(_key(name), value)

    def _has(self, name: str) -> bool:
        return bool(self._store.check([_key(name)]))

    def _said(self, name: str) -> str:
        return bytes(self._store.get(_key(name))).decode() if self._has(name) else ""

    def _beat(self) -> None:
        beats = 0
        while not self._stop.wait(BEAT_SECONDS) and threading.main_thread().is_alive():
            beats += 1
            if not self.current:
                self._say_farewell()
                return
            try:
                self._set(f"beat/{self._rank}", str(beats))
            except dist.DistError:
                return  # nobody is left to hear it

    def _leave(self) -> None:
        if self._pid == os.getpid() and self._thread.is_alive():
            self._stop.set()
            self._thread.join(timeout=5)
            self._say_farewell()

    def _say_farewell(self) -> None:
        """Tell the others why this process ends; without this they would find out by its silence alone."""
        if self._mute:
            return
        uncaught = getattr(sys, "last_exc", None)
        why = self._trouble or (f"{type(uncaught).__name__}: {uncaught}" if uncaught is not None else "")
        try:
            # One that ends because another is gone has nothing to add.
            self._set(f"gone/{self._rank}", f"{_GAVE_UP}: {first_line(why)}" if why and not self._bereft else _LEFT)
        except dist.DistError:
            return  # nobody is left to read it


def first_line(text: str) -> str:
    r"""The first line of a message, within bounds.

    >>> first_line("rows are missing\nhint: add them")
    'rows are missing'
    """
    return text.strip().split("\n")[0][:2000]


def attend() -> Attendance | None:
    """This process's part in looking after each other, from now on; None where it has no other ranks.

    >>> attend() is None
    True
    """
    global _here
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() < 2:
        return None
    if _here is None or not _here.current:
        # There is no public way to the store that every process group has.
        store = dist.distributed_c10d._get_default_store()
        _here = Attendance(store, dist.get_rank(), dist.get_world_size())
    return _here


_here: Attendance | None = None


def _key(name: str) -> str:
    return f"prima_bench/{name}"
