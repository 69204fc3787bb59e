"""Puts the documents at the repository's root onto the site, so that each text exists once.

A page whose only line, below any front matter, is ``--8<-- "GUIDE.md"`` shows that file. Links are written for the
repository, relative to the file's own folder; here they are made to point at the page that shows the same thing. A link
to a file that the site does not have keeps its words and loses its target.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

_INCLUDE = re.compile(r'\s*(?:---\n.*?\n---\n)?\s*--8<-- "(?P<path>[^"]+)"\s*', re.DOTALL)
_LINK = re.compile(r"\[(?P<label>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<target>[^()\s]+)\)")
_FENCE = re.compile(r"^\s*(```|~~~)")


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Replace a page that names a root document by that document (called by MkDocs)."""
    path = _included(markdown)
    if path is None:
        return markdown
    root = Path(config.config_file_path).parent
    docs = Path(config.docs_dir).relative_to(root).as_posix()
    pages = {f"{docs}/{f.src_uri}": f.src_uri for f in files}
    for file in files.documentation_pages():
        shown = _included(file.content_string)
        if shown is not None:
            pages[shown] = file.src_uri
    text = (root / path).read_text(encoding="utf-8")
    return rewrite_links(text, here=path, page=page.file.src_uri, pages=pages)


def rewrite_links(text: str, *, here: str, page: str, pages: dict[str, str]) -> str:
    """Point the links of a repository document at pages of the site; code blocks are left alone.

    Args:
        text: The document.
        here: Its path in the repository.
        page: The page that shows it.
        pages: What the site has: repository path to page.
    """
    lines, fenced = [], False
    for line in text.splitlines():
        if _FENCE.match(line):
            fenced = not fenced
        lines.append(line if fenced else _LINK.sub(lambda m: _rewritten(m, here, page, pages), line))
    return "\n".join(lines) + "\n"


def _rewritten(match: re.Match[str], here: str, page: str, pages: dict[str, str]) -> str:
    label, target = match["label"], match["target"]
    path, mark, anchor = target.partition("#")
    if not path or "://" in path or path.startswith("mailto:"):
        return match[0]
    wanted = posixpath.normpath(posixpath.join(posixpath.dirname(here), path))
    shown = pages.get(wanted) or pages.get(f"{wanted}/index.md")
    if shown is None:
        return label
    return f"[{label}]({posixpath.relpath(shown, posixpath.dirname(page) or '.')}{mark}{anchor})"


def _included(markdown: str) -> str | None:
    match = _INCLUDE.fullmatch(markdown)
    return match["path"] if match else None
