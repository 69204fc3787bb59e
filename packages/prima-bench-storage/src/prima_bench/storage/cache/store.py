"""The cache as the rest sees it: a blob is found by one look at the file system, or it is not there.

A blob that has another size than it must have, or that was written to since it was verified, is never handed out: it is
moved aside with a warning, and so is fetched again.
"""

import contextlib
import logging
import os
import secrets
from functools import partial
from pathlib import Path

from prima_bench.storage.cache.layout import (
    DIRECTORY,
    HINT,
    Layout,
    is_stamped,
    note_use,
    regular_file,
    verified,
)
from prima_bench.storage.content import Content
from prima_bench.storage.errors import CacheError
from prima_bench.storage.settings import folder_setting
from prima_bench.storage.verify import matches, sha256_of

SHARED = "PRIMA_BENCH_SHARED_CACHE_DIR"

_log = logging.getLogger("prima_bench.storage")


class Cache:
    """A folder of verified files, and perhaps others that are only read.

    Attributes:
        root: The folder.
        layout: Where things lie in it.
        shared: Caches that are consulted first and never written.
    """

    def __init__(self, root: Path, shared: tuple[Path, ...] = ()) -> None:
        self.root = root
        self.layout = Layout(root)
        self.shared = tuple(map(Layout, shared))

    @classmethod
    def from_environment(cls) -> "Cache":
        """The cache at ``PRIMA_BENCH_CACHE_DIR``, else in the user's cache directory.

        ``PRIMA_BENCH_SHARED_CACHE_DIR`` names a cache that others filled; it is consulted first.

        Raises:
            SettingsError: If one of them is no path.
        """
        other, root = folder_setting(SHARED), folder_setting(DIRECTORY)
        shared = () if other is None else (other,)
        if root is not None:
            return cls(root, shared)
        import platformdirs

        return cls(platformdirs.user_cache_path("prima-bench", appauthor=False), shared)

    def path(self, name: str) -> Path:
        """Where the blob of that name is or would be; without part digests the name is the sha256."""
        return self.layout.blob(name)

    def find(self, content: Content) -> Path | None:
        """The blob, if it is here and right; a look at its status and at the note of its use, nothing is read.

        That it is used is noted once a minute, where that is allowed.

        Raises:
            CacheError: If the cache cannot be looked into.
        """
        for layout in self._layouts():
            path, status = layout.blob(content.name), None
            try:
                status = regular_file(path)
                if status is None:
                    continue
                if status.st_size == content.size and (
                    is_stamped(status) or verified(path, partial(matches, content=content), content.part_size)
                ):
                    if layout.root == self.root:
                        note_use(layout, path, status)
                    return path
                if path.name == content.sha256 and status.st_size != content.size and sha256_of(path) == path.name:
                    continue  # the file is right, the size in the pin is not
            except FileNotFoundError:
                continue  # another process has put it aside
            except OSError as error:
                if status is not None and isinstance(error, PermissionError):
                    # Another user's, who was interrupted. Where one may write to the folder, it is fetched again.
                    _log.warning("%s: may not be read and is not used", path)
                    continue
                raise CacheError(f"the cache at {layout.root} cannot be read: {error.strerror}", hint=HINT) from error
            self._put_aside(layout, path, status)
        return None

    def view(self, folder: str, name: str, blob: Path) -> Path:
        """A blob under a name that people know, as a hard link; the blob itself where there is none.

        It is made where it is missing, but not in a shared cache.

        Args:
            folder: Name of the folder of views.
            name: Relative path in it, with forward slashes.
            blob: What :meth:`find` returned.
        """
        home = next((layout for layout in self._layouts() if blob.is_relative_to(layout.blobs)), None)
        if home is None:
            return blob
        link = home.views / folder / name
        try:
            found = regular_file(link)
            if found is not None and os.path.samestat(found, blob.stat()):
                return link
            if home.root != self.root:
                return blob
            self.layout.create(link.parent)
            # By way of a name of its own, so that the view is replaced in one step.
            temporary = link.parent / f".{secrets.token_hex(8)}"
            os.link(blob, temporary)
            try:
                temporary.replace(link)
            finally:
                temporary.unlink(missing_ok=True)
        except OSError:
            return blob
        return link

    def quarantine(self, path: Path, judged: os.stat_result | None = None) -> Path | None:
        """Move a damaged blob out of sight; None where that cannot be done.

        Args:
            path: A blob of this cache.
            judged: The status of the file that was found damaged; another that has replaced it stays.
        """
        aside = self.layout.quarantine / f"{path.name}-{secrets.token_hex(4)}"
        try:
            self.layout.create(aside.parent)
            path.replace(aside)
            if judged is not None and not os.path.samestat(judged, aside.lstat()):
                aside.replace(path)
                return None
        except OSError:
            with contextlib.suppress(OSError):
                aside.parent.rmdir()
            return None
        return aside

    def _layouts(self) -> tuple[Layout, ...]:
        return (*self.shared, self.layout)

    def _put_aside(self, layout: Layout, path: Path, judged: os.stat_result) -> None:
        aside = self.quarantine(path, judged) if layout.root == self.root else None
        if aside is None:
            _log.warning("%s: is damaged and is not used; it cannot be moved from there", path)
        else:
            _log.warning("%s: was damaged, is moved to %s and fetched again", path, aside)
